"""The exercises of notebook 04, GQA: specification, cases, known mistakes with hints, check."""

import math

import torch
from torch.nn import functional as F

from checks.base import BATCH, MEMORY, Case, Exercise, Wrong, draw, each, not_contiguous
from checks.judge import check_of
from helpers.model import apply_rope


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
SIZES = ((2, 3), (4, 4), (1, 1), (3, 7), (1, 5), (6, 6), (2, 14))
CAUSAL_VISIBLE = Exercise(
    causal_visible,
    [Case(f"n_query {t}, n_key {s}", (t, s), TOP_LEFT if t < s else "") for t, s in SIZES],
    [
        (TOP_LEFT, lambda t, s: torch.ones(t, s).tril().bool()),
        ("Does a query see itself? Yours sees only what is before.", _visible(lambda q, k: k < q)),
        ("Does a query see one key too many, its successor?", _visible(lambda q, k: k <= q + 1)),
        (POLARITY, _visible(lambda q, k: k > q)),
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
        ("Are queries down and keys across? In yours the roles are swapped.",
         lambda t, s: torch.arange(s - t, s) <= torch.arange(s)[:, None]),
        (BOOLEAN + " The -inf belongs into the scores.", _visible(lambda q, k: torch.where(k > q, -math.inf, 0.0))),
        ("Are the keys before all queries visible too? Yours hides them.",
         lambda t, s: torch.cat((torch.zeros(t, s - t), torch.ones(t, t).tril()), dim=1).bool()),
        ("Is the offset n_key - n_query? Yours is always 1.", lambda t, s: torch.ones(t, s).tril(1).bool()),
        ("Do several queries see the right keys, too? Yours is right for one query only.",
         lambda t, s: torch.ones(t, s).bool() if t == 1 else torch.ones(t, s).tril().bool()),
        ("Is the offset n_key - n_query? Yours is n_query.", lambda t, s: torch.ones(t, s).tril(t).bool()),
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


def hide(scores, visible):
    """Scores that are -inf where a key is not visible."""
    return scores.masked_fill(~visible, -math.inf)


def _attend(
    scale=lambda q, k: math.sqrt(q.shape[-1]), mask=hide, softmax=lambda scores: scores.softmax(-1), after=None
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


def _by_hand():
    """Two tokens: query 0 sees the value 10 only; query 1 has the scores 2 and 0, the values are 10 and 20."""
    q, k, v = [[0.0, 1, 0, 1], [2.0, 0, 2, 0]], [[1.0, 1, 1, 1], [1.0, 0, -1, 0]], [[10.0, 0, 0, 0], [20.0, 0, 0, 0]]
    return (torch.tensor([rows]) for rows in (q, k, v))


OVER_KEYS = "Is the softmax over the keys, dim=-1?"
OVERFLOW = "Does exp overflow? torch.softmax does not."
MINUS_INF = "Put -inf before the softmax."


def _attention_cases():
    q, k, v, visible = _attention_inputs(2, 3, 4, 6, 40)
    odd = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    far_q, far_k = torch.tensor([[[20.0]]]), torch.tensor([[[-30.0], [-30.1], [30.0]]])  # scores -300, -301, 300
    far = F.pad(far_q, (0, 3)), F.pad(far_k, (0, 3)), draw(1, 3, 4, seed=90), torch.tensor([[True, True, False]])
    return [
        Case("two tokens, h 4", (*_by_hand(), causal_visible(2, 2))),
        Case("one batch, 4 queries, 4 keys, h 6", _attention_inputs(1, 4, 4, 6)),
        Case("3 queries, 5 keys, h 4", _attention_inputs(1, 3, 5, 4, 70)),
        Case("batch of 3, 4 queries, 4 keys", _attention_inputs(3, 4, 4, 6, 10), BATCH),
        Case("batch, tokens and width all 3", _attention_inputs(3, 3, 3, 3, 20), OVER_KEYS),
        Case("one query, 6 keys", _attention_inputs(2, 1, 6, 4, 30)),
        Case("a mask that is not causal", (q, k, v, odd), "Do you use the mask given, not a causal one of your own?"),
        Case("large scores", _attention_inputs(1, 4, 4, 8, 50, scale=12.0), OVERFLOW),
        Case("hidden score 300, visible ones -300", far, "Is a key hidden however large its score is? " + MINUS_INF),
        Case("float16", each(torch.float16, q, k, v, visible)),
        Case("bfloat16", each(torch.bfloat16, q, k, v, visible)),
        Case("q, k, v not contiguous", (not_contiguous(q), not_contiguous(k), not_contiguous(v), visible), MEMORY),
        Case("gradients", _attention_inputs(1, 2, 3, 4, 60), gradients=True),
    ]


def _naive_softmax(scores):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


SOFTMAX_AXIS = OVER_KEYS + " Each query's weights sum to 1."
ATTENTION_HEAD = Exercise(
    attention_head,
    _attention_cases(),
    [
        ("Are the scores divided by sqrt(h)?", _attend(lambda q, k: 1)),
        ("Is it the root of h, once? You seem to divide by h.", _attend(lambda q, k: q.shape[-1])),
        ("Are the scores divided, not multiplied, by sqrt(h)?", _attend(lambda q, k: q.shape[-1] ** -0.5)),
        ("Is it the root of the width h, not of the number of keys?", _attend(lambda q, k: math.sqrt(k.shape[-2]))),
        ("Is it the root of the width h, not of the number of queries?", _attend(lambda q, k: math.sqrt(q.shape[-2]))),
        ("Which h do you take the root of? It is the width of q, not a number from another cell.",
         _attend(lambda q, k: math.sqrt(1024))),
        ("Do you use the mask? Hidden keys are seen.", _attend(mask=lambda scores, visible: scores)),
        (POLARITY, _attend(mask=lambda scores, visible: hide(scores, ~visible))),
        (POLARITY, lambda q, k, v, visible: F.scaled_dot_product_attention(q, k, v, ~visible)),  # 0 where all is hidden
        ("Does the mask come before the softmax? Masked after it, a row no longer sums to 1.",
         _attend(mask=lambda scores, visible: scores, after=lambda weights, visible: weights * visible)),
        ("Does the mask come before the softmax? Divided by the sum afterwards, a row whose large scores are hidden is "
         "0 / 0.",
         _attend(mask=lambda scores, visible: scores,
                 after=lambda w, visible: w * visible / (w * visible).sum(-1, keepdim=True))),
        ("Is the mask added as 0 and 1? Hidden scores must become -inf.",
         _attend(mask=lambda scores, visible: scores + visible)),
        ("Do hidden scores become -inf, not 0? exp(0) is 1, so a 0 is still seen.",
         _attend(mask=lambda scores, visible: scores * visible)),
        *[("Do hidden scores become -inf? A small number is still seen a little.",
           _attend(mask=lambda scores, visible, fill=fill: scores.masked_fill(~visible, fill)))
          for fill in (-1.0, -10.0)],
        ("0 times -inf is nan: does torch.where or .masked_fill put -inf into the hidden places only?",
         _attend(mask=lambda scores, visible: scores + (~visible) * -math.inf)),
        ("Do you use the mask given, not a causal one of your own?",
         lambda q, k, v, visible: _attend()(q, k, v, causal_visible(q.shape[1], k.shape[1]))),
        ("Are the last two dimensions of k swapped? .reshape keeps the order of the numbers: use .transpose(-2, -1).",
         lambda q, k, v, visible: _attend()(q, k.reshape(len(k), k.shape[2], -1).transpose(-2, -1), v, visible)),
        ("Are queries down and keys across? Your mask is transposed.",
         _attend(mask=lambda scores, visible: hide(scores, visible.T))),
        ("Is each row divided by its own sum, dim=-1, keepdim=True? Yours divides by the sum of everything.",
         _attend(softmax=lambda scores: scores.exp() / scores.exp().sum())),
        (SOFTMAX_AXIS, _attend(softmax=lambda scores: scores.softmax(-2).nan_to_num())),
        (SOFTMAX_AXIS, _attend(softmax=lambda scores: scores.softmax(0))),
        (SOFTMAX_AXIS, _attend(mask=lambda scores, visible: scores, softmax=lambda scores: scores.softmax(0))),
        (SOFTMAX_AXIS, _attend(mask=lambda scores, visible: scores.masked_fill(~visible, -1e4),
                               softmax=lambda scores: scores.softmax(0))),
        ("Does exp overflow? Subtract each row's largest score (.amax), or use torch.softmax.",
         _attend(softmax=_naive_softmax)),
        ("Is the largest score of each row subtracted (.amax)? With one number for all rows, a row can become 0 / 0.",
         _attend(softmax=lambda scores: _naive_softmax(scores - scores.max()))),
        ("Is the softmax missing?", _attend(softmax=lambda scores: scores)),
        ("Is the softmax missing?",
         _attend(softmax=lambda scores: scores, mask=lambda scores, visible: scores.masked_fill(~visible, 0.0))),
        ("Are the exponentials divided by their sum?", _attend(softmax=lambda scores: scores.exp())),
        ("Is it q times k? Your q and k are swapped.", lambda q, k, v, visible: _attend()(k, q, v, visible)),
        ("Are the weights multiplied with v, not with k?", lambda q, k, v, visible: _attend()(q, k, k, visible)),
        ("Are the weights multiplied with v, not with q?", lambda q, k, v, visible: _attend()(q, k, q, visible)),
        ("Are the weights multiplied with v? These are the weights alone.",
         lambda q, k, v, visible: hide(q @ k.mT / math.sqrt(q.shape[-1]), visible).softmax(-1)),
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
        Case("two heads of one number, n_rep 2", (torch.tensor([[[[1.0]], [[2.0]]]]), 2)),
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
        ("Is the order 1 1 2 2? Yours is 1 2 1 2.", lambda x, n: x.repeat(1, n, 1, 1)),
        ("Along which dimension? Without one, repeat_interleave makes a single row of numbers.",
         lambda x, n: x.repeat_interleave(n)),
        (HEAD_AXIS + " You repeat the tokens.", lambda x, n: x.repeat_interleave(n, 2)),
        (HEAD_AXIS + " You repeat the tokens.", lambda x, n: x.repeat(1, 1, n, 1)),
        (HEAD_AXIS + " You repeat the batch.", lambda x, n: x.repeat_interleave(n, 0)),
        (HEAD_AXIS + " You repeat the batch.", lambda x, n: x.repeat(n, 1, 1, 1)),
        (HEAD_AXIS + " You repeat the width.", lambda x, n: x.repeat_interleave(n, 3)),
        (HEAD_AXIS + " You repeat the width.", lambda x, n: x.repeat(1, 1, 1, n)),
        ("Do you use n_rep? The heads come out once.", lambda x, n: x),
        ("Do you use the n_rep given, not a fixed 2?", lambda x, n: x.repeat_interleave(2, 1)),
        ("Does the list depend on n_rep and on the heads of x? [0, 0, 1, 1] is for two heads and n_rep 2.",
         lambda x, n: x[:, [0, 0, 1, 1]]),
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
    """Write new (B, K, T, h) into a rolling cache (B, K, M, h) of the M newest keys; return them, the oldest first."""
    n_slots, end = cache.shape[2], length + new.shape[2]
    for t in range(new.shape[2]):
        cache[:, :, (length + t) % n_slots] = new[:, :, t]
    return torch.stack([cache[:, :, p % n_slots] for p in range(max(0, end - n_slots), end)], dim=2)


def _and_the_cache(function):
    """Makes the answer what the function returns, and the cache afterwards."""

    def probe(cache, length, new):
        cache = cache.clone()
        try:
            result = function(cache, length, new)
        except RuntimeError as error:
            if length % cache.shape[2] + new.shape[2] <= cache.shape[2] or "expanded size" not in str(error):
                raise
            hint = "A slice ends at the last slot: it does not go on at 0."
            raise Wrong(f"the new keys go past the last slot: {error}", hint) from None
        if result is None:
            raise Wrong("it returns None.", "Return the newest keys, the oldest of them first.")
        if isinstance(result, tuple):
            hint = "Write into the cache that was handed over, and return only the newest keys."
            raise Wrong(f"it returns {len(result)} results, expected one tensor.", hint)
        if isinstance(result, torch.Tensor) and cache.isnan().all():
            raise Wrong("the cache was overwritten.", "Write only the T slots of the new keys.")
        return (result, cache) if isinstance(result, torch.Tensor) else result

    return probe


def _numbers(cache, length, new):
    """A case to work out by hand: one head of one number; 99 marks a slot that is still free."""
    return torch.tensor(cache)[None, None, :, None], length, torch.tensor(new)[None, None, :, None]


def _cache_inputs(batch, heads, n_slots, length, new, seed=0):
    """A cache whose free slots hold old numbers, so that it shows when they are read."""
    return draw(batch, heads, n_slots, 3, seed=seed), length, draw(batch, heads, new, 3, seed=seed + 1)


def _newest(cache, length, new):
    """The right result, if the cache is right."""
    n_slots, end = cache.shape[2], length + new.shape[2]
    return cache[:, :, torch.arange(max(0, end - n_slots), end) % n_slots]


def _write(slot=lambda p, n_slots: p % n_slots, shown=_newest, count=lambda new: new.shape[2],
           start=lambda length, n_slots: length):  # fmt: skip
    """A cache that puts position p into a slot of its own choice, and returns what it likes."""

    def program(cache, length, new):
        for t in range(count(new)):
            cache[:, :, slot(start(length, cache.shape[2]) + t, cache.shape[2])] = new[:, :, t]
        return shown(cache, length, new)

    return program


def _ordered(cache, length, new):
    """The keys before, as a new tensor, and the new ones after them, however many."""
    return torch.cat((_newest(cache, length - new.shape[2], new), new), dim=2)


def _modulo(size, both):
    """A cache that divides positions by another number than that of its slots, for writing or for both."""

    def program(cache, length, new):
        at, n_slots, end = size(cache, new), cache.shape[2], length + new.shape[2]
        cache[:, :, torch.arange(length, end) % at] = new
        return cache[:, :, torch.arange(max(0, end - n_slots), end) % (at if both else n_slots)]

    return program


def _shifts(cache, length, new):
    """Takes the slots for the order of position."""
    everything = torch.cat((cache[:, :, :length], new), dim=2)[:, :, -cache.shape[2] :]
    cache[:, :, : everything.shape[2]] = everything
    return everything


def _slots_to_the_end(cache, length, new):
    """The slots of all positions from the oldest key before to the newest: more than M."""
    positions = torch.arange(max(0, length - cache.shape[2]), length + new.shape[2])
    return cache[:, :, positions % cache.shape[2]]


def _cut_off(cache, length, new):
    """Writes what fits between the next slot and the last."""
    room = cache.shape[2] - length % cache.shape[2]
    return _write(count=lambda new: min(room, new.shape[2]))(cache, length, new)


def _start_again(cache, length, new):
    """Writes from slot 0 on if the new keys go past the last slot."""
    first = length % cache.shape[2]
    return _write(lambda p, n: p - length + (0 if first + new.shape[2] > n else first))(cache, length, new)


def _moves_all(cache, length, new):
    everything = _ordered(cache, length, new)[:, :, -cache.shape[2] :]
    cache[:, :, : everything.shape[2]] = everything
    return everything


SLOT = "Which slot comes next? Positions and slots both count from 0."
NEW = "Are all T new keys written? T is new.shape[2]; len(new) is the batch."
ORDER = "Are the keys in order of position, the oldest first? Yours are in order of slot."
MOVES = "Does every key keep its slot until it is the oldest? Yours move along."
TOO_MANY = "How many keys does the cache hold? At most M, the new ones among them; yours returns more."
MODULO = "Is it position % M? M is the number of slots, cache.shape[2]."
ITSELF = "Is the cache itself changed? torch.cat makes a new tensor: write into the slots of `cache`."
ROLLS = "Here the new keys go past the last slot: which slots come next?"
CACHE_WRITE = Exercise(
    cache_write,
    [
        Case("4 slots, one key before, two new", _numbers([10.0, 99.0, 99.0, 99.0], 1, [20.0, 21.0])),
        Case("4 slots, 3 keys before, two new", _numbers([10.0, 11.0, 12.0, 99.0], 3, [20.0, 21.0]), ROLLS),
        Case("4 slots, 9 keys before, one new", _numbers([18.0, 15.0, 16.0, 17.0], 9, [20.0]), ROLLS),
        Case("three new keys after two, B 2, K 3, M 8", _cache_inputs(2, 3, 8, 2, 3, 10)),
        Case("into an empty cache", _cache_inputs(1, 2, 6, 0, 4, 20)),
        Case("as many new keys as slots, after six", _cache_inputs(2, 2, 4, 6, 4, 30), ROLLS),
        *[Case(f"4 slots, {length} keys before, {'two' if new == 2 else 'one'} new",
               _cache_inputs(1, 1, 4, length, new, 80 + length), ROLLS if length >= 4 else "")
          for length, new in ((2, 2), (4, 1), (6, 2), (8, 2))],
        Case("as many heads as slots", _cache_inputs(1, 4, 4, 1, 2, 40)),
        Case("float16", each(torch.float16, *_cache_inputs(1, 2, 5, 4, 2, 50)), ROLLS),
        Case("new not contiguous",
             (draw(2, 2, 6, 3, seed=60), 3, not_contiguous(draw(2, 2, 2, 3, seed=61), 1, 2)), MEMORY),
        Case("cache not contiguous", (not_contiguous(draw(2, 2, 6, 3, seed=70), 1, 2), 3, draw(2, 2, 2, 3, seed=71)),
             "Do you write into the cache itself? Of such a cache .reshape makes a copy: index cache[:, :, slots]."),
    ],
    [
        (SLOT + " Yours leaves one free.", _write(lambda p, n: (p + 1) % n)),
        (SLOT + " Yours overwrites the newest key.", _write(lambda p, n: (p - 1) % n)),
        ("Does the first new key go into slot length % M? Yours starts one slot too early.",
         _write(lambda p, n: max(0, p - 1) % n)),
        ("Do you read the slots in the order of positions? Yours starts one slot too early when all are full.",
         _write(shown=lambda cache, length, new:
                _newest(cache, length, new).roll(int(length + new.shape[2] > cache.shape[2]), 2))),
        ("Do you read the slots in the order of positions? Yours starts one slot too late when all are full.",
         _write(shown=lambda cache, length, new:
                _newest(cache, length, new).roll(-int(length + new.shape[2] > cache.shape[2]), 2))),
        ("How many keys have been written? length + T in all: length % M forgets that the cache was full.",
         _write(shown=lambda cache, length, new: _newest(cache, length % cache.shape[2], new))),
        ("When length % M is 0, is the cache empty, or full? Yours takes it for empty.",
         _write(shown=lambda cache, length, new: _newest(cache, length if length % cache.shape[2] else 0, new))),
        ("Do you return all M when the last slot has just been filled? Yours leaves out the oldest.",
         _write(shown=lambda cache, length, new:
                _newest(cache, length, new)[:, :, int(length + new.shape[2] == cache.shape[2]) :])),
        ("When the newest key is in the last slot, is the oldest still returned? Yours leaves it out.",
         _write(shown=lambda cache, length, new:
                _newest(cache, length, new)[:, :, int((length + new.shape[2]) % cache.shape[2] == 0) :])),
        ("When all slots are full, which comes next, after the last? Yours goes on in the last one, on the newest key.",
         _write(lambda p, n: p % n, start=lambda length, n: n - 1 if length and length % n == 0 else length)),
        ("Do you go on at slot 0 when the last slot is filled? Yours drops the keys that do not fit.", _cut_off),
        ("When the new keys do not fit, do they still start at slot length % M? Yours start at slot 0.", _start_again),
        (NEW, _write(count=lambda new: 1)),
        (NEW, _write(count=lambda new: min(len(new), new.shape[2]))),
        ("Do you go on where the last key was written? Yours starts at slot 0 again.",
         lambda cache, length, new: _write()(cache, 0, new) is None or _newest(cache, length, new)),
        ("Do you go on where the last key was written? Yours starts at slot 0 again.",
         lambda cache, length, new: _write()(cache, 0, new)),
        ("Which key makes room when all slots are full? Yours overwrites the last slot again and again.",
         _write(lambda p, n: min(p, n - 1))),
        (MOVES, _moves_all),
        (MOVES, _shifts),
        (TOO_MANY, _write(shown=_slots_to_the_end)),
        (TOO_MANY, lambda cache, length, new: (_ordered(cache, length, new), _write()(cache, length, new))[0]),
        (ITSELF, lambda cache, length, new: _shifts(cache.clone(), length, new)),
        ("Is the result taken after the new keys are written? An index of slots makes a copy.",
         lambda cache, length, new: (_newest(cache, length, new), _write()(cache, length, new))[0]),
        *[(MODULO, _modulo(lambda cache, new: new.shape[2], both)) for both in (True, False)],
        *[(MODULO, _modulo(lambda cache, new: cache.shape[1], both)) for both in (True, False)],
        (ORDER, _write(shown=lambda cache, length, new: cache[:, :, : length + new.shape[2]])),
        ("How many keys are there before all slots are full? Yours returns M even then.",
         _write(shown=lambda cache, length, new: cache.roll(-(length + new.shape[2]), 2))),
        ("Is only what has been written returned? Yours returns free slots too.",
         _write(shown=lambda cache, *_: cache)),
        ("How many keys are returned when all slots are full? All M; yours leaves out the oldest.",
         _write(shown=lambda cache, length, new:
                _newest(cache, length, new)[:, :, int(length + new.shape[2] >= cache.shape[2]) :])),
        ("Are the newest keys first? The oldest should be.", _write(shown=lambda *args: _newest(*args).flip(2))),
        ("Are the earlier keys in the result? Yours returns only the new ones.", _write(shown=lambda c, n, new: new)),
        ("Are the new keys in the result? Yours ends at `length`.",
         _write(shown=lambda cache, length, new: _newest(cache, length - new.shape[2], new))),
        ("Is the cache itself changed? The result is right, but the next call will not find the new keys.",
         lambda cache, length, new: _write()(cache.clone(), length, new)),
        ("Is anything written?", _write(count=lambda new: 0)),
    ],
    parts=("what you return", "the cache afterwards"),
    adapt=_and_the_cache,
)  # fmt: skip
check_cache_write = check_of(CACHE_WRITE)


def gqa_layer(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    """The whole layer, (B, T, D), of x (B, T, D): weights as in nn.Linear, RoPE for queries and keys, a causal mask."""
    x = x.double()
    q, k, v = ([x @ rows.double().T for rows in w.split(head_dim)] for w in (w_q, w_k, w_v))
    q, k = ([apply_rope(head, cos, sin) for head in heads] for heads in (q, k))
    visible, n_rep, y = causal_visible(x.shape[1], x.shape[1]), len(q) // len(k), 0.0
    for i, columns in enumerate(w_o.double().split(head_dim, dim=1)):
        y = y + attention_head(q[i], k[i // n_rep], v[i // n_rep], visible) @ columns.T
    return y.to(w_o.dtype)


def _split(y, h):
    return y.unflatten(-1, (-1, h)).transpose(1, 2)


def _share(y, n_rep):
    return y.repeat_interleave(n_rep, 1)


def _tile(y, n_rep):
    return y.repeat(1, n_rep, 1, 1)


def _merge(mixed):
    return mixed.transpose(1, 2).flatten(-2)


def _layer(split=_split, turn=(True, True, False), share=(_share, _share), scale=lambda h, dim: math.sqrt(h),
           visible=causal_visible, merge=_merge,
           weigh=lambda scores, visible: hide(scores, visible).softmax(-1),
           out=lambda merged, w_o, x: merged @ w_o.T):  # fmt: skip
    """The layer with one slip."""

    def program(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
        q, k, v = (
            apply_rope(y, cos, sin) if turned else y
            for y, turned in zip((split(x @ w.T, head_dim) for w in (w_q, w_k, w_v)), turn, strict=True)
        )
        k, v = (one(y, q.shape[1] // y.shape[1]) for one, y in zip(share, (k, v), strict=True))
        weights = weigh(q @ k.transpose(-2, -1) / scale(head_dim, x.shape[-1]), visible(x.shape[1], x.shape[1]))
        return out(merge(weights @ v), w_o, x)

    return program


def _turned_before_the_heads_move(x, *rest):
    w_q, w_k, w_v, w_o, h, cos, sin = rest
    q, k, v = ((x @ w.T).unflatten(-1, (-1, h)) for w in (w_q, w_k, w_v))
    q, k, v = (y.transpose(1, 2) for y in (apply_rope(q, cos, sin), apply_rope(k, cos, sin), v))
    weights = hide(q @ k.mT / math.sqrt(h), causal_visible(len(x[0]), len(x[0]))).softmax(-1)
    return _merge(weights @ v) @ w_o.T


def _scaled_by_share(x, w_q, *rest):
    n_heads = len(w_q) // rest[3]
    return _layer(scale=lambda h, dim: math.sqrt(dim / n_heads))(x, w_q, *rest)


def _layer_inputs(batch, t, dim, n_heads, n_kv_heads, h, seed=0):
    sizes = ((n_heads * h, dim), (n_kv_heads * h, dim), (n_kv_heads * h, dim), (dim, n_heads * h))
    weights = [draw(*size, seed=seed + i, scale=1.5 * size[1] ** -0.5) for i, size in enumerate(sizes)]
    angles = torch.arange(t)[:, None] / 3.0 ** torch.arange(h // 2)
    return draw(batch, t, dim, seed=seed + 9), *weights, h, angles.cos(), angles.sin()


SPLIT = "Split: is the last dimension cut into heads first, and are the heads then moved to the front?"
MERGE = (
    "Merge: are the heads moved behind the tokens first? Otherwise a row holds other tokens' results, later ones too."
)
ROPE = "Does RoPE turn queries and keys, and not values?"
BACK = "Is the merged row multiplied by w_o.T at the end?"
GQA_LAYER = Exercise(
    gqa_layer,
    [
        Case("2 tokens, 2 heads each, h 2, D 4", _layer_inputs(1, 2, 4, 2, 2, 2, 80)),
        Case("3 tokens, 2 query heads, 1 key/value head, h 2, D 4", _layer_inputs(1, 3, 4, 2, 1, 2)),
        Case("B 2, T 5, D 12, 4 query heads, 2 key/value heads, h 4", _layer_inputs(2, 5, 12, 4, 2, 4, 10)),
        Case("as many key/value heads, B 2, T 3, D 8, H 4, h 2", _layer_inputs(2, 3, 8, 4, 4, 2, 20)),
        Case("batch, tokens, query heads and width all 4", _layer_inputs(4, 4, 16, 4, 2, 4, 30)),
        Case("6 query heads, 2 key/value heads", _layer_inputs(1, 7, 6, 6, 2, 2, 40)),
        Case("one token", _layer_inputs(3, 1, 8, 4, 2, 2, 50)),
        Case("x not contiguous", (not_contiguous(draw(3, 5, 12, seed=60)), *_layer_inputs(1, 5, 12, 4, 2, 4, 10)[1:]),
             MEMORY),
        Case("gradients", _layer_inputs(1, 3, 4, 2, 1, 2, 70), gradients=5),
    ],
    [
        (MERGE, _layer(merge=lambda mixed: mixed.reshape(len(mixed), mixed.shape[2], -1))),
        ("Merge: is each head's row kept together? Yours puts the first number of every head first.",
         _layer(merge=lambda mixed: mixed.permute(0, 2, 3, 1).flatten(-2))),
        (SPLIT + " Yours takes a head's numbers from several tokens.",
         _layer(split=lambda y, h: y.reshape(len(y), -1, y.shape[1], h))),
        ("Split: are a head's numbers neighbours, (heads, head_dim) in this order?",
         _layer(split=lambda y, h: y.unflatten(-1, (h, -1)).movedim(-1, 1))),
        *[(f"Which query heads share? Neighbours: 0 0 1 1. {what} 0 1 0 1.", _layer(share=share))
          for what, share in (("Yours is", (_tile, _tile)), ("In yours the keys are", (_tile, _share)),
                              ("In yours the values are", (_share, _tile)))],
        ("Do you use all key/value heads? Yours reads the first one only.",
         _layer(share=2 * [lambda y, n: y[:, :1].expand(-1, n * y.shape[1], -1, -1)])),
        ("RoPE turns (B, heads, T, h), by position. Yours turns (B, T, heads, h), by the number of the head.",
         _turned_before_the_heads_move),  # looks like no turn at all where it does not crash
        (ROPE + " Yours turns nothing.", _layer(turn=(False, False, False))),
        (ROPE + " Yours turns the values, too.", _layer(turn=(True, True, True))),
        (ROPE + " Your keys are not turned.", _layer(turn=(True, False, False))),
        (ROPE + " Your queries are not turned.", _layer(turn=(False, True, False))),
        (ROPE + " Yours turns values instead of keys.", _layer(turn=(True, False, True))),
        ("Is there a mask? Every token sees the future.", _layer(visible=lambda t, s: torch.ones(t, s).bool())),
        (POLARITY, _layer(visible=lambda t, s: torch.ones(t, s).triu().bool())),
        ("Does a query see what is before it, too?", _layer(visible=lambda t, s: torch.eye(t).bool())),
        ("Are the scores divided by sqrt(head_dim)?", _layer(scale=lambda h, dim: 1)),
        ("Is it the root of head_dim, once? SDPA already divides.", _layer(scale=lambda h, dim: h)),
        ("Is it the root of head_dim? Yours is that of D.", _layer(scale=lambda h, dim: math.sqrt(dim))),
        ("Is it the root of head_dim? Yours is that of D / H: H * h need not be D.", _scaled_by_share),
        ("Does the softmax run over the keys, the last dimension? Yours runs over the queries.",
         _layer(weigh=lambda scores, visible: hide(scores, visible).softmax(-2))),
        ("Does the mask act on the scores, before the softmax? Yours acts on the weights.",
         _layer(weigh=lambda scores, visible: scores.softmax(-1) * visible)),
        ("Does a hidden score end at minus infinity? A score of 0 still gets a weight.",
         _layer(weigh=lambda scores, visible: (scores * visible).softmax(-1))),
        (BACK + " It is missing.", _layer(out=lambda merged, w_o, x: merged)),
        (BACK + " Yours takes w_o, not transposed.", _layer(out=lambda merged, w_o, x: merged @ w_o)),
        ("Is the input added at the end? The block does that, not the layer.",
         _layer(out=lambda merged, w_o, x: x + merged @ w_o.T)),
        ("Are keys and values mixed up?",
         lambda x, w_q, w_k, w_v, *rest: _layer()(x, w_q, w_v, w_k, *rest)),
    ],
    allow=("apply_rope",),
)  # fmt: skip
check_gqa_layer = check_of(GQA_LAYER)
