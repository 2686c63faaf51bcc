"""Readers for third-party files of LLaMA (other families: `beyond.families`); call `helpers.checkpoint`.

files         what lies in a folder: JSON within limits, safetensors read when asked for, .pth and nothing unpickled
hugging_face  the config that config.json gives
meta          the config that params.json gives, and weights that several files share out
names         our names of the weights, Hugging Face's and Meta's; both orders of the rows that RoPE turns
fit           what does not fit a model, all of it in one sentence
"""
