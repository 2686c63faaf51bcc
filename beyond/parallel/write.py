"""A command, which each process of notebook 09 runs: cut tiny-llama by a file's split(model, rank, n), read, write.

Run: python -m torch.distributed.run --nproc-per-node 2 -m beyond.parallel.write FILE --temperature 0.8 --seeds 0 0
"""

import argparse
import runpy

from beyond.parallel.load import read_part
from beyond.parallel.start import start_ranks
from helpers.checkpoint import blank_model, read_checkpoint
from helpers.generate import generate
from helpers.text import TINY_LLAMA, encode, load_tokenizer


def write(file, temperature, seeds):
    """Print what this rank holds and writes."""
    mesh, tokenizer = start_ranks(), load_tokenizer()
    rank, (config, weights) = mesh.get_local_rank(), read_checkpoint(TINY_LLAMA)  # the weights' names, no number yet
    model = blank_model(config, weights, "tiny-llama")
    runpy.run_path(file)["split"](model, rank, mesh.size())
    read_part(model, weights, rank, mesh.device_type)
    n_held = sum(part.numel() for part in model.parameters())
    prompt = encode(tokenizer, "The value of a name is")[None].to(mesh.device_type)
    tokens = generate(model, prompt, 25, temperature, seed=seeds[rank] if seeds else None)
    print(f"rank {rank}, {n_held:,} numbers: {tokenizer.decode(tokens[0].tolist())!r}\n", end="")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m beyond.parallel.write", description=__doc__.splitlines()[0])
    parser.add_argument("file", help="a Python file with a function split(model, rank, n)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default: the likeliest token")
    parser.add_argument("--seeds", type=int, nargs="*", help="one for each rank; without, each draws for itself")
    write(**vars(parser.parse_args()))
