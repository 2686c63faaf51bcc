"""What the installed transformers knows: whose code its families use, and what their default configs ask for."""

import re
from pathlib import Path

TRAITS = {  # what a config's settings, as a dictionary, ask for
    "a window in some layers": lambda own: "sliding" in _kinds(own),
    "a part of each head turns": lambda own: any(rope.get("partial_rotary_factor", 1) < 1 for rope in _ropes(own)),
    "some layers keep a state, no keys": lambda own: "linear" in _kinds(own),
    "a latent cache": lambda own: bool(own.get("kv_lora_rank")),
    "an index chooses the keys": lambda own: bool(re.search("indexed|sparse", _kinds(own))),
}


def heirs(root: str = "llama") -> tuple[set[str], set[str]]:
    """The folders of all families that write text, and those whose code begins with classes of `root`.

    A file `modular_*.py` imports what it changes. Heirs of heirs count, too; a family without such a file does not.
    """
    import transformers
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    reads = {}
    for file in Path(transformers.__file__).parent.glob("models/*/modular_*.py"):
        reads[file.parent.name] = set(re.findall(r"from \.\.(\w+)\.modeling_", file.read_text(encoding="utf-8")))
    found = {root}
    while more := {name for name, sources in reads.items() if sources & found} - found:
        found |= more
    folders = {model_type_to_module_name(name) for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    return folders, found & folders - {root}


def traits() -> dict[str, list[str]]:
    """For each of TRAITS, the families whose default config has it."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = {trait: [] for trait in TRAITS}
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = AutoConfig.for_model(name)
        except Exception:  # a config that is made for another model only
            continue
        own = vars(config) | {"layer_types": getattr(config, "layer_types", None)}
        for trait, has in TRAITS.items():
            if has(own):
                found[trait].append(name)
    return found


def _kinds(own):
    kinds = own.get("layer_types") or (["sliding"] if own.get("sliding_window") else [])
    return " ".join(map(str, kinds))


def _ropes(own):
    rope = own.get("rope_parameters") or {}
    return [own, rope, *(one for one in rope.values() if isinstance(one, dict))]
