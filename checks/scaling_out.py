"""The exercises of notebook 09, scaling out: specification, cases, known mistakes with hints, check."""

import math
import re
from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from checks.base import BATCH, MEMORY, Case, Exercise, Wrong, draw, not_contiguous
from checks.judge import check_of
from checks.run import raised
from helpers.model import Llama, LlamaConfig


def split_feed_forward(x, w_gate, w_up, w_down, n_ranks):
    """What each rank computes of SwiGLU before the sum: (n_ranks, ..., D); rank r has the r-th share of the units."""
    share = len(w_gate) // n_ranks
    parts = []
    for rank in range(n_ranks):
        total = torch.zeros_like(x)
        for unit in range(rank * share, (rank + 1) * share):
            opened = F.silu((x * w_gate[unit]).sum(-1)) * (x * w_up[unit]).sum(-1)
            total = total + opened[..., None] * w_down[:, unit]
        parts.append(total)
    return torch.stack(parts)


def _swiglu(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def _dealt(gate, up, down, n):
    """Right shares of the units: (gate, up, down) for each rank."""
    return zip(gate.chunk(n), up.chunk(n), down.chunk(n, 1), strict=True)


def _slip(part=_swiglu, shares=_dealt, join=torch.stack):
    """The parts with one slip: in a rank's part, in how the units are dealt out, or in how the parts are joined."""
    return lambda x, g, u, d, n: join([part(x, *share) for share in shares(g, u, d, n)])


def _in_turn(gate, up, down, n):
    return ((gate[rank::n], up[rank::n], down[:, rank::n]) for rank in range(n))


def _cut_as_one(gate, up, down, n):
    """Gate and up in one matrix, gate's rows above up's: its first share has rows of gate alone."""
    pieces = torch.cat([gate, up]).chunk(n)
    return ((*piece.chunk(2), own) for piece, own in zip(pieces, down.chunk(n, 1), strict=True))


TURNED = (
    "gate and up have a row, down has a column for each unit: .chunk(n) cuts rows (dim=0), .chunk(n, dim=1) columns. "
    "If yours are cut so: weights are (out, in), so is it x @ w.T each time?"
)


def _naming(words, what, hint):
    """The `adapt` that says what an error of PyTorch with these words means."""

    def adapt(function):
        def probe(*inputs):
            try:
                return function(*inputs)
            except RuntimeError as error:
                if re.search(words, str(error)):
                    raise Wrong(f"{what}: {error}", hint) from None
                raise

        return probe

    return adapt


def _by_inputs(x, gate, up, down, n):
    """Gate and up cut by columns: silu comes before the sum."""
    cut = [tensor.unflatten(-1, (n, -1)).unbind(-2) for tensor in (x, gate, up)]
    return torch.stack([_swiglu(part, g, u, down) for part, g, u in zip(*cut, strict=True)])


WHOLE_NUMBERS = (  # section 9.1's: x, w_gate, w_up, w_down
    torch.tensor([1.0, 2.0]),
    torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]]),
    torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]),
    torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 1.0, 1.0]]),
)


def _ffn(n=6, seed=0):
    shapes = (n, 4), (n, 4), (4, n)
    return tuple(draw(*shape, seed=seed + place, scale=0.7) for place, shape in enumerate(shapes, start=1))


SPLIT_FEED_FORWARD = Exercise(
    split_feed_forward,
    [
        Case("section 9.1's vector and weights, 2 ranks", (*WHOLE_NUMBERS, 2)),
        Case("one token, 6 units, 2 ranks", (draw(1, 4), *_ffn(), 2)),
        Case("a single vector, not a batch", (draw(4, seed=50), *_ffn(seed=51), 3)),
        Case("six tokens, 3 ranks", (draw(6, 4, seed=9), *_ffn(seed=10), 3)),
        Case("batch 2, as many units as dim", (draw(2, 3, 4, seed=20), *_ffn(4, seed=21), 2), BATCH),
        Case("one rank: nothing is cut", (draw(3, 4, seed=30), *_ffn(seed=31), 1)),
        Case("x not contiguous", (not_contiguous(draw(2, 3, 4, seed=60)), *_ffn(seed=61), 2), MEMORY),
        Case("a rank for each unit", (draw(3, 4, seed=40), *_ffn(4, seed=41), 4)),
        Case("gradients", (draw(3, 4, seed=70), *_ffn(seed=71), 2), gradients=True),
    ],
    [
        ("Does each rank return its own part? You return the finished sum.",
         lambda x, g, u, d, n: torch.stack([_swiglu(x, g, u, d)] * n)),
        ("Is there a new first axis for the ranks? torch.stack makes one; torch.cat uses an axis that is there.",
         _slip(join=torch.cat)),
        ("Are gate and up cut apart? Yours are cut as one matrix, so that the first share has rows of gate alone.",
         _slip(shares=_cut_as_one)),
        ("Are gate and up cut by their rows, the outputs? Yours are cut by columns, the inputs.", _by_inputs),
        ("The parts are summed, not averaged: do you divide by n_ranks?",
         _slip(join=lambda parts: torch.stack(parts) / len(parts))),
        ("chunk(n) gives n pieces, split(n) gives pieces of n: which of them do you use?",
         _slip(shares=lambda g, u, d, n: zip(g.split(n), u.split(n), d.split(n, 1), strict=True))),
        ("Has rank r the r-th share in a row? You deal the units out in turn.", _slip(shares=_in_turn)),
        (TURNED, _slip(lambda x, g, u, d: (F.silu(x @ g) * (x @ u)) @ d)),
        ("Is silu on the gate (w_gate), not on up?", _slip(lambda x, g, u, d: _swiglu(x, u, g, d))),
        ("Does each rank use its own units? Yours all use the first share.",
         _slip(shares=lambda *weights: [next(_dealt(*weights))] * weights[-1])),
        ("Which columns of down belong to this rank's units? Yours takes the first ones for every rank.",
         _slip(shares=lambda g, u, d, n: ((*own, d.chunk(n, 1)[0]) for *own, _ in _dealt(g, u, d, n)))),
        ("Is it this rank's part alone? Yours adds up the parts so far.",
         _slip(join=lambda parts: torch.stack(parts).cumsum(0))),
    ],
    adapt=_naming("multipl|size mismatch", "a product does not fit", TURNED),
)  # fmt: skip
check_split_feed_forward = check_of(SPLIT_FEED_FORWARD)

# ------------------------------------------------------------------------------------- attention, put together


def merge_attention(outputs, logsumexps):
    """One attention, (T, h), from what each rank found with its own keys, (R, T, h) and (R, T)."""
    n_ranks, n_queries, head_dim = outputs.shape
    merged = torch.zeros(n_queries, head_dim, dtype=torch.float64)
    for query in range(n_queries):
        own = logsumexps[:, query].double()
        weights = (own - own.max()).exp()
        for rank in range(n_ranks):
            if weights[rank] != 0:  # else the rank has no visible key, and its output says nothing
                merged[query] += weights[rank] / weights.sum() * outputs[rank, query].double()
    return merged.to(outputs.dtype)


def _dealt_out(n_queries, n_keys, n_ranks, head_dim=4, seed=0, shift=0.0):
    """A real attention over keys that are dealt out: each rank's output and logsumexp."""
    q, k, v = (draw(n, head_dim, seed=seed + i) for i, n in enumerate((n_queries, n_keys, n_keys)))
    outputs, logsumexps = [], []
    for keys, values in zip(k.chunk(n_ranks), v.chunk(n_ranks), strict=True):
        scores = q @ keys.T / head_dim**0.5
        outputs.append(scores.softmax(-1) @ values)
        logsumexps.append(scores.logsumexp(-1) + shift)
    return torch.stack(outputs), torch.stack(logsumexps)


def _blind(case, seen_by, output):
    """The same, but rank r sees no key of the queries for which seen_by has False: -inf, and this output."""
    outputs, logsumexps = case
    seen = torch.tensor(seen_by)
    return outputs.masked_fill(~seen[..., None], output), logsumexps.masked_fill(~seen, -torch.inf)


BY_HAND = torch.tensor([[[1.0, 0.0]], [[5.0, 4.0]]]), torch.tensor([[0.0], [3.0]]).log1p()  # denominators 1 and 4
HIDDEN = "A rank without a visible key has -inf and the weight 0. But 0 times nan or inf is nan: leave its output out."
VISIBLE = "A fault of a rank that sees keys must show: leave out only what has the weight 0."
LARGE = "exp of 300 is inf in float32, and exp of -300 is 0. But a query's weights depend on differences alone."
ROUNDED = "Do the logsumexps stay in float32? Near 300 bfloat16 knows only every second whole number."
ONE_BEHIND = [[True, False, True], [True, True, False]]


def _weighted(outputs, weights):
    """The ranks' outputs with these weights (R, T); a weight of 0 leaves an output out."""
    weighted = weights.to(outputs.dtype)[..., None] * outputs
    return torch.where(weights[..., None] == 0, 0.0, weighted).sum(0).to(outputs.dtype)


def _one_by_one(join):
    """Rank after rank: what is merged so far, with its logsumexp, and the next one."""

    def program(outputs, logsumexps):
        merged, so_far = outputs[0], logsumexps[0]
        for output, own in zip(outputs[1:], logsumexps[1:], strict=True):
            both = torch.logaddexp(so_far, own)
            merged = _weighted(torch.stack([merged, output]), torch.stack([so_far - both, own - both]).exp())
            so_far = join(so_far, own)
        return merged

    return program


AXIS_FOR_H = "The weights are (R, T), the outputs (R, T, h): weights[..., None] gets an axis for h."
LN2 = math.log(2)
MERGE_ATTENTION = Exercise(
    merge_attention,
    [
        Case("by hand, one query, 2 ranks with denominators 1 and 4", BY_HAND),
        Case("3 queries, 16 keys dealt out to 2 ranks", _dealt_out(3, 16, 2)),
        Case("2 queries, 12 keys dealt out to 4 ranks", _dealt_out(2, 12, 4, seed=10)),
        Case("as many ranks as queries and numbers in a head", _dealt_out(3, 9, 3, head_dim=3, seed=20)),
        Case("one rank: nothing to merge", _dealt_out(3, 5, 1, seed=30)),
        Case("logsumexps near 300", _dealt_out(3, 16, 2, seed=40, shift=300.0), LARGE),
        Case("logsumexps near 300 for one query, near -300 for the other",
             _dealt_out(2, 8, 2, seed=50, shift=torch.tensor([300.0, -300.0])), LARGE),
        Case("a rank sees no key (-inf), its output is 0", _blind(_dealt_out(3, 8, 2, seed=60), ONE_BEHIND, 0.0)),
        Case("a rank sees no key (-inf), its output is nan",
             _blind(_dealt_out(3, 8, 2, seed=70), ONE_BEHIND, torch.nan), HIDDEN),
        Case("a rank sees no key (-inf), its output is inf",
             _blind(_dealt_out(3, 8, 2, seed=110), ONE_BEHIND, torch.inf), HIDDEN),
        Case("only the last of 3 ranks sees a key of query 0",
             _blind(_dealt_out(2, 9, 3, seed=80), [[False, True], [False, False], [True, True]], torch.nan), HIDDEN),
        Case("a rank that sees keys has nan", (torch.tensor([[[1.0]], [[torch.nan]]]), torch.zeros(2, 1)), VISIBLE),
        Case("not contiguous", tuple(map(not_contiguous, _dealt_out(3, 16, 2, seed=90))), MEMORY),
        Case("outputs in bfloat16, logsumexps in float32, near 300",
             tuple(map(torch.Tensor.to, _dealt_out(3, 16, 2, seed=100, shift=300.0), (torch.bfloat16, torch.float32))),
             ROUNDED),
    ],
    [
        ("Do all ranks weigh the same? Yours is the mean; a rank with the larger denominator counts for more.",
         lambda o, s: o.nan_to_num().mean(0)),
        ("Do the weights of a query add up to 1? Yours are not divided by their sum.",
         lambda o, s: _weighted(o, s.exp())),
        (LARGE, lambda o, s: _weighted(o, s.exp() / s.exp().sum(0))),
        ("Subtract the largest logsumexp of each query (dim=0), not the largest of all.",
         lambda o, s: _weighted(o, (s - s.max()).exp() / (s - s.max()).exp().sum(0))),
        ("Do the weights of the ranks add up to 1 for each query? Yours add up to 1 over the queries.",
         lambda o, s: _weighted(o, s.softmax(1))),
        *[("Is the base e all the way? The logarithms are natural: no exp2, no log2.", slip) for slip in (
            lambda o, s: _weighted(o, (s * LN2).softmax(0)),
            lambda o, s: _weighted(o, (s - s.logsumexp(0) / LN2).exp()),
            lambda o, s: _weighted(o, (s - s.logsumexp(0)).exp2()))],
        ("softmax takes exp itself: hand it the logsumexps, not their exp.",
         lambda o, s: _weighted(o, s.exp().softmax(0))),
        (AXIS_FOR_H, lambda o, s: (s.softmax(0) * o).sum(0)),
        ("Rank after rank, is the logsumexp so far torch.logaddexp of both? Yours is the larger one.",
         _one_by_one(torch.maximum)),
        ("Rank after rank, is the logsumexp so far torch.logaddexp of both? Yours stays that of the first rank.",
         _one_by_one(lambda so_far, own: so_far)),
    ],
    dtype_hint="The result has the dtype of outputs: .to(outputs.dtype) at the end.",
    adapt=_naming("must match", "the sizes do not fit", AXIS_FOR_H),
)  # fmt: skip
check_merge_attention = check_of(MERGE_ATTENTION)

# ------------------------------------------------------------------------------------------ a split that learns


def mend_split(model, all_reduce):
    """Add hooks to a rank's part, so that each gradient is the whole model's; all_reduce sums over ranks, in place."""

    for norm in _norms(model):
        norm.register_full_backward_pre_hook(lambda module, gradients: (_total(gradients[0], all_reduce),))


def _norms(model):
    return [norm for block in model.layers for norm in (block.attention_norm, block.ffn_norm)]


def _total(gradient, all_reduce):
    total = gradient.clone()
    all_reduce(total)
    return total


class _Waits(BaseException):
    """A rank has come to a sum whose other parts are not known yet."""


def _on_ranks(whole, n, mend, run):
    """What run(part) gives on each rank, without processes: all begin again at each sum, and know one more."""
    sums = []
    while True:
        asked, found = [], []
        for rank in range(n):
            known = iter(sums)

            def all_reduce(tensor, known=known):
                total = next(known, None)
                if total is None:
                    raise _Waits(tensor.detach().clone())
                tensor.data.copy_(total)

            try:
                part = _part(whole, rank, n, all_reduce)
                mend(part, all_reduce)
                found.append(run(part))
            except _Waits as waits:
                asked.append(waits.args[0])
        if not asked:
            return found
        if found or len({tensor.shape for tensor in asked}) > 1:
            hint = "Do all ranks call all_reduce equally often, with the same shapes?"
            raise Wrong("a rank waits for a sum that another one skips, or adds up another shape.", hint)
        sums.append(torch.stack(asked).sum(0))


def _part(whole, rank, n, all_reduce):
    """What section 9.3's split leaves to a rank."""
    model = deepcopy(whole)
    for block in model.layers:
        a, f = block.attention, block.feed_forward
        for reads in (a.q_proj, a.k_proj, a.v_proj, f.gate_proj, f.up_proj):
            reads.weight = nn.Parameter(reads.weight.chunk(n)[rank].clone())
        for writes in (a.o_proj, f.down_proj):
            writes.weight = nn.Parameter(writes.weight.chunk(n, dim=1)[rank].clone())
            writes.register_forward_hook(lambda module, inputs, output: all_reduce(output))
    heads = {"n_heads": model.config.n_heads // n, "n_kv_heads": model.config.n_kv_heads // n}
    model.config = replace(model.config, head_dim=model.config.head_dim, **heads)
    return model


@cache
def _whole_model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "hidden_dim": 24}
        model = Llama(LlamaConfig(**sizes, max_seq_len=32, norm_eps=1e-5, rope_theta=1e4, tie_embeddings=False))
        for weight in model.parameters():  # large ones, and gains: a fault would hide in new weights
            nn.init.uniform_(weight, 0.5, 1.5) if weight.ndim == 1 else nn.init.normal_(weight, std=0.3)
    return model


TOKENS = torch.arange(5, 5 + 2 * 12 * 7, 7).view(2, 12) % 64
_logits = torch.no_grad()(lambda model: model(TOKENS))


def _gradients_of(model):
    """{name: gradient} of the loss on two rows of tokens."""
    F.cross_entropy(model(TOKENS[:, :-1]).mT, TOKENS[:, 1:]).backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


@cache
def _effect(mend, n):
    """The ranks' gradients, and what they should be: {name: (n, ...) each}."""
    whole = _whole_model()
    got, want = _on_ranks(whole, n, mend, _gradients_of), _gradients_of(deepcopy(whole))
    pairs = {}
    for weight, right in want.items():
        mine = [torch.zeros(()) if found[weight] is None else found[weight] for found in got]
        cut = next((dim for dim in range(right.ndim) if mine[0].ndim and mine[0].shape[dim] < right.shape[dim]), None)
        pairs[weight] = torch.stack(mine), torch.stack([right] * n if cut is None else right.chunk(n, cut))
    return pairs


def _off(got, want):
    return ((got - want).norm() / want.norm()).item()


def _by_effect(mend):
    """1 if the ranks' gradients are the whole model's, and the logits still are; else a Wrong that says how far off."""
    if mend is mend_split:
        return lambda model, n: 1  # what others are compared with

    def judge(model, n):
        try:
            logits, effect = _on_ranks(_whole_model(), n, mend, _logits)[0], _effect(mend, n)
        except (Wrong, NotImplementedError):
            raise
        except Exception as error:
            problem = raised(error)
            problem.pair, problem.hint = (), NO_GRADIENT if "doesn't require grad" in str(error) else problem.hint
            raise problem from None
        if not (gap := _off(logits, _logits(_whole_model()))) <= 1e-4:  # nan is not <= anything
            raise Wrong(f"the logits were right without your hooks, now {gap:.2g} of their length is wrong.", FORWARD)
        off = {weight: _off(*pair) for weight, pair in effect.items() if not _off(*pair) <= 1e-4}
        if not off:
            return 1
        got, want = effect[first := list(off)[-1]]
        times = (got * want).sum() / want.square().sum()
        is_times = got.shape == want.shape and abs(times - 1) > 0.01 and _off(got, times * want) < 1e-3
        how = f"{times:.2g} times what it should be" if is_times else f"off by {off[first]:.2g} of its length"
        right = f"{len(effect) - len(off)} of {len(effect)} gradients are the whole model's"
        hint = next((hint for hint, slip in MEND_SPLIT.mistakes if _same(effect, slip, n)), "")
        hint = hint or (ROUNDS if max(off.values()) < 0.01 else FROM_THE_LOSS)
        raise Wrong(f"{right}. Seen from the loss, the first that is not: {first}, {how}.", hint)

    return judge


def _same(effect, slip, n):
    """Whether a known mistake gives these gradients."""
    theirs = _effect(slip, n)
    return all(_off(got, theirs[weight][0]) < 1e-4 for weight, (got, _) in effect.items())


def _hooked(names, mean=False):
    """A mend with a slip: of which modules' outputs, or parameters, gradients are summed, or averaged."""

    def mend(model, all_reduce):
        o_proj = model.layers[0].attention.o_proj
        n = o_proj.in_features // o_proj.weight.shape[1] if mean else 1

        def summed(gradient):
            return _total(gradient, all_reduce) / n

        def hook(module, inputs, output):
            if output.requires_grad:
                output.register_hook(summed)

        for name, place in (*model.named_modules(), *model.named_parameters()):
            if re.fullmatch(names, name):
                place.register_hook(summed) if torch.is_tensor(place) else place.register_forward_hook(hook)

    return mend


FORWARD = "The sums of the forward pass are there already: does a hook of yours change an output?"
NO_GRADIENT = "While it writes, a model computes no gradients: do you ask for one of a tensor that has none?"
FROM_THE_LOSS = "Go back from the loss: where do the ranks first have different gradients, and what is each a part of?"
ROUNDS = "So small a gap is rounding: do you add up in the gradient's own dtype, float32?"
ONE_BRANCH = "A block has two places where the stream is read. Do you sum at both?"
TWICE = "Do the ranks have parts there? Where all have the same gradient, a sum makes it n times as large."
MEND_SPLIT = Exercise(
    mend_split,
    [Case(f"{n} ranks", ("two layers, large weights", n)) for n in (2, 4)],
    [
        ("Does your hook hand its sum back? The gradients are as without it.", lambda model, all_reduce: 0),
        *[(ONE_BRANCH, _hooked(f".*{branch}_norm")) for branch in ("attention", "ffn")],
        ("Are all blocks mended? Yours is the first one alone.", _hooked("layers.0.*_norm")),
        *[(TWICE, _hooked(names)) for names in (".*_norm", ".*(o|down)_proj")],
        ("The stream's own gradient is whole, only the branch brings parts: do you add up both?",
         lambda model, all_reduce: [norm.register_forward_pre_hook(lambda module, inputs:
             inputs[0].register_hook(lambda own: _total(own, all_reduce)) and None if inputs[0].requires_grad else None)
             for norm in _norms(model)]),
        ("Is the norm's own gain below the sum, too? Yours sums what leaves the norm, so that its gain gets a part.",
         lambda model, all_reduce: [norm.register_full_backward_hook(
             lambda module, inputs, outputs: (_total(inputs[0], all_reduce),)) for norm in _norms(model)]),
        ("Parts are added up: do you divide by the number of ranks?", _hooked("layers.*_norm", mean=True)),
        ("The copies agree now. But matrices below get a part alone: sum where the gradient flows, not where it ends.",
         _hooked(r"(tok|layers.*norm).*weight")),
        ("Each rank has other heads and units: do their gradients belong into one sum?", _hooked(".*weight")),
        (FORWARD, lambda model, all_reduce: [norm.register_forward_hook(
            lambda module, inputs, output: all_reduce(output)) for norm in _norms(model)]),
    ],
    adapt=_by_effect,
)  # fmt: skip
check_mend_split = check_of(MEND_SPLIT, seconds=60.0)
