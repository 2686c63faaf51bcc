"""Writing text: which token is chosen, when it stops, and that a cache, a batch or padding changes none of it."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from helpers.checkpoint import config_to_hugging_face, load_checkpoint, weights_to_hugging_face
from helpers.fast_decode import prepare_for_decoding
from helpers.generate import generate, next_token_probabilities, stream
from helpers.text import TINY_LLAMA, bits_per_byte, excerpt, load_tokenizer
from tests.support.models import TINY, TINY_CONFIGS, assert_agree, draw_tokens, make_model

PROMPTS = [[5, 9, 2, 40, 7], [11], [3, 3, 60]]


def draw_logits(seed=0, rows=3, size=3.0):
    return size * torch.randn(rows, 64, generator=torch.Generator().manual_seed(seed))


def without_cache(model, prompt, max_new_tokens):
    """Greedy continuation the slow way: read everything again for each token."""
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        tokens.append(model(torch.tensor([tokens]))[0, -1].argmax().item())
    return tokens


# -------------------------------------------------------------------------------- which token is chosen


@pytest.mark.parity
@pytest.mark.parametrize("name", ["mha", "gqa", "mqa", "tied", "llama3 short"])
def test_greedy_equals_transformers_generate(name, tokens):
    ours = make_model(TINY_CONFIGS[name])
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config_to_hugging_face(ours.config))).eval()
    theirs.load_state_dict(weights_to_hugging_face(ours), strict=not ours.config.tie_embeddings)
    settings = transformers.GenerationConfig(do_sample=False, max_new_tokens=12, pad_token_id=0)
    expected = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=settings)
    assert generate(ours, tokens, 12).tolist() == expected.tolist()


def test_greedy_with_a_cache_equals_greedy_without(model, tokens):
    expected = [without_cache(model, row, 8) for row in tokens.tolist()]
    assert generate(model, tokens, 8).tolist() == expected


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


@given(seed=st.integers(0, 999), temperature=st.floats(0.1, 5.0))
def test_temperature_divides_the_logits(seed, temperature):
    """Doubling the temperature halves every gap between log-probabilities."""
    logits = draw_logits(seed)
    once = next_token_probabilities(logits, temperature).log()
    twice = next_token_probabilities(logits, 2 * temperature).log()
    kept = once > -60  # below that the float32 probability is too close to 0 to be compared
    gaps = (twice - twice.amax(-1, keepdim=True)) * 2 - (once - once.amax(-1, keepdim=True))
    assert_agree(gaps[kept], torch.zeros(int(kept.sum())), scale=60.0)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-39, 1e-6])
def test_a_vanishing_temperature_is_greedy(temperature):
    logits = draw_logits()
    expected = torch.nn.functional.one_hot(logits.argmax(dim=-1), 64).float()
    assert torch.equal(next_token_probabilities(logits, temperature), expected)


def test_a_huge_temperature_makes_all_tokens_equally_likely():
    assert_agree(next_token_probabilities(draw_logits(), 1e30), torch.full((3, 64), 1 / 64))


@given(seed=st.integers(0, 999), top_k=st.integers(1, 100))
def test_top_k_keeps_the_k_most_likely_tokens_in_proportion(seed, top_k):
    logits = draw_logits(seed)
    probabilities = next_token_probabilities(logits, top_k=top_k)
    kept = probabilities > 0
    assert (kept.sum(dim=-1) == min(top_k, 64)).all()
    assert (logits.masked_fill(~kept, math.inf).amin(-1) > logits.masked_fill(kept, -math.inf).amax(-1)).all()
    assert_agree(probabilities, logits.masked_fill(~kept, -math.inf).softmax(dim=-1))


@given(seed=st.integers(0, 999), top_p=st.floats(1e-6, 0.999), size=st.floats(0.1, 5.0))
def test_top_p_keeps_the_fewest_tokens_that_reach_p(seed, top_p, size):
    everything = draw_logits(seed, rows=1, size=size).softmax(dim=-1).double()
    kept = next_token_probabilities(everything.log(), top_p=top_p) > 0
    together = everything[kept].sum().item()
    assert together >= top_p - 1e-9
    assert together - everything[kept].min().item() < top_p + 1e-9  # without its least likely token: not enough


def test_ties_greedy_takes_the_first_and_top_p_stops_where_it_is_reached():
    even = torch.zeros(1, 4)
    assert next_token_probabilities(even, temperature=0).tolist() == [[1, 0, 0, 0]]
    assert next_token_probabilities(even, top_p=0.5).tolist() == [[0.5, 0.5, 0, 0]]  # the third would come at 0.5


def test_a_list_of_prompts_may_hold_every_token_of_the_vocabulary():
    model = make_model(replace(TINY, vocab_size=300))
    assert generate(model, [[299, 127, 128]], 2) == generate(model, torch.tensor([[299, 127, 128]]), 2).tolist()


def test_top_p_one_keeps_every_token_of_a_real_vocabulary():
    """Summing 32 000 probabilities in float32 passes 1 before the end: rare tokens must not be lost to that."""
    logits = 3 * torch.randn(4, 32_000)
    assert torch.equal(next_token_probabilities(logits, top_p=1.0) > 0, next_token_probabilities(logits) > 0)


def test_top_p_counts_what_top_k_left():
    """Of 0.4, 0.3, 0.2, 0.1 top_k=2 leaves 4/7 and 3/7: top_p=0.55 then needs one token only."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert next_token_probabilities(logits, top_k=2, top_p=0.55).tolist() == [[1, 0, 0, 0]]
    assert (next_token_probabilities(logits, top_p=0.55) > 0).sum() == 2


def test_logits_are_not_changed_by_choosing():
    logits = draw_logits()
    before = logits.clone()
    next_token_probabilities(logits, 0.5, 5, 0.9)
    assert torch.equal(logits, before)


def test_draws_follow_the_probabilities(model):
    """4000 rows with one prompt: shares within four standard errors, and nothing outside top_k."""
    prompt = torch.tensor([[5, 9, 2]])
    expected = next_token_probabilities(model(prompt)[:, -1].detach(), 1.5, top_k=6)[0]
    drawn = generate(model, prompt.expand(4000, -1), 1, temperature=1.5, top_k=6, seed=3)[:, -1]
    shares = drawn.bincount(minlength=64) / 4000
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / 4000).sqrt()).all()


# ------------------------------------------------------------------------------------------------ seeds


def test_a_seed_repeats_a_text_and_another_seed_gives_another(model, tokens):
    sample = partial(generate, model, tokens, 10, temperature=1.0)
    assert torch.equal(sample(seed=4), sample(seed=4))
    assert not torch.equal(sample(seed=4), sample(seed=5))


def test_a_seed_leaves_the_global_random_state_alone(model, tokens):
    before = torch.get_rng_state()
    generate(model, tokens, 5, temperature=1.0, seed=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_the_global_random_state_decides(model, tokens):
    torch.manual_seed(1)
    first = generate(model, tokens, 10, temperature=1.0)
    second = generate(model, tokens, 10, temperature=1.0)
    torch.manual_seed(1)
    assert torch.equal(generate(model, tokens, 10, temperature=1.0), first)
    assert not torch.equal(second, first)


def test_top_k_one_is_greedy_at_any_temperature(model, tokens):
    assert torch.equal(generate(model, tokens, 8, temperature=3.0, top_k=1, seed=0), generate(model, tokens, 8))


# ------------------------------------------------------------------------------------------ where it stops


def test_a_row_repeats_its_stop_token_until_all_rows_have_stopped(model, tokens):
    row_0, row_1 = generate(model, tokens, 10)[:, 16:].tolist()
    stop = next(token for token in row_0[:9] if token not in row_1)  # row 0 stops before the end, row 1 does not
    kept = row_0[: row_0.index(stop) + 1]
    stopped = generate(model, tokens, 10, stop=stop)[:, 16:]
    assert stopped.tolist() == [kept + [stop] * (10 - len(kept)), row_1]


def test_generation_ends_when_every_row_has_stopped(model, tokens):
    free = generate(model, tokens, 10)[:, 16:]
    stops = {free[0, 2].item(), free[1, 4].item()}
    first = [min(i for i, token in enumerate(row) if token in stops) for row in free.tolist()]
    assert generate(model, tokens, 10, stop=stops).shape == (2, 16 + max(first) + 1)
    assert len(list(stream(model, tokens, 10, stop=stops))) == max(first) + 1


@pytest.mark.parametrize("stop", [0, 63])
def test_the_first_and_the_last_id_can_stop(stop, tokens):
    """A model that always writes `stop` writes it once."""
    model = make_model()
    model.lm_head = torch.nn.Linear(32, 64)
    model.lm_head.weight.data.zero_()
    model.lm_head.bias.data = torch.nn.functional.one_hot(torch.tensor(stop), 64).float()
    assert generate(model, tokens, 3, stop=stop)[:, 16:].tolist() == [[stop], [stop]]


def test_stop_tokens_come_in_any_form(model, tokens):
    """One id, several in a row or a set, a tensor of either: from a tokenizer, a config or another model's output."""
    one = generate(model, tokens, 10)[0, 18].item()
    expected = generate(model, tokens, 10, stop=one)
    assert expected.shape[1] < 26 or (expected != generate(model, tokens, 10)).any()
    for stop in ([one], (one, one), {one}, iter([one]), torch.tensor(one), torch.tensor([[one]])):
        assert torch.equal(generate(model, tokens, 10, stop=stop), expected)


def test_a_stop_token_in_the_prompt_stops_nothing(model, tokens):
    free = generate(model, tokens, 6)
    in_prompt_only = next(token for token in tokens.flatten().tolist() if token not in free[:, 16:])
    assert torch.equal(generate(model, tokens, 6, stop=in_prompt_only), free)


def test_ragged_prompts_are_cut_after_their_own_stop_token(model):
    free = generate(model, PROMPTS, 10)
    stop = free[0][len(PROMPTS[0]) + 2]
    for cut, row, prompt in zip(generate(model, PROMPTS, 10, stop=[stop]), free, PROMPTS, strict=True):
        new = row[len(prompt) :]
        assert cut == prompt + (new[: new.index(stop) + 1] if stop in new else new)


def test_no_new_tokens_gives_the_prompt_back(model, tokens):
    assert torch.equal(generate(model, tokens, 0), tokens)
    assert generate(model, PROMPTS, 0) == PROMPTS
    assert list(stream(model, tokens, 0)) == []


# --------------------------------------------------------------------------- batches, padding, streaming


def test_ragged_prompts_equal_one_by_one(model):
    together = generate(model, PROMPTS, 8)
    assert together == [generate(model, torch.tensor([prompt]), 8)[0].tolist() for prompt in PROMPTS]
    assert together == [without_cache(model, prompt, 8) for prompt in PROMPTS]


def test_a_list_and_a_tensor_of_equal_prompts_give_the_same(model, tokens):
    settings = {"temperature": 1.0, "top_p": 0.9, "seed": 7}
    assert generate(model, tokens.tolist(), 6, **settings) == generate(model, tokens, 6, **settings).tolist()


def test_stream_says_what_it_takes(model):
    with pytest.raises(ValueError, match="tokens are a list: pass a tensor"):
        next(stream(model, [[1, 2]], 5))
    with pytest.raises(ValueError, match=r"tokens have shape \(2,\): pass \(batch, tokens\)"):
        next(stream(model, torch.tensor([1, 2]), 5))


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.2, "top_k": 10, "top_p": 0.9, "seed": 2}])
def test_stream_equals_generate(model, tokens, settings):
    new = torch.stack(list(stream(model, tokens, 8, **settings)), dim=1)
    assert torch.equal(torch.cat([tokens, new], dim=1), generate(model, tokens, 8, **settings))


def test_stream_yields_before_it_reads_on(model, tokens):
    """One forward pass per token, and the first token is there after one."""
    calls = []
    model.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    steps = stream(model, tokens, 4)
    assert calls == []
    next(steps)
    assert calls == [16]
    list(steps)
    assert calls == [16, 1, 1, 1]


def test_changing_a_streamed_token_does_not_change_the_text(model, tokens):
    expected = [step.tolist() for step in stream(model, tokens, 6)]
    changed = []
    for step in stream(model, tokens, 6):
        changed.append(step.tolist())
        step.zero_()
    assert changed == expected


def test_generation_goes_on_past_max_seq_len(model):
    """The cache is made for what was asked; RoPE has no table that could run out."""
    prompt = draw_tokens(1, TINY.max_seq_len - 2)
    assert generate(model, prompt, 6)[0].tolist() == without_cache(model, prompt[0].tolist(), 6)


def test_prompts_are_left_as_they_were(model, tokens):
    before, prompts = tokens.clone(), [list(prompt) for prompt in PROMPTS]
    generate(model, tokens, 3)
    generate(model, prompts, 3)
    assert torch.equal(tokens, before)
    assert prompts == PROMPTS


def test_generated_tokens_carry_no_gradient(model, tokens):
    assert not generate(model, tokens, 2).requires_grad
    model(tokens).sum().backward()  # and the model still trains


# -------------------------------------------------------------------------------------------- bad input

REFUSED = {
    "temperature below 0": ({"temperature": -0.5}, ["temperature=-0.5", ">= 0", "0 is greedy"]),
    "temperature infinite": ({"temperature": math.inf}, ["temperature=inf", "finite"]),
    "temperature not a number": ({"temperature": math.nan}, ["temperature=nan", "0 is greedy"]),
    "top_p 0": ({"top_p": 0.0}, ["top_p=0.0", "(0, 1]", "1 keeps every token"]),
    "top_p above 1": ({"top_p": 1.1}, ["top_p=1.1", "(0, 1]", "1 keeps every token"]),
    "top_p negative": ({"top_p": -0.1}, ["top_p=-0.1", "(0, 1]"]),
    "top_k 0": ({"top_k": 0}, ["top_k=0", "whole number >= 1", "None to keep every token"]),
    "top_k a fraction": ({"top_k": 2.5}, ["top_k=2.5", "whole number >= 1"]),
    "fewer than no new tokens": ({"max_new_tokens": -1}, ["max_new_tokens=-1", "whole number >= 0"]),
    "half a new token": ({"max_new_tokens": 2.5}, ["max_new_tokens=2.5", "whole number >= 0"]),
    "a single row": ({"tokens": torch.tensor([1, 2])}, ["(2,)", "pass (batch, tokens)", "tokens[None]"]),
    "no row": ({"tokens": torch.ones(0, 5, dtype=torch.int64)}, ["(0, 5)", "neither empty"]),
    "an empty tensor": ({"tokens": torch.ones(1, 0, dtype=torch.int64)}, ["(1, 0)", "neither empty"]),
    "a flat list": ({"tokens": [0, 1, 2]}, ["a list, '[0, 1, 2]'", "[ids] for one prompt"]),
    "no prompt": ({"tokens": []}, ["prompts of []", "at least one token"]),
    "an empty prompt": ({"tokens": [[1], []]}, ["prompts of [1, 0] tokens", "at least one token"]),
    "ids of another tokenizer": ({"tokens": [[1, 99]]}, ["run from 1 to 99", "vocab_size=64", "use the tokenizer"]),
    "ids with a fraction": ({"tokens": [[1, 2.0]]}, ["2.0, no token id", "tokenizer"]),
    "an id beyond 64 bits": ({"tokens": [[1, 2**63]]}, ["9223372036854775808, no token id", "tokenizer"]),
    "words": ({"tokens": [["a"]]}, ["'a', no token id", "tokenizer"]),
    "a text": ({"tokens": "The name"}, ["a str, 'The name'", "encode text first"]),
    "a stop token of another tokenizer": ({"stop": 64}, ["stop=64", "0 to 63"]),
    "a negative stop token": ({"stop": [3, -1]}, ["stop=[3, -1]", "0 to 63"]),
    "stop is true": ({"stop": True}, ["stop=True", "0 to 63"]),
    "float tokens": ({"tokens": torch.ones(1, 2)}, ["torch.float32", "tokens.long()"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_generate_names_the_value_and_the_fix(case, model):
    change, words = REFUSED[case]
    with pytest.raises(ValueError) as error:
        generate(model, **{"tokens": torch.tensor([[1, 2]]), "max_new_tokens": 2} | change)
    for word in words:
        assert word in str(error.value)


# ------------------------------------------------------------------------------- laid out for one-token steps


def in_steps(model, tokens, sizes):
    """Logits (B, T, V) of tokens that are read in pieces of these sizes."""
    cache = model.new_cache(len(tokens))
    return torch.cat([model(piece, cache) for piece in tokens.split(sizes, dim=1)], dim=1)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)  # 32 and 48 inputs: cut in 2 and in 3 blocks
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", TINY_CONFIGS)
@pytest.mark.usefixtures("three_threads")
def test_a_prepared_model_is_the_same_function(name, tokens):
    model = make_model(TINY_CONFIGS[name])
    prepared = prepare_for_decoding(model)
    assert_agree(prepared(tokens), model(tokens))
    for sizes in ([1] * 16, [5, 1, 1, 9]):
        assert_agree(in_steps(prepared, tokens[:1], sizes), model(tokens[:1]))
        assert_agree(in_steps(prepared, tokens, sizes), model(tokens))
    assert torch.equal(generate(prepared, tokens, 20), generate(model, tokens, 20))
    assert generate(prepared, PROMPTS, 8) == generate(model, PROMPTS, 8)


@pytest.mark.parametrize("n_tokens", [1, 2, 3])
def test_a_prepared_model_reads_the_shortest_prompts(n_tokens, model, tokens):
    """One token needs no mask, two already do."""
    prepared, prompt = prepare_for_decoding(model), tokens[:, :n_tokens]
    assert_agree(prepared(prompt), model(prompt))
    assert_agree(prepared(prompt, prepared.new_cache(2)), model(prompt))


@pytest.mark.usefixtures("three_threads")
def test_a_prepared_model_cuts_the_matrices_and_shares_the_rest(model):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    prepared = prepare_for_decoding(model)
    assert prepared.layers[0].attention.qkv_proj.blocks.shape == (2, 16, 64)  # 4 query and 2 * 2 other heads of 8
    assert prepared.layers[0].feed_forward.down_proj.blocks.shape == (3, 16, 32)
    assert prepared.tok_embeddings.weight is model.tok_embeddings.weight
    assert prepared.layers[1].ffn_norm.weight is model.layers[1].ffn_norm.weight
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize(("weights", "bytes_each"), [("bfloat16", 2), ("int8", 1)])
def test_smaller_weights_change_the_logits_little(weights, bytes_each, model, tokens):
    prepared = prepare_for_decoding(model, weights)
    assert prepared.layers[0].attention.o_proj.weight.element_size() == bytes_each
    assert prepared(tokens).dtype == torch.float32
    for logits in (prepared(tokens[:1]), in_steps(prepared, tokens[:1], [1] * 16)):
        assert_agree(logits, model(tokens[:1]), 0.1)
        assert (logits - model(tokens[:1])).abs().max() > 1e-4, "nothing was rounded"


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_smaller_weights_cost_less_than_one_percent_of_the_bits(weights):
    model, tokenizer = load_checkpoint(TINY_LLAMA), load_tokenizer()
    exact = bits_per_byte(model, tokenizer, excerpt())
    assert bits_per_byte(prepare_for_decoding(model, weights), tokenizer, excerpt()) < 1.01 * exact


def test_int8_keeps_each_row_to_half_a_step(model):
    layer = prepare_for_decoding(model, "int8").layers[0].attention.o_proj
    step = layer.scale.float()[:, None]
    assert ((layer.weight * step - model.layers[0].attention.o_proj.weight).abs() <= 0.51 * step).all()
    assert (layer.weight.abs().amax(dim=1) == 127).all()  # each row uses the whole range


def test_int8_of_bfloat16_weights_is_rounded_once(model):
    """A row's largest weight, 190/128, divided by its scale in bfloat16, would give 127.5, and then 128."""
    model.layers[0].attention.o_proj.weight.data[0] = 190 / 128
    layer = prepare_for_decoding(model.bfloat16(), "int8").layers[0].attention.o_proj
    assert (layer.weight[0] == 127).all()
    assert torch.equal(layer.weight, prepare_for_decoding(model.float(), "int8").layers[0].attention.o_proj.weight)


def test_int8_keeps_a_matrix_of_zeros(model, tokens):
    model.layers[0].attention.o_proj.weight.data.zero_()
    prepared = prepare_for_decoding(model, "int8")
    assert not prepared.layers[0].attention.o_proj.weight.any()
    assert prepared(tokens).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_prepared_model_keeps_another_precision(dtype, model, tokens):
    model.to(dtype)
    prepared = prepare_for_decoding(model)
    assert prepared.lm_head.weight.dtype == dtype
    assert_agree(in_steps(prepared, tokens, [1] * 16), in_steps(model, tokens, [1] * 16), 0.05)


def test_what_cannot_be_prepared_is_said(model):
    with pytest.raises(ValueError, match=r"weights='int4' is not known: use None, 'bfloat16' or 'int8'"):
        prepare_for_decoding(model, "int4")
    with pytest.raises(ValueError, match="prepared already: pass the one that it was made from"):
        prepare_for_decoding(prepare_for_decoding(model))


def test_elsewhere_than_on_the_cpu_the_model_itself_comes_back(model):
    elsewhere = model.to("meta")
    assert prepare_for_decoding(elsewhere) is elsewhere
