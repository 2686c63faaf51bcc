// A picture of what the live page's model says, to be sent to somebody. It is drawn and saved here; nothing is sent.
"use strict";

const LiveShare = (() => {
  const WIDTH = 1200, HEIGHT = 675, EDGE = 60, ROWS = 7, INK = "#222222", GREY = "#555555", BLUE = "#0072B2";

  /** Lines of a text as [letter, x] that fit into a width [px], broken between words where there are some. */
  function lines(context, text, width) {
    const rows = [[]];
    let x = 0;
    const feed = () => { rows.push([]); x = 0; };
    for (const word of text.match(/\n|[^\S\n]+|\S+/gu) ?? []) {
      if (word === "\n") { feed(); continue; }
      const wide = context.measureText(word).width;
      if (x && x + wide > width && wide <= width && word.trim()) feed();
      for (const letter of word) {
        const room = context.measureText(letter).width;
        if (x + room > width) feed();
        rows[rows.length - 1].push([letter, x]);
        x += room;
      }
    }
    return rows;
  }

  /** A canvas with the text (what the model wrote of it in blue), the next tokens, the model's size and its loss. */
  function picture(page, text, changes) {
    const { model: { config }, run, temperature, own, size, written, loss } = page, { shown, percent, list } = LivePictures;
    const canvas = Object.assign(document.createElement("canvas"), { width: WIDTH, height: HEIGHT }), context = canvas.getContext("2d");
    const write = (words, x, y, font, colour = INK, width = WIDTH - EDGE - x) => {
      Object.assign(context, { font: `${font}, sans-serif`, fillStyle: colour });
      context.fillText(words, x, y, width);
    };
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, WIDTH, HEIGHT);
    context.fillStyle = BLUE;
    context.fillRect(0, 0, 14, HEIGHT);
    const wrote = written < text.length;
    write(`${own ? "My own" : "A small"} LLaMA ${wrote ? "writes" : "reads, and says what comes next"}`, EDGE, 90, "bold 44px system-ui");
    const sizes = `${size} million parameters, ${config.nLayers} blocks of ${config.nHeads} heads, ${config.vocabSize.toLocaleString("en-US")} tokens${wrote ? ". It wrote what is blue" : ""}`;
    write(sizes, EDGE, 130, "24px system-ui", GREY);
    if (changes.length) write(`Changed: ${list(changes)}`, EDGE, 165, "24px system-ui", "#b34700");
    context.font = "22px monospace";
    const fits = (some) => lines(context, some, WIDTH - 2 * EDGE).length <= ROWS, joined = fits(text) ? text : text.replaceAll("\n", "↵");
    const rows = lines(context, joined, WIDTH - 2 * EDGE), last = rows.slice(-ROWS), letters = (some) => some.reduce((sum, row) => sum + row.length, 0);
    let at = [...joined.slice(0, written)].filter((letter) => letter !== "\n").length - letters(rows.slice(0, -ROWS)); // letters before what it wrote
    last.forEach((row, i) => {
      const y = 215 + 30 * i;
      if (!i && rows.length > ROWS) write("…", EDGE - 30, y, "22px monospace");
      for (const [letter, x] of row) write(letter, EDGE + x, y, "22px monospace", at-- > 0 ? INK : BLUE);
    });
    const shares = Live.softmax(run.logits[run.logits.length - 1], temperature || 1);
    const best = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, 4);
    write(`What comes next${temperature ? `, at temperature ${temperature}` : ""}`, EDGE, 475, "bold 22px system-ui");
    best.forEach((token, i) => {
      const y = 508 + 30 * i;
      write(shown(page, token), EDGE, y, "22px monospace", INK, 180);
      context.fillStyle = BLUE;
      context.fillRect(EDGE + 200, y - 17, 560 * shares[token], 20);
      write(percent(shares[token]), EDGE + 212 + 560 * shares[token], y, "22px system-ui");
    });
    const known = loss === undefined ? "" : `Loss on the course's four passages: ${loss.toFixed(2)} nat per token (a guess: ${Math.log(config.vocabSize).toFixed(2)}). `;
    write(`${known}From the course “LLaMA in notebooks”.`, EDGE, 645, "20px system-ui", GREY);
    return canvas;
  }

  /** Save the picture as llama-writes.png. */
  function save(page, text, changes) {
    picture(page, text, changes).toBlob((blob) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: "llama-writes.png" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      LivePictures.say("said", "The picture is saved as llama-writes.png, where your browser puts downloads. Nothing was sent.");
    });
  }

  return { save };
})();
