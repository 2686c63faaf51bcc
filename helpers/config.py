"""The sizes of a LLaMA: one frozen config, checked when made, and the published models."""

from dataclasses import dataclass, field, replace

from helpers.validate import require_number, require_whole, shown

# The constants of Meta's Llama 3.1 code; a config may override each.
LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes and constants of one LLaMA model; checked when made.

    Raises:
        ValueError: if sizes contradict each other; the text gives both values and what to change.

    Source:
        Llama 2, arXiv 2307.09288, table 1; Llama 3, arXiv 2407.21783, table 3.
    """

    vocab_size: int  # tokens in the vocabulary
    dim: int  # width of the residual stream
    n_layers: int  # number of blocks
    n_heads: int  # query heads
    n_kv_heads: int  # key/value heads; n_heads must be a multiple of it
    hidden_dim: int  # final inner width of the feed-forward (swiglu_hidden_dim computes it)
    head_dim: int | None = None  # width of one head; None becomes dim // n_heads, which dataclasses.replace keeps
    max_seq_len: int  # longest sequence a cache holds by default [token]
    norm_eps: float  # added to the mean square before the root
    rope_theta: float  # base of the rotation frequencies
    rope_scaling: dict | None = field(default=None, hash=False)  # its keys are those of rope_inv_freq
    tie_embeddings: bool  # one matrix for tok_embeddings and lm_head

    def __post_init__(self):
        for name in ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "max_seq_len"):
            object.__setattr__(self, name, require_whole(name, getattr(self, name), 1))
        if self.head_dim is None:
            if self.dim % self.n_heads:
                raise ValueError(f"dim={self.dim} is not a multiple of n_heads={self.n_heads}: change one of them, or "
                                 "pass head_dim.")  # fmt: skip
            object.__setattr__(self, "head_dim", self.dim // self.n_heads)
        object.__setattr__(self, "head_dim", require_whole("head_dim", self.head_dim, 1))
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd (dim={self.dim}, n_heads={self.n_heads}), but RoPE "
                             "turns pairs: pass an even head_dim, or choose n_heads so that dim / n_heads is even "
                             "(notebook 02, section 2.2).")  # fmt: skip
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.n_kv_heads}: each "
                             "key/value head serves the same number of query heads. Choose n_kv_heads among the "
                             "divisors of n_heads (notebook 04, section 4.3).")  # fmt: skip
        require_number("norm_eps", self.norm_eps, lambda eps: eps >= 0, ">= 0, for example 1e-5")
        require_rope(self.head_dim, self.rope_theta, self.rope_scaling)
        object.__setattr__(self, "rope_scaling", self.rope_scaling and dict(self.rope_scaling))
        if not isinstance(self.tie_embeddings, bool):
            raise ValueError(f"tie_embeddings={shown(self.tie_embeddings)} must be True or False.")

    @property
    def n_rep(self) -> int:
        """Query heads served by one key/value head."""
        return self.n_heads // self.n_kv_heads

    def require_class(self, kind: type):
        """ValueError if a model of this class lacks what the config asks for; the configs of relatives override it."""

    def require_length(self, n_tokens: int):
        """ValueError if RoPE of type "dynamic" would have to slow down, which it does beyond the trained length."""
        if self.rope_scaling and self.rope_scaling["type"] == "dynamic" and n_tokens > self.max_seq_len:
            raise ValueError(f"{n_tokens} tokens are more than max_seq_len={self.max_seq_len}, and beyond it RoPE of "
                             "type 'dynamic' turns more slowly with every token, which this course does not do: pass "
                             "fewer tokens.")  # fmt: skip


def require_rope(head_dim, theta, scaling):
    """Raise ValueError unless head_dim, theta and scaling fit together; the text says which does not, and why."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim={head_dim} must be even and >= 2: RoPE turns pairs of numbers.")
    require_number("rope_theta", theta, lambda theta: 1 < theta <= 1e18, "> 1 and <= 1e18, for example 10000.0")
    if scaling is None:
        return
    if not isinstance(scaling, dict):
        raise ValueError(f"rope_scaling={shown(scaling)}: pass None or a dict such as {{'type': 'ntk', 'factor': 2}}.")
    known = {"linear": set(), "ntk": set(), "llama3": set(LLAMA3_SCALING), "dynamic": set()}
    key = "rope_type" if "rope_type" in scaling else "type"
    kind, factor = scaling.get(key), scaling.get("factor")
    if not isinstance(kind, str) or kind not in known:
        has = f"{key} {shown(kind)} is not known" if key in scaling else f"{shown(scaling)} has no key 'type'"
        raise ValueError(f"rope_scaling {has}: use one of {sorted(known)}, or None (notebook 02, section 2.6).")
    if key != "type":
        ours = {"type": kind} | {name: scaling[name] for name in scaling if name not in ("type", key)}
        raise ValueError(f"rope_scaling has Hugging Face's key {key!r}, here it is called 'type': pass {shown(ours)}.")
    extra = set(scaling) - {"type", "factor"} - known[kind]
    if extra:
        takes = sorted({"type", "factor"} | known[kind])
        raise ValueError(f"rope_scaling of type {kind!r} does not take {shown(sorted(map(str, extra)))}, only {takes}: "
                         "remove them.")  # fmt: skip
    wanted = ">= 1 and <= 1e18: new length / trained length"
    require_number("rope_scaling factor", factor, lambda factor: 1 <= factor <= 1e18, wanted)
    if kind == "ntk":
        if head_dim < 4:
            raise ValueError(f"rope_scaling type 'ntk' needs head_dim >= 4, got {head_dim}: use 'linear'.")
        if theta * factor ** (head_dim / (head_dim - 2)) > 1e18:
            raise ValueError(f"rope_scaling factor={factor} of 'ntk' raises rope_theta={theta} beyond 1e18: lower it.")
    if kind == "llama3":
        s = LLAMA3_SCALING | scaling
        require_whole("original_max_position_embeddings", s["original_max_position_embeddings"], 1)
        for name in ("low_freq_factor", "high_freq_factor"):
            require_number(f"rope_scaling {name}", s[name], lambda end: end > 0, "> 0: Meta uses 1 and 4")
        if s["low_freq_factor"] >= s["high_freq_factor"]:
            raise ValueError(f"rope_scaling needs 0 < low_freq_factor < high_freq_factor, got {s['low_freq_factor']} "
                             f"and {s['high_freq_factor']}: Meta uses 1 and 4.")  # fmt: skip


_LLAMA_2_7B = LlamaConfig(
    vocab_size=32_000, dim=4096, n_layers=32, n_heads=32, n_kv_heads=32, hidden_dim=11_008,
    max_seq_len=4096, norm_eps=1e-5, rope_theta=10_000.0, tie_embeddings=False,
)  # fmt: skip
_LLAMA_3_8B = replace(_LLAMA_2_7B, vocab_size=128_256, n_kv_heads=8, hidden_dim=14_336, max_seq_len=8192,
                      rope_theta=500_000.0)  # fmt: skip
_LLAMA_3_70B = replace(_LLAMA_3_8B, dim=8192, n_layers=80, n_heads=64, hidden_dim=28_672)

# Published models, each written as its difference from another one.
PRESETS = {
    "llama-2-7b": _LLAMA_2_7B,
    "llama-2-70b": replace(_LLAMA_3_70B, vocab_size=32_000, max_seq_len=4096, rope_theta=10_000.0),
    "llama-3-8b": _LLAMA_3_8B,
    "llama-3-70b": _LLAMA_3_70B,
    "llama-3.1-405b": replace(
        _LLAMA_3_70B, dim=16_384, n_layers=126, n_heads=128, hidden_dim=53_248, max_seq_len=131_072,
        rope_scaling={"type": "llama3", "factor": 8.0, **LLAMA3_SCALING},
    ),
    "llama-3.2-1b": replace(
        _LLAMA_3_8B, dim=2048, n_layers=16, head_dim=64, hidden_dim=8192, max_seq_len=131_072, tie_embeddings=True,
        rope_scaling={"type": "llama3", "factor": 32.0, **LLAMA3_SCALING},
    ),
    "smollm2-135m": LlamaConfig(
        vocab_size=49_152, dim=576, n_layers=30, n_heads=9, n_kv_heads=3, hidden_dim=1536,
        max_seq_len=8192, norm_eps=1e-5, rope_theta=100_000.0, tie_embeddings=True,
    ),
}  # fmt: skip
