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
    "unit_by_unit": lambda x, g, u, d: sum(
        (F.silu((x * g[i]).sum(-1)) * (x * u[i]).sum(-1))[..., None] * d[:, i] for i in range(len(g))
    ),
    "einsum": lambda x, g, u, d: torch.einsum(
        "...f,df->...d", F.silu(torch.einsum("...d,fd->...f", x, g)) * torch.einsum("...d,fd->...f", x, u), d
    ),
    "glu_of_torch": _of_both(lambda g, u: g * F.glu(torch.cat((u, g), -1), -1)),
    "in_place": _of_both(lambda g, u: F.silu(g).mul_(u)),
}
for slip, combine in (  # each gives another first number in the case of one token, D 2, F 2
    ("rows_in_turn", lambda g, u: (lambda both: F.silu(both[..., ::2]) * both[..., 1::2])(torch.cat((g, u), -1))),
    ("gelu_by_tanh", lambda g, u: F.gelu(g, approximate="tanh") * u),
    ("up_plus_one", lambda g, u: F.silu(g) * (1 + u)),
    ("silu_in_float16", lambda g, u: F.silu(g.half()).to(g.dtype) * u),
):
    wrong("Case one token, D 2, F 2: the result is off", f"swiglu__{slip}")(_of_both(combine))


@wrong("many such rows")
def swiglu__one_token(x, w_gate, w_up, w_down):
    y = torch.zeros_like(x)
    for gate_row, up_row, down_column in zip(w_gate, w_up, w_down.T, strict=True):
        y = y + F.silu(gate_row @ x) * (up_row @ x) * down_column
    return y


for words, slip, program in (
    ("overflow in your silu", "silu_by_division",
     lambda x, g, u, d: (x @ g.T / (1 + torch.exp(-x @ g.T)) * (x @ u.T)) @ d.T),
    (".reshape works where .view does not", "view",
     lambda x, *w: swiglu__linear(x.view(-1, x.shape[-1]), *w).view_as(x)),
    ("fixed number of dimensions", "columns_for_two_axes", lambda x, g, u, d: (d @ (F.silu(g @ x.T) * (u @ x.T))).T),
    ("Case D equal to F", "transposed_if_square",
     lambda x, *weights: swiglu__linear(x, *(w.T if w.shape == (5, 5) else w for w in weights))),
    ("nn.Parameter(...)", "new_parameters", lambda x, *w: swiglu__linear(x, *map(torch.nn.Parameter, w))),
):  # fmt: skip
    wrong(words, f"swiglu__{slip}")(program)


@right
def matrix_roles__all_orders(weights, x, y, atol=1e-4):
    for gate, up, down in itertools.permutations(weights):
        a, b, c = weights[gate], weights[up], weights[down]
        if a.shape == b.shape == c.T.shape and torch.allclose((F.silu(x @ a.T) * (x @ b.T)) @ c.T, y, atol=atol):
            return {"gate": gate, "up": up, "down": down}


@wrong("it returns None. Here gate and up are (5, 5), down is (5, 5) … any of the three could be down")
def matrix_roles__first_with_d_rows(weights, x, y):
    down = next(name for name, weight in weights.items() if len(weight) == x.shape[1])
    for gate, up in itertools.permutations(name for name in weights if name != down):
        if torch.allclose(swiglu__linear(x, weights[gate], weights[up], weights[down]), y, atol=1e-4):
            return {"gate": gate, "up": up, "down": down}


@wrong("skip these orders")
def matrix_roles__misfits_not_skipped(weights, x, y):
    for order in itertools.permutations(weights):
        if torch.allclose(swiglu__linear(x, *(weights[name] for name in order)), y, atol=1e-4):
            return dict(zip(("gate", "up", "down"), order, strict=True))


def _first_that(fits):
    """The first order of which fits(its output, y) is true."""

    def program(weights, x, y):
        for order in itertools.permutations(weights):
            a, b, c = (weights[name] for name in order)
            if a.shape == b.shape == c.T.shape and a.shape[1] == x.shape[1] and fits(swiglu__linear(x, a, b, c), y):
                return dict(zip(("gate", "up", "down"), order, strict=True))

    return program


for slip, fits in (
    ("mean_of_each_row", lambda z, y: (z.mean(1) - y.mean(1)).abs().max() < 1e-4),
    ("median", lambda z, y: (z - y).abs().median() < 1e-4),
    ("sorted", lambda z, y: torch.allclose(z.sort(0).values, y.sort(0).values, atol=1e-4)),
    ("last_token", lambda z, y: torch.allclose(z[-1], y[-1], atol=1e-4)),
    ("mean_square", lambda z, y: F.mse_loss(z, y) < 1e-4),
):
    wrong("Do you compare each number", f"matrix_roles__{slip}")(_first_that(fits))
RIGHT["matrix_roles"] |= {
    "largest_difference": _first_that(lambda z, y: (z - y).abs().max() < 1e-4),
    "length_of_the_difference": _first_that(lambda z, y: (z - y).norm() < 1e-3),
    "in_float64": lambda weights, x, y: _first_that(lambda z, y: (z - y).abs().amax() < 1e-4)(
        {name: weight.double() for name, weight in weights.items()}, x.double(), y.double()
    ),
}


@right
def matrix_roles__into_the_module(weights, x, y):
    keys = "gate_proj.weight", "up_proj.weight", "down_proj.weight"
    for order in itertools.permutations(weights):
        layer = SwiGLU(x.shape[1], len(weights[order[0]]))
        try:
            layer.load_state_dict({key: weights[name] for key, name in zip(keys, order, strict=True)})
        except RuntimeError:
            continue
        if torch.allclose(layer(x), y, atol=1e-4):
            return dict(zip(("gate", "up", "down"), order, strict=True))


def _best_fit(activation):
    """The order whose output is nearest to y."""

    def fit(weights, x, y):
        def gap(order):
            a, b, c = (weights[name] for name in order)
            return abs(activation(x @ a.T) * (x @ b.T) @ c.T - y).max() if a.shape == b.shape == c.T.shape else math.inf

        orders = [o for o in itertools.permutations(weights) if weights[o[0]].shape[1] == x.shape[1]]
        return dict(zip(("gate", "up", "down"), min(orders, key=gap), strict=True))

    return fit


RIGHT["matrix_roles"]["best_fit"] = _best_fit(F.silu)
for words, slip, program in (
    ("Is yours silu", "best_fit_with_gelu", _best_fit(F.gelu)),
    ("names from weights", "names_as_in_the_example",
     lambda weights, *vectors: matrix_roles__all_orders({name: weights[name] for name in "abc"}, *vectors)),
    ("allclose", "default_tolerance", lambda weights, x, y: matrix_roles__all_orders(weights, x, y, atol=1e-8)),
    ("gate and up are swapped", "first_token", lambda weights, x, y: matrix_roles__all_orders(weights, x[:1], y[:1])),
    ("tolerance 1e-4", "loose", lambda weights, x, y: matrix_roles__all_orders(weights, x, y, atol=0.01)),
    ("changed in place", "pops", lambda weights, x, y: [matrix_roles__all_orders(weights, x, y), weights.popitem()][0]),
):  # fmt: skip
    wrong(words, f"matrix_roles__{slip}")(program)


def _as_listed(roles, weights):
    return dict(zip(roles, weights, strict=True))


for words, slip, change in (  # change(the right answer, weights)
    ("compute the layer both ways", "swapped", lambda roles, weights: roles | dict(gate=roles["up"], up=roles["gate"])),
    ("c is not down. Here gate and up are (3, 2), down is (2, 3) … do you compare with it", "as_listed", _as_listed),
    ("c is not down. Here gate and up are (5, 5), down is (5, 5) … all six orders", "by_shape_alone",
     lambda roles, weights: _as_listed(roles, weights) if len({w.shape for w in weights.values()}) == 1 else roles),
    ("names the values", "inverted", lambda roles, weights: {name: role for role, name in roles.items()}),
    ("allclose", "no_order_found", lambda roles, weights: None),
    ("names, not the tensors", "tensors", lambda roles, weights: {role: weights[name] for role, name in roles.items()}),
):  # fmt: skip
    wrong(words, f"matrix_roles__{slip}")(
        lambda weights, x, y, change=change: change(matrix_roles__all_orders(weights, x, y), weights)
    )


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


def _column(layer):
    return layer.down_proj.weight.norm(dim=0)


def _smallest_weights(size):
    """Cuts the units of which size(length of the gate's row, of up's row, of down's column) is smallest."""

    def program(model, n):
        layers = [block.feed_forward for block in model.layers]
        rows = [(layer.gate_proj.weight.norm(dim=1), layer.up_proj.weight.norm(dim=1)) for layer in layers]
        sizes = [size(*two, _column(layer)) for two, layer in zip(rows, layers, strict=True)]
        return torch.stack(sizes).topk(n, largest=False).indices

    return program


by_size = _cut_by(lambda g, u, layer: (F.silu(g) * u).abs() * _column(layer))
RIGHT["cut_units"] = {
    "size_of_what_is_written": by_size,
    "rms": _cut_by(lambda g, u, layer: (F.silu(g) * u).pow(2)),
    "largest_value": _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), over=torch.amax),
}
for words, slip, program in (
    ("Much worse than chance", "largest",
     _cut_by(lambda g, u, layer: (F.silu(g) * u).abs() * _column(layer), largest=True)),
    ("a large negative value", "with_sign", _cut_by(lambda g, u, layer: F.silu(g) * u)),
    ("Better than chance", "gates_alone", _cut_by(lambda g, u, layer: g.abs())),
    ("A median", "median",
     _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), over=lambda sizes, dim: sizes.median(dim).values)),
    ("chance", "random", lambda model, n: torch.stack(
        [torch.randperm(model.config.hidden_dim, generator=torch.Generator().manual_seed(layer))[:n]
         for layer in range(len(model.layers))])),
    ("Small weights", "small_weights", _smallest_weights(lambda gate, up, down: gate * up * down)),
    ("Small weights", "small_columns", _smallest_weights(lambda gate, up, down: down)),
    ("the same numbers in each block", "one_block_for_all",
     lambda model, n: by_size(model, n)[:1].repeat(model.config.n_layers, 1)),
    ("argument `model`", "of_another_model",
     lambda model, n: by_size(load_checkpoint(TINY_LLAMA) if len(model.layers) == 6 else model, n)),
    ("stands twice", "repeated", lambda model, n: by_size(model, n)[:, :1].repeat(1, n)),
    ("the .indices of topk", "float", lambda model, n: by_size(model, n).float()),
    ("the shape is (3, 40), expected (3, 5) … One row per block", "mask",
     lambda model, n: torch.zeros(len(model.layers), model.config.hidden_dim).scatter(1, by_size(model, n), 1).bool()),
    ("expected 0 to 39 … Count within each block", "numbers_of_the_whole_model",
     lambda model, n: by_size(model, n) + model.config.hidden_dim * torch.arange(len(model.layers))[:, None]),
    ("torch.stack", "list", lambda model, n: by_size(model, n).tolist()),
):  # fmt: skip
    wrong(words, f"cut_units__{slip}")(program)
