#!/usr/bin/env bash
# Guess: pad_token = eos_token is harmless: what is padding is said by the attention mask, and the end is learned.
# Seen: DataCollatorForLanguageModeling goes by the id, not the mask: every end of text, padded or not, gets label -100.
# Matters: LLaMA names no padding, so this is what people set; a model trained so is never asked where a text ends.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0
venv/bin/python - <<'PY'
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

print("torch", torch.__version__, "transformers", transformers.__version__)
words = {"<pad>": 0, "<end>": 1, "one": 2, "two": 3}
labels = {}
for pad in ("<end>", "<pad>"):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), eos_token="<end>", pad_token=pad)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    batch = collate([{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in ([2, 3, 2, 1], [3, 1])])
    labels[pad] = batch["labels"].tolist()
    print("pad_token", pad, "labels", labels[pad], "mask", batch["attention_mask"].tolist())
assert labels["<pad>"] == [[2, 3, 2, 1], [3, 1, -100, -100]]
assert labels["<end>"] == [[2, 3, 2, -100], [3, -100, -100, -100]]
PY
