"""Right and wrong answers to the exercises of notebook 03, SwiGLU."""

import itertools
from functools import partial

import torch
from torch.nn import functional as F

from helpers.checkpoint import load_checkpoint
from helpers.interventions import held_out_windows, replaced
from helpers.model import SwiGLU
from helpers.text import TINY_LLAMA
from tests.support.answers.register import RIGHT, right, wrong


@right
def swiglu__linear(x, w_gate, w_up, w_down):
    return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)


@right
def swiglu__fused(x, w_gate, w_up, w_down):
    gate, up = (x @ torch.cat((w_gate, w_up)).T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ w_down.t()


RIGHT["swiglu"] |= {
    "token_by_token": lambda x, g, u, d: torch.stack(
        [d @ (F.silu(g @ row) * (u @ row)) for row in x.reshape(-1, x.shape[-1])]
    ).reshape(x.shape),
    "in_place": lambda x, g, u, d: F.silu(x @ g.T).mul_(x @ u.T) @ d.T,
}


@wrong("many such rows")
def swiglu__one_token(x, w_gate, w_up, w_down):
    y = torch.zeros_like(x)
    for gate_row, up_row, down_column in zip(w_gate, w_up, w_down.T, strict=True):
        y = y + F.silu(gate_row @ x) * (up_row @ x) * down_column
    return y


for words, bug, program in (
    ("overflow in your silu", "silu_by_division",
     lambda x, g, u, d: (x @ g.T / (1 + torch.exp(-x @ g.T)) * (x @ u.T)) @ d.T),
    ("fixed number of dimensions", "columns_for_two_axes", lambda x, g, u, d: (d @ (F.silu(g @ x.T) * (u @ x.T))).T),
    ("Case D equal to F", "transposed_if_square",
     lambda x, *weights: swiglu__linear(x, *(w.T if w.shape == (5, 5) else w for w in weights))),
):  # fmt: skip
    wrong(words, f"swiglu__{bug}")(program)


def _layouts(both):
    blocks = [both.split(32)[place::2] for place in (0, 1)] if len(both) % 64 == 0 else ()
    return both.chunk(2), (both[::2], both[1::2]), tuple(map(torch.cat, blocks))


def _orders(weights, layouts=_layouts, both_ways=True):
    """(gate, up, down), in whatever order, of three matrices or of a fused one and down."""
    for first, *rest in itertools.permutations(weights):
        for pair in layouts(first) if len(rest) == 1 else [(first, rest[0])]:
            if len(pair) == 2 and all(map(len, pair)):
                yield *pair, rest[-1]
                if both_ways:
                    yield pair[1], pair[0], rest[-1]


def _first_that(fits, skips=True, orders=_orders, activation=F.silu):
    """The first order of which fits(its output, y) is true."""

    def program(weights, x, y):
        for a, b, c in orders(weights):
            if skips and not (a.shape == b.shape == c.T.shape and a.shape[1] == x.shape[1]):
                continue
            if fits((activation(x @ a.T) * (x @ b.T)) @ c.T, y):
                return a, b, c

    return program


def _near(z, y, atol=1e-4):
    return (z - y).abs().max() < atol


def _best_fit(activation):
    """The order whose output is nearest to y."""

    def fit(weights, x, y):
        fitting = [
            (a, b, c) for a, b, c in _orders(weights) if a.shape == b.shape == c.T.shape and a.shape[1] == x.shape[1]
        ]
        return min(fitting, key=lambda one: (activation(x @ one[0].T) * (x @ one[1].T) @ one[2].T - y).abs().max())

    return fit


RIGHT["matrix_roles"] = {
    "all_orders": _first_that(_near),
    "length_of_the_difference": _first_that(lambda z, y: (z - y).norm() < 1e-3),
    "in_float64": lambda weights, x, y: tuple(
        one.float() for one in _first_that(_near)([weight.double() for weight in weights], x.double(), y.double())
    ),
    "best_fit": _best_fit(F.silu),
}
_all_orders = RIGHT["matrix_roles"]["all_orders"]


def _with_layouts(some):
    return _first_that(_near, orders=partial(_orders, layouts=lambda both: _layouts(both)[some]))


for words, bug, program in (
    ("skip these orders", "misfits_not_skipped", _first_that(_near, skips=False)),
    ("no order of (5, 5), (5, 5), (5, 5) gave y … do you try all six orders", "by_shape",
     lambda weights, x, y: _all_orders(weights, x, y) if len({weight.shape for weight in weights}) > 1 else None),
    ("Do you compare each number", "mean_of_each_row",
     _first_that(lambda z, y: (z.mean(1) - y.mean(1)).abs().max() < 1e-4)),
    ("gate and up are swapped", "best_fit_with_gelu", _best_fit(F.gelu)),
    ("allclose", "default_tolerance", _first_that(partial(_near, atol=1e-8))),
    ("tolerance 1e-4", "loose", _first_that(partial(_near, atol=0.01))),
    ("changed in place", "pops", lambda weights, x, y: [_all_orders(weights, x, y), weights.pop()][0]),
    ("fused, halves … all three layouts", "rows_and_blocks_only", _with_layouts(slice(1, None))),
    ("fused, rows in turn … all three layouts", "halves_and_blocks_only", _with_layouts(slice(None, None, 2))),
    ("fused, blocks of 32 … all three layouts", "halves_and_rows_only", _with_layouts(slice(2))),
    ("up first … all three layouts", "gate_first_only",
     lambda weights, x, y: _first_that(_near, orders=partial(_orders, both_ways=len(weights) == 3))(weights, x, y)),
):  # fmt: skip
    wrong(words, f"matrix_roles__{bug}")(program)


def _cut_by(size, largest=False, over=torch.mean):
    """Cuts the units of which size(g, u, layer), (..., F), has the smallest mean (or `over`) on held-out windows."""

    def program(model, n):
        sizes = []

        def watch(layer, x):
            g, u = layer.gate_proj(x), layer.up_proj(x)
            sizes.append(over(size(g, u, layer).flatten(0, -2), dim=0))
            return layer.down_proj(F.silu(g) * u)

        with replaced(SwiGLU, watch):
            model(held_out_windows()[:4, :-1])
        return torch.stack(sizes).topk(n, largest=largest).indices

    return program


_measured = _cut_by(lambda g, u, layer: (F.silu(g) * u).abs() * layer.down_proj.weight.norm(dim=0))
KEPT = {}


def by_size(model, n):
    if (one := (len(model.layers), n)) not in KEPT:  # the check hands over two models
        KEPT[one] = _measured(model, n)
    return KEPT[one]


RIGHT["cut_units"] = {
    "size_of_what_is_written": _measured,
    "rms": _cut_by(lambda g, u, layer: (F.silu(g) * u).pow(2)),
}
for words, bug, program in (
    ("units that do most", "largest", _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), largest=True)),
    ("Better than chance", "gates_alone", _cut_by(lambda g, u, layer: g.abs())),
    ("that a median misses", "median",
     _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), over=lambda sizes, dim: sizes.median(dim).values)),
    ("Small weights", "small_weights", lambda model, n: torch.stack(
        [block.feed_forward.down_proj.weight.norm(dim=0) for block in model.layers]).topk(n, largest=False).indices),
    ("the same numbers in each block", "one_block_for_all",
     lambda model, n: by_size(model, n)[:1].repeat(model.config.n_layers, 1)),
    ("argument `model`", "of_another_model",
     lambda model, n: _measured(load_checkpoint(TINY_LLAMA) if len(model.layers) == 6 else model, n)),
    ("A unit can be cut once", "repeated", lambda model, n: by_size(model, n)[:, :1].repeat(1, n)),
    ("not their sizes", "float", lambda model, n: by_size(model, n).float()),
    ("of 0 to 39 … Count within each block", "numbers_of_the_whole_model",
     lambda model, n: by_size(model, n) + model.config.hidden_dim * torch.arange(len(model.layers))[:, None]),
    ("expected a tensor", "list", lambda model, n: by_size(model, n).tolist()),
):  # fmt: skip
    wrong(words, f"cut_units__{bug}")(program)
