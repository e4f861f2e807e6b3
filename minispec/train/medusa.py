"""Train Medusa heads on the target's last hidden states; the target itself stays as it is (Medusa-1).

    minispec train medusa --heads 3 --steps 2000 --out runs/medusa

Head i at place j guesses token j + 2 + i. Every head shares rows of the target's output matrix and starts as the target's
own guess of token j + 1. Cai et al. 2024, section 2.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from minispec.drafters.medusa import MedusaHeads
from minispec.train.ahead import Ahead, kept_layers, measured_cost, train_ahead
from minispec.train.data import HELD_OUT, Corpus
from minispec.train.draft import frequent_ids

if TYPE_CHECKING:
    from minispec.hub import LanguageModel


def new_heads(lm: LanguageModel, heads: int, vocabulary: Tensor, depth: int = 1) -> MedusaHeads:
    """Heads that start by handing the last hidden state through to rows of the target's output matrix."""
    net = MedusaHeads(heads, lm.model.config.hidden_size, vocabulary, lm.model.lm_head.weight[vocabulary], depth)
    return net.to(lm.model.device, lm.model.dtype)


class MedusaTrainer(Ahead):
    """Medusa heads and their loss, a mean over the heads."""

    def __init__(self, net: MedusaHeads, lm: LanguageModel):
        super().__init__(lm, net.vocabulary, len(net.blocks))
        self.net = net

    def outputs(self, tokens: Tensor, hidden: Tensor) -> Iterator[Tensor]:
        return (block(hidden[:, :, -1]) for block in self.net.blocks)

    def logits(self, step: int, state: Tensor) -> Tensor:
        return F.linear(state, self.teacher)  # all heads share it


def train_medusa(lm: LanguageModel, corpus: Corpus, folder: Path, out: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """Train heads and write the folder `out`, which `load_drafter` opens; what was measured on held-out texts.

    `recipe`: heads, depth, drafted, steps, batch, lr, seed. `folder` keeps the target's states. `lm` must be in float32.
    Raises ValueError for settings out of range.
    """
    from minispec.checkpoints import save_medusa

    if min(recipe["heads"], recipe["depth"]) < 1:
        raise ValueError(f"--heads and --depth must be 1 or more, but are {recipe['heads']} and {recipe['depth']}")
    last = lm.model.config.num_hidden_layers
    kept = kept_layers(lm, () if last >= 7 else (last,))
    texts = [text for i, text in enumerate(corpus.texts) if i % HELD_OUT]
    vocabulary = frequent_ids(texts, recipe["drafted"], lm.model.config.vocab_size).to(lm.model.device)
    net = new_heads(lm, recipe["heads"], vocabulary, recipe["depth"])

    def save(done: Path, measured: dict[str, Any]) -> None:
        save_medusa(done, net, lm, {"rates": measured["ranks"], "cost": measured_cost(lm)})

    return train_ahead(lm, MedusaTrainer(net, lm), {"target": lm.name} | recipe, corpus, kept, folder, out, save)
