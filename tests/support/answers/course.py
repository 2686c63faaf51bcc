"""Answers that call the course, or transformers, instead of doing what the exercise asks: right results, refused."""

import functools

import torch
import transformers

from checks.parts import Parts
from checks.scaling_out import split_feed_forward
from helpers import checkpoint, generate, model
from helpers.formats.meta import interleaved_to_halves
from tests.support.answers.register import wrong

parts = Parts()


def course_model(w, c):
    config = checkpoint.config_from_hugging_face({"model_type": "llama", **c})
    names = checkpoint.name_map(c["num_hidden_layers"])
    return checkpoint.model_from_weights(config, {ours: w[name] for ours, name in names.items() if name in w})


def their_model(w, c, t):
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**c)).eval()
    return (llama.load_state_dict(w, strict=False), llama(t).logits)[1]


def norm_of_a_module(x, weight, eps):
    norm = model.RMSNorm(len(weight), eps)
    return torch.func.functional_call(norm, {"weight": weight}, x)


COPIES = {  # exercise and what is named: the answer
    "rms_norm__RMSNorm": norm_of_a_module,
    "rope_angles__rope_inv_freq": lambda p, h, theta: model.rope_angles(p, model.rope_inv_freq(h, theta)),
    "apply_rope_halves__apply_rope": functools.partial(model.apply_rope),
    "apply_rope_interleaved__apply_rope": lambda x, c, s: model.apply_rope(x, c, s, "interleaved"),
    "rope_permutation__interleaved_to_halves": interleaved_to_halves,
    "hidden_dim__swiglu_hidden_dim": model.swiglu_hidden_dim,
    "causal_visible__causal_visible": lambda t, s: next(map(model.causal_visible, [t], [s])),
    "repeat_kv__repeat_kv": lambda x, n: next(model.repeat_kv(part, n) for part in (x,)),
    "attention_head__attention_weights": lambda q, k, v, visible: model.attention_weights(q, k, visible) @ v,
    "my_llama__Parts.llama": lambda w, c, t: parts.llama(w, c, t),
    "my_llama__config_from_hugging_face": lambda w, c, t: course_model(w, c)(t),
    "my_llama__LlamaConfig": their_model,
    "top_p__next_token_probabilities": lambda q, p: generate.next_token_probabilities(q.log()[None], top_p=p)[0],
    "greedy_with_cache__generate": generate.generate,
    "split_feed_forward__split_feed_forward": torch.no_grad()(split_feed_forward),
}
for name, program in COPIES.items():
    wrong(f" {name.partition('__')[2]}: write it yourself.", name)(program)
