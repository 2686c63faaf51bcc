"""Notebooks that train or measure for less time, for tests that only need each of their cells to run.

SHORTER holds for each notebook text of its cells, and what stands for it.
"""

STEPS = "6"  # for COURSE_STEPS, of notebook 06
SHORTER = {
    "01_rmsnorm": {"T, D = 12, 32": "T, D = 12, 8"},
    "03_swiglu": {"steps=60": "steps=11", "math.log(1024) - 0.5": "math.log(1024) + 0.5"},
    "06_train_and_generate": {
        "step in (50, 150, steps)": "step in (2, 4, steps)",
        "for part in (known, held_out)": "for part in (known[:1000], held_out[:1000])",
        "batch_size=32": "batch_size=4",
        "steps=400": "steps=3",
        "prompt, 40,": "prompt, 8,",
        "real[:2, :16], 60": "real[:2, :16], 8",
        "real[:, :16], 200": "real[:, :16], 20",
        "range(200)": "range(20)",
        "real[:, :200]": "real[:, :20]",
        "n_windows=48": "n_windows=4",
        "(16, 64, 128, 256, 512)": "(16, 32)",
        "torch.rand(4096, 4096), torch.rand(64, 4096)": "torch.rand(256, 256), torch.rand(64, 256)",
        "8192": "512",
        "torch.rand(1024, 1024": "torch.rand(64, 64",
        'Llama(PRESETS["smollm2-135m"])': "Llama(fifteen.config)",
        "tokens_per_second(big, 500)": "tokens_per_second(big, 50)",
        "held_out[:20_000]": "held_out[:1000]",
    },
}


def shorten(name, source):
    """The source of a cell of a notebook, as it is to run."""
    for text, shorter in SHORTER.get(name, {}).items():
        source = source.replace(text, shorter)
    return source
