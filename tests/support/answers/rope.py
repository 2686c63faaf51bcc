"""Right and wrong answers to the exercises of notebook 02, RoPE."""

import copy
import itertools
import math

import torch
from torch.nn import functional as F

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


@wrong("multiply by the wavelength")  # its numbers are far larger than the right ones
def rope_angles__times_wavelength(positions, head_dim, theta):
    return positions[..., None] * 2 * math.pi * theta ** (torch.arange(0, head_dim, 2).float() / head_dim)


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


def _second_copy(model, speeds, period):
    tokens = torch.randint(32, (32, period), generator=torch.Generator().manual_seed(5)).repeat(1, 2)
    model.inv_freq = speeds
    logits = model(tokens[:, :-1]).detach()[:, period:]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, period + 1 :].flatten())


def _slowed(speeds, hands, by):
    return torch.tensor([speed / by if i in hands else speed for i, speed in enumerate(speeds.tolist())])


@right
def slow_hands__used_and_unfinished(model):
    speeds = model.inv_freq
    whole = _second_copy(model, speeds, 24)
    costs = [_second_copy(model, _slowed(speeds, {i}, math.inf), 24) - whole for i in range(8)]
    return {i for i, cost in enumerate(costs) if cost > 0.2 and 48 * speeds[i] / (2 * math.pi) < 1}


@right
def slow_hands__all_pairs(model):
    speeds = model.inv_freq
    pairs = itertools.combinations(range(8), 2)
    return list(min(pairs, key=lambda pair: _second_copy(model, _slowed(speeds, pair, 3), 72)))


@right
def slow_hands__one_after_the_other(model):
    speeds, found = model.inv_freq, set()
    while _second_copy(model, _slowed(speeds, found, 3), 72) > 2.25:
        found.add(min({*range(8)} - found, key=lambda i: _second_copy(model, _slowed(speeds, found | {i}, 3), 72)))
    return frozenset(found)


@right
def slow_hands__on_a_copy(model):
    copied = copy.deepcopy(model)
    return slow_hands__used_and_unfinished(copied)


wrong("the model did not run", "slow_hands__not_measured")(
    lambda model: set(model.inv_freq.argsort(descending=True)[2:4].tolist())
)
wrong("expected a set", "slow_hands__returns_speeds")(lambda model: _slowed(model.inv_freq, {2, 3}, 3))
for words, slip, hands in (  # by their numbers in the model as it is stored
    ("Which hand do you slow?", "none", set()),
    ("All hands slowed is linear scaling", "all", set(range(8))),
    ("there is no hand 11 … the numbers go from 0 to 7", "coordinates", {2, 3, 10, 11}),
    ("whole numbers", "floats", {2.0, 3.0}),
    ("Are these the hands to keep?", "all_others", {0, 1, 4, 5, 6, 7}),
    ("another order", "third_and_fourth", {2, 3}),
    ("a hand that finished a turn", "used_most", {0, 2}),
    ("What is not used", "slowest", {6, 7}),
    ("Is a hand missing?", "third", {2}),
    ("Is a hand missing?", "fourth", {3}),
    ("without hand 4 it is, too", "all_unfinished", set(range(2, 8))),
):
    wrong(words, f"slow_hands__{slip}")(lambda model, hands=hands: hands)
