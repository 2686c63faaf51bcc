"""The first explorer of notebook 06: a model that learns to repeat, watched while it does, and afterwards."""

import time

import torch
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from torch.nn import functional as F

from explorers.base import GREY, Explorer, bare, hide_future, slider
from explorers.circuit import CONFIG, MAX_PERIOD, learn_to_repeat, repeated
from helpers.interventions import attention_by_layer
from helpers.model import Llama, causal_visible
from helpers.plots import HATCH, HIDDEN, INK, KEY

N, LETTERS = 24, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
PIECE = N // 2  # then comes its copy


class Film(Explorer):
    """A model of two blocks that learns to repeat what it has read: a film, once its `learn()` runs.

    Args:
        steps: of a training; a stage is kept after each `every` of them.
        device: where it trains; the picture is computed on the CPU.
        common: length of one random vector, added to every letter's embedding before the training.

    Attributes:
        piece: the letters of the text on the picture, before their copy, (12,) int64.
        stages: {step: (loss in the copies [nat/token], weights)}.
    """

    def __init__(
        self, steps: int = 450, every: int = 25, device: torch.device | str = "cpu", common: float = 0.0
    ):  # fmt: skip
        self.steps, self.every, self.device, self.common = steps, every, device, common
        self.left, self.model, self.stages = 0.0, Llama(CONFIG), {}
        draw = torch.Generator().manual_seed(4)
        self.piece, self.copies = torch.randperm(26, generator=draw)[:PIECE], repeated(64, MAX_PERIOD, 48, draw)
        self._keep(*next(learn_to_repeat(0, 1, 0, device, common)))
        controls = {"step": slider("after step", 0, 0, steps, every)}
        alt = "Above, a text, each token dark if it was expected. Left, loss against step. Right, four attention "
        super().__init__(self._fixed(), self._draw, controls, alt + "triangles; the cells of the letter just before "
                         "are framed.")  # fmt: skip

    def learn(self, report=lambda step, loss: None):
        """Train; the picture moves meanwhile, `report(step, loss)` is called, the last picture stays."""
        start = time.perf_counter()
        try:
            for step, model in learn_to_repeat(self.steps, self.every, 0, self.device, self.common):
                self.left = (time.perf_counter() - start) * (self.steps - step) / step if step else 0.0
                self._keep(step, model)
                self.controls["step"].value = step
                report(step, self.stages[step][0])
        finally:  # the stop button, too
            self.left = 0.0
            self.redraw()
            self.keep()

    def _keep(self, step, model):
        rows = self.copies.to(self.device)
        with torch.no_grad():
            loss = F.cross_entropy(model(rows[:, :-1])[:, MAX_PERIOD:].mT, rows[:, MAX_PERIOD + 1 :]).item()
        weights = {name: weight.detach().cpu().clone() for name, weight in model.state_dict().items()}
        self.stages[step] = loss, weights

    def _fixed(self):
        figure = Figure(figsize=(8.4, 5.9), dpi=110, facecolor="white", layout="none")
        page, ax = figure.add_axes((0.03, 0.85, 0.945, 0.075)), figure.add_axes((0.06, 0.09, 0.27, 0.625))
        bare(page, (-0.1, N + 0.1), (-0.3, 1.3), "auto")
        ax.set(xlim=(-0.03 * self.steps, 1.03 * self.steps), ylim=(0, 3.9), xlabel="step", yticks=range(4))
        ax.set_title("Loss in copies [nat/token]", fontsize=10)
        ax.axhline(torch.tensor(32.0).log(), color=HIDDEN, lw=1, zorder=0)
        ax.text(self.steps, 3.52, "32 letters equally likely", ha="right", va="bottom", fontsize=8.5, color=GREY)
        figure.text(0.03, 0.812, "dark: the model had given this letter a high probability", fontsize=9.5, color=GREY)
        figure.text(0.385, 0.735, "Heads of block 0", fontsize=10, weight="bold")
        figure.text(0.56, 0.735, "framed: the letter just before", fontsize=10, color=KEY)
        self.looks, self.bands = [], []
        for head in range(4):
            at = figure.add_axes((0.385 + 0.3 * (head % 2), 0.4 - 0.335 * (head // 2), 0.29, 0.315))
            bare(at, (-0.5, N - 0.5), (N - 0.5, -0.5), "auto")
            hide_future(at, N)
            at.text(N - 1.2, 0.4, f"head {head}", ha="right", va="top", fontsize=9.5, bbox={"fc": HIDDEN, "lw": 0})
            nothing = torch.zeros(N, N).numpy()
            self.looks.append(at.imshow(nothing, cmap="Blues", vmin=0, vmax=1, aspect="auto"))
            self.bands.append(at.add_collection(LineCollection([], colors=KEY, lw=0.8)))
        boxes = [[(x, 0), (x + 0.94, 0), (x + 0.94, 1), (x, 1)] for x in range(N)]
        self.boxes = page.add_collection(PolyCollection(boxes, ec=HATCH, lw=0.6))
        page.plot([PIECE - 0.03] * 2, [-0.3, 1.3], color=KEY, lw=2.5)
        style = {"ha": "center", "va": "center", "fontsize": 11, "family": "monospace", "zorder": 4}
        letters = [LETTERS[token] for token in self.piece.tolist()] * 2
        self.letters = [page.text(x + 0.47, 0.48, letter, **style) for x, letter in enumerate(letters)]
        (self.curve,), (self.dot,), self.page = ax.plot([], [], color=INK), ax.plot([], [], "o", color=INK, ms=7), page
        return figure

    @torch.no_grad()
    def _draw(self, step):
        hidden, step = ~causal_visible(N, N), max(at for at in self.stages if at <= step)
        loss, weights = self.stages[step]
        self.model.load_state_dict(weights)
        text = self.piece.repeat(2)[None]
        shares, attention = self.model(text).softmax(-1)[0], attention_by_layer(self.model, text)[0]
        right = torch.cat([torch.tensor([1 / 32]), shares[range(N - 1), text[0, 1:]]])
        self.boxes.set_facecolors([str(1 - 0.85 * share) for share in right.tolist()])
        for letter, share in zip(self.letters, right.tolist(), strict=True):
            letter.set_color("white" if share > 0.5 else INK)
        corners = [(x - 0.5, x + 0.5) for x in range(N - 1)]
        for look, band, weight in zip(self.looks, self.bands, attention, strict=True):
            look.set_data(weight.masked_fill(hidden, float("nan")).numpy())
            band.set_segments([[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)] for x, y in corners])
        self.curve.set_data(list(self.stages), [one for one, _ in self.stages.values()])
        self.dot.set_data([step], [loss])
        copy = right[PIECE:].mean()
        left = f"; about {self.left:.0f} s left" if self.left > 0.5 else ""
        self.page.set_title(f"After {step} steps, {copy:.0%} for the right letter in the copy{left}", fontsize=11)
        before = attention.diagonal(-1, 1, 2)  # (H, N - 1)
        return (
            f"After {step} steps: {copy:.0%} for the right letter in the copy. The letter just before gets "
            f"{before.max(0).values.mean():.2f} of a head's weight, if each time the head counts that gives it most."
        )


explore_training = Film  # it is asked for as the other explorers are
