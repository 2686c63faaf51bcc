"""The same model with its weights laid out for steps of one token."""

import torch

from beyond.fast_decode.layouts import LAYOUTS, LaidOutLinear, full_name, lay_out, shape_of
from beyond.fast_decode.measure import seconds_by_threads, times_of
from beyond.fast_decode.step import is_untouched, logits_after
from helpers.cache import KVCache
from helpers.model import Llama
from helpers.validate import require_plain


def prepare_for_decoding(model: Llama, weights: str | None = None, layout: str | None = None):
    """The same function with its matrices laid out for steps of one token on the CPU.

    Which layout is fastest depends on the processor, so each is timed on the model's own matrices; one thread or all is
    timed, too. `print(prepared)` says what was chosen, and how long a step's products take.

    Use the result only to generate text. Its matrices are copies; the embedding is shared with the model. So prepare
    again after you have trained, moved or cast the model, and do not move or cast the result. A model on an
    accelerator is returned as it is.

    Args:
        model: the LLaMA; it stays as it is.
        weights: None keeps the precision and the results (rounding apart); "float16" and "bfloat16" take 2 bytes per
            weight (float16 has more digits, but what goes into a product must stay below 65,504); "int8" takes 1, but
            2 for queries, keys and values, because a score multiplies two rounded vectors; "int4" takes about half.
        layout: the name of one in `LAYOUTS` for all matrices; nothing is timed then. "packed" (float32) is for several
            texts at once and for long prompts; for one token, or without `torch.no_grad()`, another may be faster.

    Returns:
        a LLaMA of the same config, with the same forward, cache and embedding.

    Raises:
        ValueError: if weights or layout is another word, the model is prepared already, or a relative.

    Source:
        int8 with a scale per row: LLM.int8, arXiv 2208.07339, section 2; notebook 07.
    """
    if weights not in (None, "float16", "bfloat16", "int8", "int4"):
        raise ValueError(f"weights={weights!r} is not known: use None, 'float16', 'bfloat16', 'int8' or 'int4'.")
    if isinstance(model.lm_head, LaidOutLinear):
        raise ValueError("this model is prepared already: pass the one that it was made from.")
    require_plain(model, "prepare_for_decoding", "generate with the model itself")
    first = model.tok_embeddings.weight
    dtype = getattr(torch, weights) if weights else first.dtype
    names = LAYOUTS.get(dtype, ("rows",))
    if layout not in (None, *names):
        raise ValueError(f"layout={layout!r} is not known for {dtype}: use one of {names}.")
    if first.device.type != "cpu":
        return model  # an accelerator already uses all of its cores for a single vector
    groups = {}  # the matrices that are read at once, by shape
    with torch.no_grad():
        lay_out(model, lambda *group: groups.setdefault(shape_of(group), []).append(group))
        candidates = {kind: LAYOUTS.get(kind, ("rows",)) for kind in (dtype, first.dtype)}  # the second for comparison
        candidates |= {torch.float16: LAYOUTS[torch.float16]} if dtype == torch.int8 else {}
        times = {} if layout else times_of(groups, candidates)

        def linear(*group):
            own, kind = times.get(shape_of(group), {}), _stored_as(dtype, group)
            best = layout if layout in candidates[kind] else candidates[kind][-1]  # float16 beside int8 has no bags
            if not layout:
                slow = {"rows": 1.1} if kind in (torch.float16, torch.int8) else {}  # a prompt must widen them first
                best = min(candidates[kind], key=lambda name: own[full_name(kind, name)] * slow.get(name, 1.0))
            return LaidOutLinear(group, kind, best)

        prepared = lay_out(model, linear)
        seconds = {} if layout else seconds_by_threads(prepared)
    prepared.__class__ = _PreparedLlama  # no closure: a deep copy runs on its own
    prepared.prefers_one_thread = bool(seconds) and min(seconds, key=seconds.get) == 1
    prepared.report = _report(groups, times, seconds, dtype, first.dtype)  # kept: groups hold the model's matrices
    return prepared


def _stored_as(dtype, group):
    # KL from float64: all in int8 1.3e-2 (random 135M) and 1.2e-4 (tiny-llama), with float16 here 3.8e-3 and 8.0e-5.
    return torch.float16 if dtype == torch.int8 and len(group) == 3 else dtype  # queries, keys and values


class _PreparedLlama(Llama):
    def forward(self, tokens, cache=None, last_only=False, n_pad=None):
        if getattr(tokens, "shape", ())[1:] != (1,):  # many tokens, or nothing that a model takes
            return super().forward(tokens, cache, last_only, n_pad)
        n_threads, is_one_text = torch.get_num_threads(), len(tokens) == 1
        torch.set_num_threads(1 if self.prefers_one_thread and is_one_text else n_threads)
        try:
            is_lean = is_one_text and n_pad is None and type(cache) is KVCache
            is_lean = is_lean and (cache.n_pad is None or not cache.n_pad.any())
            if not is_lean or self.tok_embeddings.weight.dtype != torch.float32 or not is_untouched(self):
                return super().forward(tokens, cache, last_only, n_pad)
            self.check_call(tokens, cache)
            with torch.no_grad():
                logits = logits_after(self, tokens.item(), cache)
            cache.length += 1
            return logits.view(1, 1, -1)
        finally:
            torch.set_num_threads(n_threads)

    def extra_repr(self):
        return self.report


def _report(groups, times, seconds, dtype, original):
    if not times:
        return "nothing was measured"
    best = {}  # time of all products of a step [ms], with these weights and with the model's own
    for kind in (dtype, original):
        ways = {shape: full_name(_stored_as(kind, alike[0]), "") for shape, alike in groups.items()}
        own = {shape: min(t for way, t in times[shape].items() if way.startswith(ways[shape])) for shape in groups}
        best[full_name(kind, "")] = sum(len(alike) * own[shape] for shape, alike in groups.items()) / 1000
    products = ", ".join(f"{kind}{ms:.2f} ms" for kind, ms in best.items())
    slow = len(best) > 1 and best[full_name(original, "")] < 1.3 * best[full_name(dtype, "")]
    measured = ", ".join(f"{n}: {1000 * s:.2f} ms" for n, s in seconds.items())
    note = "; these weights save memory here, not time" if slow else ""
    threads = f"{min(seconds, key=seconds.get)} (four blocks on {measured})"
    return f"products of a step: {products}{note}\nthreads: {threads}"
