"""Train an EAGLE head on the target's own hidden states, the way it will draft: several steps on from every token.

    minispec train eagle --steps 3000 --out runs/eagle

From every place j of a text the head drafts `unroll` tokens: first from the target's feature j, then from its own outputs,
while the tokens are those of the text. Keys of the first step are what the cache will hold of committed text; those of
later steps belong to one draft alone. So step i at place j sees the first step's keys up to j, and of each later step its
own key only. What is learnt is the target's distribution over the ids that may be drafted. Li et al. 2025 (EAGLE-3),
section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minispec.drafters.eagle import EagleNet
from minispec.model import rotate
from minispec.train.ahead import Ahead, kept_layers, measured_cost, train_ahead
from minispec.train.data import HELD_OUT, Corpus
from minispec.train.draft import frequent_ids

if TYPE_CHECKING:
    from minispec.hub import LanguageModel

DECAY = 0.8  # weight of each further step in the loss
# How a head drafts unless told otherwise: chosen on held-out texts, on two CPU cores (weights/eagle.md).
DRAFTING = {"tree": "dynamic", "num_tokens": 3, "dynamic": {"depth": 5, "top_k": 3, "nodes": 16, "stop_below": 0.3}}


def new_net(lm: LanguageModel, layers: Sequence[int], vocabulary: Tensor, eagle: int = 3, seed: int = 0) -> EagleNet:
    """A head that starts by handing the last feature through to rows of the target's output matrix."""
    from transformers import LlamaConfig

    # Published heads are Llama layers, whatever family the target is of: no biases, no norms of queries and keys.
    changes = {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False}
    changes |= {"num_hidden_layers": 1, "layer_types": ["full_attention"], "tie_word_embeddings": False}
    config = LlamaConfig.from_dict(lm.model.config.to_dict() | changes | {"model_type": "llama"})
    with torch.device("meta"):
        net = EagleNet(config, layers, vocabulary, eagle)
    net = net.to(lm.model.dtype).to_empty(device=lm.model.device)
    net.set_frequencies(lm.model.device)
    net.embed_tokens = lm.model.embed_tokens  # the target's own
    net.vocabulary = vocabulary.to(lm.model.device)
    generator = torch.Generator().manual_seed(seed)
    width, last = config.hidden_size, lm.model.config.num_hidden_layers
    head: Any = lm.model.lm_head.weight
    norm: Any = lm.model.norm.weight
    final: Any = net.norm
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if name.startswith("embed_tokens"):
                continue
            if weight.dim() == 1:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()  # the branches add nothing at first
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
        net.fc.weight.zero_()
        net.fc.weight[:, -width:].copy_(torch.eye(width))
        net.lm_head.weight.copy_(head[vocabulary])
        if eagle == 3 and layers[-1] != last:
            final.weight.copy_(norm)
        elif eagle == 3:  # the last state has been through the target's norm: keep its length
            final.weight.fill_(float(norm.float().square().mean().sqrt()))
    return net


def unrolled(net: EagleNet, features: Tensor, tokens: Tensor, steps: int) -> Iterator[Tensor]:
    """What the head makes of `features` [batch, time, width] and the text's `tokens` [batch, time], step by step.

    Step i yields [batch, time, width]: at place j the output from which it would draft token j + 2 + i, given the target's
    features up to j and the tokens up to j + 1 + i. (Places too near the end of the text read token 0.)
    """
    batch, time = tokens.shape
    attention: Any = net.layers[0].self_attn
    group = attention.heads // attention.kv_heads
    future = torch.ones(time, time, dtype=torch.bool, device=tokens.device).triu(1)
    keys: list[Tensor] = []  # of each step [batch, kv_heads, time, head_dim]
    values: list[Tensor] = []
    state = features

    def attend(x: Tensor, step: int) -> Tensor:
        qkv = attention.qkv_proj(x).view(batch, time, -1, attention.head_dim).transpose(1, 2)
        cos, sin = net.angles(torch.arange(time, device=x.device)[None] + step)
        qk, v = qkv.split((attention.heads + attention.kv_heads, attention.kv_heads), 1)
        q, k = rotate(qk, cos, sin).split((attention.heads, attention.kv_heads), 1)
        keys.append(k)
        values.append(v)
        q = q.view(batch, attention.kv_heads, group, time, -1) * attention.head_dim**-0.5
        scores = (q @ keys[0][:, :, None].transpose(-1, -2)).masked_fill(future, -torch.inf)  # [.., time, time]
        later = [(q * key[:, :, None]).sum(-1, keepdim=True) for key in keys[1:]]  # [.., time, 1]
        p = torch.cat((scores, *later), -1).softmax(-1)
        out = p[..., :time] @ values[0][:, :, None]
        for i, value in enumerate(values[1:]):
            out = out + p[..., time + i, None] * value[:, :, None]
        return attention.o_proj(out.flatten(1, 2).transpose(1, 2).flatten(2))

    for step in range(steps):
        after = F.pad(tokens[:, 1 + step :].clamp(min=0), (0, min(1 + step, time)))
        state = net.block(state, net.embed_tokens(after), lambda x, step=step: attend(x, step))
        yield state


class EagleTrainer(Ahead):
    """An EAGLE head and its loss over `unroll` steps."""

    def __init__(self, net: EagleNet, lm: LanguageModel, unroll: int, kept: Sequence[int]):
        super().__init__(lm, net.vocabulary, unroll)
        self.net = net
        self.places = [list(kept).index(layer) for layer in net.layers_read]

    def outputs(self, tokens: Tensor, hidden: Tensor) -> Iterator[Tensor]:
        return unrolled(self.net, self.net.fuse(hidden[:, :, self.places]), tokens, self.steps)

    def logits(self, step: int, state: Tensor) -> Tensor:
        return self.net.logits(state)

    def weight(self, step: int) -> float:
        return DECAY**step


def train_eagle(lm: LanguageModel, corpus: Corpus, folder: Path, out: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """Train a head and write the folder `out`, which `load_drafter` opens; what was measured on held-out texts.

    `recipe`: layers (None: EAGLE-3's three), eagle, unroll, drafted, train_head, steps, batch, lr, seed. `folder` keeps the
    target's states. `lm` must be in float32. Raises ValueError for settings out of range.
    """
    from minispec.checkpoints import save_eagle

    last = lm.model.config.num_hidden_layers
    if recipe["unroll"] < 1:
        raise ValueError(f"--unroll must be 1 or more, but is {recipe['unroll']}")
    if recipe["eagle"] == 1 and (recipe["layers"] or recipe["train_head"]):
        raise ValueError(
            "EAGLE-1 reads the last hidden state and drafts with the target's output matrix; leave --layers and "
            "--train-head out, or take --eagle 3"
        )
    kept = kept_layers(lm, recipe["layers"] or ((last,) if recipe["eagle"] == 1 else ()))
    layers = [last] if recipe["eagle"] == 1 else recipe["layers"] or list(kept[:-1])
    texts = [text for i, text in enumerate(corpus.texts) if i % HELD_OUT]
    vocabulary = frequent_ids(texts, recipe["drafted"], lm.model.config.vocab_size).to(lm.model.device)
    net = new_net(lm, layers, vocabulary, recipe["eagle"], recipe["seed"]).requires_grad_(True)
    net.embed_tokens.requires_grad_(False)
    net.lm_head.requires_grad_(recipe["train_head"])

    def save(done: Path, measured: dict[str, Any]) -> None:
        own = {"rates": measured["ranks"], "cost": measured_cost(lm), **DRAFTING}
        save_eagle(done, net, lm, own)

    trainer = EagleTrainer(net, lm, recipe["unroll"], kept)
    recipe = {"target": lm.name} | recipe | {"layers": list(layers)}
    return train_ahead(lm, trainer, recipe, corpus, kept, folder, out, save)
