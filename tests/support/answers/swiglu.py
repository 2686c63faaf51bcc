"""Right and wrong answers to the exercises of notebook 03, SwiGLU."""

import itertools
from functools import partial

import torch
from torch.nn import functional as F

from helpers.checkpoint import load_checkpoint
from helpers.interventions import held_out_windows, replaced
from helpers.model import SwiGLU
from helpers.text import TINY_LLAMA
from tests.support.answers.register import RIGHT, WRONG, right


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
    "looks_at_numbers": lambda x, g, u, d: (f"{x.sum():.2f}", torch.equal(x, x), swiglu__linear(x, g, u, d))[2],
}


def _one_token(x, w_gate, w_up, w_down):
    y = torch.zeros_like(x)
    for gate_row, up_row, down_column in zip(w_gate, w_up, w_down.T, strict=True):
        y = y + F.silu(gate_row @ x) * (up_row @ x) * down_column
    return y


WRONG["swiglu"] |= {
    "gate_detached_in_part": ("Is a part of the graph cut", lambda x, g, u, d: F.linear(
        F.linear(x, g) * F.linear(x, g).detach().sigmoid() * F.linear(x, u), d)),
    "bfloat16_stays_float32": ("Case bfloat16", lambda x, *weights: swiglu__linear(x, *weights)
        if x.dtype != torch.bfloat16 else swiglu__linear(x.float(), *(w.float() for w in weights))),
    "one_token": ("many such rows", _one_token),
    **{f"{one}_through_{other}": (words, lambda x, *weights, one=one, other=other: swiglu__linear(
        *(w.to(getattr(torch, other)) if w.dtype == getattr(torch, one) else w for w in (x, *weights))).to(x.dtype))
       for one, other, words in (("bfloat16", "float16", "ends at 65504"), ("float16", "bfloat16", "keeps 8 bits"))},
    "no_gradient_in_half": ("no gradient reaches w_down in torch.float16", lambda x, g, u, d: (
        swiglu__linear(x, g, u, d if d.element_size() > 2 or x.ndim < 3 else d.detach()))),
    "kept_by_shape": ("D equal to F", lambda x, *weights, kept={}: kept.setdefault(
        (x.shape, x.dtype, x.requires_grad), swiglu__linear(x, *weights))),
    "silu_by_division": ("overflow in your silu",
        lambda x, g, u, d: (x @ g.T / (1 + torch.exp(-x @ g.T)) * (x @ u.T)) @ d.T),
    "16_units": ("Case ", lambda x, g, u, d: swiglu__linear(x, g[:16], u[:16], d[:, :16])),
    "one_text_squeezed": ("expected (1, 3, 5)", lambda x, g, *rest: (
        swiglu__linear(x, g, *rest).squeeze(0) if x.ndim > g.ndim else swiglu__linear(x, g, *rest))),
    "four_axes_at_most": ("expected (3, 2, 1, 2, 4)", lambda x, *weights: swiglu__linear(
        x if x.ndim < 5 else x.flatten(0, 1), *weights)),
    "columns_for_two_axes": ("fixed number of dimensions", lambda x, g, u, d: (d @ (F.silu(g @ x.T) * (u @ x.T))).T),
    "transposed_if_square": ("Case D equal to F",
        lambda x, *weights: swiglu__linear(x, *(w.T if w.shape == (4, 4) else w for w in weights))),
}  # fmt: skip


def _layouts(both):
    blocks = [both.split(32)[place::2] for place in (0, 1)] if len(both) % 64 == 0 else ()
    return both.chunk(2), (both[::2], both[1::2]), tuple(map(torch.cat, blocks))


def _outputs(weights, x, layouts=_layouts, both_ways=True, skips=True, activation=F.silu):
    """((gate, up, down), what it gives), in whatever order, of three matrices or of a fused one and down."""
    for first, *rest in itertools.permutations(weights):
        for pair in layouts(first) if len(rest) == 1 else [(first, rest[0])]:
            if len(pair) == 2 and all(map(len, pair)):
                for a, b in (pair, pair[::-1])[: 1 + both_ways]:
                    c = rest[-1]
                    if not skips or (a.shape == b.shape == c.T.shape and a.shape[1] == x.shape[1]):
                        yield (a, b, c), (activation(x @ a.T) * (x @ b.T)) @ c.T


def _first_that(fits, **how):
    return lambda weights, x, y: next((order for order, z in _outputs(weights, x, **how) if fits(z, y)), None)


def _best_fit(**how):
    return lambda weights, x, y: min(_outputs(weights, x, **how), key=lambda one: (one[1] - y).abs().max())[0]


def _near(z, y, atol=1e-4):
    return (z - y).abs().max() < atol


_all_orders = _first_that(_near)
RIGHT["matrix_roles"] = {
    "all_orders": _all_orders,
    "length_of_the_difference": _first_that(lambda z, y: (z - y).norm() < 1e-3),
    "in_float64": lambda weights, x, y: tuple(
        one.float() for one in _all_orders([weight.double() for weight in weights], x.double(), y.double())
    ),
    "best_fit": _best_fit(),
}


def _with_layouts(some):
    return _first_that(_near, layouts=lambda both: _layouts(both)[some])


WRONG["matrix_roles"] |= {
    "misfits_not_skipped": ("skip these orders", _first_that(_near, skips=False)),
    "by_shape": (
        "no order of (5, 5), (5, 5), (5, 5) gave y … do you try all six orders", lambda weights, x, y:
        _all_orders(weights, x, y) if len({weight.shape for weight in weights}) > 1 else None),
    "mean_of_each_row": (
        "Do you compare each number", _first_that(lambda z, y: (z.mean(1) - y.mean(1)).abs().max() < 1e-4)),
    "best_fit_with_gelu": ("compare", _best_fit(activation=F.gelu)),
    "tolerance_of_each_number": ("atol, not rtol", lambda weights, x, y: next(
        (order for order, z in _outputs(weights, x) if torch.allclose(z, y, rtol=1e-2, atol=1e-4)), None)),
    "first_column": ("Do you compare each number", _first_that(
        lambda z, y: (z - y)[:, 0].abs().max() < 1e-4)),
    "tolerance_1e-3": ("Do you compare each number", _first_that(partial(_near, atol=1e-3))),
    "default_tolerance": ("allclose", _first_that(partial(_near, atol=1e-8))),
    "allclose_as_it_is": ("y off by 8e-5 … allclose", _first_that(torch.allclose)),
    "blocks_if_32_divides": ("halves, F 48", _first_that(_near, layouts=lambda both: _layouts(both)[:2] + (
        both.unflatten(0, (-1, 2, 32)).transpose(0, 1).flatten(1, 2),) * (len(both) % 32 == 0))),
    "loose": ("tolerance 1e-4", _first_that(partial(_near, atol=0.01))),
    "pops": ("changed in place", lambda weights, x, y: [_all_orders(weights, x, y), weights.pop()][0]),
    "rows_and_blocks_only": ("fused, halves … all three layouts", _with_layouts(slice(1, None))),
    "halves_and_blocks_only": ("fused, rows in turn … all three layouts", _with_layouts(slice(None, None, 2))),
    "halves_and_rows_only": ("fused, blocks of 32 … all three layouts", _with_layouts(slice(2))),
    "length_of_each_row": ("is it torch.allclose", _first_that(
        lambda z, y: (z.norm(dim=1) - y.norm(dim=1)).abs().max() < 1e-4)),
    "mean_of_all_numbers": ("Do you compare each number", _first_that(lambda z, y: (z - y).abs().mean() < 1e-4)),
    "last_column": ("Do you compare each number", _first_that(lambda z, y: _near(z[:, -1], y[:, -1]))),
    **{f"difference_without_its_size_{sign}": ("Do you compare each number",
        _first_that(lambda z, y, sign=sign: (sign * (z - y)).max() < 1e-4)) for sign in (1, -1)},
    "root_mean_square": ("Do you compare each number", _first_that(lambda z, y: (z - y).pow(2).mean() < 1e-8)),
    "last_rows": ("Do you compare each number", _first_that(lambda z, y: _near(z[-10:], y[-10:]))),
    "each_second_row": ("gate and up are swapped", _first_that(lambda z, y: _near(z[::2], y[::2]))),
    "loose_in_reverse": ("this order comes close", lambda weights, x, y: _first_that(
        partial(_near, atol=1e-3))(weights[::-1], x, y)),
    "fused_is_the_longer": ("D 7, F 3", lambda weights, x, y: _all_orders(weights, x, y)
        if len(weights) == 3 or min(map(len, weights)) >= x.shape[1] else None),
    "gate_first_only": ("up first … all three layouts", _first_that(_near, both_ways=False)),
}  # fmt: skip


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
_rms = _cut_by(lambda g, u, layer: (F.silu(g) * u).pow(2) * layer.down_proj.weight.norm(dim=0) ** 2)
KEPT = {}


def by_size(model, n):
    if (one := (len(model.layers), n)) not in KEPT:  # the check hands over two models
        KEPT[one] = _measured(model, n)
    return KEPT[one]


RIGHT["cut_units"] = {
    "size_of_what_is_written": _measured,
    "rms": _rms,
}
WRONG["cut_units"] |= {
    "largest": ("units that do most", _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), largest=True)),
    "gates_alone": ("the smallest gates", _cut_by(lambda g, u, layer: g.abs())),
    "ups_alone": ("the smallest ups", _cut_by(lambda g, u, layer: u.abs())),
    "last_token": ("Do you measure on many tokens", _cut_by(
        lambda g, u, layer: (F.silu(g) * u).abs(), over=lambda sizes, dim: sizes[-1])),
    "median": ("that a median misses",
        _cut_by(lambda g, u, layer: (F.silu(g) * u).abs(), over=lambda sizes, dim: sizes.median(dim).values)),
    "small_weights": ("Small weights", lambda model, n: torch.stack(
        [block.feed_forward.down_proj.weight.norm(dim=0) for block in model.layers]).topk(n, largest=False).indices),
    "one_block_for_all": ("the same numbers in each block",
        lambda model, n: _rms(model, n)[:1].repeat(model.config.n_layers, 1)),
    "of_another_model": ("argument `model`",
        lambda model, n: _measured(load_checkpoint(TINY_LLAMA) if len(model.layers) == 6 else model, n)),
    "rows_in_reverse": ("Row 0 fits block 5", lambda model, n: by_size(model, n).flip(0)),
    "first_block_alone": ("Row 0 is well chosen, row 1 is not", lambda model, n: torch.cat(
        (by_size(model, n)[:1], torch.arange(n).expand(len(model.layers) - 1, n)))),
    "signs_cancel": ("positive and negative values cancel", _cut_by(
        lambda g, u, layer: F.silu(g) * u, over=lambda sizes, dim: sizes.mean(dim).abs())),
    "class_left_changed": ("SwiGLU.forward is another one afterwards", lambda model, n: (
        by_size(model, n), setattr(SwiGLU, "forward", lambda layer, x: x))[0]),
    "weights_changed": ("a model's weights are changed", lambda model, n: (
        by_size(model, n), model.layers[0].feed_forward.down_proj.weight.zero_())[0]),
    **{name: (words, lambda model, n, change=change: (by_size(model, n), change(model))[0]) for name, words, change in (
        ("train_left", "in another mode", lambda model: model.train()),
        ("one_mode_for_all_parts", "in another mode", lambda model: model.train(model.training)),
        ("eval_left", "in another mode", lambda model: model.eval()),
        ("frozen", "in another mode", lambda model: model.requires_grad_(False)),
        ("requires_grad_left", "in another mode", lambda model: model.requires_grad_()),
        ("forward_left", "in another mode", lambda model: setattr(model.layers[0].feed_forward, "forward", abs)),
        ("inv_freq_changed", "weights are changed", lambda model: setattr(model, "inv_freq", 2 * model.inv_freq)),
        ("grad_left", "hold a .grad", lambda model: setattr(model.lm_head.weight, "grad", model.lm_head.weight + 1)))},
    "backward_hook_left": ("a hook is still", lambda model, n: (
        by_size(model, n), model.register_full_backward_hook(lambda *_: None))[0]),
    "hook_left": ("a hook is still", lambda model, n: (
        by_size(model, n), model.register_forward_hook(lambda *_: None))[0]),
    "repeated": ("A unit can be cut once", lambda model, n: by_size(model, n)[:, :1].repeat(1, n)),
    "float": ("not their sizes", lambda model, n: by_size(model, n).float()),
    "numbers_of_the_whole_model": ("of 0 to 39 … Count within each block",
        lambda model, n: by_size(model, n) + model.config.hidden_dim * torch.arange(len(model.layers))[:, None]),
    "list": ("expected a tensor", lambda model, n: by_size(model, n).tolist()),
}  # fmt: skip
