"""The exercises of notebook 09, scaling out: specification, cases, known mistakes with hints, check."""

import contextlib
import ctypes
import math
import queue
import re
import threading
import time
from copy import deepcopy
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from checks.base import BATCH, MEMORY, Case, Exercise, Harness, Wrong, draw, each, mutate, strided
from checks.full_model import small_llama
from checks.judge import check_of
from checks.run import ENDLESS


def split_feed_forward(x, w_gate, w_up, w_down, n_ranks):
    """What each rank computes of SwiGLU before the sum: (n_ranks, ..., D); rank r has the r-th share of the units."""
    gates, ups = w_gate.chunk(n_ranks), w_up.chunk(n_ranks)
    downs = w_down.chunk(n_ranks, dim=1)
    parts = [(F.silu(x @ g.T) * (x @ u.T)) @ d.T for g, u, d in zip(gates, ups, downs, strict=True)]
    return torch.stack(parts)


_split = partial(mutate, split_feed_forward)
GATES_UPS, DOWNS = "w_gate.chunk(n_ranks), w_up.chunk(n_ranks)", "w_down.chunk(n_ranks, dim=1)"
ALL, STACKED = "zip(gates, ups, downs, strict=True)", "torch.stack(parts)"
TURNED = "A unit has a row in gate and up, a column in down: .chunk(n, dim=1) cuts columns. Is it x @ w.T each time?"
WHOLE_NUMBERS = (  # section 9.1's: x, w_gate, w_up, w_down
    torch.tensor([1.0, 2.0]),
    torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]]),
    torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]),
    torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 1.0, 1.0]]),
)


def _ffn(n=6, seed=0):
    shapes = (n, 4), (n, 4), (4, n)
    return tuple(draw(*shape, seed=seed + place, scale=0.7) for place, shape in enumerate(shapes, start=1))


check_split_feed_forward = check_of(Exercise(split_feed_forward, [
    Case("section 9.1's vector and weights, 2 ranks", (*WHOLE_NUMBERS, 2)),
    Case("one long vector, 3 ranks of as many units as dim", (draw(4, seed=50, scale=9.0), *_ffn(12, seed=51), 3)),
    Case("batch 2, as many units as dim, one rank, float64",
         (*each(torch.float64, draw(2, 3, 4, seed=20), *_ffn(4, seed=21)), 1), BATCH),
    Case("not contiguous, one unit for each rank, bfloat16",
         each(torch.bfloat16, strided(draw(1, 2, 3, 4, seed=60), 1, 2), *map(strided, _ffn(seed=61)), 6), MEMORY),
    Case("gradients, 2 ranks, F, D 4", (draw(3, 4, seed=70), *_ffn(4, seed=71), 2), gradients=True, also="half, meta"),
], [  # known mistakes
    ("Does each rank return its own part, not the sum?", _split(STACKED, "torch.stack([sum(parts)] * n_ranks)")),
    ("Does each rank return its own part, not the sum?", _split(STACKED, "sum(parts)")),
    ("Is there a new first axis for the ranks? torch.stack makes one.", _split(STACKED, "torch.cat(parts)")),
    ("Are gate and up cut apart? Yours are cut as one matrix, so that the first share has rows of gate alone.",
     _split(GATES_UPS, "zip(*(w.chunk(2) for w in torch.cat([w_gate, w_up]).chunk(n_ranks)), strict=True)")),
    ("Are gate and up cut by their rows, the outputs? Yours are cut by columns, the inputs.",
     _split(GATES_UPS, "(w.chunk(n_ranks, 1) for w in (w_gate, w_up))",
            DOWNS, "[w_down] * n_ranks", "g, u, d in zip(gates", "x, g, u, d in zip(x.chunk(n_ranks, -1), gates")),
    ("The parts are summed, not averaged: do you divide by n_ranks?", _split(STACKED, f"{STACKED} / n_ranks")),
    ("chunk(n) gives n pieces, split(n) gives pieces of n: which of them do you use?",
     _split(GATES_UPS, GATES_UPS.replace("chunk", "split"), DOWNS, DOWNS.replace("chunk", "split"))),
    ("Has rank r the r-th share in a row? You deal the units out in turn.",
     _split(GATES_UPS, "([w[r::n_ranks] for r in range(n_ranks)] for w in (w_gate, w_up))",
            DOWNS, "[w_down[:, r::n_ranks] for r in range(n_ranks)]")),
    (TURNED, _split("x @ g.T", "x @ g", "x @ u.T", "x @ u", "@ d.T", "@ d")),
    ("Does each rank use its own units? Yours all use the first share.", _split(ALL, f"[next({ALL})] * n_ranks")),
    ("Which columns of down are this rank's? Yours are the first.", _split(DOWNS, f"[{DOWNS}[0]] * n_ranks")),
    ("Is it this rank's part alone? Yours adds up the parts so far.", _split(STACKED, f"{STACKED}.cumsum(0)")),
], hints={"multipl|size mismatch|batch2": TURNED}))  # fmt: skip


def merge_attention(outputs, logsumexps):
    """One attention, (T, h), from what each rank found with its own keys, (R, T, h) and (R, T)."""
    return _weighted(outputs, logsumexps.double().softmax(0))


def _weighted(outputs, weights):
    """The sum of the ranks' outputs with these weights (R, T); a weight of 0 leaves an output out."""
    weights = weights.double()[..., None]
    return (weights * outputs.double().masked_fill(weights == 0, 0.0)).sum(0).to(outputs.dtype)


def _dealt_out(n_queries, n_keys, n_ranks, head_dim=4, seed=0, shift=0.0, dtype=torch.float32):
    """A real attention over keys that are dealt out: each rank's output, in this dtype, and logsumexp."""
    q, k, v = (draw(n, head_dim, seed=seed + i) for i, n in enumerate((n_queries, n_keys, n_keys)))
    outputs, logsumexps = [], []
    for keys, values in zip(k.chunk(n_ranks), v.chunk(n_ranks), strict=True):
        scores = q @ keys.T / head_dim**0.5
        outputs.append(scores.softmax(-1) @ values)
        logsumexps.append(scores.logsumexp(-1) + shift)
    return torch.stack(outputs).to(dtype), torch.stack(logsumexps)


def _blind(case, seen_by, output):
    """The same, but rank r sees no key of the queries for which seen_by has False: -inf, and this output."""
    outputs, logsumexps = case
    seen = torch.tensor(seen_by)
    return outputs.masked_fill(~seen[..., None], output), logsumexps.masked_fill(~seen, -torch.inf)


BY_HAND = torch.tensor([[[1.0, 0.0]], [[5.0, 4.0]]]), torch.tensor([[0.0], [3.0]]).log1p()  # denominators 1 and 4
HIDDEN = "0 times nan or inf is nan: leave outputs out where the weight is 0. A rank may have -inf for one query only."
VISIBLE = "A fault of a rank that sees keys must show: leave out only what has the weight 0."
SMALL = "A weight of 1e-30 is not 0, though float16 makes it 0. Leave out only what has the weight 0: a fault shows."
FAINT = torch.tensor([[0.0, -torch.inf], [-69.078, 0.0]])  # logarithms of 1 and 1e-30; of 0 and 1
LARGE = "exp of 300 is inf in float32, and exp of -300 is 0. But a query's weights depend on differences alone."
BEHIND = [[True, False, False], [True, True, False], [True, True, True]]  # one rank sees no key of a query, or two do
AXIS_FOR_H = "The weights are (R, T), the outputs (R, T, h): weights[..., None] gets an axis for h."
LN2 = math.log(2)
MERGE_ATTENTION = Exercise(merge_attention, [
    Case("by hand, one query, 2 ranks with denominators 1 and 4", BY_HAND),
    Case("ranks, queries, numbers of a head: 3 each", _dealt_out(3, 9, 3, 3, 20, dtype=torch.float64), also="meta"),
    Case("logsumexps near 300 and -300", _dealt_out(2, 8, 2, seed=50, shift=torch.tensor([300.0, -300.0])), LARGE),
    Case("one rank", _dealt_out(3, 4, 1, seed=30)),
    *[Case(f"a rank sees no key (-inf), its output is {output}",
           _blind(_dealt_out(3, 9, 3, seed=70), seen, output), HIDDEN)
      for seen, output in ((BEHIND, torch.nan), (BEHIND[::-1], torch.inf))],
    Case("inf of a rank with keys", (torch.tensor([[[1.0, 1]], [[math.inf, -math.inf]]]), torch.zeros(2, 1)), VISIBLE),
    Case("nan at a weight of 1e-30, or 0", (torch.tensor([[[1], [math.nan]], [[math.nan], [2]]]).half(), FAINT), SMALL),
    *[Case(f"{n} ranks, not contiguous, outputs in {half}, logsumexps in float32, near 300",
           tuple(map(strided, _dealt_out(3, 16, n, seed=90, shift=300.0, dtype=half))),
           f"Do the logsumexps stay in float32? Near 300 {half} {knows} {MEMORY}") for n, half, knows in (
        (2, torch.float16, "knows quarters alone."), (4, torch.bfloat16, "knows every second whole number alone."))],
], [  # known mistakes
    ("A rank with the larger denominator counts for more. Yours is the mean.", lambda o, s: o.nan_to_num().mean(0)),
    ("Do the weights of a query add up to 1? Are they divided by their sum?", lambda o, s: _weighted(o, s.exp())),
    (LARGE, lambda o, s: _weighted(o, s.exp() / s.exp().sum(0))),
    ("Are these the denominators? They are given as logarithms: exp makes them, and softmax takes it itself.",
     lambda o, s: _weighted(o, s / s.sum(0))),
    ("The weighted outputs are added: their weights sum to 1 already. Do you take a mean, too?",
     lambda o, s: _weighted(o, s.softmax(0)) / len(o)),
    (HIDDEN, lambda o, s: (s.softmax(0)[..., None] * o).sum(0)),
    ("Do weights add up to 1 over ranks? Yours do over the queries.", lambda o, s: _weighted(o, s.softmax(1))),
    *[("Is the base e all the way? The logarithms are natural: no exp2, no log2.", bug) for bug in (
        lambda o, s: _weighted(o, (s * LN2).softmax(0)),
        lambda o, s: _weighted(o, (s - s.logsumexp(0) / LN2).exp()),
        lambda o, s: _weighted(o, (s - s.logsumexp(0)).exp2()))],
    ("softmax takes exp itself: hand it the logsumexps.", lambda o, s: _weighted(o, s.exp().softmax(0))),
    (AXIS_FOR_H, lambda o, s: (s.softmax(0) * o).sum(0)),
], hints={"must match": AXIS_FOR_H})  # fmt: skip
check_merge_attention = check_of(MERGE_ATTENTION)


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


def _next(asked):
    """What a rank asks for or gives; a rank is a thread of its own, whose time on the processor is counted here."""
    start = time.process_time()
    while time.process_time() - start < BUSY:
        with contextlib.suppress(queue.Empty):
            return asked.get(timeout=0.1)
    raise Wrong(f"no answer after {BUSY:g} seconds on the processor.", ENDLESS)


def _on_ranks(n, mend, run, training):
    """What run(part) gives on each rank: threads in place of processes, each in turn runs to its next sum."""
    asked, sums = ([queue.Queue() for _ in range(n)] for _ in range(2))

    def work(rank):
        def all_reduce(tensor):
            if threading.current_thread() is not ranks[rank]:
                hint = "Is it a hook of all modules of this process? Register it on modules of this model."
                raise Wrong("a hook of one rank runs in another rank's model.", hint)
            asked[rank].put(tensor.detach().clone())
            if (total := sums[rank].get()) is None:
                raise SystemExit
            tensor.data.copy_(total)

        try:
            part = _part(rank, n, all_reduce).train(training)
            if (answer := mend(part, all_reduce)) is not None:
                raise Wrong(f"nothing is expected, not {type(answer).__name__}.", "Add hooks, and return nothing.")
            answer = run(part)
            if part.training != training or not all(weight.requires_grad for weight in part.parameters()):
                said = "the model is left in another mode: train or eval, or requires_grad."
                raise Wrong(said, "Add hooks, and leave all else of the model as it was.")
            asked[rank].put(answer)
        except BaseException as error:
            asked[rank].put(error)

    ranks = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(n)]
    try:
        said = [rank.start() or _next(one) for rank, one in zip(ranks, asked, strict=True)]
        while True:
            if errors := [one for one in said if isinstance(one, BaseException)]:
                raise errors[0]
            if all(isinstance(one, tuple) for one in said):
                return said
            if len({getattr(one, "shape", None) for one in said}) > 1:
                hint = "Do all ranks call all_reduce equally often, with the same shapes?"
                raise Wrong("a rank waits for a sum that another one skips, or adds up another shape.", hint)
            said = [theirs.put(torch.stack(said).sum(0)) or _next(one) for theirs, one in zip(sums, asked, strict=True)]
    except BaseException:
        for rank in ranks:
            if rank.is_alive():  # it may be in a loop that never ends
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(rank.ident), ctypes.py_object(SystemExit))
        raise
    finally:
        for one in sums:
            one.put(None)


CUT = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1}  # along dim


def _shares(name, weight, n):
    """What each of n ranks has of a module's weight, or of its gradient."""
    return weight.chunk(n, CUT[name]) if name in CUT else [weight] * n


def _part(rank, n, all_reduce):
    """What section 9.3's split leaves to a rank."""
    model = deepcopy(WHOLE)
    for name, module in [(path.rpartition(".")[2], module) for path, module in model.named_modules()]:
        if name in CUT:
            module.weight = nn.Parameter(_shares(name, module.weight, n)[rank].clone())
        if CUT.get(name) == 1:
            module.register_forward_hook(lambda module, inputs, output: all_reduce(output))
    heads = {"n_heads": model.config.n_heads // n, "n_kv_heads": model.config.n_kv_heads // n}
    model.config = replace(model.config, head_dim=model.config.head_dim, **heads)
    return model


WHOLE = small_llama("large", n_kv_heads=4, n_layers=3).requires_grad_()  # in new weights a fault would hide
TEXT = torch.arange(5, 5 + 7 * 48, 7) % 64
TEXTS = {2: (TEXT[:24].view(2, 12), TEXT[None, 24:40]), 4: (TEXT[None, :14], TEXT[14:20].view(3, 2))}  # by ranks
BACK = [name for name, _ in WHOLE.named_parameters()][::-1]  # the weights, seen from the loss


BUSY = 5.0  # seconds for what a rank does between two sums
SCALE = {2: 1.0, 4: 1e-6}  # of the loss, by ranks: a small gradient counts, too


def _learns(texts, scale, model):
    """All logits, as one vector, and the gradients of both texts together, after a step, {name: gradient}."""
    logits, cache = [], model.new_cache(1)
    for place, tokens in enumerate((texts[0], *texts)):
        if place == 1:
            model.zero_grad()
        logits.append(model(tokens[:, :-1]))
        (scale * F.cross_entropy(logits[-1].mT, tokens[:, 1:])).backward()
    with torch.no_grad():
        logits += [model(piece, cache) for piece in TEXT[None, :4].split(3, dim=1)]
    gradients = {name: 0 * one.detach() if one.grad is None else one.grad for name, one in model.named_parameters()}
    return torch.cat([one.detach().flatten() for one in logits]), gradients


def _effect(mend, model, n):
    """The logits, then for each weight the gradients of n ranks, seen from the loss; two ranks train, four do not."""
    if mend is mend_split:  # what others are compared with
        logits, want = _learns(TEXTS[n], SCALE[n], deepcopy(WHOLE))
        return logits, *(torch.stack([*_shares(name.split(".")[-2], want[name], n)]) for name in BACK)
    with patch.dict(nn.modules.module._global_backward_hooks), patch.dict(nn.modules.module._global_backward_pre_hooks):
        found = _on_ranks(n, mend, partial(_learns, TEXTS[n], SCALE[n]), training=n == 2)
    return found[0][0], *(torch.stack([one[name] for _, one in found]) for name in BACK)


def _hooked(names):
    """A known mistake: of which modules' outputs, or parameters, gradients are summed."""

    def mend(model, all_reduce):
        summed = partial(_total, all_reduce=all_reduce)

        def hook(module, inputs, output):
            if output.requires_grad:
                output.register_hook(summed)

        for name, place in (*model.named_modules(), *model.named_parameters()):
            if re.fullmatch(names, name):
                place.register_hook(summed) if torch.is_tensor(place) else place.register_forward_hook(hook)

    return mend


ONE_BRANCH = "A block has two places where the stream is read. Do you sum at both?"
TWICE = "Do the ranks have parts there? Where all have the same gradient, a sum makes it n times as large."
check_mend_split = check_of(Exercise(mend_split, [
    Case("2 ranks, model.train(), after zero_grad()", ("large weights", 2)),
    Case("4 ranks, model.eval(), a loss times 1e-6", ("large weights", 4),
         "Is there a sum in eval mode, too, where T is 1, and of the smallest gradient?"),
], [  # known mistakes
    ("Does your hook hand its sum back? The gradients are as without it.", _hooked("")),
    *[(ONE_BRANCH, _hooked(f".*{branch}_norm")) for branch in ("attention", "ffn")],
    ("Are all blocks mended? Yours is the first one alone.", _hooked("layers.0.*_norm")),
    *[(TWICE, _hooked(names)) for names in (".*_norm", ".*(o|down)_proj", "layers.*(_norm|[on]_proj)")],
    ("The stream's own gradient is whole, only the branch brings parts: do you add up both?",
     lambda model, all_reduce: [norm.register_forward_pre_hook(lambda module, inputs:
         inputs[0].register_hook(lambda own: _total(own, all_reduce)) and None if inputs[0].requires_grad else None)
         for norm in _norms(model)].clear()),
    ("Is the norm's own gain below the sum, too? On the way back yours comes behind it: the gain gets a part.",
     lambda model, all_reduce: [norm.register_full_backward_hook(
         lambda module, gradients, _: (_total(gradients[0], all_reduce),)) for norm in _norms(model)].clear()),
    ("After a second text a gradient is the sum of both: only what is new in it may be added up.",
     lambda model, all_reduce: [norm.register_full_backward_hook(
         lambda module, gradients, _: (_total(gradients[0], all_reduce),)) and
         norm.weight.register_post_accumulate_grad_hook(lambda weight: all_reduce(weight.grad))
         for norm in _norms(model)].clear()),
    ("all_reduce sums in place and returns None: hand back the tensor itself.",
     lambda model, all_reduce: [norm.register_full_backward_pre_hook(
         lambda module, gradients: (all_reduce(gradients[0].clone()),)) for norm in _norms(model)].clear()),
    ("Parts are added up: do you divide by the number of ranks?", lambda model, all_reduce: mend_split(
        model, lambda part: all_reduce(part) or part.div_(WHOLE.config.n_heads // model.config.n_heads))),
    *[("Matrices below still get a part alone: do you sum where the gradient flows on, or where it ends?",
       _hooked(names)) for names in (r"(tok|layers.*norm).*weight", "layers.*norm.weight")],
    ("Each rank has other heads and units: do their gradients belong into one sum?", _hooked(".*weight")),
],
    tolerance=5.0,  # 1e-4 of the largest number
    hints={"doesn't require grad": "While it writes, do you ask for a gradient of a tensor that has none?",
           "invalid number of grad": "A hook returns a tuple; of a norm it has one gradient: (total,).",
           "'tuple' object has no": "gradients is a tuple: the first of it is the tensor to sum."},
    harness=Harness(_effect, ("the logits, right without your hooks, now",
                              *(f"seen from the loss, the first wrong gradient, of {name}," for name in BACK))),
))  # fmt: skip
