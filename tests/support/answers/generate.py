"""Right and wrong answers to the exercises of notebook 07, generating."""

import torch

from checks.base import mutate
from checks.generate import GOES_ON, greedy_with_cache
from tests.support.answers.register import RIGHT, right, wrong


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


def _nucleus(keep):  # keep(sums of the sorted shares, the sorted shares, top_p) says which stay
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


def _up_to(sums, shares, top_p):
    return sums - shares < top_p - 1e-9


def _marked_from_below(sums, shares, top_p):  # as in transformers: what stands above a sum of 1 - top_p
    above = shares.flip(-1).cumsum(-1).flip(-1) > 1 - top_p + 1e-9
    above[:, 0] = True
    return above


def _looked_up(logits, temperature, top_k, top_p, generator):
    if temperature == 0:
        return logits.argmax(-1)
    shares, order = (logits.double() / temperature).softmax(-1).sort(descending=True)
    shares[:, top_k or shares.shape[1] :] = 0
    shares /= shares.sum(-1, keepdim=True)
    sums = shares.where(_up_to(shares.cumsum(-1), shares, top_p or 2), 0.0).cumsum(-1)
    drawn = torch.rand(len(logits), 1, generator=generator, dtype=torch.float64) * sums[:, -1:]
    return order.gather(1, torch.searchsorted(sums, drawn, right=True).clamp(max=shares.shape[1] - 1))[:, 0]


RIGHT["sample"] |= {
    "marked_from_below": _nucleus(_marked_from_below),
    "looked_up": _looked_up,
}


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
def lookup_decoding__windows(model, prompt, n_new, n_draft, n_match, choose):
    cache, text, n_calls = model.new_cache(1, len(prompt) + n_new + n_draft), prompt, 0
    while len(text) < len(prompt) + n_new:
        found = (text.unfold(0, n_match, 1)[:-1] == text[-n_match:]).all(1).nonzero() if len(text) > n_match else ()
        start = found[-1].item() + n_match if n_calls and len(found) else len(text)
        draft, n_read = text[start : start + n_draft], len(text) - cache.length
        logits = model(torch.cat((text[cache.length :], draft))[None], cache)[0, n_read - 1 :]
        chosen = torch.tensor([choose(row) for row in logits])  # at all places, though not all are used
        right = (chosen[:-1] == draft).int().cumprod(0).sum()
        text, n_calls = torch.cat((text, chosen[: right + 1])), n_calls + 1
        cache.length = len(text) - 1
    return text[: len(prompt) + n_new], n_calls


def _one_at_a_time(room):
    def program(model, prompt, n_new, n_draft, n_match, choose):
        cache, text = model.new_cache(1, room) if room else None, prompt
        for _ in range(n_new):
            row = model(text[None], cache)[0, -1]
            text = torch.cat((text, torch.tensor([choose(row)])))
        return text, n_new

    return program


for words, name, program in (
    ("each with an order and a draw of its own", "sample__one_cut_for_all_rows", _nucleus(
        lambda sums, shares, top_p: _up_to(sums, shares, top_p).any(0, keepdim=True).expand_as(sums))),
    ("take generator=generator", "sample__global", _drawn(lambda q, g: torch.multinomial(q, 1)[:, 0])),
    ("neither seeded", "sample__seeded", _drawn(lambda q, g: q.multinomial(1, generator=g.manual_seed(0))[:, 0])),
    ("The likeliest, or one random", "sample__greedy", _drawn(lambda q, g: q.argmax(-1))),
    ("temperature 0.01: all", "sample__cold", lambda z, t, *s: sample__largest_after_noise(z, t * (t > 0.04), *s)),
    ("and [:, 0] its column", "sample__column", _drawn(lambda q, g: q.multinomial(1, generator=g))),
    ("expected from 0 to 2", "sample__no_token", _drawn(lambda q, g: 3 + q.multinomial(1, generator=g)[:, 0])),
    ("does not.", "sample__in_place", lambda z, t, k, p, g: z.div_(2).argmax(-1)),
    ("In a text, 0 4 is also found", "greedy_with_cache__joined", mutate(
        greedy_with_cache, GOES_ON, 'not str(texts[row][len(prompts[row]) :])[:-1].endswith(str(stop)[1:-1])')),
    ("9 entries, expected 7", "greedy_with_cache__not_alone", mutate(
        greedy_with_cache, GOES_ON, f"({GOES_ON} or len(texts[row]) == len(prompts[row]) + len(stop))")),
    ("move up when", "greedy_with_cache__row_as_place", mutate(
        greedy_with_cache, "left = [left[i] for i in keep]", "left = keep = [left[i] for i in keep]")),
    ("Does a text begin with its prompt?", "greedy_with_cache__only_what_is_new", lambda m, p, *s: [
        t[len(q) :] for t, q in zip(greedy_with_cache__cut_at_the_end(m, p, *s), p, strict=True)]),
    ("Does the same row leave all three", "greedy_with_cache__padding_of_all", _called(lambda m, t, cache, pad, *_: (
        setattr(cache, "n_pad", torch.zeros(4).int()) if pad is None else 0, m(t, cache, n_pad=pad))[1])),
    ("got no cache", "greedy_with_cache__no_cache", _called(
        lambda m, t, cache, pad, *_: (m(t, cache, n_pad=pad), m(t))[1])),
    ("first tokens only", "greedy_with_cache__padding_each_time", _called(
        lambda m, t, cache, _, pad: m(t, cache, n_pad=pad))),
    ("One prompt after the other?", "greedy_with_cache__one_by_one", lambda m, p, *s: [
        greedy_with_cache__cut_at_the_end(m, [one], *s)[0] for one in p]),
    ("Work on copies", "greedy_with_cache__in_place", lambda m, p, *s: [t.append(0) for t in p]),
    ("one list of tokens for each prompt", "greedy_with_cache__a_tensor", lambda m, p, *s: torch.tensor(p[0])),
    ("called 11 times", "lookup_decoding__10", lambda *s: (lookup_decoding__windows(*s)[0], 10)),
    ("// divides into whole", "lookup_decoding__float", lambda *s: (lookup_decoding__windows(*s)[0], 11.0)),
    ("return tokens, calls", "lookup_decoding__text", lambda *s: lookup_decoding__windows(*s)[0]),
    ("n_new new tokens, no", "lookup_decoding__long", lambda m, p, n, *s: lookup_decoding__windows(m, p, n + 1, *s)),
    ("calls of the model got no cache", "lookup_decoding__no_cache", _one_at_a_time(0)),
    ("The cache holds it", "lookup_decoding__again", _one_at_a_time(900)),
    ("one place at a time", "lookup_decoding__batch", lambda m, p, *s: s[-1](m(p[None])[0])),
):  # fmt: skip
    wrong(words, name)(program)
