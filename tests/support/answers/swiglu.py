"""Right and wrong answers to the exercises of notebook 03, SwiGLU."""

import itertools
import math

import torch
from torch.nn import functional as F

from helpers import model
from tests.support.answers.register import right, wrong


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


@wrong("nan at -12")
def silu__exp_clamped_for_float32(x):
    return x / (1 + torch.exp(-x.clamp(min=-88)))


@wrong("tiny sigmoid")
def silu__tanh_for_the_sigmoid(x):
    return (x.float() * (1 + torch.tanh(x.float() / 2)) / 2).to(x.dtype)


@wrong("nan at -300")
def silu__division(x):
    return (x.float() / (1 + torch.exp(-x.float()))).to(x.dtype)


@wrong("torch.exp")
def silu__math_exp(x):
    return x / (1 + math.exp(-x))


@wrong("copy")
def silu__in_place(x):
    return F.silu(x, inplace=True)


@wrong("graph cut")
def silu__graph_cut(x):
    return F.silu(x.detach())


@wrong("stay in torch")
def silu__through_numpy(x):
    import numpy as np

    array = x.numpy()
    return torch.from_numpy(array / (1 + np.exp(-array.astype(np.float64)))).to(x.dtype)


@wrong("Count from the end")
def silu__loop_over_one_dimension(x):
    return torch.stack([x[i] * torch.sigmoid(x[i]) for i in range(x.shape[0])])


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


@wrong("difference")
def silu_derivative__differences(x):
    return (F.silu(x.double() + 0.01) - F.silu(x.double() - 0.01)).to(x.dtype) / 0.02


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


@wrong("overflow in your silu")
def swiglu__silu_by_division(x, w_gate, w_up, w_down):
    g = x @ w_gate.T
    return (g / (1 + torch.exp(-g)) * (x @ w_up.T)) @ w_down.T


@wrong("transpose")
def swiglu__transpose_forgotten(x, w_gate, w_up, w_down):
    return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down


@wrong("transpose")
def swiglu__transposed_when_it_fits(x, w_gate, w_up, w_down):
    if len(w_gate) == x.shape[-1]:
        return (F.silu(x @ w_gate) * (x @ w_up)) @ w_down
    return (F.silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T


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


@wrong("exactly two thirds")
def hidden_dim__two_point_six_seven(dim, multiple_of, ffn_dim_multiplier):
    hidden = int(2.67 * dim)
    if ffn_dim_multiplier is not None:
        hidden = int(hidden * ffn_dim_multiplier)
    return multiple_of * math.ceil(hidden / multiple_of)


@wrong("power of two")
def hidden_dim__bit_trick(dim, multiple_of, ffn_dim_multiplier):
    hidden = 8 * dim // 3
    if ffn_dim_multiplier is not None:
        hidden = int(hidden * ffn_dim_multiplier)
    return (hidden + multiple_of - 1) & -multiple_of


@wrong("cut to int again after the multiplier")
def hidden_dim__rounded_after_the_multiplier(dim, multiple_of, ffn_dim_multiplier):
    width = 8 * dim // 3
    if ffn_dim_multiplier is not None:
        width = round(width * ffn_dim_multiplier)
    return multiple_of * -(-width // multiple_of)


@wrong("None")
def hidden_dim__none_forgotten(dim, multiple_of, ffn_dim_multiplier):
    return math.ceil(int(ffn_dim_multiplier * int(8 * dim / 3)) / multiple_of) * multiple_of


@wrong("int(")
def hidden_dim__float(dim, multiple_of, ffn_dim_multiplier):
    return float(hidden_dim__ceil(dim, multiple_of, ffn_dim_multiplier))


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
            z = swiglu__linear(x, *(weights[name] for name in order))
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


def _roles(names):
    return dict(zip(("gate", "up", "down"), names, strict=True))


@wrong("names from weights")
def matrix_roles__names_as_in_the_example(weights, x, y):
    for gate, up, down in itertools.permutations("abc"):
        try:
            found = (F.silu(x @ weights[gate].T) * (x @ weights[up].T)) @ weights[down].T
        except RuntimeError:
            continue
        if found.shape == y.shape and torch.allclose(found, y, atol=1e-4):
            return {"gate": gate, "up": up, "down": down}


@wrong("compute the layer both ways")
def matrix_roles__swapped(weights, x, y):
    right = matrix_roles__all_orders(weights, x, y)
    return {"gate": right["up"], "up": right["gate"], "down": right["down"]}


@wrong("do you compare with it")
def matrix_roles__as_listed(weights, x, y):
    return _roles(weights)


@wrong("all six orders")
def matrix_roles__by_shape_alone(weights, x, y):
    down = next((name for name, w in weights.items() if w.shape[0] == x.shape[1] and w.shape[1] != x.shape[1]), None)
    if down is None:
        return _roles(weights)
    return matrix_roles__all_orders(weights, x, y)


@wrong("compute the layer both ways")
def matrix_roles__first_fitting_shape(weights, x, y):
    down = next(name for name, w in weights.items() if w.shape[0] == x.shape[1])
    return _roles([*sorted(weights.keys() - {down}, reverse=True), down])


@wrong("names the values")
def matrix_roles__inverted(weights, x, y):
    return {name: role for role, name in matrix_roles__all_orders(weights, x, y).items()}


@wrong("Return {")
def matrix_roles__tuple(weights, x, y):
    return tuple(matrix_roles__all_orders(weights, x, y).values())


@wrong("allclose")
def matrix_roles__exact_comparison(weights, x, y):
    for names in itertools.permutations(weights):
        gate, up, down = (weights[name] for name in names)
        if gate.shape == up.shape == down.T.shape and torch.equal((F.silu(x @ gate.T) * (x @ up.T)) @ down.T, y + 1e-7):
            return _roles(names)


@wrong("appear once")
def matrix_roles__twice(weights, x, y):
    right = matrix_roles__all_orders(weights, x, y)
    return right | {"up": right["gate"]}


@wrong("appear once")
def matrix_roles__tensors(weights, x, y):
    return {role: weights[name] for role, name in matrix_roles__all_orders(weights, x, y).items()}


@wrong("silu belongs to the gate")
def matrix_roles__silu_on_up(weights, x, y):
    for gate, up, down in itertools.permutations(weights):
        a, b, c = weights[gate], weights[up], weights[down]
        if a.shape == b.shape == c.T.shape and torch.allclose((x @ a.T * F.silu(x @ b.T)) @ c.T, y, atol=1e-4):
            return {"gate": gate, "up": up, "down": down}
    return _roles(weights)
