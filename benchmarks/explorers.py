"""How long each explorer of the notebooks takes to redraw: python -m benchmarks.explorers. Prints a Markdown table.

A redraw is a control set: draw, encode, hand over. Learners see a picture follow the hand up to about 100 ms. Nothing
else should run meanwhile; the last column is the processor's own time, which a busy machine disturbs less.
"""

import time
from itertools import cycle, islice

import numpy as np

import explorers
from helpers import plots

REDRAWS, BOUND = 20, 100  # [ms]


def other_value(control):
    """A value beside the control's present one: what one key or one click would give it."""
    value = control.value
    if isinstance(value, tuple):
        names = [name for _, name in getattr(control, "options", ())]  # of parts: the first one clicked
        return tuple(names[:1]) if names else (value[0], value[1] + (1 if value[1] < control.max else -1))
    if hasattr(control, "options"):
        return control.options[control.index - 1][1]
    if isinstance(value, bool):
        return not value
    if hasattr(control, "base"):
        return value * control.base ** (control.step if value < control.base**control.max else -control.step)
    return value + (control.step if value < control.max else -control.step)


def redraw_ms(explorer, redraws: int = REDRAWS) -> float:
    """Median wall time [ms] of a redraw, the controls moved there and back in turn."""
    return float(np.median(times(explorer, redraws)[0]))


def times(explorer, redraws):
    """Wall and processor time [ms] of each redraw, (2, redraws)."""
    moves = [(c, cycle((other_value(c), c.value))) for c in explorer.controls.values() if not c.disabled]
    found = []
    for control, values in islice(cycle(moves), redraws):
        value = next(values)
        start, busy = time.perf_counter(), time.process_time()
        control.value = value
        found.append((time.perf_counter() - start, time.process_time() - busy))
    return 1000 * np.array(found).T


def report():
    """The lines of a table, one row per explorer."""
    plots.use_course_style()
    yield f"| explorer | median of {REDRAWS} redraws [ms] | slowest [ms] | processor, median [ms] | under {BOUND} ms |"
    yield "|---|---|---|---|---|"
    for name in sorted(name for name in explorers.FILE_OF if name.startswith("explore_")):
        explorer = getattr(explorers, name)()
        wall, busy = times(explorer, REDRAWS)
        explorer.close()
        median, within = np.median(wall), "yes" if np.median(wall) <= BOUND else "NO"
        yield f"| {name} | {median:.1f} | {wall.max():.1f} | {np.median(busy):.1f} | {within} |"


if __name__ == "__main__":
    for line in report():
        print(line, flush=True)
