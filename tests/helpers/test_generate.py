"""Writing text: which token is chosen, when it stops, and that a cache, a batch or padding changes none of it."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from helpers.checkpoint import load_checkpoint
from helpers.generate import end_tokens, generate, next_token_probabilities, stream
from tests.support.files import edit_json
from tests.support.models import TINY, assert_agree, draw_tokens, make_model

PROMPTS = [[5, 9, 2, 40, 7], [11], [3, 3, 60]]


def draw_logits(seed=0):
    return 3 * torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parity
@given(
    seed=st.integers(0, 999),
    temperature=st.floats(0.3, 3.0),
    top_k=st.none() | st.integers(1, 64),
    top_p=st.none() | st.floats(0.01, 0.99),
)
def test_probabilities_equal_transformers_warpers(seed, temperature, top_k, top_p):
    logits = draw_logits(seed)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = TopPLogitsWarper(top_p)(None, expected)
    assert_agree(next_token_probabilities(logits, temperature, top_k, top_p), expected.softmax(dim=-1))


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-39, 1e-6])
def test_a_vanishing_temperature_is_greedy(temperature):
    logits = draw_logits()
    expected = torch.nn.functional.one_hot(logits.argmax(dim=-1), 64).float()
    assert torch.equal(next_token_probabilities(logits, temperature), expected)


def test_greedy_takes_the_first_of_equals_and_top_p_stops_where_it_is_reached():
    even = torch.zeros(1, 4)
    assert next_token_probabilities(even, temperature=0).tolist() == [[1, 0, 0, 0]]
    assert next_token_probabilities(even, top_p=0.5).tolist() == [[0.5, 0.5, 0, 0]]  # the third would come at 0.5
    assert next_token_probabilities(torch.tensor([[2.0, 1]]), top_p=5e-324).tolist() == [[1, 0]]  # one always stays


def test_top_p_one_keeps_every_token_of_a_real_vocabulary():
    """Summing 32 000 probabilities in float32 passes 1 before the end: rare tokens must not be lost to that."""
    logits = 3 * torch.randn(4, 32_000)
    assert torch.equal(next_token_probabilities(logits, top_p=1.0) > 0, next_token_probabilities(logits) > 0)


def test_draws_follow_the_probabilities(model):
    """4000 rows with one prompt: shares within four standard errors, and nothing outside top_k."""
    prompt = torch.tensor([[5, 9, 2]])
    expected = next_token_probabilities(model(prompt)[:, -1].detach(), 1.5, top_k=6)[0]
    drawn = generate(model, prompt.expand(4000, -1), 1, temperature=1.5, top_k=6, seed=3)[:, -1]
    shares = drawn.bincount(minlength=64) / 4000
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / 4000).sqrt()).all()


def test_a_seed_repeats_a_text_and_leaves_the_global_random_state_alone(model, tokens):
    sample, before = partial(generate, model, tokens, 10, temperature=1.0), torch.get_rng_state()
    assert torch.equal(sample(seed=4), sample(seed=4))
    assert not torch.equal(sample(seed=4), sample(seed=5))
    assert torch.equal(sample(seed=np.int64(4), top_k=np.int64(4), stop=[np.int64(4)]), sample(seed=4, top_k=4, stop=4))
    assert generate(model, [[*map(np.int64, PROMPTS[0])]], np.int64(4)) == generate(model, PROMPTS[:1], 4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    first, second = sample(), sample()  # without a seed the global state decides
    torch.manual_seed(1)
    assert torch.equal(sample(), first)
    assert not torch.equal(second, first)


def test_a_row_repeats_its_stop_token_until_all_rows_have_stopped(model, tokens):
    free = generate(model, tokens, 10)[:, 16:].tolist()
    stops = {free[0][2], free[1][6]}
    first = [min(i for i, token in enumerate(row) if token in stops) for row in free]
    assert first[0] != first[1]
    expected = [row[:at] + [row[at]] * (max(first) + 1 - at) for row, at in zip(free, first, strict=True)]
    assert generate(model, tokens, 10, stop=stops)[:, 16:].tolist() == expected


@pytest.mark.parametrize("stop", [0, 63])
def test_the_first_and_the_last_id_can_stop_and_come_in_any_form(stop, tokens):
    """One id, some in a row or a set, a tensor of either. A model that always writes `stop` writes it once."""
    model = make_model()
    model.lm_head = torch.nn.Linear(32, 64)
    model.lm_head.weight.data.zero_()
    model.lm_head.bias.data = torch.nn.functional.one_hot(torch.tensor(stop), 64).float()
    for form in (stop, [7, stop], (stop,), {stop}, iter([stop]), torch.tensor(stop), torch.tensor([[stop]])):
        assert generate(model, tokens, 3, stop=form)[:, 16:].tolist() == [[stop], [stop]]


ABSENT = object()
ENDS = [  # eos_token_id of config.json and of generation_config.json, of tokens 0 to 11 of the free text
    (None, 2), (3, [5, 1]), (3, None), ([4, 6], ABSENT), (4, []), (2, "no file"), ([4, 6], "no file"),
    (None, "no file"), (ABSENT, "no file"),
]  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize(("config", "generation"), ENDS)
def test_the_ends_that_a_folder_names_stop_a_text_as_in_transformers(config, generation, saved):
    prompt = torch.tensor([[1, 2, 3]])
    free = generate(load_checkpoint(saved), prompt, 12)[0, 3:].tolist()

    def ids(of):
        return [free[at] for at in of] if isinstance(of, list) else free[of] if isinstance(of, int) else of

    edit_json(saved / "config.json", lambda content: content.pop("eos_token_id"))
    (saved / "generation_config.json").write_text("{}")
    for name, end in (("config.json", config), ("generation_config.json", generation)):
        if end == "no file":
            (saved / name).unlink()
        elif end is not ABSENT:
            edit_json(saved / name, lambda content, end=end: content.update(eos_token_id=ids(end)))
    theirs = AutoModelForCausalLM.from_pretrained(saved)
    expected = theirs.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert generate(load_checkpoint(saved), prompt, 12, stop=end_tokens(saved)).tolist() == expected.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_choose_no_token_are_refused(value, model, tokens):
    """NaN wins every argmax, and would be written without a word."""
    model.lm_head.weight.data.fill_(value)
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="no token can be chosen"):
            generate(model, tokens, 2, temperature=temperature)
    masked = torch.tensor([[0.0, float("-inf")]])
    assert next_token_probabilities(masked).tolist() == [[1, 0]]


def test_ragged_prompts_equal_one_by_one_without_a_cache_also_past_max_seq_len_and_end_with_their_stop(model):
    prompts = [*PROMPTS, draw_tokens(1, TINY.max_seq_len - 2)[0].tolist()]
    expected = [list(prompt) for prompt in prompts]
    for row in expected:
        for _ in range(8):
            row.append(model(torch.tensor([row]))[0, -1].argmax().item())
    assert generate(model, prompts, 8) == expected
    assert [len(prompt) for prompt in prompts] == [5, 1, 3, 62]  # they are left as they were
    stops = [expected[0][5 + 2], expected[2][3 + 4]]
    for row, prompt in zip(expected, prompts, strict=True):
        first = next((at for at in range(len(prompt), len(row)) if row[at] in stops), len(row))
        del row[first + 1 :]
    assert generate(model, prompts, 8, stop=stops) == expected


def test_stream_yields_a_token_after_each_forward_pass_and_equals_generate_even_if_it_is_changed(model, tokens):
    read, new, settings = [], [], {"temperature": 1.2, "top_k": 10, "top_p": 0.9, "seed": 2}
    model.register_forward_pre_hook(lambda module, args: read.append(args[0].shape[1]))
    for step in stream(model, tokens, 8, **settings):
        assert read == [16] + [1] * len(new)
        new.append(step.clone())
        step.zero_()
    assert torch.equal(torch.cat([tokens, torch.stack(new, dim=1)], dim=1), generate(model, tokens, 8, **settings))


def test_what_was_written_is_int64_and_can_be_trained_on(model, tokens):
    """Inference mode ends before a token is handed over: tensors made in it are refused by autograd."""
    for written in (generate(model, tokens, 3), torch.stack(list(stream(model, tokens, 3)), dim=1)):
        model(written).sum().backward()
    assert {generate(model, tokens.int(), n).dtype for n in (0, 1)} == {torch.int64}
    next(stream(model, tokens, 3))
    assert not torch.is_inference_mode_enabled()
