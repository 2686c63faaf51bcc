"""The exercises of notebook 06, training: specification, cases, known mistakes with hints, check."""

import math

import torch

from checks.base import BATCH, MEMORY, Case, Exercise, draw, not_contiguous
from checks.judge import check_of


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


STABLE = "Does exp overflow, or log(0) appear? Subtract the largest logit, or use log_softmax."
CROSS_ENTROPY = Exercise(
    cross_entropy,
    [
        Case("one row, V 5", (draw(1, 5, scale=2.0), torch.tensor([3]))),
        Case("four rows, V 6", (draw(4, 6, seed=1, scale=2.0), torch.tensor([5, 0, 2, 2])), BATCH),
        Case("as many rows as tokens", (draw(4, 4, seed=2, scale=2.0), torch.tensor([3, 0, 0, 1]))),
        Case("logits about 500", (draw(3, 5, seed=3, scale=500.0), torch.tensor([0, 1, 4])), STABLE),
        Case("equal logits of 1000", (torch.full((2, 7), 1000.0), torch.tensor([0, 6])), STABLE),
        Case("one row of logits about -1000",
             (torch.tensor([[-1000.0, -1001.0, -1003.0], [0.0, 2.0, 1.0]]), torch.tensor([1, 0])),
             "Is the largest logit each row's own? A row of -1000 must not become log(0)."),
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
        (STABLE, lambda z, t: -(z.softmax(-1)[torch.arange(len(t)), t]).log().mean()),
        (STABLE, lambda z, t: (z.exp().sum(-1).log() - z[torch.arange(len(t)), t]).mean()),
        *[
            ("Is a small number added inside the logarithm? It hides the loss: use log_softmax.",
             lambda z, t, e=e: -(z.softmax(-1)[torch.arange(len(t)), t] + e).log().mean())
            for e in (1e-8, 1e-9, 1e-10, 1e-12)
        ],
        ("Do you divide by V, not by the number of rows?", lambda z, t: -_log_shares(z, t).sum() / z.shape[-1]),
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
NEXT_TOKEN_BATCH = Exercise(
    next_token_batch,
    [
        Case("20 tokens, two windows of 4", (_mixed_up(20), torch.tensor([3, 2]), 4)),
        Case("one window", (_mixed_up(9, 1), torch.tensor([1]), 5), BATCH),
        Case("the last window there is", (_mixed_up(9, 2), torch.tensor([4, 0]), 4), LAST_TARGET),
        Case("windows of one token", (_mixed_up(9, 3), torch.tensor([7, 0, 3]), 1)),
        Case("the same start twice", (_mixed_up(30, 4), torch.tensor([6, 6, 5]), 7)),
        Case("not contiguous", (_mixed_up(60, 5)[::2], torch.tensor([2, 9]), 6), MEMORY),
    ],
    [
        ("Are the targets the inputs? Then the answer stands in the question, and the loss falls to 0.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n))),
        ("Are the targets one token later, not one earlier?", lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, -1))),
        ("Are the targets one token later, not two?", lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 2))),
        ("Are inputs and targets swapped?", lambda t, s, n: (_cut(t, s, n, 1), _cut(t, s, n))),
        ("Do the inputs begin at the start itself?", lambda t, s, n: (_cut(t, s, n, 1), _cut(t, s, n, 2))),
        (LAST_TARGET, lambda t, s, n: (_cut(t, s, n), _cut(t, s, n).roll(-1, 1))),
        (LAST_TARGET, lambda t, s, n: (_cut(t, s, n), torch.nn.functional.pad(_cut(t, s, n, 1)[:, :-1], (0, 1)))),
        ("Are the windows long enough? For n targets, n + 1 tokens are cut out.",
         lambda t, s, n: (_cut(t, s, n)[:, :-1], _cut(t, s, n)[:, 1:])),
        ("Do you use starts? Your windows begin elsewhere.",
         lambda t, s, n: (_cut(t, torch.arange(len(s)), n), _cut(t, torch.arange(len(s)), n, 1))),
        ("Is a start a position in the text, not the number of a window?",
         lambda t, s, n: (_cut(t, s * n, n), _cut(t, s * n, n, 1))),
        ("Is each row one window? Yours are the columns.", lambda t, s, n: (_cut(t, s, n).T, _cut(t, s, n, 1).T)),
        ("Does every position have a target? You keep only the last.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 1)[:, -1:])),
        ("Does every position have a target? You keep only the last.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 1)[:, -1])),
        ("Do you return the tokens, not their positions?",
         lambda t, s, n: (s[:, None] + torch.arange(n), s[:, None] + torch.arange(n) + 1)),
    ],
    hint="Write the two rows for starts = tensor([3]) and seq_len = 4 on paper: which positions do they hold?",
)  # fmt: skip
check_next_token_batch = check_of(NEXT_TOKEN_BATCH)
