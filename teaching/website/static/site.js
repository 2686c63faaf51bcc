// Everything that moves on the site: the explorers' frames, boxes that scroll by keyboard, and what a term means.
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

// A term of the glossary shows its entry while the pointer or the focus is on it; Escape closes it. A finger's first tap
// opens it, a second one on the same word follows the link.
{
  const tip = document.createElement("div");
  let shown = null, later;
  const hideTip = () => {
    clearTimeout(later);
    shown?.removeAttribute("aria-describedby");
    if (shown) tip.hidePopover();
    shown = null;
  };
  const showTip = (term, touched = false) => {
    clearTimeout(later);
    if (shown === term) return;
    hideTip();
    shown = term;
    tip.innerHTML = `${term.dataset.tip} <small>Tap the word again for the glossary.</small>`;
    tip.classList.toggle("touched", touched);
    tip.showPopover();
    const at = [...term.getClientRects()].pop(), above = at.bottom + tip.offsetHeight + 8 > innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8)) + scrollX}px`;
    tip.style.top = `${(above ? at.top - tip.offsetHeight - 4 : at.bottom + 4) + scrollY}px`;
    term.setAttribute("aria-describedby", tip.id);
  };
  if (document.querySelector(".term") && tip.showPopover) {
    Object.assign(tip, { id: "term-tip", role: "tooltip", popover: "manual" });
    document.body.append(tip);
    const soon = (act, wait) => { clearTimeout(later); later = setTimeout(act, wait); };
    const termAt = event => event.target.closest?.(".term");
    document.addEventListener("pointerover", event => {
      if (event.pointerType === "touch") return;
      if (termAt(event)) soon(() => showTip(termAt(event)), 150);
      else if (tip.contains(event.target)) clearTimeout(later);
      else if (shown && shown !== document.activeElement) soon(hideTip, 250);
      else if (!shown) clearTimeout(later);
    });
    document.addEventListener("focusin", event => termAt(event)?.matches(":focus-visible") && showTip(termAt(event)));
    document.addEventListener("focusout", event => termAt(event) && hideTip());
    document.addEventListener("keydown", event => event.key === "Escape" && hideTip());
    document.addEventListener("click", event => {
      const term = termAt(event);
      if (!term) return tip.contains(event.target) || hideTip();
      if (event.pointerType !== "touch" || term === shown) return;
      event.preventDefault();
      showTip(term, true);
    });
  }
}
for (const button of document.querySelectorAll("button.print")) button.addEventListener("click", () => print());
