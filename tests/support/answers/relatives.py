"""Right and wrong answers to the exercises of notebook 08, relatives."""

import torch

from helpers.families import Family, edits
from tests.support.answers.register import RIGHT, right, wrong


class _Behind(edits.Edit):
    def attend(self, q, k, v, visible):
        return super().attend(self.query_layernorm(q), self.key_layernorm(k), v, visible)


def _behind(model, content):
    for block in model.layers:
        norms = edits.norms(model.config, **dict.fromkeys(("query_layernorm", "key_layernorm"), model.config.head_dim))
        edits.patch(_Behind, block.attention, **norms)


@right
def add_family__in_attend():  # the cache holds keys that are not normed yet
    return Family([_behind, edits.biases], {"rms_norm_eps": 1e-5, "attention_bias": False})


@right
def attention_with_sink__logsumexp(scores, visible, sinks, v):
    scores, sink = torch.where(visible, scores.float(), -torch.inf), sinks.float()[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    shares = (scores - top).exp()
    shares = shares / (shares.sum(-1, keepdim=True) + (sink - top).exp())
    return torch.einsum("bhts,bhsd->bhtd", shares, v.float()).to(v.dtype)


wrong("sink of ln 2, h 4", "attention_with_sink__sink_times_the_root_of_h")(
    lambda scores, visible, sinks, v: attention_with_sink__logsumexp(scores, visible, sinks * v.shape[-1] ** 0.5, v)
)


@wrong("Does exp of the sink overflow")
def attention_with_sink__largest_of_the_scores(scores, visible, sinks, v):
    scores, sink = scores.float().masked_fill(~visible, -torch.inf), sinks.float()[:, None, None]
    top = torch.where(visible.any(-1, keepdim=True), scores.amax(-1, keepdim=True), sink)
    terms, of_sink = (scores - top).exp(), (sink - top).exp()
    return (terms / (terms.sum(-1, keepdim=True) + of_sink) @ v.float()).to(v.dtype)


def _parting(agrees=lambda a, b: (a - b).abs() <= 1e-5 * b.abs().max(), rows=slice(None), listed=False, leave=False,
             at=None, ways=(False, True), join=torch.cat, cache=True, say=lambda found: found[0], same=1e-4,
             whole="logits"):  # fmt: skip
    """A search for the part where a port departs, in a form that can be spoiled."""

    @torch.no_grad()
    def run(model, names, pieces, *memory):
        made, hooks, logits = {}, [], []
        for name in names:
            keep = lambda _, given, y, name=name: made.setdefault(name, []).append(y[0] if type(y) is tuple else y)  # noqa: E731
            hooks.append(model.get_submodule(name).register_forward_hook(keep))
        for piece in pieces:
            y = model(piece, *(memory if cache else [model.new_cache(2)] if memory else []))
            logits.append(getattr(y, "logits", y))
        [hook.remove() for hook in hooks if not leave]
        joined = {name: join(made[name], dim=1) for name in (names if listed else made)}
        return joined | {whole: join(logits, dim=1)} if whole else joined

    def program(ours, theirs, tokens, names):
        wanted = run(theirs, names.values(), [tokens])
        for cached in ways:
            pieces, memory = (tokens.split(1, dim=1), [ours.new_cache(2)]) if cached else ([tokens], [])
            pairs = [(name, y, wanted[names.get(name, name)]) for name, y in run(ours, names, pieces, *memory).items()]
            if whole and (pairs[-1][1] - pairs[-1][2]).abs().max() <= same * pairs[-1][2].abs().max():
                continue
            off = {name: ~agrees(y, want)[rows].flatten(2).all(-1).all(0) for name, y, want in pairs}
            found = [(name, (at((y - want).abs().amax((0, 2))) if at else off[name].nonzero()[0].item()), cached)
                     for name, y, want in pairs if off[name].any()]  # fmt: skip
            if found:
                return say(found)
        return None

    return program


def _by_modules(ours, theirs, tokens, names):  # the model itself is a part, the last that ends
    kept = {}

    def note(key):
        return lambda part, given, output: kept.setdefault(key, []).append(output)

    with torch.no_grad():
        answers = []
        for model, theirs_too, pieces in (
            (theirs, 1, [tokens]),
            (ours, 0, [tokens]),
            (ours, 0, [*tokens.mT[..., None]]),
        ):
            kept.clear()
            hooks = [model.get_submodule(pair[theirs_too]).register_forward_hook(note(pair[0]))
                     for pair in (*names.items(), ("", ""))]  # fmt: skip
            cache = [ours.new_cache(tokens.shape[0])] if len(pieces) > 1 else []
            [model(piece, *cache) for piece in pieces]
            [hook.remove() for hook in hooks]
            answers.append({key: torch.cat([y if torch.is_tensor(y) else y[0] for y in kept[key]], 1) for key in kept})
    want, *found = answers
    for cached, made in zip((False, True), found, strict=True):
        gaps = {key: ((made[key] - want[key]) / want[key].abs().max()).abs().flatten(2).amax((0, 2)) for key in made}
        if not gaps[""].max() <= 1e-4:
            key, gap = next((key, gap) for key, gap in gaps.items() if not gap.max() <= 1e-5)
            return key or "logits", (gap <= 1e-5).tolist().index(False), cached
    return None


RIGHT["where_they_part"] = {"hooks": _parting(), "modules": _by_modules}
for words, slip, program in (
    ("it raises Zero", "raises_with_hooks_on", lambda ours, *rest: (ours.register_forward_hook(len), 1 / 0)),
    ("rounds otherwise", "strict", _parting(lambda a, b: (a - b).abs() <= 5e-6 * b.abs().max())),
    ("rounds otherwise", "loose", _parting(lambda a, b: (a - b).abs() <= 2e-5 * b.abs().max())),
    ("rounds otherwise", "by_position", _parting(lambda a, b: (a - b).abs() <= 1e-5 * b.abs().amax(-1, True))),
    ("rounds otherwise", "by_row", _parting(lambda a, b: (a - b).abs() <= 1e-5 * b.abs().amax((1, 2), True))),
    ("rounds otherwise", "absolute", _parting(lambda a, b: (a - b).abs() <= 1e-5)),
    ("rounds otherwise", "isclose", _parting(lambda a, b: torch.isclose(a, b, rtol=1e-5, atol=1e-5))),
    ("nan is neither", "what_is_out", _parting(lambda a, b: ~((a - b).abs() > 1e-5 * b.abs().max()))),
    ("nan is neither", "room_of_ours", _parting(lambda a, b: (a - b).abs() <= 1e-5 * a.abs().max())),
    ("Which position of this part", "last_row", _parting(rows=slice(-1, None))),
    ("only cut elsewhere", "no_logits", _parting(whole="")),
    ("only cut elsewhere", "strict_logits", _parting(same=1e-5)),
    ("rounds otherwise", "loose_logits", _parting(same=1e-3)),
    ("expected ('logits', 0, False)", "other_name", _parting(whole="lm_head.")),
    ("order in which parts end", "as_listed", _parting(listed=True)),
    ("Which position of this part", "first_row", _parting(rows=slice(0, 1))),
    ("Which position of this part", "worst_position", _parting(at=lambda gap: gap.argmax().item())),
    ("of no other part", "of_all_parts", _parting(say=lambda of: (of[0][0], min(one[1] for one in of), of[0][2]))),
    ("let ours read them one by one", "at_once_alone", _parting(ways=(False,))),
    ("ask that first", "one_by_one_alone", _parting(ways=(True,))),
    ("put one behind the other", "last_step", _parting(join=lambda made, dim: made[-1])),
    ("one cache kept", "new_caches", _parting(cache=False)),
    ("a hook is still", "hooks_left", _parting(leave=True)),
    ("Return (part, position, cached)", "of_notebook_05", _parting(say=lambda found: found[0][:2])),
    (".item() makes an int", "tensor", _parting(say=lambda found: (found[0][0], torch.tensor(found[0][1]), False))),
    ("a name, an int and a bool, or None", "false", lambda *given: _parting()(*given) or "nowhere"),
):
    wrong(words, f"where_they_part__{slip}")(program)
