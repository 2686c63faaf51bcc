"""Right and wrong answers to the exercises of notebook 05, the full model."""

import copy
import math

import torch
from torch.nn import functional as F

from checks.full_model import LETTERS, TRY
from helpers import model
from tests.support.answers.register import right, wrong


def _rms(x, weight, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


@right
def transformer_block__two_lines(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + _rms(attention(x), attention_gain, eps)
    return x + _rms(feed_forward(x), ffn_gain, eps)


@right
def transformer_block__loop_over_steps(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    stream = x.clone()
    for step, weight in ((attention, attention_gain), (feed_forward, ffn_gain)):
        branch = step(stream).float()
        root = (branch.square().mean(-1, keepdim=True) + eps).sqrt()
        stream = stream + (branch / root * weight).to(x.dtype)
    return stream


@wrong("square of 1e-4 is 0")
def transformer_block__norm_in_half_precision(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    for step, gain in ((attention, attention_gain), (feed_forward, ffn_gain)):
        branch = step(x)
        x = x + branch / (branch.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gain
    return x


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


wrong("Multiply the numbers instead", "parameter_count__builds_one")(
    lambda *sizes: model.count_parameters(model.PRESETS["smollm2-135m"])
)


@right
def tie_weights__copied_then_assigned(embedding, head):
    with torch.no_grad():
        embedding.weight.copy_(head.weight)
    head.weight = embedding.weight


@right
def tie_weights__through_data(embedding, head):
    embedding.weight.data = head.weight.data.clone()
    head.weight = embedding.weight
    return embedding, head


@wrong("inside `with torch.no_grad():`")
def tie_weights__while_autograd_records(embedding, head):
    embedding.weight.copy_(head.weight)
    head.weight = embedding.weight


@wrong("Write the numbers into the Parameter that is there")
def tie_weights__a_new_parameter_for_both(embedding, head):
    embedding.weight = head.weight = torch.nn.Parameter(head.weight.detach().clone())


@wrong("without any arithmetic")
def tie_weights__the_mean(embedding, head):
    embedding.weight.data.add_(head.weight.data).mul_(0.5)
    head.weight = embedding.weight


@wrong("or does it make new ones")
def tie_weights__new_head(embedding, head):
    head = torch.nn.Linear(embedding.weight.shape[1], embedding.weight.shape[0], bias=False)
    head.weight = embedding.weight
    return head


wrong("Whose numbers shall stay", "tie_weights__assigned_only")(
    lambda table, head: setattr(head, "weight", table.weight)
)
wrong("not a copy", "tie_weights__copied")(lambda table, head: setattr(head, "weight", copy.deepcopy(table.weight)))
wrong("without .data", "tie_weights__data")(lambda table, head: setattr(head.weight, "data", table.weight.data))
wrong("Which attribute", "tie_weights__other_name")(lambda table, head: setattr(head, "embedding", table.weight))
wrong("Parameter itself", "tie_weights__frozen")(
    lambda table, head: setattr(head, "weight", table.weight.requires_grad_(False))
)


@right
def find_slips__named():
    return dict(LETTERS)


for letter, tries in TRY.items():
    for slip, words in tries.items():
        if slip != LETTERS[letter]:
            answer = LETTERS | {letter: slip}
            wrong(f"Model {letter}: {words}", f"find_slips__{letter} {slip}")(lambda answer=answer: answer)
wrong("Choose from", "find_slips__numbers")(lambda: {"A": 7, "B": 6, "C": 3})
wrong("Return {", "find_slips__one_left_out")(lambda: {"A": LETTERS["A"]})
