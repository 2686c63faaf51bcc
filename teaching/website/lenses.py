"""Draw the picture of the course's two lenses: `python -m teaching.website.lenses`.

`docs/lenses.gif`, which moves, is in the README; `docs/lenses.png`, its last frame, is on the website's start page,
which cuts it at the gap between the panels. They are drawn again only when their look shall change.
"""

import io
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from PIL import Image

from helpers import plots
from helpers.checkpoint import load_checkpoint
from helpers.model import attention_weights, causal_visible, repeat_kv
from helpers.text import TINY_LLAMA, encode, load_tokenizer

FOLDER = Path(__file__).parents[2] / "docs"
TURN = 0.5  # of a query from one position to the next [rad]


@torch.no_grad()
def looking_back():
    """The attention weights of one head of the bundled model over a sentence, the mask, and the sentence's tokens.

    This head looks mostly at the token before.
    """
    model, tokenizer = load_checkpoint(TINY_LLAMA), load_tokenizer()
    tokens = encode(tokenizer, "The name of a local variable is bound in the block")[None]
    (cos, sin, _), visible = model.rotation_and_mask(tokens.shape[1]), causal_visible(tokens.shape[1], tokens.shape[1])
    x, layer, head = model.tok_embeddings(tokens), 5, 2
    for block in model.layers[:layer]:
        x = block(x, cos, sin, visible)
    block = model.layers[layer]
    q, k, _ = block.attention.rotated_qkv(block.attention_norm(x), cos, sin)
    weights = attention_weights(q, repeat_kv(k, block.attention.n_rep), visible)[0, head]
    return weights, visible, [tokenizer.decode([token]).strip() for token in tokens[0].tolist()]


def draw_lenses(seen: list, read: int) -> Image.Image:
    """The picture after `read` tokens: a query turned once per position, and what a trained head has looked at."""
    weights, visible, pieces = seen
    figure, (angle, mask) = plt.subplots(1, 2, figsize=(8.0, 4.1), dpi=160, width_ratios=(1, 1.1))
    turns = TURN * torch.arange(min(read, 6))
    arrows = 2 * torch.stack([turns.cos(), turns.sin()], dim=1)
    plots.plot_vectors(arrows, colors=plots.QUERY, ax=angle, title="Angle lens: how far does a part turn a vector?")
    for position, (x, y) in enumerate(arrows.tolist()):
        place = (1.1 * x, 1.1 * y) if position else (x, y - 0.2)
        words, side = f"{position}" if position else "position 0", "left" if x * position > 0 else "right"
        angle.text(*place, words, ha=side, va="center")
    if read > 1:
        plots.draw_arc(angle, 0.0, TURN, 1.1, "29°")
    angle.set(xlim=(-2.2, 2.4), ylim=(-1.3, 2.5), xticks=[], yticks=[], xlabel="", ylabel="")
    angle.spines[:].set_visible(False)
    plots.plot_attention(weights, visible=visible, ax=mask, labels=pieces, colorbar=False)
    mask.axhspan(read - 0.5, len(weights) - 0.5, color="white", zorder=5)  # not read yet
    mask.set(title="Mask lens: which positions can see each other?", xlabel="looked at", ylabel="looks")
    place = io.BytesIO()
    figure.savefig(place, format="png")
    plt.close(figure)
    return Image.open(place)


def main():
    """Write the picture that moves, and its last frame."""
    plots.use_course_style()
    seen = looking_back()
    frames = [draw_lenses(seen, read) for read in range(1, len(seen[2]) + 1)]
    frames[-1].save(FOLDER / "lenses.png")
    small = [frame.convert("RGB").reduce(2) for frame in frames]
    colours = small[-1].quantize(128)
    small = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in small]
    times = [500] * (len(small) - 1) + [4000]  # [ms]
    small[0].save(FOLDER / "lenses.gif", save_all=True, append_images=small[1:], duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    main()
