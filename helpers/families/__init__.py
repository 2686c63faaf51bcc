"""Today's open models: LLaMA plus a few edits; notebook 08.

    edits      the model class, and one function for each edit
    rows       the table: a family is a row of edits
    configs    what a family's config.json says, read once
    published  the sizes of ten published models
    referee    small random models of transformers, to compare with
    census     what the installed transformers knows

Whoever adds a family begins with its row.
"""

from helpers.families.configs import (
    DAMAGE,
    FamilyConfig,
    config_from_hugging_face,
    make_relative,
    our_weights,
    with_family,
)
from helpers.families.edits import Relative, layer_types, require_plain
from helpers.families.published import PUBLISHED, lenses_of
from helpers.families.rows import FAMILIES

__all__ = [
    "DAMAGE", "FAMILIES", "PUBLISHED", "FamilyConfig", "Relative", "config_from_hugging_face", "layer_types",
    "lenses_of", "make_relative", "our_weights", "require_plain", "with_family",
]  # fmt: skip
