"""Edits of families that 08 does not teach. Each is a small class that changes one method of a part, as in edits.py."""

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from beyond.families import edits
from beyond.families.edits import Edit, Experts, Relative, _hidden, layers_that_turn, norms, patch, rope_init
from helpers.config import LlamaConfig
from helpers.model import RMSNorm, SwiGLU, apply_rope, causal_visible, repeat_kv
from helpers.validate import require_number, require_whole, shown

# --------------------------------------------------------------------------------------------------------- experts


def _mixtures(model):
    return [block.feed_forward for block in model.layers if isinstance(block.feed_forward, Experts)]


def router(model: Relative, content: dict):
    """An expert's share is its own sigmoid, and a bias has a say in the choice alone. DeepSeek-V3, arXiv 2412.19437.

    With groups, only experts of the best ones are chosen; a group is as good as its `group_top` best ones together.
    Kolibri and Cohere choose by logits, where the same bias weighs otherwise; Laguna's logits have a cap.
    """

    class Router(Edit):
        def choose(self, rows):
            logits = F.linear(rows.float(), self.router.weight.float())
            logits = self.cap * torch.tanh(logits / self.cap) if self.cap else logits
            scores = logits.sigmoid() if self.squash == "sigmoid" else logits.softmax(dim=-1)
            liked = logits if self.by_logits else scores
            liked = liked + self.choice_bias.float() if self.biased else liked
            if self.n_group > 1:
                groups = liked.unflatten(1, (self.n_group, -1))  # (tokens, groups, experts of one)
                worth = groups.topk(self.group_top, dim=-1).values.sum(dim=-1)
                best = torch.zeros_like(worth).scatter(1, worth.topk(self.topk_group, dim=-1).indices, 1) > 0
                liked = groups.masked_fill(~best[..., None], float("-inf")).flatten(1)
            chosen = liked.topk(self.n_chosen, dim=-1).indices
            shares = scores.gather(1, chosen)
            if self.renormalise:
                shares = shares / (shares.sum(dim=-1, keepdim=True) + 1e-20)
            return shares * self.share_scale, chosen

    n_experts, n_group, best = content["num_experts"], content.get("n_group", 1), content.get("topk_group", 1)
    for name, value in (("n_group", n_group), ("topk_group", best)):
        require_whole(name, value, 1)
    if n_experts % n_group or best > n_group or content["num_experts_per_tok"] > n_experts // n_group * best:
        raise ValueError(f"n_group={n_group} and topk_group={best} do not fit num_experts={n_experts}, of which "
                         f"{content['num_experts_per_tok']} are chosen: use another checkpoint.")  # fmt: skip
    scale, biased = content.get("routed_scaling_factor", 1.0), content.get("choice_bias", True)
    cap, by_logits = content.get("moe_router_logit_softcapping", 0.0), content.get("chosen_by") == "logits"
    require_number("routed_scaling_factor", scale, lambda scale: scale > 0, "> 0")
    require_number("moe_router_logit_softcapping", cap, lambda cap: cap >= 0, ">= 0; 0: no cap")
    for mixture in _mixtures(model):
        patch(Router, mixture, squash=content.get("squash", "sigmoid"), biased=biased, n_group=n_group, topk_group=best,
              group_top=content.get("group_top", 2), share_scale=scale, cap=cap, by_logits=by_logits)  # fmt: skip
        if biased:
            mixture.choice_bias = nn.Parameter(torch.zeros(n_experts))


def shared_expert(model: Relative, content: dict):
    """One expert more, which every token goes through. DeepSeekMoE, arXiv 2401.06066; Qwen2 MoE puts a gate on it."""

    class SharedExpert(Edit):
        def forward(self, x):
            gate = torch.sigmoid(self.shared_gate(x)) if hasattr(self, "shared_gate") else 1.0
            return (super().forward(x) + gate * self.shared(x)) * self.share_of_sum

    dim, width = model.config.dim, content["shared_expert_intermediate_size"]
    if width:
        require_whole("shared_expert_intermediate_size", width, 1)
        for mixture in _mixtures(model):
            mixture.shared = SwiGLU(dim, width)
            if content.get("shared_gate"):
                mixture.shared_gate = nn.Linear(dim, 1, bias=False)
            patch(SharedExpert, mixture, share_of_sum=content.get("share_of_sum", 1.0))  # in Cohere half, the average


def input_router(model: Relative, content: dict):
    """The share, a sigmoid, multiplies what goes into an expert, not what it gives. Llama 4; `Llama4TextMoe`."""

    class InputRouter(Edit):
        def choose(self, rows):
            logits, chosen = self.router(rows).topk(self.n_chosen, dim=-1)
            return logits.float().sigmoid(), chosen

        def weighed(self, expert, rows, shares):
            return expert(rows * shares)

    for mixture in _mixtures(model):
        patch(InputRouter, mixture)


def near_best(model: Relative, content: dict):
    """Two experts, each by its share among those whose logits come close to its own. PhiMoE, arXiv 2409.12136."""

    class NearBest(Edit):
        def choose(self, rows):
            logits = left = self.router(rows)
            found = []
            for _ in range(2):
                best, chosen = left.max(dim=-1, keepdim=True)
                far = (best - logits) / logits.abs().clamp(min=best) > 2 * self.jitter
                found.append((left.masked_fill(far, float("-inf")).softmax(dim=-1).gather(1, chosen), chosen))
                left = left.scatter(1, chosen, float("-inf"))
            return tuple(torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))

    require_number("router_jitter_noise", content["router_jitter_noise"], lambda jitter: jitter >= 0, ">= 0")
    for mixture in _mixtures(model):
        patch(NearBest, mixture, jitter=content["router_jitter_noise"])


def mixture_norm(model: Relative, content: dict):
    """A norm on what the experts give together. A.X-K1; `AXK1MoE.forward`."""

    class NormedMixture(Edit):
        def forward(self, x):
            return self.out_norm(super().forward(x))

    for mixture in _mixtures(model):
        patch(NormedMixture, mixture, **norms(model.config, out_norm=model.config.dim))


def mixture_bias(model: Relative, content: dict):
    """A bias on what the experts give together. JetMoE; `JetMoeMoE.forward`."""

    class BiasedMixture(Edit):
        def forward(self, x):
            return super().forward(x) + self.bias

    for mixture in _mixtures(model):
        patch(BiasedMixture, mixture, bias=nn.Parameter(torch.zeros(model.config.dim)))


def sub_norm(model: Relative, content: dict):
    """A norm before the last matrix of each branch. BitNet, arXiv 2504.12285; `BitNetAttention.forward`."""

    class NormedInput(Edit):
        def forward(self, x):
            return super().forward(self.norm(x))

    for linear in (one for block in model.layers for one in (block.attention.o_proj, block.feed_forward.down_proj)):
        patch(NormedInput, linear, **norms(model.config, norm=linear.in_features))


# ------------------------------------------------------------------------------------------------------- attention


def latent(model: Relative, content: dict):
    """Keys and values are made from one short vector a token, and only a part of a head turns. MLA, arXiv 2405.04434.

    The cache holds full keys and values here, not the short vector, so it saves nothing. `DeepseekV3Attention`.
    """

    class Latent(Edit):
        def rotated_qkv(self, x, cos, sin):
            cos, sin = cos[..., : self.turned // 2], sin[..., : self.turned // 2]
            q = self.q_b_proj(self.q_a_norm(self.q_a_proj(x))) if hasattr(self, "q_a_proj") else self.q_proj(x)
            q, q_turned = q.unflatten(-1, (-1, self.head_dim)).transpose(1, 2).split([self.still, self.turned], dim=-1)
            short, k_turned = self.kv_a_proj(x).split([self.rank, self.turned], dim=-1)
            kv = self.kv_b_proj(self.kv_a_norm(short)).unflatten(-1, (-1, self.still + self.v_dim)).transpose(1, 2)
            k, v = kv.split([self.still, self.v_dim], dim=-1)
            q_turned = apply_rope(q_turned, cos, sin, self.layout)
            k_turned = apply_rope(k_turned[:, None], cos, sin, self.layout).expand(-1, k.shape[1], -1, -1)
            q, k = torch.cat((q, q_turned), dim=-1) * self.score_scale, torch.cat((k, k_turned), dim=-1)
            return q, k, F.pad(v, (0, self.head_dim - self.v_dim))  # the cache's keys and values are of one width

        def attend(self, q, k, v, visible):
            return super().attend(q, k, v, visible)[..., : self.v_dim]

    config, rope = model.config, content["rope_parameters"]["full_attention"]
    rank, q_rank = content["kv_lora_rank"], content["q_lora_rank"]
    still, turned, v_dim = content["qk_nope_head_dim"], content["qk_rope_head_dim"], content["v_head_dim"]
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank"):
        require_whole(name, content[name], 1, or_none=name == "q_lora_rank")
    if config.n_kv_heads != config.n_heads or v_dim > config.head_dim:
        raise ValueError(f"num_key_value_heads={config.n_kv_heads} must be num_attention_heads={config.n_heads}, and "
                         f"v_head_dim={v_dim} at most {config.head_dim}: use another checkpoint.")  # fmt: skip
    inv_freq, scaling = rope_init(rope, turned)
    model.layer_inv_freq[:] = F.pad(inv_freq, (0, config.head_dim // 2 - len(inv_freq)))
    model.attention_scaling = [scaling] * config.n_layers
    stretched = rope.get("mscale_all_dim") or 0.0 if rope["rope_type"] != "default" else 0.0
    score_scale = (0.1 * stretched * math.log(rope["factor"]) + 1) ** 2 if stretched and rope["factor"] > 1 else 1.0
    for attention in (block.attention for block in model.layers):
        biased = content.get("attention_bias", False)
        if q_rank is not None:
            del attention.q_proj
            attention.q_a_proj = nn.Linear(config.dim, q_rank, bias=biased)
            attention.q_a_norm = RMSNorm(q_rank, 1e-6)  # whatever rms_norm_eps is
            attention.q_b_proj = nn.Linear(q_rank, config.n_heads * config.head_dim, bias=False)
        del attention.k_proj, attention.v_proj
        attention.kv_a_proj = nn.Linear(config.dim, rank + turned, bias=biased)
        attention.kv_a_norm = RMSNorm(rank, 1e-6)
        attention.kv_b_proj = nn.Linear(rank, config.n_heads * (still + v_dim), bias=False)
        attention.o_proj = nn.Linear(config.n_heads * v_dim, config.dim, bias=biased)
        layout = "interleaved" if content.get("rope_interleave", True) else "halves"
        patch(Latent, attention, rank=rank, still=still, turned=turned, v_dim=v_dim, layout=layout,
              score_scale=score_scale)  # fmt: skip


def still_if_full(model: Relative, content: dict):
    """A layer that sees all does not turn, those with a window do; comes after `window`. `Cohere2Attention`."""
    if content["sliding_window"] is not None or not content.get("turns_without_window"):  # the latter: EXAONE
        for layer in [number for number, window in enumerate(model.windows) if window is None]:
            model.layer_inv_freq[layer] *= layer in content.get("turns_anyway", ())


def out_gate(model: Relative, content: dict):
    """A gate on what each head writes, made from the token itself. arXiv 2505.06708; `AfmoeAttention.forward`."""

    class OutGate(Edit):
        def heads(self, x):
            gate = self.gate_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, h), or (B, H, T, 1)
            self.opened = self.squash(gate if self.gate_bias is None else gate + self.gate_bias[:, None, None])
            return super().heads(x)

        def attend(self, q, k, v, visible):
            return super().attend(q, k, v, visible) * self.__dict__.pop("opened")

    for attention in (block.attention for block in model.layers):
        n_heads = attention.q_proj.out_features // attention.head_dim
        width = n_heads * (1 if content.get("gating") in (True, "per-head") else attention.head_dim)  # 1 in Laguna
        bias = nn.Parameter(torch.zeros(n_heads)) if content.get("gate_has_bias") else None
        patch(OutGate, attention, gate_proj=nn.Linear(model.config.dim, width, bias=False), gate_bias=bias,
              n_heads=n_heads, squash=F.softplus if "gating" in content else torch.sigmoid)  # fmt: skip


def layer_heads(model: Relative, content: dict):
    """Each layer has its own number of query heads; key heads are as many in all. Laguna; `LagunaAttention`."""
    heads, config = content["num_attention_heads_per_layer"], model.config
    heads = [config.n_heads] * config.n_layers if heads is None else heads
    if not isinstance(heads, list) or len(heads) != config.n_layers or not all(
        type(one) is int and one > 0 and one % config.n_kv_heads == 0 for one in heads
    ):  # fmt: skip
        raise ValueError(f"num_attention_heads_per_layer={shown(heads)}: {config.n_layers} multiples of "
                         f"num_key_value_heads={config.n_kv_heads} are needed.")  # fmt: skip
    for n_heads, attention in zip(heads, (block.attention for block in model.layers), strict=True):
        attention.n_rep, width = n_heads // config.n_kv_heads, n_heads * config.head_dim
        attention.q_proj = nn.Linear(config.dim, width, bias=False)
        attention.o_proj = nn.Linear(width, config.dim, bias=False)


def mixed_attention(model: Relative, content: dict):
    """A router chooses whose queries a token makes and who writes: experts share keys. MoA, arXiv 2210.05144; JetMoE.

    All experts' queries are computed here, and those of the chosen kept, so it saves nothing. `JetMoeMoA`.
    """

    class MixedAttention(Edit):
        choose = Experts.choose

        def heads(self, x):
            shares, chosen = self.choose(x.flatten(0, 1))  # (B * T, n_chosen) each
            picks = F.one_hot(chosen, self.router.out_features).to(x).unflatten(0, x.shape[:2])  # (B, T, n_chosen, E)
            self.weighed = picks * shares.to(x).unflatten(0, x.shape[:2])[..., None]
            q, k, v = super().heads(x)
            q = q.unflatten(1, (-1, k.shape[1]))  # (B, E, K, T, h): each expert has a query for each key head
            return torch.einsum("btne,bekth->bknth", picks, q).flatten(1, 2), k, v

        def attend(self, q, k, v, visible):
            mixed = super().attend(q, k, v, visible).unflatten(1, (k.shape[1], -1))  # (B, K, n_chosen, T, h)
            return torch.einsum("btne,bknth->bekth", self.__dict__.pop("weighed"), mixed).flatten(1, 2)

    config, n_experts = model.config, content["num_experts"]
    width = n_experts * config.n_kv_heads * config.head_dim
    for attention in (block.attention for block in model.layers):
        attention.q_proj, attention.o_proj = nn.Linear(config.dim, width, bias=False), nn.Linear(width, config.dim)
        attention.router = nn.Linear(config.dim, n_experts, bias=False)
        patch(MixedAttention, attention, n_chosen=content["num_experts_per_tok"], renormalise=True)


def chunks(model: Relative, content: dict):
    """A layer sees only the tokens of its own chunk: the text is cut at fixed places. Llama 4; `chunked_overlay`."""

    class Chunked(Edit):
        def rotation_and_mask(self, n_query, n_cached=0, n_pad=None, device=None):
            cos, sin, masks = super().rotation_and_mask(n_query, n_cached, n_pad, device)
            key = torch.arange(n_cached + n_query, device=device)
            number = (key if n_pad is None else (key - n_pad[:, None]).clamp(min=0)[:, None]) // self.chunk
            same = number[..., n_cached:, None] == number[..., None, :]  # (T, S) or (B, 1, T, S)
            plain = causal_visible(n_query, len(key), device)
            chunked = [same & (plain if mask is None else mask) for mask in masks]
            return cos, sin, [one if cut else mask for one, mask, cut in zip(chunked, masks, self.cut, strict=True)]

    require_whole("attention_chunk_size", content["attention_chunk_size"], 1)
    cut = [kind == "chunked_attention" for kind in content["layer_types"]]
    patch(Chunked, model, chunk=content["attention_chunk_size"], cut=cut)


def l2_norm(model: Relative, content: dict):
    """What has turned is brought to one length, without a gain. Llama 4; `Llama4TextL2Norm`."""

    class L2Norm(Edit):
        def rotated_qkv(self, x, cos, sin):
            q, k, v = super().rotated_qkv(x, cos, sin)
            return *(y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + self.eps).to(y) for y in (q, k)), v

    for block, turns in zip(model.layers, layers_that_turn(content, model.config.n_layers), strict=True):
        if turns and content["use_qk_norm"]:
            patch(L2Norm, block.attention, eps=model.config.norm_eps)


def temperature(model: Relative, content: dict):
    """A query grows with its position, so that no long text drowns it. arXiv 2501.19399; Llama 4, Ministral 3."""

    class Temperature(Edit):
        def rotated_qkv(self, x, cos, sin):
            q, k, v = super().rotated_qkv(x, cos, sin)
            steps = (self.clock.positions + self.shift) / self.step
            grown = self.growth * torch.log1p(steps if self.is_power else steps.floor())
            return q * (grown.exp() if self.is_power else 1 + grown)[:, None, :, None].to(q), k, v

    (growth, step, shift, layers), shared = content["temperature"], clock(model)
    is_power = content.get("grows_as") == "power"  # of 1 + steps, which are no whole numbers: Beam
    require_number("the growth of queries", growth, lambda value: value >= 0, ">= 0")  # 0 in Devstral 2
    require_number("the tokens of a step", step, lambda value: value > 0, "> 0")
    for layer in layers:
        patch(Temperature, model.layers[layer].attention, clock=shared, growth=growth, step=step, shift=shift,
              is_power=is_power)  # fmt: skip


def alibi(model: Relative, content: dict):
    """Nothing turns: the farther away a key is, the less its score, in each head by its own slope. arXiv 2108.12409."""

    class Alibi(Edit):
        def attend(self, q, k, v, visible):
            scores = q @ repeat_kv(k, self.n_rep).transpose(-2, -1) / math.sqrt(self.head_dim)
            scores = scores + self.slopes.to(q)[:, None, None] * torch.arange(k.shape[2], device=q.device)
            shares = _hidden(scores, visible).softmax(dim=-1, dtype=torch.float32).to(q.dtype)
            return shares @ repeat_kv(v, self.n_rep)

    n_heads, n_even = model.config.n_heads, 2 ** math.floor(math.log2(model.config.n_heads))
    slopes = [2 ** (-8 * (head + 1) / n_even) for head in range(n_even)]
    slopes += [2 ** (-8 * (head + 0.5) / n_even) for head in range(n_heads - n_even)]  # those in between
    model.layer_inv_freq[:] = 0
    for block in model.layers:
        patch(Alibi, block.attention, slopes=torch.tensor(slopes, device="cpu"))


def clipped(model: Relative, content: dict):
    """No number of a query, key or value leaves (-clip, clip). MPT, DBRX; `DbrxAttention.forward`."""

    class Clipped(Edit):
        def heads(self, x):
            return tuple(y.clamp(-self.clip, self.clip) for y in super().heads(x))

    if content["clip_qkv"] is not None:
        require_number("clip_qkv", content["clip_qkv"], lambda clip: clip > 0, "> 0, or null")
        for block in model.layers:
            patch(Clipped, block.attention, clip=content["clip_qkv"])


def differential(model: Relative, content: dict):
    """Half of the heads, times a learned factor, are subtracted from the others: noise cancels. arXiv 2410.05258."""

    class Differential(Edit):
        def attend(self, q, k, v, visible):
            attend, (q1, k1, q2, k2) = super().attend, (getattr(self, f"lambda_{name}") for name in names)
            both = [attend(q, k, half.repeat(1, 2, 1, 1), visible) for half in v.chunk(2, dim=1)]
            first, second = torch.cat(both, dim=-1).chunk(2, dim=1)  # (B, H/2, T, 2h) each
            share = ((q1 * k1).sum(dtype=torch.float32).exp() - (q2 * k2).sum(dtype=torch.float32).exp()).to(q)
            return (1 - self.start) * F.rms_norm(first - (share + self.start) * second, first.shape[-1:], eps=self.eps)

    names, config = ("q1", "k1", "q2", "k2"), model.config
    if config.n_kv_heads % 2:
        raise ValueError(f"num_key_value_heads={config.n_kv_heads} must be even: one half is subtracted.")
    for layer, block in enumerate(model.layers):
        learned = {f"lambda_{name}": nn.Parameter(0.1 * torch.randn(config.head_dim)) for name in names}
        patch(Differential, block.attention, start=0.8 - 0.6 * math.exp(-0.3 * layer), eps=config.norm_eps, **learned)


def backwards(model: Relative, content: dict):
    """Queries and keys turn the other way round: a turn by -angle. nanochat; its `rotate_half`."""
    model.layer_inv_freq.neg_()


def layer_bases(model: Relative, content: dict):
    """Each layer has a base of its own, and stands still where it is 0. Granite SWA; `GraniteSWAModel`."""
    bases, rope = content["layer_rope_theta"], content["rope_parameters"]["full_attention"]
    if bases is None:
        return
    if not isinstance(bases, list) or len(bases) != model.config.n_layers:
        raise ValueError(f"layer_rope_theta={shown(bases)}: {model.config.n_layers} bases are needed, or null.")
    for layer, base in enumerate(bases):
        require_number("layer_rope_theta", base, lambda base: base == 0 or base > 1, "> 1, or 0: stands still")
        inv_freq, scaling = rope_init(rope | {"rope_theta": base}, model.config.head_dim) if base else (0.0, 1.0)
        model.layer_inv_freq[layer], model.attention_scaling[layer] = inv_freq, scaling


# ---------------------------------------------------------------------------------- positions, blocks, ends and norms


def clock(model: Relative) -> SimpleNamespace:
    """What parts may ask for the tokens' positions: its `positions`, (1, T) or (B, T), are those of the call."""

    class Clock(Edit):
        def check_call(self, tokens, cache=None, n_pad=None):
            n_cached, n_pad = super().check_call(tokens, cache, n_pad)
            positions = torch.arange(n_cached, n_cached + tokens.shape[1], device=tokens.device)[None]
            self.clock.positions = positions if n_pad is None else (positions - n_pad[:, None]).clamp(min=0)
            if (last := n_cached + tokens.shape[1]) > self.clock.longest:
                raise ValueError(f"{last} tokens are more than this model has positions for, {self.clock.longest}.")
            return n_cached, n_pad

    shared = SimpleNamespace(positions=None, longest=math.inf)
    patch(Clock, model, clock=shared)
    return shared


class Placed(Edit):
    """An embedding that adds a vector for the position."""

    def forward(self, tokens):
        """(B, T) to (B, T, D)."""
        return super().forward(tokens) + self.table[self.clock.positions + self.offset]


def embedding_norm(model: Relative, content: dict):
    """A norm on the embedding. BLOOM, arXiv 2211.05100; `BloomModel.forward`."""

    class NormedEmbedding(Edit):
        def forward(self, tokens):
            return self.norm(super().forward(tokens))

    patch(NormedEmbedding, model.tok_embeddings, **norms(model.config, norm=model.config.dim))


def learned_positions(model: Relative, content: dict):
    """Nothing turns: a learned vector for each position is added to the embedding. GPT-2; `GPT2Model.forward`."""
    config, offset = model.config, content.get("position_offset", 0)
    shared = clock(model)
    shared.longest = config.max_seq_len
    table = nn.Parameter(0.02 * torch.randn(config.max_seq_len + offset, config.dim))
    patch(Placed, model.tok_embeddings, clock=shared, offset=offset, table=table)
    model.layer_inv_freq[:] = 0


def sine_positions(model: Relative, content: dict):
    """Nothing turns: sines and cosines of the position are added to the embedding. arXiv 1706.03762; CTRL, XGLM."""

    class SinePlaced(Edit):
        def forward(self, tokens):
            place = self.clock.positions + self.offset
            angles = place[..., None] * self.speeds.to(place.device)  # (1, T, D/2) or (B, T, D/2)
            sines = torch.cat((angles.sin(), angles.cos()), dim=-1) * (place != self.missing)[..., None]
            return super().forward(tokens) + sines.to(self.weight)

    half, shared = model.config.dim // 2, clock(model)
    shared.longest = content.get("sines_end") or math.inf
    speeds = 10_000.0 ** -(torch.arange(half, device="cpu") / (half - content.get("sines_reach", 0)))
    patch(SinePlaced, model.tok_embeddings, clock=shared, speeds=speeds, offset=content.get("position_offset", 0),
          missing=-1 if (missing := content.get("sines_without")) is None else missing)  # fmt: skip
    model.layer_inv_freq[:] = 0


def norm_after_sum(model: Relative, content: dict):
    """The norm stands behind each sum, in the stream itself, and there is none at the end. GPT-1; its `Block`."""

    class NormAfterSum(Edit):
        def forward(self, x, *shared):
            x = self.attention_norm(x + self.attention(x, *shared))
            return self.ffn_norm(x + self.feed_forward(x))

    model.final_norm = nn.Identity()
    for block in model.layers:
        patch(NormAfterSum, block)


def shrunk_sums(model: Relative, content: dict):
    """The n-th sum of the stream is divided by √n, which norms undo but for eps. Beam; `depth_scaled_residual_add`."""
    before = (norm for block in model.layers for norm in (block.attention_norm, block.ffn_norm))
    for n, norm in enumerate((*before, model.final_norm), start=1):
        norm.eps *= n  # so the sums stay plain


def last_eps(model: Relative, content: dict):
    """The eps of config.json is the last norm's alone; the others' is fixed. CTRL; `JetMoeDecoderLayer`."""
    require_number("the eps of the last norm", content["last_norm_eps"], lambda eps: eps > 0, "> 0")
    model.final_norm.eps = content["last_norm_eps"]


def no_gain(model: Relative, content: dict):
    """Norms have no gain: what follows learns it. nanochat; `NanoChatRMSNorm`."""

    class NoGain(Edit):
        def forward(self, x):
            return F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x)

    for norm in [part for part in model.modules() if isinstance(part, RMSNorm)]:
        patch(NoGain, norm, weight=None)


def parallel(model: Relative, content: dict):
    """Attention and feed-forward read the same stream, side by side. GPT-J, PaLM; `CohereDecoderLayer.forward`."""

    class Parallel(Edit):
        def forward(self, x, *shared):
            normed = self.attention_norm(x)
            other = self.ffn_norm(x) if hasattr(self, "ffn_norm") else normed
            return x + self.attention(normed, *shared) + self.feed_forward(other)

    for block in model.layers:
        if content.get("parallel_norms", 1) == 1:
            del block.ffn_norm
        patch(Parallel, block)


def logit_scale(model: Relative, content: dict):
    """A constant on the logits, which softens every prediction. `CohereForCausalLM.forward`."""

    class ScaledLogits(Edit):
        def forward(self, x):
            return super().forward(x) * self.scale

    require_number("logit_scale", content["logit_scale"], lambda scale: scale > 0, "> 0")
    patch(ScaledLogits, model.lm_head, scale=content["logit_scale"])


def head_bias(model: Relative, content: dict):
    """A bias on the logits. `PhiForCausalLM`."""
    if content.get("lm_head_bias", True):
        model.lm_head.bias = nn.Parameter(torch.zeros(model.config.vocab_size))


# --------------------------------------------------------------------------------------------------------- storage


def split_by_key_head(weights: dict, config: LlamaConfig) -> dict:
    """A key head's queries, its key and its value stand one behind the other. Falcon, GPT-NeoX, BLOOM, Persimmon."""
    ours, n_rep = {}, config.n_rep
    for name, weight in weights.items():
        if "query_key_value." in name:
            parts = weight.unflatten(0, (config.n_kv_heads, n_rep + 2, config.head_dim)).split([n_rep, 1, 1], dim=1)
            for letter, part in zip("qkv", parts, strict=True):
                ours[name.replace("query_key_value", f"{letter}_proj")] = part.flatten(0, 2)
        else:
            ours[name] = weight
    return ours


def split_gpt2(weights: dict, config: LlamaConfig) -> dict:
    """Matrices are stored transposed, and q, k, v as one. `Conv1D`."""
    ours = {}
    for name, weight in weights.items():
        if weight.ndim == 2 and name.startswith("layers."):
            weight = weight.T
        if ".c_attn." in name:
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                ours[name.replace("c_attn", f"{letter}_proj")] = part
        else:
            ours[name] = weight
    return ours


def split_granite(weights: dict, config: LlamaConfig) -> dict:
    """All experts stand in one tensor, gate on up, and a shared one beside them. `GraniteMoeParallelExperts`."""
    ours = {}
    for name, weight in weights.items():
        place, _, part = name.rpartition(".feed_forward.")
        experts = (
            [(f"{place}.feed_forward.experts.{n}", own) for n, own in enumerate(weight)] if weight.ndim == 3 else []
        )
        if part.startswith("shared."):
            experts = [(f"{place}.feed_forward.shared", weight)]
        for start, own in experts:
            if part.endswith("input_linear.weight"):
                gate, up = own.chunk(2)
                ours |= {f"{start}.gate_proj.weight": gate, f"{start}.up_proj.weight": up}
            else:
                ours[f"{start}.down_proj.weight"] = own
        if not experts:
            ours[name] = weight
    return ours


def split_jetmoe(weights: dict, config: LlamaConfig) -> dict:
    """Experts of attention, too, stand in one tensor, and a key stands on its value. `JetMoeMoA`."""
    ours = {name: weight.flatten(0, 1) if ".q_proj." in name else weight.transpose(0, 1).flatten(1)
            if ".o_proj.weight" in name else weight for name, weight in weights.items()}  # fmt: skip
    for name in [name for name in ours if ".kv_proj." in name]:
        for letter, half in zip("kv", ours.pop(name).chunk(2), strict=True):
            ours[name.replace("kv_", f"{letter}_")] = half
    return split_granite(ours, config)


def split_codegen(weights: dict, config: LlamaConfig) -> dict:
    """Four devices' shares of q, v and k stand one behind the other. `CodeGenAttention`."""
    merged = {name: one.unflatten(0, (4, 3, -1)) for name, one in weights.items() if ".qkv_proj." in name}
    ours = {name: one for name, one in weights.items() if name not in merged}
    return ours | {name.replace("qkv_proj", f"{letter}_proj"): one[:, number].flatten(0, 1)
                   for name, one in merged.items() for number, letter in enumerate("qvk")}  # fmt: skip


def split_dbrx(weights: dict, config: LlamaConfig) -> dict:
    """Queries, keys and values stand in one matrix, and so do all experts, one below the other. `DbrxExpertGLU`."""
    ours = edits.split_merged(weights, config)
    for name in [name for name in ours if ".experts." in name]:
        start, _, part = name.rpartition(".")
        for number, own in enumerate(ours.pop(name).chunk(config.settings["num_experts"])):
            ours[f"{start}.{number}.{part}.weight"] = own.T if part == "down_proj" else own
    return ours


def dense_or_sparse(weights: dict, config: LlamaConfig) -> dict:
    """A.X-K1's files give a norm to dense layers, too, which is not read, and no bias to routers. `AXK1MoE`."""
    ours = edits.split_experts(weights, config)
    for layer, kind in enumerate(config.settings["mlp_layer_types"]):
        if kind == "dense":
            ours.pop(f"layers.{layer}.feed_forward.out_norm.weight", None)
        else:
            ours.setdefault(f"layers.{layer}.feed_forward.choice_bias", torch.zeros(config.settings["num_experts"]))
    return ours
