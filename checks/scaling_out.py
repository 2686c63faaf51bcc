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


def _cut_that_fits(function):
    def probe(x, w_gate, w_up, w_down, n_ranks):
        try:
            return function(x, w_gate, w_up, w_down, n_ranks)
        except RuntimeError as error:
            if "multipl" in str(error) or "size mismatch" in str(error):
                hint = (
                    "Weights are (out, in): is it x @ w.T each time? And is w_down cut by columns? "
                    "w_down.chunk(n_ranks, dim=1) gives those of each rank."
                )
                raise Wrong(f"a product does not fit: {error}", hint) from None
            raise

    return probe


def _whole(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def _ffn(n_units=6, dim=4, seed=0, scale=0.7):
    return (
        draw(n_units, dim, seed=seed + 1, scale=scale),
        draw(n_units, dim, seed=seed + 2, scale=scale),
        draw(dim, n_units, seed=seed + 3, scale=scale),
    )


SPLIT_FEED_FORWARD = Exercise(
    split_feed_forward,
    [
        Case("one token, 6 units, 2 ranks", (draw(1, 4), *_ffn(), 2)),
        Case("a single vector, not a batch", (draw(4, seed=50), *_ffn(seed=51), 3)),
        Case("six tokens, 3 ranks", (draw(6, 4, seed=9), *_ffn(seed=10), 3)),
        Case("batch 2, as many units as dim", (draw(2, 3, 4, seed=20), *_ffn(4, seed=21), 2), BATCH),
        Case("one rank: nothing is cut", (draw(3, 4, seed=30), *_ffn(seed=31), 1)),
        Case("x not contiguous", (not_contiguous(draw(2, 3, 4, seed=60)), *_ffn(seed=61), 2), MEMORY),
        Case("a rank for each unit", (draw(3, 4, seed=40), *_ffn(4, seed=41), 4)),
    ],
    [
        ("Does each rank return its own part? You return the finished sum.",
         lambda x, g, u, d, n: torch.stack([_whole(x, g, u, d)] * n)),
        ("Does each rank return its own part? You return the finished sum.", lambda x, g, u, d, n: _whole(x, g, u, d)),
        ("The parts are summed, not averaged: do you divide by n_ranks?",
         lambda x, g, u, d, n: _parts(x, g, u, d, n) / n),
        ("Has rank r the r-th share in a row? You deal the units out in turn.",
         lambda x, g, u, d, n: _parts(x, g, u, d, n, lambda size, n: torch.arange(size).view(-1, n).T.flatten())),
        ("Is rank 0 the first? Yours begins with the last share.", lambda x, g, u, d, n: _parts(x, g, u, d, n).flip(0)),
        ("Is silu there?", _slip(lambda x, g, u, d, r: ((x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is silu on the gate branch, not on up?", _slip(lambda x, g, u, d, r: ((x @ g.T) * F.silu(x @ u.T)) @ d.T)),
        ("Is it silu, z * sigmoid(z), not sigmoid alone?",
         _slip(lambda x, g, u, d, r: (torch.sigmoid(x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is up used? Yours has only the gate branch.", _slip(lambda x, g, u, d, r: F.silu(x @ g.T) @ d.T)),
        ("Do the branches multiply? Yours are added.", _slip(lambda x, g, u, d, r: (F.silu(x @ g.T) + x @ u.T) @ d.T)),
        ("Does up belong to the same units as gate? Yours takes the first share of up for every rank.",
         lambda x, g, u, d, n: torch.stack([
             (F.silu(x @ a.T) * (x @ u[: len(a)].T)) @ c.T for a, c in zip(g.chunk(n), d.chunk(n, 1), strict=True)])),
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
    adapt=_cut_that_fits,
    hint="Rank r has rows r * F/n to (r + 1) * F/n of gate and up, and the same columns of down. Which part differs?",
)  # fmt: skip
check_split_feed_forward = check_of(SPLIT_FEED_FORWARD)

# --------------------------------------------------------------------------------------------- the plan

STYLES = {
    "q_proj": "column",
    "k_proj": "column",
    "v_proj": "column",
    "o_proj": "row",
    "gate_proj": "column",
    "up_proj": "column",
    "down_proj": "row",
}
WHY = {
    "q_proj": "a rank needs all numbers of its own heads' queries, so q_proj is cut by its outputs.",
    "k_proj": "a rank's queries meet its own keys: k_proj is cut like q_proj.",
    "v_proj": "a rank mixes the values of its own heads: v_proj is cut like q_proj.",
    "o_proj": "a rank has only its own heads' results, which are inputs of o_proj.",
    "gate_proj": "a rank has its own hidden units, which are outputs of gate_proj.",
    "up_proj": "gate and up are multiplied unit by unit: up_proj is cut like gate_proj.",
    "down_proj": "a rank has only its own hidden units, which are inputs of down_proj.",
}


def block_plan():
    """How each matrix of a block is cut, {"q_proj": ..., ...}: "column" (by its outputs) or "row" (by its inputs)."""
    return dict(STYLES)


def _styles(function):
    def probe():
        answer = function()
        if not isinstance(answer, dict) or set(answer) != set(STYLES):
            raise Wrong("a dictionary with seven keys is expected.", f"The keys are: {', '.join(STYLES)}.")
        for name, style in answer.items():
            if str(style) not in ("column", "row"):
                raise Wrong(f"{name}: {str(style)[:40]!r} is not known.", 'Choose "column" or "row".')
        missed = [name for name in STYLES if answer[name] != STYLES[name]]
        if missed:
            hint = f"{missed[0]}: think what a rank has, and what it needs. "
            raise Wrong(f"{len(STYLES) - len(missed)} of {len(STYLES)} are right.", hint + WHY[missed[0]].capitalize())
        return len(STYLES)

    return probe


BLOCK_PLAN = Exercise(block_plan, [Case("one block", ())], [], adapt=_styles)
check_block_plan = check_of(BLOCK_PLAN)

# ------------------------------------------------------------------------------------------ what is sent


def bytes_sent_per_token(dim, n_layers, n_ranks, bytes_per_number):
    """Bytes (int) that one rank sends per token in all blocks: for each sum, 2 (n - 1) / n of its vector."""
    sent = 0
    for _ in range(n_layers):
        for _ in ("attention", "feed-forward"):
            sent += 2 * (n_ranks - 1) / n_ranks * dim * bytes_per_number
    return int(sent)


def _count(formula):
    return lambda *sizes: int(formula(*sizes))


SENT = [(4096, 32, 2, 2), (8192, 80, 8, 2), (16384, 126, 8, 2), (128, 6, 4, 4), (6, 1, 3, 4)]
CUT = "Does int cut 2015.999...? Multiply first and divide last: ... // n_ranks."
BYTES_SENT_PER_TOKEN = Exercise(
    bytes_sent_per_token,
    [
        Case("dim 8, one layer, 2 ranks, 4 bytes: by hand", (8, 1, 2, 4)),
        Case("one rank sends nothing", (4096, 32, 1, 2), "With one rank, is anything sent?"),
        *[Case(f"dim {d}, {n} layers, {r} ranks, {b} bytes", (d, n, r, b)) for d, n, r, b in SENT],
        Case("dim 45, 7 layers, 5 ranks, 2 bytes", (45, 7, 5, 2), CUT),
    ],
    [
        (CUT, _count(lambda d, layers, n, b: layers * 4 * (n - 1) / n * d * b)),
        ("Do you use bytes_per_number? Yours is 2 for all.",
         _count(lambda d, layers, n, b: layers * 4 * (n - 1) / n * d * 2)),
        ("Are there two sums per block, and is each number sent twice, to be added and as the result? You count one.",
         _count(lambda d, layers, n, b: layers * 2 * (n - 1) / n * d * b)),
        ("Are there two sums per block, and is each number sent twice? A factor of 4 in all.",
         _count(lambda d, layers, n, b: layers * (n - 1) / n * d * b)),
        ("Is it (n - 1) / n of the vector? A rank keeps its own share.",
         _count(lambda d, layers, n, b: layers * 4 * d * b)),
        ("Is it what one rank sends, (n - 1) / n of the vector? n - 1 times is all ranks together.",
         _count(lambda d, layers, n, b: layers * 4 * (n - 1) * d * b)),
        ("Is it (n - 1) / n of the vector, not 1 / n?", _count(lambda d, layers, n, b: layers * 4 * d * b / n)),
        ("Is it (n - 1) / n, not n / (n - 1)?", _count(lambda d, layers, n, b: layers * 4 * n / max(1, n - 1) * d * b)),
        ("Does every layer send? Multiply by n_layers.", _count(lambda d, layers, n, b: 4 * (n - 1) / n * d * b)),
        ("Numbers or bytes? Multiply by bytes_per_number.",
         _count(lambda d, layers, n, b: layers * 4 * (n - 1) / n * d)),
        ("Is it bytes, not bits?", _count(lambda d, layers, n, b: layers * 4 * (n - 1) / n * d * b * 8)),
        ("Is one vector of dim numbers sent, not dim * dim?",
         _count(lambda d, layers, n, b: layers * 4 * (n - 1) / n * d * d * b)),
        ("Two sums per block, not three?", _count(lambda d, layers, n, b: layers * 6 * (n - 1) / n * d * b)),
        ("Is n - 1 divided by n without rounding? // rounds down to 0.",
         _count(lambda d, layers, n, b: layers * 4 * ((n - 1) // n) * d * b)),
    ],
    hint="Per sum: 2 (n - 1) / n * dim * bytes_per_number. How many sums are there?",
)  # fmt: skip
check_bytes_sent_per_token = check_of(BYTES_SENT_PER_TOKEN)
