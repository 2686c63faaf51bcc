"""Right and wrong answers to the exercises of notebook 09, scaling out."""

import torch
from torch.nn import functional as F

from tests.support.answers.register import right, wrong


@right
def split_feed_forward__einsum(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(x @ w_gate.T) * (x @ w_up.T)
    hidden = hidden.unflatten(-1, (n_ranks, -1))
    return torch.einsum("...rf,drf->r...d", hidden, w_down.unflatten(-1, (n_ranks, -1)))


wrong("no gradient reaches x", "split_feed_forward__detached")(
    lambda *inputs: split_feed_forward__einsum(*inputs).detach()
)
wrong("no gradient reaches w_gate and w_up", "split_feed_forward__detached_weights")(
    lambda x, w_gate, w_up, *rest: split_feed_forward__einsum(x, w_gate.detach(), w_up.detach(), *rest)
)


@right
def merge_attention__softmax(outputs, logsumexps):
    return (logsumexps.softmax(0).unsqueeze(-1) * outputs.nan_to_num()).sum(0).to(outputs.dtype)


@right
def merge_attention__einsum(outputs, logsumexps):
    weights = (logsumexps - logsumexps.logsumexp(dim=0)).exp()
    return torch.einsum("rt,rth->th", weights, outputs.float().masked_fill(weights[..., None] == 0, 0)).to(outputs)


@right
def bytes_sent_per_token__formula(dim, n_layers, n_ranks, bytes_per_number):
    return int(4 * n_layers * dim * bytes_per_number * (n_ranks - 1) / n_ranks)


@right
def bytes_sent_per_token__loop(dim, n_layers, n_ranks, bytes_per_number):
    total = 0.0
    for _ in range(2 * n_layers):
        for _ in ("reduce-scatter", "all-gather"):
            total += (1 - 1 / n_ranks) * dim * bytes_per_number
    return round(total)


wrong("whole number", "bytes_sent_per_token__a_float")(
    lambda dim, n_layers, n_ranks, size: 4 * n_layers * (n_ranks - 1) * dim * size / n_ranks
)
