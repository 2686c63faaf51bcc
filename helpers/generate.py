"""Writing: choose the next token from the logits, append it, repeat; the cache keeps what was read.

`prepare_for_decoding` lays a model's matrices out for steps of one token.
"""

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

from helpers.device import explain_out_of_memory
from helpers.model import GroupedQueryAttention, Llama, SwiGLU, apply_rope
from helpers.validate import require_number, require_seed, require_tokens


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
        ordered[:, 1:][before[:, 1:] >= top_p] = 0  # the likeliest stays, however small top_p is
        ordered /= ordered.sum(dim=-1, keepdim=True)
    return torch.zeros_like(ordered).scatter_(-1, order, ordered)


def _require_settings(temperature, top_k, top_p):
    require_number("temperature", temperature, lambda t: t >= 0, ">= 0: 0 is greedy, 1 leaves the model as it is")
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
        raise ValueError(f"top_k={top_k!r} must be a whole number >= 1, or None to keep every token.")
    if top_p is not None:
        require_number("top_p", top_p, lambda p: 0 < p <= 1, "in (0, 1]: 1 keeps every token")


def _stop_ids(stop, vocab_size):
    """stop as a list of token ids: one id, any row of them, a tensor or None."""
    stop = stop.flatten().tolist() if isinstance(stop, torch.Tensor) else stop
    ids = [] if stop is None else list(stop) if isinstance(stop, Iterable) else [stop]
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab_size for token in ids):
        raise ValueError(f"stop={stop!r} must be a token id from 0 to {vocab_size - 1}, several of them, or None.")
    return ids


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
    """Yield the next token of every row, (B,) int64, as soon as it is chosen.

    Arguments as in `generate`, but tokens are (B, T) only; n_pad: left padding of each row, (B,) int64.
    """
    require_tokens(tokens, model.config.vocab_size)
    _require_settings(temperature, top_k, top_p)
    require_seed(seed)
    if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool) or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must be a whole number >= 0.")
    stop_ids = torch.tensor(_stop_ids(stop, model.config.vocab_size), dtype=torch.int64)
    draw = None if seed is None else torch.Generator().manual_seed(seed)
    cache = model.new_cache(tokens.shape[0], tokens.shape[1] + max(1, max_new_tokens))
    done = torch.zeros(tokens.shape[0], dtype=torch.bool)
    chosen, step_input = None, tokens.to(cache.k.device)
    prompts = "{} prompts of {} tokens are too much to read at once: pass fewer, or shorter ones.".format(*tokens.shape)
    with explain_out_of_memory(prompts):
        for _ in range(max_new_tokens):
            logits = model(step_input, cache, last_only=True, n_pad=n_pad)[:, -1].cpu()
            previous, n_pad = chosen, None
            if temperature == 0:
                chosen = logits.argmax(dim=-1)
            else:
                probabilities = next_token_probabilities(logits, temperature, top_k, top_p)
                chosen = torch.multinomial(probabilities, 1, generator=draw)[:, 0]
            chosen = torch.where(done, previous, chosen) if done.any() else chosen  # a finished row repeats its stop
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
        torch.OutOfMemoryError: if the prompts do not fit into memory; says what to change.
    """
    if isinstance(tokens, torch.Tensor):
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise ValueError(
                f"tokens have shape {tuple(tokens.shape)}: pass (batch, tokens), neither empty, for one prompt "
                "tokens[None]."
            )
        settings = (max_new_tokens, temperature, top_k, top_p, stop, seed)
        return torch.stack([*tokens.cpu().unbind(1), *stream(model, tokens, *settings)], dim=1)
    _require_prompts(tokens)
    stop = _stop_ids(stop, model.config.vocab_size)
    longest = max(map(len, tokens))
    n_pad = torch.tensor([longest - len(row) for row in tokens])
    padded = torch.tensor([[0] * (longest - len(row)) + list(row) for row in tokens])
    settings = (max_new_tokens, temperature, top_k, top_p, stop, seed, n_pad)
    new = [step.tolist() for step in stream(model, padded, *settings)]
    rows = []
    for row, prompt in enumerate(tokens):
        rows.append(list(prompt))
        for step in new:
            rows[-1].append(step[row])
            if step[row] in stop:
                break
    return rows


def _require_prompts(prompts):
    if not isinstance(prompts, list | tuple) or not all(isinstance(row, list | tuple) for row in prompts):
        raise ValueError(
            f"tokens are a {type(prompts).__name__}, {str(prompts)[:40]!r}: pass a (batch, tokens) tensor or a list of "
            "lists of token ids; encode text first, and write [ids] for one prompt."
        )
    if not prompts or not all(prompts):
        raise ValueError(f"prompts of {list(map(len, prompts))} tokens: pass at least one, of at least one token each.")
    for token in (token for row in prompts for token in row):
        if type(token) is not int or abs(token) >= 2**63:
            raise ValueError(f"a prompt holds {token!r}, no token id: encode text with the model's tokenizer first.")


# ------------------------------------------------------------ the same model, laid out for one-token steps


def prepare_for_decoding(model: Llama, weights: str | None = None) -> Llama:
    """The same function with its matrices laid out for steps of one token, on the CPU; elsewhere the model itself.

    For writing only: matrices are copied, embedding and norms are shared with the model. After training prepare anew,
    and move or cast neither of the two.

    Args:
        model: the LLaMA; it stays as it is.
        weights: None keeps the precision and the results (rounding apart); "bfloat16" takes 2 bytes per weight, "int8"
            1 byte and one scale per output row [1].

    Returns:
        a LLaMA of the same config, with the same forward, cache and embedding.

    Raises:
        ValueError: if weights is another word, or the model is prepared already.

    Source:
        int8 with a scale per row: LLM.int8, arXiv 2208.07339, section 2; notebook 06.
    """
    if weights not in (None, "bfloat16", "int8"):
        raise ValueError(f"weights={weights!r} is not known: use None, 'bfloat16' or 'int8'.")
    if isinstance(model.lm_head, _SplitLinear | _SmallLinear):
        raise ValueError("this model is prepared already: pass the one that it was made from.")
    first = model.tok_embeddings.weight
    if first.device.type != "cpu":
        return model  # an accelerator uses all of its cores for a single vector too
    dtype = getattr(torch, weights) if weights else first.dtype

    def linear(*matrices):
        return _SplitLinear(matrices) if dtype == torch.float32 else _SmallLinear(matrices, dtype)

    with torch.no_grad():
        prepared = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})  # shares all weights
        for block in prepared.layers:
            block.attention = _FusedAttention(block.attention, linear)
            block.feed_forward = _FusedSwiGLU(block.feed_forward, linear)
        prepared.lm_head = linear(model.lm_head.weight)
    return prepared


class _SplitLinear(nn.Module):
    # PyTorch multiplies a matrix with a single vector on one core. So the matrix, stored (in, out), is cut along `in`
    # into a block per thread: a batched product gives each block a core, and the parts are added.
    def __init__(self, matrices):
        super().__init__()
        matrix = torch.cat(matrices).T
        n_blocks = max(n for n in range(1, torch.get_num_threads() + 1) if len(matrix) % n == 0)
        self.register_buffer("blocks", matrix.contiguous().unflatten(0, (n_blocks, -1)))

    def forward(self, x):
        if x.numel() > x.shape[-1]:  # many tokens: a plain product uses all cores
            return x @ self.blocks.flatten(0, 1)
        parts = x.reshape(len(self.blocks), 1, -1) @ self.blocks  # (n_blocks, 1, out)
        return parts.sum(dim=0).view(*x.shape[:-1], -1)


class _SmallLinear(nn.Module):
    # Fewer bytes per weight: bfloat16, or int8 with one scale per output row.
    def __init__(self, matrices, dtype):
        super().__init__()
        matrix, scale = torch.cat(matrices), None
        if dtype == torch.int8:
            matrix = matrix.float()  # in bfloat16 a quotient may round to 128, which int8 does not have
            scale = (matrix.abs().amax(dim=1).clamp(min=1e-30) / 127).bfloat16()
            matrix = (matrix / scale[:, None]).round().clamp(-127, 127)
        self.register_buffer("weight", matrix.to(dtype))
        self.register_buffer("scale", scale)

    def forward(self, x):
        if self.scale is None:
            return F.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)
        if x.numel() > x.shape[-1]:
            return F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        row = x.reshape(1, -1).bfloat16()
        product = torch._weight_int8pack_mm(row, self.weight, self.scale)  # torch has no public name for it
        return product.to(x.dtype).view(*x.shape[:-1], -1)


class _FusedAttention(GroupedQueryAttention):
    def __init__(self, attention, linear):
        nn.Module.__init__(self)
        self.head_dim, self.n_rep = attention.head_dim, attention.n_rep
        self.n_kv_heads = attention.k_proj.out_features // self.head_dim
        self.qkv_proj = linear(attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        self.o_proj = linear(attention.o_proj.weight)

    def project(self, x, cos, sin):
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H + 2K, T, h)
        q_and_k, v = heads[:, : -self.n_kv_heads], heads[:, -self.n_kv_heads :]
        turned = apply_rope(q_and_k, cos, sin)
        return turned[:, : -self.n_kv_heads], turned[:, -self.n_kv_heads :], v

    def forward(self, x, cos, sin, visible=None, cache=None, layer=0):
        if x.shape[1] > 1 or visible is not None:
            return super().forward(x, cos, sin, visible, cache, layer)
        q, k, v = self.project(x, cos, sin)
        if cache is not None:
            k, v = cache.update(layer, k, v)
        q = q.view(len(q), self.n_kv_heads, self.n_rep, -1)  # a group's query heads as rows of one: nothing is repeated
        mixed = F.scaled_dot_product_attention(q, k, v)  # (B, K, R, h)
        return self.o_proj(mixed.flatten(1)[:, None])


class _FusedSwiGLU(SwiGLU):
    def __init__(self, feed_forward, linear):
        nn.Module.__init__(self)
        self.gate_up_proj = linear(feed_forward.gate_proj.weight, feed_forward.up_proj.weight)
        self.down_proj = linear(feed_forward.down_proj.weight)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)
