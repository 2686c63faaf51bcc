"""The last exercise of notebook 05: a whole LLaMA of the learner's own, checked stage by stage.

Nobody should face forty lines at once: a function that returns what it has so far is told which stages are right and
which comes next. The check watches the numbers that PyTorch computes while the function runs. A stage is right if all
its numbers are among them, in whatever order and shape, so that loops, einsum and modules are judged alike. Whether
the function passes depends on its logits alone.
"""

import functools
import json
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from checks.base import Case, Exercise, Harness, Wrong, draw
from checks.explain import number
from checks.full_model import close
from checks.judge import check_of
from checks.parts import COURSE, NO_EXERCISE, Parts
from helpers.checkpoint import config_from_hugging_face, name_map
from helpers.model import Llama
from helpers.text import TINY_LLAMA

STAGES = {  # its name, and what it makes
    1: ("embedding and first norm", "the normed vectors, (B, T, D)"),
    2: ("q, k, v of block 0", "q (B, H, T, h), k and v (B, K, T, h)"),
    3: ("block 0's attention", "x with what attention adds, (B, T, D)"),
    4: ("block 0's feed-forward", "x with what the feed-forward adds, (B, T, D)"),
    5: ("all blocks", "x after the last block, (B, T, D)"),
    6: ("logits", "the logits, (B, T, V)"),
}


def my_llama(weights, config, tokens):
    """A LLaMA's logits (B, T, V) from weights {name: tensor} and config under Hugging Face's names, tokens (B, T)."""
    return Parts().llama(weights, config, tokens)


def _may_refuse(config, tokens):
    return config["rope_parameters"]["rope_type"] != "default" or tokens.shape[1] > config["max_position_embeddings"]


def _or_refuses(function, weights, config, tokens):
    """An answer may raise for llama3 and for a longer text than was trained on, and must for any other rope_type."""
    kind = config["rope_parameters"]["rope_type"]
    try:
        answer = function(weights, config, tokens)
    except Exception as error:
        if error.args == (...,) or not _may_refuse(config, tokens):
            raise
        return None if kind in OTHER_TYPES else my_llama(weights, config, tokens)
    if kind in OTHER_TYPES:
        raise Wrong(f"it computes logits with the rope_type {kind!r}, for which an error is asked.")
    return answer


OTHER_TYPES = "linear", "dynamic", "yarn", "longrope", "unheard of"
LONG = "Only this text has more than 256 tokens. Does each query see all tokens before it? And is each of your "
LONG += "positions a whole number, and another than the rest?"
OTHERS = "Stage 2: does it raise an error for every rope_type that it does not compute? Nothing else would show it."
LLAMA3 = "Stage 2: rope_type is llama3 here. Scale the frequencies, the angles of position 1 and not those of later "
LLAMA3 += "positions, by parts.llama3_scaling with its four numbers, or raise an error."
FACTORS = "Stage 2: are all four numbers of llama3 taken from config['rope_parameters']? Llama 3.1 has 8, Llama 3.2 32."
WRITTEN_DOWN = "It is right for tiny-llama. Which size or number is not taken from config, weights and tokens?"
DEEP = "Only this model has more than ten blocks, and no shared key heads. Sorted as texts, '10' comes before '2'."
ONE_TOKEN = "Do you drop a dimension of size 1, expect two rows at most, or keep something of an earlier call?"
BEYOND = "Only this text is longer than max_position_embeddings: read all of it, or raise an error. Do you drop tokens?"


MAX_TENSORS = 20_000  # tensors that are kept: an endless loop makes more


class _Watch(TorchDispatchMode):
    """Keeps a copy of what PyTorch computes while it is on."""

    @classmethod
    def _should_skip_dynamo(cls):
        """PyTorch asks; yes would import its compiler, five seconds, and slow each operation."""
        return False

    def __init__(self):
        super().__init__()
        self.tensors = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # empty memory may hold what was in it before
        if not function.is_view and "empty" not in function.name() and len(self.tensors) < MAX_TENSORS:
            inside = args[0]._base if function._schema.is_mutable and args else None  # y[0] = ... changes a part of y
            for value in (*result, inside) if isinstance(result, tuple | list) else (result, inside):
                if not isinstance(value, torch.Tensor) or value.is_meta:
                    continue
                if value.is_floating_point() or value.is_complex():
                    value = torch.view_as_real(value.resolve_conj()).flatten(-2) if value.is_complex() else value
                    self.tensors.append(value.detach().to(torch.float64, copy=True))
        return result

    def explain(self, case, answer, problem, right):
        """(How many stages are right, what is wrong and which is next, hint); `right`: labels of the right cases."""
        if case.hint:  # only what is special in it can fail where the others do not
            return len(STAGES), problem.message, problem.hint or case.hint
        stages = _stages_of(my_llama, case)
        answers = tuple(answer) if isinstance(answer, tuple | list) else (answer,)
        if handed_over := next((stage for stage in range(1, 6) if _alike(answers, stages[stage])), 0):
            return handed_over, _next(handed_over), ""
        reached = max(self._stages_made(stages), default=0)
        if reached == 6:
            return 6, f"{problem.message} The right logits were computed, but are not what is returned.", problem.hint
        hint = "" if all(isinstance(one, torch.Tensor) for one in answers) else problem.hint
        made_by = {hint: _stages_of(program, case).values() for hint, program in MY_LLAMA.mistakes}
        if known := next((hint for hint, made in made_by.items() if any(_alike(answers, one) for one in made)), ""):
            reached, hint = min(reached, int(known[6]) - 1), known  # its numbers may be made, and left
        said = f"{problem.message} {_next(reached)} {_gap(stages[reached + 1], self.tensors)}"
        return reached, said, hint or (WRITTEN_DOWN if "tiny-llama" in right else "")

    def _stages_made(self, stages):
        """The stages of which every vector is among what was computed."""
        lengths = {want.shape[-1] for wanted in stages.values() for want in wanted}
        seen = [torch.empty(0), *self.tensors]
        made = {length: torch.cat([_rows(tensor, length) for tensor in seen]) for length in lengths}
        return [stage for stage in STAGES if all(_was_made(want, made) for want in stages[stage])]


@functools.cache
def _stages_of(program, case):
    """What each stage makes in a LLaMA that checks.parts wires, {stage: tensors}, in block 0 if each block has it."""
    stages = {}
    with patch.object(Parts, "note", lambda self, stage, *values: stages.setdefault(stage, values)):
        program(*case.fresh_inputs())
    return stages


def _rows(tensor, length):
    """The summaries of all runs of `length` numbers, along any dimension, (n, 4)."""
    along = [tensor.movedim(d, -1).reshape(-1, length) for d, size in enumerate(tensor.shape) if size == length]
    if tensor.ndim and tensor.shape[-1] > length and tensor.shape[-1] % length == 0:  # heads side by side
        along.append(tensor.reshape(-1, length))
    return _summaries(torch.cat([torch.empty(0, length, dtype=torch.float64), *along]))


def _summaries(rows):
    """Four numbers for each row of (m, n) that do not depend on the order of its entries, (m, 4)."""
    return torch.stack([rows.sum(-1) / rows.shape[-1] ** 0.5, rows.norm(dim=-1), rows.amin(-1), rows.amax(-1)], dim=-1)


def _was_made(want, made):
    """Whether every vector of a stage is among what was computed, {length: summaries}."""
    wanted, room = _summaries(want.double().flatten(0, -2)), 1e-4 * want.abs().max().item()
    return all(((made[want.shape[-1]] - row).abs().amax(-1) <= room).any() for row in wanted)


def _same_numbers(got, want):
    if not isinstance(got, torch.Tensor) or not got.is_floating_point() or got.numel() != want.numel():
        return False
    return close(*(tensor.detach().double().flatten().sort().values for tensor in (got, want)))


def _alike(answers, stage):
    return len(answers) == len(stage) and all(map(_same_numbers, answers, stage))


def _next(reached):
    name, what = STAGES[reached + 1]
    right = f"Of 6 stages {reached} {'is' if reached == 1 else 'are'} right. " if reached else ""
    return f"{right}Next is stage {reached + 1}, {name}: {what}."


def _gap(wanted, made):
    """How far the closest of the computed tensors is from what a stage makes, in words."""
    gaps = {}
    for want in wanted:
        alike = [value for value in made if value.shape == want.shape]
        gaps |= {min((value - want).abs().max().item() for value in alike): want} if alike else {}
    if not gaps:
        shapes = dict.fromkeys(str(tuple(want.shape)) for want in wanted)
        return f"Nothing of the shape {' or '.join(shapes)} was computed."
    largest = gaps[max(gaps)].abs().max().item()
    gap = number(max(gaps))
    return f"The closest tensor of its shape is off by up to {gap} (its largest entry is {number(largest)})."


def _random_llama(n_heads, n_kv_heads, head_dim, dim, n_layers, vocab_size, tied, theta, eps, seed, scores=1.0):
    """Large weights and uneven gains, so that every bug shows; nothing in common with tiny-llama."""
    config = {
        "vocab_size": vocab_size, "hidden_size": dim, "intermediate_size": dim + 10, "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads, "num_key_value_heads": n_kv_heads, "head_dim": head_dim, "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta}, "tie_word_embeddings": tied,
        "max_position_embeddings": 512, "hidden_act": "silu",
    }  # fmt: skip
    with torch.random.fork_rng(devices=()):  # for its names and shapes; on "meta" PyTorch imports its compiler
        model = Llama(config_from_hugging_face({"model_type": "llama"} | config))
    names, weights = name_map(n_layers), {}
    for place, (name, parameter) in enumerate(model.named_parameters()):
        numbers = draw(*parameter.shape, seed=seed + place, scale=0.4)
        weights[names[name]] = numbers if parameter.ndim == 2 else 1 + numbers
    weights["model.embed_tokens.weight"][0] = 0.0  # as of padding: of this token every score is 0
    weights["model.layers.0.self_attn.q_proj.weight"] *= scores
    return weights, config


def _tokens(batch, length, vocab_size, seed):
    return (draw(batch, length, seed=seed).abs() * 7919).long() % vocab_size


def _cases():
    shared = _random_llama(6, 2, 6, 24, 2, 30, False, 50.0, 0.1, 100)
    single = _random_llama(3, 1, 6, 24, 3, 17, True, 1000.0, 1e-3, 200, scores=30.0)
    single[1]["max_position_embeddings"] = 11  # as long as its text, which may not be refused
    new, again = _random_llama(6, 2, 6, 24, 2, 30, False, 50.0, 0.1, 500)  # by name, its file begins with the head
    deep = _random_llama(2, 2, 4, 12, 11, 17, False, 50.0, 1e-3, 600)
    single_block, text = _random_llama(3, 1, 8, 24, 1, 17, True, 500.0, 1e-3, 200), _tokens(2, 7, 30, 5)
    bundled = {name: weight.float() for name, weight in load_file(TINY_LLAMA / "model.safetensors").items()}
    config, short = json.loads((TINY_LLAMA / "config.json").read_text()), single[1] | {"max_position_embeddings": 8}
    return [
        Case("6 query heads on 2 key heads, not tied", (*shared, _tokens(2, 12, 30, 1).tril(9)[:, :11])),  # token 0 too
        Case("3 query heads on 1 key head, tied", (*single, _tokens(1, 11, 17, 2))),  # T and h as above
        Case("tiny-llama", (bundled, config, _tokens(1, 16, 1024, 3) * (torch.arange(16) != 5))),
        Case("300 tokens", (*single_block, _tokens(1, 300, 17, 4)), LONG),
        Case("11 blocks, a key head for each query head", (*deep, _tokens(2, 5, 17, 6)), DEEP),
        Case("3 rows of one token, other weights", (dict(sorted(new.items())), again, _tokens(3, 1, 30, 7)), ONE_TOKEN),
        Case("11 tokens, max_position_embeddings 8", (single[0], short, _tokens(1, 11, 17, 2)), BEYOND),
        Case("rope_type llama3", (shared[0], _scaled(shared[1], "llama3"), text), LLAMA3),
        Case("llama3, other factors", (shared[0], _scaled(shared[1], "llama3", 32.0, 2.0, 5.0, 64), text), FACTORS),
        *[Case(f"rope_type {kind}", (shared[0], _scaled(shared[1], kind), text), OTHERS) for kind in OTHER_TYPES],
    ]  # fmt: skip


def _scaled(config, kind, factor=8.0, low=1.0, high=4.0, original=16):
    rope = {"rope_type": kind} | ({} if kind == "longrope" else {"factor": factor})
    if kind not in ("linear", "dynamic"):
        rope["original_max_position_embeddings"] = original
    if kind in ("llama3", "unheard of"):
        rope |= {"low_freq_factor": low, "high_freq_factor": high}
    return config | {"rope_parameters": config["rope_parameters"] | rope}


class _Refuses(Parts):
    """A LLaMA that refuses what it may: so a known mistake speaks against no answer that does, or does not."""

    def llama(self, weights, config, tokens, *cached):
        if _may_refuse(config, tokens):
            raise ValueError("this may be refused")
        return super().llama(weights, config, tokens, *cached)


def _bug(own=None, **methods):
    """A LLaMA with one bug: other parts, or other methods of checks.parts.Parts."""
    return type("Bug", (_Refuses,), methods)(own).llama


def _without(norm):
    return _bug(norm=lambda self, x, w, name, c: x if name == norm else Parts.norm(self, x, w, name, c))


def _joined_wrongly(self, q, k, v):
    heads = Parts.attend(self, q, k, v).unflatten(-1, (-1, q.shape[-1]))
    return heads.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


MISTAKES = [  # of the wiring; the parts have exercises of their own, and their bugs show in a stage
    ("Stage 1: q, k and v read the normed stream. Yours read x itself.", _without("input_layernorm")),
    ("Stage 2: q and k are not turned.", _bug({"apply_rope_halves": lambda x, cos, sin: x})),
    ("Stage 2: the rows of q_proj come head after head: view(B, T, H, h), then .transpose(1, 2).",
     _bug(heads=lambda self, x, c: x.reshape(x.shape[0], -1, x.shape[1], c["head_dim"]))),
    ("Stage 3: heads share a key head as 0, 0, 1, 1.", _bug({"repeat_kv": lambda x, n_rep: x.repeat(1, n_rep, 1, 1)})),
    ("Stage 3: .transpose(1, 2) before the reshape joins the heads, token by token.", _bug(attend=_joined_wrongly)),
    ("Stage 3: x plus what attention returns. Yours forgets x.",
     _bug(add=lambda self, stage, x, normed, what: what if stage == 3 else x + what)),
    ("Stage 3: it is added to x itself, not to the normed x.",
     _bug(add=lambda self, stage, x, normed, what: what + (normed if stage == 3 else x))),
    ("Stage 4: the feed-forward reads the normed stream. Its norm is missing.", _without("post_attention_layernorm")),
    ("Stage 4: the feed-forward's norm has its own gain, post_attention_layernorm.",
     _bug(norm=lambda self, x, w, name, c: Parts.norm(self, x, w, name.replace("post_attention", "input"), c))),
    ("Stage 5: every block has its own weights.", _bug(block=lambda self, w, layer: Parts.block(self, w, 0))),
    ("Stage 6: the last norm is missing.", _without("model.norm.weight")),
    ("Stage 6: if the file has lm_head.weight, it is the head. Yours is the embedding always.",
     lambda w, c, tokens: _Refuses().llama({n: x for n, x in w.items() if n != "lm_head.weight"}, c, tokens)),
]  # fmt: skip
MY_LLAMA = Exercise(
    my_llama, _cases(), MISTAKES, tolerance=2.5, harness=Harness(_or_refuses, stages=_Watch),
    allow=("my_parts", *(part.__name__ for part in (NO_EXERCISE | COURSE).values())),  # the parts of notebooks 01 to 04
)  # fmt: skip
check_my_llama = check_of(MY_LLAMA)


def cache_fault(llama, weights, config, tokens, sizes=(5, 4, 1, 1)):
    """What is wrong when `llama(weights, config, tokens, first, remember)` reads a text in pieces; "" if nothing is."""
    want, right = _in_pieces(Parts().llama, weights, config, tokens, sizes)
    try:
        got, calls = _in_pieces(llama, weights, config, tokens, sizes)
    except Exception as error:
        return f"{_raised(error)} Is k turned before remember gets it, and visible causal_visible(T, k.shape[2])?"
    if not calls:
        return f"remember is never called. Once k is turned: {REMEMBER}."
    if any(k.shape[1] != config["num_key_value_heads"] for _, k, _ in calls):
        return "remember wants the K key heads, before repeat_kv: a cache of all H heads is H / K times as large."
    if [layer for layer, _, _ in calls] != [layer for layer, _, _ in right]:
        return "remember is called once in each block, with the block's number 0, 1, 2 and so on."
    for (_, k, v), (_, right_k, right_v) in zip(calls, right, strict=True):
        if not close(v, right_v):
            break  # later ones depend on what was read before
        if not close(k, right_k):
            return POSITIONS if k.shape[2] < sizes[0] else "remember wants the turned k of the new tokens."
    if close(got, want):
        return ""
    return f"the logits diverge. Is what remember returns used, {REMEMBER}? Has causal_visible(T, k.shape[2]) all keys?"


REMEMBER = "k, v = remember(layer, k, v)"
POSITIONS = "the positions of a later piece begin at first: torch.arange(first, first + T)."


@torch.no_grad()
def _in_pieces(llama, weights, config, tokens, sizes):
    """(Logits of all pieces side by side, [(layer, k, v)] that remember was called with)."""
    kept, calls, read, logits = {}, [], 0, []

    def remember(layer, k, v):
        calls.append((layer, k, v))
        old = kept.get(layer, (k[:, :, :0], v[:, :, :0]))
        kept[layer] = tuple(torch.cat(pair, dim=2) for pair in zip(old, (k, v), strict=True))
        return kept[layer]

    for size in sizes:
        logits.append(llama(weights, config, tokens[:, read : read + size], read, remember))
        read += size
    return torch.cat(logits, dim=1), calls


def _raised(error):
    return f"it raises {type(error).__name__}: {' '.join(str(error).split())[:120]}"


def rows_fault(llama, weights, config, tokens, lengths=(3, 7)):
    """What is wrong when rows that stand at different positions are read on together; "" if nothing is.

    Args:
        tokens: (1, T) int64, more than the largest of `lengths`; each row is read alone up to there, then both by one.
    """
    shape = (config["num_hidden_layers"], 2, len(lengths), config["num_key_value_heads"], 16, config["head_dim"])
    slots, first = torch.zeros(shape), torch.tensor(lengths)  # slot p of a row holds its token p

    def remember(rows, at):
        def write(layer, *new):
            for old, one in zip(slots[layer], new, strict=True):
                old[rows[:, None], :, at] = one.transpose(1, 2)
            return slots[layer][:, rows]

        return write

    wanted = [Parts().llama(weights, config, tokens[:, : length + 1])[:, -1:] for length in lengths]
    try:
        for row, length in enumerate(lengths):
            row, start = torch.tensor([row]), torch.tensor([0])
            llama(weights, config, tokens[:, :length], start, remember(row, torch.arange(length)[None]))
        got = llama(weights, config, tokens[0, first][:, None], first, remember(torch.arange(2), first[:, None]))
    except Exception as error:
        return f"{_raised(error)} With first (B,) positions are (B, T), cos and sin (B, 1, T, h/2), visible (B, T, S)."
    if close(got, torch.cat(wanted)):
        return ""
    if any(map(close, got.split(1), wanted)):
        return "one row is right, the other diverges. Has each row its own positions, in the angles and in the mask?"
    return "rows with their own first diverge. A key is visible if its slot's number is at most the query's position."
