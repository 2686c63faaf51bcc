"""The course on an accelerator: helpers and notebooks on a fake one (tests/fake_device.py), compared with the CPU."""

import ast
import contextlib
import copy
import gc
import io
import json
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from checks import check_rms_norm, check_swiglu
from helpers import masks, plots, train
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.device import pick_device, set_seed
from helpers.fast_decode import prepare_for_decoding
from helpers.generate import generate, next_token_probabilities
from helpers.model import PRESETS, count_parameters
from helpers.text import TINY_LLAMA, bits_per_byte, encode, excerpt, load_tokenizer
from tests.support.fake_device import fake_accelerator
from tests.support.models import TINY, TINY_CONFIGS, draw_tokens, make_model
from tests.support.shorter import SHORTER, STEPS, shorten

KINDS = ("mps", "cuda")
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# On a real "mps" too x.norm() goes through a name that PyTorch itself calls deprecated, and says so once.
pytestmark = [
    pytest.mark.filterwarnings("ignore:at..frobenius_norm is deprecated"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # between matplotlib and PyTorch: a notebook hides them
]


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    """Whatever the shell says, the device is the one that is found."""
    monkeypatch.delenv("COURSE_DEVICE", raising=False)


@pytest.fixture(params=KINDS)
def fake(request):
    """A fake accelerator of each kind."""
    with fake_accelerator(request.param) as fake:
        yield fake


@pytest.fixture
def mps():
    """The stricter one."""
    with fake_accelerator("mps") as fake:
        yield fake


# ------------------------------------------------------------------------- the guard notices each mistake

TWO_DEVICES = (RuntimeError, "Expected all tensors to be on the same device")
GENERATOR = (RuntimeError, "device type for generator but found 'cpu'")
TO_NUMPY = (TypeError, "can't convert .* device type tensor to numpy")
NO_FLOAT64 = (TypeError, "Cannot convert a MPS Tensor to float64")


def seeded():
    return torch.Generator().manual_seed(0)


# what is done with x, three numbers on the device d
MISTAKES = {
    "a tensor of the CPU added": (lambda x, d: x + torch.ones(3), *TWO_DEVICES),
    "added in place": (lambda x, d: torch.ones(3).add_(x), *TWO_DEVICES),
    "a single number of the device with a row of the CPU": (lambda x, d: x[0] * torch.ones(3), *TWO_DEVICES),
    "written into a single number of the CPU": (lambda x, d: torch.ones(()).add_(x[0]), *TWO_DEVICES),
    "numbers of both in one row": (lambda x, d: torch.stack([x[0], torch.tensor(1.0)]), *TWO_DEVICES),
    "a matrix of the CPU": (lambda x, d: torch.ones(3, 3) @ x, *TWO_DEVICES),
    "a module of the CPU": (lambda x, d: torch.nn.Linear(3, 2)(x), *TWO_DEVICES),
    "token ids of the CPU": (lambda x, d: torch.nn.Embedding(5, 2).to(d)(torch.tensor([1])), *TWO_DEVICES),
    "a mask of the CPU": (lambda x, d: x.masked_fill(torch.ones(3, dtype=torch.bool), 0), *TWO_DEVICES),
    "targets of the CPU": (lambda x, d: F.cross_entropy(x[None], torch.tensor([1])), *TWO_DEVICES),
    "an equality with the CPU": (lambda x, d: torch.equal(x, torch.ones(3)), *TWO_DEVICES),
    "a comparison with the CPU": (
        lambda x, d: torch.testing.assert_close(x, x.cpu()), AssertionError, "'device' do not match"),
    "a gradient of the CPU": (
        lambda x, d: torch.autograd.grad(x.requires_grad_() * x, x, torch.ones(3)), *TWO_DEVICES),
    "inside a Python function of PyTorch": (
        lambda x, d: F.multi_head_attention_forward(
            *(x[:2].expand(4, 1, 2),) * 3, 2, 1, torch.ones(6, 2), None, None, None, False, 0.0, torch.ones(2, 2), None
        ), *TWO_DEVICES),
    "in another thread": (lambda x, d: in_a_thread(lambda: x + torch.ones(3)), *TWO_DEVICES),
    "an index of the device into the CPU": (
        lambda x, d: torch.ones(3)[torch.tensor([0, 2], device=d)], RuntimeError, "indices should be either on cpu"),
    "numpy": (lambda x, d: x.numpy(), *TO_NUMPY),
    "np.asarray": (lambda x, d: np.asarray(x), *TO_NUMPY),
    "numpy of a gradient's tensor": (lambda x, d: x.requires_grad_().detach().numpy(), *TO_NUMPY),
    "a CPU generator for torch.rand": (lambda x, d: torch.rand(3, generator=seeded(), device=d), *GENERATOR),
    "a CPU generator in place": (lambda x, d: x.normal_(generator=seeded()), *GENERATOR),
    "a CPU generator for a choice": (lambda x, d: x.multinomial(1, generator=seeded()), *GENERATOR),
    "a second device": (lambda x, d: x.to(f"{d.type}:1"), RuntimeError, "invalid device ordinal"),
}  # fmt: skip
MISTAKES_ON_MPS = {
    "float64 by name": (lambda x, d: x.double(), *NO_FLOAT64),
    "float64 by to": (lambda x, d: x.to(torch.float64), *NO_FLOAT64),
    "float64 made there": (lambda x, d: torch.zeros(3, dtype=torch.float64, device=d), *NO_FLOAT64),
    "float64 sent there": (lambda x, d: torch.zeros(3, dtype=torch.float64).to(d), *NO_FLOAT64),
    "float64 from numpy": (lambda x, d: torch.from_numpy(np.ones(3)).to(d), *NO_FLOAT64),
    "a float64 module": (lambda x, d: torch.nn.Linear(3, 3).double().to(d), *NO_FLOAT64),
    "a sum in float64": (lambda x, d: x.sum(dtype=torch.float64), *NO_FLOAT64),
    "complex": (lambda x, d: torch.view_as_complex(torch.ones(3, 2, device=d)), TypeError, "to complex64 dtype"),
    "polar": (lambda x, d: torch.polar(x, x), TypeError, "to complex64 dtype"),
}


def in_a_thread(work):
    raised = []

    def run():
        try:
            work()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in raised:
        raise error


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_guard_notices(fake, mistake):
    does, error, words = MISTAKES[mistake]
    with pytest.raises(error, match=words):
        does(torch.ones(3, device=fake.kind), fake.device)


@pytest.mark.parametrize("mistake", MISTAKES_ON_MPS)
def test_the_guard_notices_on_mps(mps, mistake):
    does, error, words = MISTAKES_ON_MPS[mistake]
    with pytest.raises(error, match=words):
        does(torch.ones(3, device="mps"), mps.device)


def test_without_the_guard_only_the_device_is_wrong():
    """The mistakes are mistakes of the device alone: on the CPU every one of them runs."""
    for mistake, (does, *_) in (MISTAKES | MISTAKES_ON_MPS).items():
        if mistake != "a second device":
            does(torch.ones(3), torch.device("cpu"))


# what is allowed, and where the result is
ALLOWED = {
    "a single number of the CPU": (lambda x, d: x * torch.tensor(2.0), True),
    "a Python number": (lambda x, d: 2 * x + 1, True),
    "an index of the CPU": (lambda x, d: x[torch.tensor([0, 2])], True),
    "an index of the CPU, written to": (lambda x, d: x.index_put_((torch.tensor([0]),), torch.tensor(5.0)), True),
    "a copy from the CPU": (lambda x, d: x.copy_(torch.ones(3)), True),
    "a copy to the CPU": (lambda x, d: torch.ones(3).copy_(x), False),
    "a slice, seen otherwise": (lambda x, d: x[1:].view(2, 1).T, True),
    "like it": (lambda x, d: torch.zeros_like(x), True),
    "like it, on the CPU": (lambda x, d: torch.zeros_like(x, device="cpu"), False),
    "new from it": (lambda x, d: x.new_tensor([1.0]), True),
    "as_tensor of the CPU's": (lambda x, d: torch.as_tensor(torch.ones(3), device=d), True),
    "the device as a context": (lambda x, d: under(d, lambda: torch.ones(3)), True),
    "to another's place": (lambda x, d: torch.ones(3).to(x), True),
    "there and back": (lambda x, d: x.cpu(), False),
    "a deep copy": (lambda x, d: copy.deepcopy(x), True),
    "a module's deep copy": (lambda x, d: copy.deepcopy(torch.nn.Linear(3, 3).to(d)).weight, True),
    "a gradient": (lambda x, d: torch.autograd.grad((2 * x.requires_grad_()).chunk(2)[0].sum(), x)[0], True),
    "a gradient that moves back": (lambda x, d: gradient_of(torch.ones(3), lambda leaf: leaf.to(d) * x), False),
    "shapes only": (lambda x, d: under(torch.device("meta"), lambda: torch.ones(3)), False),
}


def under(device, make):
    with device:
        return make()


def gradient_of(leaf, function):
    function(leaf.requires_grad_()).sum().backward()
    return leaf.grad


@pytest.mark.parametrize("case", ALLOWED)
def test_the_guard_allows(fake, case):
    does, there = ALLOWED[case]
    result = does(torch.ones(3, device=fake.kind), torch.device(fake.kind))
    assert (result.device == fake.device) == there
    assert result.is_cuda == (there and fake.kind == "cuda")


def test_afterwards_all_is_as_before():
    before = {owner: dict(vars(owner)) for owner in (torch, torch.Tensor, torch.cuda, torch.mps, threading.Thread)}
    with fake_accelerator("cuda"):
        assert torch.cuda.is_available()
        x = torch.ones(3, device="cuda")
    for owner, names in before.items():
        assert {name: vars(owner).get(name) for name in names} == names
    assert x.device == torch.device("cpu")
    assert (x + torch.ones(3)).tolist() == [2, 2, 2]


def test_draws_on_the_device_are_noted(fake):
    torch.nn.Linear(2, 2).to(fake.kind).reset_parameters()
    torch.rand(2, device=fake.kind)
    torch.rand(2)
    assert fake.draws == ["uniform_", "uniform_", "rand"]


def test_memory_is_counted_and_returned(fake):
    x = torch.ones(1000, device=fake.kind)
    assert fake.allocated() == 4000
    held = [x[:10].clone()]
    del x
    assert fake.allocated() == 40
    held.clear()
    assert fake.allocated() == 0


# ------------------------------------------------------------------------- helpers: the CPU's results


def same_as_on_the_cpu(kind, work):
    """work(device), on the CPU and on the fake: the same values, up to the order of a sum."""
    expected = work(torch.device("cpu"))
    with fake_accelerator(kind) as fake:
        assert pick_device() == torch.device(kind)
        actual = work(pick_device())
    assert fake.sent, "nothing has been on the device"
    torch.testing.assert_close(actual, expected)


def forward_and_backward(device, config=TINY, dtype=torch.float32):
    model = make_model(config).to(device, dtype)
    tokens = draw_tokens(2, 16).to(device)
    logits = model(tokens)
    assert logits.device.type == device.type
    assert logits.dtype == torch.float32
    F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    assert all(weight.grad.device.type == device.type for weight in model.parameters())
    padded = model(tokens, n_pad=torch.tensor([0, 3]))
    return [logits.cpu(), padded.cpu(), *(weight.grad.cpu() for weight in model.parameters())]


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_logits_and_gradients(name):
    same_as_on_the_cpu("mps", partial(forward_and_backward, config=TINY_CONFIGS[name]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_in_half_precision(kind, dtype):
    same_as_on_the_cpu(kind, partial(forward_and_backward, dtype=dtype))


def written(device, dtype=torch.float32):
    model, tokens = make_model().to(device, dtype), draw_tokens(2, 5)
    prompts = [[1, 2, 3], [4], [5, 6]]
    cache = model.new_cache(2)
    chunks = [model(chunk.to(device), cache).cpu() for chunk in tokens.split([2, 1, 2], dim=1)]
    assert cache.k.device.type == device.type
    return [
        *chunks,
        generate(model, tokens, 6),
        generate(model, tokens.to(device), 6, temperature=0.8, top_k=20, top_p=0.9, seed=1),
        generate(model, tokens, 6, stop=torch.arange(40).to(device)),
        [torch.tensor(row) for row in generate(model, prompts, 4, temperature=1.0, seed=2)],
        generate(prepare_for_decoding(model), tokens, 6),
        next_token_probabilities(chunks[-1][:, -1].to(device), 0.7, top_k=9, top_p=0.5).cpu(),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_writing(kind, dtype):
    same_as_on_the_cpu(kind, partial(written, dtype=dtype))


def test_on_an_accelerator_the_model_decodes_as_it_is(fake):
    model = make_model().to(pick_device())
    assert all(prepare_for_decoding(model, weights) is model for weights in (None, "bfloat16", "int8"))


@pytest.mark.parametrize("kind", KINDS)
def test_training(kind):
    def learned(device):
        model = make_model(replace(TINY, max_seq_len=16), std=0.02).to(device)
        losses = train.train(model, lambda: draw_tokens(1, 400)[0], steps=6, batch_size=4, warm_up=2)
        return [torch.tensor(losses), model(draw_tokens(1, 8).to(device)).detach().cpu()]

    same_as_on_the_cpu(kind, learned)


def test_training_goes_on_where_it_stopped_also_on_another_device(tmp_path, mps):
    def learned(device, keep, stop_at=None):
        def report(step, loss):
            if step == stop_at:
                raise KeyboardInterrupt

        model = make_model(replace(TINY, max_seq_len=16), std=0.02).to(device)
        with contextlib.suppress(KeyboardInterrupt):
            train.train(model, lambda: draw_tokens(1, 400)[0], steps=6, every=2, warm_up=2, keep=keep, report=report)
        return model.cpu().state_dict()

    whole = learned("cpu", tmp_path / "whole")
    learned("mps", tmp_path / "part", stop_at=4)
    torch.testing.assert_close(learned("cpu", tmp_path / "part"), whole)
    torch.testing.assert_close(learned("mps", tmp_path / "whole"), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints(kind, tmp_path):
    def opened_and_written(device):
        model = load_checkpoint(TINY_LLAMA, device=device, dtype=torch.float16)
        assert {weight.device.type for weight in model.parameters()} == {device.type}
        save_checkpoint(model, tmp_path / f"{kind} {device.type}")
        again = load_checkpoint(tmp_path / f"{kind} {device.type}", device=device)
        ids = encode(load_tokenizer(), excerpt()[:200])[None].to(device)
        return [again(ids).detach().cpu(), torch.tensor(bits_per_byte(again, load_tokenizer(), excerpt()[:300]))]

    same_as_on_the_cpu(kind, opened_and_written)


def test_the_command_that_trains(tmp_path, mps, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text(200 * (excerpt()[:120] + "\n\n"), encoding="utf-8")
    small = replace(train.TINY, vocab_size=300, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, hidden_dim=24)
    monkeypatch.setattr(train, "TINY", small)
    arguments = ["train", "--out", tmp_path / "out", "--text", tmp_path / "text.txt", "--steps", "1"]
    monkeypatch.setattr("sys.argv", [str(argument) for argument in arguments])
    train.main()
    assert mps.sent > 4 * count_parameters(small)
    assert load_checkpoint(tmp_path / "out").config == small
    capsys.readouterr()


def test_counting_makes_nothing_on_the_device(mps):
    assert count_parameters(PRESETS["llama-2-7b"]) == 6_738_415_616
    assert count_parameters(make_model().to("mps")) == count_parameters(TINY)
    assert mps.allocated() < 1_000_000


def test_masks(fake):
    at, text = torch.arange(8, device=fake.kind), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2], device=fake.kind)
    rules = [masks.causal(at[5:], at), masks.itself(at, at), masks.sliding_window(at, at, 3), masks.prefix(at, at, 2)]
    rules += [masks.left_padding(at, at, 2), masks.same_document(at, at, text)]
    assert {rule.device for rule in rules} == {fake.device}


def test_figures(fake):
    weights = torch.rand(4, 4, generator=seeded()).to(fake.kind)
    for plot in (plots.plot_attention, plots.plot_scores, plots.plot_visible, plots.plot_rotation_angles):
        plots.plt.close(plot(weights).figure)


def test_seeded_draws_are_the_cpu_s(fake):
    on_device = torch.randn(5, generator=set_seed(3)).to(pick_device())
    torch.testing.assert_close(on_device.cpu(), torch.randn(5, generator=set_seed(3)))
    assert fake.draws == []


def test_checks_judge_a_function_that_uses_the_device(fake):
    def right(x, w_gate, w_up, w_down):
        return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)

    def there_and_back(x, *weights):
        return right(x.to(fake.kind), *(weight.to(fake.kind) for weight in weights)).cpu()

    def left_there(x, *weights):
        return right(x.to(fake.kind), *(weight.to(fake.kind) for weight in weights))

    def half_there(x, *weights):
        return right(x.to(fake.kind), *weights)

    assert check_swiglu(right)
    assert check_swiglu(there_and_back)
    assert "on the device" in check_swiglu(left_there).message
    assert "Expected all tensors to be on the same device" in check_swiglu(half_there).message
    assert check_rms_norm(lambda x, weight, eps: x.to(fake.kind).cpu()).status == "failed"
    assert pick_device().type == fake.kind  # the checks put back what they found


# ------------------------------------------------------------------------- notebooks, from top to bottom


def code_cells(name):
    """(number, source, what it printed when it was stored) of each code cell; None if that may differ."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            printed = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream"]
            may_differ = "nbval-ignore-output" in cell["metadata"].get("tags", []) or name in SHORTER
            yield number, "".join(cell["source"]), None if may_differ else "".join(map("".join, printed))


def run_cell(source, label, names):
    """Run a cell as a notebook does, showing its last line."""
    tree = ast.parse(source)
    shown = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, label, "exec"), names)
    result = eval(compile(shown, label, "eval"), names) if shown else None
    getattr(result, "_repr_mimebundle_", lambda: repr(result))()


def run_notebook(name, monkeypatch):
    """Run every cell; the names it leaves behind, and the cells whose printed text is not the stored one."""
    monkeypatch.setenv("COURSE_STEPS", STEPS)
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.setattr("IPython.display.display", lambda *args, **kwargs: None)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *args, **kwargs: None)  # half of the time
    left = {text for text in SHORTER.get(name, {}) if not any(text in source for _, source, _ in code_cells(name))}
    assert not left, f"{name} no longer has {left}: mend SHORTER"
    names, others, threads = {"__name__": "__main__"}, {}, torch.get_num_threads()
    with mpl.rc_context():
        for number, source, expected in code_cells(name):
            with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
                run_cell(shorten(name, source), f"{name}, cell {number}", names)
            if expected is not None and printed.getvalue() != expected:
                others[number] = (printed.getvalue(), expected)
    torch.set_num_threads(threads)
    plots.plt.close("all")
    return names, others


def test_07_is_about_processes_on_the_cpu():
    """So it is left out below."""
    assert all("pick_device" not in source for _, source, _ in code_cells("07_scaling_out"))


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("0[0-6]*.ipynb")))
def test_a_notebook_runs_on_mps(mps, name, monkeypatch):
    names, others = run_notebook(name, monkeypatch)
    assert others == {}, "printed other than on the CPU"
    assert mps.draws == (["rand", "rand", "rand"] if name.startswith("06") else [])  # 06: numbers only to be timed
    assert mps.sent
    assert bool(mps.waits) == name.startswith("06"), "it reads the clock without waiting for the device"
    names.clear()
    gc.collect()
    assert mps.allocated() < 100_000, "something outside the notebook holds its tensors"


def test_a_notebook_runs_on_cuda(monkeypatch):
    """One suffices: "mps" is the stricter, and no cell asks which of the two it is."""
    sources = [source for path in NOTEBOOKS.glob("*.ipynb") for _, source, _ in code_cells(path.stem)]
    assert not any(f"{kind}{quote}" in source for source in sources for kind in KINDS for quote in "\"'")
    with fake_accelerator("cuda") as fake:
        assert run_notebook("00_start_here", monkeypatch)[1] == {}
    assert fake.sent


def test_a_notebook_with_a_mistake_is_noticed(mps, monkeypatch):
    """A move to the device that is left out, in cells of a real notebook, is found when they run."""
    cells = list(code_cells("05_full_model"))
    slip = "generator=generator).to(device)"
    source = "\n".join(source for _, source, _ in cells[:4])
    assert source.count(slip) == 1
    with pytest.raises(RuntimeError, match="same device"):
        run_cell(source.replace(slip, "generator=generator)"), "slip", {})
