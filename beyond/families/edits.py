"""The model class of LLaMA's relatives, and the edits: today's open models are LLaMA plus a few of them.

An edit is one idea. It changes one of three things:
    a lens   who turns how fast (`Relative.layer_inv_freq`) and who sees how far (`Relative.windows`), layer by layer
    a part   a class in front of a module's own class, whose methods then come first (`patch`)
    storage  where the same numbers stand in a file
"""

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from helpers.config import LlamaConfig
from helpers.formats.hugging_face import ROPE_KEYS
from helpers.masks import sliding_window
from helpers.model import Llama, RMSNorm, SwiGLU, apply_rope, causal_visible, repeat_kv, rope_inv_freq
from helpers.validate import require_number, require_whole, shown


class Relative(Llama):
    """A LLaMA whose layers may differ in what they turn and in how far they see.

    Attributes:
        family: its name, as config.json's model_type.
        layer_inv_freq: each layer's inverse frequencies, (n_layers, h/2) [rad/token]; 0 where a pair stands still.
        attention_scaling: for each layer a factor on turned queries and keys; 1 but for YaRN.
        windows: for each layer the number of tokens that it sees, itself included; None: all.
    """

    def __init__(self, config: LlamaConfig, family: str):
        super().__init__(config)
        self.family = family
        self.inv_freq = self.inv_freq.repeat(config.n_layers, 1, 1)  # (n_layers, 1, h/2): angles get a row per layer
        self.attention_scaling = [1.0] * config.n_layers
        self.windows = [None] * config.n_layers
        for block in self.layers:
            patch(PerLayerRope, block.attention)

    @property
    def layer_inv_freq(self) -> torch.Tensor:
        """A view of inv_freq: write into it to change how fast a layer turns."""
        return self.inv_freq[:, 0]

    def rotation_and_mask(self, n_query, n_cached=0, n_pad=None, device=None):
        """As in Llama, but with a row of angles (…, n_layers, T, h/2) and a mask for each layer."""
        cos, sin, visible = super().rotation_and_mask(n_query, n_cached, n_pad, device)
        key = torch.arange(n_cached + n_query, device=device)
        masks = {}
        for window in set(self.windows):
            masks[window] = visible
            if window is not None and window < len(key):
                seen = causal_visible(n_query, len(key), device) if visible is None else visible
                masks[window] = seen & sliding_window(key[n_cached:], key, window)
        scaling = torch.tensor(self.attention_scaling)[:, None, None]  # of what turns
        scaling = torch.where(self.inv_freq == 0, 1.0, scaling).to(cos.device)
        return cos * scaling, sin * scaling, [masks[window] for window in self.windows]


class PerLayerRope(nn.Module):
    """In front of a layer's attention: it takes this layer's row of the angles, and its mask."""

    def forward(self, x, cos, sin, visible, cache=None, layer=0):
        """As GroupedQueryAttention; cos, sin and visible are those of `Relative.rotation_and_mask`."""
        cos, sin = (y[..., layer : layer + 1, :, :] for y in (cos, sin))  # (1, T, h/2) or (B, 1, T, h/2)
        return super().forward(x, cos, sin, visible[layer], cache, layer)


class Edit(nn.Module):
    """Marks what plain LLaMA does not do."""

    is_edit = True


def patch(edit: type, module: nn.Module, **settings):
    """Put an edit in front of a module's class, in place; the settings become the module's attributes."""
    module.__class__ = type(edit.__name__, (edit, type(module)), {})
    for name, value in settings.items():
        setattr(module, name, value)


# ------------------------------------------------------------------------------------------ edits of the two lenses


def layer_types(content: dict, n_layers: int) -> list[str]:
    """'sliding_attention' or 'full_attention' for each layer, as listed, or by the rule of older files."""
    types = content.get("layer_types")
    if types is None:
        pattern, first = content.get("sliding_window_pattern"), content.get("max_window_layers", 0)
        require_whole("sliding_window_pattern", pattern, 1, or_none=True)
        some = content.get("sliding_window") is not None
        slides = [(layer + 1) % pattern != 0 if pattern else some and layer >= first for layer in range(n_layers)]
        types = ["sliding_attention" if slide else "full_attention" for slide in slides]
    kinds = "sliding_attention", "full_attention"
    if not isinstance(types, list) or len(types) != n_layers or not all(one in kinds for one in types):
        raise ValueError(f"layer_types={shown(types)}: {n_layers} of {kinds[0]!r} or {kinds[1]!r} are needed.")
    if "sliding_attention" in types:
        require_whole("sliding_window", content.get("sliding_window"), 1)
    return types


def window(model: Relative, content: dict):
    """A layer that slides sees only the last tokens. Mistral 7B, arXiv 2310.06825; `sliding_window_overlay`."""
    types = layer_types(content, model.config.n_layers)
    model.windows = [content["sliding_window"] if kind == "sliding_attention" else None for kind in types]


def layers_that_turn(content: dict, n_layers: int) -> list[int]:
    """1 for each layer that turns, 0 for one that does not, as listed, or by the rule of older files."""
    turns = content["no_rope_layers"]
    if turns is None:
        step = require_whole("no_rope_layer_interval", content["no_rope_layer_interval"], 1)
        turns = [int((layer + 1) % step != 0) for layer in range(n_layers)]
    if not isinstance(turns, list) or len(turns) != n_layers or not all(one in (0, 1) for one in turns):
        raise ValueError(f"no_rope_layers={shown(turns)}: {n_layers} of 0 (stands still) or 1 (turns) are needed.")
    return turns


def no_rope(model: Relative, content: dict):
    """Some layers do not turn queries and keys (NoPE); 1: a layer does. arXiv 2501.18795; `SmolLM3Attention`."""
    for layer, turns in enumerate(layers_that_turn(content, model.config.n_layers)):
        model.layer_inv_freq[layer] *= turns


def partial_rotation(model: Relative, content: dict):
    """Only the first pairs of a head turn, as a whole smaller head would. `GlmRotaryEmbedding`."""
    angles(model, content, partial=True)


def interleaved(model: Relative, content: dict):
    """A pair is two neighbours, as in Meta's files. Cohere, GLM; `apply_rotary_pos_emb` of glm."""

    class Interleaved(Edit):
        def rotated_qkv(self, x, cos, sin):
            q, k, v = self.heads(x)
            return *(apply_rope(y, cos, sin, "interleaved") for y in (q, k)), v

    for block in model.layers:
        patch(Interleaved, block.attention)


def angles(model: Relative, content: dict, partial: bool = False):
    """Each layer turns as rope_parameters says for its kind: two bases, or YaRN. `Gemma3RotaryEmbedding`."""
    ropes, kinds = content["rope_parameters"], ["full_attention"] * model.config.n_layers
    if ropes["sliding_attention"] != ropes["full_attention"]:  # else a row needs no kinds, or has others
        kinds = layer_types(content, model.config.n_layers)
    for layer, kind in enumerate(kinds):
        share = ropes[kind]["partial_rotary_factor"] if partial else 1.0
        inv_freq, scaling = rope_init(ropes[kind], model.config.head_dim, share)
        model.layer_inv_freq[layer], model.attention_scaling[layer] = inv_freq, scaling


def rope_init(rope: dict, head_dim: int, share: float = 1.0) -> tuple[torch.Tensor, float]:
    """Inverse frequencies (h/2,) [rad/token] and attention scaling of a complete entry of rope_parameters.

    If only a share of the head turns, its pairs come first, and 0 stands for the others.
    """
    require_number("partial_rotary_factor", share, lambda share: 0 < share <= 1, "> 0 and <= 1")
    turned, theta, kind = int(head_dim * share), rope["rope_theta"], rope["rope_type"]
    if kind == "yarn":
        inv_freq, scaling = yarn(turned, theta, **{name: rope[name] for name in ROPE_KEYS[kind] if name in rope})
    else:
        numbers = {"type": kind, **{name: rope[name] for name in ROPE_KEYS[kind]}}
        inv_freq, scaling = rope_inv_freq(turned, theta, None if kind == "default" else numbers), 1.0
    return F.pad(inv_freq, (0, head_dim // 2 - len(inv_freq))), scaling


def yarn(head_dim, theta, *, factor, original_max_position_embeddings, beta_fast=None, beta_slow=None, truncate=True,
         attention_factor=None, mscale=None, mscale_all_dim=None):  # fmt: skip
    """RoPE stretched by `factor`: pairs with few turns within the trained length are slowed, pairs with many are not.

    arXiv 2309.00071; `_compute_yarn_parameters`. Returns as rope_init does.
    """
    require_whole("original_max_position_embeddings", original_max_position_embeddings, 1)
    require_number("rope_scaling factor", factor, lambda factor: 1 <= factor <= 1e18, ">= 1 and <= 1e18")
    numbers = {"beta_fast": beta_fast or 32.0, "beta_slow": beta_slow or 1.0}
    for name, value in numbers.items():
        require_number(name, value, lambda turns: turns > 0, "> 0: turns within the trained length")
    for name, value in (("mscale", mscale), ("mscale_all_dim", mscale_all_dim), ("attention_factor", attention_factor)):
        require_number(name, value or 0.0, lambda scale: scale >= 0, ">= 0, or null")
    inv_freq = rope_inv_freq(head_dim, theta)
    low, high = (  # the numbers of the pairs that finish so many turns
        head_dim * math.log(original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in numbers.values()
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    slowed = (torch.arange(head_dim // 2, device="cpu") - low) / (high - low or 0.001)
    inv_freq = torch.lerp(inv_freq, inv_freq / factor, slowed.clamp(0, 1))
    if attention_factor is None:
        above, below = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1.0, 0.0)
        attention_factor = (0.1 * above * math.log(factor) + 1.0) / (0.1 * below * math.log(factor) + 1.0)
    return inv_freq, attention_factor


# ------------------------------------------------------------------------------------------------ edits of the parts


def add_bias(linear):
    """Give a linear layer a bias."""
    linear.bias = nn.Parameter(torch.zeros(linear.out_features))


def norms(config, **widths):
    """{name: a norm of this width}, for `patch`."""
    return {name: RMSNorm(width, config.norm_eps) for name, width in widths.items()}


def biases(model: Relative, content: dict):
    """A fixed arrow on queries, keys and values, before the turn. Qwen2, arXiv 2407.10671; `Qwen2Attention`."""
    for attention in (block.attention for block in model.layers if content.get("attention_bias", True)):
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            add_bias(linear)
        if content.get("attention_out_bias", content.get("attention_bias")):  # gpt-oss: on what attention writes, too
            add_bias(attention.o_proj)


def biases_everywhere(model: Relative, content: dict):
    """A bias in every matrix of a block, or of its feed-forward. GPT-2, StarCoder2; `Starcoder2MLP`, `GPTJMLP`."""
    parts = [*model.layers.named_modules()] if content.get("use_bias", True) else []
    for linear in [one for name, one in parts if isinstance(one, nn.Linear)
                   and any(part in name for part in content.get("biased", ("",)))]:  # fmt: skip
        add_bias(linear)


def qk_norm(model: Relative, content: dict):
    """Norms on queries and keys of each head, before the turn. Qwen3, arXiv 2505.09388; `Qwen3Attention.forward`."""

    class NormPerHead(Edit):
        def heads(self, x):
            q, k, v = super().heads(x)
            return self.q_norm(q), self.k_norm(k), v

    h = model.config.head_dim
    for block in model.layers if content.get("use_qk_norm", True) else ():
        patch(NormPerHead, block.attention, **norms(model.config, q_norm=h, k_norm=h))


def qk_norm_whole(model: Relative, content: dict):
    """Norms on whole queries and keys, all heads at once. OLMo 2, arXiv 2501.00656; `Olmo2Attention.forward`."""

    class NormWhole(Edit):
        def heads(self, x):
            q, k, v = super().heads(x)
            q, k = (
                norm(y.transpose(1, 2).flatten(-2)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                for norm, y in ((self.q_norm, q), (self.k_norm, k))
            )
            return q, k, v

    for attention in (block.attention for block in model.layers):
        widths = {"q_norm": attention.q_proj.out_features, "k_norm": attention.k_proj.out_features}
        patch(NormWhole, attention, **norms(model.config, **widths))


def post_norm(model: Relative, content: dict):
    """The norm stands behind each branch, not before it. OLMo 2, arXiv 2501.00656; `Olmo2DecoderLayer.forward`."""

    class PostNorm(Edit):
        def forward(self, x, *shared):
            x = x + self.attention_norm(self.attention(x, *shared))
            return x + self.ffn_norm(self.feed_forward(x))

    for block in model.layers:
        patch(PostNorm, block)


def sandwich_norm(model: Relative, content: dict):
    """A norm before each branch and one behind it. Gemma 2, arXiv 2408.00118; `Gemma3DecoderLayer.forward`."""

    class SandwichNorm(Edit):
        def forward(self, x, *shared):
            x = x + self.attention_out_norm(self.attention(self.attention_norm(x), *shared))
            return x + self.ffn_out_norm(self.feed_forward(self.ffn_norm(x)))

    dim = model.config.dim
    for block in model.layers:
        patch(SandwichNorm, block, **norms(model.config, attention_out_norm=dim, ffn_out_norm=dim))


def zero_centred_gain(model: Relative, content: dict):
    """Every gain is 1 + weight. Comes last, for it changes the norms of other edits, too. Gemma; `Gemma3RMSNorm`."""

    class ZeroCentredGain(Edit):
        def forward(self, x):
            wide = x.float()
            normalised = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
            return (normalised * (1 + self.weight.float())).to(x.dtype)

    for norm in [part for part in model.modules() if isinstance(part, RMSNorm)]:
        patch(ZeroCentredGain, norm)
        nn.init.zeros_(norm.weight)


def layer_norm(model: Relative, content: dict):
    """LayerNorm takes the mean off first and adds a bias, but none in Cohere. arXiv 1607.06450; `nn.LayerNorm`."""

    class LayerNorm(Edit):
        def forward(self, x):
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    biased, centred = content.get("norm_bias", True), content.get("norms_are_centred", True)
    for norm in [part for part in model.modules() if isinstance(part, RMSNorm) and centred]:
        patch(LayerNorm, norm, bias=nn.Parameter(torch.zeros_like(norm.weight)) if biased else None)


TANH_GELU = partial(F.gelu, approximate="tanh")
ACTIVATIONS = {"gelu": F.gelu, "gelu_new": TANH_GELU, "gelu_pytorch_tanh": TANH_GELU, "relu": F.relu,
               "relu2": lambda x: x.relu() ** 2, "silu": F.silu}  # fmt: skip


def _activation(content):
    if (name := content["hidden_act"]) not in ACTIVATIONS:
        raise ValueError(f"hidden_act={shown(name)} is not known here, only {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def ungated(model: Relative, content: dict):
    """No gate: down(activation(up(x))). Arcee and Nemotron with relu²; `Starcoder2MLP`."""

    class Ungated(Edit):
        def forward(self, x):
            return self.down_proj(self.activation(self.up_proj(x)))

    for feed_forward in (block.feed_forward for block in model.layers):
        del feed_forward.gate_proj
        patch(Ungated, feed_forward, activation=_activation(content))


def gate_act(model: Relative, content: dict):
    """Another function in SiLU's place, before the gate. BitNet with relu²; `BitNetMLP`."""

    class GateAct(Edit):
        def forward(self, x):
            return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))

    for block in model.layers:
        patch(GateAct, block.feed_forward, activation=_activation(content))


def gelu_gate(model: Relative, content: dict):
    """GELU, in its tanh form, in SiLU's place. GEGLU, arXiv 2002.05202; `Gemma3MLP`."""
    if (name := content["hidden_activation"]) not in ("gelu_pytorch_tanh", None):  # hidden_act is not read
        raise ValueError(f"hidden_activation={shown(name)}: only 'gelu_pytorch_tanh' is known here. Use another one.")
    gate_act(model, {"hidden_act": "gelu_pytorch_tanh"})


def scales(model: Relative, content: dict):
    """Constants on embedding, scores, branches and logits. `GraniteModel`; `Gemma3Attention`: its query scalar."""

    class Scaled(Edit):
        def forward(self, *given):
            given = super().forward(*given)
            return given * torch.tensor(self.scale, dtype=given.dtype, device=given.device)

    class ScaledQuery(Edit):
        def heads(self, x):
            q, k, v = super().heads(x)
            return q * (self.score_scale * math.sqrt(self.head_dim)), k, v  # attention divides by √h

    gemma = "query_pre_attn_scalar" in content
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    for name in ("query_pre_attn_scalar",) if gemma else names:
        require_number(name, content[name], lambda value: value > 0, "> 0")
    score_scale = content["query_pre_attn_scalar"] ** -0.5 if gemma else content["attention_multiplier"]
    patch(Scaled, model.tok_embeddings, scale=model.config.dim**0.5 if gemma else content["embedding_multiplier"])
    for block in model.layers:
        patch(ScaledQuery, block.attention, score_scale=score_scale)
        ends = (getattr(block, f"{name}_out_norm", None) for name in ("attention", "ffn"))  # the last part of a branch
        for part in () if gemma else map(lambda end, part: end or part, ends, (block.attention, block.feed_forward)):
            patch(Scaled, part, scale=content["residual_multiplier"])
    if not gemma:
        patch(Scaled, model.lm_head, scale=1 / content["logits_scaling"])


def _hidden(scores, visible):
    """Scores (B, H, T, S) with -inf where a query may not look."""
    visible = causal_visible(*scores.shape[-2:], scores.device) if visible is None else visible
    return scores.masked_fill(~visible, float("-inf"))


def logit_softcapping(model: Relative, content: dict):
    """No score or logit leaves (-cap, cap). Gemma 2, arXiv 2408.00118; its `eager_attention_forward`."""

    class CappedScores(Edit):
        def attend(self, q, k, v, visible):
            k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)
            scores = self.cap * torch.tanh(q @ k.transpose(-2, -1) / math.sqrt(self.head_dim) / self.cap)
            return _hidden(scores, visible).softmax(dim=-1, dtype=torch.float32).to(q.dtype) @ v

    class CappedLogits(Edit):
        def forward(self, x):
            return self.cap * torch.tanh(super().forward(x) / self.cap)

    scores = ("attn_logit_softcapping", CappedScores, [block.attention for block in model.layers])
    for name, edit, parts in (scores, ("final_logit_softcapping", CappedLogits, [model.lm_head])):
        if content[name] is not None:
            require_number(name, content[name], lambda cap: cap > 0, "> 0, or null")
            for part in parts:
                patch(edit, part, cap=content[name])


def sinks(model: Relative, content: dict):
    """A column that takes attention and gives nothing: a learned score per head. gpt-oss, arXiv 2508.10925."""

    class Sinks(Edit):
        def attend(self, q, k, v, visible):
            k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)
            scores = _hidden(q @ k.transpose(-2, -1) / math.sqrt(self.head_dim), visible)
            column = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
            return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1].to(v.dtype) @ v

    for block in model.layers:
        patch(Sinks, block.attention, sinks=nn.Parameter(torch.zeros(model.config.n_heads)))


class Experts(Edit):
    """Several feed-forwards; each token goes through the few that its router likes best, and adds them by their share.

    The softmax over the chosen ones is the softmax over all, renormalised. Mixtral, arXiv 2401.04088;
    `MixtralTopKRouter`, `MixtralExperts`, `GptOssExperts`.
    """

    def __init__(self, config: LlamaConfig, hidden_dim: int, n_experts: int, n_chosen: int, renormalise: bool):
        super().__init__()
        self.n_chosen, self.renormalise = n_chosen, renormalise
        self.router = nn.Linear(config.dim, n_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(config.dim, hidden_dim) for _ in range(n_experts))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def choose(self, rows):
        """Shares and numbers of each token's experts, (tokens, n_chosen) each."""
        shares, chosen = self.router(rows).softmax(dim=-1, dtype=torch.float32).topk(self.n_chosen, dim=-1)
        return shares / shares.sum(dim=-1, keepdim=True) if self.renormalise else shares, chosen

    def forward(self, x):
        """(B, T, D) to (B, T, D)."""
        rows = x.flatten(0, 1)  # (B, T, D) -> (B * T, D)
        shares, chosen = self.choose(rows)
        y = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)  # who chose it, and as which of its choices
            if len(row):
                y = y.index_add(0, row, self.weighed(expert, rows[row], shares[row, place, None].to(x.dtype)))
        return y.view_as(x)

    def weighed(self, expert, rows, shares):
        """What an expert gives for its tokens (tokens, D), each by its share."""
        return expert(rows) * shares


def sparse_layers(content: dict, n_layers: int) -> list[bool]:
    """Which layers have experts, as listed, or by the rules of other files."""
    kinds, dense = content.get("mlp_layer_types"), content.get("mlp_only_layers") or ()
    if kinds is None:
        first = content.get("first_k_dense_replace", 0)
        step = require_whole("decoder_sparse_step", content.get("decoder_sparse_step", 1), 1)
        return [layer >= first and layer not in dense and (layer + 1) % step == 0 for layer in range(n_layers)]
    if not isinstance(kinds, list) or len(kinds) != n_layers or not all(one in ("sparse", "dense") for one in kinds):
        raise ValueError(f"mlp_layer_types={shown(kinds)}: {n_layers} of 'sparse' or 'dense' are needed.")
    return [kind == "sparse" for kind in kinds]


def experts(model: Relative, content: dict):
    """Experts in the feed-forward's place, in all layers or in some."""
    n_experts, n_chosen = content["num_experts"], content["num_experts_per_tok"]
    hidden_dim = content.get("moe_intermediate_size", model.config.hidden_dim)
    for name, value in (("num_experts_per_tok", n_chosen), ("moe_intermediate_size", hidden_dim)):
        require_whole(name, value, 1)
    if not n_chosen <= n_experts:
        raise ValueError(f"num_experts_per_tok={n_chosen} exceeds num_experts={n_experts}: use another checkpoint.")
    for sparse, block in zip(sparse_layers(content, model.config.n_layers), model.layers, strict=True):
        if sparse:
            settings = hidden_dim, n_experts, n_chosen, content.get("norm_topk_prob", True)
            block.feed_forward = Experts(model.config, *settings)


def clamped_gate(model: Relative, content: dict):
    """gpt-oss' experts: clamped, one is added to each value, biases everywhere. `GptOssExperts._apply_gate`."""

    class ClampedGate(Edit):
        def forward(self, x):
            gate = self.gate_proj(x).clamp(max=self.limit)
            up = self.up_proj(x).clamp(-self.limit, self.limit)
            return self.down_proj((up + 1) * gate * torch.sigmoid(self.alpha * gate))

    limit, alpha = content["swiglu_limit"], content["swiglu_alpha"]
    for name in ("swiglu_limit", "swiglu_alpha"):
        require_number(name, content[name], lambda value: 0 < value < 65504, "> 0 and within float16")
    for block in model.layers:
        for linear in (part for part in block.feed_forward.modules() if isinstance(part, nn.Linear)):
            add_bias(linear)
        for expert in block.feed_forward.experts:
            patch(ClampedGate, expert, limit=limit, alpha=alpha)


# ----------------------------------------------------------------------------------------------- edits of the storage


def split_merged(weights: dict, config: LlamaConfig) -> dict:
    """q, k, v and gate, up stand in one matrix each. GLM; `Phi3Attention`, `Phi3MLP`."""
    h, ours = config.head_dim, {}
    for name, weight in weights.items():
        if name.endswith("qkv_proj.weight"):
            parts = weight.split([h * config.n_heads, h * config.n_kv_heads, h * config.n_kv_heads])
            for letter, part in zip("qkv", parts, strict=True):
                ours[name.replace("qkv_proj", f"{letter}_proj")] = part
        elif name.endswith("gate_up_proj.weight"):
            gate, up = weight.chunk(2)
            ours |= {name.replace("gate_up_proj", "gate_proj"): gate, name.replace("gate_up_proj", "up_proj"): up}
        else:
            ours[name] = weight
    return ours


def turned_first(weights: dict, config: LlamaConfig) -> dict:
    """What turns comes first in a head, its pairs (i, i + half): they become our pairs (i, i + h/2). `PhiAttention`."""
    h, ropes, kinds = config.head_dim, config.settings["rope_parameters"], config.settings.get("layer_types")
    turns = tuple(f".{which}_{part}.{of}" for which in "qk" for part in ("proj", "norm") for of in ("weight", "bias"))

    def ordered(name, weight):
        kind = kinds[int(name.split(".")[1])] if kinds else "full_attention"  # in Laguna a kind has its own half
        half = int(h * ropes[kind]["partial_rotary_factor"]) // 2
        turned, still = torch.arange(2 * half).view(2, -1), torch.arange(2 * half, h).view(2, -1)
        return weight.unflatten(0, (-1, h))[:, torch.cat((turned, still), dim=1).flatten()].flatten(0, 1)

    return {name: ordered(name, weight) if name.endswith(turns) else weight for name, weight in weights.items()}


def split_phi3(weights: dict, config: LlamaConfig) -> dict:
    """Both. `Phi3Attention`."""
    return turned_first(split_merged(weights, config), config)


def split_experts(weights: dict, config: LlamaConfig) -> dict:
    """All experts stand in one tensor, gate on up; gpt-oss': transposed, gate and up in turn. `MixtralExperts`."""
    ours, in_turn = {}, config.family == "gpt_oss"
    for name, weight in weights.items():
        place, _, part = name.partition(".experts.")
        if not part or part[0].isdigit():  # of one expert, as in most files
            ours[name] = weight
            continue
        what = {"_bias": "bias"}.get(part[-5:], "weight")
        for number, own in enumerate(weight):
            own, start = own.T if in_turn and what == "weight" else own, f"{place}.experts.{number}"
            if part.startswith("gate_up_proj"):
                gate, up = (own[::2], own[1::2]) if in_turn else own.chunk(2)
                ours |= {f"{start}.gate_proj.{what}": gate, f"{start}.up_proj.{what}": up}
            else:
                ours[f"{start}.down_proj.{what}"] = own
    return ours
