"""Three names of each weight: ours, Hugging Face's, Meta's; and the two orders of the rows that RoPE turns."""

import torch

from helpers.config import LlamaConfig

# our name -> Hugging Face's, Meta's; {} is the number of the layer
OUTER_NAMES = {
    "tok_embeddings.weight": ("model.embed_tokens.weight", "tok_embeddings.weight"),
    "final_norm.weight": ("model.norm.weight", "norm.weight"),
    "lm_head.weight": ("lm_head.weight", "output.weight"),
}
LAYER_NAMES = {
    "layers.{}." + ours: ("model.layers.{}." + hugging_face, "layers.{}." + meta)
    for ours, hugging_face, meta in (
        ("attention_norm.weight", "input_layernorm.weight", "attention_norm.weight"),
        ("attention.q_proj.weight", "self_attn.q_proj.weight", "attention.wq.weight"),
        ("attention.k_proj.weight", "self_attn.k_proj.weight", "attention.wk.weight"),
        ("attention.v_proj.weight", "self_attn.v_proj.weight", "attention.wv.weight"),
        ("attention.o_proj.weight", "self_attn.o_proj.weight", "attention.wo.weight"),
        ("ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm.weight"),
        ("feed_forward.gate_proj.weight", "mlp.gate_proj.weight", "feed_forward.w1.weight"),
        ("feed_forward.up_proj.weight", "mlp.up_proj.weight", "feed_forward.w3.weight"),
        ("feed_forward.down_proj.weight", "mlp.down_proj.weight", "feed_forward.w2.weight"),
    )
}


def name_map(n_layers: int, style: str = "hf") -> dict[str, str]:
    """Our weight names, each with Hugging Face's ("hf") or Meta's ("meta") name for it."""
    column = {"hf": 0, "meta": 1}[style]
    names = {ours: theirs[column] for ours, theirs in OUTER_NAMES.items()}
    for layer in range(n_layers):
        names |= {ours.format(layer): theirs[column].format(layer) for ours, theirs in LAYER_NAMES.items()}
    return names


def to_native_names(stored: dict, n_layers: int, style: str = "hf") -> dict:
    """The same weights, {name of the file: weight}, by our names; a name that is not known stays as it is.

    Raises:
        ValueError: if two weights get one name; the text says which.
    """
    layers = min(n_layers, len(stored))  # a damaged file may ask for any number of layers
    ours = {theirs: name for name, theirs in name_map(layers, style).items()}
    renamed = {}
    for theirs, weight in stored.items():
        if (name := ours.get(theirs, theirs)) in renamed:
            raise ValueError(f"two weights get one name, {name} (one of them is {theirs}): remove the wrong one")
        renamed[name] = weight
    return renamed


def tied_once(weights: dict, config: LlamaConfig) -> dict:
    """The weights; if the tied matrix is stored as lm_head, as safetensors' save_model may do, it is the embedding."""
    if config.tie_embeddings and "tok_embeddings.weight" not in weights and "lm_head.weight" in weights:
        return {"tok_embeddings.weight" if name == "lm_head.weight" else name: weights[name] for name in weights}
    return weights


def interleaved_to_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of q_proj or k_proj so that pairs (2i, 2i + 1) of each head become (i, i + h/2).

    Args:
        weight: (heads * h, D), made for the interleaved layout.

    Example:
        >>> interleaved_to_halves(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), head_dim=4).flatten()
        tensor([0., 2., 1., 3.])
    """
    pairs = weight.unflatten(0, (-1, head_dim // 2, 2))  # (heads, h/2, 2, D)
    return pairs.transpose(1, 2).flatten(0, 2)
