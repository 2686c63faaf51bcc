"""Right and wrong answers to the exercises of notebook 01, RMSNorm."""

import torch
from torch import nn
from torch.nn import functional as F

from helpers.model import RMSNorm
from tests.support.answers.register import right, wrong


@right
def rms_norm__rsqrt(x, weight, eps):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@right
def rms_norm__length_over_root_of_width(x, weight, eps):
    wide, D = x.float(), x.shape[-1]
    length = ((wide * wide).sum(-1, keepdim=True) + D * eps).sqrt()
    return (wide * D**0.5 / length * weight.float()).to(x.dtype)


@wrong("calls torch's rms_norm, which this exercise rules out")
def rms_norm__torch(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


@wrong("calls torch's rms_norm, which this exercise rules out")
def rms_norm__layer_of_torch(x, weight, eps):
    norm = nn.RMSNorm(x.shape[-1], eps).to(x.dtype)
    return norm(x) * weight


@wrong("calls torch's layer_norm, which this exercise rules out")
def rms_norm__layer_norm_of_x_and_minus_x(x, weight, eps):
    D = x.shape[-1]
    return F.layer_norm(torch.cat([x, -x], -1), (2 * D,), eps=eps)[..., :D] * weight


@wrong("calls torch's native_layer_norm, which this exercise rules out")
def rms_norm__layer_norm_by_another_name(x, weight, eps):
    D = x.shape[-1]
    return torch.native_layer_norm(torch.cat([x, -x], -1), (2 * D,), None, None, eps)[0][..., :D] * weight


@wrong("calls torch's group_norm, which this exercise rules out")
def rms_norm__group_norm_of_x_and_minus_x(x, weight, eps):
    both = torch.cat([x, -x], -1).reshape(-1, 2 * x.shape[-1], 1)
    return F.group_norm(both, 1, eps=eps)[:, : x.shape[-1], 0].reshape(x.shape) * weight


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
for words, slip, probe in (
    ("eps outside the root, computed without float32, gain left out", "random_numbers", (X, ONES, 1e-5)),
    ("expected three: x, weight, eps", "the_norm_itself", rms_norm__rsqrt),
    ("holds whole numbers", "whole_numbers", (X.long(), ONES, 1e-5)),
    ("one gain for each coordinate", "gain_per_token", (X, ONES[:3], 1e-5)),
    ("Convert both", "two_dtypes", (X.half(), ONES, 1e-5)),
    ("a number from 0 up", "negative_eps", (X, ONES, -1.0)),
    ("inf or nan", "overflown", (1e9 * X.half(), ONES.half(), 1e-5)),
):
    wrong(words, f"norm_probe__{slip}")(lambda probe=probe: probe)


@right
def rms_norm_backward__formula(grad_y, x, weight, eps):
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    normalised, g = x.float() * scale, grad_y.float() * weight.float()
    grad_x = scale * (g - normalised * (g * normalised).mean(-1, keepdim=True))
    grad_weight = (grad_y.float() * normalised).flatten(0, -2).sum(0) if x.ndim > 1 else grad_y.float() * normalised
    return grad_x.to(x.dtype), grad_weight.to(x.dtype)


@wrong("rules out")
def rms_norm_backward__autograd(grad_y, x, weight, eps):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return torch.autograd.grad(rms_norm__torch(x, weight, eps), (x, weight), grad_y)


@wrong("float32")
def rms_norm_backward__no_upcast(grad_y, x, weight, eps):
    rms = (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    n, u = x / rms, weight * grad_y
    return (u - n * (n * u).mean(-1, keepdim=True)) / rms, (grad_y * n).reshape(-1, x.shape[-1]).sum(0)


@wrong("all but the last")
def rms_norm_backward__batch_and_tokens_only(grad_y, x, weight, eps):
    grad_x, _ = rms_norm_backward__formula(grad_y, x, weight, eps)
    rows = grad_y.float() * F.rms_norm(x.float(), x.shape[-1:], eps=eps)
    return grad_x, rows.sum((0, 1)[: x.ndim - 1]).to(x.dtype) if x.ndim in (2, 3) else rows


@right
def layer_norm_angle__arctan(x):
    return torch.atan(x.mean(-1) / x.std(-1, correction=0))


@wrong("above")
def layer_norm_angle__cosine_not_clamped(x):
    y = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)
    cosine = (x * y).sum(-1) / (x.pow(2).sum(-1).sqrt() * y.pow(2).sum(-1).sqrt())
    return torch.acos(cosine) * x.mean(-1).sign()
