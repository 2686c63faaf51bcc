"""Right and wrong answers to the exercises of notebook 08, relatives."""

import itertools

import torch
from torch.nn import functional as F

from checks.relatives import EDITS, with_edits
from helpers.families import FAMILIES, Family, edits
from tests.support.answers.register import right, wrong


@right
def qk_norm__torch(q, k, weight_q, weight_k, eps, whole):
    def normed(x, weight):
        y = x.transpose(1, 2).flatten(-2) if whole else x
        y = F.rms_norm(y.float(), weight.shape, weight.float(), eps)
        return (y.unflatten(-1, (-1, x.shape[-1])).transpose(1, 2) if whole else y).to(x.dtype)

    return normed(q, weight_q), normed(k, weight_k)


wrong("no gradient passes through the result q", "qk_norm__detached")(
    lambda *inputs: tuple(result.detach() for result in qk_norm__torch(*inputs))
)
wrong("no gradient reaches q and k", "qk_norm__new_leaves")(
    lambda *inputs: qk_norm__torch(*(value.detach().requires_grad_() for value in inputs[:2]), *inputs[2:])
)


def _full_stand_still(model, content):
    if content["sliding_window"]:
        model.inv_freq[torch.tensor([window is None for window in model.windows])] = 0


def _full_are_not_turned(model, content):
    class Still(edits.Edit):
        def rotated_qkv(self, x, cos, sin):
            return self.heads(x)

    for block, kind in zip(model.layers, edits.layer_types(content, len(model.layers)), strict=True):
        if content["sliding_window"] and kind == "full_attention":
            edits.patch(Still, block.attention)


OLMO, BEFORE = FAMILIES["olmo3"], (edits.window, edits.post_norm, edits.qk_norm)


@right
def add_family__as_olmo():
    return Family((*BEFORE, _full_stand_still), OLMO.settings, OLMO.weight_names)


@right
def add_family__parts():
    settings = {"sliding_window": 5000, "layer_types": None, "sliding_window_pattern": 4, "rms_norm_eps": 1e-5}
    return Family([*BEFORE, _full_are_not_turned], settings, OLMO.weight_names)


@right
def attention_with_sink__logsumexp(scores, visible, sinks, v):
    scores, sink = torch.where(visible, scores.float(), -torch.inf), sinks.float()[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    shares = (scores - top).exp()
    shares = shares / (shares.sum(-1, keepdim=True) + (sink - top).exp())
    return torch.einsum("bhts,bhsd->bhtd", shares, v.float()).to(v.dtype)


@wrong("Does exp of the sink overflow")
def attention_with_sink__largest_of_the_scores(scores, visible, sinks, v):
    scores, sink = scores.float().masked_fill(~visible, -torch.inf), sinks.float()[:, None, None]
    top = torch.where(visible.any(-1, keepdim=True), scores.amax(-1, keepdim=True), sink)
    terms, of_sink = (scores - top).exp(), (sink - top).exp()
    return (terms / (terms.sum(-1, keepdim=True) + of_sink) @ v.float()).to(v.dtype)


@right
def find_edits__combinations(config, weights, tokens, logits):
    found, shapes = set(), {name: weight.shape for name, weight in weights.items()}
    for names in itertools.chain(*(itertools.combinations(EDITS, number) for number in range(len(EDITS)))):
        if "qk_norm" not in names or "qk_norm_whole" not in names:
            model = with_edits(config, names)
            if {name: weight.shape for name, weight in model.state_dict().items()} == shapes:
                model.load_state_dict(weights)
                found |= {names} if (model(tokens) - logits).abs().max() < 1e-4 * logits.abs().max() else set()
    return found


wrong("at most one of the two QK-norms", "find_edits__all")(lambda config, *inputs: with_edits(config, EDITS))
wrong("is one choice, expected a set", "find_edits__one_choice")(lambda *inputs: ("post_norm", "window"))
