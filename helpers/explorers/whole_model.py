"""Explorers of notebooks 05 to 07: inside the bundled model, and what each device holds of a large one."""

import torch
from torch.nn import functional as F

from helpers.checkpoint import load_checkpoint
from helpers.explorers.base import GREY, Explorer, choice, new_figure, slider
from helpers.generate import next_token_probabilities
from helpers.model import PRESETS, attention_weights, causal_visible, count_parameters, repeat_kv
from helpers.plots import HIDDEN, INK, QUERY
from helpers.text import TINY_LLAMA, encode, load_tokenizer


def explore_full_model() -> Explorer:
    """Inside the bundled model: where a head looks, how far each block turned the stream, which word it would say."""
    words, attention, angles, best = _look_inside("The name of a local variable is bound in the block")
    n_layers, n_heads, n_tokens, _ = attention.shape
    figure, (looks, turns, guesses) = new_figure(3, width_ratios=[1.5, 1, 1])
    bars = looks.barh(range(n_tokens), [0] * n_tokens, color=QUERY)
    looks.set_yticks(range(n_tokens), words)
    looks.set(xlim=(0, 1), xlabel="attention weight [1]")
    looks.invert_yaxis()
    here = looks.axhline(0, color=INK, lw=1, ls=":")
    (line,) = turns.plot(range(n_layers), [0] * n_layers, "o-", color=INK)
    (dot,) = turns.plot([], [], "o", ms=11, mfc="none", mec=INK, mew=1.5, clip_on=False)
    turns.set(xlim=(-0.4, n_layers - 0.6), ylim=(0, 90), yticks=range(0, 91, 15), xticks=range(n_layers))
    turns.set(xlabel="block [1]", ylabel="block turns the stream by [degree]")
    odds = guesses.barh(range(5), [0] * 5, color=HIDDEN)
    labels = [guesses.text(0, rank, "", va="center") for rank in range(5)]
    guesses.set(xlim=(0, 1), xlabel="probability [1]", xticks=(0, 0.5, 1), yticks=[], ylim=(4.6, -0.6))

    def draw(token, layer, head):
        row = attention[layer, head, token]
        for bar, weight in zip(bars, row.tolist(), strict=True):
            bar.set_width(weight)
        here.set_ydata([token] * 2)
        line.set_ydata(angles[:, token])
        dot.set_data([layer], angles[[layer], token])
        tokens, probabilities = best[layer][token]
        for bar, label, text, probability in zip(odds, labels, tokens, probabilities, strict=True):
            bar.set_width(probability)
            label.set(x=min(probability, 0.6) + 0.03, text=text)  # moved too: what moves is drawn above what stays
        strongest, turn = row.argmax().item(), f"{angles[layer, token]:.0f}°"
        looks.set_title(f"Where “{words[token]}” looks")
        turns.set_title(f"Block {layer} turns it {turn}")
        guesses.set_title("Next word after this block")
        return (
            f"Token {token}, “{words[token]}”: head {head} of block {layer} looks most at “{words[strongest]}” (weight "
            f"{row[strongest]:.2f}). The block turns its stream by {turn}. Read out here, the model would go on with "
            f"“{tokens[0]}” (probability {probabilities[0]:.2f})."
        )

    controls = {
        "token": slider("position of the token", 8, 0, n_tokens - 1, unit="token"),
        "layer": slider("block", 1, 0, n_layers - 1),
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
        q, k, _ = block.attention.project(block.attention_norm(stream), cos, sin)
        attention.append(attention_weights(q, repeat_kv(k, model.config.n_rep), visible)[0])
        after = block(stream, cos, sin)
        angles.append(F.cosine_similarity(stream, after, dim=-1)[0].clamp(-1, 1).arccos().rad2deg())
        stream = after
        top = model.lm_head(model.final_norm(stream))[0].softmax(dim=-1).topk(5)
        named = [[_readable(tokenizer, token) for token in row] for row in top.indices.tolist()]
        best.append(list(zip(named, top.values.tolist(), strict=True)))
    words = [_readable(tokenizer, token) for token in tokens.tolist()]
    return words, torch.stack(attention), torch.stack(angles), best


def _readable(tokenizer, token):
    text = tokenizer.decode([token])
    return text.strip() or repr(text)


# ------------------------------------------------------------------------------------ notebook 06, sampling


def explore_sampling() -> Explorer:
    """The bundled model's next token after a few words: what temperature, top-k and top-p leave of its distribution."""
    prompt, n_bars = "Names refer to", 20
    tokenizer = load_tokenizer()
    logits = load_checkpoint(TINY_LLAMA)(encode(tokenizer, prompt)[None], last_only=True)[:, -1].detach()
    own, shown = next_token_probabilities(logits)[0].topk(n_bars)
    names = [_readable(tokenizer, token) for token in shown.tolist()]
    figure, ax = new_figure(1)
    ax.bar(range(n_bars), own.tolist(), width=0.9, fc="white", ec=INK, lw=0.8, label="the model's own")
    bars = ax.bar(range(n_bars), [0] * n_bars, width=0.55, color=INK, label="with these settings")
    ax.set_xticks(range(n_bars), names, rotation=60, ha="right", rotation_mode="anchor")
    ax.set(ylim=(0, 1), ylabel="probability [1]", xlabel=f"the {n_bars} likeliest tokens after “{prompt}”")
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

    controls = {
        "temperature": slider("temperature", 1.0, 0.0, 2.0, 0.1),
        "top_k": slider("top-k, 0 keeps all", 0, 0, n_bars, unit="token"),
        "top_p": slider("top-p", 0.9, 0.1, 1.0, 0.1),
    }
    alt = "Bars: probabilities of the 20 likeliest next tokens, hollow as the model gives them, filled after "
    return Explorer(figure, draw, controls, alt + "temperature, top-k and top-p; a token cut off has no filled bar.")


def explore_memory() -> Explorer:
    """What each device holds of a large model in bfloat16, weights and cache, split over 1 to 32 devices: on paper."""
    devices, room, gigabyte = [2**power for power in range(6)], 80, 1e9
    names = [name for name in PRESETS if PRESETS[name].n_heads % devices[-1] == 0]  # whole heads on each device
    names.sort(key=lambda name: name != "llama-2-70b")  # the default comes first
    weight_bytes = {name: 2 * count_parameters(PRESETS[name]) for name in names}
    figure, ax = new_figure(1)
    (weights,) = ax.loglog(devices, devices, "s--", color=GREY, label="weights")
    (cache,) = ax.loglog(devices, devices, "^:", color=GREY, label="keys and values")
    (both,) = ax.loglog(devices, devices, "o-", color=INK, label="both")
    ax.axhline(room, color=INK, lw=1)
    ax.text(32, 1.15 * room, f"{room} GB", ha="right")
    ax.set_xticks(devices, devices)
    ax.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    ax.minorticks_off()
    ax.set(xlim=(0.9, 36), ylim=(0.02, 4000), xlabel="devices [1]", ylabel="memory on each device [GB]")
    ax.legend(loc="lower left", ncols=3)

    def draw(model, sequences, context):
        config, tokens = PRESETS[model], sequences * context * 1024
        cache_bytes = 2 * 2 * tokens * config.n_layers * config.n_kv_heads * config.head_dim
        w = [weight_bytes[model] / n / gigabyte for n in devices]
        kv = [cache_bytes / min(n, config.n_kv_heads) / gigabyte for n in devices]  # a head is not cut, but copied
        total = [a + b for a, b in zip(w, kv, strict=True)]
        for line, heights in ((weights, w), (cache, kv), (both, total)):
            line.set_ydata(heights)
        fits = [n for n, held in zip(devices, total, strict=True) if held < room]
        best = f"fits on {fits[0]}" if fits else "does not fit on 32"
        ax.set_title(
            f"{model}, {tokens:,} tokens in the cache: {best} devices of {room} GB".replace(" 1 devices", " one")
        )
        return (
            f"On 8 devices each holds {w[3]:.1f} GB of weights and {kv[3]:.1f} GB of keys and values. The model has "
            f"{config.n_kv_heads} key/value heads: on more devices than that a head is copied, and the cache on each "
            "stays as large."
        )

    controls = {
        "model": choice("model", names),
        "sequences": slider("sequences at once", 8, 1, 64),
        "context": slider("context of each", 4, 1, 128, unit="Ki token"),
    }
    alt = "Memory on each device against the number of devices, both logarithmic: the line of the weights falls all "
    return Explorer(
        figure,
        draw,
        controls,
        alt + "the way, that of keys and values only as far as there are key/value heads. A level line at 80 GB.",
    )
