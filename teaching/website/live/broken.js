// What is broken? A small LLaMA reads one sentence twice, as trained and with one fault; which of twelve is it? The game's
// number, #no=329 in the address, stands for a sentence and a fault; today's follows from the date.
"use strict";

(() => {
  const { $, say, make, angle, length, shown } = LivePictures;
  const SENTENCES = ["The name of the class is the value", "A class has a name and a method", "The value of a name is an object",
    "The function returns a list of names", "A list is an object that has a value"];
  const LIMITS = [3, 10, 20, 40, 60]; // between the colours [degrees]
  const { model, tokenizer } = Live.open(window.liveData), faults = [...$("faults").children], wrong = new Set();
  let no, ids, trained, right, found;

  /** The residual stream behind each branch, two per block, each (T, D). */
  function streams(change) {
    const all = [];
    model.forward(ids, { change, see: ({ layer, middle, x }) => { if (layer >= 0) all.push(middle, x); } });
    return all;
  }

  /** By branch and token: the angle between the streams of the two models [degrees]; null where nothing has changed. */
  function angles(change) {
    const { dim } = model.config;
    return streams(change).map((x, branch) => ids.map((_, t) => {
      const [a, b] = [trained[branch], x].map((stream) => stream.subarray(t * dim, (t + 1) * dim));
      return length(a.map((value, i) => value - b[i])) < 1e-4 * length(a) ? null : (angle(a, b) * 180) / Math.PI;
    }));
  }

  const branchOf = (row) => `${row % 2 ? "feed-forward" : "attention"} ${row >> 1}`;

  /** The tokens of a row that have changed, or have not; they stand side by side. */
  function where(row, changed) {
    const at = [...row.keys()].filter((t) => (row[t] !== null) === changed), last = at[at.length - 1];
    return at.length === row.length ? "all tokens" : at.length > 1 ? `tokens ${at[0]} to ${last}` : at.length ? `token ${last}` : "no token";
  }

  /** What is to be seen, in words. */
  function words(grid) {
    const first = grid.findIndex((row) => row.some((value) => value !== null)), last = grid[grid.length - 1];
    if (first < 0) return "Nothing has changed anywhere.";
    return `First change: ${branchOf(first)}, ${where(grid[first], true)}. Unchanged to the end: ${where(last, false)}. ` +
      `Largest angle: ${Math.max(...grid.flat()).toFixed(0)}°.`;
  }

  function cell(value) {
    if (value === null) return make("td", { className: "same" }, make("span", { textContent: "unchanged" }));
    return make("td", { className: `a${LIMITS.filter((limit) => Math.round(value) >= limit).length}`, textContent: Math.round(value) });
  }

  function draw(table, title, grid) {
    const tokens = ids.map((id) => make("th", { scope: "col" }, make("span", { textContent: shown({ tokenizer }, id) })));
    const rows = grid.map((row, branch) => make("tr", {}, make("th", { scope: "row", textContent: branchOf(branch) }), ...row.map(cell)));
    table.replaceChildren(make("caption", {}, make("b", { textContent: title }), ` ${words(grid)}`),
      make("thead", {}, make("tr", {}, make("td"), ...tokens)), make("tbody", {}, ...rows));
  }

  const changeOf = ({ dataset }) => JSON.parse(dataset.change);
  const today = (now = new Date()) => Math.max(0, (Date.UTC(now.getFullYear(), now.getMonth(), now.getDate()) - Date.UTC(2026, 0, 1)) / 864e5);

  /** A new game: that of the address, or today's. */
  function begin() {
    const named = location.hash.match(/^#no=(\d{1,6})$/);
    no = named ? Number(named[1]) : today();
    ids = tokenizer.encode(SENTENCES[no % SENTENCES.length]);
    trained = streams({});
    right = faults[(7 * no) % faults.length];
    found = false;
    wrong.clear();
    $("guessed").hidden = true;
    $("how").hidden = false;
    draw($("fault"), `Game ${no}${no === today() ? ", today’s" : ""}.`, angles(changeOf(right)));
    say("verdict", "");
    mark();
  }

  function mark() {
    for (const fault of faults) {
      fault.classList.toggle("wrong", wrong.has(fault));
      fault.classList.toggle("primary", found && fault === right);
    }
    const tries = wrong.size ? `with ${wrong.size + 1} guesses` : "with the first guess";
    $("line").value = `What is broken? Game ${no}${found ? `: found ${tries}` : ""}. ${location.href.split("#")[0]}#no=${no}`;
    $("open").hidden = !found;
    const state = { text: tokenizer.decode(ids), change: changeOf(right) }; // as live.js keeps it
    $("open").href = `live.html#${encodeURIComponent(JSON.stringify(state))}`;
    say("copied", "");
    return tries;
  }

  function guess(fault) {
    const hit = fault === right, name = fault.textContent, { why } = fault.dataset;
    if (!found && !hit) wrong.add(fault);
    found ||= hit;
    const tries = mark();
    say("verdict", hit ? `Found ${tries}: ${name}. ${why}` : `${found ? "" : "Not this one. "}“${name}” would draw the second picture. ${why}`);
    $("how").hidden = !hit;
    $("guessed").hidden = hit;
    if (!hit) draw($("guessed"), `${name}.`, angles(changeOf(fault)));
  }

  /** Copy the line, or select it; and say so. */
  async function copy() {
    const only = location.protocol === "file:" ? " It opens on this machine only: this page is a file." : "";
    $("line").select();
    const copied = await navigator.clipboard?.writeText($("line").value).then(() => true, () => false);
    say("copied", `${copied ? "Copied." : "It is selected: press Ctrl+C (on a Mac ⌘C)."}${only}`);
  }

  for (const fault of faults) fault.onclick = () => guess(fault);
  $("copy").onclick = copy;
  $("another").onclick = () => { location.hash = `no=${Math.floor(1e5 * Math.random())}`; };
  addEventListener("hashchange", begin);
  begin();
  $("game").hidden = false;
  $("loading").remove();
  window.liveBroken = { angles, changeOf, faults, sentence: () => tokenizer.decode(ids) }; // for tests and for the curious
})();
