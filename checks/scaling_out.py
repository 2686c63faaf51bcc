"""The exercises of notebook 09, scaling out: specification, cases, known mistakes with hints, check."""

import torch
from torch.nn import functional as F

from checks.base import BATCH, MEMORY, Case, Exercise, Wrong, draw, not_contiguous
from checks.judge import check_of


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


def _parts(x, gate, up, down, n, order=None, make=None):
    """The parts with one slip: another order of the units, or another rule for one part."""
    units = torch.arange(len(gate)) if order is None else order(len(gate), n)
    make = make or (lambda x, g, u, d, rank: (F.silu(x @ g.T) * (x @ u.T)) @ d.T)
    return torch.stack([make(x, gate[mine], up[mine], down[:, mine], rank) for rank, mine in enumerate(units.chunk(n))])


def _slip(make):
    return lambda x, g, u, d, n: _parts(x, g, u, d, n, make=make)


TURNED = (
    "gate and up have a row, down has a column for each unit: .chunk(n) cuts rows (dim=0), .chunk(n, dim=1) columns. "
    "If yours are cut so: weights are (out, in), so is it x @ w.T each time?"
)


def _product_that_fits(function):
    def probe(x, w_gate, w_up, w_down, n_ranks):
        try:
            return function(x, w_gate, w_up, w_down, n_ranks)
        except RuntimeError as error:
            if "multipl" in str(error) or "size mismatch" in str(error):
                raise Wrong(f"a product does not fit: {error}", TURNED) from None
            raise

    return probe


def _whole(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def _by_inputs(x, gate, up, down, n):
    """Gate and up cut by columns: silu comes before the sum."""
    cut = [tensor.unflatten(-1, (n, -1)).unbind(-2) for tensor in (x, gate, up)]
    return torch.stack([(F.silu(part @ g.T) * (part @ u.T)) @ down.T for part, g, u in zip(*cut, strict=True)])


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
         lambda x, g, u, d, n: torch.stack([_whole(x, g, u, d)] * n)),
        ("Does each rank return its own part? You return the finished sum.", lambda x, g, u, d, n: _whole(x, g, u, d)),
        ("Is there a new first axis for the ranks? torch.stack makes one; torch.cat uses an axis that is there.",
         lambda x, g, u, d, n: torch.cat([*_parts(x, g, u, d, n)])),
        ("Is there a new first axis for the ranks? torch.stack makes one; torch.cat uses an axis that is there.",
         lambda x, g, u, d, n: torch.cat([*_parts(x, g, u, d, n)], -1)),
        ("Is the axis of the ranks the first? Yours is the second.",
         lambda x, g, u, d, n: torch.stack([*_parts(x, g, u, d, n)], 1)),
        ("chunk(n) gives n pieces, split(n) gives pieces of n: which of them do you use?",
         lambda x, g, u, d, n: torch.stack([
             _whole(x, *piece) for piece in zip(g.split(n), u.split(n), d.split(n, 1), strict=True)])),
        ("Does each rank use its own units? You divide the finished sum by n_ranks.",
         lambda x, g, u, d, n: torch.stack([_whole(x, g, u, d) / n] * n)),
        ("Is there a part for each rank? Yours has the first alone: is return inside the loop?",
         lambda x, g, u, d, n: _parts(x, g, u, d, n)[:1]),
        ("Are the units dealt out, and is down there? You return the hidden units of all ranks.",
         lambda x, g, u, d, n: F.silu(x @ g.T) * (x @ u.T)),
        ("Does each rank use its own units? Yours all use the first share.",
         lambda x, g, u, d, n: torch.stack([_parts(x, g, u, d, n)[0]] * n)),
        ("Is there a part for each rank? Yours has the last alone.", lambda x, g, u, d, n: _parts(x, g, u, d, n)[-1]),
        ("Does x keep its leading dimensions? Yours become one.",
         lambda x, g, u, d, n: _parts(x.reshape(-1, x.shape[-1]), g, u, d, n)),
        (TURNED, _slip(lambda x, g, u, d, r: (F.silu(x @ g) * (x @ u)) @ d)),
        (TURNED, _slip(lambda x, g, u, d, r: (F.silu(x @ g.T) * (x @ u.T)) @ d)),
        ("Is down there? Yours returns the hidden units.", _slip(lambda x, g, u, d, r: F.silu(x @ g.T) * (x @ u.T))),
        ("Is it SwiGLU's part alone? Yours has the residual x in it.",
         lambda x, g, u, d, n: x + _parts(x, g, u, d, n)),
        ("Are gate and up cut by their rows, the outputs? Yours are cut by columns, the inputs.", _by_inputs),
        ("The parts are summed, not averaged: do you divide by n_ranks?",
         lambda x, g, u, d, n: _parts(x, g, u, d, n) / n),
        ("Has rank r the r-th share in a row? You deal the units out in turn.",
         lambda x, g, u, d, n: _parts(x, g, u, d, n, lambda size, n: torch.arange(size).view(-1, n).T.flatten())),
        ("Is it silu? Yours is relu.", _slip(lambda x, g, u, d, r: (F.relu(x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is silu on gate alone? Yours comes after the product.",
         _slip(lambda x, g, u, d, r: F.silu((x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is up used? Yours has gate in its place.", _slip(lambda x, g, u, d, r: (F.silu(x @ g.T) * (x @ g.T)) @ d.T)),
        ("Is silu there?", _slip(lambda x, g, u, d, r: ((x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is silu on the gate branch, not on up?", _slip(lambda x, g, u, d, r: ((x @ g.T) * F.silu(x @ u.T)) @ d.T)),
        ("Is up used? Yours has only the gate branch.", _slip(lambda x, g, u, d, r: F.silu(x @ g.T) @ d.T)),
        ("Is gate used? Yours has up in its place.", _slip(lambda x, g, u, d, r: (F.silu(x @ u.T) * (x @ u.T)) @ d.T)),
        ("Do the branches multiply? Yours are added.", _slip(lambda x, g, u, d, r: (F.silu(x @ g.T) + x @ u.T) @ d.T)),
        ("Which columns of down belong to this rank's units? Yours takes the first ones for every rank.",
         lambda x, g, u, d, n: torch.stack([
             (F.silu(x @ a.T) * (x @ b.T)) @ d[:, : len(a)].T for a, b in zip(g.chunk(n), u.chunk(n), strict=True)])),
        ("Is down cut by its columns (the units), not by its rows (the outputs)? Its parts then need a sum.",
         lambda x, g, u, d, n: torch.stack([
             F.pad(part, (r * part.shape[-1], x.shape[-1] - (r + 1) * part.shape[-1]))
             for r, part in enumerate(_whole(x, g, u, d).chunk(n, -1))])),
        ("Is it this rank's part alone? Yours adds up the parts so far.",
         lambda x, g, u, d, n: _parts(x, g, u, d, n).cumsum(0)),
    ],
    adapt=_product_that_fits,
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
            if weights[rank] > 0:  # else the rank has no visible key, and its output says nothing
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


def _in_bfloat16(case):
    outputs, logsumexps = case
    return outputs.bfloat16(), logsumexps + 300.0


def _blind(case, seen_by, output):
    """The same, but rank r sees no key of the queries for which seen_by has False: -inf, and this output."""
    outputs, logsumexps = case
    seen = torch.tensor(seen_by)
    return outputs.masked_fill(~seen[..., None], output), logsumexps.masked_fill(~seen, -torch.inf)


BY_HAND = torch.tensor([[[1.0, 0.0]], [[5.0, 4.0]]]), torch.tensor([[0.0], [3.0]]).log1p()  # denominators 1 and 4
HIDDEN = (
    "A rank without a visible key has -inf, so its weight is 0. But 0 times nan or inf is nan: leave its output out."
)
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


def _axis_for_h(function):
    def probe(outputs, logsumexps):
        try:
            return function(outputs, logsumexps)
        except RuntimeError as error:
            if "must match" in str(error):
                hint = "The weights are (R, T), the outputs (R, T, h): weights[..., None] gets an axis for h."
                raise Wrong(f"the sizes do not fit: {error}", hint) from None
            raise

    return probe


RANKS = "Do the weights of the ranks add up to 1 for each query? Take softmax over the ranks, dim=0."
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
        Case("not contiguous", tuple(map(not_contiguous, _dealt_out(3, 16, 2, seed=90))), MEMORY),
        Case("outputs in bfloat16, logsumexps in float32, near 300",
             _in_bfloat16(_dealt_out(3, 16, 2, seed=100)), ROUNDED),
    ],
    [
        ("Do all ranks weigh the same? Yours is the mean; a rank with the larger denominator counts for more.",
         lambda o, s: o.nan_to_num().mean(0)),
        ("Is it a mixture, with weights that add up to 1? Yours adds the outputs.", lambda o, s: o.nan_to_num().sum(0)),
        ("Do you divide by the sum of the weights? Yours are exp(logsumexp) alone.",
         lambda o, s: _weighted(o, s.exp())),
        (LARGE,
         lambda o, s: _weighted(o, s.exp() / s.exp().sum(0))),
        ("Subtract the largest logsumexp of each query (dim=0), not the largest of all.",
         lambda o, s: _weighted(o, (s - s.max()).exp() / (s - s.max()).exp().sum(0))),
        ("You subtract the largest logsumexp: do you divide by the sum of the weights, too?",
         lambda o, s: _weighted(o, (s - s.amax(0)).exp())),
        (RANKS,
         lambda o, s: _weighted(o, s.softmax(1))),
        ("A logsumexp is the logarithm of a denominator: exp comes first. Yours weighs by the logarithm itself.",
         lambda o, s: _weighted(o, s / s.sum(0))),
        ("Has the larger denominator the larger weight? Yours has the smaller one.",
         lambda o, s: _weighted(o, (-s).softmax(0))),
        ("softmax takes exp itself: hand it the logsumexps, not their exp.",
         lambda o, s: _weighted(o, s.exp().softmax(0))),
        ("Do the weights add up to 1 already? Then sum, and do not take the mean.",
         lambda o, s: _weighted(o, s.softmax(0)) / len(o)),
        (HIDDEN, lambda o, s: (s.softmax(0)[..., None] * o).sum(0).to(o.dtype)),
        (HIDDEN, lambda o, s: (s.softmax(0)[..., None] * torch.where(o.isnan(), 0.0, o)).sum(0).to(o.dtype)),
        (ROUNDED, lambda o, s: _weighted(o, s.to(o.dtype).softmax(0))),
        ("-inf stands for a denominator of 0: its weight is 0, not exp(0).",
         lambda o, s: _weighted(o.nan_to_num(), s.nan_to_num(neginf=0.0).softmax(0))),
        ("Do all ranks take part? Yours is the first one's output.", lambda o, s: o[0]),
        ("The weights are (R, T), the outputs (R, T, h): weights[..., None] gets an axis for h.",
         lambda o, s: (s.softmax(0) * o).sum(0)),
        ("@ sums over an axis that both have: do you want weights[..., None] * outputs, summed over dim=0?",
         lambda o, s: s.softmax(0) @ o),
        ("Has rank r the weight of its own logsumexp? Yours are in reverse order.",
         lambda o, s: _weighted(o.nan_to_num(), s.flip(0).softmax(0))),
        ("Is the axis of the ranks gone? Sum over dim=0 without keepdim.",
         lambda o, s: _weighted(o, s.softmax(0))[None]),
        ("Is it summed over the ranks, dim=0? Yours still has their axis.",
         lambda o, s: torch.where(s[..., None] == -torch.inf, 0.0, s.softmax(0)[..., None] * o)),
        ("Is it summed over the ranks, dim=0? Yours is summed over the queries.",
         lambda o, s: (s.softmax(0)[..., None] * o.nan_to_num()).sum(1)),
        ("Has each query its own weights? Yours are one number for each rank.",
         lambda o, s: (s.mean(1).softmax(0)[:, None, None] * o).sum(0)),
        ("Rank after rank, is the logsumexp so far torch.logaddexp of both? Yours is the larger one.",
         _one_by_one(torch.maximum)),
        ("Rank after rank, is the logsumexp so far torch.logaddexp of both? Yours stays that of the first rank.",
         _one_by_one(lambda so_far, own: so_far)),
    ],
    dtype_hint="The result has the dtype of outputs: .to(outputs.dtype) at the end.",
    adapt=_axis_for_h,
)  # fmt: skip
check_merge_attention = check_of(MERGE_ATTENTION)

# ------------------------------------------------------------------------------------------ what is sent


def bytes_sent_per_token(dim, n_layers, n_ranks, bytes_per_number):
    """Bytes (int) that one rank sends per token in all blocks: for each sum, 2 (n - 1) / n of its vector."""
    sent = 0
    for _ in range(n_layers):
        for _ in ("attention", "feed-forward"):
            sent += 2 * (n_ranks - 1) / n_ranks * dim * bytes_per_number
    return int(sent)


def _no_float(function):
    def probe(*sizes):
        answer = function(*sizes)
        if isinstance(answer, float):
            hint = "/ gives a float, even where nothing is left over: divide last, with //."
            raise Wrong("the result has the type float, expected a whole number (int).", hint)
        return answer

    return probe


SENT = [(4096, 32, 2, 2), (8192, 80, 8, 2), (16384, 126, 8, 2), (128, 6, 4, 4), (6, 1, 3, 4)]
CUT = "Does int cut 2015.999...? Multiply first and divide last: ... // n_ranks."
EARLY = "Is anything rounded down before the end? Multiply first and divide last."
BYTES_SENT_PER_TOKEN = Exercise(
    bytes_sent_per_token,
    [
        Case("by hand, dim 8, 2 layers, 2 ranks, 4 bytes", (8, 2, 2, 4)),
        Case("one rank sends nothing", (4096, 32, 1, 2), "One rank has nobody to send to."),
        *[Case(f"dim {d}, n_layers {n}, n_ranks {r}, bytes_per_number {b}", (d, n, r, b)) for d, n, r, b in SENT],
        Case("dim 45, 7 layers, 5 ranks, 2 bytes", (45, 7, 5, 2), CUT),
    ],
    [
        (CUT, lambda d, layers, n, b: int(layers * 4 * (n - 1) / n * d * b)),
        ("Do you use bytes_per_number? Yours is 2 for all.",
         lambda d, layers, n, b: layers * 4 * (n - 1) * d * 2 // n),
        *[("Are there two sums per block, and is each number sent twice, to be added and as a result? You count one.",
           program) for program in (lambda d, layers, n, b: layers * 2 * (n - 1) * d * b // n,
                                    lambda d, layers, n, b: int(layers * 2 * (n - 1) / n * d * b))],
        ("Are there two sums per block, and is each number sent twice? A factor of 4 in all.",
         lambda d, layers, n, b: layers * (n - 1) * d * b // n),
        ("Is it (n - 1) / n of the vector? A rank keeps its own share.",
         lambda d, layers, n, b: layers * 4 * d * b),
        ("Is all of the vector sent once per sum? A rank sends (n - 1) / n of it, twice.",
         lambda d, layers, n, b: layers * 2 * d * b),
        ("Is it what one rank sends, (n - 1) / n of the vector? n - 1 times is all ranks together.",
         lambda d, layers, n, b: layers * 4 * (n - 1) * d * b),
        ("Does a rank send all of its vector to each other rank? In a ring it sends (n - 1) / n of it, twice.",
         lambda d, layers, n, b: layers * 2 * (n - 1) * d * b),
        ("Is it (n - 1) / n of the vector, not 1 / n?", lambda d, layers, n, b: layers * 4 * d * b // n),
        ("How many sums has a block, and what does a rank send for each? Yours is one vector per block.",
         lambda d, layers, n, b: layers * d * b),
        ("Are they the bytes that one rank sends? You count those that are added up, with the embedding's.",
         lambda d, layers, n, b: (layers * 2 + 1) * d * b),
        ("Does every layer send? Multiply by n_layers.", lambda d, layers, n, b: 4 * (n - 1) * d * b // n),
        ("Numbers or bytes? Multiply by bytes_per_number.",
         lambda d, layers, n, b: layers * 4 * (n - 1) * d // n),
        ("Do you count the embedding's sum? The task leaves it out.",
         lambda d, layers, n, b: (layers * 4 + 2) * (n - 1) * d * b // n),
        ("Do you count the embedding and the logits? The task leaves them out.",
         lambda d, layers, n, b: (layers * 4 + 4) * (n - 1) * d * b // n),
        ("Is there a sum after each of the seven matrices? Only o_proj and down_proj end in one.",
         lambda d, layers, n, b: layers * 14 * (n - 1) * d * b // n),
        ("Do you count what a rank receives, too? Only what it sends is asked for.",
         lambda d, layers, n, b: layers * 8 * (n - 1) * d * b // n),
        (EARLY, lambda d, layers, n, b: layers * 4 * (n - 1) // n * d * b),
        ("Is n - 1 divided by n without rounding? // rounds down to 0.",
         lambda d, layers, n, b: layers * 4 * ((n - 1) // n) * d * b),
    ],
    adapt=_no_float,
)  # fmt: skip
check_bytes_sent_per_token = check_of(BYTES_SENT_PER_TOKEN)
