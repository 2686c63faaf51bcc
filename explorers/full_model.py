"""The explorer of notebook 05: a whole run of a LLaMA on one page, with a scalpel."""

import functools

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional as F

from explorers.base import GREY, Explorer, arc, bare, bundled, readable, slider, strokes, switch, within
from explorers.gqa import AGAINST
from helpers.interventions import held_out_windows
from helpers.model import apply_rope, attention_weights, causal_visible, repeat_kv, rope_angles
from helpers.plots import HATCH, HIDDEN, INK, QUERY
from helpers.text import encode, load_tokenizer

SIGNS = "abcdefghijklmnopqrstuvwxyz012345"  # the 32 tokens of the induction model
WIDTH, LEFT, TOP = 880, 48, 132  # of the picture, and where its masks are [pixel]
SEEN = "Stream: the turn by each branch, and the next word"
HELP = "Click a mask: its head is cut. Click a row:\nits feed-forward is. Hand down: not turned."
PLAIN, BOLD = (ImageFont.truetype(findfont(f"DejaVu Sans{weight}"), 11) for weight in ("", ":bold"))


@torch.inference_mode()
def run(model, tokens, cut=(), speed=1.0, fault="none"):
    """A run with parts cut, RoPE at another speed, and a fault A to F: the stream at first and behind each branch, each
    (B, T, D), and the first row's attention weights in each block, each (H, T, T)."""
    n, streams, weights = tokens.shape[1], [model.tok_embeddings(tokens)], []
    angles, seen = rope_angles(torch.arange(n), speed * model.inv_freq), causal_visible(n, n)
    turn = angles.cos(), angles.sin(), "interleaved" if fault == "B" else "halves"
    seen = {"D": seen.roll(-1, 0) | seen, "E": seen.triu(-3)}.get(fault, seen)
    for layer, block in enumerate(model.layers):
        x, attention, ffn = streams[-1], block.attention, block.feed_forward
        y = block.attention_norm(x)
        q, k, v = attention.heads(y)
        q, k, v = apply_rope(q, *turn), *(repeat_kv(one, attention.n_rep) for one in (apply_rope(k, *turn), v))
        weights.append(attention_weights(q * (q.shape[-1] / x.shape[-1]) ** 0.5 if fault == "A" else q, k, seen))
        mixed = weights[-1] @ v
        mixed[:, [f"head {head} of block {layer}" in cut for head in range(q.shape[1])]] = 0
        streams.append((y if fault == "F" else x) + attention.o_proj(mixed.transpose(1, 2).flatten(-2)))
        x, y = streams[-1], block.ffn_norm(streams[-1])
        gate, up = (ffn.up_proj, ffn.gate_proj) if fault == "C" else (ffn.gate_proj, ffn.up_proj)
        added = ffn.down_proj(F.silu(gate(y)) * up(y)) * (f"feed-forward of block {layer}" not in cut)
        streams.append((y if fault == "F" else x) + added)
    return streams, [share[0] for share in weights]


def explore_xray(which="tiny-llama") -> Explorer:
    """A run from tokens to next words, of the bundled model or of "induction": cut parts, and see what it changes."""
    model = bundled(which)
    if which == "induction":
        word, text, start, (cell, pitch, column) = SIGNS.__getitem__, map(SIGNS.index, "chisruchisru"), 24, (7, 96, 38)
        windows = torch.randint(32, (16, 24), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    else:
        tokenizer, windows, start, (cell, pitch, column) = load_tokenizer(), held_out_windows(), 0, (6, 76, 55)
        text, windows = encode(tokenizer, "The type of the object must be a class object"), windows[5::8, 128:193]
        word = functools.cache(lambda token: readable(tokenizer, token).replace(r"'\n'", "↵")[:7])
    tokens = torch.tensor([[int(token) for token in text]])
    words, n, L, H = list(map(word, tokens[0].tolist())), tokens.shape[1], len(model.layers), model.config.n_heads
    task, pairs, whole = "second copies" if start else "new text", len(model.inv_freq), torch.cat(run(model, tokens)[0])

    @functools.lru_cache(500)
    def look(cut=(), speed=1.0, fault="none"):
        streams, weights = run(model, tokens, cut, speed, fault)
        streams = torch.cat(streams)  # (1 + 2 L, T, D)
        odds, best = model.lm_head(model.final_norm(streams[2::2])).softmax(-1).max(-1)
        same = ((streams - whole).norm(dim=-1) <= 1e-4 * whole.norm(dim=-1))[1:]
        others = whole[1:], streams[:-1]  # the whole model's; before the branch
        apart, turns = (F.cosine_similarity(streams[1:], one, dim=-1).clamp(-1, 1).arccos() for one in others)
        says = [[word(token) for token in row] for row in best.tolist()], odds[-1].tolist()
        logits = model.lm_head(model.final_norm(run(model, windows[:, :-1], cut, speed, fault)[0][-1]))
        loss = F.cross_entropy(logits[:, start:].mT, windows[:, 1 + start :]).item()
        return loss, torch.stack(weights).numpy(), apart.masked_fill(same, -1).numpy(), turns.numpy(), *says

    base, _, _, _, (*_, said), _ = look()
    guess, side, right = np.log(model.config.vocab_size), cell * n, WIDTH - 10 - column * n
    wide, end = side + cell, TOP + L * pitch  # a mask with its gap; below the last block

    # What is fixed: one pair of axes over the whole picture, in pixels; clocks on top, masks left, stream right.
    figure = Figure(figsize=(WIDTH / 110, (end + 104) / 110), dpi=110, layout="none", facecolor="white")
    ax = figure.add_axes((0, 0, 1, 1))
    bare(ax, (0, WIDTH), (end + 104, 0))
    write, centres = functools.partial(ax.text, va="center", fontsize=9), right + 17 + 34 * np.arange(pairs)
    for x in centres:
        ax.plot(*np.add(arc(0, 2 * np.pi, 14), [[x], [44]]), color=HIDDEN, lw=1)
    low, nat = end + 66, 0.9 * column * n / (guess - base)  # the bar of the loss: where, and pixels for a nat
    ax.add_patch(Rectangle((right, low), column * n, 14, fc="#EEEEEE"))
    labels = [(LEFT + wide * head + side / 2, TOP - 12, f"head {head}") for head in range(H)]
    labels += [(right + column * (t + 0.5), TOP - 12, one) for t, one in enumerate(words)]
    labels += [(26, TOP - 12, "block"), *((26, TOP + pitch * layer + side / 2, layer) for layer in range(L))]
    for more, name in ((0, f"{base:.2f}"), (0.3, "+0.3"), (1, "+1"), (guess - base, "a guess")):
        ax.plot([right + nat * more] * 2, [low, low + 18], color=GREY, lw=1)
        labels.append((right + nat * more, low + 27, name))
    for label in labels:
        write(*label, ha="center")
    write(10, 20, "Rotation angles", weight="bold")
    write(10, 44, f"of RoPE's {pairs} pairs, in every head")
    write(10, 88, "Attention masks", weight="bold")
    write(10, end + 54, HELP)

    # What moves: pixels, hands, crosses, a frame, the bar of the loss, words.
    pixels = ax.add_artist(_Pixels())
    inks = (INK, 1.6), (AGAINST, 2.2), (INK, 3)
    hands, crosses, mark = (ax.plot([], [], color=color, lw=lw)[0] for color, lw in inks)
    hands.set(marker="o", ms=2.5, markevery=3)  # of a stroke's two ends and a gap: its first
    frame = ax.add_patch(Rectangle((0, TOP - 24), column, end + 44 - TOP, fc="none", ec=INK, lw=1.5))
    bar = ax.add_patch(Rectangle((right, low), 0, 14, fc=AGAINST))
    changes, costs = write(right, 88, "", weight="bold"), write(right, low - 14, "", weight="bold")
    pivots = right + column * (np.arange(n) + 0.5), (TOP + pitch * np.arange(L)[:, None] + (5, 27)).reshape(-1, 1)

    def draw(token, speed, fault, clicked):
        cut, angle = tuple(clicked), speed * token * model.inv_freq.numpy()
        cost, weights, apart, turns, says, odds = look(cut, speed, fault)
        image = Image.new("RGB", (WIDTH - LEFT, end + 20 - TOP), "white")
        image.paste(Image.fromarray(_masks(weights, cell, pitch, token)))
        image.paste(_stream(apart, says, said, pitch, column), (right - LEFT, 0))
        pixels.put(image, LEFT, 84)
        clocks = centres, 44, 13 * np.cos(angle), -13 * np.sin(angle)
        strokes(hands, (*pivots, 18 * np.sin(turns), 18 * np.cos(turns)), clocks)
        head, row = np.array([(int(one[5]), int(one[-1])) for one in cut if one[0] == "h"]).reshape(-1, 2).T
        x, y, ffn = LEFT + wide * head, TOP + pitch * row, np.array([int(one[-1]) for one in cut if one[0] == "f"])
        ffns = right, TOP + 36 + pitch * ffn, column * n, 0
        strokes(crosses, (x, y, side, side), (x, y + side, side, -side), ffns)
        frame.set_x(right + column * token)
        bar.set_width(np.clip(nat * (cost - base), 0, column * n))
        mark.set_data([right + nat * sum(look((one,))[0] - base for one in cut)] * 2, [low - 3, low + 17])
        red, changed = np.argwhere(apart >= 0), f"{sum(map(str.__ne__, says[-1], said))} of {n} next words change"
        changes.set_text(f"Stream: {changed} (red: before)" if len(red) else SEEN)
        costs.set_text(f"Loss {base:.2f} → {cost:.2f} [nat/token]; black: single costs added")
        branch = [f"{('attention', 'feed-forward')[place % 2]} of block {place // 2}" for place in red[:1, 0]]
        first = f"It changes from {branch[0]} and token {red[:, 1].min()} on; {changed}. " if branch else ""
        return f"{first}After “{words[token]}”: “{says[-1][token]}” ({odds[token]:.2f}). Loss on {task} {cost:.2f}."

    controls = {
        "token": slider("position", n - 2, 0, n - 1),
        "speed": slider("RoPE's speed", 1.0, 0.0, 2.0, 0.1, says="RoPE {} times as fast"),
        "fault": switch("fault", ("none", *"ABCDEF")),
    }
    parts = {}
    for layer, y in enumerate(range(TOP, end, pitch)):
        for head, x in enumerate(range(LEFT, LEFT + H * wide, wide)):
            parts[f"head {head} of block {layer}"] = within(ax, x, y, x + side, y + side)
        parts[f"feed-forward of block {layer}"] = within(ax, right, y, right + column * n, y + pitch - 6)
    alt = "Down: blocks. Left their attention masks, right how far their branches turn each token, and the next words. "
    return Explorer(figure, draw, controls, f"{alt}Above RoPE's clocks, below the loss. Red: changed.", parts, True)


class _Pixels(Artist):
    """An image, so far from the lower left corner, as it is: imshow would calculate each pixel anew."""

    def put(self, image, x, low):
        self.image, self.at, self.stale = np.asarray(image.convert("RGBA"))[::-1], (x, low), True

    def draw(self, renderer):
        renderer.draw_image(renderer.new_gc(), *self.at, self.image)


def _masks(weights, cell, pitch, token):
    """Weights (L, H, T, T) in pixels, white to blue; zeros are grey and hatched, what should be zero is red."""
    L, H, n, _ = weights.shape
    ahead, page = np.triu(np.ones((n, n), bool), 1), np.full((L, pitch, H, cell * (n + 1), 3), 255, np.uint8)
    color = 1 - weights[..., None] ** 0.7 * (1 - np.where(ahead[..., None], to_rgb(AGAINST), to_rgb(QUERY)))
    color[weights == 0] = to_rgb(HIDDEN)
    color, hatched = (one.repeat(cell, 2).repeat(cell, 3) for one in (color, (weights == 0) | ahead))
    color[hatched & (np.indices(hatched.shape[2:]).sum(0) % 5 == 0)] = to_rgb(HATCH)
    first, last = cell * token, cell * (token + 1) - 1
    color[:, :, [first, last]] = color[:, :, first:last, :: cell * n - 1] = to_rgb(INK)  # the query of this row
    page[:, : cell * n, :, : cell * n] = 255 * color.swapaxes(1, 2)
    return page.reshape(L * pitch, -1, 3)


def _stream(apart, says, before, pitch, column):
    """For each block and token a cell, redder the further its stream is turned, white for -1; in it the next word."""
    L, n = len(says), len(before)
    shade = np.where(apart < 0, 0, 0.1 + np.clip(apart, 0, 1.6) / 2.8).reshape(L, 2, n, 1)
    color, page = 255 * (1 - shade * (1 - np.array(to_rgb(AGAINST)))), np.full((L, pitch, n, 3), 255, np.uint8)
    page[:, :24], page[:, 24:-6] = color[:, :1], color[:, 1:]
    page = np.pad(page.reshape(-1, n, 3), ((0, 20), (0, 0), (0, 0)), constant_values=255)
    image = Image.fromarray(page.repeat(column, 1))
    pen = ImageDraw.Draw(image)
    for (row, t), word in np.ndenumerate(says):
        look = (INK, BOLD) if word == says[-1][t] else (GREY, PLAIN)
        pen.text((column * (t + 0.5), pitch * row + pitch - 17), word, *look, "mm")
    for t, word in enumerate(before):
        pen.text((column * (t + 0.5), pitch * L + 7), word if word != says[-1][t] else "", AGAINST, PLAIN, "mm")
    return image
