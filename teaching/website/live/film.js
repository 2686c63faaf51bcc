// Stages of a small model's training behind a slider: two heads that learn to repeat together, and the loss meanwhile.
"use strict";

(() => {
  const { $, say, make, bar, percent } = LivePictures, { row, heads, stages } = window.liveData.film;
  const n = row.length, copy = n / 2, guess = Math.log(32); // tokens in the row, in each copy; the loss of a guess
  const maps = stages.map(({ maps }) => maps.map((map) => Uint8Array.from(atob(map), (letter) => letter.charCodeAt(0))));
  const NAMES = [`Head ${heads[0]} of block 0 finds the token before`, `Head ${heads[1]} of block 1 finds what came next last time`];

  /** Mean weight on the token that is `back` tokens before the query, where there is one. */
  function weightOn(map, back, from) {
    let sum = 0;
    for (let t = from; t < n; t++) sum += map[t * n + t - back] / 255;
    return sum / (n - from);
  }

  function paint(canvas, map) {
    canvas.width = canvas.height = n;
    const context = canvas.getContext("2d"), image = context.createImageData(n, n);
    for (let q = 0; q < n; q++) for (let k = 0; k <= q; k++)
      new Uint32Array(image.data.buffer)[q * n + k] = LivePictures.COLOURS[Math.round(Math.sqrt(map[q * n + k] / 255) * 255)];
    context.putImageData(image, 0, 0);
  }

  function draw() {
    const at = Number($("stage").value), { step, losses } = stages[at], [before, behind] = [weightOn(maps[at][0], 1, 1), weightOn(maps[at][1], copy - 1, copy)];
    $("stage").nextElementSibling.value = `step ${step}`;
    $("stage").setAttribute("aria-valuetext", `step ${step}`);
    [...$("film").querySelectorAll("canvas")].forEach((canvas, i) => {
      paint(canvas, maps[at][i]);
      canvas.setAttribute("aria-label", `Attention weights of ${NAMES[i].replace(/^H/, "h").split(" finds")[0]} after step ${step}: ${i ? `${percent(behind)} on the token behind the earlier copy` : `${percent(before)} on the token before`}, on average.`);
    });
    const rows = [["first copy", losses[0]], ["second copy", losses[1]], ["a guess among 32 tokens", guess]];
    $("film-losses").replaceChildren(...rows.map(([name, loss]) => make("li", {}, make("span", { textContent: name }), ...bar(loss / 4.5, loss.toFixed(2)))));
    say("film-finding", `After step ${step}: ${percent(before)} of the first head's weight is on the token before, ${percent(behind)} of the second's ` +
      `on the token behind the earlier copy. Loss on the second copy: ${losses[1].toFixed(2)} nat per token, on the first ${losses[0].toFixed(2)}` +
      `${losses[0] > guess + 0.1 ? ", more than a guess: the model expects tokens to come again" : ""}.`);
  }

  const figures = NAMES.map((name) => make("figure", {}, make("canvas", { role: "img" }), make("figcaption", { textContent: name })));
  const slider = make("input", { type: "range", id: "live-stage", min: 0, max: stages.length - 1, step: 1, value: 0 });
  $("film").replaceChildren(make("div", { className: "row" }, make("label", {}, "Training ", slider, " ", make("output"))),
    make("div", { className: "two" }, make("div", { className: "films" }, ...figures), make("div", {},
      make("p", { className: "label", id: "live-film-label", textContent: "Loss [nat per token]" }),
      make("ul", { id: "live-film-losses", className: "bars wide", "aria-labelledby": "live-film-label" }), make("p", { id: "live-film-finding", role: "status" }))));
  slider.value = stages.length - 1;
  slider.addEventListener("input", draw);
  draw();
})();
