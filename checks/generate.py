"""The exercises of notebook 07, generating: specification, cases, known mistakes with hints, check."""

import math

import torch

from checks.base import MEMORY, TYPE_HINTS, Case, Exercise, Wrong, draw
from checks.full_model import parameter_count, sizes_of
from checks.judge import check_of
from helpers.config import PRESETS, LlamaConfig
from helpers.model import Llama


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
    """Puts the results of equally likely tokens in order: which of them is kept depends on the sort."""

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


def _above(probabilities, kept):
    kept = torch.where(kept, probabilities, 0.0)
    return kept / kept.sum()


SOFTMAX = "Is it a division by the sum, not another softmax?"
TINY_VOCABULARY = torch.tensor([0.05, 0.4, 0.11, 0.27, 0.17])
TOP_P = Exercise(
    top_p,
    [
        Case("three tokens, p 0.65", (torch.tensor([0.1, 0.6, 0.3]), 0.65)),
        Case("five tokens, p 0.75", (TINY_VOCABULARY, 0.75)),
        Case("p 0.3, below the likeliest", (TINY_VOCABULARY, 0.3), "The likeliest token alone has more than p here."),
        Case("p 1", (TINY_VOCABULARY, 1.0)),
        Case("p 0.5", (TINY_VOCABULARY.flip(0), 0.5)),
        Case("nine tokens, p 0.9", (draw(9, seed=1, scale=1.5).softmax(-1), 0.9)),
        Case("one token", (torch.tensor([1.0]), 0.5)),
        Case("p reached exactly", (torch.tensor([0.25, 0.5, 0.25]), 0.5),
             "The likeliest token has exactly p here: that is enough."),
        Case("float64, not contiguous", (draw(6, seed=2).double().softmax(-1).repeat_interleave(2)[::2], 0.6), MEMORY),
        Case("p 1, and float32 sums to a little less", (torch.tensor([0.08, 0.65, 0.01, 0.26]), 1.0),
             "The sum of all tokens is rounded to a little less than p here: all are kept."),
        Case("four equally likely tokens, p 0.4", (torch.full((4,), 0.25), 0.4)),
        Case("1,024 tokens, p 0.9", (draw(1024, seed=3, scale=2.0).softmax(-1), 0.9)),
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
        *[("Your mask is in the sorted order: use it on the sorted numbers, then put them back.",
           lambda q, p, place=place: (lambda o: _above(q, _until_p(o, o.cumsum(-1), p)[place(q)]))(
               q.sort(descending=True)[0])) for place in (lambda q: slice(None), lambda q: q.argsort(descending=True))],
        ("What is the sum before the first token? It is 0, but roll(1) puts the sum of all there.",
         _nucleus(lambda o, total, p: total.roll(1) < p)),
        ("Do you sort before the cumulative sum?",
         lambda q, p: torch.where(q.cumsum(-1) - q < p, q, 0.0) / torch.where(q.cumsum(-1) - q < p, q, 0.0).sum()),
        *[("Is p a limit on the sum, not on each probability?", lambda q, p, keep=keep: _above(q, keep(q, p)))
          for keep in (lambda q, p: q >= p, lambda q, p: (q >= p) | (q == q.max()), lambda q, p: q <= p,
                       lambda q, p: q >= 1 - p, lambda q, p: (q >= 1 - p) | (q == q.max()),
                       lambda q, p: q > 1 - p, lambda q, p: q >= p / len(q))],
        ("Is p a limit on the sum, not on each probability?", lambda q, p: torch.where(q >= p, q, 0.0)),
        ("Is p a limit on the sum, not on each probability?", lambda q, p: torch.where(q >= 1 - p, q, 0.0)),
        ("Is p a limit on the sum, not a share of the largest? That is min_p.",
         _nucleus(lambda o, total, p: o >= p * o.max())),
        *[("Is p a limit on the sum, not a share of the vocabulary?",
           _nucleus(lambda o, total, p, to_int=to_int: torch.arange(len(o)) < to_int(p * len(o))))
          for to_int in (int, math.ceil, lambda n: max(1, round(n)))],
        ("Do you keep the likely tokens, not the unlikely ones?", _nucleus(lambda o, total, p: total - o >= p)),
        ("Do you keep the likely tokens, not the unlikely ones?", _nucleus(lambda o, total, p: total > p)),
        *[(SOFTMAX, lambda q, p, again=again, hidden=hidden: torch.where(
              _nucleus(_until_p)(q, p) > 0, _nucleus(_until_p, again=again)(q, p), hidden).softmax(-1))
          for again in (False, True) for hidden in (-math.inf, 0.0)],
        ("Do you divide by p? The kept tokens reach p and have often a little more: divide by their own sum.",
         lambda q, p: _nucleus(_until_p, again=False)(q, p) / p),
        ("Does every token keep its place? You return the kept ones only; the others are 0.",
         lambda q, p: (lambda kept: kept[kept > 0].sort(descending=True).values)(_nucleus(_until_p)(q, p))),
        ("Does every token keep its place? You return the kept ones only; the others are 0.",
         lambda q, p: (lambda kept: kept[kept > 0])(_nucleus(_until_p)(q, p))),
        ("Does any sum reach p? With p 1, rounding may leave all below it, and argmax of all False is 0.",
         _nucleus(lambda o, total, p: torch.arange(len(o)) <= (total >= p).int().argmax())),
        ("Do you keep all that are as likely as the last one kept? Keep the first n of the sorted tokens, by count.",
         _nucleus(lambda o, total, p: o >= o[total - o < p].min())),
        ("Is a set of tokens kept, not only the likeliest?", _nucleus(lambda o, total, p: torch.arange(len(o)) == 0)),
        ("Is anything cut off? The probabilities come back as they were.", lambda q, p: q),
        ("Do the kept tokens keep their ratios? You give all the same probability.",
         lambda q, p: (lambda kept: kept / kept.sum())((_nucleus(_until_p)(q, p) > 0).to(q.dtype))),
        ("Do the kept tokens keep their ratios? Divide each by their sum; you give all the rest to the likeliest.",
         lambda q, p: (lambda kept: torch.where(torch.arange(len(q)) == q.argmax(), kept + 1 - kept.sum(), kept))(
             _nucleus(_until_p, again=False)(q, p))),
    ],
    adapt=_equals_in_any_order,
)  # fmt: skip
check_top_p = check_of(TOP_P)

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

    def __init__(self, seed):
        sizes = {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 24}
        constants = {"max_seq_len": 48, "norm_eps": 1e-5, "rope_theta": 100.0, "tie_embeddings": False}
        super().__init__(LlamaConfig(**sizes, **constants))
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
        if n_new and not any(cached):
            raise Wrong("no call of the model got a cache.", "Is the cache handed over? model(latest, cache=cache)")
        if n_new and not cached[0]:
            hint = "Does the cache hold the prompt? Pass it to the first call."
            raise Wrong("the first call of the model got no cache.", hint)
        if model.n_caches > rows:
            hint = "Make the cache once, before the loop: it remembers."
            raise Wrong(f"{model.n_caches} caches were made, expected 1.", hint)
        if n_new and model.calls[0][0] < rows * length and n_read < rows * (length + n_new - 1):
            hint = "Where does the cache get the prompt from? Feed all of it in the first call."
            raise Wrong(f"the first call read {model.calls[0][0]} of the {rows * length} tokens of the prompts.", hint)
        if n_read > rows * (length + n_new):
            raise again()
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, length + n_new + 1):
            hint = "How often does the loop run? Is nothing added when n_new is 0?"
            raise Wrong("one token too many came back.", hint)
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, length + n_new - 1) and n_new:
            raise Wrong("one new token is missing.", "The first call gives a new token, too: n_new calls in all.")
        if isinstance(answer, torch.Tensor) and answer.shape == (rows, n_new) and n_new and not starts(answer):
            raise Wrong("only new tokens came back.", "The prompt comes first: join both with torch.cat along dim=1.")
        if isinstance(answer, torch.Tensor) and answer.shape == (rows * (n_new + 1), length) and length == 1 and n_new:
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
        Case("no new token", (_Small(3), torch.tensor([[8, 6, 7]]), 0), "Is nothing added when n_new is 0?"),
        Case("prompt of one token", (_Small(4), torch.tensor([[11]]), 10),
             "The prompt has a single token here: does your first call read it?"),
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
    return config, parameter_count(*sizes_of(config)), *rest


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
                  weights=weights, work=work, answer=answer, join=join))
          for weights in (lambda n, b: n * b, lambda n, b: n) for join in (max, lambda reading, work: reading)
          for work in (lambda n, b: 2 * n * b, lambda n, b: 2 * n)
          for answer in (lambda seconds, b: b / seconds, lambda seconds, b: 1 / seconds)],
        ("Are the cache and a row of the embedding table read, too? Yours reads the other weights only.",
         _speed(rows=lambda c, b: 0, cache=lambda c, n, b: 0)),
        (OF_THE_TABLE, _speed(read=lambda c, n: n)),
        (OF_THE_TABLE, _speed(read=lambda c, n: n, worked=lambda c, n: n)),
        (OF_THE_TABLE, _speed(read=lambda c, n: n, worked=lambda c, n: n, rows=lambda c, b: 0)),
        (TABLE_WORKS, _speed(worked=lambda c, n: n)),
        ("Tied, the table is lm_head too, and read whole. You subtract it.",
         _speed(read=lambda c, n: n - c.vocab_size * c.dim, worked=lambda c, n: n - c.vocab_size * c.dim)),
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
        *[(OWN, _speed(rows=rows, cache=lambda c, n, b: _kept(c, n, 1), work=work))
          for rows in (lambda c, b: c.dim, lambda c, b: 0) for work in (lambda n, b: 2 * n, lambda n, b: 2 * n * b)],
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
