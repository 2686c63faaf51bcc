"""The course's shared code, small enough to read in an afternoon.

    config       LlamaConfig and the published sizes (PRESETS)
    validate     checks of what a caller passes: what was wrong, both values, what to do
    cache        KVCache, what decoding remembers
    model        RMSNorm, RoPE, SwiGLU, grouped-query attention, the block and the whole Llama, in that order
    families     today's open models: LLaMA plus a few edits
    masks        one rule per mask, combined with & and |
    checkpoint   Hugging Face and Meta checkpoints in, Hugging Face checkpoints out
    generate     sampling and cached decoding, token by token
    fast_decode  the same model with its weights laid out for steps of one token
    text         the real text that ships with Python, its tokenizer, batches
    train        the small training loop that made assets/tiny-llama
    parallel     one model over several processes, on torch.distributed
    device       the accelerator when there is one, seeds, what to do when its memory is full
    plots        the course's figures: arrays in, Axes out
    explorers    sliders around a figure
    assets       a small trained model, and the stored results of runs that take long

An import line names the file to open, with two exceptions: what the files of `explorers` hold is imported from
`helpers.explorers`, and `model` is a front door, from which LlamaConfig, PRESETS and KVCache may be imported too.
"""

import sys

MOVED = {  # what a notebook made before the move may ask for, and what to write now
    "helpers.checks": "from checks import check_rms_norm",
    "helpers.exercises": "from checks.full_model import SLIPS, models_to_examine",
    "helpers.classroom": "python -m tools.classroom.hand_out, in the course's folder",
    "helpers.grade": "python -m tools.classroom.grade, in the course's folder",
    "helpers.parallel_report": "from helpers.parallel import compare",
    "helpers.generate.prepare_for_decoding": "from helpers.fast_decode import prepare_for_decoding",
}


class MovedError(ImportError):
    """An import from before the move; Jupyter shows its text alone, without a traceback."""

    def __init__(self, old: str):
        text = f"{old} has moved. Write now, with the names that you need: {MOVED[old]}."
        if "from checks" in text:  # installed before there were checks
            text += " If Python does not find checks, run `pip install -e .` once more in the course's folder."
        super().__init__(text)

    def _render_traceback_(self):
        return [str(self)]


class _FindMoved:  # is asked last, so only about modules that nobody else has found
    @staticmethod
    def find_spec(name, path=None, target=None):
        package = ".".join(name.split(".")[:2])
        if package in MOVED:
            raise MovedError(package)


sys.meta_path.append(_FindMoved)
