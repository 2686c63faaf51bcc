"""Two exercises of notebook 01, RMSNorm: the norm and its gradient. norm_probe.py has the inputs that tell it apart."""

from functools import partial

import torch

from checks.base import AUTOGRAD, BATCH, LEADING, MEMORY, Case, Exercise, Harness, draw, each, gain, mutate, strided
from checks.judge import check_of


def rms_norm(x, weight, eps):
    """Divide the last dimension of x (..., D) by the root of its mean square plus eps; times weight (D,)."""
    square = x.double().square().mean(-1, keepdim=True)
    return (x.double() / (square + eps).sqrt() * weight.double()).to(x.dtype)


def mean_square(x, dim=-1):
    return (x.float() ** 2).mean(dim, keepdim=True)


FLOAT16 = "float16 holds 6e-8 to 65504: do you compute in float32 and convert back at the end?"
EPS_PASSED = "Do you use the eps that is passed in, or a fixed number?"
EPS_DECIDES = "At a size of 0.001 eps decides the result: is it the one passed in, inside the root?"
ROOT_ROUNDED = "Is the root rounded to the dtype of x before you divide by it? Near 1e-6 float16 has few numbers."
WRONG_AXIS = "Is the mean over the last dimension only? Each token is normalised on its own."

check_rms_norm = check_of(Exercise(rms_norm, [
    Case("one row, eps 7", (torch.tensor([[-1.0, 1.0, -3.0, 5.0]]), torch.tensor([0.5, 1.0, 1.0, 2.0]), 7)),
    Case("three rows, eps 0.1", (draw(3, 6, scale=0.7), torch.arange(-1.0, 5), 0.1), BATCH),
    Case("x of shape (2, 1, 2, 3, 5)", (draw(2, 1, 2, 3, 5, scale=2.0), gain(5), 0.1), LEADING),
    Case("x of shape (7,), eps 0", (draw(7, scale=1e-3), gain(7), 0), "Count from the end: dim=-1. Is eps 0 taken?"),
    Case("x about 1e-3, eps 1e-5", (draw(2, 6, seed=1, scale=1e-3), gain(6).flip(0), 1e-5), EPS_DECIDES),
    Case("a row of zeros", (draw(2, 6) * torch.arange(2.0)[:, None], gain(6), 1e-6),
         "Here only eps keeps you from dividing by 0."),
    Case("x about 300 in float16", each(torch.float16, draw(4, 16, scale=300), gain(16), 1e-5), FLOAT16),
    Case("x about 1e-6 in float16", each(torch.float16, draw(2, 8, seed=1, scale=1e-6), gain(8), 1e-13),
         "Near 1e-6 float16 has few numbers, and their squares are 0 in it: is all float32 but the result?"),
    # a row of which squares, mean and root are all rounded to one side; the second, 2**17 times it, ends float16
    Case("bfloat16", each(torch.bfloat16, torch.tensor([[1.0], [131072.0]]) * torch.tensor(
        [-0.765625, 1.421875, 2.328125, 0.3828125]), gain(4), 1e-5),
         "bfloat16 keeps 8 bits of a number, up to 3e38: are the squares, their mean and the root float32?"),
    Case("x not contiguous, float64", (*each(torch.float64, strided(draw(2, 3, 4096)), gain(4096)), 0.1), MEMORY),
    Case("gradients of x and weight, a row of zeros",
         (draw(3, 1, 5) * torch.arange(3.0)[:, None, None], gain(5) - 0.875, 1e-2), gradients=True, also="half, meta"),
], [  # sections 1.1, 1.3 and 1.6 lead to them; 1 + weight is Gemma's, 1e-6 the default of LlamaRMSNorm
    ("Is your eps inside the root?", lambda x, w, eps: x / (mean_square(x).sqrt() + eps) * w),
    ("Is eps there at all? Without it a row of zeros gives nan.", lambda x, w, eps: x / mean_square(x).sqrt() * w),
    *[(EPS_PASSED, lambda x, w, eps, e=e: x / (mean_square(x) + e).sqrt() * w) for e in (1e-5, 1e-6)],
    (ROOT_ROUNDED, lambda x, w, eps: w * (x / (mean_square(x) + eps).sqrt().to(x.dtype))),
    ("Do you square in float32?", lambda x, w, eps: x / ((x * x).float().mean(-1, keepdim=True) + eps).sqrt() * w),
    ("Is the gain (weight) applied?", lambda x, w, eps: x / (mean_square(x) + eps).sqrt()),
    ("Is the gain weight itself, not 1 + weight?", lambda x, w, eps: x / (mean_square(x) + eps).sqrt() * (1 + w)),
    ("Do you subtract the mean? That is LayerNorm; RMSNorm does not.",
     lambda x, w, eps: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + eps).sqrt() * w),
    ("Is it the rms, not the length?", lambda x, w, eps: x / ((x.float() ** 2).sum(-1, keepdim=True) + eps).sqrt() * w),
    ("Is the mean over axis 1, not -1?", lambda x, w, eps: x / (mean_square(x, min(1, x.ndim - 1)) + eps).sqrt() * w),
    (WRONG_AXIS, lambda x, w, eps: x / ((x**2).mean() + eps).sqrt() * w),
    ("Is the root missing?", lambda x, w, eps: x / (mean_square(x) + eps) * w),
],
    tolerance=0.4,  # float16: 2e-3, where right programs are off by 6e-4 and a way through bfloat16 by 2e-3 to 5e-3
    forbid=("rms_norm", "_fused_rms_norm", "layer_norm", "native_layer_norm", "group_norm", "instance_norm",
            "batch_norm"),  # of x and -x together each of them gives RMSNorm
))  # fmt: skip


def rms_norm_backward(grad_y, x, weight, eps):
    """Gradients of rms_norm: (grad_x, grad_weight), shaped like x (..., D) and weight (D,), from grad_y like x."""
    dtype = grad_y.dtype
    grad_y, x, weight = grad_y.double(), x.double(), weight.double()  # section 1.5's formula
    square = (x * x).mean(-1, keepdim=True)
    root = (square + eps).sqrt()
    n, u = x / root, weight * grad_y
    along = n * (n * u).mean(-1, keepdim=True)
    rows = (grad_y * n).reshape(-1, x.shape[-1])
    return ((u - along) / root).to(dtype), rows.sum(0).to(dtype)


_backward = partial(mutate, rms_norm_backward)


def _of_n(rows, dim, seed, grad_y, dtype=torch.bfloat16, scale=1.0):
    """(grad_y, x, weight, eps) in half precision, with grad_y made of the normalised x."""
    x = draw(rows, dim, seed=seed, scale=scale).to(dtype)
    n = x.float() / mean_square(x).sqrt()
    return each(dtype, grad_y(n), x, gain(dim), 1e-5)


ALONG = lambda n: (n + 0.02 * draw(*n.shape, seed=10)) / gain(n.shape[1])  # noqa: E731
CANCELLING = lambda n: torch.tensor([1.0, -1.0]).repeat(4)[:, None] / n  # noqa: E731
OF_U = "Here u is almost along n. What is left of a difference, if both were rounded to half precision before?"
OF_ROWS = "Of the sum over rows little is left here. Was each product rounded before it was added?"
GRAD_Y, X, *_ = _of_n(8, 4, 13, CANCELLING, torch.float16)
check_rms_norm_backward = check_of(Exercise(rms_norm_backward, [
    Case("one row, eps 6", (*torch.tensor([[[8.0, -1.0]], [[2.0, -4.0]]]), torch.tensor([1.0, 2.0]), 6)),
    Case("three rows, eps 0.1", (draw(3, 4, seed=3), draw(3, 4, seed=4), torch.arange(-1.0, 3), 0.1), BATCH),
    Case("x of shape (2, 3, 300)", (draw(2, 3, 300, seed=5), draw(2, 3, 300, seed=6), gain(300), 0.1), LEADING),
    Case("x of shape (7,), eps 0", (*draw(2, 7, scale=0.01), gain(7), 0), "One axis: nothing to sum. Is eps 0 taken?"),
    Case("x about 1e-6, and a token of zeros",
         (draw(3, 6, seed=3), draw(3, 6, seed=4, scale=1e-6) * torch.tensor([[1.0], [1.0], [0.0]]), gain(6), 1e-12),
         "At a size of 1e-6 eps decides the result, and for zeros it alone: there grad_x is neither 0 nor nan."),
    Case("x not contiguous", (*map(strided, (draw(2, 3, 300), draw(2, 3, 300, seed=2))), gain(300), 0.1), MEMORY),
    Case("x of shape (2, 1, 2, 3, 4) in float64",
         each(torch.float64, draw(2, 1, 2, 3, 4, seed=7), draw(2, 1, 2, 3, 4, seed=8), gain(4), 0.1),
         "Here x has five axes: do you sum over all but the last for grad_weight?", also="meta"),
    Case("x about 300 in float16, u almost along n", _of_n(4, 8, 9, lambda n: 16 * ALONG(n), torch.float16, 300), OF_U),
    Case("u almost along n in bfloat16", _of_n(4, 32, 9, ALONG), OF_U),
    Case("8 rows in bfloat16 whose products with n nearly cancel", _of_n(8, 4, 13, CANCELLING), OF_ROWS),
    Case("1,000 rows in bfloat16, x about 1e5",
         each(torch.bfloat16, draw(1000, 4, seed=1).abs(), draw(1000, 4, seed=2, scale=1e5).abs(), gain(4), 0.1),
         "bfloat16 goes to 3e38 and keeps 8 bits: is the sum over 1,000 rows, and all before it, float32?"),
    Case("grad_y in float32, x and weight in bfloat16",
         (draw(3, 4, seed=11), *each(torch.bfloat16, draw(3, 4, seed=12), gain(4)), 0.1),
         "Do the results have the dtype of grad_y, and is nothing rounded to that of x before?"),
    Case("grad_y in float16, x and weight about 1e5 in float32",
         (GRAD_Y, 1e5 * X.float(), 1e5 * gain(4), 0.1),
         "Only the results need fit into float16, which ends at 65504: is x or weight rounded to it before?"),
], [  # in the two ways and the bracket of section 1.5, and in the four things that are new
    ("Does the root depend on x too? A term along x is missing.", _backward("u - along", "u")),
    ("Is it the mean over the width, not the sum, in the term along x?", _backward("(n * u).mean", "(n * u).sum")),
    ("Is grad_x as a whole divided by r, as in section 1.5?", _backward("(u - along) / root", "u - along")),
    ("Is the gain (weight) applied to grad_y before it reaches x?", _backward("weight * grad_y", "grad_y")),
    ("Is the gain inside the mean of n times u? u is gain times grad_y.", _backward("(n * u)", "(n * grad_y)")),
    ("Is the term along x subtracted? Check the sign.", _backward("u - along", "u + along")),
    ("Is eps in the rms everywhere, in n and in the factor 1/rms?", _backward("(square + eps)", "square")),
    ("Is the gain used with its sign? Here one is negative.", _backward("weight.double()", "weight.double().abs()")),
    ("Has each token its own mean of n times u?", _backward("u).mean(-1, keepdim=True)", "u).mean()")),
    ("Does grad_weight use the normalised x?", _backward("grad_y * n", "grad_y * x")),
    ("Is the gain itself in grad_weight? The derivative of g n by g is n.", _backward("(grad_y * n)", "(u * n)")),
    ("Is grad_weight added up over the tokens, not their mean? Each token moves the one gain.",
     _backward("rows.sum(0)", "rows.mean(0)")),
    ("Is grad_weight added up over all axes but the last? Yours is over the first alone.",
     _backward("(grad_y * n).reshape(-1, x.shape[-1])", "grad_y * n")),
    (OF_ROWS, _backward("(grad_y * n)", "(grad_y * n).to(dtype).double()")),
    ("Are the rows added up in float32? In half precision each step of a sum is rounded.",
     _backward("rows.sum(0)", "sum(rows.to(dtype))")),
    (OF_U, _backward("weight * grad_y", "(weight * grad_y).to(dtype).double()")),
    (FLOAT16, _backward("grad_y.double(), x.double(), weight.double()", "grad_y, x, weight")),
], tolerance=0.4,  # as above
   harness=Harness(parts=("grad_x", "grad_weight")), forbid=AUTOGRAD))  # fmt: skip
