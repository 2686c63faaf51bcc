"""Readers for third-party files; call `helpers.checkpoint`.

    names         our names of the weights, Hugging Face's and Meta's; both orders of the rows that RoPE turns
    files         JSON, within limits
    hugging_face  config.json, the index, and safetensors that are read when asked for
    meta          params.json and .pth, within limits, and nothing unpickled
    fit           what does not fit a model, all of it in one sentence

What stands here knows LLaMA only; other families are read by `beyond.families`.
"""
