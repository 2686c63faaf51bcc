"""The first explorer of notebook 06: a model that learns to repeat, watched while it does, and afterwards."""

import time

import torch
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from torch.nn import functional as F

from explorers.base import GREY, PALE, Explorer, bare, hide_future, slider, switch
from explorers.circuit import CONFIG, MAX_PERIOD, learn_to_repeat, repeated
from helpers.interventions import attention_by_layer
from helpers.model import Llama, causal_visible
from helpers.plots import HATCH, HIDDEN, INK, KEY

USUAL, *_ = RUNS = {"nothing added": 0.0, "one vector added to all letters": 0.16}  # and how long this vector is
N, LETTERS = 24, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
TASKS = "the token just before", "the token after the earlier copy"


class Film(Explorer):
    """A model of two blocks that learns to repeat what it has read: a film, once its `learn()` runs.

    Args:
        steps: of a training; a stage is kept after each `every` of them.
        device: where it trains; the picture is computed on the CPU.

    Attributes:
        stages: of each run {step: (loss in the copies [nat/token], weights)}.
    """

    def __init__(self, steps: int = 450, every: int = 25, device: torch.device | str = "cpu"):
        self.steps, self.every, self.device, self.left, self.model = steps, every, device, 0.0, Llama(CONFIG)
        self.stages = {name: {} for name in RUNS}
        draw = torch.Generator().manual_seed(4)
        self.piece, self.copies = torch.randperm(26, generator=draw)[:N], repeated(64, MAX_PERIOD, 2 * MAX_PERIOD, draw)
        self._keep(USUAL, *next(learn_to_repeat(0, 1, 0, device)))
        controls = {"step": slider("after step", 0, 0, steps, every), "run": switch("training", list(RUNS))}
        controls["length"] = slider("length of the piece", 12, 4, 20)
        alt = "A text, each token dark if it was expected. Left, loss against step. Right, eight attention triangles; "
        super().__init__(self._fixed(), self._draw, controls, alt + "the cells that the task needs are framed.")

    def learn(self, run: str = USUAL, steps: int | None = None, report=lambda step, loss: None):
        """Train one of `RUNS`; the picture moves meanwhile, `report(step, loss)` is called, the last picture stays."""
        steps, start = steps or self.steps, time.perf_counter()
        self.controls["run"].value = run
        try:
            for step, model in learn_to_repeat(steps, self.every, 0, self.device, RUNS[run]):
                self.left = (time.perf_counter() - start) * (steps - step) / step if step else 0.0
                self._keep(run, step, model)
                self.controls["step"].value = step
                report(step, self.stages[run][step][0])
        finally:  # the stop button, too
            self.left = 0.0
            self.redraw()
            self.keep()

    def _keep(self, run, step, model):
        rows = self.copies.to(self.device)
        with torch.no_grad():
            loss = F.cross_entropy(model(rows[:, :-1])[:, MAX_PERIOD:].mT, rows[:, MAX_PERIOD + 1 :]).item()
        weights = {name: weight.detach().cpu().clone() for name, weight in model.state_dict().items()}
        self.stages[run][step] = loss, weights

    def _fixed(self):
        figure = Figure(figsize=(8.4, 5.6), dpi=110, facecolor="white", layout="none")
        page, ax = figure.add_axes((0.03, 0.84, 0.945, 0.08)), figure.add_axes((0.06, 0.095, 0.25, 0.60))
        bare(page, (-0.1, N + 0.1), (-0.3, 1.3), "auto")
        ax.set(xlim=(-0.03 * self.steps, 1.03 * self.steps), ylim=(0, 3.9), xlabel="step", yticks=range(4))
        ax.set_title("Loss in the copies [nat/token]", fontsize=9.5)
        ax.axhline(torch.tensor(32.0).log(), color=HIDDEN, lw=1, zorder=0)
        ax.text(self.steps, 3.52, "32 tokens equally likely", ha="right", va="bottom", fontsize=8, color=GREY)
        ax.text(0, 0.08, "pale: the other training", fontsize=8, color=GREY)
        figure.text(0.03, 0.8, "dark: the model had given this token a high probability", fontsize=9, color=GREY)
        maps = []
        for block, (below, task) in enumerate(zip((0.455, 0.095), TASKS, strict=True)):
            figure.text(0.345, below + 0.25, f"Block {block}.", fontsize=9.5, weight="bold")
            figure.text(0.42, below + 0.25, f"Framed: {task}", fontsize=9.5, color=KEY)
            for head in range(4):
                at = figure.add_axes((0.345 + 0.1635 * head, below, 0.157, 0.2355))
                bare(at, (-0.5, N - 0.5), (N - 0.5, -0.5), "auto")
                hide_future(at, N)
                at.text(N - 1.2, 0.4, f"head {head}", ha="right", va="top", fontsize=8.5, bbox={"fc": HIDDEN, "lw": 0})
                maps.append(at)
        # What moves.
        self.looks = [at.imshow(torch.zeros(N, N).numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto") for at in maps]
        self.bands = [at.add_collection(LineCollection([], colors=KEY, lw=0.7)) for at in maps]
        boxes = [[(x, 0), (x + 0.94, 0), (x + 0.94, 1), (x, 1)] for x in range(N)]
        self.boxes = page.add_collection(PolyCollection(boxes, ec=HATCH, lw=0.6))
        self.borders = page.add_collection(LineCollection([], colors=KEY, lw=2))
        style = {"ha": "center", "va": "center", "fontsize": 11, "family": "monospace", "zorder": 4}
        self.letters = [page.text(x + 0.47, 0.48, "", **style) for x in range(N)]
        self.curves = {name: ax.plot([], [], color=PALE, lw=1.2)[0] for name in RUNS}
        (self.curve,), (self.dot,), self.page = ax.plot([], [], color=INK), ax.plot([], [], "o", color=INK, ms=7), page
        return figure

    @torch.no_grad()
    def _draw(self, step, run, length):
        run, missing = (run, "") if self.stages[run] else (USUAL, f" ({run}: not trained yet)")
        known, hidden = self.stages[run], ~causal_visible(N, N)
        step = max(at for at in known if at <= step)
        loss, weights = known[step]
        self.model.load_state_dict(weights)
        text = self.piece[torch.arange(N) % length][None]
        shares, attention = self.model(text).softmax(-1)[0], attention_by_layer(self.model, text)
        right = torch.cat([torch.tensor([1 / 32]), shares[range(N - 1), text[0, 1:]]])
        self.boxes.set_facecolors([str(1 - 0.85 * share) for share in right.tolist()])
        self.borders.set_segments([[(x - 0.03, -0.3), (x - 0.03, 1.3)] for x in range(length, N, length)])
        for letter, token, share in zip(self.letters, text[0].tolist(), right.tolist(), strict=True):
            letter.set(text=LETTERS[token], color="white" if share > 0.5 else INK)
        for place, (look, band) in enumerate(zip(self.looks, self.bands, strict=True)):
            block, head = divmod(place, 4)
            back = 1 if block == 0 else length - 1
            look.set_data(attention[block, head].masked_fill(hidden, float("nan")).numpy())
            corners = [(x - 0.5, x + back - 0.5) for x in range(N - back)]
            band.set_segments([[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)] for x, y in corners])
        for other, curve in self.curves.items():
            curve.set_data(list(self.stages[other]), [one for one, _ in self.stages[other].values()])
        self.curve.set_data(list(known), [one for one, _ in known.values()])
        self.dot.set_data([step], [loss])
        first, second = right[1:length].mean(), right[length:].mean()
        left = f"; about {self.left:.0f} s left" if self.left > 0.5 else ""
        self.page.set_title(f"After {step} steps, {second:.0%} for the right letter in the copies{left}", fontsize=10.5)
        before = attention[0].diagonal(-1, 1, 2)  # (H, N - 1)
        return (
            f"After {step} steps, {run}{missing}: {second:.0%} for the right letter in the copies, {first:.0%} in the "
            f"piece itself. In block 0 the best head gives the token just before "
            f"{before.mean(1).max():.2f} on average, the best head of each query {before.max(0).values.mean():.2f}."
        )


explore_training = Film  # it is asked for as the other explorers are
