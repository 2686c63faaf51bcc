// Boxes that scroll by keyboard, and the search.
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

// On paper every fold is open, but the solutions; afterwards it is as it was.
const folds = (which, open) => document.querySelectorAll(which).forEach(fold => {
  fold.open = open;
  fold.toggleAttribute("data-for-paper", open);
});
addEventListener("beforeprint", () => folds("details:not([open], .solutions)", true));
addEventListener("afterprint", () => folds("[data-for-paper]", false));

// On the search page: the terms of the glossary, with their other names, are entries of the index at the section that
// teaches them. They come first, whatever the hyphens, and with a letter in five mistaken.
if (typeof Search !== "undefined") {
  const plain = text => text.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
  const apart = (a, b) => { // letters to put in, take out or change
    let row = [...Array(b.length + 1).keys()];
    for (let i = 0; i < a.length; i++) {
      const next = [i + 1];
      for (let j = 0; j < b.length; j++) next.push(Math.min(next[j] + 1, row[j + 1] + 1, row[j] + (a[i] !== b[j])));
      row = next;
    }
    return row[b.length];
  };
  const usual = Search._performSearch;
  Search._performSearch = (query, ...words) => {
    const { indexentries, docnames, filenames, titles } = Search._index, asked = plain(query);
    const names = Object.entries(indexentries).map(([name, places]) => [apart(plain(name), asked), name, places]);
    const least = Math.min(...names.map(([far]) => far)), found = names.filter(([far]) => far === least && 5 * far <= asked.length);
    const first = found.flatMap(([, name, places]) => places.map(([file, id]) =>
      [docnames[file], `${titles[file]}: ${name}`, `#${id}`, null, 1000, filenames[file], "index"]));
    const others = found.length && least ? usual(...Search._parseQuery(found[0][1])) : usual(query, ...words);
    return [...others.filter(([, , , , , , kind]) => kind !== "index"), ...first]; // the last one is shown first
  };
}
