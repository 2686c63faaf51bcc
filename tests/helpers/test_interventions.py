"""Inside a `with` the part is changed as said; outside every bit is as before."""

import pytest
import torch

from beyond.families import config_from_hugging_face, make_relative
from beyond.fast_decode import prepare_for_decoding
from helpers import interventions
from helpers.checkpoint import config_to_hugging_face, load_checkpoint
from helpers.interventions import held_out_loss, held_out_windows, patched, replaced, without_heads
from helpers.model import RMSNorm, SwiGLU
from helpers.text import TINY_LLAMA
from tests.support.models import TINY, draw_tokens, make_model

LAST = f"layers.{TINY.n_layers - 1}"
KINDS = {
    "plain": make_model,
    "prepared": lambda: prepare_for_decoding(make_model(), layout="rows"),
    "relative": lambda: make_relative(config_from_hugging_face(config_to_hugging_face(TINY) | {"model_type": "qwen3"})),
}
WAYS = {
    "module": lambda model: replaced(model.layers[0].ffn_norm, lambda _, x: x),
    "zero": lambda model: without_heads(model, [(0, 1), (1, 0), (1, 3)]),
    "patch": lambda model: patched(model, draw_tokens(2, 16).flip(0), [(LAST, slice(4, None)), (LAST, 2)]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_change_acts_inside_nests_and_leaves_no_trace(kind, way, tokens, monkeypatch):
    subject = KINDS[kind]().eval()
    monkeypatch.setattr(interventions, "held_out_loss", lambda model: model(tokens))  # it has another vocabulary
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


def test_patching_every_position_of_the_last_block_gives_the_clean_logits(model, tokens):
    clean = tokens.flip(1)
    with patched(model, clean, [(LAST, slice(None))]):
        assert torch.equal(model(tokens), model(clean))
    for position in (0, 5, 15, -1, -16):  # -1 is the last, as in Python
        with patched(model, clean, [(LAST, position)]):
            now = model(tokens)
        assert (now != model(tokens)).any(dim=(0, 2)).nonzero().flatten().tolist() == [position % 16]


def test_the_loss_is_that_of_the_same_windows_everywhere():
    assert held_out_windows().shape == (16, 257)
    assert held_out_loss(load_checkpoint(TINY_LLAMA)) == pytest.approx(3.572, abs=0.002)
