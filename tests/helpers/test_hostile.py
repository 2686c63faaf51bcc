"""Checkpoints made to do harm are refused or harmless: no code of theirs runs, and no memory is filled."""

import json
import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch

from helpers.checkpoint import load_checkpoint
from helpers.formats.files import MAX_JSON_BYTES
from tests.support.files import OURS, meta_weights, write_meta
from tests.support.fuzz import at_most, time_limit

pytestmark = pytest.mark.slow
NOT_OPENED = r"consolidated.00.pth is damaged or holds something other than tensors, and was not opened"
LITTLE = 30_000  # kilobytes


@pytest.fixture
def pth(tmp_path):
    return write_meta(tmp_path / "meta", [meta_weights(OURS)]) / "consolidated.00.pth"


@pytest.fixture
def program(tmp_path):
    """A pickle that creates the file tmp_path/it-ran; the test fails if it is there at the end."""
    content = pickle.dumps(type("Touch", (), {"__reduce__": lambda self: (Path.touch, (tmp_path / "it-ran",))})())
    pickle.loads(content)
    (tmp_path / "it-ran").unlink()  # so it works
    yield content
    assert not (tmp_path / "it-ran").exists()


def test_code_in_a_pth_is_not_run(pth, program):
    with zipfile.ZipFile(pth) as old:
        parts = {part.filename: old.read(part) for part in old.infolist()}
    with zipfile.ZipFile(pth, "w") as new:
        for part, kept in parts.items():
            new.writestr(part, program if part.endswith("/data.pkl") else kept)
    with pytest.raises(ValueError, match=NOT_OPENED) as caught:
        load_checkpoint(pth.parent)
    assert "weights_only" not in str(caught.value)  # torch's own text advises to switch the protection off
    pth.write_bytes(program)
    with pytest.raises(ValueError, match=NOT_OPENED):
        load_checkpoint(pth.parent)


def test_a_pickle_is_not_opened_beside_safetensors_nor_under_their_name(saved, program):
    for file in ("pytorch_model.bin", "consolidated.00.pth", "training_args.bin", "model.safetensors.pkl"):
        (saved / file).write_bytes(program)
    load_checkpoint(saved)
    (saved / "model.safetensors").write_bytes(program)
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or cut short"):
        load_checkpoint(saved)


@pytest.mark.parametrize("part", ["data.pkl", "data/0"])
def test_a_zip_bomb_is_refused_before_it_unpacks(pth, part):
    with zipfile.ZipFile(pth, "w", zipfile.ZIP_DEFLATED) as new, new.open(f"archive/{part}", "w") as bomb:
        for _ in range(300):
            bomb.write(bytes(2**20))
    assert pth.stat().st_size < 2**20
    words = NOT_OPENED + r" \(.* has [\d,]+ bytes, but unpacks to 314,\d{3},\d{3}\)"
    with at_most(LITTLE), pytest.raises(ValueError, match=words):
        load_checkpoint(pth.parent)


def test_one_storage_shown_as_all_weights_is_refused(pth):
    weights, one = meta_weights(OURS), torch.ones(100_000)
    for name, weight in weights.items():
        weights[name] = one[: weight.numel()].view(weight.shape)
    torch.save(weights, pth)
    load_checkpoint(pth.parent)  # a few views of one storage are harmless
    torch.save(weights | {f"extra.{number}": one for number in range(30)}, pth)
    with pytest.raises(ValueError, match=NOT_OPENED + r" \(its tensors claim [\d,]+ bytes, but the file has [\d,]+\)"):
        load_checkpoint(pth.parent)


def test_an_index_cannot_name_what_is_no_file_of_its_folder(saved):
    (saved / "a").mkdir()
    for place in (saved.parent, saved / "a"):
        (place / "x.safetensors").write_bytes((saved / "model.safetensors").read_bytes())
    (saved / "model.safetensors").unlink()
    names = ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "x.bin", 5, None, [], "sub/../../x"]
    for name in (*names, *(f"{stem}.safetensors" for stem in ("n" * 300, "..", "a\0b", "\udc80", "~", "*"))):
        (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises((ValueError, FileNotFoundError), match=re.escape(str(saved))):
            load_checkpoint(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_100_megabytes_of_json_are_refused_unread(saved, name):
    for content in (b"[],", b"["):
        (saved / name).write_bytes(b'{"model_type": [' + content * (100_000_000 // len(content)))
        with at_most(LITTLE), pytest.raises(ValueError, match=rf"{name} has more than {MAX_JSON_BYTES:,} bytes"):
            load_checkpoint(saved)


def test_json_of_any_depth_is_refused(saved):
    content = json.loads((saved / "config.json").read_text())
    for depth in (900, 990, 3000, 1_000_000):
        for left, right in (("[", "]"), ('{"a":', "}")):
            words = json.dumps(content | {"head_dim": "here"}).replace('"here"', left * depth + "1" + right * depth)
            (saved / "config.json").write_text(words)
            with pytest.raises(ValueError, match=r"config.json"):
                load_checkpoint(saved)


def test_links_are_followed_as_the_hubs_cache_needs(saved, tmp_path):
    """The Hub's cache keeps files elsewhere and links to them."""
    expected = load_checkpoint(saved).state_dict()
    for path in list(saved.iterdir()):
        path.symlink_to(path.rename(tmp_path / path.name))
    assert all(torch.equal(expected[name], weight) for name, weight in load_checkpoint(saved).state_dict().items())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("kind", ["secret", "nothing", "itself", "folder", "endless", "pipe"])
def test_a_link_to_something_else_is_refused_and_shows_nothing_of_it(saved, pth, tmp_path, kind):
    (tmp_path / "secret").write_text("password: swordfish")
    for path in (saved / "model.safetensors", saved / "config.json", pth, pth.parent / "params.json"):
        path.unlink()
        places = {"itself": path, "folder": tmp_path, "endless": "/dev/zero"}
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(places.get(kind, tmp_path / kind))
        folder = re.escape(str(path.parent))
        with time_limit(), pytest.raises((ValueError, FileNotFoundError), match=folder) as caught:
            load_checkpoint(path.parent)
        assert "swordfish" not in str(caught.value)
