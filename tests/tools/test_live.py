"""The live page: its LLaMA is PyTorch's function, its ids are those of `tokenizers`, its controls answer."""

import random
import re
import shutil

import pytest
import torch
from playwright.sync_api import expect

from helpers.assets import ASSETS
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.generate import generate
from helpers.model import Llama, LlamaConfig
from helpers.text import TINY_LLAMA, load_tokenizer, train_tokenizer
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
    """A folder with the live page and the start page's small form alone, without the site's theme around them."""
    out = tmp_path_factory.mktemp("live")
    for name, text in (("live", build.live_page()), ("start", (build.SITE / "index.md").read_text(encoding="utf-8"))):
        blocks = re.findall(r"^```\{raw\} html\n(.*?)^```$", text, re.S | re.M)
        (out / f"{name}.html").write_text("<!doctype html><meta charset=utf-8>" + "".join(blocks), encoding="utf-8")
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


def test_the_page_runs_tiny_llama_and_writes_what_pytorch_writes(open_page):
    page, model, tokenizer = open_page(), load_checkpoint(TINY_LLAMA), load_tokenizer()
    held_out = (ASSETS / "held_out.txt").read_text(encoding="utf-8").split(". ")
    texts = [tokenizer.encode(text).ids[:128] for text in held_out[:: len(held_out) // 100] if text][:100]
    prompt = tokenizer.encode("The value of the expression is").ids
    assert len(texts) == 100
    assert difference(page, model, texts) < 1e-4
    assert prompt + page.evaluate(WRITE, prompt) == generate(model, torch.tensor([prompt]), 200)[0].tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_any_small_llama_gives_pytorchs_logits_and_its_greedy_text(open_page, saved, name):
    page, (model, _, folder) = open_page(), saved(name)
    assert "Your model runs" in load(page, folder)
    chance = random.Random(0)
    assert difference(page, model, [chance.choices(range(model.config.vocab_size), k=n) for n in (1, 2, 7, 40)]) < 1e-4
    assert [5, 7, 9, *page.evaluate(WRITE, [5, 7, 9])] == generate(model, torch.tensor([[5, 7, 9]]), 200)[0].tolist()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def finding(page, words):
    expect(page.locator("#live-finding")).to_have_text(re.compile(words), timeout=60_000)


def test_a_change_runs_the_model_again_and_a_shift_changes_nothing(open_page):
    page, sentence = open_page(), "The value of the expression is"
    ids = load_tokenizer().encode(sentence).ids
    trained = torch.tensor(page.evaluate(LOGITS, ids))
    for name, words, moves in (("positions + 100", "100: still", False), ("off", "RoPE off: .*instead", True)):
        page.get_by_role("group", name="RoPE", exact=True).get_by_role("button", name=name, exact=True).click()
        finding(page, words)
        change = (torch.tensor(page.evaluate(LOGITS, ids)) - trained).abs().max() / trained.abs().max()
        assert change > 1e-2 if moves else change < 1e-4
        press(page, "As trained")


def test_with_all_heads_off_no_other_head_is_said_to_write(open_page):
    page = open_page()
    page.evaluate("""() => { for (const head of document.querySelectorAll('#live-heads button')) {
        head.click(); document.getElementById('live-head-off').click(); } }""")
    finding(page, "No head writes")


WROTE = """change => { // as start.js says it, but without a cache, and the losses in one piece
    const { model, tokenizer } = Live.open(liveData), ids = tokenizer.encode("A class is"), end = ids.length + 40;
    let seed = 182137, random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
    while (ids.length < end) ids.push(Live.choose(model.forward(ids, { change, lastOnly: true }), 0.4, 1, random));
    const losses = liveData.passages.map(text => Live.loss(model, tokenizer.encode(text), change).mean);
    return [ids.slice(-40), tokenizer.decode(ids), losses.reduce((a, b) => a + b) / losses.length];
}"""


def rest(page, said=r"loss.*\d\.\d\d"):
    """Wait until both texts of the start page are written and judged; they, and what is said of them."""
    expect(page.locator("#live-again")).to_have_text("Again", timeout=60_000)
    finding(page, said)
    return [page.locator(f"#live-{name}").text_content() for name in ("left", "right", "finding")]


@pytest.fixture
def start(open_page, site):
    """The start page's two models, after their first texts."""
    page = open_page()
    page.goto((site / "start.html").as_uri())
    rest(page)
    return page


def test_the_start_page_comes_with_what_its_first_run_writes_and_waits_where_motion_is_unwanted(start, site):
    source = (site / "start.html").read_text(encoding="utf-8")
    for part in ("#live-left", "#live-right", "#live-finding", "#live-right-loss", "p:has(> #live-link)"):
        assert f">{start.locator(part).inner_html()}<" in source, part
    start.emulate_media(reduced_motion="reduce")
    start.reload()
    expect(start.locator("#live-again")).to_have_text("Write")


def test_two_models_write_one_text_until_the_change_acts_and_the_sentence_is_true(start):
    trained, text, was = start.evaluate(WROTE, {})
    for name, off, change in (("no mask", "&off=mask", {"future": True}), ("gate off", "&off=gate", {"gate": False}),
                              ("RoPE off", "&off=rope", {"still": True}), ("nothing", "", {})):  # fmt: skip
        ids, changed, loss = start.evaluate(WROTE, change)
        same = next((i for i in range(40) if ids[i] != trained[i]), 40)
        where = f"after {same} equal token" if same else "from the first token on"
        said = f"{name[1:]}: {where}.* is {loss:.2f} instead of {was:.2f}" + ", worse than a" * (loss > 6.93)
        start.get_by_label(name, exact=True).check()
        seen = rest(start, said if off else f"all 40 tokens are the same, and so is the loss, {was:.2f}\\.")
        assert seen[:2] == [text, changed]
        assert start.locator("#live-start mark").count() == 2 * bool(off)
        link = start.evaluate("decodeURIComponent(document.getElementById('live-link').href)")
        assert re.search(rf"live\.html#text={re.escape(changed)}(&ids=[\d,]+)?{off}$", link)


def test_the_start_page_can_always_go_on_and_back(start):
    first = rest(start)
    press(start, "Again")
    other = rest(start)
    assert other[0] != first[0]  # other random numbers
    press(start, "Again")
    start.locator("#live-text").fill("")  # while it writes
    press(start, "Write")
    finding(start, "Type a few words first")
    start.evaluate("""() => { const { prototype } = Live.Tokenizer, { encode } = prototype; window.most = 0;
        prototype.encode = function (text) { most = Math.max(most, text.length); return encode.call(this, text); } }""")
    start.locator("#live-text").fill("x" * 20000)  # its time grows with the square of its letters
    start.locator("#live-text").press("Enter")
    rest(start, "the first 24 tokens were read")
    assert 0 < start.evaluate("most") < 4000
    for before in (None, other, first):
        press(start, "Undo")
        assert before in (None, rest(start))
    expect(start.locator("#live-undo")).to_be_disabled()


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
