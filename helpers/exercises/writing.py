"""Exercises on training and generating: specification, inputs, known mistakes."""

import math

import torch

from helpers.exercises.parts import BATCH, MEMORY, Case, Exercise, draw, turned

# fmt: off


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
        Case("float64, not contiguous", (turned(draw(3, 5, seed=4)).double(), torch.tensor([1, 2, 3])), MEMORY),
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
)


def top_p(probabilities, p):
    """Keep the likeliest tokens of probabilities (V,) until they reach p together, then make the sum 1 again."""
    kept, total = [], 0.0
    for token in sorted(range(len(probabilities)), key=lambda token: -probabilities[token].item()):
        if total < p:
            kept.append(token)
            total += probabilities[token].item()
    result = torch.zeros(len(probabilities), dtype=torch.float64)
    for token in kept:
        result[token] = probabilities[token].double() / total
    return result.to(probabilities.dtype)


def _nucleus(keep, again=True, back=True, descending=True):
    """top_p with one slip; keep gets the sorted probabilities, their cumulative sum and p."""

    def program(probabilities, p):
        ordered, order = probabilities.sort(descending=descending)
        ordered = torch.where(keep(ordered, ordered.cumsum(-1), p), ordered, 0.0)
        ordered = ordered / ordered.sum() if again else ordered
        return torch.zeros_like(ordered).scatter(-1, order, ordered) if back else ordered

    return program


def _until_p(ordered, total, p):
    return total - ordered < p


TINY_VOCABULARY = torch.tensor([0.05, 0.4, 0.11, 0.27, 0.17])
TOP_P = Exercise(
    top_p,
    [
        Case("five tokens, p 0.75", (TINY_VOCABULARY, 0.75)),
        Case("p 0.3, below the likeliest", (TINY_VOCABULARY, 0.3), "Is at least one token kept?"),
        Case("p 1", (TINY_VOCABULARY, 1.0)),
        Case("p 0.5", (TINY_VOCABULARY.flip(0), 0.5)),
        Case("nine tokens, p 0.9", (draw(9, seed=1, scale=1.5).softmax(-1), 0.9)),
        Case("one token", (torch.tensor([1.0]), 0.5)),
        Case("float64, not contiguous", (draw(6, seed=2).double().softmax(-1).repeat_interleave(2)[::2], 0.6), MEMORY),
    ],
    [
        ("Is the token that crosses p kept too?", _nucleus(lambda o, total, p: total <= p)),
        ("Is the token that crosses p kept too?", _nucleus(lambda o, total, p: total < p)),
        ("Is the token that crosses p kept too?",
         _nucleus(lambda o, total, p: (total <= p) | (torch.arange(len(o)) == 0))),
        ("Do you keep one token too many?", _nucleus(lambda o, total, p: total - o - o.roll(1) < p)),
        ("Does the sum become 1 again?", _nucleus(_until_p, again=False)),
        ("Do the probabilities return to their places? They are still sorted.", _nucleus(_until_p, back=False)),
        ("Do you start with the likeliest token? Sort in descending order.", _nucleus(_until_p, descending=False)),
        ("Do you sort before the cumulative sum?",
         lambda q, p: torch.where(q.cumsum(-1) - q < p, q, 0.0) / torch.where(q.cumsum(-1) - q < p, q, 0.0).sum()),
        ("Is p a limit on the sum, not on each probability?", _nucleus(lambda o, total, p: o >= p)),
        ("Is p a limit on the sum, not a share of the largest? That is min_p.",
         _nucleus(lambda o, total, p: o >= p * o.max())),
        ("Is p a limit on the sum, not a share of the vocabulary?",
         _nucleus(lambda o, total, p: torch.arange(len(o)) < max(1, round(p * len(o))))),
        ("Do you keep the likely tokens, not the unlikely ones?", _nucleus(lambda o, total, p: total - o >= p)),
        ("Is it a division by the sum, not another softmax?",
         lambda q, p: torch.where(_nucleus(_until_p)(q, p) > 0, q, -math.inf).softmax(-1)),
        ("Is it a division by the sum, not another softmax?", lambda q, p: _nucleus(_until_p)(q, p).softmax(-1)),
        ("Is a set of tokens kept, not only the likeliest?", _nucleus(lambda o, total, p: torch.arange(len(o)) == 0)),
        ("Is anything cut off? The probabilities come back as they were.", lambda q, p: q),
    ],
)
