"""The explorer of notebook 07: a model writes, token by token; and repeats in texts."""

import functools
from itertools import pairwise

import torch
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from explorers.base import GREY, PALE, Explorer, arc, bare, bundled, hide_future, readable, slider, switch
from helpers.generate import next_token_probabilities
from helpers.interventions import attention_by_layer
from helpers.model import causal_visible, rope_angles
from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY
from helpers.text import encode, load_tokenizer

PROMPT, N, BARS, PAIR, COLUMNS = "The value of the argument is", 32, 10, 3, 92
WAYS = ("with a cache", "without a cache")
TEMPERATURES, TOP_PS = torch.arange(21) / 10, [n / 10 for n in range(1, 11)]
PANELS = {  # left, bottom, width, height, in shares of the picture; title
    "page": (0.025, 0.815, 0.95, 0.12, ""),
    "bars": (0.065, 0.53, 0.42, 0.20, "What may come next, and with which probability"),
    "line": (0.065, 0.375, 0.42, 0.04, "The draw: a random number falls on a line"),
    "clock": (0.025, 0.02, 0.20, 0.24, "Angles of pair 3"),
    "work": (0.285, 0.095, 0.17, 0.165, "Multiplications [million]"),
    "mask": (0.575, 0.19, 0.41, 0.54, "Who looks at whom; dark: computed in this step"),
    "kept": (0.575, 0.075, 0.41, 0.03, "Slots of the cache; dark: written in this step"),
}


def explore_writing() -> Explorer:
    """The bundled model writes: the draw of a token, what its step computes, what the cache keeps; the work."""
    model, tokenizer = bundled(), load_tokenizer()
    start, seen, slots = encode(tokenizer, PROMPT), causal_visible(N, N), torch.arange(N)
    n_prompt, numbers = len(start), torch.rand(N, generator=torch.Generator().manual_seed(0))
    texts = _all_texts(model, start, numbers)
    tips = torch.view_as_real(torch.polar(torch.ones(N), rope_angles(slots, model.inv_freq)[:, PAIR]))
    works = {way: [_work(model.config, n, way == WAYS[0] and n > n_prompt) for n in range(n_prompt, N)] for way in WAYS}

    # What is fixed: panels, the circle, both curves of work in grey.
    figure = Figure(figsize=(8.4, 6.0), dpi=110, facecolor="white", layout="none")
    page, bars, line, clock, work, mask, kept = (figure.add_axes(place[:4]) for place in PANELS.values())
    for x, y, _, height, title in PANELS.values():
        figure.text(x, y + height + 0.03, title, fontsize=9.5)
    for ax, x, y in ((page, (0, COLUMNS), (2, 0)), (line, (0, 1), (0, 1)), (clock, (-1.1, 1.1), (-1.1, 1.1)),
                     (mask, (-0.5, N - 0.5), (N - 0.5, -0.5)), (kept, (-0.5, N - 0.5), (0, 1))):  # fmt: skip
        bare(ax, x, y, "equal" if ax is clock else "auto")
    bars.set(xlim=(-0.6, BARS - 0.4), ylim=(0, 1), xticks=[], yticks=[0, 0.5, 1])
    work.set(xlim=(n_prompt, N), ylim=(0, 1.1 * works[WAYS[1]][-1]), xticks=[n_prompt, N], yticks=[0, 10, 20, 30])
    work.set_xlabel("tokens so far", labelpad=-8, fontsize=9)
    for way, curve in works.items():
        work.plot(range(n_prompt, N), curve, color=HIDDEN)
        work.text(N, curve[-1], f" {way.split()[0]}", fontsize=8.5, color=GREY, va="center")
    clock.plot(*arc(0, 6.3, 1), color=HIDDEN, lw=1)
    for y, name, color in ((-0.4, "the query", QUERY), (-0.65, "keys", KEY)):
        clock.text(0, y, name, color=color, fontsize=9, ha="center", va="center")
    hide_future(mask, N, zorder=2)
    mask.plot([n_prompt - 0.5, N - 0.5], [n_prompt - 0.5] * 2, color=INK, lw=1, ls=":", zorder=3)
    mask.text(N - 1, n_prompt - 1, "prompt", ha="right", fontsize=9, bbox={"fc": HIDDEN, "lw": 0, "pad": 1}, zorder=3)
    mask.set_ylabel("query", labelpad=1, fontsize=9)
    mask.set_xlabel("key", labelpad=1, fontsize=9)

    # What moves: the text, bars with their names, the line and its number, rows of weights, slots, hands, the work.
    boxes, frame = page.add_collection(PolyCollection([], lw=0.6)), page.add_collection(PolyCollection([], fc="none"))
    style = {"family": "monospace", "fontsize": 9, "va": "center", "ha": "center", "parse_math": False, "zorder": 4}
    words = [page.text(0, 0, "", **style) for _ in range(N)]
    filled = bars.bar(range(BARS), [0] * BARS, width=0.8, color=PALE)
    slanted = {"rotation": 40, "rotation_mode": "anchor", "fontsize": 8.5, "parse_math": False, "zorder": 4}
    names = [bars.text(x - 0.1, 0, "", **slanted) for x in range(BARS)]
    pieces = line.add_collection(PolyCollection([]))
    (number,) = line.plot([], [], "v", color=INK, ms=8, clip_on=False)
    past, now = (mask.imshow(torch.zeros(N, N).numpy(), cmap="Blues", vmin=-low, vmax=high, aspect="auto")
                 for low, high in ((0.2, 1.6), (0.12, 0.3)))  # fmt: skip
    room = kept.add_collection(PolyCollection([_box(i - 0.5, i + 0.4) for i in slots]))
    hands, (query,) = clock.add_collection(LineCollection([], lw=1.2)), clock.plot([], [], color=QUERY, lw=3)
    (curve,), (dot,) = work.plot([], [], color=INK), work.plot([], [], "o", color=INK)

    @functools.cache  # the slider of the token asks again and again
    def read(temperature, top_p):
        text = texts[TOP_PS.index(round(top_p, 1)), round(10 * temperature)]
        logits, weights = model(text[None])[0, n_prompt - 1 : -1], attention_by_layer(model, text[None]).mean((0, 1))
        shares = next_token_probabilities(logits, temperature, None, top_p)
        own = logits.softmax(-1)[range(N - n_prompt), text[n_prompt:]].tolist()
        return text, shares, own, weights

    def draw(new, temperature, top_p, way):
        text, shares, own, weights = read(temperature, top_p)
        at, cached = n_prompt + new - 1, way == WAYS[0]  # the step reads the token before `at` and writes the one at it
        token = text[at].item()
        corners, colors, x, y = [], [], 0, 0
        for i, label in enumerate(words):
            word = tokenizer.decode([text[i].item()]).replace("\n", "↵") if i <= at else ""
            x, y = (0, y + 1) if x + len(word) > COLUMNS else (x, y)
            corners += [_box(x, x + len(word), y + 0.1, y + 0.9)] if word else []
            sure = own[i - n_prompt] if i >= n_prompt else 0
            colors.append(str(1 - 0.75 * sure) if i >= n_prompt else "#EAF2FA")
            label.set(position=(x + len(word) / 2, y + 0.5), text=word, color="white" if sure > 0.6 else INK)
            x += len(word)
        boxes.set(verts=corners, facecolors=colors[: at + 1], edgecolors=HATCH)
        frame.set(verts=corners[-1:], edgecolors=KEY, linewidths=2)
        best, order = shares[new - 1].sort(descending=True, stable=True)
        for bar, name, share, one in zip(filled, names, best.tolist(), order.tolist(), strict=False):
            bar.set(height=share, color=KEY if one == token else PALE)
            name.set(text=readable(tokenizer, one) if share else "", y=min(share, 0.6) + 0.04)
        ends, place = [0, *best.cumsum(0).tolist()], (order == token).nonzero().item()
        shown = [*pairwise([*ends[:200], 1]), ends[place : place + 2]]  # one grey piece for the many last ones
        pieces.set(verts=[_box(*piece) for piece in shown], facecolors=[*(PALE, GREY) * 100, KEY], edgecolors="none")
        number.set_data([numbers[at]], [1.15])
        computed = (slots < at if not cached or new == 1 else slots == at - 1)[:, None]
        now.set_data(weights.masked_fill(~(computed & seen), float("nan")).numpy())
        past.set_data(weights.masked_fill(~seen | computed | (slots >= at)[:, None], float("nan")).numpy())
        fresh = [not cached or new == 1 or i == at - 1 for i in range(at)]
        colors = [KEY if one else "#F3C9AE" for one in fresh]  # pale: from earlier steps
        room.set(facecolors=[*colors[: at * cached], *["white"] * N][:N], edgecolors=HATCH, linewidths=0.5)
        hands.set(segments=[[(0, 0), tip] for tip in tips[:at].tolist()], colors=colors)
        query.set_data([0, 0.75 * tips[at - 1, 0]], [0, 0.75 * tips[at - 1, 1]])
        curve.set_data(range(n_prompt, N), works[way])
        dot.set_data([at], [works[way][new - 1]])
        count, may = int((computed & seen).sum()), int((shares[new - 1] > 0).sum())
        page.set_title(f"{way.capitalize()} this step computes {count} of the triangle's {at * (at + 1) // 2} weights")
        return (
            f"“{readable(tokenizer, token)}” is drawn with probability {shares[new - 1, token]:.2g}, one of {may} that "
            f"could be. {way.capitalize()} the step turns {sum(fresh)} of {at} keys, computes {count} weights in each "
            f"head, and multiplies {works[way][new - 1]:.1f} million times."
        )

    controls = {
        "new": slider("new token", 20, 1, N - n_prompt),
        "temperature": slider("temperature", 0.8, 0.0, 2.0, 0.1),
        "top_p": slider("top-p", 0.9, 0.1, 1.0, 0.1),
        "way": switch("the step runs", WAYS),
    }
    alt = "A text that is written. Below: probabilities and the draw; attention, row by row, above the cache's slots; "
    return Explorer(figure, draw, controls, alt + "a clock with a hand for each key; the work of each step.")


def _box(left, right, low=0, high=1):
    return [(left, low), (right, low), (right, high), (left, high)]


def _all_texts(model, start, numbers):
    # The texts of all settings, (top-p, temperature, N), written at once: the weights are read once for all. Where each
    # number falls on its line says which token comes.
    divisors, n_cuts = TEMPERATURES.clamp(min=1e-4)[:, None], len(TOP_PS)
    texts = read = start.expand(n_cuts * len(divisors), -1)
    cache = model.new_cache(len(texts), N)
    while texts.shape[1] < N:
        logits = model(read, cache, last_only=True).view(n_cuts, len(divisors), -1) / divisors
        shares = torch.cat([next_token_probabilities(logits[i], 1.0, None, top_p) for i, top_p in enumerate(TOP_PS)])
        ordered, order = shares.sort(descending=True, stable=True)
        place = (ordered.cumsum(-1) < numbers[texts.shape[1]]).sum(-1).clamp(max=(ordered > 0).sum(-1) - 1)
        read = order.gather(1, place[:, None])
        texts = torch.cat([texts, read], dim=1)
    return texts.view(n_cuts, -1, N)


def _work(config, n, cached):
    # Millions of multiplications of a step behind which n tokens stand: it reads the newest one, or all.
    block = config.dim * (3 * config.hidden_dim + 2 * config.head_dim * (config.n_heads + config.n_kv_heads))
    tokens, pairs = (1, n) if cached else (n, n * (n + 1) // 2)
    mixing = 2 * pairs * config.n_heads * config.head_dim  # scores and means
    return (config.n_layers * (tokens * block + mixing) + config.dim * config.vocab_size) / 1e6


def repeats(rows: torch.Tensor, n_prompt: int = 16, run: int = 8, apart: int = 0) -> torch.Tensor:
    """Which new tokens belong to a run of tokens that stood in the same text before, behind its prompt.

    Args:
        rows: prompts and what follows them, (B, n_prompt + new) int64.
        run: how many equal tokens in a row count as a repeat.
        apart: count only repeats whose nearest earlier copy begins more than this many tokens before.

    Returns:
        (B, new) bool.

    Example:
        >>> repeats(torch.tensor([[9, 1, 2, 3, 1, 2, 4]]), n_prompt=1, run=2).int()
        tensor([[0, 0, 0, 1, 1, 0]], dtype=torch.int32)
    """
    found = torch.zeros_like(rows[:, n_prompt:], dtype=torch.bool)
    for row, marks in zip(rows[:, n_prompt:].tolist(), found, strict=True):
        last = {}
        for start in range(len(row) - run + 1):
            piece = tuple(row[start : start + run])
            marks[start : start + run] |= start - last.get(piece, start) > apart
            last[piece] = start
    return found
