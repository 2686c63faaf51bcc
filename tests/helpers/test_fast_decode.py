"""The layout for one-token steps: the same function, or with fewer bytes per weight nearly the same."""

import shutil

import pytest
import torch

from helpers.fast_decode import prepare_for_decoding
from helpers.generate import generate
from tests.support.models import TINY_CONFIGS, assert_agree, in_chunks, make_model


@pytest.mark.parametrize("has_mkl", [True, False])
@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_a_prepared_model_is_the_same_function(name, has_mkl, tokens, monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    model = make_model(TINY_CONFIGS[name])
    prepared = prepare_for_decoding(model)
    assert hasattr(prepared.lm_head, "strips") == has_mkl
    for n_tokens in (1, 2, 3, 16):  # one token needs no mask, two already do
        assert_agree(prepared(tokens[:, :n_tokens]), model(tokens[:, :n_tokens]))
    for sizes in ([1] * 16, [5, 1, 1, 9]):
        assert_agree(in_chunks(prepared, tokens[:1], sizes), model(tokens[:1]))
        assert_agree(in_chunks(prepared, tokens, sizes), model(tokens))
    ragged = [[5, 9, 2, 40, 7], [11], [3, 3, 60]]
    assert generate(prepared, ragged, 8) == generate(model, ragged, 8)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_smaller_weights_change_the_logits_little(weights, model, tokens):
    prepared = prepare_for_decoding(model, weights)
    for logits in (prepared(tokens[:1]), in_chunks(prepared, tokens[:1], [1] * 16)):
        assert_agree(logits, model(tokens[:1]), 0.1)
        assert (logits - model(tokens[:1])).abs().max() > 1e-4, "nothing was rounded"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_keeps_each_row_to_half_a_step(dtype, model):
    """A row's largest weight, 190/128, divided by its scale in bfloat16, would give 127.5, and then 128."""
    model.layers[0].attention.o_proj.weight.data[0] = 190 / 128
    layer = prepare_for_decoding(model.to(dtype), "int8").layers[0].attention.o_proj
    step = layer.scale.float()[:, None]
    expected = model.layers[0].attention.o_proj.weight.float()
    assert ((layer.weight * step - expected).abs() <= 0.51 * step).all()
    assert (layer.weight.abs().amax(dim=1) == 127).all()  # each row uses the whole range


def test_int8_keeps_a_matrix_of_zeros(model, tokens):
    model.layers[0].attention.o_proj.weight.data.zero_()
    prepared = prepare_for_decoding(model, "int8")
    assert not prepared.layers[0].attention.o_proj.weight.any()
    assert prepared(tokens).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_prepared_model_keeps_another_precision(dtype, model, tokens):
    model.to(dtype)
    prepared = prepare_for_decoding(model)
    assert prepared.lm_head.weight.dtype == dtype
    assert_agree(in_chunks(prepared, tokens, [1] * 16), in_chunks(model, tokens, [1] * 16), 0.05)


@pytest.mark.parametrize("length", [0, 1e-4, 1.0, 1e6])
def test_the_norm_by_length_is_the_same_function(length, model):
    norm = model.layers[0].attention_norm
    norm.weight.data.uniform_(0.5, 2)
    x = length * torch.randn(2, 3, 32)
    assert_agree(prepare_for_decoding(model).layers[0].attention_norm(x), norm(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.skipif(
    shutil.which("g++") is None or " " in torch.__path__[0], reason="needs a C++ compiler, and a path without a space"
)
@pytest.mark.parametrize("weights", [None, "bfloat16", "int8"])
def test_compiled_steps_are_the_same_function(weights, model, tokens):
    compiled, plain = prepare_for_decoding(model, weights, compiled=True), prepare_for_decoding(model, weights)
    tolerance = 1e-5 if weights is None else 0.05  # compiled steps keep the vector in float32
    for sizes in ([1] * 16, [5, 1, 1, 9]):
        assert_agree(in_chunks(compiled, tokens[:1], sizes), in_chunks(plain, tokens[:1], sizes), tolerance)
    ragged = [[5, 9, 2, 40, 7], [11], [3, 3, 60]]
    assert weights or generate(compiled, ragged, 8) == generate(model, ragged, 8)
    with pytest.raises(ValueError, match="prepared already"):
        prepare_for_decoding(compiled)
