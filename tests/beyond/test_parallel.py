"""A model that is spread over processes is the same function: logits, loss, gradients, text; faults end quickly."""

import json
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from beyond.parallel import launch, load_parallel
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.generate import generate
from helpers.text import TINY_LLAMA, encode, load_tokenizer
from tests.support.course import notebooks
from tests.support.files import OURS, edit_weights, meta_weights, write_meta
from tests.support.models import TINY, TOLERANCE, assert_agree, make_model

CONFIGS = {"gqa": TINY, "mha, tied, wide heads": replace(TINY, tie_embeddings=True, n_kv_heads=4, head_dim=12)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_equal_one(name, tmp_path):
    save_checkpoint(make_model(CONFIGS[name]), tmp_path / "model")
    reports = list(map(json.loads, launch("-m", "beyond.parallel.compare", str(tmp_path / "model"))))
    assert sorted(found["rank"] for found in reports) == [0, 1]
    for found in reports:
        assert max(found[what] for what in ("logits", "cut in memory", "loss")) < TOLERANCE
        assert max(found["gradients"].values()) < 10 * TOLERANCE
        assert found["same text"]
        assert found["bytes held"] < 0.51 * found["bytes in all"]
        assert (found["heads"], found["key/value heads"]) == (2, CONFIGS[name].n_kv_heads // 2)
        assert found["sent"]["all_reduce"] == 2 * TINY.n_layers + 1  # two per block, one for the embedding


@pytest.mark.slow
def test_the_split_that_a_learner_writes_in_notebook_09_writes_the_whole_models_text(tmp_path):
    (tmp_path / "a folder").mkdir()
    (text,) = (c.source for c in notebooks()["09_scaling_out"].cells if c.source.startswith("%%writefile"))
    (file := tmp_path / "a folder" / "split.py").write_text(text.partition("\n")[2], encoding="utf-8")
    write = "-m", "beyond.parallel.write", str(file)
    tokens = encode(load_tokenizer(), "The value of a name is")[None]
    whole = load_tokenizer().decode(generate(load_checkpoint(TINY_LLAMA), tokens, 25)[0].tolist())
    assert launch(*write) == [f"rank {rank}, 722,560 numbers: {whole!r}" for rank in (0, 1)]
    with pytest.raises(RuntimeError, match=r"(?s)split.py --temperature -1 failed in a process.*temperature=-1"):
        launch(*write, "--temperature", "-1")
    (waits := tmp_path / "waits.py").write_text("__import__('time').sleep(1000)", encoding="utf-8")
    with pytest.raises(RuntimeError, match="not done after 3 seconds"):
        launch(str(waits), seconds=3)


def test_ranks_draw_numbers_of_their_own_and_use_one_core(tmp_path):
    draws = "import os, torch; print(torch.rand(()).item(), torch.get_num_threads(), os.environ['RANK'])"
    (script := tmp_path / "draws.py").write_text(draws, encoding="utf-8")
    (one, *of_one), (other, *of_other) = (line.split() for line in launch(str(script)))
    assert one != other
    assert sorted([of_one, of_other]) == [["1", "0"], ["1", "1"]]


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others(tmp_path):
    script = "import os; from beyond.parallel import start_ranks; mesh = start_ranks(20)\n"
    script += "os._exit(3) if mesh.get_local_rank() else __import__('torch').distributed.barrier()"
    (dies := tmp_path / "dies.py").write_text(script, encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"exit code 3|in barrier"):
        launch(str(dies))


EACH_RANK = """
import torch, torch.distributed as dist
from helpers.formats.files import StoredWeight
from helpers.generate import generate
from beyond.parallel import load_parallel, start_ranks
from helpers.text import TINY_LLAMA
read, whole = [], StoredWeight.__getitem__
StoredWeight.__getitem__ = lambda self, part: read.append(whole(self, part)) or read[-1]
model = load_parallel(TINY_LLAMA, start_ranks())
assert 0.5 < sum(part.numel() for part in read) / sum(weight.numel() for weight in model.parameters()) < 0.51
modes = set()
model.register_forward_hook(lambda *_: modes.add((torch.is_inference_mode_enabled(), torch.is_grad_enabled())))
texts = [None, None]
dist.all_gather_object(texts, generate(model, [[1, 2, 3]], 20, temperature=1.0, seed=4))
assert texts[0] == texts[1] and modes == {(False, False)}, (texts, modes)
generate(model, [[1, 2, 3]], 20, temperature=1.0)
"""


@pytest.mark.slow
def test_a_rank_reads_its_own_part_only_and_draws_as_the_others_or_says_that_it_needs_a_seed(tmp_path):
    (script := tmp_path / "each_rank.py").write_text(EACH_RANK, encoding="utf-8")
    with pytest.raises(RuntimeError, match="seed=None: each process of a split model would draw tokens of its own"):
        launch(str(script))


EIGHT_STEPS = """
import sys
import torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from split_learns import split
from helpers.checkpoint import load_checkpoint
from helpers.interventions import held_out_tokens
from beyond.parallel import load_parallel, start_ranks
from helpers.text import TINY_LLAMA
from helpers.train import training_step
mesh, tokens = start_ranks(), held_out_tokens()[:516].view(4, 129)
whole, by_hand, by_pytorch = load_checkpoint(TINY_LLAMA), load_checkpoint(TINY_LLAMA), load_parallel(TINY_LLAMA, mesh)
split(by_hand, dist.get_rank(), 2)
losses = {}
for name, model in (("whole", whole), ("by hand", by_hand), ("by PyTorch", by_pytorch)):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses[name] = [training_step(model, optimizer, tokens[:, :-1], tokens[:, 1:]) for _ in range(8)]
    assert max(abs(own - right) for own, right in zip(losses[name], losses["whole"])) < 1e-5, losses
copies = [torch.empty_like(whole.tok_embeddings.weight) for _ in range(2)]
dist.all_gather(copies, by_hand.tok_embeddings.weight.detach())
assert torch.equal(*copies) and losses["whole"][0] > 3, losses  # the first gradients are longer than 1
dist.barrier()
__import__("os")._exit(0)
"""


@pytest.mark.slow
def test_a_split_model_is_clipped_as_the_whole_one_and_its_copies_stay_equal(tmp_path):
    """The gradient's length is that of all parts together: each rank alone sees another, and shortens otherwise."""
    cells = [cell.source for cell in notebooks()["09_scaling_out"].cells]
    split, mend = (next(c for c in cells if words in c) for words in ("runs/split.py\n", "def mend_split_solved"))
    both = "cut = split\n\n\ndef split(*a):\n    cut(*a)\n    mend_split_solved(a[0], dist.all_reduce)\n"
    parts = split.partition("\n")[2], mend[: mend.index("\ncheck_")], both
    (tmp_path / "split_learns.py").write_text("\n\n".join(parts), encoding="utf-8")
    (tmp_path / "train.py").write_text(EIGHT_STEPS, encoding="utf-8")
    launch(str(tmp_path / "train.py"), str(tmp_path))


@pytest.fixture
def mesh(monkeypatch):
    """This process as the only rank of one."""
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # this machine only
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    dist.destroy_process_group()


def test_weights_that_do_not_fit_are_refused(mesh, saved):
    for weight, words in ((torch.ones(3), "shape: final_norm"), (torch.ones(32).int(), "torch.int32")):
        edit_weights(saved, lambda weights, weight=weight: weights.update({"model.norm.weight": weight}))
        with pytest.raises(ValueError, match=words):
            load_parallel(saved, mesh)


def test_a_folder_of_meta_opens_as_well(mesh, tmp_path, tokens):
    folder = write_meta(tmp_path, [meta_weights(OURS)])
    assert_agree(load_parallel(folder, mesh)(tokens), load_checkpoint(folder)(tokens))
