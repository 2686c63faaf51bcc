"""Files that others made: JSON, read within limits, and what is there that cannot be read."""

import json
from pathlib import Path

LARGEST_JSON = 10_000_000  # bytes; the index of 405 billion weights has about 100,000
BEGIN = {  # how files begin that people have in place of the right one
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: run git lfs pull in its folder.",
    b"\x80\x02\x8a\nl\xfc\x9cF": "is in the format of torch.save before PyTorch 1.6. If you trust it, write it again: "
    "torch.save(torch.load(path, weights_only=True), path).",
    b"GGUF": "is in llama.cpp's format, GGUF: use the same model's safetensors.",
    b"<": "is a web page, perhaps one that asks you to log in: fetch the file itself.",
}
INSTEAD = {  # what may be there in place of model.safetensors, in this order, and what to do
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
    known = (text for begin, text in BEGIN.items() if start.startswith(begin))
    return f"{path} {next(known, f'{why[:300]}: fetch the file again.')}"


def what_instead(folder: Path) -> str:
    """What a folder without model.safetensors has in its place, and what to do."""
    return next(f"{min(found).name} {so}" for name, so in INSTEAD.items() if (found := [*folder.glob(name)]))


def read_json(path: Path) -> dict:
    """The object in a JSON file.

    Raises:
        ValueError: if the file is too large, no JSON, or holds no object.
    """
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path} has more than {LARGEST_JSON:,} bytes, too many to be one of a model: fetch it again.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise ValueError(unreadable(path, f"is not valid JSON ({error})")) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object: fetch the file again.")
    return content
