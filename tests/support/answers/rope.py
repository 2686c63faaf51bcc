"""Right and wrong answers to the exercises of notebook 02, RoPE."""

import math

import torch

from tests.support.answers.register import right, wrong


@right
def rope_angles__outer(positions, head_dim, theta):
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(positions.float(), inv_freq)


@right
def rope_angles__einsum_in_float64(positions, head_dim, theta):
    speeds = torch.exp(-math.log(theta) * torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.einsum("t,i->ti", positions.double(), speeds).float()


@right
def rope_angles__loops(positions, head_dim, theta):
    return torch.tensor([[p * theta ** -(2 * i / head_dim) for i in range(head_dim // 2)] for p in positions.tolist()])


@wrong("float32")
def rope_angles__float64(positions, head_dim, theta):
    speeds = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.outer(positions.double(), speeds)


@wrong("brackets")
def rope_angles__exponent_without_brackets(positions, head_dim, theta):
    i = torch.arange(0, head_dim, 2)
    return positions[:, None] * (theta ** -i.float() / head_dim)


@wrong("whole number")
def rope_angles__exponent_divided_without_rest(positions, head_dim, theta):
    return torch.outer(positions.float(), 1.0 / theta ** (torch.arange(0, head_dim, 2) // head_dim))


@wrong("sign of the exponent")
def rope_angles__exponent_without_sign(positions, head_dim, theta):
    return positions[:, None] * theta ** (torch.arange(0, head_dim, 2) / head_dim)


@wrong("2 pi too many")
def rope_angles__turns_for_radians(positions, head_dim, theta):
    return torch.outer(positions.float(), theta ** (-torch.arange(0, head_dim, 2) / head_dim)) * 2 * math.pi


@wrong("past the end")
def rope_angles__table_of_8192(positions, head_dim, theta):
    speeds = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(torch.arange(8192).float(), speeds)[positions]


@wrong("float32")
def rope_angles__bfloat16(positions, head_dim, theta):  # transformers#29285
    inv_freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(positions.bfloat16(), inv_freq.bfloat16())


@right
def apply_rope_halves__cat(x, cos, sin):
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@right
def apply_rope_halves__rotate_half(x, cos, sin):
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos + turned * sin).to(x.dtype)


@right
def apply_rope_halves__in_place_on_a_copy(x, cos, sin):
    y, half = x.clone(), x.size(-1) // 2
    for i in range(half):
        y[..., i] = x[..., i] * cos[:, i] - x[..., i + half] * sin[:, i]
        y[..., i + half] = x[..., i + half] * cos[:, i] + x[..., i] * sin[:, i]
    return y


@wrong("x.chunk(2)")
def apply_rope_halves__chunk_of_the_batch(x, cos, sin):
    first, second = x.chunk(2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@wrong("dimension more")
def apply_rope_halves__stack(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


@wrong("second member")
def apply_rope_halves__second_member_like_the_first(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * cos + b * sin), -1).to(x.dtype)


@wrong("once more")
def apply_rope_halves__cosine_of_the_cosine(x, cos, sin):
    return apply_rope_halves__rotate_half(x, cos.cos(), sin.sin())


@wrong("batch of one")
def apply_rope_halves__first_batch_only(x, cos, sin):
    return torch.cat([apply_rope_halves__cat(x[:1], cos, sin)] * x.shape[0])


@wrong("tokens, not the heads")
def apply_rope_halves__angles_by_head(x, cos, sin):
    T = x.shape[2]
    cos, sin = (c[:, None] if x.shape[1] == T else c for c in (cos, sin))
    return apply_rope_halves__cat(x, cos, sin)


@right
def apply_rope_interleaved__stack(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape).to(x.dtype)


@right
def apply_rope_interleaved__complex(x, cos, sin):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.complex(cos.float(), sin.float())).flatten(-2).to(x.dtype)


@right
def apply_rope_interleaved__in_place_on_a_copy(x, cos, sin):
    y = torch.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
    return y


@wrong("dimension more")
def apply_rope_interleaved__stack_without_flatten(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


@wrong("right places")
def apply_rope_interleaved__cut_in_halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


@wrong("as many dimensions")
def apply_rope_interleaved__flatten_everything(x, cos, sin):
    return apply_rope_interleaved__stack_without_flatten(x, cos, sin).flatten()


@wrong("first dimension")
def apply_rope_interleaved__cat_without_dim(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin)).to(x.dtype)


@wrong("contiguous")
def apply_rope_interleaved__view(x, cos, sin):
    B, H, T, h = x.shape
    flat = x.view(B * H, T, h)
    return apply_rope_interleaved__stack(flat, cos, sin).view(B, H, T, h)


@right
def rope_permutation__reshape(weight, head_dim):
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@right
def rope_permutation__index(weight, head_dim):
    order = list(range(0, head_dim, 2)) + list(range(1, head_dim, 2))
    return weight[[head + row for head in range(0, weight.shape[0], head_dim) for row in order]]


@right
def rope_permutation__loop(weight, head_dim):
    heads = weight.split(head_dim)
    return torch.cat([torch.cat((head[0::2], head[1::2])) for head in heads])


@wrong("other heads")
def rope_permutation__index_of_one_head(weight, head_dim):
    return weight[list(range(0, head_dim, 2)) + list(range(1, head_dim, 2))]


@wrong("other heads")
def rope_permutation__last_head_of_the_loop(weight, head_dim):
    for head in weight.split(head_dim):
        rows = torch.cat((head[0::2], head[1::2]))
    return rows


@wrong("stay in its head")
def rope_permutation__heads_and_pairs_swapped(weight, head_dim):
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).transpose(0, 1).reshape(weight.shape)


@wrong("pieces of n rows")
def rope_permutation__split_into_as_many_rows_as_heads(weight, head_dim):
    return torch.cat([torch.cat((head[0::2], head[1::2])) for head in weight.split(len(weight) // head_dim)])


@wrong("stay whole")
def rope_permutation__members_and_columns_swapped(weight, head_dim):
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).transpose(2, 3).reshape(weight.shape)


@wrong("first head")
def rope_permutation__one_head_only(weight, head_dim):
    order = [*range(0, head_dim, 2), *range(1, head_dim, 2)]
    return torch.cat((weight[order], weight[head_dim:]))


@right
def llama3_scaling__clamp(inv_freq, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    turns = original_max_position_embeddings * inv_freq / (2 * math.pi)
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return inv_freq * (keep + (1 - keep) / factor)


@right
def llama3_scaling__where(inv_freq, factor, low, high, length):
    wavelength = 2 * math.pi / inv_freq
    smooth = (length / wavelength - low) / (high - low)
    blend = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    slow = torch.where(wavelength > length / low, inv_freq / factor, inv_freq)
    return torch.where((wavelength >= length / high) & (wavelength <= length / low), blend, slow)


@right
def llama3_scaling__loop(inv_freq, factor, low, high, length):
    out = inv_freq.clone()
    for i, speed in enumerate(inv_freq.tolist()):
        wavelength = 2 * math.pi / speed
        if wavelength > length / low:
            out[i] = speed / factor
        elif wavelength >= length / high:
            smooth = (length / wavelength - low) / (high - low)
            out[i] = (1 - smooth) * speed / factor + smooth * speed
    return out


@wrong("upside down")
def llama3_scaling__turns_upside_down(inv_freq, factor, low, high, length):
    turns = 2 * math.pi / (inv_freq * length)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("length is missing")
def llama3_scaling__wavelength_as_turns(inv_freq, factor, low, high, length):
    wavelength = 2 * math.pi / inv_freq
    keep = ((wavelength - low) / (high - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("both limits given")
def llama3_scaling__high_is_four_times_low(inv_freq, factor, low, high, length):
    turns = length * inv_freq / (2 * math.pi)
    keep = ((turns - low) / (4 * low - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("0 at n = low")
def llama3_scaling__share_without_low(inv_freq, factor, low, high, length):
    keep = (length * inv_freq / (2 * math.pi) / high).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("over the wavelength")
def llama3_scaling__straight_over_the_wavelength(inv_freq, factor, low, high, length):
    keep = ((length / low - 2 * math.pi / inv_freq) / (length / low - length / high)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor


@wrong("slowed speed")
def llama3_scaling__only_the_kept_part(inv_freq, factor, low, high, length):
    return inv_freq * ((length * inv_freq / (2 * math.pi) - low) / (high - low)).clamp(0, 1)


@wrong("Which end is slow")
def llama3_scaling__branches_swapped(inv_freq, factor, low, high, length):
    turns, mixed = length * inv_freq / (2 * math.pi), llama3_scaling__clamp(inv_freq, factor, low, high, length)
    return torch.where(turns < low, inv_freq, torch.where(turns > high, inv_freq / factor, mixed))


@wrong("0 at n = low")
def llama3_scaling__branches_with_a_share_without_low(inv_freq, factor, low, high, length):
    turns, mixed = (
        length * inv_freq / (2 * math.pi),
        llama3_scaling__share_without_low(inv_freq, factor, low, high, length),
    )
    return torch.where(turns < low, inv_freq / factor, torch.where(turns > high, inv_freq, mixed))
