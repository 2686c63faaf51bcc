"""The exercises of notebook 06, training: specification, cases, known mistakes with hints, check."""

import math
from collections import Counter
from itertools import pairwise

import torch
from torch.nn.functional import pad

from checks.base import MEMORY, TYPE_HINTS, Case, Exercise, Wrong, draw, not_contiguous
from checks.judge import check_of, names_slips
from helpers.model import Llama, LlamaConfig
from helpers.train import learning_rate

# ----------------------------------------------------------------------------- one step of byte-pair encoding


def bpe_step(ids, new_id):
    """The most frequent pair of neighbours, the first of several, becomes new_id everywhere: (new ids, pair)."""
    pairs = [(ids[place], ids[place + 1]) for place in range(len(ids) - 1)]
    pair = max(pairs, key=pairs.count)  # max keeps the first of several
    return _merged(ids, pair, new_id), pair


def _merged(ids, pair, new_id, skip=2, most=None, left_out=0):
    merged, place = [], 0
    while place < len(ids) - left_out:
        found = tuple(ids[place : place + 2]) == pair and most != 0
        merged.append(new_id if found else ids[place])
        place += skip if found else 1
        most = most - 1 if found and most else most
    return merged


def _commonest(counts, first=True):
    order = counts if first else list(counts)[::-1]
    return max(order, key=lambda pair: counts[pair])


def _pairs(ids):
    return Counter(pairwise(ids))


def _with_pair(choose, merge=_merged):
    """A step that chooses its pair, or merges it, in a way of its own."""

    def step(ids, new_id):
        pair = choose(ids)
        return merge(ids, pair, new_id), pair

    return step


def _most(ids):
    return _commonest(_pairs(ids))


def _backwards(ids, pair, new_id):
    return _merged(ids[::-1], pair[::-1], new_id)[::-1]


def _each_place(ids, pair, new_id):
    return [new_id if found == pair else found[0] for found in pairwise(ids)]


def _overlapping(ids, pair, new_id):
    found = [*(both == pair for both in pairwise(ids)), False]
    behind = [False, *found]
    return [new_id if here else one for one, here, last in zip(ids, found, behind, strict=False) if here or not last]


def _apart(ids):
    """Pairs counted as they are merged: those that overlap count once."""
    return Counter({pair: _merged(ids, pair, -1).count(-1) for pair in _pairs(ids)})


def _either_order(ids):
    counts = Counter(tuple(sorted(pair)) for pair in pairwise(ids))
    return max(_pairs(ids), key=lambda pair: counts[tuple(sorted(pair))])


def _as_text(ids, pair, new_id):
    text = " ".join(map(str, ids)).replace(f"{pair[0]} {pair[1]}", str(new_id))
    return [int(number) for number in text.split()]


def _until_none_repeats(ids, new_id):
    pair = _most(ids)
    while len(ids) > 1 and max(_pairs(ids).values()) > 1:
        ids, pair, new_id = _merged(ids, _most(ids), new_id), _most(ids), new_id + 1
    return ids, pair


def _of_commonest_token(ids):
    return next(pair for pair in _pairs(ids) if pair[0] == Counter(ids[:-1]).most_common(1)[0][0])


def _as_tensors(function):
    def probe(ids, new_id):
        given = ids.tolist()
        answer = function(given, new_id)
        if answer is ...:
            raise NotImplementedError
        if given != ids.tolist():
            raise Wrong("the input ids was changed in place.", "Work on a copy: list(ids).")
        kind = type(answer).__name__
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            hint = TYPE_HINTS["NoneType"] if answer is None else "Return both, with a comma: return new_ids, pair"
            found = f"{kind} of {len(answer)}" if isinstance(answer, tuple | list) else kind
            raise Wrong(f"the result is a {found}, expected two things: a list of ids and a pair.", hint)
        hints = {"ids": "Return a plain list of int, like the one that comes in.", "pair": "It is two int: (1, 2)."}
        for (what, hint), part in zip(hints.items(), answer, strict=True):
            if not isinstance(part, tuple | list) or not all(type(one) is int for one in part):
                raise Wrong(f"{what} is no list or tuple of whole numbers, but {str(part)[:60]}.", hint)
        return tuple(torch.tensor(part, dtype=torch.int64) for part in answer)

    return probe


def _ids(*ids):
    return torch.tensor(ids)


SECOND_STAYS = "Does the second token of a match stay? It is a part of the new one."
OVERLAP = "Is each token used once? After a match, go on after both tokens of the pair."
FIRST_OF_TIES = "Of several pairs with the same count, which comes first in the text?"
BPE_STEP = Exercise(
    bpe_step,
    [
        Case("1 2 3 1 2", (_ids(1, 2, 3, 1, 2), 9)),
        Case("five equal tokens", (_ids(4, 4, 4, 4, 4), 9)),
        Case("two pairs twice each", (_ids(3, 4, 1, 2, 1, 2, 3, 4), 9), FIRST_OF_TIES),
        Case("two pairs twice each, the other way", (_ids(1, 2, 3, 4, 3, 4, 1, 2), 9), FIRST_OF_TIES),
        Case("a token three times in a row", (_ids(5, 6, 7, 7, 7, 8, 5, 6), 9)),
        Case("both orders", (_ids(2, 1, 4, 1, 2, 3, 2, 1, 5, 1, 2, 6, 1, 2, 3, 4, 5, 4, 3, 6, 4, 3, 4, 5), 9)),
        Case("ids of one, two and three digits", (_ids(11, 2, 1, 2, 111, 23, 1, 2, 21, 2), 300)),
        Case("two tokens", (_ids(7, 7), 8)),
        Case("no pair twice", (_ids(3, 1, 2), 9)),
        Case("no pair twice, the last token before the first", (_ids(2, 5, 1, 2, 6, 1), 9)),
        Case("the last pair decides", (_ids(5, 1, 2, 3, 1, 2), 9)),
        Case("a pair at odd places", (_ids(6, 1, 2, 5, 5, 1, 2), 9)),
        Case("40 tokens of four kinds", (draw(40).abs().mul(2).long().clamp(max=3), 4)),
        Case("200 tokens of twelve kinds", (draw(200, seed=1).mul(3).long().add(6).clamp(0, 11), 500)),
    ],
    [
        (SECOND_STAYS, _with_pair(_most, lambda ids, pair, new: [*_each_place(ids, pair, new), ids[-1]])),
        (SECOND_STAYS, _with_pair(_most, _each_place)),
        (OVERLAP, _with_pair(_most, _overlapping)),
        ("Is the last token lost? It begins no pair, but it stays unless it ends one.",
         _with_pair(_most, lambda *most: _merged(*most, left_out=1))),
        ("Is every place replaced, or only the first?", _with_pair(_most, lambda *most: _merged(*most, most=1))),
        ("Do you go from left to right? In 4 4 4 the first two are the pair.", _with_pair(_most, _backwards)),
        (FIRST_OF_TIES, _with_pair(lambda ids: _commonest(_pairs(ids), first=False))),
        (FIRST_OF_TIES, _with_pair(lambda ids: max([*pairwise(ids)][::-1], key=_pairs(ids).get))),
        (FIRST_OF_TIES, _with_pair(lambda ids: max(set(pairwise(ids)), key=_pairs(ids).get))),
        ("Of pairs with the same count, you take the one with the largest numbers. Which comes first in the text?",
         _with_pair(lambda ids: max(_pairs(ids).items(), key=lambda one: (one[1], one[0]))[0])),
        ("Of pairs with the same count, you take the one with the smallest numbers. Which comes first in the text?",
         _with_pair(lambda ids: max(sorted(_pairs(ids)), key=_pairs(ids).get))),
        ("Is (1, 2) another pair than (2, 1)? You count them as one.", _with_pair(_either_order)),
        ("How often does 7 7 7 hold the pair (7, 7)? Pairs that overlap count, too.",
         _with_pair(lambda ids: _commonest(_apart(ids)))),
        ("Is the last pair counted, too? Of n tokens, n - 1 begin a pair.",
         _with_pair(lambda ids: _commonest(Counter(pairwise(ids[:-1])) or _pairs(ids)))),
        ("Has the last token a neighbour behind it? You pair it with the first.",
         _with_pair(lambda ids: _commonest(Counter(zip(ids, ids[1:] + ids[:1], strict=True))))),
        ("Do you go on three tokens later after a match? A pair has two.",
         _with_pair(_most, lambda *most: _merged(*most, skip=3))),
        ("Do you count the pairs at places 0 and 1, 2 and 3, …? Each place but the last begins a pair.",
         _with_pair(lambda ids: _commonest(Counter(zip(ids[::2], ids[1::2], strict=False))))),
        ("Do you replace pairs at even places only? A pair may begin anywhere.",
         _with_pair(_most, lambda ids, pair, new: [
             one for at in range(0, len(ids), 2)
             for one in ([new] if tuple(ids[at : at + 2]) == pair else ids[at : at + 2])])),
        ("Are the two of a pair direct neighbours? You count a token with the next but one.",
         _with_pair(lambda ids: _commonest(Counter(zip(ids, ids[2:] or ids[1:], strict=False))))),
        ("Do you count pairs? You take the most frequent token and what follows it.", _with_pair(_of_commonest_token)),
        ("Is the most frequent pair the one with the largest count? You take the smallest.",
         _with_pair(lambda ids: min(_pairs(ids), key=_pairs(ids).get))),
        ("Do you count at all? You take the first pair.", _with_pair(lambda ids: tuple(ids[:2]))),
        ("Do you compare numbers? In a text, the pair 1 2 is also found inside 11 2 and 1 23.",
         _with_pair(_most, _as_text)),
        ("Do both tokens of a pair become one new token? You write it twice.",
         _with_pair(_most, lambda ids, pair, new: [
             one for found in _merged(ids, pair, new) for one in ([new, new] if found == new else [found])])),
        ("Is the new token added to the pair? It takes its place.",
         _with_pair(_most, lambda ids, pair, new: [
             one for found in _merged(ids, pair, new) for one in ([*pair, new] if found == new else [found])])),
        (SECOND_STAYS,
         _with_pair(_most, lambda ids, pair, new: [
             one for found in _merged(ids, pair, new) for one in ([new, pair[1]] if found == new else [found])])),
        ("Does the first token of a match stay? It is a part of the new one.",
         _with_pair(_most, lambda ids, pair, new: [
             one for found in _merged(ids, pair, new) for one in ([pair[0], new] if found == new else [found])])),
        ("Do you replace each of the two tokens wherever it is? Only where they are neighbours, in this order.",
         _with_pair(_most, lambda ids, pair, new: [new if one in pair else one for one in ids])),
        ("Is the pair replaced in this order only? You replace (b, a) as well.",
         _with_pair(_most, lambda ids, pair, new: _merged(_merged(ids, pair, new), pair[::-1], new))),
        ("Is it one step? You go on until no pair is left that occurs twice.", _until_none_repeats),
        ("The pair is right. Are the ids changed, too?", _with_pair(_most, lambda ids, pair, new: ids)),
        ("Which comes first? The new ids, then the pair.", lambda ids, new: bpe_step(ids, new)[::-1]),
        ("Is the last token written twice? It may be a part of the last match.",
         _with_pair(_most, lambda ids, pair, new: [*_merged(ids, pair, new, left_out=1), ids[-1]])),
        ("Is new_id the number to write? You write the largest id plus one.",
         _with_pair(_most, lambda ids, pair, new: _merged(ids, pair, max(ids) + 1))),
        ("The ids are right. Is the pair the one that was replaced, in the order of the text?",
         lambda ids, new: (bpe_step(ids, new)[0], _most(ids)[::-1])),
        ("The ids are right. Is the pair that of the old ids? You look for it again after the merge.",
         lambda ids, new: (lambda merged: (merged, _most(merged) if len(merged) > 1 else _most(ids)))(
             bpe_step(ids, new)[0])),
    ],
    parts=("ids", "pair"),
    adapt=_as_tensors,
)  # fmt: skip
check_bpe_step = check_of(BPE_STEP)

# ------------------------------------------------------------------------------------- cross-entropy


def cross_entropy(logits, targets):
    """Mean over the rows of -log softmax(logits (N, V)) at the target (N,), in nats, shape ()."""
    losses = []
    for row, target in zip(logits.double(), targets, strict=True):
        largest = max(row.tolist())
        losses.append(largest + (row - largest).exp().sum().log() - row[target])
    return (sum(losses) / len(losses)).to(logits.dtype)


def _log_shares(logits, targets):
    return logits.float().log_softmax(-1)[torch.arange(len(targets)), targets]


def _naive_log_shares(logits, targets):
    return (logits.exp() / logits.exp().sum(-1, keepdim=True))[torch.arange(len(targets)), targets].log()


STABLE = "These logits are far from 0: exp gives inf or 0. Subtract each row's own largest logit first."
OWN_MAXIMUM = "Is the largest logit each row's own, even if it is negative? Else exp gives 0 all along a row of -1000."
SMALL_NUMBER = "Is the probability kept from 0 (a small number added, or clamp)? It hides the loss: use log_softmax."
CROSS_ENTROPY = Exercise(
    cross_entropy,
    [
        Case("logits ln 1, ln 2, ln 5", (torch.tensor([[1.0, 2.0, 5.0]]).log(), torch.tensor([1]))),
        Case("two rows, V 3", (torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]]), torch.tensor([2, 1]))),
        Case("one row, V 5", (draw(1, 5, scale=2.0), torch.tensor([3]))),
        Case("four rows, V 6", (draw(4, 6, seed=1, scale=2.0), torch.tensor([5, 0, 2, 2]))),
        Case("as many rows as tokens", (draw(4, 4, seed=2, scale=2.0), torch.tensor([3, 0, 0, 1]))),
        Case("logits about 500", (draw(3, 5, seed=3, scale=500.0), torch.tensor([0, 1, 4])), STABLE),
        Case("equal logits of 1000", (torch.full((2, 7), 1000.0), torch.tensor([0, 6])), STABLE),
        Case("one row of logits about -1000",
             (torch.tensor([[-1000.0, -1001.0, -1003.0], [0.0, 2.0, 1.0]]), torch.tensor([1, 0])), STABLE),
        Case("float64, not contiguous", (not_contiguous(draw(3, 5, seed=4)).double(), torch.tensor([1, 2, 3])), MEMORY),
        Case("gradients", (draw(3, 4, seed=5), torch.tensor([1, 3, 3])), gradients=True),
    ],
    [
        ("Is it the mean over the rows, not the sum?", lambda z, t: -_log_shares(z, t).sum()),
        ("Is the mean over the rows missing?", lambda z, t: -_log_shares(z, t)),
        ("Is the minus sign missing?", lambda z, t: _log_shares(z, t).mean()),
        ("Is it the natural logarithm, not base 2?", lambda z, t: -_log_shares(z, t).mean() / math.log(2)),
        ("Is it the natural logarithm, not base 10?", lambda z, t: -_log_shares(z, t).mean() / math.log(10)),
        ("Is the softmax taken once? You do it twice.", lambda z, t: -_log_shares(z.softmax(-1), t).mean()),
        ("Is the softmax over the vocabulary, dim=-1?", lambda z, t: -z.log_softmax(0)[torch.arange(len(t)), t].mean()),
        ("Is the logarithm taken before the mean?", lambda z, t: -_log_shares(z, t).exp().mean().log()),
        ("Is the logarithm missing?", lambda z, t: -_log_shares(z, t).exp().mean()),
        ("Is the logarithm missing?", lambda z, t: 1 - _log_shares(z, t).exp().mean()),
        ("Is the softmax missing?", lambda z, t: -z[torch.arange(len(t)), t].mean()),
        ("Do you use the targets? This is the entropy.",
         lambda z, t: -(z.softmax(-1) * z.log_softmax(-1)).sum(-1).mean()),
        ("Do you use the targets? You take the likeliest token.", lambda z, t: -_log_shares(z, z.argmax(-1)).mean()),
        ("Do you take the target's column only? You take all.", lambda z, t: -z.log_softmax(-1).mean()),
        ("Is each row paired with its own target? z[:, targets] takes all columns for all rows.",
         lambda z, t: -z.log_softmax(-1)[:, t].mean()),
        ("Is it the loss, not its exponential (perplexity)?", lambda z, t: (-_log_shares(z, t).mean()).exp()),
        (STABLE, lambda z, t: -_naive_log_shares(z, t).mean()),
        ("The probability of a far token is 0 in float32, and log 0 is -inf. Stay in logs: logsumexp minus the logit.",
         lambda z, t: -(z.softmax(-1)[torch.arange(len(t)), t]).log().mean()),
        (STABLE, lambda z, t: (z.exp().sum(-1).log() - z[torch.arange(len(t)), t]).mean()),
        *[(SMALL_NUMBER, lambda z, t, e=e: -(z.softmax(-1)[torch.arange(len(t)), t] + e).log().mean())
          for e in (1e-8, 1e-9, 1e-10, 1e-12)],
        *[(SMALL_NUMBER, lambda z, t, e=e: -(z.softmax(-1)[torch.arange(len(t)), t].clamp(min=e)).log().mean())
          for e in (1e-8, 1e-9, 1e-10, 1e-12)],
        ("Is the largest logit each row's own, amax(dim=-1, keepdim=True)? You subtract each column's.",
         lambda z, t: -_log_shares(z - z.amax(0), t).mean()),
        ("Is the largest logit subtracted from both, or from none? You subtract it from the target's only.",
         lambda z, t: (z.logsumexp(-1) - (z - z.amax(-1, True))[torch.arange(len(t)), t]).mean()),
        ("Is the sum over all of e^z missing? You take the largest logit alone.",
         lambda z, t: (z.amax(-1) - z[torch.arange(len(t)), t]).mean()),
        ("Does the loop go over all rows? Yours is the first row's loss.",
         lambda z, t: -_log_shares(z[:1], t[:1]).mean()),
        ("Is every row's loss kept? Yours is the last row's.", lambda z, t: -_log_shares(z[-1:], t[-1:]).mean()),
        ("Do you divide by V? The mean is over the rows.", lambda z, t: -_log_shares(z, t).sum() / z.shape[-1]),
        ("Do you divide by V? The mean is over the rows.", lambda z, t: -_log_shares(z, t).mean() / z.shape[-1]),
        ("Is the sum over the vocabulary, dim=-1?",
         lambda z, t: (z.logsumexp(0) - z[torch.arange(len(t)), t]).mean()),
        ("Is it a difference? The target's logit is subtracted.",
         lambda z, t: (z.logsumexp(-1) + z[torch.arange(len(t)), t]).mean()),
        ("Is the target's logit shifted by the row's largest, too? Only the sum is.",
         lambda z, t: ((z - z.amax(-1, True)).logsumexp(-1) - z[torch.arange(len(t)), t]).mean()),
        *[("Are the logits limited (clamp)? Then larger ones count as equal: subtract each row's largest instead.",
           lambda z, t, most=most: -_log_shares(z.clamp(-most, most), t).mean())
          for most in (20, 30, 50, 80, 88, 100, 500)],
        (OWN_MAXIMUM, lambda z, t: ((z - z.max()).exp().sum(-1).log() + z.max() - z[torch.arange(len(t)), t]).mean()),
        (OWN_MAXIMUM, lambda z, t: (lambda m: (
            (z - m).exp().sum(-1).log() + m[:, 0] - z[torch.arange(len(t)), t]).mean())(z.amax(-1, True).clamp(min=0))),
    ],
)  # fmt: skip
check_cross_entropy = check_of(CROSS_ENTROPY)

# --------------------------------------------------------------------------------------------- batches


def next_token_batch(tokens, starts, seq_len):
    """Cut a window of tokens (N,) at each of starts (B,): inputs and targets, both (B, seq_len), targets one later."""
    inputs = [[tokens[start + step].item() for step in range(seq_len)] for start in starts.tolist()]
    targets = [[tokens[start + step + 1].item() for step in range(seq_len)] for start in starts.tolist()]
    return torch.tensor(inputs), torch.tensor(targets)


def _cut(tokens, starts, seq_len, shift=0):
    return tokens[starts[:, None] + torch.arange(seq_len) + shift]


def _mixed_up(n_tokens, seed=0):
    """The numbers from 100 on in random order, so that a wrong position shows."""
    return draw(n_tokens, seed=seed).argsort() + 100


LAST_TARGET = "What is the last target of a window? The token that follows the window in the text."
ONE_TOKEN = "Each window has one token here: the shape is (B, 1), not (B,)."
LAST_WINDOW = "This window ends where the text ends: the last target of a window is then the last token of the text."
NEXT_TOKEN_BATCH = Exercise(
    next_token_batch,
    [
        Case("6 tokens, two windows of 2", (torch.tensor([13, 10, 15, 11, 14, 12]), torch.tensor([1, 0]), 2)),
        Case("20 tokens, two windows of 4", (_mixed_up(20), torch.tensor([3, 2]), 4)),
        Case("one window", (_mixed_up(9, 1), torch.tensor([1]), 5), "There is one window here: the shape is (1, 5)."),
        Case("the last window there is", (_mixed_up(9, 2), torch.tensor([4, 0]), 4), LAST_WINDOW),
        Case("windows of one token", (_mixed_up(9, 3), torch.tensor([6, 0, 3]), 1), ONE_TOKEN),
        Case("the same start twice", (_mixed_up(30, 4), torch.tensor([6, 6, 5]), 7)),
        Case("not contiguous", (_mixed_up(60, 5)[::2], torch.tensor([2, 9]), 6), MEMORY),
    ],
    [
        ("Are the targets the inputs? Then each question holds its own answer, and the loss falls to 0.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n))),
        ("Are the targets one token later, not one earlier?", lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, -1))),
        ("Are the targets one token later, not two?", lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 2))),
        ("Are inputs and targets swapped?", lambda t, s, n: (_cut(t, s, n, 1), _cut(t, s, n))),
        ("Do the inputs begin at the start itself?", lambda t, s, n: (_cut(t, s, n, 1), _cut(t, s, n, 2))),
        (LAST_TARGET, lambda t, s, n: (_cut(t, s, n), _cut(t, s, n).roll(-1, 1))),
        (LAST_TARGET, lambda t, s, n: (_cut(t, s, n), _cut(t, s, n).roll(-1))),
        ("Is each row shifted along itself? You shift the rows: the targets are another window's tokens.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n).roll(-1, 0))),
        *[(LAST_TARGET,
           lambda t, s, n, end=end: (_cut(t, s, n), pad(_cut(t, s, n, 1)[:, :-1], (0, 1), value=end)))
          for end in (0, -1, -100)],
        (LAST_TARGET, lambda t, s, n: (_cut(t, s, n), _cut(t, s, n)[:, [*range(1, n), n - 1]])),
        ("Are there as many targets as inputs? The last input has one, too.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n)[:, 1:])),
        ("Are the windows long enough? For n targets, n + 1 tokens are cut out.",
         lambda t, s, n: (_cut(t, s, n)[:, :-1], _cut(t, s, n)[:, 1:])),
        ("Do you use starts? Your windows begin elsewhere.",
         lambda t, s, n: (_cut(t, torch.arange(len(s)), n), _cut(t, torch.arange(len(s)), n, 1))),
        ("Do you use starts? Your windows begin elsewhere.",
         lambda t, s, n: (t[: len(s) * n].reshape(len(s), n), t[1 : len(s) * n + 1].reshape(len(s), n))),
        ("Is a start added to each position? Write starts[:, None]: one row per start.",
         lambda t, s, n: (t[s + torch.arange(n)], t[s + torch.arange(n) + 1])),
        ("Is a start a position in the text, not the number of a window?",
         lambda t, s, n: (_cut(t, s * n, n), _cut(t, s * n, n, 1))),
        ("Is each row one window? Yours are the columns.", lambda t, s, n: (_cut(t, s, n).T, _cut(t, s, n, 1).T)),
        ("Does every position have a target? You keep only the last.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 1)[:, -1:])),
        ("Does every position have a target? You keep only the last.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 1)[:, -1])),
        ("Do you return the tokens, not their positions?",
         lambda t, s, n: (s[:, None] + torch.arange(n), s[:, None] + torch.arange(n) + 1)),
        ("Do you add 1 to the token ids? The target is the token one position later in the text.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n) + 1)),
        ("Are the targets one token later, not one window later?", lambda t, s, n: (_cut(t, s, n), _cut(t, s + n, n))),
        ("Is a window one token too long? seq_len counts the inputs, and as many targets.",
         lambda t, s, n: (_cut(t, s, n + 1), _cut(t, s, n + 1))),
        ("Is a window one token too long? seq_len counts the inputs, and as many targets.",
         lambda t, s, n: (_cut(t, s, n + 1), _cut(t, s, n, 1))),
        (ONE_TOKEN, lambda t, s, n: (_cut(t, s, n).squeeze(-1), _cut(t, s, n, 1).squeeze(-1))),
        ("Is there one row per start? Yours is the first window only.",
         lambda t, s, n: (_cut(t, s[:1], n), _cut(t, s[:1], n, 1))),
        ("Are all windows cut at the first start? Each row has its own.",
         lambda t, s, n: (_cut(t, s[:1].expand(len(s)), n), _cut(t, s[:1].expand(len(s)), n, 1))),
    ],
    parts=("inputs", "targets"),
)  # fmt: skip
check_next_token_batch = check_of(NEXT_TOKEN_BATCH)

# ---------------------------------------------------------------------------------- find the broken loop

LOOPS = {
    "A": "inputs as targets",
    "B": "rate never set",
    "C": "clipped after the step",
    "D": "gradients add up",
}
STEPS, WARM_UP, PEAK, LONGEST = 60, 10, 5e-3, 0.5  # of the right loop


class Loop:
    """A new small model with its training loop, of 60 steps."""

    def __init__(self, slip=""):
        sizes = {"vocab_size": 512, "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 128}
        constants = {"max_seq_len": 32, "norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_embeddings": True}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            self.model = Llama(LlamaConfig(**sizes, **constants))
        decays = {2: 0.1, 1: 0.1 if slip == "gains decay" else 0.0}  # matrices and gains
        weights = list(self.model.parameters())
        groups = [{"params": [w for w in weights if w.ndim == n], "weight_decay": decays[n]} for n in decays]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95))
        self._slip, self._done = slip, 0

    def step(self, inputs, targets):
        """One training step on inputs and targets, both (B, T) int64; returns the loss before it [nat/token]."""
        slip, weights = self._slip, list(self.model.parameters())
        if slip != "rate never set":
            rate = learning_rate(self._done, STEPS, PEAK, 0 if slip == "no warm-up" else WARM_UP)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        asked = (inputs if slip == "inputs as targets" else targets)[..., None]
        shares = self.model(inputs).log_softmax(1 if slip == "softmax over positions" else 2)
        loss = -shares.gather(2, asked).mean()
        if slip != "gradients add up":
            self.optimizer.zero_grad()
        loss.backward()
        if slip not in ("gradient not clipped", "clipped after the step"):
            torch.nn.utils.clip_grad_norm_(weights, LONGEST)
        self.optimizer.step()
        if slip == "clipped after the step":
            torch.nn.utils.clip_grad_norm_(weights, LONGEST)
        self._done += 1
        return loss.item()


def loops_to_examine():
    """A right loop, and the loops A, B, C, D, each with one of the LOOP_SLIPS; all begin with the same weights.

    Returns:
        right, {"A": loop, "B": loop, "C": loop, "D": loop}; they share no memory. Another call gives new ones.
    """
    return Loop(), {letter: Loop(slip) for letter, slip in LOOPS.items()}


COUNTER_TESTS = {  # what a loop may do wrong, without a change of shape: an experiment that shows it, and no other slip
    "inputs as targets": "give two new copies of it the same inputs, but other targets. Do the losses differ?",
    "softmax over positions": "its first loss is far from ln 32, the mean over 32 positions that are equally likely.",
    "gradients add up": "clear the gradients yourself between two steps, in one of two copies. Does it change the "
    "gradients after the second step?",
    "gradient not clipped": "how long is the whole gradient after step 1? Without clipping it is longer than 0.5.",
    "clipped after the step": "after one step, compare AdamW's exp_avg with a tenth of the gradient. If it was "
    "clipped too late, they differ.",
    "no warm-up": "print the learning rate after steps 1, 2 and 60. Without warm-up it begins at the peak, and falls.",
    "rate never set": "print the learning rate after steps 1, 2 and 60. Does it stay the same?",
    "gains decay": "which weight_decay has each of optimizer.param_groups, and how many dimensions have its weights?",
}
LOOP_SLIPS = list(COUNTER_TESTS)


def find_loop_slips():
    """The slip of each of the four loops, {"A": ..., "B": ..., "C": ..., "D": ...}, as named in LOOP_SLIPS."""
    return dict(LOOPS)


FIND_LOOP_SLIPS = Exercise(
    find_loop_slips,
    [Case("loops A, B, C, D", ())],
    [],
    allow=("loops_to_examine", "Loop", "Llama", "learning_rate"),  # for experiments
    adapt=names_slips(LOOPS, LOOP_SLIPS, lambda _, slip: COUNTER_TESTS[slip], "loop"),
)
check_find_loop_slips = check_of(FIND_LOOP_SLIPS)
