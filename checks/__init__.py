"""What judges an answer: `from checks import check_rms_norm`, then `check_rms_norm(my_rms_norm)`.

A file for each notebook holds its exercises, with their known mistakes; README, *What is where*, names the others.
"""

# ruff: noqa: F401  these names are here to be imported from here

from checks.full_model import check_budget, check_first_departure, check_properties
from checks.generate import check_greedy_with_cache, check_lookup_decoding, check_sample
from checks.gqa import check_causal_visible, check_gqa_layer, check_rows
from checks.judge import CheckResult
from checks.my_llama import check_my_llama
from checks.own import my_parts
from checks.parts import Parts
from checks.relatives import check_add_family, check_attention_with_sink, check_where_they_part
from checks.rmsnorm import check_needed_gains, check_norm_probe, check_rms_norm, check_rms_norm_backward
from checks.rope import (
    check_apply_rope_halves,
    check_apply_rope_interleaved,
    check_llama3_scaling,
    check_rope_angles,
    check_rope_permutation,
    check_slow_hands,
)
from checks.scaling_out import check_mend_split, check_merge_attention, check_split_feed_forward
from checks.swiglu import check_cut_units, check_matrix_roles, check_swiglu
from checks.train import check_accumulated_step, check_find_loop_slips, check_training_loop
