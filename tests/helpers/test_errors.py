"""Errors are for learners: every `raise` of helpers is provoked here, and the whole text that is then read is compared.

TABLE holds, file by file, what provokes a `raise` and what the reader sees. The tracebacks say which `raise` it was: a
new one without an entry fails the last test of the first part, which names its file and line.
"""

import ast
import copy
import functools
import json
import os
import re
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import checks
from checks import swiglu
from checks.base import Wrong
from helpers import checkpoint, device, generate, masks, parallel, plots, text, train
from helpers.cache import KVCache
from helpers.checkpoint import load_checkpoint, model_from_weights, save_checkpoint
from helpers.model import Llama, LlamaConfig, apply_rope, causal_visible, rope_inv_freq
from tests.support.files import META, OURS, join_safetensors, meta_weights, split_safetensors
from tests.support.fuzz import LINUX
from tests.support.models import TINY, make_model
from tests.support.wrong_answers import WRONG
from tools.classroom import grade, hand_out, submissions

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "helpers"

# ----------------------------------------------------------------------------------- every place that can raise

HAND_OVER = (
    "_require",
    "require_number",
    "explain_out_of_memory",
)  # functions that raise with words of their caller: each call is a place


def places(folder=HELPERS):
    """{"file.py:line": (last line, first words)} of every `raise` with something to say.

    Left out: a bare `raise`, which hands on what came, and NotImplementedError, which says "not attempted".
    """
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            raises = isinstance(node, ast.Raise) and node.exc and "NotImplementedError" not in ast.unparse(node.exc)
            hands_over = isinstance(node, ast.Call) and getattr(node.func, "id", "") in HAND_OVER
            if raises or hands_over:
                words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                words = " ".join(word.strip() for word in words if isinstance(word, str))
                found[f"{path.relative_to(folder).as_posix()}:{node.lineno}"] = (node.end_lineno, words[:80])
    return found


PLACES = places()


# --------------------------------------------------------------------------------------- provoking, and reading

INSIDE = (checks.Problem, Wrong, grade.Refused, grade.TimeUp, grade.Died)  # raised and caught in helpers


def chain(error):
    """An exception and those it came from."""
    todo, seen = [error], []
    while todo:
        one = todo.pop()
        if one is not None and one not in seen:
            seen.append(one)
            todo += [one.__cause__, one.__context__]
    return seen


def reached(error, words):
    """Places on the way of an exception and of its causes, as far as their text can be read in these words."""
    for one in chain(error):
        step = one.__traceback__ if all(str(part) in words for part in one.args) else None
        while step is not None:
            path = Path(step.tb_frame.f_code.co_filename)
            if HELPERS in path.parents:
                name = path.relative_to(HELPERS).as_posix()
                for place, (end, _) in PLACES.items():
                    file, start = place.split(":")
                    if file == name and int(start) <= step.tb_lineno <= end:
                        yield place
            step = step.tb_next


def provoke(call, folder):
    """The text that a reader sees after call(at), and the places that raised it. at: its folder, and a monkeypatch."""
    raised = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in INSIDE:

            def note(self, *args, make=kind.__init__, **named):
                raised.append(self)
                make(self, *args, **named)

            patch.setattr(kind, "__init__", note)
        try:
            seen = call(SimpleNamespace(folder=folder, patch=patch))
            words = seen if isinstance(seen, str) else repr(seen)
        except Exception as error:
            raised.append(error)
            words = " | ".join(map(str, error.args)) if isinstance(error, grade.Refused) else str(error)
    return words, {place for error in raised for place in reached(error, words)}


# ------------------------------------------------------------------------------------------- what is spoilt, and how

TOKENS = torch.tensor([[1, 2, 3]])


@functools.cache
def model():
    return make_model(OURS).eval()


def config(**change):
    return LlamaConfig(**{**asdict(TINY), "head_dim": None, **change})


def scaled(**change):
    return config(rope_scaling=change)


def llama3(**change):
    return scaled(type="llama3", factor=2.0, **change)


def opened(at, edit=None, header=None, **files):
    """What load_checkpoint says to a folder whose config.json, header of weights or files are changed."""
    folder = at.folder / "saved"
    save_checkpoint(model(), folder)
    content = json.loads((folder / "config.json").read_text())
    content |= edit or {}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v != "gone"}))
    if header:
        entries, rest = split_safetensors((folder / "model.safetensors").read_bytes())
        header(entries)
        (folder / "model.safetensors").write_bytes(join_safetensors(entries, rest))
    for name, new in files.items():
        path = folder / name.replace("__", ".")
        path.unlink(missing_ok=True) if new is None else path.write_text(new)
    return load_checkpoint(folder)


def opened_meta(at, weights=None, spoil=None, **params):
    folder = at.folder / "meta"
    folder.mkdir()
    kept = {name: value for name, value in (META | params).items() if value != "gone"}
    (folder / "params.json").write_text(json.dumps(kept))
    if weights is not None:
        torch.save(weights, folder / "consolidated.00.pth")
    if spoil:
        spoil(folder / "consolidated.00.pth")
    return load_checkpoint(folder)


def inflate(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(10**6))


def fetch(at, name, error=None):
    if error:

        def refuse(*args, **named):
            raise error

        at.patch.setattr(checkpoint, "snapshot_download", refuse)
    return checkpoint.fetch_checkpoint(name)


def written(at, name, content):
    path = at.folder / name
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return path


def run(**settings):
    return train.train(make_model(replace(TINY, max_seq_len=8)), lambda: torch.arange(50), **{"steps": 1} | settings)


def another_run(at):
    run(keep=at.folder / "kept", every=1)
    return run(keep=at.folder / "kept", every=1, steps=2)


def full_memory(at, place, name, call):
    """What call() says when place.name finds no memory."""

    def refuse(*args, **named):
        raise RuntimeError("out of memory")

    at.patch.setattr(place, name, refuse)
    return call()


def read_by_one_rank(at, weights):
    """load_parallel in this process, as the only rank of one."""
    save_checkpoint(model(), at.folder / "saved")
    path = at.folder / "saved" / "model.safetensors"
    checkpoint.save_file({**checkpoint.load_file(path), **weights}, path)
    return one_rank(at, at.folder / "saved")


def one_rank(at, folder):
    if LINUX:
        at.patch.setenv("GLOO_SOCKET_IFNAME", "lo")  # this machine only
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return parallel.load_parallel(folder, DeviceMesh("cpu", [0]))
    finally:
        dist.destroy_process_group()


def without_norm(at):
    save_checkpoint(model(), at.folder / "saved")
    path = at.folder / "saved" / "model.safetensors"
    weights = checkpoint.load_file(path)
    del weights["model.norm.weight"]
    checkpoint.save_file(weights, path)
    return one_rank(at, at.folder / "saved")


def check(exercise, answer):
    """What a learner reads under a check; answer: a function, or the name of a wrong one."""
    function = WRONG[exercise][answer][0] if isinstance(answer, str) else answer
    return getattr(checks, f"check_{exercise}")(function)


class NoWayBack(torch.autograd.Function):
    """The identity, whose gradient cannot be computed."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("the backward pass is missing")


def rms_norm(x, weight, eps):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def overwrite(cache, length, new):
    result = torch.cat([cache[:, :, :length], new], dim=2)
    cache.fill_(torch.nan)
    return result


def tied_without_training(embedding, head):
    embedding.weight.requires_grad_(False)
    head.weight = embedding.weight


def asked(seconds=0.01, alive=True, prepare=False):
    """The verdict on an exercise whose kernel never answers."""

    def no_message(timeout):
        raise Empty

    client = SimpleNamespace(execute=lambda *args, **named: "sent", get_shell_msg=no_message)
    manager = SimpleNamespace(is_alive=lambda: alive)
    if prepare:
        return grade._prepare(manager, client)

    @contextmanager
    def kernel(submissions):
        yield lambda code, expression, limit: grade._ask(manager, client, code, expression, limit)

    return kernel, seconds


def graded(at, **kernel):
    answers, seconds = asked(**kernel)
    at.patch.setattr(grade, "fresh_kernel", answers)
    return " | ".join(grade.run_exercise(None, "", seconds, None))


def verdict(files):
    return " | ".join(grade.judge_submission(files, [None], [])[0].args)


def notebook(*cells):
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def cell(source, *tags, kind="code"):
    return {"cell_type": kind, "source": source, "metadata": {"tags": list(tags)}}


def course(at, *cells, name="01_rmsnorm"):
    """A folder of notebooks with one notebook of these cells."""
    folder = at.folder / "notebooks"
    folder.mkdir()
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook(*cells)))
    return folder


EXERCISE = cell("def f(x):\n    raise NotImplementedError\n\n\ncheck_silu(f)", "exercise")
SOLUTIONS = cell("## Solutions", kind="markdown")


def handed_out(at, *cells):
    course(at, *cells)
    return hand_out.student(at.folder / "out", at.folder)


def fresh(at, *parts, path=None):
    at.patch.setenv("PATH", path if path is not None else os.environ["PATH"])
    at.patch.setenv("GIT_CEILING_DIRECTORIES", str(at.folder.parent))
    return hand_out.committed(at.folder.joinpath(*parts))


def crowded(at):
    at.patch.setattr(Path, "touch", lambda *args, **named: (_ for _ in ()).throw(FileExistsError()))
    return hand_out._new_file(at.folder / "02_rope.ipynb")


# -------------------------------------------------------------------------------------------------- the table

FETCH = ": fetch the file again."
NOT_OPENED = (
    "…consolidated.00.pth is damaged or holds something other than tensors, and was not opened (…): fetch the file "
    "again from its source."
)
RMS = "rms_norm: not yet. Case "

TABLE = {  # file: [(what provokes it, what is read then; … stands for anything)]
    "config.py": [
        (lambda at: config(dim=30), "dim=30 is not a multiple of n_heads=4: change one of them, or pass head_dim."),
        (
            lambda at: config(dim=20),
            "head_dim=5 is odd (dim=20, n_heads=4), but RoPE turns pairs: pass an even head_dim, or choose n_heads so "
            "that dim / n_heads is even (notebook 02, section 2.2).",
        ),
        (
            lambda at: config(n_kv_heads=3),
            "n_heads=4 is not a multiple of n_kv_heads=3: each key/value head serves the same number of query heads. "
            "Choose n_kv_heads among the divisors of n_heads (notebook 04, section 4.3).",
        ),
        (lambda at: config(norm_eps=-1.0), "norm_eps=-1.0 must be a finite number >= 0, for example 1e-5."),
        (lambda at: config(tie_embeddings=1), "tie_embeddings=1 must be True or False."),
        (
            lambda at: config(rope_theta=1.0),
            "rope_theta=1.0 must be a finite number > 1 and <= 1e18, for example 10000.0.",
        ),
        (
            lambda at: config(rope_scaling="linear"),
            "rope_scaling='linear' must be None or a dict such as {'type': 'linear', 'factor': 2.0}.",
        ),
        (
            lambda at: scaled(type="yarn"),
            "rope_scaling type 'yarn' is not known: use one of ['linear', 'llama3', 'ntk'], or None (notebook 02, "
            "section 2.7).",
        ),
        (
            lambda at: scaled(type="linear", factor=2.0, base=1),
            "rope_scaling of type 'linear' does not take ['base'], only ['factor', 'type']: remove them.",
        ),
        (
            lambda at: scaled(type="linear", factor=0.5),
            "rope_scaling factor=0.5 must be a finite number >= 1 and <= 1e18: new length / trained length.",
        ),
        (
            lambda at: config(head_dim=2, rope_scaling={"type": "ntk", "factor": 2.0}),
            "rope_scaling type 'ntk' needs head_dim >= 4, got 2: use 'linear'.",
        ),
        (
            lambda at: scaled(type="ntk", factor=1e17),
            "rope_scaling factor=1e+17 of 'ntk' raises rope_theta=500000.0 beyond 1e18: lower it.",
        ),
        (
            lambda at: llama3(low_freq_factor=0),
            "rope_scaling low_freq_factor=0 must be a finite number > 0: Meta uses 1 and 4.",
        ),
        (
            lambda at: llama3(low_freq_factor=4.0),
            "rope_scaling needs 0 < low_freq_factor < high_freq_factor, got 4.0 and 4.0: Meta uses 1 and 4.",
        ),
        (
            lambda at: rope_inv_freq(3),
            "head_dim=3 must be even and >= 2: RoPE turns pairs of numbers.",
        ),
    ],
    "validate.py": [
        (lambda at: config(n_layers=0), "n_layers=0 must be a whole number >= 1."),
        (lambda at: config(n_layers=2**63), "n_layers=9223372036854775808 must be below 2**63: no tensor is larger."),
        (
            lambda at: generate.generate(model(), TOKENS, 1, seed=0.5),
            "seed=0.5 must be a whole number below 2**63, or None for other draws each time.",
        ),
        (lambda at: model()([[1]]), "tokens are a list: pass a tensor, torch.tensor([[1, 2]]) for one text."),
        (lambda at: model()(TOKENS[0]), "tokens have shape (3,): pass (batch, tokens), neither empty."),
        (lambda at: model()(TOKENS.float()), "tokens are torch.float32: pass integer token ids, tokens.long()."),
        (lambda at: model()(TOKENS.to("meta")), "tokens are on meta, the model on cpu: pass tokens.to('cpu')."),
        (
            lambda at: model()(TOKENS + 62),
            "token ids run from 63 to 65, but vocab_size=64 allows 0 to 63: use the tokenizer that belongs to this "
            "model.",
        ),
        (
            lambda at: model()(TOKENS, n_pad=["1"]),
            "n_pad=['1'] is not a row of numbers: pass one whole number per row.",
        ),
        (
            lambda at: model()(TOKENS, n_pad=[1, 1]),
            "n_pad has shape (2,) and dtype torch.int64, the tokens (1, 3): pass one whole number per row.",
        ),
        (
            lambda at: model()(TOKENS, n_pad=[3]),
            "n_pad runs from 3 to 3, but rows of at most 3 tokens allow 0 to 2: leave every row a token of its own.",
        ),
        (
            lambda at: opened_meta(at, meta_weights(OURS), inflate),
            NOT_OPENED.replace("(…)", "(…consolidated.00.pth has … bytes, but unpacks to 1,000,000)"),
        ),
        (
            lambda at: opened_meta(at, meta_weights(OURS) | {"norm.weight": 3}),
            NOT_OPENED.replace("(…)", "(norm.weight is no ordinary tensor)"),
        ),
        (
            lambda at: opened_meta(at, {str(n): torch.ones(1).expand(10**6) for n in range(3)}),
            NOT_OPENED.replace("(…)", "(its tensors claim 12,000,000 bytes, but the file has …)"),
        ),
    ],
    "cache.py": [
        (
            lambda at: full_memory(at, torch, "zeros", lambda: KVCache(TINY, 2, 10, torch.float32, "cpu")),
            "a cache of 2 rows and 10 tokens needs 1,280 numbers, more than fit into memory: ask for fewer rows or "
            "fewer tokens.",
        ),
        (
            lambda at: model()(TOKENS, make_model(replace(OURS, n_kv_heads=4)).new_cache(1)),
            "the model has (n_layers, n_kv_heads, head_dim) = (2, 2, 8), the cache (2, 4, 8): another model made it; "
            "use this model's new_cache().",
        ),
        (
            lambda at: model()(TOKENS, model().new_cache(2)),
            "tokens have batch size 1, the cache 2: make a cache to fit.",
        ),
        (
            lambda at: copy.deepcopy(model()).double()(TOKENS, model().new_cache(1)),
            "the model is torch.float64 on cpu, the cache torch.float32 on cpu: make the cache with model.new_cache() "
            "after moving or casting the model.",
        ),
        (
            lambda at: model()(TOKENS, model().new_cache(1, 2)),
            "3 tokens do not fit: the cache holds 0 of at most 2. Shorten the prompt, or make it larger: "
            "model.new_cache(batch_size, max_seq_len=...).",
        ),
    ],
    "model.py": [
        (
            lambda at: apply_rope(torch.ones(1, 1, 1, 8), torch.ones(1, 8), torch.ones(1, 8)),
            "x has head_dim 8, but cos has 8 angles: pass head_dim / 2 angles, one per pair.",
        ),
        (
            lambda at: apply_rope(torch.ones(1, 1, 1, 8), torch.ones(1, 4), torch.ones(1, 4), "pairs"),
            "layout 'pairs' is not known: use 'halves' (i with i + h/2) or 'interleaved' (2i with 2i + 1).",
        ),
        (
            lambda at: causal_visible(3, 2),
            "n_query=3 exceeds n_key=2: the queries are the last of the key positions.",
        ),
        (
            lambda at: (cache := model().new_cache(1)) and [model()(TOKENS, cache, n_pad=pad) for pad in ([0], [1])],
            "n_pad came after 3 cached tokens: pass it with the first tokens only.",
        ),
    ],
    "masks.py": [
        (
            lambda at: masks.sliding_window(TOKENS[0], TOKENS[0], 0),
            "window=0 must be at least 1: the query itself counts.",
        ),
        (lambda at: masks.left_padding(TOKENS[0], TOKENS[0], -1), "n_pad=-1 must be at least 0."),
        (
            lambda at: masks.same_document(TOKENS[0], TOKENS[0], torch.zeros(3)),
            "document has 3 positions, but position 3 is asked for.",
        ),
        (lambda at: masks.prefix(TOKENS[0], TOKENS[0], -1), "length=-1 must be at least 0."),
    ],
    "generate.py": [
        (
            lambda at: generate.generate(model(), TOKENS, 1, temperature=-1),
            "temperature=-1 must be a finite number >= 0: 0 is greedy, 1 leaves the model as it is.",
        ),
        (
            lambda at: generate.generate(model(), TOKENS, 1, top_k=0),
            "top_k=0 must be a whole number >= 1, or None to keep every token.",
        ),
        (
            lambda at: generate.generate(model(), TOKENS, 1, top_p=0.0),
            "top_p=0.0 must be a finite number in (0, 1]: 1 keeps every token.",
        ),
        (
            lambda at: generate.generate(model(), TOKENS, 1, stop=64),
            "stop=64 must be a token id from 0 to 63, several of them, or None.",
        ),
        (
            lambda at: generate.generate(model(), TOKENS, -1),
            "max_new_tokens=-1 must be a whole number >= 0.",
        ),
        (
            lambda at: generate.generate(model(), TOKENS[0], 1),
            "tokens have shape (3,): pass (batch, tokens), neither empty, for one prompt tokens[None].",
        ),
        (
            lambda at: generate.generate(model(), [1, 2], 1),
            "tokens are a list, '[1, 2]': pass a (batch, tokens) tensor or a list of lists of token ids; encode text "
            "first, and write [ids] for one prompt.",
        ),
        (
            lambda at: generate.generate(model(), [[1], []], 1),
            "prompts of [1, 0] tokens: pass at least one, of at least one token each.",
        ),
        (
            lambda at: generate.generate(model(), [["the"]], 1),
            "a prompt holds 'the', no token id: encode text with the model's tokenizer first.",
        ),
        (
            lambda at: generate.prepare_for_decoding(model(), "int4"),
            "weights='int4' is not known: use None, 'bfloat16' or 'int8'.",
        ),
        (
            lambda at: generate.prepare_for_decoding(generate.prepare_for_decoding(model())),
            "this model is prepared already: pass the one that it was made from.",
        ),
    ],
    "train.py": [
        (
            lambda at: run(seed=None),
            "seed=None must be a whole number: a run that goes on after a stop repeats its draws.",
        ),
        (lambda at: run(peak=0.0), "peak=0.0 must be a finite number > 0 and <= 1000, for example 3e-3."),
        (
            lambda at: run(weight_decay=-1.0),
            "weight_decay=-1.0 must be a finite number >= 0 and <= 1000, for example 0.1.",
        ),
        (
            lambda at: run(keep=written(at, "kept", "no run")),
            "…kept is damaged or no kept run (BadZipFile): move it away.",
        ),
        (another_run, "…kept holds another run:\n  (…, 1, …\nThis one is:\n  (…, 2, …\nGive it another name."),
    ],
    "device.py": [
        (
            lambda at: full_memory(at, Llama, "forward", run),
            "out of memory: batch_size=8 windows of max_seq_len=8 tokens are too much to train on at once: pass a "
            "smaller batch_size, or make a model of a smaller max_seq_len or dim.",
        ),
        (
            lambda at: full_memory(at, Llama, "forward", lambda: generate.generate(model(), TOKENS, 1)),
            "out of memory: 1 prompts of 3 tokens are too much to read at once: pass fewer, or shorter ones.",
        ),
        (
            lambda at: full_memory(
                at, torch.Tensor, "to", lambda: model_from_weights(OURS, dict(model().state_dict()), torch.float16)
            ),
            "out of memory: these weights: 27,296 weights as torch.float16 do not fit on cpu: pass "
            "dtype=torch.bfloat16, or open a smaller model.",
        ),
        (
            lambda at: at.patch.setenv("COURSE_DEVICE", "gpu") or device.pick_device(),
            "COURSE_DEVICE='gpu' is not known: use one of ['cpu'…], or unset the variable.",
        ),
        (
            lambda at: (
                at.patch.setenv("COURSE_DEVICE", "mps")
                or at.patch.setattr(torch.backends.mps, "is_available", lambda: False)
                or device.pick_device()
            ),
            "COURSE_DEVICE='mps' is not present on this machine: use one of ['cpu'…], or unset the variable.",
        ),
    ],
    "plots.py": [
        (
            lambda at: plots.show(None, "too " * 40),
            "alt has 40 words: describe the figure in 1 to 39 words.",
        ),
    ],
    "text.py": [
        (
            lambda at: text.load_text(at.folder / "no.txt"),
            "…no.txt is not there: pass a text file, or a folder of text files.",
        ),
        (
            lambda at: text.load_text(written(at, "a.txt", b"\xff")),
            "…a.txt is not UTF-8 text ('utf-8' codec …): save it as UTF-8, or leave it out.",
        ),
        (
            lambda at: text.load_text(written(at, "a.txt", "a\0")),
            "…a.txt holds zero bytes, so it is not text: leave it out.",
        ),
        (
            lambda at: text.load_text(written(at, "a.txt", "short")),
            "…a.txt holds 5 characters in 1 file(s), too few to learn from and to judge by: pass at least 20,000; the "
            "Python reference has about ….",
        ),
        (
            lambda at: text.held_out_split("a b", 1.5),
            "fraction=1.5 must lie between 0 and 1, both excluded, for example 0.1.",
        ),
        (
            lambda at: text.held_out_split("abc"),
            "a text of 3 characters has no paragraph break to cut at: pass a longer text.",
        ),
        (
            lambda at: text.train_tokenizer("text", 100),
            "vocab_size=100 must be a whole number from 257 (all bytes and the end of text) to 1,000,000.",
        ),
        (
            lambda at: text.load_tokenizer(at.folder),
            "…tokenizer.json is missing: pass a folder that holds a tokenizer.json.",
        ),
        (
            lambda at: text.load_tokenizer(written(at, "tokenizer.json", "{").parent),
            "…tokenizer.json is damaged or no tokenizer (…): fetch the file again.",
        ),
        (
            lambda at: next(text.batches(torch.arange(9), 0, 2, None)),
            "batch_size=0 and seq_len=2 must be whole numbers >= 1.",
        ),
        (
            lambda at: next(text.batches(torch.arange(3), 1, 3, None)),
            "3 tokens are fewer than seq_len + 1 = 4: pass a longer text.",
        ),
        (
            lambda at: text.bits_per_byte(model(), text.load_tokenizer(), ""),
            "max_seq_len=64 and a text of 0 tokens: each must be at least 2. Pass a longer text, or a model that reads "
            "more than one token.",
        ),
    ],
    "checkpoint.py": [
        (
            lambda at: load_checkpoint(at.folder / "no"),
            "…no is not a folder: pass one that holds config.json or params.json.",
        ),
        (
            lambda at: load_checkpoint(written(at, "a.txt", "").parent),
            "… holds neither config.json (Hugging Face) nor params.json (Meta), but ['a.txt']: pass the folder that "
            "holds one of them.",
        ),
        (
            lambda at: model_from_weights(OURS, model().state_dict(), dtype="bfloat16"),
            "dtype='bfloat16' is none of (torch.float32, torch.bfloat16, torch.float16, torch.float64): pass one of "
            "them, such as torch.bfloat16.",
        ),
        (
            lambda at: save_checkpoint(generate.prepare_for_decoding(model()), at.folder / "new"),
            "the model has no lm_head.weight, as after prepare_for_decoding: pass the one it was made from.",
        ),
        (
            lambda at: model_from_weights(replace(OURS, tie_embeddings=True), model().state_dict()),
            "these weights: the config ties embeddings, lm_head differs from tok_embeddings: untie them.",
        ),
        (
            lambda at: model_from_weights(replace(OURS, hidden_dim=44), model().state_dict() | {"more": torch.ones(1)}),
            "these weights: 7 weights do not fit. Nothing was loaded: fetch config and weights of one model.\n  left "
            "over: more\n  shape: layers.0.feed_forward.down_proj.weight is (32, 88), the config asks for (32, 44)…",
        ),
        (
            lambda at: model_from_weights(OURS, model().state_dict() | {str(n): torch.ones(1) for n in range(25)}),
            "these weights: 25 weights do not fit. Nothing was loaded: fetch config and weights of one model.\n  left "
            "over: 0\n  left over: 1\n…\n  … and 5 more",
        ),
        (
            lambda at: fetch(at, "smollm"),
            "'smollm' is not a name on the Hub: write owner/model, as in HuggingFaceTB/SmolLM2-135M.",
        ),
        (
            lambda at: fetch(at, "a/b", huggingface_hub.errors.LocalEntryNotFoundError("no network")),
            "a/b could not be fetched (LocalEntryNotFoundError): check name, network and, for a model behind a "
            "licence, that you are logged in.",
        ),
        (
            lambda at: opened(at, {"num_hidden_layers": 10**6}),
            "…saved: LlamaConfig(…) needs far more than the 21 weights found: the config belongs to another model, or "
            "is damaged: fetch it again.",
        ),
        (
            lambda at: save_checkpoint(model(), at.folder),
            "… exists and is kept: choose another name, or move it away first.",
        ),
        (
            lambda at: opened(at, config__json=" " * (checkpoint.LARGEST_JSON + 1)),
            "…config.json has more than 10,000,000 bytes, too many to be one of a model: fetch it again.",
        ),
        (lambda at: opened(at, config__json="{"), "…config.json is not valid JSON (…)" + FETCH),
        (lambda at: opened(at, config__json="[]"), "…config.json holds a list, not an object" + FETCH),
        (
            lambda at: opened(at, {"model_type": "gpt2"}),
            "…config.json describes a 'gpt2' model, not 'llama': this course reads only LLaMA, such as SmolLM2-135M.",
        ),
        (
            lambda at: opened(at, {"hidden_act": "gelu"}),
            "…config.json sets hidden_act='gelu', which this model does not have (only silu): use another checkpoint.",
        ),
        (
            lambda at: opened(at, {"hidden_size": "gone"}),
            "…config.json has no 'hidden_size': it is not a complete LLaMA config. Fetch it again.",
        ),
        (
            lambda at: opened(at, {"hidden_size": 0}),
            "…config.json: dim=0 must be a whole number >= 1.",
        ),
        (
            lambda at: opened(at, {"rope_scaling": 3}),
            "…config.json sets rope_scaling=3: an object or null is needed. Fetch it again.",
        ),
        (
            lambda at: opened(at, {"rope_parameters": {"type": "yarn"}}),
            "…config.json sets RoPE type 'yarn': this course reads 'default', 'linear', 'llama3'. Use another.",
        ),
        (
            lambda at: opened(at, model__safetensors__index__json="{}"),
            "…model.safetensors.index.json has no weight_map that says which weight is in which file: fetch it again.",
        ),
        (
            lambda at: opened(at, model__safetensors__index__json='{"weight_map": {"a": "../b.bin"}}'),
            "…index.json names '../b.bin': only .safetensors files of the same folder are read.",
        ),
        (
            lambda at: opened(at, model__safetensors=None),
            "…model.safetensors is missing: this course reads safetensors only; fetch or convert the weights.",
        ),
        (
            lambda at: opened(at, model__safetensors="cut"),
            "…model.safetensors is damaged or cut short (…)" + FETCH,
        ),
        (
            lambda at: opened_meta(at),
            "…meta has params.json, but no consolidated.*.pth: fetch the weights as well.",
        ),
        (lambda at: opened_meta(at, {"a": model}), NOT_OPENED.replace("(…)", "(UnpicklingError)")),
        (
            lambda at: opened_meta(at, meta_weights(OURS), dim="gone"),
            "…meta: 'dim' is missing from params.json or a shard: it is not a whole LLaMA. Fetch all files again.",
        ),
        (
            lambda at: opened_meta(at, meta_weights(OURS), n_heads=0),
            "…meta: params.json and the shards make no LLaMA (…): fetch all again.",
        ),
    ],
    "parallel.py": [
        (
            lambda at: parallel.require_divisible(TINY, 3),
            "n_heads=4 cannot be dealt out to 3 processes: start a number of processes that divides it (notebook 07, "
            "section 7.2).",
        ),
        (without_norm, "…saved: model.norm.weight is missing: fetch the checkpoint again."),
        (
            lambda at: read_by_one_rank(at, {"model.norm.weight": torch.ones(3)}),
            "…saved: model.norm.weight is [3], config.json asks for [32]: fetch the checkpoint again.",
        ),
        (
            lambda at: read_by_one_rank(at, {"model.norm.weight": torch.full((32,), torch.nan)}),
            "…saved: model.norm.weight holds NaN or infinity: fetch the checkpoint again.",
        ),
    ],
    "checks.py": [
        (
            lambda at: check("rms_norm", lambda x, weight, eps: x + "1"),
            RMS + '…: it raises TypeError: …, in the line "…".…',
        ),
        (
            lambda at: check("rms_norm", lambda *inputs: rms_norm(*inputs).detach()),
            RMS + "…: the values are right, but no gradient reaches the input.\nHint: Is the graph cut by .detach(), "
            ".item(), torch.tensor(...) or torch.no_grad()?",
        ),
        (
            lambda at: check("rms_norm", lambda x, *_: x.sum().expand(2**37) if x.requires_grad else rms_norm(x, *_)),
            RMS + "…: the result has the shape (137438953472,).\nHint: Print the shape of each step.",
        ),
        (
            lambda at: check("rms_norm", "weight_without_gradient"),
            RMS + "…: the values are right, but no gradient reaches weight.\nHint: Is the graph cut by .detach(), "
            ".item(), torch.tensor(...) or torch.no_grad()?",
        ),
        (
            lambda at: check("rms_norm", lambda *inputs: NoWayBack.apply(rms_norm(*inputs))),
            RMS + '…: it raises RuntimeError: the backward pass is missing, in the line "raise RuntimeError("the '
            'backward pass is missing")".\nHint: Does your formula give the right numbers on four numbers by hand?',
        ),
        (
            lambda at: check("rms_norm_backward", "one_result"),
            "rms_norm_backward: not yet. Case …: the result is one tensor, expected 2 tensors.\nHint: Return all of "
            "them, with commas: return first, second",
        ),
        (
            lambda at: check("rms_norm", lambda x, weight, eps: print(end="")),
            RMS + "…: the result has the type NoneType, expected a tensor.\nHint: Does your function end with "
            '"return"? Printing shows a value but does not hand it back.',
        ),
        (
            lambda at: check("hidden_dim", "rounded_down"),
            "hidden_dim: not yet. Case dim 4096, multiple_of 256, ffn_dim_multiplier None: the result is 10752, "
            "expected 11008.\nHint: Do you round up to a multiple? Yours is rounded down.",
        ),
        (
            lambda at: check("rms_norm", lambda *inputs: rms_norm(*inputs).to("meta")),
            RMS + "…: the result is a torch.strided tensor on the device meta.\nHint: Return a plain tensor on the "
            "input's device.",
        ),
        (
            lambda at: check("rms_norm", lambda *inputs: rms_norm(*inputs)[0]),
            RMS + "…: the result has the shape (…), expected (…).\nHint: Is a keepdim=True, a transpose or a reshape "
            "missing (or one too many)?",
        ),
        (
            lambda at: check("rms_norm", lambda *inputs: rms_norm(*inputs).double()),
            RMS + "…: the result has the dtype torch.float64, expected torch.float32.\nHint: Should the result have "
            "the input's dtype? Convert it back: .to(torch.float32).",
        ),
        (
            lambda at: check("rms_norm", "eps_outside"),
            RMS + "…: the result is off by up to … (its largest entry should be …).\nHint: …inside the root…",
        ),
        (
            lambda at: check("rms_norm", "in_place"),
            RMS + "…: the result is right, but the input x was changed in place.\nHint: Does your function change its "
            "input in place? Work on a copy: x = x.clone().",
        ),
    ],
    "exercises/attention.py": [
        (
            lambda at: check("cache_write", "returns_nothing"),
            "cache_write: not yet. Case …: it returns None.\nHint: Return all keys so far: what was there, then the "
            "new ones.",
        ),
        (
            lambda at: check("cache_write", "two_results_from_a_copy"),
            "cache_write: not yet. Case …: it returns 2 results, expected one tensor.\nHint: Write into the cache that "
            "was handed over, and return all keys so far only.",
        ),
        (
            lambda at: check("cache_write", overwrite),
            "cache_write: not yet. Case …: the cache was overwritten.\nHint: Write only the T positions behind "
            "`length`.",
        ),
    ],
    "exercises/feed_forward.py": [
        (
            lambda at: swiglu.matrix_roles(dict.fromkeys("abc", torch.ones(2, 2)), torch.ones(1, 2), torch.ones(1, 2)),
            "no order of a, b, c makes y from x: pass the y that they made.",
        ),
        (
            lambda at: check("matrix_roles", "exact_comparison"),
            "matrix_roles: not yet. Case …: it returns None.\nHint: Did no order give y? Rounding differs from order "
            "to order of the sums: compare with torch.allclose(..., atol=1e-4), not with ==.",
        ),
        (
            lambda at: check("matrix_roles", "inverted"),
            "matrix_roles: not yet. Case …: a dictionary with the keys gate, up and down is expected.\nHint: Return "
            '{"gate": name, "up": name, "down": name}: roles are the keys, names the values.',
        ),
        (
            lambda at: check("matrix_roles", "twice"),
            "matrix_roles: not yet. Case …: the names are b, b, a, expected a, b, c.\nHint: Does each name of the "
            "dictionary appear once?",
        ),
        (
            lambda at: check("matrix_roles", "as_listed"),
            "matrix_roles: not yet. Case …: c is not down. Here gate and up are (6, 4), down is (4, 6).\nHint: down is "
            "(D, F), gate and up are (F, D), and D is the width of x: do you compare with it?",
        ),
        (
            lambda at: check("matrix_roles", "swapped"),
            "matrix_roles: not yet. Case …: gate and up are swapped.\nHint: Their shapes are equal: do you compute the "
            "layer both ways and compare with y? silu belongs to the gate.",
        ),
    ],
    "exercises/whole_model.py": [
        (
            lambda at: check("tie_weights", "the_other_way"),
            "tie_weights: not yet. Case …: both use one matrix, but its numbers are not the embedding's.\nHint: Which "
            "of the two stays? The head takes over the embedding's matrix.",
        ),
        (
            lambda at: check("tie_weights", "a_new_parameter_for_both"),
            "tie_weights: not yet. Case …: both use one matrix, but a new one: an optimizer made before still holds "
            "the old one.\nHint: Leave the embedding's Parameter where it is: head.weight = embedding.weight.",
        ),
        (
            lambda at: check("tie_weights", tied_without_training),
            "tie_weights: not yet. Case …: the one matrix can no longer be trained.\nHint: Assign the Parameter "
            "itself, not .data of it.",
        ),
        (
            lambda at: check("tie_weights", "data"),
            "tie_weights: not yet. Case …: two Parameters look at one memory: an optimizer would update it "
            "twice.\nHint: Assign the Parameter itself: head.weight = ..., without .data and without a new "
            "nn.Parameter.",
        ),
        (
            lambda at: check("tie_weights", "copied"),
            "tie_weights: not yet. Case …: head.weight has the embedding's numbers, but is a copy: after one training "
            "step they differ.\nHint: One matrix, not a copy: should head.weight and embedding.weight be the same "
            "object?",
        ),
        (
            lambda at: check("tie_weights", "new_head"),
            "tie_weights: not yet. Case …: the head that was handed over still has its own matrix.\nHint: Does your "
            "function change the modules it was given, or does it make new ones?",
        ),
        (
            lambda at: check("tie_weights", "unchanged"),
            "tie_weights: not yet. Case …: head.weight is still another matrix.\nHint: Which attribute of head holds "
            "its matrix?",
        ),
        (
            lambda at: check("find_slips", "list"),
            "find_slips: not yet. Case …: a dictionary with the keys A, B and C is expected.\nHint: Return "
            '{"A": "...", "B": "...", "C": "..."}.',
        ),
        (
            lambda at: check("find_slips", "own_words"),
            "find_slips: not yet. Case …: model A: 'the mask' is not in the list.\nHint: Choose from: gain ignored, …",
        ),
        (
            lambda at: check("find_slips", "a_and_c"),
            "find_slips: not yet. Case …: 1 of 3 are right.\nHint: Model A: change the last token only. Do logits "
            "before it move? They must not.",
        ),
    ],
    "exercises/writing.py": [
        (
            lambda at: check("greedy_with_cache", "whole_text_each_time"),
            "greedy_with_cache: not yet. Case …: the model read more than 5 tokens of prompts and 8 new "
            "ones.\nHint: After the prompt, feed only the newest token: the cache holds the others.",
        ),
        (
            lambda at: check("greedy_with_cache", "no_cache"),
            "greedy_with_cache: not yet. Case …: no call of the model got a cache.\nHint: Is the cache handed over? "
            "model(latest, cache=cache)",
        ),
        (
            lambda at: check("greedy_with_cache", "new_cache_each_time"),
            "greedy_with_cache: not yet. Case …: 8 caches were made, expected 1.\nHint: Make the cache once, before "
            "the loop: it remembers.",
        ),
        (
            lambda at: check("greedy_with_cache", "prompt_skipped"),
            "greedy_with_cache: not yet. Case …: the first call read 1 of the 5 tokens of the prompts.\nHint: Where "
            "does the cache get the prompt from? Feed all of it in the first call.",
        ),
        (
            lambda at: check("greedy_with_cache", "all_again"),
            "greedy_with_cache: not yet. Case …: the model read more than 5 tokens of prompts and 8 new "
            "ones.\nHint: After the prompt, feed only the newest token: the cache holds the others.",
        ),
        (
            lambda at: check("greedy_with_cache", "one_token_even_for_none"),
            "greedy_with_cache: not yet. Case …: one token too many came back.\nHint: How often does the loop run? Is "
            "nothing added when n_new is 0?",
        ),
        (
            lambda at: check("greedy_with_cache", "only_what_is_new"),
            "greedy_with_cache: not yet. Case …: only the new tokens came back.\nHint: Does the prompt stand first? "
            "Use torch.cat(..., dim=1).",
        ),
    ],
    "exercises/scaling.py": [
        (
            lambda at: check("split_feed_forward", "down_in_row_chunks"),
            "split_feed_forward: not yet. Case …: a product does not fit: …\nHint: Weights are (out, in): is "
            "it x @ w.T each time? And is w_down cut by columns? w_down.chunk(n_ranks, dim=1) gives those of each "
            "rank.",
        ),
        (
            lambda at: check("block_plan", "without_o"),
            "block_plan: not yet. Case …: a dictionary with seven keys is expected.\nHint: The keys are: q_proj, "
            "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.",
        ),
        (
            lambda at: check("block_plan", "torch_words"),
            'block_plan: not yet. Case …: q_proj: \'ColwiseParallel\' is not known.\nHint: Choose "column" or "row".',
        ),
        (
            lambda at: check("block_plan", "all_columns"),
            "block_plan: not yet. Case …: 5 of 7 are right.\nHint: o_proj: think what a rank has, and what it needs. A "
            "rank has only its own heads' results, which are inputs of o_proj.",
        ),
    ],
    "grade.py": [
        (
            lambda at: verdict([at.folder]),
            "broken notebook | It is a link, a folder or a device, not a file. | Open it in JupyterLab, clear its "
            "outputs, save it, hand it in again.",
        ),
        (
            lambda at: at.patch.setattr(grade, "LARGEST_FILE", 10) or verdict([written(at, "a", "x" * 11)]),
            "broken notebook | It has 11 bytes, more than 10. | Open it in JupyterLab, clear its outputs, save it, "
            "hand it in again.",
        ),
        (
            lambda at: verdict([written(at, "a", "{}")]),
            "broken notebook | It is no notebook (KeyError: 'cells'). | Open it in JupyterLab, clear its outputs, save "
            "it, hand it in again.",
        ),
        (
            lambda at: verdict([]),
            "missing notebook |  | Hand it in under the name that it has in the course.",
        ),
        (
            lambda at: verdict([Path("a"), Path("b")]),
            "several files | Handed in: a, b. | Hand in one.",
        ),
        (lambda at: asked(alive=False, prepare=True), "the kernel does not start, or cannot import torch"),
        (
            lambda at: graded(at, seconds=1, alive=False),
            "crashed | The program ended the kernel. | Does it exit, or need more memory than there is?",
        ),
        (
            lambda at: graded(at),
            "timed out | No answer after 0.01 seconds. | Is there a loop that never ends?",
        ),
    ],
    "classroom.py": [
        (
            lambda at: handed_out(at, EXERCISE),
            'a notebook has exercises but no heading "## Solutions": put it before the first solution.',
        ),
        (
            lambda at: hand_out.student(written(at, "a", "").parent),
            "… is there already and not an empty folder: give another name.",
        ),
        (
            lambda at: handed_out(at, cell("def f(x):\n    return x\n\n\ncheck_silu(f)", "exercise"), SOLUTIONS),
            "01_rmsnorm.ipynb: the exercise check_silu(f) is solved here. Get a fresh copy first: python -m "
            "helpers.classroom reset …01_rmsnorm.ipynb",
        ),
        (
            lambda at: fresh(at, "02_rope.ipynb", path=""),
            "git is not installed: no fresh copy of 02_rope.ipynb can be had. Copy it from where you got the course.",
        ),
        (
            lambda at: fresh(at, "no", "02_rope.ipynb"),
            "there is no folder …no: no fresh copy of 02_rope.ipynb can be had. Copy it from where you got the course.",
        ),
        (
            lambda at: fresh(at, "02_rope.ipynb"),
            "git has no fresh copy of …02_rope.ipynb: fatal: …. Copy it from where you got the course.",
        ),
        (
            lambda at: hand_out.reset(at.folder / "notes.txt"),
            "notes.txt is no notebook: a name that ends in .ipynb is expected, such as 02_rope.ipynb.",
        ),
        (crowded, "…02_rope_kept_…_999.ipynb and 998 more of that second are taken: wait a second."),
        (
            lambda at: submissions.read_course(course(at, EXERCISE, SOLUTIONS), ["09"]),
            "…notebooks has no notebook 09 with exercises; found: 01_rmsnorm. Give a name, or the start of one.",
        ),
        (
            lambda at: submissions.read_course(course(at)),
            "…notebooks has no notebook with exercises; found: none. Give a name, or the start of one.",
        ),
        (
            lambda at: submissions.read_course(course(at, cell("check_silu(f)", "exercise"))),
            "01_rmsnorm, exercise : the cell must define the function and end in check_...(function).",
        ),
        (
            lambda at: submissions.find_submissions(at.folder, ["01_rmsnorm"]),
            "… holds neither folders of students nor files like anna__01_rmsnorm.ipynb: give the folder that holds "
            "them.",
        ),
    ],
}
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
    words, _ = said(name)
    expected = ".*".join(map(re.escape, ENTRIES[name][1].split("…")))
    assert re.fullmatch(expected, words, re.DOTALL), words


def test_every_raise_has_an_entry(said):
    seen = {place for name in ENTRIES for place in said(name)[1]}
    missing = [f"helpers/{place} {words!r}" for place, (_, words) in PLACES.items() if place not in seen]
    assert not missing, "no entry of TABLE provokes these; add one, with the text that is read:\n" + "\n".join(missing)


def test_a_new_raise_is_noticed(tmp_path):
    (tmp_path / "new.py").write_text(
        "def f(x):\n    if x:\n        raise NotImplementedError\n    try:\n        _require(x, 'no x')\n"
        "    except ValueError:\n        raise\n    raise ValueError(\n        f'{x} is new')\n"
    )
    assert places(tmp_path) == {"new.py:5": (5, "no x"), "new.py:8": (9, "is new")}


def test_only_a_text_that_is_read_counts(tmp_path):
    def half_read(at):
        try:
            config(dim=30)
        except ValueError:
            return "something went wrong"

    words, seen = provoke(half_read, tmp_path)
    assert (words, seen) == ("something went wrong", set())
    words, seen = provoke(lambda at: verdict([]), tmp_path)
    assert [PLACES[place][1] for place in seen] == [
        "missing notebook  Hand it in under the name that it has in the course."
    ]


SECTION = re.compile(r"notebook (\d\d), section ([\d.]*\d)")


def test_sections_that_errors_name_are_there():
    named = {found for path in HELPERS.rglob("*.py") for found in SECTION.findall(path.read_text(encoding="utf-8"))}
    assert len(named) >= 4
    for number, section in sorted(named):
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        text = "".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
        assert f"## {section} " in text, f"{path.name} has no section {section}"
