"""Explorers: sliders around one picture that answers at once. The only folder that imports ipywidgets.

Each `explore_*` draws its figure once and then only moves what is on it, so a redraw takes a few hundredths of a
second. The maths is that of `helpers.model`; colours and their meanings are those of `helpers.plots`.
"""

# ruff: noqa: F401  these names are here to be imported from here

from helpers.explorers.base import Explorer, new_figure, slider, switch, toggle, within
from helpers.explorers.film import explore_training
from helpers.explorers.full_model import explore_xray
from helpers.explorers.generate import explore_writing
from helpers.explorers.gqa import explore_masks
from helpers.explorers.parallel import explore_devices, explore_ring, explore_sums
from helpers.explorers.relatives import explore_order, explore_ports
from helpers.explorers.rmsnorm import explore_norms, explore_rms_norm
from helpers.explorers.rope import explore_hands, explore_reach, explore_rope
from helpers.explorers.start import explore_start
from helpers.explorers.swiglu import explore_opening, explore_swiglu
from helpers.explorers.train import explore_losses
