"""Right and wrong answers to the exercises of notebook 09, scaling out."""

import torch
from torch.nn import functional as F

from tests.support.answers.register import right, wrong


@right
def split_feed_forward__einsum(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(x @ w_gate.T) * (x @ w_up.T)
    hidden = hidden.unflatten(-1, (n_ranks, -1))
    return torch.einsum("...rf,drf->r...d", hidden, w_down.unflatten(-1, (n_ranks, -1)))


@right
def merge_attention__einsum(outputs, logsumexps):
    weights = (logsumexps - logsumexps.logsumexp(dim=0)).exp()
    return torch.einsum("rt,rth->th", weights, outputs.float().masked_fill(weights[..., None] == 0, 0)).to(outputs)


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


@wrong("wrong gradient … is off by up to")
def mend_split__sums_in_bfloat16(model, all_reduce):
    def add_up(module, gradients):
        all_reduce(total := gradients[0].bfloat16())
        return (total.float(),)

    for block in model.layers:
        block.attention_norm.register_full_backward_pre_hook(add_up)
        block.ffn_norm.register_full_backward_pre_hook(add_up)


@wrong("do you ask for one of a tensor that has none?")
def mend_split__while_writing(model, all_reduce):
    for block in model.layers:
        block.ffn_norm.register_forward_hook(lambda module, inputs, output: output.register_hook(all_reduce) and None)


wrong("a rank waits for a sum", "mend_split__sometimes")(
    lambda model, all_reduce: model.layers[0].attention.q_proj.weight[0, 0] > 0 and all_reduce(torch.zeros(2))
)
