"""Right and wrong answers to the exercises of notebook 09, scaling out."""

from types import SimpleNamespace

import torch
from torch.nn import functional as F

from checks.scaling_out import WHOLE
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


def _left_out_everywhere(outputs, logsumexps):
    """A rank that sees no key of one query is left out for all queries, unless none were left."""
    keep = ~logsumexps.isneginf().any(1)
    keep |= ~keep.any()
    return merge_attention__einsum(outputs[keep], logsumexps[keep])


WRONG["merge_attention"] |= {
    "left_out_for_all_queries": ("-inf for one query only", _left_out_everywhere),
    "inf_left_out": ("A fault of a rank", lambda o, s: merge_attention__einsum(o.masked_fill(o.isinf(), 0), s)),
    "nan_as_0": ("a fault shows", lambda o, s: merge_attention__einsum(o.nan_to_num() if s.isneginf().any() else o, s)),
    **{f"float32_out_of_{one}": (f"({one}) converts", lambda o, s, one=one: merge_attention__einsum(o, s).to(
        o.dtype if o.dtype != one else torch.float32)) for one in (torch.float64, torch.float16)},
    "logsumexps_in_float16": ("quarters alone", lambda o, s: merge_attention__einsum(
        o, s.half().float() if o.dtype == torch.float16 else s)),
    "one_rank_left_out_a_query": ("A rank may have -inf", lambda o, s: (s.softmax(0)[..., None] * o.float().masked_fill(
        (s.isneginf() & (torch.arange(len(s), device=s.device)[:, None] == s.argmin(0)))[..., None], 0)).sum(0).to(o)),
    "sum_on_the_cpu": ("device=x.device", lambda outputs, logsumexps: merge_attention__einsum(
        outputs + torch.zeros(outputs.shape[-1], dtype=outputs.dtype), logsumexps)),
    "outputs_below_1e-20_left_out": ("Leave out only what has the weight 0", lambda o, s: (
        (w := s.softmax(0)[..., None]) * o.float().masked_fill(w < 1e-20, 0)).sum(0).to(o)),
    "weights_in_the_outputs_dtype": ("though float16 makes it 0", lambda o, s: (
        (w := s.softmax(0)[..., None].to(o)) * o.masked_fill(w == 0, 0)).sum(0)),
    "three_ranks": ("4 ranks", lambda *given: merge_attention__einsum(*(one[:3] for one in given))),
}  # fmt: skip
WRONG["split_feed_forward"] |= {
    "float32": ("(torch.float64) converts", lambda *given: split_feed_forward__einsum(
        *(one.float() for one in given[:4]), given[4])),
    "one_rank_without_axis": ("expected (1, 2, 3, 4)", lambda *given: split_feed_forward__einsum(*given).squeeze(0)),
    "results_on_the_cpu": ("device=x.device", lambda x, g, u, d, n: torch.zeros(n, *x.shape, dtype=x.dtype)
        + split_feed_forward__einsum(x, g, u, d, n)),
    "long_vectors_cut": ("long", lambda x, *given: split_feed_forward__einsum(x.clamp(-4, 4), *given)),
    "half_widened": ("expected torch.bfloat16", lambda x, *given: split_feed_forward__einsum(x, *given).to(
        torch.promote_types(x.dtype, torch.float32))),
    "dimension_by_its_size": ("Is it x @ w.T each time", lambda x, g, u, d, n: torch.stack([
        (F.silu(x @ a.T) * (x @ b.T)) @ c.T
        for a, b, c in zip(*(w.chunk(n, w.shape.index(len(g))) for w in (g, u, d)), strict=True)])),
    "view_of_weights": ("not contiguous", lambda x, *given: split_feed_forward__einsum(
        x, given[0].view(-1).view(given[0].shape), *given[1:])),
    "row_of_one_lost": ("expected (6, 1, 2, 3, 4)", lambda *given: split_feed_forward__einsum(*given).squeeze(1)),
}  # fmt: skip


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


def _norms(model):
    return [norm for block in model.layers for norm in (block.attention_norm, block.ffn_norm)]


def _each(method, hook):
    """Every norm gets a hook of (..., all_reduce)."""

    def mend(model, all_reduce):
        for norm in _norms(model):
            getattr(norm, method)(lambda module, *given: hook(*given, all_reduce))

    return mend


def _by_function(dtype):
    return _each("register_forward_hook", lambda inputs, y, all_reduce: SumOfGradients.apply(y, all_reduce, dtype))


def _summed(gradients, all_reduce, of=lambda gradient: gradient):
    all_reduce(of(gradients[0]))
    return gradients


BEHIND = _each("register_full_backward_hook", lambda gradients, _, all_reduce: _summed(gradients, all_reduce))


def _if(says, of=lambda gradient: gradient):
    """Sums only where `says(gradient)`."""
    return _each("register_full_backward_pre_hook", lambda gradients, all_reduce:
        _summed(gradients, all_reduce, of) if says(gradients[0]) else None)  # fmt: skip


def _global(model, all_reduce, mine=None):
    """Hooks of all modules; `mine` are those that sum."""
    hook = lambda module, gradients: _summed(gradients, all_reduce) if mine is None or module in mine else None  # noqa: E731
    torch.nn.modules.module.register_module_full_backward_pre_hook(hook)


def _behind_and_of_the_weight(model, all_reduce):
    """The gradient of the gain and that of the stream are summed apart."""
    BEHIND(model, all_reduce)
    for norm in _norms(model):
        norm.weight.register_hook(lambda gradient: _summed((gradient.clone(),), all_reduce)[0])


def _less_what_was_there(model, all_reduce):
    def hook(weight):
        (new,) = _summed((weight.grad - there.get(weight, 0.0),), all_reduce)
        weight.grad = there.get(weight, 0.0) + new
        there[weight] = weight.grad.clone()

    there = {}
    BEHIND(model, all_reduce)
    [norm.weight.register_post_accumulate_grad_hook(hook) for norm in _norms(model)]


IN_PLACE = _each("register_full_backward_pre_hook", _summed)  # without a copy: the sum takes the place of the part
RIGHT["mend_split"] = {
    "function": _by_function(torch.float32), "in_place": IN_PLACE, "two_sums": _behind_and_of_the_weight,
    "hook_of_all_modules": lambda model, all_reduce: _global(model, all_reduce, _norms(model)),
}  # fmt: skip
WRONG["mend_split"] |= {
    "sums_in_bfloat16": ("wrong gradient … is off by up to", _by_function(torch.bfloat16)),
    "while_writing": ("a gradient of a tensor that has none?", _each(
        "register_forward_hook", lambda inputs, output, all_reduce: output.register_hook(all_reduce) and None)),
    "no_tuple": ("it has one gradient: (total,)", _each(
        "register_full_backward_pre_hook", lambda gradients, all_reduce: gradients[0])),
    "of_the_tuple": ("the first of it is the tensor", _each(
        "register_full_backward_pre_hook", lambda gradients, all_reduce: all_reduce(gradients))),
    "sometimes": ("a rank waits for a sum", lambda model, all_reduce: all_reduce(torch.zeros(2))
        if WHOLE.layers[0].attention.q_proj.weight[0, 0] in model.layers[0].attention.q_proj.weight else None),
    "every_module_of_the_process": ("a hook of all modules", _global),
    "less_the_gradient_of_the_text_before": ("after zero_grad()", _less_what_was_there),
    "first_two_blocks": ("wrong gradient", lambda model, all_reduce: IN_PLACE(
        SimpleNamespace(layers=model.layers[:2]), all_reduce)),
    "longer_texts_alone": ("where T is 1", _if(lambda gradient: gradient.shape[1] > 1)),
    "batches_alone": ("wrong gradient", _if(lambda gradient: len(gradient) > 1)),
    "twelve_positions": ("wrong gradient", _if(lambda gradient: True, lambda gradient: gradient[:, :12])),
    "if_training": ("in eval mode, too", lambda model, all_reduce:
        IN_PLACE(model, all_reduce) if model.training else None),
    "large_gradients_alone": ("smallest gradient", _each(
        "register_full_backward_pre_hook", lambda gradients, all_reduce:
            _summed(gradients, all_reduce) if gradients[0].abs().max() > 1e-5 else None)),
    "frozen_while_it_writes": ("or requires_grad", lambda model, all_reduce: IN_PLACE(model, all_reduce)
        or [model.register_forward_hook(lambda *_: [model.requires_grad_(torch.is_grad_enabled())].clear())].clear()),
    "left_in_another_mode": ("train or eval", lambda model, all_reduce: (
        IN_PLACE(model, all_reduce) or model.train(not model.training)) and None),
    "endless": ("on the processor", lambda *_: [None for _ in iter(int, 1)].clear()),
    "returns_the_model": ("return nothing", lambda model, all_reduce: IN_PLACE(model, all_reduce) or model),
}  # fmt: skip
