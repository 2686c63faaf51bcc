"""Right and wrong answers to the exercises of notebook 02, RoPE."""

import math

import torch

from tests.support.answers.register import right, wrong


@right
def rope_angles__outer(positions, head_dim, theta):
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(positions.float().flatten(), inv_freq).unflatten(0, positions.shape)


@right
def rope_angles__einsum_in_float64(positions, head_dim, theta):
    speeds = torch.exp(-math.log(theta) * torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.einsum("...,i->...i", positions.double(), speeds).float()


@wrong("each row of a batch")
def rope_angles__one_row_of_positions(positions, head_dim, theta):
    return positions[:, None] * theta ** (-torch.arange(0, head_dim, 2) / head_dim)


@wrong("past the end")
def rope_angles__table_of_8192(positions, head_dim, theta):
    speeds = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(torch.arange(8192).float(), speeds)[positions]


@right
def apply_rope_halves__cat(x, cos, sin):
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


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
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2).to(x.dtype)


wrong("contiguous", "apply_rope_interleaved__view")(
    lambda x, cos, sin: apply_rope_interleaved__stack(x.view(-1, *x.shape[2:]), cos, sin).view(x.shape)
)


@right
def rope_permutation__reshape(weight, head_dim):
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@right
def llama3_scaling__clamp(inv_freq, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    turns = original_max_position_embeddings * inv_freq / (2 * math.pi)
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return inv_freq * (keep + (1 - keep) / factor)
