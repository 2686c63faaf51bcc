"""Writing: choose the next token from the logits, append it, repeat; the cache keeps what was read."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from helpers.device import explain_out_of_memory
from helpers.formats.files import read_json
from helpers.model import Llama
from helpers.validate import as_whole, require_number, require_tokens, require_whole, shown


def next_token_probabilities(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> torch.Tensor:
    """Probabilities to draw the next token from.

    Args:
        logits: of the last position, (B, V) float.
        temperature: divides the logits; below 1 sharpens, above 1 flattens; 0 puts everything on the largest.
        top_k: keep the k most likely tokens.
        top_p: then keep the likeliest tokens whose probabilities reach top_p together, at least one (arXiv 1904.09751).

    Returns:
        probabilities, (B, V), rows sum to 1.

    Raises:
        ValueError: if a setting is out of range, the logits are not (B, V), or a row has NaN, +inf or nothing but -inf.

    Example:
        >>> next_token_probabilities(torch.tensor([[2.0, 1.0, 0.0]]), top_k=1)
        tensor([[1., 0., 0.]])
    """
    _require_settings(temperature, top_k, top_p)
    _require_logits(logits)
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    logits = logits - logits.amax(dim=-1, keepdim=True)  # a tiny temperature must neither overflow nor round to 0
    probabilities = (logits / max(temperature, torch.finfo(logits.dtype).tiny)).softmax(dim=-1)
    if top_k is None and top_p is None:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        ordered[:, top_k:] = 0
        ordered /= ordered.sum(dim=-1, keepdim=True)
    if top_p is not None and top_p < 1:  # at 1 the rounding of the sum would drop rare tokens
        before = ordered.cumsum(dim=-1) - ordered  # probability of all tokens that are more likely
        ordered[:, 1:][before[:, 1:] >= top_p] = 0  # the likeliest stays, however small top_p is
        ordered /= ordered.sum(dim=-1, keepdim=True)
    return torch.zeros_like(ordered).scatter_(-1, order, ordered)


def _require_logits(logits):
    if logits.ndim != 2:
        has = f"logits have shape {tuple(logits.shape)}"
        raise ValueError(f"{has}: pass (batch, vocabulary), for one row logits[None].")
    if not logits.is_floating_point():
        raise ValueError(f"logits are {logits.dtype}, which cannot hold fractions: pass logits.float().")
    if not (largest := logits.amax(dim=-1)).isfinite().all():
        raise ValueError(f"the largest logit of each row is {largest.tolist()[:5]}, from which no token can be chosen: "
                         "is a weight NaN, is everything masked, or does float16 overflow? Then use bfloat16 or "
                         "float32.")  # fmt: skip


def _require_settings(temperature, top_k, top_p):
    require_number("temperature", temperature, lambda t: t >= 0, ">= 0: 0 is greedy, 1 leaves the model as it is")
    require_whole("top_k", top_k, 1, or_none=True)
    if top_p is not None:
        require_number("top_p", top_p, lambda p: 0 < p <= 1, "in (0, 1]: 1 keeps every token")


def _stop_ids(stop, vocab_size):
    """A list of token ids from `stop`, which is one id, several in any form, or None."""
    stop = stop.flatten().tolist() if isinstance(stop, torch.Tensor) else stop
    if stop is None:
        return []
    ids = [as_whole(token) for token in (stop if isinstance(stop, Iterable) else [stop])]
    if not all(token is not None and 0 <= token < vocab_size for token in ids):
        raise ValueError(f"stop={shown(stop)} must be a token id from 0 to {vocab_size - 1}, several of them, or None.")
    return ids


def stream(
    model: Llama, tokens: torch.Tensor, max_new_tokens: int, temperature: float = 0.0, top_k: int | None = None,
    top_p: float | None = None, stop: int | Iterable[int] | None = None, seed: int | None = None,
    n_pad: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:  # fmt: skip
    """Yield the next token of every row, (B,) int64, as soon as it is chosen.

    Arguments as in `generate`, but tokens are (B, T) only; n_pad: left padding of each row, (B,) int64.
    """
    require_tokens(tokens, model.config.vocab_size)
    _require_settings(temperature, top_k, top_p)
    seed = require_whole("seed", seed, 0, or_none=True)
    max_new_tokens = require_whole("max_new_tokens", max_new_tokens, 0)
    is_split = hasattr(model.tok_embeddings.weight, "device_mesh")  # over several processes
    if seed is None and temperature > 0 and is_split:
        raise ValueError("seed=None: each process of a split model would draw tokens of its own: pass one seed to all.")
    stop_ids = torch.tensor(_stop_ids(stop, model.config.vocab_size), dtype=torch.int64)
    draw = None if seed is None else torch.Generator().manual_seed(seed)
    n_rows, n_prompt = tokens.shape
    cache = model.new_cache(n_rows, n_prompt + max(1, max_new_tokens))
    done = torch.zeros(n_rows, dtype=torch.bool)
    chosen, step_input = None, tokens.to(cache.k.device)
    without_gradients = torch.no_grad if is_split else torch.inference_mode  # which slows a split model down
    too_much = f"{n_rows} prompts of {n_prompt} tokens are too much to read at once: pass fewer, or shorter ones."
    with explain_out_of_memory(too_much):
        for _ in range(max_new_tokens):
            with without_gradients():  # not around the yield, where the caller's code runs
                logits = model(step_input, cache, last_only=True, n_pad=n_pad)[:, -1].cpu()
            previous, n_pad = chosen, None  # the cache remembers n_pad
            if temperature == 0:
                _require_logits(logits)  # below, next_token_probabilities does
                chosen = logits.argmax(dim=-1)
            else:
                probabilities = next_token_probabilities(logits, temperature, top_k, top_p)
                chosen = torch.multinomial(probabilities, 1, generator=draw)[:, 0]
            if done.any():  # a finished row repeats its stop token
                chosen = torch.where(done, previous, chosen)
            done |= torch.isin(chosen, stop_ids)
            yield chosen.clone()
            if done.all():
                return
            step_input = chosen[:, None].to(cache.k.device)


def end_tokens(folder: str | Path) -> int | list[int] | None:
    """The ids that end a text, for `generate(..., stop=end_tokens(folder))`, from where transformers reads them.

    That is generation_config.json; config.json counts only where there is no such file. None: the folder names none.

    Raises:
        FileNotFoundError: if the folder has neither file.
        ValueError: if the file is damaged.
    """
    paths = [Path(folder) / name for name in ("generation_config.json", "config.json")]
    if not (found := [path for path in paths if path.is_file()]):
        raise FileNotFoundError(f"{paths[0]} and config.json are missing: pass a checkpoint's folder that has one.")
    return read_json(found[0]).get("eos_token_id")


@torch.no_grad()
def generate(
    model: Llama, tokens: torch.Tensor | list[list[int]], max_new_tokens: int, temperature: float = 0.0,
    top_k: int | None = None, top_p: float | None = None, stop: int | Iterable[int] | None = None,
    seed: int | None = None,
) -> torch.Tensor | list[list[int]]:  # fmt: skip
    """Continue each prompt by up to max_new_tokens tokens.

    Args:
        model: the LLaMA.
        tokens: prompts of one length, (B, T) int64; or a list of token lists of different lengths, which are padded
            on the left so that all rows end together.
        temperature, top_k, top_p: as in `next_token_probabilities`; temperature 0 always takes the likeliest token.
        stop: a token id, or several: a row that has produced one of them is finished. None: it writes on, whatever the
            checkpoint's folder says; `end_tokens(folder)` reads what it says.
        seed: of the random draws, which are made on the CPU, so that every device draws the same numbers. A model that
            is split over processes needs one, the same in each.

    Returns:
        prompts and what follows them, (B, T + new) int64 on the CPU, in which a finished row repeats its stop token;
        for a list of prompts a list of token lists, each cut after its first new stop token.

    Raises:
        ValueError: if a setting is out of range, or the prompt is empty or not of token ids.
        torch.OutOfMemoryError: if the prompts do not fit into memory; says what to change.
    """
    stop = _stop_ids(stop, model.config.vocab_size)
    settings = (max_new_tokens, temperature, top_k, top_p, stop, seed)
    if isinstance(tokens, torch.Tensor):
        require_tokens(tokens, model.config.vocab_size)
        return torch.stack([*tokens.cpu().long().unbind(1), *stream(model, tokens, *settings)], dim=1)
    _require_prompts(tokens)
    longest = max(map(len, tokens))
    n_pad = torch.tensor([longest - len(row) for row in tokens])
    padded = torch.tensor([[0] * (longest - len(row)) + list(row) for row in tokens])
    new = [step.tolist() for step in stream(model, padded, *settings, n_pad)]
    rows = []
    for row, prompt in enumerate(tokens):
        rows.append([*map(int, prompt)])
        for step in new:
            rows[-1].append(step[row])
            if step[row] in stop:
                break
    return rows


def _require_prompts(prompts):
    if not isinstance(prompts, list | tuple) or not all(isinstance(row, list | tuple) for row in prompts):
        raise ValueError(f"tokens are a {type(prompts).__name__}, {str(prompts)[:40]!r}: pass a (batch, tokens) tensor "
                         "or a list of lists of token ids; encode text first; [ids] is one prompt.")  # fmt: skip
    if not prompts or not all(prompts):
        raise ValueError(f"prompts of {list(map(len, prompts))} tokens: pass at least one, of at least one token each.")
    for token in (token for row in prompts for token in row):
        if as_whole(token) is None or abs(token) >= 2**63:
            raise ValueError(f"a prompt holds {token!r}, no token id: encode text with the model's tokenizer first.")
