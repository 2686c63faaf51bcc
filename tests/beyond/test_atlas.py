"""Families are transformers' models: in two sizes, by each of their edits, whatever config.json says."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.atlas import FIRST, LEARNERS, OTHER_KINDS, STRICT, differences, opened, save, sweep, trial
from benchmarks.hub import MODELS
from beyond.families import FAMILIES, TAUGHT
from tests.support.fuzz import NIGHTLY

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # transformers warns of odd settings
SAMPLE = "gpt2", "cohere2", "deepseek_v3"
ALL = [pytest.param(one, marks=() if one in SAMPLE else pytest.mark.slow) for one in FAMILIES if one not in TAUGHT]


@pytest.mark.parametrize("kind", ALL)
def test_a_family_opens_in_two_sizes_and_needs_each_of_its_edits(kind):
    assert not trial(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES if NIGHTLY else SAMPLE)  # each takes ten seconds to a minute
def test_every_setting_alone_and_in_pairs_is_followed_or_refused(kind):
    assert not sweep(kind, n_pairs=25)


@pytest.mark.parametrize(("kind", "name", "source", "settings"), MODELS)
def test_a_published_models_settings_open(kind, name, source, settings):
    if name == "Phi-3.5 mini":
        with pytest.raises(ValueError, match="longrope"):
            opened(kind, settings)
    else:
        assert max(opened(kind, settings)) < STRICT


@pytest.mark.parametrize(("kind", "mask"), [("gpt2", "h.0.attn.bias"), ("gpt_neo", "h.1.attn.attention.masked_bias")])
def test_masks_in_older_files_are_no_weights(kind, mask):
    theirs, folder = save(kind, FIRST)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {f"transformer.{mask}": torch.ones(1, 1, 64, 64).tril()}, file)
    assert max(differences(theirs, folder)) < STRICT


def test_the_atlas_puts_each_type_into_one_place():
    other = " ".join(OTHER_KINDS.values()).split()
    assert len(other) == len(set(other))
    assert not (set(other) | set(LEARNERS)) & FAMILIES.keys()
    assert len(FAMILIES) - len(TAUGHT) == 61, "say the new number in docs/reliability.md and CHANGELOG.md"
