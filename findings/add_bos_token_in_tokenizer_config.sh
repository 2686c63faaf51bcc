#!/usr/bin/env bash
# Guess: add_bos_token in tokenizer_config.json of a folder with a tokenizer.json decides whether BOS is put in front.
# Seen: the file's own post-processor decides; the key does nothing, the attribute says False even where BOS is added.
# Matters: logits shift by one BOS between folders whose configs say the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0
venv/bin/python - <<'PY'
import json
import pathlib

import torch
import transformers

transformers.logging.set_verbosity_error()
print("torch", torch.__version__, "transformers", transformers.__version__)

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

words = {"<s>": 0, "</s>": 1, "<unk>": 2, "the": 3, "cat": 4}
for stored in (False, True):
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if stored:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    for asked in (False, True):
        folder = pathlib.Path(f"{stored}{asked}")
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": asked, "bos_token": "<s>"}))
        read = AutoTokenizer.from_pretrained(folder)
        ids = read("the cat").input_ids
        attribute = getattr(read, "add_bos_token", None)
        print(f"the file puts <s> in front: {stored}; add_bos_token: {asked} -> {ids}, attribute {attribute}")
        assert (ids[0] == 0) == stored
PY
