"""Both lenses of whole models in one picture, for notebook 08."""

import json
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from helpers.plots import HATCH, HIDDEN, INK, to_numpy


def plot_parts(wrong, *, n_tokens=10, title=None) -> Figure:
    """Parts x tokens for each model, red where a part is wrong; the model that is right for longest comes first.

    Wrong is {model: {part of `part_names(n_layers)`: (T,) bool}}; titles name the first position with wrong logits.
    """
    first = {name: (*parts["lm_head"].tolist(), True).index(True) for name, parts in wrong.items()}
    rows = sorted(next(iter(wrong.values())), key=lambda part: (part == "lm_head", part != "tok_embeddings", part))
    rows = [part for part in rows if not part.split(".")[-1].isdigit()]  # a layer is its two branches
    words = [part.replace("layers.", "layer ").replace(".", ": ").replace("_", "-") for part in rows]
    words[0], words[-1] = "embedding", "logits"
    fig, axes = plt.subplots(3, 4, figsize=(9.4, 5.6), sharex=True, sharey=True)
    for ax, name in zip(axes.flat, sorted(first, key=first.get, reverse=True), strict=True):
        cells = np.stack([to_numpy(wrong[name][part])[:n_tokens] for part in rows])
        ax.pcolormesh(cells, cmap=ListedColormap(["#CFE5D8", "#C00000"]), vmin=0, vmax=1, ec="white", lw=1.5)
        is_right = first[name] == len(wrong[name]["lm_head"])
        ax.set_title(f"{name}: right" if is_right else f"{name}: wrong from {first[name]}", fontsize=10)
        ax.set(ylim=(len(rows), 0))
        ax.set_xticks([0.5, 1.5, 6.5, 8.5], [0, 1, 6, 8])
        ax.set_yticks(np.arange(len(rows)) + 0.5, words, fontsize=8)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    fig.suptitle(title, x=0.01, ha="left")
    fig.supxlabel("position [token]", fontsize=9)
    return fig


EXPERTS = "experts", "shared expert", "a bias steers the router"  # no type has the others without the first
PLAIN = {"nothing turns": "no RoPE", "some layers stand still": "no RoPE in some layers",
         "a part of a head turns": "RoPE in a part of a head"}  # fmt: skip


def read_field() -> list[dict]:
    """What `benchmarks/field.py` measured, {"type", "year", "source", "features", "turns", "sees"} for each type.

    "turns" has the share of a head that turns, "sees" the largest share of a text that a token sees, for each of twelve
    layers; None where a layer keeps a state. Types until 2022 have that year. They stand in the order of the map.
    """
    field = json.loads((Path(__file__).parent / "field.json").read_text(encoding="utf-8"))
    field = [one | {"year": max(one["year"], 2022)} for one in field]
    old = {name for one in field if one["year"] == 2022 for name in one["features"]}
    return sorted(field, key=lambda one: (one["year"], -len(old & {*one["features"]}), len(one["features"])))


def plot_field(field, *, title=None) -> Figure:
    """Types by year across; above, how many features a type has in which it differs from a LLaMA; below, which ones.

    EXPERTS are one row.
    """
    when, found = {}, [{*one["features"]} - {*EXPERTS[1:]} for one in field]
    for one, names in zip(field, found, strict=True):
        for name in names:
            when.setdefault(name, []).append(one["year"])
    old = {name for name in when if min(when[name]) == 2022}  # seen in a type before LLaMA
    rows = sorted(when, key=lambda name: (name not in old, np.mean(when[name])))
    fig, axes = plt.subplots(2, sharex=True, figsize=(9.4, 5.8), height_ratios=(2.4, 3.4))
    above, below = axes
    for row, name in enumerate(rows):
        at = [column for column, names in enumerate(found) if name in names]
        below.vlines(at, row - 0.42, row + 0.42, color=HATCH if name in old else INK, lw=3.2)
    below.set(xlim=(-1, len(field)), ylim=(len(rows) - 0.4, -0.6), yticks=range(len(rows)))
    below.set_yticklabels([PLAIN.get(name, name) for name in rows], fontsize=10)
    for year in range(2022, 2027):
        here = [column for column, one in enumerate(field) if one["year"] == year]
        left, right = here[0] - 0.5, here[-1] + 0.5
        counted = [found[column] for column in here]
        grey, both = np.mean([len(one & old) for one in counted]), np.mean([len(one) for one in counted])
        look = {"width": right - left, "align": "edge", "ec": "white"}
        above.bar(left, grey, color=HATCH, **look)
        above.bar(left, both - grey, bottom=grey, color=INK, **look)
        above.text((left + right) / 2, both + 0.1, f"{both:.1f}", ha="center", va="bottom", fontsize=11)
        above.text((left + right) / 2, -0.6, f"until {year}" if year == 2022 else year, ha="center", va="bottom")
        below.axvline(left, color=HIDDEN, lw=0.8, zorder=0)
    above.set(ylim=(-0.6, 5.7), yticks=[])
    words = "mean number of\ndifferences from a LLaMA\ngrey: known until 2022\nblack: new since 2023"
    above.text(-2.2, 2.5, words, ha="right", va="center", fontsize=10)
    fig.suptitle(title, x=0.01, ha="left")
    for ax in axes:
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return fig


def plot_still(field, *, title=None) -> Figure:
    """Both lenses of the types in which RoPE turns in some layers only: types down, twelve layers across."""
    field = [one for one in field if "some layers stand still" in one["features"]]
    fig, axes = plt.subplots(1, 2, sharey=True, figsize=(8.0, 0.24 * len(field) + 1.1))
    for ax, lens, name in zip(axes, ("turns", "sees"), ("dark: with RoPE", "dark: sees the whole text"), strict=True):
        ax.pcolormesh([_shades(one, lens) for one in field], cmap="Greys", vmin=0, vmax=1.25, ec="white", lw=1.5)
        ax.set(title=name, xlabel="layer", ylim=(len(field), 0))
        ax.set_xticks(np.arange(12) + 0.5, range(12))
        ax.set_yticks(np.arange(len(field)) + 0.5, [one["type"] for one in field])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    fig.suptitle(title, x=0.01, ha="left")
    return fig


def _shades(one, lens):
    # 0.3 to 1 for each of twelve layers, nan where one keeps a state; layers that see less than all are light
    values = np.array([np.nan if share is None else share for share in one[lens]], dtype=float)
    values = values[np.arange(12) * len(values) // 12]  # a few have fewer layers
    return np.where(np.isnan(values), np.nan, 0.3 + 0.7 * (values if lens == "turns" else values == 1))
