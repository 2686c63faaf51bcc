"""One small LLaMA, many readers: who opens it, who refuses, and whose logits are other ones (docs/readers.md).

    PYTHONPATH=. python benchmarks/readers.py                  all, half an hour: the rows of a Markdown table
    PYTHONPATH=. python benchmarks/readers.py mlx-lm ibm-fms   those whose names begin so

Readers of the same packages share an environment, which lies in a temporary folder on top of the one that runs this
program, and goes before the next is made. Each opens two folders: one names RoPE in the words of transformers 5 alone,
the other, as `save_checkpoint` writes it, in the older words, too. Who refuses both gets heads of dim / n_heads.
What a reader dropped is found by dropping: the course computes the logits with settings changed, and the change that
gives the reader's logits is named.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import venv
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path

import numpy as np
import torch

from checks.relatives import RTOL_LOGITS, where_they_part
from helpers.checkpoint import save_checkpoint
from helpers.config import LlamaConfig
from helpers.model import Llama
from helpers.text import load_tokenizer

ROOT = Path(__file__).parents[1]
WIDE = LlamaConfig(  # 4 heads of width 32: 128 numbers, not dim
    vocab_size=1024, dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=32, hidden_dim=160, max_seq_len=512,
    norm_eps=1e-5, rope_theta=500_000.0, tie_embeddings=False,
    rope_scaling={"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64},
)  # fmt: skip
CONFIGS = {"wide": WIDE, "narrow": replace(WIDE, head_dim=16)}
TOKENS = torch.randint(1024, (1, 120), generator=torch.Generator().manual_seed(1))
MINUTES = 10  # at most, to install and for each folder

TRANSFORMERS = """
    import torch, transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits = model(torch.tensor([tokens])).logits[0]
"""
OPENVINO = """
    import torch
    from optimum.intel import OVModelForCausalLM
    model = OVModelForCausalLM.from_pretrained(folder, export=True, use_cache=False, ov_config=%s)
    logits = model(torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long)).logits[0]
"""
LLAMA_CPP = """
    from cyllama.llama import llama_cpp
    from helpers.checkpoint import load_checkpoint
    (kind, flash), swap = %s
    page = (root / "docs/readers.md").read_text(encoding="utf-8")
    exec(page.split("```python")[1].split("```")[0].replace(*swap))
    save_gguf(load_checkpoint(folder), folder / "model.gguf")
    Model = type("Model", (llama_cpp.LlamaModel,), {"n_vocab": 1024})  # get_logits_ith of cyllama 0.2.18 asks for it
    params, batch = llama_cpp.LlamaContextParams(), llama_cpp.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
    params.n_ctx, params.type_k, params.type_v, params.flash_attn_type = 512, kind, kind, flash
    for at, token in enumerate(tokens):
        batch.add(token, at, [0], True)
    context = llama_cpp.LlamaContext(Model(str(folder / "model.gguf"), llama_cpp.LlamaModelParams()), params)
    context.decode(batch)
    logits = [context.get_logits_ith(at) for at in range(len(tokens))]
"""
OV, CPP = "openvino==2026.4.1 optimum-intel==2.2.0", "cyllama==0.2.18 gguf==0.19.0"

READERS = {  # name: packages with their versions, the first is named; program: folder and tokens to logits (T, V)
    "transformers 5": ("transformers==5.23.0", TRANSFORMERS),
    "transformers 4": ("transformers==4.57.6", TRANSFORMERS),
    "mlx-lm": ("mlx-lm==0.32.2 mlx[cpu]==0.32.4", """
        import mlx.core as mx
        from mlx_lm.utils import load_model
        mx.set_default_device(mx.cpu)
        logits = np.array(load_model(folder)[0](mx.array([tokens])).astype(mx.float32))[0]
    """),
    "litgpt": ("litgpt==0.5.13 transformers==4.57.6", """
        import torch
        from litgpt import GPT, Config
        from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama
        from safetensors.torch import load_file
        c = json.loads((folder / "config.json").read_text())
        scaling = c["rope_parameters"]
        config = Config(
            block_size=c["max_position_embeddings"], padded_vocab_size=c["vocab_size"], n_layer=c["num_hidden_layers"],
            n_head=c["num_attention_heads"], n_query_groups=c["num_key_value_heads"], n_embd=c["hidden_size"],
            head_size=c["head_dim"], intermediate_size=c["intermediate_size"], norm_eps=c["rms_norm_eps"], bias=False,
            norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", parallel_residual=False, rotary_percentage=1.0,
            rope_base=int(scaling["rope_theta"]), rope_adjustments=dict(
                factor=scaling["factor"], low_freq_factor=scaling["low_freq_factor"],
                high_freq_factor=scaling["high_freq_factor"],
                original_max_seq_len=scaling["original_max_position_embeddings"]),
        )
        weights, model = {}, GPT(config)
        copy_weights_hf_llama(config, {}, weights, load_file(folder / "model.safetensors"))
        model.load_state_dict(weights)
        logits = model(torch.tensor([tokens]))[0]
    """),
    "transformer-lens": ("transformer-lens==4.3.0", """
        import torch
        from transformer_lens.model_bridge import TransformerBridge
        model = TransformerBridge.boot_transformers(str(folder), dtype=torch.float32)
        logits = model(torch.tensor([tokens]))[0]
    """),
    "ctranslate2": ("ctranslate2==4.8.5", """
        import ctranslate2
        made = ctranslate2.converters.TransformersConverter(str(folder)).convert(str(folder / "converted"), force=True)
        file = Path(made, "config.json")
        file.write_text(file.read_text().replace("null", '"<|end_of_text|>"'))  # its special tokens have no name
        model = ctranslate2.Generator(made, compute_type="float32")
        logits = np.array(model.forward_batch([tokens], return_log_probs=False))[0]
    """),
    "ibm-fms": ("ibm-fms==1.13.1", """
        import torch
        from fms.models import get_model
        model = get_model("hf_pretrained", model_path=str(folder), data_type=torch.float32)
        logits = model(torch.tensor([tokens]))[0]
    """),
    "curated-transformers": ("curated-transformers==2.0.1 fsspec==2026.9.0", """
        import torch
        from curated_transformers.models import AutoCausalLM
        from curated_transformers.layers import AttentionMask
        from curated_transformers.repository import FsspecRepository
        from fsspec.implementations.local import LocalFileSystem
        file = folder / "config.json"
        file.write_text(file.read_text().replace('"dtype"', '"torch_dtype"'))  # else it takes float16, and refuses
        model = AutoCausalLM.from_repo(repo=FsspecRepository(LocalFileSystem(), str(folder)))
        mask = AttentionMask(torch.ones(1, len(tokens), dtype=torch.bool))
        logits = model(torch.tensor([tokens]), mask).logits[0]
    """),
    "keras-hub": ("keras-hub==0.32.0", """
        import os
        os.environ["KERAS_BACKEND"] = "torch"
        import keras_hub
        model = keras_hub.models.Backbone.from_preset(str(folder), dtype="float32")
        ids = np.array([tokens])
        hidden = model({"token_ids": ids, "padding_mask": np.ones_like(ids)})
        logits = model.token_embedding(hidden, reverse=True)[0]
    """),
    "openvino, as by default": (OV, OPENVINO % "{}"),
    "openvino, INFERENCE_PRECISION_HINT f32": (OV, OPENVINO % '{"INFERENCE_PRECISION_HINT": "f32"}'),
    "onnxruntime-genai": ("onnxruntime-genai==0.18.0 onnx==1.23.2 onnx_ir==1.1.0", """
        import onnxruntime_genai as og
        import subprocess
        made = str(folder / "onnx")
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(folder), "-o", made, "-c", made]
        subprocess.run([*builder, "-p", "fp32", "-e", "cpu"], check=True)
        model = og.Model(made)
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=len(tokens) + 1)
        writer, logits = og.Generator(model, params), []
        for token in tokens:
            writer.append_tokens(np.array([token], dtype=np.int32))
            logits.append(np.array(writer.get_output("logits")).reshape(-1, 1024)[-1])
    """),
    "torch.onnx": ("onnxruntime==1.31.1 onnxscript==0.7.2", """
        import onnxruntime, torch
        from helpers.checkpoint import load_checkpoint
        given = torch.tensor([tokens])
        torch.onnx.export(load_checkpoint(folder), (given,), folder / "model.onnx", dynamo=True)
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        logits = session.run(None, {session.get_inputs()[0].name: given.numpy()})[0][0]
    """),
    "penzai": ("penzai==0.2.5", """
        import transformers
        from penzai.models.transformer.variants.llama import llama_from_huggingface_model
        logits = llama_from_huggingface_model(transformers.AutoModelForCausalLM.from_pretrained(folder))
    """),
    "llama.cpp, as by default": (CPP, LLAMA_CPP % '(1, -1), ("", "")'),
    "llama.cpp, cache float32, no flash attention": (CPP, LLAMA_CPP % '(0, 0), ("", "")'),
    "llama.cpp, no rope_freqs.weight": (CPP, LLAMA_CPP % """(0, 0), ('file.add_tensor("r', '(lambda *_: 0)("r')"""),
    "llama.cpp, rows as they are": (CPP, LLAMA_CPP % '(0, 0), ("if name", "if 0 and name")'),
    "llama.cpp, no key_length": (CPP, LLAMA_CPP % '(0, 0), ("key_length=c.head_dim,", "")'),
    "tinygrad": ("tinygrad==0.13.0 gguf==0.19.0", """
        import os
        from helpers.checkpoint import load_checkpoint
        os.environ |= {"HALF": "0", "DEV": "CPU:X86"}
        from tinygrad import Tensor
        from tinygrad.llm.model import Transformer
        page = (root / "docs/readers.md").read_text(encoding="utf-8")
        tokens_too = "token_list=[str(i) for i in range(c.vocab_size)]"
        exec(page.split("```python")[1].split("```")[0].replace('tokenizer_model="no_vocab"', tokens_too))
        save_gguf(load_checkpoint(folder), folder / "model.gguf")
        model, _ = Transformer.from_gguf(str(folder / "model.gguf"))
        x = model.token_embd(Tensor([tokens])).float()
        for block in model.blk:
            x = block(x, 0)
        logits = model.output(model.output_norm(x))[0].numpy()
    """),
}  # fmt: skip
DRIVER = """
import json, sys
from pathlib import Path
import numpy as np
root, folder, tokens = Path({root!r}), Path(sys.argv[1]), {tokens}
{program}
logits = logits.detach().cpu() if hasattr(logits, "detach") else logits
np.save(folder / "logits.npy", np.asarray(logits, dtype=np.float32))
"""


def make_model(config):
    torch.manual_seed(0)
    model = Llama(config).requires_grad_(False)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.ndim == 2 else torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


def changed(config):
    """{what was dropped: the logits of the rest}; "" is the model itself."""
    model, scaling = make_model(config), config.rope_scaling
    changes = [
        {"": {}, "theta": {"rope_theta": 10_000.0}},
        {
            "": {}, "scaling": {"rope_scaling": None},
            "original length": {"rope_scaling": scaling | {"original_max_position_embeddings": 8192}},
            "kind of scaling": {"rope_scaling": {"type": "linear", "factor": 8.0}},
        },
        {"": {}, "eps": {"norm_eps": 1e-6}},
        {"": {}, "head": {"tie_embeddings": True}},
        {"": {}, "order of rows": {}},
    ]  # fmt: skip
    found = {}
    for chosen in product(*(change.items() for change in changes)):
        names, settings = [name for name, _ in chosen if name], {k: v for _, one in chosen for k, v in one.items()}
        weights = model.state_dict()
        for name, weight in weights.items():
            if "order of rows" in names and name.endswith(("q_proj.weight", "k_proj.weight")):
                pairs = weight.view(-1, config.head_dim // 2, 2, config.dim)
                weights[name] = pairs.transpose(1, 2).reshape(weight.shape)
        if "head" in names:
            weights["lm_head.weight"] = weights["tok_embeddings.weight"]
        other = Llama(replace(config, **settings)).requires_grad_(False)
        other.load_state_dict(weights)
        found[" and ".join(names)] = other(TOKENS)
    return found


def judged(logits, config):
    """What a reader's logits (1, T, V) are, in words: the largest difference, where it begins, what was dropped."""
    known = changed(config)
    parts = where_they_part(lambda _: logits, lambda _: known[""], TOKENS)
    off = {name: (logits - other).abs().max().item() for name, other in known.items()}
    if parts is None:
        return f"{off['']:.0e}" if off[""] else "0"
    nearest = min(off, key=off.get)
    found = nearest and off[nearest] < RTOL_LOGITS * known[nearest].abs().max()
    why = f"lost: {nearest} (to {off[nearest]:.0e})" if found else "no change that was tried gives these logits"
    return f"**{off['']:.2g}** from position {parts[1]} on; {why}"


def cell(python, program, folder, config):
    """A folder and a reader: what stands in the table."""
    program = DRIVER.format(root=str(ROOT), tokens=TOKENS[0].tolist(), program=textwrap.dedent(program))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run([python, "-c", program, folder], cwd=folder.parent, env=env)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Error" in line or "terminate" in line] or [done.stderr]
        return f"refused: {said[-1].replace(str(folder.parent), '')[:130]}"
    return judged(torch.from_numpy(np.load(folder / "logits.npy"))[None], config)


def run(command, **how):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 * MINUTES, **how)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"TimeoutError: not done in {MINUTES} minutes")


def save(folder, config, words):
    save_checkpoint(make_model(config), folder, load_tokenizer())
    file = folder / "config.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    if words == "new":
        said = {key: value for key, value in said.items() if key not in ("rope_theta", "rope_scaling")}
    file.write_text(json.dumps(said), encoding="utf-8")


def row(python, program):
    cells = {}
    for size, config in CONFIGS.items():
        for words in ("new", "both"):
            with tempfile.TemporaryDirectory() as parent:
                save(folder := Path(parent) / f"{size}-{words}", config, words)
                said = cell(python, program, folder, config)
            cells[words] = f"{cells[words]}; narrow heads: {said}" if words in cells else said
        if not all(said.startswith("refused") for said in cells.values()):
            break
    return cells.values()


@contextmanager
def environment(packages):
    """(Python with these packages on top of ours, what pip said), in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = Path(place, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
        where = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip()
        ours = [path for path in sys.path if path.endswith("site-packages")]
        Path(where, "course.pth").write_text("\n".join(ours), encoding="utf-8")
        yield python, run([python, "-m", "pip", "install", "--quiet", *packages.split()])


def main(names):
    print("| reader | RoPE in new words only | in both | packages |\n|---|---|---|---|", flush=True)
    chosen = [(*both, name) for name, both in READERS.items() if not names or name.startswith(tuple(names))]
    for packages, readers in groupby(chosen, key=lambda one: one[0]):
        with environment(packages) as (python, done):
            for _, program, name in readers:
                cells = ["does not install: " + done.stderr[-160:], ""] if done.returncode else row(python, program)
                print("|", " | ".join(" ".join(text.split()) for text in (name, *cells, packages)), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
