"""The exercises of notebook 04, GQA: specification, cases, known mistakes with hints, check."""

import math
from functools import partial

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from checks.base import MEMORY, Case, Exercise, Harness, Wrong, draw, each, mutate, strided
from checks.judge import check_of
from helpers.model import apply_rope


def causal_visible(n_query, n_key, given=None, true_hides=False):
    """Which keys each query may see, (n_query, n_key) bool: its own and those before; the queries come last.

    With another program's mask `given`, (B, n_key) or (B, 1, n_query, n_key): what it hides, too, is hidden, (B, 1, …).
    """
    rows = [[key <= query for key in range(n_key)] for query in range(n_key - n_query, n_key)]
    visible = torch.tensor(rows, dtype=torch.bool)
    if given is None:
        return visible
    seen = given == 0 if true_hides or given.is_floating_point() else given != 0
    return visible & (seen if seen.ndim == 4 else seen[:, None, None, :])


_visible = partial(mutate, causal_visible)
TOP_LEFT = "The queries are the last positions: is the triangle aligned at the bottom right, not at the top left?"
ADDED = "Floats are added to the scores: 0 keeps a key, −inf or a dtype's lowest number hides it."
TURNED = "Is `given` turned the right way? Without true_hides, True and 1 may attend; with it they are hidden."
EMPTY = "What `given` hides stays hidden, also if a query then sees nothing: does your mask show it a key all the same?"
BITS = "~ turns each bit of an integer: ~1 is −2, and not 0. Make it bool first."
ONES = f"With true_hides a 1 hides, in integers as in bools. If you turn it by ~: {BITS}"
NO_MASK = "Without `given` there is nothing that true_hides could turn: the triangle stays."
AXES = "The number of axes, .ndim, tells (B, n_key) from (B, 1, n_query, n_key): with one key both have a 1 behind B."
SIZES = ((2, 3), (1, 300))
FILLER = torch.arange(5) >= torch.tensor([0, 2])[:, None]  # (2, 5): the second text begins with two fillers
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])  # (2, 5)
TOGETHER = (DOCUMENTS[:, 2:, None] == DOCUMENTS[:, None])[:, None]  # (2, 1, 3, 5)
EMPTY_TOO = TOGETHER & torch.arange(5).ne(2)  # a row that sees nothing: the first of the first text
LOWEST = torch.tensor([-math.inf, torch.finfo(torch.float64).min, 0, 0, 0], dtype=torch.float64)  # of each key


def _added(seen, dtype=torch.float32, hides=-math.inf):
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, hides)


EMPTY_ROWS = {  # what programs make of a row that sees nothing, or of a key's own query: (mask, the diagonal) -> mask
    "own": lambda seen, own: seen | own,
    "own, where empty": lambda seen, own: seen | own & ~seen.any(-1, keepdim=True),
    "all, where empty": lambda seen, own: seen | ~seen.any(-1, keepdim=True),
}


def _shown(visible, n_query, n_key, shown):
    own = torch.arange(n_key) == torch.arange(n_key - n_query, n_key)[:, None]
    return EMPTY_ROWS[shown](visible, own)


check_causal_visible = check_of(Exercise(causal_visible, [
    *[Case(f"n_query {t}, n_key {s}", (t, s), TOP_LEFT) for t, s in SIZES],
    Case("n_query 40, n_key 40, true_hides without `given`", (40, 40, None, True), NO_MASK),
    Case("one query, one key, two texts, (B, n_key)", (1, 1, FILLER[:, :1]), AXES),
    Case("one query, one key, True is hidden, (B, 1, n_query, n_key)", (1, 1, ~FILLER[:, :1, None, None], True),
         f"Do you read (B, 1, 1, 1) as (B, n_key), or do you turn bools in (B, n_key) alone? {AXES}"),
    Case("True may attend, (B, n_key), the second text ends with fillers", (3, 5, FILLER.flip(-1)),
         "`given` hides keys. Does a query whose own key is hidden still see the others?"),
    Case("one query, one text, True is hidden", (1, 5, ~FILLER[1:], True)),
    Case("5 queries, the second text begins with fillers", (5, 5, FILLER), EMPTY),
    Case("one text, 1 is hidden, (B, 1, n_query, n_key)", (3, 5, (~EMPTY_TOO[1:]).long(), True), ONES),
    Case("1 may attend, (B, 1, n_query, n_key)", (3, 5, EMPTY_TOO.long())),
    Case("1 is hidden", (5, 5, strided(1 - FILLER.int(), 0, 1), True), ONES),
    Case("as many texts as queries, no key of the third", (3, 5, torch.cat([FILLER, FILLER[:1] & False]).byte())),
    Case("two documents in a row, (B, 1, n_query, n_key)", (3, 5, strided(TOGETHER, 2, 3))),
    Case("added, bfloat16's lowest, one query, (B, 1, n_query, n_key)",
         (1, 5, _added(TOGETHER[:, :, 2:], torch.bfloat16, torch.finfo(torch.bfloat16).min)), ADDED),
    Case("added, 0, −inf or float64's lowest", (3, 5, _added(FILLER, torch.float64).clamp(min=LOWEST)), ADDED),
    Case("float32's lowest, true_hides", (5, 5, _added(FILLER, hides=torch.finfo(torch.float32).min), True), ADDED),
    Case("added, float16's lowest, with true_hides, (B, 1, n_query, n_key)",
         (3, 5, _added(EMPTY_TOO, torch.float16, torch.finfo(torch.float16).min), True), ADDED),
], [  # known mistakes
    ("Does a query see itself? Yours sees only what is before.", _visible("<=", "<")),
    ("Does a query see one key too many, its successor?", _visible("<= query", "<= query + 1")),
    ("Is it <=, not >=? Yours sees the future and not the past.", _visible("<=", ">=")),
    ("Do you return only the queries' rows? Yours has all n_key.", _visible("range(n_key - n_query", "range(0")),
    ("Is there a column for every key? Yours has n_query.", lambda t, s, *_: torch.ones(t, t).tril().bool()),
    ("Are the keys before all queries visible too? Yours hides them.",
     lambda t, s, *_: torch.cat((torch.zeros(t, s - t), torch.ones(t, t).tril()), dim=1).bool()),
    (f"{TOP_LEFT} Yours is at the top left.", _visible("range(n_key - n_query, n_key)", "range(n_query)")),
    *[(EMPTY, lambda *given, shown=shown: _shown(causal_visible(*given), *given[:2], shown)) for shown in EMPTY_ROWS],
    (TURNED, _visible("if true_hides or", "if not true_hides or")),
    (TURNED, _visible("true_hides or given.is_floating_point()", "given.is_floating_point()")),
    (BITS, lambda t, s, given=None, true_hides=False:
        causal_visible(t, s, given if given is None else (~given if true_hides else given).bool())),
    (ADDED, _visible("true_hides or given.is_floating_point()", "true_hides")),
    ("Does `given` hide only? What it allows must still be causal.",
     _visible("return visible & (", "return torch.ones_like(visible) & (")),
    ("Is a key seen only if both masks say so? Yours sees it if one does.", _visible("visible & (", "visible | (")),
]))  # fmt: skip


OVERFLOW = "Has each row its own largest score, subtracted before exp? Otherwise exp overflows, or all of a row is 0."
ODD = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 1]], dtype=torch.bool)
THREE = torch.stack((ODD[:3], ODD[1:].flip(-1), ODD[1:]))[:, None]  # (3, 1, 3, 4): another mask for each text
FOR_ONE = draw(2, 1, 1, 300, seed=7) > torch.tensor([0.3, -0.3]).view(2, 1, 1, 1)  # for one query, 300 keys
FAR = tuple(F.pad(y, (0, 3))[None, None] for y in (torch.tensor([[20.0]]), torch.tensor([[-50.5], [-50.6], [50.5]])))


class _Largest(TorchDispatchMode):
    """While it is on: how many numbers the largest float tensor has that is made."""

    numbers = 0
    _should_skip_dynamo = classmethod(lambda cls: False)  # else PyTorch imports its compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self.numbers = max(self.numbers, one.untyped_storage().nbytes() // one.element_size())
        return made


def _without_copies(function, q, k, v, visible):
    """Refuses an answer which, from 32 keys on, makes a float tensor larger than k."""
    with _Largest() as made:
        result = function(q, k, v, visible)
    if k.shape[-2] >= 32 and made.numbers > k.numel():
        raise Wrong(f"it makes a float tensor of {made.numbers:,} numbers; {k.numel():,} are enough.", COPIED)
    return result


def rows(q, k, v, visible):
    """All heads of q (B, H, T, h), k and v (B, K, S, h), visible (T, S) or (B, 1, T, S), without a copy of k or v."""
    T, K, R = q.shape[2], k.shape[1], q.shape[1] // k.shape[1]
    stacked = q.double().unflatten(1, (K, R)).flatten(2, 3)
    scores, seen = stacked @ k.double().mT / math.sqrt(q.shape[-1]), torch.cat([visible] * R, dim=-2)
    mixed = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v.double()
    return mixed.unflatten(2, (R, T)).flatten(1, 2).to(q.dtype)


_rows = partial(mutate, rows)


def _heads_inputs(batch, n_heads, n_kv_heads, t, s, h, seed=0, scale=1.5):
    q = draw(batch, n_heads, t, h, seed=seed, scale=scale)
    return q, *(draw(batch, n_kv_heads, s, h, seed=seed + i, scale=scale) for i in (1, 2)), causal_visible(t, s)


STARTS = "Row r * T + t of a group is token t: does the mask start again with each head? Yours goes on counting."
COPIED = "Keys or values are copied: repeat, reshape of an expand, @ where it broadcasts do so. Make queries rows."
SWAPPED = [strided(y, 1, 2) for y in _heads_inputs(2, 4, 2, 3, 4, 4, 90)[:3]]  # heads behind tokens in memory
REPEATED, HIDDEN = "torch.cat([visible] * R, dim=-2)", ".masked_fill(~seen, -math.inf)"
FOUR = "Does a mask of four dimensions work, too? Its queries are dimension -2, and each text has a mask of its own."
NEIGHBOURS = "Which query heads share? Neighbours: 0 0 1 1. Yours is 0 1 0 1."
ROWS = Exercise(rows, [
    Case("2 query heads, 1 key/value head, 2 tokens, h 2", _heads_inputs(1, 2, 1, 2, 2, 2)),
    Case("21 query heads, 7 key/value heads, 4 tokens, a mask that is not causal, scores of 0, float64", each(
        torch.float64, *(y * torch.tensor([[1], [1], [0], [1]]) for y in _heads_inputs(2, 21, 7, 4, 4, 4, 9)[:3]), ODD),
        "Does the mask alone say what is hidden? It is not causal here, and a score of 0 is as good as any."),
    Case("visible (B, 1, T, S), another for each text",
         (*_heads_inputs(3, 4, 2, 21, 28, 4, 70)[:3], THREE.repeat(1, 1, 7, 7)), FOUR),
    Case("large scores", _heads_inputs(1, 4, 2, 3, 4, 8, 80, scale=12.0), OVERFLOW),
    Case("hidden score 505, visible ones -505",
         (*FAR, draw(1, 1, 3, 4, seed=90), torch.tensor([[True, True, False]])),
         "Is a key hidden however large its score is? Put -inf before the softmax."),
    Case("bfloat16, not contiguous", each(torch.bfloat16, *SWAPPED, ODD[:3])),
    Case("as many key/value heads as query heads, visible (B, 1, T, S), float16",
         each(torch.float16, *_heads_inputs(2, 4, 4, 3, 4, 4, scale=1.0)[:3], THREE[:2]), FOUR),
    Case("one query, 300 keys, 8 query heads, 2 key/value heads",
         (*_heads_inputs(3, 8, 2, 1, 300, 8, 110)[:3], FOR_ONE[0, 0])),
    Case("bfloat16, one query, 80 keys, 1 key/value head, visible (B, 1, T, S)",
         each(torch.bfloat16, *_heads_inputs(2, 4, 1, 1, 80, 8, 130, 1.0)[:3], FOR_ONE[..., :80]), FOUR),
    Case("gradients", _heads_inputs(2, 4, 2, 2, 3, 4, 120), gradients=3, also="half, meta"),
    Case("gradients, one query, visible (B, 1, T, S)",
         (*_heads_inputs(2, 4, 2, 1, 4, 4, 140)[:3], THREE[:2, :, :1]), FOUR, gradients=3, also="half, meta"),
], [  # known mistakes
    *[(STARTS, _rows(REPEATED, f"torch.ones(R * T, k.shape[2]).tril({first}).bool()"))
      for first in ("0", "k.shape[2] - T")],
    ("Are the mask's rows repeated as 0 1 0 1, not 0 0 1 1?", _rows(REPEATED, "visible.repeat_interleave(R, -2)")),
    ("In which order are your rows? They go token by token, 0 0 1 1, the mask's go head by head, 0 1 0 1.",
     _rows("(K, R))", "(K, R)).transpose(2, 3)", "(R, T))", "(T, R)).transpose(2, 3)")),
    (NEIGHBOURS, _rows("(K, R))", "(R, K)).transpose(1, 2)", "(R, T))", "(R, T)).transpose(1, 2)")),
    ("Are a head's tokens kept together? A reshape after .transpose(1, 2) mixes them with other heads'.",
     _rows("unflatten(1, (K, R)).flatten(2, 3)", "transpose(1, 2).reshape(len(q), K, R * T, -1)")),
    ("Do you use the mask? Hidden keys are seen.", _rows(HIDDEN, "")),
    ("Do you use the mask given, not a causal one of your own?", _rows("[visible]", "[causal_visible(T, k.shape[2])]")),
    ("Is the mask inverted? True means: may attend.", _rows("~seen", "seen")),
    ("Is the mask there for all heads?", _rows("[visible] * R", "[visible] + [torch.ones_like(visible)] * (R - 1)")),
    ("Do hidden scores become -inf, not 0? exp(0) is 1, so a 0 is still seen.", _rows("-math.inf", "0.0")),
    ("Does the mask come before the softmax?", _rows(f"scores{HIDDEN}.softmax(-1)", "(scores.softmax(-1) * seen)")),
    ("Are the scores divided by sqrt(h)?", _rows(" / math.sqrt(q.shape[-1])", "")),
], forbid=("scaled_dot_product_attention",), harness=Harness(_without_copies),
    hints={"without overflow": "float16 ends at 65504. Hide a key by -inf, which every float dtype has."})  # fmt: skip
check_rows = check_of(ROWS)


def gqa_layer(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    """The whole layer, (B, T, D), of x (B, T, D): weights as in nn.Linear, RoPE for queries and keys, a causal mask."""
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    q, k = (apply_rope(y, cos, sin) for y in (q, k))
    mixed = rows(q, k, v, causal_visible(x.shape[1], x.shape[1]))
    return mixed.transpose(1, 2).flatten(-2) @ w_o.T


_layer = partial(mutate, gqa_layer)


def _layer_inputs(batch, t, dim, n_heads, n_kv_heads, h, seed=0, first=0):
    sizes = ((n_heads * h, dim), (n_kv_heads * h, dim), (n_kv_heads * h, dim), (dim, n_heads * h))
    weights = [draw(*size, seed=seed + i, scale=1.5 * size[1] ** -0.5) for i, size in enumerate(sizes)]
    angles = torch.arange(first, first + t)[:, None] / (3.0 + first) ** torch.arange(h // 2)
    return draw(batch, t, dim, seed=seed + 9), *weights, h, angles.cos(), angles.sin()


SPLIT = "Split: is the last dimension cut into heads first, and are the heads then moved to the front?"
CAUSAL = "causal_visible(x.shape[1], x.shape[1])"
LAYER, FEW = _layer_inputs(2, 40, 12, 12, 4, 6, 10), _layer_inputs(3, 5, 12, 4, 1, 4, 14, 2)
BOTH = _layer_inputs(2, 3, 6, 3, 3, 4, 30)
MERGE = "Merge: are the heads moved behind the tokens first? Else a row holds other tokens' results, later ones too."
ROPE, ONE = "Does RoPE turn queries and keys, and not values?", "Are the axis of tokens and the dtype kept?"
check_gqa_layer = check_of(Exercise(gqa_layer, [
    Case("2 tokens, 2 heads each, h 2, D 4", _layer_inputs(1, 2, 4, 2, 2, 2, 80)),
    Case("B 2, T 40, D 12, 12 query heads, 4 key/value heads, h 6, bfloat16, w_v about 1e5",
         (*each(torch.bfloat16, *LAYER[:3], 1e5 * LAYER[3], LAYER[4]), *LAYER[5:])),
    Case("float16, B 2, as many key/value heads as query heads", (*each(torch.float16, *BOTH[:5]), *BOTH[5:])),
    Case("x and weights not contiguous, a token of zeros, scores of 200,000",
         (strided(FEW[0] * torch.tensor([200.0, 0, 200, 200, 200])[:, None]), *map(strided, FEW[1:5]), *FEW[5:]),
         f"Is a later token hidden, however large its score is, and no other, also where the score is 0? {MEMORY}"),
    Case("one token, at 5, float64", each(torch.float64, *_layer_inputs(2, 1, 8, 4, 2, 2, 60, 5)), ONE, also="meta"),
    Case("gradients", _layer_inputs(2, 5, 4, 4, 2, 4, 70), gradients=5, also="half, meta"),  # angles shaped as before
], [  # known mistakes
    (MERGE, _layer(".transpose(1, 2).flatten(-2)", ".reshape(*x.shape[:2], -1)")),
    (SPLIT + " Yours takes a head's numbers from several tokens.",
     _layer("unflatten(-1, (-1, head_dim)).transpose(1, 2)", "reshape(len(x), -1, x.shape[1], head_dim)")),
    (NEIGHBOURS, _layer("k, v, c", "*(y.repeat(1, q.shape[1] // y.shape[1], 1, 1) for y in (k, v)), c")),
    ("RoPE turns (B, heads, T, h), by position. Yours turns (B, T, heads, h), by the number of the head.",
     _layer("apply_rope(y, cos, sin)", "apply_rope(y.transpose(1, 2), cos, sin).transpose(1, 2)")),
    ("Which two numbers are a pair? `apply_rope` pairs halves unless told otherwise; yours turns neighbours.",
     _layer("apply_rope(y, cos, sin)", "apply_rope(y, cos, sin, 'interleaved')")),
    ("Do queries and keys turn forwards? Yours turn backwards: is it cos, sin, in this order, and sin as it is?",
     _layer("apply_rope(y, cos, sin)", "apply_rope(y, cos, -sin)")),
    (ROPE + " Yours turns nothing.", _layer("apply_rope(y, cos, sin)", "y")),
    *[(f"{ROPE} {what}", _layer("q, k = (", f"{turned} = (", "in (q, k)", f"in ({turned})"))
      for turned, what in (("q, k, v", "Yours turns the values, too."), ("q,", "Your keys are not turned."))],
    ("Is there a mask? Every token sees the future.", _layer(CAUSAL, f"{CAUSAL} | True")),
    ("Is the mask True and False, not 1.0 and 0.0? SDPA adds floats to the scores, and 0 hides nothing.",
     _layer("rows(q", "F.scaled_dot_product_attention(q", f"{CAUSAL})", f"{CAUSAL}.float(), enable_gqa=True)")),
    (STARTS, _layer("= rows(", "= ROWS.mistakes[0][1](")),
    ("Are the scores divided by sqrt(head_dim)?", _layer("rows(q", "rows(q * math.sqrt(head_dim)")),
    *[(f"Are the scores divided by sqrt(head_dim)? Yours are divided by {by}.",
       _layer("rows(q", f"rows(q * math.sqrt(head_dim) / ({scale})"))
      for by, scale in (("head_dim: without the root, or twice, as SDPA divides by itself", "head_dim"),
                        ("sqrt(D)", "x.shape[-1] ** 0.5"))],
    ("Is the merged row multiplied by w_o.T at the end? It is missing.", _layer(" @ w_o.T", "")),
], allow=("apply_rope",)))  # fmt: skip
