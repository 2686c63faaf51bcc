"""The explorers of notebook 04: masks and what they let through, and the cache that grows token by token."""

import functools

import numpy as np
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, Rectangle

from explorers.base import Explorer, bare, bundled, new_figure, readable, slider, switch
from explorers.own import chosen, is_usual, opened, spread
from helpers import masks
from helpers.interventions import PLAIN, attending, attention_by_layer, mixes_plainly, weights_of
from helpers.model import repeat_kv
from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY, VALUE
from helpers.text import TINY_LLAMA, encode, load_tokenizer

AGAINST = "#C00000"  # the colour of what the rule forbids
N = 12  # tokens, at most
TEXT = "The list is sorted. A name is bound."
RULES = {"packing": (0.16, 0.9, 0.32, 1), "padding of 2": (0.34, 0.9, 0.5, 1)}


def _hide(scores, seen):  # scores, or a function of what is seen, for attention that has more than scores
    return scores(seen) if callable(scores) else scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _square(seen):
    return torch.arange(len(seen))[:, None], torch.arange(len(seen))  # positions of queries and keys


def _top_left(seen, n_cached):  # what is_causal=True means with a cache
    query, key = _square(seen)
    return seen & ((query - n_cached) % len(seen) >= key)


def _unmasked(seen, n_cached):  # while the cache is filled
    query, key = _square(seen)
    return seen | (n_cached > key) & (query < n_cached)


USUAL = "scores → −∞ (textbook)"
WAYS = {  # how a program hides keys: scores (..., T, S), visible (T, S), tokens in the cache -> weights
    USUAL: lambda scores, seen, _: _hide(scores, seen),
    "scores × 0": lambda scores, seen, _: (scores * seen).softmax(-1),
    "weights × 0": lambda scores, seen, _: scores.softmax(-1) * seen,
    "scores → −∞, empty rows 0 (SDPA)": lambda scores, seen, _: _hide(scores, seen).nan_to_num(0),
    "scores → −∞, all see themselves": lambda scores, seen, _: _hide(scores, seen | torch.eye(len(seen)).bool()),
    "is_causal=True with a cache": lambda scores, seen, n: _hide(scores, _top_left(seen, n)),
    "no mask while the cache is filled": lambda scores, seen, n: _hide(scores, _unmasked(seen, n)),
    "1 and 0, added to the scores": lambda scores, seen, _: (scores + seen.float()).softmax(-1),
    "inverted: True = hidden": lambda scores, seen, _: _hide(scores, ~seen).nan_to_num(0),
}
NEED_SCORES = "scores × 0", "weights × 0", "1 and 0, added to the scores"  # attention with sinks or caps shows none


def explore_masks(model=TINY_LLAMA, text=TEXT, blocks=(), heads=(), tokenizer=None, *, leaks=False, window=0, rules=(),
                  cached=0, way=USUAL) -> Explorer:  # fmt: skip
    """The weights of one trained head under a mask; of one query, the last or the first behind a cache, in percent.

    With `leaks` there is also, right, after all blocks, which token moves whose logits, and all controls. A window that
    the model itself has comes on top of the rule. If keys are hidden in another way, a line is round what it allows.

    Args:
        model, text, tokenizer: as in `explore_xray`, but the first 12 tokens count.
        blocks, heads: to choose from, at most eight each; of tiny-llama only block 0 and head 1.
    """
    usual = is_usual(model)
    model, tokens, word = opened(model, text, tokenizer, N)
    n_layers, n_heads, n = model.config.n_layers, model.config.n_heads, tokens.shape[1]
    blocks = chosen("blocks", blocks, n_layers, [0] if usual else spread(n_layers))
    heads = chosen("heads", heads, n_heads, [1] if usual else range(min(4, n_heads)))
    run, own, shows_scores = _masked(model, tokens)
    positions, asks = torch.arange(n), cached or n - 1
    after_all = "After 1 block" if n_layers == 1 else f"After {'six' if n_layers == 6 else n_layers} blocks"
    words = [word(token) for token in tokens[0].tolist()]
    middle = {"va": "center", "ha": "center"}
    look = {"color": AGAINST, "weight": "bold", **middle}
    figure, axes = new_figure(1 + leaks)
    near, far = (*np.ravel(axes), None)[:2]
    figure.set_size_inches(8.0, 4.0)
    named = ((near, "key", "query"), (far, "token that is replaced", "token whose logits change"))[: 1 + leaks]
    for ax, across, down in named:
        bare(ax, (-0.5, n - 0.5), (n - 0.5, -0.5))
        ax.set(xticks=positions, yticks=positions, xlabel=across, ylabel=down)
        ax.tick_params(length=0)
    near.set_yticks(positions, [f"{one[:12]}  {t}" for t, one in enumerate(words)], parse_math=False)
    chips = {}
    if leaks:
        figure.get_layout_engine().set(rect=(0, 0, 1, 0.9))
        figure.text(0.02, 0.95, "causal, and …", va="center")
        box = {"boxstyle": "round,pad=0.4", "ec": INK}
        chip = {"transform": figure.transFigure, "in_layout": False, "bbox": box, **middle}
        chips = {name: near.text((x0 + x1) / 2, 0.95, name, **chip) for name, (x0, _, x1, _) in RULES.items()}

    # What moves: cells, a line round what the rule allows, the border of the cache, numbers, NaN where there is one.
    drawn = [ax for ax, *_ in named]
    cells = [ax.imshow(np.ones((2, 2, 3)), extent=(-0.5, n - 0.5, n - 0.5, -0.5)) for ax in drawn]
    outlines = [ax.add_collection(LineCollection([], colors=INK, lw=1.6, clip_on=False)) for ax in drawn]
    border = near.axhline(-0.5, color=KEY, lw=2.5, clip_on=False)
    shares = [near.text(s, asks, "", fontsize=8.5, **middle) for s in positions]
    nans = [near.text((n - 1) / 2, t, "", fontsize=9, **look) for t in positions]
    nans += [ax.text((n - 1) / 2, (n - 1) / 2, "", fontsize=20, **look) for ax in drawn[1:]]

    def draw(window, cached=cached, way=way, clicked=tuple(rules), block=blocks[0], head=heads[0]):
        at = positions, positions  # of the queries and of the keys
        rule = masks.causal(*at) & masks.sliding_window(*at, window or n)
        rule &= masks.left_padding(*at, 2 if "padding of 2" in clicked else 0)
        if "packing" in clicked:
            rule &= masks.same_document(*at, (7 * n <= 12 * positions).long())
        every, moved = run(rule, cached, way)
        weights, itself, reach = every[block, head], torch.eye(n).bool(), torch.eye(n).bool()
        allowed = [rule & mask | itself if "themselves" in way else rule & mask for mask in own]
        for one in allowed:  # through all blocks, and along the residual stream
            reach = (one | itself).double() @ reach.double() > 0
        may = allowed[block]
        felt = torch.where(moved > 0.01, moved.clamp(min=0.06), 1e-4)
        felt = moved.where((moved == 0) | moved.isnan() | ~reach, felt)
        for image, outline, (sizes, inside) in zip(cells, outlines, ((weights, may), (felt, reach)), strict=False):
            image.set_data(_picture(sizes, inside, way != USUAL))
            outline.set_segments([] if sizes.isnan().all() or way == USUAL else _outline(inside))
        for name, chip in chips.items():
            chip.set_color(INK)  # so that it is drawn anew
            chip.get_bbox_patch().set_facecolor("#CFE3F1" if name in clicked else "white")
        border.set_ydata([cached - 0.5 if cached else np.nan] * 2)
        empty, (seen, leak) = weights.isnan().any(-1), ((weights * part).sum(-1).nan_to_num(0) for part in (may, ~may))
        for nan, there in zip(nans, [*empty, empty.any()][: len(nans)], strict=True):
            nan.set_text("NaN" if there else "")
        which = "" if usual and len(blocks) == len(heads) == 1 else f"Block {block}, head {head}: "
        if not leaks:
            mine = weights[asks].nan_to_num(0)
            for share, one in zip(shares, mine, strict=True):
                share.set(text=f"{100 * one:.0f}" if one else "", color="white" if one > 0.5 else INK)
            what = f"{which}{'query' if which else 'Query'} {asks} sees {(mine > 0).sum()} of {n} keys"
            near.set_title(f"{what} (weights in %)")
            return f"{what}, with weights {', '.join(f'{100 * one:.0f}' for one in mine if one)} %."
        after = f"{(n_leaks := ((moved > 0) & ~reach).sum())} leak{'s' * (n_leaks != 1)}"
        near.set_title(f"{which or 'One head: '}{may.sum()} of {n * n} pairs allowed")
        far.set_title(f"{after_all}: {'all is NaN' if moved.isnan().any() else after}")
        if moved.isnan().any():
            none = every[0].isnan().any(-1).any(0).sum()
            return f"{none} of {n} queries see no key: 0 / 0 is NaN. {after_all} all is NaN."
        says = f"Rows sum to {(seen + leak).min():.2f} at least, hidden keys get {leak.max():.2f} at most. "
        back, felt_back = (n - 1 - torch.where(moved[-1] > least, positions, n - 1).min() for least in (0, 0.01))
        says += f"{after_all}: {after}; token {n - 1} is moved from up to {back} back."
        return f"{says} By more than 1 % it is moved from up to {felt_back} back."

    controls, alt = {"window": slider("window (0: none)", window, 0, n - 1)}, "Query down, key across, the weights of "
    alt += "one head in blue, those of one query also in percent; hidden cells hatched."
    if leaks:
        controls["cached"] = slider("tokens in the cache (above the line)", cached, 0, n - 1)
        ways = [one for one in WAYS if shows_scores or one not in NEED_SCORES]
        controls["way"] = switch("how the program hides", ways)
        controls["way"].value = way
        alt = "Left: query down, key across, weights of one head, hidden cells hatched. Right: which token, if "
        alt += "replaced, changes whose logits (pale: by less than 1 %). Red: against the rule."
    more = {"block": blocks, "head": heads}.items()
    controls |= {name: switch(name, numbers) for name, numbers in more if len(numbers) > 1}
    explorer = Explorer(figure, draw, controls, alt, RULES if leaks else None, several=True)
    if leaks:
        explorer.controls["clicked"].value = tuple(rules)
    return explorer


def _masked(model, tokens):
    """A run of a model under a rule, what its blocks' own windows leave, (T, T) each, and whether it shows scores."""
    n, V, kept = tokens.shape[1], model.config.vocab_size, {}
    replaced = torch.eye(n + 1, n, device=tokens.device).roll(1, 0).bool()
    others = torch.where(replaced, (tokens + (400 if 400 % V else 1)) % V, tokens)  # row 1 + s: another token at s
    future, shown = torch.ones(n, n).triu(1).bool(), model.rotation_and_mask(n)[2] or [None] * model.config.n_layers
    own = [torch.ones(n, n).bool() if mask is None else mask | future for mask in shown]
    places = {block.attention: layer for layer, block in enumerate(model.layers)}

    @torch.inference_mode()
    def run(rule, cached, way):
        """Weights (n_layers, H, T, T), and how far the logits move, (T, replaced token)."""

        def attend(mix, attention, q, k, v, _):
            keys, values = repeat_kv(k, attention.n_rep), repeat_kv(v, attention.n_rep)
            scores, seen = q @ keys.mT / q.shape[-1] ** 0.5, (rule & own[places[attention]]).to(q.device)
            if mix is not PLAIN:  # it alone knows what else it does with them
                scores = functools.partial(weights_of, mix, attention, q, k, v)
            weights = WAYS[way](scores, seen, cached)
            kept[attention] = weights[0].float().cpu()
            return weights.to(v.dtype) @ values

        with attending(model, attend):
            logits = model(others).cpu()
        moved = ((logits[1:] - logits[0]).norm(dim=-1) / logits[0].norm(dim=-1)).T  # (T, s)
        return torch.stack([*kept.values()]), torch.where(moved < 1e-6, 0, moved)

    return run, own, all(mixes_plainly(block.attention) for block in model.layers)


def _picture(sizes, allowed, lost=False, height=14):
    # Cells 14 pixels wide, white to blue where the rule allows it; else hatched, or red where something is. With lost
    # cells that the rule allows are hatched too, where nothing is.
    hue = torch.tensor([to_rgb(AGAINST), to_rgb(QUERY)])[allowed.long()]
    least = torch.where(allowed, 0.1, 0.5)  # share of the hue in the palest cell
    color = 1 - (least + (1 - least) * sizes.nan_to_num(0).clamp(0, 1).sqrt())[..., None] * (1 - hue)
    is_zero, is_nan = sizes == 0, sizes.isnan()
    hidden = is_zero & (~allowed | lost)
    color[is_zero & ~hidden] = 1.0
    color[hidden] = torch.tensor(to_rgb(HIDDEN))
    color[is_nan] = torch.tensor(to_rgb("#F6D5D5"))
    hatched = hidden[..., None]
    pixels, lines = (y.numpy().repeat(height, 0).repeat(14, 1) for y in (color, hatched))
    row, column = np.indices(lines.shape)[:2]
    pixels = np.where(lines & ((row + column) % 5 == 0), to_rgb(HATCH), pixels)
    return (255 * np.where((row % height < height - 1) & (column % 14 < 13), pixels, 1)).astype(np.uint8)


def _outline(allowed):
    inside = np.pad(allowed.numpy(), 1)  # an edge stands where neighbours differ
    upright = [((s - 0.5, t - 1.5), (s - 0.5, t - 0.5)) for t, s in np.argwhere(inside[:, 1:] != inside[:, :-1])]
    return upright + [((s - 1.5, t - 0.5), (s - 0.5, t - 0.5)) for t, s in np.argwhere(inside[1:] != inside[:-1])]


SENTENCE = "The function is called with the arguments of the function, and the value of the name"
LONG = 16  # tokens of it
SPEED = 10**-0.5  # of the pair whose angles are drawn [rad/token]


def explore_cache(tokens=8) -> Explorer:
    """The cache of the bundled model, the new row of the mask, and the angles of one pair."""
    words, weights = _written()
    figure, _ = new_figure(1)
    figure.clear()
    figure.set_size_inches(8.0, 5.2)
    axes = figure.subplot_mosaic([["kept", "clock"], ["mask", "clock"]], width_ratios=[1.5, 1], height_ratios=[1.1, 1])
    kept, clock, mask = axes["kept"], axes["clock"], axes["mask"]
    for ax, rows in ((kept, 6), (mask, LONG)):
        bare(ax, (-0.5, LONG - 0.5), (rows - 0.5, -0.5), "auto")
        ax.tick_params(length=0)
    kept.set_yticks(range(6), [f"layer {n}" for n in range(6)])
    mask.set_xticks(range(LONG), words, rotation=90)
    mask.set(xlabel="key", ylabel="query")
    bare(clock, (-1.5, 1.5), (-1.4, 1.5))
    clock.add_patch(Circle((0, 0), 1, fill=False, ec=HIDDEN))

    # What moves: columns and rows, a frame around each; dots and the query's hand.
    blank, text = np.ones((2, 2, 3)), {"ha": "center", "va": "center"}
    columns = kept.imshow(blank, extent=(-0.5, LONG - 0.5, 5.5, -0.5), aspect="auto")
    rows = mask.imshow(blank, extent=(-0.5, LONG - 0.5, LONG - 0.5, -0.5), aspect="auto")
    new = kept.add_patch(Rectangle((0, -0.5), 1, 6, fc="none", ec=INK, lw=1.5, clip_on=False, zorder=4))
    now = mask.add_patch(Rectangle((-0.5, 0), 1, 1, fc="none", ec=QUERY, lw=1.8, clip_on=False, zorder=4))
    dots = clock.scatter(np.zeros(LONG), np.zeros(LONG), color=KEY, clip_on=False, zorder=3)
    (hand,) = clock.plot([], [], color=QUERY, lw=3, zorder=2)
    name = clock.text(0, 0, "", color=QUERY, **text)

    def draw(tokens):
        t, steps = tokens - 1, torch.arange(LONG)[:, None]
        columns.set_data(_columns(tokens))
        rows.set_data(_picture(weights.where(steps == t, (steps < t) * (weights > 0) * 0.01), weights > 0, height=9))
        new.set_x(t - 0.5)
        now.set(y=t - 0.5, width=tokens)
        angles = SPEED * np.arange(tokens)
        x, y = np.cos(angles), np.sin(angles)
        dots.set_offsets(np.stack((x, y), 1))
        dots.set_sizes(15 + 300 * weights[t, :tokens].numpy())
        hand.set_data([0, x[-1]], [0, y[-1]])
        name.set(text="query", position=(1.38 * x[-1], 1.35 * y[-1]))
        kept.set_title(f"“{words[t]}” adds 12 keys and 12 values")
        mask.set_title(f"Only one row is new: {tokens} weights")
        clock.set_title(f"RoPE: 1 query, {tokens} key{'s' * (tokens > 1)}")
        says = f"Token {tokens} adds 12 keys and 12 values of 32 numbers; the columns before it do not change. "
        return f"{says}Its query is turned by {np.degrees(angles[-1]):.0f}°, and its row has {tokens} weights."

    alt = "Columns of keys (orange) and values (green) in six layers; below, the mask, one row framed; beside them a "
    alt += "clock with the query's hand and a dot for each cached key."
    return Explorer(figure, draw, {"tokens": slider("tokens written", tokens, 1, LONG)}, alt)


@functools.cache
def _written():
    # The words, and the weights of head 3 of layer 4 of the bundled model, as trained (LONG, LONG).
    tokenizer = load_tokenizer()
    tokens = encode(tokenizer, SENTENCE)[:LONG]
    with torch.inference_mode():
        weights = attention_by_layer(bundled(), tokens[None])[4, 3]
    return [readable(tokenizer, token) for token in tokens.tolist()], weights.clone()


def _columns(tokens):
    # 56 pixels a layer, of which a head's keys or values have 10; the newest column is full in colour.
    picture = np.full((6, 56, LONG, 14, 3), 0.96)
    picture[:, 52:] = 1
    for row in range(4):
        ink, place = np.array(to_rgb(KEY if row < 2 else VALUE)), slice(2 + 12 * row, 12 + 12 * row)
        picture[:, place, : tokens - 1, :13] = 1 - 0.45 * (1 - ink)
        picture[:, place, tokens - 1, :13] = ink
    return (255 * picture.reshape(6 * 56, LONG * 14, 3)).astype(np.uint8)
