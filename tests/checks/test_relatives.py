"""Notebook 08: a row is judged on models of two sizes, so that no size can be written down in it."""

import pytest

from beyond.families import FAMILIES, Family
from checks.relatives import OTHER_SIZES, WINDOWS, check_add_family


def test_a_row_with_the_sizes_of_its_file_passes_in_both_models():
    assert check_add_family(lambda: FAMILIES["mistral"], "mistral", seconds=120)


@pytest.mark.parametrize("window", [WINDOWS["sliding_window"], OTHER_SIZES["sliding_window"]])
def test_a_row_with_one_window_written_down_is_refused(window):
    def edit(model, content):
        assert content["sliding_window"]
        model.windows = [window] * len(model.layers)

    result = check_add_family(lambda: Family((edit,), FAMILIES["mistral"].settings), "mistral", seconds=120)
    assert result.status == "failed"
    assert ("other sizes" in result.message) == (window == WINDOWS["sliding_window"]), result
