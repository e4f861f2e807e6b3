"""Heads on the target's last hidden state guess several tokens ahead at once, each without knowing the others' guess.

    Medusa(net, shape)                                    # one matrix product drafts the whole tree

Head i (from 0) reads the state at position t and guesses token t + 2 + i; the target's own output matrix has just given
token t + 1. Since the heads do not see each other's choice, their likeliest tokens are crossed into a tree, and the target
picks the path that makes sense. Cai et al. 2024, section 2.1. Text keeps the target's law at any temperature, for the
children of a node are fixed before the target is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minispec.sampling import Dice
from minispec.tree import Shape, TokenTree

if TYPE_CHECKING:
    from minispec.hub import LanguageModel


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b). With W and b at zero it hands x through: that is how training starts."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """`heads` stacks of `depth` residual blocks, then an output matrix over `vocabulary` [ids], in ascending order.

    The output matrix is `shared` [ids, width], rows of the target's own, for all heads alike; or, if None, one of its own
    for each head.
    """

    vocabulary: Tensor
    shared: Tensor | None

    def __init__(self, heads: int, width: int, vocabulary: Tensor, shared: Tensor | None, depth: int = 1):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*(ResidualBlock(width) for _ in range(depth))) for _ in range(heads))
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        self.register_buffer("shared", shared, persistent=False)
        own = 0 if shared is not None else heads
        self.lm_heads = nn.ModuleList(nn.Linear(width, len(vocabulary), bias=False) for _ in range(own))

    def forward(self, state: Tensor) -> Tensor:
        """Logits [..., heads, ids] from the target's last hidden state [..., width]."""
        states = [block(state) for block in self.blocks]
        if self.shared is not None:
            return F.linear(torch.stack(states, -2), self.shared)
        return torch.stack([head(x) for head, x in zip(self.lm_heads, states, strict=True)], -2)


class Medusa:
    """Drafts a tree of the given `shape` from `net`; a child's rank is the rank of its token in the head of its depth.

    `layer`: the number of the target's last hidden state, which is that of its blocks. Raises ValueError for a shape deeper
    than there are heads, and for a rank beyond their tokens.
    """

    def __init__(self, net: MedusaHeads, shape: Shape, layer: int):
        if max(shape.depths, default=0) > len(net.blocks):
            raise ValueError(f"the tree is {max(shape.depths)} deep, but there are {len(net.blocks)} heads")
        if max(shape.ranks, default=0) >= len(net.vocabulary):
            raise ValueError(f"the tree asks for rank {max(shape.ranks)}, but a head has {len(net.vocabulary)} tokens")
        self.net, self.shape, self.layers = net, shape, (layer,)

    def start(
        self, target: LanguageModel, cache_rows: int, prompts: list[Tensor], hidden: Tensor | None, dice: Dice
    ) -> None:
        theirs = {weight.data_ptr() for weight in target.model.parameters()}
        shared = [] if self.net.shared is None else [self.net.shared]
        mine = (weight for weight in (*self.net.parameters(), *shared) if weight.data_ptr() not in theirs)
        self.passes, self.extra_bytes = 0, sum(weight.nbytes for weight in mine)

    def propose(self, budget: list[int]) -> TokenTree:
        if not self.shape.ranks or not any(budget):
            return TokenTree.chain([[]] * len(budget))
        logits = self.net(self.last)  # [batch, heads, ids]
        self.passes += 1
        best = self.net.vocabulary[logits.topk(max(self.shape.ranks) + 1).indices]  # [batch, heads, ranks]
        heads = [depth - 1 for depth in self.shape.depths]
        return self.shape.filled(best[:, heads, list(self.shape.ranks)].tolist(), budget)

    def commit(self, tokens: list[list[int]], hidden: list[Tensor] | None) -> None:
        assert hidden is not None
        self.last = torch.stack([states[-1, -1] for states in hidden])  # [batch, width]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Nothing is kept from round to round but `last`, which the next commit replaces."""
