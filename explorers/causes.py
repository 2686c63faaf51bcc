"""More of notebook 05: what an enlarged row does to the blocks after it, and whom a head of the circuit serves."""

import functools

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, bare, bundled, readable, slider, strokes, switch, within
from explorers.full_model import Pixels, masks
from explorers.gqa import AGAINST
from helpers.interventions import attention_by_layer, held_out_windows, without_heads
from helpers.plots import INK
from helpers.text import load_tokenizer

OWN, RANDOM = "the token's own", "random, as long"
DOSES, LINES = (0, 4, 8, 12, 18, 24), 12
LETTERS = "abcdefghijklmnopqrstuvwxyz012345"  # the 32 tokens of the circuit
BY_SIGN, BY_LOT = "by their sign", "at random"


def explore_rows() -> Explorer:
    """What bundled tiny-llama predicts if rows of the embedding are added to the stream after block 0."""
    model, tokenizer, windows = bundled(), load_tokenizer(), held_out_windows()[1::4, :129]
    cos, sin, _ = model.rotation_and_mask(n_query=128)
    with torch.no_grad():
        row = model.tok_embeddings(windows[:, :-1])
        after = model.layers[0](row, cos, sin)
    noise = torch.randn(row.shape, generator=torch.Generator().manual_seed(0))
    noise *= row.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
    rows = {OWN: row, RANDOM: noise}

    @functools.cache
    def look(times, whose):
        """The loss, and what is predicted."""
        with torch.no_grad():
            x = after + times * rows[whose]
            for block in model.layers[1:]:
                x = block(x, cos, sin)
            logits = model.lm_head(model.final_norm(x))
        return F.cross_entropy(logits.mT, windows[:, 1:]).item(), logits.argmax(-1)

    curves = {whose: [look(times, whose)[0] for times in DOSES] for whose in rows}
    figure = Figure(figsize=(8.0, 4.2), dpi=110, facecolor="white", layout="none")
    ax, page = figure.add_axes((0.06, 0.12, 0.38, 0.78)), figure.add_axes((0.60, 0.02, 0.38, 0.92))
    ax.set(xlim=(-0.5, 24.5), ylim=(0, 18), xticks=(0, 6, 12, 18, 24), yticks=(0, 5, 10, 15), xlabel="times added")
    ax.set_title("Loss [nat/token]", loc="left", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    for whose, curve in curves.items():
        ax.plot(DOSES, curve, color=PALE)
        ax.text(25, curve[-1], whose.replace(", ", ",\n"), color=GREY, va="center", fontsize=10)
    bare(page, (0, 1), (LINES + 0.2, -1.2), "auto")
    words = functools.partial(page.text, va="center", fontsize=10, parse_math=False)
    words(0.40, -0.7, "reads", color=GREY, ha="right")
    words(0.46, -0.7, "predicts", color=GREY)
    read = windows[0, 40 : 40 + LINES].tolist()
    for y, token in enumerate(read):
        words(0.40, y + 0.5, readable(tokenizer, token), ha="right")
    said = [words(0.46, y + 0.5, "") for y in range(LINES)]
    (line,), (dot,) = ax.plot([], [], color=INK), ax.plot([], [], "o", color=INK, ms=7)

    def draw(times, whose):
        loss, best = look(times, whose)
        for y, (label, token) in enumerate(zip(said, best[0, 40 : 40 + LINES].tolist(), strict=True)):
            again = token == read[y]
            label.set(text=readable(tokenizer, token), y=y + 0.5, color=AGAINST if again else INK)
            label.set_fontweight("bold" if again else "normal")
        line.set_data(DOSES, curves[whose])
        dot.set_data([times], [loss])
        share = (best == windows[:, :-1]).float().mean().item()
        return (
            f"The row ({whose}) is added {times} times: the loss is {loss:.2f}; at {share:.0%} of all positions "
            "the model predicts the token that it has just read (red)."
        )

    controls = {
        "times": slider("times added", 0, 0, 24),
        "whose": switch("the row is", (OWN, RANDOM)),
    }
    alt = (
        "Left, the loss against how often a row is added after block 0. Right, words and what is predicted after each."
    )
    return Explorer(figure, draw, controls, f"{alt} Red: the word itself again.")


def explore_cuts() -> Explorer:
    """The bundled circuit's heads to ablate, and the loss of letters that follow one of their own sign or the other."""
    model, n = bundled("induction"), 24
    copies = torch.randint(32, (64, n), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    text = torch.tensor([[LETTERS.index(letter) for letter in "fisherfisher"]])
    with torch.no_grad():
        place = model.tok_embeddings.weight @ torch.linalg.svd(model.tok_embeddings.weight)[2][0]
        place = place * place[0].sign()  # which differs from machine to machine
    signs = {BY_SIGN: place > 0, BY_LOT: (place > 0)[torch.randperm(32, generator=torch.Generator().manual_seed(1))]}

    @functools.cache
    def look(cut, groups):
        """Losses in the second copies, of letters with the sign of the letter before and of the others; the masks."""
        sign = signs[groups]
        with torch.no_grad(), without_heads(model, cut):
            weights = attention_by_layer(model, text).numpy()
            each = F.cross_entropy(model(copies[:, :-1]).mT[..., n:], copies[:, 1 + n :], reduction="none")
        same = sign[copies[:, n:-1]] == sign[copies[:, 1 + n :]]
        return (each[same].mean().item(), each[~same].mean().item()), weights

    figure = Figure(figsize=(8.0, 4.7), dpi=110, facecolor="white", layout="none")
    page = figure.add_axes((0, 0, 1, 1))
    bare(page, (0, 880), (517, 0), "auto")
    write = functools.partial(page.text, va="center", fontsize=10)
    write(14, 16, "The 32 letters along one direction of their embeddings: some are −, some are +", weight="bold")
    page.plot([14, 866], [128, 128], color=GREY, lw=1)
    inks, heap = [GREY if one < 0 else INK for one in place], {}
    for letter in place.argsort().tolist():  # those at one place stand on each other
        at = round(place[letter].item() / 0.01)
        while heap.get(at) == 5:
            at += 1
        heap[at] = heap.get(at, 0) + 1
        write(440 + 15 * at, 134 - 17 * heap[at], LETTERS[letter], ha="center", color=inks[letter], weight="bold")
    for at in (-0.2, 0, 0.2):
        write(440 + 1500 * at, 140, f"{at:g}", ha="center", fontsize=9)
    write(14, 176, "Attention masks (click one to ablate its head)", weight="bold")
    write(520, 176, "Loss in the second copy [nat/token]", weight="bold")
    parts, tops, zero, nat = {}, (214, 366), 588, 37  # where masks are, and where the bars begin [pixel]
    for block, y in enumerate(tops):
        write(20, y + 54, f"block {block}", rotation=90, ha="center")
        for head, x in enumerate(range(40, 508, 117)):
            parts[f"head {head} of block {block}"] = within(page, x, y, x + 108, y + 108)
            write(x + 54, y - 11, f"head {head}", ha="center", fontsize=9)
            for t, letter in enumerate(text[0].tolist()):
                write(
                    x + 9 * t + 4.5,
                    y + 117,
                    LETTERS[letter],
                    ha="center",
                    fontsize=8,
                    color=inks[letter],
                    weight="bold",
                )
    page.plot([zero, zero], [tops[0], 474], color=INK, lw=1)
    page.plot([zero + 3.47 * nat] * 2, [tops[0], 474], color=GREY, lw=1, ls=":")
    write(zero + 3.47 * nat, 486, "uniform", color=GREY, ha="center", fontsize=9)
    write(520, 502, "grey: as trained", color=GREY, fontsize=9)
    images, middles = [page.add_artist(Pixels()) for _ in tops], [top + 54 for top in tops]
    black, grey = (
        [page.barh(y, 0, high, left=zero, fc=ink)[0] for y in middles] for high, ink in ((64, INK), (24, PALE))
    )
    numbers, names = ([write(x, y, "") for y in middles] for x in (zero, 518))
    (crosses,) = page.plot([], [], color=AGAINST, lw=2.2)

    def draw(groups, clicked):
        cut = tuple((int(one[-1]), int(one[5])) for one in clicked)
        (now, weights), (before, _) = look(cut, groups), look((), groups)
        kinds = ("equal signs", "unequal signs") if groups == BY_SIGN else ("equal groups", "unequal groups")
        for y, (new, old) in enumerate(zip(now, before, strict=True)):
            black[y].set_width(nat * new)
            grey[y].set_width(nat * old)
            numbers[y].set(x=zero + nat * max(new, old) + 8, y=middles[y], text=f"{new:.2f}")
            names[y].set(y=middles[y], text=kinds[y].replace(" ", "\n"))
            images[y].put(Image.fromarray(masks(weights[y : y + 1], 9, 108)), 40, 517 - 108 - tops[y])
        x, y = np.array([(40 + 117 * head, tops[block]) for block, head in cut]).reshape(-1, 2).T
        strokes(crosses, (x, y, 108, 108), (x, y + 108, 108, -108))
        return (
            f"{' and '.join(clicked) or 'no head'} ablated: if a letter and the one before it have {kinds[0]}, the "
            f"loss is {now[0]:.2f}, with {kinds[1]} {now[1]:.2f}; as trained {before[0]:.2f} and {before[1]:.2f}."
        ).capitalize()

    controls = {"groups": switch("letters are divided", (BY_SIGN, BY_LOT))}
    alt = "Above, letters along a line, in two heaps. Left, eight attention masks. Right, two bars: loss of letters "
    return Explorer(figure, draw, controls, f"{alt}by the signs of letter and letter before.", parts, True)
