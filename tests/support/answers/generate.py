"""Right and wrong answers to the exercises of notebook 07, generating."""

import torch

from tests.support.answers.register import right, wrong


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
    """The right loop with a model that is called as call(model, tokens, cache, n_pad, the first call's two) says."""

    def program(model, *given):
        def called(tokens, cache, n_pad=None):
            first.append((tokens, n_pad))
            return call(model, tokens, cache, n_pad, *first[0])

        first, called.new_cache = [], model.new_cache
        return greedy_with_cache__cut_at_the_end(called, *given)

    return program


def _nobody_leaves(model, prompts, n_new, stop):
    texts, cache, longest = [[*p] for p in prompts], model.new_cache(len(prompts)), max(map(len, prompts))
    n_pad = [longest - len(p) for p in prompts]
    read = torch.tensor([[0] * n + p for n, p in zip(n_pad, prompts, strict=True)])
    for step in range(n_new):
        read = model(read, cache, n_pad=None if step else torch.tensor(n_pad))[:, -1:].argmax(-1)
        for text, prompt, token in zip(texts, prompts, read[:, 0].tolist(), strict=True):
            text += [token] * (text[len(prompt) :][-len(stop) :] != stop)
        if all(text[len(prompt) :][-len(stop) :] == stop for text, prompt in zip(texts, prompts, strict=True)):
            break
    return texts


for words, slip, program in (
    ("got no cache", "no_cache", _called(lambda m, t, cache, pad, *_: (m(t, cache, n_pad=pad), m(t))[1])),
    ("with the first call only", "padding_each_time", _called(lambda m, t, cache, _, __, pad: m(t, cache, n_pad=pad))),
    ("holds the others", "whole_text_each_time", _called(lambda m, tokens, cache, pad, first, _: m(
        tokens if pad is not None else torch.cat((first[: len(tokens)], tokens), 1), cache, n_pad=pad))),
    ("call 5 read 3 tokens, expected 2 … it is not read again", "nobody_leaves", _nobody_leaves),
    ("the first call read 2 tokens, expected 6 … padded to one length", "one_by_one", lambda m, prompts, *s: [
        greedy_with_cache__cut_at_the_end(m, [p], *s)[0] for p in prompts]),
    ("in the order of prompts", "by_length", lambda *given: sorted(greedy_with_cache__cut_at_the_end(*given), key=len)),
    ("Work on copies", "in_place", lambda m, p, *s: [t.append(0) for t in p]),
    ("one list of tokens for each prompt", "a_tensor", lambda m, p, *s: torch.tensor(p[0])),
    ("The prompt comes first", "only_what_is_new", lambda m, p, *s: [t[len(q) :] for t, q in zip(
        greedy_with_cache__cut_at_the_end(m, p, *s), p, strict=True)]),
):  # fmt: skip
    wrong(words, f"greedy_with_cache__{slip}")(program)


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


def _one_at_a_time(room, feed=lambda text, read: text[read:]):
    def program(model, prompt, n_new, n_draft, n_match, choose):
        cache, text = model.new_cache(1, room) if room else None, prompt
        for _ in range(n_new):
            row = model(feed(text, cache.length if cache else 0)[None], cache)[0, -1]
            text = torch.cat((text, torch.tensor([choose(row)])))
        return text, n_new

    return program


def _kept_by_chance(model, prompt, n_new, n_draft, n_match, choose):
    """Takes a token of the draft with its probability; if not, it may be drawn once more. It drafts token 3 always."""
    cache, text, chance = model.new_cache(1), [*prompt.tolist()], torch.Generator().manual_seed(0)
    text.append(choose(model(prompt[None], cache)[0, -1]))
    for _ in range(n_new - 1):
        share = (row := model(torch.tensor([text[-1:]]), cache)[0, -1]).softmax(-1)[3]
        text.append(3 if torch.rand(1, generator=chance) < share else choose(row))
    return torch.tensor(text), n_new


for words, name, program in (
    ("take generator=generator", "sample__global", _drawn(lambda q, g: torch.multinomial(q, 1)[:, 0])),
    ("Neither seed it", "sample__seeded", _drawn(lambda q, g: q.multinomial(1, generator=g.manual_seed(0))[:, 0])),
    ("You take the likeliest", "sample__greedy", _drawn(lambda q, g: q.argmax(-1))),
    ("one for all", "sample__shared", _drawn(lambda q, g: (q.cumsum(-1) < torch.rand(1, generator=g)).sum(-1) % 3)),
    ("[:, 0] takes", "sample__column", _drawn(lambda q, g: q.multinomial(1, generator=g))),
    ("none of them negative", "sample__logs", _drawn(lambda q, g: q.log().multinomial(1, generator=g)[:, 0])),
    ("sum to 1 before", "sample__no_token", _drawn(lambda q, g: 3 + q.multinomial(1, generator=g)[:, 0])),
    ("does not.", "sample__in_place", lambda z, t, k, p, g: z.div_(2).argmax(-1)),
    ("divides by zero", "sample__no_zero", lambda z, t, *s: sample__largest_after_noise(z / torch.tensor(t), 1, *s)),
    ("still draws", "sample__near_zero", lambda z, t, *s: sample__largest_after_noise(z, max(t, 1e-6), *s)),
    ("called 11 times", "lookup_decoding__10", lambda *s: (lookup_decoding__windows(*s)[0], 10)),
    ("return tokens, calls", "lookup_decoding__text", lambda *s: lookup_decoding__windows(*s)[0]),
    (
        "The prompt comes first",
        "lookup_decoding__new_only",
        lambda m, p, *s: (lookup_decoding__windows(m, p, *s)[0][len(p) :], 9),
    ),
    ("cut it, or the text", "lookup_decoding__long", lambda m, p, n, *s: lookup_decoding__windows(m, p, n + 1, *s)),
    ("calls of the model got no cache", "lookup_decoding__no_cache", _one_at_a_time(0)),
    ("reads all of a prompt", "lookup_decoding__no_prompt", _one_at_a_time(160, lambda text, read: text[-1:])),
    ("holds all others", "lookup_decoding__again", _one_at_a_time(900, lambda text, read: text)),
    ("once for each new token", "lookup_decoding__chance", _kept_by_chance),
    ("one place at a time", "lookup_decoding__batch", lambda m, p, *s: s[-1](m(p[None])[0])),
):
    wrong(words, name)(program)


@right
def tokens_per_second__the_lower_rate(config, n_weights, n_cached, batch, number_bytes, bandwidth, operations):
    head = config.vocab_size * config.dim
    read = n_weights - head * (not config.tie_embeddings)
    flops, tokens = 2 * read, n_cached * batch
    reading = (read + tokens * config.dim) * number_bytes / bandwidth
    times = reading, (flops * tokens - 2 * head * (tokens - batch)) / operations
    read += batch * (config.dim + 2 * n_cached * config.n_layers * config.n_kv_heads * config.head_dim)
    rates = batch * bandwidth / (read * number_bytes), operations / flops
    return torch.tensor(rates).min(), max(times)
