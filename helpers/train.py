"""The small training loop, and the command that made assets/tiny-llama: python -m helpers.train --out FOLDER."""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from tqdm.auto import tqdm

from helpers.checkpoint import save_checkpoint
from helpers.config import LlamaConfig
from helpers.device import pick_device, set_seed
from helpers.model import Llama, count_parameters
from helpers.text import batches, encode, held_out_split, reference_text, train_tokenizer, without_some_merges

TINY = LlamaConfig(
    vocab_size=1024, dim=128, n_layers=6, n_heads=4, n_kv_heads=2, hidden_dim=384,
    max_seq_len=256, norm_eps=1e-5, rope_theta=500_000.0, tie_embeddings=True,
)  # fmt: skip


def learning_rate(step: int, steps: int, peak: float, warm_up: int = 100) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def train(
    model: Llama,
    read: Callable[[], torch.Tensor],
    *,
    steps: int,
    batch_size: int = 8,
    seed: int = 0,
    peak: float = 3e-3,
    weight_decay: float = 0.3,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train in place with AdamW on random windows of max_seq_len tokens.

    Args:
        model: on its device.
        read: returns the training text as token ids, (N,) int64; called anew for each pass over the text.
        steps: number of updates.
        peak: highest learning rate.
        weight_decay: of the matrices; gains are not decayed.
        report: called as report(step, loss) after each step.

    Returns:
        loss of each step [nat/token].
    """
    device = model.tok_embeddings.weight.device
    matrices = [w for w in model.parameters() if w.ndim == 2]
    gains = [w for w in model.parameters() if w.ndim == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    generator, losses, left_in_pass = torch.Generator().manual_seed(seed), [], 0
    model.train()
    for step in range(steps):
        if left_in_pass <= 0:
            tokens = read()
            left_in_pass = len(tokens)
            draw = batches(tokens, batch_size, model.config.max_seq_len, generator)
        inputs, targets = (part.to(device) for part in next(draw))
        left_in_pass -= inputs.numel()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        report(step + 1, losses[-1])
    model.eval()
    return losses


@torch.no_grad()
def bits_per_byte(model: Llama, tokenizer: Tokenizer, text: str) -> float:
    """Bits the model needs per byte of a text: comparable across tokenizers.

    The text is read in windows of max_seq_len tokens that overlap by half; of all but the first, only the second half
    is counted, so that each token is judged with at least half a window before it.
    """
    device = model.tok_embeddings.weight.device
    tokens = encode(tokenizer, text)
    half = model.config.max_seq_len // 2
    nats = math.log(model.config.vocab_size)  # nothing stands before the first token: all are equally likely
    for start in range(0, max(1, len(tokens) - 1 - half), half):
        window = tokens[start : start + 2 * half + 1].to(device)
        loss = F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none")
        nats += loss[half if start else 0 :].sum().item()
    return nats / math.log(2) / len(text.encode())


CARD = """# tiny-llama

A LLaMA of {parameters:,} parameters for the course's notebooks, in Hugging Face format.

- Architecture: `LlamaForCausalLM`; {config.n_layers} layers, dim {config.dim}, {config.n_heads} query heads,
  {config.n_kv_heads} key/value heads, hidden_dim {config.hidden_dim}, tied embeddings, rope_theta
  {config.rope_theta:,.0f}, trained on windows of {config.max_seq_len} tokens.
- Data: the Python language reference that ships with CPython (`pydoc_data.topics`, Python Software Foundation
  License), paragraphs that repeat left out, the last tenth held out.
- Tokenizer: byte-level BPE with {config.vocab_size} tokens, trained on the training part.
- Command: `{command}`, {minutes:.0f} minutes on this run's CPU.
- Held-out tenth: {held_out:.2f} bits per byte. Training part: {trained:.2f}: it has learned much of it by heart.
- Licence of the weights: MIT, as the course.
"""


def main():
    """Train the tiny LLaMA on the Python reference and save it as a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists and is kept: choose another name.")
    command = f"python -m helpers.train --out {arguments.out} --steps {arguments.steps} --seed {arguments.seed}"
    text, held_out = held_out_split(reference_text())
    tokenizer = train_tokenizer(text, TINY.vocab_size)
    generator = set_seed(arguments.seed)
    model = Llama(TINY).to(pick_device())
    start = time.perf_counter()
    with tqdm(total=arguments.steps, unit="step") as bar:

        def report(step, loss):
            bar.update()
            bar.set_postfix(loss=f"{loss:.2f}")

        train(
            model,
            lambda: encode(without_some_merges(tokenizer, 0.05, generator), text),
            steps=arguments.steps,
            seed=arguments.seed,
            report=report,
        )
    minutes = (time.perf_counter() - start) / 60
    scores = {"held_out": bits_per_byte(model, tokenizer, held_out), "trained": bits_per_byte(model, tokenizer, text)}
    card = CARD.format(parameters=count_parameters(TINY), config=TINY, command=command, minutes=minutes, **scores)
    save_checkpoint(model.cpu(), arguments.out, tokenizer, card)
    print(card)


if __name__ == "__main__":
    main()
