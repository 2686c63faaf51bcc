// The live page's address: what is seen, as text behind the #, and back. Words that a person can read and type:
// #text=If+a+name&off=mask,block3,head2.1&order=0,1,1,2&window=4&head=4.2&token=5
"use strict";

const LiveLink = (() => {
  const PLACES = 12; // blocks that run, at most
  const START = "A class definition is an";
  const CHOICES = { window: [32, 8, 4, 2, 1], theta: [10000, 100], shift: [100] }; // what may be chosen, beside as trained
  const FLAGS = { rope: ["still", true], mask: ["future", true], norms: ["norm", false], gate: ["gate", false] };
  const LISTS = { block: "blocks", attention: "attention", feedforward: "feedForward", head: "heads" };
  const WORDS = { window: "window", base: "theta", shift: "shift" };

  /** The text behind the # for what the page shows; "" for the page as it opens. */
  function write(page, text) {
    const { change, query, key, head, first } = page, has = new URLSearchParams();
    const off = Object.keys(FLAGS).filter((word) => change[FLAGS[word][0]] === FLAGS[word][1]);
    for (const [word, field] of Object.entries(LISTS)) off.push(...(change[field] ?? []).map((name) => word + name));
    if (text !== START) has.set("text", text);
    if (off.length) has.set("off", off);
    if (change.order) has.set("order", change.order);
    for (const [word, field] of Object.entries(WORDS)) if (change[field]) has.set(word, change[field]);
    if (query !== null) has.set("token", query);
    if (key !== null) has.set("key", key);
    if ([...has].length || head.join(".") !== first) has.set("head", head.join("."));
    return String(has).replaceAll("%2C", ","); // a comma may stand as it is
  }

  /**
   * What the text behind the # asks for. Parts that are unknown, or do not fit this model, are left out and named.
   * Returns {text, change, query, key, head (null: as it opens), unknown}.
   */
  function read(hash, { model: { config }, tokenizer }, most) {
    const has = new URLSearchParams(hash), text = has.get("text") ?? START, length = tokenizer.encode(text.slice(0, 64 * most)).slice(0, most).length;
    const state = { text, change: {}, query: null, key: null, head: null, unknown: [] }, { change } = state;
    const whole = (value, below) => /^\d{1,9}$/.test(value) && Number(value) < below;
    const order = (has.get("order") ?? "").split(","), ordered = order.length <= PLACES && order.every((block) => whole(block, config.nLayers));
    const count = ordered ? order.length : config.nLayers; // blocks that run
    if (ordered && String(order.map(Number)) !== String([...Array(config.nLayers).keys()])) change.order = order.map(Number);
    const put = (field, value) => { if (!change[field]?.includes(value)) (change[field] ??= []).push(value); };
    const without = (word) => {
      const [, part, block, , head] = word.match(/^(block|attention|feedforward|head)(\d+)(\.(\d+))?$/) ?? [];
      if (word in FLAGS) change[FLAGS[word][0]] = FLAGS[word][1];
      else if (!part || !whole(block, config.nLayers) || (part === "head") !== (head !== undefined)) return false;
      else if (part !== "head") put(LISTS[part], Number(block));
      else if (whole(head, config.nHeads)) put(LISTS[part], `${Number(block)}.${Number(head)}`);
      else return false;
      return true;
    };
    const choose = (field) => (value) => {
      if (!CHOICES[field].includes(Number(value))) return false;
      change[field] = Number(value);
      return true;
    };
    const parts = {
      text: () => true,
      off: (value) => {
        const wrong = value.split(",").filter((word) => !without(word));
        if (wrong.length) state.unknown.push(`off=${wrong.join(",")}`);
        return true;
      },
      order: () => ordered,
      window: choose("window"), base: choose("theta"), shift: choose("shift"),
      head: (value) => {
        const [place, head, more] = value.split(".");
        if (more !== undefined || !whole(place, count) || !whole(head ?? "", config.nHeads)) return false;
        return Boolean(state.head = [Number(place), Number(head)]);
      },
      token: (value) => whole(value, length) && ((state.query = Number(value)), true),
      key: (value) => whole(value, length) && ((state.key = Number(value)), true),
    };
    for (const [name, value] of has)
      if (!Object.hasOwn(parts, name) || !parts[name](value)) state.unknown.push((value ? `${name}=${value}` : name).slice(0, 60));
    return state;
  }

  return { CHOICES, FLAGS, write, read };
})();
