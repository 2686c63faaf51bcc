"""The map of notebook 08: what is stored is what is measured, and what the rows of FAMILIES say."""

import pytest

from benchmarks.field import WHEN, build, features
from beyond.families import FAMILIES
from beyond.families.lenses import EXPERTS, PLAIN, plot_field, plot_still, read_field

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # transformers warns of odd settings
FIELD = {one["type"]: one for one in read_field()}
EDITS = {  # a feature and the edits that make it
    "experts": {"experts"}, "shared expert": {"shared_expert"}, "sinks": {"sinks"}, "no gate": {"ungated"},
    "attention beside feed-forward": {"parallel"}, "one short vector for keys and values": {"latent"},
    "nothing turns": {"learned_positions", "sine_positions", "alibi"}, "LayerNorm": {"layer_norm"},
    "norm of keys": {"qk_norm", "qk_norm_whole", "l2_norm"}, "gate on attention": {"out_gate", "mixed_attention"},
    "some layers stand still": {"still_if_full", "no_rope"}, "norm after attention": {"post_norm", "sandwich_norm"},
}  # fmt: skip


@pytest.mark.parametrize("feature", EDITS)
def test_what_was_measured_agrees_with_the_edits_of_each_row(feature):
    """Also where the measurement knew nothing of the edits; a setting that a class leaves off counts as absent."""
    for kind in FIELD.keys() & FAMILIES.keys():
        has = bool({edit.__name__ for edit in FAMILIES[kind].edits} & EDITS[feature])
        if feature in FIELD[kind]["features"]:
            assert has, f"{kind}: no edit makes {feature!r}"


@pytest.mark.parametrize("kind", ["smollm3", "cohere2"])
def test_a_type_measured_again_is_as_stored(kind):
    found, turns, sees = features(kind, build(kind))
    assert (found, turns, sees) == tuple(FIELD[kind][name] for name in ("features", "turns", "sees"))


def test_layers_that_stand_still_see_everything_and_each_type_has_a_year_with_a_source():
    still = [one for one in FIELD.values() if "some layers stand still" in one["features"]]
    assert len(still) >= 10
    for one in still:
        assert {see for turn, see in zip(one["turns"], one["sees"], strict=True) if turn == 0} == {1.0}
    assert all(source == "release" or source[:4].isdigit() for _, source in WHEN.values())


def test_the_map_has_a_mark_for_each_feature_and_a_cell_for_each_layer():
    field = [*FIELD.values()]
    above, below = plot_field(field).axes
    old = {name for one in field if one["year"] == 2022 for name in one["features"]}  # of all types until 2022
    assert {label.get_text() for label in below.get_yticklabels()[: len(old)]} == {PLAIN.get(one, one) for one in old}
    once = sum(len({EXPERTS[0] if name in EXPERTS else name for name in one["features"]}) for one in field)
    assert sum(len(marks.get_segments()) for marks in below.collections) == once
    assert sum(bar.get_height() * bar.get_width() for bar in above.patches) == pytest.approx(once)
    assert len({ax.collections[0].get_array().shape for ax in plot_still(field).axes}) == 1
