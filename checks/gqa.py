"""The exercises of notebook 04, GQA: specification, cases, known mistakes with hints, check."""

import math

import torch

from checks.base import BATCH, MEMORY, Case, Exercise, Wrong, draw, each, not_contiguous
from checks.judge import check_of


def causal_visible(n_query, n_key):
    """Which keys each query may see, (n_query, n_key) bool: its own and those before; the queries come last."""
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
)  # fmt: skip
check_causal_visible = check_of(CAUSAL_VISIBLE)


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
        Case(
            "hidden score 300, visible ones -300",
            (
                torch.tensor([[[20.0, 0, 0, 0]]]),
                torch.tensor([[[-30.0, 0, 0, 0], [-30.1, 0, 0, 0], [30.0, 0, 0, 0]]]),
                draw(1, 3, 4, seed=90),
                torch.tensor([[True, True, False]]),
            ),
            "Is a key hidden however large its score is? Put -inf before the softmax.",
        ),
        Case("float16", each(torch.float16, q, k, v, visible)),
        Case("bfloat16", each(torch.bfloat16, q, k, v, visible)),
        Case("q, k, v not contiguous", (not_contiguous(q), not_contiguous(k), not_contiguous(v), visible), MEMORY),
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
        ("Does the mask come before the softmax? Divided by the sum afterwards, a row whose large scores are hidden is "
         "0 / 0.",
         _attend(mask=lambda scores, visible: scores,
                 after=lambda w, visible: w * visible / (w * visible).sum(-1, keepdim=True))),
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
)  # fmt: skip
check_attention_head = check_of(ATTENTION_HEAD)


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
        Case("x not contiguous", (not_contiguous(draw(2, 2, 3, 4, seed=6), 1, 2), 2), MEMORY),
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
)  # fmt: skip
check_repeat_kv = check_of(REPEAT_KV)


def cache_write(cache, length, new):
    """Write new (B, K, T, h) into cache (B, K, M, h) after its first `length` positions; return all keys so far."""
    for t in range(new.shape[2]):
        cache[:, :, length + t] = new[:, :, t]
    return torch.stack([cache[:, :, s] for s in range(length + new.shape[2])], dim=2)


def _and_the_cache(function):
    """Makes the answer what the function returns, and the cache afterwards."""

    def probe(cache, length, new):
        cache = cache.clone()
        result = function(cache, length, new)
        if result is None:
            raise Wrong("it returns None.", "Return all keys so far: what was there, then the new ones.")
        if isinstance(result, tuple):
            raise Wrong(
                f"it returns {len(result)} results, expected one tensor.",
                "Write into the cache that was handed over, and return all keys so far only.",
            )
        if isinstance(result, torch.Tensor) and cache.isnan().all():
            raise Wrong("the cache was overwritten.", "Write only the T positions behind `length`.")
        return (result, cache) if isinstance(result, torch.Tensor) else result

    return probe


def _cache_inputs(batch, heads, room, length, new, seed=0):
    """A cache whose free part holds old numbers, so that it shows when they are read."""
    return draw(batch, heads, room, 3, seed=seed), length, draw(batch, heads, new, 3, seed=seed + 1)


def _write(start, end=None, shown=None, write=True):
    """A cache that writes from `start`, and returns up to `shown`; both are functions of (length, new, room)."""

    def program(cache, length, new):
        count, room = new.shape[2], cache.shape[2]
        first = start(length, count, room)
        if write:
            cache[:, :, first : first + count] = new
        last = shown(length, count, room) if shown else length + count
        return cache[:, :, (end(length) if end else 0) : last]

    return program


def _wrong_dimension(cache, length, new):
    end = length + new.shape[2]
    cache[:, length:end] = new
    return cache[:, :end]


SLOT = "Which is the first free position? Positions count from 0, so `length` itself."
CACHE_WRITE = Exercise(
    cache_write,
    [
        Case("one new key after two", _cache_inputs(1, 1, 5, 2, 1)),
        Case("three new keys after two, B 2, K 3", _cache_inputs(2, 3, 8, 2, 3, 10), "Are all T new keys written?"),
        Case("the first chunk, into an empty cache", _cache_inputs(1, 2, 6, 0, 4, 20)),
        Case("the last free position", _cache_inputs(2, 2, 4, 3, 1, 30), SLOT),
        Case("as many heads as positions", _cache_inputs(1, 4, 4, 1, 2, 40), "Which dimension holds the positions?"),
        Case("float16", each(torch.float16, *_cache_inputs(1, 2, 5, 1, 2, 50))),
        Case("new not contiguous",
             (draw(2, 2, 6, 3, seed=60), 3, not_contiguous(draw(2, 2, 2, 3, seed=61), 1, 2)), MEMORY),
        Case("cache not contiguous", (not_contiguous(draw(2, 2, 6, 3, seed=70), 1, 2), 3, draw(2, 2, 2, 3, seed=71)),
             "Do you write into the cache itself? Of such a cache .reshape makes a copy: index cache[:, :, a:b]."),
    ],
    [
        (SLOT + " Yours leaves one free.", _write(lambda n, t, m: min(n + 1, m - t), shown=lambda n, t, m: n + t)),
        (SLOT + " Yours leaves one free.",
         _write(lambda n, t, m: min(n + 1, m - t), shown=lambda n, t, m: min(n + t + 1, m))),
        (SLOT + " Yours overwrites the last key that was there.",
         _write(lambda n, t, m: max(n - 1, 0), shown=lambda n, t, m: max(n - 1, 0) + t)),
        (SLOT + " Yours overwrites the last key that was there.", _write(lambda n, t, m: max(n - 1, 0))),
        ("Do you write behind what is there? Yours starts at 0 again.", _write(lambda n, t, m: 0)),
        ("Do you write behind what is there? Yours starts at 0 again.",
         _write(lambda n, t, m: 0, shown=lambda n, t, m: t)),
        ("Do you write behind `length`, not at the end of the cache?", _write(lambda n, t, m: m - t)),
        ("Which dimension holds the positions? It is dimension 2.", _wrong_dimension),
        ("Is the result only what is filled? Yours returns the free part too.",
         _write(lambda n, t, m: n, shown=lambda n, t, m: m)),
        ("Are the earlier keys in the result too? Yours returns only the new ones.",
         _write(lambda n, t, m: n, end=lambda n: n)),
        ("Are the new keys in the result? Yours ends at `length`.", _write(lambda n, t, m: n, shown=lambda n, t, m: n)),
        ("Is the cache itself changed? The result is right, but the next call will not find the new keys.",
         lambda cache, n, new: torch.cat((cache[:, :, :n], new), dim=2)),
        ("Is anything written?", _write(lambda n, t, m: n, write=False)),
        ("Do you overwrite, not add to, what stood in the free part?",
         lambda cache, n, new: cache[:, :, n : n + new.shape[2]].add_(new) is None or cache[:, :, : n + new.shape[2]]),
    ],
    hint="Result 1 is what you return, result 2 the cache afterwards. In cache[:, :, a:b] = new, are a and b right?",
    adapt=_and_the_cache,
)  # fmt: skip
check_cache_write = check_of(CACHE_WRITE)


def context_that_fits(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    """How many tokens (int) of one text the cache can hold beside the weights; memory and weights in bytes."""
    free, per_token = memory - weights, 0
    for _ in range(n_layers):
        for _ in ("keys", "values"):
            per_token += n_kv_heads * head_dim * bytes_per_number
    return max(0, free // per_token)


def _fits(per_token=lambda n, k, h, b: 2 * n * k * h * b, free=lambda m, w: m - w, whole=lambda x: max(0, int(x // 1))):
    return lambda m, w, *sizes: whole(free(m, w) / per_token(*sizes))


GB = 10**9
CONTEXT_THAT_FITS = Exercise(
    context_that_fits,
    [
        Case("10,019 bytes, weights 4,000, 2 layers, 3 kv heads of 4, 2 bytes", (10_019, 4_000, 2, 3, 4, 2)),
        Case("exactly 5 tokens fit", (1_000, 40, 2, 3, 4, 4)),
        Case("llama-3-8b in 24 GB", (24 * GB, 2 * 8_030_261_248, 32, 8, 128, 2)),
        Case("llama-2-7b in 24 GB", (24 * GB, 2 * 6_738_415_616, 32, 32, 128, 2)),
        Case("cache in 1 byte per number", (8 * GB, 2 * 1_235_814_400, 16, 8, 64, 1)),
        Case("the weights alone do not fit", (8 * GB, 2 * 8_030_261_248, 32, 8, 128, 2), "Can there be fewer than 0?"),
    ],
    [
        ("Are keys and values both counted? A factor 2 is missing.", _fits(lambda n, k, h, b: n * k * h * b)),
        ("Is the factor 2 there once? Keys and values are two, not four.", _fits(lambda n, k, h, b: 4 * n * k * h * b)),
        ("Has every layer its own cache?", _fits(lambda n, k, h, b: 2 * k * h * b)),
        ("Do you count the key/value heads?", _fits(lambda n, k, h, b: 2 * n * h * b)),
        ("Do you count head_dim?", _fits(lambda n, k, h, b: 2 * n * k * b)),
        ("Do you count the bytes of a number?", _fits(lambda n, k, h, b: 2 * n * k * h)),
        ("Are the bytes of a number bytes_per_number, not always 2?", _fits(lambda n, k, h, b: 4 * n * k * h)),
        ("Are the bytes of a number bytes_per_number, not always 4?", _fits(lambda n, k, h, b: 8 * n * k * h)),
        ("Are the weights subtracted first?", _fits(free=lambda m, w: m)),
        ("Are the weights subtracted, not added?", _fits(free=lambda m, w: m + w)),
        ("Is a part of a token dropped? Round down.", _fits(whole=lambda x: max(0, math.ceil(x)))),
        ("Is a part of a token dropped? Round down.", _fits(whole=lambda x: max(0, round(x)))),
        ("Is a negative count possible? If the weights do not fit, the answer is 0.", _fits(whole=math.floor)),
        ("Is a negative count possible? If the weights do not fit, the answer is 0.", _fits(whole=int)),
        ("Is a negative count possible? If the weights do not fit, the answer is 0.",
         _fits(whole=lambda x: abs(math.floor(x)))),
        ("Is it tokens, not bytes, that are asked?", lambda m, w, *sizes: max(0, m - w)),
        ("Is it the number of tokens, not the bytes of one?", lambda m, w, n, k, h, b: 2 * n * k * h * b),
    ],
    hint="One token needs 2 * n_layers * n_kv_heads * head_dim * bytes_per_number. How often does that fit?",
)  # fmt: skip
check_context_that_fits = check_of(CONTEXT_THAT_FITS)
