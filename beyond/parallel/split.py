"""How a LLaMA is cut over several processes by PyTorch's own tensor parallelism, arranged as in Meta's code.

Matrices that read the residual stream are cut by their outputs: a rank has its own heads and hidden units. Those that
write to the stream are cut by their inputs: each rank has a part of every output, and one sum joins the parts. So a
block needs two sums, one for attention and one for the feed-forward. The vocabulary is cut too.
"""

from dataclasses import replace

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from helpers.config import LlamaConfig
from helpers.formats.fit import require_tie
from helpers.model import Llama
from helpers.validate import require_plain


def parallel_plan(config: LlamaConfig) -> dict[str, ParallelStyle]:
    """How each matrix is cut, by the name of its module; the norms stay whole."""
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate()),  # a rank has some tokens' rows; one sum
        "lm_head": ColwiseParallel(output_layouts=Replicate()),  # a rank scores some tokens; the scores are gathered
    }
    reads = "attention.q_proj", "attention.k_proj", "attention.v_proj", "feed_forward.gate_proj", "feed_forward.up_proj"
    for layer in range(config.n_layers):
        plan |= {f"layers.{layer}.{name}": ColwiseParallel() for name in reads}
        plan |= {f"layers.{layer}.{name}": RowwiseParallel() for name in ("attention.o_proj", "feed_forward.down_proj")}
    return plan


def require_divisible(config: LlamaConfig, n_ranks: int):
    """Raise ValueError unless heads, hidden units and vocabulary can be dealt out to n_ranks in equal parts."""
    for name in ("n_heads", "n_kv_heads", "hidden_dim", "vocab_size"):
        size = getattr(config, name)
        if size % n_ranks:
            raise ValueError(f"{name}={size} cannot be dealt out to {n_ranks} processes: start a number of processes "
                             "that divides it (notebook 09, section 9.2).")  # fmt: skip


def split_model(model: Llama, mesh: DeviceMesh) -> Llama:
    """Cut a model in place: every rank calls this with the same weights and keeps its part.

    `model.config` then holds this rank's numbers of heads, so that a cache has the size of this rank's part.

    Raises:
        ValueError: if heads, hidden units or vocabulary cannot be dealt out evenly, the model is a relative, or its
            config ties two matrices that differ.
    """
    require_plain(model, "split_model", "run it in one process")
    config, n_ranks = model.config, mesh.size()
    require_divisible(config, n_ranks)
    require_tie(model, "split_model")
    parallelize_module(model, mesh, parallel_plan(config))
    if config.tie_embeddings:  # both are cut by tokens, so that the parts can be shared as the whole was
        model.lm_head.weight = model.tok_embeddings.weight
    heads = {"n_heads": config.n_heads // n_ranks, "n_kv_heads": config.n_kv_heads // n_ranks}
    model.config = replace(config, head_dim=config.head_dim, **heads)
    return model


def bytes_of(model: Llama) -> int:
    """Bytes of the weights that this rank holds."""
    return sum(w.to_local().nbytes if isinstance(w, DTensor) else w.nbytes for w in model.parameters())
