"""A model that is spread over processes is the same function: logits, loss, gradients, text; faults end quickly."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from helpers.checkpoint import save_checkpoint
from helpers.parallel import parallel_plan
from helpers.parallel.__main__ import main
from helpers.text import TINY_LLAMA
from tests.support.models import TINY, TOLERANCE, make_model

CONFIGS = {
    "gqa": TINY,
    "mha, tied, wide heads": replace(TINY, tie_embeddings=True, n_kv_heads=4, head_dim=12),
}


def in_processes(n, *command, launch=("--standalone",)):
    """Run a Python module or file in n processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *launch, "--nproc-per-node", str(n)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_equal_one(name, tmp_path):
    save_checkpoint(make_model(CONFIGS[name]), tmp_path / "model")
    done = in_processes(2, "-m", "helpers.parallel.compare", str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [found["rank"] for found in reports] == [0, 1]
    for found in reports:
        assert max(found[what] for what in ("logits", "cut in memory", "loss")) < TOLERANCE
        assert found["gradients"] < 10 * TOLERANCE
        assert found["same text"]
        assert found["same angles and mask"]
        assert found["bytes held"] < 0.51 * found["bytes in all"]
        assert (found["heads"], found["key/value heads"]) == (2, CONFIGS[name].n_kv_heads // 2)
        assert found["sent"]["all_reduce"] == 2 * TINY.n_layers + 1  # two per block, one for the embedding
        assert found["bytes summed"] == 4 * TINY.dim * found["tokens"] * (2 * TINY.n_layers + 1)


@pytest.mark.slow
def test_the_command_writes():
    done = in_processes(2, "-m", "helpers.parallel", str(TINY_LLAMA), "--prompt", "The name is", "--new", "8")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("of weights") == 2
    assert "The name is" in done.stdout


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others():
    script = "import os, sys; from helpers.parallel import start_ranks; mesh = start_ranks(20); "
    script += "os._exit(3) if mesh.get_local_rank() else __import__('torch').distributed.barrier()"
    done = in_processes(2, "--no-python", sys.executable, "-c", script)
    assert done.returncode != 0
    assert re.search(r"exitcode *: 3", done.stderr), done.stderr[-3000:]


def test_outside_the_launcher_the_command_says_how_to_start_it(monkeypatch, capsys):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(sys, "argv", ["parallel", str(TINY_LLAMA)])
    with pytest.raises(SystemExit):
        main()
    assert "torch.distributed.run --nproc-per-node 2" in capsys.readouterr().err


def test_every_matrix_is_in_the_plan_and_no_norm(model):
    planned = {f"{name}.weight" for name in parallel_plan(TINY)}
    assert planned == {name for name, weight in model.named_parameters() if weight.ndim == 2}
