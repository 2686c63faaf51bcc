"""Right and wrong answers to the exercises of notebook 07, generating."""

from functools import partial

import torch

from checks.base import mutate
from checks.generate import GOES_ON, greedy_with_cache, sample
from tests.support.answers.register import RIGHT, WRONG, right


@right
def sample__largest_after_noise(logits, temperature, top_k, top_p, generator):
    if temperature == 0:
        return logits.argmax(-1)
    logits, order = (logits / temperature).sort(descending=True)
    logits[:, top_k or logits.shape[1] :] = -torch.inf
    shares = logits.softmax(-1)
    logits = logits.masked_fill(shares.cumsum(-1) - shares >= (top_p or 2), -torch.inf)
    noise = torch.empty_like(logits).exponential_(generator=generator).log()
    return order.gather(1, (logits - noise).argmax(-1, keepdim=True))[:, 0]


def _drawn(pick):
    return lambda z, t, k, p, g: pick((z / max(t, 1e-6)).softmax(-1), g)


def _nucleus(keep):
    """keep(sums of the sorted shares, the sorted shares, top_p) says which stay."""

    def program(logits, temperature, top_k, top_p, generator):
        if temperature == 0:
            return logits.max(-1).indices
        shares, order = (logits.double() / temperature).softmax(-1).sort(descending=True)
        shares[:, top_k or shares.shape[1] :] = 0
        shares /= shares.sum(-1, keepdim=True)
        if top_p is not None:
            shares = shares.where(keep(shares.cumsum(-1), shares, top_p), 0.0)
        return order.gather(1, shares.multinomial(1, generator=generator))[:, 0]

    return program


def _marked_from_below(sums, shares, top_p):  # as in transformers: what stands above a sum of 1 - top_p
    above = shares.flip(-1).cumsum(-1).flip(-1) > 1 - top_p + 1e-9
    above[:, 0] = True
    return above


RIGHT["sample"]["marked_from_below"] = _nucleus(_marked_from_below)


@right
def greedy_with_cache__cut_at_the_end(model, prompts, n_new, stop):
    """Tensors all through; a row that has ended is known by its place, and the texts are put together at last."""
    longest, m = max(len(p) for p in prompts), len(stop)
    n_pad = torch.tensor([longest - len(p) for p in prompts])
    written = torch.stack([torch.tensor([7] * n + p) for n, p in zip(n_pad.tolist(), prompts, strict=True)])
    cache, rows, done, latest = model.new_cache(len(prompts), longest + n_new), torch.arange(len(prompts)), {}, written
    for step in range(n_new):
        latest = model(latest, cache, n_pad=None if step else n_pad)[:, -1:].argmax(-1)
        written = torch.cat((written, latest), 1)
        stays = (written[:, -m:] != torch.tensor(stop)).any(1) if step + 1 >= m else torch.ones(len(rows)).bool()
        stays = stays & (step + 1 < n_new)
        done |= {row: text for row, text, goes_on in zip(rows.tolist(), written, stays, strict=True) if not goes_on}
        rows, written, latest = rows[stays], written[stays], latest[stays]
        cache.k, cache.v, cache.n_pad = cache.k[:, stays], cache.v[:, stays], cache.n_pad[stays]
        if not len(rows):
            break
    return [done[row][n_pad[row] :] for row in range(len(prompts))]


RIGHT["greedy_with_cache"]["a_column_more"] = mutate(  # of padding
    greedy_with_cache__cut_at_the_end, "max(len(p) for p in prompts)", "max(len(p) for p in prompts) + 1"
)


def _called(call):
    """The right loop with a model that is called as call(model, tokens, cache, n_pad, the first n_pad) says."""

    def program(model, *given):
        def called(tokens, cache, n_pad=None):
            pads.append(n_pad)
            return call(model, tokens, cache, n_pad, pads[0])

        pads, called.new_cache = [], model.new_cache
        return greedy_with_cache__cut_at_the_end(called, *given)

    return program


@right
def judge__all_at_once(p, q, draft, generator):
    places, chance = torch.arange(len(draft)), torch.rand(len(draft), generator=generator)
    stays = (chance < p[places, draft] / q[places, draft]).int().cumprod(0).sum().item()
    left = torch.cat(((p[:-1] - q).clamp(min=0), p[-1:]))[stays].double()
    last = torch.searchsorted(left.cumsum(0) / left.sum(), torch.rand(1, generator=generator).double(), right=True)
    return torch.cat((draft[:stays], last))


@right
def judge__by_noise(p, q, draft, generator):
    """Chances and draws from exponential noise: the largest of share / noise is a draw."""
    text = []
    for p_here, q_here, token in zip(p, [*q, None], [*draft.tolist(), None], strict=True):
        if token is not None and torch.rand(1, generator=generator).item() * q_here[token] < p_here[token]:
            text.append(token)
            continue
        left = p_here if token is None else torch.relu(p_here.float() - q_here.float())
        text.append((left / torch.empty(len(left)).exponential_(generator=generator)).argmax().item())
        break
    return torch.tensor(text)


def _judge(chance=lambda p, q, place, token, g: torch.rand((), generator=g) * q[place, token] < p[place, token],
           left=lambda p, q, place: (p[place] - q[place]).clamp(min=0), free=lambda p: p[-1]):  # fmt: skip
    def program(p, q, draft, generator):
        for place, token in enumerate(draft.tolist()):
            if not chance(p, q, place, token, generator):
                return torch.cat((draft[:place], torch.multinomial(left(p, q, place), 1, generator=generator)))
        return torch.cat((draft, torch.multinomial(free(p), 1, generator=generator)))

    return program


def _goes_on(p, q, draft, generator):
    rows = [_judge()(p[i : i + 2], q[i : i + 1], draft[i : i + 1], generator) for i in range(len(draft))]
    return torch.cat([row[:1] for row in rows] + [torch.multinomial(p[-1], 1, generator=generator)])


def _with_its_own(shares, number):
    """The token that a number in [0, 1) draws."""
    return ((shares / shares.sum()).cumsum(0) < number).sum().clamp(max=len(shares) - 1)[None]


def _number_twice(p, q, draft, generator, is_free=False):
    """The number by which a token is refused, or with is_free stays, also draws the token that follows."""
    for place, token in enumerate(draft.tolist()):
        number = torch.rand((), generator=generator)
        if number * q[place, token] >= p[place, token]:
            left = (p[place] - q[place]).clamp(min=0)
            last = torch.multinomial(left, 1, generator=generator) if is_free else _with_its_own(left, number)
            return torch.cat((draft[:place], last))
    drawn = torch.multinomial(p[-1], 1, generator=generator)
    return torch.cat((draft, _with_its_own(p[-1], number) if is_free and len(draft) else drawn))


def _only_of_the_draft_model(p, q, place):
    left = (p[place] - q[place]).clamp(min=0)
    shared = left * (q[place] > 0)
    return shared if shared.sum() > 0 else left


def _one_more(p, q, draft, generator):
    tokens = _judge()(p, q, draft, generator)
    return torch.cat((tokens, torch.multinomial(p[len(tokens) - 1], 1, generator=generator)))


def _spread(logits, temperature, top_k, top_p, generator):
    """One number for all rows, moved on from row to row: each token as often as it should, and more evenly."""
    sums = sample.shares(logits, temperature, top_k, top_p).cumsum(-1)
    numbers = (torch.rand(1, generator=generator) + torch.arange(len(sums)) * 0.6180339887) % 1
    return (sums < numbers[:, None] * sums[:, -1:]).sum(-1)


WRONG["sample"] |= {
    "one_cut_for_all_rows": ("each with an order and a draw of its own", _nucleus(
        lambda sums, shares, top_p: (sums - shares < top_p - 1e-9).any(0, keepdim=True).expand_as(sums))),
    "global": ("take generator=generator", _drawn(lambda q, g: torch.multinomial(q, 1)[:, 0])),
    "seeded": ("neither seeded", _drawn(lambda q, g: q.multinomial(1, generator=g.manual_seed(0))[:, 0])),
    "greedy": ("The likeliest, or one random", _drawn(lambda q, g: q.argmax(-1))),
    "largest_of_all_rows": ("each row's largest", mutate(
        sample__largest_after_noise, "(logits / temperature)", "((logits - logits.max()) / temperature).exp().log()")),
    "column": ("and [:, 0] its column", _drawn(lambda q, g: q.multinomial(1, generator=g))),
    "spread": ("Has each row a random number of its own", _spread),
    "one_row_greedy": ("row alone", lambda z, t, *s: sample__largest_after_noise(z, t * (len(z) > 1), *s)),
    "no_token": ("expected from 0 to 3", _drawn(lambda q, g: 3 + q.multinomial(1, generator=g)[:, 0])),
    "in_place": ("does not.", lambda z, t, k, p, g: z.div_(2).argmax(-1)),
    "squeezed": ("shape (), expected (1,)", lambda *s: sample__largest_after_noise(*s)[:, None].squeeze()),
    "view": ("not contiguous", lambda z, *s: sample__largest_after_noise(z.view(-1).view(z.shape), *s)),
    "kept": ("of an earlier call", lambda z, *s, kept={}: (
        sample__largest_after_noise(kept.setdefault((z.shape, s[:3]), z), *s))),
    "top_k_at_temperature_0": ("Something here is None", lambda z, t, k, p, g: (
        sample__largest_after_noise(z, t, k, p, g) if t else z.topk(k).indices[:, 0])),
    "top_p_by_default": ("None keeps all", lambda z, t, k, p, g: sample__largest_after_noise(z, t, k, p or 0.95, g)),
    "top_k_by_default": ("300 tokens", lambda z, t, k, p, g: sample__largest_after_noise(z, t, k or 50, p, g)),
    "not_top_1": ("top-k 1", lambda z, t, k, p, g: sample__largest_after_noise(z, t, None if k == 1 else k, p, g)),
    "top_k_before_temperature": ("top-k 2", lambda z, t, k, p, g: sample__largest_after_noise(
        z, t if p or not k else float(t > 0), k, p, g)),
    "inf_as_0": ("Such a token never", lambda z, *s: sample__largest_after_noise(z.nan_to_num(neginf=0), *s)),
}  # fmt: skip
_greedy = partial(mutate, greedy_with_cache)


def _found(new, stop):
    """How many tokens of the mark are found, if each is met once; wrong where a mark begins again within itself."""
    n = 0
    for token in new:
        n = n + 1 if token == stop[n] else int(token == stop[0])
    return n


WRONG["greedy_with_cache"] |= {
    "joined": ("In a text, 0 4 is also found", _greedy(
        GOES_ON, 'not str(texts[row][len(prompts[row]) :])[:-1].endswith(str(stop)[1:-1])')),
    "not_alone": ("A mark of one token may come at once", _greedy(
        GOES_ON, f"({GOES_ON} or len(texts[row]) == len(prompts[row]) + len(stop))")),
    "counted": ("each three in a row may be the mark", mutate(
        greedy_with_cache__cut_at_the_end, "(written[:, -m:] != torch.tensor(stop)).any(1)",
        "torch.tensor([_found(row[longest:].tolist(), stop) < m for row in written])")),
    "equal_prompts_are_one": ("two prompts are equal", _greedy(
        "left = [left[i] for i in keep]", "left = [texts.index(texts[left[i]]) for i in keep]")),
    "one_leaves_at_a_time": ("and leave at once", _greedy(
        "texts[row].append(token)", f"texts[row] += [token] * ({GOES_ON})", "if not keep",
        "keep = keep and [i for i in range(len(left)) if {*range(i)} - {*keep} or i in keep]\n        if not keep")),
    "left_in_train_mode": ("in another mode", lambda m, *s: (greedy_with_cache__cut_at_the_end(m, *s), m.train())[0]),
    "freezes_it": ("requires_grad", lambda m, *s: greedy_with_cache__cut_at_the_end(m.requires_grad_(False), *s)),
    "mark_in_place": ("input stop was", lambda m, p, n, s: (
        greedy_with_cache__cut_at_the_end(m, p, n, [*s]), s.pop())[0]),
    "row_as_place": ("move up when", _greedy("left = [left[i] for i", "left = keep = [left[i] for i")),
    "no_padding": ("Without it cache.n_pad is None", _greedy(", n_pad=torch.tensor(n_pad))", ")")),
    "only_what_is_new": ("Does a text begin with its prompt?", lambda m, p, *s: [
        t[len(q) :] for t, q in zip(greedy_with_cache__cut_at_the_end(m, p, *s), p, strict=True)]),
    "padding_of_all": ("Does the same row leave all three", _called(lambda m, t, cache, pad, *_: (
        setattr(cache, "n_pad", torch.zeros(4).int()) if pad is None else 0, m(t, cache, n_pad=pad))[1])),
    "no_cache": ("got no cache", _called(lambda m, t, cache, pad, *_: (m(t, cache, n_pad=pad), m(t))[1])),
    "padding_each_time": ("first tokens only", _called(lambda m, t, cache, _, pad: m(t, cache, n_pad=pad))),
    "history_not_moved": ("move up with it", _greedy(
        "logits = model(read", "last = [[] for _ in left]\n    logits = model(read",
        GOES_ON, "last.__setitem__(i, [*last[i], texts[row][-1]][-len(stop) :]) or last[i] != stop")),
    "as_long_as_the_first": ("padded to the length of the longest", lambda m, p, n, s: [
        one[: -len(p[0])] + text.tolist() for one, text in zip(p, greedy_with_cache__cut_at_the_end(
            m, [one[-len(p[0]) :] for one in p], n, s), strict=True)]),
    "one_by_one": ("One prompt after the other?", lambda m, p, *s: [
        greedy_with_cache__cut_at_the_end(m, [one], *s)[0] for one in p]),
    "in_place": ("Work on copies", lambda m, p, *s: [t.append(0) for t in p]),
    "a_tensor": ("one list of tokens for each prompt", lambda m, p, *s: torch.tensor(p[0])),
}  # fmt: skip
WRONG["judge"] |= {
    "goes_on": ("what stays of the draft, from its beginning on", _goes_on),
    "one_more": ("and no other", _one_more),
    "nothing_instead": ("and no other", lambda *given: _judge()(*given)[:-1]),
    "a_list": ("has the type list", lambda *given: _judge()(*given).tolist()),
    "row": ("has the shape (1, ", lambda *given: _judge()(*given)[None]),
    "global": ("take generator=generator", _judge(lambda p, q, i, t, g: torch.rand(()) * q[i, t] < p[i, t])),
    "seeded": ("neither seeded", lambda p, q, d, g: _judge()(p, q, d, g.manual_seed(0))),
    "in_memory": ("the input draft was", lambda p, q, d, g: (_judge()(p, q, d.clone(), g), d.numpy().fill(0))[0]),
    "in_place": ("the input p or q was changed", _judge(left=lambda p, q, i: p[i].sub_(q[i]).clamp_(min=0))),
    "below_0": ("may be 0 everywhere, or below 0", _judge(left=lambda p, q, i: p[i] - q[i])),
    "of_nothing": ("may be 0 everywhere", lambda p, q, d, g: (
        torch.multinomial((p[:-1] - q).clamp(min=0), 1, generator=g), _judge()(p, q, d, g))[1]),
    "not_without_draft": ("gave the same tokens again", lambda p, q, d, g: (
        _judge()(p, q, d, g) if len(d) else p.argmax(-1))),
    "numpy": ("stay in torch", lambda *given: _judge()(*given).numpy()),
    "number_of_a_refusal_twice": ("a random number of its own? Yours uses the one", _number_twice),
    "number_of_the_last_twice": ("uses the one by which a token stays", partial(_number_twice, is_free=True)),
    "only_of_the_draft_model": ("which token follows", _judge(left=_only_of_the_draft_model)),
    **{f"{name}_in_place_of_token_{place}": ("which token follows", _judge(left=lambda p, q, i, rule=rule, at=place: (
        rule((p[i] - q[i]).clamp(min=0)) if i == at else (p[i] - q[i]).clamp(min=0)))) for name, place, rule in (
            ("likeliest", 1, lambda left: torch.eye(len(left))[left.argmax()]), ("square", 1, torch.square),
            ("likeliest", 2, lambda left: torch.eye(len(left))[left.argmax()]))},
    "likeliest_after_three": ("drafts of three", _judge(
        free=lambda p: torch.eye(p.shape[1])[p[-1].argmax()] if len(p) > 3 else p[-1])),
    "another_row_without_draft": ("Without a draft", _judge(free=lambda p: p[-1].sqrt() if len(p) == 1 else p[-1])),
    "tenths": ("tokens of the draft stay", _judge(
        lambda p, q, i, t, g: (torch.rand((), generator=g) * 10).floor() / 10 < p[i, t] / q[i, t])),
    "int32": ("has the dtype torch.int32, expected torch.int64", lambda *given: _judge()(*given).int()),
    "draft_in_place": ("the input draft was changed in place", lambda p, q, d, g: (_judge()(p, q, d, g), d.zero_())[0]),
    "half_a_bar": ("stay", _judge(lambda p, q, i, t, g: torch.rand((), generator=g) / 2 < p[i, t] / q[i, t] - 0.5)),
}  # fmt: skip
