"""The live page: its LLaMA is PyTorch's function, its ids are those of `tokenizers`, its controls answer."""

import json
import random
import re
from itertools import product
from urllib.parse import quote, unquote

import pytest
import torch
from playwright.sync_api import expect

from helpers.assets import ASSETS
from helpers.checkpoint import load_checkpoint
from helpers.generate import generate
from helpers.model import rope_inv_freq
from helpers.text import TINY_LLAMA, load_tokenizer

pytestmark = pytest.mark.browser
LOGITS, WRITE = "x => liveLlama.logits(x)", "x => liveLlama.generate(x, 60)"
PIECES = ["naïve ", "日本語", "🙂", "👩‍👧", "e\u0301", "٣٤", "Ⅷ", "ก็", "\u0085", "\ufeff", "\u2028", "\u00a0"]
PIECES += ["\t", "\n\n", "   ", "\0", "\x7f", "don't", "we'LL", "'s", "<|end_of_text|>", "<|", "|>", "__init__", "0x1F"]


@torch.no_grad()
def difference(page, model, texts):
    """The largest difference of the page's logits from PyTorch's, as a share of the largest logit."""
    worst = 0.0
    for tokens in texts:
        expected, got = model(torch.tensor([tokens]))[0, -1], torch.tensor(page.evaluate(LOGITS, tokens))
        worst = max(worst, ((got - expected).abs().max() / expected.abs().max()).item())
    return worst


def test_ids_are_those_of_the_tokenizers_library(open_page):
    page, chance = open_page(), random.Random(0)
    pieces = [PIECES + [chr(chance.randrange(0x20, 0xD800)) for _ in range(9)] for _ in range(100)]
    texts = ["".join(chance.choices(some, k=12)) for some in pieces]
    ids = page.evaluate("texts => texts.map(liveLlama.encode)", texts)
    assert ids == [load_tokenizer().encode(text).ids for text in texts]


def test_held_out_sentences_get_pytorchs_logits_and_its_greedy_text(open_page):
    sentences = (ASSETS / "held_out.txt").read_text(encoding="utf-8").replace("\n", " ").split(". ")[:100]
    texts = [sentence.ids[:64] for sentence in load_tokenizer().encode_batch(sentences)]
    page, model = open_page(), load_checkpoint(TINY_LLAMA)
    assert difference(page, model, texts) < 1e-4
    for tokens in texts[:3]:
        assert tokens + page.evaluate(WRITE, tokens) == generate(model, torch.tensor([tokens]), 60)[0].tolist()


def says(page, part, words):
    expect(page.locator(f"#live-{part}")).to_have_text(re.compile(words), timeout=60_000)


def reopen(page, kept):
    """Load the live page anew with this behind its #."""
    page.goto(f"{page.url.split('#')[0]}#{quote(kept)}")
    page.reload()


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


FAULTS = {  # a change, the same in PyTorch, and where, says reason, nothing changes: branch b, token t of n
    '{"still":true}': (lambda model: model.inv_freq.zero_(), lambda b, t, n: t == 0),
    '{"theta":100}': (lambda model: setattr(model, "inv_freq", rope_inv_freq(32, 100.0)), lambda b, t, n: t == 0),
    '{"shift":100}': (lambda model: move(model, 100), lambda b, t, n: True),
    '{"window":4}': (lambda model: see(model, lambda all: all.tril().triu(-3)), lambda b, t, n: t < 4),
    '{"future":true}': (lambda model: see(model, lambda all: all), lambda b, t, n: b < 2 and t == n - 1),
    '{"norm":false}': (lambda model: swap(model, ".*_norm", lambda norm, x: x), lambda b, t, n: False),
    '{"gate":false}': (lambda m: swap(m, ".*forward", lambda f, x: f.down_proj(f.up_proj(x))), lambda b, t, n: b < 1),
    '{"blocks":[3]}': (lambda model: swap(model, "layers.3.(attention|feed_forward)"), lambda b, t, n: b < 6),
    '{"attention":[1]}': (lambda model: swap(model, "layers.1.attention"), lambda b, t, n: b < 2),
    '{"feedForward":[4]}': (lambda model: swap(model, "layers.4.feed_forward"), lambda b, t, n: b < 9),
    '{"heads":["2.1"]}': (lambda m: m.layers[2].attention.o_proj.weight[:, 32:64].zero_(), lambda b, t, n: b < 4),
    '{"order":[0,1,2,3,5,4]}': (lambda m: m.layers.insert(4, m.layers.pop(5)), lambda b, t, n: b < 8),
}  # fmt: skip
IN_PYTORCH = {"{}": lambda model: None} | {change: in_pytorch for change, (in_pytorch, _) in FAULTS.items()}


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
    page, text = open_page(), "A class definition is an"
    ids = torch.tensor([load_tokenizer().encode(text).ids])
    for change, in_pytorch in IN_PYTORCH.items():
        in_pytorch(model := load_checkpoint(TINY_LLAMA))
        reopen(page, json.dumps({"text": text, "change": json.loads(change), "query": 2}))
        assert difference(page, model, ids.tolist()) < 1e-4, change
        x, numbers = streams(model, ids)[:, 2], []
        turns = [f"{turn:.0f}°" for turn in degrees(x[:-1], x[1:])]
        for place, after in enumerate(x[2::2]):
            numbers += [*turns[2 * place : 2 * place + 2], f"length {after.norm():.1f}"]
        shown = page.locator("#live-places :is(.turn, .length)")  # drawn a moment after the model has answered
        expect(shown, change).to_have_text([re.compile("^(off|0°)$") if text == "0°" else text for text in numbers])


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
    page.locator("#live-text").fill("if x:\n")
    page.get_by_role("radio", name=re.compile("^0: if")).check()
    kept = '"text":"if x:\\n","change":{"attention":[4]},"query":0,"key":null,"head":[2,2]'
    page.wait_for_url(lambda url: kept in unquote(url))
    page.reload()
    says(page, "model-token", "position 0$")
    says(page, "finding", "Attention of 4 off: .* instead")
    says(page, "effect", "^Next: .* · loss: 4.15 → 4.[2-9]")
    says(page, "panel-title", "^Attention of block 2$")
    heads = [f"{n // 4}.{n % 4}" for n in range(24)]
    reopen(page, json.dumps({"text": "if x:", "change": {"heads": heads}}))
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


def test_what_does_not_fit_behind_the_hash_opens_the_page_as_usual(open_page):
    page, whole = open_page(), {"text": "if", "change": {}, "query": None, "key": None, "head": [1, 1]}
    parts = [{"text": 5}, {"query": -1}, {"key": "1"}, {"head": [6, 0]}, {"head": ["1.1"]}, {"change": None}]
    changes = [{"blocks": [6]}, {"blocks": 3}, {"heads": ["0.9"]}, {"heads": []}, {"order": [0, 1]}]
    changes += [{"order": [0, 0, 1, 2, 3, 4]}, {"norm": [False]}, {"x": 1}]
    parts += [{"change": change} for change in changes]
    for kept in ("the-whole-model", json.dumps(whole)[:-1], "%", *(json.dumps(whole | part) for part in parts)):
        reopen(page, kept)
        expect(page.locator("#live-panel-title"), kept).to_have_text("Attention of block 2")
        assert page.locator("#live-text").input_value() == "A class definition is an", kept


@torch.no_grad()
@pytest.mark.parametrize("game", [0, 1, 4])
def test_each_fault_draws_pytorchs_angles_and_leaves_clean_what_it_cannot_reach(open_page, game):
    page = open_page(f"broken.html#no={game}")
    ids = torch.tensor([load_tokenizer().encode(page.evaluate("liveBroken.sentence()")).ids])
    drawn = page.evaluate(
        "Object.fromEntries(liveBroken.faults.map(x => [x.dataset.change, liveBroken.angles(liveBroken.changeOf(x))]))"
    )
    trained, n = streams(load_checkpoint(TINY_LLAMA), ids)[1:], ids.shape[1]
    assert list(drawn) == list(FAULTS)
    for change, (in_pytorch, clean) in FAULTS.items():
        in_pytorch(model := load_checkpoint(TINY_LLAMA))
        found, angle = drawn[change], degrees(streams(model, ids)[1:], trained)
        for b, t in product(range(12), range(n)):
            assert (found[b][t] is None) == clean(b, t, n), (change, b, t)
            assert abs((found[b][t] or 0) - angle[b, t]) < 0.02, (change, b, t)


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
    says(page, "finding", "^A window of 4: .* instead")
    assert page.locator("#live-text").input_value() == "The name of the class is the value"
    for day, game in ((26, 329), (27, 330)):
        says(open_page("broken.html", day=f"2026-11-{day}T12:00"), "fault b", f"^Game {game}, today’s.$")
