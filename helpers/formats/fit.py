"""Do these weights, under our names, fit this model?"""

import torch
from torch import nn

from helpers.formats.files import StoredWeight

# The exceptions that a damaged config or damaged weights may raise.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError)
READ_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ANOTHER = (
    "Nothing was loaded: fetch config and weights of one model. If transformers opens the folder and reports none as "
    "MISSING, what it saves opens here: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(another)."
)


def misfits(model: nn.Module, weights: dict[str, torch.Tensor | StoredWeight]) -> dict[str, str]:
    """Weights that do not fit, by name: those that are missing, left over or of another shape. Nothing is read."""
    wanted = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    problems = {name: f"missing: {name}" for name in wanted.keys() - weights.keys()}
    for name in weights.keys() - wanted.keys():
        have, embedding = tuple(weights[name].shape), wanted["tok_embeddings.weight"]
        if name != "lm_head.weight" or not model.config.tie_embeddings:
            problems[name] = f"left over: {name}"
        elif have != embedding:
            problems[name] = f"shape: {name} is {have}, tied by the config to tok_embeddings.weight {embedding}"
    for name in wanted.keys() & weights.keys():
        have = tuple(weights[name].shape)
        if have != wanted[name]:
            problems[name] = f"shape: {name} is {have}, the config asks for {wanted[name]}"
    return problems


def unusable(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    """Weights that nothing can be computed with, by name: of another dtype, with NaN or infinity."""
    problems = {}
    for name, weight in weights.items():
        if weight.dtype not in READ_DTYPES:
            problems[name] = f"dtype: {name} is {weight.dtype}, this course reads {READ_DTYPES}"
        elif not weight.isfinite().all():
            problems[name] = f"not finite: {name} holds NaN or infinity"
    return problems


def raise_if(problems: dict[str, str], source: str, advice: str = ANOTHER):
    """Raise ValueError if there are problems; the text lists the first twenty, each cut to a line."""
    if not problems:
        return
    kinds = {text.partition(":")[0] for text in problems.values()}
    if "not finite" in kinds or kinds == {"missing"}:
        advice = advice.partition(" If transformers")[0]  # it saves NaN, too, and makes up what is missing
    listed = [f"{source}: {len(problems)} weights do not fit. {advice}"]
    listed += [text if len(text) < 200 else f"{text[:200]}…" for text in sorted(problems.values())[:20]]
    if len(problems) > 20:
        listed.append(f"… and {len(problems) - 20} more")
    raise ValueError("\n  ".join(listed))


def require_tie(model: nn.Module, doing: str):
    """Raise ValueError if the config ties two matrices whose numbers differ: `doing` would drop one of them."""
    embedding, head = model.tok_embeddings.weight, model.lm_head.weight
    if model.config.tie_embeddings and head is not embedding and not torch.equal(head, embedding):
        raise ValueError(f"{doing}: the config ties embeddings, but lm_head {tuple(head.shape)} is another matrix than "
                         f"tok_embeddings {tuple(embedding.shape)}. Keep both: model.config = dataclasses.replace("
                         "model.config, tie_embeddings=False). Or share one: model.lm_head.weight = "
                         "model.tok_embeddings.weight.")  # fmt: skip
