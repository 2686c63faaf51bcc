"""A colleague's model for notebook 06. It has a bug that an experiment finds: do not look here before."""

import torch

from helpers.model import Llama


class LeakyLlama(Llama):
    """A LLaMA whose mask is one column too wide: each position sees its own answer."""

    def rotation_and_mask(self, n_query, n_cached=0, n_pad=None, device=None):
        """Cosines, sines, and which (query, key) are visible."""
        cos, sin, _ = super().rotation_and_mask(n_query, n_cached, n_pad, device)
        every = torch.ones(n_query, n_cached + n_query, dtype=torch.bool, device=device)
        return cos, sin, every.tril(n_cached + 1)
