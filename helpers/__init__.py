"""The course's shared code, small enough to read in an afternoon. Import from the file that holds the name.

    config      LlamaConfig and the published sizes (PRESETS)
    validate    what the model refuses, and what it says then
    cache       KVCache, what decoding remembers
    model       RMSNorm, RoPE, SwiGLU, grouped-query attention, the block and the whole Llama, in that order
    masks       one rule per mask, combined with & and |
    checkpoint  Hugging Face and Meta checkpoints in, Hugging Face checkpoints out
    generate    sampling and cached decoding, token by token; a faster layout of the weights
    text        the real text that ships with Python, its tokenizer, batches
    train       the small training loop that made assets/tiny-llama
    parallel    one model over several processes, on torch.distributed
    parallel_report  whether the split model is the same function as the whole one, and what it sends
    device      the accelerator when there is one, seeds, what to do when its memory is full
    plots       the course's figures: arrays in, Axes out
    explorers   sliders around a figure
    checks      whether your solution of an exercise is right, and if not, what it seems to do instead
    exercises   what the checks compare with: specifications, inputs, known mistakes
    classroom   the notebooks handed out without solutions, made fresh again, and read when they come back
    grade       a folder of submissions in; a table and a page of feedback for each student out

Nothing is re-exported here, so that an import line names the file to open.
"""
