"""The explorers of notebook 05: where the parameters are, and a whole run of a LLaMA on one page, with a scalpel."""

import functools
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import Circle, Rectangle
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, arc, bare, slider, strokes, switch, within
from explorers.gqa import AGAINST
from explorers.own import chosen, is_usual, opened, spread
from helpers.config import PRESETS
from helpers.interventions import attending, held_out_windows, weights_of
from helpers.model import apply_rope, attention_weights, causal_visible, repeat_kv, rope_angles
from helpers.plots import HATCH, HIDDEN, INK, QUERY
from helpers.text import TINY_LLAMA

WIDTH, LEFT, TOP, PITCH = 880, 48, 132, 76  # of the picture, where its masks are, and of a block [pixel]
PLAIN, HANDS = "what changes", "hands and words"
UNCHANGED = {PLAIN: " after each block: all as in the whole model", HANDS: ": turns, and the next word after a block"}
SENTENCE = "The type of the object must be a class object"
FONT, BOLD = (ImageFont.truetype(findfont(f"DejaVu Sans{weight}"), 11) for weight in ("", ":bold"))

SIZES = {  # the bars of the picture, and the parameters that each of them counts
    "embedding": lambda c: c.vocab_size * c.dim,
    "q and o": lambda c: 2 * c.n_layers * c.dim * c.n_heads * c.head_dim,
    "k and v": lambda c: 2 * c.n_layers * c.dim * c.n_kv_heads * c.head_dim,
    "gate, up, down": lambda c: 3 * c.n_layers * c.dim * c.hidden_dim,
    "all norms": lambda c: (2 * c.n_layers + 1) * c.dim,
    "lm_head": lambda c: 0 if c.tie_embeddings else c.vocab_size * c.dim,
}
TIED = "lm_head is the embedding"


def explore_sizes() -> Explorer:
    """Where a LLaMA's parameters are: those of a preset in grey, and with other sizes in black."""
    figure = Figure(figsize=(8.0, 3.4), dpi=110, layout="none", facecolor="white")
    ax = figure.add_axes((0.15, 0.02, 0.83, 0.84))
    bare(ax, (0, 100), (len(SIZES) - 0.4, -0.6), "auto")
    places = np.arange(len(SIZES))
    grey, black = (ax.barh(places, 0, height, fc=ink) for height, ink in ((0.66, PALE), (0.3, INK)))
    for y, name in enumerate(SIZES):
        ax.text(-1.5, y, name, ha="right", va="center")
    ax.text(100, len(SIZES) - 1, "click: lm_head and embedding are one matrix", ha="right", va="center", color=GREY)
    title, numbers = ax.text(-17, -0.95, "", weight="bold"), [ax.text(0, y, "", va="center") for y in places]

    def draw(preset, clicked, **sizes):
        theirs = PRESETS[preset]
        config = SimpleNamespace(**vars(theirs) | sizes | {"tie_embeddings": clicked == TIED})
        before, now = (np.array([count(one) for count in SIZES.values()]) for one in (theirs, config))
        more = (now.sum() - before.sum()) / 1e9
        change = f"{now.sum():,} parameters, {more:+.2f} billion against {preset} as published"
        for old, new, number, *bars in zip(before, now, numbers, grey, black, strict=True):
            for bar, one in zip(bars, (old, new), strict=True):
                bar.set_width(min(85 * one / before.sum(), 90))
            said = f"{new / 1e9:.3g} billion" if new > 1e6 or not new else "under 0.001 billion"
            number.set(x=1.5 + max(bar.get_width() for bar in bars), text=said)
        title.set_text(f"{change} (grey)")
        shares = zip(SIZES, now / now.sum(), strict=True)
        return f"{change}. Of them are in {', '.join(f'{name} {share:.1%}' for name, share in shares)}."

    first = PRESETS["llama-2-7b"]
    controls = {
        "preset": switch("preset", PRESETS),
        "vocab_size": slider("vocab_size", first.vocab_size, 1000, 160_000),
        "n_kv_heads": slider("n_kv_heads", first.n_kv_heads, 1, 64),
        "hidden_dim": slider("hidden_dim", first.hidden_dim, 500, 55_000),
    }
    parts = {TIED: within(ax, 0, len(SIZES) - 1.4, 100, len(SIZES) - 0.6)}
    alt = "Bars: parameters of embedding, attention, feed-forward, norms and lm_head; a preset's grey, yours black."
    explorer = Explorer(figure, draw, controls, alt, parts)

    def adopt(change):  # the sizes of the preset that was chosen
        theirs = PRESETS[change.new]
        for name in (*controls, "clicked"):
            if name != "preset":
                explorer.controls[name].value = getattr(theirs, name, TIED * theirs.tie_embeddings)

    controls["preset"].observe(adopt, "value")
    return explorer


@torch.inference_mode()
def run(model, tokens, cut=(), speed=1.0, fault="none"):
    """A run with parts ablated, RoPE at another speed, and a fault A to F: the stream at first and after each branch,
    each (B, T, D), and the first row's attention weights in each block, each (H, T, T)."""
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


@torch.inference_mode()
def run_any(model, tokens, cut=(), speed=1.0, fault="none"):
    """As `run`, for a model of any family, without faults: its blocks compute as they do, and are listened to."""
    layer_of, weights = {block.attention: layer for layer, block in enumerate(model.layers)}, {}

    def attend(own, attention, q, k, v, visible):
        seen = causal_visible(*q.shape[2:3], k.shape[2], q.device) if visible is None else visible
        share = weights_of(own, attention, q, k, v, seen)[0]
        weights[attention] = share.where(~seen, share.clamp(min=1e-9))  # 0 is for what is hidden alone
        away = [f"head {head} of block {layer_of[attention]}" in cut for head in range(q.shape[1])]
        mixed = own(attention, q, k, v, visible)
        mixed[:, away] = 0
        return mixed

    inv_freq = max(speed, 1e-9) * model.inv_freq  # 0 would say of a pair that it never turns
    with attending(model, attend), mock.patch.object(model, "inv_freq", inv_freq):
        model.check_call(tokens)  # some parts hear the positions from it
        streams, shared = [model.tok_embeddings(tokens)], model.rotation_and_mask(tokens.shape[1], device=tokens.device)
        for layer, block in enumerate(model.layers):
            silent = f"feed-forward of block {layer}" in cut
            streams += _branches(block, silent, streams[-1], *shared, None, layer)
    return streams, list(weights.values())


def _branches(block, silent, x, *shared):
    """The stream after a block's attention and after its feed-forward, (B, T, D) each; a silent one writes zeros."""
    ffn, attended, read = block.feed_forward, [], []
    hooks = [block.attention.register_forward_hook(lambda _, given, output: attended.extend((given[0], output)))]
    for part in {ffn, getattr(block, "ffn_norm", ffn)}:
        hooks.append(part.register_forward_pre_hook(lambda _, given: read.append(given[0])))
    with mock.patch.object(ffn, "forward", torch.zeros_like) if silent else nullcontext():
        after = block(x, *shared)
    for hook in hooks:
        hook.remove()
    side_by_side = read[0] is x or read[0] is attended[0]  # GPT-J: the feed-forward does not read what attention wrote
    return x + attended[1] if side_by_side else read[0], after


def explore_xray(
    model=TINY_LLAMA, text=SENTENCE, blocks=(), heads=(), tokenizer=None, speed=1.0, plain=False
) -> Explorer:
    """A run from tokens to next words: ablate parts, and see what it changes. Of LLaMA also with a fault, A to F.

    Clocks have a row for each way to turn; they are hatched where nothing turns. A window stands under its block.

    Args:
        model: a model, or its folder with its tokenizer, as `save_pretrained` writes it: LLaMA, or any family that
            `beyond.families` opens.
        text: the first 10 tokens count; it may also be token ids.
        blocks, heads: which are shown, at most eight each; no blocks are eight at most, evenly spread.
        tokenizer: of a model that is no folder, such as load_tokenizer(folder).
        speed: of RoPE, at first.
        plain: nothing but parts to ablate, without clocks and controls.
    """
    is_own = not is_usual(model)
    model, tokens, read = opened(model, text, tokenizer, 10)
    blocks = chosen("blocks", blocks, model.config.n_layers, spread(model.config.n_layers))
    heads = chosen("heads", heads, model.config.n_heads, range(min(4, model.config.n_heads)))
    word = functools.cache(lambda token: read(token).replace(r"'\n'", "↵")[:7])
    words = [word(token) for token in tokens[0].tolist()]
    measure = _measured(model, tokens, is_own, blocks, heads, word)
    whole = measure()
    picture = _Xray(model, blocks, heads, words, whole, plain)

    def draw(clicked, token=None, show=PLAIN, speed=1.0, fault="none"):
        seen = measure(clicked, speed, fault)
        picture.show_run(seen, token, show)
        if not plain:
            picture.turn_hands(seen.turns, speed * token, show)
        picture.cross_out(clicked, show)
        picture.show_loss(seen.loss, sum(measure((part,)).loss - whole.loss for part in clicked))
        said = picture.first_change(seen, show)
        if not plain:
            said += f"After “{words[token]}”: “{seen.words[-1][token]}” ({seen.chances[token]:.2f}). "
        return f"{said}The loss is {seen.loss:.2f}."

    controls = {"token": slider("position", len(words) - 2, 0, len(words) - 1)}
    if picture.speeds.any():
        controls["speed"] = slider("RoPE's speed", speed, 0.0, 2.0, 0.1, says="RoPE {} times as fast")
    if not hasattr(model, "family"):
        controls["fault"] = switch("fault", ("none", *"ABCDEF"))
    controls["show"] = switch("show", (PLAIN, HANDS))
    alt = "Down: blocks. Left their attention masks; right, for each token, whether its vector changed (red). "
    alt += "Below the loss." if plain else "Above RoPE's clocks, below the loss."
    explorer = Explorer(picture.figure, draw, {} if plain else controls, alt, picture.parts, several=True)
    if not is_own:
        explorer.controls["clicked"].value = (f"feed-forward of block {blocks[len(blocks) // 3]}",)
    return explorer


def _measured(model, tokens, is_own, blocks, heads, word):
    """A function from what is changed to what is seen of a run. Its loss is that of windows, or of one's own text."""
    go, windows = run_any if hasattr(model, "family") else run, tokens if is_own else held_out_windows()[5::8, 128:193]
    whole = torch.cat(go(model, tokens)[0]).float()

    @functools.lru_cache(500)
    @torch.inference_mode()
    def measure(cut=(), speed=1.0, fault="none"):
        streams, weights = go(model, tokens, cut, speed, fault)
        streams = torch.cat(streams)  # (1 + 2 L, T, D)
        chances, best = model.lm_head(model.final_norm(streams[2::2])).float().softmax(-1).max(-1)
        ends = streams[-1:, :-1] if is_own else go(model, windows[:, :-1], cut, speed, fault)[0][-1]
        logits = model.lm_head(model.final_norm(ends)).float()
        loss, streams = F.cross_entropy(logits.mT, windows[:, 1:]).item(), streams.float()
        same = ((streams - whole).norm(dim=-1) <= 1e-4 * whole.norm(dim=-1))[1:]
        others = whole[1:], streams[:-1]  # the whole model's; before the branch
        apart, turns = (F.cosine_similarity(streams[1:], one, dim=-1).clamp(-1, 1).arccos() for one in others)
        return SimpleNamespace(
            loss=loss,  # [nat/token]
            weights=torch.stack([weights[at][heads].float() for at in blocks]).cpu().numpy(),  # (blocks, heads, T, T)
            apart=apart.masked_fill(same, -1).cpu().numpy(),  # angle from the whole model's stream, (2 L, T) [rad]
            turns=turns.cpu().numpy(),  # angle by which each branch turns the stream, (2 L, T) [rad]
            words=[[word(token) for token in best[at].tolist()] for at in (*blocks, -1)],  # the likeliest next ones
            chances=chances[-1].tolist(),  # of those at the end, (T,)
        )

    return measure


class _Xray:  # the picture, in pixels: RoPE's clocks above, attention masks left, the stream right, the loss below
    def __init__(self, model, blocks, heads, words, whole, plain):
        n, self.whole = len(words), whole
        self.ways, self.speeds = _ways_to_turn(model, blocks)
        self.rows = np.add.outer(2 * np.array(blocks), (0, 1)).ravel()  # of all branches those that are shown
        self.top = 64 if plain else TOP + 34 * (len(self.ways) - 1)
        self.end = self.top + len(blocks) * PITCH
        self.cell = min(264 // (len(heads) * (n + 1)), 66 // n)  # of a mask
        self.side, self.step = self.cell * n, self.cell * (n + 1)  # of a mask, and from one to the next
        self.right = LEFT + max(self.step * len(heads), 264) + 8  # where the stream begins
        self.column = (WIDTH - 10 - self.right) // n  # of a token
        self.width = self.column * n
        known = np.log(model.config.vocab_size) - whole.loss  # more than by a uniform guess [nat/token]
        self.low, self.room = self.end + 66, known if known > 1.5 else 2.0  # the bar of the loss: where it is; its nats
        self.nat = 0.9 * self.width / self.room
        self.figure = Figure(figsize=(WIDTH / 110, (self.end + 104) / 110), dpi=110, layout="none", facecolor="white")
        self.ax = self.figure.add_axes((0, 0, 1, 1))
        bare(self.ax, (0, WIDTH), (self.end + 104, 0))
        self.write = functools.partial(self.ax.text, va="center", fontsize=9)
        self.places = {}  # x, y, width and height of what can be ablated
        for block, y in zip(blocks, range(self.top, self.end, PITCH), strict=True):
            for at, head in enumerate(heads):
                self.places[f"head {head} of block {block}"] = LEFT + self.step * at, y, self.side, self.side
            self.places[f"feed-forward of block {block}"] = self.right, y, self.width, PITCH - 6
        self.parts = {name: within(self.ax, x, y, x + w, y + h) for name, (x, y, w, h) in self.places.items()}
        if not plain:
            self._fix_clocks(model.inv_freq.shape[-1])
        self._fix_names(blocks, heads, words, _sees(model, blocks))
        self._add_what_moves(len(blocks), n)

    def _fix_clocks(self, n_pairs):
        n_shown, names = len(self.speeds[0]), self.ways
        says = f"{n_shown} of RoPE's" if n_shown < n_pairs else "of RoPE's first"
        says = f"{says} {n_pairs} pairs, at this position"
        self.write(10, 20, "Rotation angles", weight="bold")
        self.write(self.right, 20, says if len(names) > 1 else "")
        for row, name in enumerate(names if len(names) > 1 else [says]):
            self.write(10, 44 + 34 * row, name)
        x, y = np.meshgrid(self.right + 17 + 34 * np.arange(n_shown), 44 + 34 * np.arange(len(names)))
        circle_x, circle_y = arc(0, 2 * np.pi, 14)
        for at, speed in np.ndenumerate(self.speeds):
            self.ax.plot(x[at] + circle_x, y[at] + circle_y, color=HIDDEN, lw=1)
            if not speed:
                self.ax.add_patch(Circle((x[at], y[at]), 13, fc=HIDDEN, ec=HATCH, hatch="/////", lw=0))
        self.centres = np.where(self.speeds, x, np.nan), y  # what stands still has no hand

    def _fix_names(self, blocks, heads, words, windows):
        narrow, above, named = self.step < 44, self.top - 12, functools.partial(self.write, ha="center")
        named(26, above, "block")
        for at, head in enumerate(heads):
            named(LEFT + self.step * at + self.side / 2, above, head if narrow else f"head {head}")
        for at, word in enumerate(words):
            named(self.right + self.column * (at + 0.5), above, word, parse_math=False)
        for at, (block, window) in enumerate(zip(blocks, windows, strict=True)):
            y = self.top + PITCH * at + self.side / 2
            named(26, y, block)
            named(26, y + 18, window, color=GREY, fontsize=7)
        self.write(10, self.top - 44, "Attention masks, by head" if narrow else "Attention masks", weight="bold")
        self.write(10, self.end + 54, "Click a mask to ablate its head, and a\nrow on the right for its feed-forward.")
        self.ax.add_patch(Rectangle((self.right, self.low), self.width, 14, fc="#EEEEEE"))
        ticks = {f"{self.whole.loss:.2f}": 0, "+0.3": 0.3, "+1": 1, "+2" if self.room == 2 else "uniform": self.room}
        for name, more in ticks.items():
            x = self.right + self.nat * more
            self.ax.plot([x, x], [self.low, self.low + 18], color=GREY, lw=1)
            named(x, self.low + 27, name)

    def _add_what_moves(self, n_blocks, n):
        self.pixels = self.ax.add_artist(Pixels())
        inks = (INK, 1.6), (AGAINST, 2.2), (INK, 3)
        self.hands, self.crosses, self.mark = (self.ax.plot([], [], color=ink, lw=width)[0] for ink, width in inks)
        self.hands.set(marker="o", ms=2.5, markevery=3)  # of a stroke's two ends and a gap: its first
        height, self.bar = self.end + 44 - self.top, Rectangle((self.right, self.low), 0, 14, fc=AGAINST)
        self.frame = self.ax.add_patch(Rectangle((0, self.top - 24), self.column, height, fc="none", ec=INK, lw=1.5))
        self.ax.add_patch(self.bar)
        self.changes = self.write(self.right, self.top - 44, "", weight="bold")
        self.costs = self.write(self.right, self.low - 14, "", weight="bold")
        self.row_says = self.write(self.right - 8, self.end + 7, "", ha="right")
        branches = self.top + PITCH * np.arange(n_blocks)[:, None] + (5, 27)
        self.pivots = self.right + self.column * (np.arange(n) + 0.5), branches.reshape(-1, 1)

    def show_run(self, seen, token, show):  # the masks, the stream with its words, and a frame around a token
        image = Image.new("RGB", (WIDTH - LEFT, self.end + 20 - self.top), "white")
        image.paste(Image.fromarray(masks(seen.weights, self.cell, PITCH, token)))
        stream = _stream(seen.apart[self.rows], seen.words, self.whole.words[-1], self.column, show == HANDS)
        image.paste(stream, (self.right - LEFT, 0))
        self.pixels.put(image, LEFT, 84)
        self.frame.set(x=self.right + self.column * (token or 0), visible=token is not None)
        self.row_says.set_text("next word" if show == PLAIN else "was")

    def turn_hands(self, turns, time, show):  # those of the clocks, and, if they are shown, those of the branches
        angles, turns = time * self.speeds, turns[self.rows]
        clocks = (*self.centres, 13 * np.cos(angles), -13 * np.sin(angles))
        branches = (*self.pivots, 18 * np.sin(turns), 18 * np.cos(turns))
        strokes(self.hands, *([branches, clocks] if show == HANDS else [clocks]))

    def cross_out(self, cut, show):  # a cross on an ablated head's mask, a line through an ablated feed-forward's row
        struck = [[self.places[part] for part in cut if part.startswith(kind)] for kind in ("head", "feed-forward")]
        (x, y, width, height), (left, top, length, _) = (np.array(places).reshape(-1, 4).T for places in struck)
        line = left, top + (36 if show == HANDS else 52), length, 0
        strokes(self.crosses, (x, y, width, height), (x, y + height, width, -height), line)

    def show_loss(self, loss, single_costs):  # a bar for its rise; a mark where the single costs, added, would end
        base, ends = self.whole.loss, self.low + np.array((-3, 17))
        self.bar.set_width(np.clip(self.nat * (loss - base), 0, self.width))
        self.mark.set_data([self.right + np.clip(self.nat * single_costs, 0, self.width)] * 2, ends)
        self.costs.set_text(f"Loss {base:.2f} → {loss:.2f} [nat/token]; black: single costs added")

    def first_change(self, seen, show):  # where a run first differs, in words; the heading says how many words change
        before, after = self.whole.words[-1], seen.words[-1]
        says = f"{sum(map(str.__ne__, after, before))} of {len(after)} next words change"
        changed = np.argwhere(seen.apart >= 0)  # (branch, token), branches in their order
        if not len(changed):
            self.changes.set_text(f"Stream{UNCHANGED[show]}")
            return ""
        self.changes.set_text(f"Stream: red is changed; {says}")
        block, is_ffn = divmod(changed[0, 0], 2)
        branch = "feed-forward" if is_ffn else "attention"
        return f"It changes from {branch} of block {block} and token {changed[:, 1].min()} on; {says}. "


def _ways_to_turn(model, blocks):
    """Names of the blocks that turn alike, and the speeds of 16 of their pairs, (ways, pairs) [rad/token]."""
    each, ways = getattr(model, "layer_inv_freq", model.inv_freq[None]), {}
    some = np.arange(pairs := min(16, each.shape[1])) * each.shape[1] // pairs
    for block in blocks:
        ways.setdefault(tuple(each[block % len(each), some].tolist()), []).append(str(block))
    names = [f"block{'s' * (len(those) > 1)} {', '.join(those)}" for those in ways.values()]
    return names, np.array([*ways], dtype=np.float32)


def _sees(model, blocks):
    """What a mask of a short text cannot show of each block: its window, or its chunk; nothing if it sees all."""
    windows, cut = getattr(model, "windows", {}), getattr(model, "cut", {})
    for block in blocks:
        if cut and cut[block]:
            yield f"chunks\nof {model.chunk:,}"
        else:
            yield f"last\n{windows[block]:,}" if windows and windows[block] else ""


class Pixels(Artist):
    """An image, so far from the lower left corner, as it is: imshow would calculate each pixel anew."""

    def put(self, image, x, low):
        self.image, self.at, self.stale = np.asarray(image.convert("RGBA"))[::-1], (x, low), True

    def draw(self, renderer):
        renderer.draw_image(renderer.new_gc(), *self.at, self.image)


def masks(weights, cell, pitch, token=None):
    """Weights (L, H, T, T) in pixels, white to blue; zeros are grey and hatched, what should be zero is red.

    The row of a token is framed.
    """
    L, H, n, _ = weights.shape
    ahead, page = np.triu(np.ones((n, n), bool), 1), np.full((L, pitch, H, cell * (n + 1), 3), 255, np.uint8)
    color = 1 - weights[..., None] ** 0.7 * (1 - np.where(ahead[..., None], to_rgb(AGAINST), to_rgb(QUERY)))
    color[weights == 0] = to_rgb(HIDDEN)
    color, hatched = (one.repeat(cell, 2).repeat(cell, 3) for one in (color, (weights == 0) | ahead))
    color[hatched & (np.indices(hatched.shape[2:]).sum(0) % 5 == 0)] = to_rgb(HATCH)
    if token is not None:
        first, last = cell * token, cell * (token + 1) - 1
        color[:, :, [first, last]] = color[:, :, first:last, :: cell * n - 1] = to_rgb(INK)
    page[:, : cell * n, :, : cell * n] = 255 * color.swapaxes(1, 2)
    return page.reshape(L * pitch, -1, 3)


def _stream(apart, says, before, column, hands):
    """For each block and token two cells, redder the further its stream is turned, grey for -1; the next words."""
    *says, last = says
    L, n, split = len(says), len(before), 24 if hands else 33
    shade = np.where(apart < 0, 0, 0.15 + np.clip(apart, 0, 1.6) / 2.4).reshape(L, 2, n, 1)
    color = np.where(apart.reshape(L, 2, n, 1) < 0, 242, 255 * (1 - shade * (1 - np.array(to_rgb(AGAINST)))))
    page = np.full((L, PITCH, n, 3), 255, np.uint8)
    page[:, :split], page[:, split + 3 * (not hands) : -6] = color[:, :1], color[:, 1:]
    page = np.pad(page.reshape(-1, n, 3), ((0, 20), (0, 0), (0, 0)), constant_values=255)
    image = Image.fromarray(page.repeat(column, 1))
    pen = ImageDraw.Draw(image)
    for t in range(1, n):
        pen.line([(column * t, 0), (column * t, PITCH * L - 7)], "white", 1)
    if not hands:
        for y, name in ((16, "after attention"), (52, "after the feed-forward")):
            pen.text((6, y), name, GREY, FONT, "lm")
    for (row, t), word in np.ndenumerate(says if hands else []):
        look = (INK, BOLD) if word == last[t] else (GREY, FONT)
        pen.text((column * (t + 0.5), PITCH * row + PITCH - 17), word, *look, "mm")
    for t, (old, new) in enumerate(zip(before, last, strict=True)):
        word = new if not hands else old * (old != new)
        pen.text((column * (t + 0.5), PITCH * L + 7), word, AGAINST if old != new else INK, BOLD, "mm")
    return image
