"""The course on an accelerator: helpers and notebook 06 on a fake "mps" (tests/support/fake_device.py)."""

import contextlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from checks import check_swiglu
from helpers import masks, plots, train
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.device import pick_device, set_seed
from helpers.generate import generate, next_token_probabilities
from helpers.text import TINY_LLAMA, bits_per_byte, encode, excerpt, load_tokenizer
from tests.support.course import SHORTER, run_notebook
from tests.support.fake_device import fake_mps
from tests.support.models import TINY, TINY_CONFIGS, draw_tokens, make_model


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    """Whatever the shell says, the device is the one that is found."""
    monkeypatch.delenv("COURSE_DEVICE", raising=False)


@pytest.fixture
def mps():
    """A fake accelerator."""
    with fake_mps() as fake:
        yield fake


# ------------------------------------------------------------------------- the fake notices each mistake

TWO_DEVICES = (RuntimeError, "Expected all tensors to be on the same device")
# what is done with x, three numbers on the device d
MISTAKES = {
    "a tensor of the CPU added": (lambda x, d: x + torch.ones(3), *TWO_DEVICES),
    "added in place": (lambda x, d: torch.ones(3).add_(x), *TWO_DEVICES),
    "a module of the CPU": (lambda x, d: torch.nn.Linear(3, 2)(x), *TWO_DEVICES),
    "a gradient of the CPU": (
        lambda x, d: torch.autograd.grad(x.requires_grad_() * x, x, torch.ones(3)), *TWO_DEVICES),
    "an index of the device into the CPU": (
        lambda x, d: torch.ones(3)[torch.tensor([0, 2], device=d)], RuntimeError, "indices should be either on cpu"),
    "np.asarray": (lambda x, d: np.asarray(x), TypeError, "can't convert .* device type tensor to numpy"),
    "a CPU generator": (
        lambda x, d: torch.rand(3, generator=torch.Generator().manual_seed(0), device=d),
        RuntimeError, "device type for generator but found 'cpu'"),
    "float64": (lambda x, d: x.double(), TypeError, "Cannot convert a MPS Tensor to float64"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed_that_the_cpu_forgives(mps, mistake):
    does, error, words = MISTAKES[mistake]
    does(torch.ones(3), torch.device("cpu"))
    with pytest.raises(error, match=words):
        does(torch.ones(3, device="mps"), torch.device("mps"))


# ------------------------------------------------------------------------- helpers: the CPU's results


def same_as_on_the_cpu(work):
    """work(device), on the CPU and on the fake: the same values, up to the order of a sum."""
    expected = work(torch.device("cpu"))
    with fake_mps() as fake:
        assert pick_device() == torch.device("mps")
        actual = work(pick_device())
    assert fake.sent, "nothing has been on the device"
    torch.testing.assert_close(actual, expected)


def forward_and_backward(device, config, dtype):
    model = make_model(config).to(device, dtype)
    tokens = draw_tokens(2, 16).to(device)
    logits = model(tokens)
    assert logits.device.type == device.type
    assert logits.dtype == torch.float32
    F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    assert all(weight.grad.device.type == device.type for weight in model.parameters())
    padded = model(tokens, n_pad=torch.tensor([0, 3]))
    return [logits.cpu(), padded.cpu(), *(weight.grad.cpu() for weight in model.parameters())]


@pytest.mark.parametrize(
    ("name", "dtype"), [("gqa", torch.bfloat16), ("tied", torch.float32), ("llama3 short", torch.float32)]
)
def test_logits_and_gradients(name, dtype):
    same_as_on_the_cpu(partial(forward_and_backward, config=TINY_CONFIGS[name], dtype=dtype))


def test_writing():
    def written(device):
        model, tokens = make_model().to(device), draw_tokens(2, 5)
        cache = model.new_cache(2)
        chunks = [model(chunk.to(device), cache).cpu() for chunk in tokens.split([2, 1, 2], dim=1)]
        assert cache.k.device.type == device.type
        return [
            *chunks,
            generate(model, tokens, 6),
            generate(model, tokens.to(device), 6, temperature=0.8, top_k=20, top_p=0.9, seed=1),
            generate(model, tokens, 6, stop=torch.arange(40).to(device)),
            [torch.tensor(row) for row in generate(model, [[1, 2, 3], [4]], 4, temperature=1.0, seed=2)],
            next_token_probabilities(chunks[-1][:, -1].to(device), 0.7, top_k=9, top_p=0.5).cpu(),
        ]

    same_as_on_the_cpu(written)


@pytest.mark.usefixtures("mps")
def test_training_goes_on_where_it_stopped_also_on_another_device(tmp_path):
    def learned(device, keep, stop_at=None):
        def report(step, loss):
            if step == stop_at:
                raise KeyboardInterrupt

        model = make_model(replace(TINY, max_seq_len=16), std=0.02).to(device)
        with contextlib.suppress(KeyboardInterrupt):
            train.train(model, lambda: draw_tokens(1, 400)[0], steps=6, every=2, warm_up=2, keep=keep, report=report)
        return model.cpu().state_dict()

    whole = learned("cpu", tmp_path / "whole")
    torch.testing.assert_close(learned("mps", tmp_path / "on mps"), whole)
    learned("mps", tmp_path / "part", stop_at=4)
    torch.testing.assert_close(learned("cpu", tmp_path / "part"), whole)
    torch.testing.assert_close(learned("mps", tmp_path / "whole"), whole)


def test_checkpoints(tmp_path):
    def opened_and_written(device):
        model = load_checkpoint(TINY_LLAMA, device=device, dtype=torch.float16)
        assert {weight.device.type for weight in model.parameters()} == {device.type}
        save_checkpoint(model, tmp_path / device.type)
        again = load_checkpoint(tmp_path / device.type, device=device)
        ids = encode(load_tokenizer(), excerpt()[:200])[None].to(device)
        return [again(ids).detach().cpu(), torch.tensor(bits_per_byte(again, load_tokenizer(), excerpt()[:300]))]

    same_as_on_the_cpu(opened_and_written)


def test_masks_figures_and_seeded_draws(mps):
    at, text = torch.arange(8, device="mps"), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2], device="mps")
    rules = [masks.causal(at[5:], at), masks.itself(at, at), masks.sliding_window(at, at, 3), masks.prefix(at, at, 2)]
    rules += [masks.left_padding(at, at, 2), masks.same_document(at, at, text)]
    assert {rule.device for rule in rules} == {torch.device("mps", 0)}
    weights = torch.rand(4, 4, generator=set_seed(3)).to("mps")
    for plot in (plots.plot_attention, plots.plot_scores, plots.plot_visible):
        plots.plt.close(plot(weights).figure)
    assert mps.draws == []


@pytest.mark.usefixtures("mps")
def test_checks_judge_a_function_that_uses_the_device():
    def right(x, w_gate, w_up, w_down):
        return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)

    def left_there(x, *weights):
        return right(x.to("mps"), *(weight.to("mps") for weight in weights))

    def half_there(x, *weights):
        return right(x.to("mps"), *weights)

    assert check_swiglu(right)
    assert check_swiglu(lambda *tensors: left_there(*tensors).cpu())
    assert "on the device" in check_swiglu(left_there).message
    assert "Expected all tensors to be on the same device" in check_swiglu(half_there).message
    assert pick_device().type == "mps"  # the checks put back what they found


# ------------------------------------------------------------------------- one notebook, from top to bottom


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between matplotlib and PyTorch: a notebook hides them
def test_notebook_06_runs_on_mps(mps, monkeypatch):
    names = run_notebook("06_train", SHORTER, monkeypatch)
    assert names["model"].inv_freq.device.type == "cpu"
    assert names["model"].lm_head.weight.device.type == "mps"
    assert mps.draws == [], "numbers drawn on the device differ from device to device"
