"""The target: a decoder-only transformer of the Llama family, with nothing hidden.

    logits = model(torch.tensor([[1, 9, 4]]), cache)      # [1, 3, vocab]; the cache grew by three tokens

Three things that most code bases keep implicit are arguments here, because speculative decoding is made of them: the
position of every token, which new tokens see which, and the cache. Computes Llama 2/3 (with its rope scaling), SmolLM2,
Mistral, Qwen2/2.5 and Qwen3; an architecture, rope type or sliding window outside that list is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minispec.cache import KVCache

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # these depend on the position alone, not on the text's length


def refuse_unsupported(config: Any) -> None:
    """Raise ValueError, naming the cause, if `config` (transformers' own) asks for something we do not compute."""
    name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if name not in FAMILIES:
        raise ValueError(f"architecture {name} is not supported; use one of {', '.join(FAMILIES)}")
    rope = config.rope_parameters
    if rope["rope_type"] not in ROPE_TYPES:
        raise ValueError(f"rope type {rope['rope_type']!r} is not supported; only {', '.join(ROPE_TYPES)} are")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor {rope['partial_rotary_factor']} is not supported; only 1.0 is")
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    if sliding or (name == "MistralForCausalLM" and config.sliding_window is not None):
        raise ValueError(
            f"sliding-window attention (window {config.sliding_window}) is not supported: "
            "rewinding a cache needs every key; use a model with full attention"
        )
    if config.hidden_act not in ("silu", "swish"):
        raise ValueError(f"activation {config.hidden_act!r} is not supported; only 'silu' is")


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def rope_frequencies(config: Any) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] and the factor on cos and sin, from transformers' table of rope types."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    if rope["rope_type"] == "default":  # Su et al. 2021, section 3.2.2; not in that table
        return rope["rope_theta"] ** -(torch.arange(0, head_dim(config), 2).float() / head_dim(config)), 1.0
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, device=torch.device("cpu"))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of `x` [batch, heads, time, head_dim] by the angle of its position.

    `sin` carries a minus sign in its first half, so that (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023): `heads` queries share `kv_heads` keys and values."""

    def __init__(self, config: Any, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, head_dim(config)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        family = config.architectures[0]
        bias = family == "Qwen2ForCausalLM" or getattr(config, "attention_bias", False)
        out_bias = family != "Qwen2ForCausalLM" and bias
        width = self.head_dim * (self.heads + 2 * self.kv_heads)
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=out_bias)
        self.normed = family == "Qwen3ForCausalLM"
        if self.normed:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: KVCache, slots: Tensor) -> Tensor:
        batch, time, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, time, -1, self.head_dim).transpose(1, 2)  # [batch, all heads, time, head_dim]
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.normed:
            qk = torch.cat((self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])), dim=1)
        q, k = rotate(qk, cos, sin).split((self.heads, self.kv_heads), dim=1)
        k, v = cache.write(self.layer, k, v, slots)  # [batch, kv_heads, keys, head_dim]
        # The queries that share a key head become more rows of one query: no key is copied.
        q = q.reshape(batch, self.kv_heads, -1, self.head_dim)  # [batch, kv_heads, group * time, head_dim]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.reshape(batch, self.heads, time, self.head_dim).transpose(1, 2).flatten(2)
        return self.o_proj(out)


class Block(nn.Module):
    def __init__(self, config: Any, layer: int):
        super().__init__()
        bias = getattr(config, "mlp_bias", False)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor, *attention: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *attention)
        return x + self.mlp(self.post_attention_layernorm(x))

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Transformer(nn.Module):
    """Embedding, blocks, norm, output matrix. `config` is the transformers configuration of a supported family."""

    def __init__(self, config: Any):
        super().__init__()
        refuse_unsupported(config)
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.frequencies: Tensor
        self.set_frequencies(torch.device("cpu"))

    def set_frequencies(self, device: torch.device) -> None:
        """Rope's inverse frequencies [head_dim / 2]: always float32, whatever the weights are, and never stored."""
        with torch.device("cpu"):
            frequencies, self.rope_scale = rope_frequencies(self.config)
        self.register_buffer("frequencies", frequencies.float().to(device), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache for `rows` texts of at most `capacity` tokens."""
        c = self.config
        shape = (c.num_hidden_layers, rows, c.num_key_value_heads, capacity, head_dim(c))
        return KVCache(shape, self.dtype, self.device)

    def forward(self, tokens: Tensor, cache: KVCache, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Logits [batch, time, vocab] for `tokens` [batch, time]; -1 pads, on the right. The cache grows by the tokens.

        `positions` [batch, time]: where each token stands; default: after the row's last one, in order.
        `mask` [batch, time, time]: which new tokens a new token sees; default: itself and those before it. Every new
        token sees all that the cache held for its row.
        Raises ValueError when a row does not fit the cache.
        """
        return self.logits(self.states(tokens, cache, positions, mask)[-1])

    def logits(self, state: Tensor) -> Tensor:
        """The output matrix: last hidden state [..., width] -> logits [..., vocab]."""
        return self.lm_head(state)

    def states(
        self,
        tokens: Tensor,
        cache: KVCache,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layers: Sequence[int] = (),
    ) -> list[Tensor]:
        """Hidden states [batch, time, width] of the named `layers`, then the last one, which is what the head reads.

        Layer i is what block i takes in, so 0 is the embedding and the number of blocks is the last one, after the norm:
        transformers' numbering of `hidden_states`.
        """
        shared = self.prepare(tokens, cache, positions, mask)
        x = self.embed_tokens(tokens.clamp(min=0))
        named = {}
        for i, block in enumerate(self.layers):
            if i in layers:
                named[i] = x
            x = block(x, *shared)
        named[len(self.layers)] = self.norm(x)
        return [named[i] for i in (*layers, len(self.layers))]

    def prepare(self, tokens: Tensor, cache: KVCache, positions: Tensor | None, mask: Tensor | None) -> tuple[Any, ...]:
        """What every block needs beside its input: cos and sin of the positions, the mask as numbers, cache and slots."""
        slots, mask = cache.reserve(tokens, mask)
        cos, sin = self.angles(slots if positions is None else positions)
        if mask is not None:
            group = self.config.num_attention_heads // self.config.num_key_value_heads
            bias = torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill(~mask, float("-inf"))
            mask = bias[:, None].repeat(1, 1, group, 1)  # [batch, 1, group * time, keys]
        return cos, sin, mask, cache, slots

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What `rotate` needs at `positions` [batch, time]: cos and sin [batch, 1, time, head_dim]."""
        angles = positions[:, None, :, None].float() * self.frequencies  # [batch, 1, time, head_dim / 2]
        cos, sin = angles.cos() * self.rope_scale, angles.sin() * self.rope_scale
        return torch.cat((cos, cos), -1).to(self.dtype), torch.cat((-sin, sin), -1).to(self.dtype)
