"""The explorers of notebook 06: what each token of a text costs, and which angles a longer text brings."""

import math

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import Rectangle

from helpers.checkpoint import load_checkpoint
from helpers.explorers.base import Explorer, bare, choice, new_figure, readable, slider
from helpers.model import Llama, rope_angles, rope_inv_freq
from helpers.plots import INK
from helpers.text import TINY_LLAMA, encode, excerpt, load_tokenizer

COLUMNS, MOST_BITS = 76, 12
SHADES = LinearSegmentedColormap.from_list("bits", ["#FFFFFF", "#FDC38D", "#E8702A"])  # ink can be read on all of them


def explore_losses(stages: dict[int, Llama] | None = None, tokenizer=None, text="", before="") -> Explorer:
    """What each token of a text costs a model [bit], painted on the text, at several stages of its training.

    Args:
        stages: the model after so many steps; without them, the bundled model, and one of its shape without training.
        tokenizer: of these models.
        text: what is painted, a few hundred characters.
        before: what stands before it; read, but not painted.
    """
    if stages is None:
        trained = load_checkpoint(TINY_LLAMA)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stages = {0: Llama(trained.config), 1400: trained}
        tokenizer, text, before = load_tokenizer(), excerpt()[200:600], excerpt()[:200]
    known, shown = encode(tokenizer, before), encode(tokenizer, text)
    bits, guesses = zip(*(_costs(model, known, shown) for model in stages.values()), strict=True)
    words, boxes, column, row = [tokenizer.decode([token]) for token in shown.tolist()], [], 0, 0
    words = [
        "".join("↵" if one == "\n" else one if ord(one) < 0x530 or 0x2000 < ord(one) < 0x2200 else "□" for one in word)
        for word in words
    ]
    for word in words:  # one after the other, a new row where one would not fit
        column, row = (0, row + 1) if column + len(word) > COLUMNS else (column, row)
        boxes.append((column, row, len(word)))
        column += len(word)

    # What is fixed: where each token stands, and the scale.
    figure, page = new_figure(1)
    bare(page, (-0.5, COLUMNS + 0.5), (row + 1.6, -0.6))
    page.set_aspect("auto")
    figure.colorbar(ScalarMappable(Normalize(0, MOST_BITS), SHADES), ax=page, label="cost [bit]", aspect=40)

    # What moves: the shades, the words on them, and a frame around one token.
    corners = [[(x, y - 0.42), (x + n - 0.12, y - 0.42), (x + n - 0.12, y + 0.42), (x, y + 0.42)] for x, y, n in boxes]
    patches = page.add_collection(PolyCollection(corners, lw=0.4, ec="#BBBBBB"))
    style = {"family": "monospace", "size": 9, "va": "center", "ha": "center", "parse_math": False, "zorder": 3}
    labels = [page.text(x + (n - 0.12) / 2, y, word, **style) for (x, y, n), word in zip(boxes, words, strict=True)]
    frame = page.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec=INK, lw=2, zorder=2))

    def draw(step, token):
        stage = list(stages).index(step)
        costs, (likeliest, shares) = bits[stage], guesses[stage]
        patches.set_facecolors(SHADES(costs.numpy() / MOST_BITS))
        for label in labels:
            label.set_color(INK)  # touched in every drawing: what moves is drawn above what stays
        x, y, n = boxes[token]
        frame.set(xy=(x - 0.1, y - 0.47), width=n + 0.08, height=0.94)
        tenth = costs.sort(descending=True).values[: max(1, len(costs) // 10)].sum() / costs.sum()
        page.set_title(f"Step {step}: {costs.mean():.1f} bits per token")
        best = [f"“{readable(tokenizer, one)}” {p:.2f}" for one, p in zip(likeliest[token], shares[token], strict=True)]
        return (
            f"After step {step} a token costs {costs.mean():.2f} bits on average; the costliest tenth of them takes "
            f"{tenth:.0%} of the whole. Token {token}, “{words[token]}”, costs {costs[token]:.1f} bits. The likeliest "
            f"there, with their probabilities: {', '.join(best)}."
        )

    # Which controls.
    controls = {"step": choice("after step", sorted(stages, reverse=True))}
    controls["token"] = slider("framed token", min(20, len(words) - 2), 0, len(words) - 1)
    alt = "A passage of text, token by token in boxes, each shaded by its cost in bits: white for nothing, "
    return Explorer(figure, draw, controls, alt + "dark orange for 12 and more. One token is framed.")


@torch.no_grad()
def _costs(model, known, shown):
    # Of each shown token the bits, (T,); of each place the 3 likeliest tokens and their probabilities, lists of lists.
    device, n = model.tok_embeddings.weight.device, model.config.max_seq_len
    known = known[-n:] if len(known) else shown[:1]  # a first token is not judged: it stands for itself
    tokens = torch.cat([known, shown])
    rows = [model(tokens[max(0, at - n) : at][None].to(device))[0, -1] for at in range(len(known), len(tokens))]
    shares = torch.stack(rows).float().softmax(dim=-1).cpu()
    best = shares.topk(3)
    return -shares[range(len(shown)), shown].log2(), (best.indices.tolist(), best.values.tolist())


HEAD_DIM, TRAINED, LONGEST = 16, 64, 512
SCALINGS = {
    "as trained": None,
    "linear": {"type": "linear"},
    "NTK": {"type": "ntk"},
    "llama3": {
        "type": "llama3", "low_freq_factor": 0.25, "high_freq_factor": 1.0, "original_max_position_embeddings": TRAINED,
    },
}  # fmt: skip


def explore_context() -> Explorer:
    """Which angles of a longer text a model trained on 64 tokens has met, and by how much each scaling slows its pairs.

    A pair has met an angle if it turned at least that far in training, or full circle.
    """
    # What is fixed: a row per pair in both pictures; positions on the left, speeds compared with training on the right.
    own_speeds, n_pairs = rope_inv_freq(HEAD_DIM), HEAD_DIM // 2
    reached = (TRAINED - 1) * own_speeds[:, None] * (1 + 1e-6)  # the largest angle of each pair in training [rad]
    full_circle = reached >= 2 * math.pi
    figure, (angles, turns) = new_figure(2, width_ratios=[1.7, 1])
    angles.set(xlim=(-1, LONGEST), xticks=range(0, LONGEST + 1, TRAINED), xlabel="position [token]")
    turns.set(xlim=(0, 1.1), xticks=(0, 0.25, 0.5, 0.75, 1), xlabel="turn per token, training = 1")
    turns.axvline(1, color=INK, lw=1, ls=":")
    for ax in (angles, turns):
        ax.set(ylim=(n_pairs - 0.5, -0.5), yticks=range(n_pairs), ylabel="pair")
        ax.spines[:].set_visible(False)

    # What moves: a frame around the text, grey where a pair meets new angles, and a bar for the speed of each pair.
    unmet = angles.barh(range(n_pairs), [1] * n_pairs, height=1, color="#AAAAAA")
    beyond = angles.add_patch(Rectangle((0, -0.5), 1, n_pairs, fc="#EBEBEB", lw=0))
    trained = angles.axvline(0, color=INK, lw=1, ls=":")
    frame = angles.add_patch(Rectangle((-0.5, -0.5), 1, n_pairs, fill=False, ec=INK, lw=1.5, clip_on=False))
    bars = turns.barh(range(n_pairs), [1] * n_pairs, height=0.5, color=INK)

    def draw(scaling, factor, length):
        speeds = rope_inv_freq(HEAD_DIM, scaling=SCALINGS[scaling] and SCALINGS[scaling] | {"factor": factor})
        met = full_circle | (reached >= rope_angles(torch.arange(length), speeds).T)
        for bar, known in zip(unmet, met.sum(dim=1).tolist(), strict=True):  # a pair's known angles come first
            bar.set(x=known - 0.5, width=length - known)
        trained.set_xdata([TRAINED - 0.5] * 2)  # touched in every drawing: what moves is drawn above what stays
        beyond.set(x=length - 0.5, width=LONGEST - length + 0.5)
        frame.set_width(length)
        kept = speeds / own_speeds
        for bar, width in zip(bars, kept.tolist(), strict=True):
            bar.set_width(width)
        share, (fastest, *_, slowest) = f"{met.float().mean():.0%}", (1 / kept).tolist()
        name = scaling if scaling == "as trained" else f"{scaling} × {factor}"
        angles.set_title(f"{name}: {share} of the angles were met in training (white)")
        turns.set_title("All pairs keep their speed" if slowest < 1.001 else f"The fastest pair {_speed(fastest)}")
        return (
            f"Of the angles in a text of {length} tokens, {share} were met in training on {TRAINED}. The fastest pair "
            f"{_speed(fastest)}, the slowest {_speed(slowest)}; {int((kept > 0.999).sum())} of {n_pairs} pairs keep "
            "the angle between two neighbouring tokens."
        )

    # Which controls.
    controls = {
        "scaling": choice("scaling", SCALINGS),
        "factor": slider("scaling factor", 4, 1, 8),
        "length": slider("length of the text", 256, 16, LONGEST, unit="token"),
    }
    controls["factor"].disabled = True  # as trained there is nothing to scale
    controls["scaling"].observe(lambda now: setattr(controls["factor"], "disabled", now.new == "as trained"), "value")
    alt = "Left: pair against position in a framed text, white where training met the angle, else grey. "
    return Explorer(figure, draw, controls, alt + "Right: each pair's turn per token, training = 1.")


def _speed(slowed):
    return f"is {slowed:.0f} times slower" if slowed > 1.001 else "keeps its speed"
