"""What each process of notebook 09 runs: it cuts tiny-llama by a file's split(model, rank, n), reads its part, writes.

Run: python -m torch.distributed.run --nproc-per-node 2 -m beyond.parallel.write FILE, and in this order, if at all,
a temperature, a list with each rank's seed, a stop token, the seconds after which a rank waits no longer.
"""

import json
import runpy
import sys
import time

from beyond.parallel.load import read_part
from beyond.parallel.start import start_ranks
from helpers.checkpoint import blank_model, read_checkpoint
from helpers.generate import generate
from helpers.text import TINY_LLAMA, encode, load_tokenizer


def write(file, temperature=0.0, seeds=(None, None), stop=None, seconds=60):
    """Print what this rank holds and writes; with a stop token it then stays up, as a server does for the next text."""
    mesh, tokenizer = start_ranks(seconds), load_tokenizer()
    rank, (config, weights) = mesh.get_local_rank(), read_checkpoint(TINY_LLAMA)  # the weights' names, no number yet
    model = blank_model(config, weights, "tiny-llama")
    runpy.run_path(file)["split"](model, rank, mesh.size())
    read_part(model, weights, rank, mesh.device_type)
    n_held = sum(part.numel() for part in model.parameters())
    prompt = encode(tokenizer, "The value of a name is")[None].to(mesh.device_type)
    tokens = generate(model, prompt, 25, temperature, stop=stop, seed=seeds[rank])
    print(f"rank {rank}, {n_held:,} numbers: {tokenizer.decode(tokens[0].tolist())!r}\n", end="")
    time.sleep(seconds + 10 if stop else 0)


if __name__ == "__main__":
    write(sys.argv[1], *map(json.loads, sys.argv[2:]))
