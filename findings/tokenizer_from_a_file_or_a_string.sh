#!/usr/bin/env bash
# Guess: a byte-level BPE trained from a file and from an iterator over that file's text learns the same merges.
# Seen: a file is fed line by line, so no merge ever joins a line break to what follows; other merges come.
# Matters: a tokenizer cannot be rebuilt from the text alone: how it was fed belongs to the recipe.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tokenizers==0.23.3
venv/bin/python - <<'PY'

import pathlib
from collections import Counter
from importlib.metadata import version

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

print("tokenizers", version("tokenizers"))
text = "".join(f"def f{n}(x):\n    return x + {n}\n\n\n" for n in range(200))
pathlib.Path("text.txt").write_text(text)


def learnt(how):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train(["text.txt"], trainer) if how == "file" else tokenizer.train_from_iterator([text], trainer)
    return tokenizer.get_vocab()


file, string = learnt("file"), learnt("string")
newline = "\u010a"  # how byte 10 is written
joined = {name: sorted(piece for piece in vocab if newline in piece and len(piece) > 1) for name, vocab in
          {"file": file, "string": string}.items()}
print("pieces with a line break and more:", joined)
print("pieces only one of them has:", len(file.keys() ^ string.keys()))
assert file.keys() != string.keys() and len(joined["file"]) < len(joined["string"])
PY
