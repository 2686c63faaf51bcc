"""Right and wrong answers to the exercises of notebook 03, SwiGLU."""

import itertools
import math

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


def _of_both(combine):  # combine(gates, ups) before w_down
    return lambda x, w_gate, w_up, w_down: F.linear(combine(F.linear(x, w_gate), F.linear(x, w_up)), w_down)


RIGHT["swiglu"] |= {
    "token_by_token": lambda x, g, u, d: torch.stack(
        [d @ (F.silu(g @ row) * (u @ row)) for row in x.reshape(-1, x.shape[-1])]
    ).reshape(x.shape),
    "einsum": lambda x, g, u, d: torch.einsum(
        "...f,df->...d", F.silu(torch.einsum("...d,fd->...f", x, g)) * torch.einsum("...d,fd->...f", x, u), d
    ),
    "in_place": _of_both(lambda g, u: F.silu(g).mul_(u)),
}
wrong("Case one token, D 2, F 2: the result is off", "swiglu__rows_in_turn")(
    _of_both(lambda g, u: (lambda both: F.silu(both[..., ::2]) * both[..., 1::2])(torch.cat((g, u), -1)))
)


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


@right
def matrix_roles__all_orders(weights, x, y, atol=1e-4):
    for gate, up, down in itertools.permutations(weights):
        a, b, c = weights[gate], weights[up], weights[down]
        if a.shape == b.shape == c.T.shape and torch.allclose((F.silu(x @ a.T) * (x @ b.T)) @ c.T, y, atol=atol):
            return {"gate": gate, "up": up, "down": down}


def _first_that(fits, skips=True):
    """The first order of which fits(its output, y) is true."""

    def program(weights, x, y):
        for order in itertools.permutations(weights):
            a, b, c = (weights[name] for name in order)
            if skips and not (a.shape == b.shape == c.T.shape and a.shape[1] == x.shape[1]):
                continue
            if fits((F.silu(x @ a.T) * (x @ b.T)) @ c.T, y):
                return dict(zip(("gate", "up", "down"), order, strict=True))

    return program


def _near(z, y):
    return (z - y).abs().max() < 1e-4


wrong("skip these orders", "matrix_roles__misfits_not_skipped")(_first_that(_near, skips=False))
wrong("Here gate and up are (5, 5), down is (5, 5) … do you try all six orders", "matrix_roles__by_shape")(
    lambda weights, x, y: _first_that(_near)(weights, x, y)
    if len({weight.shape for weight in weights.values()}) > 1 else None
)  # fmt: skip
wrong("Do you compare each number", "matrix_roles__mean_of_each_row")(
    _first_that(lambda z, y: (z.mean(1) - y.mean(1)).abs().max() < 1e-4)
)
RIGHT["matrix_roles"] |= {
    "length_of_the_difference": _first_that(lambda z, y: (z - y).norm() < 1e-3),
    "in_float64": lambda weights, x, y: _first_that(_near)(
        {name: weight.double() for name, weight in weights.items()}, x.double(), y.double()
    ),
}


def _best_fit(activation):
    """The order whose output is nearest to y."""

    def fit(weights, x, y):
        def gap(order):
            a, b, c = (weights[name] for name in order)
            fits = a.shape == b.shape == c.T.shape and a.shape[1] == x.shape[1]
            return abs(activation(x @ a.T) * (x @ b.T) @ c.T - y).max() if fits else math.inf

        return dict(zip(("gate", "up", "down"), min(itertools.permutations(weights), key=gap), strict=True))

    return fit


RIGHT["matrix_roles"]["best_fit"] = _best_fit(F.silu)
for words, bug, program in (
    ("gate and up are swapped", "best_fit_with_gelu", _best_fit(F.gelu)),
    ("names from weights", "names_as_in_the_example",
     lambda weights, *vectors: matrix_roles__all_orders({name: weights[name] for name in "abc"}, *vectors)),
    ("allclose", "default_tolerance", lambda weights, x, y: matrix_roles__all_orders(weights, x, y, atol=1e-8)),
    ("gate and up are swapped", "first_token", lambda weights, x, y: matrix_roles__all_orders(weights, x[:1], y[:1])),
    ("tolerance 1e-4", "loose", lambda weights, x, y: matrix_roles__all_orders(weights, x, y, atol=0.01)),
    ("changed in place", "pops", lambda weights, x, y: [matrix_roles__all_orders(weights, x, y), weights.popitem()][0]),
):  # fmt: skip
    wrong(words, f"matrix_roles__{bug}")(program)


@wrong("c is not down. Here gate and up are (3, 2), down is (2, 3) … do you compare with the width")
def matrix_roles__as_listed(weights, x, y):
    return dict(zip(("gate", "up", "down"), weights, strict=True))


@wrong("not the tensors")
def matrix_roles__inverted(weights, x, y):
    return {name: role for role, name in matrix_roles__all_orders(weights, x, y).items()}


def _cut_by(size, largest=False, over=torch.mean):
    """Cuts the units of which size(g, u, layer), (..., F), has the smallest mean (or `over`) on held-out windows."""

    def program(model, n):
        sizes = []

        def watch(layer, x):
            g, u = layer.gate_proj(x), layer.up_proj(x)
            sizes.append(over(size(g, u, layer).flatten(0, -2), dim=0))
            return layer.down_proj(F.silu(g) * u)

        with replaced(SwiGLU, watch):
            model(held_out_windows()[:, :-1])
        return torch.stack(sizes).topk(n, largest=largest).indices

    return program


by_size = _cut_by(lambda g, u, layer: (F.silu(g) * u).abs() * layer.down_proj.weight.norm(dim=0))
RIGHT["cut_units"] = {
    "size_of_what_is_written": by_size,
    "rms": _cut_by(lambda g, u, layer: (F.silu(g) * u).pow(2)),
}
for words, bug, program in (
    ("units that do most", "largest", _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), largest=True)),
    ("Better than chance", "gates_alone", _cut_by(lambda g, u, layer: g.abs())),
    ("that a median misses", "median",
     _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), over=lambda sizes, dim: sizes.median(dim).values)),
    ("chance", "random", lambda model, n: torch.stack(
        [torch.randperm(model.config.hidden_dim, generator=torch.Generator().manual_seed(layer))[:n]
         for layer in range(len(model.layers))])),
    ("Small weights", "small_weights", lambda model, n: torch.stack(
        [block.feed_forward.down_proj.weight.norm(dim=0) for block in model.layers]).topk(n, largest=False).indices),
    ("the same numbers in each block", "one_block_for_all",
     lambda model, n: by_size(model, n)[:1].repeat(model.config.n_layers, 1)),
    ("argument `model`", "of_another_model",
     lambda model, n: by_size(load_checkpoint(TINY_LLAMA) if len(model.layers) == 6 else model, n)),
    ("A unit can be cut once", "repeated", lambda model, n: by_size(model, n)[:, :1].repeat(1, n)),
    ("not their sizes", "float", lambda model, n: by_size(model, n).float()),
    ("the shape (3, 40), expected (3, 5)", "mask",
     lambda model, n: torch.zeros(len(model.layers), model.config.hidden_dim).scatter(1, by_size(model, n), 1).bool()),
    ("of 0 to 39 … Count within each block", "numbers_of_the_whole_model",
     lambda model, n: by_size(model, n) + model.config.hidden_dim * torch.arange(len(model.layers))[:, None]),
    ("expected a tensor", "list", lambda model, n: by_size(model, n).tolist()),
):  # fmt: skip
    wrong(words, f"cut_units__{bug}")(program)
