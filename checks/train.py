"""The exercises of notebook 06, training: specification, cases, known mistakes with hints, check."""

import math

import torch
from torch.nn.functional import pad

from checks.base import MEMORY, Case, Exercise, draw, not_contiguous
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
        (STABLE, lambda z, t: -(z.softmax(-1)[torch.arange(len(t)), t]).log().mean()),
        (STABLE, lambda z, t: (z.exp().sum(-1).log() - z[torch.arange(len(t)), t]).mean()),
        *[
            (SMALL_NUMBER, lambda z, t, e=e: -(z.softmax(-1)[torch.arange(len(t)), t] + e).log().mean())
            for e in (1e-8, 1e-9, 1e-10, 1e-12)
        ],
        *[
            (SMALL_NUMBER, lambda z, t, e=e: -(z.softmax(-1)[torch.arange(len(t)), t].clamp(min=e)).log().mean())
            for e in (1e-8, 1e-9, 1e-10, 1e-12)
        ],
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
        *[
            ("Are the logits limited (clamp)? Then larger ones count as equal: subtract each row's largest instead.",
             lambda z, t, most=most: -_log_shares(z.clamp(-most, most), t).mean())
            for most in (20, 30, 50, 80, 88, 100, 500)
        ],
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
        *[
            (LAST_TARGET,
             lambda t, s, n, end=end: (_cut(t, s, n), pad(_cut(t, s, n, 1)[:, :-1], (0, 1), value=end)))
            for end in (0, -1, -100)
        ],
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
