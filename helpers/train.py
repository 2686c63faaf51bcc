"""The small training loop; `tools/tiny_llama.py` made assets/tiny-llama with it."""

import math
import time
from collections.abc import Callable
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from helpers.config import LlamaConfig
from helpers.corpus import batches
from helpers.device import explain_out_of_memory
from helpers.model import Llama
from helpers.validate import require_number, require_whole

TINY = LlamaConfig(
    vocab_size=1024, dim=128, n_layers=6, n_heads=4, n_kv_heads=2, hidden_dim=384,
    max_seq_len=256, norm_eps=1e-5, rope_theta=500_000.0, tie_embeddings=True,
)  # fmt: skip


def learning_rate(step: int, steps: int, peak: float, warm_up: int = 100) -> float:
    """The rate of a step, counted from 0: linear warm-up, then half a cosine to a tenth of the peak, where it stays."""
    require_number("peak", peak, lambda peak: peak >= 0, ">= 0, for example 3e-3")
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = min(1, (step - warm_up) / max(1, steps - warm_up))
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def train(
    model: Llama, read: Callable[[], torch.Tensor], *, steps: int, batch_size: int = 8, seed: int = 0,
    peak: float = 3e-3, warm_up: int = 100, weight_decay: float = 0.3,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:  # fmt: skip
    """Train in place with AdamW on random windows of max_seq_len tokens.

    Args:
        read: returns the training text as token ids, (N,) int64; it is called again for each pass over the text.
        steps, batch_size: steps of the optimizer, and windows in each of them.
        seed: of the places in the text where the windows begin.
        peak, warm_up: as in `learning_rate`. weight_decay: of the matrices, not of the norms' gains.
        report: called after each step with its number and its loss.

    Returns:
        loss of each step [nat/token].

    Raises:
        ValueError: if a setting is out of range, weights are float16 or prepared for decoding, or a loss is NaN or inf.
        torch.OutOfMemoryError: if a step does not fit into memory; the text says which setting to change.
    """
    for name, value, least in (("steps", steps, 1), ("batch_size", batch_size, 1), ("warm_up", warm_up, 0)):
        require_whole(name, value, least)
    seed = require_whole("seed", seed, 0)
    require_number("peak", peak, lambda peak: 0 < peak <= 1000, "> 0 and <= 1000, for example 3e-3")
    require_number("weight_decay", weight_decay, lambda decay: 0 <= decay <= 1000, ">= 0 and <= 1000, for example 0.1")
    if not isinstance(model.lm_head.weight, nn.Parameter):
        raise ValueError("the matrices are no parameters (prepare_for_decoding): train the model it is made from.")
    if model.lm_head.weight.dtype == torch.float16:
        raise ValueError("the weights are float16, in which AdamW's eps rounds to 0, and clipping makes finite "
                         "gradients 0 if their norm is above 65,504: pass model.float().")  # fmt: skip
    device = model.tok_embeddings.weight.device
    decays = {2: weight_decay, 1: 0.0}  # matrices and gains
    groups = [{"params": [w for w in model.parameters() if w.ndim == n], "weight_decay": decays[n]} for n in decays]
    optimizer, losses = torch.optim.AdamW(groups, betas=(0.9, 0.95)), []
    windows = _windows(read, batch_size, model.config.max_seq_len, torch.Generator().manual_seed(seed))
    asked = f"batch_size={batch_size} windows of max_seq_len={model.config.max_seq_len} tokens are too much to train on"
    too_much = f"{asked} at once: pass a smaller batch_size, or make a model of a smaller max_seq_len or dim."
    model.train()
    for step in range(steps):
        inputs, targets = next(windows)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak, warm_up)
        with explain_out_of_memory(too_much):
            losses.append(training_step(model, optimizer, inputs.to(device), targets.to(device)))
        if not math.isfinite(losses[-1]):
            raise ValueError(f"step {len(losses)}: the loss is {losses[-1]}: make the model anew, with peak < {peak}.")
        report(len(losses), losses[-1])
    model.eval()
    return losses


def countdown(steps: int, then: Callable[[int, float], None] = lambda step, loss: None) -> Callable[[int, float], None]:
    """For `train(..., report=...)`: shows step, loss and seconds left in one line of a notebook, then calls `then`."""
    from IPython.display import HTML, display  # here, because training itself needs no notebook

    start, shown = time.perf_counter(), 0.0  # shown: when the line was last written [s since the start]
    line = display(HTML(f"step 0 of {steps}"), display_id=True)  # None where there is no notebook

    def report(step, loss):
        nonlocal shown
        passed = time.perf_counter() - start
        if line and step and (passed > shown + 1 or step == steps):
            left = f", about {passed * (steps - step) / step:.0f} s left" if step < steps else ""
            line.update(HTML(f"step {step} of {steps}, loss {loss:.2f} nat/token{left}"))
            shown = passed
        then(step, loss)

    return report


def training_step(model: Llama, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """One step at the optimizer's present rate; the loss before it [nat/token]."""
    torch.clear_autocast_cache()  # a block of autocast around many steps keeps 16-bit matrices, also those without grad
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    clip_gradients(model, 1.0)
    optimizer.step()
    torch.clear_autocast_cache()  # the copies are older than this step
    return loss.item()


@torch.no_grad()
def clip_gradients(model: nn.Module, longest: float):
    """Shorten all gradients by one factor, in place, if together they are longer than `longest`.

    Of a model that is split over processes each rank sees parts: their squares are summed over the ranks, those of a
    weight that every rank holds whole are counted once. So all ranks shorten by the same factor, and copies stay equal.
    Parts are DTensors, and matrices that are smaller than their nn.Linear says (in_features, out_features).
    """
    weights, device = list(model.parameters()), next(model.parameters()).device
    parts = {w for w in weights if any(place.is_shard() for place in getattr(w, "placements", ()))}
    if dist.is_available() and dist.is_initialized():
        linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
        parts |= {part.weight for part in linears if part.weight.shape != (part.out_features, part.in_features)}
    if not parts:
        nn.utils.clip_grad_norm_(weights, longest)
        return
    gradients, squares_of_wholes, squares_of_parts = [], torch.zeros((), device=device), torch.zeros((), device=device)
    for weight in (weight for weight in weights if weight.grad is not None):
        gradient = weight.grad.to_local() if hasattr(weight.grad, "to_local") else weight.grad
        squares = squares_of_parts if weight in parts else squares_of_wholes
        squares += gradient.float().square().sum()  # in place
        gradients.append(gradient)
    dist.all_reduce(squares_of_parts)
    factor = (longest / ((squares_of_wholes + squares_of_parts).sqrt() + 1e-6)).clamp(max=1)  # as clip_grad_norm_ does
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype))


def _windows(read, batch_size, seq_len, generator):
    while True:
        tokens = read()
        per_pass = max(1, math.ceil(len(tokens) / (batch_size * seq_len)))  # 1: `batches` refuses an empty text
        yield from islice(batches(tokens, batch_size, seq_len, generator), per_pass)
