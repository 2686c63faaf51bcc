"""Right and wrong answers to the exercises of notebook 05, the full model."""

from functools import partial

import torch
from torch.nn import functional as F

from checks.base import mutate
from helpers import model
from tests.support.answers.register import RIGHT, WRONG, right


@right
def budget__formula(V, D, L, H, K, h, F, tied, B, T):
    block = 2 * D * h * (H + K) + 3 * D * F
    return L * (block + 2 * D) + D + V * D * (2 - tied), 2 * B * T * (L * block + V * D) + 4 * L * H * h * B * T**2


WRONG["budget"] |= {
    "builds_one": (
        "Multiply the numbers instead", lambda *g: (model.count_parameters(model.PRESETS["smollm2-135m"]), 0)),
    "divides": ("Return (count, flops)", lambda *g: (budget__formula(*g)[0], budget__formula(*g)[1] / 1)),
    "count_alone": ("Return (count, flops)", lambda *g: budget__formula(*g)[0]),
}  # fmt: skip


def _close(one, other):
    return bool(((one - other).abs() <= 1e-3 * other.abs().max()).all())


def _read_in(model, tokens, size):
    cache = model.new_cache(len(tokens))
    return torch.cat([model(piece, cache=cache) for piece in tokens.split(size, dim=1)], dim=1)


@right
def properties__pieces(model, same=_close, changed=-1, kept=slice(0, -1), sizes=(3,), n_pad=2, rows=2, more=4,
                       joined=lambda logits: logits):  # fmt: skip
    """Three properties of a model, each in a form that can be spoiled."""
    tokens = torch.tensor([[5, 9, 2, 33, 7, 1, 60, 8, 8, 4], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    whole, other = model(tokens), tokens.clone()
    other[:, changed] = 50
    row = tokens[:1, n_pad:]
    beside = torch.cat([F.pad(row, (n_pad, 0)), tokens[1:]])[:rows]
    cache, (first, *later) = model.new_cache(rows), beside.split([6, *[more] * (4 // more)], dim=1)
    padded = [model(first, cache, n_pad=torch.tensor([n_pad, 0][:rows])), *(model(one, cache) for one in later)]
    padded = torch.cat(padded, dim=1)[:1, n_pad:]
    pieces = all(same(joined(_read_in(model, tokens, size)), joined(whole)) for size in sizes)
    return same(model(other)[:, kept], whole[:, kept]), pieces, same(padded, model(row))


_but = partial(partial, properties__pieces)
RIGHT["properties"] |= {
    "change_in_the_middle": _but(changed=slice(5, None), kept=slice(0, 5), sizes=(1, 4, 7)),
    "tensors": lambda model: [torch.tensor(one) for one in properties__pieces(model)],
}
WRONG["properties"] |= {
    "to_the_last_bit": ("there room for rounding", _but(same=torch.equal)),
    "absolute": ("not 1e-4 itself", _but(same=lambda a, b: (a - b).abs().max().item() < 1e-4)),
    "mean": ("not the mean", _but(same=lambda a, b: ((a - b).abs().mean() <= 1e-4 * b.abs().max()).item())),
    "last_logit_of_pieces": ("not the last alone", _but(joined=lambda logits: logits[:, -1:])),
    "loose": ("May a logit before it move", _but(same=lambda a, b: (a - b).abs().max().item() < 100)),
    "all_logits": ("a false alarm … only the logits before", _but(kept=slice(None))),
    "one_by_one_only": ("pieces of several tokens", _but(sizes=(1,))),
    "pieces_of_4_only": ("read token by token", _but(sizes=(4,))),
    "nothing_padded": ("pass n_pad", _but(n_pad=0)),
    "no_other_row": ("once beside another row", _but(rows=1)),
    "rows_read_on_singly": ("read the padded rows on, several tokens at once", _but(more=1)),
    "at_position_3_alone": ("all positions before", _but(changed=slice(4, None), kept=slice(3, 4))),
    "one_answer_for_all": ("its own comparison", lambda model: 3 * (all(properties__pieces(model)),)),
    "likeliest": (
        "room for rounding small enough", _but(same=lambda a, b: torch.equal(a.argmax(-1), b.argmax(-1)))),
    "gaps": ("True or False is expected", lambda model: (0.0, 0.0, 0.0)),
    "one_left_out": ("Return (future, pieces, rows).", lambda model: (True, True)),
}  # fmt: skip


@right
def first_departure__all_at_the_end(model, reference, tokens, names=None):
    @torch.no_grad()
    def run(one):
        made, names = {}, {part: name for name, part in one.named_modules() if name and hasattr(part, "weight")}

        def note(part, _, y):
            made[names[part]] = y

        hooks = [part.register_forward_hook(note) for part in names]
        one(tokens)
        [hook.remove() for hook in hooks]
        return made

    wanted, wrong = run(reference), {}
    for name, y in run(model).items():
        want = wanted[names[name] if names else name]
        off = ~((y - want).abs() <= 1e-5 * want.abs().max()).flatten(2).all(-1)
        if off.any():
            wrong[name] = off.any(0).nonzero()[0].item()
    return next(iter(wrong.items()), None)


AT, FINE = "off.any(0).nonzero()[0].item()", "(y - want).abs() <= 1e-5 * want"
for words, bug, said, instead in (
    ("round differently", "to_the_last_bit", "((y - want).abs() <= 1e-5 * want.abs().max())", "(y == want)"),
    ("name=name", "one_name_for_all", "made[names[part]]", "made[list(names.values())[-1]]"),
    ("nan is neither", "what_is_out", f"~({FINE}.abs().max()).flatten(2).all(-1)",
     f"({FINE.replace('<=', '>')}.abs().max()).flatten(2).any(-1)"),
    ("in which they run", "as_listed", "return made", "return {name: made[name] for name in names.values()}"),
    ("smallest, in any row", "first_of_the_first_row", AT, "off.nonzero()[0, 1].item()"),
    ("that of the reference's", "own_largest", FINE, "(y - want).abs() <= 1e-5 * y"),
    ("nor where it departs most", "worst_position", AT, "(y - want).abs().amax((0, 2)).argmax().item()"),
    ("a hook is still", "hooks_left", "[hook.remove() for hook in hooks]", "pass"),
    ("Its name is that of a part", "blocks", 'name and hasattr(part, "weight")', "hasattr(part, 'ffn_norm')"),
):  # fmt: skip
    WRONG["first_departure"][bug] = words, mutate(first_departure__all_at_the_end, said, instead)
WRONG["first_departure"] |= {
    "names_not_used": (
        "part that names", lambda m, r, t, n: None if n else first_departure__all_at_the_end(m, r, t)),
    "name_alone": ("Return (name, position)", lambda *given: (first_departure__all_at_the_end(*given) or [None])[0]),
}  # fmt: skip


EARLY = [(block, head) for block in range(4) for head in range(4)]
RIGHT["cut_heads"] = {"and_one_more": lambda: [*EARLY, (4, 2)], "tensor": lambda: torch.tensor(EARLY)}
WRONG["cut_heads"] |= {
    "late": ("less than +0.30 … do not add up", lambda: [*EARLY[4:], *((5, head) for head in range(4))]),
    "too_few": ("expected at least 16 heads", lambda: EARLY[:8]),
    "no_pairs": ("expected pairs (block, head)", lambda: [0, 1, 2]),
    "nothing": ('without "return"', lambda: print(EARLY)),
    "counted_from_1": ("no head (6, 0)", lambda: [(block + 1, head) for block in range(6) for head in range(4)]),
}  # fmt: skip
