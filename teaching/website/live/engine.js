// A LLaMA in plain JavaScript, to be read beside helpers/model.py: the same parts, the same names, the same order.
//
// A tensor is a Float32Array, its shape is in a comment: T tokens, D dim, H query heads, K key/value heads, h head_dim,
// F hidden_dim, V vocab_size. Sums run in float64, which costs nothing here. `change` is what a visitor changed:
// {theta, still, shift, window, future, norm, gate}, what is off as numbers of blocks {blocks, attention, feedForward} or
// as "block.head" {heads}, and {order}, the blocks in the order in which they run; an empty object is the model as trained.

"use strict";

const Live = (() => {
  // ------------------------------------------------------------------------------------------------ weights, config

  const FLOAT_OF_HALF = Float32Array.from({ length: 65536 }, (_, half) => halfToFloat(half)); // looked up, for speed

  function halfToFloat(x) {
    const sign = x & 0x8000 ? -1 : 1, exponent = (x >> 10) & 31, fraction = x & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * (1 + fraction / 1024) * 2 ** (exponent - 15) : (sign * fraction) / 2 ** 24;
  }

  /** {name: {shape, data}} of a .safetensors file in float16: 8 bytes for the header's length, a header in JSON, numbers. */
  function readSafetensors(buffer) {
    const start = 8 + Number(new DataView(buffer).getBigUint64(0, true)), weights = {};
    const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
    for (const [name, { shape, data_offsets: [from, to] }] of Object.entries(header)) {
      const halves = new Uint16Array(buffer.slice(start + from, start + to));
      weights[name] = { shape, data: Float32Array.from(halves, (half) => FLOAT_OF_HALF[half]) };
    }
    return weights;
  }

  /** config.json in the course's words. */
  function readConfig(json) {
    return {
      vocabSize: json.vocab_size, dim: json.hidden_size, nLayers: json.num_hidden_layers, nHeads: json.num_attention_heads,
      nKvHeads: json.num_key_value_heads, headDim: json.head_dim, normEps: json.rms_norm_eps, ropeTheta: json.rope_parameters.rope_theta,
    };
  }

  // ---------------------------------------------------------------------------------------------------------- parts

  /** x (n, in) times the transposed matrix (out, in): (n, out). Each number of x serves four sums: that is faster. */
  function linear(x, { shape: [out, into], data: w }) {
    const n = x.length / into, y = new Float32Array(n * out), last = out - 1;
    for (let row = 0; row < n; row++)
      for (let o = 0; o < out; o += 4) {
        const o1 = Math.min(o + 1, last), o2 = Math.min(o + 2, last), o3 = Math.min(o + 3, last), end = (row + 1) * into;
        let a = 0, b = 0, c = 0, d = 0, i = o * into, j = o1 * into, k = o2 * into, l = o3 * into;
        for (let at = row * into; at < end; at++) {
          const value = x[at];
          a += value * w[i++]; b += value * w[j++]; c += value * w[k++]; d += value * w[l++];
        }
        const start = row * out;
        y[start + o] = a; y[start + o1] = b; y[start + o2] = c; y[start + o3] = d;
      }
    return y;
  }

  /** x (n, D), each row divided by its root mean square, times the gain (notebook 01). */
  function rmsNorm(x, { data: gain }, eps, change) {
    if (change.norm === false) return x;
    const dim = gain.length, y = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += dim) {
      let squares = 0;
      for (let i = 0; i < dim; i++) squares += x[start + i] ** 2;
      const scale = 1 / Math.sqrt(squares / dim + eps);
      for (let i = 0; i < dim; i++) y[start + i] = x[start + i] * scale * gain[i];
    }
    return y;
  }

  /** Turning speed of each pair, (h/2) [rad/token] (notebook 02); float32, as PyTorch rounds. */
  function ropeInvFreq(headDim, theta) {
    return Float32Array.from({ length: headDim / 2 }, (_, i) => theta ** ((-2 * i) / headDim));
  }

  /** Turn every head of x (T, heads * h) in place: pair (i, i + h/2) by position times speed. */
  function applyRope(x, positions, invFreq) {
    const half = invFreq.length, perToken = x.length / positions.length;
    positions.forEach((position, t) => {
      for (let i = 0; i < half; i++) {
        const angle = Math.fround(position * invFreq[i]), cos = Math.cos(angle), sin = Math.sin(angle);
        for (let at = t * perToken + i; at < (t + 1) * perToken; at += 2 * half) {
          const a = x[at], b = x[at + half];
          x[at] = a * cos - b * sin;
          x[at + half] = a * sin + b * cos;
        }
      }
    });
  }

  /** The query at position q may see the keys from the first number to the one before the second, of n (notebook 04). */
  function visible(q, n, { window, future }) {
    return [window ? Math.max(0, q + 1 - window) : 0, future ? n : q + 1];
  }

  /** What each query takes from each key, (T, S), for one head; rows sum to 1. */
  function attentionWeights(q, k, nQuery, nKey, headDim, firstQuery, change) {
    const weights = new Float32Array(nQuery * nKey), scale = 1 / Math.sqrt(headDim);
    for (let t = 0; t < nQuery; t++) {
      const row = weights.subarray(t * nKey, (t + 1) * nKey), [from, to] = visible(firstQuery + t, nKey, change);
      let largest = -Infinity, total = 0;
      for (let s = from; s < to; s++) {
        let score = 0;
        for (let i = 0; i < headDim; i++) score += q[t * headDim + i] * k[s * headDim + i];
        row[s] = score * scale;
        if (row[s] > largest) largest = row[s];
      }
      for (let s = from; s < to; s++) total += row[s] = Math.exp(row[s] - largest);
      for (let s = from; s < to; s++) row[s] /= total; // what is hidden stays 0
    }
    return weights;
  }

  /** Columns of one head, (n, h), of x (n, heads * h). */
  function headOf(x, head, headDim, perToken) {
    const n = x.length / perToken, y = new Float32Array(n * headDim);
    for (let t = 0; t < n; t++) for (let i = 0; i < headDim; i++) y[t * headDim + i] = x[t * perToken + head * headDim + i];
    return y;
  }

  /** down(silu(gate(x)) * up(x)) (notebook 03). */
  function swiGLU(x, block, change) {
    const gate = linear(x, block["mlp.gate_proj"]), up = linear(x, block["mlp.up_proj"]);
    if (change.gate !== false) for (let i = 0; i < up.length; i++) up[i] *= gate[i] / (1 + Math.exp(-gate[i]));
    return linear(up, block["mlp.down_proj"]);
  }

  const add = (x, y) => x.map((value, i) => value + y[i]);

  // ---------------------------------------------------------------------------------------------------------- model

  class Llama {
    constructor(config, weights) {
      const parts = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
      this.config = config;
      this.embeddings = this.lmHead = weights["model.embed_tokens.weight"]; // tied
      this.finalNorm = weights["model.norm.weight"];
      this.layers = Array.from({ length: config.nLayers }, (_, layer) =>
        Object.fromEntries(parts.map((part) => [part, weights[`model.layers.${layer}.${part}.weight`]])));
    }

    newCache() {
      return { length: 0, places: [] };
    }

    /** What attention adds to the stream, from its normed input (T, D); `looks` is given each head's weights. */
    attention(normed, layer, kept, { first, positions, invFreq, change, looks }) {
      const { nHeads, nKvHeads, headDim } = this.config, block = this.layers[layer], n = positions.length;
      const q = linear(normed, block["self_attn.q_proj"]);
      let k = linear(normed, block["self_attn.k_proj"]), v = linear(normed, block["self_attn.v_proj"]);
      if (!change.still) for (const turned of [q, k]) applyRope(turned, positions, invFreq);
      if (kept) {
        kept.k = k = join(kept.k, k);
        kept.v = v = join(kept.v, v);
      }
      const mixed = new Float32Array(q.length), nKey = k.length / (nKvHeads * headDim);
      for (let head = 0; head < nHeads; head++) {
        const group = Math.floor((head * nKvHeads) / nHeads); // the key/value head that this query head reads
        const [keys, values] = [k, v].map((y) => headOf(y, group, headDim, nKvHeads * headDim));
        const queries = headOf(q, head, headDim, nHeads * headDim);
        const weights = attentionWeights(queries, keys, n, nKey, headDim, first, change);
        looks.push({ weights, queries, keys });
        if (change.heads?.includes(`${layer}.${head}`)) continue; // switched off: it writes nothing
        const sums = new Float64Array(headDim);
        for (let t = 0; t < n; t++) {
          sums.fill(0);
          for (let s = 0; s < nKey; s++) {
            const weight = weights[t * nKey + s];
            if (weight) for (let i = 0; i < headDim; i++) sums[i] += weight * values[s * headDim + i];
          }
          mixed.set(sums, (t * nHeads + head) * headDim);
        }
      }
      return linear(mixed, block["self_attn.o_proj"]);
    }

    /** Logits of the token after each position, (T, V), or after the last, (V). `see` is told what each block makes. */
    forward(tokens, { cache = null, change = {}, lastOnly = false, see = null } = {}) {
      const { dim, headDim, normEps } = this.config, off = (part, layer) => change[part]?.includes(layer);
      const first = cache ? cache.length : 0, positions = tokens.map((_, t) => first + t + (change.shift ?? 0));
      const invFreq = ropeInvFreq(headDim, change.theta ?? this.config.ropeTheta);
      let x = new Float32Array(tokens.length * dim); // the residual stream (T, D)
      tokens.forEach((token, t) => x.set(this.embeddings.data.subarray(token * dim, (token + 1) * dim), t * dim));
      see?.({ layer: -1, x });
      (change.order ?? [...this.layers.keys()]).forEach((layer, place) => { // a block may run in several places
        const block = this.layers[layer], looks = [], on = !off("blocks", layer);
        const kept = cache && (cache.places[place] ??= { k: new Float32Array(0), v: new Float32Array(0) });
        if (on && !off("attention", layer)) {
          const normed = rmsNorm(x, block.input_layernorm, normEps, change);
          x = add(x, this.attention(normed, layer, kept, { first, positions, invFreq, change, looks }));
        }
        const middle = x; // the stream between the two branches
        if (on && !off("feedForward", layer))
          x = add(x, swiGLU(rmsNorm(x, block.post_attention_layernorm, normEps, change), block, change));
        see?.({ layer: place, x, middle, heads: looks.length ? looks : null, positions, invFreq });
      });
      if (cache) cache.length += tokens.length;
      return this.read(lastOnly ? x.slice(-dim) : x, change);
    }

    /** Logits of a residual stream (n, D): what the model would say if it stopped here. */
    read(x, change) {
      return linear(rmsNorm(x, this.finalNorm, this.config.normEps, change), this.lmHead);
    }
  }

  function join(a, b) {
    const both = new Float32Array(a.length + b.length);
    both.set(a);
    both.set(b, a.length);
    return both;
  }

  /** The model and the tokenizer that data.js carries. */
  function open({ weights, config: json, tokenizer }) {
    const letters = atob(weights), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return { model: new Llama(readConfig(json), readSafetensors(bytes.buffer)), tokenizer: new Tokenizer(tokenizer) };
  }

  // -------------------------------------------------------------------------------------------------------- writing

  /** Where the largest of the values stands. */
  const largest = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

  function softmax(logits, temperature = 1) {
    const most = logits[largest(logits)], shares = Float64Array.from(logits, (x) => Math.exp((x - most) / temperature));
    const total = shares.reduce((a, b) => a + b, 0);
    return shares.map((x) => x / total);
  }

  /** The next token: the likeliest at temperature 0, else drawn among the likeliest that together hold top-p. */
  function choose(logits, temperature = 0, topP = 1) {
    if (!temperature) return largest(logits);
    const shares = softmax(logits, temperature), order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]);
    let kept = 0, count = 0;
    while (count < order.length && (count === 0 || kept < topP)) kept += shares[order[count++]];
    let left = Math.random() * kept;
    for (const token of order.slice(0, count)) if ((left -= shares[token]) < 0) return token;
    return order[count - 1];
  }

  /** Loss of one token [nat]: minus the log of its probability. */
  function surprise(logits, token) {
    const most = logits[largest(logits)], total = logits.reduce((sum, x) => sum + Math.exp(x - most), 0);
    return Math.log(total) + most - logits[token];
  }

  /** Mean loss of a text [nat/token]; its first token has none. */
  function loss(model, tokens, change) {
    const { vocabSize } = model.config, logits = model.forward(tokens.slice(0, -1), { change });
    const each = tokens.slice(1).map((token, t) => surprise(logits.subarray(t * vocabSize, (t + 1) * vocabSize), token));
    return each.reduce((a, b) => a + b, 0) / each.length;
  }

  // ------------------------------------------------------------------------------------------------------ tokenizer

  const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

  /** The byte-level BPE of a tokenizer.json, as in notebook 06. */
  class Tokenizer {
    constructor({ model, added_tokens: added }) {
      this.vocab = model.vocab;
      this.words = [];
      for (const [word, id] of Object.entries(model.vocab)) this.words[id] = word;
      for (const { id, content } of added) this.words[id] = content;
      this.ranks = new Map(model.merges.map((pair, rank) => [pair.join(" "), rank]));
      this.special = new Map(added.map(({ id, content }) => [content, id]));
      // Bytes as printable characters: those that are printable stand for themselves, the others follow from 256 on.
      const own = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      let next = 256;
      this.letters = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(own(byte) ? byte : next++));
      this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
    }

    encode(text) {
      const marks = [...this.special.keys()].map((mark) => mark.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      return text.split(new RegExp(`(${marks.join("|")})`)).flatMap((part) => this.special.has(part) ? [this.special.get(part)]
        : (part.match(GPT2) ?? []).flatMap((piece) => this.merge(piece)));
    }

    merge(piece) {
      let parts = Array.from(new TextEncoder().encode(piece), (byte) => this.letters[byte]);
      for (;;) {
        let best = Infinity;
        for (let i = 0; i + 1 < parts.length; i++) best = Math.min(best, this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity);
        if (best === Infinity) break;
        const next = [];
        for (let i = 0; i < parts.length; i++) {
          const merged = i + 1 < parts.length && this.ranks.get(`${parts[i]} ${parts[i + 1]}`) === best;
          next.push(merged ? parts[i] + parts[++i] : parts[i]);
        }
        parts = next;
      }
      return parts.map((part) => this.vocab[part]);
    }

    /** Text of token ids; a character whose bytes are not all there yet becomes U+FFFD. */
    decode(ids) {
      const bytes = ids.flatMap((id) => this.special.has(this.words[id]) ? [...new TextEncoder().encode(this.words[id])]
        : [...(this.words[id] ?? "")].map((letter) => this.bytes.get(letter)));
      return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
    }
  }

  return { open, largest, softmax, choose, surprise, loss, visible };
})();
