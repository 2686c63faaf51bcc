"""Which device is picked, that nothing stays behind on the CPU, that seeds repeat, what is said when memory is full.

The device "meta" stands for an accelerator: it knows shapes and no numbers, and PyTorch refuses to mix it with the CPU.
"""

import random
import weakref

import pytest
import torch
from torch.nn import functional as F

from beyond.fast_decode import prepare_for_decoding
from helpers import masks, train
from helpers.checkpoint import blank_model, load_checkpoint
from helpers.corpus import bits_per_byte
from helpers.device import explain_out_of_memory, pick_device, set_seed, synchronize
from helpers.generate import generate
from helpers.plots import to_numpy
from helpers.text import TINY_LLAMA, load_tokenizer
from tests.support.models import TINY, assert_agree, draw_tokens, make_model

PICKED = [  # COURSE_DEVICE, the accelerators that are there, and what is picked
    ("", [], "cpu"), ("", ["cuda"], "cuda"), (" ", ["cuda", "mps"], "cuda"), ("", ["mps"], "mps"),
    ("mps", ["cuda", "mps"], "mps"), (" CPU ", ["cuda"], "cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "present", "device"), PICKED)
def test_an_accelerator_is_picked_unless_course_device_overrides_and_is_waited_for(value, present, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in present)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in present)
    monkeypatch.setenv("COURSE_DEVICE", value)
    assert pick_device().type == device
    waits = []
    monkeypatch.setattr(f"torch.{device}.synchronize", lambda: waits.append(device))
    synchronize(torch.device(device))
    assert waits == [device] * (device != "cpu")


def test_the_whole_model_computes_where_its_weights_are_and_masks_where_their_positions_are():
    model, tokens = make_model().to("meta"), draw_tokens(2, 16).to("meta")
    padded = model.rotation_and_mask(16, n_pad=torch.tensor([0, 3]), device="meta")
    F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    cache = model.new_cache(2)
    chunks = [model(chunk, cache) for chunk in tokens.split([9, 6, 1], dim=1)]
    assert all(result.is_meta for result in (*padded, cache.k, *chunks, *(w.grad for w in model.parameters())))
    assert prepare_for_decoding(model) is model  # an accelerator needs no other layout
    at = torch.arange(8, device="meta")
    rules = masks.causal(at[5:], at), masks.sliding_window(at, at, 3), masks.left_padding(at, at, 2)
    assert all(rule.is_meta for rule in (*rules, masks.same_document(at, at, at), model(tokens, n_pad=[0, 3])))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("n_pad", [None, torch.tensor([0, 3])])
def test_the_model_is_compiled_as_one_graph_and_exported_for_any_length(n_pad):
    """The check of the tokens' range would read numbers in the middle of the graph: it is made outside a compiler."""
    model, longer = make_model(), draw_tokens(2, 21)
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    shapes = {"tokens": {1: torch.export.Dim("T")}, "n_pad": None}
    exported = torch.export.export(model, (draw_tokens(2, 16),), {"n_pad": n_pad}, dynamic_shapes=shapes).module()
    for tokens in (draw_tokens(2, 16), longer):
        for called in (compiled, exported):
            assert_agree(called(tokens, n_pad=n_pad), model(tokens, n_pad=n_pad))
    with pytest.raises(ValueError, match="vocab_size=64"):
        model(longer + 64)


@pytest.mark.slow
def test_twenty_steps_with_a_cache_are_compiled_as_two_graphs_at_most():
    """A length that is a plain number gets one graph for its first value, and one for all others."""
    model, tokens, graphs = make_model(), draw_tokens(2, 20), []
    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    cache, ours = model.new_cache(2), model.new_cache(2)
    with torch.device("cpu"):  # a default device that somebody set must not cut the graph
        for token in tokens.split(1, dim=1):
            assert_agree(compiled(token, cache), model(token, ours))
    assert len(graphs) <= 2


def test_tokens_and_targets_are_sent_to_the_model(monkeypatch):
    """By writing, training and judging; what is written comes back to the CPU."""
    away, sent = make_model().to("meta"), []

    def forward(tokens, cache=None, last_only=False, n_pad=None):
        assert tokens.is_meta
        return torch.zeros(*tokens.shape, 64)

    away.forward = forward
    assert generate(away, draw_tokens(2, 5), 3, temperature=1.0, seed=0).device.type == "cpu"
    assert len(generate(away, [[1], [2, 3]], 3)[0]) == 4
    monkeypatch.setattr(F, "cross_entropy", lambda logits, targets, **_: sent.append(targets) or torch.zeros(()))
    bits_per_byte(away, load_tokenizer(), "a text")
    with pytest.raises(RuntimeError, match="does not require grad"):
        train.train(away, lambda: draw_tokens(1, 400)[0], steps=1)
    assert [targets.device.type for targets in sent] == ["meta", "meta"]


def test_a_checkpoint_opens_on_the_device_asked_for_and_a_figure_asks_for_a_copy_on_the_cpu():
    weights = list(load_checkpoint(TINY_LLAMA, device="meta", dtype=torch.float16).parameters())
    assert {(weight.device.type, weight.dtype) for weight in weights} == {("meta", torch.float16)}
    blank = blank_model(TINY, make_model().state_dict(), "these weights").parameters()
    assert all(weight.is_meta for weight in blank)  # 27 GB of a model of 7 billion are not asked for
    with pytest.raises(NotImplementedError, match="copy out of meta"):
        to_numpy(weights[0])


def test_the_same_seed_gives_the_same_draws():
    def draws(*seed):
        generator = set_seed(*seed)
        return random.random(), torch.rand(3).tolist(), torch.rand(3, generator=generator).tolist()

    assert draws(3) == draws(3)
    assert all(a != b for a, b in zip(draws(3), draws(4), strict=True))
    assert draws() == draws(0)


FULL = [  # PyTorch's words for it: CUDA, MPS twice, Linux, Windows; and Python
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 18.10 GB, max allowed: 18.13 GB)."),
    RuntimeError("Invalid buffer size: 40.00 GB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4000000 bytes."),
    MemoryError(),
]


@pytest.mark.parametrize("error", FULL)
def test_a_full_memory_is_explained_once(error):
    outer, inner = explain_out_of_memory("outer"), explain_out_of_memory("pass a smaller batch_size")
    with pytest.raises(torch.OutOfMemoryError) as raised, outer, inner:
        raise error
    assert str(raised.value) == "out of memory: pass a smaller batch_size"
    assert raised.value.__cause__ is error


def test_a_training_step_that_has_failed_is_not_kept_in_memory(monkeypatch):
    """Jupyter keeps the last error, and with it every frame that it passed."""

    def backward(loss):
        kept.append(weakref.ref(loss))
        raise FULL[1]

    kept = []
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        train.train(make_model(), lambda: torch.arange(64).repeat(3), steps=2, batch_size=6)
    assert raised.value.__cause__.__traceback__ is not None
    assert kept[0]() is None
