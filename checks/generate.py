"""The exercises of notebook 07, generating: specification, cases, known mistakes with hints, check."""

import math
import random
from functools import cache, partial

import torch
from torch.nn import functional as F

from checks.base import TYPE_HINTS, Case, Exercise, Wrong, draw, edited, two_things
from checks.judge import check_of
from helpers.config import LlamaConfig
from helpers.model import Llama

# --------------------------------------------------------------------------------------------- the sampler

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


def _slip(*changes):
    """The sampler with a change in the text of _shares; most leave temperature 0 as it is."""
    return _drawn(edited(_shares, *changes))


def _draws(shares):
    """How many copies of each row are handed over: few of many rows or tokens, so that a loop ends in time."""
    return 300 if shares.shape[-1] > 100 else max(200, 1000 // len(shares))


def _near(mine, right, n, both_drawn=False):
    """Whether shares of n draws are the right ones up to chance, or those of n other draws."""
    share = (mine + right) / 2 if both_drawn else right
    tolerance = SURE * ((1 + both_drawn) * share * (1 - share) / n).sqrt() + 4 / n
    return bool(((mine - right).abs() <= torch.where(share > 0, tolerance, 0.0)).all())


def _same_shares(got, theirs):
    """Whether two answers are one, as far as draws can tell."""
    if got is None or theirs is None or got[0].shape != theirs[0].shape:
        return False
    return _near(got[0].double(), theirs[0].double(), _draws(got[0]), both_drawn=True)


class _Seed(int):
    """The seed of a generator, which stands for it in a case."""

    def __repr__(self):
        return f"torch.Generator().manual_seed({int(self)})"

    def made(self, more=0):
        return torch.Generator().manual_seed(int(self) + more)


def _equals_in_any_order(shares, logits):
    """Puts the shares of equally likely tokens in order: which of them is kept depends on the sort."""
    shares = shares.clone()
    for values, mine in zip(logits, shares, strict=True):
        several, counts = values.unique(return_counts=True)
        for value in several[counts > 1]:
            mine[values == value] = mine[values == value].sort(descending=True).values
    return shares


def _counted(function):
    """Hands over many copies of each row, and makes shares of the tokens that come back: exact if they fit."""

    def tokens(logits, settings, n, generator):
        given = logits.repeat(n, 1)
        was, torchs, pythons = given.clone(), torch.get_rng_state(), random.getstate()
        try:
            answer = function(given, *settings, generator)
        except RuntimeError as error:
            for words, hint in DRAWING.items():
                if words in str(error) and settings[0] and (logits / settings[0]).abs().max() < 80:
                    raise Wrong(f"it raises RuntimeError: {str(error).rstrip('.')}.", hint) from None
            raise
        if not torch.equal(given, was):
            raise Wrong("the input logits was changed in place.", "logits /= 2 changes it; z = logits / 2 does not.")
        _require_tokens(answer, *given.shape)
        if not torch.equal(torchs, torch.get_rng_state()) or pythons != random.getstate():
            raise Wrong("the draw used random numbers that are not the generator's.", FROM_IT)
        return answer

    def probe(logits, temperature, top_k, top_p, seed):
        settings, n = (temperature, top_k, top_p), _draws(logits)
        if hasattr(function, "shares"):
            return (_equals_in_any_order(function.shares(logits, *settings), logits).float(),)
        right = _shares(logits, *settings)
        drawn = tokens(logits, settings, n, seed.made()).view(n, -1).T
        if right.square().sum(-1).max() < 0.7:  # no token is so likely that few draws may well be the same
            is_cut = top_k is not None or top_p is not None  # then one token may be left, by another slip
            _require_chance(lambda n, g: tokens(logits, settings, n, g), logits, drawn, seed, is_cut)
        got = torch.stack([row.bincount(minlength=logits.shape[-1]) for row in drawn]).double() / n
        got, right = _equals_in_any_order(got, logits), _equals_in_any_order(right, logits)
        return ((right if _near(got, right, n) else got).float(),)

    return probe


FROM_IT = (
    "Does the draw take its numbers from the generator? torch.multinomial and torch.rand take generator=generator."
)
NOT_SEEDED = "Does each call go on where the generator stands? Neither seed it in the function nor copy it."
DRAWING = {  # words of torch.multinomial's errors
    "element < 0": "torch.multinomial takes shares, none of them negative or nan. Are yours logits, or logarithms?",
    "sum of probabilities <= 0": "Is at least one token left? The likeliest always stays, however small top_p is.",
    "without replacement": "Is one token drawn from each row? A second argument other than 1 draws several of a row.",
}


def _require_tokens(answer, rows, vocab):
    """Raise what is wrong with the form of an answer: (rows,) int64, each of them a token."""
    if not isinstance(answer, torch.Tensor):
        name = type(answer).__name__
        hint = "torch.tensor(...) makes a tensor of a list." if name == "list" else TYPE_HINTS.get(name, "")
        raise Wrong(f"the result has the type {name}, expected a tensor.", hint)
    if answer.shape != (rows,):
        hints = {
            (rows, 1): "torch.multinomial and keepdim=True give (B, 1): [:, 0] takes its column.",
            (rows, vocab): "Is a token drawn for each row? These are as many numbers as logits.",
        }
        hint = hints.get(tuple(answer.shape), "One token for each row is expected.")
        raise Wrong(f"the result has the shape {tuple(answer.shape)}, expected (B,), here ({rows},).", hint)
    if answer.dtype != torch.int64:
        hint = "Tokens are whole numbers, int64: .long() converts." if not answer.is_complex() else ""
        raise Wrong(f"the result has the dtype {answer.dtype}, expected torch.int64.", hint)
    if wrong := [token for token in answer.tolist() if not 0 <= token < vocab]:
        hint = "Do the kept shares sum to 1 before a random number is looked up among their sums?"
        raise Wrong(f"{len(wrong)} of {rows} tokens are not in 0 to {vocab - 1}; the first is {wrong[0]}.", hint)


def _require_chance(tokens, logits, drawn, seed, is_cut):
    """Raise what is wrong with the draw: rows differ, equal states give equal tokens, and others give others."""
    if (drawn == drawn[:, :1]).all():
        seen = torch.stack([tokens(1, seed.made(more)) for more in range(1, 40)])
        if (seen == seen[0]).all():
            if is_cut or (seen != logits.argmax(-1)).any():
                return
            hint = "Is a token drawn? You take the likeliest, which is right at temperature 0 only."
            raise Wrong("always the likeliest token came back.", hint)
        hint = "Is there a draw for each row? Yours is one for all, such as torch.rand(1) in place of torch.rand(B, 1)."
        raise Wrong(f"all {drawn.shape[1]} equal rows got the same token.", hint)
    generator = seed.made(1)
    first, second = tokens(40, generator), tokens(40, generator)
    if not torch.equal(first, tokens(40, seed.made(1))):
        raise Wrong("two generators in the same state gave different tokens.", FROM_IT)
    if torch.equal(first, second) or torch.equal(first, tokens(40, seed.made(2))):
        when = "a second call with the same generator" if torch.equal(first, second) else "a generator of another seed"
        is_left = torch.equal(generator.get_state(), seed.made(1).get_state())
        raise Wrong(f"{when} gave the same tokens again.", FROM_IT if is_left else NOT_SEEDED)


def _last_gets_the_rest(q):
    """For a slip: what a draw finds when the kept shares were not made 1 again."""
    q[:, -1] += 1 - q.sum(-1)
    return q


ALL_BUT_EQUAL = torch.tensor([[0.5, 2.0, 2.0000005, 1.9]])
NO_DRAW = "Temperature 0 divides by zero, and one near 0 still draws: take the likeliest token instead."
TINY_VOCABULARY = torch.tensor([[0.05, 0.4, 0.11, 0.27, 0.17]]).log()
CROSSES = "Is the token that crosses top_p kept, too?"
CUT_P, BELOW_P = "q = torch.where(q.cumsum(-1)", "q.cumsum(-1) - q < top_p - TINY"
BACK_AGAIN = "_back(q, order)"
SAMPLE = Exercise(
    sample,
    [
        Case("shares 0.2, 0.3, 0.5", (torch.tensor([[1.0, 1.5, 2.5]]).log(), 1.0, None, None, _Seed(0))),
        Case("temperature 2", (TINY_VOCABULARY, 2.0, None, None, _Seed(1))),
        Case("temperature 0.25", (TINY_VOCABULARY, 0.25, None, None, _Seed(2))),
        Case("top-k 2", (TINY_VOCABULARY, 1.0, 2, None, _Seed(3))),
        Case("top-p 0.75", (TINY_VOCABULARY, 1.0, None, 0.75, _Seed(4))),
        Case("top-p 0.2, below the likeliest two", (TINY_VOCABULARY, 1.0, None, 0.2, _Seed(5)),
             "The likeliest token alone has more than top_p here: it stays."),
        Case("top-k 3, then top-p 0.75", (TINY_VOCABULARY, 1.0, 3, 0.75, _Seed(6))),
        Case("top-k 4, then top-p 0.87", (TINY_VOCABULARY.flip(1), 1.0, 4, 0.87, _Seed(7))),
        Case("temperature 2, then top-p 0.6", (TINY_VOCABULARY, 2.0, None, 0.6, _Seed(8))),
        Case("temperature 0.5, top-k 4, top-p 0.8", (TINY_VOCABULARY, 0.5, 4, 0.8, _Seed(9))),
        Case("temperature 0, two all but equal", (ALL_BUT_EQUAL, 0.0, None, None, _Seed(10)), NO_DRAW),
        Case("temperature 0, two rows, top-k 2, top-p 0.9",
             (torch.cat((ALL_BUT_EQUAL, ALL_BUT_EQUAL.flip(1))), 0.0, 2, 0.9, _Seed(11)), NO_DRAW),
        Case("three rows, top-k 4, top-p 0.8",
             (torch.cat((4 * TINY_VOCABULARY.roll(1), TINY_VOCABULARY, TINY_VOCABULARY.flip(1))), 1.0, 4, 0.8,
              _Seed(12)), "There are three rows here, each with an order and a draw of its own."),
        Case("logits about 100, temperature 0.05",
             (torch.tensor([[100.0, 99.95, 20.0, 99.98]]), 0.05, None, None, _Seed(13)),
             "exp(2000) is inf: torch.softmax, or the largest logit subtracted first, keeps all finite."),
        Case("a logit of -inf, top-k 3", (torch.tensor([[0.5, -math.inf, 1.0, 0.2, 0.4]]), 1.0, 3, None, _Seed(14)),
             "A logit of -inf is a token that must never come; 0 times inf is nan."),
        Case("equally likely tokens at the border of top-k 2",
             (torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]]), 1.0, 2, None, _Seed(15))),
        Case("four equally likely tokens, top-p 0.5", (torch.zeros(1, 4), 1.0, None, 0.5, _Seed(16)),
             "Two tokens have exactly top_p here: that is enough."),
        Case("eight rows, top-p 1", (draw(8, 6, seed=36), 1.0, None, 1.0, _Seed(17)),
             "Rounding leaves the sum of all a little below 1 in some rows: does a search for 1 find none then?"),
        Case("1,024 tokens, top-p 0.96", (draw(1, 1024, seed=3, scale=2.0), 1.0, None, 0.96, _Seed(18)),
             "Here a hundred tokens and more are kept: does your code look at the first few only?"),
        Case("float64", (draw(2, 5, seed=4).double(), 1.5, 4, 0.9, _Seed(19)), "The logits are float64 here."),
    ],
    [
        ("Does top-p see shares that sum to 1 again after top-k? Yours adds up those before top-k: either top-p comes "
         "first, or the division by the sum is missing between the two.", _slip("q = _to_1(q)", "")),
        ("Does the temperature come before top-p? It decides how many tokens reach top_p.",
         _slip(" / temperature", "", BACK_AGAIN, f"{BACK_AGAIN} ** (1 / temperature)")),
        ("Is the logit of a token that is cut off -inf? With 0 it is still drawn.",
         _drawn(lambda z, t, k, p: _shares(z.where(_shares(z, t, k, None) > 0, 0.0), t, None, p))),
        ("Exactly top_k tokens stay. You keep all that are as likely as the last of them: take the first by place.",
         _slip("place < top_k", "q >= q[:, top_k - 1 : top_k]")),
        ("A place in the sorted order is no token: order[place] is (with a batch, order.gather(-1, place)).",
         _slip(BACK_AGAIN, "q")),
        ("Do the shares return to their tokens? x[order] sorts once more; scatter, or order.argsort(), undoes it.",
         _slip(CUT_P, f"order = {BACK_AGAIN}.argsort(descending=True, stable=True).argsort()\n        {CUT_P}")),
        (CROSSES, _slip(BELOW_P, "(q.cumsum(-1) <= top_p) | (place == 0)")),
        (CROSSES, _slip(BELOW_P, "(q.cumsum(-1) < top_p) | (place == (q[:, :1] < top_p))")),  # fairseq, issue 882
        ("Do you keep one token too many? A token stays while the sum before it is below top_p.",
         _slip(BELOW_P, f"place <= ({BELOW_P}).sum(-1, True)")),
        ("Do you sort before the cumulative sum?",
         _slip("q.cumsum(-1) - q", f"({BACK_AGAIN}.cumsum(-1) - {BACK_AGAIN}).gather(-1, order)")),
        ("Do the kept shares sum to 1 before you look up a random number? One above their sum finds none.",
         _slip("_to_1(_back(q, order))", "_back(_last_gets_the_rest(q), order)")),
        ("At temperature 0 the likeliest token is certain: nothing is drawn.",
         _drawn(lambda z, t, k, p: _shares(z, t or 1.0, k, p))),
    ],
    parts=("each token's share of the draws",),
    adapt=_counted,
    alike=_same_shares,
)  # fmt: skip
check_sample = check_of(SAMPLE)

# ----------------------------------------------------------------------------------------- the cached loop


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


_rows = partial(edited, greedy_with_cache)


class _Small(int):
    """The number of a small model, which stands for it in a case."""

    def __repr__(self):
        return "a small model"


class _Watched(Llama):
    """A small model with large random weights. It notes for every call how many tokens came, and whether a cache.

    In float64, where reading one token or several at a time rounds too little to change the likeliest.
    """

    def __init__(self, seed, max_seq_len=48, most_calls=200):
        sizes = {"vocab_size": 12, "dim": 16, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 24}
        constants = {"max_seq_len": max_seq_len, "norm_eps": 1e-5, "rope_theta": 100.0, "tie_embeddings": False}
        super().__init__(LlamaConfig(**sizes, **constants))
        generator, self.calls, self.n_caches = torch.Generator().manual_seed(seed), [], 0
        self.most_calls = most_calls
        for weight in self.parameters():
            weight.requires_grad_(False)
            if weight.ndim == 2:
                weight.normal_(std=0.5, generator=generator)
        self.double()

    def new_cache(self, *sizes, **named):
        self.n_caches += 1
        return super().new_cache(*sizes, **named)

    def forward(self, tokens, cache=None, *rest, **named):
        if len(self.calls) == self.most_calls:
            hint = "Does each call add a token? Even if none of the draft is right, the model's own choice is."
            raise Wrong(f"the model was called more than {self.most_calls} times.", hint)
        self.calls.append((tokens.numel(), cache is not None))
        return super().forward(tokens, cache, *rest, **named)


def _plain(model, prompt, n_new, stop=None, choose=lambda logits: logits.argmax().item()):
    """The new tokens of one text, which is read whole at each step."""
    new = []
    while len(new) < n_new and (not new or new[-len(stop or ()) :] != stop):
        new.append(choose(model(torch.tensor([[*prompt, *new]]))[0, -1]))
    return new


@cache
def _alone(seed, prompt, n_new, stop):
    return _plain(_Watched(seed), prompt, n_new, [*stop])


ROWS_ERRORS = {  # words of the errors that torch and the model raise
    "n_pad came after": "The cache remembers the padding: n_pad comes with the first call only.",
    "tokens have batch size": "Do the newest tokens and the cache have the same rows? Who leaves, leaves cache.k, too.",
    "tokens have shape": "The newest tokens are one column, (rows, 1): a list of lists with one token each.",
    "do not fit": "After the prompts, feed only the newest tokens: the cache holds the others.",
    "out of bounds": "A row's number is not its place in the cache: that changes when another row leaves.",
    "must match": "Do cache.k, cache.v and cache.n_pad keep the same rows?",
    "expanded size": "Do cache.k, cache.v and cache.n_pad keep the same rows?",
}
LEAVES = "Does a row that has ended leave? Take its part out of cache.k, cache.v and cache.n_pad: it is not read again."


def _read_once(function):
    """Hands over a model that counts the tokens it reads, and says so if they were read wrongly."""

    def probe(seed, prompts, n_new, stop):
        model, lengths, given = _Watched(seed), list(map(len, prompts)), [[*prompt] for prompt in prompts]
        try:
            answer = function(model, given, n_new, [*stop])
        except (ValueError, RuntimeError, IndexError) as error:
            for words, hint in ROWS_ERRORS.items():
                if words in str(error):
                    said = str(error).partition(". ")[0].rstrip(".")
                    raise Wrong(f"it raises {type(error).__name__}: {said}.", hint) from None
            raise
        if given != prompts:
            raise Wrong("the input prompts was changed in place.", "Work on copies: [list(p) for p in prompts].")
        texts = _texts(answer, prompts)
        first = len(prompts) * max(lengths)
        sizes = _require_calls(model, first, len(prompts), "Feed only the newest tokens: the cache holds the others.")
        right = [_alone(seed, tuple(prompt), n_new, tuple(stop)) for prompt in prompts]
        if texts != [[*prompt, *new] for prompt, new in zip(prompts, right, strict=True)]:
            return tuple(map(torch.tensor, texts))
        longest = max(map(len, right))
        expected = [first] + [sum(len(new) > s for new in right) for s in range(1, longest)]
        if len(sizes) > longest:
            hint = "The last tokens are chosen, and nothing more: their own logits are not needed."
            raise Wrong(f"the model was called {len(sizes)} times, expected {longest}.", hint)
        for number, (n, right_n) in enumerate(zip(sizes, expected, strict=False), 1):
            if n != right_n:
                raise Wrong(f"call {number} read {n} tokens, expected {right_n}, one per row that goes on.", LEAVES)
        return tuple(map(torch.tensor, texts))

    return probe


def _require_calls(model, first, most, hint):
    """How many tokens each call read; raises unless the first read so many, no other more than `most`, all cached."""
    sizes, missing = [n for n, _ in model.calls], [with_cache for _, with_cache in model.calls].count(False)
    if not sizes or missing:
        hint = "Does every call get the cache, the first one, which reads all of a prompt, too? model(..., cache=cache)"
        raise Wrong(f"{missing} of {len(sizes)} calls of the model got no cache.", hint)
    if sizes[0] < first and len(sizes) > 1:
        hint = "The first call reads all of a prompt; several are padded to one length, into one cache."
        raise Wrong(f"the first call read {sizes[0]} tokens, expected {first}.", hint)
    if large := [n for n in sizes[1:] if n > most]:
        raise Wrong(f"a call after the first read {large[0]} tokens, more than {most}.", hint)
    return sizes


def _texts(answer, prompts):
    """Lists of tokens of an answer, a list of lists or tensors; raises what is wrong with its form."""
    hint = "Return a list with one list of tokens for each prompt, in the order of the prompts."
    if not isinstance(answer, list | tuple) or len(answer) != len(prompts):
        many = f" of {len(answer)}" if isinstance(answer, list | tuple) else ""
        raise Wrong(f"the result is a {type(answer).__name__}{many}, expected a list of {len(prompts)} texts.", hint)
    texts = [text.tolist() if isinstance(text, torch.Tensor) else text for text in answer]
    for row, text in enumerate(texts):
        if not isinstance(text, list | tuple) or not all(type(token) is int for token in text) or not text:
            raise Wrong(f"text {row} is no list of tokens: {str(text)[:60]}.", hint)
    if not any([*prompt] == [*text[: len(prompt)]] for prompt, text in zip(prompts, texts, strict=True)):
        hint = "The prompt comes first, without its padding, then what is new; texts stand in the order of prompts."
        raise Wrong(f"no text begins with its prompt; text 0 begins with {texts[0][:5]}.", hint)
    return [[*text] for text in texts]


GOES_ON = "texts[row][len(prompts[row]) :][-len(stop) :] != stop"
GREEDY_WITH_CACHE = Exercise(
    greedy_with_cache,
    [
        Case("one prompt, one new token", (_Small(3), [[2, 8]], 1, [6]), "The prompt's call gives the first token."),
        Case("one prompt, a mark of three tokens", (_Small(3), [[2, 8]], 8, [8, 6, 6])),
        Case("three prompts of one length, no mark comes", (_Small(5), [[7, 2], [9, 9], [0, 3]], 6, [1, 1, 1, 1])),
        Case("three prompts of 2, 5 and 3", (_Small(32), [[1, 5], [9, 7, 1, 4, 3], [9, 8, 11]], 10, [2, 8])),
        Case("four prompts, a mark of one token",
             (_Small(72), [[2, 4, 6, 8], [3], [5, 9, 10, 8, 11, 11], [8, 11, 0]], 9, [8])),
        Case("a mark of 0 and 4, where 10 and 4 come first", (_Small(202), [[6], [3, 7]], 10, [0, 4]),
             "Do you compare numbers? In a text, 0 4 is also found inside 10 4."),
        Case("a prompt that ends as the mark begins", (_Small(132), [[4, 6, 9, 6], [2, 9]], 8, [9, 2])),
    ],
    [
        ("On which side is the padding? On the left: so all rows end together, and the last position is each row's.",
         _rows("[0] * n + text", "text + [0] * n")),
        ("Does the model know which tokens are padding? Hand n_pad to the first call.",
         _rows("torch.tensor(n_pad)", "torch.tensor([0] * len(prompts))")),
        ("The whole mark ends a row. You end it at one of its tokens.", _rows(GOES_ON, "texts[row][-1] != stop[-1]")),
        ("Do only new tokens count for the mark? The prompt's tokens are no end.",
         _rows(GOES_ON, "texts[row][-len(stop) :] != stop")),
        ("Is the mark looked for? You write n_new tokens for every prompt.", _rows(GOES_ON, "True")),
        ("Does each row end by itself? Yours all end with the first.", _rows("not keep", "len(keep) < len(left)")),
        ("Which rows stay in the cache? Those that go on: cache.k[:, keep]. Yours are the first ones.",
         _rows("left = [left[i] for i in keep]", "left, keep = [left[i] for i in keep], list(range(len(keep)))")),
        ("Is the mark in the text? You cut it off.",
         _rows("return texts", "return [text[: -len(stop)] if text[len(prompt) :][-len(stop) :] == stop else text "
                               "for text, prompt in zip(texts, prompts)]")),
        ("Which position's logits choose the next token? The last one's.", _rows("logits[:, -1]", "logits[:, 0]")),
        ("Does each row take its own likeliest token? Give argmax the dimension: argmax(-1).",
         _rows("logits[:, -1].argmax(-1)", "(logits[:, -1].argmax() % logits.shape[-1]).expand(len(logits))")),
        ("How many tokens are new at most? n_new: yours are one more.",
         _rows("range(n_new)", "range(n_new + 1)", "step == n_new - 1", "step == n_new")),
        ("How many tokens are new at most? n_new, the first of them from the prompt's own call: yours are one less.",
         _rows("range(n_new)", "range(n_new - 1)", "step == n_new - 1", "step == n_new - 2")),
    ],
    parts=("text 0", "text 1", "text 2", "text 3"),
    allow=("KVCache", "LlamaConfig"),
    adapt=_read_once,
)  # fmt: skip
check_greedy_with_cache = check_of(GREEDY_WITH_CACHE)

# --------------------------------------------------------------------------------- decoding with drafts from the text


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


class _Choose(float):
    """What chooses, in a case: a draw at this temperature; at 0 the likeliest."""

    def __repr__(self):
        return f"draw at temperature {float(self):g}" if self else "argmax"

    def made(self):
        generator = torch.Generator().manual_seed(1)

        def choose(logits):
            if not isinstance(logits, torch.Tensor) or logits.shape != (12,):
                got = f"the shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"{logits!r:.40}"
                raise Wrong(f"choose got {got}, expected (V,), here (12,).", "It chooses at one place at a time.")
            choose.asked += 1
            drawn = (logits / self).softmax(-1).multinomial(1, generator=generator) if self else logits.argmax()
            return drawn.item()

        choose.asked = 0
        return choose


N_DRAWS = 300


def _require_chance_kept(function, model, prompt, n_draft, choose):
    """Raise unless the second new token, a draft's first, comes as often as the model says; n_match is 1."""
    one, joint = choose.made(), torch.zeros(12, 12, dtype=torch.float64)
    for _ in range(N_DRAWS):
        model.calls.clear()
        first, second = function(model, prompt, 3, n_draft, 1, one)[0][len(prompt) : len(prompt) + 2].tolist()
        joint[first, second] += 1 / N_DRAWS
    texts = torch.tensor([[*prompt.tolist(), first] for first in range(12)])
    both = (Llama.forward(model, texts) / choose).softmax(-1)
    right = both[0, -2][:, None] * both[:, -1]
    drafted = [text[_places(text, 1)[-1] + 1] for text in texts.tolist()]
    mine, should = (table[range(12), drafted].sum() for table in (joint, right))
    if not _near(mine, should, N_DRAWS) or not _near(joint, right, N_DRAWS):
        raise Wrong(f"of {N_DRAWS} draws {mine:.0%} took the draft's first token, expected {should:.0%}.", DECIDES)


def _verified(function):
    """Hands over a model that counts its calls, and says so if it was called, or its answer given, in a wrong way."""

    def probe(seed, prompt, n_new, n_draft, n_match, choose):
        model, length, one = _Watched(seed, 160, n_new * (n_draft + 2)), len(prompt), choose.made()
        try:
            answer = function(model, prompt, n_new, n_draft, n_match, one)
        except ValueError as error:
            if "do not fit" not in str(error):
                raise
            hint = END_FITS if sum(n for n, _ in model.calls) <= length + n_new + n_draft + 1 else NOT_CUT
            raise Wrong(f"it raises ValueError: {str(error).partition('. ')[0]}.", hint) from None
        tokens, n_calls = two_things(answer, "the tokens and the number of calls", "return tokens, calls")
        if isinstance(tokens, int):
            raise Wrong("the number of calls came first.", "The tokens come first: return tokens, calls")
        _require_calls(model, length, n_draft + 3, SHORT)
        if model.n_caches > 1:
            hint = "Make the cache once, before the loop; cache.length = ... makes it forget the last tokens."
            raise Wrong(f"{model.n_caches} caches were made, expected 1.", hint)
        if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 1:
            return tokens, n_calls
        _require_text(tokens, prompt, n_new)
        if len(model.calls) > n_new:
            raise Wrong(f"the model was called {len(model.calls)} times for {n_new} new tokens.", TOO_MANY)
        n_calls = n_calls.item() if isinstance(n_calls, torch.Tensor) and n_calls.numel() == 1 else n_calls
        if type(n_calls) is not int:
            raise Wrong(f"the number of calls is a {type(n_calls).__name__}, expected int.", "Count: calls += 1")
        if n_calls != len(model.calls):
            hint = "Is every call counted once, when it is made, the first one, which reads the prompt, too?"
            if n_calls == n_new:
                hint = "Do you count calls of the model? These are as many as new tokens."
            raise Wrong(f"you return {n_calls} calls, the model was called {len(model.calls)} times.", hint)
        plain = _plain(_Watched(seed, 160), prompt.tolist(), n_new, choose=choose.made())
        if tokens[length:].tolist() != plain and one.asked < n_new:
            raise Wrong(f"choose was asked {one.asked} times for {n_new} new tokens.", DECIDES)
        if choose and tokens[length:].tolist() != plain:  # asked in another order, or wrong
            _require_chance_kept(function, model, prompt, n_draft, choose)
            return lookup_decoding(_Watched(seed, 160), prompt, n_new, n_draft, n_match, choose.made())
        return tokens, n_calls

    return probe


def _require_text(tokens, prompt, n_new):
    """Raise what is wrong with the length of a text: the prompt and n_new tokens."""
    whole = len(prompt) + n_new
    if len(tokens) > whole:
        hint = "The last draft may be longer than what is left to write: cut it, or the text."
        raise Wrong(f"{len(tokens) - len(prompt)} new tokens came back, expected {n_new}.", hint)
    if len(tokens) < whole:
        begins = tokens[: len(prompt)].tolist() == prompt.tolist()
        hint = "n_new tokens are new, the one that the first call gives among them."
        raise Wrong(f"{len(tokens)} tokens came back, expected {whole}.", hint if begins else "The prompt comes first.")


PROMPT = torch.tensor([3, 1, 4, 1, 5, 3, 1])
ALL = torch.tensor([4, 9, 3, 11, 5, 6, 8, 10, 7, 2, 0, 1, 4])  # whatever is drawn first stood before
DECIDES = (
    "Does choose alone decide? A token of the draft stays if choose, asked once at its place, gives the same; if not, "
    "what it gave comes."
)
NOT_CUT = (
    "Does the cache forget what was read and not kept? After each call set cache.length to the tokens that it read and "
    "that stay."
)
END_FITS = "Near the end a draft may be longer than what is left to write: cut it, or make the cache longer by n_draft."
IN_ONE = (
    "You call once for each new token. Is the whole draft verified in one call? And is the place that was found an "
    "earlier one? The last n_match tokens stand at the end, too, and nothing follows there."
)
TOO_MANY = (
    "Does one call read the newest token and the whole draft? And does the first call, which reads the prompt, already "
    "give a new token?"
)
SHORT = "After the prompt, feed the newest token and a draft of up to n_draft tokens: the cache holds all others."
PLACE, STAY = "places[-1] + n_match", "text += chosen"
ASK, KEPT = "chosen.append(choose(row))", "cache.length = len(text) - 1"
LOOKUP_SLIPS = [  # hint, changes of the specification's text
    (IN_ONE, f"text[{PLACE} :]", "[]"),
    ("Which earlier place counts? The last one: you take the first.", "places[-1]", "places[0]"),
    ("Is the draft what follows the place that was found? Its first token stands n_match behind the place.",
     PLACE, "places[-1]"),
    ("Is the draft verified? A draft's token stays only if the model's likeliest one is the same.",
     "break", "pass", STAY, "text += [*draft, chosen[-1]]"),
    ("Do tokens stay only up to the first that differs? You count all that agree.",
     "break", "pass", STAY, "text += chosen[: 1 + sum(map(int.__eq__, chosen, draft))]"),
    ("Does a part of the draft stay, too? You take all of it or nothing.",
     STAY, "text += chosen if len(chosen) > len(draft) else chosen[:1]"),
    ("Is the token free that the model chose after the draft's last right one? You leave it out if all are right.",
     STAY, "text += chosen[: len(draft) or 1]"),
    ("Which token comes after the right ones? The model's, not the draft's.",
     STAY, "text += [*draft, chosen[-1]][: len(chosen)]"),
    (NOT_CUT, KEPT, ""),
    ("Which tokens has the model read that stay? All but the newest one: it is read by the next call.",
     KEPT, "cache.length = len(text)"),
    ("Which tokens has the model read that stay? All but the newest one: you forget one more.",
     KEPT, "cache.length = len(text) - 2"),
    (DECIDES, ASK, f"{ASK}; chosen[-1] = guess if guess is not None and guess == row.argmax() else chosen[-1]"),
]  # fmt: skip
LEFT, UP_TO = "[: whole - len(text) - 1]", ("tensor(text)", "tensor(text[:whole])")
ENDS = (  # the three ways to write n_new tokens: the text is cut, or the draft, with or without the free token
    (LEFT, "", *UP_TO), (LEFT, "[: whole - len(text)]", *UP_TO), (),
)  # fmt: skip
LOOKUP_DECODING = Exercise(
    lookup_decoding,
    [
        Case("12 new, drafts of 3, the last token", (_Small(30), PROMPT, 12, 3, 1, _Choose())),
        Case("18 new, drafts of 4, the last two", (_Small(15), PROMPT, 18, 4, 2, _Choose())),
        Case("prompt of one token, the last three", (_Small(10), torch.tensor([7]), 18, 4, 3, _Choose())),
        Case("12 new, drafts of 3, another model", (_Small(34), PROMPT, 12, 3, 1, _Choose())),
        Case("drafts longer than what is left", (_Small(10), torch.tensor([7]), 18, 30, 2, _Choose())),
        Case("six new, and the prompt repeats itself", (_Small(10), torch.tensor([7, 0, 7, 7, 0]), 6, 4, 2, _Choose())),
        Case("one new token", (_Small(15), PROMPT, 1, 4, 1, _Choose()), "One call is enough here: the first."),
        Case("drawn", (_Small(39), ALL, 24, 3, 1, _Choose(0.7)), drawn=True),
    ],
    [(hint, edited(lookup_decoding, *changes, *end)) for hint, *changes in LOOKUP_SLIPS for end in ENDS],
    parts=("the text", "the number of calls"),
    adapt=_verified,
    allow=("KVCache", "LlamaConfig", "causal_visible"),
)  # fmt: skip
check_lookup_decoding = check_of(LOOKUP_DECODING)
