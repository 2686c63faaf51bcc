"""The explorers of notebook 04: masks and what they let through, and the cache that grows token by token."""

import functools

import numpy as np
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, Rectangle

from explorers.base import GREY, PALE, Explorer, bare, bundled, new_figure, readable, slider, switch, toggle
from explorers.own import chosen, is_usual, opened, spread
from helpers import masks
from helpers.interventions import PLAIN, attending, attention_by_layer, mixes_plainly, weights_of
from helpers.model import PRESETS, count_parameters, repeat_kv
from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY, VALUE
from helpers.text import TINY_LLAMA, encode, load_tokenizer

AGAINST = "#C00000"  # the colour of what the rule forbids
N = 12  # tokens, at most
TEXT = "The list is sorted. A name is bound."
RULES = {"packing": (0.16, 0.9, 0.32, 1), "padding of 2": (0.34, 0.9, 0.5, 1), "prefix of 4": (0.52, 0.9, 0.68, 1)}


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


WAYS = {  # how a program hides keys: scores (..., T, S), visible (T, S), tokens in the cache -> weights
    "scores → −∞ (textbook)": lambda scores, seen, _: _hide(scores, seen),
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


def explore_masks(model=TINY_LLAMA, text=TEXT, blocks=(), heads=(), tokenizer=None, *, window=0, rules=(), cached=0,
                  way="scores → −∞ (textbook)", everything=False) -> Explorer:  # fmt: skip
    """Left the weights of one trained head under a mask; right, after all blocks, which token moves whose logits.

    A window that the model itself has comes on top of the rule. With `everything` also the outline of what the rule
    allows, the sums of the weights, and, hatched, what is lost.

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
    positions = torch.arange(n)
    after_all = "After 1 block" if n_layers == 1 else f"After {'six' if n_layers == 6 else n_layers} blocks"
    words = [word(token) for token in tokens[0].tolist()]
    look = {"color": AGAINST, "weight": "bold", "va": "center", "ha": "center"}
    figure, (near, sums, far) = new_figure(3, width_ratios=[1, 0.3, 1])
    figure.set_size_inches(8.0, 4.0)
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.9))
    for ax, across, down in ((near, "key", "query"), (far, "token that is replaced", "token whose logits move")):
        bare(ax, (-0.5, n - 0.5), (n - 0.5, -0.5))
        ax.set(xticks=positions, yticks=positions, xlabel=across, ylabel=down)
        ax.tick_params(length=0)
    near.set_yticks(positions, [f"{one[:12]}  {t}" for t, one in enumerate(words)], parse_math=False)
    sums.set(box_aspect=1 / 0.3, anchor="N", xlim=(0, 1.15), ylim=(n - 0.5, -0.5), yticks=[], xlabel="sum of weights")
    sums.axvline(1, color=INK, lw=1, ls=":")
    figure.text(0.02, 0.95, "causal, and …", va="center")
    box = {"boxstyle": "round,pad=0.4", "ec": INK}
    chip = {"transform": figure.transFigure, "in_layout": False, "bbox": box, "va": "center", "ha": "center"}
    chips = {name: near.text((x0 + x1) / 2, 0.95, name, **chip) for name, (x0, _, x1, _) in RULES.items()}

    # What moves: cells, the outline of what the rule allows, bars, the border of the cache, NaN where there is one.
    cells = [ax.imshow(np.ones((2, 2, 3)), extent=(-0.5, n - 0.5, n - 0.5, -0.5)) for ax in (near, far)]
    outlines = [ax.add_collection(LineCollection([], colors=INK, lw=1.6, clip_on=False)) for ax in (near, far)]
    bars = [sums.add_collection(LineCollection([], colors=color, lw=11, capstyle="butt")) for color in (QUERY, AGAINST)]
    cover = sums.add_patch(Rectangle((-0.15, -0.2), 1.3, 1.22, transform=sums.transAxes, fc="white", clip_on=False))
    cover.set(zorder=10, in_layout=False)
    border = near.axhline(-0.5, color=KEY, lw=2.5, clip_on=False)
    nans = [sums.text(0.3, t, "", fontsize=9, zorder=11, **look) for t in positions]
    nans.append(far.text((n - 1) / 2, (n - 1) / 2, "", fontsize=20, **look))

    def draw(window, cached, way, everything, clicked, block=blocks[0], head=heads[0]):
        at = positions, positions  # of the queries and of the keys
        rule = masks.causal(*at) | masks.prefix(*at, 4 if "prefix of 4" in clicked else 0)
        rule &= masks.sliding_window(*at, window or n) & masks.left_padding(*at, 2 if "padding of 2" in clicked else 0)
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
        for image, outline, sizes, inside in zip(cells, outlines, (weights, felt), (may, reach), strict=True):
            image.set_data(_picture(sizes, inside, everything))
            outline.set_segments([] if sizes.isnan().all() or not everything else _outline(inside))
        cover.set(visible=not everything, facecolor="white")
        for name, chip in chips.items():
            chip.set_color(INK)  # so that it is drawn anew
            chip.get_bbox_patch().set_facecolor("#CFE3F1" if name in clicked else "white")
        border.set_ydata([cached - 0.5 if cached else np.nan] * 2)
        empty, (seen, leak) = weights.isnan().any(-1), ((weights * part).sum(-1).nan_to_num(0) for part in (may, ~may))
        for bar, start, end in zip(bars, (0 * seen, seen), (seen, seen + leak), strict=True):
            rows = zip(start, end, positions, strict=True) if everything else ()
            bar.set_segments([((a, t), (b, t)) for a, b, t in rows if b > a])
        for nan, there in zip(nans, [*empty, empty.any()], strict=True):
            nan.set_text("NaN" if there else "")
        lost = f", {((moved == 0) & reach).sum()} lost" if everything else ""
        after = f"{((moved > 0) & ~reach).sum()} leak{lost}"
        which = "One head" if usual and len(blocks) == len(heads) == 1 else f"Block {block}, head {head}"
        near.set_title(f"{which}: {may.sum()} of {n * n} pairs allowed")
        far.set_title(f"{after_all}: {'all is NaN' if moved.isnan().any() else after}")
        if moved.isnan().any():
            none = every[0].isnan().any(-1).any(0).sum()
            return f"{none} of {n} queries see no key: 0 / 0 is NaN. {after_all} all is NaN."
        says = f"Rows sum to {(seen + leak).min():.2f} at least, hidden keys get {leak.max():.2f} at most. "
        back, felt_back = (n - 1 - torch.where(moved[-1] > least, positions, n - 1).min() for least in (0, 0.01))
        says += f"{after_all}: {after}; token {n - 1} is moved from up to {back} back."
        return f"{says} By more than 1 % it is moved from up to {felt_back} back."

    all_label = "also the rule's outline, the sums of weights, and what is lost (hatched inside)"
    controls = {
        "window": slider("window (0: none)", window, 0, n - 1),
        "cached": slider("tokens in the cache (above the line)", cached, 0, n - 1),
        "way": switch("how the program hides", [one for one in WAYS if shows_scores or one not in NEED_SCORES]),
        "everything": toggle(all_label, everything),
    }
    more = {"block": blocks, "head": heads}.items()
    controls |= {name: switch(name, numbers) for name, numbers in more if len(numbers) > 1}
    alt = "Left: query down, key across, weights of one head, hidden cells hatched; bars of their sums. Right: which "
    alt += "token, if replaced, moves whose logits (pale: by less than 1 %). Red: against the rule."
    explorer = Explorer(figure, draw, controls, alt, RULES, several=True)
    controls["way"].value, explorer.controls["clicked"].value = way, tuple(rules)
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


def _picture(sizes, allowed, everything=False, height=14):
    # Cells 14 pixels wide, white to blue where the rule allows it; else hatched, grey, or red where something is.
    hue = torch.tensor([to_rgb(AGAINST), to_rgb(QUERY)])[allowed.long()]
    least = torch.where(allowed, 0.1, 0.5)  # share of the hue in the palest cell
    color = 1 - (least + (1 - least) * sizes.nan_to_num(0).clamp(0, 1).sqrt())[..., None] * (1 - hue)
    is_zero, is_nan = sizes == 0, sizes.isnan()
    hidden = is_zero & (~allowed | everything)
    color[is_zero & ~hidden] = 1.0
    color[hidden] = torch.tensor(to_rgb(HIDDEN))
    color[is_nan] = torch.tensor(to_rgb("#F6D5D5"))
    hatched = (hidden | ~allowed & ~is_nan & everything)[..., None]
    pixels, lines = (y.numpy().repeat(height, 0).repeat(14, 1) for y in (color, hatched))
    row, column = np.indices(lines.shape)[:2]
    pixels = np.where(lines & ((row + column) % 5 == 0), to_rgb(HATCH), pixels)
    return (255 * np.where((row % height < height - 1) & (column % 14 < 13), pixels, 1)).astype(np.uint8)


def _outline(allowed):
    inside = np.pad(allowed.numpy(), 1)  # an edge stands where neighbours differ
    upright = [((s - 0.5, t - 1.5), (s - 0.5, t - 0.5)) for t, s in np.argwhere(inside[:, 1:] != inside[:, :-1])]
    return upright + [((s - 1.5, t - 0.5), (s - 0.5, t - 0.5)) for t, s in np.argwhere(inside[1:] != inside[:-1])]


SHARING = {"each query head its own": "n_heads", "as published": "n_kv_heads", "one for all": ""}
LARGE = {"Llama 3.2 1B": "llama-3.2-1b", "Llama 2 7B": "llama-2-7b", "Llama 3 8B": "llama-3-8b"}
SENTENCE = "The function is called with the arguments of the function, and the value of the name"
LONG = 16  # tokens of it
SPEED = 10**-0.5  # of the pair whose angles are drawn [rad/token]


def explore_cache(tokens=8) -> Explorer:
    """The cache of the bundled model, the new row of the mask, the angles of one pair; bytes of a large model."""
    words, weights = _written()
    figure, _ = new_figure(1)
    figure.clear()
    figure.set_size_inches(8.0, 5.2)
    axes = figure.subplot_mosaic([["kept", "clock"], ["mask", "bytes"]], width_ratios=[1.5, 1], height_ratios=[1.1, 1])
    kept, clock, mask, bytes_ = axes["kept"], axes["clock"], axes["mask"], axes["bytes"]
    for ax, rows in ((kept, 6), (mask, LONG)):
        bare(ax, (-0.5, LONG - 0.5), (rows - 0.5, -0.5), "auto")
        ax.tick_params(length=0)
    kept.set_yticks(range(6), [f"layer {n}" for n in range(6)])
    mask.set_xticks(range(LONG), words, rotation=90)
    mask.set_ylabel("query")
    bare(clock, (-1.5, 1.5), (-2.0, 1.4))
    clock.add_patch(Circle((0, 0), 1, fill=False, ec=HIDDEN))
    bytes_.set(xscale="log", yscale="log", xlim=(300, 3e6), ylim=(3e7, 2e12), xlabel="tokens of one text", ylabel="GB")
    bytes_.set_xticks([1e3, 1e4, 1e5, 1e6], ["1k", "10k", "100k", "1M"])
    bytes_.set_yticks([1e8, 1e9, 1e10, 1e11, 1e12], ["0.1", "1", "10", "100", "1000"])
    bytes_.minorticks_off()

    # What moves: columns and rows, a frame around each; dots, the query's hand; three lines, the weights' and a ring.
    blank, text = np.ones((2, 2, 3)), {"ha": "center", "va": "center"}
    columns = kept.imshow(blank, extent=(-0.5, LONG - 0.5, 5.5, -0.5), aspect="auto")
    rows = mask.imshow(blank, extent=(-0.5, LONG - 0.5, LONG - 0.5, -0.5), aspect="auto")
    new = kept.add_patch(Rectangle((0, -0.5), 1, 6, fc="none", ec=INK, lw=1.5, clip_on=False, zorder=4))
    now = mask.add_patch(Rectangle((-0.5, 0), 1, 1, fc="none", ec=QUERY, lw=1.8, clip_on=False, zorder=4))
    dots = clock.scatter(np.zeros(LONG), np.zeros(LONG), color=KEY, clip_on=False, zorder=3)
    (hand,) = clock.plot([], [], color=QUERY, lw=3, zorder=2)
    name, degrees = clock.text(0, 0, "", color=QUERY, **text), clock.text(0, 0, "", **text)
    reach = np.array([300, 3e6])
    lines = [bytes_.plot(reach, reach, color=PALE, zorder=2)[0] for _ in SHARING]
    (level,) = bytes_.plot(reach, reach, color=GREY, lw=2.5, zorder=2)
    (ring,) = bytes_.plot([], [], "o", ms=10, mfc="white", mec=INK, mew=1.5, zorder=4)
    counted = [bytes_.text(3.4e6, 1, "", va="center") for _ in SHARING]
    weighs = bytes_.text(0, 0, "", color=GREY, va="bottom", zorder=4)

    def draw(tokens, sharing, large):
        t, config = tokens - 1, PRESETS[large]
        heads = {"n_heads": 4, "n_kv_heads": 2, "": 1}[sharing]
        columns.set_data(_columns(tokens, heads))
        steps = torch.arange(LONG)[:, None]
        rows.set_data(_picture(weights.where(steps == t, (steps < t) * (weights > 0) * 0.01), weights > 0, height=9))
        new.set_x(t - 0.5)
        now.set(y=t - 0.5, width=tokens)
        angles = SPEED * np.arange(tokens)
        dots.set_offsets(np.stack((np.cos(angles), np.sin(angles)), 1))
        dots.set_sizes(15 + 300 * weights[t, :tokens].numpy())
        x, y = np.cos(angles[-1]), np.sin(angles[-1])
        hand.set_data([0, x], [0, y])
        name.set(text="query", position=(1.38 * x, 1.35 * y))
        most = int(weights[t, :t].argmax()) if t else 0
        turn = round(np.degrees(angles[-1] - angles[most]))
        degrees.set(text=f"{turn}° from the key of “{words[most]}”", position=(0, -1.9))
        counts = [getattr(config, one) if one else 1 for one in SHARING.values()]
        per_token = [2 * config.n_layers * count * config.head_dim * 2 for count in counts]  # 2 bytes a number
        weight, chosen = 2 * count_parameters(config), list(SHARING.values()).index(sharing)
        for line, each in zip(lines, per_token, strict=True):
            line.set(ydata=reach * each, color=INK if each == per_token[chosen] else PALE)
            line.set(lw=2.5 if each == per_token[chosen] else 1.5)
        for label, count in zip(counted, counts, strict=True):
            heads_are = "KV head" if count == 1 else "KV heads"
            label.set(
                text=f"{count} {heads_are}" if count == counts[chosen] else count,
                y=3e6 * 4 * config.n_layers * count * config.head_dim,
            )
        equal = weight / per_token[chosen]
        level.set_ydata([weight, weight])
        ring.set_data([equal], [weight])
        weighs.set(text="all weights", position=(330, 1.2 * weight))
        kept.set_title(f"“{words[t]}” adds {6 * heads} keys and {6 * heads} values")
        mask.set_title(f"Only one row is new: {tokens} weights")
        clock.set_title("No cached key moves any more")
        bytes_.set_title(f"As much as the weights at {equal:,.0f}")
        says = f"Token {tokens} adds {6 * heads} keys and {6 * heads} values of 32 numbers; the columns before it do "
        says += f"not change. Each token of the large model takes {per_token[chosen] / 1024:,.0f} KiB of cache in "
        return f"{says}bfloat16, so a text of {equal:,.0f} tokens takes as much as all weights, {weight / 1e9:.1f} GB."

    controls = {
        "tokens": slider("tokens written", tokens, 1, LONG),
        "sharing": switch("key/value heads", SHARING.items()),
        "large": switch("large model", LARGE.items()),
    }
    controls["sharing"].value = "n_kv_heads"
    alt = "Columns of keys (orange) and values (green) in six layers; below, the mask, one row framed; a clock with "
    alt += "the query's hand and the cached keys; lines of the cache's bytes against tokens."
    return Explorer(figure, draw, controls, alt)


@functools.cache
def _written():
    # The words, and the weights of head 3 of layer 4 of the bundled model, as trained (LONG, LONG).
    tokenizer = load_tokenizer()
    tokens = encode(tokenizer, SENTENCE)[:LONG]
    with torch.inference_mode():
        weights = attention_by_layer(bundled(), tokens[None])[4, 3]
    return [readable(tokenizer, token) for token in tokens.tolist()], weights.clone()


def _columns(tokens, heads):
    # 56 pixels a layer, of which a head's keys or values have 6, so area is bytes; the newest column is full in colour.
    picture = np.full((6, 56, LONG, 14, 3), 0.96)
    picture[:, 52:] = 1
    for row in range(2 * heads):
        ink, place = np.array(to_rgb(KEY if row < heads else VALUE)), slice(2 + 6 * row, 7 + 6 * row)
        picture[:, place, : tokens - 1, :13] = 1 - 0.45 * (1 - ink)
        picture[:, place, tokens - 1, :13] = ink
    return (255 * picture.reshape(6 * 56, LONG * 14, 3)).astype(np.uint8)
