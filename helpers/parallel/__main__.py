"""Several processes write a text together.

Run: python -m torch.distributed.run --nproc-per-node 2 -m helpers.parallel helpers/assets/tiny-llama
"""

import argparse
import os
from pathlib import Path

import torch.distributed as dist

from helpers.generate import generate
from helpers.parallel import bytes_of, load_parallel, start_ranks
from helpers.text import encode, load_tokenizer


def main():
    """Write a text with a model that is spread over the processes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", default="The value of a name is")
    parser.add_argument("--new", type=int, default=40, help="tokens to write")
    arguments = parser.parse_args()
    if "WORLD_SIZE" not in os.environ:
        parser.error("start it with `python -m torch.distributed.run --nproc-per-node 2 -m helpers.parallel …`.")
    mesh = start_ranks()
    try:
        model, tokenizer = load_parallel(arguments.folder, mesh), load_tokenizer(arguments.folder)
        written = generate(model, encode(tokenizer, arguments.prompt)[None], arguments.new)[0].tolist()
        print(f"rank {dist.get_rank()} of {mesh.size()} holds {bytes_of(model):,} bytes of weights", flush=True)
        dist.barrier()
        if dist.get_rank() == 0:
            print(tokenizer.decode(written))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
