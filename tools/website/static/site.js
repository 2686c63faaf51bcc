// Everything that moves on the site: the explorers' frames, and boxes that scroll by keyboard.
"use strict";

for (const figure of document.querySelectorAll("figure.frames")) {
  const { values, frames } = JSON.parse(figure.querySelector("script").textContent);
  const controls = [...figure.querySelectorAll("input, select")]; // the first one changes the number fastest
  const picture = figure.querySelector("img");
  const indexOf = control => control.matches("select") ? control.selectedIndex : Number(control.value);
  const show = () => {
    const frame = frames[controls.reduceRight((number, control, i) => number * values[i].length + indexOf(control), 0)];
    picture.src = frame.src;
    picture.alt = frame.alt;
    controls.forEach((control, i) => {
      if (control.matches("select")) return;
      control.setAttribute("aria-valuetext", values[i][control.value]);
      control.nextElementSibling.value = values[i][control.value];
    });
    figure.querySelector(".finding").textContent = frame.finding;
    const settings = figure.querySelector(".settings");
    settings.textContent = settings.textContent.replace(/^[^]*(?= Here some)/, frame.settings);
  };
  const loadAll = () => { for (const frame of frames) new Image().src = frame.src; };
  figure.addEventListener("pointerenter", loadAll, { once: true });
  figure.addEventListener("focusin", loadAll, { once: true });
  figure.addEventListener("input", show);
}

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
