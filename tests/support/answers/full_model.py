"""Right and wrong answers to the exercises of notebook 05, the full model."""

import copy
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
    "builds_one": ("Multiply the numbers instead", lambda *g: (model.count_parameters(model.PRESETS["llama-2-7b"]), 0)),
    "divides": ("Do you divide?", lambda *g: (budget__formula(*g)[0], budget__formula(*g)[1] / 1)),
    "floats": ("Multiply ints", lambda *g: (budget__formula(*g)[0], int(float(budget__formula(*g)[1])))),
    "count_alone": ("Return (count, flops)", lambda *g: budget__formula(*g)[0]),
}  # fmt: skip


def _close(one, other):
    return bool(((one - other).abs() <= 1e-4 * other.abs().max()).all())


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


def _padded_as_in_pieces(model):
    """The third property, but a cached run of the row alone stands for the run in one call."""
    row, beside = torch.tensor([[2, 33, 7, 1, 60, 8, 8, 4]]), torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    batch, cache = torch.cat([F.pad(row, (2, 0)), beside]), model.new_cache(2)
    read = [model(batch[:, :6], cache, n_pad=torch.tensor([2, 0])), model(batch[:, 6:], cache)]
    return _close(torch.cat(read, dim=1)[:1, 2:], _read_in(model, row, 4))


_but = partial(partial, properties__pieces)
RIGHT["properties"] |= {
    "change_in_the_middle": _but(changed=slice(5, None), kept=slice(0, 5), sizes=(1, 4, 7)),
    "copy_in_float64": lambda model: properties__pieces(copy.deepcopy(model).double()),
    "tensors": lambda model: [torch.tensor(one) for one in properties__pieces(model)],
}
WRONG["properties"] |= {
    "each_only_with_those_before": ("rows, unlike the course … its own comparison", lambda model: (
        lambda f, p, r: (f, f and p, f and p and r))(*properties__pieces(model))),
    "row_alone_with_a_cache": ("rows, unlike the course … without a cache", lambda model: (
        *properties__pieces(model)[:2], _padded_as_in_pieces(model))),
    "last_logit_of_rows": ("all logits of the row", lambda model: (
        *properties__pieces(model)[:2], properties__pieces(
            model, same=lambda a, b: _close(a[:, -1:], b[:, -1:]))[2])),
    "last_but_one_left_out": ("just before the changed token", _but(kept=slice(0, -2))),
    "last_of_rows_left_out": ("Is the last one compared, too?", lambda model: (
        *properties__pieces(model)[:2], properties__pieces(model, same=lambda a, b: _close(a[:, :-1], b[:, :-1]))[2])),
    "mean_by_mean": ("a mean with a mean", _but(same=lambda a, b: (a - b).abs().mean() <= 1e-4 * b.abs().mean())),
    "length_by_length": ("a mean with a mean", _but(same=lambda a, b: (a - b).norm() <= 1e-4 * b.norm())),
    "one_sided": ("a mean with a mean", _but(same=lambda a, b: (a - b).max() <= 1e-4 * b.abs().max())),
    "rows_loosely": ("of a padded row is slightly off", lambda model: (
        *properties__pieces(model)[:2],
        properties__pieces(model, same=lambda a, b: bool((a - b).abs().max() <= 1e-3 * b.abs().max()))[2])),
    "future_loosely": ("hangs slightly on later tokens", lambda model: (
        properties__pieces(model, same=lambda a, b: bool((a - b).abs().max() <= 1e-4 * max(1, b.abs().max())))[0],
        *properties__pieces(model)[1:])),
    "a_tenth_of_the_limit": ("by half of what may be … not a part of it", _but(
        same=lambda a, b: bool((a - b).abs().max() <= 1e-5 * b.abs().max()))),
    "nan_is_equal": ("is nan", _but(same=lambda a, b: not (a - b).abs().max() > 1e-4 * b.abs().max())),
    "from_the_second_token_of_a_row": ("the first token of a padded row", lambda model: (
        *properties__pieces(model)[:2], properties__pieces(model, same=lambda a, b: _close(a[:, 1:], b[:, 1:]))[2])),
    "train_left": ("in another mode", lambda model: (properties__pieces(model.eval()), model.train())[0]),
    "largest_not_by_size": ("a false alarm", _but(same=lambda a, b: (a - b).abs().max() <= 1e-4 * b.max())),
    "hook_left": ("a hook is still", lambda m: (m.register_forward_hook(lambda *_: None), properties__pieces(m))[1]),
    "one_mode_for_all_parts": ("in another mode", lambda model: (lambda was: (
        properties__pieces(model.eval()), model.train(was))[0])(model.training)),
    "trains_it": ("requires_grad", lambda model: (model.requires_grad_(), properties__pieces(model))[1]),
    "last_two_of_pieces": ("all pieces compared", _but(sizes=(1, 4), joined=lambda logits: logits[:, -2:])),
    "changes_it": ("weights are changed", lambda m: (properties__pieces(m), m.lm_head.weight.mul_(1.01))[0]),
    "to_the_last_bit": ("is rounding allowed for", _but(same=torch.equal)),
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
    "likeliest": ("the limit small enough", _but(same=lambda a, b: torch.equal(a.argmax(-1), b.argmax(-1)))),
    "gaps": ("True or False is expected", lambda model: (0.0, 0.0, 0.0)),
    "one_left_out": ("Return (future, pieces, rows).", lambda model: (True, True)),
}  # fmt: skip


@right
def first_departure__one_hook_for_all(model, reference, tokens, names=None):
    """A hook that hears every module of both models."""
    ran, name_of = {}, {part: name for one in (model, reference) for name, part in one.named_modules()}
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda part, _, y: ran.update({part: y.detach()}) if hasattr(part, "weight") else None
    )
    model(tokens)
    ours, ran = ran, {}
    reference(tokens)
    hook.remove()
    theirs = {name_of[part]: y for part, y in ran.items()}
    for part, y in ours.items():
        want = theirs[names[name_of[part]] if names else name_of[part]]
        off = ~((y - want).abs() <= 1e-5 * want.abs().max()).flatten(2).all(2).all(0)
        if off.any():
            return name_of[part], off.int().argmax().item()


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
        want = wanted[(names or {}).get(name, name)]
        off = ~((y - want).abs() <= 1e-5 * want.abs().max()).flatten(2).all(-1)
        if off.any():
            wrong[name] = off.any(0).nonzero()[0].item()
    return next(iter(wrong.items()), None)


_first_departure = first_departure__all_at_the_end
AT, FINE = "off.any(0).nonzero()[0].item()", "(y - want).abs() <= 1e-5 * want"
for words, bug, said, instead in (
    ("round differently", "to_the_last_bit", "((y - want).abs() <= 1e-5 * want.abs().max())", "(y == want)"),
    ("name=name", "one_name_for_all", "made[names[part]]", "made[list(names.values())[-1]]"),
    ("nan is neither", "what_is_out", f"~({FINE}.abs().max()).flatten(2).all(-1)",
     f"({FINE.replace('<=', '>')}.abs().max()).flatten(2).any(-1)"),
    ("nan is neither", "nan_as_0", FINE.split(".a")[0], "(y.nan_to_num() - want)"),
    ("in which they run", "as_listed", "return made", "return {name: made[name] for name in names.values()}"),
    ("smallest, in any row", "first_of_the_first_row", AT, "off.nonzero()[0, 1].item()"),
    ("that of the reference's", "larger_of_both", FINE, "(y - want).abs() <= 1e-5 * max(want, y, key=torch.std)"),
    ("nor where it is off by most", "worst_position", AT, "(y - want).abs().amax((0, 2)).argmax().item()"),
    ("a hook is still", "hooks_left", "[hook.remove() for hook in hooks]", "pass"),
    ("that of one with a weight", "blocks", 'name and hasattr(part, "weight")', "hasattr(part, 'ffn_norm')"),
    ("largest number of this one module", "largest_of_all", f"{FINE}.abs().max()",
     "(y - want).abs() <= 1e-5 * max(one.abs().max() for one in wanted.values())"),
    ("round differently", "limit_per_row", f"{FINE}.abs().max()", f"{FINE}.abs().flatten(1).amax(1)[:, None, None]"),
    ("Does each number count by itself", "length_of_the_vector", f"{FINE}.abs().max()).flatten(2).all(-1)",
     "(y - want).norm(dim=-1) <= 1e-5 * want.abs().max() * want.shape[-1] ** 0.5)"),
    ("however small", "limit_of_1e-5_at_least", f"{FINE}.abs().max()", f"{FINE}.abs().max().clamp(min=1)"),
    ("Does each number count by itself", "one_sided", "(y - want).abs() <=", "(y - want) <="),
    ("round differently", "largest_not_by_size", f"{FINE}.abs().max()", f"{FINE}.max().abs()"),
    ("note what it returns", "inputs", "made[names[part]] = y", "made[names[part]] = _[0] if _[0].ndim > 2 else y"),
    ("two models may run", "as_run", "wanted, wrong = run(reference), {}",
     "wanted, wrong = dict(zip(run(model), run(reference).values())), {}; names = None"),
    ("two models may run", "in_the_order_of_the_reference", "for name, y in run(model).items():",
     "mine = run(model)\n    back = {b: a for a, b in names.items()} if names else {n: n for n in mine}\n"
     "    for name, y in ((back[n], mine[back[n]]) for n in wanted):"),
    ("expected ('lm_head', 0)", "head_left_out", "if name and hasattr", "if name not in ('', 'lm_head') and hasattr"),
    ("other orders than names", "in_the_order_of_names", "run(model).items():",
     "(lambda made: [(n, made[n]) for n in names or made if n in made])(run(model)):"),
    ("whatever its class", "classes_by_name", 'hasattr(part, "weight")',
     "isinstance(part, (torch.nn.Linear, torch.nn.Embedding)) or 'Norm' in type(part).__name__"),
    ("Is a norm a part, too", "norms_forgotten", "if name and hasattr", "if 'norm' not in name and hasattr"),
    ("A module without one is no part", "leaves", 'hasattr(part, "weight")', "not list(part.children())"),
    ("expected ('tok_embeddings', 24)", "last_row_alone", "off.any(0)", "off[-1:].any(0)"),
    ("Is the last position compared, too", "last_position_left_out", "off.any():", "off[:, :-1].any():"),
    ("and not a row", "one_token_squeezed", AT, "off.squeeze().nonzero()[:, -1].min().item()"),
    ("0 apart is not farther", "below_the_limit", FINE, FINE.replace("<=", "<")),
    ("share one weight", "a_name_for_each_weight", "return made",
     "last = {p.weight: n for n, p in one.named_modules() if n in made}\n"
     "        return {n: y for n, y in made.items() if n in last.values()}"),
    ("outside the blocks", "blocks_alone", "return made", "return {n: y for n, y in made.items() if 'layers' in n}"),
    ("expected ('final_norm', 0)", "last_norm_left_out", "if name and hasattr", "if name != 'final_norm' and hasattr"),
):  # fmt: skip
    WRONG["first_departure"][bug] = words, mutate(first_departure__all_at_the_end, said, instead)
WRONG["first_departure"] |= {
    "names_if_missing": ("row of the head … names gives it", lambda m, r, t, names: _first_departure(
        m, r, t, names and {a: a if a in dict(r.named_modules()) else b for a, b in names.items()})),
    "hooks_off": ("or lost", lambda m, *o: (m.apply(lambda p: p._forward_hooks.clear()), _first_departure(m, *o))[1]),
    "one_mode_for_all_parts": ("in another mode", lambda m, r, *rest: (lambda was: (
        _first_departure(m.eval(), r, *rest), m.train(was))[0])(m.training)),
    "hook_of_all_modules_left": ("a hook is still", lambda *given: (
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None), _first_departure(*given))[1]),
    "tokens_changed": ("tokens was changed", lambda m, r, t, n: (_first_departure(m, r, t, n), t.zero_())[0]),
    "names_changed": ("names was changed", lambda *o: (_first_departure(*o), o[3] and o[3].popitem())[0]),
    "weights_changed": ("weights are changed", lambda m, *o: (_first_departure(m, *o), m.lm_head.weight.zero_())[0]),
    "name_alone": ("Return (name, position)", lambda *given: (first_departure__all_at_the_end(*given) or [None])[0]),
}  # fmt: skip


EARLY = [(block, head) for block in range(4) for head in range(4)]
RIGHT["cut_heads"] = {"and_one_more": lambda: [*EARLY, (4, 2)], "tensor": lambda: torch.tensor(EARLY)}
WRONG["cut_heads"] |= {
    "late": ("less than +0.30 … do not add up", lambda: [*EARLY[4:], *((5, head) for head in range(4))]),
    "too_few": ("expected at least 16 heads", lambda: EARLY[:8]),
    "no_pairs": ("expected pairs (block, head)", lambda: [0, 1, 2]),
    "nothing": ('without "return"', lambda: print(EARLY)),
    "fractions": ("expected pairs (block, head)", lambda: [(block + 0.5, head) for block, head in EARLY]),
    "counted_from_1": ("no head (6, 0)", lambda: [(block + 1, head) for block in range(6) for head in range(4)]),
}  # fmt: skip
