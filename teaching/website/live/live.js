// The live page: it reads the sentence with engine.js, draws with pictures.js, and reads again after every change. What is
// seen is kept in the address, as JSON behind the #: a reload shows it again.
"use strict";

(() => {
  const { MOST, $, say, make, bar, mean, list, largest, quoted, read, extend, orderOf, radio, draw, drawNext } = LivePictures;
  const PRESS = 40; // tokens written at a press
  const EXAMPLES = ["If a name is", "A class has", "A function"];
  const CHOICES = { // what is offered for all blocks, beside as trained
    window: [32, 8, 4, 2, 1], shift: [100], theta: [10000, 100], still: [true], future: [true], norm: [false], gate: [false],
  };

  const page = {
    model: null, tokenizer: null,
    change: {}, // what the visitor changed, as the engine wants it
    temperature: 0, topP: 1,
    run: null, // all that the model made of the sentence
    query: null, key: null, // null: the last token; the key that weighs most
    head: [2, 2], // it looks far back
    writing: false,
  };
  let ids = []; // the sentence's tokens
  let passages = []; // four texts that the model has not read, as token ids
  const before = []; // sentences to return to
  const judged = new Map(); // the passages' losses by change
  const runs = new Map(); // what the model made of the sentence, by change
  let keeping; // the timer that waits before the address is written
  let reading = 0; // counts what was read, so that a late result is dropped
  let turn = 0; // counts what was begun to write

  // ------------------------------------------------------------------------------------------------ read the sentence

  /** What the model makes of the sentence with a change. */
  function runOf(change) {
    const name = JSON.stringify(change);
    return runs.get(name) ?? runs.set(name, read({ ...page, change }, ids)).get(name);
  }

  function redraw() {
    page.run = runOf(page.change);
    if (page.query !== null && page.query >= ids.length - 1) page.query = null;
    show();
    const mine = ++reading;
    setTimeout(() => mine === reading && judge(mine), 0);
  }

  /** Draw all, and when nothing more happens for a moment, write it into the address. */
  function show() {
    draw(page);
    clearTimeout(keeping);
    keeping = setTimeout(keep, 400);
  }

  function keep() {
    const { change, query, key, head } = page, text = $("text").value.slice(0, 64 * MOST);
    history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify({ text, change, query, key, head }))}`);
  }

  /** What the address keeps; {} if it is not all of the right kind and within this model. */
  function kept({ nLayers, nHeads }) {
    const count = (n) => [...Array(n).keys()], blocks = count(nLayers);
    const heads = blocks.flatMap((block) => count(nHeads).map((head) => `${block}.${head}`));
    const lists = { blocks, attention: blocks, feedForward: blocks, order: blocks, heads };
    const fits = ([name, value]) => Array.isArray(value)
      ? value.length > 0 && value.length === new Set(value).size && value.every((one) => lists[name].includes(one))
      : CHOICES[name].includes(value);
    try {
      const { text, change, query, key, head } = { ...page, ...JSON.parse(decodeURIComponent(location.hash.slice(1))) };
      const right = typeof text === "string" && Object.entries(change).every(fits) && (change.order ?? blocks).length === nLayers
        && [query, key].every((at) => at === null || (Number.isInteger(at) && at >= 0))
        && head.every(Number.isInteger) && heads.includes(head.join("."));
      return right ? { text, change, query, key, head } : {};
    } catch { // a section of the page, or damaged
      return {};
    }
  }

  // ---------------------------------------------------------------------------------------------------------- change it

  /** What is offered for all blocks: switches, and choices of which one holds. */
  function offerChanges() {
    const { ropeTheta } = page.model.config, words = (value) => value.toLocaleString("en-US");
    const choices = [
      ["window", "Window", [["all"], ...CHOICES.window.map((size) => [`${size}`, size])]],
      ["shift", "Positions", [["0, 1, 2 …"], ...CHOICES.shift.map((by) => [`${by}, ${by + 1}, ${by + 2} …`, by])]],
      ["theta", "RoPE’s base", [[words(ropeTheta)], ...CHOICES.theta.map((base) => [words(base), base])]],
    ];
    const switches = [["RoPE", "still"], ["mask", "future"], ["norms", "norm"], ["gate", "gate"]].map(([name, field]) => {
      const input = make("input", { type: "checkbox", role: "switch" }), [off] = CHOICES[field];
      input.show = () => { input.checked = page.change[field] !== off; };
      input.onchange = () => set({ [field]: input.checked ? undefined : off });
      return make("label", {}, name, input);
    });
    const groups = choices.map(([field, name, values]) => make("fieldset", { className: "choice" }, make("legend", { textContent: name }),
      ...values.map(([text, value]) => {
        const label = radio(field, make("span", { textContent: text })), input = label.firstChild;
        input.show = () => { input.checked = page.change[field] === value; };
        input.onchange = () => set({ [field]: value });
        return label;
      })));
    const reset = make("button", { type: "button", id: "live-trained", textContent: "As trained" });
    reset.onclick = () => set(Object.fromEntries(Object.keys(page.change).map((name) => [name, undefined])));
    $("changes").replaceChildren(make("div", { className: "row", role: "group", "aria-label": "In every block" },
      make("span", { className: "label", textContent: "In every block" }), ...switches, reset), make("div", { className: "row" }, ...groups));
    showChanges();
  }

  function showChanges() {
    for (const control of $("changes").querySelectorAll("input")) control.show();
    $("trained").setAttribute("aria-disabled", !Object.keys(page.change).length); // it keeps the focus
  }

  function set(what) {
    page.change = Object.fromEntries(Object.entries({ ...page.change, ...what }).filter(([, value]) => value !== undefined));
    showChanges();
    redraw();
  }

  /** A list with the value put in or taken out; undefined when it is empty. */
  function other(values = [], value) {
    const rest = values.includes(value) ? values.filter((one) => one !== value) : [...values, value];
    return rest.length ? rest.sort() : undefined;
  }

  /** Open the attention of a block. */
  function open(place) {
    [page.head, page.key] = [[place, page.head[1]], null];
    show();
    const wide = $("panel").getBoundingClientRect().left > $("places").getBoundingClientRect().right;
    $("panel-title").focus({ preventScroll: wide });
  }

  const plural = (word, all) => `${word}${all.length > 1 ? "s" : ""}`;
  // What is changed: its name, and why that counts.
  const SAYS = {
    still: () => ["RoPE off", "Without RoPE a score says nothing of distance: heads look by content alone."],
    shift: (by) => [`positions + ${by}`, "RoPE turns query and key alike, so only their distance counts."],
    theta: (base) => [`base ${base.toLocaleString("en-US")}`, "The weights were trained with other turning speeds."],
    window: (size) => [`a window of ${size}`, size > 1 ? `Each query sees itself and the ${size - 1} before it.` : "Each query sees only itself."],
    future: () => ["no mask", "The future leaks: every query also sees the tokens that are still to be predicted. These weights never learned to use them."],
    norm: () => ["norms off", "Without norms the parts read streams of lengths that they have never met."],
    gate: () => ["gate off", "The feed-forward lets through what its gate would have held back."],
    blocks: (all) => [`${plural("block", all)} ${list(all)} off`, `The stream passes ${all.length > 1 ? "these blocks" : "this block"} unchanged.`],
    attention: (blocks) => [`attention of ${list(blocks)} off`, "There no token reads another."],
    feedForward: (blocks) => [`feed-forward of ${list(blocks)} off`, "There only attention adds to the stream."],
    heads: (names) => [`${plural("head", names)} ${list(names)} off`, names.length < page.model.config.nLayers * page.model.config.nHeads
      ? "What is off is named block.head; the other heads still write." : "No head writes: only the feed-forwards do."],
    order: (order) => [`blocks in the order ${order.join(", ")}`, "From the first change on, every part reads a stream that it never met in training."],
  };

  /** The losses, one passage at a time, so that the page answers meanwhile. */
  async function judge(mine) {
    const { change, model } = page, names = Object.keys(change), differs = names.length > 0, stale = () => mine !== reading;
    const average = async (change) => {
      const name = JSON.stringify(change), each = judged.get(name) ?? judged.set(name, []).get(name);
      while (each.length < passages.length && !stale()) {
        each.push(Live.loss(model, passages[each.length], change));
        await new Promise((done) => setTimeout(done, 0));
      }
      return mean(each);
    };
    const was = await average({}), is = await average(change);
    if (stale()) return;
    const guess = Math.log(model.config.vocabSize);
    const rows = [["as trained", was], differs && ["changed", is], ["a blind guess", guess]].filter(Boolean);
    const most = Math.max(...rows.map(([, loss]) => loss));
    $("losses").replaceChildren(...rows.map(([name, loss]) => make("li", { className: name.endsWith("changed") ? "changed" : "" },
      make("span", { textContent: name }), ...bar(loss / most, loss.toFixed(2)))));
    const next = (run) => quoted(page, largest(run.logits[ids.length - 1])), pair = (a, b) => (a === b ? a : `${a} → ${b}`);
    say("effect", ids.length ? `Next: ${pair(next(runOf({})), next(page.run))} · loss: ${pair(was.toFixed(2), is.toFixed(2))}` : "");
    const said = names.map((name) => SAYS[name](change[name])), title = list(said.map(([name]) => name)).replace(/^./, (letter) => letter.toUpperCase());
    const result = !differs ? `As trained: ${was.toFixed(2)} nat per token on the passages.`
      : Math.abs(is - was) < 0.005 ? `${title}: still ${is.toFixed(2)} nat per token on the passages.`
        : `${title}: ${is.toFixed(2)} instead of ${was.toFixed(2)} nat per token on the passages.`;
    say("finding", [result, said.length === 1 ? said[0][1] : "",
      `A guess among ${model.config.vocabSize.toLocaleString("en-US")} tokens has ${guess.toFixed(2)}.`].filter(Boolean).join(" "));
  }

  // -------------------------------------------------------------------------------------------------------- type, write

  const tokensOf = (text) => page.tokenizer.encode(text.slice(0, 64 * MOST)).slice(0, MOST);

  function put(text, tokens = tokensOf(text)) {
    $("text").value = text;
    say("said", "");
    ids = tokens;
    runs.clear();
    page.query = page.key = null;
    redraw();
  }

  function remember() {
    before.push([$("text").value, ids]);
    $("undo").disabled = false;
  }

  async function write() {
    remember();
    ids = ids.slice(Math.max(0, ids.length + PRESS - MOST)); // a text that is too long forgets its oldest tokens
    runs.clear();
    page.run = read(page, ids); // it grows with the text
    const start = performance.now(), first = ids.length, mine = ++reading, myTurn = ++turn, { cache } = page.run;
    page.writing = true;
    page.query = page.key = null;
    $("write").textContent = "Stop";
    say("said", "Writing …");
    const more = () => page.writing && ids.length < first + PRESS && mine === reading;
    while (more()) {
      const token = Live.choose(page.run.logits[ids.length - 1], page.temperature, page.topP);
      ids.push(token);
      page.run = cache ? extend(page, page.run, [token]) : read(page, ids);
      if (page.tokenizer.special.has(page.tokenizer.words[token])) page.writing = false;
      $("text").value = page.tokenizer.decode(ids);
      $("text").scrollTop = $("text").scrollHeight;
      draw(page);
      await new Promise((done) => setTimeout(requestAnimationFrame, 8, done)); // at most 125 a second, so that the eye can follow
    }
    if (myTurn !== turn) return; // stopped, and begun again
    page.writing = false;
    $("write").textContent = "Write";
    if (mine !== reading) return say("said", "Stopped.");
    say("said", [`${ids.length - first} tokens written, ${Math.round(((ids.length - first) * 1000) / (performance.now() - start))} per second.`,
      cache ? "" : "There was no cache to use: without a mask every token changes all before it.",
      first + PRESS === MOST ? `The text keeps its last ${MOST} tokens.` : ""].filter(Boolean).join(" "));
    show();
    judge(mine);
  }

  // -------------------------------------------------------------------------------------------------------------- start

  function begin() {
    const { model, tokenizer } = Live.open(window.liveData), { text = $("text").value, ...seen } = kept(model.config);
    Object.assign(page, { model, tokenizer }, seen);
    passages = window.liveData.passages.map((passage) => tokenizer.encode(passage).slice(0, MOST));
    offerChanges();
    $("text").value = text;
    ids = tokensOf(text);
    redraw();
    clearTimeout(keeping); // there is nothing new to keep
  }

  // ----------------------------------------------------------------------------------------------------------- controls

  function pick(query, key = null) {
    page.query = query === ids.length - 1 ? null : query; // the last one stays the last one
    page.key = key;
    show();
  }

  function listen() {
    let typing;
    $("text").addEventListener("input", () => {
      page.writing = false;
      reading++;
      clearTimeout(typing);
      typing = setTimeout(() => put($("text").value), 120);
    });
    const change = (text) => { page.writing = false; remember(); put(text); };
    $("examples").append(...EXAMPLES.map((text) => make("button", { type: "button", textContent: text, onclick: () => change(text) })));
    $("write").onclick = () => { if (page.writing) page.writing = false; else write(); };
    $("undo").onclick = () => {
      page.writing = false;
      put(...before.pop());
      $("undo").disabled = !before.length;
    };
    for (const [id, name, digits] of [["temperature", "temperature", 1], ["topp", "topP", 2]]) {
      const tell = () => { $(id).nextElementSibling.value = (page[name] = Number($(id).value)).toFixed(digits); if (page.run) drawNext(page); };
      $(id).addEventListener("input", tell);
      tell();
    }
    const placeOf = ({ target: { parentElement: label } }) => [...label.parentElement.children].indexOf(label);
    $("tokens").onchange = (event) => pick(placeOf(event));
    $("tokens").onclick = (event) => { if (event.target.matches(":checked") && page.key !== null) pick(placeOf(event)); };
    $("heads").onchange = (event) => {
      [page.head, page.key] = [[page.head[0], placeOf(event)], null];
      show();
    };
    $("head-off").onchange = () => set({ heads: other(page.change.heads, `${orderOf(page)[page.head[0]]}.${page.head[1]}`) });
    $("places").onchange = ({ target: { dataset: { part, block } } }) => set({ [part]: other(page.change[part], Number(block)) });
    $("places").onclick = ({ target }) => { if (target.matches("button")) open(Number(target.dataset.place)); };
    const back = () => document.querySelector(`#live-places .open[data-place="${page.head[0]}"]`).focus();
    $("back").onclick = back;
    $("panel").addEventListener("keydown", ({ key }) => { if (key === "Escape") back(); });
    $("query").onchange = () => pick(Number($("query").value));
    $("key").onchange = () => pick(page.query ?? ids.length - 1, Number($("key").value));
    $("map").onclick = ({ offsetX, offsetY }) => {
      const { start, cell } = $("map").places ?? {}, [s, t] = [offsetX, offsetY].map((x) => Math.floor((x - start) / cell));
      if (t >= 0 && t < ids.length) pick(t, s >= 0 && s < ids.length ? s : null);
    };
    const again = () => { if (page.run && !page.writing) draw(page); };
    addEventListener("resize", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    new MutationObserver(again).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  }

  /** For tests and for the curious: what runs in this page now, changes included. */
  window.liveLlama = {
    encode: (text) => page.tokenizer.encode(text),
    logits: (tokens) => Array.from(page.model.forward(tokens, { change: page.change, lastOnly: true })),
    generate(tokens, n) {
      const { model, change } = page, all = [...tokens], cache = change.future ? null : model.newCache();
      for (let i = 0; i < n; i++) {
        const logits = model.forward(cache ? all.slice(cache.length) : all, { change, cache, lastOnly: true });
        all.push(Live.choose(logits));
      }
      return all.slice(tokens.length);
    },
  };
  listen();
  begin();
})();
