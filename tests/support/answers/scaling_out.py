"""Right and wrong answers to the exercises of notebook 09, scaling out."""

import torch
from torch.nn import functional as F

from tests.support.answers.register import right, wrong


@right
def split_feed_forward__einsum(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(x @ w_gate.T) * (x @ w_up.T)
    hidden = hidden.unflatten(-1, (n_ranks, -1))
    return torch.einsum("...rf,drf->r...d", hidden, w_down.unflatten(-1, (n_ranks, -1)))


wrong("no gradient reaches x", "split_feed_forward__detached")(lambda *x: split_feed_forward__einsum(*x).detach())
wrong("no gradient reaches w_gate and w_up", "split_feed_forward__detached_weights")(
    lambda x, w_gate, w_up, *rest: split_feed_forward__einsum(x, w_gate.detach(), w_up.detach(), *rest)
)


@wrong("gate alone")
def split_feed_forward__gate_and_up_as_one_matrix(x, w_gate, w_up, w_down, n_ranks):
    size, parts = 2 * len(w_gate) // n_ranks, []
    for rank, down in enumerate(w_down.chunk(n_ranks, dim=1)):
        both = x @ torch.cat([w_gate, w_up])[rank * size : rank * size + size].T
        parts.append((F.silu(both[..., : size // 2]) * both[..., size // 2 :]) @ down.T)
    return torch.stack(parts)


@right
def merge_attention__einsum(outputs, logsumexps):
    weights = (logsumexps - logsumexps.logsumexp(dim=0)).exp()
    return torch.einsum("rt,rth->th", weights, outputs.float().masked_fill(weights[..., None] == 0, 0)).to(outputs)


for words, slip, weights_of in (  # as one writes it who thinks of no nan
    ("no exp2", "powers_of_two", lambda s: s.exp2() / s.exp2().sum(0)),
    ("no exp2", "two_and_e", lambda s: (s - s.logsumexp(0)).exp2()),
    ("over the queries", "over_the_queries", lambda s: s.softmax(-1)),
):
    wrong(words, f"merge_attention__{slip}")(lambda o, s, of=weights_of: (of(s)[..., None] * o).sum(0).to(o.dtype))


class SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(context, x, all_reduce):
        context.all_reduce = all_reduce
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        total = gradient.clone()
        context.all_reduce(total)
        return total, None


@right
def mend_split__function(model, all_reduce):
    for block in model.layers:
        for norm in (block.attention_norm, block.ffn_norm):
            norm.register_forward_hook(lambda module, inputs, output: SumOfGradients.apply(output, all_reduce))


for words, slip, dtype, factor in (
    ("of its length. … the gradient's own dtype", "sums_in_bfloat16", torch.bfloat16, 1.0),
    ("off by nan of its length", "nan", torch.float32, torch.nan),
):

    @wrong(words, f"mend_split__{slip}")
    def adds_up(model, all_reduce, dtype=dtype, factor=factor):
        def add_up(module, gradients):
            all_reduce(total := gradients[0].to(dtype).clone())
            return (total.float() * factor,)

        for block in model.layers:
            block.attention_norm.register_full_backward_pre_hook(add_up)
            block.ffn_norm.register_full_backward_pre_hook(add_up)


@wrong("do you ask for one of a tensor that has none?")
def mend_split__while_writing(model, all_reduce):
    for block in model.layers:
        block.ffn_norm.register_forward_hook(lambda module, inputs, output: output.register_hook(all_reduce) and None)


wrong("a rank waits for a sum", "mend_split__sometimes")(
    lambda model, all_reduce: model.layers[0].attention.q_proj.weight[0, 1] > 0 and all_reduce(torch.zeros(2))
)
