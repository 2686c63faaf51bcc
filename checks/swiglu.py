"""The exercises of notebook 03, SwiGLU: specification, cases, known mistakes with hints, check."""

import copy
import functools
from itertools import permutations

import torch
from torch.nn import functional as F

from checks.base import BATCH, LEADING, Case, Exercise, Harness, Wrong, draw, each, largest, require_margin, strided
from checks.judge import check_of
from checks.shared import require_form, require_unchanged, snapshot
from helpers.checkpoint import load_checkpoint
from helpers.config import LlamaConfig
from helpers.interventions import held_out_tokens, held_out_windows, replaced
from helpers.model import Llama, SwiGLU
from helpers.text import TINY_LLAMA


def silu(x):
    """x times sigmoid(x), entry by entry; shape and dtype of x."""
    return (x.double() / (1 + (-x.double()).exp())).to(x.dtype)


def swiglu(x, w_gate, w_up, w_down):
    """down(silu(gate(x)) * up(x)), x (..., D), w_gate and w_up (F, D), w_down (D, F); (..., D) of x's dtype."""
    hidden = silu(x.double() @ w_gate.double().T) * (x.double() @ w_up.double().T)
    return (hidden @ w_down.double().T).to(x.dtype)


def _glu(combine):
    """A feed-forward that combines the gate's and the up projection's outputs in another way."""
    return lambda x, w_gate, w_up, w_down: combine(x @ w_gate.T, x @ w_up.T) @ w_down.T


def _swiglu_inputs(*shape, hidden, seed=0, scale=1.0):
    dim = shape[-1]
    weights = [draw(hidden, dim, seed=seed + 1), draw(hidden, dim, seed=seed + 2), draw(dim, hidden, seed=seed + 3)]
    return draw(*shape, seed=seed, scale=scale), *weights


MISFIT = "must match|mat1 and mat2|broadcast|size mismatch|same shape"
ROWS = "The last axis of x holds the numbers of one token: what takes many such rows, and a matrix (out, in), at once?"
ONE_EINSUM = "Do g and u each sum over D, before they meet? In one einsum they share a single x and a single sum."
TRANSPOSE = "Is a transpose missing? Weights are (out, in), so y = x @ weight.T."
SWIGLU = Exercise(swiglu, [
    Case("one token, D 2, F 2",  # gates 1 and -1, ups 2 and 3
         (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, -1.0]]),
          torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]]))),
    Case("three tokens, D 4, F 6", _swiglu_inputs(3, 4, hidden=6, seed=10), BATCH),
    Case("x of shape (1, 3, 5), F 7", _swiglu_inputs(1, 3, 5, hidden=7, seed=20), LEADING),
    Case("x of shape (4,)", _swiglu_inputs(4, hidden=3), "One token alone has no axis before the last."),
    Case("D equal to F", _swiglu_inputs(3, 4, hidden=4, seed=40)),
    Case("float16", each(torch.float16, *_swiglu_inputs(2, 4, hidden=6, seed=52)),
         "Is anything bfloat16 on the way? It keeps 8 bits of a number, float16 11."),
    Case("bfloat16, x about 300", each(torch.bfloat16, *_swiglu_inputs(2, 4, hidden=6, seed=60, scale=300)),
         "Is anything float16 on the way? It ends at 65504, bfloat16 at 3e38."),
    Case("all not contiguous", tuple(map(strided, _swiglu_inputs(3, 2, 1, 2, 4, hidden=300, seed=70))), LEADING),
    Case("gradients", _swiglu_inputs(2, 1, 3, hidden=4, seed=80), LEADING, gradients=True, also="half, meta"),
    Case("gradients, gates near -300 and 300",
         (torch.tensor([[300.0, 1.0], [-300.0, 2.0]]), torch.tensor([[1.0, 0.5], [-1.0, 0.5], [0.01, 1.0]]),
          draw(3, 2, seed=91), draw(2, 3, seed=92)),
         "Only gates of -300 and 300 fail: does exp overflow in your silu? F.silu does not.", gradients=True),
], [  # known mistakes
    (TRANSPOSE, lambda x, g, u, d: (F.silu(x @ g) * (x @ u)) @ d),
    (TRANSPOSE, lambda x, g, u, d: (F.silu(x @ g.T) * (x @ u.T)) @ d),
    ("Do you add x? The residual is the block's, not the layer's.", lambda x, *weights: x + swiglu(x, *weights)),
    ("Is silu missing? This is the layer Bilinear, g times u.", _glu(lambda g, u: g * u)),
    ("Is it silu, not the sigmoid alone?", _glu(lambda g, u: g.sigmoid() * u)),
    ("Is silu on the gate only? You have it on up, too.", _glu(lambda g, u: F.silu(g) * F.silu(u))),
    ("Are gate and up multiplied, not added?", _glu(lambda g, u: F.silu(g) + u)),
    ("Is silu taken before the product, on the gate alone?", _glu(lambda g, u: F.silu(g * u))),
    ("Is it silu, not relu?", _glu(lambda g, u: g.relu() * u)),
    ("Is it silu, not gelu?", _glu(lambda g, u: F.gelu(g) * u)),
    ("Is up (w_up) missing?", _glu(lambda g, u: F.silu(g))),
    (ONE_EINSUM, lambda x, g, u, d: F.silu(torch.einsum("...d,fd,fd->...f", x, g, u)) @ d.T),
], tolerance=0.7,  # float16: 3.5e-3, where right programs are off by 2e-3 at most and a way by bfloat16 by 8e-3
    hints={MISFIT: ROWS})  # fmt: skip
check_swiglu = check_of(SWIGLU)


def _interleaved(both, size):
    """Gate and up of a matrix whose rows come in turn: `size` of the one, `size` of the other."""
    return [half.flatten(0, 1) for half in both.unflatten(0, (-1, 2, size)).unbind(1)]


def _orders(weights):
    """All (gate, up, down) that the matrices may be, or a fused one in rows of any layout; some do not fit."""
    for *rest, down in permutations(weights):
        sizes = [size for size in (len(rest[0]) // 2, 1, 32) if size and len(rest[0]) % (2 * size) == 0]
        for pair in [rest] if len(rest) == 2 else [_interleaved(*rest, size) for size in sizes]:
            yield *pair, down
            yield *pair[::-1], down


ATOL = 1e-4  # so far may the layer be from y


def matrix_roles(weights, x, y):
    """(gate, up, down) of the SwiGLU that made y from x; weights: in any order, or gate and up fused, and down."""
    for gate, up, down in _orders(weights):
        fits = gate.shape == up.shape == down.mT.shape and gate.shape[1] == x.shape[1]
        if fits and (swiglu(x, gate, up, down) - y).abs().max() <= ATOL:
            return gate, up, down
    raise ValueError("no order of these matrices makes y from x: pass the y that they made.")


def _mixed(order, x, *matrices, off=0.0):
    """Inputs: gate, up and down (0, 1, 2) in another order; x; and the y that they make, but for so much."""
    weights, y = [matrices[role] for role in order], swiglu(x, *matrices) + off
    _require_one_order(weights, x, y, *matrices)
    return weights, x, y


def _require_one_order(weights, x, y, *roles):
    """That the right order gives y in float32 within a margin of ATOL, and no other order does."""
    exact, beyond = swiglu(x.double(), *roles), []
    for order in _orders(weights):
        fits = order[0].shape == order[1].shape == order[2].mT.shape and order[0].shape[1] == x.shape[1]
        if fits and not all(map(torch.equal, order, roles)):
            beyond.append(largest(swiglu(x.double(), *order) - exact) / ATOL)
    gate, up, down = roles
    require_margin("matrix_roles", [largest((F.silu(x @ gate.T) * (x @ up.T)) @ down.T - y) / ATOL], beyond)


def _roles(order, dim, hidden, seed, off=0.0):
    return _mixed(order, *_swiglu_inputs(3, dim, hidden=hidden, seed=seed), off=off)


def _reflected():
    """Gate and up swapped, only the last number of each token, about 1e-4, is too low: it changes its sign.

    Units come in pairs whose gates and ups change places, and whose columns of down differ in the last sign.
    """
    x, one, other, down = (one.abs() for one in _swiglu_inputs(160, 4, hidden=3, seed=360))
    x[80:] = 0  # no number of the last tokens tells
    last = torch.tensor([0.0, 0.0, 0.0, 1.0])[:, None]
    down, mirrored = down * (1 - last + 3e-5 * last), down * (1 - last - 3e-5 * last)
    gate, up = torch.cat((one + other, other)), torch.cat((other, one + other))
    return _mixed((0, 2, 1), x, gate, up, torch.cat((down, mirrored), 1))


def _fused(size, dim, hidden, seed, up_first=False, down_first=False):
    x, gate, up, down = _swiglu_inputs(3, dim, hidden=hidden, seed=seed)
    both = torch.stack([one.unflatten(0, (-1, size)) for one in ((up, gate) if up_first else (gate, up))], 1)
    weights = [both.flatten(0, 2), down]
    _require_one_order(weights, x, y := swiglu(x, gate, up, down), gate, up, down)
    return weights[::-1] if down_first else weights, x, y


def _decoy():
    """Many tokens, of which each second of the last half is not 0. As Phi(0.6 g) is about sigmoid(g), GELU fits best
    with gate and up swapped."""
    x, gate, up, down = _swiglu_inputs(300, 4, hidden=6, seed=380)
    x[:150] = x[150::2] = 0
    return _mixed((2, 1, 0), x, gate, 0.6 * gate + 0.01 * up, down)


def _positive():
    """All positive, and up 1.05 times gate: gate and up swapped, each number is too large, by 0.3 % at most."""
    x, gate, _, down = (one.abs() for one in _swiglu_inputs(40, 4, hidden=6, seed=370))
    gate = gate + 0.375
    down = 0.0015 * (down + 0.2)
    down[0] = down[-1] = 0  # so the first and last columns of y are the same in any order
    return _mixed((2, 1, 0), x + 0.75, gate, 1.05 * gate, down)


def _mirrored():
    """Gate and up change places when the halves of x do, and the tokens are their own mirror image or come in pairs.

    So gate and up swapped give the same rows in another order, most of them right, and each row still has the mean 0.
    """
    x, even, odd, down = _swiglu_inputs(10, 4, hidden=6, seed=390)
    x[:3], x[7:] = (x[:3] + x[:3].roll(2, -1)) / 2, (x[7:] + x[7:].roll(2, -1)) / 2
    x[5:7] = x[3:5].roll(2, -1)
    even, odd, down = even + even.roll(2, -1), (odd - odd.roll(2, -1)) / 40, down - down.mean(0)
    return _mixed((2, 1, 0), x, even + odd, even - odd, down)


ORDER = "Their shapes are equal: do you compute the layer both ways, with silu on the gate, and compare with y?"


def _same(answer, roles):
    tensors = isinstance(answer, tuple) and all(isinstance(one, torch.Tensor) for one in answer)
    return tensors and len(answer) == 3 and all(map(torch.equal, answer, roles))


def _judged_by_role(function, weights, x, y):
    """The answer for the list, then for its reverse: in one of them a wrong order is tried before the right one."""
    roles = matrix_roles(weights, x, y)
    for said, given in ("", (weights, x, y)), ("in reverse order, ", copy.deepcopy((weights[::-1], x, y))):
        answer = _judged_once(function, roles, said, *given)
        if not _same(answer, roles):
            break
    return answer


def _judged_once(function, roles, said, weights, x, y):
    """Says of matrices that are none of the right ones what kind of mistake they are."""
    answer = function(weights, x, y)
    if answer is None:
        shapes = ", ".join(str(tuple(one.shape)) for one in weights)
        hint = "Does your layer pass exercise 1, is it torch.allclose(..., atol=1e-4), do you try all six orders?"
        if len(weights) == 2:
            hint = "One matrix holds gate and up. Do you try all three layouts, and in each both gate and up first?"
        raise Wrong(f"{said}it returns None: no order of {shapes} gave y.", hint)
    answer = tuple(answer) if isinstance(answer, list) else answer
    if isinstance(answer, tuple) and [getattr(one, "shape", 0) for one in answer] == [one.shape for one in roles]:
        off = (swiglu(x, *answer) - y).abs().max().item()
        if ATOL < off < 0.1:
            hint = f"Here the layer is off by up to {off:.0e}. Do you compare each number, with the tolerance 1e-4 "
            hint += "(atol, not rtol)?"
            raise Wrong(f"{said}this order comes close, but another one gives y.", hint)
        if _same(answer, (roles[1], roles[0], roles[2])):
            raise Wrong(f"{said}gate and up are swapped.", ORDER)
    return answer


check_matrix_roles = check_of(Exercise(matrix_roles, [
    Case("D 3, F 2", _roles((2, 1, 0), 3, 2, 300)),
    Case("D equal to F, y off by 8e-5", _roles((2, 0, 1), 5, 5, 340, off=8e-5)),
    Case("gate and up swapped give the last number of each token another sign", _reflected()),
    Case("300 tokens, up about 0.6 gate", _decoy()),
    Case("positive, up 1.05 gate", _positive(), "Is the tolerance 1e-4 for each number, whatever its size?"),
    Case("gate and up swapped give the same rows in another order", _mirrored()),
    Case("fused, halves, F 48", _fused(48, 2, 48, 310)),  # 96 rows: 32 divides them, 64 does not
    Case("fused, halves, up first", _fused(6, 4, 6, 320, up_first=True, down_first=True)),
    Case("fused, rows in turn", _fused(1, 4, 2, 330)),
    Case("fused, rows in turn, up first, D 7, F 3", _fused(1, 7, 3, 335, up_first=True)),
    Case("fused, blocks of 32", _fused(32, 3, 64, 345, down_first=True)),
    Case("fused, blocks of 32, up first", _fused(32, 2, 96, 350, up_first=True)),
], [], allow=("SwiGLU",), harness=Harness(_judged_by_role, parts=("gate", "up", "down")),
    hints={MISFIT: "Orders that do not fit by shape: compare the shapes, and skip these orders."}))  # fmt: skip


def cut_units(model, n):
    """(n_layers, n) int64: of each block, the numbers of n hidden units that the model needs little."""
    sizes = []

    def watch(layer, x):
        hidden = F.silu(layer.gate_proj(x)) * layer.up_proj(x)
        sizes.append(hidden.flatten(0, -2).pow(2).mean(0).sqrt() * layer.down_proj.weight.norm(dim=0))
        return layer.down_proj(hidden)

    with torch.no_grad(), replaced(SwiGLU, watch):
        model(held_out_windows()[:4, :-1])
    return torch.stack(sizes).topk(n, largest=False).indices


@functools.cache
def _models():
    """{name of a case: model}: a small one; tiny-llama as it is stored, and with its units in another order."""
    sizes = dict(vocab_size=1024, dim=32, n_layers=3, n_heads=2, n_kv_heads=1, hidden_dim=40, max_seq_len=256)
    small = Llama(LlamaConfig(**sizes, norm_eps=1e-5, rope_theta=1e4, tie_embeddings=True))
    stored, generator = load_checkpoint(TINY_LLAMA), torch.Generator().manual_seed(0)
    trained = copy.deepcopy(stored)
    for layer in (block.feed_forward for block in trained.layers):
        order = torch.randperm(trained.config.hidden_dim, generator=generator)
        for part in (layer.gate_proj, layer.up_proj):
            part.weight.data = part.weight.data[order]
        layer.down_proj.weight.data = layer.down_proj.weight.data[:, order]
    models = {"small": small, "trained": trained, "stored": stored}
    models = {name: model.eval().requires_grad_(False) for name, model in models.items()}
    small.train().final_norm.eval().requires_grad_()  # which no hidden unit depends on
    return models


@torch.no_grad()
def _loss_without(model, units):
    """Loss with these units, (n_layers, n), at 0, on held-out text from between that of `held_out_windows`."""
    kept, tokens = {block.feed_forward: row for block, row in zip(model.layers, units, strict=True)}, held_out_tokens()
    windows = tokens[400:].unfold(0, 257, len(tokens) // 16)[::3][:6]

    def cut(layer, x):
        hidden = F.silu(layer.gate_proj(x)) * layer.up_proj(x)
        return layer.down_proj(hidden.index_fill(-1, kept[layer], 0))

    with replaced(SwiGLU, cut):
        logits = model(windows[:, :-1])
    return F.cross_entropy(logits.mT, windows[:, 1:]).item()


@functools.cache
def _by_chance(n):
    """Losses of tiny-llama with no unit cut, and with n of each block, drawn at random, for three seeds."""
    model, shape = _models()["trained"], (3, 6, 384)
    random = torch.rand(shape, generator=torch.Generator().manual_seed(0)).argsort(dim=-1)[..., :n]
    return _loss_without(model, random[0, :, :0]), [_loss_without(model, units) for units in random]


@functools.cache
def _measures():
    """{hint: (sizes of the units, (n_layers, F), the share that tells)}, of measures that miss something."""
    sizes = []

    def watch(layer, x):
        g, u = layer.gate_proj(x).flatten(0, -2), layer.up_proj(x).flatten(0, -2)
        hidden = F.silu(g) * u
        sizes.append((g.abs().mean(0), u.abs().mean(0), hidden.abs().median(0).values, hidden.mean(0).abs()))
        return layer.down_proj(hidden.unflatten(0, x.shape[:-1]))

    with torch.no_grad(), replaced(SwiGLU, watch):
        _models()["trained"](held_out_windows()[:, :-1])
    gates, ups, medians, means = map(torch.stack, zip(*sizes, strict=True))
    return {
        "Yours are the units with the smallest gates. What does a unit make of gate and up together?": (gates, 0.8),
        "Yours are the units with the smallest ups. What does a unit make of gate and up together?": (ups, 0.8),
        "Yours are small at most tokens. What do they do at the few that a median misses?": (medians, 0.8),
        "Yours are small on average, as positive and negative values cancel. Does each value count by its size?":
            (means, 0.6),
    }  # fmt: skip


def _why_no_better(model, units, rise):
    """What speaks against these units, whose rise is given in rises of a random choice."""
    layers, dims = [block.feed_forward for block in model.layers], {"gate_proj": 1, "up_proj": 1, "down_proj": 0}
    gate, up, down = (torch.stack([getattr(x, name).weight.norm(dim=dims[name]) for x in layers]) for name in dims)
    for sizes in (gate, up, down, gate * up, gate * up * down):
        small = sizes.topk(units.shape[1], largest=False).indices
        if (units[..., None] == small[:, None]).any(-1).float().mean() > 0.9:
            return "Small weights are no sign that a unit does little. What does it make of a text?"
    if (units.sort(dim=-1).values == units[0].sort().values).all():
        return "Yours are the same numbers in each block: unit 7 of one block has nothing to do with that of another."
    blocks = cut_units(model, units.shape[1])
    alike = (units[:, None, :, None] == blocks[None, :, None, :]).any(-1).float().mean(-1)  # (row, block)
    own = alike.diagonal() > 0.6
    if (alike.amax(1) > 0.6).all() and not own.any():
        return f"Row 0 fits block {alike[0].argmax()}: is row i that of block i?"
    if rise > 1.5:
        return "Are these the units that do most? And a large negative value is not a small one."
    for what, (sizes, most) in _measures().items():
        small = sizes.topk(units.shape[1], largest=False).indices
        if (units[..., None] == small[:, None]).any(-1).float().mean() > most:
            return what
    if own.any() and (alike.diagonal() < 0.4).any():
        return f"Row {own.int().argmax()} is well chosen, row {own.int().argmin()} is not: is each block measured?"
    if rise > 0.8:
        return "This is chance. Do you measure on many tokens, gates and ups together, and do rare large values count?"
    return "Better than chance. How often is a unit large, on which text, and how long is what it writes?"


MAX_RISE = 0.4  # of a random choice's rise; with block 0 alone well chosen the rise is 0.45 to 0.5 of it


def _judged_by_effect(function, name, n):
    if function is cut_units:  # chance is measured here, not in a learner's time
        return (name == "small" or _by_chance(n)) and n
    model = copy.deepcopy(_models()[name])
    before, hidden = snapshot(model), model.config.hidden_dim
    units = function(model, n)
    require_unchanged(model, before)
    if any(one.grad is not None for one in model.parameters()):
        raise Wrong("a model's weights hold a .grad that was not there.", "model.zero_grad() takes gradients away.")
    if isinstance(units, torch.Tensor) and units.is_floating_point():
        raise Wrong(f"the result is {units.dtype}, expected int64.", "Numbers of units are asked, not their sizes.")
    require_form(units, torch.zeros(model.config.n_layers, n, dtype=torch.int64), CUT_UNITS)
    units = units.detach()
    if units.min() < 0 or units.max() >= hidden or any(len(row.unique()) < n for row in units):
        said = f"the numbers go from {units.min()} to {units.max()}, expected {n} different ones in each block"
        raise Wrong(f"{said}, of 0 to {hidden - 1}.", "Count within each block, from 0. A unit can be cut once.")
    if name == "small":
        return n
    nothing, chance = _by_chance(n)
    by_chance = sum(chance) / len(chance) - nothing
    loss, bar = _loss_without(_models()[name], units), nothing + MAX_RISE * by_chance * CUT_UNITS.tolerance
    if loss <= bar:
        return n
    said = f"cut, your units give the loss {loss:.2f}; the bar is {bar:.2f}, random choices give {min(chance):.2f} to "
    hint = _why_no_better(_models()[name], units, (loss - nothing) / by_chance)
    if _loss_without(_models()["stored"], units) <= bar:
        hint = "In the stored model these would do. Here units have other numbers: do you use the argument `model`?"
    raise Wrong(f"{said}{max(chance):.2f}, nothing cut {nothing:.2f}.", hint)


CUT_UNITS = Exercise(cut_units, [
    Case("3 blocks of 40 units, n 5", ("small", 5)), Case("6 blocks of 384 units, n 96", ("trained", 96)),
], [], harness=Harness(_judged_by_effect), allow=(
    "replaced", "held_out_windows", "held_out_loss", "encode", "load_tokenizer", "excerpt", "reference_text",
    "load_checkpoint", "SwiGLU"))  # fmt: skip
check_cut_units = check_of(CUT_UNITS)
