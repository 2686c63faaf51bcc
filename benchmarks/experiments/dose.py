"""How long should a vector be that leaves a norm? The stored numbers of notebook 01, section 1.8.

What leaves one of tiny-llama's 13 norms is multiplied by a factor, all else is as trained, and the loss on the 16
held-out texts is compared with the trained one. Beside it stands what the loss rises by when the branch behind the norm
adds nothing at all; behind the final norm there is no branch, so there all tokens are equally likely.
Stored: the factors; the rise for each norm and factor, (13, 13), and without the branch, (13,); and for all texts and
each of three groups of them, for how many of the 12 branches ⅛ costs less than removing them, and 8 costs more.
Run: OMP_NUM_THREADS=1 python -m benchmarks.experiments.dose helpers/assets/dose.json (a minute or two).
"""

import argparse
import json
from pathlib import Path

import torch
from torch.nn import functional as F

from explorers.base import bundled
from helpers.interventions import held_out_windows

FACTORS = [2 ** (step / 2) for step in range(-6, 7)]  # from 1/8 to 8
GROUPS = {"all texts": range(16), "0 to 4": range(5), "5 to 9": range(5, 10), "10 to 15": range(10, 16)}


@torch.inference_mode()
def rises(text):
    """How much the loss on one text (257,) rises: (13, factors), and without the branch: (13,)."""
    model, factors = bundled(), torch.tensor(FACTORS)[:, None, None]
    cos, sin, _ = model.rotation_and_mask(len(text) - 1)
    steps = []  # (norm, branch), in the order of the stream
    for block in model.layers:
        steps.append((block.attention_norm, lambda y, part=block.attention: part(y, cos, sin)))
        steps.append((block.ffn_norm, block.feed_forward))

    def losses(y):  # of rows (factors, T, D) that leave the final norm
        return F.cross_entropy(model.lm_head(y).mT, text[1:].expand(len(y), -1), reduction="none").mean(dim=1)

    x, made = model.tok_embeddings(text[None, :-1]), []
    for place, (norm, branch) in enumerate(steps):
        written = branch(norm(x) * factors)
        rows = x + torch.cat((written, 0 * written[:1]))  # the last row: no branch
        for later, then in steps[place + 1 :]:
            rows = rows + then(later(rows))
        made.append(losses(model.final_norm(rows)))
        x = x + branch(norm(x))
    last = model.final_norm(x)
    made.append(losses(last * torch.cat((factors, 0 * factors[:1]))))  # no logits: all tokens equally likely
    made = torch.stack(made) - losses(last)
    return made[:, :-1], made[:, -1]


def main():
    """Measure all norms on all texts, and store the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the JSON file that is written")
    file = parser.parse_args().file
    rise, removed = (torch.stack(one) for one in zip(*map(rises, held_out_windows()), strict=True))
    counts = {}
    for name, texts in GROUPS.items():
        some, without = rise[list(texts)].mean(dim=0)[:12], removed[list(texts)].mean(dim=0)[:12]
        short, long = some[:, 0] < without, some[:, -1] > without
        counts[name] = {"short costs less": short.sum().item(), "long costs more": long.sum().item()}
    rounded = [[round(one, 3) for one in row] for row in rise.mean(dim=0).tolist()]
    without = [round(one, 3) for one in removed.mean(dim=0).tolist()]
    stored = {"factors": FACTORS, "rise": rounded, "removed": without, "of 12": counts}
    file.write_text(json.dumps(stored) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
