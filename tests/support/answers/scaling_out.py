"""Right and wrong answers to the exercises of notebook 09, scaling out."""

import torch
from torch.nn import functional as F

from tests.support.answers.register import RIGHT, WRONG, right


@right
def split_feed_forward__einsum(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(x @ w_gate.T) * (x @ w_up.T)
    hidden = hidden.unflatten(-1, (n_ranks, -1))
    return torch.einsum("...rf,drf->r...d", hidden, w_down.unflatten(-1, (n_ranks, -1)))


@right
def merge_attention__einsum(outputs, logsumexps):
    weights = (logsumexps - logsumexps.logsumexp(dim=0)).exp()
    return torch.einsum("rt,rth->th", weights, outputs.float().masked_fill(weights[..., None] == 0, 0)).to(outputs)


for floor in (1e-3, 1e-6):
    WRONG["merge_attention"][f"outputs_below_{floor:g}_left_out"] = (
        "Leave out only what has the weight 0", lambda outputs, logsumexps, floor=floor: (
            (weights := logsumexps.float().softmax(0)[..., None])
            * outputs.float().masked_fill(weights < floor, 0)).sum(0).to(outputs))  # fmt: skip


class SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(context, x, all_reduce, dtype):
        context.all_reduce, context.dtype = all_reduce, dtype
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        total = gradient.to(context.dtype, copy=True)
        context.all_reduce(total)
        return total.to(gradient.dtype), None, None


def _by_function(dtype):
    return lambda model, all_reduce: [
        norm.register_forward_hook(lambda module, inputs, y: SumOfGradients.apply(y, all_reduce, dtype))
        for block in model.layers
        for norm in (block.attention_norm, block.ffn_norm)
    ]


def _by_pre_hook(returned):
    return lambda model, all_reduce: [
        block.ffn_norm.register_full_backward_pre_hook(lambda module, gradients: returned(gradients, all_reduce))
        for block in model.layers
    ]


def _in_place(model, all_reduce):
    """Without a copy: the sum takes the place of the part."""

    def hook(module, gradients):
        all_reduce(gradients[0])
        return gradients

    for block in model.layers:
        for norm in (block.attention_norm, block.ffn_norm):
            norm.register_full_backward_pre_hook(hook)


RIGHT["mend_split"] = {"function": _by_function(torch.float32), "in_place": _in_place}
WRONG["mend_split"] |= {
    "sums_in_bfloat16": ("wrong gradient … is off by up to", _by_function(torch.bfloat16)),
    "while_writing": ("a gradient of a tensor that has none?", lambda model, all_reduce: [
        block.ffn_norm.register_forward_hook(lambda module, inputs, output: output.register_hook(all_reduce) and None)
        for block in model.layers]),
    "no_tuple": ("it has one gradient: (total,)", _by_pre_hook(lambda gradients, _: gradients[0])),
    "of_the_tuple": ("the first of it is the tensor", _by_pre_hook(lambda gradients, total: total(gradients))),
    "sometimes": ("a rank waits for a sum", lambda model, all_reduce:
        model.layers[0].attention.q_proj.weight[0, 0] > 0 and all_reduce(torch.zeros(2))),
}  # fmt: skip
