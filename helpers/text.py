"""Real text without a download: the Python language reference that ships with Python, its tokenizer, batches.

The text is the help topics of `pydoc_data.topics` (PSF licence). Another Python version ships slightly other text, so
printed examples use the small fixed `excerpt()`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TINY_LLAMA = Path(__file__).parent / "assets" / "tiny-llama"
END_OF_TEXT = "<|end_of_text|>"


def reference_text(unique: bool = True) -> str:
    """The Python language reference, topic by topic in alphabetical order.

    Args:
        unique: leave out every paragraph that already stood in an earlier topic. Long topics repeat short ones, and
            with the copies in, a held-out part is no test: much of it has been read in training.
    """
    from pydoc_data.topics import topics

    seen, kept = set(), []
    for name in sorted(topics):
        for paragraph in topics[name].strip().split("\n\n"):
            words = " ".join(paragraph.split())
            if not unique or words not in seen:
                seen.add(words)
                kept.append(paragraph.rstrip())
    return "\n\n".join(kept)


def held_out_split(text: str, fraction: float = 0.1) -> tuple[str, str]:
    """Text to train on, and the last `fraction` of it to judge by, cut at a paragraph."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction} must lie between 0 and 1, both excluded, for example 0.1.")
    cut = text.find("\n\n", int(len(text) * (1 - fraction)))
    if cut < 0:
        raise ValueError(f"a text of {len(text)} characters has no paragraph break to cut at: pass a longer text.")
    return text[:cut], text[cut:]


def excerpt() -> str:
    """Three fixed paragraphs of the reference, the same under every Python version."""
    return (Path(__file__).parent / "assets" / "excerpt.txt").read_text(encoding="utf-8")


def train_tokenizer(text: str, vocab_size: int = 1024) -> Tokenizer:
    """Byte-level BPE: start from the 256 bytes, merge the most frequent neighbours until vocab_size is reached."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text],
        trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


def load_tokenizer(folder: str | Path = TINY_LLAMA) -> Tokenizer:
    """The tokenizer of a checkpoint folder: `.encode(text).ids` and `.decode(ids)`.

    Raises:
        FileNotFoundError: if the folder has no tokenizer.json.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: pass a folder that holds a tokenizer.json.")
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, text: str) -> torch.Tensor:
    """Token ids of a text, (T,) int64."""
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64)


def without_some_merges(tokenizer: Tokenizer, share: float, generator: torch.Generator) -> Tokenizer:
    """A tokenizer of the same vocabulary that has forgotten a random share of its merges.

    It cuts the same text into other tokens. A small text read in a new cut at every pass is learned by heart less
    quickly. (BPE-dropout, arXiv 1910.13267, drops merges at each word; the library's version cannot be seeded.)
    """
    spec = json.loads(tokenizer.to_str())
    merges = spec["model"]["merges"]
    kept = torch.rand(len(merges), generator=generator) >= share
    spec["model"]["merges"] = [merge for merge, keep in zip(merges, kept.tolist(), strict=True) if keep]
    return Tokenizer.from_str(json.dumps(spec))


def batches(
    tokens: torch.Tensor, batch_size: int, seq_len: int, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random windows without end: (inputs, targets), each (batch_size, seq_len); targets are one token further on.

    Args:
        tokens: a long text, (N,) int64.
        batch_size: windows per batch.
        seq_len: length of a window [token].
        generator: seeded CPU generator that draws the starts.

    Raises:
        ValueError: if the text is shorter than one window and its targets.
    """
    if len(tokens) < seq_len + 1:
        raise ValueError(f"{len(tokens)} tokens are fewer than seq_len + 1 = {seq_len + 1}: pass a longer text.")
    steps = torch.arange(seq_len + 1)
    while True:
        start = torch.randint(len(tokens) - seq_len, (batch_size, 1), generator=generator)
        window = tokens[start + steps]
        yield window[:, :-1], window[:, 1:]
