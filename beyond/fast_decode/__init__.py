"""The same model with its weights laid out for steps of one token: joined matrices, the fastest layout, fewer bytes.

prepare    prepare_for_decoding
layouts    how a matrix may be stored, and the parts of a model that use it
step       one token through such a model, with little around the products
measure    which layout and how many threads are fastest here
"""

from beyond.fast_decode.prepare import prepare_for_decoding

__all__ = ["prepare_for_decoding"]
