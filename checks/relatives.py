"""The exercises of notebook 08, relatives: specification, cases, known mistakes with hints, check."""

import contextlib
import functools
import inspect
import json
import math
import re
from dataclasses import replace
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from beyond.families import Family, edits, load_checkpoint, register_family
from beyond.families.bugs import BUGS
from beyond.families.checkpoint import model_from_weights
from beyond.families.configs import NEUTRAL, SIZES, config_from_hugging_face, make_relative, our_weights
from beyond.families.reference import TOKENS, part_names, save_random
from beyond.families.registry import FAMILIES
from checks.base import BATCH, MEMORY, TYPE_HINTS, Case, Exercise, Harness, Wrong, draw, mutate, require_margin, strided
from checks.full_model import AT, NOT_A_NUMBER, ONE_NAME, RENAMED, ROUNDS, RTOL_MODULE, diverges, first_place
from checks.judge import CheckResult, check_of
from checks.shared import HOOK_LEFT, require_unchanged, snapshot
from helpers.formats.fit import misfits, raise_if
from helpers.interventions import outputs_of
from helpers.model import apply_rope, causal_visible


def attention_with_sink(scores, visible, sinks, v):
    """Mixed values (B, H, T, h) in v's dtype, from scores (B, H, T, S), visible (T, S) bool and v (B, H, S, h).

    A query's softmax runs over the scores it sees and its head's sink, sinks (H,); the sink's share has no value.
    """
    x = scores.float().masked_fill(~visible, -math.inf)
    sink = sinks.float()[:, None, None].expand(*x.shape[:-1], 1)  # a column behind the keys'
    shares = torch.cat((x, sink), -1).softmax(-1)
    return (shares[..., :-1] @ v.float()).to(v.dtype)


_sink = functools.partial(mutate, attention_with_sink)


def _written_out(top, of_sink):
    """The softmax written out: `top` is taken from the scores, `of_sink` is the sink's term in the sum."""
    terms = f"(x - {top}).exp()"
    return _sink(SOFTMAX, f"{terms} / ({terms}.sum(-1, True) + {of_sink})", KEYS, "shares")


def _sink_inputs(batch, n_heads, n_query, n_key, head_dim, seed=0, scale=1.0, dtype=torch.float32):
    scores, v = draw(batch, n_heads, n_query, n_key, seed=seed, scale=scale), draw(batch, n_heads, n_key, head_dim)
    sinks = draw(n_heads, seed=seed + 2) + 1.0
    return scores.to(dtype), causal_visible(n_query, n_key), sinks.to(dtype), (v + 0.5).to(dtype)


def _sink_cases():
    scores, causal, sinks, v = _sink_inputs(2, 3, 3, 4, 6, 40)
    *large, _, large_v = _sink_inputs(2, 2, 4, 4, 3, 60, scale=300.0)
    odd, empty = torch.tensor([[[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]], [[0] * 4, [1, 1, 0, 0], [0, 1, 1, 1]]]) > 0
    first, square, *rest = _sink_inputs(1, 4, 4, 4, 4, 30)
    by_hand = torch.zeros(1, 1, 1, 2), torch.ones(1, 2) > 0, torch.tensor([2.0]).log()
    values = torch.tensor([[[[4.0, 8.0, 0.0, 4.0], [8.0, 4.0, 4.0, 0.0]]]])
    # One share is nearly 1: of others float32 has three digits, if logsumexp is taken from such scores. That is right.
    far = torch.tensor([[[[-6e4, -60030.0, 300.0]]]]), torch.tensor([[1, 1, 0]]) > 0, torch.tensor([-60050.0])
    below = scores[:1] - torch.tensor([300.0, 0.0, 0.0])[:, None, None], causal, torch.tensor([0.0, 1.0, 2.0])
    return [
        Case("two keys with score 0, a sink of ln 2, h 4", (*by_hand, values)),
        Case("as many heads as queries, keys", (first, square.mT, *rest), "Is it one sink a head, and the mask given?"),
        Case("batch of 3, float64", _sink_inputs(3, 2, 4, 4, 3, 20, dtype=torch.float64), BATCH),
        Case("a mask that is not causal", (scores, odd, sinks, v), "Do you use the mask given?"),
        Case("a query that sees no key", (scores, empty, sinks, v), "Without a key, the sink takes all: 0, not nan."),
        Case("large scores, sinks far apart", (*large, torch.tensor([0.0, 300.0]), large_v),
             "Does exp overflow, or round a whole row to 0? softmax over each row's scores and its own sink does not."),
        Case("hidden score 300, others -60000", (*far, draw(1, 1, 3, 4)),
             "One query, whose hidden key has the largest score: does this key get a weight all the same, or set what "
             "is subtracted? Put -inf before the softmax, in a single row, too."),
        Case("all in float16", _sink_inputs(2, 3, 3, 4, 6, 40, dtype=torch.float16)),
        Case("scores near 300 and sinks in float32, v in bfloat16",
             (scores + 300.0, causal, sinks + 300.0, v.bfloat16()), HALF),
        Case("scores near -60000, v in float16", (8 * scores - 6e4, causal, sinks - 6e4, v.half()), HALF),
        Case("scores, visible and v not contiguous", (strided(scores), strided(causal), sinks, strided(v)), MEMORY),
        Case("gradients", (scores, empty, sinks, v), gradients=True, also="half, meta"),
        Case("gradients, the scores of a head 300 below its sink", (*below, v[:1]),
             "Does exp of the sink overflow where all scores are far below? Then gradients are nan.", gradients=True),
    ]  # fmt: skip


HALF = "Is the softmax taken in float32, whatever v's dtype? Near 300 bfloat16 knows only every second whole number."
KEYS, HIDE, SOFTMAX = "shares[..., :-1]", ".masked_fill(~visible, -math.inf)", "torch.cat((x, sink), -1).softmax(-1)"
LARGEST, ROOT = "x.amax(-1, keepdim=True)", "math.sqrt(v.shape[-1])"
check_attention_with_sink = check_of(Exercise(attention_with_sink, _sink_cases(), [
    ("Does the sink take a share?", _sink("None, None]", "None, None].sub(math.inf)", KEYS, f"{KEYS}.nan_to_num()")),
    ("Is the sink the learned score? Yours adds a score of 0.", _sink("sinks.float()", "0 * sinks.float()")),
    ("Is exp taken of the sink, too? Yours is added to the sum as it is.", _written_out(LARGEST, "sink")),
    ("Is as much taken from scores as from sink?", _written_out(f"{LARGEST}.nan_to_num(neginf=0.0)", "sink.exp()")),
    ("Does exp overflow? torch.softmax over scores and sink together does not.", _written_out("0.0", "sink.exp()")),
    ("Is a row without keys nan? Take the sink into the maximum.", _written_out(LARGEST, f"(sink - {LARGEST}).exp()")),
    ("Which column do you drop? Yours keeps the sink's and drops a key's.", _sink(KEYS, "shares[..., 1:]")),
    ("Is the sink one for each head? Yours is one for each query.", _sink("[:, None, None]", "[:, None]")),
    ("Do hidden scores become -inf before the softmax? exp(0) is 1.", _sink("-math.inf", "0.0")),
    ("Is the mask before the softmax? Behind it keys had a share.", _sink(HIDE, "", KEYS, f"{KEYS} * visible")),
    ("Is the sink a score as it is? Yours is divided by the root of h.", _sink("sinks.f", f"(sinks / {ROOT}).f")),
    ("Are the scores divided by the root of h again? They are already.", _sink("scores.f", f"(scores / {ROOT}).f")),
]))  # fmt: skip


SLIDE, FULL = "sliding_attention", "full_attention"
TWO_ROWS = torch.cat((TOKENS, TOKENS.flip(1)))
PIECES = (3, 1, 1, 5, 1, 1)  # tokens that are given together, with a cache
WINDOWS = {"sliding_window": 6, "use_sliding_window": True, "layer_types": [SLIDE, FULL, SLIDE], "head_dim": 8}
OTHER_SIZES = {  # so that a row with one size written down is refused
    "hidden_size": 64, "intermediate_size": 80, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 9,
}  # fmt: skip
SET_BY_TYPE = {"rms_norm_eps", "rope_parameters", "tie_word_embeddings"}  # what a class may set otherwise than LLaMA's
RTOL_LOGITS = 1e-4  # of the largest number: so far may a right port be off


@contextlib.contextmanager
def _silent():
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error(), logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class _Model:
    """A random model of transformers: its config.json, its weights, and what it makes of two texts of 28 tokens.

    Its settings, by the names of config.json, differ from small sizes and transformers' own values; the title says how.
    """

    @_silent()
    def __init__(self, model_type, title, settings, sizes=None, bites=True):
        from transformers import AutoConfig

        self.settings, usual = settings, AutoConfig.for_model(model_type)
        biting = {name: value for name, value in (WINDOWS | (sizes or {})).items() if hasattr(usual, name)}
        ones = {name for name, value in usual.to_dict().items() if value == 1 and type(value) is float}
        scales = [name for name in ones if re.search("multiplier|scal", name)]
        biting |= dict.fromkeys(scales, 1.5) | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        if not {SLIDE} <= set(getattr(usual, "layer_types", None) or ()) <= {SLIDE, FULL}:
            biting.pop("layer_types", None)
        if "original_max_position_embeddings" in (rope := getattr(usual, "rope_parameters", None) or {}):
            biting["rope_parameters"] = rope | {"original_max_position_embeddings": 8}  # fewer than the tokens
        if not bites:
            biting = {name: biting[name] for name in biting if re.search("head_dim|layer_types|_token_id", name)}
        with torch.random.fork_rng(devices=[]):
            theirs, folder = save_random(model_type, "initializer_range" not in settings, **biting | settings)
        theirs = theirs.float().cpu()
        self.content = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        self.weights = {name: weight.clone() for name, weight in stored.items()}  # the file will be another
        self.layers = [f"layers.{n}" for n in range(len(getattr(theirs.base_model, "layers", ())))]
        self.parts = _part_names(title, getattr(theirs.config, "layer_types", None) or [""] * len(self.layers))
        theirs.config.use_cache = False
        names = [f"{theirs.base_model_prefix}.{layer}" for layer in self.layers]
        self.wanted = (*outputs_of(theirs, [*names, ""], [TWO_ROWS]).values(),)
        self.wanted += (self.wanted[-1][:, : sum(PIECES)],)
        own = self.content.keys() - AutoConfig.for_model("llama").to_dict().keys()
        self.own_keys = self.unread = {name for name in own if "dropout" not in name}
        self.made = None, ()  # the config, and its numbers at once, of the whole config.json

    @_silent()
    def keys_with_the_usual_value(self):
        """Which keys config.json may lack, LLaMA's own aside: without one, transformers makes the same model of it."""
        from transformers import AutoConfig

        keys = []
        for name in sorted(self.content.keys() - (SIZES - SET_BY_TYPE)):
            rest = {other: value for other, value in self.content.items() if other != name}
            whole, same = (AutoConfig.for_model(**content).to_dict() for content in (self.content, rest))
            keys += [name] * (whole == same)
        return keys

    def opened(self, row, left_out=""):
        """What our LLaMA, with the row's edits, makes of the same config.json, without a key, weights and tokens."""
        content = {name: value for name, value in self.content.items() if name != left_out}
        with register_family(content["model_type"], row):
            config = config_from_hugging_face(content)
            if left_out and config == self.made[0]:
                return self.made[1]
            weights = our_weights(self.weights, config)
            faults = misfits(make_relative(config), weights)  # here an edit's error keeps its line
            raise_if(faults, "your row", "These:")
            model = model_from_weights(config, weights, source="the file")
        self.unread = self.own_keys - row.settings.keys() - row.keys.keys()
        numbers = outputs_of(model, [*self.layers, ""], [TWO_ROWS]).values()
        if left_out:
            return numbers
        steps = TWO_ROWS[:, : sum(PIECES)].split(PIECES, dim=1)
        self.made = config, (*numbers,)
        return *numbers, *outputs_of(model, [""], steps, model.new_cache(2)).values()


def _part_names(title, kinds):
    names = [f"the stream after layer {n}" + f" ({kind})" * bool(kind) for n, kind in enumerate(kinds)]
    names += ["the answer (logits)", "the answer (logits), in pieces with a cache,"]
    return [f"{title}: {name}".removeprefix(": ") for name in names]


def add_family():
    """The row of a family, a `beyond.families.Family`, whose edits make our LLaMA give transformers' logits.

    The family is Hunyuan (dense, v1). It norms queries and keys of each head behind the turn; biases are an option.
    """
    return Family((edits.biases, _norms_behind()), HUNYUAN, HUNYUAN_NAMES)


HUNYUAN = {"rms_norm_eps": 1e-5, "attention_bias": False}  # which config.json may lack
HUNYUAN_NAMES = {".query_layernorm.": ".q_norm.", ".key_layernorm.": ".k_norm."}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
HUNYUAN_MODELS = {  # what they show, and their settings beside small sizes
    "heads of 8 numbers": {},
    "heads of 16, a key head each": {"head_dim": 16, "num_key_value_heads": 4, "rope_parameters": LLAMA3},
    "biases": {"attention_bias": True, "head_dim": 12},
    "eps 0.1, tied": {"rms_norm_eps": 0.1, "tie_word_embeddings": True},
    "the family's own values": {"num_hidden_layers": 2, "initializer_range": 0.03},  # small: eps is felt
}  # fmt: skip


def _norms_behind(turned=lambda n, turn, q, k, v: (n.q_norm(turn(q)), n.k_norm(turn(k)), v)):
    """The edit, or a wrong one: turned(attention, a function that turns, q and k that do not yet, v)."""

    class Behind(edits.Edit):
        def rotated_qkv(self, x, cos, sin):
            return turned(self, lambda y: apply_rope(y, cos, sin), *self.heads(x))

    def edit(model, content):
        sizes = dict.fromkeys(("q_norm", "k_norm"), model.config.head_dim)
        for block in model.layers:
            edits.patch(Behind, block.attention, **edits.norms(model.config, **sizes))

    return edit


def _row_in(answer):
    if type(answer).__name__ != "Family":  # the grader imports the class twice
        hint = TYPE_HINTS["NoneType"] if answer is None else "Return Family((first_edit, second_edit), ...)."
        raise Wrong(f"a Family is expected, not {type(answer).__name__}.", hint)
    row = Family(**vars(answer))
    try:
        for edit in row.edits:
            inspect.signature(edit).bind(None, {})
    except TypeError as error:
        hint = "An edit is a function of two arguments, (model, content), not called. One needs its comma: (my_edit,)."
        raise Wrong(f"the row's edits are no tuple of edits: {error}.", hint) from None
    return row


def _opening(models, left_out=(), varied=()):
    """The harness of the exercise: the numbers of all models, opened with the row that the learner's function returns.

    Then the last model's logits, without each of these keys. Other values of the varied settings may also be refused.
    """

    def run(function):
        wanted = [one for model in models() for one in model.wanted]
        if function is add_family:  # transformers' own class says what is right
            return *wanted, *[models()[-1].wanted[-2]] * len(left_out)
        with patch.dict(FAMILIES):  # a row that is registered meanwhile would open a folder elsewhere
            row = _row_in(function())
        found = [one for model in models() for one in model.opened(row)]
        for name in [] if _are_off(found, wanted) else sorted({*varied, *(row.settings.keys() & OTHERWISE.keys())}):
            if name in varied or len({model.content.get(name) for model in models()}) == 1:  # no model tries it
                _require_followed(row, models()[0], name)
        return *found, *([*models()[-1].opened(row, key)][-1] for key in left_out)

    return run


def _are_off(found, wanted):
    return any(diverges(ours, theirs, RTOL_LOGITS).any() for ours, theirs in zip(found, wanted, strict=True))


OTHERWISE = {"hidden_act": "gelu"} | {name: not usual for name, usual in NEUTRAL.items() if type(usual) is bool}


def _require_followed(row, model, name):
    """Wrong if a model with another value of the setting opens, with other logits than its own."""
    usual = model.content.get(name)
    if name in OTHERWISE:
        value = OTHERWISE[name] if usual != OTHERWISE[name] else NEUTRAL[name]
    elif isinstance(usual, bool):
        value = not usual
    else:
        value = 0.1 if name.endswith(("eps", "epsilon")) else usual - 1 if usual > 2 else usual + 1
    for derived in ([], ["layer_types"]) if "layer_types" in model.content else ([],):  # which may follow from it
        off = False
        with contextlib.suppress(Exception):  # transformers or our LLaMA refuses the value
            other = _Model(model.content["model_type"], "", model.settings | {name: value} | dict.fromkeys(derived))
            other.content = {key: said for key, said in other.content.items() if key not in derived}
            off = _are_off(other.opened(row), other.wanted)
        said = f"{name} {value!r}" + " and no layer_types" * bool(derived)
        if off and name in row.settings and not derived:
            hint = f"No edit reads {name}: such a folder would be opened as if it said {usual!r}. Leave it out."
            raise Wrong(f"`settings` names {name}, but with {said} the logits are not transformers'.", hint)
        if off:
            hint = f"`settings` can name {name} for an edit that reads it, or `keys` says LLaMA's name for it."
            raise Wrong(f"with {said} in config.json the logits are not transformers'.", hint)


def _row(*made, weight_names=HUNYUAN_NAMES, settings=HUNYUAN):
    return lambda: Family((edits.biases, *made), settings, weight_names)


RIGHT = _norms_behind()
WRONG_NORMS = [  # hint, row
    ("Are q and k normed before they turn, or behind? Read Attention.forward again.", _row(edits.qk_norm)),
    *[(hint, _row(_norms_behind(turned))) for hint, turned in (
        ("Do q and k still turn? self.heads does not turn.", lambda n, turn, q, k, v: (n.q_norm(q), n.k_norm(k), v)),
        ("Are q and k normed once? Yours are before the turn, too.",
         lambda n, turn, q, k, v: (n.q_norm(turn(n.q_norm(q))), n.k_norm(turn(n.k_norm(k))), v)),
        ("Has k gains of its own? Yours are q's.", lambda n, turn, q, k, v: (n.q_norm(turn(q)), n.q_norm(turn(k)), v)),
        *[("Are both normed, q and k, and is v left as it is?", one) for one in (
            lambda n, turn, q, k, v: (n.q_norm(turn(q)), turn(k), v),
            lambda n, turn, q, k, v: (turn(q), n.k_norm(turn(k)), v),
            lambda n, turn, q, k, v: (n.q_norm(turn(q)), n.k_norm(turn(k)), n.k_norm(v)),
        )],
        ("Are the norms used? What nobody calls changes nothing.", lambda n, turn, q, k, v: (turn(q), turn(k), v)),
    )],
]  # fmt: skip
REFUSALS = [  # words of an error, what they mean for a row, and a row
    (r"^RecursionError", "self.rotated_qkv is your own, and calls itself. super().rotated_qkv is the one behind it.",
     _row(_norms_behind(lambda n, *_: n.rotated_qkv(torch.zeros(1, 28, 32), 0, 0)))),
    (r"not enough values to unpack", "rotated_qkv returns three: q, k and v.",
     _row(_norms_behind(lambda n, turn, q, k, v: (n.q_norm(turn(q)), n.k_norm(turn(k)))))),
    (r"no attribute '__name__'", "The class comes first, and is not called: edits.patch(YourClass, block.attention).",
     _row(lambda model, content: edits.patch(edits.Edit(), model))),
    (r"__init__\(\) takes|required positional arguments?: 'model'",
     "The row takes the function that patches, (model, content): not the class, and not called.", _row(edits.Edit)),
    (r"^KeyError: '(head_dim|\w+_size|rms_norm_eps|num_\w+)'", "Sizes stand in model.config: head_dim, dim, norm_eps.",
     _row(lambda model, content: content["head_dim"])),
    (r"^KeyError", "Has config.json this key? If not, the row's `settings` can give it.", _row(RIGHT, edits.no_rope)),
    (r"is no part of", "Does the row's `settings` name every key of config.json that an edit reads, with a default?",
     lambda: Family((RIGHT,), {"rms_norm_eps": 1e-5}, HUNYUAN_NAMES)),
    (r"missing: \S*feed_forward\S*\.bias",
     "Are the biases in attention alone? This edit adds them in the feed-forward, too.",
     lambda: Family((edits.biases_everywhere, RIGHT), HUNYUAN, HUNYUAN_NAMES)),
    (r"missing: \S*_proj\.bias", "Does `settings` name attention_bias, with its default? Else biases are always added.",
     _row(RIGHT, settings={"rms_norm_eps": 1e-5})),
    (r"left over: \S*(q_norm|k_norm|query_layernorm|key_layernorm)",
     "The norms of queries and keys are left over: does your edit give each layer's attention a q_norm and a k_norm of "
     "its own, and `weight_names` the file's names for them?", _row(RIGHT, weight_names={})),
    (r"shape: \S*[qk]_norm", "Does one norm serve one head, or all heads at once?", _row(edits.qk_norm_whole)),
    (r"left over: \S*_proj\.bias", "The file may have biases on q, k, v and o: which edit of the course adds them?",
     lambda: Family((RIGHT,), HUNYUAN, HUNYUAN_NAMES)),
    (r"missing: |left over: ",
     "Which weights has the file, and which your model? An edit adds (an nn.Parameter), `weight_names` renames.",
     _row(RIGHT, edits.layer_norm)),
]  # fmt: skip


@functools.cache
def _hunyuan_models():
    return tuple(_Model("hunyuan_v1_dense", title, settings) for title, settings in HUNYUAN_MODELS.items())


PARTS = [name for title, settings in HUNYUAN_MODELS.items()
         for name in _part_names(title, [""] * settings.get("num_hidden_layers", 3))]  # fmt: skip
WITHOUT = "the answer (logits), if config.json leaves {} out and `settings` counts,"
PARTS += map(WITHOUT.format, HUNYUAN)
ADD_FAMILY = Exercise(
    add_family, [Case("Hunyuan", ())], [*WRONG_NORMS, *((hint, program) for _, hint, program in REFUSALS)],
    tolerance=5.0,  # differences up to RTOL_LOGITS of the largest number pass
    hints={words: hint for words, hint, _ in REFUSALS}, harness=Harness(_opening(_hunyuan_models, HUNYUAN), PARTS),
    allow=("beyond.families.", "helpers.model."),  # an edit changes their parts
)  # fmt: skip


UNPACKED = "The file packs several matrices into one: `unpack_weights` cuts them, for example edits.split_merged."
PACKED = {r"left over: .*(query_key_value|qkv|gate_up)": UNPACKED}


def check_add_family(function, model_type="hunyuan_v1_dense", seconds=10.0, **settings):
    """Check the row that your `add_family()` returns, against transformers' own class of the family.

    Args:
        function: () -> a `beyond.families.Family`, whose edits take (model, content).
        model_type: any family of transformers; known mistakes are only those of Hunyuan.
        seconds: its time on the processor.
        settings: by the names of config.json, what the random model has beside small sizes.
    """
    from transformers import CONFIG_MAPPING, __version__

    if model_type not in CONFIG_MAPPING or model_type == "llama":
        message = f"transformers {__version__} has no relative {model_type!r} of LLaMA: choose another family."
        return CheckResult("add_family", "failed", message)
    if model_type == "hunyuan_v1_dense" and not settings:
        return check_of(ADD_FAMILY)(function, seconds)
    title = "".join(f"{name} {value}, " for name, value in settings.items())
    try:
        models = [_Model(model_type, title.removesuffix(", "), settings)]
        models.append(_Model(model_type, f"{title}other sizes", settings, OTHER_SIZES))
        keys, own = [], []
        if model_type not in FAMILIES:  # a row of the learner's own, for whatever config.json says, or leaves out
            said = models[0].content
            if said.get("attention_bias") is False:
                models.append(_Model(model_type, f"{title}attention_bias True", settings | {"attention_bias": True}))
            if said.get("sliding_window") and said.get("layer_types"):
                full = settings | {"sliding_window": None, "layer_types": [FULL] * len(said["layer_types"])}
                with contextlib.suppress(Exception):  # not every type can be without
                    models.append(_Model(model_type, f"{title}sliding_window None", full))
            small = {"initializer_range": 0.03} | settings  # so that eps is felt
            models.append(_Model(model_type, f"{title}the family's own values", small, bites=False))
            keys = models[-1].keys_with_the_usual_value()
            own = [key for key in models[0].own_keys - SIZES if type(said[key]) in (bool, int, float)]
    except Exception as error:  # whatever transformers raises
        words = f"{type(error).__name__}: {' '.join(str(error).split()).partition('. ')[0][:120]}"
        message = f"This check makes no small random {model_type!r} by the settings that it tries ({words})."
        return CheckResult("add_family", "failed", message)
    parts = [name for model in models for name in model.parts] + [*map(WITHOUT.format, keys)]
    harness = Harness(_opening(lambda: models, keys, own), parts)
    other = replace(ADD_FAMILY, cases=[Case(model_type, ())], mistakes=[], harness=harness)
    other = replace(other, hints=PACKED | other.hints)
    result = check_of(other)(function, seconds)
    if result.status == "failed" and not result.hint and models[0].unread:
        keys = ", ".join(sorted(models[0].unread))
        hint = f"LLaMA's config.json lacks {keys}: which of them change the model? `settings` says what counts without "
        hint += "a key, `keys` LLaMA's name for one, `fixed` a `rope_default`. Which pairs turn, no file says."
        result = replace(result, hint=hint)
    return result


check_add_family.exercise = ADD_FAMILY


def where_they_part(ours, theirs, tokens, names=None):
    """(part, position, cached) of the first part of ours that diverges from transformers' model, or None if none does.

    First all tokens at once: cached is False. Only if the logits agree, to RTOL_LOGITS of the largest, ours reads them
    one by one with a cache, and its outputs, put one behind the other, are compared with the same outputs of theirs:
    cached is True. Of a part that returns a tuple the first counts. Parts come in the order in which they end. A part
    diverges if a number is farther from theirs than RTOL_MODULE times the largest number of their part; the position
    is the smallest at which it does, in any row. If the logits diverge and no part does, it is "logits", at the first
    position where they are that far off. Where the logits agree, a part that diverges is only cut elsewhere: Granite's
    scales are inside ours and behind theirs.

    Args:
        ours, theirs: a Relative, a model of transformers; without names any two functions, tokens to logits, (B, T, V).
        tokens: (B, T) int64.
        names: {part of ours: part of theirs}, as in `named_modules()`, in any order. None: the logits alone, at once.
    """
    if names is None:
        made, wanted = (torch.as_tensor(reads(tokens)).detach() for reads in (ours, theirs))
        off = diverges(made, wanted, RTOL_LOGITS).nonzero()
        return ("logits", off[:, 1].min().item(), False) if len(off) else None
    names = names | {"": ""}  # the model itself: it ends last
    wanted = outputs_of(theirs, names.values(), (tokens,))
    for cached in (False, True):
        cache = (ours.new_cache(len(tokens)),) if cached else ()
        made = outputs_of(ours, names, tokens.split(1, dim=1) if cached else (tokens,), *cache)
        if not diverges(made[""], wanted[""], RTOL_LOGITS).any():
            continue
        name, position = first_place(made, wanted, names)
        return name or "logits", position, cached
    return None


def _read_wrong(cached, places, rows=3):
    """A change: a part's largest number for a token is off by a multiple of RTOL_MODULE, {part: {place: multiple}}.

    Place p of row 0 and 27 - p of row 1 are one token. With `cached` it is wrong only alone, with rows=1 only in row 0.
    """

    def change(model):
        made, embed, now = outputs_of(model, places, [TWO_ROWS]), model.tok_embeddings, []
        for name, multiples in places.items():
            part, off = model.get_submodule(name), torch.zeros(64)
            off[TOKENS[0, [*multiples]]] = RTOL_MODULE * made[name].abs().max() * torch.tensor([*multiples.values()])

            def forward(*given, right=part.forward, off=off, **named):
                made, (tokens,) = right(*given, **named), now
                wrong = off[tokens].where((torch.arange(len(tokens)) < rows)[:, None], 0.0)[..., None]
                largest = made.abs() == made.abs().amax(-1, keepdim=True)
                return made + wrong.where(largest, 0.0) if tokens.shape[1] == 1 or not cached else made

            part.forward = forward
        embed.forward = lambda tokens, right=embed.forward: now.__setitem__(slice(1), [tokens]) or right(tokens)

    return change


def _almost_right(model):  # of the largest logit; one row has smaller ones
    head, right = model.lm_head, model(TWO_ROWS).double()
    off = 0.95 * RTOL_LOGITS * right.abs().max()
    head.forward = lambda x, right=head.forward: right(x) + off
    _require_rows_differ("almost right", model(TWO_ROWS).double() - right, right, RTOL_LOGITS)


def _require_rows_differ(what, gap, want, rtol):
    """That a gap is within rtol of the largest number of both rows, and beyond it for one row's own largest."""
    gaps, largest = (one.detach().double().abs().flatten(1).amax(1) for one in (gap, want))
    require_margin(what, [gaps.max() / (rtol * largest.max())], [(gaps / (rtol * largest)).max()])


def _off_behind_the_head(model):  # and within the room, felt nowhere: one row has smaller numbers
    head, part, norm = model.lm_head, model.layers[2].feed_forward, model.layers[2].ffn_out_norm
    (made,) = outputs_of(model, ["layers.2.feed_forward"], [TWO_ROWS]).values()
    off = 0.85 * RTOL_MODULE * made.abs().max()
    _require_rows_differ("no cap", off.expand_as(made), made, RTOL_MODULE)
    part.forward = lambda x, right=part.forward: right(x) + off
    norm.forward = lambda x, right=norm.forward: right(x - off)
    head.forward = lambda x: F.linear(x, head.weight)  # as theirs, with the cap behind it
    model.forward = lambda *given, right=model.forward, **named: 10.0 * (right(*given, **named) / 10.0).tanh()
    _read_wrong(False, FAINT_AND_CLEAR)(model)


FAINT_AND_CLEAR = {"": {24: 3.0, 18: 10.5, 12: 11.0}}  # the logits: in row 1 at 3, by less than 1e-4, at 9 and at 15
CACHE = "Is cached False where all tokens at once diverge? Else let ours read them one by one, with one cache: are a "
CACHE += "part's outputs put one behind the other, the logits too?"
ENDS = "Which part is the first by more than 1e-5, in the order in which parts end, not by position? A layer ends "
ENDS += "after its attention and feed_forward."
CAPS = {"head_dim": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}  # felt, and nothing saturates
PORTS = {  # what is wrong: family, settings, change
    "nothing": ("gpt_oss", {}, lambda model: None),
    "nothing; Gemma's caps are cut elsewhere": ("gemma2", CAPS, _almost_right),
    "two tokens' logits": ("gemma2", CAPS, _off_behind_the_head),
    "two parts, with a cache": ("qwen2", {}, _read_wrong(True, {  # the first ends first, the second is off earlier
        "layers.0.feed_forward": {20: 3.0}, "layers.2.feed_forward": {22: 1000.0}})),
    "one logit is inf, with a cache": ("qwen2", {}, _read_wrong(True, {"": FAINT_AND_CLEAR[""] | {12: math.inf}})),
    "a row of the head": ("qwen2", {}, lambda model: model.lm_head.weight.data[3].neg_()),
    "a row of the embedding": ("qwen2", {}, lambda model:  # by less than 1e-4
        (weight := model.tok_embeddings.weight.data)[TOKENS[0, -4]].add_(1.5 * RTOL_MODULE * weight.abs().max())),
    "nan in the embedding": ("qwen2", {}, lambda model:  # in row 0 at 3, in row 1 at 24
        model.tok_embeddings.weight.data[TOKENS[0, 3], 5].fill_(math.nan)),
    "two tokens of row 0": ("qwen2", {}, _read_wrong(False, {  # of our largest number, 1e-5 is more than the first
        "tok_embeddings": {5: 1.3, 9: 1e7}}, rows=1)),
    "a wrong gain behind a branch": ("gemma2", CAPS, lambda model:  # the branch is right, the block is not
        model.layers[1].ffn_out_norm.weight.data[3].mul_(1.1)),
}  # fmt: skip


@functools.cache
@_silent()
def ports():
    """(what is wrong, our model, transformers', where they diverge) of the PORTS, and of those with a bug of BUGS."""
    made, lesson = [], {bug: (family, {}, change) for bug, (family, change) in BUGS.items()}
    with torch.device("cpu"):
        for wrong, (family, settings, change) in (PORTS | lesson).items():
            theirs, folder = save_random(family, **settings)
            ours = load_checkpoint(folder)
            for one in (theirs.get_input_embeddings(), ours.tok_embeddings):
                one.weight.data[TOKENS[0, 3], 5] = 0.0  # as nan_to_num makes it
            for norm in (theirs.model.norm, ours.final_norm) if family == "gemma2" else ():
                norm.weight.data.neg_().sub_(2.0)  # whose gains are 1 more: the largest logit is below 0
            change(ours)
            where = where_they_part(ours, theirs.cpu(), *_given(wrong, ours))
            ours.train(family == "qwen2" and wrong in PORTS), theirs.train(ours.training)
            ours.lm_head.train(not ours.training).requires_grad_(False)
            made.append((wrong, ours, theirs, where))
    return made


def _given(wrong, ours):
    """The texts of a port, one, two or three, and its {part of ours: part of theirs}, once without branches."""
    rows, names = [0, 0, 1] if "parts" in wrong else [0, 1], part_names(len(ours.layers))
    whole = {name: theirs for name, theirs in names.items() if name.count(".") < 2}
    return TWO_ROWS[[0] if "head" in wrong else rows], whole if "clamp" in wrong else names


def _finds_partings(function, *_):
    """The function as a tool that is tested: on ports that diverge at a known place, or nowhere."""
    for wrong, ours, theirs, where in ports():
        models = [(one, snapshot(one)) for one in (ours, theirs)]
        parts = [(part, {**vars(part)}) for part in (*ours.modules(), *theirs.modules(), theirs.config)]
        given = _given(wrong, ours)
        try:
            with patch.dict(nn.modules.module._global_forward_hooks):
                answer = function(ours, theirs, *given)
                if nn.modules.module._global_forward_hooks:
                    raise Wrong(*HOOK_LEFT)
            for one, before in models:
                require_unchanged(one, before)
            if any(vars(part) != state for part, state in parts):
                raise Wrong("a module or a config has another attribute, or forward, than before.", HOOK_LEFT[1])
            if not torch.equal(given[0], _given(wrong, ours)[0]) or given[1] != _given(wrong, ours)[1]:
                raise Wrong("tokens or names are changed in place.", "Work on copies: names | {...} makes one.")
        finally:  # the next answer is tried on the same models
            for part, state in parts:
                getattr(part, "_forward_hooks", {}).clear()
                vars(part).clear()
                vars(part).update(state)
            for one, (_, _, tensors) in models:
                for name, tensor in [*one.named_parameters(), *one.named_buffers()]:
                    tensor.data.copy_(tensors[name])
        if answer is not None and (not isinstance(answer, tuple) or [*map(type, answer)] != [str, int, bool]):
            said = f"a name, an int and a bool, or None, is expected, not {str(answer)[:60]}."
            hint = "Return (part, position, cached), or None: .item() makes an int of a tensor, cached is a bool."
            raise Wrong(said, hint)
        if answer != where:
            raise Wrong(f"port “{wrong}”: yours is {answer}, expected {where}.", _why(wrong, answer, where))
    return len(ports())


def _why(wrong, answer, where):
    if "elsewhere" in wrong:
        return "The models' logits agree here to 1e-4 of the largest, so a part that diverges is only cut elsewhere."
    ours = part_names(3).keys() - ({"lm_head"} if where and where[0] == "logits" else ())
    if answer and where and answer[1:] == where[1:] and answer[0] not in ours:
        return 'The name is that of our part; it is "logits" where no part diverges.'
    if answer and not answer[2] and (where or ("logits",))[0] == "logits" != answer[0]:
        return f"{ROUNDS} Of a tensor all counts: `output[0]` is for tuples alone, of a tensor it is a row."
    if "inf" in wrong and answer in (None, ("logits", 12, True)):  # where it is inf
        return "Whose largest number sets the limit? Theirs: an inf of ours would hide everything."
    if "nan" in wrong and not (answer and answer[0] == where[0] and answer[1] > where[1]):
        return f"A nan counts as different. {NOT_A_NUMBER[0].upper()}{NOT_A_NUMBER[1:]}"
    if answer and where and answer[0] == where[0] and answer[1] == 9:
        return ROUNDS  # where it is off by more than 1e-4
    if "row 0" in wrong:
        return AT
    if answer is None or where is None or answer[2] != where[2]:
        return CACHE if (answer and where) or (where or answer)[2] else ROUNDS
    return AT if answer[0] == where[0] else ROUNDS if where[0] == "tok_embeddings" else ENDS


check_where_they_part = check_of(Exercise(
    where_they_part, [Case(f"{len(PORTS) + len(BUGS)} ports", ("a port", "its reference", "two texts", "names"))], [],
    allow=("Relative", "KVCache"), harness=Harness(_finds_partings), hints={
        "got tuple|'tuple' object": "A part may return a tuple: the first of it counts.",
        "OutputWithPast": "transformers' model returns more than logits: take its .logits.",
        "must match except": ONE_NAME,
        "non-singleton dimension": "A part's T outputs are (B, 1, …) each: dim=1 puts them one behind the other.",
        "^KeyError": RENAMED,
    },
), seconds=30.0)  # fmt: skip
