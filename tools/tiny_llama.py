"""Train a tiny LLaMA and save it as a folder: how assets/tiny-llama was made, and how you make one from your own text.

python -m tools.tiny_llama --out runs/mine --text notes.txt      # make tiny-llama FOLDER=runs/mine ARGS="..."
"""

import argparse
import json
import time
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

CARD = ASSETS / "card.md"
REFERENCE = "the Python language reference (`pydoc_data.topics`, PSF License), paragraphs that repeat left out"


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


def main():
    """Train a tiny LLaMA on the Python reference, or on your own text, and save it as a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--text", type=Path, help="your own text: a UTF-8 file, or a folder of them")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--seed", type=int, default=0)
    out, own, steps, seed = vars(parser.parse_args()).values()
    if out.exists():
        parser.error(f"{out} exists and is kept: choose another name.")
    out.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    text, held_out = train_val_split(load_text(own))
    tokenizer = train_tokenizer(text, TINY.vocab_size)
    generator = set_seed(seed)
    model = Llama(TINY).to(pick_device())

    def report(step: int, loss: float) -> None:
        print(f"\rstep {step} of {steps}, loss {loss:5.2f}", end="", flush=True)

    def read() -> torch.Tensor:
        return encode(without_some_merges(tokenizer, 0.05, generator), text)

    train(model, read, steps=steps, seed=seed, report=report)
    print()
    command = f"python -m tools.tiny_llama --out {out} {f'--text {own} ' if own else ''}--steps {steps} --seed {seed}"
    card = CARD.read_text(encoding="utf-8").format(
        name=out.name, parameters=count_parameters(TINY), config=TINY, data=f"`{own.name}`" if own else REFERENCE,
        command=command, minutes=(time.perf_counter() - start) / 60,
        licence="yours to choose" if own else "MIT, as the course",
        held_out=bits_per_byte(model, tokenizer, held_out), trained=bits_per_byte(model, tokenizer, text),
    )  # fmt: skip
    save_checkpoint(model.cpu().half(), out, tokenizer, card)  # 16 bits: half the bytes, the same text
    print(card)


if __name__ == "__main__":
    main()
