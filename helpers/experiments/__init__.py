"""Small models for experiments that a notebook makes live: one that learns to repeat, and one with a bug."""
