"""Which causal language models of the installed transformers see the future? Notebook 05's mask lens, on all of them.

Of every class for causal language modelling a tiny model with random weights reads 12 tokens, and again with the last
four exchanged. If a logit of the first eight moves, something leaks: by design, or not. About three minutes, offline.
Run: python benchmarks/audit.py --out audit.md
"""

import argparse
import contextlib
import io
import logging
import signal
import warnings
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SECONDS = 8  # for one model
KEEPS, LENGTH = 8, 12  # tokens that stay the same, and all
SMALL = {  # what configs call their sizes
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "decoder_ffn_dim", "moe_intermediate_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token"), 2),
    **dict.fromkeys(("head_dim", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "vocab_size": 99, "sliding_window": 4, "pad_token_id": 0, "layer_types": None, "is_decoder": True, "causal": True,
}  # fmt: skip


class TimeUp(Exception):
    """A model took too long."""


def small_model(config_class, model_class):
    """A tiny model of a class, with random weights large enough that a leak shows."""
    known = {*config_class().to_dict(), "is_decoder"}  # an encoder such as BERT is asked to be a decoder
    sizes = {name: value for name, value in SMALL.items() if name in known}
    if "qk_rope_head_dim" in known:  # a latent cache: every head makes its own key from it
        sizes["num_key_value_heads"] = SMALL["num_attention_heads"]
    config = config_class(**sizes)
    model = model_class(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    return model


@torch.no_grad()
def leak(model):
    """How far a logit of the first tokens moves when the last ones are exchanged, and the largest logit."""
    tokens = torch.arange(LENGTH)[None] * 7 % 90 + 3
    other = tokens.clone()
    other[:, KEEPS:] = (other[:, KEEPS:] + 11) % 90 + 3
    first, second = (model(ids, use_cache=False).logits[:, :KEEPS] for ids in (tokens, other))
    return (first - second).abs().max().item(), first.abs().max().item()


def audit(name):
    """(What was found, in a word; details) for one class name."""
    model_class = getattr(transformers, name, None)
    if model_class is None:
        return "not built", "no such class"
    signal.alarm(SECONDS)
    try:
        moved, largest = leak(small_model(model_class.config_class, model_class))
    except Exception as error:  # whatever a model of another shape raises
        return "not built", f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
    finally:
        signal.alarm(0)
    if not largest > 0:
        return "not built", f"logits of {largest}"
    return "leaks" if moved > 1e-4 * largest else "causal", f"moves by {moved:.1e} of {largest:.1f}"


def raise_time_up(*_):
    raise TimeUp(f"over {SECONDS} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("audit.md"), help="the page goes here")
    out = parser.parse_args().out
    torch.manual_seed(0)
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, raise_time_up)
    found = {}
    for name in sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found[name] = audit(name)
    lines = [f"# Which models see the future? transformers {transformers.__version__}", ""]
    for kind in ("leaks", "causal", "not built"):
        names = [name for name, (what, _) in found.items() if what == kind]
        lines += [f"**{kind}: {len(names)} of {len(found)}**", ""]
        lines += [f"- {name}: {found[name][1]}" for name in names] if kind != "causal" else [", ".join(names)]
        lines += [""]
    lines += [
        "A leak may be meant: a prefix that reads both ways, a permutation. Read the model before you call it a bug."
    ]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
