"""The exercises of notebook 07, generating: specification, cases, known mistakes with hints, check."""

import math
import random
from functools import partial

import torch
from torch.nn import functional as F

from checks.base import TYPE_HINTS, Case, Exercise, Harness, Wrong, draw, mutate
from checks.judge import check_of
from checks.shared import Named, RecordedLlama, require_form
from helpers.config import LlamaConfig
from helpers.model import Llama

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
    tolerance = SURE * ((1 + both_drawn) * share * (1 - share) / n).sqrt() + 4 / n
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

    def tokens(n, generator):
        given, states = logits.repeat(n, 1), (torch.get_rng_state(), random.getstate())
        answer = function(given, *settings, generator)
        require_form(answer, torch.zeros(len(given), dtype=torch.int64), SAMPLE, COLUMN)
        if not torch.equal(given, logits.repeat(n, 1)):
            raise Wrong("the input logits was changed in place.", "logits /= 2 changes it; z = logits / 2 does not.")
        if answer.min() < 0 or answer.max() >= logits.shape[1]:
            raise Wrong(f"tokens from {answer.min()} to {answer.max()}, expected from 0 to {logits.shape[1] - 1}.")
        if not torch.equal(torch.get_rng_state(), states[0]) or random.getstate() != states[1]:
            raise Wrong("the draw used random numbers that are not the generator's.", FROM_IT)
        return answer

    settings, n = (temperature, top_k, top_p), _draws(logits)
    if hasattr(function, "shares"):
        return (_equals_in_any_order(function.shares(logits, *settings), logits).float(),)
    right, drawn = _shares(logits, *settings), tokens(n, _generator(seed)).view(n, -1).T
    is_one = bool((drawn == drawn[:, :1]).all())
    if right.square().sum(-1).max() < 0.7 and not (is_one and settings[1:] != (None, None)):  # a wrong cut leaves 1
        _require_chance(tokens, seed, is_one)
    got = torch.stack([row.bincount(minlength=logits.shape[-1]) for row in drawn]).double() / n
    got, right = _equals_in_any_order(got, logits), _equals_in_any_order(right, logits)
    return ((right if _near(got, right, n) else got).float(),)


def _generator(seed):
    return torch.Generator().manual_seed(int(seed))


def _require_chance(tokens, seed, is_one):
    """Raise what is wrong with tokens(n, generator): rows differ, equal states give equal tokens, and others others."""
    if is_one:
        hint = "Is a token drawn for each row? The likeliest, or one random number for all rows, is not enough."
        raise Wrong("all equal rows got the same token.", hint)
    generator = _generator(seed + 1)
    first, second = tokens(40, generator), tokens(40, generator)
    if not torch.equal(first, tokens(40, _generator(seed + 1))):
        raise Wrong("two generators in the same state gave different tokens.", FROM_IT)
    if torch.equal(first, second) or torch.equal(first, tokens(40, _generator(seed + 2))):
        raise Wrong("a generator in another state gave the same tokens again.", FROM_IT)


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


SAMPLE = Exercise(sample, [
    _drawing("shares 0.2, 0.3, 0.5", torch.tensor([[1.0, 1.5, 2.5]]).log(), 1.0, None, None),
    _drawing("top-k 2", TINY_VOCABULARY, 1.0, 2, None),
    _drawing("top-p 0.75", TINY_VOCABULARY, 1.0, None, 0.75),
    _drawing("top-p 0.2", TINY_VOCABULARY, 1.0, None, 0.2, "The likeliest token alone has more than top_p: it stays."),
    _drawing("top-k 3, then top-p 0.75", TINY_VOCABULARY, 1.0, 3, 0.75),
    _drawing("temperature 0.5, top-k 4, top-p 0.8", TINY_VOCABULARY, 0.5, 4, 0.8),
    _drawing("temperature 0, two rows, top-k 2, top-p 0.9", ALMOST_EQUAL, 0.0, 2, 0.9, NO_DRAW),
    _drawing("three rows, top-k 4, top-p 0.8",
             torch.cat((4 * TINY_VOCABULARY.roll(1), TINY_VOCABULARY, TINY_VOCABULARY.flip(1))), 1.0, 4, 0.8,
             "There are three rows here, each with an order and a draw of its own."),
    _drawing("logits about 100, temperature 0.01", torch.tensor([[100.0, 99.99, 20.0, 99.996]]), 0.01, None, None,
             "exp(10000) is inf: torch.softmax, or the largest logit subtracted first, keeps all finite."),
    _drawing("a logit of -inf", torch.tensor([[0.5, -math.inf, 1.0, 0.2, 0.4]]), 1.0, 3, None, "0 times inf is nan."),
    _drawing("equal tokens at the border of top-k 2", torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]]), 1.0, 2, None),
    _drawing("four equal tokens, top-p 0.5", torch.zeros(1, 4), 1.0, None, 0.5, "Two have exactly top_p: enough."),
    _drawing("eight rows, top-p 1", draw(8, 6, seed=36), 1.0, None, 1.0, "In some rows the sum is a little below 1."),
    _drawing("1,024 tokens, top-p 0.96", draw(1, 1024, seed=3, scale=2.0), 1.0, None, 0.96,
             "More than a hundred stay here."),
    _drawing("float64", draw(2, 5, seed=4).double(), 1.5, 4, 0.9, "The logits are float64 here."),
], [  # known mistakes
    ("Does top-p see shares that sum to 1 again after top-k? Yours adds up those before top-k: either top-p comes "
     "first, or the division by the sum is missing between the two.", _bug("q = _to_1(q)", "")),
    ("Is the temperature before top-p?", _bug(" / temperature", "", BACK_AGAIN, f"{BACK_AGAIN} ** (1 / temperature)")),
    ("Is the logit of a token that is cut off -inf? With 0 it is still drawn.",
     _drawn(lambda z, t, k, p: _shares(z.where(_shares(z, t, k, None) > 0, 0.0), t, None, p))),
    ("Exactly top_k stay: of equals the first by place.", _bug("place < top_k", "q >= q[:, top_k - 1 : top_k]")),
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
    for weight in model.requires_grad_(False).parameters():
        if weight.ndim == 2:
            weight.normal_(std=0.5, generator=generator)
    return model.double()


def _read_once(function, seed, prompts, n_new, stop):
    """The texts as tensors, and behind them how many tokens each call of the model read."""
    model, given = _small_model(seed), [[*prompt] for prompt in prompts]
    answer = function(model, given, n_new, [*stop])
    if given != prompts:
        raise Wrong("the input prompts was changed in place.", "Work on copies: [list(p) for p in prompts].")
    texts = [text.tolist() if isinstance(text, torch.Tensor) else text for text in _listed(answer)]
    if len(texts) != len(prompts) or {type(token) for text in texts for token in _listed(text)} != {int}:
        hint = "Return a list with one list of tokens for each prompt, in the order of the prompts."
        raise Wrong(f"{len(prompts)} lists of tokens are expected, not {str(answer)[:60]}.", hint)
    filled = [*texts, [], [], []][:4]  # so that each part has its name
    calls, needed = _calls(model, len(prompts)), len(prompts) * max(map(len, prompts))
    if calls[0] < needed:
        hint = "One prompt after the other? The first call reads all, a later one the newest token of each row."
        raise Wrong(f"the first call read {calls[0]} tokens, all prompts and their padding are {needed}.", hint)
    return (*(torch.tensor(text, dtype=torch.int64) for text in filled), calls)


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
GOES_ON = "texts[row][len(prompts[row]) :][-len(stop) :] != stop"
LAST_CALL = "Is a call made after the last token of all rows? Nobody needs its logits. And does a row that ended leave?"
check_greedy_with_cache = check_of(Exercise(greedy_with_cache, [
    Case("one prompt, one new token", (_small(3), [[2, 8]], 1, [6]), "The prompt's call gives the first token."),
    Case("one prompt, a mark of three tokens", (_small(3), [[2, 8]], 8, [8, 6, 6])),
    Case("three prompts of one length, no mark comes", (_small(5), [[7, 2], [9, 9], [0, 3]], 6, [1, 1, 1, 1])),
    Case("three prompts of 2, 5 and 3", (_small(32), [[1, 5], [9, 7, 1, 4, 3], [9, 8, 11]], 10, [2, 8])),
    Case("four, a mark of one token", (_small(72), [[2, 4, 6, 8], [3], [5, 9, 10, 8, 11, 11], [8, 11, 0]], 9, [8])),
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
    ("Does each row end by itself? Yours all end with the first.", _rows("not keep", "len(keep) < len(left)")),
    ("Which rows stay in the cache? Those that go on: cache.k[:, keep]. Yours are the first ones.",
     _rows("left = [left[i] for i in keep]", "left, keep = [left[i] for i in keep], list(range(len(keep)))")),
    ("Is the mark in the text? You cut it off.",
     _rows("return texts", "return [text[: -len(stop)] if text[len(prompt) :][-len(stop) :] == stop else text "
                           "for text, prompt in zip(texts, prompts)]")),
    ("At most n_new are new: yours one more.", _rows("range(n_new)", "range(n_new + 1)", "== n_new - 1", "== n_new")),
], hints={
    "out of bounds": "Is it a place in the cache as it is now? The others move up when a row has left.",
    "size of tensor|expanded size": "Does the same row leave all three: cache.k, cache.v and cache.n_pad?",
}, harness=Harness(_read_once, ("text 0", "text 1", "text 2", "text 3", "how many tokens each call read")),
    allow=("KVCache", "LlamaConfig")))  # fmt: skip


def lookup_decoding(model, prompt, n_new, n_draft, n_match, choose):
    """Text after a prompt (T,), several tokens per call of the model: ((T + n_new,) int64, number of calls)."""
    text, cache, whole = prompt.tolist(), model.new_cache(1), len(prompt) + n_new
    text.append(choose(model(prompt[None], cache=cache)[0, -1]))
    n_calls = 1
    while len(text) < whole:
        places = _places(text, n_match)
        draft = text[places[-1] + n_match :] if places else []
        draft = draft[:n_draft][: whole - len(text) - 1]
        logits = model(torch.tensor([[text[-1], *draft]]), cache=cache)[0]
        n_calls += 1
        chosen = []
        for guess, row in zip([*draft, None], logits, strict=True):
            chosen.append(choose(row))  # row by row, and none behind the first that differs: draws are used up
            if chosen[-1] != guess:
                break
        text += chosen
        cache.length = len(text) - 1  # all but the newest token are read
    return torch.tensor(text), n_calls


def _places(text, n_match):
    """Where the last n_match tokens stand earlier in the text, as seen from its start."""
    return [place for place in range(len(text) - n_match) if text[place : place + n_match] == text[-n_match:]]


def _chooser(temperature):
    """What chooses a token: a draw at this temperature; at 0 the likeliest."""
    generator = _generator(1)

    def choose(logits):
        if not isinstance(logits, torch.Tensor) or logits.shape != (12,):
            got = f"the shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"{logits!r:.40}"
            raise Wrong(f"choose got {got}, expected (V,), here (12,).", "It chooses at one place at a time.")
        if temperature == 0:
            return logits.argmax().item()
        return (logits / temperature).softmax(-1).multinomial(1, generator=generator).item()

    return choose


N_DRAWS = 300


def _require_chance_kept(function, model, prompt, n_draft, temperature):
    """Raise unless the second new token, a draft's first, comes as often as the model says; n_match is 1."""
    choose, joint = _chooser(temperature), torch.zeros(12, 12, dtype=torch.float64)
    for _ in range(N_DRAWS):
        first, second = function(model, prompt, 3, n_draft, 1, choose)[0][len(prompt) : len(prompt) + 2].tolist()
        joint[first, second] += 1 / N_DRAWS
    texts = torch.tensor([[*prompt.tolist(), first] for first in range(12)])
    both = (Llama.forward(model, texts) / temperature).softmax(-1)
    right = both[0, -2][:, None] * both[:, -1]
    drafted = [text[_places(text, 1)[-1] + 1] for text in texts.tolist()]
    mine, should = (table[range(12), drafted].sum() for table in (joint, right))
    if not _near(mine, should, N_DRAWS) or not _near(joint, right, N_DRAWS):
        raise Wrong(f"of {N_DRAWS} draws {mine:.0%} took the draft's first token, expected {should:.0%}.", DECIDES)


def _verified(function, seed, prompt, n_new, n_draft, n_match, temperature):
    """The text, and how often the model was called, if that was counted and each call read what is new."""
    model, choose = _small_model(seed, 160), _chooser(temperature)
    answer = function(model, prompt, n_new, n_draft, n_match, choose)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        found = f"{type(answer).__name__}{f' of {len(answer)}' if isinstance(answer, tuple | list) else ''}"
        hint = TYPE_HINTS["NoneType"] if answer is None else "Return both, with a comma: return tokens, calls"
        raise Wrong(f"the result is a {found}, expected two things: the tokens and the number of calls.", hint)
    text, n_calls = answer
    _calls(model, n_draft + 3)
    n_calls = n_calls.item() if isinstance(n_calls, torch.Tensor) and n_calls.numel() == 1 else n_calls
    if type(n_calls) is int and n_calls != len(model.calls):
        hint = "Is every call counted once, when it is made, the first one, which reads the prompt, too?"
        raise Wrong(f"you return {n_calls} calls, the model was called {len(model.calls)} times.", hint)
    right = lookup_decoding(_small_model(seed, 160), prompt, n_new, n_draft, n_match, _chooser(temperature))
    require_form(text, right[0], LOOKUP_DECODING, "A tensor of the prompt and n_new new tokens, no more.")
    if temperature and not torch.equal(text, right[0]):  # it may be asked in another order
        _require_chance_kept(function, model, prompt, n_draft, temperature)
        return right
    return text, n_calls


PROMPT = torch.tensor([3, 1, 4, 1, 5, 3, 1])
ALL = torch.tensor([4, 9, 3, 11, 5, 6, 8, 10, 7, 2, 0, 1, 4])  # whatever is drawn first stood before
DECIDES = "Does choose alone decide, asked once at each place? A token of the draft stays if choose gives the same."
PLACE, STAY = "places[-1] + n_match", "text += chosen"
ASK, KEPT = "chosen.append(choose(row))", "cache.length = len(text) - 1"
_lookup = partial(mutate, lookup_decoding)
LOOKUP_DECODING = Exercise(lookup_decoding, [
    Case("12 new, drafts of 3, the last token", (_small(30), PROMPT, 12, 3, 1, 0)),
    Case("18 new, drafts of 4, the last two", (_small(15), PROMPT, 18, 4, 2, 0)),
    Case("prompt of one token, the last three", (_small(10), torch.tensor([7]), 18, 4, 3, 0)),
    Case("drafts longer than what is left", (_small(10), torch.tensor([7]), 18, 30, 2, 0)),
    Case("one new token", (_small(15), PROMPT, 1, 4, 1, 0), "One call is enough here: the first."),
    Case("drawn", (_small(39), ALL, 24, 3, 1, 0.7), stochastic=True),
], [  # known mistakes
    ("You call once for each new token. Is the whole draft verified in one call, and does it come from an earlier "
     "place, in new tokens, too? At the end, where the last n_match stand, nothing follows.",
     _lookup(f"text[{PLACE} :]", "[]")),
    ("Which earlier place counts? The last one: you take the first.", _lookup("places[-1]", "places[0]")),
    ("Is the draft what follows the place? It begins n_match behind it.", _lookup(PLACE, "places[-1]")),
    ("Near the end of the text fewer than n_draft tokens follow a place: they are a draft, too.",
     _lookup("_places(text, n_match)", "[i for i in _places(text, n_match) if i < len(text) - n_match - n_draft]")),
    ("Which row judges the draft's first token? The first, of the newest token: you take the row behind.",
     _lookup("[*draft, None], logits", "[*draft, None], [*logits[1:], logits[-1]]")),
    ("Is the draft verified by the model?", _lookup("break", "pass", STAY, "text += [*draft, chosen[-1]]")),
    ("Do tokens stay only up to the first that differs? You count all that agree.",
     _lookup("break", "pass", STAY, "text += chosen[: 1 + sum(map(int.__eq__, chosen, draft))]")),
    ("Does a part of a draft stay, too?", _lookup(STAY, "text += chosen if len(chosen) > len(draft) else chosen[:1]")),
    ("Behind a draft that is all right one token is free.", _lookup(STAY, "text += chosen[: len(draft) or 1]")),
    ("Does the cache forget what was not kept? Set cache.length to what it read and stays.", _lookup(KEPT, "")),
    ("The newest token is not read yet: does cache.length leave it out?", _lookup(KEPT, KEPT[:-4])),
    (DECIDES, _lookup(ASK, f"{ASK}; chosen[-1] = guess if guess is not None and guess == row.argmax() else "
                           "chosen[-1]")),
], harness=Harness(_verified, ("the text", "the number of calls")),
    allow=("KVCache", "LlamaConfig", "causal_visible"))  # fmt: skip
check_lookup_decoding = check_of(LOOKUP_DECODING)
