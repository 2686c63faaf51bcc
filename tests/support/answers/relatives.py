"""Right and wrong answers to the exercises of notebook 08, relatives."""

import torch

from beyond.families import Family, edits
from beyond.families.reference import part_names
from checks.base import mutate
from helpers.model import GroupedQueryAttention
from tests.support.answers.register import RIGHT, WRONG, right

NORMS = "query_layernorm", "key_layernorm"


class _Behind(edits.Edit):
    def attend(self, q, k, v, visible):
        return super().attend(self.query_layernorm(q), self.key_layernorm(k), v, visible)


def _behind(model, content):
    for block in model.layers:
        norms = edits.norms(model.config, **dict.fromkeys(NORMS, model.config.head_dim))
        edits.patch(_Behind, block.attention, **norms)


@right
def add_family__in_attend():  # the cache holds keys that are not normed yet
    return Family([_behind, edits.biases], {"rms_norm_eps": 1e-5, "attention_bias": False})


def _hunyuan(*made, **settings):
    return lambda: Family(made, {"rms_norm_eps": 1e-5, "attention_bias": False} | settings)


class _InRotated(edits.Edit):
    def rotated_qkv(self, x, cos, sin):
        q, k, v = super().rotated_qkv(x, cos, sin)
        return self.normed(q, self.query_layernorm), self.normed(k, self.key_layernorm), v

    def normed(self, y, norm):
        return norm(y)


def _spoiled(**methods):
    """The edit with a bug: other methods of _InRotated."""

    def edit(model, content):
        for attention in (block.attention for block in model.layers):
            norms = edits.norms(model.config, **dict.fromkeys(NORMS, model.config.head_dim))
            edits.patch(type("Spoiled", (_InRotated,), methods), attention, **norms)

    return _hunyuan(edit, edits.biases)


WRONG["add_family"] |= {
    "first_row_alone": ("the stream after layer 0", _spoiled(
        normed=lambda self, y, norm: torch.cat((norm(y[:1]), y[1:])))),
    "cached_keys_normed_again": ("in pieces with a cache", _spoiled(attend=lambda self, q, k, v, visible:
        GroupedQueryAttention.attend(
            self, q, self.key_layernorm(k) if 1 < q.shape[2] < k.shape[2] else k, v, visible))),
    "eps_of_content": ("stand in model.config", _hunyuan(lambda model, content: content["rms_norm_eps"])),
    "class_left_changed": ("the course's Edit.seen is another one", lambda: (
        setattr(edits.Edit, "seen", len), add_family__in_attend())[1]),
    "no_tuple": ("needs its comma", lambda: Family(_behind, {})),
    "weights_named": ("These: left over: layers.0", _hunyuan(lambda model, content: None)),
    "called": ("the function that patches", lambda: Family((edits.biases(),), {})),
    "of_one_argument": ("of two arguments", _hunyuan(lambda model: None)),
    "printed": ("printing shows a value", lambda: print(end="")),
    "window_0": ("window=0 must be a whole number >= 1", _hunyuan(
        _behind, edits.biases, lambda model, content: setattr(model, "windows", [6, 0, 6]))),
    "another_eps": ("leaves rms_norm_eps out", _hunyuan(_behind, edits.biases, rms_norm_eps=1e-6)),
    "key_that_no_edit_reads": ("No edit reads hidden_act", _hunyuan(_behind, edits.biases, hidden_act="silu")),
    "biases": ("with its default", _hunyuan(_behind, edits.biases, attention_bias=True)),
    "nan_without_a_key": ("leaves attention_bias out", _hunyuan(
        _behind, edits.biases, lambda model, content: content["attention_bias"] is None
        and model.layer_inv_freq.fill_(torch.nan), attention_bias=None)),
}  # fmt: skip


@right
def attention_with_sink__written_out(scores, visible, sinks, v):
    scores, sink = torch.where(visible, scores.float(), -torch.inf), sinks.float()[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    shares = (scores - top).exp()
    shares = shares / (shares.sum(-1, keepdim=True) + (sink - top).exp())
    return torch.einsum("bhts,bhsd->bhtd", shares, v.float()).to(v.dtype)


@right
def attention_with_sink__minus_logsumexp(scores, visible, sinks, v):
    scores = scores.float().masked_fill(~visible, -torch.inf)
    whole = torch.logaddexp(scores.logsumexp(-1, keepdim=True), sinks.float()[:, None, None])
    return ((scores - whole).exp() @ v.float()).to(v.dtype)


WRONG["attention_with_sink"] |= {
    "largest_of_the_scores": ("Does exp of the sink overflow", mutate(
        attention_with_sink__written_out, "torch.maximum(", "torch.where(visible.any(-1, keepdim=True), ")),
    "one_query_sees_all": ("does this key get a weight all the same", lambda scores, visible, *rest:
        attention_with_sink__written_out(scores, visible | (scores.shape[2] == 1), *rest)),
    "float32_out_of_float64": ("(torch.float64) converts", lambda *given: (
        y.float() if (y := attention_with_sink__written_out(*given)).dtype == torch.float64 else y)),
    "minus_1e9_in_float16": ("Case all in float16", lambda scores, visible, sinks, v:
        attention_with_sink__written_out(scores.masked_fill(~visible, -1e9), visible, sinks, v)),
    "no_sinks_in_float16": ("Case all in float16", lambda scores, visible, sinks, v:
        attention_with_sink__written_out(scores, visible, sinks * (sinks.dtype != torch.float16), v)),
    "no_gradient_in_half": ("no gradient reaches … in torch.float16", lambda *given: (
        y if (y := attention_with_sink__written_out(*given)).element_size() > 2 else y.detach())),
    "triangle_where_square": ("the mask given", lambda scores, visible, *rest: attention_with_sink__written_out(
        scores, torch.ones_like(visible).tril() if len(visible) == len(visible.T) else visible, *rest)),
    "second_text_without_gradient": ("gradient", lambda scores, visible, sinks, v: (
        attention_with_sink__written_out(scores, visible, sinks, torch.cat((v[:1], v[1:].detach()))))),
    "sums_on_the_cpu": ("device=x.device", mutate(
        attention_with_sink__minus_logsumexp, "(scores - whole)", "(scores - whole + torch.zeros(scores.shape[-1]))")),
    "visible_as_a_view": ("not contiguous in memory", lambda scores, visible, *rest:
        attention_with_sink__written_out(scores, visible.view(-1).view(visible.shape), *rest)),
    "softmax_in_the_dtype_of_v": ("softmax taken in float32", lambda scores, visible, sinks, v: (
        torch.cat((scores.float().masked_fill(~visible, -torch.inf), sinks[:, None, None].expand(*scores.shape[:3], 1)),
                  -1).to(v.dtype).softmax(-1)[..., :-1].float() @ v.float()).to(v.dtype)),
    "sinks_in_the_dtype_of_v": ("softmax taken in float32", lambda scores, visible, sinks, v:
        attention_with_sink__written_out(scores, visible, sinks.to(v.dtype), v)),
    "scores_in_the_dtype_of_v": ("softmax taken in float32", lambda scores, visible, sinks, v:
        attention_with_sink__written_out(scores.to(v.dtype), visible, sinks, v)),
    **{f"largest_of_all_{which}": ("round a whole row to 0", mutate(attention_with_sink__written_out, *change)) for
       which, *change in (("sinks", "True), sink)", "True), sink.max())"), ("texts", "amax(-1", "amax((0, -1)"))},
}  # fmt: skip


def where_they_part__hooks(ours, theirs, tokens, names):
    @torch.no_grad()
    def run(model, pieces, names, *cache):
        made, hooks, logits = {}, [], []
        for name in names:
            keep = lambda _, given, y, name=name: made.setdefault(name, []).append(y[0] if type(y) is tuple else y)  # noqa: E731
            hooks.append(model.get_submodule(name).register_forward_hook(keep))
        for piece in pieces:
            y = model(piece, **({"cache": cache[0]} if cache else {}))
            logits.append(getattr(y, "logits", y))
        [hook.remove() for hook in hooks]
        return {name: torch.cat(made[name], dim=1) for name in made} | {"logits": torch.cat(logits, dim=1)}

    wanted = run(theirs, [tokens], names.values())
    for cached in (False, True):
        cache = [ours.new_cache(len(tokens))] * cached
        made = run(ours, tokens.split(1, dim=1) if cached else [tokens], names, *cache)
        if (made["logits"] - wanted["logits"]).abs().max() <= 1e-4 * wanted["logits"].abs().max():
            continue
        for name, y in made.items():
            want = wanted[names.get(name, name)]
            off = ~((y - want).abs() <= 1e-5 * want.abs().max())
            if off.any():
                at = off.flatten(2).any(2).any(0).nonzero()[0].item()
                return name, at, cached
    return None


RIGHT["where_they_part"] = {"hooks": where_they_part__hooks}
LOGITS = '(made["logits"] - wanted["logits"]).abs().max() <= 1e-4 * wanted["logits"].abs().max()'
FINE, AT = "(y - want).abs() <= 1e-5 * want.abs().max()", "off.flatten(2).any(2).any(0).nonzero()[0].item()"
for words, bug, *changes in (
    ("round differently", "strict", "1e-5 *", "5e-6 *"),
    ("round differently", "logits_by_allclose", LOGITS,
     f"({LOGITS.replace('.max() <=', ' <= 1e-4 * wanted[name].abs() +').replace('name', repr('logits'))}).all()"),
    ("round differently", "sizes_alone", "(y - want)", "(y.abs() - want.abs())"),
    ("only cut elsewhere", "no_logits", "<= 1e-4", "< 0"),
    ("that of our part", "other_name", "return name, at", "return names.get(name, 'lm_head'), at"),
    ("that of our part", "lm_head", "return name, at", "return name.replace('logits', 'lm_head'), at"),
    ("order in which parts end", "blocks_left_out", "if off.any():",
     "if off.any() and name.count('.') != 1:"),
    ("weights are changed", "weights_changed", "wanted = run(", "ours.lm_head.weight.data[0] *= 1.01; wanted = run("),
    ("in another mode", "in_train_mode", "wanted = run(", "theirs.train(); wanted = run("),
    ("of a tensor it is a row", "first_row", "y[0] if type(y) is tuple else y)", "y[0])"),
    ("the first of it counts", "tuple", "y[0] if type(y) is tuple else y)", "y)"),
    ("keeps its own by name=name", "one_name", "y, name=name: made", "y: made"),
    ("take its .logits", "no_logits_of_theirs", 'getattr(y, "logits", y)', "y"),
    ("dim=1 puts them", "first_dimension", "torch.cat(made[name], dim=1)", "torch.cat(made[name])"),
    ("the module that names gives", "same_names", "wanted[names.get(name, name)]", "wanted[name]"),
    ("nan counts as different", "nan_passes", f"~({FINE})", FINE.replace("<=", ">")),
    ("an inf of ours", "room_of_ours", "1e-5 * want", "1e-5 * y"),
    ("an inf of ours", "room_of_ours_without_nan", "1e-5 * want", "1e-5 * y.nan_to_num()"),
    ("round differently", "room_per_row", "want.abs().max()", "want.abs().flatten(1).amax(1)[:, None, None]"),
    ("only cut elsewhere", "logits_per_row", LOGITS, f"({LOGITS.replace('.max()', '.amax((1, 2))')}).all()"),
    ("order in which parts end", "as_listed", "for name in made}", "for name in names}"),
    ("Which position of this module", "last_row", ".any(2).any(0)", ".any(2)[-1]"),
    ("in any row", "parts_of_the_last_row", "off.any()", "off[-1].any()"),
    ("Which position of this module", "worst", AT, "(y - want).abs().flatten(2).amax((0, 2)).argmax().item()"),
    ("let ours read them", "at_once_alone", "(False, True)", "(False,)"),
    ("cached False where", "one_by_one_alone", "(False, True)", "(True,)"),
    ("put one behind the other", "last_step", "torch.cat(made[name], dim=1)", "made[name][-1]",
        "torch.cat(logits, dim=1)", "logits[-1]"),
    ("a hook is still", "hooks_left", "[hook.remove() for hook in hooks]", "pass"),
    ("or None, is expected, not False", "false", "return None", "return False"),
    (".item() makes an int", "tensor", ".nonzero()[0].item()", ".nonzero()[0, 0]"),
    ("the logits too", "last_logits", LOGITS, LOGITS.replace(").abs", ")[:, -1 if cached else 0 :].abs")),
    ("the logits too", "false_for_logits", "return name, at, cached", "return name, at, cached and name != 'logits'"),
    ("Which position of this module", "logits_at_0", "return name, at", "return name, at * (name != 'logits')"),
    ("round differently", "logits_by_1e_4", "1e-5 *", "(1e-4 if name == 'logits' else 1e-5) *"),
    ("by more than 1e-5", "cached_parts_by_1e_4", "1e-5 *", "(1e-4 if cached and name != 'logits' else 1e-5) *"),
    ("Which position of this module", "cached_row_0", ".any(2).any(0)", ".any(2)[: 1 if cached else 2].any(0)"),
    ("not by position", "earliest", "wanted = run(", "found = []; wanted = run(",
        "return name, at, cached", "found.append((name, at, cached))",
        "return None", "return min(found, key=lambda one: one[:0:-1], default=None)"),
    ("the cache 2: make a cache to fit", "cache_of_two", "len(tokens)", "2"),
    ("an inf of ours", "room_of_our_logits", LOGITS, LOGITS.replace("* wanted", "* made")),
    ('it is "logits" where no part', "no_head", "if off.any():", "if off.any() and name != 'lm_head':"),
    ("another attribute", "note_on_a_module", "wanted = run(", "ours.lm_head.seen = True; wanted = run("),
    ("two tokens of row 0", "room_of_isclose", FINE, "torch.isclose(y, want, 1e-5, 1e-5 * want.abs().max().item())"),
    ("Which position of this module", "two_texts_alone", ".any(2).any(0)", ".any(2)[:2].any(0)"),
    ("another attribute", "config_changed", "wanted = run(", "theirs.config.use_cache = False; wanted = run("),
    ("nan counts as different", "nan_as_0", "~((y -", "~((y.nan_to_num() -"),
    ("only cut elsewhere", "largest_not_by_size", '1e-4 * wanted["logits"].abs()', '1e-4 * wanted["logits"]'),
    ("in another mode", "mode_of_the_root_put_back", "wanted = run(", "ours.train(ours.training); wanted = run("),
    ("in another mode", "all_weights_thawed", "wanted = run(", "ours.requires_grad_(); wanted = run("),
):  # fmt: skip
    WRONG["where_they_part"][bug] = words, mutate(where_they_part__hooks, *changes)
WRONG["where_they_part"] |= {
    "hook_of_all_modules_left": ("a hook is still", lambda *given: (
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None), where_they_part__hooks(*given))[1]),
    "names_in_place": ("names are changed", lambda *given: (where_they_part__hooks(*given), given[3].clear())[0]),
    "names_of_its_own": ("order in which parts end", lambda *given: where_they_part__hooks(*given[:3], part_names(3))),
    "raises_with_hooks_on": ("it raises Zero", lambda ours, *rest: (ours.register_forward_hook(len), 1 / 0)),
}  # fmt: skip
