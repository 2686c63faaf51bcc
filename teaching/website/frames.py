"""Explorers without a kernel: pictures made beforehand, and sliders that choose one of them.

`SETTINGS` names, for each explorer, the controls that move on the site, the main one first, and the values that each
takes; the other controls keep their defaults. The values let a reader try what the notebook asks. Every picture carries
its own description, and the caption repeats the values.
"""

import base64
import html
import io
import itertools
import json
import math
from pathlib import Path

from PIL import Image

from helpers import explorers, plots

COLORS = 256  # of a picture's palette: a third of the bytes of full colour, and no difference to be seen
PICTURES, MEGABYTE = 48, 1_000_000  # the most pictures of one explorer, and their most bytes together
ALL = "all"  # every option of a menu, every step of a slider
SETTINGS = {
    "explore_rms_norm": {
        "offset": (-2.0, 0.0, 0.5, 2.0), "scale": (0.001, 1.0), "gain": (0.1, 1.0), "eps": (1e-5, 0.1),
    },
    "explore_rope": {
        "position": (10, 20, 40), "distance": (3, 6), "base": (10_000.0, 1_000_000.0), "scaling": ALL,
    },
    "explore_swiglu": {
        "g": (-6.0, -2.0, -1.0, 1.0, 6.0), "u": (-2.0, 1.5, 5.0), "activation": ("SiLU", "sigmoid", "none"),
    },
    "explore_mask": {"cached": (0, 2, 4, 6, 8), "rule": ALL},
    "explore_full_model": {"layer": ALL, "token": (0, 2, 4, 6, 8, 10)},
    "explore_sampling": {
        "temperature": (0.0, 0.2, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0), "top_p": (0.5, 0.9, 1.0), "top_k": (0, 6),
    },
    "explore_relatives": {
        "window": ("none", "all layers", "five of six"), "angles": ("all alike", "two bases"),
        "queries and keys": ("plain", "norm per head"), "norms": ("before", "around"), "context": (32_768.0, 131_072.0),
    },
    "explore_memory": {
        "model": ("llama-2-70b", "llama-3.1-405b"), "sequences": (1, 8, 64, 128), "context": (1, 4, 16, 128, 256),
    },
}  # fmt: skip


def check_settings(shown):
    """Compare `SETTINGS` with the explorers before anything is drawn.

    Args:
        shown: names of the explorers that notebooks show.

    Raises:
        ValueError: an explorer without settings or settings without an explorer, a control that does not exist, a start
            value that is not among the values, or too many pictures; the text gives the remedy for each.
    """
    faults = [f"{name} has no settings: say which of its controls move." for name in shown if name not in SETTINGS]
    for name, settings in SETTINGS.items():
        if not hasattr(explorers, name):
            faults.append(f"helpers.explorers has no {name}: remove its settings.")
            continue
        explorer = getattr(explorers, name)()
        controls = explorer.controls
        explorer.close()
        if absent := settings.keys() - controls.keys():
            faults.append(f"{name} has no control {sorted(absent)}, but {sorted(controls)}.")
            continue
        moved = [(controls[control], _values(controls[control], values)) for control, values in settings.items()]
        for control, values in moved:
            if control.value not in values:
                faults.append(f"{name} starts at {control.description} = {control.value}, not in {values}: add it.")
        count = math.prod(len(values) for _, values in moved)
        if count > PICTURES:
            faults.append(
                f"{name} would get {count} pictures, and at most {PICTURES} are loaded quickly: give fewer values."
            )
    if faults:
        raise ValueError("Mend SETTINGS in teaching/website/frames.py: " + " ".join(sorted(faults)))


def make_frames(name: str, folder: Path) -> str:
    """Draw an explorer at every setting of `SETTINGS[name]`, and return the HTML that shows the pictures.

    Args:
        name: of a function of `helpers.explorers`.
        folder: gets the pictures, as `explore_name-NN.png`; the HTML refers to them by `../folder.name`.

    Raises:
        ValueError: a setting that the explorer cannot draw, or pictures of more than a megabyte.
    """
    plots.use_course_style()
    explorer, frames, size = getattr(explorers, name)(), [], 0
    controls = {explorer.controls[key]: _values(explorer.controls[key], own) for key, own in SETTINGS[name].items()}
    first = [values.index(control.value) for control, values in controls.items()]
    folder.mkdir(parents=True, exist_ok=True)
    # The first control changes fastest: picture number = index of control 1 + size 1 * (index of control 2 + ...).
    for setting in itertools.product(*reversed(controls.values())):
        for control, value in zip(reversed(controls), setting, strict=True):
            control.value = value
        if 'role="alert"' in explorer.picture.value:
            raise ValueError(f"{name} cannot be drawn with {explorer.values}: {explorer.picture.value[-400:]}")
        file = folder / f"{name}-{len(frames):02}.png"
        _write_picture(explorer.png, file)
        size += file.stat().st_size
        frames.append({
            "src": f"../{folder.name}/{file.name}", "alt": f"{explorer.alt} {explorer.finding}",
            "finding": explorer.finding, "settings": explorer.settings,
        })  # fmt: skip
    if size > MEGABYTE:
        raise ValueError(
            f"The {len(frames)} pictures of {name} have {size:,} bytes together, and at most {MEGABYTE:,} are loaded "
            f"quickly: give fewer values in SETTINGS[{name!r}] of teaching/website/frames.py."
        )
    page = _page(name, controls, first, frames, [int(side) for side in explorer.figure.bbox.size])
    explorer.close()
    return page


def _values(control, values):
    if values != ALL:
        return values
    return control.options if hasattr(control, "options") else tuple(range(control.min, control.max + 1, control.step))


def _write_picture(png: str, file: Path):
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, "PNG")


def _in_words(control, value) -> str:
    if isinstance(value, str):
        return value
    unit = control.description.partition(" [")[2].rstrip("]")
    text = (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}").replace("-", "−")
    return f"{text} {unit}" if unit else text


def _page(name, controls, first, frames, size):
    number, inputs, values_in_words = 0, [], []
    for (control, values), at in zip(reversed(controls.items()), reversed(first), strict=True):
        number = number * len(values) + at
        words = [html.escape(_in_words(control, value)) for value in values]
        values_in_words.insert(0, words)
        own = f"{name}-{len(controls) - len(inputs)}"
        label = f'<label for="{own}">{html.escape(control.description.split(" [")[0])}</label>'
        if isinstance(values[0], str):
            options = "".join(f"<option{' selected' * (i == at)}>{option}</option>" for i, option in enumerate(words))
            inputs.insert(0, f'{label}<select id="{own}" autocomplete="off">{options}</select>')
        else:
            slider = f'<input type="range" id="{own}" min="0" max="{len(values) - 1}" value="{at}"'
            spoken = f'aria-valuetext="{words[at]}" autocomplete="off"><output for="{own}">{words[at]}</output>'
            inputs.insert(0, f"{label}{slider} {spoken}")
    frame, newline = frames[number], "\n"
    data = json.dumps({"values": values_in_words, "frames": frames}, ensure_ascii=False).replace("<", "\\u003c")
    return f"""<figure class="frames" id="{name}">
<div class="frames-controls">
{newline.join(inputs)}
</div>
<img class="wide" src="{frame["src"]}" alt="{html.escape(frame["alt"])}" width="{size[0]}" height="{size[1]}">
<figcaption><p class="finding" aria-live="polite">{html.escape(frame["finding"])}</p>
<p class="settings">{html.escape(frame["settings"])} Here some controls move, between pictures made beforehand; in
JupyterLab all do, at every value.</p></figcaption>
<script type="application/json">{data}</script>
</figure>"""
