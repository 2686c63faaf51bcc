"""Errors are for learners: every `raise` is provoked here, and its text must say the values and the remedy.

TABLE holds, file by file, what provokes a `raise` and the words that its reader has to find. The tracebacks say which
`raise` it was: one without an entry fails test_every_raise_has_an_entry, which names its file and line.
"""

import ast
import asyncio
import functools
import importlib
import json
import os
import re
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from huggingface_hub.errors import HTTPError
from torch.distributed.device_mesh import DeviceMesh

import checks
from checks import full_model, gqa, swiglu
from checks.generate import greedy_with_cache as greedy
from checks.scaling_out import STYLES
from helpers import checkpoint, device, generate, masks, parallel, plots, text, train
from helpers.assets import stored_result
from helpers.checkpoint import load_checkpoint, model_from_weights, save_checkpoint
from helpers.fast_decode import prepare_for_decoding
from helpers.model import Llama, LlamaConfig, apply_rope, causal_visible, rope_inv_freq
from helpers.relatives import make_relative
from tests.support.answers import WRONG
from tests.support.course import ROOT
from tests.support.files import META, OURS, meta_weights
from tests.support.fuzz import LINUX
from tests.support.models import TINY, make_model
from tools import notebooks
from tools.classroom import grade, hand_out, handed_in, isolate, submissions

SOURCES = [path for place in ("helpers", "checks", "tools") for path in sorted((ROOT / place).rglob("*.py"))]
SOURCES = [path for path in SOURCES if not {"website", "server"} & set(path.parts)]  # what learners and teachers run

# ----------------------------------------------------------------------------------- every place that can raise

HAND_OVER = ("_require", "require_number", "explain_out_of_memory")  # they raise with their caller's words


def places():
    """{"folder/file.py:line": last line} of every `raise` with something to say.

    Left out: a bare `raise`, which hands on what came, and NotImplementedError, which says "not attempted".
    """
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            raises = isinstance(node, ast.Raise) and node.exc and "NotImplementedError" not in ast.unparse(node.exc)
            if raises or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in HAND_OVER):
                found[f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"] = node.end_lineno
    return found


PLACES = places()


# --------------------------------------------------------------------------------------- provoking, and reading


def kinds_of_ours():
    """The exceptions that checks and tools raise and catch themselves, so that no traceback comes out."""
    ours = ("checks.", "tools.")
    modules = [module for name, module in sys.modules.items() if name.startswith(ours)]
    kinds = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return [kind for kind in kinds if issubclass(kind, BaseException) and kind.__module__.startswith(ours)]


def reached(error, words, seen):
    """Places on the way of an exception and of its causes, as far as their text can be read in these words."""
    if error is None or error in seen:
        return
    seen.append(error)
    step = error.__traceback__ if all(str(part) in words for part in error.args) else None
    while step is not None:
        path = Path(step.tb_frame.f_code.co_filename)
        name = path.relative_to(ROOT).as_posix() if ROOT in path.parents else ""
        for place, end in PLACES.items():
            file, start = place.split(":")
            if file == name and int(start) <= step.tb_lineno <= end:
                yield place
        step = step.tb_next
    yield from reached(error.__cause__, words, seen)
    yield from reached(error.__context__, words, seen)


def provoke(call, folder):
    """The text that a reader sees after call(at), and the places that raised it. at: its folder, and a monkeypatch."""
    raised = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds_of_ours():

            def note(self, *args, make=kind.__init__, **named):
                raised.append(self)
                make(self, *args, **named)

            patch.setattr(kind, "__init__", note)
        try:
            words = str(call(SimpleNamespace(folder=folder, patch=patch)))
        except Exception as error:
            raised.append(error)
            words = " | ".join(map(str, error.args))
    seen = []
    return words, {place for error in raised for place in reached(error, words, seen)}


# ------------------------------------------------------------------------------------------- what is spoilt, and how

TOKENS = torch.tensor([[1, 2, 3]])


@functools.cache
def model():
    return make_model(OURS).eval()


def config(**change):
    return LlamaConfig(**{**asdict(TINY), "head_dim": None, **change})


def scaled(kind, **change):
    return config(rope_scaling={"type": kind, "factor": 2.0} | change)


def compile_beside_a_space():
    with mock.patch.object(torch, "__path__", ["/a course/torch"]):
        prepare_for_decoding(model(), compiled=True)


def write(tokens=TOKENS, n=1, **settings):
    return generate.generate(model(), tokens, n, **settings)


def turned(cos, *layout):
    return apply_rope(torch.ones(1, 1, 1, 8), cos, cos, *layout)


def saved(at):
    save_checkpoint(model(), at.folder / "saved")
    return at.folder / "saved"


def opened(at, edit=None, **files):
    """What load_checkpoint says to a folder whose config.json or files are changed."""
    folder = saved(at)
    content = json.loads((folder / "config.json").read_text()) | (edit or {})
    (folder / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v != "gone"}))
    for name, new in files.items():
        path = folder / name.replace("__", ".")
        path.unlink() if new is None else path.write_text(new)
    return load_checkpoint(folder)


def related(family, **settings):
    return make_relative(OURS, {"model_type": family} | settings)


def opened_meta(at, weights=None, spoil=None, **params):
    folder = at.folder / "meta"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps({k: v for k, v in (META | params).items() if v != "gone"}))
    if weights is not None:
        torch.save(weights, folder / "consolidated.00.pth")
    if spoil:
        spoil(folder / "consolidated.00.pth")
    return load_checkpoint(folder)


def inflate(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(10**6))


def raiser(error):
    def refuse(*args, **named):
        raise error

    return refuse


def fetched(at, kind):
    at.patch.setattr(checkpoint, "snapshot_download", raiser(kind("no network")))
    return checkpoint.fetch_checkpoint("a/b")


def written(at, name, content):
    path = at.folder / name
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return path


def run(tokens=50, **settings):
    own = make_model(replace(TINY, max_seq_len=8))
    return train.train(own, lambda: torch.arange(tokens), **{"steps": 1} | settings)


def full_memory(at, place, name, call):
    """What call() says when place.name finds no memory."""
    at.patch.setattr(place, name, raiser(RuntimeError("out of memory")))
    return call()


def one_rank(at, change):
    """load_parallel in this process, as the only rank of one, of weights that were changed."""
    path = saved(at) / "model.safetensors"
    weights = checkpoint.load_file(path)
    change(weights)
    checkpoint.save_file(weights, path)
    if LINUX:
        at.patch.setenv("GLOO_SOCKET_IFNAME", "lo")  # this machine only
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return parallel.load_parallel(path.parent, DeviceMesh("cpu", [0]))
    finally:
        dist.destroy_process_group()


NORM_WEIGHT = "model.norm.weight"


def loop(*inputs):
    while True:
        pass


class NoWayBack(torch.autograd.Function):
    """The identity, whose gradient cannot be computed."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("the backward pass is missing")


def norm(x, weight, eps):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def check(exercise, answer, at):
    return getattr(checks, f"check_{exercise}")(answer, seconds=0.5 if answer is loop else 30)


def asked(at, seconds=0.01, alive=True):
    """The verdict on an exercise whose kernel never answers."""

    @contextmanager
    def kernel(walls):
        with isolate._started(["-c", "import time; time.sleep(60)" if alive else "pass"], walls) as program:
            yield lambda code, expression, limit: isolate.ask(program, code, expression, limit)

    at.patch.setattr(grade, "fresh_kernel", kernel)
    return " | ".join(grade.run_exercise(None, "", seconds, None))


def limited(program):
    return isolate.run_limited(["-c", f"import time; time.sleep(1); {program}"], b"", 60, None)


def unable_to_start(at):
    at.patch.setattr(isolate.Path, "read_text", lambda *path, **named: "")
    with isolate.fresh_kernel(None):
        raise AssertionError("an empty program has answered")


def verdict(*files):
    return " | ".join(grade.judge_submission(list(files), [None], [])[0].args)


def false_claim(at):
    async def reply(sent):
        said = {"bool(fast < slow)": "False", "fast": "2", "slow": "1"}
        answers = {name: {"status": "ok", "data": {"text/plain": value}} for name, value in said.items()}
        return {"content": {"user_expressions": answers}}

    client = SimpleNamespace(kc=SimpleNamespace(execute=lambda *args, **named: "sent"), async_wait_for_reply=reply)
    timed = SimpleNamespace(metadata={"claim": "fast < slow"})
    return asyncio.run(notebooks.check_claim(client, timed, 3))


def cell(source, *tags, kind="code"):
    return {"cell_type": kind, "source": source, "metadata": {"tags": list(tags)}}


def course(at, *cells):
    """A folder of notebooks with one notebook of these cells."""
    folder = at.folder / "notebooks"
    folder.mkdir()
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "01_rmsnorm.ipynb").write_text(json.dumps(notebook))
    return folder


EXERCISE = cell("def f(x):\n    raise NotImplementedError\n\n\ncheck_silu(f)", "exercise")
SOLVED = cell("def f(x):\n    return x\n\n\ncheck_silu(f)", "exercise")
SOLUTIONS = cell("## Solutions", kind="markdown")


def handed_out(at, *cells):
    course(at, *cells)
    try:
        return hand_out.student(at.folder / "out", at.folder)
    finally:
        assert [path.name for path in at.folder.iterdir()] == ["notebooks"], "something was handed out"


def fresh(at, *parts, path=None):
    at.patch.setenv("PATH", path if path is not None else os.environ["PATH"])
    at.patch.setenv("GIT_CEILING_DIRECTORIES", str(at.folder.parent))
    return hand_out.committed(at.folder.joinpath(*parts))


def crowded(at):
    at.patch.setattr(Path, "touch", raiser(FileExistsError()))
    return hand_out.new_file(at.folder / "02_rope.ipynb")


# -------------------------------------------------------------------------------------------------- the table

NOT_OPENED = "consolidated.00.pth is damaged or holds something other than tensors, and was not opened (…"
DIVIDE = "start a number of processes that divides it"

TABLE = {  # file: [(what provokes it, words that are read then, in this order; … stands for anything)]
    "config": [
        (lambda at: config(dim=30), "dim=30 is not a multiple of n_heads=4: change one of them, or pass head_dim"),
        (lambda at: config(dim=20), "head_dim=5 is odd (dim=20, n_heads=4) … pass an even head_dim, or choose n_heads"),
        (lambda at: config(n_kv_heads=3), "n_heads=4 … n_kv_heads=3 … Choose n_kv_heads among the divisors"),
        (lambda at: config(norm_eps=-1.0), "norm_eps=-1.0 must be a finite number >= 0, for example 1e-5"),
        (lambda at: config(tie_embeddings=1), "tie_embeddings=1 must be True or False"),
        (lambda at: config(rope_theta=1.0), "rope_theta=1.0 … > 1 and <= 1e18, for example 10000.0"),
        (lambda at: config(rope_scaling="linear"), "rope_scaling='linear' must be None or a dict such as {'type':"),
        (lambda at: scaled("yarn"), "type 'yarn' is not known: use one of ['linear', 'llama3', 'ntk'], or None"),
        (lambda at: scaled("linear", **{"base": 1}), "'linear' does not take ['base'] … remove them"),
        (lambda at: scaled("linear", factor=0.5), "factor=0.5 … >= 1 and <= 1e18: new length / trained length"),
        (lambda at: config(head_dim=2, rope_scaling={"type": "ntk", "factor": 2.0}), "head_dim >= 4, got 2: use"),
        (lambda at: scaled("ntk", factor=1e17), "factor=1e+17 … rope_theta=500000.0 beyond 1e18: lower it"),
        (lambda at: scaled("llama3", low_freq_factor=0), "low_freq_factor=0 must be a finite number > 0: Meta uses 1"),
        (lambda at: scaled("llama3", low_freq_factor=4.0), "got 4.0 and 4.0: Meta uses 1 and 4"),
        (lambda at: rope_inv_freq(3), "head_dim=3 must be even and >= 2: RoPE turns pairs"),
    ],
    "validate": [
        (lambda at: config(n_layers=0), "n_layers=0 must be a whole number >= 1"),
        (lambda at: config(n_layers=2**63), "n_layers=9223372036854775808 must be below 2**63"),
        (lambda at: write(seed=0.5), "seed=0.5 must be a whole number below 2**63, or None"),
        (lambda at: model()([[1]]), "tokens are a list: pass a tensor, torch.tensor([[1, 2]])"),
        (lambda at: model()(TOKENS[0]), "tokens have shape (3,): pass (batch, tokens)"),
        (lambda at: model()(TOKENS.float()), "tokens are torch.float32: pass integer token ids, tokens.long()"),
        (lambda at: model()(TOKENS.to("meta")), "tokens are on meta, the model on cpu: pass tokens.to('cpu')"),
        (lambda at: model()(TOKENS + 62), "from 63 to 65, but vocab_size=64 allows 0 to 63: use the tokenizer"),
        (lambda at: model()(TOKENS, n_pad=["1"]), "n_pad=['1'] … pass one whole number per row"),
        (lambda at: model()(TOKENS, n_pad=[1, 1]), "n_pad has shape (2,) … tokens (1, 3): pass one whole number per"),
        (lambda at: model()(TOKENS, n_pad=[3]), "n_pad runs from 3 to 3 … allow 0 to 2: leave every row a token"),
    ],
    "cache": [
        (lambda at: model().new_cache(2, 10**13), "2 rows and 10,000,000,000,000 tokens needs … ask for fewer rows or"),
        (lambda at: model()(TOKENS, Llama(replace(OURS, n_kv_heads=4)).new_cache(1)), "the cache (2, 4, 8): … use"),
        (lambda at: model()(TOKENS, model().new_cache(2)), "batch size 1, the cache 2: make a cache to fit"),
        (lambda at: Llama(OURS).double()(TOKENS, model().new_cache(1)), "torch.float64 … float32 … make the cache"),
        (lambda at: model()(TOKENS, model().new_cache(1, 2)), "3 tokens … 0 of at most 2. Shorten the prompt, or"),
    ],
    "model": [
        (lambda at: turned(torch.ones(1, 8)), "head_dim 8, but cos has 8 angles: pass head_dim / 2 angles"),
        (lambda at: turned(torch.ones(1, 4), "pairs"), "layout 'pairs' is not known: use 'halves' … or 'interleaved'"),
        (lambda at: causal_visible(3, 2), "n_query=3 exceeds n_key=2: the queries are the last"),
        (lambda at: (cache := model().new_cache(1)) and [model()(TOKENS, cache, n_pad=pad) for pad in ([0], [1])],
         "n_pad came after 3 cached tokens: pass it with the first tokens only"),
    ],
    "masks": [
        (lambda at: masks.sliding_window(TOKENS[0], TOKENS[0], 0), "window=0 must be at least 1"),
        (lambda at: masks.left_padding(TOKENS[0], TOKENS[0], -1), "n_pad=-1 must be at least 0"),
        (lambda at: masks.same_document(TOKENS[0], TOKENS[0], torch.zeros(3)), "3 positions, but position 3 is asked"),
        (lambda at: masks.prefix(TOKENS[0], TOKENS[0], -1), "length=-1 must be at least 0"),
    ],
    "generate": [
        (lambda at: write(temperature=-1), "temperature=-1 must be a finite number >= 0: 0 is greedy, 1 leaves"),
        (lambda at: write(top_k=0), "top_k=0 must be a whole number >= 1, or None"),
        (lambda at: write(top_p=0.0), "top_p=0.0 must be a finite number in (0, 1]: 1 keeps every token"),
        (lambda at: write(stop=64), "stop=64 must be a token id from 0 to 63, several of them, or None"),
        (lambda at: write(n=-1), "max_new_tokens=-1 must be a whole number >= 0"),
        (lambda at: write(TOKENS[0]), "shape (3,): pass (batch, tokens), neither empty, for one prompt tokens[None]"),
        (lambda at: write([1, 2]), "tokens are a list, '[1, 2]': pass … encode text first, and write [ids] for one"),
        (lambda at: write([[1], []]), "prompts of [1, 0] tokens: pass at least one, of at least one token each"),
        (lambda at: write([["the"]]), "a prompt holds 'the', no token id: encode text with"),
        (lambda at: prepare_for_decoding(model(), "int4"), "'int4' … use None, 'bfloat16' or 'int8'"),
        (lambda at: prepare_for_decoding(prepare_for_decoding(model())), "is prepared already: pass the one that it"),
        (lambda at: compile_beside_a_space(), "'/a course/torch': … cannot link where a path has a space. Move it, or"),
    ],
    "train": [
        (lambda at: run(seed=None), "seed=None must be a whole number"),
        (lambda at: run(peak=1e30), "peak=1e+30 must be a finite number > 0 and <= 1000, for example 3e-3"),
        (lambda at: run(weight_decay=-1.0), "weight_decay=-1.0 must be a finite number >= 0 and <= 1000, for example"),
        (lambda at: run(keep=written(at, "kept", "no run")), "kept is damaged or no kept run (BadZipFile): move it"),
        (lambda at: [run(keep=at.folder / "kept", every=1, steps=steps) for steps in (1, 2)],
         "kept holds another run: … 1 … This one is: … 2 … Give it another name"),
    ],
    "device": [
        (lambda at: full_memory(at, Llama, "forward", run),
         "batch_size=8 windows of max_seq_len=8 tokens … pass a smaller batch_size, or make a model of a smaller"),
        (lambda at: full_memory(at, Llama, "forward", write), "1 prompts of 3 tokens … pass fewer, or shorter ones"),
        (lambda at: full_memory(
            at, torch.Tensor, "to", lambda: model_from_weights(OURS, dict(model().state_dict()), torch.float16)
         ), "27,296 weights as torch.float16 do not fit on cpu: pass dtype=torch.bfloat16, or open a smaller model"),
        (lambda at: at.patch.setenv("COURSE_DEVICE", "gpu") or device.pick_device(),
         "COURSE_DEVICE='gpu' is not known: use one of ['cpu' … or unset the variable"),
        (lambda at: at.patch.setenv("COURSE_DEVICE", "mps")
         or at.patch.setattr(torch.backends.mps, "is_available", lambda: False) or device.pick_device(),
         "COURSE_DEVICE='mps' is not present on this machine: use one of ['cpu' … or unset the variable"),
    ],
    "names that have moved": [
        (lambda at: generate.prepare_for_decoding, "has moved. … from helpers.fast_decode import prepare_for_decoding"),
        (lambda at: importlib.import_module("helpers.grade"), "has moved. … python -m tools.classroom.grade"),
        (lambda at: generate.nonsense, "module 'helpers.generate' has no attribute 'nonsense'"),
        (lambda at: stored_result("loss"), "no result 'loss' is stored: ask for one of ["),
    ],
    "plots": [(lambda at: plots.show(None, "too " * 40), "alt has 40 words: describe the figure in 1 to 39 words")],
    "text": [
        (lambda at: text.load_text(at.folder / "no.txt"), "no.txt is not there: pass a text file, or a folder"),
        (lambda at: text.load_text(written(at, "a.txt", b"\xff")), "a.txt is not UTF-8 … save it as UTF-8, or leave"),
        (lambda at: text.load_text(written(at, "a.txt", "a\0")), "a.txt holds zero bytes … leave it out"),
        (lambda at: text.load_text(written(at, "a.txt", "short")), "5 characters in 1 file(s) … at least 20,000"),
        (lambda at: text.held_out_split("a b", 1.5), "fraction=1.5 … between 0 and 1, both excluded, for example 0.1"),
        (lambda at: text.held_out_split("abc"), "3 characters has no paragraph break to cut at: pass a longer text"),
        (lambda at: text.train_tokenizer("text", 100), "vocab_size=100 must be a whole number from 257"),
        (lambda at: text.load_tokenizer(at.folder), "tokenizer.json is missing: pass a folder that holds"),
        (lambda at: text.load_tokenizer(written(at, "tokenizer.json", "{").parent), "no tokenizer (…): fetch the file"),
        (lambda at: next(text.batches(torch.arange(9), 0, 2, None)), "batch_size=0 and seq_len=2 must be whole"),
        (lambda at: run(tokens=3), "3 tokens are fewer than seq_len + 1 = 9: pass a longer text"),
        (lambda at: text.bits_per_byte(model(), text.load_tokenizer(), ""), "=64 and a text of 0 tokens … a longer"),
    ],
    "swiglu": [
        (lambda at: swiglu.matrix_roles(dict.fromkeys("abc", torch.ones(2, 2)), torch.ones(1, 2), torch.ones(1, 2)),
         "no order of a, b, c makes y from x: pass the y that they made"),
    ],
    "checkpoint": [
        (lambda at: load_checkpoint(at.folder / "no"), "no is not a folder: pass one that holds config.json or params"),
        (lambda at: load_checkpoint(written(at, "a.txt", "").parent), "but ['a.txt']: pass the folder that holds one"),
        (lambda at: model_from_weights(OURS, {}, dtype="bfloat16"), "'bfloat16' is none of (torch.float32 … pass"),
        (lambda at: save_checkpoint(prepare_for_decoding(model()), at.folder / "new"), "no lm_head.weight … pass the"),
        (lambda at: model_from_weights(replace(OURS, tie_embeddings=True), model().state_dict()),
         "these weights: the config ties embeddings, lm_head differs from tok_embeddings: untie them"),
        (lambda at: model_from_weights(replace(OURS, hidden_dim=44), model().state_dict() | {"more": torch.ones(1)}),
         "7 weights do not fit … fetch config and weights of one model. … left over: more … is (32, 88) … (32, 44)"),
        (lambda at: model_from_weights(OURS, model().state_dict() | {str(n): torch.ones(1) for n in range(25)}),
         "25 weights do not fit … left over: 0 … left over: 1 … and 5 more"),
        (lambda at: checkpoint.fetch_checkpoint("smollm"), "'smollm' is not a name on the Hub: write owner/model"),
        (lambda at: fetched(at, FileNotFoundError), "a/b could not be fetched (FileNotFoundError): check name"),
        (lambda at: fetched(at, HTTPError), "a/b could not be fetched (HTTPError): check name, network and"),
        (lambda at: opened(at, {"num_hidden_layers": 10**6}), "n_layers=1000000 … the 21 weights found: … fetch it"),
        (lambda at: save_checkpoint(model(), at.folder), "exists and is kept: choose another name, or move it away"),
        (lambda at: opened(at, config__json=" " * 10_000_001), "has more than 10,000,000 bytes … fetch it again"),
        (lambda at: opened(at, config__json="{"), "config.json is not valid JSON (…): fetch the file again"),
        (lambda at: opened(at, config__json="[]"), "config.json holds a list, not an object: fetch the file again"),
        (lambda at: opened(at, {"model_type": "gpt2"}), "describes a 'gpt2' model, not 'llama' … such as SmolLM2-135M"),
        (lambda at: opened(at, {"hidden_act": "gelu"}), "hidden_act='gelu' … (only silu): use another checkpoint"),
        (lambda at: opened(at, {"hidden_size": "gone"}), "config.json has no 'hidden_size' … Fetch it again"),
        (lambda at: opened(at, {"hidden_size": 0}), "config.json: dim=0 must be a whole number >= 1"),
        (lambda at: opened(at, {"rope_scaling": 3}), "rope_scaling=3: an object or null is needed. Fetch it again"),
        (lambda at: opened(at, {"rope_parameters": {"type": "yarn"}}), "'yarn': this course reads 'default', 'linear'"),
        (lambda at: opened(at, model__safetensors__index__json="{}"), "index.json has no weight_map … fetch it again"),
        (lambda at: opened(at, model__safetensors__index__json='{"weight_map": {"a": "b"}}'), "'b': only .safetensors"),
        (lambda at: opened(at, model__safetensors=None), "model.safetensors is missing … fetch or convert the weights"),
        (lambda at: opened(at, model__safetensors="cut"), "model.safetensors is damaged or cut short (…): fetch the"),
        (lambda at: opened_meta(at), "meta has params.json, but no consolidated.*.pth: fetch the weights as well"),
        (lambda at: opened_meta(at, {"a": model}), NOT_OPENED + "UnpicklingError): fetch the file again from its"),
        (lambda at: opened_meta(at, meta_weights(OURS), dim="gone"), "'dim' is missing … Fetch all files again"),
        (lambda at: opened_meta(at, meta_weights(OURS), n_heads=0), "make no LLaMA (…): fetch all again"),
        (lambda at: opened_meta(at, meta_weights(OURS), inflate), NOT_OPENED + "bytes, but unpacks to 1,000,000)"),
        (lambda at: opened_meta(at, meta_weights(OURS) | {"norm.weight": 3}), NOT_OPENED + "norm.weight is no"),
        (lambda at: opened_meta(at, {"a": torch.ones(1).expand(10**6)}), NOT_OPENED + "tensors claim 4,000,000 bytes"),
    ],
    "relatives": [
        (lambda at: related("gpt2"), "model_type='gpt2' is not known: use one of mistral, qwen2"),
        (lambda at: related("qwen3", attention_bias=True), "attention_bias=True is no part of 'qwen3' here, only F"),
        (lambda at: related("olmo2", rope_scaling={"a": 1}, rope_parameters={"a": 1}), "are both set: remove one of"),
        (lambda at: related("gemma2", layer_types=["full"]), "layer_types=['full']: 2 of 'sliding_attention' or"),
        (lambda at: related("smollm3", no_rope_layers=[1]), "no_rope_layers=[1]: 2 of 0 (stands still) or 1 (turns)"),
        (lambda at: related("phi3", partial_rotary_factor=2), "partial_rotary_factor=2 must be a finite number > 0 a"),
        (lambda at: related("phi3", rope_scaling={"type": "su"}), "RoPE type 'su' is not known here, only 'default'"),
        (lambda at: related("gemma2", hidden_activation="gelu"), "'gelu': only 'gelu_pytorch_tanh' is known here. Use"),
        (lambda at: related("granite", logits_scaling=0), "logits_scaling=0 must be a finite number > 0"),
        (lambda at: related("gemma2", attn_logit_softcapping=-1), "attn_logit_softcapping=-1 … > 0, or null"),
        (lambda at: related("mixtral", num_experts=1), "num_experts_per_tok=2 exceeds num_experts=1: use another"),
        (lambda at: related("gpt_oss", num_experts=4, swiglu_limit=0), "swiglu_limit=0 must be a finite number > 0"),
        (lambda at: prepare_for_decoding(related("qwen2")), "prepare_for_decoding knows plain LLaMA only, and this "
         "'qwen2' model has more (biases), which would be lost: generate with the model itself"),
        (lambda at: save_checkpoint(related("qwen3"), at.folder / "new"), "(NormPerHead), which … keep it with torch"),
        (lambda at: parallel.split_model(related("mistral"), None), "(speeds and windows), which would be lost: run"),
        (lambda at: opened(at, {"model_type": "mistral", "hidden_act": "gelu"}), "config.json: hidden_act='gelu' is"),
        (lambda at: opened(at, {"model_type": "mistral", "sliding_window": 0}), "sliding_window=0 must be a whole num"),
        (lambda at: at.patch.setattr(checkpoint, "our_weights", raiser(RuntimeError("split")))
         or opened(at, {"model_type": "mistral"}), "weights and config.json do not fit (split): fetch them again"),
    ],
    "parallel": [
        (lambda at: parallel.require_divisible(TINY, 3), "n_heads=4 cannot be dealt out to 3 processes: " + DIVIDE),
        (lambda at: one_rank(at, lambda w: w.pop(NORM_WEIGHT)), NORM_WEIGHT + " is missing: fetch the checkpoint"),
        (lambda at: one_rank(at, lambda w: w.update({NORM_WEIGHT: torch.ones(3)})), "[3], config.json asks for [32]"),
        (lambda at: one_rank(at, lambda w: w[NORM_WEIGHT].fill_(torch.nan)), "holds NaN or infinity: fetch the check"),
    ],
    "tools/notebooks": [(false_claim, "cell 3 claims fast < slow … fast = 2, slow = 1 … or change the text")],
    "tools/classroom/grade": [
        (lambda at: verdict(at.folder), "broken notebook … It is a link, a folder or a device … hand it in again"),
        (lambda at: at.patch.setattr(grade, "LARGEST_FILE", 0) or verdict(written(at, "a", "x")), "1 bytes, more than"),
        (lambda at: verdict(written(at, "a", "{}")), "broken notebook … KeyError: 'cells' … Open it in JupyterLab"),
        (lambda at: verdict(), "missing notebook … Hand it in under the name that it has in the course"),
        (lambda at: asked(at, seconds=30, alive=False), "crashed … ended the kernel. … need more memory than there"),
        (lambda at: asked(at), "timed out … No answer after 0.01 seconds. … Is there a loop that never ends?"),
    ],
    "tools/classroom/isolate": [
        (lambda at: unable_to_start(at), "Python does not start, or cannot import torch. The program ended"),
        (lambda at: at.patch.setattr(sys, "prefix", "/") or isolate._interpreter(), "the folder of Python … elsewhere"),
        (lambda at: at.patch.setattr(isolate, "PROCESSES", 0) or limited("input()"), "more than 0 processes"),
        (lambda at: limited("print('x' * 2 * 10**7)"), "It wrote more than 10 MB"),
        (lambda at: limited("1 / 0"), "The program failed"),
    ],
    "tools/classroom/hand_out": [
        (lambda at: handed_out(at, EXERCISE), 'no heading "## Solutions": put it before the first solution'),
        (lambda at: hand_out.student(written(at, "a", "").parent), "is there already … give another name"),
        (lambda at: handed_out(at, SOLVED, SOLUTIONS), "is solved here. … make reset NOTEBOOK=notebooks/01_rm"),
        (lambda at: fresh(at, "02_rope.ipynb", path=""), "git is not installed: no fresh copy of 02_rope.ipynb … Copy"),
        (lambda at: fresh(at, "no", "02_rope.ipynb"), "there is no folder … no fresh copy of 02_rope.ipynb … Copy it"),
        (lambda at: fresh(at, "02_rope.ipynb"), "git has no fresh copy of … 02_rope.ipynb: fatal: … Copy it from"),
        (lambda at: hand_out.reset(at.folder / "notes.txt"), "notes.txt is no notebook: a name that ends in .ipynb"),
        (crowded, "02_rope_kept_ … _999.ipynb and 998 more of that second are taken: wait a second"),
    ],
    "tools/classroom/handed_in": [
        (
            lambda at: handed_in.find_submissions(at.folder, ["01_rmsnorm"], at.folder),
            "nor files like anna__01_rmsnorm.ipynb:",
        ),
    ],
    "tools/classroom/submissions": [
        (lambda at: submissions.read_course(course(at, EXERCISE, SOLUTIONS), ["09"]), "09 … found: 01_rmsnorm"),
        (lambda at: submissions.read_course(course(at)), "no notebook with exercises; found: none. Give a name"),
        (lambda at: submissions.read_course(course(at, cell("check_silu(f)", "exercise"))), "must define the function"),
    ],
}  # fmt: skip

# (an exercise, a wrong answer to it, words of what its check says then); most are in tests/support/answers: see below
CHECKED = [
    ("rms_norm", lambda x, weight, eps: x + "1", "it raises TypeError: … in the line"),
    ("rms_norm", loop, "no answer after 0.5 seconds. … Is there a loop that never ends, or far too long?"),
    ("rms_norm", lambda *given: norm(*given).detach(), "no gradient reaches x and weight. … Is the graph cut"),
    ("rms_norm", lambda x, weight, eps: norm(x, weight.detach(), eps), "no gradient reaches weight. … Is the graph"),
    ("rms_norm", lambda *given: NoWayBack.apply(norm(*given)), "RuntimeError: the backward pass is missing, in the"),
    ("rms_norm", lambda *given: print(end=""), 'the type NoneType, expected a tensor. … without "return" gives None'),
    ("rms_norm", lambda *given: norm(*given).to("meta"), "the device meta. … Return a plain tensor on the input's"),
    ("rms_norm", lambda *given: norm(*given)[0], "the shape (4,), expected (1, 4). … yours … expected"),
    ("rms_norm", lambda *given: norm(*given).double(), "torch.float64, expected torch.float32. … that x came in with"),
    ("rms_norm", lambda x, weight, eps: norm(x, weight, 4 * eps), "is off by up to … should be …). … yours … expected"),
    ("rms_norm_backward", lambda grad_y, x, weight, eps: x, "is one tensor, expected 2 tensors. … Return all of them"),
    ("hidden_dim", lambda dim, multiple, factor: int(8 * dim // 3 * (factor or 1)) // multiple * multiple,
     "multiple_of 5 … the result is 15, expected 20. … rounded down"),
    ("matrix_roles", lambda weights, x, y: {"gate": "a", "up": "a", "down": "b"}, "are a, a, b, expected a, b, c. …"),
    ("matrix_roles", lambda weights, x, y: {"gate": "a", "up": "b", "down": "c"},
     "c is not down. Here gate and up are (3, 2), down is (2, 3). … D is the width of x"),
    ("cache_write", lambda *given: (gqa.cache_write(*given), given[0].fill_(torch.nan))[0],
     "the cache was overwritten. … Write only the T slots of the new keys"),
    ("find_slips", lambda: full_model.LETTERS | {"A": "the mask"}, "'the mask' is not in the list. … Choose from"),
    ("find_slips", lambda: full_model.LETTERS | {"B": "wrong eps"}, "2 of 3 are right. … Model B: set every norm's"),
    ("greedy_with_cache", lambda m, t, n: m(t.repeat(1, 9), m.new_cache(len(t), 9)), "more than 2 tokens of prompts"),
    ("greedy_with_cache", lambda m, t, n: m(t.repeat(1, 9), m.new_cache(len(t), 99)), "3 new ones. … feed only the"),
    ("greedy_with_cache", lambda m, t, n: [m(t, m.new_cache(len(t))) for _ in "ab"], "2 caches were made, expected 1"),
    ("greedy_with_cache", lambda m, t, n: m(t[:, :1], m.new_cache(len(t))), "the first call read 1 of the 2 tokens"),
    ("greedy_with_cache", lambda m, t, n: greedy(m, t, n) if t.shape[1] > 1 else greedy(m, t, n).T,
     "the result has the shape (11, 1). … join along dim=1"),
    ("bytes_sent_per_token", lambda *sizes: 1.0, "the type float, expected a whole number (int). … divide last"),
    ("block_plan", lambda: STYLES | {"q_proj": "Colwise"}, "'Colwise' is not known. … Choose \"column\" or \"row\""),
    ("block_plan", lambda: dict.fromkeys(STYLES, "column"), "5 of 7 are right. … o_proj: think what a rank has"),
]  # fmt: skip
TABLE["checks"] = [(functools.partial(check, name, answer), words) for name, answer, words in CHECKED]
ENTRIES = {f"{file} {number}": entry for file, entries in TABLE.items() for number, entry in enumerate(entries, 1)}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """A function: what an entry of the table gave, (words, places); each is tried once."""
    folder = tmp_path_factory.mktemp("errors")

    @functools.cache
    def said(name):
        own = folder / re.sub(r"\W", "_", name)
        own.mkdir()
        return provoke(ENTRIES[name][0], own)

    return said


@pytest.mark.parametrize("name", ENTRIES)
def test_an_error_says_what_was_wrong_and_what_to_do(said, name):
    words, raised_at = said(name)
    expected = ".*".join(re.escape(part.strip()) for part in ENTRIES[name][1].split("…"))
    assert re.search(expected, words, re.DOTALL), words
    assert raised_at, f"no `raise` of ours said this: {words}"


def test_every_raise_has_an_entry(said, tmp_path):
    """In TABLE, or among the wrong answers, of which tests/checks/test_answers.py reads what is said."""
    seen = {place for name in ENTRIES for place in said(name)[1]}
    answers = [(exercise, answer) for exercise, wrong in WRONG.items() for answer, _ in wrong.values()]
    seen |= {place for given in answers for place in provoke(functools.partial(check, *given), tmp_path)[1]}
    missing = "\n".join(sorted(PLACES.keys() - seen))
    assert not missing, f"nothing provokes these: add an entry to TABLE in tests/helpers/test_errors.py\n{missing}"


def test_only_a_text_that_is_read_counts(tmp_path):
    def half_read(at):
        with pytest.raises(ValueError):
            config(dim=30)
        return "something went wrong"

    assert provoke(half_read, tmp_path) == ("something went wrong", set())
    assert len(provoke(lambda at: verdict(), tmp_path)[1]) == 1


def test_sections_that_errors_name_are_there():
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    named = set(re.findall(r"notebook (\d\d), section ([\d.]*\d)", sources))
    assert named
    for number, section in sorted(named):
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        text = "".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
        assert f"## {section} " in text, f"{path.name} has no section {section}"
