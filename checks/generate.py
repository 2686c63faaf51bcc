"""The exercises of notebook 07, generating: specification, cases, known mistakes with hints, check."""

import math
import random
from functools import cache, partial

import torch
from torch.nn import functional as F

from checks.base import Case, Exercise, Harness, Wrong, draw, mutate, strided
from checks.judge import check_of
from checks.shared import Named, RecordedLlama, require_form, require_unchanged, snapshot
from helpers.config import LlamaConfig

SURE = 5.0  # standard deviations: of 10,000 right programs about one is refused, whatever it draws with


def sample(logits, temperature, top_k, top_p, generator):
    """One token drawn for each row of logits (B, V): temperature first, then top-k, then top-p; (B,) int64."""
    return torch.multinomial(_shares(logits, temperature, top_k, top_p), 1, generator=generator)[:, 0]


def _to_1(shares):
    return shares / shares.sum(-1, keepdim=True)


def _back(q, order):
    """Shares that were sorted, each at its token again."""
    return torch.zeros_like(q).scatter(-1, order, q)


TINY = 1e-9  # of a sum in float64


def _shares(logits, temperature, top_k, top_p):
    """The share of the draws that each token of each row should get, (B, V) float64."""
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    q, order = (logits.double() / temperature).softmax(-1).sort(descending=True, stable=True)
    place = torch.arange(q.shape[-1])
    if top_k is not None:
        q = torch.where(place < top_k, q, 0.0)
    q = _to_1(q)
    if top_p is not None:
        q = torch.where(q.cumsum(-1) - q < top_p - TINY, q, 0.0)
    return _to_1(_back(q, order))


sample.shares = _shares


def _drawn(shares):
    """A program that draws from these shares. They stand at it, so that a known mistake need not be drawn."""

    def program(logits, temperature, top_k, top_p, generator):
        return torch.multinomial(shares(logits, temperature, top_k, top_p), 1, generator=generator)[:, 0]

    program.shares = shares
    return program


def _bug(*changes):
    """The sampler with a change in the text of _shares; most leave temperature 0 as it is."""
    return _drawn(mutate(_shares, *changes))


def _draws(shares):
    """How many copies of each row are handed over: few of many rows or tokens, so that a loop ends in time."""
    return 300 if shares.shape[-1] > 100 else max(200, 1000 // len(shares))


def _near(mine, right, n, both_drawn=False):
    """Whether shares of n draws are the right ones up to chance, or those of n other draws."""
    share = (mine + right) / 2 if both_drawn else right
    tolerance = SURE * ((1 + both_drawn) * share * (1 - share).clamp(min=0) / n).sqrt() + 4 / n
    return bool(((mine - right).abs() <= torch.where(share > 0, tolerance, 0.0)).all())


def _same_shares(got, theirs):
    if got is None or theirs is None or got[0].shape != theirs[0].shape:
        return False
    return _near(got[0].double(), theirs[0].double(), _draws(got[0]), both_drawn=True)


def _equals_in_any_order(shares, logits):
    """Puts the shares of equally likely tokens in order: which of them is kept depends on the sort."""
    shares = shares.clone()
    for values, mine in zip(logits, shares, strict=True):
        found, counts = values.unique(return_counts=True)
        for value in found[counts > 1]:
            mine[values == value] = mine[values == value].sort(descending=True).values
    return shares


def _counted(function, logits, temperature, top_k, top_p, seed):
    """Hands over many copies of each row, and makes shares of the tokens that come back: exact if they fit."""

    def tokens(n, generator, most=None):
        copies, states = logits.repeat(n, 1)[:most], (torch.get_rng_state(), random.getstate())
        given = copies.clone() if n == 40 else strided(copies)
        answer = function(given, *(settings if n > 1 or temperature else (0.0, None, None)), generator)
        require_form(answer, torch.zeros(len(given), dtype=torch.int64), SAMPLE, COLUMN)
        if not torch.equal(given, copies):
            raise Wrong("the input logits was changed in place.", "logits /= 2 changes it; z = logits / 2 does not.")
        if answer.min() < 0 or answer.max() >= logits.shape[1]:
            raise Wrong(f"tokens from {answer.min()} to {answer.max()}, expected from 0 to {logits.shape[1] - 1}.")
        _require_own_draws(states)
        return answer

    settings, n = (temperature, top_k, top_p), _draws(logits)
    if hasattr(function, "shares"):
        return (_equals_in_any_order(function.shares(logits, *settings), logits).float(),)
    tokens(1, _generator(seed), most=1)
    right, drawn = _shares(logits, *settings), tokens(n, _generator(seed)).view(n, -1).T
    is_one = bool((drawn == drawn[:, :1]).all())
    if right.square().sum(-1).max() < 0.7 and not (is_one and settings[1:] != (None, None)):  # a wrong cut leaves 1
        _require_chance(tokens, seed, is_one)
    got = torch.stack([row.bincount(minlength=logits.shape[-1]) for row in drawn]).double() / n
    if settings in ((1.0, None, None), (1.0, 3, 0.75)):
        two = torch.stack([tokens(2, generator).view(2, -1) for generator in [_generator(seed + 3)] * N_TWO])
        same, rate = (two[:, 0] == two[:, 1]).double().mean(), right.square().sum(-1).mean()
        if not _near(same, rate, N_TWO * len(logits)):
            raise Wrong(f"two equal rows got the same token in {same:.0%} of calls, expected about {rate:.0%}.", OWN)
        one = torch.cat([tokens(1, generator) for generator in [_generator(seed + 4)] * N_TWO])
        if not _near(one.bincount(minlength=logits.shape[1])[None] / N_TWO, got, N_TWO):
            raise Wrong("one row alone gets other shares than among others.", "Has one row a branch of its own?")
    got, right = _equals_in_any_order(got, logits), _equals_in_any_order(right, logits)
    fits = _near(got, right, n) and _near(got.cumsum(-1), right.cumsum(-1), n)
    return ((right if fits else got).float(),)


def _generator(seed):
    return torch.Generator().manual_seed(int(seed))


def _require_own_draws(states):
    """Raise unless the generators of torch and Python are in these states."""
    if not torch.equal(torch.get_rng_state(), states[0]) or random.getstate() != states[1]:
        raise Wrong("the draw used random numbers that are not the generator's.", FROM_IT)


def _require_chance(tokens, seed, is_one=False):
    """Raise what is wrong with tokens(n, generator): rows differ, equal states give equal tokens, and others others."""
    if is_one:
        hint = "Is a token drawn for each row? The likeliest, or one random number for all rows, is not enough."
        raise Wrong("all equal rows got the same token.", hint)
    generator = _generator(seed + 1)
    first, second = tokens(40, generator), tokens(40, generator)
    if not torch.equal(first, tokens(40, _generator(seed + 1))):
        raise Wrong("two generators in the same state gave different tokens.", FROM_IT)
    third = tokens(40, _generator(seed + 2))
    if torch.equal(first, second) or torch.equal(first, third) or torch.equal(second, third):
        raise Wrong("a generator in another state gave the same tokens again.", FROM_IT)


N_TWO = 150  # calls with two copies of each row
OWN = "Has each row a random number of its own? One for all, moved on from row to row, is not enough."
FROM_IT = "torch.multinomial and torch.rand take generator=generator: is it drawn so, and neither seeded nor copied?"
COLUMN = "One token for each row, (B,) int64: torch.multinomial and keepdim=True give (B, 1), and [:, 0] its column."
ALMOST_EQUAL = torch.tensor([[0.5, 2.0, 2.0000005, 1.9], [1.9, 2.0000005, 2.0, 0.5]])
NO_DRAW = "Temperature 0 divides by zero, and one near 0 still draws: take the likeliest token instead."
TINY_VOCABULARY = torch.tensor([[0.05, 0.4, 0.11, 0.27, 0.17]]).log()
CROSSES = "Is the token that crosses top_p kept, too?"
CUT_P, BELOW_P = "q = torch.where(q.cumsum(-1)", "q.cumsum(-1) - q < top_p - TINY"
BACK_AGAIN = "_back(q, order)"


def _drawing(label, logits, temperature, top_k, top_p, hint="", seed=0):
    generator = Named(seed, f"torch.Generator().manual_seed({seed})")
    return Case(label, (logits, temperature, top_k, top_p, generator), hint)


UNLIKE = torch.tensor([[2.0, 1.5, -3.0, 0.0], [-1.0, 0.5, 0.5, 1.0]])
SAMPLE = Exercise(sample, [
    _drawing("shares 0.04, 0.2, 0.26, 0.5", torch.tensor([[2.0, 10.0, 13.0, 25.0]]).log(), 1.0, None, None,
             "None keeps all tokens, also the rare one."),
    _drawing("top-k 2", TINY_VOCABULARY, 1.0, 2, None),
    _drawing("top-p 0.75", TINY_VOCABULARY, 1.0, None, 0.75),
    _drawing("top-p 0.2", TINY_VOCABULARY, 1.0, None, 0.2, "The likeliest token alone has more than top_p: it stays."),
    _drawing("top-k 3, then top-p 0.75", TINY_VOCABULARY, 1.0, 3, 0.75),
    _drawing("temperature 0.5, top-k 4, top-p 0.8", TINY_VOCABULARY, 0.5, 4, 0.8),
    _drawing("temperature 0, two rows, top-k 2, top-p 0.9", ALMOST_EQUAL, 0.0, 2, 0.9, NO_DRAW),
    _drawing("three rows, top-k 4, top-p 0.8",
             torch.cat((4 * TINY_VOCABULARY.roll(1), TINY_VOCABULARY, TINY_VOCABULARY.flip(1))), 1.0, 4, 0.8,
             "There are three rows here, each with an order and a draw of its own."),
    _drawing("temperature 0.01", torch.tensor([[100, 99.99, 20, 99.996], [0.99, 1, 1.005, -1]]), 0.01, None, None,
             "exp(10000) is inf: torch.softmax, or each row's largest logit subtracted first, keeps all finite."),
    _drawing("a logit of -inf", torch.tensor([[0.5, -math.inf, 1.0, 0.2, 0.4]]), 1.0, 5, None,
             "Such a token never comes, also where top_k keeps all. And 0 times inf is nan."),
    _drawing("equal tokens at the border of top-k 1", torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]]), 1.0, 1, None),
    _drawing("two rows, temperature 0.5, top-k 2", UNLIKE.where(UNLIKE > -2, -math.inf), 0.5, 2, None),
    _drawing("two rows, temperature 0.5, top-p 0.75", UNLIKE, 0.5, None, 0.75),
    _drawing("two rows, temperature 1.5", UNLIKE, 1.5, None, None),
    _drawing("four equal tokens and a rare one, top-p 0.75", torch.tensor([[0.0, 0, -100, 0, 0]]), 1.0, None, 0.75,
             "Three have exactly top_p: enough. Or do you keep something of an earlier call?"),
    _drawing("eight rows, top-p 1", draw(8, 6, seed=36), 1.0, None, 1.0, "In some rows the sum is a little below 1."),
    _drawing("300 tokens, likeliest first, top-p 0.96", draw(1, 300, seed=3).sort(descending=True)[0], 1.0, None, 0.96,
             "More than two hundred stay here."),
    _drawing("temperature 1.5, float64", draw(2, 5, seed=4).double(), 1.5, 4, 0.9),
], [  # known mistakes
    ("Does top-p see shares that sum to 1 again after top-k? Yours adds up those before top-k: either top-p comes "
     "first, or the division by the sum is missing between the two.", _bug("q = _to_1(q)", "")),
    ("Is the temperature before top-p?", _bug(" / temperature", "", BACK_AGAIN, f"{BACK_AGAIN} ** (1 / temperature)")),
    ("Is the logit of a token that is cut off -inf? With 0 it is still drawn.",
     _drawn(lambda z, t, k, p: _shares(z.where(_shares(z, t, k, None) > 0, 0.0), t, None, p))),
    ("Exactly top_k stay: of equally likely ones any, but no more.",
     _bug("place < top_k", "q >= q[:, top_k - 1 : top_k]")),
    ("A place in the sorted order is no token: order.gather(-1, place) is.", _bug(BACK_AGAIN, "q")),
    ("Do the shares return to their tokens? x[order] sorts once more; scatter, or order.argsort(), undoes it.",
     _bug(CUT_P, f"order = {BACK_AGAIN}.argsort(descending=True, stable=True).argsort()\n        {CUT_P}")),
    (CROSSES, _bug(BELOW_P, "(q.cumsum(-1) <= top_p) | (place == 0)")),
    (CROSSES, _bug(BELOW_P, "(q.cumsum(-1) < top_p) | (place == (q[:, :1] < top_p))")),  # fairseq, issue 882
    ("A token stays while the sum before it is below top_p.", _bug(BELOW_P, f"place <= ({BELOW_P}).sum(-1, True)")),
    ("Do you sort before the cumulative sum?",
     _bug("q.cumsum(-1) - q", f"({BACK_AGAIN}.cumsum(-1) - {BACK_AGAIN}).gather(-1, order)")),
    ("At temperature 0 nothing is drawn.", _drawn(lambda z, t, k, p: _shares(z, t or 1.0, k, p))),
], harness=Harness(_counted, ("each token's share of the draws",), same_answer=_same_shares))  # fmt: skip
check_sample = check_of(SAMPLE)


def greedy_with_cache(model, prompts, n_new, stop):
    """Continue prompts of any lengths by n_new likeliest tokens each, or up to the mark `stop`: lists of tokens."""
    texts, left, longest = [[*prompt] for prompt in prompts], list(range(len(prompts))), max(map(len, prompts))
    cache, n_pad = model.new_cache(len(prompts)), [longest - len(prompt) for prompt in prompts]
    read = torch.tensor([[0] * n + text for n, text in zip(n_pad, texts, strict=True)])
    logits = model(read, cache=cache, n_pad=torch.tensor(n_pad))
    for step in range(n_new):
        for row, token in zip(left, logits[:, -1].argmax(-1).tolist(), strict=True):
            texts[row].append(token)
        keep = [i for i, row in enumerate(left) if texts[row][len(prompts[row]) :][-len(stop) :] != stop]
        if not keep or step == n_new - 1:
            break
        left = [left[i] for i in keep]
        cache.k, cache.v, cache.n_pad = cache.k[:, keep], cache.v[:, keep], cache.n_pad[keep]
        logits = model(torch.tensor([texts[row][-1:] for row in left]), cache=cache)
    return texts


_rows = partial(mutate, greedy_with_cache)


def _small_model(seed, max_seq_len=48):
    """A model with large random weights, in float64, where tokens read singly or together have one likeliest."""
    sizes = {"vocab_size": 12, "dim": 16, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 24}
    constants = {"max_seq_len": max_seq_len, "norm_eps": 1e-5, "rope_theta": 100.0, "tie_embeddings": False}
    model, generator = RecordedLlama(LlamaConfig(**sizes, **constants)), _generator(seed)
    for weight in (one for one in model.requires_grad_(False).parameters() if one.ndim == 2):
        weight.normal_(std=0.5, generator=generator)
    return model.double().eval().requires_grad_()


def _read_once(function, seed, prompts, n_new, stop):
    """The texts as tensors, and behind them how many tokens each call of the model read."""
    model, given, mark = _small_model(seed), [[*prompt] for prompt in prompts], [*stop]
    before = snapshot(model)
    answer = function(model, given, n_new, mark)
    if given != prompts or mark != stop:
        said = f"the input {'stop' if given == prompts else 'prompts'} was changed in place."
        raise Wrong(said, "Work on copies: [list(p) for p in prompts].")
    require_unchanged(model, before)
    texts = [text.tolist() if isinstance(text, torch.Tensor) else text for text in _listed(answer)]
    if len(texts) != len(prompts) or {type(token) for text in texts for token in _listed(text)} != {int}:
        hint = "Return a list with one list of tokens for each prompt, in the order of the prompts."
        raise Wrong(f"{len(prompts)} lists of tokens are expected, not {str(answer)[:60]}.", hint)
    calls, needed = _calls(model, len(prompts)), len(prompts) * max(map(len, prompts))
    if calls[0] < needed:
        hint = CUT if len(model.calls[0].tokens) == len(prompts) > 1 else ONE_BY_ONE
        raise Wrong(f"the first call read {calls[0]} tokens, all prompts and their padding are {needed}.", hint)
    calls[0] = needed  # more padding than that is no mistake
    return (*(torch.tensor(text, dtype=torch.int64) for text in [*texts, [], [], []][:4]), calls)  # each has its name


def _listed(value):
    return value if isinstance(value, list | tuple) else [None]


def _calls(model, most):
    """How many tokens each call read; raises unless all calls had a cache, and none but the first more than `most`."""
    sizes, missing = [call.tokens.numel() for call in model.calls], sum(not call.has_cache for call in model.calls)
    if not sizes or missing:
        hint = "Does every call get the cache, the first one, which reads all of a prompt, too? model(..., cache=cache)"
        raise Wrong(f"{missing} of {len(sizes)} calls of the model got no cache.", hint)
    if large := [n for n in sizes[1:] if n > most]:
        hint = "Is the prompt read by the first call alone, padded to one length with others? The cache holds it."
        raise Wrong(f"a call after the first read {large[0]} tokens, more than {most}.", hint)
    return torch.tensor(sizes)


_small = partial(Named, words="a small model")
ONE_BY_ONE = "One prompt after the other? The first call reads all, a later one the newest token of each row."
CUT = "Are all prompts padded to the length of the longest one? Here a longer one has lost tokens."
GOES_ON = "texts[row][len(prompts[row]) :][-len(stop) :] != stop"
LAST_CALL = "Is a call made after the last token of all rows? Nobody needs its logits. And does a row that ended leave?"
check_greedy_with_cache = check_of(Exercise(greedy_with_cache, [
    Case("one prompt, one new token", (_small(3), [[2, 8]], 1, [6]), "The prompt's call gives the first token."),
    Case("one prompt, a mark of three tokens", (_small(9), [[2, 8]], 8, [3, 3, 9]),
         "The new tokens are 7 3 3 3 9: each three in a row may be the mark."),
    Case("two prompts are equal, no mark comes", (_small(5), [[7, 2], [9, 9], [0, 3], [7, 2]], 6, [1, 1, 1, 1])),
    Case("three prompts of 2, 5 and 3", (_small(166), [[1, 5], [9, 7, 1, 4, 3], [9, 8, 11]], 10, [11, 6]),
         "Does all that you keep of a text, such as its last tokens, move up with it when another text leaves?"),
    Case("four, two of them equal, a mark of one token",
         (_small(72), [[2, 4, 6, 8], [5, 9, 10, 8, 11, 11], [5, 9, 10, 8, 11, 11], [8, 11, 0]], 9, [8]),
         "Does one token end a text? Two prompts are equal, and leave at once: is each row known by its place?"),
    Case("a mark of 0 and 4, where 10 and 4 come first", (_small(202), [[6], [3, 7]], 10, [0, 4]),
         "Do you compare numbers? In a text, 0 4 is also found inside 10 4."),
    Case("a prompt that ends as the mark begins", (_small(132), [[4, 6, 9, 6], [2, 9]], 8, [9, 2])),
], [  # known mistakes
    ("Is the padding on the left, so that all rows end together?", _rows("[0] * n + text", "text + [0] * n")),
    ("Does the first call get n_pad, for the padding?", _rows("torch.tensor(n_pad)", "torch.tensor([0] * len(left))")),
    ("Does a row that has ended leave? Take it out of cache.k, cache.v and cache.n_pad: it is not read again.",
     _rows("texts[row].append(token)", f"texts[row] += [token] * ({GOES_ON})",
           "if not keep", "keep = keep and list(range(len(left)))\n        if not keep")),
    (LAST_CALL, _rows("not keep or step == n_new - 1", "not keep")),
    ("The whole mark ends a row. You end it at one of its tokens.", _rows(GOES_ON, "texts[row][-1] != stop[-1]")),
    ("Do the texts stand in the order of their prompts? Yours stand in the order in which they end.",
     _rows("return texts", "return sorted(texts, key=lambda text: len(text) - len(prompts[texts.index(text)]))")),
    ("Does a text begin with its prompt? You return the new tokens alone.",
     _rows("return texts", "return [text[len(prompt) :] for text, prompt in zip(texts, prompts)]")),
    ("Do only new tokens count for the mark, not a prompt's?", _rows(GOES_ON, "texts[row][-len(stop) :] != stop")),
    ("Is the mark looked for in the first new token, too? A mark of one token may come at once.",
     _rows(GOES_ON, f"({GOES_ON} or not step)")),
    ("Does each row end by itself? Yours all end with the first.", _rows("not keep", "len(keep) < len(left)")),
    ("Which rows stay in the cache? Those that go on: cache.k[:, keep]. Yours are the first ones.",
     _rows("left = [left[i] for i in keep]", "left, keep = [left[i] for i in keep], list(range(len(keep)))")),
    ("Does cache.n_pad keep the same rows as cache.k and cache.v?",
     _rows("cache.n_pad[keep]", "cache.n_pad[: len(keep)]")),
    ("Do cache.k and cache.v keep the same rows as cache.n_pad? Rows are their second dimension.",
     _rows("cache.k[:, keep], cache.v[:, keep]", "cache.k[:, : len(keep)], cache.v[:, : len(keep)]")),
    ("Is the mark in the text? You cut it off.",
     _rows("return texts", "return [text[: -len(stop)] if text[len(prompt) :][-len(stop) :] == stop else text "
                           "for text, prompt in zip(texts, prompts)]")),
    ("At most n_new are new: yours one more.", _rows("range(n_new)", "range(n_new + 1)", "== n_new - 1", "== n_new")),
], hints={
    "NoneType.* subscript": "Does the first call get n_pad=? Without it cache.n_pad is None.",
    "out of bounds": "Is it a place in the cache as it is now? The others move up when a row has left.",
    "size of tensor|expanded size": "Does the same row leave all three: cache.k, cache.v and cache.n_pad?",
}, harness=Harness(_read_once, ("text 0", "text 1", "text 2", "text 3", "how many tokens each call read")),
    allow=("KVCache", "LlamaConfig")))  # fmt: skip


def judge(p, q, draft, generator):
    """What stays of a draft (n,) that q (n, V) has drawn, by the model's p (n + 1, V), and one token more; int64."""
    return _one_call(_law(p, q, (*draft.tolist(),)), draft, generator)


def _law(p, q, draft):
    """How often a call keeps 0 to n tokens of this draft, and which token follows them, (n + 1, V) float64."""
    p, q, law, arrives = p.double(), q.double(), [], 1.0
    for place, token in enumerate(draft):
        stays = min(1.0, (p[place, token] / q[place, token]).item())
        left = (p[place] - q[place]).clamp(min=0)
        law.append(arrives * (1 - stays) * left / left.sum().clamp(min=TINY))
        arrives *= stays
    return torch.stack([*law, arrives * _to_1(p[-1])])


judge.law = _law


def _one_call(law, draft, generator):
    kept, last = divmod(torch.multinomial(law.flatten(), 1, generator=generator).item(), law.shape[1])
    return torch.cat((draft[:kept], torch.tensor([last])))


def _misjudge(*changes):
    """The judge with a change in the text of _law, which stands at it, so that its calls need not be counted."""

    def program(p, q, draft, generator):
        return _one_call(law(p, q, (*draft.tolist(),)), draft, generator)

    program.law = law = cache(mutate(_law, *changes))
    return program


N_CALLS, N_DRAWN = 400, 2000  # for one draft, for all. A call takes a fifth of a millisecond, on a slow machine one
APART = 0.12  # half the sum of all differences. Seen: right programs up to 0.085 of 400, known mistakes from 0.24 on


def _drafts(q, draft):
    """[(draft, how often it is handed over)]: the one, or of `draft` calls each as often as q draws it."""
    if isinstance(draft, torch.Tensor):
        return [(draft, N_CALLS)]
    every = torch.cartesian_prod(*[torch.arange(q.shape[1])] * len(q))
    counts = (draft * q.double()[torch.arange(len(q)), every].prod(-1)).round().int()
    return [(one, n) for one, n in zip(every, counts.tolist(), strict=True) if n]


def _expected(law, p, q, drafts):
    """{tokens that stay: how often each token follows them, (V,)}, over all calls."""
    found = {}
    for draft, n in drafts:
        for kept, row in enumerate(n * law(p, q, (*draft.tolist(),))):
            stays = (*draft[:kept].tolist(),)
            found[stays] = found.get(stays, 0) + row
    return found


def _seen(function, p, q, drafts, seed):
    """The same, of a program that is called."""
    given, found = (strided(p), strided(q)), {}

    def call(draft, generator):
        tokens = function(*given, mine := draft.clone(), generator)
        is_draft = not torch.equal(mine, draft)
        if is_draft or not torch.equal(given[0], p) or not torch.equal(given[1], q):
            said = f"the input {'draft' if is_draft else 'p or q'} was changed in place."
            raise Wrong(said, "p[0] -= q[0] and draft[0] = 1 change an input; left = p[0] - q[0] and .clone() do not.")
        if type(tokens) is not torch.Tensor or tokens.ndim != 1 or tokens.dtype != torch.int64:
            n = len(tokens) if getattr(tokens, "ndim", 0) == 1 else len(draft) + 1
            require_form(tokens, draft.new_zeros(n), JUDGE, "Return one tensor: torch.cat((…, …)).")
            raise Wrong(f"the tokens have the shape {tuple(tokens.shape)}, expected one dimension.")
        listed, drafted = tokens.tolist(), draft.tolist()
        stays = 1 <= len(listed) <= len(drafted) + 1 and listed[:-1] == drafted[: len(listed) - 1]
        if not stays or not 0 <= listed[-1] < p.shape[1]:
            hint = "First what stays of the draft, from its beginning on, then one token more, and no other."
            raise Wrong(f"for the draft {drafted} a call gave {listed}.", hint)
        return tokens

    states, generator = (torch.get_rng_state(), random.getstate()), _generator(seed)
    law = _law(p, q, (*drafts[0][0].tolist(),))
    if law.max() < 0.9:
        _require_chance(lambda n, draws: torch.cat([call(drafts[0][0], draws) for _ in range(n)]), seed)
    for draft, n in drafts:
        for _ in range(n):
            *stays, last = call(draft, generator).tolist()
            found.setdefault((*stays,), torch.zeros(p.shape[1], dtype=torch.float64))[last] += 1
    _require_own_draws(states)
    return found


def _as_shares(found, order):
    """Shares of the calls: how many tokens stay; which token follows so many; whole calls, in this order."""
    whole = torch.stack([found.get(stays, torch.zeros_like(row)) for stays, row in order.items()])
    lengths, whole = torch.tensor([len(stays) for stays in order]), whole / whole.sum()
    last = torch.zeros(max(lengths) + 1, whole.shape[1], dtype=whole.dtype).index_add(0, lengths, whole)
    return last.sum(1), last, whole


def _apart(mine, right):
    """Half the sum of all differences; all, where something came that cannot come."""
    return 1.0 if ((mine > 0) & (right == 0)).any() else (mine - right).abs().sum() / 2


def _judged(function, p, q, draft, seed):
    """Shares of many calls, exact where they fit, so that a message names the first that do not."""
    drafts = _drafts(q, draft)
    right = _expected(_law, p, q, drafts)
    is_known = hasattr(function, "law")
    found = _expected(function.law, p, q, drafts) if is_known else _seen(function, p, q, drafts, seed)
    mine, wanted, n = _as_shares(found, right), _as_shares(right, right), sum(n for _, n in drafts)
    fits = [not is_known and _apart(*pair) <= APART for pair in zip(mine, wanted, strict=True)]
    rows = [(m, w, n * m.sum()) for m, w in zip(mine[1], wanted[1], strict=True) if m.any() and w.any()]
    if not all(_near(_to_1(m), _to_1(w), n) for m, w, n in rows):  # after few that stay, or many, a rule of its own
        fits[1:] = False, False
    *rest, whole = (want if fit else one for one, want, fit in zip(mine, wanted, fits, strict=True))
    return (*(wanted[:2] if fits[2] else rest), whole)


def _same_calls(got, theirs):
    if got is None or theirs is None or got[2].shape != theirs[2].shape:
        return False
    return (got[2] - theirs[2]).abs().sum() / 2 <= APART


def _table(*rows):
    return torch.tensor(rows)


def _at(places, shares, n_tokens=1000):
    """Rows of so many tokens, with these shares at a few places and 0 elsewhere."""
    return torch.zeros(len(shares), n_tokens).index_copy(1, torch.tensor(places), torch.tensor(shares))


def _judging(label, p, q, draft, hint="", seed=0):
    is_list = isinstance(draft, list)
    draft = torch.tensor(draft, dtype=torch.int64) if is_list else Named(draft, f"{draft:,} times drawn from q")
    return Case(label, (p, q, draft, Named(seed, f"torch.Generator().manual_seed({seed})")), hint)


# Half the drafts of token 0 are refused, and what follows is spread out: it shows if a number is used a second time.
P1, Q1 = _table([0.3, 0.1, 0.25, 0.25, 0.1], [0.0, 0.48, 0.52, 0.0, 0.0]), _table([0.6, 0.3, 0.0, 0.1, 0.0])
P3 = _table([0.2, 0.3, 0.1, 0.4], [0.4, 0.1, 0.2, 0.3], [0.1, 0.5, 0.3, 0.1])
P2, Q2 = _table([0.2, 0.3, 0.5], [0.5, 0.1, 0.4], [0.2, 0.6, 0.2]), _table([0.6, 0.4, 0.0], [0.2, 0.5, 0.3])
PLACES = [3, 500, 998, 999]  # each of the three tokens stays in 92 of 100 calls, all three in 78
STAYS, LEFT = "min(1.0, (p[place, token] / q[place, token]).item())", "(p[place] - q[place]).clamp(min=0)"
AGAIN, FREE = "law.append(arrives * (1 - stays) * left / left.sum().clamp(min=TINY))", "arrives * _to_1(p[-1])"
TWICE = "Has each draw a random number of its own? Yours uses the one by which a token stays or is refused once more."
AS_BEFORE = "min([1.0, *((p[i, t] / q[i, t]).item() for i, t in enumerate(draft[:{}]))])"
JUDGE = Exercise(judge, [
    _judging("one token, drawn too often", P1, Q1, [0]),
    _judging("one token, drawn too seldom", P1, Q1, [3],
             "p is larger than q here: the token always stays."),
    _judging("no draft", _table([0.8, 0.05, 0.05, 0.05, 0.05]), torch.zeros(0, 5), [],
             "Without a draft one token comes, from p[0]."),
    _judging("p equal to q", P3, P3[:2], [2, 0],
             "Here all stays, and p - q is 0 everywhere."),
    _judging("a copied draft, of which q is sure", _table([0.2, 0, 0.6, 0.2], [0.6, 0.2, 0, 0.2],
             [0.2, 0.6, 0.2, 0], [0.0, 1, 0, 0]), _table([0.0, 0, 1, 0], [1.0, 0, 0, 0], [0.0, 1, 0, 0]), [2, 0, 1]),
    _judging("both are sure, as at temperature 0", _table([0.0, 0, 1, 0], [1.0, 0, 0, 0], [0.0, 1, 0, 0]),
             _table([0.0, 0, 1, 0], [0.0, 0, 0, 1]), [2, 3]),
    _judging("drafts of two", P2, Q2, N_DRAWN),
    _judging("1,000 tokens, drafts of three",
             _at(PLACES, [[0.46, 0.3, 0.125, 0.115], [0.125, 0.46, 0.115, 0.3], [0.125, 0.115, 0.3, 0.46],
                          [0.4, 0, 0, 0.6]]),
             _at(PLACES, [[0.5, 0.3, 0.1, 0.1], [0.1, 0.5, 0.1, 0.3], [0.1, 0.1, 0.3, 0.5]]), [3, 500, 999]),
    _judging("bfloat16", P1.bfloat16(), Q1.bfloat16(), [0], "p and q are bfloat16 here."),
    _judging("float64", P1.double(), Q1.double(), [0], "p and q are float64 here."),
], [  # known mistakes
    ("Does a token stay with probability min(1, p/q)? You draw one from p, and keep the draft's if it is the same.",
     _misjudge(STAYS, "p[place, token].item()", LEFT, "p[place].index_fill(0, torch.tensor(token), 0.0)")),
    ("The chance to stay is p/q, not p alone.", _misjudge(STAYS, "p[place, token].item()")),
    ("Is it p/q, and not q/p?", _misjudge(STAYS, "min(1.0, (q[place, token] / p[place, token]).item())")),
    ("Is chance in it? You keep a token whenever p is at least q.", 
     _misjudge(STAYS, "float(p[place, token] >= q[place, token])")),
    ("Has each token of the draft a random number of its own? You use one for all.",
     _misjudge(STAYS, f"{AS_BEFORE.format('place + 1')} / {AS_BEFORE.format('place')}")),
    (TWICE, _misjudge(AGAIN, "sums = _to_1(left + TINY * (left.sum() == 0)).cumsum(0).clamp(min=stays)\n"
                             "        law.append(arrives * sums.diff(prepend=sums.new_tensor([stays])))")),
    (TWICE, _misjudge(FREE, "arrives * _to_1(_to_1(p[-1]).cumsum(0).clamp(max=stays if draft else 1.0)"
                            ".diff(prepend=p.new_zeros(1)) + TINY * p[-1])")),
    ("Is each token of the draft judged? You judge the first alone.",
     _misjudge(STAYS, f"1.0 if place else {STAYS}")),
    ("Which rows belong together? Token i of the draft, p[i] and q[i].",
     _misjudge(STAYS, STAYS.replace("p[place,", "p[place + 1,"))),
    ("Which rows belong together? Token i of the draft, p[i] and q[i].",
     _misjudge(STAYS, STAYS.replace("q[place,", "q[0,"))),
    ("What is drawn in a refused token's place? Not from p: from what p has more than q.", _misjudge(LEFT, "p[place]")),
    ("What is drawn in a refused token's place? Not from p: from what p has more than q.",
     _misjudge(LEFT, "p[place].index_fill(0, torch.tensor(token), 0.0)")),
    ("Where q is larger than p, nothing is left: is that 0, and neither negative nor its size?",
     _misjudge(LEFT, "(p[place] - q[place]).abs()")),
    ("Is it p - q, and not q - p?", _misjudge(LEFT, "(q[place] - p[place]).clamp(min=0)")),
    ("Is p - q of the place at which the draft was refused?", _misjudge(LEFT, LEFT.replace("q[place]", "q[0]"))),
    ("Does what is left sum to 1 again? You give what is missing to the last token.", _misjudge(
        AGAIN, "left[-1] += 1 - left.sum()\n        law.append(arrives * (1 - stays) * left)")),
    ("Is the token in a refused one's place drawn? You take the likeliest.",
     _misjudge(LEFT, f"F.one_hot({LEFT}.argmax(), p.shape[1]).double()")),
    ("Is the token that follows a whole draft drawn, too? You take the likeliest of the last row.",
     _misjudge(FREE, "arrives * F.one_hot(p[-1].argmax(), p.shape[1])")),
    ("Which row has the free token's probabilities? The last.",
     _misjudge(FREE, "arrives * _to_1(p[max(0, len(draft) - 1)])")),
    ("If all of the draft stays, one token more is free: is it drawn, from the last row of p?",
     _misjudge(FREE, "0 * p[-1]", "return torch", "law[-1][draft[-1]] += arrives\n    return torch")),
], hints={
    "sum of probabilities|probability tensor":
        "Is p - q drawn from where a token stays? It may be 0 everywhere, or below 0.",
    "empty list|non-empty|at least one": "A draft may have no token at all.",
}, harness=Harness(_judged, ("how often 0, 1, … tokens of the draft stay", "which token follows 0, 1, … that stay",
                             "how often each whole call comes"), same_answer=_same_calls))  # fmt: skip
check_judge = check_of(JUDGE, seconds=20)  # seven thousand calls
