"""The exercises of notebook 05, the full model: specification, cases, known mistakes with hints, check."""

import copy
import math
from functools import partial
from types import MethodType
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from checks.base import BATCH, MEMORY, TYPE_HINTS, Case, Exercise, Wrong, draw, each, edited, gain, not_contiguous
from checks.judge import check_of
from helpers.config import PRESETS
from helpers.model import GroupedQueryAttention, Llama, LlamaConfig, RMSNorm, SwiGLU, apply_rope, rope_angles


def _norm(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


def transformer_block(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    """OLMo 2's block: x (B, T, D) plus the norm of its attention, then that plus the norm of its feed_forward."""
    middle = x.double() + _norm(attention(x), attention_gain, eps).double()
    return (middle + _norm(feed_forward(middle.to(x.dtype)), ffn_gain, eps).double()).to(x.dtype)


def _mixer(dim, seed):
    """Stands in for attention: each token becomes a matrix times the mean of the tokens up to itself."""
    weight = draw(dim, dim, seed=seed, scale=0.5)

    def attention(x):
        count = torch.arange(1, x.shape[1] + 1)[:, None]
        return ((x.float().cumsum(1) / count) @ weight).to(x.dtype)

    return attention


def _layer(dim, seed):
    """Stands in for the feed-forward: it works on each token on its own, and is not linear."""
    weight = draw(dim, dim, seed=seed, scale=0.5)
    return lambda x: F.silu(x.float() @ weight).to(x.dtype)


def _block_inputs(batch, tokens, dim, seed=0, scale=1.0, eps=1e-5):
    parts = _mixer(dim, seed), _layer(dim, seed + 1)
    return draw(batch, tokens, dim, seed=seed, scale=scale), *parts, gain(dim), gain(dim).flip(0) + 0.2, eps


def _slip(first, second, norm=_norm):
    """A block wired in another way: h = first, then second; a, f are attention and feed_forward, n, m their norms."""

    def block(x, attention, feed_forward, attention_gain, ffn_gain, eps):
        names = {"x": x, "a": attention, "f": feed_forward}
        names |= {"n": lambda y: norm(y, attention_gain, eps), "m": lambda y: norm(y, ffn_gain, eps)}
        return eval(second, names | {"h": eval(first, names)})

    return block


def _norm_slip(*changes):
    """The right block with a change of its norms' text."""
    return _slip("x + n(a(x))", "h + m(f(h))", edited(_norm, *changes))


TOO_SMALL = "In float16 the square of 1e-4 is 0: does the norm compute in float32?"
GAINS = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
BY_HAND = (torch.tensor([[[1.0, 7.0]]]), lambda x: x.flip(-1), lambda x: x * x, *GAINS, 1e-5)
ON_THE_SUM = "The norm is on the road: yours also norms what x holds. Norm only what the branch adds."
BRANCH_ALONE = "Each norm works on what the branch returns. Yours works on that plus x."
AT_THE_END = "Here attention and feed_forward read x as it is. Their norm comes after them."


def _each_called_once(function):
    """Refuses a block that runs attention or feed_forward twice: a second call costs as much, and writes a cache."""

    def probe(x, attention, feed_forward, *rest):
        ran = []
        noted = lambda name, step: lambda y: (ran.append(name), step(y))[1]  # noqa: E731
        answer = function(x, noted("attention", attention), noted("feed_forward", feed_forward), *rest)
        twice = next((name for name in ran if ran.count(name) > 1), "")
        if twice:
            raise Wrong(f"{twice} is called {ran.count(twice)} times.", ONCE.format(twice))
        return answer

    return probe


ONCE = "Attention runs once, feed_forward once. Yours runs {} twice."
TRANSFORMER_BLOCK = Exercise(
    transformer_block,
    [
        Case("by hand: attention exchanges the two numbers, feed_forward squares", BY_HAND),
        Case("x of shape (1, 4, 6)", _block_inputs(1, 4, 6)),
        Case("x of shape (2, 3, 5)", _block_inputs(2, 3, 5, 10), BATCH),
        Case("one token", _block_inputs(2, 1, 4, 20)),
        Case("x about 30", _block_inputs(1, 3, 6, 30, scale=30.0)),
        Case("eps 0.5", _block_inputs(1, 3, 6, 40, scale=0.5, eps=0.5)),
        Case("bfloat16", each(torch.bfloat16, *_block_inputs(1, 3, 8, 50))),
        Case("x about 1e-4 in float16", each(torch.float16, *_block_inputs(1, 3, 8, 80, 1e-4, 1e-9)), TOO_SMALL),
        Case("x not contiguous", (not_contiguous(draw(3, 2, 4, seed=60)), *_block_inputs(3, 2, 4, 60)[1:]), MEMORY),
        Case("gradients", _block_inputs(1, 3, 4, 70), gradients=True),
    ],
    [
        ("This is LLaMA's block. Here the norm works on what attention returns, not on what it reads.",
         _slip("x + a(n(x))", "h + f(m(h))")),
        (AT_THE_END, _slip("x + n(a(x))", "h + f(m(h))")),
        (AT_THE_END, _slip("x + a(n(x))", "h + m(f(h))")),
        ("Each branch has one norm here, at its end. Yours has one before it as well.",
         _slip("x + n(a(n(x)))", "h + m(f(m(h)))")),
        ("The second branch has a norm before it as well. Only its end has one here.",
         _slip("x + n(a(x))", "h + m(f(m(h)))")),
        ("Does the second step start from the result of the first? You feed it x again.",
         _slip("x + n(a(x))", "h + m(f(x))")),
        (ON_THE_SUM, _slip("n(x + a(x))", "m(h + f(h))")),
        (ON_THE_SUM, _slip("n(x + a(x))", "h + m(f(h))")),
        (ON_THE_SUM, _slip("x + n(a(x))", "m(h + f(h))")),
        ("Is the first residual missing? Add x to the norm of what attention returns.",
         _slip("n(a(x))", "h + m(f(h))")),
        ("Is the second residual missing? Add what came in to the norm of what feed_forward returns.",
         _slip("x + n(a(x))", "m(f(h))")),
        ("Are both residuals missing?", _slip("n(a(x))", "m(f(h))")),
        ("Are both residuals missing?", _slip("n(a(x))", "h + m(f(x))")),
        (BRANCH_ALONE, _slip("x + n(x + a(x))", "h + m(h + f(h))")),
        (BRANCH_ALONE, _slip("x + n(a(x))", "h + m(h + f(h))")),
        (BRANCH_ALONE, _slip("x + n(x + a(x))", "h + m(f(h))")),
        ("The second step adds to what came into it. Does yours add to the x that came into the block?",
         _slip("x + n(a(x))", "x + m(f(h))")),
        ("Is there a norm after feed_forward?", _slip("x + n(a(x))", "h + f(h)")),
        ("Is there a norm after attention?", _slip("x + a(x)", "h + m(f(h))")),
        ("Are the norms there at all?", _slip("x + a(x)", "h + f(h)")),
        ("Has each step its own gain? Yours uses attention_gain twice.", _slip("x + n(a(x))", "h + n(f(h))")),
        ("Has each step its own gain? Yours uses ffn_gain twice.", _slip("x + m(a(x))", "h + m(f(h))")),
        ("Are the two gains swapped?", _slip("x + m(a(x))", "h + n(f(h))")),
        ("Does attention come first, feed_forward second?", _slip("x + m(f(x))", "h + n(a(h))")),
        ("Does attention come first, feed_forward second?", _slip("x + n(f(x))", "h + m(a(h))")),
        ("Is there a norm too many at the end? The stream leaves the block as it is.",
         _slip("x + n(a(x))", "m(h + m(f(h)))")),
        (ONCE.format("feed_forward"), _slip("x + n(f(x))", "h + m(f(h))")),
        ("Does the second step start from x plus what the first adds? In yours it gets the addition alone.",
         _slip("n(a(x))", "x + m(f(h))")),
        ("Is x added twice?", _slip("x + n(a(x))", "x + h + m(f(h))")),
        ("Are the gains applied? Yours norms without them.", _norm_slip(" * weight.float()", "")),
        ("RMSNorm subtracts no mean. Yours is LayerNorm.",
         _norm_slip("wide = x.float()", "wide = x.float() - x.float().mean(-1, keepdim=True)")),
        ("Each token has its own rms, over the last dimension. Yours is over the whole tensor.",
         _norm_slip("mean(-1, keepdim=True)", "mean()")),
        ("Each token has its own rms, over the last dimension. Yours is over each text.",
         _norm_slip("mean(-1", "mean((1, 2)")),
        ("Each token has its own rms, over the last dimension. Yours is over the tokens.",
         _norm_slip("mean(-1", "mean(1")),
        ("Is the mean of the squares in the root? Yours has their sum.", _norm_slip("mean(-1", "sum(-1")),
        ("Is eps inside the root? Yours is added to the root.", _norm_slip(" + eps).sqrt()", ".sqrt() + eps)")),
        ("Is eps the one that is given? Yours is 1e-5 always.", _norm_slip("+ eps", "+ 1e-5")),
        ("Is eps there? Yours works without it.", _norm_slip(" + eps", "")),
    ],
    allow=("RMSNorm",),
    adapt=_each_called_once,
)  # fmt: skip
check_transformer_block = check_of(TRANSFORMER_BLOCK)


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
            flops += 2 * 2 * tokens * tokens * head_dim  # every query with every key, every share with a value
    flops += 2 * vocab_size * dim * batch * tokens  # the head: it multiplies, tied or not
    return count + (0 if tie_embeddings else vocab_size * dim), flops


def _count(q="D * H * h", kv="2 * D * K * h", o="D * H * h", ffn="3 * D * F", norms=2, last=1,
           tables="V * D * (2 - tied)", extra="0", each=1):  # fmt: skip
    """The count with one slip, each part a formula of the sizes. The FLOPs are right."""

    def program(*given):
        total = f"{each} * int(L * ({q} + {kv} + {o} + {ffn} + {norms} * D) + {last} * D + {tables} + {extra})"
        sizes = dict(zip(("V", "D", "L", "H", "K", "h", "F", "tied"), given[:8], strict=True))
        return eval(total, sizes), budget(*given)[1]

    return program


_flops = partial(edited, budget)


def sizes_of(config):
    """The sizes that `budget` takes, of a LlamaConfig."""
    names = ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "tie_embeddings")
    return tuple(getattr(config, name) for name in names)


def _by_arithmetic(function):
    """Refuses to build a model while the function runs: counting what PyTorch made is no count of one's own."""

    def refuse(*_, **__):
        message = "it builds a model and counts what PyTorch made."
        raise Wrong(message, "Multiply the numbers instead: what are the shapes of the matrices in one block?")

    def probe(*given):
        with patch.object(nn.Module, "__init__", refuse):
            answer = function(*given)
        if answer is None:
            return answer
        if not isinstance(answer, tuple) or [type(one) for one in answer] != [int, int]:
            raise Wrong("two whole numbers are expected.", f"Return (count, flops). {WHOLE}")
        count, flops = budget(*given)  # a matrix that is wrong in the count is wrong in the FLOPs, too: one at a time
        return answer if answer[0] == count else (answer[0], flops)

    return probe


WHOLE = "Do you divide? A quotient such as 1 / 49 is rounded, and int(...) cuts off: multiply whole numbers."
BUDGET = Exercise(
    budget,
    [
        Case("by hand: V 10, D 4, L 1, H 2, K 1, h 2, F 6, tied; B 1, T 3", (10, 4, 1, 2, 1, 2, 6, True, 1, 3)),
        Case("the same, not tied, three layers, B 2", (10, 4, 3, 2, 1, 2, 6, False, 2, 3)),
        Case("head_dim is not dim / n_heads", (11, 6, 2, 4, 2, 4, 7, False, 3, 5)),
        *[Case(f"{n_heads} query heads on one", (9, dim, 1, n_heads, 1, head_dim, 4, False, 1, 1), WHOLE)
          for n_heads, dim, head_dim in ((11, 7, 10), (49, 2, 8))],
        *[Case(name, (*sizes_of(PRESETS[name]), 2, 1000)) for name in ("llama-2-7b", "llama-3.2-1b", "smollm2-135m")],
    ],
    [
        ("Does a tied matrix count once? Yours counts embedding and head always.", _count(tables="2 * V * D")),
        ("Do embedding and head both count when they are not tied?", _count(tables="V * D")),
        ("Is tie_embeddings the other way round? Tied means one matrix.", _count(tables="V * D * (1 + tied)")),
        ("Are the embedding and the head counted?", _count(tables="0")),
        ("Do k and v have n_kv_heads heads? Yours have n_heads.", _count(kv="2 * D * H * h")),
        ("Are there both k and v?", _count(kv="D * K * h")),
        *[("Do the heads have head_dim numbers each? It need not be dim / n_heads.",
           _count(q=wide, kv="2 * D * K * (D // H)", o=wide)) for wide in ("D * D", "D * H * (D // H)")],
        ("Are q and o n_heads * head_dim wide? It need not be dim.", _count(q="D * D", o="D * D")),
        ("Is one of q and o dim by dim in yours? Both are n_heads * head_dim wide.", _count(o="D * D")),
        ("Are all four attention matrices dim by dim? Their other side is a number of heads times head_dim.",
         _count("D * D", "2 * D * D", "D * D")),
        ("Are k and v n_kv_heads * head_dim wide? Yours are n_kv_heads wide.", _count(kv="2 * D * K")),
        ("Have q_proj and o_proj both n_heads heads? One of yours has n_kv_heads.", _count(o="D * K * h")),
        ("Have q_proj and o_proj n_heads heads? Yours have n_kv_heads.", _count(q="D * K * h", o="D * K * h")),
        ("Are q_proj and o_proj both counted? One matrix of that size is missing.", _count(o="0")),
        ("Has the feed-forward three matrices? Yours has two.", _count(ffn="2 * D * F")),
        ("Is hidden_dim the feed-forward's width? Yours uses 4 * dim.", _count(ffn="12 * D * D")),
        ("Is the last norm, before the head, counted?", _count(last=0)),
        ("Is the last norm there once? Yours counts it in each block.", _count(norms=3, last=0)),
        ("Are there two norms in each block? Yours has one.", _count(norms=1)),
        ("Are there two norms in each block? Yours has none.", _count(norms=0)),
        ("Are the norms counted, two in each block and one at the end?", _count(norms=0, last=0)),
        ("Has a norm only a gain? RMSNorm has no bias.", _count(norms=4, last=2)),
        *[("Are there biases? LLaMA has none.", _count(extra=f"L * (H * h + 2 * K * h + D + {ffn})"))
          for ffn in ("2 * F + D", "0")],
        ("Has the head a bias? LLaMA's has none.", _count(extra="V")),
        *[(f"Does n_layers multiply every part of a block? In yours {what}", _count(extra=f"(1 - L) * ({part})"))
          for what, part in (("it multiplies attention only.", "3 * D * F + 2 * D"),
                             ("the feed-forward is there once.", "3 * D * F"),
                             ("its two norms are there once.", "2 * D"))],
        ("Are embedding and head outside the blocks? Yours counts them n_layers times.",
         _count(tables="L * V * D * (2 - tied)")),
        ("Do you multiply the blocks by n_layers?",
         _count(extra="(1 - L) * (2 * D * h * (H + K) + 3 * D * F + 2 * D)")),
        ("Does RoPE have parameters? Its angles are computed.", _count(extra="h // 2")),
        (WHOLE, _count(kv="int(2 * D * H * h * (K / H))")),
        (WHOLE, _count(q="0", kv="2 * D * H * h * (1 + K / H)", o="0")),
        *[("Is the total a number of bytes? Parameters are asked.", _count(each=size)) for size in (4, 2)],
        ("FLOPs: for each number of a matrix and each token there are a product and a sum.",
         lambda *given: (budget(*given)[0], budget(*given)[1] // 2)),
        ("FLOPs: for each number of a matrix and each token there are a product and a sum.",
         _flops("2 * rows", "rows", "2 * vocab_size", "vocab_size")),
        ("FLOPs: attention multiplies, too: each query with each key, and each share with a value.",
         _flops("2 * 2 * tokens", "0 * tokens")),
        ("FLOPs: attention has two products, each of every query with every key, hidden or not.",
         _flops("2 * 2 * tokens", "2 * tokens")),
        ("FLOPs: a pair of query and key has a product and a sum for each of head_dim numbers.",
         _flops("2 * 2 * tokens", "tokens")),
        ("FLOPs: do all query heads meet keys? Sharing keys saves no product.",
         _flops("batch * n_heads", "batch * n_kv_heads")),
        ("FLOPs: the head multiplies, tied or not.", _flops("2 * vocab_size", "0 * vocab_size")),
        ("FLOPs: looking up a row of the embedding multiplies nothing.", _flops("2 * vocab_size", "4 * vocab_size")),
        ("FLOPs: a gain is no matrix. Only matrix products count.",
         _flops("2 * vocab_size", "2 * (vocab_size + 2 * n_layers + 1)")),
        ("FLOPs: every row of the batch counts.",
         lambda *given: (budget(*given)[0], budget(*given[:8], 1, given[9])[1])),
        ("FLOPs: no row of the batch meets another's keys.",
         lambda *given: (budget(*given)[0], budget(*given[:8], 1, given[8] * given[9])[1])),
        ("FLOPs: each of the T tokens goes through every matrix.",
         _flops("columns * batch * tokens", "columns * batch", "dim * batch * tokens", "dim * batch")),
        ("FLOPs: three times as many are a training step. Asked is one pass forward.",
         lambda *given: (budget(*given)[0], 3 * budget(*given)[1])),
    ],
    parts=("count", "flops"),
    adapt=_by_arithmetic,
)  # fmt: skip
check_budget = check_of(BUDGET)


# ------------------------------------------------------------------------------------- fourteen slips


def pair_with_slip(slip, weights):
    """A small LLaMA with random weights, and the same model with one slip.

    Args:
        slip: one of SLIPS or CALL_SLIPS, or None: then both are right.
        weights: "new", as a fresh model has them (gains 1), "new, gains" (these, with gains from 0.5 to 1.5),
            "large, gains 1" (0.3, gains 1) or "large" (0.3, gains from 0.5 to 1.5).

    Returns:
        right, slipped, with a vocabulary of 64 tokens.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        right = small_llama(weights, norm_eps=1e-6, rope_theta=500_000.0)
    return right, _with_slip(right, slip)


def small_llama(weights, norm_eps=1e-5, rope_theta=10_000.0):
    """A LLaMA of two blocks with random weights, see pair_with_slip."""
    sizes = {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 48}
    constants = {"max_seq_len": 64, "norm_eps": norm_eps, "rope_theta": rope_theta, "tie_embeddings": False}
    model = Llama(LlamaConfig(**sizes, **constants)).requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim == 2 and "large" in weights:
            weight.normal_(std=0.3)
        elif weight.ndim == 1 and weights in ("large", "new, gains"):
            weight.uniform_(0.5, 1.5)
    return model


def _with_slip(model, slip):
    # A copy of the model in which every module of one class has one method replaced; deepcopy copies it again.
    model = copy.deepcopy(model)
    owner, name, method = (METHODS | CALLS).get(slip, (nn.Identity, "", None))
    for module in model.modules():
        if isinstance(module, owner):
            setattr(module, name, MethodType(method, module))
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


METHODS = {  # the slips, and the method that each replaces
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
SLIPS = tuple(METHODS)


def _norm_over(*dims):
    return lambda norm, x: x * (x.pow(2).mean(dims, keepdim=True) + norm.eps).rsqrt() * norm.weight


def _in_the_last_block(change):
    """Another mask in the last block: change(visible, T, tokens in the cache), where T > 1."""

    def forward(attention, x, cos, sin, visible=None, cache=None, layer=0):
        if layer == 1 and x.shape[1] > 1:
            visible = change(visible, x.shape[1], cache.length if cache else 0)
        return GroupedQueryAttention.forward(attention, x, cos, sin, visible, cache, layer)

    return GroupedQueryAttention, "forward", forward


def _third_sees_all(visible, n_query, n_cached):
    mask = torch.ones(n_query, n_query).tril().bool()
    mask[3:4] = True
    return visible if n_cached else mask


CALLS = {  # slips in how a model is called again, or with several rows; the seventh is none: only distances count
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
    "later tokens have one position in all rows": _shared(lambda model, right, T, past, pad: (
        *RIGHT(model, T, past)[:2], right[2]) if past and pad is not None else right),
    "a single token stands one place too early": _shared(lambda model, right, T, past, pad: (
        *RIGHT(model, T, past - 1)[:2], right[2]) if T == 1 and past and pad is None else right),
    "padding is forgotten after the prompt": _shared(lambda model, right, T, past, pad:
                                                     RIGHT(model, T, past) if past and pad is not None else right),
    "padding is forgotten by a later piece of several": _shared(lambda model, right, T, past, pad: (
        RIGHT(model, T, past) if past and pad is not None and T > 1 else right)),
    "one position in the middle sees all": _in_the_last_block(_third_sees_all),
    "a later chunk sees all of itself, in the last block": _in_the_last_block(
        lambda visible, n_query, n_cached: torch.ones_like(visible) if n_cached else visible),
}  # fmt: skip
CALL_SLIPS = tuple(CALLS)[:6]

# ------------------------------------------------------------------------------ tests without a referee


def properties(model):
    """Whether a model keeps three properties: (future, pieces, rows), three bools; see notebook 05, exercise 3."""
    tokens = torch.arange(24).mul(7).remainder(64).view(2, 12)
    at_once, other_end = model(tokens), tokens.clone()
    other_end[:, -1] += 1
    future = _alike(model(other_end)[:, :-1], at_once[:, :-1])
    pieces = []
    for sizes in ([1] * 12, [5, 4, 3]):
        cache = model.new_cache(2)
        pieces.append(torch.cat([model(piece, cache) for piece in tokens.split(sizes, dim=1)], dim=1))
    padded = torch.cat([torch.zeros_like(tokens[:1, :3]), tokens[:1, 3:]], dim=1)
    batch, cache = torch.cat([padded, tokens[1:]]), model.new_cache(2)
    prompt = model(batch[:, :8], cache, n_pad=torch.tensor([3, 0]))
    together = torch.cat([prompt, model(batch[:, 8:], cache)], dim=1)
    rows = _alike(together[:1, 3:], model(tokens[:1, 3:])) and _alike(together[1:], model(tokens[1:]))
    return future, all(_alike(piece, at_once) for piece in pieces), rows


def _alike(one, other):
    return bool((one - other).abs().max() <= 1e-4 * other.abs().max())


SMALL = "Its logits are nearly right. Do you compare all numbers, not only the likeliest token?"
LARGEST = "Few of its logits move, and little. Is it the largest gap that is small, not the mean?"
ONE_BY_ONE = "Pieces of several tokens are not enough: read token by token, too."
READ_ON = "Do you read the padded rows on, with a cache? n_pad comes with the first tokens only."
FINDS = {  # each slip: the property that is to find it, and how; those before it are kept
    "mask shows the next token": (0, "Change the last token. May a logit before it move?"),
    "norm over the tokens": (0, "Do you compare all logits before the changed token, not only the first?"),
    "one position in the middle sees all": (0, "Do you compare the logits at all positions before the changed token?"),
    "one position in the middle sees all, with weak attention": (0, LARGEST),
    "positions restart": (1, "Read the text in pieces, with one cache. Are the logits of all pieces compared?"),
    "mask without its offset": (1, "One token at a time is not enough: read pieces of several tokens, too."),
    "a chunk sees all of itself": (1, "One token at a time is not enough: read pieces of several tokens, too."),
    "a later chunk sees all of itself, in the last block": (
        1,
        "Do you compare all logits of each piece, not the last alone?",
    ),
    "a single token stands one place too early": (1, ONE_BY_ONE),
    "padding is seen": (2, "Put a shorter row, padded on its left, beside a longer one, and pass n_pad."),
    "norm over the rows": (2, "Does the row stand once alone and once beside another row?"),
    "later tokens have one position in all rows": (2, READ_ON),
    "padding is forgotten after the prompt": (2, READ_ON),
    "padding is forgotten by a later piece of several": (2, f"{READ_ON} In a piece of several tokens, too?"),
    "mask shows the next token, with new weights": (0, SMALL),
    "positions restart, with new weights": (1, SMALL),
}
TOO_LOOSE = "And is the room for rounding small enough, say 1e-4 of the largest logit?"
TOO_STRICT = "And is there room for rounding, 1e-4 of the largest logit, not 1e-4 itself?"
ALARMS = (  # what to ask who fails a right model, by property
    "Do you compare only the logits before the changed token?",
    "Has each way of cutting a new cache? Are the pieces joined in their order?",
    "Is n_pad passed? Is the row compared without its padding, and with itself alone, not padded?",
)
OWN = "Has each of (future, pieces, rows) its own comparison? future has no cache, and pieces have no padding."
RIGHTS = 5
COUNTED = "padding counts as positions"
NAMES = ("future", "pieces", "rows")


def _models_to_test():
    """(name, model) of RIGHTS right models, and of one for each slip in FINDS."""
    right = {weights: pair_with_slip(None, weights.split()[0])[0] for weights in ("large weights", "new weights")}
    loud, weak = (copy.deepcopy(model) for model in right.values())
    loud.lm_head.weight *= 1000
    weak.layers[1].attention.o_proj.weight *= 0.05
    right |= {"logits 1000 times as large": loud, "weak attention": weak}
    yield from right.items()
    for name in (COUNTED, *FINDS):
        slip, _, weights = name.partition(", with ")
        yield name, _with_slip(right[weights or "large weights"], slip)


def _finds_slips(function):
    """The function as a test that is tested: on models that are right, and on some that are not."""

    def probe(_):
        for name, model in _models_to_test():
            answer = function(model)
            if not isinstance(answer, tuple | list) or len(answer) != 3:
                hint = TYPE_HINTS["NoneType"] if answer is None else "Return (future, pieces, rows)."
                raise Wrong("three values are expected.", hint)
            if not all(isinstance(one, bool) or getattr(one, "dtype", None) == torch.bool for one in answer):
                raise Wrong("True or False is expected for each property.", "Compare: is the largest gap small?")
            if name not in FINDS and not all(answer):
                place = [bool(one) for one in answer].index(False)
                hint = "Only distances between positions count in RoPE, so this model is right as well."
                hint = hint if name == COUNTED else f"{ALARMS[place]} {TOO_STRICT}"
                raise Wrong(f"a right model ({name}) fails your property {NAMES[place]}: a false alarm.", hint)
            place, hint = FINDS.get(name, (0, ""))
            for kept in range(place):
                if not answer[kept]:
                    said = f"a model with the slip “{name}” fails your property {NAMES[kept]}, which it keeps."
                    raise Wrong(said, OWN)
            if name in FINDS and answer[place]:
                said = f"a model with the slip “{name}” passes your property {NAMES[place]}."
                raise Wrong(said, f"{hint} {TOO_LOOSE}")
        return len(FINDS)

    return probe


PROPERTIES = Exercise(
    properties,
    [Case(f"{len(FINDS) + RIGHTS} models", ("one of them",))],
    [],
    allow=("Llama", "KVCache"),  # the model that is tested, and its cache
    adapt=_finds_slips,
)
check_properties = check_of(PROPERTIES)

# --------------------------------------------------------------------------------- the first departure

LIMIT = 1e-5  # of the largest number that a part of the reference returns


def first_departure(model, reference, tokens, names=None):
    """(name, position) of the first part at which a model departs from its reference, or None if it nowhere does.

    A part is a module that has a `weight`; it returns (B, T, ...). The parts come in the order in which they run in
    `model`. A part departs if a number is farther from the reference's than LIMIT times the largest number that the
    reference's part returns, or is nan. The position is the smallest at which it does, in any row. Both models are left
    as they were.

    Args:
        model, reference: modules; model(tokens) runs every part once. Numbers are compared in float32.
        tokens: (B, T) int64.
        names: {part of model: part of reference} as in `named_modules()`; None: they have the same names.
    """
    made, wanted = (_made_by(one, tokens) for one in (model, reference))
    for name, output in made.items():
        if (names or {name: name}).get(name) not in wanted:
            raise ValueError(f"the reference has no part for {name!r}, but {list(wanted)[:3]} and so on: pass names.")
        want = wanted[names[name] if names else name]
        agrees = (output - want).abs() <= LIMIT * want.abs().max()  # nan is not <= anything
        if not agrees.all():
            return name, (~agrees).nonzero()[:, 1].min().item()
    return None


@torch.no_grad()
def _made_by(model, tokens):
    """What each part of a model returns, {name: (B, T, ...)}, in the order in which they run."""
    made, hooks = {}, []
    for name, part in model.named_modules():
        if hasattr(part, "weight"):
            keep = lambda _, given, output, name=name: made.update({name: output.float()})  # noqa: E731
            hooks.append(part.register_forward_hook(keep))
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return made


ATTENTION, DOWN = "layers.{}.attention.o_proj", "layers.{}.feed_forward.down_proj"
DEPARTS = {  # where each slip shows first, in 300 tokens
    "gain ignored": ("layers.0.attention_norm", 0),
    "wrong eps": ("layers.0.attention_norm", 0),
    "wrong base": (ATTENTION.format(0), 1),
    "wrong scale": (ATTENTION.format(0), 1),
    "neighbours paired": (ATTENTION.format(0), 1),
    "gate and up swapped": (DOWN.format(0), 0),
    "mask shows the next token": (ATTENTION.format(0), 0),
    "positions in bfloat16": (ATTENTION.format(0), 257),
}
TEXTS = torch.stack((torch.arange(300) % 63, torch.arange(300) * 7 % 64))  # token 40: in row 0 at 40, in row 1 at 24
NAN = "nan is neither larger nor smaller than anything: is a number within the room, that of the reference's part?"
ROUNDS = "Two right calculations round differently. The room is 1e-5 of the largest number of the reference's part."
RUNS = "Parts come in the order in which they run: named_modules() tells in which they were made."
RENAMED = "Is each part compared with the part that names gives it?"
ONE_NAME = "Did every hook note under the same name? A function made in a loop keeps its own by name=name."
FIRST = "Which part is the first to depart, not the one that departs most? Its name is that of a part with a weight."
AT = "Which position is the smallest, in any row? Not the first of row 0, nor the one at which it departs most."


def in_block_1(model, slip):
    """A copy of a model in which only block 1 has one of the SLIPS of a part; also when other names lead to it."""
    model = copy.deepcopy(model)
    model.layers[1] = _with_slip(model.layers[1], slip)
    return model


def _departures():
    """(what is wrong, model, reference, names, where it departs, a hint or "")."""
    right = pair_with_slip(None, "large")[0]
    for slip, where in DEPARTS.items():
        yield slip, _with_slip(right, slip), right, None, where, ""
    other, off = copy.deepcopy(right), 0.3 * LIMIT * _made_by(right, TEXTS)[DOWN.format(1)].abs().max()
    layer = other.layers[1].feed_forward  # at some positions its numbers are small; what is too large is taken away
    layer.down_proj.forward = lambda x, right=layer.down_proj.forward: right(x) + off
    layer.forward = lambda x, right=layer.forward: right(x) - off
    yield "less than the room", other, right, None, None, ROUNDS
    other = copy.deepcopy(right)
    other.layers[1].attention_norm.eps *= 5
    yield "five times the right eps, in one norm", other, right, None, None, ROUNDS
    other = in_block_1(right, "gate and up swapped")
    yield "gate and up swapped in block 1", other, right, None, (DOWN.format(1), 0), ""
    other = in_block_1(right, "gain ignored")  # a second fault: a later part, at an earlier position
    other.tok_embeddings.weight[40] += 1.0
    yield "another row of the embedding", other, right, None, ("tok_embeddings", 24), ""
    other = copy.deepcopy(right)
    other.tok_embeddings.weight[40, 0] = math.nan
    yield "nan in the embedding", other, right, None, ("tok_embeddings", 24), NAN
    other, names = in_block_1(right, "gain ignored"), {name: f"0.{name}" for name, _ in right.named_modules()}
    for block in other.layers:  # their first norm is now the last that is listed, still the first to run
        block.attention_norm = block._modules.pop("attention_norm")
    yield "gain ignored in block 1", other, right, None, ("layers.1.attention_norm", 0), RUNS
    other = _with_slip(right, "wrong scale")
    yield "a reference with other names", other, nn.Sequential(right), names, (ATTENTION.format(0), 1), RENAMED


def _finds_departures(function):
    """The function as a tool that is tested: on pairs of models that depart at a known place, or nowhere."""

    def probe(*_):
        for what, model, reference, names, where, hint in _departures():
            answer = function(model, reference, TEXTS.clone(), names)
            if any(part._forward_hooks for one in (model, reference) for part in one.modules()):
                raise Wrong("a hook is still on a model.", "Remove what register_forward_hook returned, after the run.")
            if answer is not None and not (isinstance(answer, tuple) and [type(one) for one in answer] == [str, int]):
                said = f"a name and an int, or None, is expected, not {str(answer)[:60]}."
                raise Wrong(said, "Return (name, position): position.item() makes an int of a tensor.")
            if answer != where:
                if not hint and answer and answer[0] == where[0]:
                    hint = AT
                seen = f"departs at {answer[0]}, position {answer[1]}" if answer else "departs nowhere"
                if not hint and answer and answer[0] == "lm_head":  # the last that is noted
                    hint = f"{ONE_NAME} {FIRST}"
                where = f"at {where[0]}, position {where[1]}" if where else "nowhere"
                raise Wrong(f"slip “{what}”: yours says that it {seen}; it departs {where}.", hint or FIRST)
        return len(DEPARTS)

    return probe


FIRST_DEPARTURE = Exercise(
    first_departure,
    [Case("fifteen pairs of models", ("one of fifteen", "its reference", "two texts", None))],
    [],
    adapt=_finds_departures,
)
check_first_departure = check_of(FIRST_DEPARTURE)
