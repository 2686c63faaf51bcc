"""The exercises of notebook 05, the full model: specification, cases, known mistakes with hints, check."""

import copy
import math
from functools import cache, partial
from operator import index
from types import MethodType
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from checks.base import TYPE_HINTS, Case, Exercise, Harness, Wrong, largest, mutate
from checks.judge import check_of
from checks.shared import HOOK_LEFT, require_unchanged, snapshot
from helpers.checkpoint import load_checkpoint
from helpers.config import PRESETS
from helpers.interventions import held_out_loss, held_out_windows, without_heads
from helpers.model import GroupedQueryAttention, Llama, LlamaConfig, RMSNorm, SwiGLU, apply_rope, rope_angles
from helpers.text import TINY_LLAMA


def budget(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings, batch, tokens):
    """Two ints: a LLaMA's parameters, a tied matrix once, and the FLOPs of its matrix products for (batch, tokens)."""
    block = [(n_heads * head_dim, dim), (n_kv_heads * head_dim, dim), (n_kv_heads * head_dim, dim)]  # q, k, v
    block += [(dim, n_heads * head_dim), (hidden_dim, dim), (hidden_dim, dim), (dim, hidden_dim)]  # o, gate, up, down
    count, flops = vocab_size * dim + dim, 0  # the embedding and the last norm
    for _ in range(n_layers):
        count += 2 * dim
        for rows, columns in block:
            count += rows * columns
            flops += 2 * rows * columns * batch * tokens  # a product and a sum for each number of the matrix
        for _ in range(batch * n_heads):
            flops += 2 * 2 * tokens * tokens * head_dim  # every query with every key, every weight with a value
    flops += 2 * vocab_size * dim * batch * tokens  # the head: it multiplies, tied or not
    return count + (0 if tie_embeddings else vocab_size * dim), flops


_budget = partial(mutate, budget)


def sizes_of(config):
    """The sizes that `budget` takes, of a LlamaConfig."""
    names = ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "tie_embeddings")
    return tuple(getattr(config, name) for name in names)


def _by_arithmetic(function, *given):
    """Refuses to build a model while the function runs: counting what PyTorch made is no count of one's own."""

    def refuse(*_, **__):
        said = "it builds a model and counts what PyTorch made."
        raise Wrong(said, "Multiply the numbers instead: what are the shapes of the matrices in one block?")

    with patch.object(nn.Module, "__init__", refuse):
        answer = function(*given)
    if answer is None:
        return answer
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Wrong("a tuple of two ints is expected.", "Return (count, flops).")
    if other := [one for one in answer if type(one) is not int]:
        hint = WHOLE if isinstance(other[0], float) else "int(...) makes an int of a number of numpy or PyTorch."
        raise Wrong(f"two ints are expected, but one is of the type {type(other[0]).__name__}.", hint)
    count, flops = budget(*given)  # a matrix that is wrong in the count is wrong in the FLOPs, too: one at a time
    return answer if answer[0] == count else (answer[0], flops)


WHOLE = "Do you divide? A quotient such as 1 / 49 is rounded, and int(...) cuts off: multiply whole numbers."
SCORES, EACH_HEAD = "2 * 2 * tokens * tokens * head_dim", "batch * n_heads"
ALL_NORMS = "Are all norms counted, two in each block?"
HEAD, Q, KV = "0 if tie_embeddings else vocab_size * dim", "(n_heads * head_dim, dim)", "(n_kv_heads * head_dim, dim)"
check_budget = check_of(Exercise(budget, [
    Case("by hand: V 10, D 4, L 1, H 2, K 1, h 2, F 6, tied; B 1, T 3", (10, 4, 1, 2, 1, 2, 6, True, 1, 3)),
    Case("the same, not tied, three layers, B 2", (10, 4, 3, 2, 1, 2, 6, False, 2, 3)),
    Case("head_dim is not dim / n_heads", (11, 6, 2, 4, 2, 5, 7, False, 3, 5)),
    *[Case(f"{n_heads} query heads on one", (9, dim, 1, n_heads, 1, head_dim, 4, False, 1, 1), WHOLE)
      for n_heads, dim, head_dim in ((11, 7, 10), (49, 2, 8))],
    *[Case(name, (*sizes_of(PRESETS[name]), 2, 1000)) for name in ("llama-2-7b", "llama-3.2-1b")],
    Case("a long text, and odd sizes", (151_937, 8_191, 81, 63, 7, 129, 29_569, False, 3, 100_001),
         "Do you use floats? From 2**53 on not every whole number is one, so they round. Multiply ints."),
], [  # known mistakes
    ("Does a tied matrix count once? Yours counts embedding and head.", _budget(HEAD, "vocab_size * dim")),
    ("Do embedding and head both count when they are not tied?", _budget(HEAD, "0")),
    ("Do k and v have n_kv_heads heads? Yours have n_heads.", _budget(f"{KV}, {KV}", f"{Q}, {Q}")),
    ("Are q, o n_heads * head_dim wide?", _budget(f"[{Q}", "[(dim, dim)", "[(dim, n_heads * head_dim)", "[(dim, dim)")),
    ("Has the feed-forward three matrices? Yours has two.", _budget("(hidden_dim, dim), (", "(")),
    ("Is the last norm, before the head, counted?", _budget("* dim + dim, 0", "* dim, 0")),
    (ALL_NORMS, _budget("* dim + dim, 0", "* dim, 0", "+= 2 * dim", "+= 0")),
    ("Do you multiply the blocks by n_layers?", _budget("range(n_layers)", "range(1)")),
    (ALL_NORMS, _budget("+= 2 * dim", "+= dim")),
    ("Is head_dim used as it is given? Yours is dim // n_heads.",
     lambda *given: budget(*given[:5], given[1] // given[3], *given[6:])),
    ("Is the number of parameters first? Return (count, flops).", lambda *given: budget(*given)[::-1]),
    ("FLOPs: a product and a sum per number and token.", lambda *given: (budget(*given)[0], budget(*given)[1] // 2)),
    ("FLOPs: a product and a sum per number of a matrix and token.", _budget("2 * rows", "rows")),
    ("FLOPs: do they count for all texts of the batch? Yours are those of one text.",
     lambda *given: (budget(*given)[0], budget(*given)[1] // given[8])),
    ("FLOPs: attention multiplies, too: queries with keys, weights with values.", _budget(SCORES, f"0 * {SCORES}")),
    ("FLOPs: attention has two products, of all queries and keys, hidden or not.", _budget(SCORES, SCORES[4:])),
    ("FLOPs: a hidden key is multiplied, too. Do you count the causal half alone?",
     _budget("2 * 2 * tokens * tokens", "2 * tokens * (tokens + 1)")),
    ("FLOPs: each query head has scores of its own. Yours are those of n_kv_heads.",
     _budget(EACH_HEAD, "batch * n_kv_heads")),
    ("FLOPs: all scores of a text need n_heads * head_dim numbers. Yours have dim.",
     _budget(EACH_HEAD, "batch", SCORES, "2 * 2 * tokens * tokens * dim")),
    ("FLOPs: each text of the batch has scores of its own.", _budget(EACH_HEAD, "n_heads")),
    ("FLOPs: no query meets keys of another text. Do you square batch * tokens?",
     _budget(EACH_HEAD, "batch * batch * n_heads")),
    ("FLOPs: every query meets every key. Yours grow with tokens, not with their square.",
     _budget("2 * 2 * tokens * tokens", "2 * 2 * tokens")),
    ("FLOPs: each block has scores of its own.", _budget(EACH_HEAD, f"{EACH_HEAD} * (not _)")),
    ("FLOPs: the head multiplies, tied or not.", _budget("2 * vocab_size", "0 * vocab_size")),
    ("FLOPs: the head multiplies, tied or not. Yours does so only if it is not tied.",
     _budget("2 * vocab_size", "2 * (not tie_embeddings) * vocab_size")),
    ("FLOPs: the head multiplies at every position, not at the last one alone.",
     _budget("vocab_size * dim * batch * tokens", "vocab_size * dim * batch")),
    *[("FLOPs: the embedding is looked up, so nothing is multiplied there.", _budget("2 * vocab_size", more))
      for more in ("4 * vocab_size", "2 * (2 - tie_embeddings) * vocab_size")],
    ("FLOPs of a forward pass alone: training has three times as many.",
     lambda *given: (budget(*given)[0], 3 * budget(*given)[1])),
    ("FLOPs: only matrix products count. Do the norms count in yours?",
     _budget("flops += 2 * vocab", "flops += 2 * (2 * n_layers + 1) * dim * batch * tokens + 2 * vocab")),
], harness=Harness(_by_arithmetic, ("count", "flops"))))  # fmt: skip


def pair_with_bug(bug, weights):
    """A small LLaMA with random weights, and the same model with one bug.

    Args:
        bug: one of BUGS or CALL_BUGS, or None: then both are right.
        weights: "new", as a fresh model has them (gains 1), "new, gains" (these, with gains from 0.5 to 1.5),
            "large, gains 1" (0.3, gains 1) or "large" (0.3, gains from 0.5 to 1.5).

    Returns:
        right, buggy, with a vocabulary of 64 tokens.
    """
    right = small_llama(weights, norm_eps=1e-6, rope_theta=500_000.0)
    return right, with_bug(right, bug)


def small_llama(weights, **settings):
    """A LLaMA of two blocks with random weights, see pair_with_bug; the same at each call."""
    sizes = {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 48}
    constants = {"max_seq_len": 64, "norm_eps": 1e-5, "rope_theta": 1e4, "tie_embeddings": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Llama(LlamaConfig(**sizes | constants | settings)).requires_grad_(False)
        for weight in model.parameters():
            if weight.ndim == 2 and "large" in weights:
                weight.normal_(std=0.3)
            elif weight.ndim == 1 and weights in ("large", "new, gains"):
                weight.uniform_(0.5, 1.5)
    return model


def with_bug(model, bug):
    """A copy of a Llama or of one of its blocks with one of BUGS or CALL_BUGS, or with none for None."""
    model = copy.deepcopy(model)
    owner, name, method = (METHODS | CALLS).get(bug, (nn.Identity, "", None))
    for module in model.modules():
        if isinstance(module, owner):
            setattr(module, name, MethodType(method, module))  # deepcopy copies it again
    return model


def _scaled_by_dim(attention, x, cos, sin):
    q, k, v = GroupedQueryAttention.rotated_qkv(attention, x, cos, sin)
    return q * math.sqrt(attention.head_dim / x.shape[-1]), k, v


def _neighbours_paired(attention, x, cos, sin):
    q, k, v = GroupedQueryAttention.rotated_qkv(attention, x, torch.ones_like(cos), torch.zeros_like(sin))
    return apply_rope(q, cos, sin, "interleaved"), apply_rope(k, cos, sin, "interleaved"), v


def _turned(positions, inv_freq):
    angles = rope_angles(positions, inv_freq)
    return angles.cos(), angles.sin()


RIGHT = Llama.rotation_and_mask


def _shared(change):
    """Another rotation_and_mask: change(model, (cos, sin, visible), T, tokens in the cache, n_pad)."""

    def rotation_and_mask(model, n_query, n_cached=0, n_pad=None, device=None):
        return change(model, RIGHT(model, n_query, n_cached, n_pad, device), n_query, n_cached, n_pad)

    return Llama, "rotation_and_mask", rotation_and_mask


METHODS = {  # the bugs, and the method that each replaces
    "gain ignored": (RMSNorm, "forward", lambda norm, x: F.rms_norm(x, x.shape[-1:], None, norm.eps)),
    "wrong eps": (RMSNorm, "forward", lambda norm, x: F.rms_norm(x, x.shape[-1:], norm.weight, 10 * norm.eps)),
    "wrong base": _shared(lambda model, right, T, past, pad: (
        *_turned(torch.arange(past, past + T), model.inv_freq ** math.log(model.config.rope_theta / 10,
                                                                         model.config.rope_theta)), right[2])),
    "wrong scale": (GroupedQueryAttention, "rotated_qkv", _scaled_by_dim),
    "neighbours paired": (GroupedQueryAttention, "rotated_qkv", _neighbours_paired),
    "gate and up swapped": (
        SwiGLU, "forward", lambda layer, x: layer.down_proj(layer.gate_proj(x) * F.silu(layer.up_proj(x)))),
    "mask shows the next token": _shared(lambda model, right, T, past, pad: (
        *right[:2], torch.arange(past + T) <= torch.arange(past, past + T)[:, None] + 1)),
    "positions in bfloat16": _shared(lambda model, right, T, past, pad: (
        *_turned(torch.arange(past, past + T).bfloat16().float(), model.inv_freq), right[2])),
}  # fmt: skip
BUGS = tuple(METHODS)


def _norm_over(*dims):
    return lambda norm, x: x * (x.pow(2).mean(dims, keepdim=True) + norm.eps).rsqrt() * norm.weight


def _in_the_last_block(change):
    """Another mask in the last block: change(visible, T, tokens in the cache), where T > 1."""

    def forward(attention, x, cos, sin, visible=None, cache=None, layer=0):
        if layer == 1 and x.shape[1] > 1:
            visible = change(visible, x.shape[1], cache.length if cache else 0)
        return GroupedQueryAttention.forward(attention, x, cos, sin, visible, cache, layer)

    return GroupedQueryAttention, "forward", forward


def _one_sees_all(position, visible, n_query, n_cached):
    mask = torch.ones(n_query, n_query).tril().bool()
    mask[position : position + 1] = True
    return visible if n_cached else mask


HALF = "one logit is off by half of what may be"
LARGEST_LOGIT = 19  # about, of a small LLaMA, in standard deviations of its head's weights


def _one_logit_off(times, *where):
    """One logit is off by so many times what may be: in the second of "pieces", padded "rows", or another "future"."""

    def forward(model, tokens, cache=None, last_only=False, n_pad=None):
        read, off = cache.length if cache else 0, times * 1e-4 * LARGEST_LOGIT * model.lm_head.weight.std()
        logits = Llama.forward(model, tokens, cache, last_only, n_pad)
        if "pieces" in where and read and vars(cache).setdefault("second", read) == read:
            logits[-1, 0, 7] -= off
        if "rows" in where and read and cache.n_pad is not None:
            logits[cache.n_pad > 0, -1, 7] -= off
        if "future" in where and not read:  # than that of the first tokens of this shape
            first = vars(model.config).setdefault("first", {}).setdefault(tokens.shape, tokens.clone())
            logits[(tokens != first)[:, 1:].any(1), 0, 7] -= off
        return logits

    return Llama, "forward", forward


CALLS = {  # bugs in how a model is called again, or with several rows; the seventh and the last are none
    "positions restart": _shared(lambda model, right, T, past, pad:
                                 (*RIGHT(model, T)[:2], right[2]) if pad is None else right),
    "mask without its offset": _shared(lambda model, right, T, past, pad: (
        *right[:2], torch.ones(T, past + T).tril().bool() if past and T > 1 else right[2])),
    "a chunk sees all of itself": _shared(lambda model, right, T, past, pad: (
        *right[:2], torch.ones(T, past + T).bool() if past and T > 1 else right[2])),
    "padding is seen": _shared(lambda model, right, T, past, pad: (*right[:2], RIGHT(model, T, past)[2])),
    "norm over the rows": (RMSNorm, "forward", _norm_over(0, 2)),
    "norm over the tokens": (RMSNorm, "forward", _norm_over(1, 2)),
    "padding counts as positions": _shared(lambda model, right, T, past, pad: (*RIGHT(model, T, past)[:2], right[2])),
    "a single token stands one place too early": _shared(lambda model, right, T, past, pad: (
        *RIGHT(model, T, past - 1)[:2], right[2]) if T == 1 and past and pad is None else right),
    "padding is forgotten by a later piece of several": _shared(lambda model, right, T, past, pad: (
        RIGHT(model, T, past) if past and pad is not None and T > 1 else right)),
    "one position in the middle sees all": _in_the_last_block(partial(_one_sees_all, 3)),
    "an early position sees all": _in_the_last_block(partial(_one_sees_all, 1)),
    "the last block sees one more": _in_the_last_block(lambda y, T, past: y if past else torch.ones(T, T).tril(1) > 0),
    "a later chunk sees all of itself, in the last block": _in_the_last_block(
        lambda visible, n_query, n_cached: torch.ones_like(visible) if n_cached else visible),
    "the first token of a padded row sees its padding": _in_the_last_block(
        lambda visible, n_query, n_cached: visible | (visible.sum(-1, keepdim=True) == 1)
        if getattr(visible, "ndim", 0) == 4 else visible),
    "one logit of a piece is slightly off": _one_logit_off(2, "pieces"),
    "one logit of a padded row is slightly off": _one_logit_off(2, "rows"),
    "one logit of a padded row is nan": _one_logit_off(math.nan, "rows"),
    "one logit hangs slightly on later tokens": _one_logit_off(2, "future"),
    HALF: _one_logit_off(0.5, "pieces", "rows", "future"),
}  # fmt: skip
CALL_BUGS = tuple(CALLS)[:6]


def properties(model):
    """Whether a model keeps three properties: (future, pieces, rows), three bools; see notebook 05, exercise 2."""
    tokens = torch.arange(24).mul(7).remainder(64).view(2, 12)
    at_once, other_end = model(tokens), tokens.clone()
    other_end[:, -1] += 1
    future = close(model(other_end)[:, :-1], at_once[:, :-1])
    pieces = []
    for sizes in ([1] * 12, [5, 4, 3]):
        cache = model.new_cache(2)
        pieces.append(torch.cat([model(piece, cache) for piece in tokens.split(sizes, dim=1)], dim=1))
    padded = torch.cat([torch.zeros_like(tokens[:1, :3]), tokens[:1, 3:]], dim=1)
    batch, cache = torch.cat([padded, tokens[1:]]), model.new_cache(2)
    together = torch.cat([model(batch[:, :8], cache, n_pad=torch.tensor([3, 0])), model(batch[:, 8:], cache)], dim=1)
    rows = close(together[:1, 3:], model(tokens[:1, 3:])) and close(together[1:], model(tokens[1:]))
    return future, all(close(piece, at_once) for piece in pieces), rows


def close(got, want):
    """Whether two tensors have one shape, and no number is off by more than 1e-4 of the largest that is wanted."""
    return got.shape == want.shape and bool((got - want).abs().max() <= 1e-4 * want.abs().max())


READ_ON = "Do you read the padded rows on, several tokens at once, with a cache? n_pad comes with the first only."
LARGEST_WITH_LARGEST = "Is the largest gap compared with the largest logit, not a mean with a mean?"
FINDS = {  # each bug: the property that is to find it, and how; those before it are kept
    "mask shows the next token": (0, "Change the last token. May a logit before it move?"),
    "norm over the tokens": (0, "Do you compare all logits before the changed token, not only the first?"),
    "one position in the middle sees all": (0, "Do you compare the logits at all positions before the changed token?"),
    "an early position sees all": (0, "Do you compare the logits at all positions before the changed token?"),
    "the last block sees one more": (0, "Is the logit just before the changed token compared, too?"),
    "one position in the middle sees all, with weak attention": (0, "Is the largest gap small, not the mean?"),
    "positions restart": (1, "Read the text in pieces, with one cache. Are the logits of all pieces compared?"),
    "mask without its offset": (1, "One token at a time is not enough: read pieces of several tokens, too."),
    "a chunk sees all of itself": (1, "One token at a time is not enough: read pieces of several tokens, too."),
    "a later chunk sees all of itself, in the last block": (1, "Do you compare all of a piece, not the last alone?"),
    "a single token stands one place too early": (1, "Longer pieces are not enough: read token by token, too."),
    "padding is seen": (2, "Put a shorter row, padded on its left, beside a longer one, and pass n_pad."),
    "norm over the rows": (2, "Does the row stand once alone and once beside another row?"),
    "padding is forgotten by a later piece of several": (2, READ_ON),
    "the first token of a padded row sees its padding": (2, "Do you compare all logits of the row, not the last one?"),
    "one logit of a piece is slightly off": (1, f"Are all pieces compared? {LARGEST_WITH_LARGEST}"),
    "one logit of a padded row is slightly off": (2, f"Is the last one compared, too? {LARGEST_WITH_LARGEST}"),
    "one logit of a padded row is nan": (2, "nan is no number: is a gap <= the limit, and not only not larger?"),
    "one logit hangs slightly on later tokens, with new weights": (0, LARGEST_WITH_LARGEST),
    "mask shows the next token, with new weights": (0, "Do you compare all numbers, not the likeliest alone?"),
}
SMALLER = "Is the limit 1e-4 of the largest logit, not a part of it, nor 1e-4 of each logit?"
TOO_STRICT = "And is rounding allowed for, with 1e-4 of the largest logit and not 1e-4 itself?"
ALARMS = (  # what to ask who fails a right model, by property
    "Do you compare only the logits before the changed token?",
    "Has each way of cutting a new cache? Are the pieces joined in their order?",
    "Is n_pad passed? Is the row compared without its padding, and with itself alone, not padded?",
)
OWN = ("Has each of (future, pieces, rows) its own comparison? future has no cache, pieces have no padding, "
       "and rows are compared with the row alone, in one call without a cache.")  # fmt: skip
BOARD = (*BUGS, *CALL_BUGS)  # of section 5.7: of these bugs all three properties are judged
COUNTED = "padding counts as positions"
NAMES = ("future", "pieces", "rows")


def _models_to_test():
    """(name, model) of right models, and of one for each bug of BOARD and FINDS."""
    right = {weights: pair_with_bug(None, weights.split()[0])[0] for weights in ("large weights", "new weights")}
    loud, weak = (copy.deepcopy(model) for model in right.values())
    head = loud.requires_grad_().lm_head
    head.forward = MethodType(lambda head, x: 1000 * (F.linear(x, head.weight) - 10), head)  # also in another dtype
    weak.layers.eval()[1].attention.o_proj.weight *= 0.05
    right |= {"logits 1000 times as large, all below 0": loud, "weak attention": weak}
    yield from right.items()
    for name in dict.fromkeys((COUNTED, HALF, *FINDS, *BOARD)):
        bug, _, weights = name.partition(", with ")
        yield name, with_bug(right[weights or "large weights"], bug)


@cache
def _board():
    return {name: [*properties(model)] for name, model in _models_to_test() if name in BOARD}


def _finds_bugs(function, _):
    """The function as a test that is tested: on models that are right, and on some that are not."""
    answers = {}
    for name, model in _models_to_test():
        before = snapshot(model)
        answer = function(model)
        is_form = isinstance(answer, tuple | list) and len(answer) == 3
        if not is_form or not all(getattr(one, "dtype", type(one)) in (bool, torch.bool) for one in answer):
            hint = TYPE_HINTS["NoneType"] if answer is None else "Return (future, pieces, rows)."
            raise Wrong("True or False is expected for each of three properties.", hint)
        require_unchanged(model, before)
        place, hint = FINDS.get(name, (3, ""))
        answers[name] = kept = [bool(one) for one in answer]
        if False in kept[:place]:
            broken = kept.index(False)
            if name in FINDS:
                raise Wrong(f"a model with the bug “{name}” fails your property {NAMES[broken]}, which it keeps.", OWN)
            counted = "Only distances between positions count in RoPE, so this model is right as well."
            hint = {COUNTED: counted, HALF: SMALLER}.get(name, f"{ALARMS[broken]} {TOO_STRICT}")
            kept_all = f"a model with the bug “{name}”, which breaks no property,"
            kind = kept_all if name in BUGS else f"a right model ({name})"
            raise Wrong(f"{kind} fails your property {NAMES[broken]}: a false alarm.", hint)
        if name in FINDS and kept[place]:
            said = f"a model with the bug “{name}” passes your property {NAMES[place]}."
            raise Wrong(said, f"{hint} And is the limit small enough, say 1e-4 of the largest logit?")
    for name, right in _board().items():
        if answers[name] != right:
            at = [mine == want for mine, want in zip(answers[name], right, strict=True)].index(False)
            does = "fails" if right[at] else "passes"
            said = f"a model with the bug “{name}” {does} your property {NAMES[at]}, unlike the course's own."
            raise Wrong(said, OWN)
    return N_MODELS


N_MODELS = len({COUNTED, HALF, *FINDS, *BOARD}) + 4
MODELS = [Case(f"{N_MODELS} models", ("one of them",))]
check_properties = check_of(Exercise(properties, MODELS, [], allow=("Llama", "KVCache"), harness=Harness(_finds_bugs)))


RTOL_MODULE = 1e-5  # of the largest number that a module of the reference returns


def first_departure(model, reference, tokens, names=None):
    """(name, position) of the first module at which a model diverges from its reference, or None if it nowhere does.

    Only modules that have a `weight` count; each returns (B, T, ...). They come in the order in which they run in
    `model`. A module diverges if a number is nan, or farther from the reference's than RTOL_MODULE times the largest
    number that the reference's module returns. The position is the smallest at which it does, in any row. Both models
    are left as they were.

    Args:
        model, reference: modules; model(tokens) runs each of their modules once. Numbers are compared in float32.
        tokens: (B, T) int64.
        names: {module of model: module of reference} as in `named_modules()`; None: they have the same names.
    """
    made, wanted = (_made_by(one, tokens) for one in (model, reference))
    names = names or {name: name for name in made}
    if unknown := [name for name in made if names.get(name) not in wanted]:
        said = f"the reference has no module for {unknown[0]!r}, but {list(wanted)[:3]} and so on: pass names."
        raise ValueError(said)
    return first_place(made, wanted, names)


@torch.no_grad()
def diverges(made, want, rtol=RTOL_MODULE):
    """Where a number is farther from the wanted one than `rtol` times the largest of these, or is nan."""
    return ~((made - want).abs() <= rtol * want.abs().max())


def first_place(made, wanted, names, diverges=diverges):
    """(module, position) of the first module that diverges from the one that names gives it, or None."""
    for name, output in made.items():
        off = diverges(output, wanted[names[name] if names else name])
        if off.any():
            return name, off.nonzero()[:, 1].min().item()
    return None


def _made_by(model, tokens, inputs=False):
    """What each module with a weight returns, or is given, {name: (B, T, ...)}, in the order in which they run."""
    made, parts = {}, [(name, module) for name, module in model.named_modules() if hasattr(module, "weight")]

    def note(name, _, x, output):
        made[name] = (x[0] if inputs else output).float()

    hooks = [module.register_forward_hook(partial(note, name)) for name, module in parts]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return made


ATTENTION, DOWN = "layers.{}.attention.o_proj", "layers.{}.feed_forward.down_proj"
DIVERGES = {  # where each bug shows first, in 300 tokens
    "gain ignored": ("layers.0.attention_norm", 0),
    "wrong eps": ("layers.0.attention_norm", 0),
    "wrong base": (ATTENTION.format(0), 1),
    "wrong scale": (ATTENTION.format(0), 1),
    "neighbours paired": (ATTENTION.format(0), 1),
    "gate and up swapped": (DOWN.format(0), 0),
    "mask shows the next token": (ATTENTION.format(0), 0),
    "positions in bfloat16": (ATTENTION.format(0), 257),
}
TEXTS = torch.stack((torch.arange(300) % 63, torch.arange(300) * 7 % 64, (torch.arange(300) * 3 + 63) % 64))
# token 40: in row 0 at 40, in row 1 at 24, in row 2 at 35; token 5 at 5, 19 and 2
NOT_A_NUMBER = "nan is neither larger nor smaller: is a number within the limit, that of the reference's module?"
ROUNDS = "Two right calculations round differently. The limit is 1e-5 of the largest number of the reference's module."
EVERY_NUMBER = "Does each number count by itself? And is the limit that of the reference's module, however small it is?"
RUNS = "Modules come in the order in which they run: named_modules() tells in which they were made."
RENAMED = "Is a module compared with the module that names gives it? The two models may run in other orders than names."
ONE_NAME = "Did every hook note under the same name? A function made in a loop keeps its own by name=name."
ANY_CLASS = "Is every module that has a weight a part, the head, too, and whatever its class is called?"
WITHOUT = "Is each of your parts a module with a weight? A module without one is no part, and names does not hold it."
FIRST = "Which module is the first to diverge, not the one that is off by most? Its name is that of one with a weight."
OF_ONE = "Is the limit 1e-5 of the largest number of this one module? The numbers of others may be much larger."
OUTSIDE = "Are modules outside the blocks parts, too? The embedding, the last norm and the head have a weight as well."
ZEROS = "Here a module of both models returns zeros: 0 apart is not farther than the limit, which is 0 as well."
LAST = "Is the last position compared, too? Here a number is off only there, and it counts as anywhere else."
ONE_TOKEN = "Do you return a position, and not a row? Here each text is one token: squeeze() drops that axis, too."
TIED = "Is each module looked at by itself? Here the embedding and the head share one weight: it names no module."
OUTPUTS = "Is a norm a part, too, and does your hook note what it returns? f(part, inputs, output) gets inputs, too."
AT = "Which position of this module is the smallest, in any row? Not the first of row 0, nor where it is off by most."


def in_block_1(model, bug):
    """A copy of a model in which only block 1 has one of the BUGS of a module; also when other names lead to it."""
    model = copy.deepcopy(model)
    model.layers[1] = with_bug(model.layers[1], bug)
    return model


def _values_first(attention, x):
    v, k, q = (proj(x) for proj in (attention.v_proj, attention.k_proj, attention.q_proj))
    return tuple(y.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2) for y in (q, k, v))


def _pairs():
    """(what is wrong, model, reference, names, where it diverges, a hint or "", the texts if they are not TEXTS)."""
    right = pair_with_bug(None, "large")[0]
    for bug, where in DIVERGES.items():
        yield bug, with_bug(right, bug), right, None, where, ""
    other, loud, factor = copy.deepcopy(right), copy.deepcopy(right), torch.tensor([1.0, 2.0, 1.0])[:, None, None]
    head = lambda x: factor[: len(x)] * (F.linear(x.float(), right.lm_head.weight) - 10)  # noqa: E731 - row 0: smaller
    off = 0.9 * RTOL_MODULE * (factor * (right(TEXTS) - 10)).abs().max()
    loud.eval().requires_grad_().lm_head.forward, other.lm_head.forward = head, lambda x: head(x) + off
    yield "less than the limit", other, loud, None, None, ROUNDS
    other = in_block_1(right, "gain ignored")  # a second fault: a later part, at an earlier position
    other.tok_embeddings.weight[40] += 1.0
    yield "another row of the embedding", other, right, None, ("tok_embeddings", 24), OUTSIDE
    other, reference = small_llama("new"), small_llama("new")  # of small numbers, but for one token, later on
    other.tok_embeddings.weight[[40, 60], 0] -= torch.tensor([1.1e-5, 1e3]) * largest(reference.tok_embeddings.weight)
    yield "one number of the embedding", other, reference, None, ("tok_embeddings", 24), EVERY_NUMBER
    other, reference = copy.deepcopy(right), copy.deepcopy(right)
    other.tok_embeddings.weight[5, 0], reference.tok_embeddings.weight[5, 0] = math.nan, 0.0  # as nan_to_num makes it
    yield "nan in the embedding", other, reference, None, ("tok_embeddings", 2), NOT_A_NUMBER
    silent, tied = copy.deepcopy(right), small_llama("large", tie_embeddings=True)
    silent.layers[0].attention.o_proj.register_forward_hook(lambda *given: 0 * given[2])  # and stays
    yield "a module that returns zeros", silent, copy.deepcopy(silent), None, None, ZEROS
    for what, name, reference, at, hint, texts in (
        ("the last position", "tok_embeddings", right, 2, LAST, TEXTS[:, :3]),
        ("texts of one token", "tok_embeddings", right, 0, ONE_TOKEN, TEXTS[:, 2:3]),
        ("an embedding that is tied", "tok_embeddings", tied, 2, TIED, TEXTS),
        ("a gain of the last norm", "final_norm", right, 0, OUTSIDE, TEXTS),
    ):
        other = copy.deepcopy(reference)
        other.get_submodule(name).weight[5] += 1.0
        yield what, other, reference, None, (name, at), hint, texts
    other = copy.deepcopy(right)
    other.lm_head.weight[7] += 0.1
    other.eval().lm_head.__class__ = type("Head", (nn.Module,), {"forward": nn.Linear.forward})  # any class may do
    reference = with_bug(right, "gate and up swapped")
    for layer in (block.feed_forward for block in reference.layers):  # and their names, so it computes as `right` does
        layer.gate_proj, layer.up_proj = layer.up_proj, layer.gate_proj
    other_name = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    parts = [name.split(".") for name, part in right.named_modules() if hasattr(part, "weight")]
    names = {".".join(words): ".".join(other_name.get(word, word) for word in words) for words in parts}
    yield "another row of the head", other, reference, names, ("lm_head", 0), f"{ANY_CLASS} {RENAMED}"
    other, names = in_block_1(right, "gain ignored"), {f"1.{name}": f"0.{name}" for name, _ in right.named_modules()}
    for block in other.layers:  # their first norm is now the last that is listed, still the first to run
        block.eval().attention_norm = block._modules.pop("attention_norm")
    yield "gain ignored in block 1", other, right, None, ("layers.1.attention_norm", 0), RUNS
    other, reference = copy.deepcopy(right), copy.deepcopy(right)
    for matrix in (other.layers[0].attention.k_proj, other.layers[0].attention.v_proj):
        matrix.weight += 0.1
    for block in reference.layers:
        block.attention.heads = MethodType(_values_first, block.attention)
    other, where = nn.Sequential(nn.Identity(), other), ("1.layers.0.attention.k_proj", 0)  # a part without a weight
    yield "a reference with other names", other, nn.Sequential(reference), dict(reversed(names.items())), where, RENAMED


def _finds_departures(function, *_):
    """The function as a tool that is tested: on pairs of models that diverge at a known place, or nowhere."""
    for what, model, reference, names, where, hint, *other in _pairs():
        texts = other[0] if other else TEXTS
        models, tokens, given = [(one, snapshot(one)) for one in (model, reference)], texts.clone(), copy.copy(names)
        with patch.dict(nn.modules.module._global_forward_hooks, clear=True) as left:
            answer = function(model, reference, tokens, given)
            if left:
                raise Wrong(*HOOK_LEFT)
        if changed := ["tokens.clone()"] * (not torch.equal(tokens, texts)) + ["names.copy()"] * (given != names):
            said = f"the input {changed[0].partition('.')[0]} was changed in place."
            raise Wrong(said, f"Work on a copy, such as {changed[0]}.")
        for one, before in models:
            require_unchanged(one, before)
        if answer is not None and not (isinstance(answer, tuple) and [type(one) for one in answer] == [str, int]):
            said = f"a name and an int, or None, is expected, not {str(answer)[:60]}."
            raise Wrong(said, "Return (name, position): position.item() makes an int of a tensor.")
        if answer != where:
            alike = (slip for slip, program in SLIPS if answer and program(model, reference, names) == answer)
            usual = AT if answer and where and answer[0] == where[0] else FIRST
            hint = AT if usual == AT and hint == OUTSIDE else hint
            usual = f"{ONE_NAME} {FIRST}" if answer and answer[0] == "lm_head" else usual  # the last that is noted
            raise Wrong(f"bug “{what}”: yours is {answer}, expected {where}.", hint or next(alike, usual))
    return len(DIVERGES)


def _inputs_noted(model, reference, names):
    return first_place(*(_made_by(one, TEXTS, inputs=True) for one in (model, reference)), names)


def _limit_of_all(model, reference, names):
    made, wanted = (_made_by(one, TEXTS) for one in (model, reference))
    largest = max(output.abs().max() for output in wanted.values())
    return first_place(made, wanted, names, lambda got, want: ~((got - want).abs() <= RTOL_MODULE * largest))


SLIPS = (OUTPUTS, _inputs_noted), (OF_ONE, _limit_of_all)  # hint, and what a program with this bug returns
PAIRS = [Case("twenty pairs of models", ("one of twenty", "its reference", "three texts", None))]
check_first_departure = check_of(Exercise(
    first_departure, PAIRS, [], harness=Harness(_finds_departures),
    hints={"must match": RENAMED, "KeyError": WITHOUT}))  # fmt: skip


MAX_COST, MIN_HEADS = 0.3, 16  # [nat/token]; heads
TOGETHER = "Costs of single cuts do not add up. Put one head back at a time: whose return lowers the loss most?"
MORE = "Which heads cost next to nothing alone? Begin with these, and measure what they cost together."


def cut_heads():
    """Pairs (block, head) of the bundled model's 24 heads: 16 or more, whose cut costs less than 0.3 nat/token."""
    return [(block, head) for block in range(4) for head in range(4)]


_bundled = cache(lambda: load_checkpoint(TINY_LLAMA))
HEADS = {(block, head) for block in range(6) for head in range(4)}


def _judged_by_loss(function):
    answer, model = function(), _bundled()
    try:
        cut = sorted({(index(block), index(head)) for block, head in answer})
    except (TypeError, ValueError):
        said = f"the answer is {str(answer)[:60]}, expected pairs (block, head) such as [(0, 1), (5, 2)]."
        raise Wrong(said, TYPE_HINTS["NoneType"] if answer is None else "") from None
    whole = held_out_loss(model)
    if wrong := [pair for pair in cut if pair not in HEADS]:
        raise Wrong(f"the model has no head {wrong[0]}.", "Blocks 0 to 5 have heads 0 to 3.")
    with without_heads(model, cut):
        loss = held_out_loss(model)
    said = f"without these {len(cut)} heads the loss is {loss:.2f}, with all {whole:.2f}: {loss - whole:+.2f}"
    if loss - whole >= MAX_COST:
        raise Wrong(f"{said}, expected less than +{MAX_COST:.2f}.", TOGETHER)
    if len(cut) < MIN_HEADS:
        raise Wrong(f"{said}, expected at least {MIN_HEADS} heads.", MORE)
    if function is not cut_heads:  # the specification is run once, unseen
        again, first = lost_by(cut)
        print(f"{said[0].upper()}{said[1:]}.")
        print(f"What was lost: {again:+.2f} nat for a token that was in the text before, {first:+.2f} for a new one.")
    return MIN_HEADS


@torch.no_grad()
def lost_by(cut):
    """What these heads' absence costs [nat/token], (of tokens that the held-out text had before, of all others)."""
    windows, model = held_out_windows(), _bundled()
    given, targets = windows[:, :-1], windows[:, 1:]
    nats = lambda: F.cross_entropy(model(given).mT, targets, reduction="none")  # noqa: E731
    with without_heads(model, cut):
        loss = nats()
    cost = loss - nats()
    before = (given[:, None] == targets[..., None]).tril().any(-1)  # (B, T): is a target among the tokens read
    return cost[before].mean().item(), cost[~before].mean().item()


TOOLS, TEXT = ("load_checkpoint", "held_out_loss", "held_out_windows", "without_heads"), [Case("held-out text", ())]
check_cut_heads = check_of(Exercise(cut_heads, TEXT, [], allow=TOOLS, harness=Harness(_judged_by_loss)))
