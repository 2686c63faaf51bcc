// The first screen: one model twice, as trained and with one thing broken. Both go on from the same words with the same
// random numbers. The page comes with the result of the first run, so that nothing is empty or jumps before the model is
// loaded; a test compares it.
"use strict";

(() => {
  const { $, say, make, mean, quoted, read, extend, drawMap, drawClocks, whenTheLookChanges } = LivePictures;
  const PACE = 13, NEW = 40, MOST = 24; // tokens per second, tokens that are written, tokens that are read before
  const TEMPERATURE = 0.4, SEED = 182137; // everybody sees the same first texts
  const CHANGES = { // what the engine wants, and what the lenses show then; the names are those of the live page's links
    nothing: [{}, "the hatched future is hidden", "both turned by RoPE"],
    mask: [{ future: true }, "nothing is hidden", "both turned by RoPE"],
    rope: [{ still: true }, "the hatched future is hidden", "neither turned"],
    block3: [{ blocks: [3] }, "the hatched future is hidden", "both turned by RoPE"],
    window4: [{ window: 4 }, "each token sees itself and the three before it", "both turned by RoPE"],
    gate: [{ gate: false }, "the hatched future is hidden", "both turned by RoPE"],
  };
  const opened = Live.open(window.liveData), { model, tokenizer } = opened;
  const passages = window.liveData.passages.map((text) => tokenizer.encode(text));
  const guess = Math.log(model.config.vocabSize), losses = new Map(); // mean loss on the passages, by change
  const before = []; // what Undo returns to
  const radios = [...document.querySelectorAll("#live-off input")];
  let now = null; // what is shown: the prompt, what is off, random numbers from `seed` to `next`, token ids, `start` given
  let sides = []; // the two models as pictures.js wants them, with what they made of their texts
  let turn = 0, waiting = null, writing = false; // counts what was begun; whose loss is being computed

  const labelOf = (off) => radios.find((radio) => radio.value === off).parentElement.textContent.trim();
  const chosen = () => radios.find((radio) => radio.checked).value;
  const idle = () => new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done));
  const upTo = (value, digits = 2) => value.toFixed(digits);

  /** What stands behind the # of the live page's address for this text and this change. */
  function linkOf(off, ids) {
    const text = tokenizer.decode(ids), pieces = String(tokenizer.encode(text)) === String(ids) ? "" : `&ids=${ids}`;
    return `text=${encodeURIComponent(text)}${pieces}${{ nothing: "", window4: "&window=4" }[off] ?? `&off=${off}`}`;
  }

  // ------------------------------------------------------------------------------------------------------------- show

  /** How many of the written tokens are the same before the first that differs. */
  function agreement({ start, left, right }) {
    let same = 0;
    while (start + same < left.length && left[start + same] === right[start + same]) same++;
    return same;
  }

  function showText(box, ids, start, same) {
    const at = start + same, words = (...range) => tokenizer.decode(ids.slice(...range));
    box.replaceChildren(make("b", { textContent: words(0, start) }), words(start, at),
      ...(at < ids.length ? [make("mark", { textContent: words(at, at + 1) }), words(at + 1)] : []));
    box.scrollTop = writing ? box.scrollHeight : 0; // at rest it is read from its beginning
  }

  function showLoss(name, off) {
    const number = $(`${name}-loss`), bar = number.previousElementSibling, loss = losses.get(off);
    if (loss === undefined && number.dataset.of === off) return; // it stands there already
    number.dataset.of = off;
    number.textContent = loss === undefined ? "…" : upTo(loss);
    bar.style.setProperty("--share", (loss ?? 0) / Math.max(guess, loss ?? 0, losses.get(now.off) ?? 0));
  }

  /** One sentence of what was measured: where the texts part, and the losses as far as they are known. */
  function sentence() {
    const { off, cut, start, left, right } = now, same = agreement(now), n = left.length - start, at = start + same;
    const [was, is] = [losses.get("nothing"), losses.get(off)], title = labelOf(off).replace(/^./, (letter) => letter.toUpperCase());
    const tokens = (count) => (count === 1 ? "the only token is" : `all ${count} tokens are`);
    if (off === "nothing") return `Nothing is broken on the right: ${tokens(n)} the same${was ? `, and so is the loss, ${upTo(was)}` : ""}.`;
    const text = same === n ? `${tokens(n)} still the same`
      : `${same ? `after ${same} equal token${same > 1 ? "s" : ""}` : "from the first token on"} the texts differ (${quoted(opened, right[at])} in place of ${quoted(opened, left[at])})`;
    const loss = was === undefined || is === undefined ? "" : Math.abs(is - was) < 0.005 ? `; the loss on unseen passages stays ${upTo(was)}`
      : `; the loss on unseen passages is ${upTo(is)} instead of ${upTo(was)}${is > guess ? ", worse than a blind guess" : ""}`;
    return `${title}: ${text}${loss}.${cut ? ` Of your words, the first ${MOST} tokens were read.` : ""}`;
  }

  function drawLenses() {
    const [, broken] = sides, t = broken.run.ids.length - 1, [, mask, angle] = CHANGES[now.off];
    drawMap(broken, t);
    drawClocks(broken, t);
    say("caption", `The right-hand model's last token, in one head of its last block. Left, the mask lens: where the head looks; ${mask}. ` +
      `Right, the angle lens: its query (blue) and the key that it weighs most (dashed), ${angle}: four of the sixteen pairs, fastest first.`);
  }

  const lensesSeen = () => { const { top, bottom } = $("map").getBoundingClientRect(); return top < innerHeight && bottom > 0; };

  function show() {
    const { off, start, left, right } = now, same = agreement(now);
    [["left", left], ["right", right]].forEach(([name, ids]) => showText($(name), ids, start, same));
    $("right-name").textContent = labelOf(off) === "nothing" ? "The same, nothing broken" : `The same, ${labelOf(off)}`;
    showLoss("left", "nothing");
    showLoss("right", off);
    $("undo").disabled = !before.length;
    $("again").textContent = writing ? "Stop" : now.prompt === $("text").value ? "Again" : "Write";
    if (!writing || lensesSeen()) drawLenses();
    if (writing) return;
    $("link").href = `live.html#${linkOf(off, right)}`;
    $("link").textContent = off === "nothing" ? "Open this model in the live page" : "Open this broken model in the live page";
    say("finding", sentence());
  }

  // ------------------------------------------------------------------------------------------------------------- write

  const side = (off, ids) => {
    const page = { ...opened, change: CHANGES[off][0], query: null, key: null, head: [5, 2], temperature: TEMPERATURE, topP: 1 };
    return { ...page, run: read(page, ids) }; // the head looks at the token before
  };

  /** One more token, for which the random number was drawn already. */
  function goOn(page, drawn) {
    const { ids, cache, logits } = page.run, token = Live.choose(logits[ids.length - 1], TEMPERATURE, 1, () => drawn);
    page.run = cache ? extend(page, page.run, [token]) : read(page, [...ids, token]);
    return page.run.ids;
  }

  /** Both models write from the words in the field. */
  async function write(seed) {
    const prompt = $("text").value, all = tokenizer.encode(prompt.slice(0, 64 * MOST)), given = all.slice(0, MOST), off = chosen(), mine = ++turn;
    writing = false;
    if (!given.length) return say("finding", "Type a few words first: there is nothing to go on from.");
    if (now) before.push(now);
    now = { prompt, off, seed, next: seed, cut: all.length > MOST, start: given.length, left: given, right: given };
    sides = [side("nothing", given), side(off, given)];
    writing = true;
    say("finding", "Writing …");
    judge();
    for (let due = performance.now(); writing && now.left.length < given.length + NEW;) {
      now.next = (now.next * 16807) % 2147483647;
      const drawn = now.next / 2147483647; // one number for both
      [now.left, now.right] = sides.map((page) => [...goOn(page, drawn)]);
      show();
      due = Math.max(due + 1000 / PACE, performance.now());
      await new Promise((done) => setTimeout(done, due - performance.now()));
      if (mine !== turn) return; // something else was begun
    }
    writing = false;
    show();
  }

  function undo() {
    turn++;
    writing = false;
    now = before.pop();
    $("text").value = now.prompt;
    radios.find((radio) => radio.value === now.off).checked = true;
    sides = [side("nothing", now.left), side(now.off, now.right)];
    show();
    judge();
  }

  // ------------------------------------------------------------------------------------------------------------- judge

  /** Mean loss of a passage [nat/token], in pieces, so that the page answers meanwhile. */
  async function lossOf(tokens, change) {
    const each = [], cache = change.future ? null : model.newCache(), { vocabSize } = model.config;
    const step = cache ? 8 : tokens.length; // without a mask every token changes all before it
    for (let at = 0; at < tokens.length - 1; at += step) {
      await idle();
      const piece = tokens.slice(at, Math.min(at + step, tokens.length - 1)), logits = model.forward(piece, { change, cache });
      piece.forEach((_, t) => each.push(Live.surprise(logits.subarray(t * vocabSize, (t + 1) * vocabSize), tokens[at + t + 1])));
    }
    return mean(each);
  }

  /** The losses that are not known yet: of the model as trained, and of the one that is chosen. */
  async function judge() {
    if (waiting) return;
    while ((waiting = ["nothing", now.off].find((off) => !losses.has(off)))) {
      const off = waiting, each = [];
      for (const passage of passages) each.push(await lossOf(passage, CHANGES[off][0]));
      losses.set(off, mean(each));
      show();
    }
  }

  // ---------------------------------------------------------------------------------------------------------- controls

  $("words").onsubmit = (event) => { // "Again" goes on in the random numbers; another beginning gets the first ones
    event.preventDefault();
    if (writing) writing = false; else write(now?.prompt === $("text").value ? now.next : SEED);
  };
  $("undo").onclick = undo;
  $("text").oninput = () => {
    writing = false;
    $("again").textContent = now?.prompt === $("text").value ? "Again" : "Write";
  };
  for (const radio of radios) radio.onchange = () => write(now?.seed ?? SEED); // the left text stays the same
  whenTheLookChanges(() => { if (now) drawLenses(); });
  for (const control of [...radios, $("text"), $("again")]) control.disabled = false;
  $("again").textContent = "Write";
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) write(SEED);
})();
