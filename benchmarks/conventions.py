"""What libraries mean by the same words, measured: the second table of docs/readers.md.

PYTHONPATH=. python benchmarks/conventions.py
"""

import textwrap

from readers import environment, run

SHARED = """
    import math, tempfile, types
    import numpy as np
    import torch, transformers
    from torch.nn import functional as F
    torch.manual_seed(0)
    values = np.arange(3, dtype=np.float32)  # of three keys with equal scores: an output is the mean of what was seen
    def turned_with(turn, width=8):
        # which coordinates change when the first alone is 1, at position 1
        given = np.zeros((1, 1, 2, width), dtype=np.float32)
        given[..., 0] = 1
        return np.flatnonzero(np.abs(np.asarray(turn(given)))[0, 0, 1] > 1e-4).tolist()
"""
PROGRAMS = {
    "torch==2.13.0 transformers==5.23.0": """
        q, k, v = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 3, 1), torch.tensor(values).view(1, 1, 3, 1)
        print("causal, 2 queries, 3 keys:", F.scaled_dot_product_attention(q, k, v, is_causal=True).flatten().tolist())
        nothing = torch.zeros(2, 3, dtype=torch.bool)
        print("a row that sees nothing, sdpa:", F.scaled_dot_product_attention(q, k, v, nothing).flatten().tolist())
        from transformers.models.llama import modeling_llama as llama
        module, least = types.SimpleNamespace(num_key_value_groups=1, training=False), torch.finfo(torch.float32).min
        eager = llama.eager_attention_forward(module, q, k, v, torch.full((1, 1, 2, 3), least), scaling=1.0)[0]
        print("a row that sees nothing, eager of transformers:", eager.flatten().tolist())
        for dtype in (torch.float32, torch.bfloat16):
            small = torch.full((64,), 2.0**-14, dtype=dtype)
            root = (small / torch.nn.RMSNorm(64, dtype=dtype)(small)).double()[0]
            print(f"eps of nn.RMSNorm, left out, {dtype}: {root.item() ** 2 - 2.0**-28:.1e}")
        x, norm = torch.randn(64, 64).bfloat16(), llama.LlamaRMSNorm(64, eps=1e-6).bfloat16()
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        differ = (F.rms_norm(x, (64,), norm.weight, 1e-6) != norm(x)).sum().item()
        print("F.rms_norm and LLaMA's in bfloat16, of 4096 differ:", differ)
        sizes = dict(vocab_size=8, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
        model.model.layers[0].register_forward_hook(lambda *all: print("a layer returns", type(all[2]).__name__))
        model(torch.tensor([[1, 2]]))
        print("after model.to(bfloat16) inv_freq is", model.to(torch.bfloat16).model.rotary_emb.inv_freq.dtype)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            opened = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        print("after from_pretrained(dtype=bfloat16)", opened.model.rotary_emb.inv_freq.dtype)
        cos, sin = model.float().model.rotary_emb(torch.zeros(1), torch.arange(2)[None])
        print("pairs:", turned_with(lambda x: llama.apply_rotary_pos_emb(*[torch.tensor(x)] * 2, cos, sin)[0]))
    """,
    "mlx[cpu]==0.32.4": """
        import mlx.core as mx
        mx.set_default_device(mx.cpu)
        q, k, v = mx.zeros((1, 1, 2, 1)), mx.zeros((1, 1, 3, 1)), mx.array(values.reshape(1, 1, 3, 1))
        def attend(mask):
            return np.array(mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)).ravel().tolist()
        print("causal, 2 queries, 3 keys:", attend("causal"))
        print("a row that sees nothing, boolean:", attend(mx.zeros((2, 3), dtype=mx.bool_)))
        print("a row that sees nothing, -inf:", attend(mx.full((2, 3), -math.inf)))
        for traditional in (False, True):
            how = dict(traditional=traditional, base=1e4, scale=1.0, offset=0)
            print(f"pairs, traditional={traditional}:", turned_with(lambda x: mx.fast.rope(mx.array(x), 8, **how)))
        x = mx.array(np.eye(1, 4, dtype=np.float32).reshape(1, 1, 1, 4))
        y = mx.fast.rope(x, 4, traditional=False, base=None, scale=1.0, offset=1, freqs=mx.array([4.0, 1.0]))
        print("freqs=4 turns one position by", round(math.acos(np.array(y).ravel()[0]), 3))
    """,
    "jax==0.10.2 flax==0.12.8 equinox==0.13.8": """
        import equinox, jax
        import flax.linen
        q, k, v = np.zeros((1, 2, 1, 1), np.float32), np.zeros((1, 3, 1, 1), np.float32), values.reshape(1, 3, 1, 1)
        def attend(**how):
            return np.array(jax.nn.dot_product_attention(q, k, v, **how)).ravel().tolist()
        print("causal, 2 queries, 3 keys:", attend(is_causal=True))
        print("a row that sees nothing:", attend(mask=np.zeros((1, 1, 2, 3), bool)))
        print("eps of flax.linen.RMSNorm:", flax.linen.RMSNorm().epsilon)
        made = flax.linen.RMSNorm().init_with_output(jax.random.key(0), jax.numpy.ones((2, 4), jax.numpy.bfloat16))[0]
        print("flax.linen.RMSNorm of bfloat16 gives", made.dtype)
        norm = equinox.nn.RMSNorm(4)
        print("eps of equinox.nn.RMSNorm:", norm.eps, "bias:", norm.use_bias)
        rope = equinox.nn.RotaryPositionalEmbedding(8)
        print("pairs of equinox:", turned_with(lambda x: np.array(rope(x[0, 0]))[None, None]))
    """,
    "x-transformers==2.31.10 rotary-embedding-torch==0.9.1": """
        from x_transformers import Decoder
        from x_transformers.x_transformers import RotaryEmbedding as Theirs, apply_rotary_pos_emb
        decoder = Decoder(dim=256, depth=1, heads=4, attn_dim_head=64, rotary_pos_emb=True)
        print("of a head of 64 x-transformers turns", 2 * len(decoder.rotary_pos_emb.inv_freq))
        freqs, _ = Theirs(8).forward_from_seq_len(2)
        print("pairs of x-transformers:", turned_with(lambda x: apply_rotary_pos_emb(torch.tensor(x), freqs)))
        from rotary_embedding_torch import RotaryEmbedding
        turn = lambda x: RotaryEmbedding(8).rotate_queries_or_keys(torch.tensor(x)).detach()
        print("pairs of rotary-embedding-torch:", turned_with(turn))
        given = torch.ones(1, 1, 2, 8)
        made = RotaryEmbedding(4).rotate_queries_or_keys(given)
        print("RotaryEmbedding(4) leaves of a head of 8:", (made == given)[0, 0, 1].nonzero().flatten().tolist())
    """,
}  # fmt: skip


def main():
    for packages, program in PROGRAMS.items():
        with environment(packages) as (python, _):
            done = run([python, "-W", "ignore", "-c", textwrap.dedent(SHARED) + textwrap.dedent(program)])
            print(f"{packages}\n{done.stdout or done.stderr}", flush=True)


if __name__ == "__main__":
    main()
