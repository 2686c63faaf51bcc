"""Text without a download: nothing repeats, nothing is lost in the tokenizer, every window can be drawn."""

import json
from itertools import islice

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from helpers.text import (
    END_OF_TEXT,
    SMALLEST,
    TINY_LLAMA,
    batches,
    encode,
    excerpt,
    held_out_split,
    library_docstrings,
    load_text,
    load_tokenizer,
    reference_text,
    train_tokenizer,
    without_some_merges,
)


@pytest.fixture(scope="module")
def tokenizer():
    """A small tokenizer, trained on the fixed excerpt."""
    return train_tokenizer(excerpt(), vocab_size=300)


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------------ the text


def paragraphs(text):
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def test_no_paragraph_of_the_reference_stands_twice():
    found = paragraphs(reference_text())
    assert len(found) == len(set(found))


def test_leaving_out_copies_loses_no_paragraph():
    whole = paragraphs(reference_text(unique=False))
    assert set(whole) == set(paragraphs(reference_text()))
    assert len(whole) > len(set(whole))  # there are copies: otherwise `unique` would not be needed


def test_docstrings_of_the_library_are_more_text_of_another_kind():
    text = library_docstrings()
    assert len(text) > 3 * len(reference_text())
    assert json.JSONEncoder.__doc__.split("\n\n")[0].strip() in text
    assert "\0" not in text


def test_the_reference_is_long_enough_to_train_on():
    text = reference_text()
    assert len(text) > 300_000
    assert "yield" in text
    assert "The if statement" in text.replace('"', "")


def test_the_excerpt_is_fixed_and_short():
    text = excerpt()
    assert text.isascii()
    assert len(paragraphs(text)) >= 3
    assert 500 < len(text) < 2000
    assert "a local variable of that block" in " ".join(text.split())


@given(st.integers(1, 99))
def test_the_split_loses_nothing_and_cuts_at_a_paragraph(percent):
    text = "\n\n".join(f"paragraph {number}" for number in range(200))
    training, held_out = held_out_split(text, percent / 100)
    assert training + held_out == text
    assert held_out.startswith("\n\n")
    assert len(held_out) == pytest.approx(len(text) * percent / 100, abs=15)


def test_the_held_out_part_was_not_read_in_training():
    training, held_out = held_out_split(reference_text())
    assert 0.09 < len(held_out) / (len(training) + len(held_out)) <= 0.1
    assert not set(paragraphs(held_out)) - {""} & set(paragraphs(training))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan")])
def test_a_fraction_out_of_range_is_named(fraction):
    with pytest.raises(ValueError, match=rf"fraction={fraction} must lie between 0 and 1, both excluded"):
        held_out_split("a\n\nb", fraction)


def test_a_text_without_paragraphs_cannot_be_split():
    with pytest.raises(ValueError, match="a text of 4 characters has no paragraph break to cut at: pass a longer text"):
        held_out_split("abcd")


@pytest.mark.parametrize("joint", ["\n", " "])
def test_a_text_without_paragraphs_is_cut_at_a_line_or_a_space(joint):
    text = joint.join(f"line{number}" for number in range(200))
    training, held_out = held_out_split(text)
    assert training + held_out == text
    assert held_out.startswith(joint)
    assert len(held_out) == pytest.approx(len(text) / 10, abs=10)


def test_a_last_long_paragraph_does_not_leave_the_held_out_part_empty():
    _, held_out = held_out_split("word " * 1000 + "\n\nend")
    assert len(held_out) == pytest.approx(500, abs=6)


# ------------------------------------------------------------------------------------------- your own text

PAGE = "Ein Absatz mit Umlauten: äöü, und 日本.\n\n" * 600


def test_without_a_source_the_text_is_the_reference():
    assert load_text() == reference_text()


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig"])
def test_a_file_of_your_own_is_read_as_it_is(tmp_path, coding):
    (tmp_path / "a.txt").write_text(PAGE.replace("\n", "\r\n"), encoding=coding, newline="")
    assert load_text(tmp_path / "a.txt") == load_text(str(tmp_path / "a.txt")) == PAGE.strip()


def test_a_folder_is_read_file_by_file_in_order_without_hidden_ones(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {"b.txt": "second", "a.md": PAGE, "sub/c.py": "third", ".git/x": "\0", "empty.txt": " "}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert load_text(tmp_path) == PAGE.strip() + "\n\nsecond\n\nthird"


def test_a_source_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing is not there: pass a text file, or a folder of text files"):
        load_text(tmp_path / "nothing")


@pytest.mark.parametrize("content", ["", "  \n", "short " * 100, "x" * (SMALLEST - 1)])
def test_a_text_too_short_to_learn_from_says_the_smallest_size(tmp_path, content):
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    for source in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(ValueError, match=rf"holds {len(content.strip()):,} characters in 1 .*at least 20,000"):
            load_text(source)


def test_an_empty_folder_says_the_smallest_size(tmp_path):
    with pytest.raises(ValueError, match=r"holds 0 characters in 0 file\(s\), too few .*at least 20,000"):
        load_text(tmp_path)


def test_the_shortest_text_that_is_taken_can_be_trained_on_and_judged(tmp_path):
    (tmp_path / "a.txt").write_text((excerpt() * 40)[:SMALLEST].strip() + "." * 20, encoding="utf-8")
    text, held_out = held_out_split(load_text(tmp_path))
    tokenizer = train_tokenizer(text)
    assert len(encode(tokenizer, held_out)) > 257
    assert next(batches(encode(tokenizer, text), 8, 256, draw()))[0].shape == (8, 256)


@pytest.mark.parametrize(
    ("content", "words"),
    [(bytes(range(256)) * 100, "is not UTF-8 text .*save it as UTF-8"), (b"a\0b" * 9000, "holds zero bytes")],
)
def test_a_binary_file_is_named(tmp_path, content, words):
    (tmp_path / "good.txt").write_text(PAGE, encoding="utf-8")
    (tmp_path / "data.bin").write_bytes(content)
    for source in (tmp_path, tmp_path / "data.bin"):
        with pytest.raises(ValueError, match=rf"data\.bin {words}"):
            load_text(source)


# ------------------------------------------------------------------------------------------- the tokenizer


@given(st.text())
@example("Ω 日本 \U0001f642 e\u0301 \r\n\t\0 \ufeff")
@example("   leading and trailing   ")
@example("")
def test_every_text_comes_back_from_its_tokens(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@given(st.text())
def test_token_ids_fit_the_vocabulary(tokenizer, text):
    ids = encode(tokenizer, text)
    assert ids.dtype == torch.int64
    assert ids.ndim == 1
    assert all(0 <= token < tokenizer.get_vocab_size() for token in ids.tolist())


def test_the_vocabulary_has_the_size_asked_for(tokenizer):
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.token_to_id(END_OF_TEXT) == 0


def test_the_bytes_come_first_so_that_nothing_is_unknown():
    # 256 bytes and the end of text are the smallest vocabulary, and it already reads everything
    tokenizer = train_tokenizer("abab", vocab_size=257)
    assert tokenizer.get_vocab_size() == 257
    assert len(encode(tokenizer, "é")) == 2  # two bytes in UTF-8


def test_frequent_neighbours_become_one_token(tokenizer):
    assert len(encode(tokenizer, "block block block")) < 17 / 2


def test_training_twice_gives_the_same_tokenizer(tokenizer):
    assert train_tokenizer(excerpt(), vocab_size=300).to_str() == tokenizer.to_str()


def test_forgetting_merges_gives_more_tokens_of_the_same_vocabulary(tokenizer):
    fewer = without_some_merges(tokenizer, 0.5, draw())
    assert fewer.get_vocab() == tokenizer.get_vocab()
    assert len(encode(fewer, excerpt())) > len(encode(tokenizer, excerpt()))
    assert fewer.decode(fewer.encode(excerpt()).ids) == excerpt()
    assert without_some_merges(tokenizer, 0.5, draw()).to_str() == fewer.to_str()
    assert without_some_merges(tokenizer, 0.0, draw()).encode(excerpt()).ids == tokenizer.encode(excerpt()).ids


def test_a_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"tokenizer.json is missing: pass a folder that holds a tokenizer.json"
    ):
        load_tokenizer(tmp_path)


def test_a_saved_tokenizer_is_found_in_its_folder(tmp_path, tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).to_str() == tokenizer.to_str()
    assert isinstance(load_tokenizer(str(tmp_path)), Tokenizer)


def test_the_bundled_tokenizer_reads_the_excerpt():
    tokenizer = load_tokenizer()
    ids = encode(tokenizer, excerpt())
    assert tokenizer.decode(ids.tolist()) == excerpt()
    assert len(ids) < len(excerpt()) / 2
    assert load_tokenizer(TINY_LLAMA).to_str() == tokenizer.to_str()


# -------------------------------------------------------------------------------------------------- batches


@given(st.integers(2, 40), st.integers(1, 20), st.integers(1, 5))
def test_targets_are_one_token_further(n_tokens, seq_len, batch_size):
    tokens = torch.arange(n_tokens) * 7
    seq_len = min(seq_len, n_tokens - 1)
    inputs, targets = next(batches(tokens, batch_size, seq_len, draw()))
    assert inputs.shape == targets.shape == (batch_size, seq_len)
    torch.testing.assert_close(targets, inputs + 7)
    torch.testing.assert_close(inputs[:, 1:], targets[:, :-1])


def test_every_window_is_drawn_the_last_one_too():
    tokens = torch.arange(8)
    starts = torch.cat([inputs[:, 0] for inputs, _ in islice(batches(tokens, 4, 3, draw()), 50)])
    assert set(starts.tolist()) == {0, 1, 2, 3, 4}  # 4: inputs 4 5 6, targets 5 6 7


def test_the_shortest_text_has_one_window():
    inputs, targets = next(batches(torch.tensor([5, 6, 7]), 2, 2, draw()))
    assert inputs.tolist() == [[5, 6], [5, 6]]
    assert targets.tolist() == [[6, 7], [6, 7]]


def test_the_same_seed_draws_the_same_batches():
    tokens = torch.arange(1000)
    first, again, other = (
        [inputs.tolist() for inputs, _ in islice(batches(tokens, 4, 8, draw(seed)), 3)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert first[0] != first[1]


def test_a_batch_is_a_copy_of_the_text():
    tokens = torch.arange(10)
    inputs, _ = next(batches(tokens, 2, 4, draw()))
    inputs.fill_(-1)
    assert tokens.tolist() == list(range(10))


@pytest.mark.parametrize("n_tokens", [0, 1, 8])
def test_a_text_shorter_than_a_window_is_named(n_tokens):
    with pytest.raises(ValueError, match=rf"{n_tokens} tokens are fewer than seq_len \+ 1 = 9: pass a longer text"):
        next(batches(torch.arange(n_tokens), 2, 8, draw()))
