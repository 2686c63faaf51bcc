"""Right and wrong answers to the exercises of notebook 05, the full model."""

import torch
from torch.nn import functional as F

from helpers import model
from tests.support.answers.register import RIGHT, right, wrong


@right
def budget__formula(V, D, L, H, K, h, F, tied, B, T):
    block = 2 * D * h * (H + K) + 3 * D * F
    return L * (block + 2 * D) + D + V * D * (2 - tied), 2 * B * T * (L * block + V * D) + 4 * L * H * h * B * T**2


for words, mistake, program in (
    ("Multiply the numbers instead", "builds_one",
     lambda *g: (model.count_parameters(model.PRESETS["smollm2-135m"]), 0)),
    ("Return (count, flops)", "divides", lambda *g: (budget__formula(*g)[0], budget__formula(*g)[1] / 1)),
    ("Return (count, flops)", "count_alone", lambda *g: budget__formula(*g)[0]),
):  # fmt: skip
    wrong(words, f"budget__{mistake}")(program)


def _close(one, other):
    return bool(((one - other).abs() <= 1e-3 * other.abs().max()).all())


def _read_in(model, tokens, size):
    cache = model.new_cache(len(tokens))
    return torch.cat([model(piece, cache=cache) for piece in tokens.split(size, dim=1)], dim=1)


def _properties(same=_close, changed=-1, kept=slice(0, -1), sizes=(1, 4, 7), n_pad=2, rows=2, prompt=6,
                joined=lambda logits: logits, more=4):  # fmt: skip
    """Three properties of a model, each in a form that can be spoiled."""

    def program(model):
        tokens = torch.tensor([[5, 9, 2, 33, 7, 1, 60, 8, 8, 4], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
        whole, other = model(tokens), tokens.clone()
        other[:, changed] = 50
        row = tokens[:1, n_pad:]
        beside = torch.cat([F.pad(row, (n_pad, 0)), tokens[1:]])[:rows]
        cache, (first, *later) = model.new_cache(rows), beside.split([prompt, *[more] * ((10 - prompt) // more)], dim=1)
        padded = [model(first, cache, n_pad=torch.tensor([n_pad, 0][:rows])), *(model(one, cache) for one in later)]
        padded = torch.cat(padded, dim=1)[:1, n_pad:]
        pieces = all(same(joined(_read_in(model, tokens, size)), joined(whole)) for size in sizes)
        return same(model(other)[:, kept], whole[:, kept]), pieces, same(padded, model(row))

    return program


RIGHT["properties"] = {
    "pieces": _properties(),
    "change_in_the_middle": _properties(changed=slice(5, None), kept=slice(0, 5), sizes=(3,)),
    "tensors": lambda model: [torch.tensor(one) for one in _properties()(model)],
}
for words, mistake, program in (
    ("there room for rounding", "to_the_last_bit", _properties(torch.equal)),
    ("not 1e-4 itself", "absolute", _properties(lambda one, other: (one - other).abs().max().item() < 1e-4)),
    ("not the mean", "mean", _properties(lambda a, b: ((a - b).abs().mean() <= 1e-4 * b.abs().max()).item())),
    ("not the last alone", "last_logit_of_pieces", _properties(joined=lambda logits: logits[:, -1:])),
    ("May a logit before it move", "loose", _properties(lambda one, other: (one - other).abs().max().item() < 100)),
    ("only the logits before", "all_logits", _properties(kept=slice(None))),
    ("pieces of several tokens", "one_by_one_only", _properties(sizes=(1,))),
    ("read token by token", "pieces_of_4_only", _properties(sizes=(4,))),
    ("pass n_pad", "nothing_padded", _properties(n_pad=0)),
    ("once beside another row", "no_other_row", _properties(rows=1)),
    ("read the padded rows on", "rows_in_one_call", _properties(prompt=10)),
    ("several tokens at once", "rows_read_on_singly", _properties(more=1)),
    ("all positions before", "at_position_3_alone", _properties(changed=slice(4, None), kept=slice(3, 4))),
    ("its own comparison", "one_answer_for_all", lambda model: 3 * (all(_properties()(model)),)),
    ("room for rounding small enough", "likeliest", _properties(lambda a, b: torch.equal(a.argmax(-1), b.argmax(-1)))),
    ("True or False is expected", "gaps", lambda model: (0.0, 0.0, 0.0)),
    ("Return (future, pieces, rows).", "one_left_out", lambda model: (True, True)),
    ("a false alarm", "always_false", lambda model: (False, False, False)),
):
    wrong(words, f"properties__{mistake}")(program)


def _departure(agrees=lambda a, b: (a - b).abs() <= 1e-5 * b.abs().max(), listed=False, at=None, best=None, leave=False,
               parts=lambda p: hasattr(p, "weight"), first=lambda w: w.any(0).nonzero()[0].item(), 
               noted=None):  # fmt: skip
    """A search for the first departure, in a form that can be spoiled."""

    @torch.no_grad()
    def run(one, tokens):
        made, names = {}, {part: name for name, part in one.named_modules() if name and parts(part)}

        def note(part, _, y):
            made[noted(names) if noted else names[part]] = y

        hooks = [part.register_forward_hook(note) for part in names]
        one(tokens)
        [hook.remove() for hook in hooks if not leave]
        return {name: made[name] for name in names.values()} if listed else made

    def program(model, reference, tokens, names=None):
        other, wrong = run(reference, tokens), {}
        for name, y in run(model, tokens).items():
            want = other[names[name] if names else name]
            fine = agrees(y, want).flatten(2).all(-1)
            if not fine.all():
                wrong[name] = (y - want).abs(), first(~fine)
        if wrong:
            name = best(wrong) if best else next(iter(wrong))
            return name, at(wrong[name][0]) if at else wrong[name][1]

    return program


RIGHT["first_departure"] = {"all_at_the_end": _departure()}
for words, mistake, program in (
    ("round differently", "to_the_last_bit", _departure(torch.eq)),
    ("name=name", "one_name_for_all", _departure(noted=lambda names: list(names.values())[-1])),
    ("nan is neither", "what_is_out", _departure(lambda a, b: ~((a - b).abs() > 1e-5 * b.abs().max()))),
    ("in which they run", "as_listed", _departure(listed=True)),
    ("smallest, in any row", "first_of_the_first_row", _departure(first=lambda w: w.nonzero()[0, 1].item())),
    ("that of the reference's", "own_largest", _departure(lambda a, b: (a - b).abs() <= 1e-5 * a.abs().max())),
    ("nor where it departs most", "worst_position", _departure(at=lambda gap: gap.amax((0, 2)).argmax().item())),
    ("a hook is still", "hooks_left", _departure(leave=True)),
    ("Its name is that of a part", "blocks", _departure(parts=lambda part: isinstance(part, model.TransformerBlock))),
    ("part that names", "names_not_used", lambda m, r, t, n: None if n else _departure()(m, r, t)),
    ("Return (name, position)", "name_alone", lambda *given: (_departure()(*given) or [None])[0]),
):
    wrong(words, f"first_departure__{mistake}")(program)


EARLY = [(block, head) for block in range(4) for head in range(4)]
RIGHT["cut_heads"] = {"and_one_more": lambda: [*EARLY, (4, 2)], "tensor": lambda: torch.tensor(EARLY)}
for words, mistake, program in (
    ("less than +0.30 … do not add up", "late", lambda: [*EARLY[4:], *((5, head) for head in range(4))]),
    ("expected at least 16 heads", "too_few", lambda: EARLY[:8]),
    ("expected pairs (block, head)", "no_pairs", lambda: [0, 1, 2]),
    ('without "return"', "nothing", lambda: print(EARLY)),
    ("no head (6, 0)", "counted_from_1", lambda: [(block + 1, head) for block in range(6) for head in range(4)]),
):  # fmt: skip
    wrong(words, f"cut_heads__{mistake}")(program)
