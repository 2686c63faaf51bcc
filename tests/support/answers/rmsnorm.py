"""Right and wrong answers to the exercises of notebook 01, RMSNorm."""

import torch
from torch.nn import functional as F

from checks.base import mutate
from tests.support.answers.register import RIGHT, WRONG, right


@right
def rms_norm__rsqrt(x, weight, eps):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


RIGHT["rms_norm"] |= {
    "in_float64_and_in_place": lambda x, w, eps: (wide := x.double()).div(
        wide.square().mean(-1, keepdim=True).add_(eps).sqrt_()).mul_(w).to(x.dtype),
    "row_by_row": lambda x, w, eps: torch.stack(
        [row / (row.dot(row) / len(row) + eps) ** 0.5 for row in x.float().reshape(-1, x.shape[-1])]
    ).reshape(x.shape).to(x.dtype) * w,
}  # fmt: skip
WRONG["rms_norm"] |= {  # most are wrong in few cases
    "layer_norm_of_x_and_minus_x": (
        "calls torch's native_layer_norm, which this exercise rules out", lambda x, w, eps:
        torch.native_layer_norm(torch.cat([x, -x], -1), (2 * len(w),), None, None, eps)[0][..., : len(w)] * w),
    "four_axes_at_most": ("Count from the end", lambda x, w, eps: rms_norm__rsqrt(
        x if x.ndim < 5 else x.flatten(0, 1), w, eps)),
    "factor_in_half": ("16 of 16 are inf … is all float32 but the result", mutate(
        rms_norm__rsqrt, "(wide * torch", "(x * torch", "eps)).to(x.dtype)", "eps).to(x.dtype))")),
    "root_rounded": ("Is the root rounded to the dtype of x", lambda x, w, eps:
        w * (x.float() / (x.float().pow(2).mean(-1, keepdim=True) + eps).sqrt().to(x.dtype)).to(x.dtype)),
    "bfloat16_never_widened": ("bfloat16 keeps 8 bits", lambda x, w, eps: rms_norm__rsqrt(x, w, eps)
        if x.dtype != torch.bfloat16 else w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))),
    "float16_through_bfloat16": ("float16 holds", mutate(
        rms_norm__rsqrt, "x.float()", "(x.bfloat16() if x.dtype == torch.float16 else x).float()")),
    "bfloat16_through_float16": ("up to 3e38", mutate(
        rms_norm__rsqrt, "x.float()", "(x.half() if x.dtype == torch.bfloat16 else x).float()")),
    "float64_stays_float32": (".to(torch.float64) converts", mutate(
        rms_norm__rsqrt, ".to(x.dtype)", ".to(x.dtype if x.element_size() < 4 else torch.float32)",
        "return weight", "return weight.to(x.dtype if x.element_size() < 4 else torch.float32)")),
    "no_gradient_in_half": ("no gradient reaches x and weight in torch.float16", lambda x, w, eps: (
        rms_norm__rsqrt(x, w, eps) if x.element_size() > 2 else rms_norm__rsqrt(x, w, eps).detach())),
    "16_coordinates": ("not contiguous", mutate(rms_norm__rsqrt, "wide.pow(2)", "wide[..., :16].pow(2)")),
    "eps_or_default": ("Is eps 0 taken", lambda x, w, eps: rms_norm__rsqrt(x, w, eps or 1e-5)),
    "gain_above_0": ("three rows", lambda x, w, eps: rms_norm__rsqrt(x, w.clamp(min=0), eps)),
    "divides_by_the_gain": ("gradient for weight", mutate(
        rms_norm__rsqrt, "weight * (wide *", "((wide *", "+ eps)).to", "+ eps)) / (1 / weight)).to")),
    "root_kept_by_shape": ("row of zeros", lambda x, w, eps, kept={}: x.double().mul(kept.setdefault(
        (x.shape, x.dtype), (x.double().square().mean(-1, keepdim=True) + eps).rsqrt())).mul(w).to(x.dtype)),
}  # fmt: skip


@right
def norm_probe__three_sizes():
    token = torch.tensor([3.0, 1.0, -0.5, 1.0])
    x = torch.stack([token * size for size in (1e-3, 1.0, 300.0)])
    return torch.stack([x, -x]).half(), torch.linspace(0.5, 1.5, 4).half(), 1e-5


@right
def norm_probe__one_token_and_a_large_eps():
    return torch.tensor([300.0, 1, 1, 1]).half(), torch.tensor([0.5, 1, 1, 1.5]).half(), torch.tensor(10.0)


RIGHT["norm_probe"]["drawn"] = lambda: (
    torch.cat([torch.randn(4, 2, 16) * size + size for size in (1e-3, 1.0, 300.0)], dim=1).half(),
    torch.rand(16).add(0.5).half(), 1e-5)  # fmt: skip
X, ONES = torch.randn(2, 3, 64), torch.ones(64)
GOOD, GAIN, EPS = norm_probe__three_sizes()
for words, bug, probe in (
    ("eps outside the root, computed without float32, gain left out", "random_numbers", (X, ONES, 1e-5)),
    ("expected three: x, weight, eps", "the_norm_itself", rms_norm__rsqrt),
    ("holds whole numbers", "whole_numbers", (X.long(), ONES, 1e-5)),
    ("expected floats of one dtype", "two_dtypes", (X.half(), ONES, 1e-5)),
    ("no plain tensor", "meta", (X.to("meta"), ONES, 1e-5)),
    ("result is ndarray, ndarray, float, … stay in torch", "numpy", (X.numpy(), ONES.numpy(), 1e-5)),
    ("expected floats of one dtype", "float8", (X.to(torch.float8_e5m2), ONES.to(torch.float8_e5m2), 1e-5)),
    ("one gain for each coordinate", "gain_per_token", (X, ONES[:3], 1e-5)),
    ("a number from 0 up", "negative_eps", (X, ONES, -1.0)),
    ("float16 ends at 65504", "overflown", (1e9 * X.half(), ONES.half(), 1e-5)),
    ("computed without float32: It is right in float32", "bfloat16", (GOOD.bfloat16(), GAIN.bfloat16(), EPS)),
    ("mean over dim=1: With two axes", "two_axes", (GOOD[0], GAIN, EPS)),
    ("an rms per half of D: The two halves", "equal_halves", (GOOD[..., [0, 1, 0, 1]], GAIN, EPS)),
    ("mean subtracted: The mean of each", "mean_0", ((GOOD[..., :1] * torch.tensor([1, -1, 0])), GAIN[:3], EPS)),
    ("gain left out: A gain of ones", "gain_of_ones", (GOOD, ONES[:4].half(), EPS)),
    ("gain 1 + weight: It adds 1", "gain_beside_which_1_is_lost", (GOOD, 4096 * GAIN, EPS)),
    ("eps outside the root: eps decides", "eps_0", (GOOD, GAIN, 0.0)),
    ("Is eps 0 beside a token of zeros", "zeros_with_eps_0", (0 * GOOD, GAIN, 0.0)),
    ("Make x and weight other than 0.", "gain_of_zeros", (GOOD, 0 * GAIN, EPS)),
):
    WRONG["norm_probe"][bug] = words, lambda probe=probe: probe
WRONG["norm_probe"]["found_by_luck"] = "Hidden: computed without float32", lambda: (
    (GOOD, GAIN, EPS) if torch.rand(()) < 0.5 else (GOOD.float(), GAIN.float(), EPS))  # fmt: skip


@right
def rms_norm_backward__formula(grad_y, x, weight, eps):
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    normalised, g = x.float() * scale, grad_y.float() * weight.float()
    grad_x = scale * (g - normalised * (g * normalised).mean(-1, keepdim=True))
    grad_weight = (grad_y.float() * normalised).flatten(0, -2).sum(0) if x.ndim > 1 else grad_y.float() * normalised
    return grad_x.to(grad_y.dtype), grad_weight.to(grad_y.dtype)


@right
def rms_norm_backward__row_by_row(grad_y, x, weight, eps):
    D, rows, total = x.shape[-1], [], x.new_zeros(x.shape[-1], dtype=torch.float32)
    for one, arrives in zip(x.float().reshape(-1, D), grad_y.float().reshape(-1, D), strict=True):
        i, u = (one.dot(one) / D + eps) ** -0.5, weight.float() * arrives
        rows.append(u * i - one * i**3 * u.dot(one) / D)
        total += arrives * one * i
    return torch.stack(rows).reshape(x.shape).to(grad_y.dtype), total.to(grad_y.dtype)


def _autograd(grad_y, x, weight, eps):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return torch.autograd.grad(F.rms_norm(x, x.shape[-1:], weight, eps), (x, weight), grad_y)


ROWS = "(grad_y.float() * normalised).flatten(0, -2).sum(0)"
for words, bug, *changes in (
    ("little is left here. Was each product rounded", "rows_rounded",
     ROWS, ROWS.replace(".fl", ".to(grad_y.dtype).fl")),
    ("each step of a sum is rounded", "rows_added_in_half_precision",
     ROWS, "sum((grad_y.float() * normalised).to(grad_y.dtype).flatten(0, -2))"),
    ("What is left of a difference", "u_rounded", "grad_y.float() * weight.float()", "(weight * grad_y).float()"),
    ("all but the last", "batch_and_tokens_only",
     ROWS, ROWS.replace("flatten(0, -2).sum(0)", "sum((0, 1)[: x.ndim - 1])"), "x.ndim > 1", "x.ndim in (2, 3)"),
):  # fmt: skip
    WRONG["rms_norm_backward"][bug] = words, mutate(rms_norm_backward__formula, *changes)
WRONG["rms_norm_backward"] |= {
    "eps_or_default": ("Is eps 0 taken", lambda grad_y, x, weight, eps: (
        rms_norm_backward__formula(grad_y, x, weight, eps or 1e-6))),
    "dtype_of_x": ("has the dtype torch.bfloat16, expected torch.float32", lambda grad_y, x, weight, eps: tuple(
        one.to(x.dtype) for one in rms_norm_backward__formula(grad_y, x, weight, eps))),
    "grad_y_rounded": ("the dtype of grad_y", lambda grad_y, x, weight, eps: tuple(
        one.to(grad_y.dtype) for one in rms_norm_backward__formula(grad_y.to(x.dtype), x, weight, eps))),
    **{f"{name}_rounded": ("is x or weight rounded to it before", lambda grad_y, x, weight, eps, place=place: (
        rms_norm_backward__formula(grad_y, x.to(grad_y.dtype) if place else x,
                                   weight if place else weight.to(grad_y.dtype), eps)))
       for place, name in enumerate(("weight", "x"))},
    **{f"{one}_through_{other}": (words, lambda *given, one=one, other=other: tuple(
        y.to(given[0].dtype) for y in rms_norm_backward__formula(
            *(y.to(other) if getattr(y, "dtype", 0) == one else y for y in given)))) for words, one, other in (
                ("goes to 3e38", torch.bfloat16, torch.float16), ("in float16", torch.float16, torch.bfloat16))},
    "u_rounded_in_float16": ("in float16, u almost along n", mutate(
        rms_norm_backward__formula, "grad_y.float() * weight.float()",
        "(grad_y * weight.to(grad_y.dtype) if x.dtype == torch.float16 else grad_y.float() * weight.float()).float()")),
    "rows_rounded_in_float16": ("grad_weight is off", mutate(
        rms_norm_backward__formula, ROWS, ROWS.replace(
            ".fl", ".to(torch.float16 if grad_y.dtype == torch.float16 else torch.float32).fl"))),
    "four_axes_at_most": ("five axes", mutate(rms_norm_backward__formula, ROWS, ROWS.replace(
        "flatten(0, -2).sum(0)", "sum((0, 1, 2)[: x.ndim - 1])"))),
    "gain_found_by_division": ("are nan", mutate(
        rms_norm_backward__formula, ROWS, f"({ROWS.replace('grad_y.float()', 'g')} / weight)")),
    "added_up_on_the_cpu": ("device=x.device", mutate(rms_norm_backward__row_by_row, "x.new_zeros", "torch.zeros")),
    "kept_by_shape": ("not contiguous", lambda grad_y, x, weight, eps, kept={}: kept.setdefault(
        (x.shape, x.dtype, grad_y.dtype, x.device), rms_norm_backward__formula(grad_y, x, weight, eps))),
    "root_above_1e-3": ("for zeros it alone", mutate(
        rms_norm_backward__formula, "+ eps)", "+ eps).clamp(max=1e3)")),
    "along_x_over_its_length": ("for zeros it alone", mutate(  # 0 / 0 for a token of zeros
        rms_norm_backward__formula, "(g * normalised).mean(-1, keepdim=True)",
        "((g * x / x.float().norm(dim=-1, keepdim=True)).sum(-1, keepdim=True)"
        " * normalised.norm(dim=-1, keepdim=True) / x.shape[-1])")),
}  # fmt: skip
WRONG["rms_norm_backward"]["autograd"] = "rules out", _autograd
