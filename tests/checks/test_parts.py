"""The learner's own functions come along: only exercises' cells are run, and only what passes is used."""

import json
import re
import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from checks import my_parts
from checks.parts import COURSE
from helpers.checkpoint import load_checkpoint
from tests.support.course import ROOT
from tests.support.files import edit_json
from tests.support.messy import stored
from tests.support.models import assert_agree
from tests.support.submissions import NORM_RIGHT, code_cell, write

N = len(COURSE)
LESSONS = ("01_rmsnorm", "02_rope", "03_swiglu", "04_gqa", "05_full_model")


def done(stem):
    """A notebook of the course whose exercises hold the solutions."""
    notebook = json.loads((ROOT / "notebooks" / f"{stem}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if re.search(r"^check_\w+\(", "".join(cell["source"]), re.M)]
    code = [cell for cell in code if "recall" not in cell["metadata"].get("tags", [])]
    stubs = [cell for cell in code if "exercise" in cell["metadata"].get("tags", [])]
    for stub, solution in zip(stubs, [cell for cell in code if cell not in stubs], strict=True):
        named, solved = ("".join(cell["source"]) for cell in (stub, solution))
        head = "\n".join(re.findall(r"^(?:from|import) .*", named, re.M))
        name, mine = (re.findall(r"^check_\w+\((\w+)\)", text, re.M)[-1] for text in (solved, named))
        stub["source"] = head + "\n" + re.sub(rf"\b{name}\b", mine, solved)
    return notebook


def test_nothing_done_gives_the_courses_parts():
    parts = my_parts(ROOT / "notebooks")
    first, second = repr(parts).splitlines()[:2]
    assert first == f"0 of {len(COURSE)} parts are yours."
    assert second.startswith("rms_norm is the course's: its exercise in 01_rmsnorm.ipynb")
    assert all(getattr(parts, name) is COURSE[name] for name in COURSE)
    assert not (later := my_parts(ROOT / "notebooks", through=7)).own
    assert {"gqa_layer", "my_llama", "training_loop", "sample", "judge"} < {*later.names} - {*parts.names}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    for stem in LESSONS[:4]:
        write(folder / f"my copy of {stem} (1).ipynb", done(stem))
    return my_parts(folder)


OLD = {"rope_parameters": None, "rope_theta": 500.0}
FOLDERS = {  # older config.json, and what it would refuse
    "no head_dim": OLD | {"head_dim": None}, "no eps": {"rms_norm_eps": None},
    "3.1": OLD | {"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    "said twice": {"rope_scaling": {"type": "linear", "factor": 4.0}}, "biases": {"attention_bias": True},
    "an encoder": {"is_causal": False},
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_parts_open_the_folders_that_the_course_opens_decode_with_a_cache_and_refuse_the_others(saved, name):
    def change(content):
        content |= FOLDERS[name]
        for key in [key for key, value in content.items() if value is None]:
            del content[key]

    edit_json(saved / "config.json", change)
    parts, tokens = my_parts(ROOT / "tests"), torch.arange(18).view(2, 9)
    try:
        theirs = load_checkpoint(saved)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            parts.model(saved)
        return
    ours, expected = parts.model(saved), LlamaForCausalLM.from_pretrained(saved)(tokens).logits
    cache = ours.new_cache(2)
    pieces = [ours(piece, cache=cache) for piece in tokens.split(5, dim=1)]
    assert_agree(torch.cat(pieces, dim=1), expected)
    assert_agree(ours(tokens, last_only=True), expected[:, -1:])
    for model in (ours, theirs):
        with pytest.raises(ValueError, match="9 tokens do not fit: the cache holds 0 of at most 4"):
            model(tokens, model.new_cache(2, 4))


def test_a_rope_type_that_no_exercise_asks_for_is_refused_at_once(saved):
    edit_json(saved / "config.json", lambda content: content.update(OLD | FOLDERS["said twice"]))
    with pytest.raises(ValueError, match="rope_type 'linear' is not known: it is 'default' or 'llama3'"):
        my_parts(ROOT / "tests").model(saved)


def test_solved_exercises_are_the_learners_parts_whatever_the_notebooks_are_called(own):
    assert repr(own).startswith(f"{len(COURSE)} of {len(COURSE)} parts are yours: rms_norm, rope_angles, ")
    assert not any(getattr(own, name) is COURSE[name] for name in COURSE)


def swapped_in(patch, parts):
    """The parts in place of transformers' own, one after the other; each stays."""
    norm, rope, mlp = (getattr(modeling_llama, f"Llama{name}") for name in ("RMSNorm", "RotaryEmbedding", "MLP"))
    patch.setattr(norm, "forward", lambda self, x: parts.rms_norm(x, self.weight, self.variance_epsilon))
    yield "rms_norm"
    matrices = "gate_proj", "up_proj", "down_proj"
    patch.setattr(mlp, "forward", lambda self, x: parts.swiglu(x, *(getattr(self, name).weight for name in matrices)))
    yield "swiglu"

    def angles(self, x, position_ids):  # (B, T): they count from each row's first real token
        turn = parts.rope_angles(position_ids, self.config.head_dim, self.config.rope_parameters["rope_theta"])
        return turn.cos()[:, None], turn.sin()[:, None]

    patch.setattr(rope, "forward", angles)
    turn_both = lambda q, k, cos, sin: tuple(parts.apply_rope_halves(x, cos, sin) for x in (q, k))  # noqa: E731
    patch.setattr(modeling_llama, "apply_rotary_pos_emb", turn_both)
    yield "rope"

    def attention(module, q, k, v, mask, **_):  # mask: numbers to add, (B, 1, T, S), 0 where a key is visible
        itself = torch.arange(k.shape[2]) == torch.arange(k.shape[2])[-q.shape[2] :, None]  # else padding sees nothing
        visible = (mask[:, 0] == 0) | itself
        k, v = (parts.repeat_kv(x, module.num_key_value_groups) for x in (k, v))
        heads = [parts.attention_head(q[:, i], k[:, i], v[:, i], visible) for i in range(q.shape[1])]
        return torch.stack(heads, dim=2), None

    patch.setattr(modeling_llama, "eager_attention_forward", attention)
    yield "attention"


def test_each_part_works_inside_transformers_with_gradient_padding_and_cache(own, monkeypatch):
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "vocab_size": 60, "head_dim": 8}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "initializer_range": 0.2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, attn_implementation="eager")).eval()
    tokens, real = torch.randint(60, (3, 9)), torch.arange(9) >= torch.tensor([[0], [3], [7]])

    def made():
        model.zero_grad()
        logits = model(tokens, attention_mask=real.long()).logits[real]
        logits.square().mean().backward()
        new = model.generate(tokens, attention_mask=real.long(), max_new_tokens=30, do_sample=False, pad_token_id=0)
        return {"logits": logits.detach()} | {name: one.grad for name, one in model.named_parameters()}, new

    expected, text = made()
    for part in swapped_in(monkeypatch, own):
        numbers, new = made()
        assert torch.equal(new, text), part
        for name, want in expected.items():
            assert (numbers[name] - want).abs().max() <= 1e-4 * want.abs().max(), (part, name)


NORM = "def my_rms_norm(x, weight, eps):\n    "
HELPER = "import math  # a\u2028b\n\n\ndef half(x):\n    return x / 2"
HELPED = "def my_swiglu(x, a, b, c):\n    return (torch.nn.functional.silu(2 * half(x @ a.T)) * (x @ b.T)) @ c.T\n"
STOPS = "open('ran', 'w')\nraise SystemExit"
SAID = {  # the cells of notebooks, the one part that is the learner's, and words of why a part is not, or of all
    "never ends": ([[f"{NORM}while True: pass"]], "", {"rms_norm": "no answer after"}),
    "exits": ([[f"ZERO = exit()\n{NORM}return x + ZERO"]], "", {"rms_norm": r"does not run \(SystemExit"}),
    "not there": ([["1 / 0\ncheck_swiglu(my_swiglu)"]], "", {
        "rms_norm": "no notebook in this folder has the exercise. Put your notebooks 01 to 04"}),
    "notebook 05 alone, as on Colab": ([["from checks import my_parts\nmy_parts()"]], "", {
        "": r"^[^\n]*yours\.\nrms_norm, rope_angles, [^\n]*\(in Colab upload them[^\n]*$"}),
    "uses another, and an error in its line": ([[HELPER, HELPED, f"\n\n{NORM}return x @ weight[0]"]], "swiglu", {
        "rms_norm": r'in the line "return x @ weight\[0\]"'}),
    "of two files one is right": ([[f"{NORM}return x"], [NORM_RIGHT["my_rms_norm"]]], "rms_norm", {}),
    "broken, and no exercise": ([None, [STOPS, f"{NORM}return x\nopen('ran', 'w')"]], "", {
        "rms_norm": r"does not pass\..* expected 2\.5\.$", "swiglu": "0.ipynb cannot be read"}),
}  # fmt: skip


@pytest.mark.parametrize("label", SAID)
def test_what_is_not_right_is_the_courses_and_said_in_one_sentence_and_what_is_right_the_learners(
    label, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("checks.run.PATIENCE", 0.1)  # so that the endless loop ends after a second
    notebooks, own, why = SAID[label]
    for number, cells in enumerate(notebooks):
        write(tmp_path / f"{number}.ipynb", stored(cells) if cells else '{"cells": [')
    parts = my_parts(tmp_path)
    assert repr(parts).partition("\n")[0] == f"{len(parts.own)} of {N} parts are yours{f': {own}' if own else '.'}"
    assert parts.missing.keys() == COURSE.keys() - {own}
    for name, words in why.items():
        assert re.search(words, parts.missing.get(name, repr(parts)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_ones_own_parts_open_the_checkpoint_and_write_in_notebook_05(tmp_path):
    for stem in LESSONS:
        write(tmp_path / f"{stem}.ipynb", done(stem))
    last = json.loads((tmp_path / "05_full_model.ipynb").read_text(encoding="utf-8"))
    last["cells"].append(code_cell("assert not parts.missing and same and check_my_llama(my_llama)") | {"id": "end"})
    write(tmp_path / "05_full_model.ipynb", last)
    command = "-m pytest -q -p no:cacheprovider --nbval-lax --nbval-current-env 05_full_model.ipynb"
    subprocess.run([sys.executable, *command.split()], cwd=tmp_path, check=True)
