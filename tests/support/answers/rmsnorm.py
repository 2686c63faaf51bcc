"""Right and wrong answers to the exercises of notebook 01, RMSNorm."""

import torch
from torch import nn
from torch.nn import functional as F

from helpers.model import RMSNorm
from tests.support.answers.register import RIGHT, right, wrong


@right
def rms_norm__rsqrt(x, weight, eps):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@right
def rms_norm__length_over_root_of_width(x, weight, eps):
    wide, D = x.float(), x.shape[-1]
    length = ((wide * wide).sum(-1, keepdim=True) + D * eps).sqrt()
    return (wide * D**0.5 / length * weight.float()).to(x.dtype)


def _twice(x):
    return torch.cat([x, -x], -1)


for name, slip, program in (
    ("rms_norm", "layer_of_torch", lambda x, weight, eps: nn.RMSNorm(x.shape[-1], eps).to(x.dtype)(x) * weight),
    ("native_layer_norm", "layer_norm_by_another_name", lambda x, weight, eps:
     torch.native_layer_norm(_twice(x), (2 * x.shape[-1],), None, None, eps)[0][..., : x.shape[-1]] * weight),
    ("group_norm", "group_norm_of_x_and_minus_x", lambda x, weight, eps: F.group_norm(
        _twice(x).reshape(-1, 2 * x.shape[-1], 1), 1, eps=eps)[:, : x.shape[-1], 0].reshape(x.shape) * weight),
):  # fmt: skip
    wrong(f"calls torch's {name}, which this exercise rules out", f"rms_norm__{slip}")(program)


def _square(x):
    return x.float().pow(2).mean(-1, keepdim=True)


class _Norm(torch.autograd.Function):  # with a backward pass of its own
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return rms_norm__rsqrt(x, weight, eps)

    @staticmethod
    def backward(ctx, grad_y):
        return *rms_norm_backward__formula(grad_y, *ctx.saved_tensors, ctx.eps), None


for manner, program in (
    ("hypotenuse", lambda x, w, eps: (x.float() / torch.hypot(
        torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True) / x.shape[-1] ** 0.5, torch.tensor(eps**0.5)
    )).to(x.dtype) * w),
    ("variance_and_mean", lambda x, w, eps: (w.float() * x.float() * torch.rsqrt(
        x.float().var(-1, correction=0, keepdim=True) + x.float().mean(-1, keepdim=True) ** 2 + eps)).to(x.dtype)),
    ("row_by_row", lambda x, w, eps: torch.stack(
        [row / (row.dot(row) / len(row) + eps) ** 0.5 for row in x.float().reshape(-1, x.shape[-1])]
    ).reshape(x.shape).to(x.dtype) * w),
    ("in_place_on_a_copy", lambda x, w, eps: x.float().clone().mul_(torch.rsqrt(_square(x) + eps)).to(x.dtype) * w),
    ("own_backward", _Norm.apply),
):  # fmt: skip
    RIGHT["rms_norm"][manner] = program
for slip, below in (
    ("eps_squared", lambda x, eps: (_square(x) + eps**2).sqrt()),
    ("by_width_less_one", lambda x, eps: (_square(x) * x.shape[-1] / (x.shape[-1] - 1) + eps).sqrt()),
    ("mean_size", lambda x, eps: x.float().abs().mean(-1, keepdim=True) + eps),
    ("root_of_the_root", lambda x, eps: (_square(x) + eps) ** 0.25),
    ("eps_twice", lambda x, eps: (_square(x) + eps).sqrt() + eps),
):
    wrong("Case one row, eps 7 … expected 2.5", f"rms_norm__{slip}")(
        lambda x, w, eps, below=below: (x.float() / below(x, eps)).to(x.dtype) * w
    )


for words, slip, program in (  # each is wrong in few cases
    ("16: the result holds nan or inf. Failing cases: 1 of 13", "factor_in_half", lambda x, w, eps: w * (
        x * torch.rsqrt(_square(x) + eps).to(x.dtype))),
    ("float16 holds", "float16_through_bfloat16", lambda x, w, eps: rms_norm__rsqrt(
        x.bfloat16() if x.dtype == torch.float16 else x, w, eps).to(x.dtype)),
    ("expected -2.9", "always_float16", lambda x, w, eps: w * (x / (_square(x) + eps).sqrt()).half()),
    ("is off by up to", "mean_over_the_tokens_too", lambda x, w, eps: x / (
        x.float().square().mean((-2, -1)[2 - x[:2].ndim :], keepdim=True) + eps).sqrt() * w),
):  # fmt: skip
    wrong(words, f"rms_norm__{slip}")(program)


@wrong("graph cut")
def rms_norm__rms_detached(x, weight, eps):
    rms = (x.float().pow(2).mean(-1, keepdim=True) + eps).sqrt().detach()
    return (x.float() / rms).to(x.dtype) * weight


@wrong("Count from the end")
def rms_norm__three_dimensions_only(x, weight, eps):
    B, T, D = x.shape if x.ndim > 2 else (1, *x.shape)
    return rms_norm__rsqrt(x.reshape(B, T, D), weight, eps).reshape(x.shape)


@right
def norm_probe__three_sizes():
    token = torch.tensor([3.0, 1.0, -0.5, 1.0])
    x = torch.stack([token * size for size in (1e-3, 1.0, 300.0)])
    return torch.stack([x, -x]).half(), torch.linspace(0.5, 1.5, 4).half(), 1e-5


@right
def norm_probe__one_token_and_a_large_eps():
    return torch.tensor([300.0, 1, 1, 1]).half(), torch.tensor([0.5, 1, 1, 1.5]).half(), torch.tensor(10.0)


@right
def norm_probe__tried_on_the_right_norm():
    x, weight, eps = norm_probe__three_sizes()
    assert RMSNorm(4, eps).half()(x).isfinite().all()
    return x, weight, eps


X, ONES = torch.randn(2, 3, 64), torch.ones(64)
GOOD, GAIN, EPS = norm_probe__three_sizes()
for words, slip, probe in (
    ("eps outside the root, computed without float32, gain left out", "random_numbers", (X, ONES, 1e-5)),
    ("expected three: x, weight, eps", "the_norm_itself", rms_norm__rsqrt),
    ("holds whole numbers", "whole_numbers", (X.long(), ONES, 1e-5)),
    ("one gain for each coordinate", "gain_per_token", (X, ONES[:3], 1e-5)),
    ("Convert both", "two_dtypes", (X.half(), ONES, 1e-5)),
    ("a number from 0 up", "negative_eps", (X, ONES, -1.0)),
    ("float16 ends at 65504", "overflown", (1e9 * X.half(), ONES.half(), 1e-5)),
    ("computed without float32: In float32 it is no slip", "float32", (GOOD.float(), GAIN.float(), EPS)),
    ("computed without float32: bfloat16 holds", "bfloat16", (GOOD.bfloat16(), GAIN.bfloat16(), EPS)),
    ("mean over dim=1: With two axes", "two_axes", (GOOD[0], GAIN, EPS)),
    ("mean over dim=1: Numbers that are all of one size", "one_size", (torch.full((2, 3, 4), 300.0).half(), GAIN, 9e4)),
    ("an rms per half of D: The two halves", "equal_halves", (GOOD[..., [0, 1, 0, 1]], GAIN, EPS)),
    (
        "mean subtracted: The mean of each",
        "mean_0",
        (torch.tensor([[[1e-3, -1e-3, 0], [300, -300, 0]]]).half(), GAIN[:3], EPS),
    ),
    ("gain left out: A gain of ones", "gain_of_ones", (GOOD, ONES[:4].half(), EPS)),
    ("gain 1 + weight: It adds 1", "gain_beside_which_1_is_lost", (GOOD, 4096 * GAIN, EPS)),
    ("eps outside the root: With an eps of 0", "eps_0", (GOOD, GAIN, 0.0)),
    ("gives 0 / 0", "zeros_with_eps_0", (0 * GOOD, GAIN, 0.0)),
    ("do not fit into float32 either", "too_large_for_float32", (1e30 + GOOD.float(), GAIN.float(), EPS)),
    ("Make x and weight other than 0.", "gain_of_zeros", (GOOD, 0 * GAIN, EPS)),
):
    wrong(words, f"norm_probe__{slip}")(lambda probe=probe: probe)


@right
def rms_norm_backward__formula(grad_y, x, weight, eps):
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    normalised, g = x.float() * scale, grad_y.float() * weight.float()
    grad_x = scale * (g - normalised * (g * normalised).mean(-1, keepdim=True))
    grad_weight = (grad_y.float() * normalised).flatten(0, -2).sum(0) if x.ndim > 1 else grad_y.float() * normalised
    return grad_x.to(x.dtype), grad_weight.to(x.dtype)


@right
def rms_norm_backward__jacobian(grad_y, x, weight, eps):
    wide, D = x.float(), x.shape[-1]
    r = (_square(x) + eps).sqrt()
    n = wide / r
    jacobian = (torch.eye(D) - n[..., None] * n[..., None, :] / D) / r[..., None]
    grad_x = (jacobian @ (weight.float() * grad_y.float())[..., None])[..., 0]
    return grad_x.to(x.dtype), torch.einsum("nd,nd->d", grad_y.float().reshape(-1, D), n.reshape(-1, D)).to(x.dtype)


@right
def rms_norm_backward__row_by_row(grad_y, x, weight, eps):
    D, rows, total = x.shape[-1], [], torch.zeros(x.shape[-1])
    for one, arrives in zip(x.float().reshape(-1, D), grad_y.float().reshape(-1, D), strict=True):
        i, u = (one.dot(one) / D + eps) ** -0.5, weight.float() * arrives
        rows.append(u * i - one * i**3 * u.dot(one) / D)
        total += arrives * one * i
    return torch.stack(rows).reshape(x.shape).to(x.dtype), total.to(x.dtype)


@right
def rms_norm_backward__in_float64(grad_y, x, weight, eps):
    g, wide, gain = grad_y.double(), x.double(), weight.double()
    r = (wide.square().mean(-1, True) + eps).sqrt()
    n = wide / r
    ones = torch.ones(x.numel() // x.shape[-1], dtype=torch.float64)
    grad_x = (gain * g - n * (n * gain * g).mean(-1, True)) / r
    return grad_x.to(x.dtype), (ones @ (g * n).reshape(-1, x.shape[-1])).to(x.dtype)


for words, slip, total in (  # (rows (N, D) float32, dtype of the result) -> grad_weight
    ("little is left here. Was each product rounded", "rows_rounded", lambda rows, half: rows.to(half).sum(0)),
    ("expected 1.617", "by_the_root_of_n", lambda rows, half: rows.sum(0) / len(rows) ** 0.5),
    ("grad_weight is off", "largest_row", lambda rows, half: rows.amax(0)),
    ("1,024 rows in bfloat16", "rows_added_in_half_precision", lambda rows, half: sum(rows.to(half))),
):

    @wrong(words, f"rms_norm_backward__{slip}")
    def rows_added(grad_y, x, weight, eps, total=total):
        rows = (grad_y.float() * x.float() / (_square(x) + eps).sqrt()).reshape(-1, x.shape[-1])
        return rms_norm_backward__formula(grad_y, x, weight, eps)[0], total(rows, x.dtype).to(x.dtype)


for words, slip, places in (  # of r, n and u those that are rounded to half precision on the way
    ("grad_weight is off", "r_rounded", "r"),
    ("grad_weight is off", "n_rounded", "n"),
    ("What is left of a difference", "u_rounded", "u"),
):

    @wrong(words, f"rms_norm_backward__{slip}")
    def rounded_on_the_way(grad_y, x, weight, eps, places=places):
        def kept(name, value):
            return value.to(grad_y.dtype).float() if name in places else value

        r = kept("r", (_square(x) + eps).sqrt())
        n, u = kept("n", x.float() / r), kept("u", weight.float() * grad_y.float())
        grad_x = (u - n * (n * u).mean(-1, keepdim=True)) / r
        return grad_x.to(x.dtype), (grad_y.float() * n).reshape(-1, x.shape[-1]).sum(0).to(x.dtype)


@wrong("rules out")
def rms_norm_backward__autograd(grad_y, x, weight, eps):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return torch.autograd.grad(F.rms_norm(x, x.shape[-1:], weight, eps), (x, weight), grad_y)


@wrong("all but the last")
def rms_norm_backward__batch_and_tokens_only(grad_y, x, weight, eps):
    grad_x, _ = rms_norm_backward__formula(grad_y, x, weight, eps)
    rows = grad_y.float() * F.rms_norm(x.float(), x.shape[-1:], eps=eps)
    return grad_x, rows.sum((0, 1)[: x.ndim - 1]).to(x.dtype) if x.ndim in (2, 3) else rows
