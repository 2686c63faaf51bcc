"""A whole LLaMA in stages: the specification is transformers' model, and a stage is named where a program diverges."""

import re
from collections import defaultdict

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from checks import Parts, check_my_llama
from checks.borrowed import borrowed
from checks.my_llama import MY_LLAMA, OTHER_TYPES, _bug, _scaled, cache_fault, rows_fault
from checks.parts import COURSE, NO_EXERCISE
from helpers.model import apply_rope, causal_visible, repeat_kv
from tests.support.models import assert_agree

WIRED = Parts.llama  # the check refuses Parts.llama itself


def made_by(weights, config, tokens):
    """What each stage of the right model makes."""
    stages, parts = {}, Parts()
    parts.note = lambda stage, *values: stages.setdefault(stage, values if len(values) > 1 else values[0])
    WIRED(parts, weights, config, tokens)
    return stages


@pytest.mark.parametrize("name", NO_EXERCISE | COURSE)
def test_an_answer_may_call_each_part_that_the_course_lends(name):
    assert borrowed(getattr(Parts(), name), MY_LLAMA.allow) == ""


ALL_COMPUTED = [case for case in MY_LLAMA.cases if case.inputs[1]["rope_parameters"]["rope_type"] not in OTHER_TYPES]


@pytest.mark.parametrize("case", ALL_COMPUTED, ids=lambda case: case.label)
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled as Llama 3.1"])
def test_specification_is_the_model_of_transformers_also_token_by_token(case, scaled):
    weights, config, tokens = case.fresh_inputs()
    tokens = tokens[:, :64]
    config = _scaled(config, "llama3") if scaled else config
    theirs = LlamaForCausalLM(LlamaConfig(**config)).eval()
    theirs.load_state_dict(weights, strict=not config["tie_word_embeddings"])
    with torch.no_grad():
        expected = theirs(tokens).logits
    # up to six blocks: with the last bit of each product as noise they differ by up to 3e-6 of the largest logit
    assert_agree(MY_LLAMA.specification(weights, config, tokens), expected, 3e-5)
    kept = defaultdict(list)

    def remember(layer, *new):
        kept[layer].append(new)
        return [torch.cat(parts, dim=2) for parts in zip(*kept[layer], strict=True)]

    steps = [Parts().llama(weights, config, tokens[:, [at]], at, remember) for at in range(tokens.shape[1])]
    assert_agree(torch.cat(steps, dim=1), expected, 3e-5)


def embedded(w, c, t):
    return w["model.embed_tokens.weight"][t]


def not_turned(w, c, t):
    parts, block = Parts({"apply_rope_halves": lambda x, cos, sin: x}), Parts().block(w, 0)
    return parts.project(parts.norm(embedded(w, c, t), block, "input_layernorm", c), block, c, None, None)


HANDED_OVER = [  # a stage, right or wrong, and what is said
    *[(lambda *inputs, stage=stage: made_by(*inputs)[stage], f"Next is stage {stage + 1}, ", "")
      for stage in range(1, 6)],
    (embedded, "Next is stage 1, embedding and first norm: the normed vectors",
     "Stage 1: q, k and v read the normed stream. Yours read x itself."),
    (not_turned, "Of 6 stages 1 is right. Next is stage 2, q, k, v of block 0", "Stage 2: q and k are not turned."),
    (lambda w, c, t: made_by(w, c | {"num_hidden_layers": 1}, t)[3] - embedded(w, c, t),
     "Of 6 stages 2 are right. Next is stage 3, block 0's attention",
     "Stage 3: x plus what attention returns. Yours forgets x."),
]  # fmt: skip


@pytest.mark.parametrize(("program", "words", "hint"), HANDED_OVER, ids=[words for _, words, _ in HANDED_OVER])
def test_of_a_stage_that_is_handed_over_it_is_said_whether_it_is_right_and_which_is_next(program, words, hint):
    result = check_my_llama(program)
    assert (result.status, result.hint) == ("failed", hint)
    assert words in result.message


def turned(turn):
    """Another turn of q, k, v: turn(halves, q, k, v), where halves turns one of them rightly."""

    def project(self, normed, block, config, cos, sin):
        q, k, v = (self.heads(normed @ block[f"self_attn.{name}_proj"].T, config) for name in "qkv")
        return turn(lambda y: apply_rope(y, cos, sin), q, k, v)

    return _bug(project=project)


LLAMA = Parts().llama
WITH_THE_CACHE = [
    (LLAMA, ""),
    (lambda w, c, t, first, remember: LLAMA(w, c, t, first), "never called"),
    (lambda w, c, t, first, remember: LLAMA(w, c, t, 0, remember), "begin at first"),
    (turned(lambda turn, q, k, v: (turn(q), k, v)), "wants the turned k"),
    (lambda w, c, t, first, remember: LLAMA(w, c, t, first, lambda n, k, v: remember(0, k, v)), "the block's number"),
    (lambda w, c, t, first, remember: LLAMA(w, c, t, first, lambda *a: (remember(*a), a[1:])[1]), "returns used"),
    (_bug({"causal_visible": lambda t, s: causal_visible(s, s)[:t]}), "all keys"),
    (turned(lambda turn, q, k, v: (turn(q), repeat_kv(turn(k), 3), repeat_kv(v, 3))), "before repeat_kv"),
    (lambda *inputs: torch.zeros(2, 3) + torch.zeros(3, 2), "it raises RuntimeError"),
]


def as_the_longest(self, positions, config):
    """unsloth's bug."""
    return Parts.turns(self, positions.amax(0, keepdim=True).expand_as(positions), config)


WITH_ROWS_AT_DIFFERENT_POSITIONS = [
    (LLAMA, ""),
    (_bug(turns=as_the_longest), "one row is right"),
    (lambda w, c, t, first, remember: LLAMA(w, c, t, int(first.max()), remember), "if its slot's number is at most"),
    (lambda w, c, t, first, remember: LLAMA(w, c, t, range(first), remember), "it raises"),
]


@pytest.mark.parametrize(("fault_of", "llama", "words"), [
    *[(cache_fault, *bug) for bug in WITH_THE_CACHE],
    *[(rows_fault, *bug) for bug in WITH_ROWS_AT_DIFFERENT_POSITIONS],
])  # fmt: skip
def test_each_bug_with_the_cache_and_with_rows_at_different_positions_is_named(fault_of, llama, words):
    weights, config, tokens = MY_LLAMA.cases[1].fresh_inputs()
    assert words in (fault := fault_of(llama, weights, config, tokens))
    assert bool(fault) == bool(words)


def test_what_raises_or_never_ends_says_where():
    def raises(weights, config, tokens):
        return weights["model.norm.weight"][tokens % 2] @ torch.zeros(1, 1)

    def never_ends(*inputs):
        made_by(*inputs)[3].sum()
        while True:
            pass

    assert re.search(r"it raises RuntimeError.* Next is stage 1, ", check_my_llama(raises).message)
    assert re.search(r"no answer after 1 .* logits were computed, but", check_my_llama(never_ends, 1).message)
