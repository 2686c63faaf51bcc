"""The explorer of notebook 07: what temperature, top-k and top-p leave of a distribution; and repeats in texts."""

import torch

from helpers.checkpoint import load_checkpoint
from helpers.explorers.base import Explorer, new_figure, readable, slider
from helpers.generate import next_token_probabilities
from helpers.plots import INK
from helpers.text import TINY_LLAMA, encode, load_tokenizer


def explore_sampling() -> Explorer:
    """The bundled model's next token after a few words: what temperature, top-k and top-p leave of its distribution."""
    prompt, n_bars = "Names refer to", 20
    tokenizer = load_tokenizer()
    logits = load_checkpoint(TINY_LLAMA)(encode(tokenizer, prompt)[None], last_only=True)[:, -1].detach()
    own, shown = next_token_probabilities(logits)[0].topk(n_bars)
    names = [readable(tokenizer, token) for token in shown.tolist()]

    # What is fixed: the model's own probabilities, in hollow bars.
    figure, ax = new_figure(1)
    ax.bar(range(n_bars), own.tolist(), width=0.9, fc="white", ec=INK, lw=0.8, label="the model's own")
    ax.set_xticks(range(n_bars), names, rotation=60, ha="right", rotation_mode="anchor")
    ax.set(ylim=(0, 1), ylabel="probability", xlabel=f"the {n_bars} likeliest tokens after “{prompt}”")

    # What moves: what the settings make of them, in filled bars.
    bars = ax.bar(range(n_bars), [0] * n_bars, width=0.55, color=INK, label="with these settings")
    ax.legend(loc="upper right")

    def draw(temperature, top_k, top_p):
        probabilities = next_token_probabilities(logits, temperature, top_k or None, top_p)[0]
        for bar, height in zip(bars, probabilities[shown].tolist(), strict=True):
            bar.set_height(height)
        kept, share = int((probabilities > 0).sum()), probabilities[shown[0]].item()
        choices = torch.special.entr(probabilities).sum().exp().item()
        cut = f"top-k {top_k or 'off'}, top-p {top_p:.1f}"
        ax.set_title(f"Temperature {temperature:.1f}, {cut}: {kept} of {len(probabilities):,} tokens can be drawn")
        return (
            f"The likeliest token, “{names[0]}”, has probability {share:.2f} (the model's own: {own[0]:.2f}). "
            f"{kept} of {len(probabilities):,} tokens can be drawn; the draw is as open as one among {choices:.1f} "
            "equally likely tokens."
        )

    # Which controls.
    controls = {
        "temperature": slider("temperature", 1.0, 0.0, 2.0, 0.1),
        "top_k": slider("top-k (0 keeps all)", 0, 0, n_bars),
        "top_p": slider("top-p", 0.5, 0.1, 1.0, 0.1),
    }
    alt = "Bars: probabilities of the 20 likeliest next tokens, hollow as the model gives them, filled after "
    return Explorer(figure, draw, controls, alt + "temperature, top-k and top-p; a token cut off has no filled bar.")


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
