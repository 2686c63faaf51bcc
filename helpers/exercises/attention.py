"""The exercises of notebook 04, GQA: specification, inputs, known mistakes."""

import math

import torch

from helpers.exercises.parts import BATCH, MEMORY, Case, Exercise, draw, each, turned

# fmt: off


def causal_visible(n_query, n_key):
    """Which key each query may see, (n_query, n_key) bool: itself and what is before; the queries come last."""
    rows = [[key <= query for key in range(n_key)] for query in range(n_key - n_query, n_key)]
    return torch.tensor(rows, dtype=torch.bool)


def _visible(rule):
    """A mask from a rule on (query position, key position), both with the offset of the cache."""
    return lambda t, s, *rest: rule(torch.arange(s - t, s)[:, None], torch.arange(s), *rest)


TOP_LEFT = "The queries are the last positions: is the triangle aligned at the bottom right, not at the top left?"
POLARITY = "Is the mask inverted? True means: may attend."
BOOLEAN = "Is the result boolean? Compare positions with <=, or end with .bool()."
SIZES = ((4, 4), (1, 1), (3, 7), (1, 5), (2, 3), (6, 6))
CAUSAL_VISIBLE = Exercise(
    causal_visible,
    [Case(f"{t} queries, {s} keys", (t, s), TOP_LEFT if t < s else "") for t, s in SIZES],
    [
        (TOP_LEFT, lambda t, s: torch.ones(t, s).tril().bool()),
        ("Does a query see itself? Yours sees only what is before.", _visible(lambda q, k: k < q)),
        ("Does a query see one key too many, its successor?", _visible(lambda q, k: k <= q + 1)),
        (POLARITY, _visible(lambda q, k: k > q)),
        (POLARITY, _visible(lambda q, k: torch.where(k > q, 0.0, -math.inf))),
        ("Is it <=, not >=? Yours sees the future and not the past.", _visible(lambda q, k: k >= q)),
        ("Is it <=, not >=? Yours sees the future and not the past.", lambda t, s: torch.ones(t, s).triu().bool()),
        (TOP_LEFT + " Yours also sees only what is before.", lambda t, s: torch.ones(t, s).tril(-1).bool()),
        ("Is anything hidden? Every query sees every key.", lambda t, s: torch.ones(t, s).bool()),
        ("Does a query see the past too? Yours sees only itself.", _visible(lambda q, k: k == q)),
        ("Is anything visible? Every entry is False.", lambda t, s: torch.zeros(t, s).bool()),
        ("Do you return only the rows of the queries? Yours has all n_key rows.",
         lambda t, s: torch.ones(s, s).tril().bool()),
        ("Do you return a column for every key? Yours has n_query columns.",
         lambda t, s: torch.ones(t, t).tril().bool()),
        ("Are queries down and keys across? Yours is transposed.", lambda t, s: causal_visible(t, s).T),
        (BOOLEAN + " The -inf belongs into the scores.", _visible(lambda q, k: torch.where(k > q, -math.inf, 0.0))),
        ("Is the offset n_key - n_query? Yours goes the other way.", lambda t, s: torch.ones(t, s).tril(t - s).bool()),
    ],
    dtype_hint=BOOLEAN,
)


def attention_head(q, k, v, visible):
    """One head: (B, T, h) from q (B, T, h), k and v (B, S, h), visible (T, S) bool; scores divided by sqrt(h)."""
    batches = []
    for b in range(q.shape[0]):
        rows = []
        for t in range(q.shape[1]):
            seen = [s for s in range(k.shape[1]) if visible[t, s]]
            scores = torch.stack([(q[b, t].double() * k[b, s].double()).sum() / math.sqrt(q.shape[-1]) for s in seen])
            shares = (scores - scores.max()).exp()
            rows.append(sum(share * v[b, s].double() for share, s in zip(shares, seen, strict=True)) / shares.sum())
        batches.append(torch.stack(rows))
    return torch.stack(batches).to(q.dtype)


def _hide(scores, visible):
    return scores.masked_fill(~visible, -math.inf)


def _attend(
    scale=lambda q, k: math.sqrt(q.shape[-1]), mask=_hide, softmax=lambda scores: scores.softmax(-1), after=None
):
    """Attention with one slip."""

    def program(q, k, v, visible):
        q, k, v = q.float(), k.float(), v.float()
        weights = softmax(mask(q @ k.transpose(-2, -1) / scale(q, k), visible))
        return (after(weights, visible) if after else weights) @ v

    return program


def _attention_inputs(batch, t, s, h, seed=0, scale=1.5):
    q, k, v = (draw(batch, n, h, seed=seed + i, scale=scale) for i, n in enumerate((t, s, s)))
    return q, k, v, causal_visible(t, s)


def _attention_cases():
    q, k, v, visible = _attention_inputs(2, 3, 4, 6, 40)
    odd = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    return [
        Case("one batch, 4 queries, 4 keys, h 6", _attention_inputs(1, 4, 4, 6)),
        Case("3 queries, 5 keys, h 4", _attention_inputs(1, 3, 5, 4, 70)),
        Case("batch of 3, 4 queries, 4 keys", _attention_inputs(3, 4, 4, 6, 10), BATCH),
        Case(
            "batch, tokens and width all 3", _attention_inputs(3, 3, 3, 3, 20), "Is the softmax over the keys, dim=-1?"
        ),
        Case("one query, 6 keys", _attention_inputs(2, 1, 6, 4, 30)),
        Case("a mask that is not causal", (q, k, v, odd), "Do you use the mask given, not a causal one of your own?"),
        Case(
            "large scores", _attention_inputs(1, 4, 4, 8, 50, scale=12.0), "Does exp overflow? torch.softmax does not."
        ),
        Case("float16", each(torch.float16, q, k, v, visible)),
        Case("bfloat16", each(torch.bfloat16, q, k, v, visible)),
        Case("q, k, v not contiguous", (turned(q), turned(k), turned(v), visible), MEMORY),
        Case("gradients", _attention_inputs(1, 2, 3, 4, 60), gradients=True),
    ]


def _naive_softmax(scores):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


SOFTMAX_AXIS = "Is the softmax over the keys, dim=-1? Each query's weights sum to 1."
ATTENTION_HEAD = Exercise(
    attention_head,
    _attention_cases(),
    [
        ("Are the scores divided by sqrt(h)?", _attend(lambda q, k: 1)),
        ("Is it the root of h, once? You seem to divide by h.", _attend(lambda q, k: q.shape[-1])),
        ("Are the scores divided, not multiplied, by sqrt(h)?", _attend(lambda q, k: q.shape[-1] ** -0.5)),
        ("Is it the root of the width h, not of the number of keys?", _attend(lambda q, k: math.sqrt(k.shape[-2]))),
        ("Is it the root of the width h, not of the number of queries?", _attend(lambda q, k: math.sqrt(q.shape[-2]))),
        ("Do you use the mask? Hidden keys are seen.", _attend(mask=lambda scores, visible: scores)),
        (POLARITY, _attend(mask=lambda scores, visible: _hide(scores, ~visible))),
        ("Does the mask come before the softmax? Masked after it, a row no longer sums to 1.",
         _attend(mask=lambda scores, visible: scores, after=lambda weights, visible: weights * visible)),
        ("Is the mask added as 0 and 1? Hidden scores must become -inf.",
         _attend(mask=lambda scores, visible: scores + visible)),
        ("Is the mask added as 0 and 1? Hidden scores must become -inf.",
         _attend(mask=lambda scores, visible: scores - (~visible).float())),
        ("Do hidden scores become -inf, not 0? exp(0) is 1, so a 0 is still seen.",
         _attend(mask=lambda scores, visible: scores * visible)),
        *[
            ("Do hidden scores become -inf? A small number is still seen a little.",
             _attend(mask=lambda scores, visible, fill=fill: scores.masked_fill(~visible, fill)))
            for fill in (-1.0, -10.0)
        ],
        ("Do you use the mask given, not a causal one of your own?",
         lambda q, k, v, visible: _attend()(q, k, v, causal_visible(q.shape[1], k.shape[1]))),
        (SOFTMAX_AXIS, _attend(softmax=lambda scores: scores.softmax(-2).nan_to_num())),
        (SOFTMAX_AXIS, _attend(softmax=lambda scores: scores.softmax(-2))),
        (SOFTMAX_AXIS, _attend(softmax=lambda scores: scores.softmax(0))),
        (SOFTMAX_AXIS, _attend(mask=lambda scores, visible: scores, softmax=lambda scores: scores.softmax(0))),
        ("Does exp overflow? Subtract each row's largest score, or use torch.softmax.",
         _attend(softmax=_naive_softmax)),
        ("Is the softmax missing?", _attend(softmax=lambda scores: scores)),
        ("Is the softmax missing?",
         _attend(softmax=lambda scores: scores, mask=lambda scores, visible: scores.masked_fill(~visible, 0.0))),
        ("Are the exponentials divided by their sum?", _attend(softmax=lambda scores: scores.exp())),
        ("Is it q times k? Your q and k are swapped.", lambda q, k, v, visible: _attend()(k, q, v, visible)),
        ("Are the weights multiplied with v, not with k?", lambda q, k, v, visible: _attend()(q, k, k, visible)),
        ("Are the weights multiplied with v, not with q?", lambda q, k, v, visible: _attend()(q, k, q, visible)),
        ("Are the weights multiplied with v? These are the weights alone.",
         lambda q, k, v, visible: _hide(q @ k.mT / math.sqrt(q.shape[-1]), visible).softmax(-1)),
        ("Are the scores divided before the softmax? You divide after it.",
         lambda q, k, v, visible: _attend(lambda q, k: 1)(q, k, v, visible) / math.sqrt(q.shape[-1])),
    ],
)


def repeat_kv(x, n_rep):
    """Each key/value head of x (B, K, S, h) n_rep times in a row: (B, K * n_rep, S, h), heads 1 1 2 2."""
    return torch.stack([x[:, head] for head in range(x.shape[1]) for _ in range(n_rep)], dim=1)


HEAD_AXIS = "Is the head dimension (dim 1) repeated?"
REPEAT_KV = Exercise(
    repeat_kv,
    [
        Case("x of shape (1, 2, 3, 4), n_rep 2", (draw(1, 2, 3, 4), 2)),
        Case("x of shape (2, 3, 5, 4), n_rep 4", (draw(2, 3, 5, 4, seed=1), 4), BATCH),
        Case("n_rep 1", (draw(2, 3, 2, 4, seed=2), 1)),
        Case("one key/value head, n_rep 3", (draw(2, 1, 3, 2, seed=3), 3)),
        Case("batch, heads, tokens and width all 2", (draw(2, 2, 2, 2, seed=4), 2)),
        Case("bfloat16", (draw(1, 2, 3, 4, seed=5).bfloat16(), 3)),
        Case("x not contiguous", (turned(draw(2, 2, 3, 4, seed=6), 1, 2), 2), MEMORY),
        Case("gradients", (draw(1, 2, 2, 3, seed=7), 2), gradients=True),
    ],
    [
        ("Is it repeat_interleave (1 1 2 2), not repeat (1 2 1 2)?", lambda x, n: x.repeat(1, n, 1, 1)),
        (HEAD_AXIS + " You repeat the tokens.", lambda x, n: x.repeat_interleave(n, 2)),
        (HEAD_AXIS + " You repeat the tokens.", lambda x, n: x.repeat(1, 1, n, 1)),
        (HEAD_AXIS + " You repeat the batch.", lambda x, n: x.repeat_interleave(n, 0)),
        (HEAD_AXIS + " You repeat the batch.", lambda x, n: x.repeat(n, 1, 1, 1)),
        (HEAD_AXIS + " You repeat the width.", lambda x, n: x.repeat_interleave(n, 3)),
        (HEAD_AXIS + " You repeat the width.", lambda x, n: x.repeat(1, 1, 1, n)),
        ("Do you use n_rep? The heads come out once.", lambda x, n: x),
        ("Do you use the n_rep given, not a fixed 2?", lambda x, n: x.repeat_interleave(2, 1)),
        ("Are the two head dimensions merged into one at the end?",
         lambda x, n: x[:, :, None].expand(-1, -1, n, -1, -1)),
        ("Is every head repeated? Yours is one head only.", lambda x, n: x[:, :1].repeat(1, n * x.shape[1], 1, 1)),
        ("Is each head repeated n_rep times, not n_rep more?", lambda x, n: x.repeat_interleave(n + 1, 1)),
        ("Do the tokens stay in place? Only heads are repeated.",
         lambda x, n: x[:, :, :, None].expand(-1, -1, -1, n, -1).reshape(x.shape[0], -1, *x.shape[2:])),
    ],
    tolerance=0.0,
)


def sliding_window(n_query, n_key, window):
    """Like causal_visible, but each query sees only the last window keys up to itself: (n_query, n_key) bool."""
    rows = [[query - window < key <= query for key in range(n_key)] for query in range(n_key - n_query, n_key)]
    return torch.tensor(rows, dtype=torch.bool)


WINDOW_SIZE = "Does the window count the query itself? Each query sees window keys."
SLIDING_WINDOW = Exercise(
    sliding_window,
    [
        Case(f"{t} queries, {s} keys, window {w}", (t, s, w), TOP_LEFT if t < s else "")
        for t, s, w in ((6, 6, 3), (5, 5, 1), (3, 8, 4), (1, 6, 2), (4, 4, 9), (2, 7, 7))
    ],
    [
        (WINDOW_SIZE + " Yours sees one more.", _visible(lambda q, k, w: (k <= q) & (k >= q - w))),
        (WINDOW_SIZE + " Yours sees one less.", _visible(lambda q, k, w: (k <= q) & (k > q - w + 1))),
        ("Is the future hidden too? The window alone looks both ways.", _visible(lambda q, k, w: (q - k).abs() < w)),
        ("Is the future hidden too? The window alone looks ahead.", _visible(lambda q, k, w: k > q - w)),
        ("Is the window used? Every past key is seen.", _visible(lambda q, k, w: k <= q)),
        ("Does the window lie before the query? Yours lies after it.",
         _visible(lambda q, k, w: (k >= q) & (k < q + w))),
        ("Does a query see itself?", _visible(lambda q, k, w: (k < q) & (k > q - w))),
        ("Does a query see itself?", _visible(lambda q, k, w: (k < q) & (k >= q - w))),
        (POLARITY, _visible(lambda q, k, w: ~((k <= q) & (k > q - w)))),
        ("Are the two rules joined with &, not with |?", _visible(lambda q, k, w: (k <= q) | (k > q - w))),
        (TOP_LEFT, lambda t, s, w: torch.ones(t, s).tril().triu(1 - w).bool()),
        ("Are the keys inside the window kept? You keep those outside.", _visible(lambda q, k, w: k <= q - w)),
        ("Does the window move with the query? Yours is at the start.", _visible(lambda q, k, w: (k <= q) & (k < w))),
        ("Does the window move with the query? Yours is cut in blocks.",
         _visible(lambda q, k, w: (k <= q) & (k // w == q // w))),
        (BOOLEAN + " The -inf belongs into the scores.",
         _visible(lambda q, k, w: torch.where((k <= q) & (k > q - w), 0.0, -math.inf))),
        ("Are queries down and keys across? Yours is transposed.", lambda t, s, w: sliding_window(t, s, w).T),
    ],
    dtype_hint=BOOLEAN,
)
