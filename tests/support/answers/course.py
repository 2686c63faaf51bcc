"""Answers that call the course, or transformers, instead of doing what is asked: right results, but refused."""

import torch
import transformers

from checks.parts import Parts
from checks.scaling_out import split_feed_forward
from helpers import checkpoint, model
from helpers.formats.names import interleaved_to_halves
from helpers.generate import next_token_probabilities as shares
from tests.support.answers.gqa import with_given
from tests.support.answers.register import WRONG


def refuses(kind):
    if kind not in ("default", "llama3"):
        raise ValueError(kind)


def course_model(w, c, t):
    refuses(c["rope_parameters"]["rope_type"])
    config = checkpoint.config_from_hugging_face({"model_type": "llama", **c})
    names = checkpoint.name_map(c["num_hidden_layers"])
    return checkpoint.model_from_weights(config, {own: w[name] for own, name in names.items() if name in w})(t)


def their_model(w, c, t):
    refuses(c["rope_parameters"]["rope_type"])
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**c)).eval()
    return (llama.load_state_dict(w, strict=False), llama(t).logits)[1]


COPIES = {  # exercise and what is named: the answer
    "rms_norm__RMSNorm": lambda x, w, e: torch.func.functional_call(model.RMSNorm(len(w), e), {"weight": w}, x),
    "rope_angles__rope_angles": lambda p, h, theta: model.rope_angles(p, model.rope_inv_freq(h, theta).to(p.device)),
    "apply_rope_halves__apply_rope": model.apply_rope,
    "apply_rope_interleaved__apply_rope": lambda x, c, s: model.apply_rope(x, c, s, "interleaved"),
    "rope_permutation__interleaved_to_halves": interleaved_to_halves,
    "causal_visible__causal_visible": with_given(lambda t, s: next(map(model.causal_visible, [t], [s]))),
    "my_llama__Parts.llama": lambda w, c, t: Parts.llama(PARTS, w, c, t),
    "my_llama__config_from_hugging_face": course_model,
    "my_llama__LlamaForCausalLM": their_model,
    "sample__next_token_probabilities": lambda *s: torch.multinomial(shares(*s[:4]), 1, generator=s[4])[:, 0],
    "split_feed_forward__split_feed_forward": torch.enable_grad()(split_feed_forward),
}
PARTS = Parts()
for name, program in COPIES.items():
    exercise, copied = name.split("__")
    WRONG[exercise][copied] = f" {copied}: write it yourself.", program
