"""What judges an answer: `from checks import check_rms_norm`, then `check_rms_norm(my_rms_norm)`.

One or two files for each notebook hold its exercises, with their known mistakes; README, *What is where*, names them.
"""

from importlib import import_module

FILES = {  # what is imported from here, by the file that is loaded when it is asked for
    "apply_rope": "check_apply_rope_halves check_apply_rope_interleaved",
    "full_model": "check_budget check_cut_heads check_first_departure check_properties",
    "generate": "check_greedy_with_cache check_judge check_sample",
    "gqa": "check_causal_visible check_gqa_layer check_rows",
    "judge": "CheckResult",
    "my_llama": "check_my_llama",
    "own": "my_parts",
    "parts": "Parts",
    "relatives": "check_add_family check_attention_with_sink check_where_they_part",
    "norm_probe": "check_norm_probe",
    "rmsnorm": "check_rms_norm check_rms_norm_backward",
    "rope": "check_rope_angles check_rope_permutation",
    "scaling_out": "check_mend_split check_merge_attention check_split_feed_forward",
    "swiglu": "check_cut_units check_matrix_roles check_swiglu",
    "train": "check_accumulated_step check_find_loop_slips check_training_loop",
}
FILE_OF = {name: file for file, names in FILES.items() for name in names.split()}


def __getattr__(name):
    """Load a name from its file, under torch's defaults: cases are made then, and a learner may have set others."""
    if name not in FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from checks.run import undisturbed

    with undisturbed():
        globals()[name] = getattr(import_module(f"checks.{FILE_OF[name]}"), name)
    return globals()[name]


def __dir__():
    return sorted({*globals(), *FILE_OF})
