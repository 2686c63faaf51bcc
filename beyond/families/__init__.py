"""Today's open models: LLaMA plus a few edits; notebook 08.

    edits                the model class, and one function for each edit
    more_edits           the edits of the families that docs/atlas.md lists
    registry             the table: a family is a row of edits
    configs              what a family's config.json says, read once
    checkpoint           load_checkpoint for all families
    published            the sizes of ten published models
    lenses               both lenses of whole models in one picture
    reference            small random models of transformers, to compare with
    differences, box     what_differs: what a family does otherwise than LLaMA, measured on such a model
    bugs                 nine bugs, to be put into a right model

Whoever adds a family begins with its row; `register_family` makes it known.
"""

# ruff: noqa: F401  these names are here to be imported from here

from beyond.families.checkpoint import load_checkpoint, model_from_weights
from beyond.families.configs import FamilyConfig, config_from_hugging_face, make_relative, our_weights
from beyond.families.edits import Relative, layer_types
from beyond.families.published import PUBLISHED
from beyond.families.registry import FAMILIES, TAUGHT, Family, register_family
