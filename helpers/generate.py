"""Writing: choose the next token from the logits, append it, repeat; the cache keeps what was read."""

from collections.abc import Iterable, Iterator

import torch

from helpers.model import Llama


def next_token_probabilities(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> torch.Tensor:
    """Probabilities to draw the next token from.

    Args:
        logits: of the last position, (B, V) float.
        temperature: divides the logits; below 1 sharpens, above 1 flattens; 0 puts everything on the largest [1].
        top_k: keep the k most likely tokens.
        top_p: then keep the most likely tokens whose probabilities reach top_p together (always at least one) [1].

    Returns:
        probabilities, (B, V), rows sum to 1.

    Raises:
        ValueError: if a setting is out of range.

    Source:
        top_p: nucleus sampling, arXiv 1904.09751.

    Example:
        >>> next_token_probabilities(torch.tensor([[2.0, 1.0, 0.0]]), top_k=1)
        tensor([[1., 0., 0.]])
    """
    _require_settings(temperature, top_k, top_p)
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
        ordered[before >= top_p] = 0
        ordered /= ordered.sum(dim=-1, keepdim=True)
    return torch.zeros_like(ordered).scatter_(-1, order, ordered)


def _require_settings(temperature, top_k, top_p):
    if not 0 <= temperature < float("inf"):
        raise ValueError(
            f"temperature={temperature} must be >= 0 and finite: 0 is greedy, 1 leaves the model as it is."
        )
    if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k={top_k!r} must be a whole number >= 1, or None to keep every token.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must lie in (0, 1]: 1 keeps every token.")


def stream(
    model: Llama,
    tokens: torch.Tensor,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | Iterable[int] | None = None,
    seed: int | None = None,
    n_pad: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the next token of every row, (B,) int64, as soon as it is chosen; arguments as in `generate`."""
    _require_settings(temperature, top_k, top_p)
    if not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must be a whole number >= 0.")
    stop_ids = torch.tensor([] if stop is None else [stop] if isinstance(stop, int) else list(stop), dtype=torch.int64)
    draw = None if seed is None else torch.Generator().manual_seed(seed)
    cache = model.new_cache(tokens.shape[0], tokens.shape[1] + max(1, max_new_tokens))
    done = torch.zeros(tokens.shape[0], dtype=torch.bool)
    chosen, step_input = None, tokens.to(cache.k.device)
    for _ in range(max_new_tokens):
        logits = model(step_input, cache, last_only=True, n_pad=n_pad)[:, -1].cpu()
        previous, n_pad = chosen, None
        if temperature == 0:
            chosen = logits.argmax(dim=-1)
        else:
            probabilities = next_token_probabilities(logits, temperature, top_k, top_p)
            chosen = torch.multinomial(probabilities, 1, generator=draw)[:, 0]
        chosen = torch.where(done, previous, chosen) if done.any() else chosen  # a finished row repeats its stop token
        done |= torch.isin(chosen, stop_ids)
        yield chosen.clone()
        if done.all():
            return
        step_input = chosen[:, None].to(cache.k.device)


@torch.no_grad()
def generate(
    model: Llama,
    tokens: torch.Tensor | list[list[int]],
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | Iterable[int] | None = None,
    seed: int | None = None,
) -> torch.Tensor | list[list[int]]:
    """Continue each prompt by up to max_new_tokens tokens.

    Args:
        model: the LLaMA.
        tokens: prompts of one length, (B, T) int64; or a list of token lists of different lengths, which are padded
            on the left so that all rows end together.
        temperature, top_k, top_p: as in `next_token_probabilities`; temperature 0 always takes the likeliest token.
        stop: a token id, or several: a row that has produced one of them is finished.
        seed: for the draws, made on the CPU, so that every device draws the same numbers.

    Returns:
        prompts and what follows them, (B, T + new) int64 on the CPU, in which a finished row repeats its stop token;
        for a list of prompts a list of token lists, each cut after its first new stop token.

    Raises:
        ValueError: if a setting is out of range, or the prompt is empty or not of token ids.
    """
    if isinstance(tokens, torch.Tensor):
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise ValueError(
                f"tokens have shape {tuple(tokens.shape)}: pass (batch, tokens), neither empty, for one prompt "
                "tokens[None]."
            )
        settings = (max_new_tokens, temperature, top_k, top_p, stop, seed)
        return torch.stack([*tokens.cpu().unbind(1), *stream(model, tokens, *settings)], dim=1)
    if not all(isinstance(row, list | tuple) for row in tokens):
        raise ValueError("tokens is a flat list: pass a list of prompts, for one prompt [tokens].")
    if not tokens or not all(tokens):
        raise ValueError("a prompt is empty: give every prompt at least one token.")
    longest = max(map(len, tokens))
    n_pad = torch.tensor([longest - len(row) for row in tokens])
    padded = torch.tensor([[0] * (longest - len(row)) + list(row) for row in tokens])
    settings = (max_new_tokens, temperature, top_k, top_p, stop, seed, n_pad)
    new = [step.tolist() for step in stream(model, padded, *settings)]
    stop_ids = set() if stop is None else {stop} if isinstance(stop, int) else set(stop)
    rows = []
    for row, prompt in enumerate(tokens):
        rows.append(list(prompt))
        for step in new:
            rows[-1].append(step[row])
            if step[row] in stop_ids:
                break
    return rows
