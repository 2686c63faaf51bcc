"""Right and wrong answers to the exercises of notebook 04, GQA."""

import math

import torch
from torch.nn import functional as F

from checks.base import mutate
from helpers.model import apply_rope
from tests.support.answers.register import RIGHT, WRONG, right


def with_given(causal):
    """A right answer, from one of two arguments."""

    def program(t, s, given=None, true_hides=False):
        if given is None:
            return causal(t, s)
        seen = given > -1 if given.is_floating_point() else given.bool() != true_hides
        return causal(t, s) & seen.reshape(len(given), 1, -1, s)

    return program


RIGHT["causal_visible"] = {
    "tril": with_given(lambda t, s: torch.ones(t, s, dtype=torch.bool).tril(s - t)),
    "positions": with_given(lambda t, s: torch.arange(s)[None] <= torch.arange(s - t, s)[:, None]),
}
_right = RIGHT["causal_visible"]["positions"]


def _reading(seen):
    return lambda t, s, given=None, hides=False: _right(t, s, None if given is None else seen(given, hides))


WRONG["causal_visible"] |= {
    "window_of_two": (
        "Failing cases: 17 of 17", lambda t, s, *given: torch.ones(t, s).tril(s - t).triu(s - t - 1).bool()),
    "table_of_16": ("expected (1, 300)", with_given(lambda t, s: torch.ones(16, 16).tril().bool()[s - t : s, :s])),
    "uint8": (".to(torch.bool) converts", lambda t, s, *given: torch.ones(t, s, dtype=torch.uint8).tril(s - t)),
    "flips_bits": ("turns each bit", _reading(
        lambda m, hides: m == 0 if m.is_floating_point() else (~m if hides else m).bool())),
    "float64_forgotten": ("float64's lowest", _reading(lambda m, hides: m == 0 if m.dtype in (
        torch.float32, torch.float16, torch.bfloat16) else (m != 0) != hides)),
    "only_infinity": ("'s lowest", _reading(
        lambda m, hides: m > -torch.inf if m.is_floating_point() else (m != 0) != hides)),
    "kept_by_n_key": ("expected (1, 1, 1, 5)", with_given(  # the next step asks for fewer rows
        lambda t, s, kept={}: kept.setdefault(s, torch.ones(t, s, dtype=torch.bool).tril(s - t)))),
    "filler_queries_blanked": (
        "whose own key is hidden", lambda t, s, given=None, hides=False: _right(t, s, given, hides)
        if given is None or given.ndim == 4 or given.is_floating_point() or hides
        else _right(t, s, given) & given.bool()[:, None, s - t :, None]),
    "floats_of_four_axes_turned": (
        "float16's lowest, with true_hides", lambda t, s, given=None, hides=False: _right(t, s, given == 0 if hides
        and given is not None and given.ndim == 4 and given.is_floating_point() else given, hides)),
    "integers_of_two_axes_only": (
        "1 may attend, (B, 1", lambda t, s, given=None, hides=False: _right(t, s, given, hides)
        if given is None or given.ndim == 2 or given.dtype not in (torch.int64,) else _right(t, s, given | True)),
    "bfloat16_as_integers": ("added, bfloat16's", _reading(
        lambda m, hides: m > -1 if m.is_floating_point() and m.dtype != torch.bfloat16 else (m != 0) != hides)),
    "nothing_empty_in_floats_of_four_axes": ("float16's lowest", lambda t, s, given=None, hides=False: (
        _right(t, s, given, hides) if given is None or given.ndim == 2 or not given.is_floating_point() else
        (seen := _right(t, s, given, hides)) | ~seen.any(-1, keepdim=True))),
    "empty_text_sees_all": ("expected, of [1, 0]", lambda t, s, given=None, hides=False: (
        _right(t, s) if given is None else
        (seen := _right(t, s, given, hides)) | ~seen.flatten(1).any(1)[:, None, None, None])),
    "given_squeezed": ("(3, 1, 3, 5), expected (1, 1, 3, 5)", lambda t, s, given=None, hides=False: _right(
        t, s, given if given is None or given.ndim == 2 or len(given) > 1 else given[0, 0], hides)),
    "a_float_below_minus_100000": ("added, float16's lowest", _reading(
        lambda m, hides: m > -1e5 if m.is_floating_point() else (m != 0) != hides)),
    "triangle_turned": ("nothing that true_hides could turn", lambda t, s, given=None, hides=False:
        _right(t, s) ^ hides if given is None else _right(t, s, given, hides)),
    "four_axes_by_a_1": ("The number of axes", lambda t, s, given=None, hides=False:
        _right(t, s) & given.bool() if given is not None and given.shape[1:] == (1,) else _right(t, s, given, hides)),
    "two_axes_by_their_size": ("Do you read (B, 1, 1, 1) as (B, n_key)", lambda t, s, given=None, hides=False:
        _right(t, s, given, hides)[(slice(None), *2 * [None] * (given is not None and given.shape[1:] == (s, 1, 1)))]),
    "bools_of_four_axes_not_turned": ("do you turn bools", lambda t, s, given=None, hides=False:
        _right(t, s, given, hides and not (given is not None and given.ndim == 4 and given.dtype == torch.bool))),
    "integers_not_turned": ("in integers as in bools", lambda t, s, given=None, hides=False:
        _right(t, s, given, hides and given is not None and given.dtype == torch.bool)),
    "rows_by_size": (
        "the shape (1, 5), expected (1, 1, 1, 5)", lambda t, s, given=None, hides=False:
        _right(t, s) & given.bool() if given is not None and given.shape == (t, s) else _right(t, s, given, hides)),
}  # fmt: skip


def _one_head(q, k, v, visible):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v


@right
def rows__einsum(q, k, v, visible):
    grouped = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bkrth,bksh->bkrts", grouped, k) * q.shape[-1] ** -0.5
    weights = torch.where(visible[:, None] if visible.ndim == 4 else visible, scores, -1e9).softmax(-1)
    return torch.einsum("bkrts,bksh->bkrth", weights.to(v.dtype), v).flatten(1, 2)


@right
def rows__head_by_head(q, k, v, visible):
    R, seen = q.shape[1] // k.shape[1], visible if visible.ndim == 2 else visible[:, 0]
    heads = [_one_head(q[:, i], k[:, i // R], v[:, i // R], seen) for i in range(q.shape[1])]
    return torch.stack(heads, 1)


def _product_that_broadcasts(q, k, v, visible):
    q, k, v = q.unflatten(1, (k.shape[1], -1)), k[:, :, None], v[:, :, None]
    return _one_head(q, k, v, visible[:, None] if visible.ndim == 4 else visible).flatten(1, 2)


def _where(is_there, wrong):
    """An answer that is wrong only where is_there(k, visible) says so."""
    return lambda q, k, v, visible: (wrong if is_there(k, visible) else rows__einsum)(q, k, v, visible)


def _seeing(seen):
    return lambda q, k, v, visible: rows__einsum(q, k, v, seen(visible))


def _of_four(k, visible):
    return visible.ndim == 4


def _causal(mask):
    return RIGHT["causal_visible"]["tril"](*mask.shape[-2:])


WRONG["rows"] |= {
    "score_0_is_hidden": ("the mask alone", mutate(
        rows__einsum, "scores, -1e9)", "scores, 0.0)\n    weights = weights.masked_fill(weights == 0, -torch.inf)")),
    "one_query_of_four_axes_sees_all": ("one query, 80 keys", _where(
        lambda k, mask: mask.ndim == 4 and mask.shape[2] == 1, _seeing(lambda mask: mask | True))),
    "first_texts_mask_for_equal_heads": ("as many key/value heads as", lambda q, k, v, visible: rows__einsum(
        q, k, v, visible[:1].expand_as(visible) if q.shape[1] == k.shape[1] else visible)),
    "fillers_and_a_triangle": (
        "the result is off by", _where(_of_four, _seeing(lambda mask: mask[:, :, -1:] & _causal(mask)))),
    "triangle_where_square": ("a mask that is not causal", _where(
        lambda k, mask: mask.ndim == 2 and len(mask) == mask.shape[1], _seeing(_causal))),
    "16_queries": ("another for each text", lambda q, k, v, visible: torch.cat(
        (rows__einsum(q[:, :, :16], k, v, visible[..., :16, :]), q[:, :, 16:]), 2)),
    "hidden_at_minus_500": ("hidden score 505", mutate(rows__einsum, "-1e9", "-500.0")),
    "third_text_as_the_second": ("another for each text", _where(
        lambda k, mask: len(k) > 2 and mask.ndim == 4, _seeing(lambda mask: mask[[0, 1, 1]]))),
    "float16_widened": (
        "torch.float32, expected torch.float16", lambda q, k, v, visible: rows__einsum(
            q, k, v, visible).to(torch.float32 if q.dtype == torch.float16 else q.dtype)),
    "one_query_of_two_axes_sees_all": ("one query, 300 keys", _where(
        lambda k, mask: len(mask) == 1 and k.shape[2] > 3, _seeing(lambda mask: mask | True))),
    "two_axes_on_the_cpu": ("device=x.device", _where(lambda k, mask: mask.ndim == 2, lambda q, *rest: (
        torch.zeros(q.shape, dtype=q.dtype) + rows__einsum(q, *rest)))),
    "broadcasts_one_head": ("5,120 numbers; 1,280 are enough", _where(lambda k, mask: k.shape[1] == 1, _one_head)),
    "copies_for_several_texts": ("where it broadcasts", _where(lambda k, mask: len(k) > 1, _product_that_broadcasts)),
    "copies_in_half_precision": (
        "where it broadcasts", _where(lambda k, mask: k.dtype != torch.float32, _product_that_broadcasts)),
    "cut_for_one_query": ("no gradient reaches v", _where(
        lambda k, mask: mask.shape[-2] == 1, lambda q, k, v, visible: rows__einsum(q, k, v.detach(), visible))),
    "cut_for_four_axes": ("no gradient reaches q and k and v", _where(_of_four, torch.no_grad()(rows__einsum))),
    "mask_upside_down": ("is off by", mutate(rows__einsum, "== 4 else visible", "== 4 else visible.flip(-2)")),
    "the_first_texts_mask": (
        "Does a mask of four dimensions work", lambda q, k, v, visible: rows__head_by_head(
            q, k, v, visible if visible.ndim == 2 else visible[0, 0])),
    "kept_mask": ("Case ", lambda q, k, v, visible, kept={}: rows__head_by_head(
        q, k, v, kept.setdefault(visible.shape, visible))),
    "a_product_that_broadcasts": (
        "it makes a float tensor of 57,600 numbers; 14,400 are enough … where it broadcasts", _product_that_broadcasts),
    "view": (".reshape works where .view does not", lambda q, k, v, visible: rows__head_by_head(
        q.view(len(q), k.shape[1], -1, q.shape[-1]).reshape(q.shape), k, v, visible)),
}  # fmt: skip


@right
def gqa_layer__sdpa(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(-2), w_o)


@right
def gqa_layer__head_by_head(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    T, y, heads = x.shape[1], 0.0, [w.split(head_dim) for w in (w_q, w_k, w_v)]
    for i, columns in enumerate(w_o.split(head_dim, 1)):
        q, k, v = (x @ part[i * len(part) // len(heads[0])].T for part in heads)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        y = y + _one_head(q, k, v, RIGHT["causal_visible"]["tril"](T, T).to(x.device)) @ columns.T
    return y


TURN = "q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)"
WRONG["gqa_layer"] |= {
    "cos_and_sin_exchanged": ("turn backwards", mutate(gqa_layer__sdpa, TURN, TURN.replace("cos, sin", "sin, cos"))),
    **{name: (words, mutate(gqa_layer__sdpa, "is_causal=True", f"(x.new_ones(x.shape[1], x.shape[1]).tril(){mask}"))
       for name, words, mask in (("16_keys", "bfloat16", ".triu(-15) > 0)"),
                                 ("hidden_at_minus_100", "however large", ".to(x.dtype) - 1) * 100"),
                                 ("hidden_at_minus_10000", "however large", ".to(x.dtype) - 1) * 10000"))},
    "bfloat16_through_float16": ("nan or inf", lambda *given: gqa_layer__sdpa(*(
        one.half() if getattr(one, "dtype", 0) == torch.bfloat16 else one for one in given)).to(given[0].dtype)),
    "no_gradient_in_half": ("no gradient reaches", lambda x, *rest: (
        gqa_layer__sdpa(x, *rest) if x.element_size() > 2 else gqa_layer__sdpa(x, *rest).detach())),
    "dtype_of_cos": ("torch.float32, expected torch.bfloat16", lambda *given: gqa_layer__sdpa(*given).to(given[6])),
    "score_0_is_hidden": ("where the score is 0", mutate(gqa_layer__sdpa, "is_causal=True", "torch.where(\n        "
        "(s := (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT).tril()) == 0, -torch.inf, 0 * s)")),
    "angles_kept_by_shape": ("gradients", lambda *given, kept={}: gqa_layer__sdpa(
        *given[:6], *kept.setdefault((given[6].shape, given[6].dtype, given[6].device), given[6:]))),
    "view_of_a_weight": (".reshape works", lambda *given: gqa_layer__sdpa(
        *given[:2], given[2].view(-1).view(given[2].shape), *given[3:])),
    "float64_becomes_float32": ("expected torch.float64", lambda x, *rest: gqa_layer__sdpa(x, *rest).to(
        x.dtype if x.element_size() < 8 else torch.float32)),
    "two_heads_a_group": ("12 query heads", mutate(
        gqa_layer__head_by_head, "i * len(part) // len(heads[0])",
        "i // (1 + (len(part) < len(heads[0]))) % len(part)")),
    "result_on_the_cpu": ("device=x.device", lambda x, *rest: (
        torch.zeros(x.shape, dtype=x.dtype) + gqa_layer__sdpa(x, *rest))),
    "one_token_squeezed": ("axis of tokens", lambda x, *rest: gqa_layer__sdpa(x, *rest).squeeze(1)),
    "second_text_cut": ("gradient", lambda x, *rest: gqa_layer__sdpa(torch.cat((x[:1], x[1:].detach())), *rest)),
    "other_layout": (
        "yours turns neighbours", mutate(gqa_layer__sdpa, TURN, TURN.replace("sin)", "sin, 'interleaved')"))),
}  # fmt: skip
