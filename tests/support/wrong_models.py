"""Wrong LLaMAs, each one bug away from the right one: test_parity.py must reject every one of them.

Most of these bugs were found in published courses and ports. Each is a change of one place in the text of
helpers/model.py; `wrong_llama(name)` is the class that makes it.
"""

from pathlib import Path

from helpers import model as right

NORM = "torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)"
SPEEDS = "rope_inv_freq(config.head_dim, config.rope_theta"
TURNED = "return apply_rope(q, cos, sin), apply_rope(k, cos, sin), v"
KERNEL = "scaled_dot_product_attention(q, k, v"
GROUPED = "grouped = {"
MASK = "visible = causal_visible(n_query, n_key, device) if n_cached and n_query > 1 else None"
BLOCK = """x = x + self.attention(self.attention_norm(x), cos, sin, visible, cache, layer)
        return x + self.feed_forward(self.ffn_norm(x))"""

# name: (the comparison of test_parity.py that must reject it, what model.py says, what it says instead)
WRONG_MODELS = {
    "norm weight ignored": ("gqa", "self.weight * normalised", "normalised"),
    "norm over tokens and width together": ("gqa", "mean(dim=-1", "mean(dim=(-2, -1)"),
    "norm subtracts the mean": ("gqa", "wide = x.float()", "wide = x.float() - x.float().mean(dim=-1, keepdim=True)"),
    "norm statistics without a gradient": ("gqa", "wide.pow(2)", "wide.detach().pow(2)"),
    "norm without the float32 upcast": ("float16, large activations", "wide = x.float()", "wide = x"),
    "norm by mean instead of mean square": ("gqa", "wide.pow(2)", "wide.abs()"),
    "eps 1e-5 for 1e-6": ("small weights", NORM, NORM.replace("self.eps", "1e-5")),
    "eps outside the root": ("small weights", NORM, "(1 / (wide.pow(2).mean(dim=-1, keepdim=True).sqrt() + self.eps))"),
    "eps left out": ("small weights", NORM, NORM.replace(" + self.eps", "")),
    "theta 50 000 for 500 000": ("gqa", SPEEDS, "rope_inv_freq(config.head_dim, 50_000.0"),
    "turning speeds in bfloat16": ("gqa", "1.0 / theta**exponent", "(1.0 / theta**exponent).bfloat16().float()"),
    "no llama3 scaling": ("llama3, 600 tokens", 'if kind == "llama3"', "if False"),
    "llama3 factor 8 for 32": ("llama3, 600 tokens", "inv_freq / factor + keep", "inv_freq / 8.0 + keep"),
    "no linear scaling": ("linear", "return inv_freq / factor", "return inv_freq"),
    "neighbours paired instead of halves": ("gqa", TURNED, TURNED.replace("sin)", "sin, 'interleaved')")),
    "sine sign flipped": ("gqa", "cos, sin = cos.to(x.dtype), sin.to(x.dtype)", "sin = -sin"),
    "no rotation": ("gqa", TURNED, "return q, k, v"),
    "v rotated too": ("gqa", TURNED, TURNED.replace(", v", ", apply_rope(v, cos, sin)")),
    "k not rotated": ("gqa", TURNED, "return apply_rope(q, cos, sin), k, v"),
    "k and v swapped": ("gqa", TURNED, "return apply_rope(q, cos, sin), v, apply_rope(k, cos, sin)"),
    "no gradient through the keys": ("gqa", TURNED, TURNED.replace(", v", ".detach(), v")),
    "scaled by dim, not head_dim": ("gqa", KERNEL, f"{KERNEL}, scale=self.o_proj.out_features**-0.5"),
    "scores not scaled": ("gqa", KERNEL, f"{KERNEL}, scale=1.0"),
    "key heads in turn, 1 2 1 2": ("gqa", GROUPED, f"k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1); {GROUPED}"),
    "key heads in turn for a new token": (
        "gqa, cached one by one", "k.shape[1], -1, q.shape[-1])", "-1, k.shape[1], q.shape[-1]).transpose(1, 2)"),
    "no mask": ("gqa", "is_causal=visible is None", "is_causal=False"),
    "mask off by one: sees the next token": (
        "gqa", MASK, "visible = torch.arange(n_key) <= positions[:, None] + 1"),
    "mask off by one: does not see itself": (
        "gqa", MASK, "visible = torch.arange(n_key) < positions[:, None].clamp(min=1)"),  # the first token has no other
    "square mask on a cached chunk": (  # query 0 of the chunk sees key 0 only
        "gqa, cached 5+4+7", MASK, "visible = torch.arange(n_key) <= torch.arange(n_query)[:, None]"),
    "no mask inside a cached chunk": (  # right for one token at a time
        "gqa, cached 5+4+7", MASK, "visible = torch.ones(n_query, n_key, dtype=torch.bool) if n_cached else None"),
    "positions not offset by the cache": (
        "gqa, cached one by one", "positions = torch.arange(n_cached, n_key", "positions = torch.arange(n_query"),
    "padding seen": ("left-padded", "keys >= n_pad", "keys >= 0 * n_pad"),
    "padding seen from the cache": ("left-padded, cached 5+4+7", "keys >= n_pad", "keys >= n_pad * (n_cached == 0)"),
    "every row padded like the first": ("left-padded", "n_pad = n_pad.to(", "n_pad = n_pad[:1].expand_as(n_pad).to("),
    "gate and up swapped": (
        "gqa", "F.silu(self.gate_proj(x)) * self.up_proj(x)", "self.gate_proj(x) * F.silu(self.up_proj(x))"),
    "GELU for SiLU": ("gqa", "F.silu(self", "F.gelu(self"),
    "no gate": ("gqa", "F.silu(self.gate_proj(x))", "self.gate_proj(x)"),
    "post-norm instead of pre-norm": ("gqa", BLOCK, """
        x = self.attention_norm(x + self.attention(x, cos, sin, visible, cache, layer))
        return self.ffn_norm(x + self.feed_forward(x))"""),
    "residual taken from the normalised x": ("gqa", "x = x + self.att", "x = self.attention_norm(x) + self.att"),
    "no final norm": ("gqa", "self.lm_head(self.final_norm(", "self.lm_head(("),
    "tied by copy": (  # equal values, so that only the gradient tells
        "tied", "lm_head.weight = self.tok_embeddings.weight",
        "lm_head.weight = nn.Parameter(self.tok_embeddings.weight.detach())"),
}  # fmt: skip


def wrong_llama(name: str):
    """The class `Llama` of a helpers/model.py that makes the named mistake."""
    _, said, instead = WRONG_MODELS[name]
    text = Path(right.__file__).read_text(encoding="utf-8")
    assert text.count(said) == 1, f"helpers/model.py does not say {said!r} once: change the bug {name!r} with it"
    wrong = {"__name__": right.__name__}
    exec(text.replace(said, instead), wrong)
    return wrong["Llama"]
