"""The exercises of notebook 09, scaling out: specification, cases, known mistakes with hints, check."""

from fractions import Fraction

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
    "gate and up have a row, down has a column for each unit: .chunk(n) cuts rows, .chunk(n, dim=1) columns. "
    "Weights are (out, in): is it x @ w.T each time?"
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


def _shares_of(size_of):
    """Every rank takes size_of(n_ranks) units in a row."""

    def program(x, gate, up, down, n):
        size = size_of(n)
        mine = [slice(rank * size, rank * size + size) for rank in range(n)]
        return torch.stack([_whole(x, gate[part], up[part], down[:, part]) for part in mine])

    return program


WHOLE_NUMBERS = (  # section 9.1's: x, w_gate, w_up, w_down
    torch.tensor([1.0, 2.0]),
    torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]]),
    torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]),
    torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 1.0, 1.0]]),
)


def _ffn(n_units=6, dim=4, seed=0, scale=0.7):
    return (
        draw(n_units, dim, seed=seed + 1, scale=scale),
        draw(n_units, dim, seed=seed + 2, scale=scale),
        draw(dim, n_units, seed=seed + 3, scale=scale),
    )


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
    ],
    [
        ("Does each rank return its own part? You return the finished sum.",
         lambda x, g, u, d, n: torch.stack([_whole(x, g, u, d)] * n)),
        ("Does each rank return its own part? You return the finished sum.", lambda x, g, u, d, n: _whole(x, g, u, d)),
        ("Is there a new first axis for the ranks? torch.stack makes one; torch.cat uses an axis that is there.",
         lambda x, g, u, d, n: torch.cat([*_parts(x, g, u, d, n)])),
        ("Is there a new first axis for the ranks? torch.stack makes one; torch.cat uses an axis that is there.",
         lambda x, g, u, d, n: torch.cat([*_parts(x, g, u, d, n)], -1)),
        ("Is the axis of the ranks the first? Yours is the last.",
         lambda x, g, u, d, n: torch.stack([*_parts(x, g, u, d, n)], -1)),
        ("Is the axis of the ranks the first? Yours is the second.",
         lambda x, g, u, d, n: torch.stack([*_parts(x, g, u, d, n)], 1)),
        ("chunk(n) gives n pieces, split(n) gives pieces of n: which of them do you use?",
         lambda x, g, u, d, n: torch.stack([
             _whole(x, *piece) for piece in zip(g.split(n), u.split(n), d.split(n, 1), strict=True)])),
        ("Does each rank use its own units? You divide the finished sum by n_ranks.",
         lambda x, g, u, d, n: torch.stack([_whole(x, g, u, d) / n] * n)),
        ("Has a rank F / n_ranks units? Yours has two, for all F and n_ranks.", _shares_of(lambda n: 2)),
        ("Has a rank F / n_ranks units? Yours has n_ranks of them.", _shares_of(lambda n: n)),
        ("Is there a part for each rank? Yours has the first alone: is return inside the loop?",
         lambda x, g, u, d, n: _parts(x, g, u, d, n)[:1]),
        ("Is there a part for each rank? Yours has the first alone.", lambda x, g, u, d, n: _parts(x, g, u, d, n)[0]),
        ("Does each rank return its own part? You return one result, their mean.",
         lambda x, g, u, d, n: _whole(x, g, u, d) / n),
        ("Are the units dealt out, and is down there? You return the hidden units of all ranks.",
         lambda x, g, u, d, n: F.silu(x @ g.T) * (x @ u.T)),
        ("Does each rank use its own units? Yours all use the first share.",
         lambda x, g, u, d, n: torch.stack([_parts(x, g, u, d, n)[0]] * n)),
        ("Does rank r begin at unit r * F / n_ranks? Yours begins at unit r.",
         lambda x, g, u, d, n: torch.stack([
             _whole(x, g[r : r + len(g) // n], u[r : r + len(g) // n], d[:, r : r + len(g) // n]) for r in range(n)])),
        ("Does a rank's share end where the next begins? Yours goes on to the last unit.",
         lambda x, g, u, d, n: torch.stack([
             _whole(x, g[start:], u[start:], d[:, start:]) for start in range(0, len(g), len(g) // n)])),
        ("Is there a part for each rank? Yours has the last alone.", lambda x, g, u, d, n: _parts(x, g, u, d, n)[-1]),
        ("Is a rank's share F / n_ranks units? Yours is D / n_ranks.",
         lambda x, g, u, d, n: _shares_of(lambda n: x.shape[-1] // n)(x, g, u, d, n)),
        ("Does gate belong to the same units as up? Yours takes the first share of gate for every rank.",
         lambda x, g, u, d, n: torch.stack([
             (F.silu(x @ g[: len(b)].T) * (x @ b.T)) @ c.T for b, c in zip(u.chunk(n), d.chunk(n, 1), strict=True)])),
        ("Does x keep its leading dimensions? Yours become one.",
         lambda x, g, u, d, n: _parts(x.reshape(-1, x.shape[-1]), g, u, d, n)),
        (TURNED, _slip(lambda x, g, u, d, r: (F.silu(x @ g) * (x @ u)) @ d)),
        (TURNED, _slip(lambda x, g, u, d, r: (F.silu(x @ g.T) * (x @ u.T)) @ d)),
        (TURNED, _slip(lambda x, g, u, d, r: (F.silu(x @ g) * (x @ u)) @ d.T)),
        ("Is down there? Yours returns the hidden units.", _slip(lambda x, g, u, d, r: F.silu(x @ g.T) * (x @ u.T))),
        ("Is it SwiGLU's part alone? Yours has the residual x in it.",
         lambda x, g, u, d, n: x + _parts(x, g, u, d, n)),
        ("Is it SwiGLU's part alone? Rank 0's has the residual x in it.",
         _slip(lambda x, g, u, d, r: _whole(x, g, u, d) + (r == 0) * x)),
        ("Is it silu? Yours is gelu.", _slip(lambda x, g, u, d, r: (F.gelu(x @ g.T) * (x @ u.T)) @ d.T)),
        ("Are gate and up cut by their rows, the outputs? Yours are cut by columns, the inputs.", _by_inputs),
        ("The parts are summed, not averaged: do you divide by n_ranks?",
         lambda x, g, u, d, n: _parts(x, g, u, d, n) / n),
        ("Has rank r the r-th share in a row? You deal the units out in turn.",
         lambda x, g, u, d, n: _parts(x, g, u, d, n, lambda size, n: torch.arange(size).view(-1, n).T.flatten())),
        ("Is rank 0 the first? Yours begins with the last share.", lambda x, g, u, d, n: _parts(x, g, u, d, n).flip(0)),
        ("Is it silu? Yours is relu.", _slip(lambda x, g, u, d, r: (F.relu(x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is silu on gate alone? Yours comes after the product.",
         _slip(lambda x, g, u, d, r: F.silu((x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is silu on gate alone? Yours is on up too.",
         _slip(lambda x, g, u, d, r: (F.silu(x @ g.T) * F.silu(x @ u.T)) @ d.T)),
        ("Is up used? Yours has gate in its place.", _slip(lambda x, g, u, d, r: (F.silu(x @ g.T) * (x @ g.T)) @ d.T)),
        ("Is silu there?", _slip(lambda x, g, u, d, r: ((x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is silu on the gate branch, not on up?", _slip(lambda x, g, u, d, r: ((x @ g.T) * F.silu(x @ u.T)) @ d.T)),
        ("Is it silu, z * sigmoid(z), not sigmoid alone?",
         _slip(lambda x, g, u, d, r: (torch.sigmoid(x @ g.T) * (x @ u.T)) @ d.T)),
        ("Is up used? Yours has only the gate branch.", _slip(lambda x, g, u, d, r: F.silu(x @ g.T) @ d.T)),
        ("Is gate used? Yours has up in its place.", _slip(lambda x, g, u, d, r: (F.silu(x @ u.T) * (x @ u.T)) @ d.T)),
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
    adapt=_product_that_fits,
)  # fmt: skip
check_split_feed_forward = check_of(SPLIT_FEED_FORWARD)

# --------------------------------------------------------------------------------------------- the plan

WHY = {
    "q_proj": "a rank needs all numbers of its own heads' queries, so q_proj is cut by its outputs.",
    "k_proj": "a rank's queries meet its own keys: k_proj is cut like q_proj.",
    "v_proj": "a rank mixes the values of its own heads: v_proj is cut like q_proj.",
    "o_proj": "a rank has only its own heads' results, which are inputs of o_proj.",
    "gate_proj": "a rank has its own hidden units, which are outputs of gate_proj.",
    "up_proj": "gate and up are multiplied unit by unit: up_proj is cut like gate_proj.",
    "down_proj": "a rank has only its own hidden units, which are inputs of down_proj.",
}
STYLES = {name: "row" if name in ("o_proj", "down_proj") else "column" for name in WHY}


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


def _count(hint, formula):
    """A slip in two forms: divided last with //, or cut by int, which may lose one where / has rounded."""

    def exact(dim, layers, n, number_bytes):
        return int(formula(dim, layers, Fraction(n), number_bytes))

    return [(hint, exact), (hint, lambda *sizes: int(formula(*sizes)))]


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
        *_count("Yours is one vector for each sum. Is it (n - 1) / n of it, twice? And do you divide last, with //?",
                lambda d, layers, n, b: layers * 2 * d * b * (n > 1)),
        (CUT, lambda d, layers, n, b: int(layers * 4 * (n - 1) / n * d * b)),
        *_count("Do you use bytes_per_number? Yours is 2 for all.",
                lambda d, layers, n, b: layers * 4 * (n - 1) / n * d * 2),
        *_count(
            "Are there two sums per block, and is each number sent twice, to be added and as a result? You count one.",
            lambda d, layers, n, b: layers * 2 * (n - 1) / n * d * b),
        *_count("Are there two sums per block, and is each number sent twice? A factor of 4 in all.",
                lambda d, layers, n, b: layers * (n - 1) / n * d * b),
        *_count("Is it (n - 1) / n of the vector? A rank keeps its own share.",
                lambda d, layers, n, b: layers * 4 * d * b),
        *_count("Is all of the vector sent once per sum? A rank sends (n - 1) / n of it, twice.",
                lambda d, layers, n, b: layers * 2 * d * b),
        *_count("Is it what one rank sends, (n - 1) / n of the vector? n - 1 times is all ranks together.",
                lambda d, layers, n, b: layers * 4 * (n - 1) * d * b),
        *_count("Does a rank send all of its vector to each other rank? In a ring it sends (n - 1) / n of it, twice.",
                lambda d, layers, n, b: layers * 2 * (n - 1) * d * b),
        *_count("Is it (n - 1) / n of the vector, not 1 / n?", lambda d, layers, n, b: layers * 4 * d * b / n),
        *_count("Is it (n - 1) / n, not n / (n - 1)?",
                lambda d, layers, n, b: layers * 4 * n / max(1, n - 1) * d * b),
        *_count("How many sums has a block, and what does a rank send for each? Yours is one vector per block.",
                lambda d, layers, n, b: layers * d * b),
        *_count("Are they the bytes that one rank sends? You count those that are added up, with the embedding's.",
                lambda d, layers, n, b: (layers * 2 + 1) * d * b),
        *_count("Does every layer send? Multiply by n_layers.", lambda d, layers, n, b: 4 * (n - 1) / n * d * b),
        *_count("Numbers or bytes? Multiply by bytes_per_number.",
                lambda d, layers, n, b: layers * 4 * (n - 1) / n * d),
        *_count("Is it bytes, not bits?", lambda d, layers, n, b: layers * 4 * (n - 1) / n * d * b * 8),
        *_count("Is one vector of dim numbers sent? Yours has dim * dim.",
                lambda d, layers, n, b: layers * 4 * (n - 1) / n * d * d * b),
        *_count("How many numbers has the vector? Multiply by dim.",
                lambda d, layers, n, b: layers * 4 * (n - 1) / n * b),
        *_count("Do you count the embedding's sum? The task leaves it out.",
                lambda d, layers, n, b: (layers * 4 + 2) * (n - 1) / n * d * b),
        *_count("Do you count the embedding and the logits? The task leaves them out.",
                lambda d, layers, n, b: (layers * 4 + 4) * (n - 1) / n * d * b),
        *_count("Attention has one sum and the feed-forward one: do you count three per block?",
                lambda d, layers, n, b: layers * 6 * (n - 1) / n * d * b),
        *_count("Is there a sum after each of the seven matrices? Only o_proj and down_proj end in one.",
                lambda d, layers, n, b: layers * 14 * (n - 1) / n * d * b),
        *_count("Do you count what a rank receives, too? Only what it sends is asked for.",
                lambda d, layers, n, b: layers * 8 * (n - 1) / n * d * b),
        (EARLY, lambda d, layers, n, b: layers * 4 * (n - 1) // n * d * b),
        (EARLY, lambda d, layers, n, b: layers * (4 * (n - 1) // n) * d * b),
        ("Is n - 1 divided by n without rounding? // rounds down to 0.",
         lambda d, layers, n, b: layers * 4 * ((n - 1) // n) * d * b),
    ],
    adapt=_no_float,
)  # fmt: skip
check_bytes_sent_per_token = check_of(BYTES_SENT_PER_TOKEN)
