"""The explorer of notebook 09: what each device holds of a large model."""

from helpers.explorers.base import GREY, Explorer, choice, new_figure, slider
from helpers.model import PRESETS, count_parameters
from helpers.plots import INK


def explore_memory() -> Explorer:
    """What each device holds of a large model in bfloat16, weights and cache, split over 1 to 32 devices: on paper."""
    devices, room, gigabyte = [2**power for power in range(6)], 80, 1e9
    names = [name for name in PRESETS if PRESETS[name].n_heads % devices[-1] == 0]  # whole heads on each device
    names.sort(key=lambda name: name != "llama-3.1-405b")  # the default comes first
    weight_bytes = {name: 2 * count_parameters(PRESETS[name]) for name in names}

    # What is fixed: the axes, and what fits on one device.
    figure, ax = new_figure(1)
    ax.axhline(room, color=INK, lw=1)
    ax.text(32, 1.15 * room, f"{room} GB", ha="right")
    ax.set(xscale="log", yscale="log", xlabel="devices", ylabel="memory on each device [GB]")
    ax.set_xticks(devices, devices)
    ax.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    ax.minorticks_off()
    ax.set(xlim=(0.9, 36), ylim=(0.02, 30_000))

    # What moves: three lines.
    (weights,) = ax.plot(devices, devices, "s--", color=GREY, label="weights")
    (cache,) = ax.plot(devices, devices, "^:", color=GREY, label="keys and values")
    (both,) = ax.plot(devices, devices, "o-", color=INK, label="both")
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

    # Which controls.
    controls = {
        "model": choice("model", names),
        "sequences": slider("sequences at once", 64, 1, 128),
        "context": slider("context of each", 128, 1, 256, unit="Ki token"),
    }
    alt = "Memory on each device against the number of devices, both logarithmic: the line of the weights falls all "
    return Explorer(
        figure,
        draw,
        controls,
        alt + "the way, that of keys and values only as far as there are key/value heads. A level line at 80 GB.",
    )
