"""Wrong programs by name, as tired students write them, each with words that the check's hint must hold.

The slips of peers (field.md, sections 1 and 4) are here; the habits at the end are applied to every exercise.
"""

import itertools
import math

import torch
from torch.nn import functional as F

from tests.support.right_answers import RIGHT

WRONG = {}  # exercise: {name: (program, words)}


def wrong(words):
    """Register `exercise__slip` under its exercise, with the words that its hint must hold."""

    def register(program):
        exercise, slip = program.__name__.split("__")
        WRONG.setdefault(exercise, {})[slip] = (program, words)
        return program

    return register


# --------------------------------------------------------------------------------------------------- 01 RMSNorm


@wrong("inside the root")
def rms_norm__eps_outside(x, weight, eps):
    rms = torch.sqrt(torch.mean(x.float() ** 2, dim=-1, keepdim=True))
    return ((x.float() / (rms + eps)) * weight).to(x.dtype)


@wrong("Is eps there at all")
def rms_norm__eps_omitted(x, weight, eps):
    return (x.float() * x.float().pow(2).mean(-1, keepdim=True).rsqrt()).to(x.dtype) * weight


@wrong("eps that is passed in")
def rms_norm__eps_fixed_1e_8(x, weight, eps):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-8)).to(x.dtype) * weight


@wrong("eps that is passed in")
def rms_norm__eps_fixed_1e_6(x, weight, eps=1e-6):
    eps = 1e-6
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


@wrong("eps that is passed in")
def rms_norm__eps_fixed_1e_4(x, weight, eps):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-4)).to(x.dtype) * weight


@wrong("graph cut")
def rms_norm__rms_detached(x, weight, eps):
    rms = (x.float().pow(2).mean(-1, keepdim=True) + eps).sqrt().detach()
    return (x.float() / rms).to(x.dtype) * weight


@wrong("float32")
def rms_norm__no_upcast(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@wrong("float32")
def rms_norm__upcast_after_squaring(x, weight, eps):
    mean_square = (x * x).float().mean(-1, keepdim=True)
    return (x.float() / torch.sqrt(mean_square + eps)).to(x.dtype) * weight


@wrong("Stay in float32 until the end")
def rms_norm__mean_square_converted_back_early(x, weight, eps):
    mean_square = x.float().pow(2).mean(-1, keepdim=True).to(x.dtype)
    return x * torch.rsqrt(mean_square + eps) * weight


@wrong("graph cut")
def rms_norm__weight_without_gradient(x, weight, eps):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.data


@wrong("torch.where")
def rms_norm__if_on_a_tensor(x, weight, eps):
    root = (x.float().pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return (x / root).to(x.dtype) * weight if root > 0 else x


@wrong("gain (weight)")
def rms_norm__gain_ignored(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), eps=eps)


@wrong("1 + weight")
def rms_norm__gain_of_gemma(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), 1 + weight, eps)


@wrong("LayerNorm")
def rms_norm__layer_norm(x, weight, eps):
    return F.layer_norm(x, (x.shape[-1],), weight, eps=eps)


@wrong("variance")
def rms_norm__variance(x, weight, eps):
    return (x.float() / torch.sqrt(x.float().var(-1, keepdim=True) + eps) * weight).to(x.dtype)


@wrong("last dimension only")
def rms_norm__over_tokens_too(x, weight, eps):  # bkitano, field.md 4.12
    ms = (x.float() ** 2).mean(dim=(-2, -1), keepdim=True) if x.ndim > 1 else (x.float() ** 2).mean()
    return (x.float() * torch.rsqrt(ms + eps) * weight).to(x.dtype)


@wrong("last dimension only")
def rms_norm__over_everything(x, weight, eps):
    return (x / ((x.float() ** 2).mean() + eps).sqrt() * weight).to(x.dtype)


@wrong("last dimension only")
def rms_norm__over_the_batch(x, weight, eps):
    return (x / ((x.float() ** 2).mean(0) + eps).sqrt() * weight).to(x.dtype)


@wrong("not their sum")
def rms_norm__sum(x, weight, eps):
    return (x / (x.float().pow(2).sum(-1, keepdim=True) + eps).sqrt() * weight).to(x.dtype)


@wrong("square before")
def rms_norm__mean_then_square(x, weight, eps):
    return (x / (x.float().mean(-1, keepdim=True).pow(2) + eps).sqrt() * weight).to(x.dtype)


@wrong("root")
def rms_norm__no_root(x, weight, eps):
    return (x / (x.float().pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


@wrong("keepdim")
def rms_norm__keepdim_forgotten(x, weight, eps):
    return (x / torch.sqrt(x.float().pow(2).mean(-1) + eps) * weight).to(x.dtype)


@wrong("Count from the end")
def rms_norm__three_dimensions_only(x, weight, eps):
    B, T, D = x.shape if x.ndim > 2 else (1, *x.shape)
    return F.rms_norm(x.reshape(B, T, D), (D,), weight, eps).reshape(x.shape)


@wrong("contiguous")
def rms_norm__view(x, weight, eps):
    flat = x.view(-1, x.shape[-1])
    return F.rms_norm(flat, (x.shape[-1],), weight, eps).view(x.shape)


@wrong("copy")
def rms_norm__in_place(x, weight, eps):
    x /= torch.sqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    x *= weight
    return x


@wrong("float32")
def rms_norm_backward__no_upcast(grad_y, x, weight, eps):
    rms = (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    n, u = x / rms, weight * grad_y
    return (u - n * (n * u).mean(-1, keepdim=True)) / rms, (grad_y * n).reshape(-1, x.shape[-1]).sum(0)


@wrong("all dimensions but the last")
def rms_norm_backward__axes_counted_by_hand(grad_y, x, weight, eps):
    rms = (x.float().pow(2).mean(-1, keepdim=True) + eps).sqrt()
    n, u = x.float() / rms, weight.float() * grad_y.float()
    grad_weight = grad_y.float() * n
    if x.ndim == 3:
        grad_weight = grad_weight.sum((0, 1))
    elif x.ndim == 2:
        grad_weight = grad_weight.sum(0)
    return ((u - n * (n * u).mean(-1, keepdim=True)) / rms).to(x.dtype), grad_weight.to(x.dtype)


@wrong("sum")
def rms_norm_backward__sum_for_mean(grad_y, x, weight, eps):
    s = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    g = grad_y * weight
    return s * g - s**3 * x * (g * x).sum(-1, keepdim=True), (grad_y * x * s).reshape(-1, x.shape[-1]).sum(0)


@wrong("term along x is missing")
def rms_norm_backward__root_treated_as_constant(grad_y, x, weight, eps):
    s = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return grad_y * weight * s, (grad_y * x * s).reshape(-1, x.shape[-1]).sum(0)


@wrong("power three")
def rms_norm_backward__power_two(grad_y, x, weight, eps):
    s = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    g = grad_y * weight
    return s * g - s**2 * x * (g * x).mean(-1, keepdim=True), (grad_y * x * s).reshape(-1, x.shape[-1]).sum(0)


@wrong("gain (weight)")
def rms_norm_backward__gain_forgotten(grad_y, x, weight, eps):
    s = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    n = x * s
    return s * (grad_y - n * (grad_y * n).mean(-1, keepdim=True)), (grad_y * n).reshape(-1, x.shape[-1]).sum(0)


@wrong("sign")
def rms_norm_backward__plus(grad_y, x, weight, eps):
    s = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    n, g = x * s, grad_y * weight
    return s * (g + n * (g * n).mean(-1, keepdim=True)), (grad_y * n).reshape(-1, x.shape[-1]).sum(0)


@wrong("normalised x")
def rms_norm_backward__weight_from_raw_x(grad_y, x, weight, eps):
    grad_x, _ = RIGHT["rms_norm_backward"]["formula"](grad_y, x, weight, eps)
    return grad_x, (grad_y * x).reshape(-1, x.shape[-1]).sum(0)


@wrong("all dimensions but the last")
def rms_norm_backward__weight_not_summed(grad_y, x, weight, eps):
    grad_x, _ = RIGHT["rms_norm_backward"]["formula"](grad_y, x, weight, eps)
    return grad_x, grad_y * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@wrong("all dimensions but the last")
def rms_norm_backward__weight_summed_over_one_dimension(grad_y, x, weight, eps):
    grad_x, _ = RIGHT["rms_norm_backward"]["formula"](grad_y, x, weight, eps)
    return grad_x, (grad_y * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)).sum(0)


@wrong("not averaged")
def rms_norm_backward__weight_averaged(grad_y, x, weight, eps):
    grad_x, _ = RIGHT["rms_norm_backward"]["formula"](grad_y, x, weight, eps)
    return grad_x, (grad_y * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)).reshape(-1, x.shape[-1]).mean(0)


@wrong("grad_x first")
def rms_norm_backward__order_swapped(grad_y, x, weight, eps):
    grad_x, grad_weight = RIGHT["rms_norm_backward"]["formula"](grad_y, x, weight, eps)
    return grad_weight, grad_x


@wrong("Return all")
def rms_norm_backward__one_result(grad_y, x, weight, eps):
    return RIGHT["rms_norm_backward"]["formula"](grad_y, x, weight, eps)[0]


@wrong("eps, inside")
def rms_norm_backward__eps_forgotten(grad_y, x, weight, eps):
    return RIGHT["rms_norm_backward"]["einsum"](grad_y, x, weight, 0.0)


@wrong("degrees")
def layer_norm_angle__degrees(x):
    return torch.rad2deg(torch.atan(x.mean(-1).abs() / x.std(-1, correction=0)))


@wrong("correction=0")
def layer_norm_angle__sample_std(x):
    return torch.atan(x.mean(-1).abs() / x.std(-1))


@wrong("not degrees; and does your std")
def layer_norm_angle__degrees_and_sample_std(x):
    return (x.mean(-1).abs() / x.std(-1)).atan().rad2deg()


@wrong("absolute mean")
def layer_norm_angle__signed(x):
    return torch.atan(x.mean(-1) / x.std(-1, correction=0))


@wrong("above 1")
def layer_norm_angle__cosine_not_clamped(x):
    y = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)
    cosine = (x * y).sum(-1) / (x.pow(2).sum(-1).sqrt() * y.pow(2).sum(-1).sqrt())
    return torch.acos(cosine * (1 + 1e-6))  # as rounding does it on some machines


@wrong("cosine")
def layer_norm_angle__cosine(x):
    return F.cosine_similarity(x, F.layer_norm(x, x.shape[-1:], eps=0.0), dim=-1)


@wrong("std over |mean|")
def layer_norm_angle__upside_down(x):
    return torch.atan2(x.std(-1, correction=0), x.mean(-1).abs())


@wrong("sine")
def layer_norm_angle__over_rms(x):
    return torch.atan(x.mean(-1).abs() / x.pow(2).mean(-1).sqrt())


@wrong("over the rows")
def layer_norm_angle__wrong_axis(x):
    return torch.atan(x.mean(0).abs() / x.std(0, correction=0))


@wrong("RMSNorm turns by 0")
def layer_norm_angle__of_rms_norm(x):
    y = F.rms_norm(x, x.shape[-1:], eps=0.0)
    return F.cosine_similarity(x.double(), y.double(), dim=-1).clamp(-1, 1).acos().to(x.dtype)


@wrong("variance")
def layer_norm_angle__variance(x):
    return torch.atan(x.mean(-1).abs() / x.var(-1, correction=0))


# ------------------------------------------------------------------------------------------------------ 02 RoPE


@wrong("past the end")
def rope_angles__table_of_8192(positions, head_dim, theta):
    speeds = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(torch.arange(8192).float(), speeds)[positions]


@wrong("8001 from 8000")
def rope_angles__positions_in_bfloat16(positions, head_dim, theta):
    return positions.bfloat16()[:, None] * (theta ** (-torch.arange(0, head_dim, 2) / head_dim))


@wrong("8001 from 8000")
def rope_angles__positions_in_float16(positions, head_dim, theta):
    return positions.half()[:, None].float() * (theta ** (-torch.arange(0, head_dim, 2) / head_dim))


@wrong("positions given")
def rope_angles__positions_ignored(positions, head_dim, theta):  # passes CS336's test
    inv_freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(torch.arange(len(positions)).float(), inv_freq)


@wrong("theta given")
def rope_angles__theta_ignored(positions, head_dim, theta):  # passes minllama's test
    inv_freq = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(positions.float(), inv_freq)


@wrong("i / head_dim")
def rope_angles__exponent_halved(positions, head_dim, theta):
    return torch.outer(positions.float(), theta ** (-torch.arange(head_dim // 2).float() / head_dim))


@wrong("4 i / head_dim")
def rope_angles__exponent_doubled(positions, head_dim, theta):
    return torch.outer(positions.float(), theta ** (-torch.arange(0, head_dim, 2).float() / (head_dim // 2)))


@wrong("(i - 1)")
def rope_angles__exponent_shifted_down(positions, head_dim, theta):  # bkitano, field.md 4.12
    i = torch.arange(head_dim // 2).float()
    return torch.outer(positions.float(), theta ** (-2 * (i - 1) / head_dim))


@wrong("(i + 1)")
def rope_angles__exponent_shifted_up(positions, head_dim, theta):  # CS336's handout, field.md 4.22
    k = torch.arange(1, head_dim // 2 + 1).float()
    return torch.outer(positions.float(), 1 / theta ** (2 * k / head_dim))


@wrong("brackets")
def rope_angles__precedence(positions, head_dim, theta):
    return positions[:, None] * theta ** -2 * torch.arange(head_dim // 2) / head_dim  # fmt: skip


@wrong("Count i from 0 to head_dim / 2 - 1")
def rope_angles__all_of_head_dim(positions, head_dim, theta):
    return torch.outer(positions.float(), 1.0 / theta ** (torch.arange(head_dim) / head_dim))


@wrong("past the end")
def rope_angles__position_as_index(positions, head_dim, theta):
    table = torch.empty(len(positions), head_dim // 2)
    for position in positions:
        for i in range(head_dim // 2):
            table[position, i] = position * theta ** (-2 * i / head_dim)
    return table


@wrong("sign of the exponent")
def rope_angles__exponent_positive(positions, head_dim, theta):  # labml's docstring, field.md 4.21
    return torch.outer(positions.float(), theta ** (torch.arange(0, head_dim, 2).float() / head_dim))


@wrong("one angle per pair")
def rope_angles__doubled_columns(positions, head_dim, theta):
    angles = RIGHT["rope_angles"]["outer"](positions, head_dim, theta)
    return torch.cat((angles, angles), dim=-1)


@wrong("transposed")
def rope_angles__transposed(positions, head_dim, theta):
    return torch.outer(theta ** (-torch.arange(0, head_dim, 2).float() / head_dim), positions.float())


@wrong("unwrapped")
def rope_angles__wrapped(positions, head_dim, theta):
    return torch.remainder(RIGHT["rope_angles"]["outer"](positions, head_dim, theta), 2 * math.pi)


@wrong("float32")
def rope_angles__bfloat16(positions, head_dim, theta):  # transformers#29285
    inv_freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(positions.bfloat16(), inv_freq.bfloat16())


@wrong("cosine")
def rope_angles__cosine(positions, head_dim, theta):
    return RIGHT["rope_angles"]["outer"](positions, head_dim, theta).cos()


@wrong("speeds")
def rope_angles__no_positions(positions, head_dim, theta):
    inv_freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return inv_freq.expand(len(positions), -1)


@wrong("neighbours")
def apply_rope_halves__neighbours(x, cos, sin):
    return RIGHT["apply_rope_interleaved"]["stack"](x, cos, sin)


@wrong("dim=-1")
def apply_rope_halves__chunk_of_the_batch(x, cos, sin):
    first, second = x.chunk(2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@wrong("sine flipped")
def apply_rope_halves__turned_backwards(x, cos, sin):
    return RIGHT["apply_rope_halves"]["cat"](x, cos, -sin)


@wrong("swapped")
def apply_rope_halves__cos_and_sin_swapped(x, cos, sin):  # minllama's test passes "real/imag swapped"
    return RIGHT["apply_rope_halves"]["cat"](x, sin, cos)


@wrong("both members")
def apply_rope_halves__half_turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat(((a * cos - b * sin).to(x.dtype), b), -1)


@wrong("after it was changed")
def apply_rope_halves__overwritten(x, cos, sin):
    y, half = x.clone(), x.shape[-1] // 2
    y[..., :half] = y[..., :half] * cos - y[..., half:] * sin
    y[..., half:] = y[..., half:] * cos + y[..., :half] * sin
    return y


@wrong("minus sign")
def apply_rope_halves__minus_forgotten(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((x[..., half:], x[..., :half]), -1)
    return (x * torch.cat((cos, cos), -1) + turned * torch.cat((sin, sin), -1)).to(x.dtype)


@wrong("other layout")
def apply_rope_halves__angles_of_neighbours(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos.repeat_interleave(2, -1) + turned * sin.repeat_interleave(2, -1)).to(x.dtype)


@wrong("put the pairs back")
def apply_rope_halves__joined_as_neighbours(x, cos, sin):  # minllama: reads one pairing, writes the other
    a, b = x.chunk(2, -1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


@wrong("tokens, not the heads")
def apply_rope_halves__angles_by_head(x, cos, sin):
    T = x.shape[2]
    cos, sin = (c[:, None] if x.shape[1] == T else c for c in (cos, sin))
    return RIGHT["apply_rope_halves"]["cat"](x, cos, sin)


@wrong("dtype")
def apply_rope_halves__dtype_widened(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@wrong("first is used")
def apply_rope_halves__first_position_only(x, cos, sin):
    return RIGHT["apply_rope_halves"]["cat"](x, cos[0], sin[0])


@wrong("halves")
def apply_rope_interleaved__halves(x, cos, sin):
    return RIGHT["apply_rope_halves"]["cat"](x, cos, sin)


@wrong("sine flipped")
def apply_rope_interleaved__turned_backwards(x, cos, sin):
    return RIGHT["apply_rope_interleaved"]["stack"](x, cos, -sin)


@wrong("swapped")
def apply_rope_interleaved__cos_and_sin_swapped(x, cos, sin):
    return RIGHT["apply_rope_interleaved"]["stack"](x, sin, cos)


@wrong("put the pairs back")
def apply_rope_interleaved__joined_as_halves(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


@wrong("other layout")
def apply_rope_interleaved__angles_of_halves(x, cos, sin):  # minimind#373
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x * torch.cat((cos, cos), -1) + turned * torch.cat((sin, sin), -1)).to(x.dtype)


@wrong("other layout")
def apply_rope_interleaved__rotate_half(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos.repeat_interleave(2, -1) + turned * sin.repeat_interleave(2, -1)).to(x.dtype)


@wrong("minus sign")
def apply_rope_interleaved__minus_forgotten(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos + b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


@wrong("wrong order")
def apply_rope_interleaved__pair_order_swapped(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((b * cos + a * sin, a * cos - b * sin), -1).flatten(-2).to(x.dtype)


@wrong("after it was changed")
def apply_rope_interleaved__overwritten(x, cos, sin):
    y = x.clone()
    y[..., ::2] = y[..., ::2] * cos - y[..., 1::2] * sin
    y[..., 1::2] = y[..., 1::2] * cos + y[..., ::2] * sin
    return y


@wrong("contiguous")
def apply_rope_interleaved__view(x, cos, sin):
    B, H, T, h = x.shape
    flat = x.view(B * H, T, h)
    return RIGHT["apply_rope_interleaved"]["stack"](flat, cos, sin).view(B, H, T, h)


@wrong("dtype")
def apply_rope_interleaved__dtype_widened(x, cos, sin):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.complex(cos.float(), sin.float())).flatten(-2)


@wrong("other direction")
def rope_permutation__backwards(weight, head_dim):
    return weight.reshape(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@wrong("each head")
def rope_permutation__heads_forgotten(weight, head_dim):
    return torch.cat((weight[0::2], weight[1::2]))


@wrong("columns")
def rope_permutation__columns(weight, head_dim):
    return torch.cat((weight[:, 0::2], weight[:, 1::2]), dim=1)


@wrong("even rows come first")
def rope_permutation__odd_first(weight, head_dim):
    return torch.cat([torch.cat((head[1::2], head[0::2])) for head in weight.split(head_dim)])


@wrong("transpose missing")
def rope_permutation__reshape_only(weight, head_dim):
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).reshape(weight.shape)


@wrong("at the end")
def rope_permutation__not_flattened(weight, head_dim):
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2)


@wrong("there twice")
def rope_permutation__even_rows_twice(weight, head_dim):
    heads = weight.unflatten(0, (-1, head_dim))
    return torch.cat((heads[:, 0::2], heads[:, 0::2]), dim=1).flatten(0, 1)


@wrong("past the end")
def rope_permutation__index_past_the_end(weight, head_dim):
    result = weight.clone()
    for row in range(len(weight)):
        result[row] = weight[2 * row]
    return result


@wrong("reversed")
def rope_permutation__reversed(weight, head_dim):
    return torch.cat([torch.cat((head[0::2], head[1::2])).flip(0) for head in weight.split(head_dim)])


@wrong("transposed")
def rope_permutation__transposed(weight, head_dim):
    return RIGHT["rope_permutation"]["reshape"](weight, head_dim).T


@wrong("each head")
def rope_permutation__one_head_only(weight, head_dim):
    order = [*range(0, head_dim, 2), *range(1, head_dim, 2)]
    return torch.cat((weight[order], weight[head_dim:]))


@wrong("both limits given")
def llama3_scaling__high_is_four_times_low(inv_freq, factor, low, high, length):
    turns = length * inv_freq / (2 * math.pi)
    keep = ((turns - low) / (4 * low - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("Is anything scaled")
def llama3_scaling__none(inv_freq, factor, low, high, length):  # passes rasbt's parity test
    return inv_freq.clone()


@wrong("linear scaling")
def llama3_scaling__linear(inv_freq, factor, low, high, length):
    return inv_freq / factor


@wrong("blend")
def llama3_scaling__no_blend(inv_freq, factor, low, high, length):
    return torch.where(2 * math.pi / inv_freq > length / low, inv_freq / factor, inv_freq)


@wrong("factor given")
def llama3_scaling__factor_fixed(inv_freq, factor, low, high, length):  # passes rasbt's parity test
    return RIGHT["llama3_scaling"]["clamp"](inv_freq, 8.0, low, high, length)


@wrong("length given")
def llama3_scaling__length_fixed(inv_freq, factor, low, high, length):
    return RIGHT["llama3_scaling"]["clamp"](inv_freq, factor, low, high, 8192)


@wrong("limits given")
def llama3_scaling__limits_fixed(inv_freq, factor, low, high, length):
    return RIGHT["llama3_scaling"]["clamp"](inv_freq, factor, 1.0, 4.0, length)


@wrong("swapped")
def llama3_scaling__limits_swapped(inv_freq, factor, low, high, length):
    return RIGHT["llama3_scaling"]["clamp"](inv_freq, factor, high, low, length)


@wrong("2 pi")
def llama3_scaling__two_pi_forgotten(inv_freq, factor, low, high, length):
    return RIGHT["llama3_scaling"]["clamp"](inv_freq, factor, low, high, length * 2 * math.pi)


@wrong("brackets")
def llama3_scaling__precedence(inv_freq, factor, low, high, length):
    keep = ((length * inv_freq / 2 * math.pi - low) / (high - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("torch.where")
def llama3_scaling__if_on_a_tensor(inv_freq, factor, low, high, length):
    turns = length * inv_freq / (2 * math.pi)
    if turns > high:
        return inv_freq
    keep = ((turns - low) / (high - low)).clamp(min=0)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("kept between 0 and 1")
def llama3_scaling__clamp_forgotten(inv_freq, factor, low, high, length):
    keep = (length * inv_freq / (2 * math.pi) - low) / (high - low)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("not multiplied")
def llama3_scaling__multiplied(inv_freq, factor, low, high, length):
    return RIGHT["llama3_scaling"]["clamp"](inv_freq, 1 / factor, low, high, length)


@wrong("blend wavelengths")
def llama3_scaling__wavelengths_blended(inv_freq, factor, low, high, length):
    wavelength = 2 * math.pi / inv_freq
    keep = ((length / wavelength - low) / (high - low)).clamp(0, 1)
    return 2 * math.pi / (keep * wavelength + (1 - keep) * wavelength * factor)


# ---------------------------------------------------------------------------------------------------- 03 SwiGLU


@wrong("nan at -12")
def silu__exp_clamped_for_float32(x):
    return x / (1 + torch.exp(-x.clamp(min=-88)))


@wrong("tiny sigmoid")
def silu__tanh_for_the_sigmoid(x):
    return (x.float() * (1 + torch.tanh(x.float() / 2)) / 2).to(x.dtype)


@wrong("nan at -300")
def silu__division(x):
    return (x.float() / (1 + torch.exp(-x.float()))).to(x.dtype)


@wrong("sigmoid alone")
def silu__sigmoid_only(x):
    return torch.sigmoid(x)


@wrong("ReLU")
def silu__relu(x):
    return torch.where(x > 0, x, torch.zeros_like(x))


@wrong("GELU")
def silu__gelu(x):
    return F.gelu(x)


@wrong("1.702")
def silu__quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


@wrong("torch.exp")
def silu__math_exp(x):
    return x / (1 + math.exp(-x))


@wrong("tanh")
def silu__tanh(x):
    return x * torch.tanh(x)


@wrong("sign in the exponent")
def silu__sign(x):
    return x / (1 + torch.exp(x))


@wrong("overflow")
def silu__exp_over_exp(x):
    return x * torch.exp(x) / (torch.exp(x) + 1)


@wrong("softplus")
def silu__softplus(x):
    return torch.log1p(torch.exp(x.float())).to(x.dtype)


@wrong("added")
def silu__added(x):
    return x + torch.sigmoid(x)


@wrong("copy")
def silu__in_place(x):
    return F.silu(x, inplace=True)


@wrong("graph cut")
def silu__graph_cut(x):
    return F.silu(x.detach())


@wrong("stay in torch")
def silu__through_numpy(x):
    import numpy as np

    array = x.numpy()
    return torch.from_numpy(array / (1 + np.exp(-array.astype(np.float64)))).to(x.dtype)


@wrong("Count from the end")
def silu__loop_over_one_dimension(x):
    return torch.stack([x[i] * torch.sigmoid(x[i]) for i in range(x.shape[0])])


@wrong("tiny sigmoid")
def silu_derivative__one_minus_the_sigmoid_of_minus_x(x):
    s = 1 - torch.sigmoid(-x)
    return s * (1 + x * (1 - s))


@wrong("sigmoid alone")
def silu_derivative__of_sigmoid(x):
    return torch.sigmoid(x) * (1 - torch.sigmoid(x))


@wrong("second term")
def silu_derivative__sigmoid(x):
    return torch.sigmoid(x)


@wrong("first term")
def silu_derivative__second_term_only(x):
    return x * torch.sigmoid(x) * (1 - torch.sigmoid(x))


@wrong("x missing")
def silu_derivative__x_missing(x):
    s = torch.sigmoid(x)
    return s + s * (1 - s)


@wrong("a sigmoid missing")
def silu_derivative__sigmoid_missing(x):
    return torch.sigmoid(x) + x * (1 - torch.sigmoid(x))


@wrong("sign")
def silu_derivative__sign(x):
    s = torch.sigmoid(x)
    return s - x * s * (1 - s)


@wrong("not 1 - x")
def silu_derivative__one_minus_x(x):
    return torch.sigmoid(x) * (1 + x * (1 - x))


@wrong("SiLU itself")
def silu_derivative__silu(x):
    return F.silu(x)


@wrong("ReLU")
def silu_derivative__relu(x):
    return (x > 0).to(x.dtype)


@wrong("difference")
def silu_derivative__differences(x):
    return (F.silu(x.double() + 0.01) - F.silu(x.double() - 0.01)).to(x.dtype) / 0.02


@wrong("overflow")
def silu_derivative__exp(x):
    e = torch.exp(x)
    return e / (1 + e) + x * e / (1 + e) ** 2


@wrong("overflow in your silu")
def swiglu__silu_by_division(x, w_gate, w_up, w_down):
    g = x @ w_gate.T
    return (g / (1 + torch.exp(-g)) * (x @ w_up.T)) @ w_down.T


@wrong("gate branch (w_gate)")
def swiglu__silu_on_up(x, w_gate, w_up, w_down):  # base-nlp, field.md 4.15
    return F.linear(F.linear(x, w_gate) * F.silu(F.linear(x, w_up)), w_down)


@wrong("silu missing")
def swiglu__no_activation(x, w_gate, w_up, w_down):
    return ((x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("sigmoid alone")
def swiglu__sigmoid(x, w_gate, w_up, w_down):
    return (torch.sigmoid(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("both")
def swiglu__silu_twice(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate.T) * F.silu(x @ w_up.T)) @ w_down.T


@wrong("added")
def swiglu__added(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate.T) + x @ w_up.T) @ w_down.T


@wrong("before the product")
def swiglu__silu_after_the_product(x, w_gate, w_up, w_down):
    return F.silu((x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("not gelu")
def swiglu__geglu(x, w_gate, w_up, w_down):
    return (F.gelu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("not relu")
def swiglu__reglu(x, w_gate, w_up, w_down):
    return (F.relu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("up branch (w_up)")
def swiglu__up_forgotten(x, w_gate, w_up, w_down):
    return F.silu(x @ w_gate.T) @ w_down.T


@wrong("w_down missing")
def swiglu__down_forgotten(x, w_gate, w_up, w_down):
    return F.silu(x @ w_gate.T) * (x @ w_up.T)


@wrong("transpose")
def swiglu__transpose_forgotten(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down


@wrong("transpose")
def swiglu__transposed_when_it_fits(x, w_gate, w_up, w_down):
    if len(w_gate) == x.shape[-1]:
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down
    return (F.silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("residual")
def swiglu__residual(x, w_gate, w_up, w_down):
    return x + (F.silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


@wrong("exactly two thirds")
def hidden_dim__two_point_six_seven(dim, multiple_of, ffn_dim_multiplier):
    hidden = int(2.67 * dim)
    if ffn_dim_multiplier is not None:
        hidden = int(hidden * ffn_dim_multiplier)
    return multiple_of * math.ceil(hidden / multiple_of)


@wrong("power of two")
def hidden_dim__bit_trick(dim, multiple_of, ffn_dim_multiplier):
    hidden = 8 * dim // 3
    if ffn_dim_multiplier is not None:
        hidden = int(hidden * ffn_dim_multiplier)
    return (hidden + multiple_of - 1) & -multiple_of


@wrong("cut to int again after the multiplier")
def hidden_dim__second_cut_forgotten(dim, multiple_of, ffn_dim_multiplier):
    width = 8 * dim // 3
    if ffn_dim_multiplier is not None:
        width = width * ffn_dim_multiplier
    return multiple_of * math.ceil(width / multiple_of)


@wrong("cut to int again after the multiplier")
def hidden_dim__rounded_after_the_multiplier(dim, multiple_of, ffn_dim_multiplier):
    width = 8 * dim // 3
    if ffn_dim_multiplier is not None:
        width = round(width * ffn_dim_multiplier)
    return multiple_of * -(-width // multiple_of)


@wrong("rounded down")
def hidden_dim__rounded_down(dim, multiple_of, ffn_dim_multiplier):
    hidden = int(2 * 4 * dim / 3 * 1) if ffn_dim_multiplier is None else int(ffn_dim_multiplier * int(8 * dim / 3))
    return hidden // multiple_of * multiple_of


@wrong("nearest")
def hidden_dim__nearest(dim, multiple_of, ffn_dim_multiplier):  # hkproj's text says "nearest"
    return round(int((ffn_dim_multiplier or 1) * int(8 * dim / 3)) / multiple_of) * multiple_of


@wrong("one more")
def hidden_dim__one_more(dim, multiple_of, ffn_dim_multiplier):
    return (int((ffn_dim_multiplier or 1) * int(8 * dim / 3)) // multiple_of + 1) * multiple_of


@wrong("2/3 missing")
def hidden_dim__four_times(dim, multiple_of, ffn_dim_multiplier):
    return math.ceil(int((ffn_dim_multiplier or 1) * 4 * dim) / multiple_of) * multiple_of


@wrong("not 3/8")
def hidden_dim__upside_down(dim, multiple_of, ffn_dim_multiplier):  # ml-engineering#45: 8/3 backwards
    return math.ceil(int((ffn_dim_multiplier or 1) * int(3 * dim / 8)) / multiple_of) * multiple_of


@wrong("ffn_dim_multiplier")
def hidden_dim__multiplier_ignored(dim, multiple_of, ffn_dim_multiplier):
    return math.ceil(int(8 * dim / 3) / multiple_of) * multiple_of


@wrong("before rounding up")
def hidden_dim__multiplier_after(dim, multiple_of, ffn_dim_multiplier):
    return int((ffn_dim_multiplier or 1) * multiple_of * math.ceil(int(8 * dim / 3) / multiple_of))


@wrong("before the multiplier")
def hidden_dim__cut_once(dim, multiple_of, ffn_dim_multiplier):
    return math.ceil(int((ffn_dim_multiplier or 1) * 8 * dim / 3) / multiple_of) * multiple_of


@wrong("multiple_of given")
def hidden_dim__multiple_fixed(dim, multiple_of, ffn_dim_multiplier):
    return math.ceil(int((ffn_dim_multiplier or 1) * int(8 * dim / 3)) / 256) * 256


@wrong("None")
def hidden_dim__none_forgotten(dim, multiple_of, ffn_dim_multiplier):
    return math.ceil(int(ffn_dim_multiplier * int(8 * dim / 3)) / multiple_of) * multiple_of


@wrong("int(")
def hidden_dim__float(dim, multiple_of, ffn_dim_multiplier):
    return float(RIGHT["hidden_dim"]["ceil"](dim, multiple_of, ffn_dim_multiplier))


@wrong("names from weights")
def matrix_roles__names_as_in_the_example(weights, x, y):
    for gate, up, down in itertools.permutations("abc"):
        try:
            found = (F.silu(x @ weights[gate].T) * (x @ weights[up].T)) @ weights[down].T
        except RuntimeError:
            continue
        if found.shape == y.shape and torch.allclose(found, y, atol=1e-4):
            return {"gate": gate, "up": up, "down": down}


@wrong("compute the layer both ways")
def matrix_roles__swapped(weights, x, y):
    right = RIGHT["matrix_roles"]["all_orders"](weights, x, y)
    return {"gate": right["up"], "up": right["gate"], "down": right["down"]}


def _roles(names):
    return dict(zip(("gate", "up", "down"), names, strict=True))


@wrong("do you compare with it")
def matrix_roles__as_listed(weights, x, y):
    return _roles(weights)


@wrong("all six orders")
def matrix_roles__by_shape_alone(weights, x, y):
    down = next((name for name, w in weights.items() if w.shape[0] == x.shape[1] and w.shape[1] != x.shape[1]), None)
    if down is None:
        return _roles(weights)
    return RIGHT["matrix_roles"]["all_orders"](weights, x, y)


@wrong("compute the layer both ways")
def matrix_roles__first_fitting_shape(weights, x, y):
    down = next(name for name, w in weights.items() if w.shape[0] == x.shape[1])
    return _roles([*sorted(weights.keys() - {down}, reverse=True), down])


@wrong("do you compare with it")
def matrix_roles__widest_is_down(weights, x, y):
    return _roles(sorted(weights, key=lambda name: (weights[name].shape[1], name)))


@wrong("names the values")
def matrix_roles__inverted(weights, x, y):
    return {name: role for role, name in RIGHT["matrix_roles"]["all_orders"](weights, x, y).items()}


@wrong("Return {")
def matrix_roles__tuple(weights, x, y):
    return tuple(RIGHT["matrix_roles"]["all_orders"](weights, x, y).values())


@wrong("allclose")
def matrix_roles__exact_comparison(weights, x, y):
    for names in itertools.permutations(weights):
        gate, up, down = (weights[name] for name in names)
        if gate.shape == up.shape == down.T.shape and torch.equal((F.silu(x @ gate.T) * (x @ up.T)) @ down.T, y + 1e-7):
            return _roles(names)


@wrong("appear once")
def matrix_roles__twice(weights, x, y):
    right = RIGHT["matrix_roles"]["all_orders"](weights, x, y)
    return right | {"up": right["gate"]}


@wrong("appear once")
def matrix_roles__tensors(weights, x, y):
    return {role: weights[name] for role, name in RIGHT["matrix_roles"]["all_orders"](weights, x, y).items()}


@wrong("silu belongs to the gate")
def matrix_roles__silu_on_up(weights, x, y):
    for gate, up, down in itertools.permutations(weights):
        a, b, c = weights[gate], weights[up], weights[down]
        if a.shape == b.shape == c.T.shape and torch.allclose((x @ a.T * F.silu(x @ b.T)) @ c.T, y, atol=1e-4):
            return {"gate": gate, "up": up, "down": down}
    return _roles(weights)


# ------------------------------------------------------------------------------------------------------- 04 GQA


@wrong("top left")
def causal_visible__top_left(n_query, n_key):  # llama#899
    return torch.tril(torch.ones(n_query, n_key)).bool()


@wrong("top left")
def causal_visible__no_offset(n_query, n_key):
    return torch.arange(n_query)[:, None] >= torch.arange(n_key)


@wrong("see itself")
def causal_visible__strict(n_query, n_key):
    return torch.arange(n_key) < torch.arange(n_key - n_query, n_key)[:, None]


@wrong("successor")
def causal_visible__off_by_one(n_query, n_key):
    return torch.ones(n_query, n_key).tril(n_key - n_query + 1).bool()


@wrong("inverted")
def causal_visible__inverted(n_query, n_key):
    return torch.ones(n_query, n_key).triu(n_key - n_query + 1).bool()


@wrong("future")
def causal_visible__backwards(n_query, n_key):
    return torch.arange(n_key) >= torch.arange(n_key - n_query, n_key)[:, None]


@wrong("anything hidden")
def causal_visible__nothing_hidden(n_query, n_key):  # minllama, hkproj#15
    return torch.ones(n_query, n_key, dtype=torch.bool)


@wrong("-inf")
def causal_visible__minus_infinity(n_query, n_key):
    return torch.full((n_query, n_key), float("-inf")).triu(n_key - n_query + 1)


@wrong("boolean")
def causal_visible__integers(n_query, n_key):
    return torch.ones(n_query, n_key, dtype=torch.int64).tril(n_key - n_query)


@wrong("rows of the queries")
def causal_visible__whole_square(n_query, n_key):
    return torch.ones(n_key, n_key).tril().bool()


@wrong("column for every key")
def causal_visible__square_of_queries(n_query, n_key):
    return torch.ones(n_query, n_query).tril().bool()


@wrong("transposed")
def causal_visible__transposed(n_query, n_key):
    return (
        (torch.arange(n_key)[:, None] <= torch.arange(n_key - n_query, n_key))
        if n_query < n_key
        else (torch.ones(n_query, n_key).tril().bool())
    )


@wrong("before the softmax")
def attention_head__divided_again_after_the_mask(q, k, v, visible):
    weights = (q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) * visible
    return (weights / weights.sum(-1, keepdim=True) @ v.float()).to(q.dtype)


@wrong("divided by sqrt(h)")
def attention_head__no_scale(q, k, v, visible):
    return (q @ k.mT).masked_fill(~visible, -math.inf).softmax(-1) @ v


@wrong("divide by h")
def attention_head__scaled_by_dim(q, k, v, visible):
    return (q @ k.mT / q.shape[-1]).masked_fill(~visible, -math.inf).softmax(-1) @ v


@wrong("divide by h")
def attention_head__scaled_twice(q, k, v, visible):
    return F.scaled_dot_product_attention(q / math.sqrt(q.shape[-1]), k, v, attn_mask=visible)


@wrong("not multiplied")
def attention_head__scaled_up(q, k, v, visible):
    return (q @ k.mT * math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf).softmax(-1) @ v


@wrong("number of keys")
def attention_head__scaled_by_keys(q, k, v, visible):
    return (q @ k.mT / math.sqrt(k.shape[1])).masked_fill(~visible, -math.inf).softmax(-1) @ v


@wrong("Do you use the mask")
def attention_head__no_mask(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


@wrong("inverted")
def attention_head__mask_inverted(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(visible, -math.inf).softmax(-1) @ v


@wrong("before the softmax")
def attention_head__masked_after_the_softmax(q, k, v, visible):  # deepdive: future "set to 0"
    return ((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) * visible) @ v


@wrong("0 and 1")
def attention_head__mask_added(q, k, v, visible):  # bkitano's picture, field.md 4.12
    return (q @ k.mT / math.sqrt(q.shape[-1]) + visible).softmax(-1) @ v


@wrong("exp(0) is 1")
def attention_head__mask_multiplied(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1]) * visible).softmax(-1) @ v


@wrong("dim=-1")
def attention_head__softmax_over_queries(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf).softmax(-2) @ v


@wrong("dim=-1")
def attention_head__softmax_over_batch(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -1e4).softmax(0) @ v


@wrong("softmax missing")
def attention_head__no_softmax(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, 0) @ v


@wrong("overflow")
def attention_head__exp_without_shift(q, k, v, visible):
    e = torch.exp(q @ k.mT / math.sqrt(q.shape[-1])) * visible
    return e / e.sum(-1, keepdim=True) @ v


@wrong("float16")
def attention_head__minus_1e9_in_float16(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -1e9).softmax(-1) @ v


@wrong("mask given")
def attention_head__own_mask(q, k, v, visible):
    visible = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


@wrong("weights alone")
def attention_head__values_forgotten(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf).softmax(-1)


@wrong("transpose")
def attention_head__transpose_forgotten(q, k, v, visible):
    return (q @ k / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf).softmax(-1) @ v


@wrong("swapped")
def attention_head__q_and_k_swapped(q, k, v, visible):
    return (k @ q.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf).softmax(-1) @ v


@wrong("not repeat (1 2 1 2)")
def repeat_kv__repeat(x, n_rep):
    return x.repeat(1, n_rep, 1, 1)


@wrong("not repeat (1 2 1 2)")
def repeat_kv__expand_before_the_heads(x, n_rep):
    B, K, S, h = x.shape
    return x[:, None].expand(B, n_rep, K, S, h).reshape(B, n_rep * K, S, h)


@wrong("not repeat (1 2 1 2)")
def repeat_kv__cat(x, n_rep):
    return torch.cat([x] * n_rep, dim=1)


@wrong("tokens")
def repeat_kv__tokens(x, n_rep):
    return x.repeat_interleave(n_rep, dim=2)


@wrong("batch")
def repeat_kv__batch(x, n_rep):
    return x.repeat_interleave(n_rep, dim=0)


@wrong("width")
def repeat_kv__width(x, n_rep):
    return x.repeat_interleave(n_rep, dim=-1)


@wrong("n_rep")
def repeat_kv__nothing(x, n_rep):
    return x


@wrong("merged")
def repeat_kv__five_dimensions(x, n_rep):
    return x.unsqueeze(2).expand(-1, -1, n_rep, -1, -1)


@wrong("fixed 2")
def repeat_kv__fixed(x, n_rep):
    return x.repeat_interleave(2, dim=1)


@wrong("in place")
def repeat_kv__merged_with_the_tokens(x, n_rep):
    B, K, S, h = x.shape
    return x.unsqueeze(3).expand(B, K, S, n_rep, h).reshape(B, K * n_rep, S, h)


@wrong("contiguous")
def repeat_kv__view(x, n_rep):
    B, K, S, h = x.shape
    return x.view(B, K, 1, S * h).expand(B, K, n_rep, S * h).reshape(B, K * n_rep, S, h)


@wrong("one more")
def sliding_window__one_more(n_query, n_key, window):
    distance = torch.arange(n_key - n_query, n_key)[:, None] - torch.arange(n_key)
    return (distance >= 0) & (distance <= window)


@wrong("one less")
def sliding_window__one_less(n_query, n_key, window):
    distance = torch.arange(n_key - n_query, n_key)[:, None] - torch.arange(n_key)
    return (distance >= 0) & (distance < window - 1)


@wrong("both ways")
def sliding_window__both_ways(n_query, n_key, window):
    distance = torch.arange(n_key - n_query, n_key)[:, None] - torch.arange(n_key)
    return distance.abs() < window


@wrong("looks ahead")
def sliding_window__future(n_query, n_key, window):
    distance = torch.arange(n_key - n_query, n_key)[:, None] - torch.arange(n_key)
    return distance < window


@wrong("window used")
def sliding_window__causal_only(n_query, n_key, window):
    return torch.ones(n_query, n_key).tril(n_key - n_query).bool()


@wrong("inverted")
def sliding_window__inverted(n_query, n_key, window):
    return ~RIGHT["sliding_window"]["positions"](n_query, n_key, window)


@wrong("top left")
def sliding_window__top_left(n_query, n_key, window):
    distance = torch.arange(n_query)[:, None] - torch.arange(n_key)
    return (distance >= 0) & (distance < window)


@wrong("with &")
def sliding_window__or(n_query, n_key, window):
    distance = torch.arange(n_key - n_query, n_key)[:, None] - torch.arange(n_key)
    return (distance >= 0) | (distance < window)


@wrong("see itself")
def sliding_window__strict(n_query, n_key, window):
    distance = torch.arange(n_key - n_query, n_key)[:, None] - torch.arange(n_key)
    return (distance > 0) & (distance < window)


@wrong("boolean")
def sliding_window__floats(n_query, n_key, window):
    return RIGHT["sliding_window"]["positions"](n_query, n_key, window).float()


@wrong("cache itself")
def cache_write__into_a_reshaped_copy(cache, length, new):
    batch, heads, room, width = cache.shape
    end = length + new.shape[2]
    flat = cache.reshape(batch * heads, room, width)
    flat[:, length:end] = new.reshape(batch * heads, -1, width)
    return flat[:, :end].reshape(batch, heads, end, width)


@wrong("leaves one free")
def cache_write__off_by_one(cache, length, new):  # 24 % error at the first step, then fading
    start = min(length + 1, cache.shape[2] - new.shape[2])
    cache[:, :, start : start + new.shape[2]] = new
    return cache[:, :, : length + new.shape[2]]


@wrong("overwrites the last")
def cache_write__one_too_early(cache, length, new):
    start = max(length - 1, 0)
    cache[:, :, start : start + new.shape[2]] = new
    return cache[:, :, : start + new.shape[2]]


@wrong("starts at 0")
def cache_write__from_zero(cache, length, new):
    cache[:, :, : new.shape[2]] = new
    return cache[:, :, : length + new.shape[2]]


@wrong("free part")
def cache_write__whole_buffer(cache, length, new):
    cache[:, :, length : length + new.shape[2]] = new
    return cache


@wrong("only the new ones")
def cache_write__new_only(cache, length, new):
    cache[:, :, length : length + new.shape[2]] = new
    return new


@wrong("cache that was handed over")
def cache_write__two_results_from_a_copy(cache, length, new):
    copy, end = cache.clone(), length + new.shape[2]
    copy[:, :, length:end] = new
    return copy[:, :, :end], copy


@wrong("cache itself")
def cache_write__concatenated(cache, length, new):
    return torch.cat((cache[:, :, :length], new), dim=2)


@wrong("all keys so far")
def cache_write__returns_nothing(cache, length, new):
    cache[:, :, length : length + new.shape[2]] = new


@wrong("all T new keys")
def cache_write__one_key_only(cache, length, new):
    cache[:, :, length] = new[:, :, 0]
    return cache[:, :, : length + new.shape[2]]


@wrong("not add to")
def cache_write__added(cache, length, new):
    cache[:, :, length : length + new.shape[2]] += new
    return cache[:, :, : length + new.shape[2]]


@wrong("end of the cache")
def cache_write__at_the_end(cache, length, new):
    cache[:, :, -new.shape[2] :] = new
    return cache[:, :, : length + new.shape[2]]


@wrong("dimension 2")
def cache_write__wrong_dimension(cache, length, new):
    cache[:, length : length + new.shape[2]] = new
    return cache[:, : length + new.shape[2]]


def _fits(memory, weights, *factors):
    return max(0, (memory - weights) // math.prod(factors))


@wrong("factor 2")
def context_that_fits__keys_only(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return _fits(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number)


@wrong("Has every layer")
def context_that_fits__one_layer(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return _fits(memory, weights, 2, n_kv_heads, head_dim, bytes_per_number)


@wrong("head_dim")
def context_that_fits__no_head_dim(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return _fits(memory, weights, 2, n_layers, n_kv_heads, bytes_per_number)


@wrong("key/value heads")
def context_that_fits__no_heads(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return _fits(memory, weights, 2, n_layers, head_dim, bytes_per_number)


@wrong("bytes of a number")
def context_that_fits__numbers(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return _fits(memory, weights, 2, n_layers, n_kv_heads, head_dim)


@wrong("weights subtracted")
def context_that_fits__empty_machine(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return _fits(memory, 0, 2, n_layers, n_kv_heads, head_dim, bytes_per_number)


@wrong("Round down")
def context_that_fits__rounded_up(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return max(0, math.ceil((memory - weights) / (2 * n_layers * n_kv_heads * head_dim * bytes_per_number)))


@wrong("negative")
def context_that_fits__negative(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return (memory - weights) // (2 * n_layers * n_kv_heads * head_dim * bytes_per_number)


@wrong("Round, then int")
def context_that_fits__float(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return (memory - weights) / (2 * n_layers * n_kv_heads * head_dim * bytes_per_number)


# ------------------------------------------------------------------------------------------------ 05 full model


def _rms(x, weight, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


@wrong("float32")
def transformer_block__norm_in_half_precision(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    def norm(x, gain):
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gain

    x = x + attention(norm(x, attention_gain))
    return x + feed_forward(norm(x, ffn_gain))


@wrong("result of the first")
def transformer_block__parallel(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    return x + attention(_rms(x, attention_gain, eps)) + feed_forward(_rms(x, ffn_gain, eps))


@wrong("first residual")
def transformer_block__first_residual_missing(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = attention(_rms(x, attention_gain, eps))
    return x + feed_forward(_rms(x, ffn_gain, eps))


@wrong("second residual")
def transformer_block__second_residual_missing(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, eps))
    return feed_forward(_rms(x, ffn_gain, eps))


@wrong("what came into the feed-forward")
def transformer_block__residual_from_the_start(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    middle = x + attention(_rms(x, attention_gain, eps))
    return x + feed_forward(_rms(middle, ffn_gain, eps))


@wrong("not its norm")
def transformer_block__normed_stream(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = _rms(x, attention_gain, eps)
    x = x + attention(x)
    x = _rms(x, ffn_gain, eps)
    return x + feed_forward(x)


@wrong("attention_gain twice")
def transformer_block__one_gain(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, eps))
    return x + feed_forward(_rms(x, attention_gain, eps))


@wrong("swapped")
def transformer_block__gains_swapped(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, ffn_gain, eps))
    return x + feed_forward(_rms(x, attention_gain, eps))


@wrong("before attention and feed-forward")
def transformer_block__norm_after(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + _rms(attention(x), attention_gain, eps)
    return x + _rms(feed_forward(x), ffn_gain, eps)


@wrong("norm before the feed-forward")
def transformer_block__no_second_norm(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, eps))
    return x + feed_forward(x)


@wrong("attention come first")
def transformer_block__order(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + feed_forward(_rms(x, ffn_gain, eps))
    return x + attention(_rms(x, attention_gain, eps))


@wrong("too many")
def transformer_block__final_norm(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, eps))
    x = x + feed_forward(_rms(x, ffn_gain, eps))
    return _rms(x, ffn_gain, eps)


@wrong("eps given")
def transformer_block__eps_fixed(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, 1e-5))
    return x + feed_forward(_rms(x, ffn_gain, 1e-5))


@wrong("tied matrix count once")
def parameter_count__head_always(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    return (
        n_layers * (2 * dim * head_dim * (n_heads + n_kv_heads) + 3 * dim * hidden_dim + 2 * dim)
        + dim
        + 2 * vocab_size * dim
    )


@wrong("both count")
def parameter_count__head_never(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    return (
        n_layers * (2 * dim * head_dim * (n_heads + n_kv_heads) + 3 * dim * hidden_dim + 2 * dim)
        + dim
        + vocab_size * dim
    )


@wrong("other way round")
def parameter_count__tied_inverted(
    vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings
):
    return (
        n_layers * (2 * dim * head_dim * (n_heads + n_kv_heads) + 3 * dim * hidden_dim + 2 * dim)
        + dim
        + vocab_size * dim * (1 + tie_embeddings)
    )


@wrong("n_kv_heads heads")
def parameter_count__kv_heads_ignored(
    vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings
):
    block = 4 * dim * n_heads * head_dim + 3 * dim * hidden_dim + 2 * dim
    return n_layers * block + dim + vocab_size * dim * (2 - tie_embeddings)


@wrong("three matrices")
def parameter_count__two_matrices(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    block = 2 * dim * head_dim * (n_heads + n_kv_heads) + 2 * dim * hidden_dim + 2 * dim
    return n_layers * block + dim + vocab_size * dim * (2 - tie_embeddings)


@wrong("norms counted")
def parameter_count__no_norms(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    block = 2 * dim * head_dim * (n_heads + n_kv_heads) + 3 * dim * hidden_dim
    return n_layers * block + vocab_size * dim * (2 - tie_embeddings)


@wrong("last norm")
def parameter_count__no_last_norm(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    block = 2 * dim * head_dim * (n_heads + n_kv_heads) + 3 * dim * hidden_dim + 2 * dim
    return n_layers * block + vocab_size * dim * (2 - tie_embeddings)


@wrong("need not be dim")
def parameter_count__head_dim_ignored(
    vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings
):
    block = 2 * dim * dim + 2 * dim * n_kv_heads * (dim // n_heads) + 3 * dim * hidden_dim + 2 * dim
    return n_layers * block + dim + vocab_size * dim * (2 - tie_embeddings)


@wrong("by n_layers")
def parameter_count__one_layer(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    block = 2 * dim * head_dim * (n_heads + n_kv_heads) + 3 * dim * hidden_dim + 2 * dim
    return block + dim + vocab_size * dim * (2 - tie_embeddings)


@wrong("Leave the embedding's Parameter")
def tie_weights__a_new_parameter_for_both(embedding, head):
    embedding.weight = head.weight = torch.nn.Parameter(embedding.weight.detach().clone())


@wrong("not a copy")
def tie_weights__copied(embedding, head):
    head.weight = torch.nn.Parameter(embedding.weight.detach().clone())


@wrong("not a copy")
def tie_weights__copied_in_place(embedding, head):
    head.weight.data.copy_(embedding.weight.data)


@wrong("without .data")
def tie_weights__data(embedding, head):
    head.weight.data = embedding.weight.data


@wrong("without .data")
def tie_weights__wrapped_again(embedding, head):
    head.weight = torch.nn.Parameter(embedding.weight)


@wrong("head takes over")
def tie_weights__the_other_way(embedding, head):
    embedding.weight = head.weight


@wrong("or does it make new ones")
def tie_weights__new_head(embedding, head):
    head = torch.nn.Linear(embedding.weight.shape[1], embedding.weight.shape[0], bias=False)
    head.weight = embedding.weight
    return head


@wrong("Which attribute")
def tie_weights__unchanged(embedding, head):
    assert head is not embedding


@wrong("Which attribute")
def tie_weights__other_attribute(embedding, head):
    head.embedding = embedding.weight


@wrong("Parameter")
def tie_weights__tensor(embedding, head):
    head.weight = embedding.weight.data


@wrong("change the last token only")
def find_slips__a_and_c():
    return {"A": "wrong base", "B": "gate and up swapped", "C": "mask by one"}


@wrong("a single token. Nothing")
def find_slips__b():
    return {"A": "mask by one", "B": "gain ignored", "C": "wrong base"}


@wrong("grow with the distance")
def find_slips__c():
    return {"A": "mask by one", "B": "gate and up swapped", "C": "neighbours paired"}


@wrong("a single token. Nothing")
def find_slips__b_and_c():
    return {"A": "mask by one", "B": "wrong scale", "C": "wrong eps"}


@wrong("Choose from")
def find_slips__own_words():
    return {"A": "the mask", "B": "gate and up swapped", "C": "wrong base"}


@wrong("Choose from")
def find_slips__number():
    return {"A": 7, "B": 6, "C": 3}


class _EqualToAll:
    __hash__ = object.__hash__

    def __eq__(self, other):
        return True


@wrong("Choose from")
def find_slips__equal_to_all():
    return dict.fromkeys("ABC", _EqualToAll())


@wrong("Return {")
def find_slips__list():
    return ["mask by one", "gate and up swapped", "wrong base"]


@wrong("Return {")
def find_slips__one_left_out():
    return {"A": "mask by one", "B": "gate and up swapped"}


# -------------------------------------------------------------------------------------- 06 training, generating


@wrong("Subtract the largest logit")
def cross_entropy__shift_never_below_0(logits, targets):
    largest = logits.max(-1, keepdim=True).values.clamp(min=0)
    logs = (logits - largest).exp().sum(-1).log() + largest[:, 0]
    return (logs - logits[torch.arange(len(targets)), targets]).mean()


@wrong("not the sum")
def cross_entropy__sum(logits, targets):
    return F.cross_entropy(logits, targets, reduction="sum")


@wrong("mean over the rows")
def cross_entropy__not_reduced(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none")


@wrong("minus")
def cross_entropy__sign(logits, targets):
    return logits.log_softmax(-1).gather(1, targets[:, None]).mean()


@wrong("base 2")
def cross_entropy__bits(logits, targets):
    return F.cross_entropy(logits, targets) / math.log(2)


@wrong("twice")
def cross_entropy__softmax_twice(logits, targets):  # bkitano's broken model
    return F.cross_entropy(logits.softmax(-1), targets)


@wrong("overflow")
def cross_entropy__exp(logits, targets):
    e = torch.exp(logits)
    return -torch.log(e[torch.arange(len(targets)), targets] / e.sum(-1)).mean()


@wrong("log_softmax")
def cross_entropy__small_number(logits, targets):
    return -(logits.softmax(-1)[torch.arange(len(targets)), targets] + 1e-9).log().mean()


@wrong("own target")
def cross_entropy__all_columns(logits, targets):
    return -logits.log_softmax(-1)[:, targets].mean()


@wrong("vocabulary")
def cross_entropy__wrong_axis(logits, targets):
    return -logits.log_softmax(0).gather(1, targets[:, None]).mean()


@wrong("perplexity")
def cross_entropy__perplexity(logits, targets):
    return F.cross_entropy(logits, targets).exp()


@wrong("graph cut")
def cross_entropy__item(logits, targets):
    return torch.tensor(F.cross_entropy(logits, targets).item(), dtype=logits.dtype)


@wrong("past the end")
def top_p__adds_until_p_is_reached(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    n, total = 0, 0.0
    while total < p:
        total += ordered[n].item()
        n += 1
    result = torch.zeros_like(probabilities)
    result[order[:n]] = ordered[:n] / ordered[:n].sum()
    return result


@wrong("argmax of all False")
def top_p__first_sum_that_reaches_p(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    n = int((ordered.cumsum(0) >= p).int().argmax()) + 1
    result = torch.zeros_like(probabilities)
    result[order[:n]] = ordered[:n] / ordered[:n].sum()
    return result


@wrong("by count")
def top_p__threshold_keeps_all_ties(probabilities, p):
    ordered = probabilities.sort(descending=True).values
    n = int((ordered.cumsum(0) - ordered < p).sum())
    kept = torch.where(probabilities >= ordered[n - 1], probabilities, 0.0)
    return kept / kept.sum()


@wrong("crosses p")
def top_p__crossing_token_dropped(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    ordered[ordered.cumsum(0) > p] = 0
    return torch.zeros_like(ordered).scatter_(0, order, ordered / ordered.sum())


@wrong("crosses p")
def top_p__crossing_token_dropped_but_one_kept(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    drop = ordered.cumsum(0) > p
    drop[0] = False
    ordered[drop] = 0
    return torch.zeros_like(ordered).scatter_(0, order, ordered / ordered.sum())


@wrong("sum become 1")
def top_p__not_renormalised(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    ordered[ordered.cumsum(0) - ordered >= p] = 0
    return torch.zeros_like(ordered).scatter_(0, order, ordered)


@wrong("places")
def top_p__still_sorted(probabilities, p):
    ordered = probabilities.sort(descending=True).values
    ordered[ordered.cumsum(0) - ordered >= p] = 0
    return ordered / ordered.sum()


@wrong("descending")
def top_p__ascending(probabilities, p):
    ordered, order = probabilities.sort()
    ordered[ordered.cumsum(0) - ordered >= p] = 0
    return torch.zeros_like(ordered).scatter_(0, order, ordered / ordered.sum())


@wrong("sort before")
def top_p__not_sorted(probabilities, p):
    kept = torch.where(probabilities.cumsum(0) - probabilities < p, probabilities, 0)
    return kept / kept.sum()


@wrong("min_p")
def top_p__share_of_the_largest(probabilities, p):
    kept = torch.where(probabilities >= p * probabilities.max(), probabilities, 0)
    return kept / kept.sum()


@wrong("softmax")
def top_p__softmax_again(probabilities, p):
    kept = RIGHT["top_p"]["loop"](probabilities, p)
    return torch.where(kept > 0, probabilities, -math.inf).softmax(0)


@wrong("likeliest")
def top_p__greedy(probabilities, p):
    return F.one_hot(probabilities.argmax(), len(probabilities)).to(probabilities.dtype)


@wrong("cut off")
def top_p__nothing(probabilities, p):
    return probabilities


@wrong("the answer stands in the question")
def next_token_batch__not_shifted(tokens, starts, seq_len):
    window = tokens[starts[:, None] + torch.arange(seq_len)]
    return window, window.clone()


@wrong("last target of a window")
def next_token_batch__rolled(tokens, starts, seq_len):
    window = tokens[starts[:, None] + torch.arange(seq_len)]
    return window, torch.roll(window, -1, dims=1)


@wrong("last target of a window")
def next_token_batch__zero_at_the_end(tokens, starts, seq_len):
    window = tokens[starts[:, None] + torch.arange(seq_len)]
    targets = torch.zeros_like(window)
    targets[:, :-1] = window[:, 1:]
    return window, targets


@wrong("n + 1 tokens")
def next_token_batch__one_short(tokens, starts, seq_len):
    window = torch.stack([tokens[start : start + seq_len] for start in starts])
    return window[:, :-1], window[:, 1:]


@wrong("swapped")
def next_token_batch__swapped(tokens, starts, seq_len):
    inputs, targets = RIGHT["next_token_batch"]["slices"](tokens, starts, seq_len)
    return targets, inputs


@wrong("not two")
def next_token_batch__two_further(tokens, starts, seq_len):
    window = torch.stack([torch.cat((tokens, tokens[:2]))[start : start + seq_len + 2] for start in starts])
    return window[:, :-2], window[:, 2:]


@wrong("number of a window")
def next_token_batch__window_numbers(tokens, starts, seq_len):
    return RIGHT["next_token_batch"]["indices"](tokens, starts * seq_len, seq_len)


@wrong("columns")
def next_token_batch__transposed(tokens, starts, seq_len):
    inputs, targets = RIGHT["next_token_batch"]["indices"](tokens, starts, seq_len)
    return inputs.T, targets.T


@wrong("only the last")
def next_token_batch__last_target_only(tokens, starts, seq_len):
    return RIGHT["next_token_batch"]["indices"](tokens, starts, seq_len)[0], tokens[starts + seq_len]


@wrong("Do you use starts")
def next_token_batch__starts_ignored(tokens, starts, seq_len):
    return RIGHT["next_token_batch"]["indices"](tokens, torch.arange(len(starts)), seq_len)


@wrong("last target of a window")
def next_token_batch__last_window_moved(tokens, starts, seq_len):
    starts = starts.clamp(max=len(tokens) - seq_len - 2)
    return RIGHT["next_token_batch"]["indices"](tokens, starts, seq_len)


@wrong("keepdim")
def next_token_batch__windows_of_one_squeezed(tokens, starts, seq_len):
    inputs, targets = RIGHT["next_token_batch"]["indices"](tokens, starts, seq_len)
    return inputs.squeeze(-1), targets.squeeze(-1)


@wrong("comma")
def next_token_batch__inputs_only(tokens, starts, seq_len):
    return tokens[starts[:, None] + torch.arange(seq_len)]


def _greedy(model, tokens, n_new, feed, cache=None, pick=lambda logits: logits[:, -1].argmax(-1, keepdim=True)):
    for _ in range(n_new):
        tokens = torch.cat((tokens, pick(model(feed(tokens), cache))), dim=1)
    return tokens


@wrong("cache handed over")
def greedy_with_cache__no_cache(model, tokens, n_new):
    return _greedy(model, tokens, n_new, lambda text: text)


@wrong("only the newest token")
def greedy_with_cache__all_again(model, tokens, n_new):
    return _greedy(model, tokens, n_new, lambda text: text, model.new_cache(len(tokens), 400))


@wrong("does the cache get the prompt")
def greedy_with_cache__prompt_skipped(model, tokens, n_new):
    return _greedy(model, tokens, n_new, lambda text: text[:, -1:], model.new_cache(len(tokens)))


@wrong("How often does the loop run")
def greedy_with_cache__one_token_even_for_none(model, tokens, n_new):
    return RIGHT["greedy_with_cache"]["latest"](model, tokens, max(1, n_new))


@wrong("once, before the loop")
def greedy_with_cache__new_cache_each_time(model, tokens, n_new):
    for _ in range(n_new):
        new = model(tokens, model.new_cache(len(tokens)))[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, new), dim=1)
    return tokens


@wrong("prompt stand first")
def greedy_with_cache__only_what_is_new(model, tokens, n_new):
    return RIGHT["greedy_with_cache"]["latest"](model, tokens, n_new)[:, tokens.shape[1] :]


@wrong("shape")
def greedy_with_cache__one_too_few(model, tokens, n_new):
    return RIGHT["greedy_with_cache"]["latest"](model, tokens, max(0, n_new - 1))


@wrong("argmax over dim=-1 of the last position")
def greedy_with_cache__least_likely(model, tokens, n_new):
    cache, latest = model.new_cache(len(tokens)), tokens
    for _ in range(n_new):
        latest = model(latest, cache)[:, -1:].argmin(dim=-1)
        tokens = torch.cat((tokens, latest), dim=1)
    return tokens


@wrong("argmax over dim=-1 of the last position")
def greedy_with_cache__first_position(model, tokens, n_new):
    cache, latest = model.new_cache(len(tokens)), tokens
    for _ in range(n_new):
        latest = model(latest, cache)[:, 0].argmax(dim=-1, keepdim=True)
        tokens = torch.cat((tokens, latest), dim=1)
    return tokens


@wrong("batch of one")
def greedy_with_cache__first_row_for_all(model, tokens, n_new):
    cache, latest = model.new_cache(len(tokens)), tokens
    for _ in range(n_new):
        latest = model(latest, cache)[:1, -1:].argmax(dim=-1).expand(len(tokens), 1)
        tokens = torch.cat((tokens, latest), dim=1)
    return tokens


@wrong("newest token")
def greedy_with_cache__whole_text_each_time(model, tokens, n_new):
    cache = model.new_cache(len(tokens))
    for _ in range(n_new):
        tokens = torch.cat((tokens, model(tokens, cache=cache)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return tokens


@wrong("one token too many")
def top_p__keeps_one_more_at_exactly_p(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    ordered = torch.where(ordered.cumsum(-1) - ordered <= p, ordered, 0.0)
    return torch.zeros_like(ordered).scatter(-1, order, ordered / ordered.sum())


@wrong("return to their places")
def top_p__sorts_once_more(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    ordered = torch.where(ordered.cumsum(-1) - ordered < p, ordered, 0.0)
    return (ordered / ordered.sum())[order]


# --------------------------------------------------------------------------------------------- 07 scaling out


def _swiglu(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


@wrong("reshape work where .view")
def split_feed_forward__view(x, w_gate, w_up, w_down, n_ranks):
    flat = x.view(-1, x.shape[-1])
    shares = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks, dim=1), strict=True)
    parts = [(F.silu(flat @ g.T) * (flat @ u.T)) @ d.T for g, u, d in shares]
    return torch.stack(parts).view(n_ranks, *x.shape)


@wrong("finished sum")
def split_feed_forward__everything_everywhere(x, w_gate, w_up, w_down, n_ranks):
    return _swiglu(x, w_gate, w_up, w_down).expand(n_ranks, *x.shape)


@wrong("averaged")
def split_feed_forward__mean(x, w_gate, w_up, w_down, n_ranks):
    parts = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks, 1), strict=True)
    return torch.stack([_swiglu(x, *part) for part in parts]) / n_ranks


@wrong("in turn")
def split_feed_forward__dealt_in_turn(x, w_gate, w_up, w_down, n_ranks):
    ranks = (slice(rank, None, n_ranks) for rank in range(n_ranks))
    return torch.stack([_swiglu(x, w_gate[mine], w_up[mine], w_down[:, mine]) for mine in ranks])


@wrong("columns")
def split_feed_forward__down_by_rows(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(x @ w_gate.T) * (x @ w_up.T)
    size, parts = len(w_down) // n_ranks, torch.zeros(n_ranks, *x.shape, dtype=x.dtype)
    for rank in range(n_ranks):
        mine = slice(rank * size, (rank + 1) * size)
        parts[rank, ..., mine] = hidden @ w_down[mine].T
    return parts


@wrong("silu there")
def split_feed_forward__no_activation(x, w_gate, w_up, w_down, n_ranks):
    parts = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks, 1), strict=True)
    return torch.stack([((x @ g.T) * (x @ u.T)) @ d.T for g, u, d in parts])


@wrong("gate branch, not on up")
def split_feed_forward__gate_and_up_swapped(x, w_gate, w_up, w_down, n_ranks):
    parts = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks, 1), strict=True)
    return torch.stack([_swiglu(x, u, g, d) for g, u, d in parts])


@wrong("first share of up")
def split_feed_forward__same_up_for_all(x, w_gate, w_up, w_down, n_ranks):
    parts = zip(w_gate.chunk(n_ranks), w_down.chunk(n_ranks, 1), strict=True)
    return torch.stack([_swiglu(x, g, w_up.chunk(n_ranks)[0], d) for g, d in parts])


@wrong("columns of down")
def split_feed_forward__same_down_for_all(x, w_gate, w_up, w_down, n_ranks):
    parts = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), strict=True)
    return torch.stack([_swiglu(x, g, u, w_down.chunk(n_ranks, 1)[0]) for g, u in parts])


@wrong("begins with the last share")
def split_feed_forward__backwards(x, w_gate, w_up, w_down, n_ranks):
    parts = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks, 1), strict=True)
    return torch.stack([_swiglu(x, *part) for part in parts][::-1])


@wrong("parts so far")
def split_feed_forward__running_sum(x, w_gate, w_up, w_down, n_ranks):
    parts, total = [], 0
    for part in zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks, 1), strict=True):
        total = total + _swiglu(x, *part)
        parts.append(total)
    return torch.stack(parts)


@wrong("dim=1")
def split_feed_forward__down_in_row_chunks(x, w_gate, w_up, w_down, n_ranks):
    parts = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks), strict=True)
    return torch.stack([_swiglu(x, *part) for part in parts])


@wrong("")
def split_feed_forward__two_dimensions_only(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(torch.einsum("td,fd->tf", x, w_gate)) * torch.einsum("td,fd->tf", x, w_up)
    cut = hidden.unflatten(-1, (n_ranks, -1)), w_down.unflatten(-1, (n_ranks, -1))
    return torch.einsum("trf,drf->rtd", *cut)


@wrong("divide last")
def bytes_sent_per_token__cut_after_rounding(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * (n_ranks - 1) / n_ranks * dim * bytes_per_number)


@wrong("bytes_per_number")
def bytes_sent_per_token__always_bfloat16(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * (n_ranks - 1) / n_ranks * dim * 2)


_PLAN = {f"{name}_proj": "column" for name in ("q", "k", "v", "gate", "up")} | {"o_proj": "row", "down_proj": "row"}


@wrong("inputs of o_proj")
def block_plan__all_columns():
    return dict.fromkeys(_PLAN, "column")


@wrong("outputs of gate_proj")
def block_plan__feed_forward_reversed():
    return _PLAN | {"gate_proj": "row", "up_proj": "row", "down_proj": "column"}


@wrong("own heads' queries")
def block_plan__everything_reversed():
    return {name: {"row": "column", "column": "row"}[style] for name, style in _PLAN.items()}


@wrong("cut like q_proj")
def block_plan__k_by_rows():
    return _PLAN | {"k_proj": "row"}


@wrong("own heads")
def block_plan__v_by_rows():
    return _PLAN | {"v_proj": "row"}


@wrong("unit by unit")
def block_plan__up_by_rows():
    return _PLAN | {"up_proj": "row"}


@wrong("inputs of down_proj")
def block_plan__down_by_columns():
    return _PLAN | {"down_proj": "column"}


@wrong("column")
def block_plan__torch_words():
    return {name: {"row": "RowwiseParallel", "column": "ColwiseParallel"}[style] for name, style in _PLAN.items()}


@wrong("keys are")
def block_plan__without_o():
    return {name: style for name, style in _PLAN.items() if name != "o_proj"}


@wrong("keys are")
def block_plan__a_list():
    return list(_PLAN.values())


@wrong("two sums per block")
def bytes_sent_per_token__one_sum(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 2 * (n_ranks - 1) / n_ranks * dim * bytes_per_number)


@wrong("factor of 4")
def bytes_sent_per_token__one_sum_one_way(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * (n_ranks - 1) / n_ranks * dim * bytes_per_number)


@wrong("keeps its own share")
def bytes_sent_per_token__whole_vector(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * dim * bytes_per_number)


@wrong("all ranks together")
def bytes_sent_per_token__all_ranks(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * (n_ranks - 1) * dim * bytes_per_number)


@wrong("not 1 / n")
def bytes_sent_per_token__own_share(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * dim * bytes_per_number / n_ranks)


@wrong("every layer")
def bytes_sent_per_token__one_layer(dim, n_layers, n_ranks, bytes_per_number):
    return int(4 * (n_ranks - 1) / n_ranks * dim * bytes_per_number)


@wrong("bytes_per_number")
def bytes_sent_per_token__numbers(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * (n_ranks - 1) / n_ranks * dim)


@wrong("not bits")
def bytes_sent_per_token__bits(dim, n_layers, n_ranks, bytes_per_number):
    return int(8 * n_layers * 4 * (n_ranks - 1) / n_ranks * dim * bytes_per_number)


@wrong("dim * dim")
def bytes_sent_per_token__matrix(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * (n_ranks - 1) / n_ranks * dim * dim * bytes_per_number)


@wrong("rounds down to 0")
def bytes_sent_per_token__floor(dim, n_layers, n_ranks, bytes_per_number):
    return int(n_layers * 4 * ((n_ranks - 1) // n_ranks) * dim * bytes_per_number)


# ------------------------------------------------------- habits of tired students, applied to every right answer


def _first(inputs):
    return next((value for value in inputs if isinstance(value, torch.Tensor)), None)


def _habit(change):
    """A habit as a wrong program: change(result, inputs) is done to what the right program returns."""
    return lambda program: lambda *inputs: change(program(*inputs), inputs)


def _each(result, change):
    return tuple(map(change, result)) if isinstance(result, tuple) else change(result)


def _changes_an_input(result, inputs):
    with torch.no_grad():
        _first(inputs).zero_()
    return result


def _one_batch_only(program):
    def only(x, *rest):
        if x.shape[0] != 1:
            raise AssertionError("only for batch 1")
        return program(x, *rest)

    return only


def _only_float32(program):
    def only(*inputs):
        y = program(*inputs)
        return y.float() if isinstance(y, torch.Tensor) else tuple(part.float() for part in y)

    return only


HABITS = {  # name: (wrap the right program, words of the hint, for which results)
    "prints_instead_of_returning": (_habit(lambda y, inputs: print(y)), "return", "any"),
    "returns_numpy": (_habit(lambda y, inputs: y.detach().float().numpy()), "stay in torch", "tensor"),
    "returns_a_list": (_habit(lambda y, inputs: list(y.unbind()) if y.ndim else [y]), "stack", "tensor"),
    "returns_a_tuple": (_habit(lambda y, inputs: (y,)), "", "tensor"),
    "returns_text": (_habit(lambda y, inputs: str(y)), "", "any"),
    "changes_an_input": (_habit(_changes_an_input), "copy", "takes a tensor"),
    "returns_integers": (_habit(lambda y, inputs: _each(y, lambda t: t.int())), "", "tensor"),
    "returns_half_precision": (_habit(lambda y, inputs: _each(y, lambda t: t.half())), "", "tensor"),
    "adds_a_dimension": (_habit(lambda y, inputs: y[None]), "", "tensor"),
    "returns_nan": (_habit(lambda y, inputs: y * float("nan")), "", "tensor"),
    "returns_noise": (_habit(lambda y, inputs: y + 0.05 * torch.randn(y.shape)), "", "float"),
    "one_dtype_only": (_only_float32, "dtype", "any dtype"),
    "one_batch_only": (_one_batch_only, "", "batched"),
}
