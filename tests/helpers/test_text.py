"""Text without a download: nothing repeats, nothing is lost in the tokenizer, every window can be drawn."""

import email
import random
import warnings
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from helpers import corpus
from helpers.corpus import batches, deduplicate, load_text, reference_text, train_tokenizer, train_val_split
from helpers.text import excerpt


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


PAGE = "".join(f"Ein Absatz mit Umlauten, Nummer {number}: äöü, und 日本.\n\n" for number in range(600))


def test_a_file_is_read_as_it_is_and_a_folder_file_by_file_in_order_without_hidden_ones(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {"b.txt": "second", "sub/c.py": "third", ".git/x": "\0", "empty.txt": " "}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "a.md").write_text(PAGE.replace("\n", "\r\n"), encoding="utf-8-sig", newline="")
    assert load_text(tmp_path / "a.md") == load_text(str(tmp_path / "a.md")) == PAGE.strip()
    assert load_text(tmp_path) == PAGE.strip() + "\n\nsecond\n\nthird"


def test_a_copy_of_a_file_is_left_out_and_nothing_held_out_was_trained_on(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(PAGE + f"Das Ende von {name}.", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"600 paragraph\(s\) are left out, which stood before"):
        text = load_text(tmp_path)
    training, held_out = map(paragraphs, train_val_split(text))
    assert set(paragraphs(PAGE)) <= {*training, *held_out}
    assert not {*training} & {*held_out} - {""}


def test_copies_that_are_no_whole_paragraphs_are_told_when_the_text_is_cut():
    log = [f"2026-11-28 01:04:{number} this line of a log has its own number" for number in range(1000)]
    with pytest.warns(UserWarning, match=r"lines with 100% of the letters to judge by stand in the training part, too"):
        train_val_split("\n".join(log + log[:500]))
    with warnings.catch_warnings(action="error"):
        train_val_split("\n".join(log))
        train_val_split(reference_text())
        for module in (torch.nn.modules, torch.optim, email):  # code says `return None` again and again
            files = sorted(Path(module.__file__).parent.glob("*.py"))
            train_val_split(deduplicate("\n\n".join(file.read_text(encoding="utf-8") for file in files))[0])


SCRIPTS = {  # letters of some alphabets, and how many of them a line has: in most lines fewer than 40
    "Latin verse": ("etaoinshrdlu cmfwypvbgk", 36), "Chinese": ("天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往", 25),
    "Japanese": ("いろはにほへとちりぬるをわかよたれそつねならむ", 20), "Korean": ("가나다라마바사아자차카타파하 ", 30),
    "Thai": ("กขคงจฉชซญดตถทนบปผฝพฟ", 38), "Greek": ("αβγδεζηθικλμνξοπρστυφχψω ", 60),
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_copy_is_seen_in_every_script_and_length_of_line(script):
    letters, width = SCRIPTS[script]
    draw = random.Random(0)
    lines = ["".join(draw.choices(letters, k=width)) for _ in range(1000)]
    with pytest.warns(UserWarning, match="this held-out part is no test"):
        train_val_split("\n".join(["one title", *lines, "another title", *lines]))
    with warnings.catch_warnings(action="error"):
        train_val_split("\n".join(lines))


OTHERS = {"a.gif": b"GIF89a\xff\xfe\0", "b.txt": "ä".encode("latin-1"), "c.ipynb": b'{"cells": []}', "d.bin": b"\0\0"}


def test_what_is_not_text_in_a_folder_is_left_out_and_named_and_a_very_large_text_gets_a_warning(tmp_path, monkeypatch):
    for name, content in OTHERS.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} .*(as UTF-8, or|as a script, or|is not text:) leave it out\.$"):
            load_text(tmp_path / name)
    with pytest.raises(ValueError, match=r"0 characters in 0 file\(s\).* at least 20,000.*4 file\(s\) are left out"):
        load_text(tmp_path)
    (tmp_path / "mine.txt").write_text(PAGE, encoding="utf-8")
    with pytest.warns(UserWarning, match=r"4 file\(s\) are left out, .*: a\.gif, b\.txt, c\.ipynb, d\.bin\.$"):
        assert load_text(tmp_path) == PAGE.strip()
    monkeypatch.setattr(corpus, "MAX_CHARACTERS", len(PAGE) - 3)
    with pytest.warns(UserWarning, match="characters are many"):
        assert load_text(tmp_path / "mine.txt") == PAGE.strip()


def test_a_long_word_is_handed_to_the_tokenizers_training_in_pieces(monkeypatch):
    """One word of 200,000 letters takes it minutes; short words are handed over in one piece, as they are."""
    handed = []
    monkeypatch.setattr(Tokenizer, "train_from_iterator", lambda self, pieces, _: handed.append(list(pieces)))
    for text in ("ACGT" * 50_000, excerpt()):
        train_tokenizer(text)
    assert {*map(len, handed[0])} <= {1000, 0}
    assert "".join(handed[0]) == "ACGT" * 50_000
    assert handed[1] == [excerpt()]


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
    for sizes in ((0, 3), (4, 0)):
        with pytest.raises(ValueError, match="must be a whole number >= 1"):
            next(batches(tokens, *sizes, torch.Generator()))
