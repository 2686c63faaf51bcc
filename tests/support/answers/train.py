"""Right and wrong answers to the exercises of notebook 06, training."""

from collections import Counter
from itertools import pairwise

import torch
from torch.nn import functional as F

from checks.train import COUNTER_TESTS, LOOPS
from tests.support.answers.register import right, wrong


@right
def bpe_step__while(ids, new_id):
    counts = Counter(pairwise(ids))
    pair = max(counts, key=counts.get)
    merged, place = [], 0
    while place < len(ids):
        if place < len(ids) - 1 and (ids[place], ids[place + 1]) == pair:
            merged.append(new_id)
            place += 2
        else:
            merged.append(ids[place])
            place += 1
    return merged, pair


@right
def bpe_step__letters(ids, new_id):
    pair = Counter(pairwise(ids)).most_common(1)[0][0]
    text = "".join(map(chr, ids)).replace("".join(map(chr, pair)), chr(new_id))
    return [ord(letter) for letter in text], list(pair)


wrong("two things", "bpe_step__ids_only")(lambda ids, new_id: bpe_step__while(ids, new_id)[0])
wrong("It is two int", "bpe_step__pair_and_count")(lambda ids, new_id: (ids, Counter(pairwise(ids)).most_common(1)[0]))


@right
def cross_entropy__torch(logits, targets):
    return F.cross_entropy(logits, targets)


@right
def cross_entropy__loop(logits, targets):
    total = 0
    for row, target in zip(logits, targets, strict=True):
        shifted = row - row.max()
        total = total - shifted[target] + torch.log(torch.exp(shifted).sum())
    return total / len(targets)


@right
def next_token_batch__indices(tokens, starts, seq_len):
    window = tokens[starts[:, None] + torch.arange(seq_len + 1)]
    return window[:, :-1], window[:, 1:]


@right
def next_token_batch__slices(tokens, starts, seq_len):
    inputs = torch.stack([tokens[start : start + seq_len] for start in starts])
    return inputs, torch.stack([tokens[start + 1 : start + 1 + seq_len] for start in starts])


@wrong("last target of a window")
def next_token_batch__last_window_moved(tokens, starts, seq_len):
    starts = starts.clamp(max=len(tokens) - seq_len - 2)
    return next_token_batch__indices(tokens, starts, seq_len)


@right
def find_loop_slips__named():
    return dict(LOOPS)


for letter, named in LOOPS.items():
    for slip, words in COUNTER_TESTS.items():
        if slip != named:
            answer = LOOPS | {letter: slip}
            wrong(f"Loop {letter}: {words}", f"find_loop_slips__{letter} {slip}")(lambda answer=answer: answer)
