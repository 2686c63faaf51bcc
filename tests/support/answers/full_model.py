"""Right and wrong answers to the exercises of notebook 05, the full model."""

import torch
from torch.nn import functional as F

from checks.full_model import LETTERS, TRY
from helpers import model
from tests.support.answers.register import RIGHT, right, wrong


def _rms(x, weight, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


@right
def transformer_block__two_lines(x, attention, feed_forward, attention_gain, ffn_gain, eps):
    x = x + _rms(attention(x), attention_gain, eps)
    return x + _rms(feed_forward(x), ffn_gain, eps)


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


wrong("Multiply the numbers instead", "parameter_count__builds_one")(
    lambda *sizes: model.count_parameters(model.PRESETS["smollm2-135m"])
)


def _close(one, other):
    return bool(((one - other).abs() <= 1e-3 * other.abs().max()).all())


def _read_in(model, tokens, size):
    cache = model.new_cache(len(tokens))
    return torch.cat([model(piece, cache=cache) for piece in tokens.split(size, dim=1)], dim=1)


def _properties(same=_close, changed=-1, kept=slice(0, -1), sizes=(1, 4, 7), n_pad=2, rows=2, prompt=6):
    """Three properties of a model, each in a form that can be spoiled."""

    def program(model):
        tokens = torch.tensor([[5, 9, 2, 33, 7, 1, 60, 8, 8, 4], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
        whole, other = model(tokens), tokens.clone()
        other[:, changed] = 50
        row = tokens[:1, n_pad:]
        beside = torch.cat([F.pad(row, (n_pad, 0)), tokens[1:]])[:rows]
        cache, (first, *later) = model.new_cache(rows), beside.split([prompt, *[1] * (10 - prompt)], dim=1)
        padded = [model(first, cache, n_pad=torch.tensor([n_pad, 0][:rows])), *(model(one, cache) for one in later)]
        padded = torch.cat(padded, dim=1)[:1, n_pad:]
        pieces = all(same(_read_in(model, tokens, size), whole) for size in sizes)
        return same(model(other)[:, kept], whole[:, kept]), pieces, same(padded, model(row))

    return program


RIGHT["properties"] = {
    "pieces": _properties(),
    "change_in_the_middle": _properties(changed=slice(5, None), kept=slice(0, 5), sizes=(3,)),
    "tensors": lambda model: [torch.tensor(one) for one in _properties()(model)],
}
for words, slip, program in (
    ("there room for rounding", "to_the_last_bit", _properties(torch.equal)),
    ("May a logit before it move", "loose", _properties(lambda one, other: (one - other).abs().max().item() < 100)),
    ("May a logit before it move", "first_logit_only", _properties(kept=slice(0, 1))),
    ("only the logits before", "all_logits", _properties(kept=slice(None))),
    ("pieces of several tokens", "one_by_one_only", _properties(sizes=(1,))),
    ("pass n_pad", "nothing_padded", _properties(n_pad=0)),
    ("once beside another row", "no_other_row", _properties(rows=1)),
    ("read the padded rows on", "rows_in_one_call", _properties(prompt=10)),
    ("its own comparison", "one_answer_for_all", lambda model: 3 * (all(_properties()(model)),)),
    ("which it keeps", "in_another_order", lambda model: [_properties()(model)[n] for n in (1, 0, 2)]),
    ("room for rounding small enough", "likeliest", _properties(lambda a, b: torch.equal(a.argmax(-1), b.argmax(-1)))),
    ("True or False is expected", "gaps", lambda model: (0.0, 0.0, 0.0)),
    ("Return (future, pieces, rows).", "one_left_out", lambda model: (True, True)),
    ("a false alarm", "always_false", lambda model: (False, False, False)),
    ("May a logit before it move", "always_true", lambda model: (True, True, True)),
):
    wrong(words, f"properties__{slip}")(program)


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
