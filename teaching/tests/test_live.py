"""The live page: its LLaMA is PyTorch's function, its ids are those of `tokenizers`, its controls answer."""

import html
import random
import re
import shutil
from math import log
from urllib.parse import unquote

import pytest
import torch
from playwright.sync_api import expect

from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.corpus import train_tokenizer
from helpers.generate import generate
from helpers.model import Llama, LlamaConfig, rope_inv_freq
from helpers.text import TINY_LLAMA, load_tokenizer
from tests.support.lab import quiet_context

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
PIECES = ["naïve ", "日本語", "🙂", "👩‍👧", "e\u0301", "٣٤", "Ⅷ", "ก็", "\u0085", "\ufeff", "\u2028", "\u00a0"]
PIECES += ["\t", "\n\n", "   ", "\0", "\x7f", "don't", "we'LL", "'s", "<|end_of_text|>", "<|", "|>", "__init__", "0x1F"]


@pytest.fixture(scope="module")
def site(build, tmp_path_factory):
    """A folder with the live page, without the site's theme around it."""
    out = tmp_path_factory.mktemp("live")
    blocks = re.findall(r"^```\{raw\} html\n(.*?)^```$", build.live_page(), re.S | re.M)
    (out / "live.html").write_text("<!doctype html><meta charset=utf-8>" + "".join(blocks), encoding="utf-8")
    build.write_live(out / "_static" / "live")
    return out


@pytest.fixture
def open_page(browser, site):
    """A function that opens the live page."""
    with quiet_context(browser) as context:

        def open_page():
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.goto((site / "live.html").as_uri(), wait_until="load")
            page.evaluate("liveLlama.ready")
            return page

        yield open_page


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


@pytest.mark.parametrize("name", CONFIGS)
def test_any_small_llama_gives_pytorchs_logits_and_its_greedy_text(open_page, saved, name):
    page, (model, _, folder) = open_page(), saved(name)
    assert "Your model runs" in load(page, folder)
    chance = random.Random(0)
    assert difference(page, model, [chance.choices(range(model.config.vocab_size), k=n) for n in (1, 2, 7, 40)]) < 1e-4
    assert [5, 7, 9, *page.evaluate(WRITE, [5, 7, 9])] == generate(model, torch.tensor([[5, 7, 9]]), 200)[0].tolist()


def finding(page, words):
    expect(page.locator("#live-finding")).to_have_text(re.compile(words), timeout=60_000)


def follow(page, link):
    page.evaluate("x => new Promise(done => { addEventListener('hashchange', done); location.hash = x; })", link)


def swap(model, names, forward=lambda part, x: torch.zeros_like(x)):
    for name, part in model.named_modules():
        if re.fullmatch(names, name):
            part.forward = lambda x, *rest, part=part: forward(part, x)


def see(model, visible):
    right = model.rotation_and_mask
    model.rotation_and_mask = lambda *given, **named: (*right(*given, **named)[:2], visible)


IN_PYTORCH = {  # a link, and the same done to PyTorch's model
    "": lambda model: None,
    "order=2,3,4,5,0,1,2&": lambda model: setattr(model, "layers", model.layers[2:] + model.layers[:3]),
    "off=block3&": lambda model: swap(model, "layers.3.(attention|feed_forward)"),
    "off=attention2,feedforward0&": lambda model: swap(model, "layers.2.attention|layers.0.feed_forward"),
    "off=head1.2&": lambda model: model.layers[1].attention.o_proj.weight[:, 64:96].zero_(),
    "off=norms&": lambda model: swap(model, ".*_norm", lambda norm, x: x),
    "off=gate&": lambda model: swap(model, ".*feed_forward", lambda part, x: part.down_proj(part.up_proj(x))),
    "off=rope&": lambda model: model.inv_freq.zero_(),
    "base=100&shift=100&": lambda model: setattr(model, "inv_freq", rope_inv_freq(32, 100.0)),
    "off=mask&": lambda model: see(model, torch.ones(6, 6) > 0),
    "window=2&": lambda model: see(model, torch.ones(6, 6).tril().triu(-1) > 0),
}  # fmt: skip


@torch.no_grad()
def test_each_switch_and_the_numbers_in_the_picture_are_pytorchs(open_page):
    """And a link holds what is seen: the page reads it, leaves out what it does not know, and writes it again."""
    page, ids = open_page(), torch.tensor([load_tokenizer().encode("The value of the expression is").ids])
    for link, change in IN_PYTORCH.items():
        change(model := load_checkpoint(TINY_LLAMA))
        whole = f"{link}token=2&key=1&temp=0.3&topp=0.5&head=2.1"
        follow(page, f"{whole}&off=block9&window=3")
        assert difference(page, model, ids.tolist()) < 1e-4, link
        rest, x, numbers = model.rotation_and_mask(6), model.tok_embeddings(ids), []
        for block in model.layers:
            middle, after = x + block.attention(block.attention_norm(x), *rest), block(x, *rest)
            cosines = [torch.cosine_similarity(*pair, dim=-1)[0, 2] for pair in ((x, middle), (middle, after))]
            numbers += [f"{cosine.clamp(-1, 1).arccos().rad2deg():.0f}°" for cosine in cosines]
            numbers.append(f"length {after[0, 2].norm():.1f}")
            x = after
        shown = page.locator("#live-places :is(.turn, .length)").all_text_contents()
        assert [text.replace("off", "0°") for text in shown] == numbers, link
        page.wait_for_url(lambda url, whole=whole: url.endswith(f"#{whole}"))
    expect(page.locator("#live-link-said")).to_have_text(re.compile("not understood, .*: off=block9; window=3.$"))


def test_the_picture_answers_to_keys_and_reopens_as_it_was_left(open_page):
    page = open_page()
    page.get_by_role("button", name="block 2", exact=True).press("Enter")
    expect(page.locator("#live-panel-title")).to_be_focused()
    page.locator("#live-repeat").press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="block 2 again", exact=True)).to_be_focused()
    page.get_by_role("switch", name="attention of block 4", exact=True).press("Space")
    page.locator("#live-text").fill("if x:\n")
    page.wait_for_url("**#text=if+x%3A%0A&off=attention4&order=0,1,2,2,3,4,5&blocks=3")
    page.reload()
    finding(page, "attention of 4 off: .* instead")
    expect(page.locator("#live-panel-title")).to_have_text("Block 2")
    follow(page, "off=" + ",".join(f"head{n // 4}.{n % 4}" for n in range(24)))
    finding(page, "No head writes")


WROTE = """change => {
    const { model, tokenizer } = Live.open(liveData), ids = tokenizer.encode("A class is"), end = ids.length + 40;
    let seed = 182137, random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
    while (ids.length < end) ids.push(Live.choose(model.forward(ids, { change, lastOnly: true }), 0.4, 1, random));
    const losses = liveData.passages.map(text => Live.loss(model, tokenizer.encode(text), change).mean);
    return [ids, tokenizer.decode(ids), losses.reduce((a, b) => a + b) / losses.length];
}"""


def test_the_start_page_shows_what_the_two_models_write_and_opens_the_broken_one(open_page, build):
    page, source = open_page(), html.unescape((build.SITE / "index.md").read_text(encoding="utf-8"))
    link, losses = (
        re.search(r'href="live\.html#(.*?)"', source)[1],
        re.findall(r"--share: (.+?)\".*?>([\d.]+)<", source, re.S),
    )
    for at, (name, change) in enumerate({"left": {}, "right": {"still": True}}.items()):
        ids, text, loss = page.evaluate(WROTE, change)
        assert re.sub("<.*?>", "", re.search(rf'id="live-{name}">(.*?)</div>', source, re.S)[1]) == text
        assert losses[at] == (f"{loss / log(1024):.3f}", f"{loss:.2f}")
    assert (unquote(link), f"{losses[1][1]} instead of {losses[0][1]}" in source) == (
        f"text={text}&ids={','.join(map(str, ids))}&off=rope", True)  # fmt: skip
    follow(page, link)
    expect(page.locator("#live-text")).to_have_value(text)
    expect(page.locator("#live-link-said")).to_be_empty()


def test_a_file_that_does_not_fit_gets_one_sentence_and_changes_nothing(open_page, saved):
    page, folder, other = open_page(), saved("MHA")[2], saved("wide heads")[2]
    config = (folder / "config.json").read_text()
    for words, damage in {
        "config.json: it sets num_hidden_layers to 1.5": lambda: (folder / "config.json").write_text(
            config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 1.5')),
        "tokenizer.json is missing": lambda: (folder / "tokenizer.json").unlink(),
        "tokenizer.json: it has 1024 tokens": lambda: shutil.copy(TINY_LLAMA / "tokenizer.json", folder),
        "model.safetensors: .* is 80 × 32, but": lambda: shutil.copy(other / "model.safetensors", folder),
        "model.safetensors: it cannot be read": lambda: (folder / "model.safetensors").write_bytes(b"cut short"),
        "config.json: it describes a gpt2 model": lambda: (folder / "config.json").write_text('{"model_type": "gpt2"}'),
    }.items():  # fmt: skip
        damage()
        assert re.match(f"Not loaded. {words}", said := load(page, folder)), said
        assert len(page.evaluate(LOGITS, [1, 2])) == 1024  # the course's model still runs
        (folder / "config.json").write_text(config)
    photo = "() => { const data = new DataTransfer(); data.items.add(new File([], 'photo.png')); return data; }"
    page.dispatch_event("#live-text", "drop", {"dataTransfer": page.evaluate_handle(photo)})
    expect(page.locator("#live-own")).to_contain_text("“photo.png” is no part of a model")
