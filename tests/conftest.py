"""What every test gets: one thread, the same few examples, a tiny model, tokens and a tokenizer."""

import matplotlib as mpl
import pytest
import torch
from hypothesis import settings

from helpers.checkpoint import save_checkpoint
from helpers.corpus import train_tokenizer
from helpers.model import Llama
from helpers.plots import use_course_style
from helpers.text import excerpt
from tests.support.files import OURS
from tests.support.models import draw_tokens, make_model

torch.set_num_threads(1)  # tensors this small gain nothing from more, and on a busy machine threads wait for each other

# One profile everywhere: the same few examples on every run, and no deadline on a shared machine.
settings.register_profile("course", deadline=None, max_examples=15, derandomize=True, database=None)
settings.load_profile("course")


@pytest.fixture
def model() -> Llama:
    """A tiny GQA model with large weights."""
    return make_model()


@pytest.fixture
def tokens() -> torch.Tensor:
    """Two rows of 16 token ids."""
    return draw_tokens(2, 16)


@pytest.fixture
def saved(tmp_path):
    """A folder written by save_checkpoint."""
    save_checkpoint(make_model(OURS), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture(scope="session")
def tokenizer():
    """A small tokenizer, trained on the fixed excerpt."""
    return train_tokenizer(excerpt(), vocab_size=300)


@pytest.fixture(scope="module")
def course_style():
    """The notebook's set-up cell."""
    with mpl.rc_context():
        use_course_style()
        yield
