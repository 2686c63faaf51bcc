// The small form on the start page: the model of the live page, one of its heads, and five settings to compare.
"use strict";

(() => {
  const { $, say, make, percent, quoted, largest, read, extend, drawNext, drawMap, drawClocks, whenTheLookChanges } = LivePictures;
  const PACE = 8, MORE = 24, MOST = 48; // tokens per second, at one press, and at most
  const SENTENCE = "The value of the expression is";
  const CHANGES = { // what the engine wants, and what the lenses show then
    "as trained": [{}, "the hatched future is hidden", "both turned by RoPE"],
    "RoPE off": [{ still: true }, "the hatched future is hidden", "neither turned"],
    "positions + 100": [{ shift: 100 }, "the hatched future is hidden", "both turned 100 positions further"],
    "window of 4": [{ window: 4 }, "each token sees itself and the three before it", "both turned by RoPE"],
    "no mask": [{ future: true }, "nothing is hidden, so the future leaks", "both turned by RoPE"],
  };
  const before = []; // sentences to return to
  let typing, turn = 0; // the timer that waits for the last letter; counts what was begun to write
  let seed = 1097816499; // everybody sees the same first text
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;

  $("start").innerHTML = `<div class="live two">
    <div><label for="live-text">A LLaMA of 1.3 million parameters, trained on the Python reference, writes:</label>
      <textarea id="live-text" rows="4" spellcheck="false" autocomplete="off">${SENTENCE}</textarea>
      <div class="row"><button type="button" id="live-write" class="primary">Write</button>
        <button type="button" id="live-undo" disabled>Undo</button></div>
      <div class="row" id="live-changes" role="group" aria-label="Change the model"></div>
      <ol id="live-next" class="bars" aria-label="What it may say next"></ol>
      <p id="live-finding" role="status"></p></div>
    <div><div class="lenses-now"><canvas id="live-map" role="img"></canvas><div id="live-clocks"></div></div>
      <p class="note" id="live-caption"></p>
      <div class="hidden"><p id="live-next-finding"></p><p id="live-map-finding"></p><p id="live-clocks-finding"></p></div></div></div>`;

  const page = {
    ...Live.open(window.liveData), change: {}, query: null, key: null, head: [5, 2], // it looks at the token before
    writing: false, temperature: 0.5, topP: 1,
  };

  function draw() {
    if (!page.run) return;
    const t = page.run.ids.length - 1;
    drawNext(page);
    drawMap(page, t);
    drawClocks(page, t);
  }

  /** Why a change leaves all as it was, where the reason is known: the change, and how many tokens there are. */
  function whyStill({ shift, window }, n) {
    if (n === 1) return "One token can only look at itself.";
    if (window >= n) return `The window holds all ${n} tokens.`;
    return shift ? "Only distances count." : "";
  }

  /** Read the sentence again, and say what the change does to the next token. */
  function show() {
    const all = page.tokenizer.encode($("text").value.slice(0, 64 * MOST)), ids = all.slice(0, MOST);
    page.run = read(page, ids);
    draw();
    $("start").classList.toggle("empty", !page.run);
    const [name, [, mask, angle]] = Object.entries(CHANGES).find(([, [change]]) => change === page.change);
    say("caption", `Left, the mask lens: where one head of the last block looks; ${mask}. Right, the angle lens: the head's ` +
      `query for the last token (blue) and the key that it weighs most (dashed), ${angle}: pairs 0, 4, 8 and 12, fastest first.`);
    for (const button of $("changes").children) button.setAttribute("aria-pressed", button.textContent === name);
    $("write").disabled = !page.run;
    if (!page.run) return say("finding", "Type a sentence: there is nothing to read yet.");
    if (all.length > MOST) return say("finding", `This small form reads ${MOST} tokens; the live page reads more.`);
    const is = Live.softmax(page.run.logits[ids.length - 1], page.temperature);
    const was = name === "as trained" ? is : Live.softmax(page.model.forward(ids, { lastOnly: true }), page.temperature);
    const [first, now] = [was, is].map(largest);
    const told = (shares, best) => `${quoted(page, best)}, ${percent(shares[best])}`;
    say("finding", name === "as trained" ? `Most likely next: ${told(was, first)}.`
      : is.every((share, id) => Math.abs(share - was[id]) < 1e-4) ? `${name}: still ${told(is, now)}. ${whyStill(page.change, ids.length)}`
        : `${name}: ${told(is, now)} next. As trained: ${told(was, first)}.`);
  }

  const full = () => say("finding", `This small form stops at ${MOST} tokens. ${before.length ? "Press Undo, shorten" : "Shorten"} the sentence, or go on in the live page.`);

  async function write() {
    if (page.run.ids.length >= MOST) return full();
    const mine = ++turn, { change } = page, text = $("text").value, all = Math.min(MOST, page.run.ids.length + MORE);
    const pause = () => new Promise((done) => setTimeout(done, 1000 / PACE));
    before.push(text);
    $("undo").disabled = false;
    page.writing = true;
    $("write").textContent = "Stop";
    say("finding", "Writing …");
    let said = text;
    while (page.writing && mine === turn && page.run.ids.length < all && page.change === change && $("text").value === said) {
      const { ids, cache, logits } = page.run, token = Live.choose(logits[ids.length - 1], page.temperature, page.topP, random);
      page.run = cache ? extend(page, page.run, [token]) : read(page, [...ids, token]);
      $("text").value = said = page.tokenizer.decode(page.run.ids);
      $("text").scrollTop = $("text").scrollHeight;
      draw();
      await pause();
    }
    if (mine !== turn) return; // stopped, and begun again
    page.writing = false;
    $("write").textContent = "Write";
    if (page.run?.ids.length >= MOST && $("text").value === said) full(); else show();
  }

  $("changes").append(...Object.keys(CHANGES).map((name) => make("button", {
    type: "button", textContent: name, onclick: () => { [page.change] = CHANGES[name]; show(); },
  })));
  $("text").addEventListener("input", () => {
    page.writing = false;
    clearTimeout(typing);
    typing = setTimeout(show, 120);
  });
  $("write").onclick = () => {
    if (page.writing) return (page.writing = false);
    show(); // what was typed a moment ago
    if (page.run) write();
  };
  $("undo").onclick = () => {
    page.writing = false;
    $("text").value = before.pop();
    $("undo").disabled = !before.length;
    show();
  };
  whenTheLookChanges(draw);
  [page.change] = CHANGES["as trained"];
  show();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) write(); // three seconds of it
})();
