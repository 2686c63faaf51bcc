"""Files that others made: JSON and .pth, read within limits. Nothing is unpickled."""

import json
import zipfile
from pathlib import Path

import torch

LARGEST_JSON = 10_000_000  # bytes; the index of 405 billion weights has about 100,000


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
        raise ValueError(f"{path} is not valid JSON ({error}): fetch the file again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object: fetch the file again.")
    return content


def open_pth(path: Path, mmap: bool = False) -> dict:
    """What torch.save wrote, if it is plain data and tensors, and no larger than the file."""
    _require_honest_zip(path)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def _require_honest_zip(path: Path):
    """Raise ValueError if the parts of a file that torch.save wrote unpack to more than the file holds.

    torch.save does not compress: such a file was made to fill the memory of whoever opens it.
    """
    with zipfile.ZipFile(path) as parts:
        unpacked, size = sum(part.file_size for part in parts.infolist()), path.stat().st_size
    if unpacked > size:
        raise ValueError(f"{path} has {size:,} bytes, but unpacks to {unpacked:,}")


def require_honest_tensors(tensors: dict[str, torch.Tensor], size: int):
    """Raise ValueError unless the values are ordinary tensors that a file of `size` bytes can hold.

    A tensor may show one stored number as a huge matrix (stride 0), and many tensors may share one storage.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"{name} is no ordinary tensor")
    claimed = sum(tensor.nbytes for tensor in tensors.values())
    if claimed > 2 * size:  # tied embeddings show one matrix twice
        raise ValueError(f"its tensors claim {claimed:,} bytes, but the file has {size:,}")
