"""The layout for one-token steps: the same function, or with fewer bytes per weight nearly the same."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from benchmarks import speed
from beyond.fast_decode import int4, layouts, measure, prepare_for_decoding
from beyond.fast_decode.layouts import LAYOUTS
from helpers.generate import generate
from helpers.interventions import replaced
from tests.support.models import BFLOAT16, TINY_CONFIGS, assert_agree, in_chunks, make_model


@pytest.mark.parametrize("layout", [None, *LAYOUTS[torch.float32]])
@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_a_prepared_model_is_the_same_function(name, layout, tokens):
    model = make_model(TINY_CONFIGS[name]).requires_grad_(False)  # else a packed product is made in rows
    prepared = prepare_for_decoding(model, layout=layout)
    assert prepared.lm_head.layout == layout or not layout
    for n_tokens in (1, 2, 3, 16):  # one token needs no mask, two already do
        assert_agree(prepared(tokens[:, :n_tokens]), model(tokens[:, :n_tokens]))
    for rows, sizes in ((1, [1] * 16), (1, [5, 1, 1, 9]), (2, [1, 5, 1, 9])):
        assert_agree(in_chunks(prepared, tokens[:rows], sizes), model(tokens[:rows]))
    n_pad = torch.tensor([3])  # one row, whose single tokens cannot take the shortest way
    assert_agree(in_chunks(prepared, tokens[:1], [5, 1, 1, 9], n_pad)[:, 3:], model(tokens[:1], n_pad=n_pad)[:, 3:])
    assert_agree(prepared(many := tokens.repeat(9, 1)), model(many))  # so many are multiplied in another way
    ragged = [[5, 9, 2, 40, 7], [11], [3, 3, 60]]
    assert generate(prepared, ragged, 8) == generate(model, ragged, 8)


SMALLER = [(name, layout) for name in ("float16", "bfloat16", "int8") for layout in LAYOUTS[getattr(torch, name)]]


@pytest.mark.parametrize(("weights", "layout"), SMALLER)
def test_smaller_weights_change_the_logits_little(weights, layout, model, tokens):
    prepared = prepare_for_decoding(model, weights, layout=layout)
    many = prepared(tokens[:1].repeat(9, 1))[:1]
    for logits in (prepared(tokens[:1]), many, in_chunks(prepared, tokens[:1], [1] * 16)):
        assert_agree(logits, model(tokens[:1]), BFLOAT16)  # int8 rounds about as much: 0.05
        assert (logits - model(tokens[:1])).abs().max() > 1e-5, "nothing was rounded"


def without(library, monkeypatch, *names):
    """A PyTorch that was built without these of the library's operators."""
    for name in names:
        monkeypatch.delattr(library, name, raising=False)
    monkeypatch.setattr(type(library), "__getattr__", lambda *_: (_ for _ in ()).throw(AttributeError()))


def test_bags_of_bytes_are_the_sums_that_the_library_without_a_name_makes(monkeypatch):
    rows, x = torch.randn(12, 16), torch.randn(4)  # three bags of four
    bytes_of, words, starts = layouts.to_bytes(rows), torch.arange(12, dtype=torch.int32), torch.arange(0, 12, 4).int()
    by_fbgemm, widened = layouts.bags(bytes_of, words, starts, x), layouts.from_bytes(bytes_of)
    assert torch.equal(bytes_of, torch.ops.quantized.embedding_bag_byte_prepack(rows))
    names = "embedding_bag_byte_rowwise_offsets", "embedding_bag_byte_unpack"
    without(torch.ops.quantized, monkeypatch, *names)
    assert_agree(layouts.bags(bytes_of, words, starts, x), by_fbgemm)
    assert_agree(layouts.from_bytes(bytes_of), widened)
    step = (rows.amax(1) - rows.amin(1)) / 255
    assert ((layouts.from_bytes(bytes_of) - rows).abs() <= 0.51 * step[:, None]).all()


MARGINS = {torch.float32: 1e-5, torch.int4: 0.15}
NAMED = [(dtype, layout) for dtype, names in LAYOUTS.items() for layout in names]


@pytest.mark.parametrize("has_bfloat16", [False, True])
@pytest.mark.parametrize(("dtype", "layout"), NAMED)
def test_each_layout_has_the_product_and_the_gradient_of_the_matrix(dtype, layout, has_bfloat16, monkeypatch):
    monkeypatch.setattr(layouts, "multiplies_bfloat16", lambda: has_bfloat16)
    monkeypatch.setattr(layouts, "WIDENED", 30 * 7)  # a part of seven rows, so there are several
    matrix, x = torch.randn(50, 30), torch.randn(1, 130, 30, requires_grad=True)
    linear, margin = layouts.LaidOutLinear([matrix], dtype, layout), MARGINS.get(dtype, 0.02)
    for n_tokens in (1, 3, 7, 130):
        part = x[:, :n_tokens]
        with torch.no_grad():
            assert_agree(linear(part), part @ matrix.T, margin)
        (gradient,) = torch.autograd.grad(linear(part).sum(), part)
        assert_agree(gradient, matrix.sum(0).expand_as(part), margin)


@pytest.mark.parametrize(("n_out", "n_in", "is_safe"), [(50, 30, False), (48, 30, True), (50, 32, True)])
def test_the_product_with_bytes_is_called_only_for_sizes_that_it_can_read(n_out, n_in, is_safe, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda x, w, s: asked.append(1) or (x.float() @ w.T.float()) * s)
    matrix, x = torch.randn(n_out, n_in), torch.randn(n_in)
    assert_agree(layouts.LaidOutLinear([matrix], torch.int8, "rows")(x), matrix @ x, 0.02)
    assert bool(asked) == is_safe


PACKERS = [
    (torch.float32, "mkldnn", "_reorder_linear_weight"),
    (torch.float16, "quantized", "linear_prepack_fp16"),
]


@pytest.mark.parametrize(("dtype", "library", "packer"), PACKERS)
def test_packed_is_rows_where_the_library_is_missing(dtype, library, packer, monkeypatch):
    matrix, x = torch.randn(50, 30), torch.randn(1, 3, 30)
    packed = layouts.LaidOutLinear([matrix], dtype, "packed")
    if library != "mkldnn" or torch.backends.mkldnn.is_available():
        assert packed.packed
    without(getattr(torch.ops, library), monkeypatch, packer)
    rows = layouts.LaidOutLinear([matrix], dtype, "packed")
    assert not rows.packed
    assert_agree(rows(x), x @ matrix.to(dtype).float().T)


def test_a_step_of_one_token_sees_hooks_and_replaced_parts(model, tokens):
    prepared = prepare_for_decoding(model, layout="rows")

    def step():
        return in_chunks(prepared, tokens[:1, :3], [2, 1])[:, -1]

    usual, seen = step(), []
    handle = prepared.layers[1].attention.o_proj.register_forward_hook(lambda *_: seen.append(1))
    assert torch.allclose(step(), usual, atol=1e-5)
    assert len(seen) == 2
    handle.remove()
    with replaced(prepared.layers[0].feed_forward, lambda _, x: 0 * x):
        assert not torch.allclose(step(), usual, atol=1e-2)
    assert torch.equal(step(), usual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_keeps_each_row_to_half_a_step(dtype, model):
    """A row's largest weight, 190/128, divided by its scale in bfloat16, would give 127.5, and then 128."""
    model.layers[0].attention.o_proj.weight.data[:2] = torch.tensor([[190 / 128], [0.0]])
    layer = prepare_for_decoding(model.to(dtype), "int8", layout="rows").layers[0].attention.o_proj
    step = layer.scale.float()[:, None]
    assert (step > 0).all()  # a row of zeros, too, is divided by its step
    expected = model.layers[0].attention.o_proj.weight.float()
    assert ((layer.weight * step - expected).abs() <= 0.51 * step).all()
    assert layer.weight.abs().amax(dim=1).tolist() == [127, 0, *[127] * 30]  # each row uses the whole range


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order_is_known", [True, False])
def test_int4_is_the_model_whose_weights_have_sixteen_values_a_group(dtype, order_is_known, tokens, monkeypatch):
    model = make_model(replace(TINY_CONFIGS["gqa"], dim=80, hidden_dim=100))  # groups and blocks are not full
    prepared = prepare_for_decoding(model.to(dtype), "int4")
    if not order_is_known:
        monkeypatch.setattr(int4, "_order", lambda: None)
    rounded = copy.deepcopy(model).float()
    for name, matrix in rounded.named_parameters():
        if matrix.ndim == 2 and "tok" not in name:
            groups = F.pad(matrix.data, (0, -matrix.shape[1] % 32)).unflatten(1, (-1, 32))
            least, most = groups.aminmax(dim=2, keepdim=True)
            scale = ((most - least) / 15).bfloat16().float()
            offset = (least + 8 * scale).bfloat16().float()
            codes = ((groups - offset) / scale + 8).round().clamp(0, 15)
            matrix.data = ((codes - 8) * scale + offset).flatten(1)[:, : matrix.shape[1]]
    for logits in (prepared(tokens), in_chunks(prepared, tokens, [1] * 16), prepared(tokens.repeat(3, 1))[:2]):
        assert_agree(logits.float(), rounded(tokens), BFLOAT16)
    x = torch.randn(2, 80, requires_grad=True)
    (gradient,) = torch.autograd.grad(prepared.lm_head(x).sum(), x)
    assert_agree(gradient, rounded.lm_head.weight.sum(0).expand(2, -1), BFLOAT16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_prepared_model_keeps_another_precision(dtype, model, tokens):
    model.to(dtype)
    prepared = prepare_for_decoding(model)
    assert prepared.lm_head.weight.dtype == dtype
    assert_agree(in_chunks(prepared, tokens, [1] * 16), in_chunks(model, tokens, [1] * 16), BFLOAT16)


def race_won_by(winner, monkeypatch):
    """Let every benchmark be won by this dtype and layout, or this number of threads."""

    def benchmark(runners):
        return {name: [1e-6 if name == winner else 2e-6] for name in runners}

    monkeypatch.setattr(measure, "_benchmark", benchmark)


@pytest.mark.parametrize("layout", LAYOUTS[torch.float32])
@pytest.mark.parametrize("n_tokens", [1, 3])
def test_a_deep_copy_runs_on_its_own_matrices(n_tokens, layout, model, tokens):
    prepared = prepare_for_decoding(model.requires_grad_(False), layout=layout)
    before, copied = prepared(tokens[:, :n_tokens]), copy.deepcopy(prepared)
    assert torch.equal(copied(tokens[:, :n_tokens]), before)
    assert copied.lm_head.weight is not prepared.lm_head.weight
    for matrix in (*copied.buffers(), *copied.parameters()):
        matrix.data.zero_()
    for part in copied.modules():
        if layout == "packed" and isinstance(part, layouts.LaidOutLinear):  # zero_ leaves such a tensor as it is
            part.weight = layouts.pack(torch.zeros(part.n_out, part.n_in))
    assert not copied(tokens[:, :n_tokens]).any()
    assert torch.equal(prepared(tokens[:, :n_tokens]), before)


def test_a_stop_while_threads_are_timed_leaves_their_number_as_it_was(model, monkeypatch):
    def stopped(runners):
        runners[1]()
        raise KeyboardInterrupt

    prepared = prepare_for_decoding(model, layout="rows")
    monkeypatch.setattr(measure, "_benchmark", stopped)
    torch.set_num_threads(2)
    with pytest.raises(KeyboardInterrupt):
        measure.seconds_by_threads(prepared)
    found = torch.get_num_threads()
    torch.set_num_threads(1)
    assert found == 2


@pytest.mark.parametrize("winner", LAYOUTS[torch.float32])
def test_the_fastest_layout_is_taken_and_a_busy_moment_does_not_decide(winner, model, monkeypatch):
    def benchmark(runners):
        return {name: [9e-6, 1e-6 if str(name).partition(" ")[2] == winner else 2e-6, 9e-6] for name in runners}

    monkeypatch.setattr(measure, "_benchmark", benchmark)
    prepared = prepare_for_decoding(model)
    assert prepared.layers[1].attention.o_proj.layout == winner
    assert f"(lm_head): LaidOutLinear(32 -> 64, {winner})" in str(prepared)


@pytest.mark.parametrize(("time_of_rows", "taken"), [(9.5e-6, "packed"), (8.5e-6, "rows")])
def test_a_layout_that_reads_prompts_fast_may_take_a_tenth_longer(time_of_rows, taken, model, monkeypatch):
    times = {"float16 rows": time_of_rows}
    monkeypatch.setattr(measure, "_benchmark", lambda runners: {name: [times.get(name, 1e-5)] for name in runners})
    assert prepare_for_decoding(model, "float16").lm_head.layout == taken


def test_a_step_of_one_token_runs_on_as_many_threads_as_were_faster(model, monkeypatch):
    torch.set_num_threads(2)
    race_won_by(1, monkeypatch)
    prepared, seen = prepare_for_decoding(model), []
    prepared.final_norm.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    for shape in ((1, 1), (2, 1), (1, 3)):
        prepared(torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ValueError, match="vocab_size"):
        prepared(torch.tensor([[10**6]]))
    assert [*seen, torch.get_num_threads()] == [1, 2, 2, 2]
    torch.set_num_threads(1)


@pytest.mark.parametrize(("winner", "said"), [("int8 rows", False), ("float32 columns", True), ("nothing", True)])
def test_weights_that_save_no_time_say_so(winner, said, model, monkeypatch):
    race_won_by(winner, monkeypatch)
    assert ("save memory here, not time" in str(prepare_for_decoding(model, "int8"))) == said
    assert "save memory" not in str(prepare_for_decoding(model))


def test_the_page_of_speeds_is_made_from_the_samples():
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(speed.RESULTS.glob("*.json"))]
    assert records
    assert speed.RESULTS.with_suffix(".md").read_text(encoding="utf-8") == "\n".join(speed.page(records)) + "\n"


def test_scores_are_not_made_of_bytes(model):
    """A score multiplies a rounded query and a rounded key: in int8 they cost most of the difference."""
    attention = prepare_for_decoding(model, "int8", layout="bags of 192").layers[0].attention
    assert (attention.qkv_proj.layout, attention.o_proj.weight.dtype) == ("packed", torch.uint8)
