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
def greedy_with_cache__latest(model, tokens, n_new):
    cache, latest = model.new_cache(len(tokens)), tokens
    for _ in range(n_new):
        latest = model(latest, cache)[:, -1:].argmax(dim=-1)
        tokens = torch.cat((tokens, latest), dim=1)
    return tokens


@right
def greedy_with_cache__prompt_before_the_loop(model, tokens, n_new):
    cache = model.new_cache(len(tokens))
    latest = model(tokens, cache=cache)[:, -1].argmax(-1, keepdim=True)
    written = [latest]
    for _ in range(n_new - 1):
        latest = model(latest, cache=cache)[:, -1].argmax(-1, keepdim=True)
        written.append(latest)
    return torch.cat([tokens, *written], dim=1)


@right
def greedy_with_cache__prompt_token_by_token(model, tokens, n_new):
    cache, text = model.new_cache(len(tokens)), tokens
    for t in range(tokens.shape[1] + n_new - 1):
        logits = model(text[:, t : t + 1], cache=cache)[:, -1]
        if t >= tokens.shape[1] - 1:
            text = torch.cat((text, logits.argmax(-1, keepdim=True)), dim=1)
    return text


@right
def greedy_with_cache__a_cache_for_each_prompt(model, tokens, n_new):
    return torch.cat([greedy_with_cache__latest(model, row[None], n_new) for row in tokens])


@wrong("once, before the loop")
def greedy_with_cache__new_cache_each_time(model, tokens, n_new):
    for _ in range(n_new):
        tokens = greedy_with_cache__latest(model, tokens, 1)
    return tokens


@wrong("hold the prompt")
def greedy_with_cache__prompt_read_without_the_cache(model, tokens, n_new):
    cache, latest = model.new_cache(len(tokens)), model(tokens)[:, -1:].argmax(-1)
    for _ in range(n_new):
        tokens = torch.cat((tokens, latest), dim=1)
        latest = model(latest, cache)[:, -1:].argmax(-1)
    return tokens


@wrong("single token")
def greedy_with_cache__prompt_but_its_last_token_first(model, tokens, n_new):
    cache = model.new_cache(len(tokens))
    model(tokens[:, :-1], cache)
    return _greedy(model, tokens, n_new, cache, _last)


_all, _last = (lambda text, latest: text), (lambda text, latest: text[:, -1:])


def _greedy(model, tokens, n_new, cache=None, feed=_all, pick=lambda logits: logits[:, -1:].argmax(-1), dim=1):
    """The loop with another `feed`, a function of (text, latest tokens), or another `pick`."""
    latest = tokens
    for _ in range(n_new):
        latest = pick(model(feed(tokens, latest), cache))
        tokens = torch.cat((tokens, latest), dim)
    return tokens


def _cached(feed=lambda text, latest: latest, room=None, **options):
    return lambda model, tokens, n: _greedy(model, tokens, n, model.new_cache(len(tokens), room), feed, **options)


for words, slip, program in (
    ("cache handed over", "no_cache", _greedy),
    ("only the newest token", "all_again", _cached(_all, room=400)),
    ("newest token", "whole_text_each_time", _cached(_all)),  # the cache is full
    ("does the cache get the prompt", "prompt_skipped", _cached(_last)),
    ("keepdim=True", "dimension_lost", _cached(lambda text, latest: latest[:, -1])),
    ("keepdim=True", "dimension_lost_before_the_text", _cached(pick=lambda logits: logits[:, -1].argmax(-1))),
    ("not dim=0", "joined_as_new_rows", _cached(dim=0)),
    ("token too many", "one_too_many", lambda m, t, n: greedy_with_cache__latest(m, t, n + 1)),
    ("n_new calls in all", "first_new_token_forgotten", lambda m, t, n: greedy_with_cache__latest(m, t, n - 1)),
    ("prompt comes first", "only_what_is_new", lambda m, t, n: greedy_with_cache__latest(m, t, n)[:, t.shape[1] :]),
):
    wrong(words, f"greedy_with_cache__{slip}")(program)


@right
def lookup_decoding__windows(model, prompt, n_new, n_draft, n_match):
    cache, text, n_calls = model.new_cache(1, len(prompt) + n_new + n_draft), prompt, 0
    while len(text) < len(prompt) + n_new:
        found = (text.unfold(0, n_match, 1)[:-1] == text[-n_match:]).all(1).nonzero() if len(text) > n_match else ()
        start = found[-1].item() + n_match if n_calls and len(found) else len(text)
        draft, n_read = text[start : start + n_draft], len(text) - cache.length
        likeliest = model(torch.cat((text[cache.length :], draft))[None], cache)[0, n_read - 1 :].argmax(-1)
        right = (likeliest[:-1] == draft).int().cumprod(0).sum()
        text, n_calls = torch.cat((text, likeliest[: right + 1])), n_calls + 1
        cache.length = len(text) - 1
    return text[: len(prompt) + n_new], n_calls


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
    ("called 11 times", "lookup_decoding__10", lambda *s: (lookup_decoding__windows(*s)[0], 10)),
    ("return tokens, calls", "lookup_decoding__text", lambda *s: lookup_decoding__windows(*s)[0]),
    ("cut it, or the text", "lookup_decoding__long", lambda m, p, n, *s: lookup_decoding__windows(m, p, n + 1, *s)),
    ("no call of the model got", "lookup_decoding__no_cache", lambda m, p, n, *s: (_greedy(m, p[None], n)[0], n)),
    ("It reads all", "lookup_decoding__no_prompt", lambda m, p, n, *s: (_cached(_last)(m, p[None], n)[0], n)),
    ("holds all others", "lookup_decoding__again", lambda m, p, n, *s: (_cached(_all, 400)(m, p[None], n)[0], n)),
):
    wrong(words, name)(program)


@right
def tokens_per_second__the_lower_rate(config, n_weights, n_cached, batch, number_bytes, bandwidth, operations):
    read = n_weights
    if not config.tie_embeddings:
        read -= config.vocab_size * config.dim
    flops = 2 * read
    for _ in range(batch):
        read += config.dim + 2 * n_cached * config.n_layers * config.n_kv_heads * config.head_dim
    return torch.tensor([batch * bandwidth / (read * number_bytes), operations / flops]).min()
