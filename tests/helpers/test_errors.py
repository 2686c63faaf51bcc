"""Errors are for learners: each names the value that was wrong, or both, and says what to do instead.

What a file that is damaged, hostile or of another kind gives is in test_fuzz.py, test_hostile.py, test_checkpoint.py;
what a call with a cache gives is in test_fuzz.py, what a text of one's own in test_text.py.
"""

import random
import re
from dataclasses import asdict, replace
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from beyond import parallel
from beyond.families import PUBLISHED, edits
from beyond.fast_decode import prepare_for_decoding
from explorers import drawings
from helpers import checkpoint, corpus, device, generate, masks, plots, text, train
from helpers.checkpoint import model_from_weights
from helpers.interventions import attention_by_layer, held_out_loss, outputs_of, without_heads
from helpers.model import (
    KVCache,
    Llama,
    LlamaConfig,
    RMSNorm,
    apply_rope,
    attention_weights,
    causal_visible,
    count_parameters,
    rope_angles,
    rope_inv_freq,
    swiglu_hidden_dim,
)  # fmt: skip
from tests.support.files import OURS
from tests.support.models import TINY, make_model

TOKENS = torch.tensor([[1, 2, 3]])
MODEL = make_model(OURS).eval()
RELATIVE = replace(PUBLISHED["Mistral 7B"], vocab_size=8, dim=8, hidden_dim=8, n_heads=1, n_kv_heads=1, n_layers=1)


def config(**change):
    return LlamaConfig(**{**asdict(TINY), "head_dim": None, **change})


def scaled(kind, **change):
    return config(rope_scaling={"type": kind, "factor": 2.0} | change)


def write(tokens=TOKENS, n=1, **settings):
    return generate.generate(MODEL, tokens, n, **settings)


def run(scale=1.0, **settings):
    own = make_model(replace(TINY, max_seq_len=8), scale)
    return train.train(own, lambda: torch.arange(50), **{"steps": 1} | settings)


def one_too_many():
    cache = MODEL.new_cache(1, 3)
    MODEL(TOKENS, cache)
    MODEL(TOKENS[:, :1], cache)


def inside(change):
    with change:
        MODEL(TOKENS)


def full(place, call):
    with mock.patch(place, side_effect=RuntimeError("out of memory")):
        call()


def offline(kind):
    with mock.patch("huggingface_hub.snapshot_download", side_effect=kind("no network")):
        checkpoint.fetch_checkpoint("a/b")


def pick(name):
    no_cuda = mock.patch("torch.cuda.is_available", return_value=False)
    with mock.patch.dict("os.environ", COURSE_DEVICE=name), no_cuda:
        device.pick_device()


# (what is asked for, words that its reader has to find, in this order; … stands for anything)
SAID = [
    (lambda: config(dim=30), "dim=30 … n_heads=4 … pass head_dim"),
    (lambda: config(dim=20), "head_dim=5 … dim=20 … pass an even head_dim"),
    (lambda: config(n_kv_heads=3), "n_heads=4 … n_kv_heads=3 … divisors of n_heads"),
    (lambda: config(tie_embeddings=1), "tie_embeddings=1 must be True or False"),
    (lambda: config(rope_theta=1.0), "rope_theta=1.0 … > 1 … for example"),
    (lambda: config(norm_eps=float("nan")), "norm_eps=nan must be a finite number"),
    (lambda: config(norm_eps="1e-5"), "must be a finite number"),
    (lambda: config(rope_theta=float("inf")), "must be a finite number"),
    (lambda: config(rope_scaling="linear"), "rope_scaling='linear' … a dict such as"),
    (lambda: scaled("yarn"), "'yarn' … use one of … 'linear', 'llama3', 'ntk'], or None"),
    (lambda: scaled("linear", factor=0.5), "factor=0.5 … >= 1"),
    (lambda: scaled("llama3", low_freq_factor=4.0), "got 4.0 and 4.0 … 1 and 4"),
    (lambda: rope_inv_freq(8, 1e4, {"rope_type": "linear", "factor": 4.0}),
     "key 'rope_type' … 'type': pass {'type': 'linear', 'factor': 4.0}"),
    (lambda: config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope_type 'yarn' is not known: use one of"),
    (lambda: config(rope_scaling={}), "{} has no key 'type': use one of"),
    (lambda: config(rope_scaling={"typ": "linear", "factor": 4.0}), "{'typ': … no key 'type'"),
    (lambda: MODEL(TOKENS[0]), "(3,): pass (batch, tokens)"),
    (lambda: MODEL(TOKENS.to("meta")), "meta … cpu: pass tokens.to('cpu')"),
    (lambda: MODEL(TOKENS - 2), "-1 to 1 … vocab_size=64"),
    (lambda: MODEL(TOKENS, n_pad=[1, 1]), "(2,) … (1, 3): pass one whole number per row"),
    (lambda: MODEL(TOKENS, n_pad=[3]), "3 to 3 … 0 to 2: leave every row a token"),
    (lambda: MODEL.new_cache(2, 10**13), "2 rows and 10,000,000,000,000 tokens … ask for fewer"),
    (lambda: MODEL(TOKENS, Llama(replace(OURS, n_kv_heads=4)).new_cache(1)), "(2, 2, 8) … (2, 4, 8) … new_cache()"),
    (lambda: apply_rope(torch.ones(1, 1, 1, 8), *torch.ones(2, 1, 8)), "head_dim 8 … 8 angles: pass head_dim / 2"),
    (lambda: apply_rope(torch.ones(1, 8), *torch.ones(2, 1, 4), "pairs"), "'pairs' … use 'halves'"),
    (lambda: apply_rope(torch.ones(1, 2, 6, 8), *torch.ones(2, 5, 4)), "6 tokens … cos has 5: pass the angles"),
    (lambda: apply_rope(torch.ones(2, 2, 5, 8), *torch.ones(2, 2, 5, 4)), "(2, 2, 5, 8), cos (2, 5, 4) … cos[:, None]"),
    (lambda: apply_rope(torch.ones(1, 2, 5, 8), torch.ones(5, 4), torch.ones(5, 1)), "cos (5, 4), sin (5, 1): pass"),
    (lambda: apply_rope(torch.ones(1, 8), torch.ones(1, 4), None), "sin=None is a NoneType: pass angles.sin()"),
    (lambda: apply_rope(torch.ones(1, 2, 5, 8).long(), *torch.ones(2, 5, 4)), "torch.int64 … pass x.float()"),
    (lambda: rope_angles([1, 2], torch.ones(2)), "positions=[1, 2] is a list: pass a tensor, such as torch.arange(3)"),
    (lambda: attention_weights(torch.ones(1, 4, 3, 8), torch.ones(1, 5, 3, 8), causal_visible(3, 3)),
     "(1, 4, 3, 8), k (1, 5, 3, 8): pass heads … repeat_kv"),
    (lambda: attention_weights(torch.ones(3, 4), torch.ones(3, 5), causal_visible(3, 3)), "(3, 4), k (3, 5): pass"),
    (lambda: attention_weights(*torch.ones(2, 3, 4), torch.zeros(3, 3)), "visible is torch.float32: pass bool, True ="),
    (lambda: attention_weights(*torch.ones(2, 3, 4), None), "visible=None is a NoneType: pass causal_visible(T, S)"),
    (lambda: attention_weights(*torch.ones(2, 3, 4).int(), causal_visible(3, 3)), "q is torch.int32 … pass q.float()"),
    (lambda: RMSNorm(4)(torch.ones(2, 5)), "(2, 5) … dim=4"),
    (lambda: RMSNorm(4)(torch.ones(2, 4).int()), "torch.int32 … pass x.float()"),
    (lambda: RMSNorm(-4), "dim=-4 must be a whole number >= 1"),
    (lambda: swiglu_hidden_dim(-5), "dim=-5 must be a whole number >= 1"),
    (lambda: swiglu_hidden_dim(128, 0), "multiple_of=0 must be a whole number >= 1"),
    (lambda: swiglu_hidden_dim(8, 8, -1.0), "ffn_dim_multiplier=-1.0 must be a finite number > 0, or None for 1"),
    (lambda: count_parameters(None), "model=None is a NoneType: pass a model, such as load_checkpoint(folder)"),
    (lambda: held_out_loss("tiny-llama"), "model='tiny-llama' is a str: pass a model, such as load_checkpoint(folder)"),
    (lambda: inside(without_heads(None, [])), "model=None is a NoneType: pass a model"),
    (lambda: attention_by_layer(None, TOKENS), "model=None is a NoneType: pass a model"),
    (lambda: causal_visible(3, 2), "n_query=3 … n_key=2"),
    (lambda: causal_visible(-1, 3), "n_query=-1 … n_key=3"),
    (lambda: masks.sliding_window(TOKENS[0], TOKENS[0], 0), "window=0 must be a whole number >= 1: pass 1 to 2**63"),
    (lambda: write(temperature=-1), "temperature=-1 … >= 0"),
    (lambda: write(top_k=0), "top_k=0 … >= 1, or None"),
    (lambda: write(seed=1.5), "seed=1.5 must be a whole number >= 0, or None: pass an int, not a float"),
    (lambda: write(n=-1), "max_new_tokens=-1 must be a whole number >= 0: pass 0 to"),
    (lambda: write(top_p=0.0), "top_p=0.0 … (0, 1]"),
    (lambda: write(stop=64), "stop=64 … 0 to 63 … or None"),
    (lambda: write(stop="x" * 999), "stop='xxxxx … 0 to 63"),
    (lambda: write(stop=np.float64(2)), "stop=np.float64(2.0) … 0 to 63"),
    (lambda: generate.next_token_probabilities(torch.ones(1, 3).long()), "torch.int64 … pass logits.float()"),
    (lambda: masks.same_document(TOKENS[0] - 2, TOKENS[0], TOKENS[0]), "document has no position -1: it has 3, from 0"),
    (lambda: attention_by_layer(torch.nn.Linear(2, 2), TOKENS), "a Linear has no blocks … pass a Llama, such as load"),
    (lambda: Llama(RELATIVE), "a 'mistral' model has parts that Llama has not: call config.make()"),
    (lambda: model_from_weights(RELATIVE, RELATIVE.make().state_dict()), "has parts that Llama has not … beyond.fam"),
    (lambda: MODEL(TOKENS, KVCache(OURS, 1, 3, torch.float32, "meta")), "on cpu, the cache … on meta: make the cache"),
    (lambda: one_too_many(), "1 tokens do not fit: the cache holds 3 of at most 3"),
    (lambda: generate.next_token_probabilities(torch.ones(3)), "(3,): pass (batch, vocabulary) … logits[None]"),
    (lambda: generate.end_tokens("no folder"), "generation_config.json and config.json are missing: pass a checkpoint"),
    (lambda: write(TOKENS[0]), "(3,): pass … tokens[None]"),
    (lambda: write([1, 2]), "'[1, 2]': pass … [ids]"),
    (lambda: write([[1], []]), "[1, 0] tokens: pass at least one"),
    (lambda: write([["the"]]), "'the' … encode text"),
    (lambda: prepare_for_decoding(MODEL, "int2"), "'int2' … use None, 'float16', 'bfloat16', 'int8' or 'int4'"),
    (lambda: prepare_for_decoding(MODEL, layout="rowz"), "layout='rowz' … use one of ('rows', 'columns', "),
    (lambda: prepare_for_decoding(prepare_for_decoding(MODEL, layout="rows")), "prepared already: pass the one"),
    (lambda: parallel.require_divisible(TINY, 3), "n_heads=4 … 3 processes: start a number … that divides it"),
    (lambda: inside(without_heads(MODEL, [(0, 9)])), "no head (0, 9): the model has 2 layers of 4 heads, from 0"),
    (lambda: outputs_of(MODEL, ["layer.0"], [TOKENS]), "no module 'layer.0': take a name of model.named"),
    (lambda: held_out_loss(Llama(replace(TINY, vocab_size=2048))), "has 2048 tokens: pass one of tiny-llama's"),
    (lambda: run(steps=0), "steps=0 must be a whole number >= 1"),
    (lambda: run(seed=None), "seed=None must be a whole number >= 0: pass an int"),
    (lambda: run(warm_up=-1), "warm_up=-1 must be a whole number >= 0"),
    (lambda: run(weight_decay=-1), "weight_decay=-1 must be a finite number >= 0"),
    (lambda: run(scale=float("inf")), "step 1: the loss is nan: make the model anew, with peak < 0.003"),
    (lambda: run(peak=1e30), "peak=1e+30 … <= 1000, for example"),
    (lambda: train.train(MODEL, lambda: torch.arange(9), steps=1), "9 tokens … seq_len + 1 = 65: pass a longer"),
    (lambda: train.train(Llama(TINY).half(), lambda: torch.arange(99), steps=1), "float16 … pass model.float()"),
    (lambda: train.train(prepare_for_decoding(MODEL, layout="rows"), lambda: torch.arange(99), steps=1),
     "no parameters … train the model it is made from"),
    (lambda: train.learning_rate(5, 10, float("nan")), "peak=nan must be a finite number >= 0"),
    *((lambda sizes=sizes: drawings.plot_head_wiring(*sizes),
       "n_heads={} is not a multiple of n_kv_heads={}: choose one of its divisors".format(*sizes))
      for sizes in ((6, 4), (8, 3), (4, 8), (0, 0))),
    (lambda: plots.plot_visible(causal_visible(0, 0)), "plot_visible cannot draw shape (0, 0): pass (queries, keys)"),
    (lambda: plots.plot_visible([[0.3]]), "plot_visible cannot draw 0.3: pass … True where a query may attend"),
    (lambda: plots.plot_attention([[1.0]], visible=[[0.3]]), "plot_attention cannot draw 0.3: pass … may attend"),
    (lambda: plots.plot_attention([[0.5, 0.5]], visible=[[1]]), "visible has shape (1, 1), weights (1, 2): pass"),
    (lambda: plots.plot_visible([[True]], query_labels="ab"), "2 labels for 1 positions, ['a', 'b']: pass one text"),
    (lambda: plots.plot_attention([[-1.0]]), "plot_attention cannot draw -1: pass … from 0 on"),
    (lambda: plots.plot_attention([[1, float("nan")]]), "plot_attention cannot draw nan: pass … from 0 on"),
    (lambda: plots.show(None, "too " * 40), "40 words … 1 to 39"),
    (lambda: corpus.train_val_split("a b", 1.0), "fraction=1.0 … between 0 and 1"),
    (lambda: corpus.train_val_split("a"), "1 characters … pass a longer text"),
    (lambda: corpus.train_tokenizer("ab", 3), "vocab_size=3 … 257"),
    (lambda: next(corpus.batches(TOKENS[0], 2.5, 2, None)), "batch_size=2.5 must be a whole number >= 1: pass an int"),
    (lambda: device.set_seed(None), "seed=None must be a whole number >= 0"),
    (lambda: edits.layer_types({"sliding_window_pattern": 0}, 4), "sliding_window_pattern=0 … >= 1, or None"),
    (lambda: edits.layers_that_turn({"no_rope_layers": None, "no_rope_layer_interval": 0}, 4), "interval=0 must be a"),
    (lambda: edits.sparse_layers({"decoder_sparse_step": 0}, 4), "decoder_sparse_step=0 must be a whole number >= 1"),
    (lambda: checkpoint.save_checkpoint(MODEL, "new", text.load_tokenizer()), "has 1024 ids, vocab_size=64: pass the"),
    (lambda: corpus.bits_per_byte(MODEL, text.load_tokenizer(), ""), "0 tokens … Pass a longer text"),
    (lambda: model_from_weights(OURS, {}, dtype="bfloat16"), "'bfloat16' … pass … torch.bfloat16"),
    (lambda: model_from_weights(replace(OURS, tie_embeddings=True), MODEL.state_dict()), "ties … lm_head … untie"),
    (lambda: model_from_weights(OURS, MODEL.state_dict() | {str(n): torch.ones(1) for n in range(25)}),
     "25 weights do not fit … left over: 0 … left over: 1 … and 5 more"),
    (lambda: checkpoint.fetch_checkpoint("smollm"), "'smollm' … write owner/model"),
    (lambda: checkpoint.fetch_checkpoint("../secret"), "'../secret' … write owner/model"),
    (lambda: offline(FileNotFoundError), "a/b could not be fetched (FileNotFoundError): check name, network"),
    (lambda: corpus.load_text("no.txt"), "no.txt is not there: pass a text file, or a folder"),
    (lambda: pick("cuda"), "COURSE_DEVICE='cuda' is not present on this machine: use one of ['cpu'"),
    (lambda: pick("gpu"), "COURSE_DEVICE='gpu' is not known: use one of ['cpu'"),
    (lambda: full("torch.nn.functional.cross_entropy", run), "batch_size=8 … max_seq_len=8 … smaller batch_size"),
    (lambda: full("torch.Tensor.to", lambda: model_from_weights(OURS, MODEL.state_dict(), torch.float16)),
     "27,296 weights as torch.float16 … cpu: pass dtype=torch.bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), SAID, ids=[words for _, words in SAID])
def test_a_wrong_value_is_named_with_what_to_do_and_leaves_no_figure_and_no_seed(call, words):
    before = plt.get_fignums(), random.getstate()
    with pytest.raises((ValueError, FileNotFoundError, ConnectionError, torch.OutOfMemoryError)) as raised:
        call()
    assert (plt.get_fignums(), random.getstate()) == before
    expected = ".*".join(re.escape(part.strip()) for part in words.split("…"))
    assert re.search(expected, str(raised.value), re.DOTALL), f"{raised.value}\ndoes not say\n{words}"
