"""Inside a `with` the part is changed as said; outside every bit is as before."""

import pytest
import torch

from beyond.families import config_from_hugging_face, make_relative
from beyond.families import load_checkpoint as open_any
from beyond.families.reference import TOKENS, save_random
from beyond.fast_decode import prepare_for_decoding
from helpers.checkpoint import config_to_hugging_face, load_checkpoint
from helpers.interventions import (
    attending,
    attention_by_layer,
    held_out_loss,
    held_out_windows,
    replaced,
    weights_of,
    without_heads,
)
from helpers.model import RMSNorm, SwiGLU
from helpers.text import TINY_LLAMA
from tests.support.models import TINY, draw_tokens, make_model

KINDS = {
    "plain": make_model,
    "prepared": lambda: prepare_for_decoding(make_model(), layout="rows"),
    "relative": lambda: make_relative(config_from_hugging_face(config_to_hugging_face(TINY) | {"model_type": "qwen3"})),
}
WAYS = {
    "module": lambda model: replaced(model.layers[0].ffn_norm, lambda _, x: x),
    "zero": lambda model: without_heads(model, [(0, 1), (1, 0), (1, 3)]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_change_acts_inside_nests_and_leaves_no_trace(kind, way, tokens):
    subject = KINDS[kind]().eval()
    state, before = {name: list(vars(part)) for name, part in subject.named_modules()}, subject(tokens)
    with WAYS[way](subject):
        once = subject(tokens)
        with replaced(subject.final_norm, lambda _, x: 0 * x):
            assert not subject(tokens).any()
        assert torch.equal(subject(tokens), once)
    assert not torch.equal(once, before)
    with pytest.raises(KeyError), WAYS[way](subject):
        raise KeyError
    assert torch.equal(subject(tokens), before)
    assert {name: list(vars(part)) for name, part in subject.named_modules()} == state


def test_a_class_is_replaced_everywhere_or_refused(model, tokens):
    before, calls, mine = model(tokens), [], type("Mine", (SwiGLU,), {})(8, 8)
    deeper = type("Deeper", (type(mine),), {"forward": lambda part, x: x})(8, 8)
    with replaced(SwiGLU, lambda part, x: calls.append(part) or 0 * x), replaced(RMSNorm, RMSNorm.forward):
        model(tokens)
        prepared = prepare_for_decoding(model, layout="rows")
        with pytest.raises(ValueError, match="has a forward of its own: pass the module, not"):
            prepared(tokens)
        assert not mine(torch.ones(8)).any()
        with pytest.raises(ValueError, match="a Deeper has a forward of its own: pass the module, not SwiGLU"):
            deeper(torch.ones(8))
    assert len(calls) == TINY.n_layers + 1
    assert torch.equal(model(tokens), before)
    prepared(tokens)


def test_a_head_is_cut_where_it_writes(model, tokens):
    """Zero ablation equals zero columns of o_proj."""
    with without_heads(model, [(0, 1), (1, 2), (1, 3)]):
        cut = model(tokens)
    with torch.no_grad():
        model.layers[0].attention.o_proj.weight[:, 8:16] = 0
        model.layers[1].attention.o_proj.weight[:, 16:] = 0
    assert torch.equal(model(tokens), cut)


MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6,
       "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
       "moe_intermediate_size": 16, "first_k_dense_replace": 1}  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "settings"),
    [("gpt_oss", {}), ("gemma2", {"sliding_window": 6, "head_dim": 8}), ("smollm3", {}), ("deepseek_v3", MLA)],
)
def test_a_relatives_attention_weights_are_those_of_transformers(family, settings):
    """Sinks, caps and windows, a layer that stands still, values narrower than keys; `output_attentions` of eager."""
    theirs, folder = save_random(family, **settings)
    with torch.no_grad():
        wanted = theirs.cpu()(TOKENS, output_attentions=True).attentions
    torch.testing.assert_close(attention_by_layer(open_any(folder), TOKENS), torch.cat(wanted), atol=1e-5, rtol=0)


def test_heads_whose_values_are_narrower_than_keys_are_cut_one_by_one():
    model = open_any(save_random("deepseek_v3", **MLA)[1])
    with torch.no_grad(), without_heads(model, [(0, 1)]):
        cut = model(TOKENS)
    with torch.no_grad():
        model.layers[0].attention.o_proj.weight[:, 6:12] = 0
        torch.testing.assert_close(model(TOKENS), cut)


def test_what_is_no_weighted_sum_of_values_has_no_weights():
    model, tokens = make_model(), draw_tokens(2, 16)

    def squared(own, attention, q, k, v, visible):
        return weights_of(lambda *given: own(*given) ** 2, attention, q, k, v, visible)

    with attending(model, squared):
        make_model()(tokens)  # another model stays as it is
    with attending(model, squared), pytest.raises(ValueError, match="gives no weighted sum of the values"):
        model(tokens)


def test_the_loss_is_that_of_the_same_windows_everywhere():
    assert held_out_windows().shape == (16, 257)
    assert held_out_loss(load_checkpoint(TINY_LLAMA)) == pytest.approx(3.572, abs=0.002)


def test_a_silent_block_has_weights_of_zero_and_the_others_keep_theirs():
    model, tokens = make_model(), draw_tokens(2, 6)
    before = attention_by_layer(model, tokens)
    with replaced(model.layers[0].attention, lambda attention, x, *given: torch.zeros_like(x)):
        silent = attention_by_layer(model, tokens)
    assert not silent[0].any()
    torch.testing.assert_close(silent[1].sum(-1), torch.ones_like(silent[1, ..., 0]))
    assert not torch.equal(silent[1], before[1])
    assert torch.equal(attention_by_layer(model, tokens), before)
