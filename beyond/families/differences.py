"""What a family of transformers does otherwise than LLaMA, measured on a small random model; notebook 08.

A box holds the model (box.py): one run measures all layers, because each gets what we choose.
"""

import functools
import json
import re
import textwrap
from collections import defaultdict
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from torch import nn
from torch.nn import functional as F

from beyond.families.box import EQUAL, FEW, Box, changed, largest, norm_weights, of_layers, off, times
from beyond.families.reference import save_random, small_settings
from helpers import plots

N = 28  # tokens
OTHER_KINDS = {
    "decoders of encoders and translators": "bart bert bert-generation big_bird bigbird_pegasus blenderbot "
    "blenderbot-small camembert cpmant data2vec-text electra ernie marian mbart megatron-bert mvp pegasus plbart "
    "prophetnet reformer rembert roberta roberta-prelayernorm roc_bert roformer trocr whisper xlm xlm-roberta "
    "xlm-roberta-xl xlnet xmod",
    "text parts of models that see, hear or draft": "emu3 fuyu gemma3 gemma3n gemma4 gemma4_assistant gemma4_unified "
    "gemma4_unified_assistant git got_ocr2 inkling2_text inkling_text llama4 mllama moshi moss_transcribe_diarize "
    "musicgen musicgen_melody phi4_multimodal",
    "models that keep a state": "bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 "
    "lfm2_moe lfm3 mamba mamba2 minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text "
    "qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma rwkv xlstm zamba zamba2 zaya",
    "models that choose which keys they look at": "axk2 deepseek_v32 deepseek_v4 doge dots3_note dots3_note_text "
    "glm_moe_dsa hy_v4 minimax_m3_vl_text",
    "models that loop, or read bytes": "blt hrm_text",
}  # fmt: skip


def _there(by):
    return by > EQUAL


def _nothing(by):
    return by < EQUAL


def _not_one(value):
    return value is not None and abs(value - 1) > 0.005


SENTENCES = {  # of each fact: when it is a difference from LLaMA, and how it is said, with the largest number
    "one short vector": (bool, "one short vector of {} numbers is kept for the keys and values of all heads"),
    "bias on keys": (_there, "a token of zeros has a key of up to {:.2g}, so there is a bias"),
    "bias on values": (_there, "a token of zeros has a value of up to {:.2g}, so there is a bias"),
    "bias of attention": (_there, "attention makes up to {:.2g} of values of 0, so its last matrix has a bias"),
    "norm on queries": (_nothing, "a query 10 times as large has the same scores: queries are normalized, too"),
    "place in scores": (lambda by: by > 10 * EQUAL, "scores depend on more than the distance: if all positions are "
                        "shifted by 30, they move by {:.2g} of the largest"),
    "scale of scores": (_not_one, "a score is {:.3g} times q · k / √h"),
    "sinks": (_there, "of equal tokens the first gets less, by {:.2g}, so attention weights do not sum to 1: a sink"),
    "cap on scores": (bool, "no score exceeds {:.3g}, however large its query and key are"),
    "slopes": (_there, "equal keys have scores that fall with the distance, in one head by {:.1g} a token: ALiBi"),
    "clip": (_there, "twice the input is not twice the value, it is off by {:.2g}: values are clipped"),
    "norm in attention": (lambda ten: ten and ten < 2, "10 times the input makes attention write {:.2g} times as much, "
                          "although its values grow, so a norm is before its last matrix"),
    "gate on attention": (bool, "a token that sees itself alone does not write the opposite if its vector is the "
                          "opposite: something multiplies its value, such as a gate"),
    "side by side": (_nothing, "the feed-forward does not read what attention writes: they are side by side"),
    "one norm for both": (bool, "both read the same, so they share a norm"),
    "LayerNorm": (_nothing, "a constant on the stream is taken off, up to {:.0e}: LayerNorm, not RMSNorm"),
    "bias of norms": (_there, "a norm makes up to {:.2g} of zeros, so it has a bias"),
    "norms without weights": (_nothing, "all tokens have one mean square behind a norm, so it has no weights"),
    "1 + weight": (_there, "norms whose weights are 0 still give up to {:.2g}: they multiply by 1 + weight"),
    "scale of branches": (_not_one, "what a branch writes is added {:.3g} times"),
    "ungated": (_nothing, "all tokens get the same if the activation always gives 1, so there is no gate"),
    "bias of feed-forward": (_there, "the feed-forward makes up to {:.2g} of zeros, so it has biases"),
    "bound of feed-forward": (lambda ten: ten < 2, "10 times the input makes the feed-forward write {:.2g} times as "
                              "much: it is clamped, or normalized inside"),
    "experts": (bool, "a token goes through {:.2g} experts: so many, set to 0, change what it gets"),
    "shared expert": (_there, "all experts set to 0 leave {:.2g} of the largest, so one more is for every token"),
    "sigmoid in router": (_there, "a constant on all logits of the router changes what a token gets, by {:.2g}, so no "
                          "softmax makes the shares; likely a sigmoid"),
    "positions in embedding": (_there, "the stream begins otherwise at another position, by {:.2g} of the largest: a "
                               "vector for each position is added"),
    "norm on embedding": (_nothing, "twice the embedding begins the same stream, so a norm is on it"),
    "scale of embedding": (_not_one, "the embedding is multiplied by {:.4g}"),
    "bias of head": (_there, "a head that reads zeros gives logits of up to {:.2g}, so it has a bias"),
    "scale of logits": (_not_one, "logits are {:.3g} times what the head gives"),
    "cap on logits": (bool, "no logit exceeds {:.3g}, whatever the head gives"),
}  # fmt: skip


class Findings:
    """What was measured: `facts`, {fact: its size or kind in each layer, None as in LLaMA}, and `sentences`.

    `layers` are the numbers of the layers, of `n_layers`, that have attention; `masks` and `turns` are theirs.
    """

    def __init__(self, layers: list[int], n_layers: int):
        self.layers, self.n_layers, self.masks, self.turns = layers, n_layers, [], []
        self.facts, self.sentences = {}, []

    def tell(self, fact: str, values: list):
        """Note a fact of all layers, and say it where it differs."""
        differs, text = SENTENCES[fact]
        self.facts[fact] = of = [value if differs(value) else None for value in values]
        if told := [value for value in of if value is not None]:
            start = where([one is not None for one in of]) if len(of) > 1 else "Around the layers"
            self.sentences.append(f"{start} {text.format(max(told))}.")

    def tell_kinds(self, fact: str, kinds: list, usual: str = ""):
        """Note words on all layers, and say them, layers of one kind together."""
        self.facts[fact] = [None if kind == usual else kind for kind in kinds]
        for kind in dict.fromkeys(kinds):
            if kind != usual:
                self.sentences.append(f"{where([one == kind for one in kinds])} {kind}.")


def where(flags: list) -> str:
    """Which layers: "In every layer", "In layers 0 and 2"."""
    *most, last = (str(layer) for layer, flag in enumerate(flags) if flag)
    some = f"In layers {', '.join(most)} and {last}" if most else f"In layer {last}"
    return "In every layer" if all(flags) else some


# ------------------------------------------------------------------------------------------------ the measurements


def masks(box: Box) -> list[torch.Tensor]:
    """Which keys (columns) get weight from a query (rows) of each layer, in any head, (T, T) bool."""
    return [(weights[0] > 0).any(0) for weights in box.run(0.5 * box.random(1, N))["weights"]]


def sees(mask: torch.Tensor) -> str:
    """A mask (T, T) in words."""
    place = torch.arange(len(mask))
    back = place[:, None] - place
    for width in range(len(mask), 0, -1):
        if torch.equal(mask, (back >= 0) & (back < width)):
            every = width == len(mask)
            return "a token sees all before it" if every else f"a token sees the last {width}, itself included"
        if torch.equal(mask, (back >= 0) & (place[:, None] // width == place // width)):
            return f"a token sees its own chunk alone: the text is cut every {width} tokens"
    return f"the first to the last token see {mask.sum(1).tolist()} tokens"


def turns(box: Box) -> list[tuple]:
    """Of each layer the speed [rad/token] of every pair, 0 for one that stands still, and the gap in a pair: 1 in
    neighbours, None if nothing turns. All tokens have the same vector, so their keys differ by their place alone.
    """
    with changed(norm_weights(box.attentions), lambda weight: weight.fill_(1)):
        seen = box.run(box.random(1, 1).expand(1, N, -1))

    def of_layer(keys):
        k = keys[0, 0].double()  # (T, h), of the first head
        moves = ((k - k[0]).abs().amax(0) > 2e-6 * k.abs().max()).nonzero()[:, 0].tolist()
        if not moves:
            return [0.0] * (k.shape[-1] // 2), None
        fastest = max(moves, key=lambda one: k[:, one].var())
        length = k[:, [fastest]] ** 2 + k[:, moves] ** 2  # a pair keeps its own
        partner = min((var, one) for var, one in zip(length.var(0).tolist(), moves, strict=True) if one != fastest)[1]
        gap, firsts, speeds = abs(partner - fastest), [], []
        for one in moves:  # a slow one may seem to stand still
            one = one - gap if one + gap >= k.shape[-1] else one
            if one not in firsts and one - gap not in firsts:
                firsts.append(one)
                z = torch.complex(k[:, one], k[:, one + gap])
                step = (z[1:] * z[:-1].conj()).sum().angle()
                speed = (step if step.abs() * N > 3 else (z[-1] * z[0].conj()).angle() / (N - 1)).item()
                speeds.append(speed if abs(speed) > 2e-6 else abs(speed))  # of so small ones not even the sign is sure
        still = [0.0] * (k.shape[-1] // 2 - len(speeds))
        return sorted(speeds, key=abs, reverse=True) + still, gap

    return of_layers(of_layer, seen["keys"])


def turning(speeds: list, gap: int | None) -> str:
    """What turns, in words; nothing is said of plain RoPE."""
    moving, p = [speed for speed in speeds if speed], len(speeds)
    if not moving:
        return "nothing turns: a vector has the same key at every position"
    said = f"{len(moving)} of {p} pairs turn" if len(moving) < p else "all pairs turn"
    said += " the other way round" if moving[0] < 0 else ""
    if len(moving) == 1:
        return f"{said} (is a pair two neighbours? Heads of 8 are too small to tell: add hidden_size=64)"
    pairs = f", and a pair is the coordinates i and i + {gap}" + f", not i and i + {p}" * (gap == 1)
    return said + pairs + " (edits.turned_first stores them as ours)" * (1 < gap < p)


def norm_on_keys(short, at_0, anywhere, turn) -> str:
    """Are keys normalized, and if so after RoPE?

    After a norm with gains g and biases b, sum((k - b)² / g²) is one number for all tokens, a sum of k and k².
    """

    def fixed(k):
        k = k.flatten(0, -2).double()  # (tokens, numbers)
        columns, ones = torch.cat((k, k**2), dim=-1), torch.ones(len(k), 1, dtype=torch.double)
        few = columns.shape[1] < 0.9 * len(k)  # more could make any sum; and biases make one that is nearly the same
        return few and off(columns @ torch.linalg.lstsq(columns, ones, driver="gelsd").solution, ones) < EQUAL / 10

    if not short:
        whole = {"each head": lambda k: k[:, 0], "all heads together": lambda k: k.transpose(1, 2).flatten(2)}
        for whose, of in whole.items():
            if fixed(of(at_0)):
                order = "" if turn[1] is None else " after RoPE" if fixed(of(anywhere)) else " before RoPE"
                return f"the keys of {whose} are normalized{order}"
    return ""


def scores(weights) -> torch.Tensor:
    """The last query's scores, (…, S), less that of key 0, from attention weights (…, T, S)."""
    logs = weights[..., -1, :].double().log()
    return logs - logs[..., :1]


def attention(box: Box, found: Findings):
    """What is done to queries, keys, values and scores."""
    x, tell = box.random(1, FEW), found.tell
    with changed(sinks(box.model), lambda weight: weight.fill_(-1e30)):  # so a token sees its own value alone
        zero, one, two, large, larger = (box.run(by * x[:, :1]) for by in (0, 1, 2, 100, 1000))
        plus, minus = (box.run(by * x[0, :, None])["attention out"] for by in (1000, -1000))  # texts of one token
    short = [*map(one_vector, one["kept"])]
    tell("one short vector", short)
    at_0 = box.run(box.random(16, 25), places=torch.zeros(25, dtype=torch.long))["keys"]
    anywhere = box.run(box.random(16, N))["keys"]
    normed = of_layers(norm_on_keys, short, at_0, anywhere, found.turns)
    one_length = of_layers(lambda a, b: off(a, b) < EQUAL, large["keys"], larger["keys"])  # also what turns
    normed = [
        name or "all of a key is normalized" * (v > 0 and by)
        for name, v, by in zip(normed, short, one_length, strict=True)
    ]
    found.tell_kinds("norm on keys", normed)
    tell("bias on keys", of_layers(largest, zero["keys"]))
    tell("bias on values", of_layers(largest, zero["values"]))
    made = of_layers(lambda y, v: 0 if largest(v) else largest(y), zero["attention out"], zero["values"])
    tell("bias of attention", made)

    def scored(*given, **places):
        return of_layers(scores, box.run(*given, **places)["weights"])

    from_0 = torch.cat((0 * x[:, :1], x[:, 1:]), dim=1)  # key 0 is 0, and so is its score
    tops = [[y.nan_to_num(0, torch.inf).max().item() for y in scored(by * from_0)] for by in (1, 100, 1000)]
    normed = found.facts["norm on keys"]
    caps = of_layers(lambda norm, a, b, c: b if not norm and a < 0.9 * b and c < 1.01 * b else 0, normed, *tops)
    tell("cap on scores", caps)
    loud, louder = (scored(torch.cat((x[:, :-1], by * x[:, -1:]), dim=1)) for by in (1e4, 1e5))  # the last query
    same = of_layers(lambda a, b, cap: 1 if cap else off(a[..., :-1], b[..., :-1]), loud, louder, caps)
    tell("norm on queries", same)
    tell("place in scores", of_layers(off, scored(x, places=30 + torch.arange(FEW)), scored(x)))
    tell("scale of scores", score_scale(box, normed))
    alike = box.run(x[:, 1:2].expand(1, FEW, -1))["attention out"]  # a mean of equal values is one of them
    tell("sinks", of_layers(lambda y: off(y[:, 0], y[:, -1]), alike))
    tell("slopes", of_layers(lambda y, turn: turn[1] is None and y[0, :, 1].min().item(), scored(0 * x), found.turns))
    bends, writes = (of_layers(lambda o, a, b: off(b - o, 2 * (a - o)), zero[name], one[name], two[name])
                     for name in ("values", "attention out"))  # fmt: skip
    tell("clip", [0 if vector else by for vector, by in zip(short, bends, strict=True)])
    grows = of_layers(lambda a, b: largest(b) / largest(a), large["attention out"], larger["attention out"])
    causes = zip(short, found.facts["clip"], strict=True)  # which say already why it bends
    grows = [None if any(why) or by < EQUAL else ten for why, by, ten in zip(causes, writes, grows, strict=True)]
    tell("norm in attention", grows)
    rest = of_layers(lambda a, b: largest(a + b - (a + b)[:1]) / largest(a), plus, minus)  # of opposites, for all alike
    tell("gate on attention", [by > 10 * EQUAL for by in rest])


def sinks(model: nn.Module) -> list[torch.Tensor]:
    """The weights of a model that are scores of sinks."""
    return [weight for name, weight in model.named_parameters() if "sink" in name]


def one_vector(kept) -> int:
    """How wide the one vector is that a layer keeps for the keys and values of all heads, 0 if it keeps others."""
    keys, values = (getattr(kept, name, None) for name in ("keys", "values"))
    return keys.shape[-1] if torch.is_tensor(keys) and keys.shape[1] == 1 and keys.shape[-1] != values.shape[-1] else 0


def score_scale(box: Box, normed: list) -> list:
    """Of each layer how many times q · k / √h a score is; None where no part gives q. All tokens are at position 0."""
    found, queries = [], defaultdict(list)
    with ExitStack() as hooks:
        for layer, (norm, part) in enumerate(zip(normed, box.attentions, strict=True)):
            names = r"(.*\.)?(q_|query_)(layer)?norm" if norm else r"(.*\.)?q_proj"
            for one in [one for name, one in part.named_modules() if re.fullmatch(names, name)]:
                hook = functools.partial(lambda layer, module, args, out: queries[layer].append(out), layer)
                hooks.callback(one.register_forward_hook(hook).remove)
        run = box.run(box.random(1, FEW), places=torch.zeros(FEW, dtype=torch.long))
    for layer, (keys, weights) in enumerate(zip(run["keys"], run["weights"], strict=True)):
        k = keys[0, 0]
        if not queries[layer] or queries[layer][0].numel() != keys.numel():
            found.append(None)
            continue
        q = queries[layer][0]
        q = q.transpose(1, 2) if q.ndim == 4 and q.shape[1] != FEW else q  # to (1, T, H, h)
        q = q.flatten(2)[0, -1, : k.shape[-1]]  # the last one of head 0
        found.append(times(scores(weights)[0, 0], (k - k[0]) @ q / len(q) ** 0.5))
    return found


NORMS = {  # (before, behind)
    (True, False): "", (False, False): "no norm is before or behind {}",
    (True, True): "a norm is before {} and one behind it: 10 times what it writes adds the same",
    (False, True): "the norm is behind {}, not before it: 10 times what it writes adds the same",
}  # fmt: skip


def order(box: Box, found: Findings):
    """Where the norms of a layer are, of which kind, and how much of a branch is added."""
    x, zero = box.random(1, N), {part: lambda y: 0 * y for part in ("attention", "feed_forward")}

    def run(x=x, **leave):
        return box.run(x, "layer", zero | leave)

    def added(part, change):  # what one branch adds to the stream, if the other one adds nothing
        seen = run(**{part: change})
        return [y - x for y in seen["layer out"]], seen[f"{part} out"]

    def equal(a, b):
        return off(a, b) < EQUAL

    alone, loud, more, tell = run(), run(10 * x), run(x + 5), found.tell
    reads = alone["feed_forward in"]
    beside = of_layers(off, run(attention=lambda y: y)["feed_forward in"], reads)
    tell("side by side", beside)
    shared = of_layers(lambda by, a, b: by < EQUAL and equal(a, b), beside, reads, alone["attention in"])
    tell("one norm for both", shared)
    constant, scale, first = [], [], {}
    for part in zero:
        changes = (lambda y: y, lambda y: 10 * y, lambda y: y + 5)
        (plain, out), (ten, _), (plus, _) = (added(part, change) for change in changes)
        into = f"{part} in"
        first[part], behind = of_layers(equal, loud[into], alone[into]), of_layers(equal, ten, plain)
        kinds = (NORMS[one].format(part.replace("_", "-")) for one in zip(first[part], behind, strict=True))
        found.tell_kinds(f"norms of {part.replace('_', '-')}", [*kinds])
        gone = of_layers(off, more[into], alone[into]), of_layers(off, plus, plain)
        constant.append(of_layers(lambda before, a, b: a if before else b, first[part], *gone))
        scale.append(of_layers(times, plain, out))
    tell("LayerNorm", of_layers(max, *constant))
    tell("bias of norms", of_layers(largest, run(0 * x)["attention in"]))
    tell("scale of branches", of_layers(lambda a, b: a if _not_one(a) else b, *scale))
    spread = of_layers(lambda y, before: y.pow(2).mean(-1).std().item() if before else 1, alone["attention in"],
                       first["attention"])  # fmt: skip
    tell("norms without weights", spread)
    with changed(norm_weights(box.layers), lambda weight: weight.zero_()):
        kept = run()["attention in"]
    tell("1 + weight", of_layers(lambda y, by: 0 if by == 1 or by < EQUAL else largest(y), kept, spread))


POINTS = torch.tensor([-3.0, -1.0, -0.3, 0.5, 1.0, 3.0])
ACTIVATIONS = {"SiLU": F.silu, "GELU": F.gelu, "GELU in its tanh form": functools.partial(F.gelu, approximate="tanh"),
               "ReLU": F.relu, "ReLU squared": lambda x: F.relu(x) ** 2}  # fmt: skip


def activation(layer, branch) -> nn.Module | None:
    """The first part that is an activation."""
    parts = [*(pair for one in branch for pair in one.named_modules()), *layer.named_children()]
    for name, part in parts:
        words = f"{name.rpartition('.')[2]} {type(part).__name__}".lower()
        if re.search("act|[gsr]elu|silu", words) and not [*part.children()]:
            return part
    return None


def called(act: nn.Module | None) -> str:
    """An activation by name, or by some of its values."""
    if act is None:
        return "the activation is no part of its own"
    y = act(POINTS)
    name = next((name for name, known in ACTIVATIONS.items() if off(y, known(POINTS)) < 1e-5), None)
    points = zip(POINTS.tolist(), y.tolist(), strict=True)
    known = (
        f"none that is known (see transformers/activations.py): {', '.join(f'{a:.1f} → {b:.3g}' for a, b in points)}"
    )
    return f"the activation is {name or known}"


def feed_forward(box: Box, found: Findings):
    """What a feed-forward computes."""
    x, tell = box.random(1, N), found.tell

    def run(by=1, x=x):
        return box.run(by * x, "feed_forward")["feed_forward out"]

    acts = of_layers(activation, box.layers, box.branches)
    found.tell_kinds("activation", [*map(called, acts)], "the activation is SiLU")
    with ExitStack() as hooks:
        for act in {*acts} - {None}:
            hooks.callback(act.register_forward_hook(lambda module, args, out: torch.ones_like(out)).remove)
        tell("ungated", of_layers(lambda y: (y.std(1).max() / y.abs().max()).item(), run()))
    tell("bias of feed-forward", of_layers(largest, run(0)))
    tell("bound of feed-forward", of_layers(lambda a, b: largest(b) / largest(a), run(100), run(1000)))
    named = [pair for branch in box.branches for part in branch for pair in part.named_parameters()]
    n = max((len(one) for _, one in named if one.ndim == 3), default=0)
    tables = [one for name, one in named if one.ndim == 3 or ("experts." in name and "bias" in name and len(one) == n)]
    routers = [one for name, one in named if one.shape == (n, box.dim) and "bias" not in name]
    before, token = run(), box.random(1, 1)

    def without(numbers):
        with changed(tables, lambda weight: weight.index_fill_(0, torch.tensor(numbers), 0)):
            return run()

    def felt(a, b):
        return (a - b).abs().amax(-1)[0] > 1e-6 * b.abs().max()

    if n:
        moved = [of_layers(felt, without([one]), before) for one in range(n)]
        chosen = of_layers(lambda *some: torch.stack(some).sum(0).double().mean().item(), *moved)
        tell("experts", chosen)
        none = [y - y[:, :1] for y in without([*range(n)])]  # less a bias
        left = of_layers(lambda a, b, chosen: chosen and largest(a) / largest(b), none, before, chosen)
        tell("shared expert", left)
        plain = run(x=token)
        with changed(routers, lambda weight: weight.add_(2 * token[0] / token.pow(2).sum())):
            tell("sigmoid in router", of_layers(off, run(x=token), plain))


def ends(box: Box, found: Findings):
    """What is done to the embedding and to the logits."""
    table, tokens, x = box.model.get_input_embeddings().weight, 3 + torch.arange(N)[None], box.random(1, N)
    with changed([table], lambda weight: weight.mul_(2)):
        doubled = box.run(tokens=tokens)["layer in"][0]
    inside, same = (box.run(tokens=some)["layer in"][0] for some in (tokens, 0 * tokens + 3))
    found.tell("positions in embedding", [off(same, same[:, :1])])
    found.tell("norm on embedding", [off(doubled, inside)])
    found.tell("scale of embedding", [times((inside - same)[0, 1:], table[tokens[0, 1:]] - table[3])])
    none, small, large, larger = (box.run(by * x, "head", tokens=tokens) for by in (0, 0.01, 1e4, 1e5))
    found.tell("bias of head", of_layers(largest, none["logits"]))
    found.tell("scale of logits", of_layers(times, small["logits"], small["head out"]))
    tops = largest(large["logits"][0]), largest(larger["logits"][0])
    found.tell("cap on logits", [tops[0] if tops[1] < 2 * tops[0] else 0])


def measure(model: nn.Module) -> Findings:
    """What differs from LLaMA in a model of transformers: facts of the layers that have attention, and sentences."""
    box = Box(model)
    found = Findings(box.numbers, box.n_layers)
    if not box.numbers:
        return found
    found.masks, found.turns = masks(box), turns(box)
    found.tell_kinds("mask", [sees(one) for one in found.masks], "a token sees all before it")
    pairs = len(found.turns[0][0])
    found.tell_kinds("turn", [turning(*one) for one in found.turns], turning([1.0] * pairs, pairs))
    speeds = dict.fromkeys(", ".join(f"{speed:.2g}" for speed in speeds if speed) for speeds, _ in found.turns)
    if len(speeds := [one for one in speeds if one]) > 1:
        found.sentences.append(f"Layers turn at different speeds: by {'; by '.join(speeds)} rad a token.")
    attention(box, found)
    if all(box.branches):
        if box.one_stream:
            order(box, found)
        feed_forward(box, found)
    if box.one_stream and len(box.numbers) == box.n_layers:
        ends(box, found)
    return found


def checked(model_type: str) -> str:
    """The type, if what is measured here can be true of it.

    Raises:
        ValueError: if it is another kind of model; it says which, and where to look.
    """
    from transformers import CONFIG_MAPPING, __version__
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    file = Path(model_type) / "config.json"
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if "auto_map" in content:
        code = sorted({name.partition(".")[0] + ".py" for name in content["auto_map"].values()})
        files = " and ".join(code)
        raise ValueError(f"{model_type} brings code of its own, which nothing here runs: look into {files}.")
    kind = content.get("model_type", model_type)
    if kind not in CONFIG_MAPPING:
        near = " or ".join(map(repr, get_close_matches(kind, CONFIG_MAPPING, 3))) or "a type of docs/atlas.md"
        raise ValueError(
            f"transformers {__version__} has no type {kind!r}: use {near}. If its config.json has an entry "
            "auto_map, its code is no part of transformers: look into the files that this entry names."
        )
    name = model_type_to_module_name(kind)
    look = f"look into transformers.models.{name}.modeling_{name}"
    for why, kinds in OTHER_KINDS.items():
        if kind in kinds.split():
            raise ValueError(f"{kind!r} belongs to the {why}, which are no LLaMA with a few edits: {look}.")
    return kind


def what_differs(model_type: str, **settings):
    """Measure what a family of transformers does otherwise than LLaMA, say it in sentences, and draw both lenses.

    Args:
        model_type: a type of transformers, or a folder whose config.json names it; the model is small and random.
        settings: by the names of config.json, in place of small sizes and transformers' own values.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    kind = checked(model_type)
    try:
        with ExitStack() as after:
            if logging.is_progress_bar_enabled():  # transformers would draw one
                logging.disable_progress_bar()
                after.callback(logging.enable_progress_bar)
            model, _ = save_random(kind, **small_settings(kind) | settings)
        found = measure(model)
        if not found.layers:
            raise ValueError("its layers compute no attention weights, and most of this looks at them")
    except Exception as error:  # transformers raises in many ways
        words = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        message = f"a small random {kind!r} cannot be made or measured with these settings ({words})."
        raise ValueError(message) from error
    print(f"{kind}, small and random, differs from LLaMA in this:")
    for sentence in found.sentences:
        print(textwrap.fill(sentence, 100, initial_indent="- ", subsequent_indent="  "))
    with torch.device("meta"):
        llama = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", num_hidden_layers=1))
    usual, theirs = AutoConfig.for_model(kind).to_dict(), llama.config.to_dict()
    noise = "drop|output_|aux_|initializer|summary|token|size|type$|label|version|num_(hidden|atten)|n_(embd|layer)"
    keys = [f"{name}={textwrap.shorten(str(value), 30)}" for name, value in usual.items()
            if not re.search(noise, name) and (name not in theirs or value != theirs[name])]  # fmt: skip
    own = [name for name in model.state_dict() if not re.search(r"\.[1-9]\d*\.", name)]
    own = [name for name in own if name not in llama.state_dict()]
    title = "Keys of config.json that LLaMA has not, or sets otherwise"
    for name, some in ((title, keys), ("Weights of its own", own)):
        print(textwrap.fill(f"{name}: {', '.join(some) or 'none'}.", 100))
    turning_layers = [layer for layer, (speeds, _) in enumerate(found.turns) if any(speeds)]
    full = [layer for layer, kind_of in enumerate(found.facts["mask"]) if kind_of is None]
    alt = f"{kind}: red facts differ; below, the keys each layer sees and the speeds of a head's pairs. "
    plots.show(draw(kind, found), alt + f"Of {len(found.turns)} layers {turning_layers} turn and {full} see all keys.")


def draw(kind: str, found: Findings):
    """Facts by layers, red where they differ; below, both lenses: each layer's mask, the speeds of a head's pairs."""
    n, facts = len(found.masks), found.facts
    figure = plt.figure(figsize=(8.0, 6.2))
    top, bottom = figure.subfigures(2, 1, height_ratios=(5, 7))
    ax, axes = top.subplots(), bottom.subplots(2, n, height_ratios=(3, 2), sharex="row", sharey="row", squeeze=False)
    cells = torch.tensor([[one is not None for one in (of * n)[:n]] for of in facts.values()]).T
    ax.pcolormesh(cells, cmap=ListedColormap(["#CFE5D8", "#C00000"]), vmin=0, vmax=1, ec="white", lw=1.5)
    names = [name + re.search(" (before|after) RoPE|$", str(of))[0] for name, of in facts.items()]
    ax.set_xticks(torch.arange(len(facts)) + 0.5, names, rotation=90, fontsize=8)
    ax.set_yticks(torch.arange(n) + 0.5, [f"layer {layer}" for layer in range(n)])
    ax.set(ylim=(n, 0), title=f"{kind}: red differs from LLaMA, green does not")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for layer, (mask, (speeds, _), (above, below)) in enumerate(zip(found.masks, found.turns, axes.T, strict=True)):
        plots.plot_visible(mask, ax=above, title=f"layer {layer}").set_xticks([0, 10, 20])
        colors, hatches = zip(*[(plots.INK, "") if one else (plots.HIDDEN, "////") for one in speeds], strict=True)
        heights = [abs(speed) or 1 for speed in speeds]
        below.bar(range(len(speeds)), heights, color=colors, hatch=hatches, edgecolor=plots.HATCH, lw=0)
        below.set(yscale="log", ylim=(1e-7, 2), yticks=(1e-6, 1e-3, 1), xticks=range(len(speeds)))
        below.set(xlabel="pair", title=f"{sum(map(bool, speeds))} of {len(speeds)} turn")
        above.set(ylabel=above.get_ylabel() if layer == 0 else "")
    axes[1, 0].set_ylabel("speed [rad/token]")
    return figure
