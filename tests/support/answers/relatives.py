"""Right and wrong answers to the exercises of notebook 08, relatives."""

import itertools
from dataclasses import replace

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
    if any(model.windows):
        model.inv_freq[torch.tensor([window is None for window in model.windows])] = 0


def _full_are_not_turned(model, content):
    class Still(edits.Edit):
        def project(self, x, cos, sin):
            return self.heads(x)

    for block, kind in zip(model.layers, content["layer_types"], strict=True):
        if content["sliding_window"] and kind == "full_attention":
            edits.patch(Still, block.attention)


OLMO, BEFORE = FAMILIES["olmo3"], (edits.window, edits.post_norm, edits.qk_norm)


@right
def add_family__as_olmo():
    return replace(OLMO, edits=(*BEFORE, _full_stand_still))


@right
def add_family__parts():
    return Family([*BEFORE, _full_are_not_turned], {"sliding_window": 1, "layer_types": None}, OLMO.words)


for words, slip, change in (
    ("Does one norm serve one head", "whole_norm", {"edits": (*BEFORE[:2], edits.qk_norm_whole)}),
    ("two weights become", "one_name", {"words": dict.fromkeys(OLMO.words, ".ffn_norm.")}),
    ("what the file calls our attention_norm", "no_words", {"words": {}}),
    ("An edit adds them", "biases", {"edits": (*BEFORE, edits.biases)}),
    ("name every key of config.json", "no_settings", {"settings": {}}),
    ("have this key", "no_such_key", {"edits": (*BEFORE, edits.no_rope)}),
    ("an entry for each of 4 layers", "number", {"edits": (lambda model, _: setattr(model, "windows", 6),)}),
    ("needs its comma", "no_comma", {"edits": edits.window}),
    ("it raises IndexError", "own_error", {"edits": (lambda model, _: [][1],)}),
):
    wrong(words, f"add_family__{slip}")(lambda change=change: replace(add_family__as_olmo(), **change))
wrong('without "return" gives None', "add_family__no_return")(lambda: print(end=""))
wrong("expected, not tuple", "add_family__tuple")(lambda: BEFORE)


@right
def attention_with_sink__logsumexp(scores, visible, sinks, v):
    scores, sink = torch.where(visible, scores.float(), -torch.inf), sinks.float()[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    shares = (scores - top).exp()
    shares = shares / (shares.sum(-1, keepdim=True) + (sink - top).exp())
    return torch.einsum("bhts,bhsd->bhtd", shares, v.float()).to(v.dtype)


def _shapes(weights):
    return {name: weight.shape for name, weight in weights.items()}


@right
def find_edits__combinations(config, weights, tokens, logits):
    found, most = set(), 1e-4 * logits.abs().max()
    for number in range(len(EDITS) + 1):
        for names in itertools.combinations(EDITS, number):
            if "qk_norm" not in names or "qk_norm_whole" not in names:
                model = with_edits(config, names)
                if _shapes(model.state_dict()) == _shapes(weights):
                    model.load_state_dict(weights)
                    if (model(tokens) - logits).abs().max() < most:
                        found.add(names)
    return found


@wrong("at most one of the two QK-norms")
def find_edits__every_subset(config, weights, tokens, logits):
    for chosen in itertools.product([False, True], repeat=len(EDITS)):
        with_edits(config, tuple(itertools.compress(EDITS, chosen)))


wrong("is one choice, expected a set", "find_edits__one_choice")(lambda *inputs: ("post_norm", "window"))
wrong("one name needs its comma", "find_edits__names_for_choices")(lambda *inputs: {"post_norm", "window"})
wrong('without "return" gives None', "find_edits__no_return")(lambda *inputs: set().add(()))
