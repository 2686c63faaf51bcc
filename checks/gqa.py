"""The exercises of notebook 04, GQA: specification, cases, known mistakes with hints, check."""

import math
from functools import partial

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from checks.base import BATCH, MEMORY, Case, Exercise, Wrong, draw, each, edited, not_contiguous
from checks.judge import check_of
from helpers.model import apply_rope


def causal_visible(n_query, n_key):
    """Which keys each query may see, (n_query, n_key) bool: its own and those before; the queries come last."""
    rows = [[key <= query for key in range(n_key)] for query in range(n_key - n_query, n_key)]
    return torch.tensor(rows, dtype=torch.bool)


_visible = partial(edited, causal_visible)
TOP_LEFT = "The queries are the last positions: is the triangle aligned at the bottom right, not at the top left?"
POLARITY = "Is the mask inverted? True means: may attend."
BOOLEAN = "Is the result boolean? Compare positions with <=, or end with .bool()."
SIZES = ((2, 3), (4, 4), (1, 1), (3, 7), (1, 5), (6, 6), (2, 14))
CAUSAL_VISIBLE = Exercise(
    causal_visible,
    [Case(f"n_query {t}, n_key {s}", (t, s), TOP_LEFT if t < s else "") for t, s in SIZES],
    [
        (TOP_LEFT, lambda t, s: torch.ones(t, s).tril().bool()),
        ("Does a query see itself? Yours sees only what is before.", _visible("<=", "<")),
        ("Does a query see one key too many, its successor?", _visible("<= query", "<= query + 1")),
        (POLARITY, _visible("<=", ">")),
        ("Is it <=, not >=? Yours sees the future and not the past.", _visible("<=", ">=")),
        ("Is it <=, not >=? Yours sees the future and not the past.", lambda t, s: torch.ones(t, s).triu().bool()),
        ("Is anything hidden? Every query sees every key.", lambda t, s: torch.ones(t, s).bool()),
        ("Does a query see the past too? Yours sees only itself.", _visible("<=", "==")),
        ("Do you return only the rows of the queries? Yours has all n_key rows.",
         _visible("range(n_key - n_query, n_key)", "range(n_key)")),
        ("Do you return a column for every key? Yours has n_query columns.",
         lambda t, s: torch.ones(t, t).tril().bool()),
        ("Are queries down and keys across? Yours is transposed.", lambda t, s: causal_visible(t, s).T),
        ("Are queries down and keys across? In yours the roles are swapped.",
         lambda t, s: torch.arange(s - t, s) <= torch.arange(s)[:, None]),
        (BOOLEAN + " The -inf belongs into the scores.",
         _visible("key <= query", "0.0 if key <= query else -math.inf", ", dtype=torch.bool", "")),
        ("Are the keys before all queries visible too? Yours hides them.",
         lambda t, s: torch.cat((torch.zeros(t, s - t), torch.ones(t, t).tril()), dim=1).bool()),
        ("Is the offset n_key - n_query? Yours is always 1.", lambda t, s: torch.ones(t, s).tril(1).bool()),
    ],
    dtype_hint=BOOLEAN,
)  # fmt: skip
check_causal_visible = check_of(CAUSAL_VISIBLE)


def attention_head(q, k, v, visible):
    """One head: (B, T, h) from q (B, T, h), k and v (B, S, h), visible (T, S) bool; scores divided by sqrt(h)."""
    scores = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    scores = hide(scores, visible)
    weights = scores.softmax(-1)
    return (weights @ v.double()).to(q.dtype)


def hide(scores, visible):
    """Scores that are -inf where a key is not visible."""
    return scores.masked_fill(~visible, -math.inf)


_head = partial(edited, attention_head)


def _attention_inputs(batch, t, s, h, seed=0, scale=1.5):
    q, k, v = (draw(batch, n, h, seed=seed + i, scale=scale) for i, n in enumerate((t, s, s)))
    return q, k, v, causal_visible(t, s)


def _by_hand():
    """Two tokens: query 0 sees the value 10 only; query 1 has the scores 2 and 0, the values are 10 and 20."""
    q, k, v = [[0.0, 1, 0, 1], [2.0, 0, 2, 0]], [[1.0, 1, 1, 1], [1.0, 0, -1, 0]], [[10.0, 0, 0, 0], [20.0, 0, 0, 0]]
    return (torch.tensor([rows]) for rows in (q, k, v))


OVER_KEYS = "Is the softmax over the keys, dim=-1?"
OVERFLOW = "Has each row its own largest score, subtracted before exp? Otherwise exp overflows, or all of a row is 0."
GIVEN = "Do you use the mask given, not a causal one of your own?"
ODD = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
SDPA = ("scaled_dot_product_attention",)
BY_ROOT, HIDDEN = " / math.sqrt(q.shape[-1])", "hide(scores, visible)"

FOUR_KEYS = _attention_inputs(2, 3, 4, 6, 40)
FAR_KEYS = torch.tensor([[[-30.0], [-30.1], [30.0]]])  # with a query of 20 the scores are -300, -301, 300
FAR = F.pad(torch.tensor([[[20.0]]]), (0, 3)), F.pad(FAR_KEYS, (0, 3)), draw(1, 3, 4, seed=90)
ATTENTION_HEAD = Exercise(
    attention_head,
    [
        Case("two tokens, h 4", (*_by_hand(), causal_visible(2, 2))),
        Case("one batch, 4 queries, 4 keys, h 6", _attention_inputs(1, 4, 4, 6)),
        Case("3 queries, 5 keys, h 4", _attention_inputs(1, 3, 5, 4, 70)),
        Case("batch of 3, 4 queries, 4 keys", _attention_inputs(3, 4, 4, 6, 10), BATCH),
        Case("batch, tokens and width all 3", _attention_inputs(3, 3, 3, 3, 20), OVER_KEYS),
        Case("one query, 6 keys", _attention_inputs(2, 1, 6, 4, 30)),
        Case("a mask that is not causal", (*FOUR_KEYS[:3], ODD), GIVEN),
        Case("large scores", _attention_inputs(1, 4, 4, 8, 50, scale=12.0), OVERFLOW),
        Case("hidden score 300, visible ones -300", (*FAR, torch.tensor([[True, True, False]])),
             "Is a key hidden however large its score is? Put -inf before the softmax."),
        Case("float16", each(torch.float16, *FOUR_KEYS)),
        Case("bfloat16", each(torch.bfloat16, *FOUR_KEYS)),
        Case("q, k, v not contiguous", (*map(not_contiguous, FOUR_KEYS[:3]), FOUR_KEYS[3]), MEMORY),
        Case("gradients", _attention_inputs(1, 2, 3, 4, 60), gradients=True),
    ],
    [
        ("Are the scores divided by sqrt(h)?", _head(BY_ROOT, "")),
        ("Is it the root of h, once? You seem to divide by h.", _head(BY_ROOT, " / q.shape[-1]")),
        ("Are the scores divided, not multiplied, by sqrt(h)?", _head(BY_ROOT, " * math.sqrt(q.shape[-1])")),
        ("Is it the root of the width h, not of the number of keys?", _head(BY_ROOT, " / math.sqrt(k.shape[-2])")),
        ("Do you use the mask? Hidden keys are seen.", _head(HIDDEN, "scores")),
        (POLARITY, _head(HIDDEN, "hide(scores, ~visible)")),
        ("Does the mask come before the softmax? Masked after it, a row no longer sums to 1.",
         _head(HIDDEN, "scores", "scores.softmax(-1)", "scores.softmax(-1) * visible")),
        ("Is the mask added as 0 and 1? Hidden scores must become -inf.", _head(HIDDEN, "scores + visible")),
        ("Do hidden scores become -inf, not 0? exp(0) is 1, so a 0 is still seen.", _head(HIDDEN, "scores * visible")),
        *[("Do hidden scores become -inf? A small number is still seen a little.",
           _head(HIDDEN, f"scores.masked_fill(~visible, {fill})")) for fill in (-1.0, -10.0)],
        ("0 times -inf is nan: does torch.where or .masked_fill put -inf into the hidden places only?",
         _head(HIDDEN, "scores + ~visible * -math.inf")),
        (GIVEN, _head(HIDDEN, "hide(scores, causal_visible(*scores.shape[-2:]))")),
        ("Are the last two dimensions of k swapped? .reshape keeps the order of the numbers: use .transpose(-2, -1).",
         _head(".mT", ".reshape(len(k), k.shape[-1], -1)")),
        ("Are queries down and keys across? Your mask is transposed.", _head(HIDDEN, "hide(scores, visible.T)")),
        ("Is each row divided by its own sum, dim=-1, keepdim=True? Yours divides by the sum of everything.",
         _head("softmax(-1)", "exp()", "weights @", "weights / weights.sum() @")),
        (OVER_KEYS + " Each query's weights sum to 1.", _head("softmax(-1)", "softmax(-2).nan_to_num()")),
        ("Does exp overflow? Subtract each row's largest score (.amax), or use torch.softmax.",
         _head("softmax(-1)", "float().exp().double()", "weights @", "weights / weights.sum(-1, keepdim=True) @")),
        ("Is the softmax missing?", _head("scores.softmax(-1)", "scores")),
        ("Are the exponentials divided by their sum?", _head("softmax(-1)", "exp()")),
        ("Is it q times k? Your q and k are swapped.", lambda q, k, v, visible: attention_head(k, q, v, visible)),
        ("Are the weights multiplied with v, not with k?", _head("v.double()", "k.double()")),
        ("Are the weights multiplied with v? These are the weights alone.", _head(" @ v.double()", "")),
        ("Are the scores divided before the softmax? You divide after it.",
         _head(BY_ROOT, "", "weights @", "weights / math.sqrt(q.shape[-1]) @")),
    ],
    forbid=SDPA,
)  # fmt: skip
check_attention_head = check_of(ATTENTION_HEAD)


class _Largest(TorchDispatchMode):
    """While it is on: how many numbers the largest float tensor has that is made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self.numbers = max(self.numbers, one.untyped_storage().nbytes() // one.element_size())
        return made


def _within(room, hint):
    """The `adapt` that refuses an answer which, from 32 keys on, makes a float tensor larger than room(inputs)."""

    def adapt(function):
        def probe(*inputs):
            with _Largest() as made:
                result = function(*inputs)
            if inputs[1].shape[-2] >= 32 and made.numbers > room(*inputs):
                message = f"it makes a float tensor of {made.numbers:,} numbers; {room(*inputs):,} are enough."
                raise Wrong(message, hint)
            return result

        return probe

    return adapt


def rows(q, k, v, visible):
    """All heads of q (B, H, T, h), k and v (B, K, S, h), visible (T, S) or (B, 1, T, S), without a copy of k or v."""
    n_rep, seen = q.shape[1] // k.shape[1], visible.expand(len(q), 1, -1, -1)[:, 0]
    heads = [attention_head(q[:, i], k[:, i // n_rep], v[:, i // n_rep], seen) for i in range(q.shape[1])]
    return torch.stack(heads, dim=1)


def _as_rows(q, k, v, visible):
    """The same with the query heads that share a key/value head as rows of one product, for the slips."""
    T, K, R = q.shape[2], k.shape[1], q.shape[1] // k.shape[1]
    stacked = q.unflatten(1, (K, R)).flatten(2, 3)
    seen = torch.cat([visible] * R, dim=-2)
    mixed = attention_head(stacked, k, v, seen)
    return mixed.unflatten(2, (R, T)).flatten(1, 2)


_rows = partial(edited, _as_rows)


def _heads_inputs(batch, n_heads, n_kv_heads, t, s, h, seed=0, scale=1.5):
    q = draw(batch, n_heads, t, h, seed=seed, scale=scale)
    return q, *(draw(batch, n_kv_heads, s, h, seed=seed + i, scale=scale) for i in (1, 2)), causal_visible(t, s)


PADDED = causal_visible(3, 5) & (torch.arange(5) >= torch.tensor([0, 2])[:, None, None, None])  # (2, 1, 3, 5)
STARTS = "Row r * T + t of a group is token t: does the mask start again with each head? Yours goes on counting."
COPIED = "Keys or values are copied for the query heads that share them: repeat, reshape of an expand, and @ where it "
COPIED += "broadcasts do that. Make the queries rows."
REPEATED = "torch.cat([visible] * R, dim=-2)"
NEIGHBOURS = "Which query heads share? Neighbours: 0 0 1 1. "
ROWS = Exercise(
    rows,
    [
        Case("2 query heads, 1 key/value head, 2 tokens, h 2", _heads_inputs(1, 2, 1, 2, 2, 2)),
        Case("6 query heads, 3 key/value heads, 3 queries, 5 keys", _heads_inputs(2, 6, 3, 3, 5, 4, 10)),
        Case("6 query heads, 2 key/value heads, 4 queries, 4 keys", _heads_inputs(2, 6, 2, 4, 4, 4, 20)),
        Case("one query, 6 keys", _heads_inputs(3, 4, 2, 1, 6, 4, 30)),
        Case("as many key/value heads", _heads_inputs(1, 3, 3, 2, 4, 4, 40)),
        Case("batch, query heads, tokens and width all 4", _heads_inputs(4, 4, 2, 4, 4, 4, 50)),
        Case("a mask that is not causal", (*_heads_inputs(2, 4, 2, 3, 4, 6, 60)[:3], ODD), GIVEN),
        Case("visible (B, 1, T, S): the second text is padded", (*_heads_inputs(2, 4, 2, 3, 5, 4, 70)[:3], PADDED),
             "Does a mask of four dimensions work, too? Its queries are dimension -2."),
        Case("large scores", _heads_inputs(1, 4, 2, 3, 4, 8, 80, scale=12.0), OVERFLOW),
        Case("bfloat16", each(torch.bfloat16, *_heads_inputs(2, 4, 2, 3, 5, 4, 90))),
        Case("q not contiguous",
             (not_contiguous(draw(2, 4, 3, 4, seed=100), 1, 2), *_heads_inputs(2, 4, 2, 3, 5, 4)[1:]), MEMORY),
        Case("one query, 40 keys, 8 query heads, 2 key/value heads", _heads_inputs(1, 8, 2, 1, 40, 8, 110)),
        Case("gradients", _heads_inputs(1, 4, 2, 2, 3, 4, 120), gradients=3),
    ],
    [
        *[(STARTS, _rows(REPEATED, f"torch.ones(R * T, k.shape[2]).tril({first}).bool()"))
          for first in ("k.shape[2] - T", "0", "k.shape[2] - R * T")],
        ("Are the mask's rows repeated as a whole, t = 0 1 2 0 1 2? Yours are 0 0 1 1 2 2.",
         _rows(REPEATED, "visible.repeat_interleave(R, -2)")),
        ("In which order are your rows? They go token by token, 0 0 1 1, the mask's go head by head, 0 1 0 1.",
         _rows("(K, R))", "(K, R)).transpose(2, 3)", "(R, T))", "(T, R)).transpose(2, 3)")),
        (NEIGHBOURS + "Yours is 0 1 0 1.",
         _rows("(K, R))", "(R, K)).transpose(1, 2)", "(R, T))", "(R, T)).transpose(1, 2)")),
        (NEIGHBOURS + "Yours are grouped 0 1 0 1, and not put back.", _rows("(K, R))", "(R, K)).transpose(1, 2)")),
        *[("Are a head's tokens kept together? A reshape after .transpose(1, 2) mixes them with other heads'.", slip)
          for slip in (_rows("unflatten(1, (K, R)).flatten(2, 3)", "transpose(1, 2).reshape(len(q), K, R * T, -1)"),
                       _rows("unflatten(2, (R, T)).flatten(1, 2)", "reshape(len(q), T, K * R, -1).transpose(1, 2)"))],
        ("Do you use all key/value heads? Yours reads the first one only.",
         lambda q, k, v, visible: rows(q, k[:, :1], v[:, :1], visible)),
        ("Do you use the mask? Hidden keys are seen.", _rows("v, seen", "v, torch.ones_like(seen)")),
        (POLARITY, _rows("v, seen", "v, ~seen")),
        ("Does the mask hold for each head of a group? Yours hides keys from the first only.",
         _rows(REPEATED, "torch.cat([visible] + [torch.ones_like(visible)] * (R - 1), dim=-2)")),
        ("Has each text its own mask? Yours takes the first text's for all.",
         _rows("[visible]", "[visible if visible.ndim == 2 else visible[0, 0]]")),
        ("Are the scores divided by sqrt(h)?", _rows("stacked, k", "stacked * math.sqrt(q.shape[-1]), k")),
        *[("Is it the root of the width h, once? You divide by another number.",
           _rows("stacked, k", f"stacked * math.sqrt({ratio}), k"))
          for ratio in ("q.shape[-1] / T", "q.shape[-1] / k.shape[2]", "1 / q.shape[-1]")],
    ],
    forbid=SDPA,
    adapt=_within(lambda q, k, v, visible: k.numel(), COPIED),
)  # fmt: skip
check_rows = check_of(ROWS)


def attention_in_blocks(q, k, v, visible, block):
    """One head as attention_head, from `block` keys at a time: never a table of all scores."""
    queries = zip(q.split(1, dim=1), visible.split(1), strict=True)  # one at a time: no table either
    return torch.cat([attention_head(query, k, v, seen) for query, seen in queries], dim=1)


def _in_blocks(q, k, v, visible, block):
    """The same with a running maximum, denominator and mixture, for the slips."""
    top = torch.full_like(q[..., :1], -1e30)
    total, mixed = torch.zeros_like(top), torch.zeros_like(q)
    for keys, values, seen in zip(*(y.split(block, dim=1) for y in (k, v, visible)), strict=True):
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        scores = hide(scores, seen)
        before, top = top, torch.maximum(top, scores.amax(-1, keepdim=True))
        shares, down = (scores - top).exp(), (before - top).exp()
        total = total * down + shares.sum(-1, keepdim=True)
        mixed = mixed * down + shares @ values
    return mixed / total


_blocks = partial(edited, _in_blocks)


def _mean_of_blocks(q, k, v, visible, block):
    blocks = list(zip(*(y.split(block, dim=1) for y in (k, v, visible)), strict=True))
    return sum(attention_head(q, *one) for one in blocks) / len(blocks)


def _rising(batch, n, h, seed=0, slope=1.0, shift=0.0):
    """Scores that rise from key to key, so that the maximum moves in each block; a slope of -1: never."""
    q, k, v, visible = _attention_inputs(batch, n, n, h, seed)
    q[..., 0], k[..., 0] = h**0.5, slope * torch.arange(n) + shift
    return q, k, v, visible


KEPT = "When a block brings a larger score, is what was summed before multiplied by exp(old maximum - new one)? "
EMPTY = "A block that a query does not see at all: -inf - (-inf) is nan. Does the maximum begin at a large negative "
EMPTY += "number, not at -inf?"
BELOW = "Does the maximum begin below every score, also below -300?"
HIDE_FIRST = "Is the maximum that of the visible keys? Hide before .amax."
TABLE = "Only the scores of `block` keys may be there at a time, never a table of all."
ATTENTION_IN_BLOCKS = Exercise(
    attention_in_blocks,
    [
        Case("two tokens, blocks of 1 key", (*_by_hand(), causal_visible(2, 2), 1)),
        Case("12 tokens, rising scores, blocks of 4", (*_rising(1, 12, 4), 4)),
        Case("12 tokens, falling scores, blocks of 4", (*_rising(2, 12, 4, 10, -1.0), 4)),
        Case("3 queries, 7 keys, blocks of 3", (*_attention_inputs(2, 3, 7, 4, 20), 3)),
        Case("one block for all", (*_attention_inputs(2, 4, 4, 6, 30), 8)),
        Case("the first blocks are hidden from late queries",
             (*_attention_inputs(1, 6, 6, 4, 40)[:3], torch.ones(6, 6).tril().triu(-1).bool(), 2), EMPTY),
        Case("scores of -300", (*_rising(1, 6, 4, 50, shift=-300.0), 2), BELOW),
        Case("hidden scores 200 above the visible ones", (*_rising(1, 4, 4, 90, 200.0, -300.0), 2), HIDE_FIRST),
        Case("large scores", (*_attention_inputs(1, 6, 6, 8, 60, scale=12.0), 2), OVERFLOW),
        Case("32 tokens of width 1, blocks of 1 key", (*_attention_inputs(1, 32, 32, 1, 70), 1)),
        Case("gradients", (*_rising(1, 4, 4, 80), 2), gradients=3),
    ],
    [
        (KEPT + "Your mixture is not.", _blocks("mixed * down", "mixed")),
        (KEPT + "Your denominator is not.", _blocks("total * down", "total")),
        (KEPT + "Yours is not.", _blocks("mixed * down", "mixed", "total * down", "total")),
        ("Have all blocks one denominator? Yours is the mean of what each block gives alone.", _mean_of_blocks),
        ("Are mixture and denominator sums over all blocks? Yours hold the last block's only.",
         _blocks("mixed * down +", "", "total * down +", "")),
        ("Are keys left when S is no multiple of the block? Yours leaves the last, shorter block out.",
         _blocks("y.split", "y[:, : max(y.shape[1] // block * block, block)].split")),
        ("Does each block take its own columns of visible? Yours takes the first ones again.",
         _blocks("scores, seen", "scores, visible[:, : keys.shape[1]]")),
        ("Do you use the mask? Hidden keys are seen.", _blocks("hide(scores, seen)", "scores")),
        ("Are the scores divided by sqrt(h)?", _blocks(BY_ROOT, "")),
        (EMPTY, _blocks("-1e30", "-math.inf")),
        (BELOW, _blocks("-1e30", "0.0")),
        (HIDE_FIRST, _blocks("hide(scores, seen)", "scores", "(scores - top)", "(hide(scores, seen) - top)")),
        ("Is the maximum that of all blocks so far? Yours is the block's.",
         _blocks("torch.maximum(top, scores.amax(-1, keepdim=True))", "scores.amax(-1, keepdim=True)")),
        (TABLE, _blocks("y.split(block", "y.split(2")),
        ("Does exp overflow? Subtract the largest score so far.",
         _blocks("torch.maximum(top, scores.amax(-1, keepdim=True))", "0 * top")),
    ],
    forbid=SDPA,
    adapt=_within(lambda q, k, v, visible, block: max(3 * q.numel() // 2, len(q) * q.shape[1] * block), TABLE),
)  # fmt: skip
check_attention_in_blocks = check_of(ATTENTION_IN_BLOCKS)


def cache_write(cache, length, new):
    """Write new (B, K, T, h) into a ring of slots (B, K, M, h); return those in use as they lie, with positions."""
    n_slots, end = cache.shape[2], length + new.shape[2]
    for t in range(new.shape[2]):
        cache[:, :, (length + t) % n_slots] = new[:, :, t]
    held = {p % n_slots: p for p in range(end)}  # later positions take the slots of earlier ones
    slots = sorted(held)
    return cache[:, :, slots], torch.tensor([held[slot] for slot in slots])


_write = partial(edited, cache_write)


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
        if not isinstance(result, tuple) or len(result) != 2:
            found = {type(None): "None", tuple: "another number of results"}.get(type(result), "one result")
            raise Wrong(f"it returns {found}.", "Return two: the keys of the slots in use, and their positions.")
        if cache.isnan().all():
            raise Wrong("the cache was overwritten.", "Write only the T slots of the new keys.")
        return *result, cache

    return probe


def _numbers(cache, length, new):
    """A case to work out by hand: one head of one number; 99 marks a slot that is still free."""
    return torch.tensor(cache)[None, None, :, None], length, torch.tensor(new)[None, None, :, None]


def _cache_inputs(batch, heads, n_slots, length, new, seed=0):
    """A cache whose free slots hold old numbers, so that it shows when they are read."""
    return draw(batch, heads, n_slots, 3, seed=seed), length, draw(batch, heads, new, 3, seed=seed + 1)


SLOT = "Which slot comes next? Positions and slots both count from 0."
NEW = "Are all T new keys written? T is new.shape[2]; len(new) is the batch."
ITSELF = "Is the cache itself changed? torch.cat and .clone() make a new tensor: write into the slots of `cache`."
ROLLS = "Here the new keys go past the last slot: which slots come next?"
AS_THEY_LIE = "Are the slots returned as they lie, slot 0 first? Yours are in order of position, which copies all."
FULL = "How many keys have been written? length + T in all. "
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
          for length, new in ((2, 2), (4, 1), (6, 2), (8, 2), (3, 1), (4, 2))],
        Case("as many heads as slots", _cache_inputs(1, 4, 4, 1, 2, 40)),
        Case("float16", each(torch.float16, *_cache_inputs(1, 2, 5, 4, 2, 50)), ROLLS),
        Case("new not contiguous",
             (draw(2, 2, 6, 3, seed=60), 3, not_contiguous(draw(2, 2, 2, 3, seed=61), 1, 2)), MEMORY),
        Case("cache not contiguous", (not_contiguous(draw(2, 2, 6, 3, seed=70), 1, 2), 3, draw(2, 2, 2, 3, seed=71)),
             "Do you write into the cache itself? Of such a cache .reshape makes a copy: index cache[:, :, slots]."),
    ],
    [
        (SLOT + " Yours leaves one free.", _write("length + t)", "length + t + 1)")),
        (SLOT + " Yours overwrites the newest key.", _write("length + t)", "length + t - 1)")),
        ("Does the first new key go into slot length % M? Yours starts one slot too early.",
         _write("(length + t)", "max(0, length + t - 1)")),
        ("Is a slot's number its position? Only until the slots are full.", _write("held[slot]", "slot")),
        ("Is each position that of its slot? Yours are in order, and the slots are not.",
         _write("[held[slot] for slot in slots]", "sorted(held.values())")),
        (AS_THEY_LIE, _write("sorted(held)", "sorted(held, key=held.get)")),
        *[("In which round of the ring is a slot? Those not overwritten yet are in the one before.",
           _write("held[slot]", f"slot + {written} // n_slots * n_slots")) for written in ("(end - 1)", "end")],
        (FULL + "length % M forgets that the cache was full.",
         _write("range(end)", "range(length % n_slots + new.shape[2])")),
        (FULL + "Yours ends at `length`.", _write("range(end)", "range(length)")),
        ("When length % M is 0, is the cache empty, or full? Yours takes it for empty.",
         _write("range(end)", "range(end if length % n_slots else new.shape[2])")),
        ("How many slots are in use when all are full? All M: yours stops at (length + T) % M.",
         _write("sorted(held)", "sorted(held)[: end % n_slots or n_slots]")),
        *[("When the newest key is in the last slot, is the oldest still returned? Yours leaves it out.",
           _write("sorted(held)", f"sorted(held)[1 if {when} else 0 :]"))
          for when in ("end % n_slots == 0", "end == n_slots")],
        ("When all slots are full, which comes next, after the last? Yours goes on in the last one, on the newest key.",
         _write("length + t)", "t + (n_slots - 1 if length and length % n_slots == 0 else length))")),
        ("Do you go on at slot 0 when the last slot is filled? Yours drops the keys that do not fit.",
         _write("in range(new.shape[2])", "in range(min(new.shape[2], n_slots - length % n_slots))")),
        (NEW, _write("in range(new.shape[2])", "in range(min(new.shape[2], len(new)))")),
        ("Do you go on where the last key was written? Yours starts at slot 0 again.", _write("(length + t)", "t")),
        ("Which key makes room when all slots are full? Yours overwrites the last slot again and again.",
         _write("(length + t) % n_slots", "min(length + t, n_slots - 1)")),
        (ITSELF, lambda cache, length, new: cache_write(cache.clone(), length, new)),
        ("Is anything written?", _write("in range(new.shape[2])", "in range(0)")),
    ],
    parts=("the keys", "the positions", "the cache afterwards"),
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


def _all_heads(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    """The same with all heads in one tensor, for the slips."""
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    q, k = (apply_rope(y, cos, sin) for y in (q, k))
    T, R = x.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(R, 1), v.repeat_interleave(R, 1)
    mixed = attention_head(q, k, v, torch.ones(T, T).tril().bool())
    return mixed.transpose(1, 2).flatten(-2) @ w_o.T


_layer = partial(edited, _all_heads)


def _layer_inputs(batch, t, dim, n_heads, n_kv_heads, h, seed=0):
    sizes = ((n_heads * h, dim), (n_kv_heads * h, dim), (n_kv_heads * h, dim), (dim, n_heads * h))
    weights = [draw(*size, seed=seed + i, scale=1.5 * size[1] ** -0.5) for i, size in enumerate(sizes)]
    angles = torch.arange(t)[:, None] / 3.0 ** torch.arange(h // 2)
    return draw(batch, t, dim, seed=seed + 9), *weights, h, angles.cos(), angles.sin()


SPLIT = "Split: is the last dimension cut into heads first, and are the heads then moved to the front?"
MERGE = "Merge: are the heads moved behind the tokens first? Else a row holds other tokens' results, later ones too."
ROPE = "Does RoPE turn queries and keys, and not values?"
TILED_KEYS = "k.repeat_interleave(R, 1)", "k.repeat(1, R, 1, 1)"
TILED_VALUES = "v.repeat_interleave(R, 1)", "v.repeat(1, R, 1, 1)"
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
        (MERGE, _layer(".transpose(1, 2).flatten(-2)", ".reshape(len(x), T, -1)")),
        ("Merge: is each head's row kept together? Yours puts the first number of every head first.",
         _layer(".transpose(1, 2).flatten(-2)", ".permute(0, 2, 3, 1).flatten(-2)")),
        (SPLIT + " Yours takes a head's numbers from several tokens.",
         _layer("unflatten(-1, (-1, head_dim)).transpose(1, 2)", "reshape(len(x), -1, x.shape[1], head_dim)")),
        ("Split: are a head's numbers neighbours, (heads, head_dim) in this order?",
         _layer("(-1, head_dim)).transpose(1, 2)", "(head_dim, -1)).movedim(-1, 1)")),
        (NEIGHBOURS + "Yours is 0 1 0 1.", _layer(*TILED_KEYS, *TILED_VALUES)),
        (NEIGHBOURS + "In yours the keys are 0 1 0 1.", _layer(*TILED_KEYS)),
        (NEIGHBOURS + "In yours the values are 0 1 0 1.", _layer(*TILED_VALUES)),
        ("Do you use all key/value heads? Yours reads the first one only.",
         lambda x, w_q, w_k, w_v, w_o, h, *turns: gqa_layer(x, w_q, w_k[:h], w_v[:h], w_o, h, *turns)),
        ("RoPE turns (B, heads, T, h), by position. Yours turns (B, T, heads, h), by the number of the head.",
         _layer("apply_rope(y, cos, sin)", "apply_rope(y.transpose(1, 2), cos, sin).transpose(1, 2)")),
        ("Is the turn backwards? apply_rope takes cos, then sin, as they come in.",
         _layer("apply_rope(y, cos, sin)", "apply_rope(y, cos, -sin)")),
        (ROPE + " Yours turns nothing.", _layer("apply_rope(y, cos, sin)", "y")),
        *[(f"{ROPE} {what}", _layer("q, k = (", f"{turned} = (", "in (q, k)", f"in ({turned})"))
          for turned, what in (("q, k, v", "Yours turns the values, too."),
                               ("q,", "Your keys are not turned."), ("k,", "Your queries are not turned."),
                               ("q, v", "Yours turns values instead of keys."))],
        ("Is there a mask? Every token sees the future.", _layer(".tril()", "")),
        (POLARITY, _layer("tril()", "triu()")),
        ("Does a query see what is before it, too?", _layer("torch.ones(T, T).tril()", "torch.eye(T)")),
        (STARTS, _layer("torch.ones(T, T).tril()",
                        "torch.stack([torch.ones(T, T).tril(i % R * T) for i in range(q.shape[1])])")),
        ("Are the scores divided by sqrt(head_dim)?", _layer("head(q", "head(q * math.sqrt(head_dim)")),
        ("Is it the root of head_dim, once? SDPA already divides.", _layer("head(q", "head(q / math.sqrt(head_dim)")),
        ("Is it the root of head_dim? Yours is that of D.",
         _layer("head(q", "head(q * math.sqrt(head_dim / x.shape[-1])")),
        ("Is it the root of head_dim? Yours is that of D / H: H * h need not be D.",
         _layer("head(q", "head(q * math.sqrt(head_dim / x.shape[-1] * q.shape[1])")),
        (BACK + " It is missing.", _layer(" @ w_o.T", "")),
        (BACK + " Yours takes w_o, not transposed.", _layer("w_o.T", "w_o")),
        ("Is the input added at the end? The block does that, not the layer.",
         _layer("return mixed", "return x + mixed")),
        ("Are keys and values mixed up?", lambda x, w_q, w_k, w_v, *rest: gqa_layer(x, w_q, w_v, w_k, *rest)),
    ],
    allow=("apply_rope",),
)  # fmt: skip
check_gqa_layer = check_of(GQA_LAYER)
