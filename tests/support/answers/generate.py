"""Right and wrong answers to the exercises of notebook 07, generating."""

import torch

from tests.support.answers.register import right, wrong


@right
def top_p__loop(probabilities, p):
    kept, total = torch.zeros_like(probabilities), 0.0
    for token in probabilities.argsort(descending=True):
        kept[token] = probabilities[token]
        total += probabilities[token].item()
        if total >= p:
            break
    return kept / kept.sum()


@wrong("rounded to a little less")
def top_p__adds_until_p_is_reached(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    n, total = 0, 0.0
    while total < p:
        total += ordered[n].item()
        n += 1
    result = torch.zeros_like(probabilities)
    result[order[:n]] = ordered[:n] / ordered[:n].sum()
    return result


@right
def greedy_with_cache__latest(model, tokens, n_new):
    cache, latest = model.new_cache(len(tokens)), tokens
    for _ in range(n_new):
        latest = model(latest, cache)[:, -1:].argmax(dim=-1)
        tokens = torch.cat((tokens, latest), dim=1)
    return tokens


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


def _all(text, latest):
    return text


def _last(text, latest):
    return text[:, -1:]


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
    ("How often does the loop run", "one_even_for_none", lambda m, t, n: greedy_with_cache__latest(m, t, max(1, n))),
    ("n_new calls in all", "first_new_token_forgotten", lambda m, t, n: greedy_with_cache__latest(m, t, n - 1)),
    ("prompt comes first", "only_what_is_new", lambda m, t, n: greedy_with_cache__latest(m, t, n)[:, t.shape[1] :]),
):
    wrong(words, f"greedy_with_cache__{slip}")(program)


@right
def tokens_per_second__the_lower_rate(config, n_weights, n_cached, batch, number_bytes, bandwidth, operations):
    read = n_weights
    if not config.tie_embeddings:
        read -= config.vocab_size * config.dim
    flops = 2 * read
    for _ in range(batch):
        read += config.dim + 2 * n_cached * config.n_layers * config.n_kv_heads * config.head_dim
    return torch.tensor([batch * bandwidth / (read * number_bytes), operations / flops]).min()
