"""The exercises of notebook 05, the full model: specification, cases, known mistakes with hints, check."""

import copy

import torch
from torch import nn

from checks.base import BATCH, FLOAT16, MEMORY, Case, Exercise, Wrong, draw, each, gain, not_contiguous
from checks.judge import check_of
from helpers.config import PRESETS
from helpers.model import Llama, LlamaConfig, rope_inv_freq


def _norm(x, weight, eps):
    wide = x.float()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


def transformer_block(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    """LLaMA's block: x (B, T, D) plus attention of its norm, then that plus feed_forward of its norm."""
    middle = x.double() + attention(_norm(x, attention_gain, eps)).double()
    return (middle + feed_forward(_norm(middle.to(x.dtype), ffn_gain, eps)).double()).to(x.dtype)


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
    return lambda x: torch.nn.functional.silu(x.float() @ weight).to(x.dtype)


def _block_inputs(batch, tokens, dim, seed=0, scale=1.0, eps=1e-5):
    parts = _mixer(dim, seed), _layer(dim, seed + 1)
    return draw(batch, tokens, dim, seed=seed, scale=scale), *parts, gain(dim), gain(dim).flip(0) + 0.2, eps


def _block_inputs_not_contiguous():
    x, *rest = _block_inputs(3, 2, 4, 60)
    return not_contiguous(x), *rest


def _slip(wire):
    """A block that is wired in another way: wire(x, attention, feed_forward, norm 1, norm 2)."""

    def program(x, attention, feed_forward, attention_gain, ffn_gain, eps):
        def first(y):
            return _norm(y, attention_gain, eps)

        def second(y):
            return _norm(y, ffn_gain, eps)

        return wire(x, attention, feed_forward, first, second)

    return program


TRANSFORMER_BLOCK = Exercise(
    transformer_block,
    [
        Case("x of shape (1, 4, 6)", _block_inputs(1, 4, 6)),
        Case("x of shape (2, 3, 5)", _block_inputs(2, 3, 5, 10), BATCH),
        Case("one token", _block_inputs(2, 1, 4, 20)),
        Case("x about 30: what runs past the norms is large", _block_inputs(1, 3, 6, 30, scale=30.0)),
        Case("eps 0.5", _block_inputs(1, 3, 6, 40, scale=0.5, eps=0.5), "Do both norms use the eps given?"),
        Case("bfloat16", each(torch.bfloat16, *_block_inputs(1, 3, 8, 50))),
        Case("x about 1e-4 in float16", each(torch.float16, *_block_inputs(1, 3, 8, 80, 1e-4, 1e-9)), FLOAT16),
        Case("x not contiguous", _block_inputs_not_contiguous(), MEMORY),
        Case("gradients", _block_inputs(1, 3, 4, 70), gradients=True),
    ],
    [
        ("Does the second step start from the result of the first? You feed it x again.",
         _slip(lambda x, a, f, n, m: x + a(n(x)) + f(m(x)))),
        ("Is the norm inside the branch? x itself runs past both norms (pre-norm); yours norms the sum (post-norm).",
         _slip(lambda x, a, f, n, m: m(n(x + a(x)) + f(n(x + a(x)))))),
        ("Is the norm before attention and feed-forward, not after them?",
         _slip(lambda x, a, f, n, m: x + n(a(x)) + m(f(x + n(a(x)))))),
        ("Is x itself added, not its norm?", _slip(lambda x, a, f, n, m: (h := n(x) + a(n(x))) + f(m(h)))),
        ("Is x itself added, not its norm?", _slip(lambda x, a, f, n, m: m(h := n(x) + a(n(x))) + f(m(h)))),
        ("Is x itself added, not its norm?", _slip(lambda x, a, f, n, m: m(h := x + a(n(x))) + f(m(h)))),
        ("Is the first residual missing? Add x to what attention returns.",
         _slip(lambda x, a, f, n, m: (h := a(n(x))) + f(m(h)))),
        ("Is the second residual missing? Add what came in to what the feed-forward returns.",
         _slip(lambda x, a, f, n, m: f(m(x + a(n(x)))))),
        ("Are both residuals missing?", _slip(lambda x, a, f, n, m: f(m(a(n(x)))))),
        ("Does the second residual add what came into the feed-forward's step, not x?",
         _slip(lambda x, a, f, n, m: x + f(m(x + a(n(x)))))),
        ("Is there a norm before the feed-forward?", _slip(lambda x, a, f, n, m: (h := x + a(n(x))) + f(h))),
        ("Is there a norm before attention?", _slip(lambda x, a, f, n, m: (h := x + a(x)) + f(m(h)))),
        ("Are the norms there at all?", _slip(lambda x, a, f, n, m: (h := x + a(x)) + f(h))),
        ("Has each step its own gain? Yours uses attention_gain twice.",
         _slip(lambda x, a, f, n, m: (h := x + a(n(x))) + f(n(h)))),
        ("Has each step its own gain? Yours uses ffn_gain twice.",
         _slip(lambda x, a, f, n, m: (h := x + a(m(x))) + f(m(h)))),
        ("Are the two gains swapped?", _slip(lambda x, a, f, n, m: (h := x + a(m(x))) + f(n(h)))),
        ("Does attention come first, the feed-forward second?",
         _slip(lambda x, a, f, n, m: (h := x + f(m(x))) + a(n(h)))),
        ("Does attention come first, the feed-forward second?",
         _slip(lambda x, a, f, n, m: (h := x + f(n(x))) + a(m(h)))),
        ("Is there a norm too many at the end? The stream leaves the block as it is.",
         _slip(lambda x, a, f, n, m: m((h := x + a(n(x))) + f(m(h))))),
        ("Is x added twice?", _slip(lambda x, a, f, n, m: x + (h := x + a(n(x))) + f(m(h)))),
        ("Are the gains applied? Yours norms without them.",
         lambda x, a, f, g, k, eps: transformer_block(x, a, f, torch.ones_like(g), torch.ones_like(k), eps)),
    ],
    hint="Two lines are enough: x = x + attention(norm(x)), then the same with feed_forward. Which part differs?",
)  # fmt: skip
check_transformer_block = check_of(TRANSFORMER_BLOCK)


def parameter_count(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    """Number (int) of parameters of a LLaMA: embedding, blocks, norms, head; a tied matrix counts once."""
    total = 0
    for _ in range(n_layers):
        total += dim * n_heads * head_dim  # q
        total += dim * n_kv_heads * head_dim  # k
        total += dim * n_kv_heads * head_dim  # v
        total += n_heads * head_dim * dim  # o
        total += 3 * dim * hidden_dim  # gate, up, down
        total += 2 * dim  # two norms
    total += dim  # the last norm
    return total + vocab_size * dim * (1 if tie_embeddings else 2)


def _count(q=None, kv=None, o=None, ffn=None, norms=2, last=1, tables=None, extra=None):
    """The count with one slip; each part is a function of (V, D, L, H, K, h, F, tied)."""

    def program(*sizes):
        _, dim, layers, heads, kv_heads, head_dim, hidden, _ = sizes
        wide = heads * head_dim
        block = q(*sizes) if q else dim * wide
        block += kv(*sizes) if kv else 2 * dim * kv_heads * head_dim
        block += o(*sizes) if o else dim * wide
        block += (ffn(*sizes) if ffn else 3 * dim * hidden) + norms * dim
        table = tables(*sizes) if tables else sizes[0] * dim * (2 - sizes[-1])
        return int(layers * block + last * dim + table + (extra(*sizes) if extra else 0))

    return program


def _sizes(config):
    names = ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "tie_embeddings")
    return tuple(getattr(config, name) for name in names)


PARAMETER_COUNT = Exercise(
    parameter_count,
    [
        Case("a tiny one by hand: V 10, D 4, L 1, H 2, K 1, h 2, F 6, tied", (10, 4, 1, 2, 1, 2, 6, True)),
        Case("the same, not tied, three layers", (10, 4, 3, 2, 1, 2, 6, False)),
        Case("head_dim is not dim / n_heads", (11, 6, 2, 4, 2, 4, 7, False)),
        *[Case(name, _sizes(PRESETS[name])) for name in ("llama-2-7b", "llama-3-8b", "llama-3.2-1b", "smollm2-135m")],
    ],
    [
        ("Does a tied matrix count once? Yours counts embedding and head always.",
         _count(tables=lambda V, D, *_: 2 * V * D)),
        ("Do embedding and head both count when they are not tied?", _count(tables=lambda V, D, *_: V * D)),
        ("Is tie_embeddings the other way round? Tied means one matrix.",
         _count(tables=lambda V, D, *rest: V * D * (1 + rest[-1]))),
        ("Are the embedding and the head counted?", _count(tables=lambda *_: 0)),
        ("Do k and v have n_kv_heads heads? Yours have n_heads.",
         _count(kv=lambda V, D, L, H, K, h, F, t: 2 * D * H * h)),
        ("Are there both k and v?", _count(kv=lambda V, D, L, H, K, h, F, t: D * K * h)),
        ("Do the heads have head_dim numbers each? It need not be dim / n_heads.",
         _count(*[lambda V, D, L, H, K, h, F, t: D * D, lambda V, D, L, H, K, h, F, t: 2 * D * K * (D // H),
                  lambda V, D, L, H, K, h, F, t: D * D])),
        ("Are q and o n_heads * head_dim wide? It need not be dim.",
         _count(q=lambda V, D, *_: D * D, o=lambda V, D, *_: D * D)),
        ("Is o_proj counted?", _count(o=lambda *_: 0)),
        ("Has the feed-forward three matrices? Yours has two.", _count(ffn=lambda V, D, L, H, K, h, F, t: 2 * D * F)),
        ("Is hidden_dim the feed-forward's width? Yours uses 4 * dim.", _count(ffn=lambda V, D, *_: 12 * D * D)),
        ("Is the last norm, before the head, counted?", _count(last=0)),
        ("Are there two norms in each block? Yours has one.", _count(norms=1)),
        ("Are there two norms in each block? Yours has none.", _count(norms=0)),
        ("Are the norms counted, two in each block and one at the end?", _count(norms=0, last=0)),
        ("Has a norm only a gain? RMSNorm has no bias.", _count(norms=4, last=2)),
        ("Are there biases? LLaMA has none.",
         _count(extra=lambda V, D, L, H, K, h, F, t: L * (H * h + 2 * K * h + D + 2 * F + D))),
        ("Do you multiply the blocks by n_layers?", lambda V, D, L, *rest: parameter_count(V, D, 1, *rest)),
        ("Does RoPE have parameters? Its angles are computed.", _count(extra=lambda V, D, L, H, K, h, F, t: h // 2)),
        ("Is the total a number of bytes? Parameters are asked.", lambda *sizes: 4 * parameter_count(*sizes)),
        ("Is the total a number of bytes? Parameters are asked.", lambda *sizes: 2 * parameter_count(*sizes)),
    ],
    hint="Print each part of the tiny one: 40 in the table, 48 in attention, 72 in the feed-forward, 12 in the norms.",
)  # fmt: skip
check_parameter_count = check_of(PARAMETER_COUNT)


def tie_weights(embedding, head):
    """Make head (nn.Linear, no bias) use the very matrix of embedding (nn.Embedding); nothing has to be returned."""
    head.weight = embedding.weight


def _one_matrix(function):
    """Builds the two modules from two matrices, lets the function tie them, and examines the result."""

    def probe(embedding, head):
        table, linear = nn.Embedding(*embedding.shape), nn.Linear(*reversed(head.shape), bias=False)
        table.weight, linear.weight = nn.Parameter(embedding.clone()), nn.Parameter(head.clone())
        given = table.weight
        returned = function(table, linear)
        first, second = table.weight, linear.weight
        if first is second:
            if not torch.equal(first, embedding):
                raise Wrong(
                    "both use one matrix, but its numbers are not the embedding's.",
                    "Which of the two stays? The head takes over the embedding's matrix.",
                )
            if isinstance(first, nn.Parameter) and first is not given and first.requires_grad:
                raise Wrong(
                    "both use one matrix, but a new one: an optimizer made before still holds the old one.",
                    "Leave the embedding's Parameter where it is: head.weight = embedding.weight.",
                )
            if not isinstance(first, nn.Parameter) or not first.requires_grad:
                raise Wrong("the one matrix can no longer be trained.", "Assign the Parameter itself, not .data of it.")
            return first.detach()
        if first.data_ptr() == second.data_ptr():
            raise Wrong(
                "two Parameters look at one memory: an optimizer would update it twice.",
                "Assign the Parameter itself: head.weight = ..., without .data and without a new nn.Parameter.",
            )
        if torch.equal(second, embedding):
            raise Wrong(
                "head.weight has the embedding's numbers, but is a copy: after one training step they differ.",
                "One matrix, not a copy: should head.weight and embedding.weight be the same object?",
            )
        if isinstance(returned, nn.Module | torch.Tensor | tuple):
            raise Wrong(
                "the head that was handed over still has its own matrix.",
                "Does your function change the modules it was given, or does it make new ones?",
            )
        raise Wrong("head.weight is still another matrix.", "Which attribute of head holds its matrix?")

    return probe


TIE_WEIGHTS = Exercise(
    tie_weights,
    [
        Case("V 7, D 4", (draw(7, 4), draw(7, 4, seed=1))),
        Case("V equal to D", (draw(5, 5, seed=2), draw(5, 5, seed=3)), "Is there a transpose too many?"),
    ],
    [],
    adapt=_one_matrix,
)  # fmt: skip
check_tie_weights = check_of(TIE_WEIGHTS)

# ------------------------------------------------------------------------------------- find the slip

SLIPS = (
    "gain ignored",
    "wrong eps",
    "wrong base",
    "wrong scale",
    "neighbours paired",
    "gate and up swapped",
    "mask by one",
)
LETTERS = {"A": "mask by one", "B": "gate and up swapped", "C": "wrong base"}
TRY = {
    "A": "Model A: change the last token only. Do logits before it move? They must not.",
    "B": "Model B: give it a single token. Nothing can be hidden or turned there: does it still differ?",
    "C": "Model C: a single token agrees. Compare two tokens, then 60: does the difference grow with the distance?",
}


def find_slips():
    """The slip of each of the three models, {"A": ..., "B": ..., "C": ...}, as named in SLIPS."""
    return dict(LETTERS)


def models_to_examine():
    """A reference with large weights, and the models A, B, C, each the reference with one of the SLIPS.

    Returns:
        reference, {"A": model, "B": model, "C": model}; they share no memory.
    """
    config = LlamaConfig(
        vocab_size=64,
        dim=32,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        hidden_dim=48,
        max_seq_len=64,
        norm_eps=1e-5,
        rope_theta=10_000.0,
        tie_embeddings=False,
    )
    generator, reference = torch.Generator().manual_seed(5), Llama(config).requires_grad_(False)
    for weight in reference.parameters():
        is_gain = weight.ndim == 1
        weight.uniform_(0.5, 1.5, generator=generator) if is_gain else weight.normal_(std=0.3, generator=generator)
    models = {letter: copy.deepcopy(reference) for letter in LETTERS}
    models["A"].rotation_and_mask = _one_ahead(models["A"].rotation_and_mask)
    for block in models["B"].layers:
        layer = block.feed_forward
        layer.gate_proj, layer.up_proj = layer.up_proj, layer.gate_proj
    models["C"].inv_freq = rope_inv_freq(config.head_dim, 5000.0)
    return reference, models


def _one_ahead(rotation_and_mask):
    def slipped(n_query, n_cached=0, n_pad=None, device=None):
        cos, sin, _ = rotation_and_mask(n_query, n_cached, n_pad, device)
        keys = torch.arange(n_cached + n_query, device=device)
        return cos, sin, keys <= torch.arange(n_cached, n_cached + n_query, device=device)[:, None] + 1

    return slipped


def _named(function):
    def probe():
        answer = function()
        if not isinstance(answer, dict) or set(answer) != set(LETTERS):
            hint = 'Return {"A": "...", "B": "...", "C": "..."}.'
            raise Wrong("a dictionary with the keys A, B and C is expected.", hint)
        for letter, slip in answer.items():
            if str(slip) not in SLIPS:
                hint = f"Choose from: {', '.join(SLIPS)}."
                raise Wrong(f"model {letter}: {str(slip)[:40]!r} is not in the list.", hint)
        missed = [letter for letter in LETTERS if answer[letter] != LETTERS[letter]]
        if missed:
            raise Wrong(f"{len(LETTERS) - len(missed)} of {len(LETTERS)} are right.", TRY[missed[0]])
        return len(LETTERS)

    return probe


FIND_SLIPS = Exercise(find_slips, [Case("models A, B, C", ())], [], adapt=_named)
check_find_slips = check_of(FIND_SLIPS)
