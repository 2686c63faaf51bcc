"""Files that torch.save wrote, read within limits. Nothing is unpickled."""

import zipfile
from pathlib import Path

import torch


def open_pth(path: Path) -> dict:
    """What torch.save wrote, if it is plain data and tensors, and no larger than the file."""
    _require_honest_zip(path)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


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
