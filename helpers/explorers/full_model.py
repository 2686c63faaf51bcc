"""The explorer of notebook 05: inside the bundled model."""

import torch
from torch.nn import functional as F

from helpers.checkpoint import load_checkpoint
from helpers.explorers.base import Explorer, new_figure, readable, slider
from helpers.model import attention_weights, causal_visible, repeat_kv
from helpers.plots import HIDDEN, INK, QUERY
from helpers.text import TINY_LLAMA, encode, load_tokenizer


def explore_full_model() -> Explorer:
    """Inside the bundled model: where a head looks, how far each block turned the stream, which word it would say."""
    words, attention, angles, best = _look_inside("The name of a local variable is bound in the block")
    n_layers, n_heads, n_tokens, _ = attention.shape

    # What is fixed: the words down the left, the blocks across the middle, and axes for the five likeliest words.
    figure, (looks, turns, guesses) = new_figure(3, width_ratios=[1.5, 1, 1])
    looks.set_yticks(range(n_tokens), words)
    looks.set(xlim=(0, 1), ylim=(n_tokens, -1), xlabel="attention weight")
    turns.set(xlim=(-0.4, n_layers - 0.6), ylim=(0, 90), yticks=range(0, 91, 15), xticks=range(n_layers))
    turns.set(xlabel="block", ylabel="block turns the stream by [degree]")
    guesses.set(xlim=(0, 1), xlabel="probability", xticks=(0, 0.5, 1), yticks=[], ylim=(4.6, -0.6))

    # What moves: the weights and a line at the chosen word; its angles and a ring; the odds and their words.
    bars = looks.barh(range(n_tokens), [0] * n_tokens, color=QUERY)
    here = looks.axhline(0, color=INK, lw=1, ls=":")
    (line,) = turns.plot(range(n_layers), [0] * n_layers, "o-", color=INK)
    (ring,) = turns.plot([], [], "o", ms=11, mfc="none", mec=INK, mew=1.5, clip_on=False)
    odds = guesses.barh(range(5), [0] * 5, color=HIDDEN)
    labels = [guesses.text(0, rank, "", va="center") for rank in range(5)]

    def draw(token, layer, head):
        row = attention[layer, head, token]
        for bar, weight in zip(bars, row.tolist(), strict=True):
            bar.set_width(weight)
        here.set_ydata([token] * 2)
        line.set_ydata(angles[:, token])
        ring.set_data([layer], angles[[layer], token])
        tokens, probabilities = best[layer][token]
        for bar, label, text, probability in zip(odds, labels, tokens, probabilities, strict=True):
            bar.set_width(probability)
            label.set(x=min(probability, 0.6) + 0.03, text=f"{text}  {probability:.2f}")  # above what stays
        strongest, turn = row.argmax().item(), f"{angles[layer, token]:.0f}°"
        looks.set_title(f"Block {layer}, head {head}: where “{words[token]}” looks")
        turns.set_title(f"Block {layer} turns it {turn}")
        guesses.set_title(f"Next word after block {layer}")
        return (
            f"Token {token}, “{words[token]}”: head {head} of block {layer} looks most at “{words[strongest]}” (weight "
            f"{row[strongest]:.2f}). The block turns its stream by {turn}. Read out here, the model would go on with "
            f"“{tokens[0]}” (probability {probabilities[0]:.2f})."
        )

    # Which controls.
    controls = {
        "token": slider("position of the token", 8, 0, n_tokens - 1),
        "layer": slider("block", 4, 0, n_layers - 1),
        "head": slider("query head", 0, 0, n_heads - 1),
    }
    alt = "Left: bars, attention of the chosen token to each word. Middle: the angle by which each block turns it. "
    return Explorer(figure, draw, controls, alt + "Right: the five likeliest next words after the chosen block.")


@torch.no_grad()
def _look_inside(text):
    # Words; attention (layers, H, T, T); angles (layers, T) [degree]; for each layer and token the 5 likeliest words.
    model, tokenizer = load_checkpoint(TINY_LLAMA), load_tokenizer()
    tokens = encode(tokenizer, text)
    cos, sin, _ = model.rotation_and_mask(len(tokens))
    visible = causal_visible(len(tokens), len(tokens))
    stream, attention, angles, best = model.tok_embeddings(tokens)[None], [], [], []
    for block in model.layers:
        q, k, _ = block.attention.rotated_qkv(block.attention_norm(stream), cos, sin)
        attention.append(attention_weights(q, repeat_kv(k, model.config.n_rep), visible)[0])
        after = block(stream, cos, sin)
        angles.append(F.cosine_similarity(stream, after, dim=-1)[0].clamp(-1, 1).arccos().rad2deg())
        stream = after
        top = model.lm_head(model.final_norm(stream))[0].softmax(dim=-1).topk(5)
        named = [[readable(tokenizer, token) for token in row] for row in top.indices.tolist()]
        best.append(list(zip(named, top.values.tolist(), strict=True)))
    words = [readable(tokenizer, token) for token in tokens.tolist()]
    return words, torch.stack(attention), torch.stack(angles), best
