"""Kernel time of one redraw of every explorer: move a control, draw, encode, hand over. Prints a markdown table.

Nothing else should run meanwhile; the last column is the processor's own time, which a busy machine disturbs less.
"""

import time
from itertools import cycle

import numpy as np

from helpers import explorers, plots

REDRAWS = 50


def positions(control):
    """Two values of a slider, taken in turn, so that every redraw changes the picture."""
    step = control.base**control.step if hasattr(control, "base") else control.step
    return cycle(
        (control.value * step, control.value) if hasattr(control, "base") else (control.value + step, control.value)
    )


def measure(make):
    """Wall and processor time [ms] of each of the redraws, the sliders moving in turn."""
    explorer = make()
    sliders = [(c, positions(c)) for c in explorer.controls.values() if hasattr(c, "step") and not c.disabled]
    for control, values in sliders:
        control.value = next(values)
    times = []
    for _, (control, values) in zip(range(REDRAWS), cycle(sliders), strict=False):
        start, busy = time.perf_counter(), time.process_time()
        control.value = next(values)
        times.append((time.perf_counter() - start, time.process_time() - busy))
    explorer.close()
    return 1000 * np.array(times).T


def report():
    """The lines of a table, one row per explorer."""
    plots.use_course_style()
    yield f"| explorer | redraw, median of {REDRAWS} [ms] | 95th percentile [ms] | median processor time [ms] |"
    yield "|---|---|---|---|"
    for name in sorted(name for name in vars(explorers) if name.startswith("explore_")):
        wall, busy = measure(getattr(explorers, name))
        yield f"| {name} | {np.median(wall):.1f} | {np.quantile(wall, 0.95):.1f} | {np.median(busy):.1f} |"


if __name__ == "__main__":
    for line in report():
        print(line, flush=True)
