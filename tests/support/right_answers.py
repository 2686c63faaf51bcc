"""Right answers, at least three per exercise, each written in another way: a check must accept all of them."""

import itertools
import math

import torch
from torch.nn import functional as F

from helpers import model
from helpers.checkpoint import interleaved_to_halves

RIGHT = {}  # exercise: {name: program}


def right(program):
    """Register `exercise__manner` under its exercise."""
    exercise, manner = program.__name__.split("__")
    RIGHT.setdefault(exercise, {})[manner] = program
    return program


def right_answer_to(exercise):
    """One right program for an exercise: the first one."""
    return next(iter(RIGHT[exercise].values()))


# --------------------------------------------------------------------------------------------------- 01 RMSNorm


@right
def rms_norm__rsqrt(x, weight, eps):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@right
def rms_norm__einsum(x, weight, eps):
    wide = x.to(torch.float32)
    mean_square = torch.einsum("...d,...d->...", wide, wide) / x.shape[-1]
    return torch.einsum("...d,...,d->...d", wide, (mean_square + eps) ** -0.5, weight.float()).to(x.dtype)


@right
def rms_norm__loop_over_rows(x, weight, eps):
    rows = []
    for row in x.float().reshape(-1, x.shape[-1]):
        rows.append(row / torch.sqrt(torch.mean(row * row) + eps) * weight.float())
    return torch.stack(rows).reshape(x.shape).to(x.dtype)


@right
def rms_norm__in_place_on_a_copy(x, weight, eps):
    y = x.float().clone()
    y /= torch.sqrt(torch.square(x.float()).mean(dim=-1, keepdim=True) + eps)
    y *= weight
    return y.to(x.dtype)


@right
def rms_norm__torch(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


@right
def rms_norm__float64(x, weight, eps):
    wide = x.double()
    return (wide / (wide.norm(dim=-1, keepdim=True) ** 2 / wide.size(-1) + eps).sqrt() * weight).type_as(x)


@right
def rms_norm__course_module(x, weight, eps):
    return torch.func.functional_call(model.RMSNorm(x.shape[-1], eps), {"weight": weight}, (x,))


@right
def rms_norm_backward__formula(grad_y, x, weight, eps):
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    normalised, g = x.float() * scale, grad_y.float() * weight.float()
    grad_x = scale * (g - normalised * (g * normalised).mean(-1, keepdim=True))
    grad_weight = (grad_y.float() * normalised).flatten(0, -2).sum(0) if x.ndim > 1 else grad_y.float() * normalised
    return grad_x.to(x.dtype), grad_weight.to(x.dtype)


@right
def rms_norm_backward__autograd(grad_y, x, weight, eps):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = rms_norm__rsqrt(x, weight, eps)
    y.backward(grad_y)
    return x.grad, weight.grad


@right
def rms_norm_backward__jacobian_per_row(grad_y, x, weight, eps):
    dim, total, rows = x.shape[-1], torch.zeros(x.shape[-1], dtype=torch.float64), []
    for g, row in zip(grad_y.double().reshape(-1, dim), x.double().reshape(-1, dim), strict=True):
        s = (row @ row / dim + eps) ** -0.5
        jacobian = s * torch.eye(dim) - s**3 / dim * torch.outer(row, row)
        rows.append(jacobian @ (g * weight.double()))
        total += g * row * s
    return torch.stack(rows).reshape(x.shape).to(x.dtype), total.to(weight.dtype)


@right
def rms_norm_backward__einsum(grad_y, x, weight, eps):
    x64, g64 = x.double(), grad_y.double()
    s = (torch.einsum("...d,...d->...", x64, x64) / x.shape[-1] + eps) ** -0.5
    along = torch.einsum("...d,...d,d->...", g64, x64, weight.double()) / x.shape[-1]
    grad_x = torch.einsum("...,...d,d->...d", s, g64, weight.double()) - (s**3 * along)[..., None] * x64
    return grad_x.to(x.dtype), torch.einsum("...d,...d,...->d", g64, x64, s).to(x.dtype)


@right
def layer_norm_angle__arctan(x):
    return torch.atan(x.mean(-1).abs() / x.std(-1, correction=0))


@right
def layer_norm_angle__clamped_cosine(x):
    y = F.layer_norm(x, (x.shape[-1],), eps=0.0)
    return F.cosine_similarity(x.double(), y.double(), dim=-1).clamp(-1, 1).acos().to(x.dtype)


@right
def layer_norm_angle__arcsin(x):
    return torch.asin((x.double().mean(1).abs() / x.double().pow(2).mean(1).sqrt()).clamp(max=1)).to(x.dtype)


@right
def layer_norm_angle__loop_with_atan2(x):
    out = torch.empty(len(x), dtype=x.dtype)
    for n, row in enumerate(x):
        centred = row - row.mean()
        out[n] = torch.atan2((row - centred).norm(), centred.norm())
    return out


# ------------------------------------------------------------------------------------------------------ 02 RoPE


@right
def rope_angles__outer(positions, head_dim, theta):
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return torch.outer(positions.float(), inv_freq)


@right
def rope_angles__einsum_in_float64(positions, head_dim, theta):
    speeds = torch.exp(-math.log(theta) * torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.einsum("t,i->ti", positions.double(), speeds)


@right
def rope_angles__loops(positions, head_dim, theta):
    return torch.tensor([[p * theta ** -(2 * i / head_dim) for i in range(head_dim // 2)] for p in positions.tolist()])


@right
def rope_angles__course(positions, head_dim, theta):
    return model.rope_angles(positions, model.rope_inv_freq(head_dim, theta))


@right
def apply_rope_halves__cat(x, cos, sin):
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@right
def apply_rope_halves__rotate_half(x, cos, sin):
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos + turned * sin).to(x.dtype)


@right
def apply_rope_halves__complex(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.complex(cos.float(), sin.float())
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


@right
def apply_rope_halves__in_place_on_a_copy(x, cos, sin):
    y, half = x.clone(), x.size(-1) // 2
    for i in range(half):
        y[..., i] = x[..., i] * cos[:, i] - x[..., i + half] * sin[:, i]
        y[..., i + half] = x[..., i + half] * cos[:, i] + x[..., i] * sin[:, i]
    return y


@right
def apply_rope_halves__matrices(x, cos, sin):
    matrix = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2).float()  # (T, h/2, 2, 2)
    pairs = torch.stack(x.float().chunk(2, -1), -1)
    return torch.einsum("tirc,bhtic->bhtri", matrix, pairs).flatten(-2).to(x.dtype)


@right
def apply_rope_interleaved__stack(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape).to(x.dtype)


@right
def apply_rope_interleaved__complex(x, cos, sin):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.complex(cos.float(), sin.float())).flatten(-2).to(x.dtype)


@right
def apply_rope_interleaved__rotate(x, cos, sin):
    cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


@right
def apply_rope_interleaved__in_place_on_a_copy(x, cos, sin):
    y = torch.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
    return y


@right
def rope_permutation__reshape(weight, head_dim):
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@right
def rope_permutation__index(weight, head_dim):
    order = list(range(0, head_dim, 2)) + list(range(1, head_dim, 2))
    return weight[[head + row for head in range(0, weight.shape[0], head_dim) for row in order]]


@right
def rope_permutation__loop(weight, head_dim):
    heads = weight.split(head_dim)
    return torch.cat([torch.cat((head[0::2], head[1::2])) for head in heads])


@right
def rope_permutation__course(weight, head_dim):
    return interleaved_to_halves(weight, head_dim)


@right
def llama3_scaling__clamp(inv_freq, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    turns = original_max_position_embeddings * inv_freq / (2 * math.pi)
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return inv_freq * (keep + (1 - keep) / factor)


@right
def llama3_scaling__where(inv_freq, factor, low, high, length):
    wavelength = 2 * math.pi / inv_freq
    smooth = (length / wavelength - low) / (high - low)
    blend = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    slow = torch.where(wavelength > length / low, inv_freq / factor, inv_freq)
    return torch.where((wavelength >= length / high) & (wavelength <= length / low), blend, slow)


@right
def llama3_scaling__loop(inv_freq, factor, low, high, length):
    out = inv_freq.clone()
    for i, speed in enumerate(inv_freq.tolist()):
        wavelength = 2 * math.pi / speed
        if wavelength > length / low:
            out[i] = speed / factor
        elif wavelength >= length / high:
            smooth = (length / wavelength - low) / (high - low)
            out[i] = (1 - smooth) * speed / factor + smooth * speed
    return out


# ---------------------------------------------------------------------------------------------------- 03 SwiGLU


@right
def silu__sigmoid(x):
    return x * torch.sigmoid(x)


@right
def silu__expit(x):
    return torch.special.expit(x).mul(x)


@right
def silu__torch(x):
    return F.silu(x)


@right
def silu__in_place_on_a_copy(x):
    return F.silu(x.clone(), inplace=True)


@right
def silu_derivative__product_rule(x):
    s = x.sigmoid()
    return s * (1 + x * (1 - s))


@right
def silu_derivative__autograd(x):
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(F.silu(x).sum(), x)[0]


@right
def silu_derivative__of_silu(x):
    y, s = F.silu(x), torch.sigmoid(x)
    return y + s * (1 - y)


@right
def silu_derivative__loop(x):
    values = []
    for value in x.double().flatten().tolist():
        s = 1 / (1 + math.exp(-value)) if value > -500 else 0.0
        values.append(s + value * s * (1 - s))
    return torch.tensor(values).reshape(x.shape).to(x.dtype)


@right
def swiglu__linear(x, w_gate, w_up, w_down):
    return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)


@right
def swiglu__einsum(x, w_gate, w_up, w_down):
    gate, up = torch.einsum("...d,fd->...f", x, w_gate), torch.einsum("...d,fd->...f", x, w_up)
    return torch.einsum("...f,df->...d", gate * gate.sigmoid() * up, w_down)


@right
def swiglu__fused(x, w_gate, w_up, w_down):
    gate, up = (x @ torch.cat((w_gate, w_up)).T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ w_down.t()


@right
def swiglu__loop_over_hidden_units(x, w_gate, w_up, w_down):
    y = torch.zeros_like(x)
    for f in range(len(w_gate)):
        gate = (x * w_gate[f]).sum(-1, keepdim=True)
        y = y + gate * torch.sigmoid(gate) * (x * w_up[f]).sum(-1, keepdim=True) * w_down[:, f]
    return y


@right
def hidden_dim__ceil(dim, multiple_of, ffn_dim_multiplier):
    hidden = int(2 * (4 * dim) / 3)
    if ffn_dim_multiplier is not None:
        hidden = int(ffn_dim_multiplier * hidden)
    return multiple_of * ((hidden + multiple_of - 1) // multiple_of)


@right
def hidden_dim__negative_floor(dim, multiple_of, ffn_dim_multiplier):
    hidden = 8 * dim // 3
    hidden = hidden if ffn_dim_multiplier is None else math.floor(ffn_dim_multiplier * hidden)
    return -(-hidden // multiple_of) * multiple_of


@right
def hidden_dim__course(dim, multiple_of, ffn_dim_multiplier):
    return model.swiglu_hidden_dim(dim, multiple_of, ffn_dim_multiplier)


@right
def matrix_roles__all_orders(weights, x, y):
    for gate, up, down in itertools.permutations(weights):
        a, b, c = weights[gate], weights[up], weights[down]
        if a.shape == b.shape == c.T.shape and torch.allclose((F.silu(x @ a.T) * (x @ b.T)) @ c.T, y, atol=1e-4):
            return {"gate": gate, "up": up, "down": down}


@right
def matrix_roles__smallest_error(weights, x, y):
    errors = {}
    for order in itertools.permutations(weights):
        try:
            z = RIGHT["swiglu"][next(iter(RIGHT["swiglu"]))](x, *(weights[name] for name in order))
            errors[order] = (z - y).abs().max().item()
        except RuntimeError:
            continue
    return dict(zip(("gate", "up", "down"), min(errors, key=errors.get), strict=True))


@right
def matrix_roles__one_row(weights, x, y):
    best = {}
    for gate, up, down in itertools.permutations(weights):
        if weights[down].shape[0] != x.shape[1] or weights[gate].shape != weights[down].T.shape:
            continue
        g, u = weights[gate] @ x[0], weights[up].mv(x[0]) if weights[up].shape[1] == len(x[0]) else None
        if u is not None and len(u) == len(g):
            best[((weights[down] @ (g * torch.sigmoid(g) * u)) - y[0]).norm().item()] = (gate, up, down)
    gate, up, down = best[min(best)]
    return {"up": up, "down": down, "gate": gate}


# ------------------------------------------------------------------------------------------------------- 04 GQA


@right
def causal_visible__positions(n_query, n_key):
    return torch.arange(n_key) <= torch.arange(n_key - n_query, n_key)[:, None]


@right
def causal_visible__tril(n_query, n_key):
    return torch.ones(n_query, n_key, dtype=torch.bool).tril(n_key - n_query)


@right
def causal_visible__rows_of_a_square(n_query, n_key):
    return ~torch.triu(torch.ones(n_key, n_key), diagonal=1)[-n_query:].bool()


@right
def causal_visible__loops(n_query, n_key):
    visible = torch.zeros(n_query, n_key, dtype=torch.bool)
    for t in range(n_query):
        visible[t, : n_key - n_query + t + 1] = True
    return visible


@right
def attention_head__softmax(q, k, v, visible):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v


@right
def attention_head__torch(q, k, v, visible):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


@right
def attention_head__einsum_and_where(q, k, v, visible):
    scores = torch.einsum("bth,bsh->bts", q.float(), k.float()) * q.shape[-1] ** -0.5
    weights = torch.where(visible, scores, -1e9).softmax(-1)
    return torch.einsum("bts,bsh->bth", weights, v.float()).to(q.dtype)


@right
def attention_head__loops(q, k, v, visible):
    out = []
    for b in range(len(q)):
        for t in range(q.shape[1]):
            seen = visible[t].nonzero()[:, 0]
            scores = k[b, seen].float() @ q[b, t].float() / q.shape[2] ** 0.5
            out.append(scores.softmax(0) @ v[b, seen].float())
    return torch.stack(out).reshape(q.shape).to(q.dtype)


@right
def attention_head__renormalised_after_the_softmax(q, k, v, visible):
    scores = (q.float() @ k.float().mT / math.sqrt(q.shape[-1])).clone()
    weights = torch.exp(scores - scores.masked_fill(~visible, -math.inf).amax(-1, keepdim=True)).nan_to_num(posinf=0)
    weights = torch.where(visible, weights, 0.0)
    return ((weights / weights.sum(-1, keepdim=True)) @ v.float()).to(q.dtype)


@right
def repeat_kv__repeat_interleave(x, n_rep):
    return torch.repeat_interleave(x, n_rep, dim=1)


@right
def repeat_kv__expand(x, n_rep):
    B, K, S, h = x.shape
    return x[:, :, None].expand(B, K, n_rep, S, h).reshape(B, K * n_rep, S, h)


@right
def repeat_kv__index(x, n_rep):
    return x[:, [head // n_rep for head in range(x.shape[1] * n_rep)]]


@right
def repeat_kv__einsum(x, n_rep):
    return torch.einsum("bksh,r->bkrsh", x, torch.ones(n_rep, dtype=x.dtype)).flatten(1, 2)


@right
def sliding_window__positions(n_query, n_key, window):
    distance = torch.arange(n_key - n_query, n_key)[:, None] - torch.arange(n_key)
    return (distance >= 0) & (distance < window)


@right
def sliding_window__tril_and_triu(n_query, n_key, window):
    offset = n_key - n_query
    return torch.ones(n_query, n_key).tril(offset).triu(offset - window + 1).bool()


@right
def sliding_window__loops(n_query, n_key, window):
    visible = torch.zeros(n_query, n_key, dtype=torch.bool)
    for t in range(n_query):
        last = n_key - n_query + t
        visible[t, max(0, last - window + 1) : last + 1] = True
    return visible


@right
def cache_write__slice(cache, length, new):
    end = length + new.shape[2]
    cache[:, :, length:end] = new
    return cache[:, :, :end]


@right
def cache_write__loop(cache, length, new):
    for t, column in enumerate(new.unbind(2)):
        cache[:, :, length + t].copy_(column)
    return torch.cat((cache[:, :, :length], new), dim=2)


@right
def cache_write__index_copy(cache, length, new):
    cache.index_copy_(2, torch.arange(length, length + new.size(2)), new)
    return cache.narrow(2, 0, length + new.size(2)).clone()


@right
def context_that_fits__floor(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return max(0, (memory - weights) // (2 * n_layers * n_kv_heads * head_dim * bytes_per_number))


@right
def context_that_fits__with_an_if(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    if weights >= memory:
        return 0
    return math.floor((memory - weights) / (2 * n_layers * n_kv_heads * head_dim * bytes_per_number))


@right
def context_that_fits__counts_up(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    one_token = sum(n_kv_heads * head_dim * bytes_per_number for _ in range(2 * n_layers))
    tokens, step = 0, 2**40
    while step:
        if weights + (tokens + step) * one_token <= memory:
            tokens += step
        step //= 2
    return tokens


# ------------------------------------------------------------------------------------------------ 05 full model


def _rms(x, weight, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


@right
def transformer_block__two_lines(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, eps))
    return x + feed_forward(_rms(x, ffn_gain, eps))


@right
def transformer_block__with_the_course_norm(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    norm = model.RMSNorm(x.shape[-1], eps)
    norm.weight = torch.nn.Parameter(attention_gain) if not attention_gain.requires_grad else norm.weight
    first = _rms(x, attention_gain, eps) if attention_gain.requires_grad else norm(x)
    middle = torch.add(x, attention(first.to(x.dtype)))
    return torch.add(feed_forward(_rms(middle, ffn_gain, eps)), middle)


@right
def transformer_block__loop_over_steps(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    stream = x.clone()
    for step, weight in ((attention, attention_gain), (feed_forward, ffn_gain)):
        root = (stream.float().square().mean(-1, keepdim=True) + eps).sqrt()
        stream = stream + step((stream.float() / root * weight).to(x.dtype))
    return stream


@right
def parameter_count__formula(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    block = 2 * dim * head_dim * (n_heads + n_kv_heads) + 3 * dim * hidden_dim + 2 * dim
    return n_layers * block + dim + vocab_size * dim * (2 - tie_embeddings)


@right
def parameter_count__shapes(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    q, kv = n_heads * head_dim, n_kv_heads * head_dim
    block = [(q, dim), (kv, dim), (kv, dim), (dim, q), *3 * [(dim, hidden_dim)], (dim,), (dim,)]
    ends = [(vocab_size, dim), (dim,)] + ([] if tie_embeddings else [(vocab_size, dim)])
    return sum(math.prod(shape) for shape in n_layers * block + ends)


@right
def parameter_count__builds_it(vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, tie_embeddings):
    config = model.LlamaConfig(
        vocab_size=vocab_size, dim=dim, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
        hidden_dim=hidden_dim, tie_embeddings=tie_embeddings, max_seq_len=8, norm_eps=1e-5, rope_theta=1e4,
    )  # fmt: skip
    return model.count_parameters(config)


@right
def tie_weights__assigned(embedding, head):
    head.weight = embedding.weight


@right
def tie_weights__returned_too(embedding, head):
    head.weight = embedding.weight
    return embedding, head


@right
def tie_weights__setattr(embedding, head):
    del head.weight
    head.register_parameter("weight", embedding.weight)


@right
def find_slips__named():
    return {"A": "mask by one", "B": "gate and up swapped", "C": "wrong base"}


@right
def find_slips__other_order():
    return {"C": "wrong base", "B": "gate and up swapped", "A": "mask by one"}


@right
def find_slips__dict():
    return dict(B="gate and up swapped", A="mask by one", C="wrong base")


# -------------------------------------------------------------------------------------- 06 training, generating


@right
def cross_entropy__torch(logits, targets):
    return F.cross_entropy(logits, targets)


@right
def cross_entropy__gather(logits, targets):
    return -logits.log_softmax(-1).gather(1, targets[:, None]).mean()


@right
def cross_entropy__logsumexp(logits, targets):
    return (logits.logsumexp(-1) - logits[torch.arange(len(targets)), targets]).mean()


@right
def cross_entropy__loop(logits, targets):
    total = 0
    for row, target in zip(logits, targets, strict=True):
        shifted = row - row.max()
        total = total - shifted[target] + torch.log(torch.exp(shifted).sum())
    return total / len(targets)


@right
def top_p__sort_and_scatter(probabilities, p):
    ordered, order = probabilities.sort(descending=True)
    ordered[ordered.cumsum(0) - ordered >= p] = 0
    return torch.zeros_like(ordered).scatter_(0, order, ordered / ordered.sum())


@right
def top_p__loop(probabilities, p):
    kept, total = torch.zeros_like(probabilities), 0.0
    for token in probabilities.argsort(descending=True):
        kept[token] = probabilities[token]
        total += probabilities[token].item()
        if total >= p:
            break
    return kept / kept.sum()


@right
def top_p__searchsorted(probabilities, p):
    ordered, order = torch.sort(probabilities, descending=True)
    n_kept = min(len(ordered), int(torch.searchsorted(ordered.cumsum(0), p)) + 1)
    result = torch.zeros_like(probabilities)
    result[order[:n_kept]] = ordered[:n_kept] / ordered[:n_kept].sum()
    return result


@right
def next_token_batch__indices(tokens, starts, seq_len):
    window = tokens[starts[:, None] + torch.arange(seq_len + 1)]
    return window[:, :-1], window[:, 1:]


@right
def next_token_batch__slices(tokens, starts, seq_len):
    inputs = torch.stack([tokens[start : start + seq_len] for start in starts])
    return inputs, torch.stack([tokens[start + 1 : start + 1 + seq_len] for start in starts])


@right
def next_token_batch__unfold(tokens, starts, seq_len):
    windows = tokens.unfold(0, seq_len + 1, 1)[starts]
    return windows[:, :seq_len], windows[:, 1:]


@right
def greedy_with_cache__latest(model, tokens, n_new):
    cache, latest = model.new_cache(len(tokens)), tokens
    for _ in range(n_new):
        latest = model(latest, cache)[:, -1:].argmax(dim=-1)
        tokens = torch.cat((tokens, latest), dim=1)
    return tokens


@right
def greedy_with_cache__prefill_first(model, tokens, n_new):
    if n_new == 0:
        return tokens
    cache, text = model.new_cache(tokens.shape[0], tokens.shape[1] + n_new), [tokens]
    text.append(model(tokens, cache=cache, last_only=True)[:, 0].argmax(-1)[:, None])
    while len(text) <= n_new:
        text.append(model(text[-1], cache=cache, last_only=True)[:, 0].argmax(-1)[:, None])
    return torch.cat(text, 1)


@right
def greedy_with_cache__reads_the_last_one_too(model, tokens, n_new):
    cache = model.new_cache(tokens.shape[0])
    logits = model(tokens, cache)
    for _ in range(n_new):
        new = logits[:, -1].topk(1).indices
        tokens = torch.cat([tokens, new], dim=1)
        logits = model(new, cache)
    return tokens


@right
def greedy_with_cache__prompt_token_by_token(model, tokens, n_new):
    cache, text = model.new_cache(len(tokens)), tokens
    for t in range(tokens.shape[1] + n_new - 1):
        logits = model(text[:, t : t + 1], cache=cache)[:, -1]
        if t >= tokens.shape[1] - 1:
            text = torch.cat((text, logits.argmax(-1, keepdim=True)), dim=1)
    return text


@right
def greedy_with_cache__a_cache_for_each_prompt(model, tokens, n_new):
    rows = [greedy_with_cache__prefill_first(model, row[None], n_new) for row in tokens]
    return torch.cat(rows)


# --------------------------------------------------------------------------------------------- 07 scaling out


@right
def split_feed_forward__chunks(x, w_gate, w_up, w_down, n_ranks):
    shares = zip(w_gate.chunk(n_ranks), w_up.chunk(n_ranks), w_down.chunk(n_ranks, dim=1), strict=True)
    return torch.stack([(F.silu(x @ gate.T) * (x @ up.T)) @ down.T for gate, up, down in shares])


@right
def split_feed_forward__einsum(x, w_gate, w_up, w_down, n_ranks):
    hidden = F.silu(x @ w_gate.T) * (x @ w_up.T)
    hidden = hidden.unflatten(-1, (n_ranks, -1))
    return torch.einsum("...rf,drf->r...d", hidden, w_down.unflatten(-1, (n_ranks, -1)))


@right
def split_feed_forward__loop(x, w_gate, w_up, w_down, n_ranks):
    size, parts = w_gate.shape[0] // n_ranks, []
    for rank in range(n_ranks):
        mine = slice(rank * size, rank * size + size)
        hidden = F.silu(F.linear(x, w_gate[mine])) * F.linear(x, w_up[mine])
        parts.append(F.linear(hidden, w_down[:, mine]))
    return torch.stack(parts)


@right
def block_plan__written():
    readers = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    return {**dict.fromkeys(readers, "column"), "o_proj": "row", "down_proj": "row"}


@right
def block_plan__other_order():
    return {"down_proj": "row", "o_proj": "row"} | {f"{name}_proj": "column" for name in ("up", "gate", "v", "k", "q")}


@right
def block_plan__by_writing():
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return {name: "row" if name[0] in "od" else "column" for name in names}


@right
def bytes_sent_per_token__formula(dim, n_layers, n_ranks, bytes_per_number):
    return int(4 * n_layers * dim * bytes_per_number * (n_ranks - 1) / n_ranks)


@right
def bytes_sent_per_token__share(dim, n_layers, n_ranks, bytes_per_number):
    share = dim * bytes_per_number / n_ranks  # of the vector, per rank
    return int(2 * n_layers * 2 * (n_ranks - 1) * share)


@right
def bytes_sent_per_token__loop(dim, n_layers, n_ranks, bytes_per_number):
    total = 0.0
    for _ in range(2 * n_layers):
        for _ in ("reduce-scatter", "all-gather"):
            total += (1 - 1 / n_ranks) * dim * bytes_per_number
    return round(total)
