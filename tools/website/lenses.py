"""Draw `docs/lenses.png`, the picture of the course's two lenses: `python -m tools.website.lenses`.

The README and the website's start page show it; it is drawn again only when its look shall change.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from helpers import plots
from helpers.checkpoint import load_checkpoint
from helpers.model import attention_weights, causal_visible, repeat_kv
from helpers.text import TINY_LLAMA, encode, load_tokenizer

FILE = Path(__file__).parents[2] / "docs" / "lenses.png"


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
    q, k, _ = block.attention.project(block.attention_norm(x), cos, sin)
    weights = attention_weights(q, repeat_kv(k, block.attention.n_rep), visible)[0, head]
    return weights, visible, [tokenizer.decode([token]).strip() for token in tokens[0].tolist()]


def draw_lenses(file: Path = FILE):
    """Write the picture: a query that turns with its position, and what a trained head looks at."""
    plots.use_course_style()
    figure, (angle, mask) = plt.subplots(1, 2, figsize=(8.0, 4.1), dpi=160, width_ratios=(1, 1.1))
    turns = 0.5 * torch.arange(6)  # [rad], half a radian per position
    arrows = 2 * torch.stack([turns.cos(), turns.sin()], dim=1)
    plots.plot_vectors(arrows, colors=plots.QUERY, ax=angle, title="Angle lens: how far does a part turn a vector?")
    for position, (x, y) in enumerate(arrows.tolist()):
        place = (1.1 * x, 1.1 * y) if position else (x, y - 0.2)
        words, side = f"{position}" if position else "position 0", "left" if x * position > 0 else "right"
        angle.text(*place, words, ha=side, va="center")
    plots.draw_arc(angle, 0.0, 0.5, 1.1, "29°")
    angle.set(xlim=(-2.2, 2.4), ylim=(-1.3, 2.5), xticks=[], yticks=[], xlabel="", ylabel="")
    angle.spines[:].set_visible(False)
    weights, visible, pieces = looking_back()
    plots.plot_attention(weights, visible=visible, ax=mask, labels=pieces, colorbar=False)
    mask.set(title="Mask lens: which positions can see each other?", xlabel="looked at", ylabel="looks")
    figure.savefig(file)
    plt.close(figure)


if __name__ == "__main__":
    draw_lenses()
