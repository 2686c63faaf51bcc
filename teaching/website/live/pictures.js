// The live page's pictures: the whole model, chips, bars, attention maps, clocks, each with a sentence that says what is to
// be seen. `page` is what live.js keeps: {model, tokenizer, run, change, query, key, head, writing,
// temperature, topP}. A head is [place, number]: a block's place in the order in which the blocks run, 0 first.
"use strict";

const LivePictures = (() => {
  const { largest } = Live, MOST = 128; // tokens that are read and drawn

  // --------------------------------------------------------------------------------------------------- small helpers

  const $ = (id) => document.getElementById(`live-${id}`);
  const say = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
  const percent = (share) => (share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`);
  const degrees = (radians) => `${Math.round((radians * 180) / Math.PI)}°`;
  const length = (x) => Math.sqrt(dot(x, x));
  const angle = (a, b) => Math.acos(Math.min(1, Math.max(-1, dot(a, b) / (length(a) * length(b) || 1))));
  const number = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 1 });
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const list = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}`);

  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties))
      if (name.includes("-") || name === "role") element.setAttribute(name, value); else element[name] = value;
    element.append(...children);
    return element;
  }

  /** Exactly `count` children of a box; those that are there already are kept, so that the focus stays. */
  function children(box, count, create) {
    while (box.children.length > count) box.lastChild.remove();
    while (box.children.length < count) box.append(create());
    return [...box.children];
  }

  function bar(share, label) {
    const line = make("span", { className: "bar", "aria-hidden": "true" });
    line.style.setProperty("--share", Math.min(1, share));
    return [line, make("span", { className: "number", textContent: label })];
  }

  const copyOf = (template) => $(template).content.firstElementChild.cloneNode(true);
  const radio = (name, ...shown) => make("label", {}, make("input", { type: "radio", name: `live-${name}` }), ...shown);

  /** A token in words: spaces and line breaks are shown, bytes that are no character alone stand as numbers. */
  function shown({ tokenizer }, id) {
    const text = tokenizer.decode([id]);
    if (!text.includes("\ufffd")) return text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥");
    return [...tokenizer.words[id]].map((letter) => `\\x${tokenizer.bytes.get(letter).toString(16)}`).join("");
  }
  const quoted = (page, id) => `“${shown(page, id)}”`;

  /** Numbers of the blocks in the order in which they run. */
  const orderOf = ({ model, change }) => change.order ?? [...model.layers.keys()];

  const weightsOf = ({ run }, [layer, h], t) => run.heads[layer]?.[h].rows[t];
  const sees = ({ run, change }, q, k) => {
    const [from, to] = Live.visible(q, run.ids.length, change);
    return from <= k && k < to;
  };

  /** The chosen key, or the one that the chosen head weighs most for the query at position t. */
  function keyFor(page, t) {
    const row = weightsOf(page, page.head, t);
    return page.key !== null && sees(page, t, page.key) ? page.key : row ? largest(row) : t;
  }

  // ------------------------------------------------------------------------------------------------- read the sentence

  /** Let the model read more tokens, and keep per position what it made: stream, logits, weights, queries, keys. */
  function extend({ model, change }, run, tokens) {
    const { dim, headDim, vocabSize } = model.config;
    const rows = (x, width) => Array.from({ length: x.length / width }, (_, t) => x.subarray(t * width, (t + 1) * width));
    const see = ({ layer, x, middle, heads, positions, invFreq }) => {
      (run.stream[layer + 1] ??= []).push(...rows(x, dim));
      if (layer < 0) return;
      (run.middle[layer] ??= []).push(...rows(middle, dim));
      if (layer === 0) { run.positions.push(...positions); run.invFreq = invFreq; }
      run.heads[layer] = heads?.map(({ weights, queries, keys }, i) => {
        const kept = run.heads[layer]?.[i] ?? { rows: [], queries: [] };
        kept.rows.push(...rows(weights, keys.length / headDim));
        kept.queries.push(...rows(queries, headDim));
        return { ...kept, keys };
      }) ?? null;
    };
    run.logits.push(...rows(model.forward(tokens, { cache: run.cache, change, see }), vocabSize));
    run.ids.push(...tokens);
    return run;
  }

  function read(page, tokens) {
    const cache = page.change.future ? null : page.model.newCache(); // without a mask every token changes all before it
    return tokens.length ? extend(page, { cache, ids: [], positions: [], stream: [], middle: [], heads: [], logits: [] }, tokens) : null;
  }

  // ------------------------------------------------------------------------------------------------- tokens, next ones

  function drawNext(page) {
    const { temperature, topP, run: { logits } } = page;
    const shares = Live.softmax(logits[logits.length - 1], temperature || 1);
    const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]);
    let total = 0;
    const cut = order.findIndex((id) => (total += shares[id]) >= topP) + 1 || order.length, kept = temperature ? cut : 1;
    $("next").replaceChildren(...order.slice(0, 8).map((id, i) =>
      make("li", { className: i < kept ? "" : "out" }, make("code", { textContent: shown(page, id) }),
        ...bar(shares[id], percent(shares[id]) + (i < kept ? "" : " cut")))));
    say("next-finding", `Most likely next${temperature ? `, at temperature ${temperature}` : ""}: ${quoted(page, order[0])}, ${percent(shares[order[0]])}. Of ${number(order.length)} ` +
      `tokens, Write ${kept > 1 ? `draws among ${number(kept)}` : "takes this one"}.`);
  }

  function drawTokens(page, t) {
    const { ids, logits } = page.run, box = $("tokens");
    const each = ids.slice(1).map((token, i) => Live.surprise(logits[i], token)); // the losses; the first token has none
    const looks = weightsOf(page, page.head, t), key = looks ? keyFor(page, t) : null;
    children(box, ids.length, () => radio("token", make("span"), make("small"))).forEach((chip, i) => {
      const loss = i ? each[i - 1] : null, [input, word, small] = chip.children;
      input.checked = i === t;
      word.textContent = shown(page, ids[i]);
      small.textContent = loss === null ? "–" : loss.toFixed(1);
      chip.classList.toggle("key", i === key && i !== t);
      chip.style.setProperty("--loss", loss === null ? 0 : Math.min(1, loss / 8));
      input.setAttribute("aria-label", `${i}: ${shown(page, ids[i])}${loss === null ? "" : `, loss ${loss.toFixed(1)}`}`);
    });
    if (page.writing) box.scrollTop = box.scrollHeight;
    const worst = largest(each), words = [`${ids.length} token${ids.length > 1 ? "s" : ""}.`];
    if (each.length) words.push("The number is the loss in nat; more of it, more grey.",
      `${quoted(page, ids[worst + 1])} surprises the model most (${each[worst].toFixed(1)}).`);
    words.push(`Followed below: ${quoted(page, ids[t])} at position ${t} (blue).`, looks ? `The key: ${quoted(page, ids[key])} at ${key} (dashed).` : "");
    if (ids.length === MOST) words.push(`This page reads and draws ${MOST} tokens at most; what comes after is left out.`);
    say("tokens-finding", words.filter(Boolean).join(" "));
  }

  // -------------------------------------------------------------------------------------------------------- attention

  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const COLOURS = Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * 4, low = Math.min(3, Math.floor(at));
    const rgb = VIRIDIS[low].map((from, c) => from + (at - low) * (VIRIDIS[low + 1][c] - from));
    return new Uint32Array(Uint8Array.of(...rgb, 255).buffer)[0];
  });

  /** One pixel per pair of query (down) and key (across); what the mask hides stays empty. */
  function paint(page, canvas, [layer, h]) {
    const n = page.run.ids.length, heads = page.run.heads[layer], rows = heads?.[h].rows;
    canvas.width = canvas.height = n;
    const context = canvas.getContext("2d"), image = context.createImageData(n, n), pixels = new Uint32Array(image.data.buffer);
    for (let q = 0; rows && q < n; q++) {
      const row = rows[q], [from, to] = Live.visible(q, n, page.change);
      for (let k = from; k < to; k++) pixels[q * n + k] = COLOURS[Math.round(255 * Math.sqrt(row[k]))];
    }
    context.putImageData(image, 0, 0);
  }

  /** The heads of the block that is open. */
  function drawHeads(page, t) {
    const { nHeads } = page.model.config, { ids } = page.run, [place, chosen] = page.head, block = orderOf(page)[place];
    say("panel-title", `Attention of block ${block}`);
    const create = () => radio("head", make("canvas", { "aria-hidden": "true" }), make("span"));
    const said = children($("heads"), nHeads, create).map((label, h) => {
      const [input, canvas, name] = label.children, row = weightsOf(page, [place, h], t), best = row ? largest(row) : 0;
      const says = row ? `mostly ${best === t ? "itself" : quoted(page, ids[best])}, ${percent(row[best])}` : "off";
      name.textContent = `head ${h}`;
      input.checked = h === chosen;
      input.setAttribute("aria-label", `head ${h} of block ${block}: ${says}`);
      label.classList.toggle("off", !row || Boolean(page.change.heads?.includes(`${block}.${h}`)));
      paint(page, canvas, [place, h]);
      return `${best === t ? "itself" : quoted(page, ids[best])} (head ${h})`;
    });
    say("heads-finding", page.run.heads[place] ? `${quoted(page, ids[t])}, position ${t}, reads most from ${list(said)}.` : "");
  }

  function drawMap(page, t) {
    const { head, run: { ids } } = page, canvas = $("map"), context = canvas.getContext("2d"), n = ids.length;
    const row = weightsOf(page, head, t), key = keyFor(page, t), size = canvas.clientWidth || 300, sharp = devicePixelRatio || 1;
    const style = (name) => getComputedStyle(canvas).getPropertyValue(name).trim();
    canvas.width = canvas.height = size * sharp;
    context.scale(sharp, sharp);
    context.font = "12px monospace";
    const words = ids.map((id) => shown(page, id)).map((word) => (word.length > 9 ? `${word.slice(0, 8)}…` : word));
    const start = Math.min(size / 4, 10 + Math.max(...words.map((word) => context.measureText(word).width)));
    const side = size - start, cell = side / n, at = (i) => start + i * cell, every = Math.ceil(13 / cell);
    canvas.places = { start, cell };
    canvas.style.backgroundPosition = `${start}px ${start}px`; // what is hidden lets the hatched background through
    context.imageSmoothingEnabled = false;
    context.drawImage($("heads").querySelectorAll("canvas")[head[1]], start, start, side, side);
    context.textBaseline = "middle";
    const colours = [style("--query"), style("--key-text")], plain = style("--color-foreground-primary");
    words.forEach((word, i) => [t, key].forEach((mine, across) => {
      if (i !== mine && (i % every || (every > 1 && Math.abs(i - mine) < every))) return; // no room for it
      context.save();
      context.fillStyle = i === mine ? colours[across] : plain;
      context.font = `${i === mine ? "bold " : ""}12px monospace`;
      context.textAlign = across ? "left" : "right";
      const middle = Math.min(at(i + 0.5), size - 7);
      context.translate(...(across ? [middle, start - 5] : [start - 5, middle]));
      if (across) context.rotate(-Math.PI / 2);
      context.fillText(word, 0, 0, start - 8);
      context.restore();
    }));
    const box = (colour, width, dash, ...where) => {
      Object.assign(context, { strokeStyle: colour, lineWidth: width });
      context.setLineDash(dash);
      context.strokeRect(...where);
    };
    for (const [colour, width] of [["white", 4], [style("--query"), 2]]) box(colour, width, [], start, at(t), side - 1, Math.min(cell, size - at(t) - 1));
    for (const [colour, width] of [["white", 4], [style("--key"), 2]]) box(colour, width, width > 2 ? [] : [4, 3], at(key), at(t), cell - 1, cell - 1);

    const block = orderOf(page)[head[0]], off = Boolean(page.change.heads?.includes(`${block}.${head[1]}`));
    let finding = `Attention of block ${block} is switched off, so this head computes nothing.`;
    if (row) {
      const order = Array.from(row.keys()).filter((k) => sees(page, t, k)).sort((a, b) => row[b] - row[a]);
      const parts = order.slice(0, 3).map((k) => `${percent(row[k])} from ${k === t ? "itself" : `${quoted(page, ids[k])} (${k})`}`);
      finding = `The query ${quoted(page, ids[t])} (${t}) takes ${list(parts)}. ` +
        (order.length < n ? `The mask hides ${n - order.length} of the ${n} keys from it.` : "It sees every key.") +
        (off ? " The head is switched off: it looks, but writes nothing." : "");
    }
    say("map-finding", finding);
    canvas.setAttribute("aria-label", `Attention weights of block ${block}, head ${head[1]}. ${finding}`);
  }

  // ----------------------------------------------------------------------------------------------------- clocks, blocks

  function drawClocks(page, t) {
    const { head: [place, h], run, change } = page, row = weightsOf(page, page.head, t), s = keyFor(page, t);
    const half = page.model.config.headDim / 2;
    const clocks = children($("clocks"), row ? half : 0, () => copyOf("clock"));
    if (!row) return say("clocks-finding", "Without attention there is no query and no key.");
    const q = run.heads[place][h].queries[t], k = run.heads[place][h].keys.subarray(s * 2 * half, (s + 1) * 2 * half);
    const hands = [q, k].map((x) => clocks.map((_, i) => [x[i], x[i + half]]));
    const longest = hands.map((all) => Math.max(...all.map(length)));
    const parts = clocks.map((_, i) => dot(hands[0][i], hands[1][i]) / Math.sqrt(2 * half));
    const angles = clocks.map((_, i) => angle(hands[0][i], hands[1][i]));
    clocks.forEach((clock, i) => {
      clock.querySelectorAll("line").forEach((line, which) => {
        const hand = hands[which][i], long = length(hand);
        const scale = 46 * Math.sqrt(long / longest[which]) / (long || 1); // its square root, or the short ones would vanish
        line.setAttribute("x2", 50 + scale * hand[0]);
        line.setAttribute("y2", 50 - scale * hand[1]);
      });
      clock.lastChild.textContent = degrees(angles[i]);
    });
    const best = largest(parts), middle = half >> 1, speed = (i) => `${number((run.invFreq[i] * 180) / Math.PI)}°`;
    const turns = change.still ? "RoPE is off: no hand was turned, whatever the position."
      : `RoPE turned the query for position ${run.positions[t]} and the key for ${run.positions[s]}: ` +
        `pair 0 by ${speed(0)} per token, pair ${middle} by ${speed(middle)}.` +
        (change.shift ? ` All hands moved on by ${change.shift} positions; the angles between them stayed.` : "");
    const score = mean(parts) * half;
    say("clocks-finding", `${turns} Pair ${best}, ${degrees(angles[best])} apart, adds most to the score: ${parts[best].toFixed(1)}. ` +
      `All ${half} pairs make ${score.toFixed(1)}, and the softmax makes that a weight of ${percent(row[s])}.`);
  }

  // --------------------------------------------------------------------------------------------------- the whole model

  /** The most likely next token if each of the streams were the last. */
  function saysNext({ model, change }, streams) {
    const { dim, vocabSize } = model.config, joined = new Float32Array(streams.length * dim);
    streams.forEach((x, i) => joined.set(x, i * dim));
    const logits = model.read(joined, change);
    return streams.map((_, i) => largest(logits.subarray(i * vocabSize, (i + 1) * vocabSize)));
  }

  const PARTS = { attention: "attention", feedForward: "feed-forward", blocks: "block" };

  /** Show whether a switch is on; what it switches is its name. */
  function flip(input, on, name) {
    input.checked = on;
    input.setAttribute("aria-label", name);
  }

  /** The picture of the whole model, with the numbers of the token at position t. */
  function drawModel(page, t) {
    const { run, change } = page, order = orderOf(page), streams = run.stream.map((rows) => rows[t]), says = saysNext(page, streams);
    const turns = run.middle.map((rows, i) => [angle(streams[i], rows[t]), angle(rows[t], streams[i + 1])]); // by branch
    const told = (i) => quoted(page, says[i]), long = (i) => `length ${length(streams[i]).toFixed(1)}`;
    say("model-token", `${quoted(page, run.ids[t])}, position ${t}`);
    say("model-start", long(0));
    say("model-first", told(0));
    say("model-end", told(order.length));
    $("model").classList.toggle("bare", change.norm === false);
    children($("places"), order.length, () => copyOf("place")).forEach((item, place) => {
      const block = order[place], name = `block ${block}`;
      Object.keys(PARTS).forEach((part, i) => {
        const box = item.children[i], opens = box.querySelector(".open"), switches = box.querySelector("input");
        const on = !change.blocks?.includes(block) && !change[part]?.includes(block);
        opens.textContent = i < 2 ? PARTS[part] : name;
        if (!i) opens.setAttribute("aria-label", `attention of ${name}`);
        if (!i) opens.setAttribute("aria-expanded", page.head[0] === place);
        for (const control of [opens, switches]) Object.assign(control.dataset, { part, place, block });
        flip(switches, !change[part]?.includes(block), i < 2 ? `${PARTS[part]} of ${name}` : name);
        if (i === 2) return;
        box.classList.toggle("off", !on);
        box.lastChild.textContent = on ? degrees(turns[place][i]) : "off";
        box.style.setProperty("--turn", on ? Math.min(1, turns[place][i] / (Math.PI / 2)) : 0);
      });
      item.querySelector(".length").textContent = long(place + 1);
      item.querySelector(".says").textContent = told(place + 1);
    });
    const names = order.map((block) => `block ${block}`), all = turns.flat(), most = largest(all), answer = says[order.length];
    let since = order.length;
    while (since > 0 && says[since - 1] === answer) since--;
    say("model-finding", `${all[most] ? `The ${most % 2 ? "feed-forward" : "attention"} of ${names[most >> 1]} turns the stream most, by ${degrees(all[most])}.` : "Nothing turns the stream."} ` +
      `The answer ${quoted(page, answer)} stands first from ${since ? names[since - 1] : "the embedding"} on.`);
  }

  // ----------------------------------------------------------------------------------------------- what a box opens

  /** What is chosen: the head, its switch, the pair. */
  function drawChoice(page, t) {
    const { head, run, change } = page, options = run.ids.map((id, i) => [i, `${i} ${shown(page, id)}`]), block = orderOf(page)[head[0]];
    say("head-label", `Head ${head[1]}`);
    flip($("head-off"), !change.heads?.includes(`${block}.${head[1]}`), `head ${head[1]} of block ${block}`);
    $("head-off").disabled = !run.heads[head[0]];
    if (page.writing) return;
    for (const [name, rows, value] of [["query", options, t], ["key", options.filter(([k]) => sees(page, t, k)), keyFor(page, t)]]) {
      $(name).replaceChildren(...rows.map(([i, text]) => new Option(text, i)));
      $(name).value = value;
    }
  }

  /** Everything, for the chosen query. */
  function draw(page) {
    $("write").disabled = !page.run;
    for (const name of ["model", "panel"]) $(name).hidden = !page.run;
    if (!page.run) {
      for (const box of ["next", "tokens"].map($)) box.replaceChildren();
      for (const text of ["next", "model"]) say(`${text}-finding`, "");
      return say("tokens-finding", "Type a sentence: there is nothing to read yet.");
    }
    const t = page.query ?? page.run.ids.length - 1;
    for (const picture of [drawNext, drawTokens, drawModel, drawHeads, drawChoice, drawMap, drawClocks]) picture(page, t);
  }

  return {
    MOST, $, say, make, bar, mean, list, angle, length, largest, quoted, shown, read, extend, orderOf, radio, drawNext, draw,
  };
})();
