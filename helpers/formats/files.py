"""The files of a checkpoint, read within limits: JSON, safetensors, and Meta's .pth, of which nothing is unpickled."""

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open

from helpers.device import is_out_of_memory

MAX_JSON_BYTES = 10_000_000  # the index of 405 billion weights has about 100,000
IGNORED = "rotary_emb.inv_freq"  # a table that older files carry; computed here from the config
# Names that stand beside matrices of a few bits, in MLX; GPTQ and AWQ; bitsandbytes; compressed-tensors and FP8.
QUANTISED = re.compile(r"\.(scales|biases|qweight|qzeros|g_idx|absmax|SCB|weight_packed|weight_scale(_inv)?)$")
FIRST_BYTES = {  # of files that people have in place of the right one, what such a file is, and what to do
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: run git lfs pull in its folder.",
    b"\x80\x02\x8a\nl\xfc\x9cF": "is in the format of torch.save before PyTorch 1.6. If you trust it, write it again: "
    "torch.save(torch.load(path, weights_only=True), path).",
    b"GGUF": "is in llama.cpp's format, GGUF: use the same model's safetensors.",
    b"<": "is a web page, perhaps one that asks you to log in: fetch the file itself.",
}
INSTEAD = {  # files that may be there in place of model.safetensors, in this order, and what to do
    "model.safetensors.index.*.json": "is a variant's index: rename it to model.safetensors.index.json.",
    "*-of-*.safetensors": "is one of several: fetch model.safetensors.index.json as well, which names them all.",
    "model.*.safetensors": "is a variant, which is asked for by name: rename it to model.safetensors.",
    "consolidated*.safetensors": "has other names than config.json goes with: fetch model.safetensors.",
    "adapter_*": "belongs to an adapter (peft), which changes another model: open what both make together, "
    "AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload().save_pretrained(another).",
    "*.safetensors": "holds weights under another name: rename it to model.safetensors.",
    "pytorch_model_fsdp*.bin": "is pickled, and FSDP's: rename it to pytorch_model.bin, which transformers opens.",
    "pytorch_model_fsdp*": "is FSDP's, a part of the weights for each process: join them, by accelerate's command "
    "`accelerate merge-weights pytorch_model_fsdp_0 another`, and put config.json beside.",
    "pytorch_model*.bin*": "is pickled: open what transformers makes of it, by "
    "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(another).",
    "config.json": "is here, but no weights as safetensors: fetch or convert them.",
}


def unreadable(path: Path, why: str) -> str:
    """A sentence about a file that cannot be read, which is there: what it is, or why, and what to do."""
    with path.open("rb") as file:
        start = file.read(30)
    for first_bytes, what_it_is in FIRST_BYTES.items():
        if start.startswith(first_bytes):
            return f"{path} {what_it_is}"
    return f"{path} {why[:300]}: fetch the file again."


def what_instead(folder: Path) -> str:
    """A sentence about the file that a folder without model.safetensors has in its place, and what to do."""
    found = ((sorted(folder.glob(pattern)), advice) for pattern, advice in INSTEAD.items())
    return next(f"{paths[0].name} {advice}" for paths, advice in found if paths)


def read_json(path: Path) -> dict:
    """The object in a JSON file.

    Raises:
        ValueError: if the file is too large, no JSON, or holds no object.
    """
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ValueError(f"{path} has more than {MAX_JSON_BYTES:,} bytes, too many for a model's: fetch it again.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise ValueError(unreadable(path, f"is not valid JSON ({error})")) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object: fetch the file again.")
    return content


class StoredWeight:
    """A lazy tensor, read from its file when indexed: .shape is its shape, [...] reads all of it, [:4] four rows."""

    def __init__(self, path: Path, stored):
        self._path, self._stored = path, stored
        self.shape = tuple(stored.get_shape())

    def __getitem__(self, part) -> torch.Tensor:
        with _errors_naming(self._path):
            return self._stored[part]


def open_weights(folder: Path, known: Iterable[str] = ()) -> dict[str, StoredWeight]:
    """Every weight of a folder, by Hugging Face's name; `known` are beginnings that a family gives to its names.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, the index names one that is not in the folder itself, or the weights' names
            are those of another format.
    """
    weights = {}
    for path in _files(folder):
        if not os.path.isfile(path):  # path.is_file() raises for a name that is too long
            so = what_instead(folder) if path.name == "model.safetensors" else "fetch it as well."
            raise FileNotFoundError(f"{path} is missing: {so}")
        with _errors_naming(path):
            file = safe_open(path, framework="pt")
            names = (name for name in sorted(file.keys()) if not name.endswith(IGNORED))
            weights |= {name: StoredWeight(path, file.get_slice(name)) for name in names}
    return _as_llama_names(weights, folder, known)


def _files(folder):
    """The paths of the weights: model.safetensors, or the files that its index names; some may be missing."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if not index.is_file():
        return [whole]
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict):
        raise ValueError(f"{index} has no weight_map that says which weight is in which file: fetch it again.")
    names = sorted(set(map(str, listed.values())))
    for name in names:
        if (folder / name).parent != folder or not name.endswith(".safetensors") or len(name) > 255:
            raise ValueError(f"{index} names {name[:80]!r}: only .safetensors files of the same folder are read.")
    files = [folder / name for name in names]
    if not os.path.isfile(whole) or files == [whole]:
        return files
    if files and all(map(os.path.isfile, files)):
        raise ValueError(f"{folder} holds two sets of weights, {whole.name} and the files that {index.name} names: "
                         f"transformers reads {whole.name}. Delete {index.name} to keep that one, or {whole.name} to "
                         "keep the others.")  # fmt: skip
    return [whole]  # transformers leaves the index when it saves again into one file


def _as_llama_names(weights, folder, known):
    """Weights as LlamaForCausalLM names them; those of LlamaModel lack "model."; other prefixes are refused."""
    if few := next(filter(QUANTISED.search, weights), None):
        raise ValueError(f"{folder}: the weights are quantised ({few[:80]!r}), and this course reads 16 bits or more. "
                         "Use a version of the model that is not quantised.")  # fmt: skip
    prefixes = {name.partition("layers.0.")[0] for name in weights if re.search(r"(^|\.)layers\.0\.", name)}
    if not prefixes or "model." in prefixes or any(name.startswith(tuple(prefixes - {""})) for name in known):
        return weights
    if prefix := re.sub(r"(?<=\.)model\.$", "", min(prefixes))[:80]:
        raise ValueError(f"{folder}: the names of its weights begin with {prefix!r}, as in a model of torch.compile "
                         "('_orig_mod.') or inside another. Write each file again without it, by safetensors.torch: "
                         "save_file("
                         f"{{name.removeprefix({prefix!r}): weight for name, weight in load_file(file).items()}}, "
                         "file, {'format': 'pt'}).")  # fmt: skip
    return {name if name.startswith("lm_head.") else f"model.{name}": weight for name, weight in weights.items()}


@contextlib.contextmanager
def _errors_naming(path):
    """An error inside the `with` becomes a ValueError that names the file, unless memory is full."""
    try:
        yield
    except Exception as error:  # one of safetensors; or, for an impossible shape, one of PyTorch, with its stack
        if is_out_of_memory(error):
            raise
        why = str(error).partition("\n")[0]
        raise ValueError(unreadable(path, f"is damaged or cut short ({why})")) from error


def open_shards(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The weights of each .pth of a folder of Meta, by Meta's names, in the order of the files' numbers.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if one is damaged, or holds something other than tensors.
    """
    files = [path for path in folder.glob("consolidated.*.pth") if path.is_file()]
    files.sort(key=lambda path: (len(path.name), path.name))  # numbers may have leading zeros
    if not files and (folder / "consolidated.safetensors").is_file():
        raise ValueError(f"{folder} is in Mistral's own format, params.json and consolidated.safetensors: fetch "
                         "the same model in Hugging Face's, config.json and model*.safetensors.")  # fmt: skip
    if not files:
        raise FileNotFoundError(f"{folder} has params.json, but no consolidated.*.pth: fetch the weights as well.")
    shards = []
    for path in files:
        try:
            shards.append(_open_pth(path))
        except Exception as error:  # torch raises several kinds here; none of them may run code
            if is_out_of_memory(error):
                raise
            why = error if type(error) is ValueError else type(error).__name__  # torch's own text advises to unpickle
            text = f"is damaged or holds something other than tensors, and was not opened ({why})"
            raise ValueError(unreadable(path, text)) from error
    return shards


def _open_pth(path):
    """The tensors that torch.save wrote, if they are ordinary and no larger than the file."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
    if unpacked > size:  # torch.save does not compress: such a file was made to fill the memory of whoever opens it
        raise ValueError(f"{path} has {size:,} bytes, but unpacks to {unpacked:,}")
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"{str(name)[:80]} is no ordinary tensor")
    claimed = sum(tensor.nbytes for tensor in tensors.values())  # strides of 0 show one number as a matrix
    if claimed > 2 * size:  # tied embeddings show one matrix twice
        raise ValueError(f"its tensors claim {claimed:,} bytes, but the file has {size:,}")
    return tensors
