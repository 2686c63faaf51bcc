"""The live page: its LLaMA is PyTorch's function, its ids are those of `tokenizers`, its controls answer."""

import json
import random
import re
import shutil
from itertools import product

import pytest
import torch
from playwright.sync_api import expect
from tokenizers import Tokenizer

from helpers.assets import ASSETS
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.corpus import train_tokenizer
from helpers.generate import generate
from helpers.model import Llama, LlamaConfig, rope_inv_freq
from helpers.text import TINY_LLAMA, load_tokenizer
from tests.support.files import edit_json, edit_weights

pytestmark = pytest.mark.browser
LOGITS, WRITE = "x => liveLlama.logits(x)", "x => liveLlama.generate(x, 200)"
SMALL = {"vocab_size": 300, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 48} | {
    "max_seq_len": 256, "norm_eps": 0.01, "rope_theta": 10_000.0, "tie_embeddings": False}  # fmt: skip
CONFIGS = {
    "MHA": {"n_kv_heads": 4},
    "GQA": {"n_heads": 6, "n_kv_heads": 2, "head_dim": 8},
    "MQA": {"n_kv_heads": 1, "vocab_size": 301},
    "tied": {"tie_embeddings": True, "rope_theta": 500.0},
    "llama3": {"rope_scaling": {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}, "n_layers": 1},
    "wide heads": {"head_dim": 20},
}
END = "<|end_of_text|>"
AFTER = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": END, "type_id": 0}},
         {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
         "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}}}  # fmt: skip
TOKENIZERS = [  # what tokenizer.json may say besides
    lambda content: content.update({"post_processor": AFTER}),
    lambda content: content["model"].update({"ignore_merges": True}),
    lambda content: content["added_tokens"][0].update({"lstrip": True}),
    lambda content: content.update({"normalizer": {"type": "Lowercase"}}),
    lambda content: content["pre_tokenizer"].update({"add_prefix_space": True}),
    lambda content: content.update({"post_processor": None}),
]
PIECES = ["naïve ", "日本語", "🙂", "👩‍👧", "e\u0301", "٣٤", "Ⅷ", "ก็", "\u0085", "\ufeff", "\u2028", "\u00a0"]
PIECES += ["\t", "\n\n", "   ", "\0", "\x7f", "don't", "we'LL", "'s", "<|end_of_text|>", "<|", "|>", "__init__", "0x1F"]


@pytest.fixture
def saved(tmp_path):
    """A function that makes a model by its name in CONFIGS: the model, its tokenizer, the folder that holds them."""
    tokenizer = train_tokenizer("the value of the object is the value of the name. " * 20, 280)

    def saved(name):
        torch.manual_seed(0)
        model, folder = Llama(LlamaConfig(**SMALL | CONFIGS[name])), tmp_path / "models" / name
        with torch.no_grad():  # so large that every part counts, and the embeddings so small that eps does
            for weight in model.parameters():
                weight.normal_(std=0.3) if weight.ndim == 2 else weight.uniform_(0.5, 1.5)
            model.tok_embeddings.weight.mul_(0.3)
        save_checkpoint(model.eval(), folder, tokenizer)
        return model, tokenizer, folder

    return saved


def load(page, folder):
    """Give the page a model as a visitor does; what the page says."""
    page.locator("#live-files").set_input_files(list(folder.iterdir()))
    page.evaluate("liveLlama.ready.catch(() => {})")
    return page.locator("#live-own").text_content()


@torch.no_grad()
def difference(page, model, texts):
    """The largest difference of the page's logits from PyTorch's, as a share of the largest logit."""
    worst = 0.0
    for tokens in texts:
        expected, got = model(torch.tensor([tokens]))[0, -1], torch.tensor(page.evaluate(LOGITS, tokens))
        worst = max(worst, ((got - expected).abs().max() / expected.abs().max()).item())
    return worst


def test_ids_are_those_of_the_tokenizers_library(open_page, saved):
    page, chance = open_page(), random.Random(0)
    pieces = [PIECES + [chr(chance.randrange(0x20, 0xD800)) for _ in range(9)] for _ in range(100)]
    texts = ["".join(chance.choices(some, k=12)) for some in pieces]
    for tokenizer, folder in ((load_tokenizer(), None), saved("MHA")[1:]):
        assert folder is None or "Your model runs: 2 blocks" in load(page, folder)
        ids = page.evaluate("texts => texts.map(liveLlama.encode)", texts)
        assert ids == [tokenizer.encode(text).ids for text in texts]


def test_a_tokenizer_is_refused_or_gives_the_librarys_ids(open_page, saved):
    page, folder, runs = open_page(), saved("MHA")[2], 0
    path, text = folder / "tokenizer.json", "The value of  <|end_of_text|> the name"
    before = path.read_text()
    for change in TOKENIZERS:
        path.write_text(before)
        edit_json(path, change)
        if not load(page, folder).startswith("Not loaded. tokenizer.json: it is of another kind"):
            assert page.evaluate("liveLlama.encode", text) == Tokenizer.from_file(str(path)).encode(text).ids
            runs += 1
    assert runs == 1


def test_a_hundred_held_out_sentences_get_pytorchs_logits(open_page):
    sentences = (ASSETS / "held_out.txt").read_text(encoding="utf-8").replace("\n", " ").split(". ")[:100]
    texts = [sentence.ids[:64] for sentence in load_tokenizer().encode_batch(sentences)]
    assert difference(open_page(), load_checkpoint(TINY_LLAMA), texts) < 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_any_small_llama_gives_pytorchs_logits_and_its_greedy_text(open_page, saved, name):
    page, (model, _, folder) = open_page(), saved(name)
    assert "Your model runs" in load(page, folder)
    chance = random.Random(0)
    assert difference(page, model, [chance.choices(range(model.config.vocab_size), k=n) for n in (1, 2, 7, 40)]) < 1e-4
    assert [5, 7, 9, *page.evaluate(WRITE, [5, 7, 9])] == generate(model, torch.tensor([[5, 7, 9]]), 200)[0].tolist()


def says(page, part, words):
    expect(page.locator(f"#live-{part}")).to_have_text(re.compile(words), timeout=60_000)


def follow(page, link):
    page.evaluate("x => new Promise(done => { addEventListener('hashchange', done); location.hash = x; })", link)


def swap(model, names, forward=lambda part, x: torch.zeros_like(x)):
    for name, part in model.named_modules():
        if re.fullmatch(names, name):
            part.forward = lambda x, *rest, part=part: forward(part, x)


def see(model, visible):
    right = model.rotation_and_mask
    model.rotation_and_mask = lambda n, *_: (*right(n)[:2], visible(torch.ones(n, n) > 0))


def move(model, by):
    right = model.rotation_and_mask
    model.rotation_and_mask = lambda n, *_: (*(part[by:] for part in right(by + n)[:2]), None)


FAULTS = {  # a link, the same done to PyTorch's model, and where, says reason, nothing changes: branch b, token t of n
    "off=rope": (lambda model: model.inv_freq.zero_(), lambda b, t, n: t == 0),
    "base=100": (lambda model: setattr(model, "inv_freq", rope_inv_freq(32, 100.0)), lambda b, t, n: t == 0),
    "shift=100": (lambda model: move(model, 100), lambda b, t, n: True),
    "window=4": (lambda model: see(model, lambda all: all.tril().triu(-3)), lambda b, t, n: t < 4),
    "off=mask": (lambda model: see(model, lambda all: all), lambda b, t, n: b < 2 and t == n - 1),
    "off=norms": (lambda model: swap(model, ".*_norm", lambda norm, x: x), lambda b, t, n: False),
    "off=gate": (lambda m: swap(m, ".*feed_forward", lambda f, x: f.down_proj(f.up_proj(x))), lambda b, t, n: b < 1),
    "off=block3": (lambda model: swap(model, "layers.3.(attention|feed_forward)"), lambda b, t, n: b < 6),
    "off=attention1": (lambda model: swap(model, "layers.1.attention"), lambda b, t, n: b < 2),
    "off=feedforward4": (lambda model: swap(model, "layers.4.feed_forward"), lambda b, t, n: b < 9),
    "off=head2.1": (lambda model: model.layers[2].attention.o_proj.weight[:, 32:64].zero_(), lambda b, t, n: b < 4),
    "order=0,1,2,3,5,4": (lambda m: m.layers.insert(4, m.layers.pop(5)), lambda b, t, n: b < 8),
}  # fmt: skip
IN_PYTORCH = {"": lambda model: None} | {link: change for link, (change, _) in FAULTS.items()}
IN_PYTORCH["order=2,3,4,5,0,1,2"] = lambda model: setattr(model, "layers", model.layers[2:] + model.layers[:3])


def streams(model, ids):
    """The residual stream of a sentence, embedded and behind each branch, (1 + 2 n_layers, T, D)."""
    rest, found = model.rotation_and_mask(ids.shape[1]), [model.tok_embeddings(ids)]
    for block in model.layers:
        found.append(found[-1] + block.attention(block.attention_norm(found[-1]), *rest))
        found.append(found[-1] + block.feed_forward(block.ffn_norm(found[-1])))
    return torch.cat(found)


def degrees(a, b):
    return torch.cosine_similarity(a.double(), b.double(), dim=-1).clamp(-1, 1).arccos().rad2deg()


@torch.no_grad()
def test_each_switch_and_the_numbers_in_the_picture_are_pytorchs(open_page):
    """And a link holds what is seen: the page reads it, leaves out what it does not know, and writes it again."""
    page, ids = open_page(), torch.tensor([load_tokenizer().encode("A class definition is an").ids])
    for link, change in IN_PYTORCH.items():
        change(model := load_checkpoint(TINY_LLAMA))
        whole = f"{link}&token=2&key=1&head=2.1".lstrip("&")
        follow(page, f"{whole}&off=block9&window=3")
        assert difference(page, model, ids.tolist()) < 1e-4, link
        x, numbers = streams(model, ids)[:, 2], []
        turns = [f"{turn:.0f}°" for turn in degrees(x[:-1], x[1:])]
        for place, after in enumerate(x[2::2]):
            numbers += [*turns[2 * place : 2 * place + 2], f"length {after.norm():.1f}"]
        shown = page.locator("#live-places :is(.turn, .length)")  # drawn a moment after the model has answered
        expect(shown, link).to_have_text([re.compile("^(off|0°)$") if text == "0°" else text for text in numbers])
        page.wait_for_url(lambda url, whole=whole: url.endswith(f"#{whole}"))
    says(page, "link-said", "not understood, .*: off=block9; window=3.$")


def test_the_picture_answers_to_keys_and_reopens_as_it_was_left(open_page):
    page = open_page()
    page.get_by_role("button", name="attention of block 2", exact=True).press("Enter")
    expect(page.locator("#live-panel-title")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="attention of block 2", exact=True)).to_be_focused()
    page.get_by_role("switch", name="attention of block 4", exact=True).press("Space")
    gate = page.get_by_role("switch", name="gate", exact=True)
    for on in (False, True):
        gate.press("Space")
        expect(gate).to_be_checked(checked=on)
    page.get_by_role("radio", name=re.compile("^2: ")).press("ArrowRight")
    page.wait_for_url(lambda url: "off=attention4&token=3&head=2." in url)
    page.locator("#live-text").fill("if x:\n")
    page.wait_for_url(lambda url: "#text=if+x%3A%0A&off=attention4&head=2." in url)
    page.reload()
    says(page, "finding", "Attention of 4 off: .* instead")
    says(page, "effect", "^Next: .* · loss: 4.15 → 4.[2-9]")
    says(page, "panel-title", "^Attention of block 2$")
    follow(page, "off=" + ",".join(f"head{n // 4}.{n % 4}" for n in range(24)))
    says(page, "finding", "No head writes")
    for _ in range(4):
        page.locator("#live-write").click()  # it says Stop until it is done
        says(page, "write", "^Write$")
    says(page, "said", "^40 tokens .*keeps its last 128")


def test_the_page_opens_on_a_sentence_whose_next_word_is_a_word(open_page):
    page = open_page()
    says(page, "effect", r"^Next: “.[a-z]{2,}” · loss: ")
    tokens = page.evaluate("liveLlama.encode(document.querySelector('#live-text').value)")
    assert torch.tensor(page.evaluate(LOGITS, tokens)).softmax(0).max() > 0.3
    page.wait_for_timeout(600)  # when it would have written its address
    assert "#" not in page.url


@pytest.mark.parametrize("game", [0, 330])
def test_the_colours_of_the_game_tell_its_numbers_apart(open_page, game):
    page = open_page(f"broken.html#no={game}")
    colours = page.locator("#live-fault tbody td:not(.same)").evaluate_all("all => all.map(x => x.className)")
    assert len({*colours}) > 1
    assert max(map(colours.count, colours)) < 0.7 * len(colours)


def test_a_link_is_followed_though_the_page_was_about_to_write_its_address(open_page):
    page = open_page()
    page.evaluate("""() => {
        document.querySelector('#live-heads input').click(); // 400 ms later the page writes its address
        setTimeout(() => { location.hash = 'token=2'; }, 300);
        for (const start = performance.now(); performance.now() < start + 600;);
    }""")
    says(page, "model-token", "position 2$")


@torch.no_grad()
@pytest.mark.parametrize("game", [0, 1, 4])
def test_each_fault_draws_pytorchs_angles_and_leaves_clean_what_it_cannot_reach(open_page, game):
    page = open_page(f"broken.html#no={game}")
    ids = torch.tensor([load_tokenizer().encode(page.evaluate("liveBroken.sentence()")).ids])
    drawn = page.evaluate(
        "Object.fromEntries(liveBroken.faults.map(x => [x.dataset.link, liveBroken.angles(liveBroken.changeOf(x))]))"
    )
    trained, n = streams(load_checkpoint(TINY_LLAMA), ids)[1:], ids.shape[1]
    assert list(drawn) == list(FAULTS)
    for link, (change, clean) in FAULTS.items():
        change(model := load_checkpoint(TINY_LLAMA))
        found, angle = drawn[link], degrees(streams(model, ids)[1:], trained)
        for b, t in product(range(12), range(n)):
            assert (found[b][t] is None) == clean(b, t, n), (link, b, t)
            assert abs((found[b][t] or 0) - angle[b, t]) < 0.02, (link, b, t)


def test_what_is_broken_is_played_sent_on_and_new_every_day(open_page, build):
    page, source = open_page("broken.html#no=45"), (build.SITE / "index.md").read_text(encoding="utf-8")
    still = re.search(r'<a href="broken.html#no=45">', source) and re.search("<thead>.*</tbody>", source, re.S)[0]
    assert page.locator("#live-fault").inner_html().endswith(still.replace("\n", ""))  # the start page's picture
    page.get_by_role("button", name="no mask").press("Enter")
    says(page, "verdict", "^Not this one. “no mask” would draw the second picture.")
    says(page, "guessed caption", "no mask. First change: attention 0, tokens 0 to 6.")
    expect(page.locator("#live-open")).to_be_hidden()
    page.get_by_role("button", name="a window of 4").press("Space")
    says(page, "verdict", "Found with 2 guesses: a window of 4. Tokens 0 to 3")
    line = page.locator("#live-line").input_value()
    assert re.match(r"What is broken\? Game 45: found with 2 guesses. file:.*broken.html#no=45$", line)
    page.get_by_role("button", name="Copy").click()
    says(page, "copied", "It opens on this machine only")
    page.get_by_role("link", name="Open the broken model").click()
    says(page, "finding", "A window of 4: .* instead")
    for day, game in ((26, 329), (27, 330)):
        says(open_page("broken.html", day=f"2026-11-{day}T12:00"), "fault b", f"^Game {game}, today’s.$")


def test_a_file_that_does_not_fit_gets_one_sentence_and_changes_nothing(open_page, saved):
    page, folder, other = open_page(), saved("MHA")[2], saved("wide heads")[2]
    for name, words, change in (
        ("config.json", "it sets num_hidden_layers to 1.5", lambda text: text.replace(b": 2,", b": 1.5,", 1)),
        ("tokenizer.json", "it has 1024 tokens", lambda _: (TINY_LLAMA / "tokenizer.json").read_bytes()),
        (WEIGHTS, ".* is 80 × 32, but", lambda _: (other / WEIGHTS).read_bytes()),
        (WEIGHTS, "it is damaged or", lambda data: data[:-2]),
    ):
        right = (folder / name).read_bytes()
        (folder / name).write_bytes(change(right))
        assert re.match(f"Not loaded. {name}: {words}", said := load(page, folder)), said
        assert len(page.evaluate(LOGITS, [1, 2])) == 1024  # the course's model still runs
        (folder / name).write_bytes(right)
    (folder / name).unlink()
    assert load(page, folder).startswith(f"Not loaded. {name} is missing")
    photo = "() => { const data = new DataTransfer(); data.items.add(new File([], 'photo.png')); return data; }"
    page.dispatch_event("#live-text", "drop", {"dataTransfer": page.evaluate_handle(photo)})
    says(page, "own", "“photo.png” is no part of a model")


def config(**more):
    """What a damage is made of: a function that changes a folder. This one changes config.json."""
    return lambda folder: edit_json(folder / "config.json", lambda content: content.update(more))


def rope(**more):
    return config(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0} | more)


def weights(change):
    return lambda folder: edit_weights(folder, change)


def in_bytes(change):
    return lambda folder: (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


def in_header(change):
    """Change what the header of a safetensors file says of two tensors of one size."""

    def damage(data):
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header[NORM], header["model.layers.0.input_layernorm.weight"])
        written = json.dumps(header).encode()
        return len(written).to_bytes(8, "little") + written + data[8 + length :]

    return in_bytes(damage)


def one(**more):
    return in_header(lambda norm, _: norm.update(more))


LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
TRAINED = "original_max_position_embeddings"
WEIGHTS, NORM, HEAD, FIRST = "model.safetensors", "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
DAMAGES = [  # what became of a folder, or an odd way to write one; RoPE stands in two places and at the top
    config(rope_parameters=LINEAR | {"rope_theta": 500.0}, rope_scaling=LINEAR, rope_theta=500.0),
    config(rope_parameters=LLAMA3 | {TRAINED: 32}, rope_scaling=LLAMA3 | {TRAINED: 32, "type": "llama3"}),
    config(rope_parameters=None, rope_scaling={"type": "linear", "factor": 2.0}, rope_theta=500.0),
    config(rope_parameters={}), config(rope_parameters=LLAMA3, **{TRAINED: 64}), config(rope_parameters=LLAMA3),
    rope(rope_type="linear", factor=1), config(rope_scaling=LINEAR), config(rope_parameters=5),
    config(rope_scaling="linear"), config(partial_rotary_factor=0.5), rope(partial_rotary_factor=0.5), rope(**LINEAR),
    *(rope(rope_theta=theta) for theta in ("a", 0, None, 1e19)), *(rope(rope_type=kind) for kind in (None, "yarn")),
    *(rope(**LINEAR | {"factor": factor}) for factor in (0, "4", None)),
    *(rope(**LLAMA3, **{TRAINED: n}) for n in (0, "a")), *(rope(**LLAMA3 | {"low_freq_factor": n}) for n in (0, 4.0)),
    *(config(rms_norm_eps=eps) for eps in ("a", -1, None, 0)), *(config(tie_word_embeddings=n) for n in ("no", None)),
    config(quantization_config={"bits": 4}), config(quantization_config=None), config(unknown=1),
    *(config(is_causal=causal) for causal in (False, True)), *(config(attention_bias=bias) for bias in (True, None)),
    config(mlp_bias=True), *(config(hidden_act=name) for name in ("g" * 10**5, "swish")),
    *(config(head_dim=width) for width in (None, 7, 0)), *(config(num_key_value_heads=n) for n in (None, 3)),
    config(max_position_embeddings=0), config(vocab_size="300"), config(hidden_size=None), config(num_hidden_layers=1),
    in_bytes(lambda data: data + b"ab"), in_bytes(lambda data: b""), in_bytes(lambda data: data[:-2]),
    in_bytes(lambda data: data[:70]), in_bytes(lambda data: b"<!DOCTYPE html><html>" + b" " * 2000),
    one(data_offsets=[-8, -4]), one(data_offsets=[0, 127]), one(shape=[33]), one(shape=[4, 8]), one(dtype="I32"),
    in_header(lambda norm, other: norm.update(data_offsets=other["data_offsets"])),  # shared
    in_header(lambda norm, other: (old := {**norm}, norm.update(other), other.update(old))),  # swapped: no damage
    weights(lambda w: w[NORM].fill_(float("nan"))), weights(lambda w: w[HEAD][0].fill_(float("inf"))),
    weights(lambda w: w.pop(HEAD)), weights(lambda w: w.update({"b" * 10**5: torch.zeros(1)})),
    weights(lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})),  # of older files
    weights(lambda w: w.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(2)})),
    weights(lambda w: w.update({name: weight.double() for name, weight in w.items()})),
    weights(lambda w: w.update({name: weight.bfloat16() for name, weight in w.items()})),
    weights(lambda w: [w.update({name.removeprefix("model."): w.pop(name)}) for name in [*w]]),
]  # fmt: skip
TIED = [weights(lambda w: w.update({HEAD: w.pop(FIRST)})), weights(lambda w: w.update({HEAD: w[FIRST].clone()})),
        weights(lambda w: w.update({HEAD: w[FIRST] + 1}))]  # fmt: skip


@torch.no_grad()
def test_the_page_refuses_what_load_checkpoint_refuses_and_opens_the_rest_as_it_does(open_page, saved, tmp_path):
    page, wrong, opened, folder = open_page(), {}, 0, tmp_path / "one"
    for name, damages in (("MHA", DAMAGES), ("tied", TIED)):
        whole = saved(name)[2]
        for number, damage in enumerate(damages):
            shutil.rmtree(folder, ignore_errors=True)
            damage(shutil.copytree(whole, folder))
            try:
                model, why = load_checkpoint(folder), ""
            except ValueError as error:
                model, why = None, str(error)[:200]
            said = load(page, folder)
            if (model is not None) != said.startswith("Your model runs") or len(said) > 400:
                wrong[name, number] = (why or "opens", said[:400])
            elif model:
                opened += 1
                if (apart := difference(page, model, [[5, 7, 9, 200, 31, *range(40)]])) > 1e-4:
                    wrong[name, number] = f"other logits: {apart}"
    assert not wrong
    assert opened > 20
