"""The explorer of notebook 08: LLaMA plus a few edits, through both lenses, and whose edits these are."""

from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.patches import Polygon, Rectangle

from helpers.explorers.base import Explorer, choice, new_figure, slider
from helpers.families import Relative, edits
from helpers.model import PRESETS, count_parameters
from helpers.plots import HIDDEN, INK

BODY, SIZE = PRESETS["llama-3-8b"], 4096  # what is edited, and the tokens in a window
WINDOWS = {"none": 1, "all layers": 33, "every second": 2, "five of six": 6, "three of four": 4}  # each n-th sees all
EDITS = {  # of each option of a menu: in words, and the edits
    "angles": {"all alike": ("",), "every fourth stands still": ("every fourth layer turns nothing", edits.no_rope),
               "two bases": ("base 10,000 in layers with a window, 1,000,000 in others", edits.angles)},
    "queries and keys": {
        "plain": ("",), "biases": ("biases on queries, keys and values", edits.biases),
        "biases and sinks": ("biases in all of attention, a sink for each head", edits.biases, edits.sinks),
        "norm per head": ("queries and keys normed, each head by itself", edits.qk_norm),
        "norm over all heads": ("queries and keys normed, all heads at once", edits.qk_norm_whole)},
    "norms": {"before": ("",), "after": ("norms after each branch, none before", edits.post_norm),
              "around": ("norms before and after each branch", edits.sandwich_norm)},
    "feed-forward": {"SwiGLU": ("",), "8 experts": ("8 experts, 2 of them for a token", edits.experts)},
}  # fmt: skip
MENUS = {"window": WINDOWS} | EDITS
PLAIN = {menu: next(iter(options)) for menu, options in MENUS.items()}
FAMILIES = {  # what each family does not leave plain
    "LLaMA": {}, "Mistral 7B": {"window": "all layers"}, "SmolLM3": {"angles": "every fourth stands still"},
    "Qwen2": {"queries and keys": "biases"}, "Qwen3": {"queries and keys": "norm per head"},
    "Mixtral": {"feed-forward": "8 experts"},
    "Qwen3-MoE": {"queries and keys": "norm per head", "feed-forward": "8 experts"},
    "OLMo 2": {"queries and keys": "norm over all heads", "norms": "after"},
    "OLMo 3": {"window": "three of four", "queries and keys": "norm over all heads", "norms": "after"},
    "Gemma 2": {"window": "every second", "norms": "around"},
    "Gemma 3": {"window": "five of six", "angles": "two bases", "queries and keys": "norm per head", "norms": "around"},
    "gpt-oss": {"window": "every second", "queries and keys": "biases and sinks", "feed-forward": "8 experts"},
}  # fmt: skip
ALSO = {
    "Gemma 2": "changes gate, gain and scales, and caps scores", "Gemma 3": "changes gate, gain and scales",
    "gpt-oss": "slows pairs, and its experts have biases and another gate",
}  # fmt: skip


def explore_relatives() -> Explorer:
    """Edits of a LLaMA of Llama 3 8B's sizes: whose they are, both lenses, parameters, cache and reach."""
    settings = {
        "no_rope_layers": None, "no_rope_layer_interval": 4, "num_experts": 8, "num_experts_per_tok": 2,
        "rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}},
    }  # fmt: skip
    layers, plain, added = BODY.n_layers, count_parameters(BODY), {}
    for option, (_, *own) in (row for options in EDITS.values() for row in options.items()):
        with torch.device("meta"):  # one layer tells how many parameters an option adds to each
            layer = Relative(replace(BODY, n_layers=1), option)
            for edit in own:
                edit(layer, settings | {"attention_bias": option == "biases and sinks"})
        added[option] = count_parameters(layer) - count_parameters(replace(BODY, n_layers=1))

    # What is fixed: the axes, and hatching under both pictures, which shows where nothing turns and no key is seen.
    figure, axes = new_figure(2, width_ratios=[1, 1.2])
    for ax, width in zip(axes, (64, 1), strict=True):
        ax.add_patch(Rectangle((0, 0), width, layers, fc=HIDDEN, ec="#8A8A8A", hatch="////", lw=0, zorder=-2))
        ax.spines[:].set_visible(True)
        ax.set(xlim=(0, width), ylim=(0, layers), ylabel="layer")
        ax.set_yticks(np.arange(0.5, layers, 4), range(0, layers, 4))
    axes[0].set(xlabel="pair index", xticks=range(0, 65, 16))
    axes[1].set(xlabel="\nkey position [token]", xticks=(0, 0.5, 1), xticklabels=[""] * 3)

    # What moves: the speeds (transparent where not a number), what is seen, the line of the reach.
    model = Relative(replace(BODY, vocab_size=1, dim=1, n_heads=1, n_kv_heads=1, hidden_dim=1), "tiny")
    alike = model.layer_inv_freq.clone()
    cells = {"aspect": "auto", "origin": "lower", "extent": (0, 64, 0, layers), "zorder": -1}
    turns = axes[0].imshow(alike.numpy(), cmap="cividis", norm=LogNorm(1e-6, 1), **cells)
    figure.colorbar(turns, ax=axes[0], label="turning speed [rad/token]")
    sees = axes[1].add_patch(Polygon([(0, 0)], fc="white", ec=INK, lw=0.8, zorder=-1, label="one layer sees"))
    (line,) = axes[1].plot([], [], "-", color=INK, clip_on=False, label="with all layers above")
    place = {"transform": axes[1].get_xaxis_transform(), "va": "top", "fontsize": 9}
    ticks = [axes[1].text(i / 2, -0.035, "", ha=("center", "center", "right")[i], **place) for i in range(3)]
    axes[1].legend(handles=[sees, line], loc="upper center", bbox_to_anchor=(0.5, -0.19), ncols=2)

    def draw(context, **chosen):
        context = round(context)
        content = settings | {"sliding_window": SIZE, "sliding_window_pattern": WINDOWS[chosen["window"]]}
        model.layer_inv_freq[:] = alike
        for edit in (edits.window, *EDITS["angles"][chosen["angles"]][1:]):
            edit(model, content)
        turns.set_data(np.where(model.layer_inv_freq > 0, model.layer_inv_freq, np.nan))
        seen = [min(size or context, context) for size in model.windows]
        left = np.repeat(1 - np.array(seen) / context, 2)  # of what a layer sees, at its lower and its upper edge
        edges = np.repeat(np.arange(layers + 1), 2)[1:-1]
        sees.set_xy([(1, 0), *zip(left, edges, strict=True), (1, layers)])
        reach = list(accumulate(reversed(seen), lambda far, size: min(context, far + size - 1)))  # the last layer first
        line.set_data(1 - np.array(reach) / context, np.arange(layers)[::-1] + 0.5)
        for half, tick in enumerate(ticks):
            tick.set_text(f"{context * half // 2:,}")
        axes[1].set_title(f"Reach: {reach[-1]:,} tokens")
        steps = {name: sum((PLAIN | own)[menu] != chosen[menu] for menu in chosen) for name, own in FAMILIES.items()}
        few, slide = min(steps.values()), sum(size is not None for size in model.windows)
        near = ", ".join(name for name in steps if steps[name] == few)
        words, rolling = [EDITS[menu][chosen[menu]][0] for menu in EDITS], ""
        whole, kept = (4e-9 * BODY.n_kv_heads * BODY.head_dim * size for size in (layers * context, sum(seen)))
        if slide:
            words.insert(0, f"a window of {SIZE:,} tokens in {slide} of {layers} layers")
            rolling = f", {kept:.2f} GB if a layer with a window keeps only its last {SIZE:,} tokens"
        family = f"{near}: {'; '.join(filter(None, words)) or 'no edit'}."
        family += f" It also {ALSO[near]}." if near in ALSO else ""
        if few:
            changes = "one change" if few == 1 else f"{few} changes"
            family = f"No family of the course has these edits; {changes} away from: {near}."
        total = plain + layers * sum(added[chosen[menu]] for menu in EDITS)
        more = f", {total - plain:,} more than LLaMA's" if total > plain else ""
        if chosen["feed-forward"] == "8 experts":
            more += f"; a token uses {(total - layers * 6 * 3 * BODY.dim * BODY.hidden_dim) / 1e9:.2f} billion"
        own = f"{chosen['queries and keys']}, norms {chosen['norms']}, {chosen['feed-forward']}"
        own = own.removeprefix("plain, ").removesuffix(", SwiGLU")
        turning = chosen["angles"] if len(model.layer_inv_freq.unique(dim=0)) > 1 else "all alike"
        axes[0].set_title(f"{'No family' if few else near}: {own}\nAngles: {turning}")
        return (
            f"{family} In Llama 3 8B's sizes: {total / 1e9:.2f} billion parameters{more}. Cache at {context:,} tokens "
            f"in bfloat16: {whole:.2f} GB{rolling}. The last token's logits can depend on {reach[-1]:,} tokens."
        )

    # Which controls.
    controls = {menu: choice(menu, options) for menu, options in MENUS.items()}
    for menu, option in FAMILIES["Gemma 3"].items():
        controls[menu].value = option
    controls["context"] = slider("context", 32_768.0, *np.log10((1024, 131_072, 2)), unit="token", log=True)
    alt = "Left: how fast each pair turns in each layer, hatched where it stands still. Right: keys that the last "
    return Explorer(figure, draw, controls, alt + "token sees in each layer, and a line: from how far it gets news.")
