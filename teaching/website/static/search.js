// The search page: sections in which every word begins a word, best first, each with the place where the first was met.
"use strict";

const field = document.getElementById("words"), MOST = 40;

// A regular expression per word; "masks" also finds "mask". A hyphen is not escaped: with the flag u that is an error.
const patternsOf = query => query.toLowerCase().match(/[\p{L}\p{N}_]+([.-][\p{L}\p{N}_]+)*/gu)?.map(word =>
  new RegExp(`(?<![\\p{L}\\p{N}])${word.replace(/(?<=\w{3})s$/, "").replaceAll(".", "\\.")}`, "giu")) ?? [];

// How well a section fits: a word in its title counts as ten in its text; 0 if a word is missing.
const fit = (patterns, [, , , title, text]) => {
  const counts = patterns.map(pattern => 10 * (title.match(pattern)?.length ?? 0)
    + Math.min(9, text.match(pattern)?.length ?? 0));
  return counts.includes(0) ? 0 : counts.reduce((sum, count) => sum + count, 0);
};

const excerpt = (patterns, text) => {
  const met = Math.min(...patterns.map(pattern => text.search(pattern)).filter(at => at >= 0));
  const from = Number.isFinite(met) && met > 80 ? text.indexOf(" ", met - 60) + 1 : 0;
  const line = document.createElement("p"), shown = text.slice(from, from + 200).replace(/\S*$/, "");
  const marks = patterns.flatMap(pattern => [...shown.matchAll(pattern)]).sort((a, b) => a.index - b.index);
  let end = 0;
  for (const mark of marks) {
    if (mark.index < end) continue; // two words met in one place
    const bold = document.createElement("mark");
    bold.textContent = mark[0];
    line.append(shown.slice(end, mark.index), bold);
    end = mark.index + mark[0].length;
  }
  line.prepend(from ? "… " : "");
  line.append(shown.slice(end), from + 200 < text.length ? "…" : "");
  return line;
};

const search = () => {
  const patterns = patternsOf(field.value);
  const hits = patterns.length ? sections.map(section => [fit(patterns, section), section]).filter(hit => hit[0]) : [];
  hits.sort((a, b) => b[0] - a[0]);
  document.getElementById("found").textContent = !patterns.length ? "Type one word or more."
    : `${hits.length || "No"} section${hits.length === 1 ? "" : "s"} with ${patterns.length > 1 ? "all of " : ""}“${field.value.trim()}”`
      + (hits.length > MOST ? `; the best ${MOST}:` : "");
  document.getElementById("results").replaceChildren(...hits.slice(0, MOST).map(([, [page, anchor, name, title, text]]) => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = `${page}#${anchor}`;
    link.textContent = title === name ? title : `${name} › ${title}`;
    item.append(link, excerpt(patterns, text));
    return item;
  }));
};

field.value = new URLSearchParams(location.search).get("q") ?? "";
field.addEventListener("input", search);
search();
