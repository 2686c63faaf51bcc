"""Data that the course brings along: a small trained model, its text, and the stored results of runs that take long."""

import json
from pathlib import Path

ASSETS = Path(__file__).parent


def stored_result(name: str) -> dict:
    """The numbers of a run that takes too long for a notebook, as a script in benchmarks/experiments has written them.

    Args:
        name: "training", "feed_forward", "induction", "residual", "dose", "product" or "kv_heads".

    Raises:
        ValueError: if there is no such result; the text lists those there are.
    """
    present = sorted(path.stem for path in ASSETS.glob("*.json"))
    if name not in present:
        raise ValueError(f"no result {name!r} is stored: ask for one of {present}.")
    return json.loads((ASSETS / f"{name}.json").read_text(encoding="utf-8"))
