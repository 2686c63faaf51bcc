"""Right and wrong answers to my_llama, a file of weights run from tokens to logits, in manners far from each other."""

import torch
from torch.nn import functional as F

from checks.base import mutate
from checks.own import my_parts
from helpers.model import llama3_scaling
from tests.support.answers.register import RIGHT, WRONG, right
from tests.support.course import ROOT

PARTS = ["input_layernorm", *(f"self_attn.{name}_proj" for name in "qkvo")]
PARTS += ["post_attention_layernorm", *(f"mlp.{name}_proj" for name in ("gate", "up", "down"))]


def _block(weights, n):
    return [weights[f"model.layers.{n}.{part}.weight"] for part in PARTS]


def _opened(weights, config):
    sizes = [config[f"num_{name}"] for name in ("hidden_layers", "attention_heads", "key_value_heads")]
    embedding, last_gain = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
    head = embedding if config["tie_word_embeddings"] else weights["lm_head.weight"]
    return *sizes, config["head_dim"], config["rms_norm_eps"], embedding, last_gain, head


def _angles(config, n_tokens):
    pairs = torch.arange(0, config["head_dim"], 2) / config["head_dim"]
    rope = dict(config["rope_parameters"])
    kind, speeds = rope.pop("rope_type"), rope.pop("rope_theta") ** -pairs
    if kind != "default":
        speeds = {"llama3": llama3_scaling}[kind](speeds, **rope)
    return torch.arange(n_tokens)[:, None] * speeds


def _turned(x, angle):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def _norm(x, gain, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


@right
def my_llama__all_heads_at_once(weights, config, tokens):
    n_blocks, H, K, h, eps, embedding, last_gain, head = _opened(weights, config)
    (B, T), angle, x = tokens.shape, _angles(config, tokens.shape[1]), F.embedding(tokens, embedding)
    for n in range(n_blocks):
        gain, wq, wk, wv, wo, gain2, gate, up, down = _block(weights, n)
        y = _norm(x, gain, eps)
        q, k, v = (F.linear(y, w).view(B, T, -1, h).transpose(1, 2) for w in (wq, wk, wv))
        q, k = _turned(q, angle), _turned(k, angle)
        k, v = k.repeat_interleave(H // K, dim=1), v.repeat_interleave(H // K, dim=1)
        scores = (q @ k.transpose(-1, -2) / h**0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        x = x + F.linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1), wo)
        x = x + F.linear(F.silu(F.linear(y := _norm(x, gain2, eps), gate)) * F.linear(y, up), down)
    return F.linear(_norm(x, last_gain, eps), head)


@right
@torch.no_grad()
def my_llama__head_by_head_in_place(weights, config, tokens):
    if config["rope_parameters"]["rope_type"] != "default":
        raise NotImplementedError("positions are not scaled here")
    n_blocks, H, K, h, eps, embedding, last_gain, head = _opened(weights, config)
    x, angle = embedding[tokens], _angles(config, tokens.shape[1])
    for n in range(n_blocks):
        gain, wq, wk, wv, wo, gain2, gate, up, down = _block(weights, n)
        y = _norm(x, gain, eps)
        for one in range(H):
            mine, group = (slice(i * h, i * h + h) for i in (one, one * K // H))
            scores = _turned(y @ wq[mine].T, angle) @ _turned(y @ wk[group].T, angle).mT * h**-0.5
            scores[:, torch.ones_like(scores[0]).triu(diagonal=1) > 0] = -1e9
            x += scores.softmax(dim=2) @ (y @ wv[group].T) @ wo[:, mine].T
        gate = (y := _norm(x, gain2, eps)) @ gate.T
        x += (gate * gate.sigmoid() * (y @ up.T)) @ down.T
    return _norm(x, last_gain, eps) @ head.T


LONGEST = "max_position_embeddings"
LLAMA_31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def _roped(**written):
    """Other values of rope_parameters, written down where a config has the key; a function is given what it says."""

    def program(w, c, t):
        rope = c["rope_parameters"]
        rope = {key: said(rope[key]) if callable(said := written.get(key, rope[key])) else said for key in rope}
        return plain(w, c | {"rope_parameters": rope}, t)

    return program


def _blocks_sorted_as_texts(w, c, t):
    order = enumerate(sorted(range(c["num_hidden_layers"]), key=str))
    places = {f"layers.{n}.": f"layers.{place}." for place, n in order}
    renamed = {name: next((name.replace(*pair) for pair in places.items() if pair[0] in name), name) for name in w}
    return plain({renamed[name]: x for name, x in w.items()}, c, t)


KEPT = {}
plain, heads = RIGHT["my_llama"].values()
RIGHT["my_llama"] |= {
    "refuses_long_texts": lambda w, c, t: plain(w, c, t) if t.shape[1] <= c["max_position_embeddings"] else 1 / 0,
    "in_float64": lambda w, c, t: plain({name: x.double() for name, x in w.items()}, c, t).float(),
    "parts_made_inside": lambda w, c, t: (my_parts(ROOT), plain(w, c, t))[1],
    "vmap": lambda w, c, t: torch.vmap(lambda row: plain(w, c, row[None])[0])(t),
}


for words, bug, program in (
    ("Next is stage 1, ", "bfloat16", lambda w, c, t: plain({n: x.bfloat16().float() for n, x in w.items()}, c, t)),
    ("Next is stage 3, ", "score_0_is_hidden", mutate(
        plain, "(q @ k", "(s := (q @ k", "h**0.5)", "h**0.5).tril())", "torch.ones(T, T).triu(1).bool()", "s == 0")),
    ("reshape works", "tokens_viewed", lambda w, c, t: plain(w, c, t.view(-1).view(t.shape))),
    ("Next is stage 2, ", "windows_of_four", lambda w, c, t: torch.cat([plain(w, c, p) for p in t.split(4, 1)], 1)),
    ("not what is returned", "of_the_token_before", lambda w, c, t: plain(w, c, t).roll(1, dims=1)),
    ("still empty", "hole", lambda w, c, t: plain(w, c, t) if c["rope_parameters"]["rope_type"] == "default" else ...),
    ("an error is asked", "computes_what_it_does_not_know", _roped(rope_type=lambda kind: min(kind, "llama3"))),
    *[("an error is asked", f"{x}_unscaled", _roped(rope_type=lambda kind, x=x: "default" if kind == x else kind))
      for x in ("linear", "dynamic", "yarn")],
    *[("all four numbers", key, _roped(**{key: value})) for key, value in LLAMA_31.items()],
    ("its four numbers, or raise", "factor_32", _roped(factor=32.0)),
    ("see all tokens before it", "windows_of_128", lambda w, c, t: torch.cat(
        [plain(w, c, piece) for piece in t.split(128, 1)], 1)),
    ("Do you drop tokens", "text_cut", lambda w, c, t: plain(w, c, t[:, : c["max_position_embeddings"]])),
    ("right for tiny-llama", "eps_written_and_llama3_refused", lambda w, c, t: heads(w, c | {"rms_norm_eps": 1e-5}, t)),
    ("right for tiny-llama", "two_rows_to_a_key_head", lambda w, c, t: heads(
        w, c | {"num_key_value_heads": c["num_attention_heads"] // 2}, t)),
    ("comes before '2'", "blocks_sorted_as_texts", _blocks_sorted_as_texts),
    ("tied: it raises", "refuses_the_longest", lambda w, c, t: plain(w, c, t if t.shape[1] < c[LONGEST] else None)),
    ("a dimension of size 1", "squeezed", lambda w, c, t: plain(w, c, t).squeeze(1)),
    ("of an earlier call", "weights_kept", lambda w, c, t: plain(KEPT.setdefault(c["hidden_size"] * len(w), w), c, t)),
    ("copy.deepcopy(config)", "config_changed", lambda w, c, t: (plain(w, c, t), c["rope_parameters"].clear())[0]),
    ("dict(weights)", "widened_in_place", lambda w, c, t: plain(
        w, c, (w.update({name: x.double() for name, x in w.items()}), t)[1]).float()),
):  # fmt: skip
    WRONG["my_llama"][bug] = words, program
