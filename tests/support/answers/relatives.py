"""Right and wrong answers to the exercises of notebook 08, relatives."""

import itertools

import torch
from torch.nn import functional as F

from checks.relatives import EDITS, with_edits
from tests.support.answers.register import right, wrong


@right
def reach__formula(window, n_layers, n_tokens):
    return n_tokens if window is None else min(n_tokens, n_layers * (window - 1) + 1)


wrong("Something here is None", "reach__no_window_forgotten")(
    lambda window, n_layers, n_tokens: min(n_tokens, n_layers * (window - 1) + 1)
)


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


@right
def layer_plan__where(layer_types, window, theta_local, theta_global, head_dim):
    slides = [kind == "sliding_attention" for kind in layer_types]
    thetas = torch.where(torch.tensor(slides), float(theta_local), float(theta_global))
    exponents = torch.arange(0, head_dim, 2) / head_dim
    return 1.0 / thetas[:, None] ** exponents, [window if slide else None for slide in slides]


for words, slip, change in (
    ("None for a layer that sees all", "zero_for_none", lambda speeds, windows: (speeds, [w or 0 for w in windows])),
    ("expected a list of 2", "windows_as_tensor", lambda speeds, windows: (speeds, torch.ones(len(windows)))),
    ("torch.stack", "rows_alone", lambda speeds, windows: (list(speeds), windows)),
    ("return speeds, windows", "speeds_alone", lambda speeds, windows: speeds),
):
    wrong(words, f"layer_plan__{slip}")(lambda *inputs, change=change: change(*layer_plan__where(*inputs)))
wrong("changed in place", "layer_plan__in_place")(
    lambda types, *rest: (layer_plan__where(types, *rest), types.pop())[0]
)


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
