"""Right and wrong answers to the exercises of notebook 06, training."""

import torch
from torch.nn import functional as F

from tests.support.answers.register import right, wrong


@right
def cross_entropy__torch(logits, targets):
    return F.cross_entropy(logits, targets)


@right
def cross_entropy__gather(logits, targets):
    return -logits.log_softmax(-1).gather(1, targets[:, None]).mean()


@right
def cross_entropy__loop(logits, targets):
    total = 0
    for row, target in zip(logits, targets, strict=True):
        shifted = row - row.max()
        total = total - shifted[target] + torch.log(torch.exp(shifted).sum())
    return total / len(targets)


@wrong("graph cut")
def cross_entropy__item(logits, targets):
    return torch.tensor(F.cross_entropy(logits, targets).item(), dtype=logits.dtype)


@right
def next_token_batch__indices(tokens, starts, seq_len):
    window = tokens[starts[:, None] + torch.arange(seq_len + 1)]
    return window[:, :-1], window[:, 1:]


@right
def next_token_batch__slices(tokens, starts, seq_len):
    inputs = torch.stack([tokens[start : start + seq_len] for start in starts])
    return inputs, torch.stack([tokens[start + 1 : start + 1 + seq_len] for start in starts])


@right
def next_token_batch__unfold(tokens, starts, seq_len):
    windows = tokens.unfold(0, seq_len + 1, 1)[starts]
    return windows[:, :seq_len], windows[:, 1:]


@wrong("last target of a window")
def next_token_batch__last_window_moved(tokens, starts, seq_len):
    starts = starts.clamp(max=len(tokens) - seq_len - 2)
    return next_token_batch__indices(tokens, starts, seq_len)


@wrong("comma")
def next_token_batch__inputs_only(tokens, starts, seq_len):
    return tokens[starts[:, None] + torch.arange(seq_len)]
