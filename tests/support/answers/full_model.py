"""Right and wrong answers to the exercises of notebook 05, the full model."""

import math

import torch
from torch.nn import functional as F

from helpers import model
from tests.support.answers.register import right, wrong


def _rms(x, weight, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


@right
def transformer_block__two_lines(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, eps))
    return x + feed_forward(_rms(x, ffn_gain, eps))


@right
def transformer_block__loop_over_steps(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    stream = x.clone()
    for step, weight in ((attention, attention_gain), (feed_forward, ffn_gain)):
        root = (stream.float().square().mean(-1, keepdim=True) + eps).sqrt()
        stream = stream + step((stream.float() / root * weight).to(x.dtype))
    return stream


@wrong("float32")
def transformer_block__norm_in_half_precision(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    def norm(x, gain):
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gain

    x = x + attention(norm(x, attention_gain))
    return x + feed_forward(norm(x, ffn_gain))


@wrong("eps given")
def transformer_block__eps_fixed(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + attention(_rms(x, attention_gain, 1e-5))
    return x + feed_forward(_rms(x, ffn_gain, 1e-5))


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


@wrong("Leave the embedding's Parameter")
def tie_weights__a_new_parameter_for_both(embedding, head):
    embedding.weight = head.weight = torch.nn.Parameter(embedding.weight.detach().clone())


@wrong("not a copy")
def tie_weights__copied(embedding, head):
    head.weight = torch.nn.Parameter(embedding.weight.detach().clone())


@wrong("without .data")
def tie_weights__data(embedding, head):
    head.weight.data = embedding.weight.data


@wrong("head takes over")
def tie_weights__the_other_way(embedding, head):
    embedding.weight = head.weight


@wrong("or does it make new ones")
def tie_weights__new_head(embedding, head):
    head = torch.nn.Linear(embedding.weight.shape[1], embedding.weight.shape[0], bias=False)
    head.weight = embedding.weight
    return head


@wrong("Which attribute")
def tie_weights__other_attribute(embedding, head):
    head.embedding = embedding.weight


@wrong("Parameter")
def tie_weights__tensor(embedding, head):
    head.weight = embedding.weight.data


@wrong("Parameter itself")
def tie_weights__frozen(embedding, head):
    head.weight = embedding.weight.requires_grad_(False)


@right
def find_slips__named():
    return {"A": "mask by one", "B": "gate and up swapped", "C": "wrong base"}


for words, slip, answer in (
    ("change the last token only", "a_and_c", {"A": "wrong base", "B": "gate and up swapped", "C": "mask by one"}),
    ("a single token. Nothing", "b", {"A": "mask by one", "B": "gain ignored", "C": "wrong base"}),
    ("grow with the distance", "c", {"A": "mask by one", "B": "gate and up swapped", "C": "neighbours paired"}),
    ("Choose from", "numbers", {"A": 7, "B": 6, "C": 3}),
    ("Return {", "a_list", ["mask by one", "gate and up swapped", "wrong base"]),
    ("Return {", "one_left_out", {"A": "mask by one", "B": "gate and up swapped"}),
):
    wrong(words, f"find_slips__{slip}")(lambda answer=answer: answer)
