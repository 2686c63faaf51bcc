"""The exercises of notebook 07, generating: specification, cases, known mistakes with hints, check."""

import math
import random

import torch
from torch.nn import functional as F

from checks.base import TYPE_HINTS, Case, Exercise, Wrong, draw
from checks.full_model import budget, sizes_of
from checks.judge import check_of
from helpers.config import PRESETS, LlamaConfig
from helpers.model import Llama

# --------------------------------------------------------------------------------------------- the sampler

SURE = 5.0  # standard deviations: of 10,000 right programs about one is refused, whatever it draws with


def sample(logits, temperature, top_k, top_p, generator):
    """One token drawn for each row of logits (B, V): temperature first, then top-k, then top-p; (B,) int64."""
    return torch.multinomial(_shares(logits, temperature, top_k, top_p), 1, generator=generator)[:, 0]


def _softmax(logits, temperature):
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    return (logits.double() / temperature).softmax(-1)


def _keep(rule, back=True, descending=True):
    """A step that cuts off; rule gets the sorted tokens' places, shares and their sums, and the setting."""

    def step(shares, setting):
        if setting is None:
            return shares
        ordered, order = shares.sort(dim=-1, descending=descending, stable=True)
        places = torch.arange(shares.shape[-1]).expand_as(shares)
        ordered = torch.where(rule(places, ordered, ordered.cumsum(-1), setting), ordered, 0.0)
        return torch.zeros_like(ordered).scatter(-1, order, ordered) if back is True else back(ordered, order)

    return step


def _to_1(shares):
    return shares / shares.sum(-1, keepdim=True)


TINY = 1e-9  # of a sum in float64
TOP_K, TOP_P = _keep(lambda place, q, total, k: place < k), _keep(lambda place, q, total, p: total - q < p - TINY)


def _shares(logits, temperature, top_k, top_p, soft=_softmax, cut_k=TOP_K, cut_p=TOP_P, end=_to_1):
    """The share of the draws that each token of each row should get, (B, V) float64; or gets by a step with a slip."""
    return end(cut_p(_to_1(cut_k(soft(logits, temperature), top_k)), top_p))


sample.shares = _shares


def _drawn(shares):
    """A program that draws from these shares. They stand at it, so that a known mistake need not be drawn."""

    def program(logits, temperature, top_k, top_p, generator):
        return torch.multinomial(shares(logits, temperature, top_k, top_p), 1, generator=generator)[:, 0]

    program.shares = shares
    return program


def _unless_0(shares):
    """The sampler with these shares; at temperature 0 the right ones."""
    return _drawn(lambda z, t, k, p: _shares(z, t, k, p) if t == 0 else _to_1(shares(z.double(), t, k, p)))


def _slip(**step):
    return _unless_0(lambda *settings: _shares(*settings, **step))


def _draws(shares):
    """How many copies of each row are handed over: few of many rows or tokens, so that a loop ends in time."""
    return 300 if shares.shape[-1] > 100 else max(200, 1000 // len(shares))


def _near(mine, right, n, both_drawn=False):
    """Whether shares of n draws are the right ones up to chance, or those of n other draws."""
    share = (mine + right) / 2 if both_drawn else right
    room = SURE * ((1 + both_drawn) * share * (1 - share) / n).sqrt() + 4 / n
    return bool(((mine - right).abs() <= torch.where(share > 0, room, 0.0)).all())


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
        if answer is ...:
            raise NotImplementedError
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
        hint = "One token for each row is expected."
        if answer.shape == (rows, 1):
            hint = "torch.multinomial and keepdim=True give (B, 1): [:, 0] takes its column."
        if answer.shape == (rows, vocab):
            hint = "Is a token drawn for each row? These are as many numbers as logits."
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


def _only_row_0(z, t, k, p):
    return _shares(z, t, k, p)[:1].expand(len(z), -1)


def _over_all_rows(q, k):
    return q if k is None else torch.where(q >= q.max(), q, 0.0)  # there are many copies of the largest


def _rest_to(place):
    """The last token, or the first, gets what a random number finds when the kept shares were not made 1 again."""

    def end(q):
        q = q.clone()
        q[:, place] += 1 - q.sum(-1)
        return q

    return end


def _rest_to_the_least_likely(z, t, k, p):
    q = _shares(z, t, k, p, end=lambda q: q)
    last = z.shape[-1] - 1 - z.flip(-1).argmin(-1)  # in the sorted order
    return q + F.one_hot(last, z.shape[-1]) * (1 - q.sum(-1, keepdim=True))


def _as_many_as_row_0(q, p):
    n = 0 if p is None else TOP_P(q[:1], p).count_nonzero().item()
    return TOP_K(q, n or None)


TINY_VOCABULARY = torch.tensor([[0.05, 0.4, 0.11, 0.27, 0.17]]).log()
ORDER = (
    "Does top-p see shares that sum to 1 again after top-k? Yours adds up those before top-k: either top-p comes "
    "first, or the division by the sum is missing between the two."
)
BACK = "A place in the sorted order is no token: order[place] is (with a batch, order.gather(-1, place))."
CROSSES = "Is the token that crosses top_p kept, too?"
ONE_MORE = "Do you keep one token too many? A token stays while the sum before it is below top_p."
ON_THE_SUM = "Is top_p a limit on the sum of the kept shares, not on each share?"
REST = "Do the kept shares sum to 1 before you look up a random number? One above their sum finds an end of the list."
EACH_ROW = "Is each row drawn from its own shares?"
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
        Case("temperature 0", (TINY_VOCABULARY, 0.0, None, None, _Seed(10)),
             "Temperature 0 divides by zero: take the likeliest token instead."),
        Case("temperature 0, two rows, top-k 2, top-p 0.9", (draw(2, 6, seed=7), 0.0, 2, 0.9, _Seed(11)),
             "Temperature 0 divides by zero: take the likeliest token instead."),
        Case("three rows, top-k 4, top-p 0.8",
             (torch.cat((TINY_VOCABULARY, TINY_VOCABULARY.flip(1), 4 * TINY_VOCABULARY.roll(1))), 1.0, 4, 0.8,
              _Seed(12)), "There are three rows here, each with an order and a draw of its own."),
        Case("logits about 100, temperature 0.5",
             (torch.tensor([[100.0, 99.5, 20.0, 99.8]]), 0.5, None, None, _Seed(13)),
             "exp(200) is inf: torch.softmax, or the largest logit subtracted first, keeps all finite."),
        Case("a logit of -inf, top-k 3", (torch.tensor([[0.5, -math.inf, 1.0, 0.2, 0.4]]), 1.0, 3, None, _Seed(14)),
             "A logit of -inf is a token that must never come; 0 times inf is nan."),
        Case("equally likely tokens at the border of top-k 2",
             (torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]]), 1.0, 2, None, _Seed(15))),
        Case("four equally likely tokens, top-p 0.5", (torch.zeros(1, 4), 1.0, None, 0.5, _Seed(16)),
             "Two tokens have exactly top_p here: that is enough."),
        Case("eight rows, top-p 1", (draw(8, 6, seed=36), 1.0, None, 1.0, _Seed(17)),
             "Rounding leaves the sum of all a little below 1 in some rows: does a search for 1 find none then?"),
        Case("1,024 tokens, top-p 0.9", (draw(1, 1024, seed=3, scale=2.0), 1.0, None, 0.9, _Seed(18)),
             "Here a hundred tokens and more are kept: does your code look at the first few only?"),
        Case("float64", (draw(2, 5, seed=4).double(), 1.5, 4, 0.9, _Seed(19)), "The logits are float64 here."),
    ],
    [
        (ORDER, _unless_0(lambda z, t, k, p: TOP_K(TOP_P(_softmax(z, t), p), k))),
        ("Does the temperature come before top-p? It decides how many tokens reach top_p.",
         _unless_0(lambda z, t, k, p: _shares(z, 1.0, k, p) ** (1 / t))),
        ("Does the temperature change anything? It divides the logits, before the softmax.",
         _slip(soft=lambda z, t: _softmax(z, 1.0))),
        ("Are the logits divided by the temperature? You multiply.", _slip(soft=lambda z, t: _softmax(z, 1 / t))),
        ("Are the logits divided by the temperature once? You do it twice.",
         _slip(soft=lambda z, t: _softmax(z, t * t))),
        ("Is the softmax taken once? You do it twice.", _slip(soft=lambda z, t: _softmax(z, t).softmax(-1))),
        ("Is the softmax taken once? You do it again after the cuts: divide by the sum instead.",
         _slip(end=lambda q: q.softmax(-1))),
        ("Is the softmax taken once? You do it again after the cuts: divide by the sum instead.",
         _slip(end=lambda q: torch.where(q > 0, q, -math.inf).softmax(-1))),
        *[("Is the softmax missing? You draw from the logits.", program) for program in (
            _slip(soft=lambda z, t: _to_1((z / t).clamp(min=0))),
            _unless_0(lambda z, t, k, p: (z / t).clamp(min=0)))],
        ("Is the logit of a token that is cut off -inf? With 0 it is still drawn.",
         _unless_0(lambda z, t, k, p: TOP_P((z / t * (TOP_K(_softmax(z, t), k) > 0)).softmax(-1), p))),
        ("Is the softmax over the vocabulary, dim=-1?", _slip(soft=lambda z, t: (z / t).softmax(0))),
        ("Do the logits count? You draw all tokens alike.", _unless_0(lambda z, t, k, p: torch.ones_like(z))),
        ("Do the kept tokens keep their ratios? You draw them all alike.", _slip(end=lambda q: (q > 0).double())),
        ("Is top_k used?", _slip(cut_k=lambda q, k: q)),
        ("Is top_p used?", _slip(cut_p=lambda q, p: q)),
        ("Are top_k and top_p used?", _slip(cut_k=lambda q, k: q, cut_p=lambda q, p: q)),
        ("Does the k-th token stay? You keep one less than top_k.",
         _slip(cut_k=_keep(lambda place, q, total, k: (place < k - 1) | (place == 0)))),
        ("Do you keep one token more than top_k?", _slip(cut_k=_keep(lambda place, q, total, k: place <= k))),
        ("Exactly top_k tokens stay. You keep all that are as likely as the last of them: take the first by place.",
         _slip(cut_k=lambda q, k: q if k is None else torch.where(q >= q.topk(k).values[:, -1:], q, 0.0))),
        ("Does top-k keep the likeliest? You keep the first of the vocabulary.",
         _slip(cut_k=lambda q, k: torch.where(torch.arange(q.shape[-1]) < (k or q.shape[-1]), q, 0.0))),
        ("Does top-k keep the likeliest? You keep the least likely.",
         _slip(cut_k=_keep(lambda place, q, total, k: place < k, descending=False))),
        ("Does top-k cut off in each row by itself? You look for the largest of all rows.",
         _slip(cut_k=_over_all_rows)),
        *[(BACK, _slip(**steps)) for steps in (
            {"end": lambda q: _to_1(q).sort(descending=True).values},
            {"cut_k": _keep(lambda place, q, total, k: place < k, back=lambda q, order: q)},
            {"cut_p": _keep(lambda place, q, total, p: total - q < p, back=lambda q, order: q)})],
        *[("Do the shares return to their tokens? x[order] sorts once more; scatter, or order.argsort(), undoes it.",
           _slip(**steps)) for steps in (
            {"cut_p": _keep(lambda place, q, total, p: total - q < p, back=lambda q, order: q.gather(-1, order))},
            {"cut_k": _keep(lambda place, q, total, k: place < k, back=lambda q, order: q.gather(-1, order))})],
        *[("Your mask is in the sorted order: use it on the sorted shares, then put them back.",
           _slip(**steps)) for steps in (
            {"cut_p": lambda q, p: q if p is None else torch.where(
                (lambda o: o.cumsum(-1) - o < p)(q.sort(descending=True).values), q, 0.0)},)],
        (CROSSES, _slip(cut_p=_keep(lambda place, q, total, p: (total <= p) | (place == 0)))),
        (ONE_MORE, _slip(cut_p=_keep(lambda place, q, total, p: place <= (total - q < p - TINY).sum(-1, True)))),
        ("Once top_p is reached exactly, that is enough: < top_p, not <= top_p.",
         _slip(cut_p=_keep(lambda place, q, total, p: total - q <= p + TINY))),
        ("What is the sum before the first token? It is 0, but roll(1) puts the sum of all there.",
         _slip(cut_p=_keep(lambda place, q, total, p: (total.roll(1, -1) < p) | (p == 1)))),
        ("Do you sort before the cumulative sum?",
         _slip(cut_p=lambda q, p: q if p is None else torch.where(q.cumsum(-1) - q < p, q, 0.0))),
        ("Do you start with the likeliest token? Sort in descending order.",
         _slip(cut_p=_keep(lambda place, q, total, p: total - q < p, descending=False))),
        ("Is the cumulative sum along the vocabulary, dim=-1?",  # all copies but the first few keep one token
         _slip(cut_p=_keep(lambda place, s, total, p: place == 0))),
        *[(ON_THE_SUM, _slip(cut_p=_keep(rule))) for rule in (
            lambda place, q, total, p: (q >= p) | (place == 0), lambda place, q, total, p: (q >= 1 - p) | (place == 0),
            lambda place, q, total, p: q <= p)],
        ("Is top_p a limit on the sum, not a share of the largest? That is min_p.",
         _slip(cut_p=_keep(lambda place, q, total, p: q >= p * q[:, :1]))),
        ("Is top_p a limit on the sum, not a share of the vocabulary?",
         _slip(cut_p=_keep(lambda place, q, total, p: place < max(1, int(p * q.shape[-1]))))),
        ("Do you keep tokens until their sum is 1 - top_p? It is top_p.",
         _slip(cut_p=_keep(lambda place, q, total, p: (total - q < 1 - p) | (place == 0)))),
        ("Do you keep the likely tokens, not the unlikely ones?",
         _slip(cut_p=_keep(lambda place, q, total, p: (total > p) | (place == q.shape[-1] - 1)))),
        *[(REST, _slip(end=_rest_to(place))) for place in (-1, 0)],
        (REST, _unless_0(_rest_to_the_least_likely)),
        ("Is a random number below the first sum the first token? You count the sums above it, from the wrong end.",
         _slip(end=lambda q: _to_1(q).flip(-1))),
        ("Does each row keep as many tokens as it needs for top_p? You keep as many as row 0 needs.",
         _slip(cut_p=_as_many_as_row_0)),
        (EACH_ROW, _unless_0(_only_row_0)),
        (EACH_ROW, _unless_0(lambda *settings: _shares(*settings).mean(0, True).expand(len(settings[0]), -1))),
        ("At temperature 0 the likeliest token is certain: nothing is drawn.",
         _drawn(lambda z, t, k, p: _shares(z, t or 1.0, k, p))),
        ("At temperature 0 it is the likeliest token. You take the least likely.",
         _drawn(lambda z, t, k, p: _shares(z, t, k, p) if t else F.one_hot(z.argmin(-1), z.shape[-1]).double())),
        ("Is the likeliest token each row's own? Give argmax the dimension: argmax(-1).",
         _drawn(lambda z, t, k, p: _shares(z, t, k, p) if t else F.one_hot(
             (z.argmax() % z.shape[-1]).expand(len(z)), z.shape[-1]).double())),
    ],
    parts=("each token's share of the draws",),
    adapt=_counted,
    alike=_same_shares,
)  # fmt: skip
check_sample = check_of(SAMPLE)

# ----------------------------------------------------------------------------------------- the cached loop


def greedy_with_cache(model, tokens, n_new):
    """Continue prompts (B, T) by n_new likeliest tokens, each token read once: the result is (B, T + n_new)."""
    cache, latest, parts = model.new_cache(tokens.shape[0]), tokens, [tokens]
    for _ in range(n_new):
        latest = model(latest, cache=cache)[:, -1].argmax(-1, keepdim=True)
        parts.append(latest)
    return torch.cat(parts, dim=1)


class _Small(int):
    """The number of a small model, which stands for it in a case."""

    def __repr__(self):
        return "a small model"


class _Watched(Llama):
    """A small model with large random weights. It notes for every call how many tokens came, and whether a cache."""

    def __init__(self, seed, vocab_size=40, n_layers=2, max_seq_len=48, std=0.6):
        sizes = {
            "vocab_size": vocab_size,
            "dim": 16,
            "n_layers": n_layers,
            "n_heads": 4,
            "n_kv_heads": 2,
            "hidden_dim": 24,
        }
        constants = {"max_seq_len": max_seq_len, "norm_eps": 1e-5, "rope_theta": 100.0, "tie_embeddings": False}
        super().__init__(LlamaConfig(**sizes, **constants))
        generator, self.calls, self.n_caches = torch.Generator().manual_seed(seed), [], 0
        for weight in self.parameters():
            weight.requires_grad_(False)
            if weight.ndim == 2:
                weight.normal_(std=std, generator=generator)

    def new_cache(self, *sizes, **named):
        self.n_caches += 1
        return super().new_cache(*sizes, **named)

    def forward(self, tokens, cache=None, *rest, **named):
        self.calls.append((tokens.numel(), cache is not None))
        return super().forward(tokens, cache, *rest, **named)


LOST = "Your new tokens have lost a dimension: argmax(-1, keepdim=True) keeps (B, 1)."
JOINING = {  # words of the errors that torch.cat and the model raise
    "same number of dimensions": LOST,
    "tokens have shape": LOST,
    "except in dimension 0": "New tokens belong behind the text, in the same rows: join along dim=1, not dim=0.",
}


def _greedy(first=slice(None), place=-1, pick=lambda logits: logits.argmax(-1, keepdim=True)):
    """The loop with a slip: it reads the prompt, then from `first` on again, and looks at the logits at `place`."""

    def program(model, tokens, n_new):
        cache, text, latest = model.new_cache(len(tokens)), tokens, tokens
        if first != slice(None):
            model(tokens, cache=cache)
            latest = tokens[:, first]
        for _ in range(n_new):
            latest = pick(model(latest, cache=cache)[:, place])
            text = torch.cat((text, latest), dim=1)
        return text

    return program


def _first_lost(model, tokens, n_new):
    return torch.cat((tokens, _greedy()(model, tokens, n_new + 1)[:, tokens.shape[1] + 1 :]), dim=1)


def _in_front(model, tokens, n_new):
    new = _greedy()(model, tokens, n_new)[:, tokens.shape[1] :]
    return torch.cat((new.flip(1), tokens), dim=1)


def _over_positions(model, tokens, n_new):
    cache, text, latest = model.new_cache(len(tokens)), tokens, tokens
    for _ in range(n_new):
        latest = model(latest, cache=cache).argmax(1)[:, -1:]
        text = torch.cat((text, latest), dim=1)
    return text


def _to_an_end(end, pads):
    """The loop that takes a token for an end, as text that is written has one; pads fills up with it."""

    def program(model, tokens, n_new):
        cache, text, latest = model.new_cache(len(tokens)), tokens, tokens
        for _ in range(n_new):
            latest = model(latest, cache=cache)[:, -1].argmax(-1, keepdim=True)
            text = torch.cat((text, latest), dim=1)
            if (latest == end).any():
                break
        missing = tokens.shape[1] + n_new - text.shape[1]
        return F.pad(text, (0, missing), value=end) if pads else text

    return program


def _first_again(model, tokens, n_new):
    latest = model(tokens, cache=model.new_cache(len(tokens)))[:, -1].argmax(-1, keepdim=True)
    return torch.cat((tokens, latest.repeat(1, n_new)), dim=1)


def _read_once(function):
    """Hands over a model that counts the tokens it reads, and says so if they were read wrongly."""

    def probe(seed, tokens, n_new):
        model, rows, length = _Watched(seed), *tokens.shape

        def starts(answer):
            return answer[:, :length].tolist() == tokens[:, :n_new].tolist()

        def again():
            message = f"the model read more than {rows * length} tokens of prompts and {rows * n_new} new ones."
            if any(n == rows * model.config.vocab_size for n, _ in model.calls[1:]):
                return Wrong(message, "Is argmax over the vocabulary, dim=-1? Yours is over the positions.")
            return Wrong(message, "After the prompt, feed only the newest token: the cache holds the others.")

        try:
            answer = function(model, tokens, n_new)
        except (ValueError, RuntimeError) as error:  # the cache was full, or a dimension is lost or the wrong one
            if isinstance(error, ValueError) and sum(n for n, _ in model.calls) > rows * (length + n_new):
                raise again() from None
            for words, hint in JOINING.items():
                if words in str(error) and ", 0)" not in str(error):  # not where no token at all is read
                    raise Wrong(f"it raises {type(error).__name__}: {str(error).rstrip('.')}.", hint) from None
            raise
        n_read, cached = sum(n for n, _ in model.calls), [with_cache for _, with_cache in model.calls]
        if not any(cached):
            raise Wrong("no call of the model got a cache.", "Is the cache handed over? model(latest, cache=cache)")
        if not cached[0]:
            hint = "Does the cache hold the prompt? Pass it to the first call."
            raise Wrong("the first call of the model got no cache.", hint)
        if model.n_caches > rows:
            hint = "Make the cache once, before the loop: it remembers."
            raise Wrong(f"{model.n_caches} caches were made, expected 1.", hint)
        if model.calls[0][0] < rows * length and n_read < rows * (length + n_new - 1):
            hint = "Where does the cache get the prompt from? Feed all of it in the first call."
            raise Wrong(f"the first call read {model.calls[0][0]} of the {rows * length} tokens of the prompts.", hint)
        if n_read > rows * (length + n_new):
            raise again()
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, length + n_new + 1):
            raise Wrong("one token too many came back.", "The first call gives a new token, too: n_new calls in all.")
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, length + n_new - 1):
            raise Wrong("one new token is missing.", "The first call gives a new token, too: n_new calls in all.")
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, n_new) and not starts(answer):
            raise Wrong("only new tokens came back.", "The prompt comes first: join both with torch.cat along dim=1.")
        if isinstance(answer, torch.Tensor) and answer.shape == (rows * (n_new + 1), length) and length == 1:
            raise Wrong(f"the result has the shape {tuple(answer.shape)}.", JOINING["except in dimension 0"])
        return answer

    return probe


GREEDY_WITH_CACHE = Exercise(
    greedy_with_cache,
    [
        Case("prompt of 2, 3 new", (_Small(5), torch.tensor([[3, 1]]), 3)),
        Case("prompt of 5, 8 new", (_Small(0), torch.tensor([[3, 1, 4, 1, 5]]), 8)),
        Case("three prompts", (_Small(1), torch.tensor([[7, 2], [9, 9], [0, 39]]), 6),
             "There are three prompts here: a cache for three rows, and a next token for each."),
        Case("one new token", (_Small(2), torch.tensor([[8, 6, 7]]), 1), "How often does the loop run here? Once."),
        Case("prompt of one token", (_Small(4), torch.tensor([[11]]), 10),
             "The prompt has a single token here: does your first call read it?"),
        Case("the tokens 0, 1 and 2 are written", (_Small(275), torch.tensor([[3, 1]]), 10)),
    ],
    [
        ("Is the prompt's last token read twice? The first call already gives the logits of the next one.",
         _greedy(first=slice(-1, None))),
        ("Which position's logits choose the next token? The last one's.", _greedy(place=0)),
        ("Does the model read each new token? You repeat the first one: the logits stay those of the prompt.",
         _first_again),
        ("Is the first new token in the result? The first call, which reads the prompt, already chooses it.",
         _first_lost),
        ("New tokens come behind the text: torch.cat((text, latest), dim=1), in this order.", _in_front),
        *[("No token ends the text here: n_new tokens are written, whatever they are.", _to_an_end(end, pads))
          for end in (0, 1, 2) for pads in (False, True)],
        ("Is the next token the one with the largest logit?",
         _greedy(pick=lambda logits: logits.argmin(-1, keepdim=True))),
        ("Does each row take its own likeliest token? Give argmax the dimension: argmax(-1).",
         _greedy(pick=lambda logits: (logits.argmax() % logits.shape[-1]).expand(len(logits), 1))),
        ("Is argmax over the vocabulary, dim=-1? You take it over the prompts.",
         _greedy(pick=lambda logits: logits.argmax(0)[: len(logits), None])),
        ("Is argmax over the vocabulary, dim=-1? You take it over the positions.", _over_positions),
        ("Is every row continued by its own tokens? You use those of the first prompt.",
         _greedy(pick=lambda logits: logits[:1].argmax(-1, keepdim=True).expand(len(logits), 1))),
    ],
    allow=("KVCache", "LlamaConfig"),
    adapt=_read_once,
)  # fmt: skip
check_greedy_with_cache = check_of(GREEDY_WITH_CACHE)

# --------------------------------------------------------------------------------- decoding with drafts from the text


def lookup_decoding(model, prompt, n_new, n_draft, n_match):
    """Greedy text after a prompt (T,), several tokens per call of the model: ((T + n_new,) int64, number of calls)."""
    text, cache = prompt.tolist(), model.new_cache(1)
    text.append(model(prompt[None], cache=cache)[0, -1].argmax().item())
    n_calls = 1
    while len(text) < len(prompt) + n_new:
        draft = _after(text, _last_place(text, n_match), n_match)[:n_draft][: len(prompt) + n_new - len(text) - 1]
        likeliest = model(torch.tensor([[text[-1], *draft]]), cache=cache)[0].argmax(-1).tolist()
        n_calls += 1
        right = _agreeing(draft, likeliest)
        text += likeliest[: right + 1]
        cache.length = len(text) - 1  # all but the newest token are read
    return torch.tensor(text), n_calls


def _places(text, n_match):
    """Where the last n_match tokens stand earlier in the text, as seen from its start."""
    return [place for place in range(len(text) - n_match) if text[place : place + n_match] == text[-n_match:]]


def _last_place(text, n_match, length=0):
    return max(_places(text, n_match), default=None)


def _after(text, place, n_match):
    return [] if place is None else text[place + n_match :]


def _agreeing(draft, likeliest):
    pairs = enumerate(zip(draft, likeliest, strict=False))
    return next((n for n, (mine, its) in pairs if mine != its), len(draft))


def _lookup(
    find=_last_place,
    follow=_after,
    most=lambda draft, n_draft, n_match: draft[:n_draft],
    accept=_agreeing,
    keep=lambda draft, likeliest, right: likeliest[: right + 1],
    cut=lambda text, before, draft, right: len(text) - 1,
    match=lambda n: n,
    feed=lambda newest, draft: [*newest, *draft],
    at_first=False,
    end=lambda left: left - 1,
):
    """lookup_decoding with a slip in one of its steps.

    at_first: a draft for the first call, too; end: most tokens of a draft with so many left to write.
    """

    def program(model, prompt, n_new, n_draft, n_match):
        text, cache, whole, n_calls = prompt.tolist(), model.new_cache(1), len(prompt) + n_new, 0
        while len(text) < whole:
            unread, before, n = (text if n_calls == 0 else text[-1:]), cache.length, match(n_match)
            draft = most(follow(text, find(text, n, len(prompt)), n), n_draft, n_match)[: end(whole - len(text))]
            draft = draft if n_calls or at_first else []
            read = feed(unread, draft) if n_calls else [*unread, *draft]
            likeliest = model(torch.tensor([read]), cache=cache)[0].argmax(-1).tolist()[-len(draft) - 1 :]
            n_calls += 1
            right = accept(draft, likeliest)
            text = text + keep(draft, likeliest, right)
            if n_calls > 1 or draft:
                cache.length = cut(text, before, draft, right)
        return torch.tensor(text[:whole]), n_calls

    return program


def _in_the_prompt(text, n, length):
    return max((place for place in _places(text, n) if place + n < length), default=None)


class _Repeats(_Small):
    """The number of a small model whose greedy text repeats itself, which stands for it in a case."""


class _Repeating(_Watched):
    """In float64, where reading one token or several at a time rounds too little to change the likeliest."""

    def __init__(self, seed):
        super().__init__(seed, vocab_size=12, n_layers=1, max_seq_len=160, std=0.5)
        self.double()

    def forward(self, tokens, *rest, **named):
        if len(self.calls) == self.most_calls:
            hint = "Does each call add a token? Even if none of the draft is right, the model's own likeliest one is."
            raise Wrong(f"the model was called more than {self.most_calls} times.", hint)
        return super().forward(tokens, *rest, **named)


def _verified(function):
    """Hands over a model that counts its calls, and says so if it was called, or its answer given, in a wrong way."""

    def probe(seed, prompt, n_new, n_draft, n_match):
        model, length = _Repeating(seed), len(prompt)
        model.most_calls = n_new * (n_draft + 2)
        try:
            answer = function(model, prompt, n_new, n_draft, n_match)
        except ValueError as error:
            if "do not fit" not in str(error):
                raise
            hint = END_FITS if sum(n for n, _ in model.calls) <= length + n_new + n_draft + 1 else NOT_CUT
            raise Wrong(f"it raises ValueError: {str(error).partition('. ')[0]}.", hint) from None
        if answer is ...:
            return answer
        kind = type(answer).__name__
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            hint = TYPE_HINTS["NoneType"] if answer is None else "Return both, with a comma: return tokens, calls"
            raise Wrong(f"the result is a {kind}, expected two things: the tokens and the number of calls.", hint)
        tokens, n_calls = answer
        if isinstance(tokens, int):
            raise Wrong("the number of calls came first.", "The tokens come first: return tokens, calls")
        _require_cache(model, length, n_draft)
        _require_text(tokens, prompt, n_new)
        if len(model.calls) > n_new:
            raise Wrong(f"the model was called {len(model.calls)} times for {n_new} new tokens.", TOO_MANY)
        n_calls = n_calls.item() if isinstance(n_calls, torch.Tensor) and n_calls.numel() == 1 else n_calls
        if type(n_calls) is not int:
            raise Wrong(
                f"the number of calls has the type {type(n_calls).__name__}, expected int.", "Count: calls += 1"
            )
        if n_calls != len(model.calls):
            hint = "Is every call counted once, when it is made?"
            if n_calls == len(model.calls) - 1:
                hint = "Is every call counted, the first one, which reads the prompt, too?"
            if n_calls == n_new:
                hint = "Do you count calls of the model? These are as many as new tokens."
            raise Wrong(f"you return {n_calls} calls, the model was called {len(model.calls)} times.", hint)
        return tokens, n_calls

    return probe


def _require_cache(model, length, n_draft):
    """Raise what is wrong with the calls: each token that stays is read once, with one cache."""
    sizes, cached = [n for n, _ in model.calls], [with_cache for _, with_cache in model.calls]
    if not sizes:
        raise Wrong(
            "the model was never called.", "model(tokens[None], cache=cache) gives the logits of all its tokens."
        )
    if not any(cached):
        raise Wrong("no call of the model got a cache.", "Is the cache handed over? model(tokens, cache=cache)")
    if not all(cached):
        hint = "Does every call get the cache, the first one, which reads the prompt, too?"
        raise Wrong(f"{cached.count(False)} of {len(cached)} calls of the model got no cache.", hint)
    if model.n_caches > 1:
        hint = (
            "Make the cache once, before the loop: it remembers, and cache.length = ... makes it forget the last ones."
        )
        raise Wrong(f"{model.n_caches} caches were made, expected 1.", hint)
    if sizes[0] < length and len(sizes) > 1:
        raise Wrong(f"the first call read {sizes[0]} of the {length} tokens of the prompt.", "It reads all of them.")
    if large := [n for n in sizes[1:] if n > n_draft + 3]:
        raise Wrong(f"a call after the first read {large[0]} tokens, with drafts of up to {n_draft}.", SHORT)


def _require_text(tokens, prompt, n_new):
    """Raise what is wrong with the form of the tokens: (T + n_new,) int64, the prompt first."""
    length = len(prompt)
    if not isinstance(tokens, torch.Tensor):
        hint = "torch.tensor(text) makes a tensor of a list." if isinstance(tokens, list) else ""
        raise Wrong(f"the tokens have the type {type(tokens).__name__}, expected a tensor.", hint)
    if tokens.shape == (1, length + n_new):
        raise Wrong(
            f"the tokens have the shape {tuple(tokens.shape)}, expected one dimension.", "tokens[0] is the row."
        )
    if tokens.dtype != torch.int64:
        raise Wrong(f"the tokens have the dtype {tokens.dtype}, expected torch.int64.", "Token ids are int64: .long().")
    if tokens.shape == (n_new,) and tokens[:length].tolist() != prompt[:n_new].tolist():
        raise Wrong("only new tokens came back.", "The prompt comes first.")
    if tokens.ndim == 1 and len(tokens) > length + n_new:
        hint = "The last draft may be longer than what is left to write: cut it, or the text."
        raise Wrong(f"{len(tokens) - length} new tokens came back, expected {n_new}.", hint)
    if tokens.shape == (length + n_new - 1,):
        raise Wrong("one new token is missing.", "n_new tokens are new, the one that the first call gives among them.")


PROMPT = torch.tensor([3, 1, 4, 1, 5, 3, 1])
NOT_CUT = (
    "Does the cache forget what was read and not kept? After each call set cache.length to the tokens that it read and "
    "that stay."
)
END_FITS = "Near the end a draft may be longer than what is left to write: cut it, or make the cache longer by n_draft."
ONE_LESS = "Which tokens has the model read that stay? All but the newest one: it is read by the next call."
IN_ONE = (
    "You call once for each new token. Is the whole draft verified in one call? And is the place that was found an "
    "earlier one? The last n_match tokens stand at the end, too, and nothing follows there."
)
TOO_MANY = (
    "Does one call read the newest token and the whole draft? And does the first call, which reads the prompt, already "
    "give a new token?"
)
SHORT = "After the prompt, feed the newest token and a draft of up to n_draft tokens: the cache holds all others."
FOLLOW = "Is the draft what follows the place that was found? Its first token stands n_match behind the place."
ALIGNED = "Which position guesses which token? The newest token's logits are compared with the draft's first token."
FREE = "Is the token free that the model chose after the draft's last right one? "
LOOKUP_SLIPS = [  # hint, what is done otherwise
    (IN_ONE, dict(follow=lambda text, p, n: [])),
    ("Which earlier place counts? The last one: you take the first.",
     dict(find=lambda text, n, length: min(_places(text, n), default=None))),
    ("Which earlier place counts? The last one: you take the one before it.",
     dict(find=lambda text, n, length: [None, *_places(text, n)[:-1]][-1])),
    ("May an earlier place overlap the last n_match tokens? It may: only the end itself does not count.",
     dict(find=lambda text, n, length: max((p for p in _places(text, n) if p + n <= len(text) - n), default=None))),
    ("Is n_match used? You look for the last token alone.", dict(match=lambda n: 1)),
    ("Are n_match tokens compared? You compare one more.", dict(match=lambda n: n + 1)),
    ("Are n_match tokens compared? You compare one less.", dict(match=lambda n: max(1, n - 1))),
    ("Is n_match used? You always compare two tokens.", dict(match=lambda n: 2)),
    *[("Do the last n_match tokens come together, in their order?",
       dict(find=lambda text, n, length, of=of: max(
           (p for p in range(len(text) - n) if of(text[p : p + n]) == of(text[-n:])), default=None)))
      for of in (sorted, set)],
    ("The start of the text is a place, too: number 0. You leave it out.",
     dict(find=lambda text, n, length: max(_places(text, n), default=None) or None)),
    ("Do n_draft tokens follow, counted from the draft's start? You count them from the place that was found.",
     dict(most=lambda d, n, n_match: d[: max(0, n - n_match)])),
    (FOLLOW, dict(follow=lambda text, p, n: [] if p is None else text[p:])),
    (FOLLOW, dict(follow=lambda text, p, n: [] if p is None else text[p + 1 :])),
    (FOLLOW, dict(follow=lambda text, p, n: [] if p is None else text[p + n + 1 :])),
    (FOLLOW, dict(follow=lambda text, p, n: [] if p is None else text[p + n - 1 :])),
    ("How far goes a draft? Up to the end of the text; yours ends where its last n_match tokens begin.",
     dict(follow=lambda text, p, n: [] if p is None else text[p + n : -n])),
    ("Without an earlier place the draft is empty. Yours is the start of the text.",
     dict(follow=lambda text, p, n: text if p is None else text[p + n :])),
    ("Are drafts of up to n_draft tokens used? Yours have one token.",
     dict(most=lambda d, n, n_match: d[:1])),
    ("Are drafts of up to n_draft tokens used? Yours have one less.",
     dict(most=lambda d, n, n_match: d[: n - 1])),
    ("Are drafts of up to n_draft tokens used? Yours have one more.",
     dict(most=lambda d, n, n_match: d[: n + 1])),
    (SHORT, dict(most=lambda d, n, n_match: d)),
    ("Is a draft with fewer than n_draft tokens used, too? The text may end sooner: up to n_draft follow.",
     dict(most=lambda d, n, n_match: d[:n] if len(d) >= n else [])),
    ("Is the text that was written searched, too? You look in the prompt only.", dict(find=_in_the_prompt)),
    ("Is the draft verified? A draft's token stays only if the model's likeliest one is the same.",
     dict(accept=lambda draft, likeliest: len(draft), keep=lambda d, g, n: [*d[:n], g[n]])),
    ("Is the draft verified? A draft's token stays only if the model's likeliest one is the same.",
     dict(accept=lambda draft, likeliest: len(draft), keep=lambda d, g, n: d or g[:1])),
    ("Do tokens stay only up to the first that differs? You count all that agree.",
     dict(accept=lambda d, g: sum(a == b for a, b in zip(d, g, strict=False)))),
    ("Do tokens stay only up to the first that differs? You keep those behind it as well.",
     dict(accept=lambda d, g: len(d), keep=lambda d, g, n: g)),
    ("Does a part of the draft stay, too? You take all of it or nothing.",
     dict(accept=lambda d, g: len(d) if g[: len(d)] == d else 0)),
    (ALIGNED, dict(accept=lambda d, g: _agreeing(d, g[1:]))),
    (ALIGNED, dict(accept=lambda d, g: _agreeing(d[1:], g))),
    (FREE + "You leave it out.",
     dict(keep=lambda d, g, n: g[: max(1, n)])),
    (FREE + "You leave it out if all are right.",
     dict(keep=lambda d, g, n: g[: n + 1] if n < len(d) or not d else d)),
    (FREE + "You leave it out unless all are right.",
     dict(keep=lambda d, g, n: g[: n + 1] if n == len(d) or n == 0 else g[:n])),
    ("Which token comes after the right ones? The model's, not the draft's.",
     dict(keep=lambda d, g, n: d[: n + 1] if n < len(d) else g[: n + 1])),
    ("Which token comes after the right ones? The likeliest where the draft went wrong, not the last one.",
     dict(keep=lambda d, g, n: [*g[:n], g[-1]])),
    *[("Does a call read the newest token once, then the draft?", dict(feed=feed)) for feed in (
        lambda newest, draft: draft or newest, lambda newest, draft: newest + newest + draft)],
    (NOT_CUT, dict(cut=lambda text, before, draft, n: before + 1 + len(draft))),
    (ONE_LESS, dict(cut=lambda text, before, draft, n: min(len(text), before + 1 + len(draft)))),
    (ONE_LESS, dict(cut=lambda text, before, draft, n: len(text))),
    (ONE_LESS, dict(cut=lambda text, before, draft, n: len(text) - 2)),
    (ONE_LESS, dict(cut=lambda text, before, draft, n: before + n)),
    (ONE_LESS, dict(cut=lambda text, before, draft, n: before + 1 + min(len(draft), n + 1))),
    ("Do the right tokens of the draft stay in the cache? You forget all of the draft.",
     dict(cut=lambda text, before, draft, n: before + 1)),
    ("Do the newest token and the right ones stay in the cache? You forget all that the call read.",
     dict(cut=lambda text, before, draft, n: before)),
    ("The first call reads the prompt alone: drafts come after it.", dict(at_first=True)),
]  # fmt: skip
ENDS = (  # the three ways to write n_new tokens: the text is cut, or the draft, with or without the free token
    lambda left: None, lambda left: left, lambda left: left - 1,
)  # fmt: skip
LOOKUP_DECODING = Exercise(
    lookup_decoding,
    [
        Case("12 new, drafts of 3, the last token", (_Repeats(30), PROMPT, 12, 3, 1)),
        Case("18 new, drafts of 4, the last two", (_Repeats(15), PROMPT, 18, 4, 2)),
        Case("prompt of one token, the last three", (_Repeats(10), torch.tensor([7]), 18, 4, 3)),
        Case("12 new, drafts of 3, another model", (_Repeats(34), PROMPT, 12, 3, 1)),
        Case("drafts longer than what is left", (_Repeats(10), torch.tensor([7]), 18, 30, 2)),
        Case("six new, and the prompt repeats itself", (_Repeats(10), torch.tensor([7, 0, 7, 7, 0]), 6, 4, 2)),
        Case("one new token", (_Repeats(15), PROMPT, 1, 4, 1), "One call is enough here: the first."),
    ],
    [(hint, _lookup(end=end, **steps)) for hint, steps in LOOKUP_SLIPS for end in ENDS],
    parts=("the text", "the number of calls"),
    adapt=_verified,
    allow=("KVCache", "LlamaConfig", "causal_visible"),
)  # fmt: skip
check_lookup_decoding = check_of(LOOKUP_DECODING)

# --------------------------------------------------------------------------------------------- speed


def tokens_per_second(config, n_weights, n_cached, batch, number_bytes, bandwidth, operations):
    """Most tokens per second, of all texts together, that reading and computing allow; a number."""
    read_whole = n_weights if config.tie_embeddings else n_weights - config.vocab_size * config.dim
    numbers, work = read_whole, 0
    for _ in range(batch):
        numbers += config.dim  # the text's row of the embedding table
        work += 2 * read_whole
        for _ in range(config.n_layers):
            for _ in ("keys", "values"):
                numbers += n_cached * config.n_kv_heads * config.head_dim
    return batch / max(numbers * number_bytes / bandwidth, work / operations)


def _whole(config, n):
    return n if config.tie_embeddings else n - config.vocab_size * config.dim


def _row(config, batch):
    return batch * config.dim


def _kept(config, n_cached, batch):
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * n_cached * batch


def _speed(
    read=_whole,
    weights=lambda n, b: n,
    rows=_row,
    cache=_kept,
    worked=_whole,
    work=lambda n, b: 2 * n * b,
    join=max,
    answer=lambda seconds, b: b / seconds,
    size=lambda s: s,
    cache_size=None,
):
    """tokens_per_second with one slip: in one of its parts."""

    def program(config, n_weights, n_cached, batch, number_bytes, bandwidth, operations):
        fixed = weights(read(config, n_weights), batch) + rows(config, batch)
        moved = fixed * size(number_bytes)
        moved += cache(config, n_cached, batch) * (cache_size or size)(number_bytes)
        return answer(join(moved / bandwidth, work(worked(config, n_weights), batch) / operations), batch)

    return program


def _one_number(function):
    """Turns a number of any kind into a tensor, so that it is compared up to rounding."""

    def probe(*sizes):
        answer = function(*sizes)
        if isinstance(answer, torch.Tensor) and answer.numel() == 1:
            answer = answer.item()
        if answer is ... or isinstance(answer, torch.Tensor):
            return answer
        if not isinstance(answer, int | float) or isinstance(answer, bool):
            name = type(answer).__name__
            raise Wrong(f"the result has the type {name}, expected a number.", TYPE_HINTS.get(name, ""))
        return torch.tensor(float(answer))

    return probe


def _tiny(tied, head_dim=2):
    sizes = {"vocab_size": 10, "dim": 4, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "hidden_dim": 8}
    constants = {"max_seq_len": 8, "norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_embeddings": tied}
    return LlamaConfig(**sizes, head_dim=head_dim, **constants)


def _machine(name, *rest):
    config = PRESETS[name]
    return config, budget(*sizes_of(config), 1, 1)[0], *rest


OF_THE_TABLE = "Is all of the embedding table read in a step? Of an untied table, only one row for each text."
TABLE_WORKS = "Does the embedding table take operations? Looking a row up takes none; subtract an untied table."
ONCE = "One reading of the weights serves the whole batch, and a step writes one token for each text."
OWN = "Has every text its own cache, its own row and its own operations? The texts share the weights only."
BOTH = "Which takes longer, reading or computing? They go on at the same time: the longer one decides."


def _attention_too(config, n_weights, n_cached, batch, *machine):
    products = 4 * config.n_layers * config.n_heads * config.head_dim * n_cached
    reading = 1 / tokens_per_second(config, n_weights, n_cached, batch, *machine[:2], math.inf)
    return 1 / max(reading, (2 * _whole(config, n_weights) + products) / machine[2])


TOKENS_PER_SECOND = Exercise(
    tokens_per_second,
    [
        Case("untied, V 10, dim 4, 1 layer, 1 KV head of 2: 236 weights, 3 cached tokens",
             (_tiny(False), 236, 3, 1, 1, 2120, 39_200)),
        Case("tied, 1 KV head of 4: 244 weights, 5 cached tokens, 2 texts, 4 bytes",
             (_tiny(True, 4), 244, 5, 2, 4, 8000, 10**6)),
        Case("untied, 3 texts, slow cores", (_tiny(False), 236, 3, 3, 4, 10**6, 10**4)),
        Case("smollm2-135m, 500 cached tokens", _machine("smollm2-135m", 500, 1, 4, 20e9, 200e9)),
        Case("smollm2-135m, 8 texts of 2,000", _machine("smollm2-135m", 2000, 8, 4, 20e9, 10**12)),
        Case("smollm2-135m, 8 texts of 100, slow cores", _machine("smollm2-135m", 100, 8, 4, 20e9, 10**10)),
        Case("llama-3-8b in 2 bytes, 16 texts of 4,096", _machine("llama-3-8b", 4096, 16, 2, 2e12, 10**15)),
        Case("llama-3-8b in 2 bytes, 512 short texts", _machine("llama-3-8b", 10, 512, 2, 2e12, 10**14)),
        Case("nothing in the cache", _machine("llama-3-8b", 0, 4, 2, 10**12, 10**15)),
    ],
    [
        ("Are attention's products with the cached keys and values left out? Yours count.", _attention_too),
        *[("Section 7.4 bounds one text with an empty cache, and counts every weight. What else is read, what less?",
           _speed(read=lambda c, n: n, worked=lambda c, n: n, rows=lambda c, b: 0, cache=lambda c, n, b: 0,
                  weights=weights, work=work, answer=answer))
          for weights in (lambda n, b: n * b, lambda n, b: n)
          for work in (lambda n, b: 2 * n * b, lambda n, b: 2 * n, lambda n, b: 0)
          for answer in (lambda seconds, b: b / seconds, lambda seconds, b: 1 / seconds)],
        ("Are the cache and a row of the embedding table read, too? Yours reads the other weights only.",
         _speed(rows=lambda c, b: 0, cache=lambda c, n, b: 0)),
        (OF_THE_TABLE, _speed(read=lambda c, n: n)),
        (OF_THE_TABLE, _speed(read=lambda c, n: n, worked=lambda c, n: n, rows=lambda c, b: 0)),
        (TABLE_WORKS, _speed(worked=lambda c, n: n)),
        ("Tied, the table is lm_head too, and read whole. You subtract it.",
         _speed(read=lambda c, n: n - c.vocab_size * c.dim)),
        ("Tied, the table is lm_head too, and its weights compute. You leave their operations out.",
         _speed(worked=lambda c, n: n - c.vocab_size * c.dim)),
        ("Tied, the table counts once in n_weights. You add it a second time.",
         _speed(read=lambda c, n: n + c.vocab_size * c.dim * (1 if c.tie_embeddings else -1))),
        ("Is it the untied table that is subtracted? Yours is the tied one.",
         _speed(read=lambda c, n: n - c.vocab_size * c.dim * c.tie_embeddings,
                worked=lambda c, n: n - c.vocab_size * c.dim * c.tie_embeddings)),
        ("Is one row of the embedding table read for each text? Yours is none.", _speed(rows=lambda c, b: 0)),
        ("Is one row of the embedding table read for each text? Yours is one for all.",
         _speed(rows=lambda c, b: c.dim)),
        ("Is one row read for each text even if the table is tied? Yours is for an untied one only.",
         _speed(rows=lambda c, b: 0 if c.tie_embeddings else b * c.dim)),
        ("How long is a row of the embedding table? dim numbers.", _speed(rows=lambda c, b: b)),
        *[(OWN, _speed(rows=rows, cache=lambda c, n, b: _kept(c, n, 1)))
          for rows in (lambda c, b: c.dim, lambda c, b: 0)],
        (ONCE, _speed(weights=lambda n, b: n * b)),
        ("Is the cache read, too?", _speed(cache=lambda c, n, b: 0)),
        ("Are keys and values both read? A factor 2 is missing.", _speed(cache=lambda c, n, b: _kept(c, n, b) / 2)),
        ("Has every layer its own cache?", _speed(cache=lambda c, n, b: _kept(c, n, b) / c.n_layers)),
        ("Has every text its own cache? Multiply by batch.", _speed(cache=lambda c, n, b: _kept(c, n, 1))),
        ("Whose keys are kept: those of n_heads or of n_kv_heads?",
         _speed(cache=lambda c, n, b: _kept(c, n, b) * c.n_heads // c.n_kv_heads)),
        ("Whose keys are kept? Those of n_kv_heads heads, fewer than the dim numbers of a token.",
         _speed(cache=lambda c, n, b: 2 * c.n_layers * c.dim * n * b)),
        ("How many heads are kept? n_kv_heads, each of head_dim numbers.",
         _speed(cache=lambda c, n, b: _kept(c, n, b) // c.n_kv_heads)),
        ("How wide is a head? config.head_dim, which need not be dim // n_heads.",
         _speed(cache=lambda c, n, b: _kept(c, n, b) // c.head_dim * (c.dim // c.n_heads))),
        ("How many numbers has a key? head_dim, for each of n_kv_heads.",
         _speed(cache=lambda c, n, b: _kept(c, n, b) // c.head_dim)),
        ("Are the tokens of the cache counted? n_cached for each text.", _speed(cache=lambda c, n, b: _kept(c, 1, b))),
        ("Is the cache read as n_cached tokens? Yours has one more.",
         _speed(cache=lambda c, n, b: _kept(c, n + 1, b))),
        ("Are the numbers of the cache turned into bytes, too?", _speed(cache_size=lambda s: 1)),
        ("Numbers or bytes? The bandwidth counts bytes.", _speed(size=lambda s: 1)),
        ("Is number_bytes used, not always 4?", _speed(size=lambda s: 4)),
        ("Is number_bytes used, not always 2?", _speed(size=lambda s: 2)),
        ("Is the bandwidth in bytes, not bits?", _speed(size=lambda s: 8 * s)),
        ("A multiplication and an addition for each weight: where is the factor 2?", _speed(work=lambda n, b: n * b)),
        ("Does every text need its own operations? Multiply by batch.", _speed(work=lambda n, b: 2 * n)),
        ("Do the operations depend on number_bytes? Each weight takes two, whatever its bytes.",
         lambda c, n, t, b, s, m, o: b / max(s * (_whole(c, n) + _row(c, b) + _kept(c, t, b)) / m,
                                             2 * b * s * _whole(c, n) / o)),
        ("Does a row that is looked up take operations? The task says none.",
         lambda c, n, t, b, s, m, o: b / max(s * (_whole(c, n) + _row(c, b) + _kept(c, t, b)) / m,
                                             2 * b * (_whole(c, n) + c.dim) / o)),
        ("Does a row that is looked up take operations? The task says none.",
         lambda c, n, t, b, s, m, o: b / max(s * (_whole(c, n) + _row(c, b) + _kept(c, t, b)) / m,
                                             2 * b * (_whole(c, n) + _row(c, b)) / o)),
        ("Do you count operations for the cache? The task leaves them out.",
         lambda c, n, t, b, s, m, o: b / max(s * (_whole(c, n) + _row(c, b) + _kept(c, t, b)) / m,
                                             2 * (b * _whole(c, n) + _kept(c, t, b)) / o)),
        ("Is each amount divided by its own speed? Bytes by the bandwidth, operations by operations.",
         lambda c, n, t, b, s, m, o: b / max(s * (_whole(c, n) + _row(c, b) + _kept(c, t, b)) / o,
                                             2 * b * _whole(c, n) / m)),
        ("Where are the operations? The cores have a limit, too.", _speed(join=lambda reading, work: reading)),
        ("Where is the reading? The memory has a limit, too.", _speed(join=lambda reading, work: work)),
        (BOTH, _speed(join=lambda reading, work: reading + work)),
        (BOTH, _speed(join=min)),
        ("How many tokens does a step write? One for each text.", _speed(answer=lambda seconds, b: 1 / seconds)),
        ("How many tokens does a step write? One for each text: batch, divided by the time of the step.",
         _speed(answer=lambda seconds, b: 1 / seconds / b)),
        ("Is it tokens per second, not seconds?", _speed(answer=lambda seconds, b: seconds)),
        ("Is it tokens per second, not seconds per token?", _speed(answer=lambda seconds, b: seconds / b)),
        ("Is anything rounded? A part of a token per second counts.",
         _speed(answer=lambda seconds, b: int(b / seconds))),
        ("Is anything rounded? A part of a token per second counts.",
         _speed(answer=lambda seconds, b: b // seconds)),
        ("Is anything rounded? A part of a token per second counts.",
         _speed(answer=lambda seconds, b: round(b / seconds))),
    ],
    allow=("count_parameters",),
    adapt=_one_number,
)  # fmt: skip
check_tokens_per_second = check_of(TOKENS_PER_SECOND)
