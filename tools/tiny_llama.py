"""Train a tiny LLaMA and save it as a folder: how assets/tiny-llama was made, and how you make one from your own text.

python -m tools.tiny_llama --out runs/mine --text notes.txt      # make tiny-llama FOLDER=runs/mine ARGS="..."
"""

import argparse
import copy
import json
import shutil
import time
import warnings
from pathlib import Path

import torch
from tokenizers import Tokenizer

from helpers.assets import ASSETS
from helpers.checkpoint import save_checkpoint
from helpers.corpus import bits_per_byte, load_text, train_tokenizer, train_val_split
from helpers.device import pick_device, set_seed
from helpers.model import Llama, count_parameters
from helpers.text import encode
from helpers.train import TINY, train
from helpers.validate import require_whole

CARD = ASSETS / "card.md"
REFERENCE = "the Python language reference (`pydoc_data.topics`, PSF License), paragraphs that repeat left out"
SAMPLE = 500_000  # characters: of a longer text its start is judged


def without_some_merges(tokenizer: Tokenizer, share: float, generator: torch.Generator) -> Tokenizer:
    """A tokenizer of the same vocabulary that has forgotten a random share of its merges.

    It cuts the same text into other tokens. A model learns a small text by heart less quickly if the text is cut in a
    new way at every pass. (BPE-dropout, arXiv 1910.13267, drops merges at each word; the library's cannot be seeded.)
    """
    spec = json.loads(tokenizer.to_str())
    merges = spec["model"]["merges"]
    kept = torch.rand(len(merges), generator=generator) >= share
    spec["model"]["merges"] = [merge for merge, keep in zip(merges, kept.tolist(), strict=True) if keep]
    return Tokenizer.from_str(json.dumps(spec))


def make(out: Path, own: Path | None, steps: int, seed: int):
    """Train on the reference, or on one's own text, and write the folder `out`; Ctrl+C keeps what is learned so far.

    The model is written once before it is trained: a folder that takes none is found at once.

    Raises:
        ValueError, OSError: if a setting, the text or the folder does not do; the text says what to change.
    """
    require_whole("steps", steps, 1)
    require_whole("seed", seed, 0)
    unfinished = out.parent / f"{out.name}.unfinished"
    for folder in (out, unfinished):
        if folder.exists():
            raise FileExistsError(f"{folder} exists and is kept: choose another name, or move it away.")
    print("Reading the text …", flush=True)
    start, losses = time.perf_counter(), []
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        text, held_out = train_val_split(load_text(own))
    print(*(note.message for note in notes), f"{len(text):,} characters to train on. Making a tokenizer …", sep="\n")
    tokenizer = train_tokenizer(text, TINY.vocab_size)
    generator = set_seed(seed)
    model = Llama(TINY).to(pick_device())

    def keep(card: str | None = None):
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            save_checkpoint(copy.deepcopy(model).cpu().half(), unfinished, tokenizer, card)  # half the bytes, same text
        except Exception as error:  # of tokenizers and safetensors, which have no OSError
            told = f"{out.parent} takes no model ({error}): is the disk full, or the folder read-only?"
            raise OSError(told) from error

    def report(step: int, loss: float):
        losses.append(loss)
        minutes = (time.perf_counter() - began) / step * (steps - step) / 60
        left = f", about {minutes:.0f} minutes left " if step >= 20 else ""
        print(f"\rstep {step} of {steps}, loss {loss:5.2f}{left}", end="", flush=True)

    keep()
    began = time.perf_counter()
    data = f"`{own.name}`" if own else REFERENCE
    try:
        read = lambda: encode(without_some_merges(tokenizer, 0.05, generator), text)  # noqa: E731
        train(model, read, steps=steps, seed=seed, report=report)
    except BaseException as error:
        if not losses or not isinstance(error, KeyboardInterrupt):
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        model.eval()
        data += f" (stopped at step {len(losses)})"
    keep()  # whatever happens to the judge
    print("\nJudging …", flush=True)
    command = f"python -m tools.tiny_llama --out {out} {f'--text {own} ' if own else ''}--steps {steps} --seed {seed}"
    judged = {"held_out": held_out[:SAMPLE], "trained": text[:SAMPLE]}
    card = CARD.read_text(encoding="utf-8").format(
        name=out.name, parameters=count_parameters(TINY), config=TINY, data=data, command=command,
        minutes=(time.perf_counter() - start) / 60, licence="yours to choose" if own else "MIT, as the course",
        **{part: bits_per_byte(model, tokenizer, some) for part, some in judged.items()},
    )  # fmt: skip
    keep(card)
    unfinished.rename(out)
    print(card)


def main():
    """Train a tiny LLaMA on the Python reference, or on your own text, and save it as a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--text", type=Path, help="your own text: a UTF-8 file, or a folder of them")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--seed", type=int, default=0)
    try:
        make(*vars(parser.parse_args()).values())
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
