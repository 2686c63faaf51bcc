"""JSON that others made, read within limits."""

import json
from pathlib import Path

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
