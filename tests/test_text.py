"""Text without a download: nothing repeats, nothing is lost in the tokenizer, every window can be drawn."""

from itertools import islice

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from helpers.text import (
    END_OF_TEXT,
    TINY_LLAMA,
    batches,
    encode,
    excerpt,
    held_out_split,
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
