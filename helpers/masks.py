"""Who may see whom: each function answers one question about a query's and a key's position.

All take positions, query (T,) and key (S,), whole numbers counted from the start of the row, and return (T, S) bool,
True = may attend. Rules are combined with & (both must hold) and | (one is enough):

    causal(query, key) & sliding_window(query, key, 3)

With a cache the queries are the last positions: query = key[-n_query:].
"""

import torch

from helpers import validate


def causal(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The key is the query itself or stands before it.

    Example:
        >>> causal(torch.tensor([1, 2]), torch.arange(3)).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    return key <= query[:, None]


def itself(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The key stands at the query's own position: joined with |, it keeps a row of the mask from being empty."""
    return key == query[:, None]


def sliding_window(query: torch.Tensor, key: torch.Tensor, window: int) -> torch.Tensor:
    """The key is one of the last `window` tokens, the query among them; later keys pass too, so join it with & causal.

    Source:
        Mistral 7B, arXiv 2310.06825, section 2.
    """
    return key > query[:, None] - validate.require_whole("window", window, 1)  # 1: the query itself


def left_padding(query: torch.Tensor, key: torch.Tensor, n_pad: int) -> torch.Tensor:
    """The key is not one of the first n_pad tokens, which only fill the row."""
    return (key >= validate.require_whole("n_pad", n_pad, 0)).expand(len(query), -1)


def same_document(query: torch.Tensor, key: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
    """Query and key belong to one text of several that are packed into the row.

    Args:
        query, key: positions, (T,) and (S,).
        document: number of the text that each position of the row belongs to, (S,) or longer.
    """
    at = torch.cat((query, key))
    if not at.is_meta and len(outside := at[(at < 0) | (at >= len(document))]):  # meta: there are no numbers to look at
        raise ValueError(f"document has no position {outside[0]}: it has {len(document)}, from 0: number them all.")
    return document[key] == document[query][:, None]
