"""Explorers: sliders around one picture that answers at once. The only package that imports ipywidgets.

Each `explore_*` draws its figure once and then only moves what is on it, so a redraw takes a few hundredths of a
second. The maths is that of `helpers.model`; colours and their meanings are those of `helpers.plots`.

A file is loaded when one of its explorers is asked for. `circuit` and `leaky` are small models of notebooks
05 and 06, and `drawings` has two pictures that stand still.
"""

from importlib import import_module

FILES = {  # what is imported from here, by the file that is loaded when it is asked for
    "base": "Explorer new_figure slider switch toggle within",
    "causes": "explore_cuts explore_rows",
    "drawings": "plot_head_wiring plot_llama_map",
    "film": "explore_training",
    "full_model": "explore_sizes explore_xray",
    "generate": "explore_drafts explore_steps explore_writing",
    "gqa": "explore_cache explore_masks",
    "parallel": "explore_devices explore_drag explore_fit explore_sums",
    "relatives": "explore_order explore_ports",
    "rmsnorm": "explore_dose explore_rms_norm",
    "rope": "explore_reach explore_rope",
    "start": "explore_start",
    "swiglu": "explore_shut explore_swiglu",
    "train": "explore_losses",
}
FILE_OF = {name: file for file, names in FILES.items() for name in names.split()}


def __getattr__(name):
    if name not in FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"explorers.{FILE_OF[name]}"), name)
    return globals()[name]


def __dir__():
    return sorted({*globals(), *FILE_OF})
