"""Right and wrong answers to the exercises of notebook 02, RoPE."""

import torch
from torch.nn import functional as F

from checks.base import mutate
from tests.support.answers.register import RIGHT, WRONG, right, right_answer_to


@right
def rope_angles__outer(positions, head_dim, theta):
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    return torch.outer(positions.float().flatten(), inv_freq).unflatten(0, positions.shape)


RIGHT["rope_angles"]["pair_by_pair"] = lambda p, h, theta: torch.stack(
    [p * theta ** (-2 * i / h) for i in range(h // 2)], -1
).float()
KEPT = {}
OUTER = "torch.outer(positions.float().flatten(), inv_freq).unflatten(0, positions.shape)"
for words, bug, instead in (
    ("expected 3", "sorted_positions", "positions.sort(-1).values[..., None] * inv_freq"),
    ("each row of a batch", "one_row_of_positions", "positions[:, None] * inv_freq"),
    ("(3, 200)", "first_text_for_all", OUTER.replace(
        "positions.float()", "(positions[:1].expand_as(positions) if positions.ndim == 2 else positions).float()")),
    ("past the end", "table_of_8192",
     "torch.outer(torch.arange(8192, device=positions.device).float(), inv_freq)[positions]"),
    ("each row of a batch", "rows_of_consecutive_positions", OUTER.replace(
        "positions.float()", "(positions if positions.ndim == 1 else positions[..., :1] + torch.arange(\n        "
        "positions.shape[-1], device=positions.device)).float()")),
    # in decoding every step would get the angles of the first
    ("7, 200000, 12000000", "kept_by_shape",
     f"KEPT.setdefault((positions.shape, positions.dtype, positions.device, head_dim, theta), {OUTER})"),
    ("Has one position both axes", "one_position_squeezed", f"{OUTER}.squeeze(-2 if positions.ndim > 1 else ())"),
    (".reshape works where .view does not", "view", OUTER.replace("flatten()", "view(-1)")),
    ("from -600", "16_positions", f"{OUTER} * (positions.cumsum(-1) ** 0).cumsum(-1).le(16)[..., None]"),
):  # fmt: skip
    WRONG["rope_angles"][bug] = words, mutate(rope_angles__outer, OUTER, instead)
WRONG["rope_angles"] |= {
    "positions_within_2**20": ("12000000", lambda p, h, theta: rope_angles__outer(p.clamp(max=2**20), h, theta)),
    "theta_in_bfloat16": ("theta 12.3", lambda p, h, theta: rope_angles__outer(
        p, h, torch.tensor(theta, dtype=torch.bfloat16).item())),
    "64_numbers_a_head": ("theta 500000", lambda p, h, theta: F.pad(
        rope_angles__outer(p, h, theta)[..., :32], (0, max(0, h // 2 - 32)))),
    "no_position_below_0": ("from -6", lambda p, h, theta: rope_angles__outer(p.clamp(min=0), h, theta)),
    "theta_whole": ("theta 12.3", lambda p, h, theta: rope_angles__outer(p, h, int(theta))),
    "speeds_on_the_cpu_for_texts": ("device=x.device", mutate(
        rope_angles__outer, "device=positions.device", "device=positions.device if positions.ndim < 2 else None")),
    "float64": (".to(torch.float32) converts", lambda p, h, theta: rope_angles__outer(p, h, theta).double()),
}  # fmt: skip


@right
def apply_rope_halves__cat(x, cos, sin):
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@right
def apply_rope_halves__complex(x, cos, sin):
    turned = torch.complex(*x.float().chunk(2, -1)) * torch.complex(cos, sin)
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


WRONG["apply_rope_halves"] |= {
    "kept_by_shape": ("not contiguous", lambda x, c, s, kept={}: apply_rope_halves__cat(
        x, *kept.setdefault(c.shape, (c, s)))),
    "float16_through_bfloat16": ("bfloat16 on the way", lambda x, c, s: apply_rope_halves__cat(
        x.bfloat16() if x.dtype == torch.float16 else x, c, s).to(x.dtype)),
    "stretched_to_the_length_it_had": ("are nan", lambda x, c, s: (y := apply_rope_halves__cat(x, c, s)) * (
        x.norm(dim=-1, keepdim=True) / y.norm(dim=-1, keepdim=True))),
    "16_tokens": ("Case x of shape", lambda x, c, s: torch.cat(
        (apply_rope_halves__cat(x[:, :, :16], c[:16], s[:16]), x[:, :, 16:]), 2)),
    "bfloat16_through_float16": ("ends at 65504", lambda x, c, s: apply_rope_halves__cat(
        x.half() if x.dtype == torch.bfloat16 else x, c, s).to(x.dtype)),
    "float64_becomes_float32": (".to(torch.float64) converts", lambda x, c, s: apply_rope_halves__cat(
        x if x.element_size() < 4 else x.float(), c, s)),
    "half_the_gradient_in_half": ("right in float32, but not in torch.float16", lambda x, c, s: apply_rope_halves__cat(
        torch.cat([x[..., : len(c[0])], x[..., len(c[0]) :].detach()], -1) if x.element_size() < 4 else x, c, s)),
    "angles_of_sequences": ("angles follow the tokens", lambda x, c, s: apply_rope_halves__cat(x, c, s)
        if len(x) != x.shape[2] else apply_rope_halves__cat(x.transpose(0, 2), c, s).transpose(0, 2)),
    "kept_by_shape_and_dtype": ("not contiguous", lambda x, c, s, kept={}: apply_rope_halves__cat(
        x, *kept.setdefault((c.shape, x.dtype), (c, s)))),
}  # fmt: skip


@right
def apply_rope_interleaved__stack(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape).to(x.dtype)


WRONG["apply_rope_interleaved"]["view"] = ("contiguous", lambda x, c, s: apply_rope_interleaved__stack(
    x.view(-1, *x.shape[2:]), c, s).view(x.shape))  # fmt: skip
WRONG["rope_permutation"] |= {
    "64_heads": ("each is reordered on its own", lambda w, h: torch.cat(
        (right_answer_to("rope_permutation")(w[: 64 * h], h), w[64 * h :]))),
    "first_8_rows": ("one head, of 16 rows", lambda w, h: w.unflatten(0, (-1, h))[
        :, sorted(range(h), key=lambda row: row % 2 if row < 8 else 2)].flatten(0, 1)),
    "float32_at_once": ("rows 0 to 11", lambda w, h: right_answer_to("rope_permutation")(
        w, len(w) if w.dtype == torch.float32 else h)),
    "order_kept_by_rows": ("as many rows", lambda w, h, kept={}: w[kept.setdefault(
        len(w), right_answer_to("rope_permutation")(torch.arange(len(w))[:, None], h)[:, 0])]),
    "one_head_squeezed": ("one head", lambda w, h: w.unflatten(0, (-1, h)).squeeze(0)[
        :, sorted(range(h), key=lambda row: row % 2)].reshape(w.shape)),
    "rows_of_two_in_reverse": ("heads of 2", lambda w, h: (
        right_answer_to("rope_permutation")(w, h) if h > 2 else w.flip(0))),
    "float16_through_bfloat16": ("float16, as many rows", lambda w, h: right_answer_to("rope_permutation")(
        w.bfloat16() if w.dtype == torch.float16 else w, h).to(w.dtype)),
    "float64_through_float32": ("float64", lambda w, h: right_answer_to("rope_permutation")(w.float(), h).to(w.dtype)),
    "bfloat16_through_float16": ("bfloat16", lambda w, h: right_answer_to("rope_permutation")(
        w.half() if w.dtype == torch.bfloat16 else w, h).to(w.dtype)),
}  # fmt: skip
RIGHT["rope_permutation"]["slices"] = lambda w, h: torch.cat(
    [w[i + odd : i + h : 2] for i in range(0, len(w), h) for odd in (0, 1)]
)
