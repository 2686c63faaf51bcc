"""What do shared keys and values cost in training? The stored numbers behind a claim of notebook 04.

The same small LLaMA with eight query heads is trained with 8, 4, 2 and 1 KV heads (MHA, GQA, GQA, MQA). What the
smaller k_proj and v_proj save, a wider feed-forward gets, so that all four have the same number of parameters. For each
seed all models read the same windows in the same order. Judged in bits per byte of held-out text.
Beside it, sharing after training (Ainslie et al. 2023): in the trained MHA each group of KV heads is replaced by their
mean, and the model is judged at once and after 40 more steps. The control is the MHA itself, 8 groups of one head.
Run: python -m benchmarks.experiments.kv_heads helpers/assets/kv_heads.json (40 minutes on two cores).
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from helpers.corpus import bits_per_byte, reference_text, train_tokenizer, train_val_split
from helpers.device import pick_device, set_seed
from helpers.model import Llama, count_parameters
from helpers.text import encode
from helpers.train import TINY, train

MHA = replace(
    TINY, vocab_size=512, dim=96, n_layers=4, n_heads=8, n_kv_heads=8, head_dim=12, hidden_dim=256, max_seq_len=128
)
BATCH_SIZE, MORE_STEPS = 16, 40


def config(n_kv_heads):
    """The LLaMA with this many KV heads; two matrices of a head less make room for 8 units of three matrices."""
    spare = 2 * MHA.head_dim * (MHA.n_kv_heads - n_kv_heads)
    return replace(MHA, n_kv_heads=n_kv_heads, hidden_dim=MHA.hidden_dim + spare // 3)


def averaged(model, n_kv_heads):
    """A copy of a model with MHA in which each KV head is the mean of a group of its KV heads."""
    made = Llama(replace(model.config, n_kv_heads=n_kv_heads)).to(pick_device())
    weights = model.state_dict()
    for name in (name for name in weights if name.endswith(("k_proj.weight", "v_proj.weight"))):
        groups = weights[name].unflatten(0, (n_kv_heads, MHA.n_kv_heads // n_kv_heads, -1))
        weights[name] = groups.mean(dim=1).flatten(0, 1)
    made.load_state_dict(weights)
    return made.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    text, held_out = train_val_split(reference_text())
    tokenizer = train_tokenizer(text, MHA.vocab_size)
    tokens = encode(tokenizer, text)
    kv_heads = [8, 4, 2, 1]
    from_start, at_once, later = ({n: [] for n in kv_heads} for _ in range(3))
    parameters = {}

    def learn(model, steps, **how):
        train(model, lambda: tokens, steps=steps, batch_size=BATCH_SIZE, weight_decay=0.1, **how)

    def judged(model):
        return round(bits_per_byte(model, tokenizer, held_out), 4)

    for seed in arguments.seeds:
        for n in kv_heads:
            set_seed(seed)
            model = Llama(config(n)).to(pick_device())
            parameters[n] = count_parameters(model)
            learn(model, arguments.steps, seed=seed)
            from_start[n].append(judged(model))
            for fewer in kv_heads if n == MHA.n_kv_heads else []:
                mean = averaged(model, fewer)
                at_once[fewer].append(judged(mean))
                learn(mean, MORE_STEPS, seed=100 + seed, peak=1e-3, warm_up=10)
                later[fewer].append(judged(mean))
            print(seed, n, parameters[n], from_start[n][-1], flush=True)
    content = {"steps": arguments.steps, "batch_size": BATCH_SIZE, "seq_len": MHA.max_seq_len, "dim": MHA.dim}
    content |= {"n_layers": MHA.n_layers, "n_heads": MHA.n_heads, "seeds": arguments.seeds}
    content |= {"parameters": parameters, "bits_per_byte": from_start}
    content |= {"more_steps": MORE_STEPS, "averaged": at_once, "averaged_then_trained": later}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
