"""Exercises on training and generating: specification, inputs, known mistakes."""

import math

import torch

from helpers.config import LlamaConfig
from helpers.exercises.parts import BATCH, MEMORY, Case, Exercise, Wrong, draw, turned
from helpers.model import Llama

# fmt: off


def cross_entropy(logits, targets):
    """Mean over the rows of -log softmax(logits (N, V)) at the target (N,), in nats, shape ()."""
    losses = []
    for row, target in zip(logits.double(), targets, strict=True):
        largest = max(row.tolist())
        losses.append(largest + (row - largest).exp().sum().log() - row[target])
    return (sum(losses) / len(losses)).to(logits.dtype)


def _log_shares(logits, targets):
    return logits.float().log_softmax(-1)[torch.arange(len(targets)), targets]


def _naive_log_shares(logits, targets):
    return (logits.exp() / logits.exp().sum(-1, keepdim=True))[torch.arange(len(targets)), targets].log()


STABLE = "Does exp overflow, or log(0) appear? Subtract the largest logit, or use log_softmax."
CROSS_ENTROPY = Exercise(
    cross_entropy,
    [
        Case("one row, V 5", (draw(1, 5, scale=2.0), torch.tensor([3]))),
        Case("four rows, V 6", (draw(4, 6, seed=1, scale=2.0), torch.tensor([5, 0, 2, 2])), BATCH),
        Case("as many rows as tokens", (draw(4, 4, seed=2, scale=2.0), torch.tensor([3, 0, 0, 1]))),
        Case("logits about 500", (draw(3, 5, seed=3, scale=500.0), torch.tensor([0, 1, 4])), STABLE),
        Case("equal logits of 1000", (torch.full((2, 7), 1000.0), torch.tensor([0, 6])), STABLE),
        Case("one row of logits about -1000",
             (torch.tensor([[-1000.0, -1001.0, -1003.0], [0.0, 2.0, 1.0]]), torch.tensor([1, 0])),
             "Is the largest logit each row's own? A row of -1000 must not become log(0)."),
        Case("float64, not contiguous", (turned(draw(3, 5, seed=4)).double(), torch.tensor([1, 2, 3])), MEMORY),
        Case("gradients", (draw(3, 4, seed=5), torch.tensor([1, 3, 3])), gradients=True),
    ],
    [
        ("Is it the mean over the rows, not the sum?", lambda z, t: -_log_shares(z, t).sum()),
        ("Is the mean over the rows missing?", lambda z, t: -_log_shares(z, t)),
        ("Is the minus sign missing?", lambda z, t: _log_shares(z, t).mean()),
        ("Is it the natural logarithm, not base 2?", lambda z, t: -_log_shares(z, t).mean() / math.log(2)),
        ("Is it the natural logarithm, not base 10?", lambda z, t: -_log_shares(z, t).mean() / math.log(10)),
        ("Is the softmax taken once? You do it twice.", lambda z, t: -_log_shares(z.softmax(-1), t).mean()),
        ("Is the softmax over the vocabulary, dim=-1?", lambda z, t: -z.log_softmax(0)[torch.arange(len(t)), t].mean()),
        ("Is the logarithm taken before the mean?", lambda z, t: -_log_shares(z, t).exp().mean().log()),
        ("Is the logarithm missing?", lambda z, t: -_log_shares(z, t).exp().mean()),
        ("Is the logarithm missing?", lambda z, t: 1 - _log_shares(z, t).exp().mean()),
        ("Is the softmax missing?", lambda z, t: -z[torch.arange(len(t)), t].mean()),
        ("Do you use the targets? This is the entropy.",
         lambda z, t: -(z.softmax(-1) * z.log_softmax(-1)).sum(-1).mean()),
        ("Do you use the targets? You take the likeliest token.", lambda z, t: -_log_shares(z, z.argmax(-1)).mean()),
        ("Do you take the target's column only? You take all.", lambda z, t: -z.log_softmax(-1).mean()),
        ("Is each row paired with its own target? z[:, targets] takes all columns for all rows.",
         lambda z, t: -z.log_softmax(-1)[:, t].mean()),
        ("Is it the loss, not its exponential (perplexity)?", lambda z, t: (-_log_shares(z, t).mean()).exp()),
        (STABLE, lambda z, t: -_naive_log_shares(z, t).mean()),
        (STABLE, lambda z, t: -(z.softmax(-1)[torch.arange(len(t)), t]).log().mean()),
        (STABLE, lambda z, t: (z.exp().sum(-1).log() - z[torch.arange(len(t)), t]).mean()),
        *[
            ("Is a small number added inside the logarithm? It hides the loss: use log_softmax.",
             lambda z, t, e=e: -(z.softmax(-1)[torch.arange(len(t)), t] + e).log().mean())
            for e in (1e-8, 1e-9, 1e-10, 1e-12)
        ],
        ("Do you divide by V, not by the number of rows?", lambda z, t: -_log_shares(z, t).sum() / z.shape[-1]),
    ],
)


def top_p(probabilities, p):
    """Keep the likeliest tokens of probabilities (V,) until they reach p together, then make the sum 1 again."""
    kept, total = [], 0.0
    for token in sorted(range(len(probabilities)), key=lambda token: -probabilities[token].item()):
        if total < p:
            kept.append(token)
            total += probabilities[token].item()
    result = torch.zeros(len(probabilities), dtype=torch.float64)
    for token in kept:
        result[token] = probabilities[token].double() / total
    return result.to(probabilities.dtype)


def _nucleus(keep, again=True, back=True, descending=True):
    """top_p with one slip; keep gets the sorted probabilities, their cumulative sum and p."""

    def program(probabilities, p):
        ordered, order = probabilities.sort(descending=descending)
        ordered = torch.where(keep(ordered, ordered.cumsum(-1), p), ordered, 0.0)
        ordered = ordered / ordered.sum() if again else ordered
        return torch.zeros_like(ordered).scatter(-1, order, ordered) if back else ordered

    return program


def _until_p(ordered, total, p):
    return total - ordered < p


def _equals_in_any_order(function):
    """Which of equally likely tokens stays is up to the sort: their results are compared largest first."""

    def probe(probabilities, p):
        given, answer = probabilities.clone(), function(probabilities, p)
        if not isinstance(answer, torch.Tensor) or answer.shape != given.shape:
            return answer
        for value in given.unique():
            mine = given == value
            if mine.sum() > 1:
                answer = answer.clone()
                answer[mine] = answer[mine].sort(descending=True).values
        return answer

    return probe


TINY_VOCABULARY = torch.tensor([0.05, 0.4, 0.11, 0.27, 0.17])
TOP_P = Exercise(
    top_p,
    [
        Case("five tokens, p 0.75", (TINY_VOCABULARY, 0.75)),
        Case("p 0.3, below the likeliest", (TINY_VOCABULARY, 0.3), "Is at least one token kept?"),
        Case("p 1", (TINY_VOCABULARY, 1.0)),
        Case("p 0.5", (TINY_VOCABULARY.flip(0), 0.5)),
        Case("nine tokens, p 0.9", (draw(9, seed=1, scale=1.5).softmax(-1), 0.9)),
        Case("one token", (torch.tensor([1.0]), 0.5)),
        Case("p reached exactly", (torch.tensor([0.25, 0.5, 0.25]), 0.5), "Once p is reached exactly, is that enough?"),
        Case("float64, not contiguous", (draw(6, seed=2).double().softmax(-1).repeat_interleave(2)[::2], 0.6), MEMORY),
        Case("p 1, and float32 sums to a little less", (torch.tensor([0.08, 0.65, 0.01, 0.26]), 1.0),
             "With p 1, rounding may leave the sum just below p: are all tokens kept then?"),
        Case("four equally likely tokens, p 0.4", (torch.full((4,), 0.25), 0.4)),
    ],
    [
        ("Is the token that crosses p kept too?", _nucleus(lambda o, total, p: total <= p)),
        ("Is the token that crosses p kept too?", _nucleus(lambda o, total, p: total < p)),
        ("Is the token that crosses p kept too?",
         _nucleus(lambda o, total, p: (total <= p) | (torch.arange(len(o)) == 0))),
        ("Do you keep one token too many?", _nucleus(lambda o, total, p: total - o - o.roll(1) < p)),
        ("Do you keep one token too many? Once p is reached exactly, that is enough: < p, not <= p.",
         _nucleus(lambda o, total, p: total - o <= p)),
        ("Do the probabilities return to their places? ordered[order] sorts once more; scatter undoes the sorting.",
         lambda q, p: (lambda kept, order: kept[order] / kept.sum())(
             torch.where(q.sort(descending=True)[0].cumsum(-1) - q.sort(descending=True)[0] < p,
                         q.sort(descending=True)[0], 0.0), q.argsort(descending=True))),
        ("Does the sum become 1 again?", _nucleus(_until_p, again=False)),
        ("Do the probabilities return to their places? They are still sorted.", _nucleus(_until_p, back=False)),
        ("Do you start with the likeliest token? Sort in descending order.", _nucleus(_until_p, descending=False)),
        ("Do you sort before the cumulative sum?",
         lambda q, p: torch.where(q.cumsum(-1) - q < p, q, 0.0) / torch.where(q.cumsum(-1) - q < p, q, 0.0).sum()),
        ("Is p a limit on the sum, not on each probability?", _nucleus(lambda o, total, p: o >= p)),
        ("Is p a limit on the sum, not a share of the largest? That is min_p.",
         _nucleus(lambda o, total, p: o >= p * o.max())),
        ("Is p a limit on the sum, not a share of the vocabulary?",
         _nucleus(lambda o, total, p: torch.arange(len(o)) < max(1, round(p * len(o))))),
        ("Do you keep the likely tokens, not the unlikely ones?", _nucleus(lambda o, total, p: total - o >= p)),
        ("Is it a division by the sum, not another softmax?",
         lambda q, p: torch.where(_nucleus(_until_p)(q, p) > 0, q, -math.inf).softmax(-1)),
        ("Is it a division by the sum, not another softmax?", lambda q, p: _nucleus(_until_p)(q, p).softmax(-1)),
        ("Does any sum reach p? With p 1, rounding may leave all below it, and argmax of all False is 0.",
         _nucleus(lambda o, total, p: torch.arange(len(o)) <= (total >= p).int().argmax())),
        ("Do you keep all that are as likely as the last one kept? Keep the first n of the sorted tokens, by count.",
         _nucleus(lambda o, total, p: o >= o[total - o < p].min())),
        ("Is a set of tokens kept, not only the likeliest?", _nucleus(lambda o, total, p: torch.arange(len(o)) == 0)),
        ("Is anything cut off? The probabilities come back as they were.", lambda q, p: q),
    ],
    adapt=_equals_in_any_order,
)

# --------------------------------------------------------------------------------------------- batches


def next_token_batch(tokens, starts, seq_len):
    """Cut a window of tokens (N,) at each of starts (B,): inputs and targets, both (B, seq_len), targets one later."""
    inputs = [[tokens[start + step].item() for step in range(seq_len)] for start in starts.tolist()]
    targets = [[tokens[start + step + 1].item() for step in range(seq_len)] for start in starts.tolist()]
    return torch.tensor(inputs), torch.tensor(targets)


def _cut(tokens, starts, seq_len, shift=0):
    return tokens[starts[:, None] + torch.arange(seq_len) + shift]


def _mixed_up(n_tokens, seed=0):
    """Each number from 100 on once, in random order: a token says where it stood."""
    return draw(n_tokens, seed=seed).argsort() + 100


LAST_TARGET = "What is the last target of a window? The token that follows the window in the text."
NEXT_TOKEN_BATCH = Exercise(
    next_token_batch,
    [
        Case("20 tokens, two windows of 4", (_mixed_up(20), torch.tensor([3, 2]), 4)),
        Case("one window", (_mixed_up(9, 1), torch.tensor([1]), 5), BATCH),
        Case("the last window there is", (_mixed_up(9, 2), torch.tensor([4, 0]), 4), LAST_TARGET),
        Case("windows of one token", (_mixed_up(9, 3), torch.tensor([7, 0, 3]), 1)),
        Case("the same start twice", (_mixed_up(30, 4), torch.tensor([6, 6, 5]), 7)),
        Case("not contiguous", (_mixed_up(60, 5)[::2], torch.tensor([2, 9]), 6), MEMORY),
    ],
    [
        ("Are the targets the inputs? Then the answer stands in the question, and the loss falls to 0.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n))),
        ("Are the targets one token later, not one earlier?", lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, -1))),
        ("Are the targets one token later, not two?", lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 2))),
        ("Are inputs and targets swapped?", lambda t, s, n: (_cut(t, s, n, 1), _cut(t, s, n))),
        ("Do the inputs begin at the start itself?", lambda t, s, n: (_cut(t, s, n, 1), _cut(t, s, n, 2))),
        (LAST_TARGET, lambda t, s, n: (_cut(t, s, n), _cut(t, s, n).roll(-1, 1))),
        (LAST_TARGET, lambda t, s, n: (_cut(t, s, n), torch.nn.functional.pad(_cut(t, s, n, 1)[:, :-1], (0, 1)))),
        ("Are the windows long enough? For n targets, n + 1 tokens are cut out.",
         lambda t, s, n: (_cut(t, s, n)[:, :-1], _cut(t, s, n)[:, 1:])),
        ("Do you use starts? Your windows begin elsewhere.",
         lambda t, s, n: (_cut(t, torch.arange(len(s)), n), _cut(t, torch.arange(len(s)), n, 1))),
        ("Is a start a position in the text, not the number of a window?",
         lambda t, s, n: (_cut(t, s * n, n), _cut(t, s * n, n, 1))),
        ("Is each row one window? Yours are the columns.", lambda t, s, n: (_cut(t, s, n).T, _cut(t, s, n, 1).T)),
        ("Does every position have a target? You keep only the last.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 1)[:, -1:])),
        ("Does every position have a target? You keep only the last.",
         lambda t, s, n: (_cut(t, s, n), _cut(t, s, n, 1)[:, -1])),
        ("Do you return the tokens, not their positions?",
         lambda t, s, n: (s[:, None] + torch.arange(n), s[:, None] + torch.arange(n) + 1)),
    ],
    hint="Write the two rows for starts = tensor([3]) and seq_len = 4 on paper: which positions do they hold?",
)

# ----------------------------------------------------------------------------------------- the cached loop


def greedy_with_cache(model, tokens, n_new):
    """Continue prompts (B, T) by n_new likeliest tokens, each token read once: the result is (B, T + n_new)."""
    cache, latest, parts = model.new_cache(tokens.shape[0]), tokens, [tokens]
    for _ in range(n_new):
        latest = model(latest, cache=cache)[:, -1].argmax(-1, keepdim=True)
        parts.append(latest)
    return torch.cat(parts, dim=1)


class _Watched(Llama):
    """A small model with large random weights that notes every call: number of tokens, and whether with a cache."""

    def __init__(self, seed):
        super().__init__(LlamaConfig(
            vocab_size=40, dim=16, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=24, max_seq_len=48, norm_eps=1e-5,
            rope_theta=100.0, tie_embeddings=False,
        ))
        generator, self.calls, self.n_caches = torch.Generator().manual_seed(seed), [], 0
        for weight in self.parameters():
            weight.requires_grad_(False)
            if weight.ndim == 2:
                weight.normal_(std=0.6, generator=generator)

    def new_cache(self, *sizes, **named):
        self.n_caches += 1
        return super().new_cache(*sizes, **named)

    def forward(self, tokens, cache=None, *rest, **named):
        self.calls.append((tokens.numel(), cache is not None))
        return super().forward(tokens, cache, *rest, **named)


def _read_once(function):
    """Hands over a model that counts what it reads; says how the tokens were read if that is the fault."""

    def probe(seed, tokens, n_new):
        model, rows, length = _Watched(seed), *tokens.shape
        again = Wrong(f"the model read more than {rows * length} tokens of prompts and {rows * n_new} new ones.",
                      "After the prompt, feed only the newest token: the cache holds the others.")
        try:
            answer = function(model, tokens, n_new)
        except ValueError:  # the cache was full
            if sum(n for n, _ in model.calls) > rows * (length + n_new):
                raise again from None
            raise
        n_read, cached = sum(n for n, _ in model.calls), [with_cache for _, with_cache in model.calls]
        if n_new and not any(cached):
            raise Wrong("no call of the model got a cache.", "Is the cache handed over? model(latest, cache=cache)")
        if model.n_caches > rows:
            raise Wrong(f"{model.n_caches} caches were made, expected 1.",
                        "Make the cache once, before the loop: it remembers.")
        if n_new and model.calls[0][0] < rows * length and n_read < rows * (length + n_new - 1):
            raise Wrong(f"the first call read {model.calls[0][0]} of the {rows * length} tokens of the prompts.",
                        "Where does the cache get the prompt from? Feed all of it in the first call.")
        if n_read > rows * (length + n_new):
            raise again
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, length + n_new + 1):
            raise Wrong("one token too many came back.",
                        "How often does the loop run? Is nothing added when n_new is 0?")
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, n_new) and n_new:
            raise Wrong("only the new tokens came back.", "Does the prompt stand first? Use torch.cat(..., dim=1).")
        return answer

    return probe


GREEDY_WITH_CACHE = Exercise(
    greedy_with_cache,
    [
        Case("prompt of 5, 8 new", (0, torch.tensor([[3, 1, 4, 1, 5]]), 8)),
        Case("three prompts", (1, torch.tensor([[7, 2], [9, 9], [0, 39]]), 6), BATCH),
        Case("one new token", (2, torch.tensor([[8, 6, 7]]), 1), "How often does the loop run for one new token?"),
        Case("no new token", (3, torch.tensor([[8, 6, 7]]), 0), "Is nothing added when n_new is 0?"),
        Case("prompt of one token", (4, torch.tensor([[11]]), 10)),
    ],
    [],
    hint="Is the next token the argmax over dim=-1 of the last position's logits, and is it fed in the next step?",
    adapt=_read_once,
)
