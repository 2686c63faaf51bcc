"""Text without a download: nothing repeats, nothing is lost in the tokenizer, every window can be drawn."""

from itertools import islice
from pydoc_data.topics import topics

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.corpus import batches, load_text, reference_text, train_val_split
from helpers.text import encode


def paragraphs(text):
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def test_no_paragraph_of_the_reference_stands_twice_and_none_is_lost():
    found, whole = paragraphs(reference_text()), paragraphs("\n\n".join(text.strip() for text in topics.values()))
    assert load_text() == reference_text()
    assert len(found) == len(set(found))
    assert len(whole) > len(set(whole))  # there are copies: otherwise none had to be left out
    assert set(whole) == set(found)
    assert sum(map(len, found)) > 300_000


@given(st.integers(5, 99), st.sampled_from(["\n\n", "\n", " ", ""]))
def test_the_split_loses_nothing_and_cuts_between_paragraphs_or_else_lines_words_letters(percent, joint):
    text = joint.join(f"part{number}" for number in range(200))
    training, held_out = train_val_split(text, percent / 100)
    assert training + held_out == text
    assert held_out.startswith(joint)
    assert len(held_out) == pytest.approx(len(text) * percent / 100, abs=15)


@pytest.mark.parametrize("end", ["\n\nend", "\n\n" + "end " * 60])
def test_a_last_long_paragraph_does_not_leave_the_held_out_part_short(end):
    text = "word " * 1000 + end
    assert len(train_val_split(text)[1]) == pytest.approx(len(text) / 10, abs=6)


PAGE = "Ein Absatz mit Umlauten: äöü, und 日本.\n\n" * 600


def test_a_file_of_your_own_is_read_as_it_is(tmp_path):
    (tmp_path / "a.txt").write_text(PAGE.replace("\n", "\r\n"), encoding="utf-8-sig", newline="")
    assert load_text(tmp_path / "a.txt") == load_text(str(tmp_path / "a.txt")) == PAGE.strip()


def test_a_folder_is_read_file_by_file_in_order_without_hidden_ones(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {"b.txt": "second", "a.md": PAGE, "sub/c.py": "third", ".git/x": "\0", "empty.txt": " "}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert load_text(tmp_path) == PAGE.strip() + "\n\nsecond\n\nthird"


@given(st.text())
@example("Ω 日本 \U0001f642 e\u0301 \r\n\t\0 \ufeff")
@example("   leading and trailing   ")
@example("")
def test_every_text_comes_back_from_its_tokens(tokenizer, text):
    ids = encode(tokenizer, text)
    assert ids.dtype == torch.int64
    assert all(0 <= token < tokenizer.get_vocab_size() for token in ids.tolist())
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == text


@given(st.integers(2, 40), st.integers(1, 20), st.integers(1, 5))
def test_targets_are_one_token_further(n_tokens, seq_len, batch_size):
    tokens = torch.arange(n_tokens) * 7
    seq_len = min(seq_len, n_tokens - 1)
    inputs, targets = next(batches(tokens, batch_size, seq_len, torch.Generator()))
    assert inputs.shape == (batch_size, seq_len)
    torch.testing.assert_close(targets, inputs + 7)
    inputs.fill_(-1)
    assert torch.equal(tokens, torch.arange(n_tokens) * 7)  # a batch is a copy of the text


def test_every_window_is_drawn_the_last_one_too():
    tokens = torch.arange(8)
    starts = torch.cat([inputs[:, 0] for inputs, _ in islice(batches(tokens, 4, 3, torch.Generator()), 50)])
    assert set(starts.tolist()) == {0, 1, 2, 3, 4}  # 4: inputs 4 5 6, targets 5 6 7
    with pytest.raises(ValueError, match=r"8 tokens are fewer than seq_len \+ 1 = 9"):
        next(batches(tokens, 4, 8, torch.Generator()))
