"""Texts to train on, without a download: the Python language reference that ships with Python, or your text.

The text is the help topics of `pydoc_data.topics` (PSF licence). Another Python version ships slightly other text, so
printed examples use the small fixed `helpers.text.excerpt()`. `bits_per_byte` says how well a model predicts a text.
"""

import math
import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F

from helpers.validate import require_whole

END_OF_TEXT = "<|end_of_text|>"  # a saved model's, too: other tools score by it, and pad a batch with it
MIN_CHARACTERS = 20_000  # of a text: its held-out tenth then fills a few windows of 256 tokens
MAX_CHARACTERS = 10_000_000  # more would take gigabytes, because a text is encoded at once
SKIP = -100  # a target that cross_entropy leaves out
MAX_LOGITS = 2**21  # computed at a time (8 MB of float32); more at once are no faster


def reference_text() -> str:
    """The Python language reference, topic by topic in alphabetical order, without paragraphs that stood before."""
    from pydoc_data.topics import topics

    return deduplicate("\n\n".join(topics[name].strip() for name in sorted(topics)))[0]


def deduplicate(text: str) -> tuple[str, int]:
    """A text without the paragraphs that stood before (but for blanks), and how many these are.

    With the copies a held-out part would be no test: much of it would have been read in training.
    """
    seen, kept = set(), []
    for paragraph in (paragraphs := text.split("\n\n")):
        words = " ".join(paragraph.split())
        if not words or words not in seen:
            seen.add(words)
            kept.append(paragraph.rstrip())
    return "\n\n".join(kept), len(paragraphs) - len(kept)


def load_text(source: str | Path | None = None) -> str:
    """Your own text, or the Python reference; paragraphs that stood before are left out, and a warning says how many.

    Args:
        source: None for the reference; a UTF-8 file; or a folder. Every file in a folder and in the folders below it
            is read, in the order of their names; names that start with a dot are left out, and so is, with a warning
            that names it, what is not UTF-8 text.

    Raises:
        FileNotFoundError: if nothing is there.
        ValueError: if the file is not UTF-8 text, or if all files together hold fewer than MIN_CHARACTERS.
    """
    if source is None:
        return reference_text()
    source = Path(source).expanduser()
    if not source.exists():
        raise FileNotFoundError(f"{source.absolute()} is not there: pass a text file, or a folder of text files.")
    inside = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    shown = [path for path in inside if not any(part.startswith(".") for part in path.relative_to(source).parts)]
    texts, left_out = [], []
    for path in shown:
        try:
            texts.append(_read(path))
        except ValueError:
            if path == source:
                raise
            left_out.append(str(path.relative_to(source)))
    text, n_copies = deduplicate("\n\n".join(filter(None, texts)))
    notes = []
    if left_out:
        some = ", ".join(left_out if len(left_out) < 6 else [*left_out[:5], "…"])
        notes.append(f"{len(left_out)} file(s) are left out, which are not UTF-8 text: {some}.")
    if n_copies:
        notes.append(f"{n_copies:,} paragraph(s) are left out, which stood before: with copies nothing is held out.")
    if len(text) > MAX_CHARACTERS:
        notes.append(f"{len(text):,} characters are many: encoded at once they take gigabytes; {MAX_CHARACTERS:,} do.")
    if len(text) < MIN_CHARACTERS:
        has = f"{source} holds {len(text):,} characters in {len(texts)} file(s), too few to learn from and to judge by"
        least = f"pass at least {MIN_CHARACTERS:,}; the Python reference has {len(reference_text()):,}"
        raise ValueError(f"{has}: {least}. {' '.join(notes)}")
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return text


def _read(path):
    if path.suffix == ".ipynb":
        raise ValueError(f"{path} is a notebook, whose file is no plain text: export it as a script, or leave it out.")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()  # -sig: some editors mark the start of a file
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8, or leave it out.") from error
    if "\0" in text:
        raise ValueError(f"{path} holds zero bytes, so it is not text: leave it out.")
    return text


def train_val_split(text: str, fraction: float = 0.1) -> tuple[str, str]:
    """The text to train on, and the last `fraction` to judge by; cut between paragraphs, or lines, words, letters.

    Warns if more than half of the part to judge by, counted in letters of whole lines, also stands in the other part.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction} must lie between 0 and 1, both excluded, for example 0.1.")
    start = int(len(text) * (1 - fraction))
    for place in ("\n\n", "\n", " ", ""):  # some scripts put no spaces
        cut = text.find(place, start)
        if cut > 0 and len(text) - cut > (len(text) - start) * 3 / 4:
            training, held_out = text[:cut], text[cut:]
            known = {line.strip() for line in training.splitlines()}
            lines = [line.strip() for line in held_out.splitlines()]  # of any length: a verse, or a whole paragraph
            share = sum(len(line) for line in lines if line in known) / max(1, sum(map(len, lines)))
            if share > 0.5:
                again = f"lines with {share:.0%} of the letters to judge by stand in the training part, too"
                warnings.warn(f"{again}: this held-out part is no test. Is there a copy in the text?", stacklevel=2)
            return training, held_out
    raise ValueError(f"a text of {len(text)} characters cannot be cut in two: pass a longer text.")


def train_tokenizer(text: str, vocab_size: int = 1024) -> Tokenizer:
    """Byte-level BPE: start from the 256 bytes, merge the most frequent neighbours until vocab_size is reached."""
    if not isinstance(vocab_size, int) or not 257 <= vocab_size <= 1_000_000:
        raise ValueError(f"vocab_size={vocab_size!r} must be a whole number from 257 (bytes and the end) to 1,000,000.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    known = {"special_tokens": [END_OF_TEXT], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    cuts = (0, *(word.end() for word in re.finditer(r"\S{1000}", text)), len(text))  # one long word would take minutes
    pieces = (text[start:end] for start, end in pairwise(cuts))
    tokenizer.train_from_iterator(pieces, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **known))
    return tokenizer


def batches(
    tokens: torch.Tensor, batch_size: int, seq_len: int, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless random windows (inputs, targets), each (batch_size, seq_len); the targets are one token further on.

    Args:
        tokens: a long text, (N,) int64.
        batch_size, seq_len: windows per batch, and their length [token].
        generator: seeded CPU generator that draws the starts.

    Raises:
        ValueError: if a size is no whole number >= 1, or the text is shorter than one window and its targets.
    """
    for name, size in {"batch_size": batch_size, "seq_len": seq_len}.items():
        require_whole(name, size, 1)
    if len(tokens) < seq_len + 1:
        raise ValueError(f"{len(tokens)} tokens are fewer than seq_len + 1 = {seq_len + 1}: pass a longer text.")
    steps = torch.arange(seq_len + 1)
    while True:
        start = torch.randint(len(tokens) - seq_len, (batch_size, 1), generator=generator)
        window = tokens[start + steps]
        yield window[:, :-1], window[:, 1:]


@torch.no_grad()
def bits_per_byte(model: torch.nn.Module, tokenizer: Tokenizer, text: str) -> float:
    """Bits the model needs per byte of a text: comparable across tokenizers.

    What the tokenizer puts around a text (a BOS, for example) is read and not judged. The text is read in windows of
    max_seq_len tokens that overlap by half. Except in the first window, only the second half is counted, so that each
    token is judged with at least half a window before it.
    """
    device = model.tok_embeddings.weight.device
    encoded = tokenizer.encode(text)
    tokens, added = torch.tensor(encoded.ids, dtype=torch.int64), torch.tensor(encoded.special_tokens_mask).bool()
    half = min(model.config.max_seq_len // 2, math.ceil((len(tokens) - 1) / 2))  # a short text is read without padding
    if half == 0:
        raise ValueError(f"max_seq_len={model.config.max_seq_len} and a text of {len(tokens)} tokens: each must be at "
                         "least 2. Pass a longer text, or a model that reads more than one token.")  # fmt: skip
    n_halves = max(2, math.ceil((len(tokens) - 1) / half))
    windows, targets = (
        F.pad(ids, (0, n_halves * half + 1 - len(ids)), value=SKIP).unfold(0, 2 * half + 1, half)
        for ids in (tokens, tokens.masked_fill(added, SKIP))
    )
    targets = targets[:, 1:].clone()
    targets[1:, :half] = SKIP  # the window before has judged them
    n_rows = max(1, MAX_LOGITS // (2 * half * model.config.vocab_size))
    # A first token of the text itself, with nothing before it, costs what it costs if all are equally likely.
    nats = 0.0 if added[0] else math.log(model.config.vocab_size)
    for inputs, judged in zip(windows[:, :-1].clamp(min=0).split(n_rows), targets.split(n_rows), strict=True):
        logits = model(inputs.to(device))  # the padding of the last window comes after every token that is judged
        nats += F.cross_entropy(logits.flatten(0, 1), judged.flatten().to(device), reduction="sum").item()
    return nats / math.log(2) / len(text.encode())
