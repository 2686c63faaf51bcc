#!/usr/bin/env bash
# Guess: lm-eval's rolling log-likelihood of a text is a sum over its tokens, each after BOS and those before it.
# Seen: where the tokenizer adds BOS, as LLaMA's does, two of them are put in front and the second is scored, too.
# Matters: perplexity and bits per byte count what the model thinks of BOS after BOS, most of all for short texts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 lm-eval==0.4.13
cat > try.py <<'PY'
import logging
import math
from importlib.metadata import version

import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.disable(logging.WARNING)
print("lm-eval", version("lm_eval"), "transformers", transformers.__version__, "torch", torch.__version__)

# A LLaMA of random weights and a tokenizer of single bytes that puts BOS in front, like LLaMA's.
names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
inner = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
inner.decoder = decoders.ByteLevel()
inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(names), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1)).eval().requires_grad_(False)
for weight in model.parameters():
    torch.nn.init.normal_(weight, std=0.3) if weight.ndim == 2 else torch.nn.init.ones_(weight)
model.save_pretrained("saved")
tokenizer.save_pretrained("saved")

text = "The cat sat on the mat."
ids = tokenizer(text).input_ids
assert ids[0] == 0 and 0 not in ids[1:]


def by_hand(ids):
    """log p of each token but the first, in one pass."""
    logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return logs[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def by_lm_eval(**options):
    lm = HFLM(pretrained="saved", device="cpu", dtype="float32", batch_size=1, **options)
    rolling = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)], disable_tqdm=True)[0]
    plain = lm.loglikelihood([Instance("loglikelihood", {}, ("", text), 0)], disable_tqdm=True)[0][0]
    return rolling, plain


once, twice = by_hand(ids), by_hand([0, *ids])
rolling, plain = by_lm_eval()
other, _ = by_lm_eval(add_bos_token=False)
bits = {name: -number / math.log(2) / len(text) for name, number in {"hand": once.sum(), "rolling": rolling}.items()}
print(f"by hand, one BOS                     {once.sum():9.3f}  {bits['hand']:.3f} bits per byte")
print(f"loglikelihood after an empty context {plain:9.3f}")
print(f"loglikelihood_rolling                {rolling:9.3f}  {bits['rolling']:.3f} bits per byte")
print(f"by hand, two BOS, the second scored  {twice.sum():9.3f}  (BOS after BOS alone: {twice[0]:.3f})")
print(f"rolling with add_bos_token=False     {other:9.3f}")
assert max(abs(number - once.sum()) for number in (plain, other)) < 1e-2
assert abs(rolling - twice.sum()) < 1e-2 and rolling < once.sum() - 1
PY
HF_HUB_OFFLINE=1 TQDM_DISABLE=1 venv/bin/python try.py
