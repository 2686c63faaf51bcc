"""The memory of decoding: the keys and values of the tokens read so far. Shape letters as in helpers.model."""

import math

import torch

from helpers.config import LlamaConfig
from helpers.device import is_out_of_memory
from helpers.validate import require_whole


class KVCache:
    """Keys and values of the tokens read so far, for every layer; made by `Llama.new_cache`.

    Attributes:
        k, v: (n_layers, B, K, max_seq_len, h); only the first `length` positions are filled.
        length: tokens read so far [token].
        n_pad: left padding of each row, (B,) int, or None.
    """

    def __init__(self, config: LlamaConfig, batch_size: int, max_seq_len: int, dtype, device):
        require_whole("batch_size", batch_size, 1)
        require_whole("max_seq_len", max_seq_len, 1)
        shape = (config.n_layers, batch_size, config.n_kv_heads, max_seq_len, config.head_dim)
        try:
            self.k, self.v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) and "overflow" not in str(error):  # overflow: of the number of bytes
                raise
            asked = f"a cache of {batch_size:,} rows and {max_seq_len:,} tokens needs {2 * math.prod(shape):,} numbers"
            raise ValueError(f"{asked}, more than fit into memory: ask for fewer rows or fewer tokens.") from error
        self.length, self.n_pad = 0, None

    def update(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v (B, K, T, h) behind what is there; return all keys and values so far, (B, K, S, h)."""
        end = self.length + k.shape[2]
        self.k[layer, :, :, self.length : end] = k
        self.v[layer, :, :, self.length : end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def check_capacity(self, tokens: torch.Tensor, config: LlamaConfig, dtype, device):
        """Raise ValueError unless tokens (B, T) of a model of this config and dtype fit behind what is there."""
        n_layers, batch_size, n_kv_heads, capacity, head_dim = self.k.shape
        own, models = (n_layers, n_kv_heads, head_dim), (config.n_layers, config.n_kv_heads, config.head_dim)
        if models != own:
            raise ValueError(f"the model has (n_layers, n_kv_heads, head_dim) = {models}, the cache {own}: "
                             "another model made it; use this model's new_cache().")  # fmt: skip
        if tokens.shape[0] != batch_size:
            raise ValueError(f"tokens have batch size {tokens.shape[0]}, the cache {batch_size}: make a cache to fit.")
        if (dtype, device) != (self.k.dtype, self.k.device):
            raise ValueError(f"the model is {dtype} on {device}, the cache {self.k.dtype} on {self.k.device}: make the "
                             "cache with model.new_cache() after moving or casting the model.")  # fmt: skip
        if self.length + tokens.shape[1] > capacity:
            full = f"{tokens.shape[1]} tokens do not fit: the cache holds {self.length} of at most {capacity}"
            raise ValueError(f"{full}. Shorten the prompt, or give model.new_cache() a larger max_seq_len.")
