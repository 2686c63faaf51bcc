"""Who writes fastest here: the course's prepared model beside the engines that a user would pick, on the same weights.

    PYTHONPATH=. python benchmarks/rivals.py             all, a quarter of an hour with nothing else running
    PYTHONPATH=. python benchmarks/rivals.py openvino    transformers, and those whose names begin so

A 135M model with random weights, made here, is saved once. Each engine has an environment of its own with pinned
versions, in a temporary folder on top of the one that runs this program, and a process of its own that waits. Then all
write the same 64 tokens after a prompt of 32, in turn, so that a machine that slows down slows all. The table has the
median, the ratio to transformers in the same run, and how many tokens are those of transformers in float32.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.readers import CPP, OV, READERS, ROOT, environment
from benchmarks.speed import SHAPES, machine, make_pair
from helpers.checkpoint import save_checkpoint
from helpers.text import load_tokenizer

NEW, ROUNDS = 64, 7
PROMPT = torch.randint(49_152, (32,), generator=torch.Generator().manual_seed(0)).tolist()

TRANSFORMERS = """
    import torch
    from benchmarks.speed import decode
    from transformers import LlamaForCausalLM
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    %s
    write = lambda: decode(model, torch.tensor([prompt]), new)[0, len(prompt):]
"""
QUANTIZED = "model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)"
COURSE = """
    import torch
    from benchmarks.speed import decode
    from helpers.checkpoint import load_checkpoint
    from beyond.fast_decode import prepare_for_decoding
    model = load_checkpoint(folder)
    model = %s
    write = lambda: decode(model, torch.tensor([prompt]), new)[0, len(prompt):]
"""
CTRANSLATE2 = """
    import ctranslate2
    made = folder / "ctranslate2"
    if not made.exists():
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(made))
        file = made / "config.json"
        file.write_text(file.read_text().replace("null", '"<|end_of_text|>"'))  # its special tokens have no name
    model = ctranslate2.Generator(str(made), compute_type=%r, intra_threads=os.cpu_count())
    names = json.loads((made / "vocabulary.json").read_text())
    given = [[names[token] for token in prompt]]
    how = dict(max_length=new, min_length=new, include_prompt_in_result=False)
    write = lambda: model.generate_batch(given, **how)[0].sequences_ids[0]
"""
OPENVINO = """
    import torch
    from optimum.intel import OVModelForCausalLM
    config = {"INFERENCE_PRECISION_HINT": "f32"}  # or it computes in bfloat16 where the processor can
    model = OVModelForCausalLM.from_pretrained(folder, export=True, load_in_8bit=%s, ov_config=config)
    how = dict(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
    write = lambda: model.generate(torch.tensor([prompt]), **how)[0, len(prompt):]
"""
ONNX = """
    import subprocess
    import onnxruntime_genai as og
    kind = %r
    made = str(folder / ("onnx-" + kind))
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(folder), "-o", made, "-c", made]
    subprocess.run([*builder, "-p", kind, "-e", "cpu"], check=True, capture_output=True)
    model = og.Model(made)
    def write():
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=len(prompt) + new, min_length=len(prompt) + new, do_sample=False)
        writer = og.Generator(model, params)
        writer.append_tokens(np.array(prompt, dtype=np.int32))
        while not writer.is_done():
            writer.generate_next_token()
        return writer.get_sequence(0)[len(prompt):]
"""
LLAMA_CPP = """
    from cyllama.llama import llama_cpp
    from helpers.checkpoint import load_checkpoint
    page = Path(root, "docs/readers.md").read_text(encoding="utf-8")
    exec(page.split("```python")[1].split("```")[0])
    save_gguf(load_checkpoint(folder), folder / "model.gguf")
    Model = type("Model", (llama_cpp.LlamaModel,), {"n_vocab": 49152})  # LlamaContext of cyllama 0.2.18 asks for it
    model, params = Model(str(folder / "model.gguf"), llama_cpp.LlamaModelParams()), llama_cpp.LlamaContextParams()
    params.n_ctx = 128
    params.n_threads = params.n_threads_batch = os.cpu_count()
    def write():
        context, greedy = llama_cpp.LlamaContext(model, params), llama_cpp.LlamaSampler()
        greedy.add_greedy()
        batch, tokens = llama_cpp.LlamaBatch(n_tokens=len(prompt), embd=0, n_seq_max=1), []
        for at, token in enumerate(prompt):
            batch.add(token, at, [0], at == len(prompt) - 1)
        for at in range(len(prompt), len(prompt) + new):
            context.decode(batch)
            tokens.append(greedy.sample(context, -1))
            batch.clear()
            batch.add(tokens[-1], at, [0], True)
        return tokens
"""
CT2, ONNXES, OV_8 = READERS["ctranslate2"][0], READERS["onnxruntime-genai"][0], f"{OV} nncf==3.4.0"

RIVALS = {  # name: packages on top of the course's, and a program that makes write()
    "transformers": ("", TRANSFORMERS % ""),
    "the course, plain": ("", COURSE % "model"),
    "the course, prepared": ("", COURSE % "prepare_for_decoding(model)"),
    "the course, float16": ("", COURSE % "prepare_for_decoding(model, 'float16')"),
    "the course, bfloat16": ("", COURSE % "prepare_for_decoding(model, 'bfloat16')"),
    "the course, int8": ("", COURSE % "prepare_for_decoding(model, 'int8')"),
    "the course, int4": ("", COURSE % "prepare_for_decoding(model, 'int4')"),
    "transformers, quantize_dynamic": ("", TRANSFORMERS % QUANTIZED),
    "ctranslate2": (CT2, CTRANSLATE2 % "float32"),
    "ctranslate2, int8": (CT2, CTRANSLATE2 % "int8"),
    "openvino, f32 hint": (OV_8, OPENVINO % False),
    "openvino, int8": (OV_8, OPENVINO % True),
    "onnxruntime-genai": (ONNXES, ONNX % "fp32"),
    "onnxruntime-genai, int4": (ONNXES, ONNX % "int4"),
    "llama.cpp, float32": (CPP, LLAMA_CPP),
}
DRIVER = """
import json, os, sys, time
from pathlib import Path
import numpy as np
root, folder, prompt, new = {root!r}, Path(sys.argv[1]), {prompt}, {new}
{program}
for _ in sys.stdin:
    start = time.perf_counter()
    tokens = [int(token) for token in write()]
    print("WROTE", json.dumps([time.perf_counter() - start, tokens]), flush=True)
"""


class Rival:
    """A process that holds one engine, and writes when it is asked to."""

    def __init__(self, python, program, folder, errors):
        program = DRIVER.format(root=str(ROOT), prompt=PROMPT, new=NEW, program=textwrap.dedent(program))
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(os.cpu_count())}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        self.process, self.errors = subprocess.Popen([python, "-c", program, folder], env=env, **pipes), errors
        self.seconds, self.tokens = [], None

    def write(self):
        """Let it write once; False if it has ended."""
        try:
            print(file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return False
        for line in self.process.stdout:  # until it has written; what else its library says is passed over
            if line.startswith("WROTE "):
                taken, self.tokens = json.loads(line.removeprefix("WROTE "))
                self.seconds.append(taken)
                time.sleep(0.2)  # until its threads have stopped to wait for more
                return True
        return False

    def last_words(self):
        """What it said at its end."""
        self.errors.seek(0)
        return (self.errors.read().split("\n")[-2:] or [""])[0][:150]


def main(names):
    names = [name for name in RIVALS if name == "transformers" or not names or name.startswith(tuple(names))]
    with ExitStack() as stack:
        folder, pythons = Path(stack.enter_context(tempfile.TemporaryDirectory()), "llama"), {"": sys.executable}
        save_checkpoint(make_pair(SHAPES["135M"], torch.device("cpu"))[0], folder, load_tokenizer())
        running, out = {}, {}
        for name in names:
            packages, program = RIVALS[name]
            if packages not in pythons:
                pythons[packages], done = stack.enter_context(environment(packages))
                if done.returncode:
                    sys.exit(f"{packages} do not install: {done.stderr[-300:]}")
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            running[name] = Rival(pythons[packages], program, folder, errors)
            stack.callback(running[name].process.kill)
            if not running[name].write():  # the first warms up
                out[name] = running.pop(name).last_words()
        for name in [*running] * ROUNDS:
            running[name].write()
        print(f"{machine()}: {NEW} tokens after {len(PROMPT)}, median of {ROUNDS}, least and most in brackets\n")
        print("| who | ms a token | ratio to transformers | tokens like it |\n|---|---|---|---|")
        base, expected = statistics.median(running["transformers"].seconds[1:]), running["transformers"].tokens
        for name, rival in running.items():
            took = sorted(1000 * seconds / NEW for seconds in rival.seconds[1:])
            same = next(
                (at for at, both in enumerate(zip(rival.tokens, expected, strict=True)) if len({*both}) > 1), NEW
            )
            middle, ratio = statistics.median(took), base / statistics.median(rival.seconds[1:])
            print(f"| {name} | {middle:.1f} ({took[0]:.1f} to {took[-1]:.1f}) | **{ratio:.2f}** | {same} |")
        for name, said in out.items():
            print(f"\n{name} did not run: {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
