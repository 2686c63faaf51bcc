"""The parts of a LLaMA that notebooks 01 to 04 ask for, the learner's own where they pass, and how they are wired.

    parts = my_parts()                               # in the folder of the notebooks; through=7: of 05 to 07, too
    parts.rms_norm(x, weight, eps)                   # the learner's, or the course's
    parts.llama(weights, config, tokens)             # the course's wiring of these parts
    parts.model(folder)                              # of a checkpoint, with a cache: model(tokens, cache=cache)

Where `my_parts` finds the learner's stands in own.py.
"""

from pathlib import Path

import torch
from torch.nn import functional as F

from helpers.cache import KVCache
from helpers.checkpoint import config_to_hugging_face, load_checkpoint, weights_to_hugging_face
from helpers.model import apply_rope, attention_weights, causal_visible, llama3_scaling, repeat_kv, rope_inv_freq
from helpers.validate import require_tokens


def _rms_norm(x, weight, eps):
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def _rope_angles(positions, head_dim, theta):
    return positions[..., None] * rope_inv_freq(head_dim, theta)


def _swiglu(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


def _attention_head(q, k, v, visible):
    return attention_weights(q, k, visible) @ v


def _cache_write(cache, length, new):
    end = length + new.shape[2]
    cache[:, :, length:end] = new
    return cache[:, :, :end]


def _rows(q, k, v, visible):
    return F.scaled_dot_product_attention(q, k, v, visible, enable_gqa=True)


COURSE = {  # the exercises that are parts, and the course's own functions for them
    "rms_norm": _rms_norm,
    "rope_angles": _rope_angles,
    "apply_rope_halves": apply_rope,
    "swiglu": _swiglu,
    "causal_visible": causal_visible,
    "rows": _rows,
}
NO_EXERCISE = {  # parts that no exercise asks for: the course lends them
    "repeat_kv": repeat_kv,
    "llama3_scaling": llama3_scaling,
    "attention_head": _attention_head,
    "cache_write": _cache_write,
}
NOT_FOUND = "no notebook in this folder has the exercise."


class Parts:
    """Functions of notebooks 01 to 04, and `llama`, which wires them; shows whose they are.

    Attributes:
        names: of the parts that exercises ask for; of later notebooks, too, if `my_parts` was asked for them.
        own: names of the learner's own parts.
        missing: {name: why the part is the course's}, one sentence each.
    """

    def __init__(self, own: dict | None = None, missing: dict | None = None, later: dict | None = None):
        self.missing = missing or {}
        course = COURSE | (later or {})
        self.names = tuple(course)
        self.own = [name for name in course if name not in self.missing]
        for name, part in (NO_EXERCISE | course).items():
            setattr(self, name, (own or {}).get(name, part))

    def __repr__(self):
        own = self.own
        lines = [f"{len(own)} of {len(self.names)} parts are yours" + (": " if own else ".") + ", ".join(own)]
        named = {}
        for name, why in self.missing.items():
            named.setdefault(why if why.startswith(NOT_FOUND) else name, (why, []))[1].append(name)
        for why, names in named.values():
            are = f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"
            lines.append(f"{are} the course's: {why}")
        return "\n".join(lines)

    def model(self, folder: str | Path) -> "PartsModel":
        """The LLaMA of a checkpoint folder, made of these parts; it is called and decodes as `helpers.model.Llama`."""
        return PartsModel(self, folder)

    # The wiring. Each step is a method, so that the check of notebook 05 can replace one by a bug.

    def llama(self, weights, config, tokens, first=0, remember=lambda layer, k, v: (k, v)):
        """A LLaMA's logits.

        Args:
            weights, config: under Hugging Face's names; everything on the CPU.
            tokens: (B, T) int64.
            first: position of the first token, or of each row's, (B,); then `remember` returns a row's token p at p.
            remember: takes each block's number, its turned keys and its values, (B, K, T, h); returns those to attend
                to, (B, K, S, h).

        Returns:
            logits, (B, T, V) float.
        """
        positions = torch.as_tensor(first)[..., None] + torch.arange(tokens.shape[1])  # (T,) or (B, T)
        cos, sin = self.turns(positions, config)
        rows = (positions,) if positions.ndim > 1 else ()  # each with a mask of its own
        x = weights["model.embed_tokens.weight"][tokens]
        for layer in range(config["num_hidden_layers"]):
            block = self.block(weights, layer)
            normed = self.norm(x, block, "input_layernorm", config)
            self.note(1, normed)
            q, k, v = self.project(normed, block, config, cos, sin)
            self.note(2, q, k, v)
            k, v = remember(layer, k, v)
            x = self.add(3, x, normed, self.attend(q, k, v, *rows) @ block["self_attn.o_proj"].T)
            self.note(3, x)
            normed = self.norm(x, block, "post_attention_layernorm", config)
            x = self.add(4, x, normed, self.swiglu(normed, *(block[f"mlp.{n}_proj"] for n in ("gate", "up", "down"))))
            self.note(4, x)
        self.note(5, x)
        x = self.norm(x, weights, "model.norm.weight", config)
        logits = x @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T
        self.note(6, logits)
        return logits

    def note(self, stage, *values):
        """Told what each stage makes; for those who want to know."""

    def turns(self, positions, config):
        """cos and sin of all angles, (T, h/2), or (B, 1, T, h/2) where rows differ."""
        rope, head_dim = config["rope_parameters"], config["head_dim"]
        angles = self.rope_angles(positions, head_dim, rope["rope_theta"])
        kind = rope.get("rope_type", "default")
        if kind not in ("default", "llama3"):
            raise ValueError(f"rope_type {kind!r} is not known: it is 'default' or 'llama3'.")
        if kind == "llama3":
            speeds = self.rope_angles(torch.ones(1, dtype=torch.int64), head_dim, rope["rope_theta"])[0]
            wanted = {name: value for name, value in rope.items() if name not in ("rope_type", "rope_theta")}
            angles = positions[..., None] * self.llama3_scaling(speeds, **wanted)
        angles = angles.unsqueeze(1) if positions.ndim > 1 else angles
        return angles.cos(), angles.sin()

    def block(self, weights, layer):
        """The weights of one block, under short names."""
        start = f"model.layers.{layer}."
        return {n[len(start) :].removesuffix(".weight"): w for n, w in weights.items() if n.startswith(start)}

    def norm(self, x, weights, name, config):
        """RMSNorm of x, with the gain of this name."""
        return self.rms_norm(x, weights[name], config["rms_norm_eps"])

    def heads(self, x, config):
        """(B, T, heads * h) -> (B, heads, T, h)."""
        return x.unflatten(-1, (-1, config["head_dim"])).transpose(1, 2)

    def project(self, normed, block, config, cos, sin):
        """q (B, H, T, h), k and v (B, K, T, h); q and k are turned."""
        q, k, v = (self.heads(normed @ block[f"self_attn.{name}_proj"].T, config) for name in "qkv")
        return self.apply_rope_halves(q, cos, sin), self.apply_rope_halves(k, cos, sin), v

    def attend(self, q, k, v, positions=None):
        """What all heads return, side by side, (B, T, H * h); positions, (B, T), where rows differ."""
        if positions is not None and len(q) > 1:
            rows = zip(*(y.split(1) for y in (q, k, v, positions)), strict=True)
            return torch.cat([self.attend(*row) for row in rows])
        visible = None if positions is None else torch.arange(k.shape[2]) <= positions[0, :, None]
        visible = self.causal_visible(q.shape[2], k.shape[2]) if visible is None else visible
        k, v = (self.repeat_kv(y, q.shape[1] // y.shape[1]) for y in (k, v))
        return torch.cat([self.attention_head(q[:, i], k[:, i], v[:, i], visible) for i in range(q.shape[1])], dim=-1)

    def add(self, stage, x, normed, what):
        """The stream after the branch of a stage, 3 or 4."""
        return x + what


class PartsModel:
    """A checkpoint computed by parts: logits (B, T, V) of tokens (B, T), on the CPU, without a gradient.

    To forget the last tokens, set the cache's `length`. A folder or a call that `load_checkpoint` or Llama refuses is
    refused here, in the same words.
    """

    def __init__(self, parts: Parts, folder: str | Path):
        model, self.parts = load_checkpoint(folder), parts
        self.config, self.weights = model.config, weights_to_hugging_face(model)
        self.stored = config_to_hugging_face(model.config)  # complete, and under the newest names
        parts.turns(torch.arange(1), self.stored)  # refuses a type of RoPE that no exercise asks for

    def new_cache(self, batch_size: int, max_seq_len: int = 2048) -> KVCache:
        """An empty cache for so many texts and tokens."""
        return KVCache(self.config, batch_size, max_seq_len, torch.float32, "cpu")

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor, cache: KVCache | None = None, last_only: bool = False) -> torch.Tensor:
        """Logits of the token that follows each position, or the last; a cache is extended by the tokens."""
        require_tokens(tokens, self.config.vocab_size, torch.device("cpu"))
        cache = cache or self.new_cache(*tokens.shape)
        cache.check_capacity(tokens, self.config, torch.float32, torch.device("cpu"))
        logits = self.parts.llama(self.weights, self.stored, tokens, cache.length, cache.update)
        cache.length += tokens.shape[1]
        return logits[:, -1:] if last_only else logits
