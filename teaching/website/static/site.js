// Boxes that scroll by keyboard.
"use strict";

// A wide picture scrolls in a box of its own. A box that scrolls must be reachable by Tab, must say what it is, and fades
// at its right edge until its end is seen.
for (const picture of document.querySelectorAll("article figure img.wide")) {
  const box = document.createElement("div"), whole = picture.closest("a") ?? picture;
  box.className = "wide-box";
  whole.replaceWith(box);
  box.append(whole);
}
const nameOf = box => box.matches(".wide-box") ? "Figure" : box.matches(".math") ? "Formula"
  : box.matches(".table-wrapper") ? "Table" : box.closest(".cell_input") ? "Code" : "Text";
const fade = box => box.classList.toggle("goes-on", box.scrollLeft < box.scrollWidth - box.clientWidth - 2);
const mark = () => {
  for (const box of document.querySelectorAll("article :is(pre, .table-wrapper, div.math, .wide-box)")) {
    fade(box);
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    if (scrolls === box.hasAttribute("tabindex")) continue;
    if (scrolls) {
      box.tabIndex = 0;
      box.ariaLabel = `${nameOf(box)}, wider than the page`;
      box.role = "group";
    } else for (const name of ["tabindex", "aria-label", "role"]) box.removeAttribute(name);
  }
};
mark();
addEventListener("load", () => { mark(); window.MathJax?.startup.promise.then(mark); });
addEventListener("resize", mark);
document.addEventListener("scroll", event => event.target.matches?.("[tabindex]") && fade(event.target), true);
document.addEventListener("toggle", mark, true); // an opened <details> shows new boxes
