"""LLaMA: every part, in the order the data meets it.

LlamaConfig and PRESETS (from `helpers.config`) and KVCache (from `helpers.cache`) may be imported from here, too.

Letters for shapes, the same in every docstring and notebook:
    B batch        T query tokens   S key tokens (= T without a cache)
    D dim          F hidden_dim     V vocab_size
    H n_heads      K n_kv_heads     R n_rep (H = K * R)     h head_dim

The RoPE layout ("halves") and the names of matrices are those of transformers; config, embedding and norms have Meta's.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from helpers import validate
from helpers.cache import KVCache
from helpers.config import LLAMA3_SCALING, PRESETS, LlamaConfig, require_rope

__all__ = [
    "PRESETS", "GroupedQueryAttention", "KVCache", "Llama", "LlamaConfig", "RMSNorm", "SwiGLU", "TransformerBlock",
    "apply_rope", "attention_weights", "causal_visible", "count_parameters", "repeat_kv", "rope_angles",
    "rope_inv_freq", "swiglu_hidden_dim",
]  # fmt: skip

# --------------------------------------------------------------------------------------------- RMSNorm


class RMSNorm(nn.Module):
    """Divide each token's vector by its root mean square, then multiply by a learned gain.

    The statistics run in float32: in float16 the square of 300 already overflows. The result is cast back before
    the gain, in the order of Meta and transformers, so that logits agree to the last bit.

    Args:
        dim: width of the vector.
        eps: added to the mean square, inside the root.

    Source:
        Zhang and Sennrich 2019, arXiv 1910.07467, equation 4; notebook 01. Same as transformers `LlamaRMSNorm`.
    """

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        validate.require_whole("dim", dim, 1)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension: (..., D) to (..., D), dtype kept."""
        validate.require_floats(x, self.weight.shape[-1])
        wide = x.float()
        normalised = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * normalised.to(x.dtype)


# ------------------------------------------------------------------------------------------------ RoPE


def rope_inv_freq(head_dim: int, theta: float = 10000.0, scaling: dict | None = None) -> torch.Tensor:
    """Turning speed of each pair of coordinates, fastest first.

    Always float32 on the CPU, whatever the model's dtype or device: bfloat16 cannot tell position 256 from 257.

    Args:
        head_dim: width of one head, even.
        theta: the base; each pair turns slower than the one before by the same factor, theta^(2/h).
        scaling: None; {"type": "linear", "factor": f} slows every pair by f; {"type": "ntk", "factor": f} raises the
            base so that the slowest pair is slowed by f and the fastest not at all; "llama3" slows only the pairs
            whose wavelength is long compared with the trained length, and its other keys are those of Hugging Face's
            config.json, by default with Meta's constants; "dynamic" is as None, and longer texts are refused.

    Returns:
        inv_freq, (h/2,) float32 [rad/token].

    Raises:
        ValueError: if head_dim is odd, theta or a number of the scaling is out of range, or its type is not known.

    Source:
        RoFormer, arXiv 2104.09864, section 3.2.2; linear: arXiv 2306.15595; llama3: Meta's `apply_scaling`.

    Example:
        >>> rope_inv_freq(4, theta=100.0)
        tensor([1.0000, 0.1000])
    """
    require_rope(head_dim, theta, scaling)
    kind, factor = (scaling["type"], scaling["factor"]) if scaling else (None, 1.0)
    if kind == "ntk":
        theta = theta * factor ** (head_dim / (head_dim - 2))
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu").float() / head_dim
    inv_freq = 1.0 / theta**exponent
    if kind == "linear":
        return inv_freq / factor
    if kind == "llama3":
        return llama3_scaling(inv_freq, **LLAMA3_SCALING | {k: v for k, v in scaling.items() if k != "type"})
    return inv_freq


def llama3_scaling(inv_freq, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """Llama 3.1's turning speeds, (h/2,) as inv_freq [rad/token]: only pairs that seldom turn full circle slow down."""
    turns = original_max_position_embeddings / (2 * math.pi / inv_freq)  # trained length / wavelength
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)  # 1: keep, 0: slow down
    return (1 - keep) * inv_freq / factor + keep * inv_freq


def rope_angles(positions: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
    """Angle by which each pair of coordinates is turned at each position.

    Args:
        positions: index of each token, of any shape (..., T), int [token]; rows of a batch may differ.
        inv_freq: turning speed of each pair, (h/2,) float [rad/token].

    Returns:
        angles, (..., T, h/2) float32 [rad], unwrapped.

    Source:
        RoFormer, arXiv 2104.09864, equation 15; notebook 02. Same as transformers `LlamaRotaryEmbedding`.

    Example:
        >>> rope_angles(torch.arange(3), torch.tensor([1.0, 0.5]))[2]
        tensor([2., 1.])
    """
    validate.require_kind("positions", positions, torch.Tensor, "a tensor, such as torch.arange(3)")
    return positions.float()[..., None] * inv_freq.float()


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str = "halves") -> torch.Tensor:
    """Turn each pair of coordinates of every head by its angle.

    There are two layouts. "halves" pairs coordinate i with i + h/2 (transformers, litgpt, this course);
    "interleaved" pairs 2i with 2i + 1 (the paper, Meta). Weights made for one give wrong results in the other until
    the rows of q_proj and k_proj are permuted (notebook 02). Both turn by +angle; nanochat's weights, turned by -angle
    where they were trained, need -sin here.

    Args:
        x: queries or keys, (B, H, T, h).
        cos, sin: of the angles, (T, h/2), or (B, 1, T, h/2) when rows of the batch differ in position.
        layout: "halves" or "interleaved".

    Returns:
        turned x, (B, H, T, h), dtype kept.

    Raises:
        ValueError: if the layout is not known, x holds whole numbers, or the shapes do not fit.

    Source:
        RoFormer, arXiv 2104.09864, equation 34. Same as transformers `apply_rotary_pos_emb` (halves).
    """
    validate.require_rotation(x, cos, sin)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if layout == "halves":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    if layout == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    raise ValueError(f"layout={layout!r} is not known: use 'halves' (i with i + h/2) or 'interleaved' (2i, 2i + 1).")


# ------------------------------------------------------------------------------------------- attention


def causal_visible(n_query: int, n_key: int, device=None) -> torch.Tensor:
    """Which key each query may see: itself and everything before it.

    The queries are the last n_query of the n_key positions, so a chunk that follows a cache gets a rectangle.

    Args:
        n_query, n_key: numbers of query tokens T and of key tokens S, at least T.

    Returns:
        visible, (T, S) bool, True = may attend.

    Raises:
        ValueError: if n_query exceeds n_key, or is below 0.

    Example:
        >>> causal_visible(2, 3).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    if not 0 <= n_query <= n_key:
        raise ValueError(f"n_query={n_query} must be 0 to n_key={n_key}: queries are the last of the key positions.")
    query = torch.arange(n_key - n_query, n_key, device=device)
    return torch.arange(n_key, device=device) <= query[:, None]


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    """Give every query head its key/value head: each head is repeated n_rep times in a row (1 1 2 2, not 1 2 1 2).

    What grouped attention means; `GroupedQueryAttention` gives the same and copies nothing.

    Args:
        x: keys or values, (B, K, S, h); the result is (B, K * R, S, h).
        n_rep: query heads per key/value head.

    Source:
        GQA, arXiv 2305.13245; notebook 04. Same as transformers `repeat_kv`.
    """
    return x if n_rep == 1 else x.repeat_interleave(n_rep, dim=1)


def attention_weights(q: torch.Tensor, k: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """How much each query takes from each key, in the textbook form; the model's fused kernel gives the same result.

    Args:
        q: queries, (B, H, T, h).
        k: keys, one per query head, (B, H, S, h).
        visible: True = may attend, broadcastable to (B, H, T, S); every query must see a key.

    Returns:
        weights, (B, H, T, S), rows sum to 1; scores of 16 bits, which may overflow, and the softmax are float32.
    """
    validate.require_attention(q, k, visible)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ k.to(wide).transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~visible, float("-inf")).softmax(dim=-1, dtype=torch.float32).to(q.dtype)


class GroupedQueryAttention(nn.Module):
    """Attention in which n_rep query heads share one key/value head.

    n_kv_heads = n_heads is multi-head attention (MHA); n_kv_heads = 1 is multi-query attention (MQA).

    Source:
        GQA, arXiv 2305.13245; notebook 04. Same as transformers `LlamaAttention`.
    """

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.head_dim, self.n_rep = config.head_dim, config.n_rep
        self.q_proj = nn.Linear(config.dim, config.n_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=False)

    def heads(self, x):
        """Queries (B, H, T, h), keys and values (B, K, T, h) of x (B, T, D), none of them turned."""
        projected = (proj(x) for proj in (self.q_proj, self.k_proj, self.v_proj))  # (B, T, heads * h) each
        return tuple(y.view(*y.shape[:2], -1, self.head_dim).transpose(1, 2) for y in projected)

    def rotated_qkv(self, x, cos, sin):
        """The heads of x, q and k turned, v not."""
        q, k, v = self.heads(x)
        return apply_rope(q, cos, sin), apply_rope(k, cos, sin), v

    def attend(self, q, k, v, visible):
        """Each query's mixture of the values it may see, (B, H, T, h); k and v, (B, K, S, h), are not copied."""
        if q.shape[2] == 1:  # a new token: query heads that share a key head are rows of one product
            rows = q.view(len(q), k.shape[1], -1, q.shape[-1])  # (B, H, 1, h) -> (B, K, R, h)
            return F.scaled_dot_product_attention(rows, k, v, visible).flatten(1, 2).unsqueeze(2)  # (B, H, 1, h)
        if q.device.type != "cpu" and (visible is not None or not q.is_cuda):  # PyTorch's kernels there know no groups
            k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)  # (B, H, S, h) each
        grouped = {"enable_gqa": k.shape[1] < q.shape[1]}  # (B, H, T, h) and (B, K, S, h) -> (B, H, T, h)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None, **grouped)

    def forward(self, x, cos, sin, visible=None, cache=None, layer=0):
        """Attend: (B, T, D) to (B, T, D).

        Args:
            x: normalised residual stream, (B, T, D).
            cos, sin: (T, h/2) or (B, 1, T, h/2).
            visible: (T, S) or (B, 1, T, S) bool, True = may attend; None: plain causal with S = T, or all for T = 1.
            cache, layer: KVCache to read and extend, or None, and this block's place in it.
        """
        q, k, v = self.rotated_qkv(x, cos, sin)
        if cache is not None:
            k, v = cache.update(layer, k, v)
        mixed = self.attend(q, k, v, visible)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))  # (B, H, T, h) -> (B, T, H * h) -> (B, T, D)


# ---------------------------------------------------------------------------------------- feed-forward


def swiglu_hidden_dim(dim: int, multiple_of: int = 256, ffn_dim_multiplier: float | None = None) -> int:
    """Inner width of LLaMA's feed-forward: 2/3 of 4 * dim, times the multiplier, rounded up.

    Two thirds, because three matrices of that width have the parameters of two of width 4 * dim.

    Source:
        Meta llama `FeedForward.__init__`; notebook 03.

    Example:
        >>> swiglu_hidden_dim(4096)
        11008
    """
    for name, size in {"dim": dim, "multiple_of": multiple_of}.items():
        validate.require_whole(name, size, 1)
    multiplier = 1.0 if ffn_dim_multiplier is None else ffn_dim_multiplier
    validate.require_number("ffn_dim_multiplier", multiplier, lambda times: times > 0, "> 0, or None for 1")
    hidden_dim = int(multiplier * int(2 * 4 * dim / 3))
    return multiple_of * math.ceil(hidden_dim / multiple_of)


class SwiGLU(nn.Module):
    """Feed-forward with a gate: down(silu(gate(x)) * up(x)), each token on its own.

    Args:
        dim: width of the residual stream.
        hidden_dim: the final inner width.

    Source:
        Shazeer 2020, arXiv 2002.05202, equation 6; notebook 03. Meta's w1 is gate, w3 is up, w2 is down.
    """

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.up_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.down_proj = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., D) to (..., D)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


# ----------------------------------------------------------------------------------------- whole model


class TransformerBlock(nn.Module):
    """Two steps along the residual stream: attention brings in other tokens, then the feed-forward works on each alone.

    Source:
        Llama, arXiv 2302.13971, section 2.2 (pre-norm); notebook 05.
    """

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = GroupedQueryAttention(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward = SwiGLU(config.dim, config.hidden_dim)

    def forward(self, x, cos, sin, visible=None, cache=None, layer=0):
        """(B, T, D) to (B, T, D); arguments as in GroupedQueryAttention.forward."""
        x = x + self.attention(self.attention_norm(x), cos, sin, visible, cache, layer)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The whole model: token ids in, logits of the next token out. It trains without a cache and decodes with one.

    Source:
        Llama, arXiv 2302.13971; notebook 05. Same as transformers `LlamaForCausalLM`.
    """

    def __init__(self, config: LlamaConfig):
        super().__init__()
        config.require_class(type(self))
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(config.n_layers))
        self.final_norm = RMSNorm(config.dim, config.norm_eps)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)
        # Not a buffer: model.to(torch.bfloat16) would round it.
        self.inv_freq = rope_inv_freq(config.head_dim, config.rope_theta, config.rope_scaling)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and not weight.is_meta:  # matrices; those that write to the stream start smaller
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.n_layers) if writes else 0.02)
        if config.tie_embeddings:
            self.lm_head.weight = self.tok_embeddings.weight

    def forward(self, tokens, cache=None, last_only=False, n_pad=None) -> torch.Tensor:
        """Logits of the token that follows each position.

        A token sees itself and what stands before it, in this call or in the cache. With a cache no gradient is
        kept. Without one, a sequence may be longer than max_seq_len: RoPE has no table that could run out.

        Args:
            tokens: (B, T) int64.
            cache: from new_cache(); extended in place by T tokens.
            last_only: only the last position's logits, (B, 1, V): all that decoding needs.
            n_pad: left padding of each row, (B,) int, with the first tokens only; a cache remembers it.

        Returns:
            logits, (B, T, V) float.

        Raises:
            ValueError: if tokens are of another type, shape or range, or do not fit the cache (which stays as it was).
        """
        n_cached, n_pad = self.check_call(tokens, cache, n_pad)
        with torch.set_grad_enabled(torch.is_grad_enabled() and cache is None):  # a cache keeps no gradient
            x = self.tok_embeddings(tokens)  # (B, T) -> (B, T, D)
            cos, sin, visible = self.rotation_and_mask(tokens.shape[1], n_cached, n_pad, tokens.device)
            for layer, block in enumerate(self.layers):
                x = block(x, cos, sin, visible, cache, layer)
            logits = self.lm_head(self.final_norm(x[:, -1:] if last_only else x))  # (B, T, D) -> (B, T, V)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if cache is not None:  # last, so that a call that fails changes neither
            cache.length, cache.n_pad = n_cached + tokens.shape[1], n_pad
        return logits

    def check_call(self, tokens, cache=None, n_pad=None):
        """ValueError unless forward can take these, else the number of cached tokens and the padding, (B,) or None."""
        weight = self.tok_embeddings.weight
        validate.require_tokens(tokens, self.config.vocab_size, weight.device)
        if n_pad is not None:
            n_pad = validate.require_padding(n_pad, tokens, tokens.shape[1] if cache is None else cache.k.shape[3])
        self.config.require_length(tokens.shape[1] + (0 if cache is None else cache.length))
        if cache is None:
            return 0, n_pad
        cache.check_capacity(tokens, self.config, weight.dtype, weight.device)
        if n_pad is not None and cache.length:
            raise ValueError(f"n_pad came after {cache.length} cached tokens: pass it with the first tokens only.")
        return cache.length, cache.n_pad if n_pad is None else n_pad

    def rotation_and_mask(self, n_query: int, n_cached: int = 0, n_pad=None, device=None):
        """Tensors that every block shares: cos and sin of the rotation angles, and who may see whom.

        Returns:
            cos, sin, (T, h/2) float32, and visible, (T, S) bool, or None for plain causal with S = T and for a single
            token, which sees all. With n_pad they are (B, 1, T, h/2) and (B, 1, T, S): positions count from the first
            real token, padding is hidden.
        """
        n_key = n_cached + n_query
        positions = torch.arange(n_cached, n_key, device=device)
        visible = causal_visible(n_query, n_key, device) if n_cached and n_query > 1 else None
        if n_pad is not None:
            n_pad = n_pad.to(positions.device)[:, None, None]  # (B, 1, 1)
            keys = torch.arange(n_key, device=device)
            itself = keys == positions[:, None]  # a padding token sees itself, so that no row of the softmax is empty
            visible = ((causal_visible(n_query, n_key, device) & (keys >= n_pad)) | itself)[:, None]
            positions = (positions - n_pad).clamp(min=0)
        angles = rope_angles(positions, self.inv_freq.to(positions.device))
        return angles.cos(), angles.sin(), visible

    def new_cache(self, batch_size: int, max_seq_len: int | None = None) -> KVCache:
        """An empty cache of the model's dtype and device, for max_seq_len tokens (default: the config's)."""
        weight = self.tok_embeddings.weight
        length = self.config.max_seq_len if max_seq_len is None else max_seq_len
        return KVCache(self.config, batch_size, length, weight.dtype, weight.device)


def count_parameters(model: nn.Module | LlamaConfig) -> int:
    """Number of distinct parameters of a model, or of a config without allocating any; a tied matrix counts once.

    Example:
        >>> count_parameters(PRESETS["llama-2-7b"])
        6738415616
    """
    if isinstance(model, LlamaConfig):
        with torch.device("meta"):
            model = model.make() if hasattr(model, "make") else Llama(model)
    validate.require_model(model)
    return sum(weight.numel() for weight in model.parameters())
