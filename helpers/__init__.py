"""The course's shared code. This folder is small enough to read in an afternoon; its rooms are for knowing more.

    config         LlamaConfig and the published sizes (PRESETS)
    validate       checks of what a caller passes: what was wrong, both values, what to do
    cache          KVCache, what decoding remembers
    model          RMSNorm, RoPE, SwiGLU, grouped-query attention, the block and the whole Llama, in that order
    masks          one rule per mask, combined with & and |
    checkpoint     Hugging Face and Meta checkpoints in, Hugging Face checkpoints out
    generate       sampling and cached decoding, token by token
    text           the tokenizer, and a short fixed text
    corpus         the real text that ships with Python, or your own, as batches to train on
    train          the small training loop that made assets/tiny-llama
    interventions  a part of a trained model replaced, removed or swapped, and what that costs
    device         the accelerator when there is one, seeds, what to do when its memory is full
    plots          the course's figures: arrays in, Axes out

    formats        the files of a checkpoint, read with care
    families       today's open models: LLaMA plus a few edits
    fast_decode    the same model with its weights laid out for steps of one token
    parallel       one model over several processes, on torch.distributed
    explorers      sliders around a figure
    assets         a small trained model, and the stored results of runs that take long

An import line names the file to open, with two exceptions: what the files of `explorers` hold is imported from
`helpers.explorers`, and `model` is a front door, from which LlamaConfig, PRESETS and KVCache may be imported too.
"""

import sys


class AnotherVersionError(ImportError):
    """A notebook asks for what this course does not have; Jupyter shows the text alone, without a traceback."""

    def _render_traceback_(self):
        return [str(self)]


def _show_import_error(shell, kind, error, traceback, tb_offset=None):
    if (error.name or "").split(".")[0] in ("helpers", "checks"):
        advice = "Is it spelt right? Then the notebook was made for another version of the course: "
        advice += "`make reset NOTEBOOK=…` makes a fresh one and keeps yours."
        kind, error = AnotherVersionError, AnotherVersionError(f"{error}. {advice}")
    shell.showtraceback((kind, error, traceback), tb_offset)


if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
    shell.set_custom_exc((ImportError,), _show_import_error)
