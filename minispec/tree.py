"""A draft: what a drafter proposes to the target, as a tree of tokens below the pending one.

    TokenTree.chain([[5, 7, 2]])                          # 5 -> 7 -> 2, the draft of a draft model
    TokenTree([[5, 6, 7]], [[0, 0, 1]])                   # 5 and 6 both follow the pending token, 7 follows 5

The target reads pending token and tree as one block: position 0 of the block is the pending token, node i stands at
position i + 1. A chain is a tree with one branch, and no draft is a tree without nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass
class TokenTree:
    """`tokens` and `parents` [batch, nodes]; -1 pads, on the right. A parent is a block position smaller than the node's.

    `q` [batch, nodes, vocab]: where children were sampled, the distribution that each node was drawn from, before its
    earlier siblings were taken out (the drafter draws siblings without replacement). None: the children were fixed
    before the target was looked at (argmax, top-k, lookup).
    """

    tokens: Tensor
    parents: Tensor
    q: Tensor | None = None

    def __post_init__(self) -> None:
        self.tokens = torch.as_tensor(self.tokens, dtype=torch.int64)  # an empty list would make a tensor of floats
        self.parents = torch.as_tensor(self.parents, dtype=torch.int64)

    @classmethod
    def chain(cls, rows: Sequence[Sequence[int]], q: Tensor | None = None) -> TokenTree:
        """A chain a row, from token ids; rows may differ in length, or be empty."""
        width = max(map(len, rows))
        tokens = torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int64).view(len(rows), width)
        return cls(tokens, torch.where(tokens >= 0, torch.arange(width), -1), q)

    @property
    def counts(self) -> list[int]:
        """Nodes of each row."""
        return (self.tokens >= 0).sum(1).tolist()

    @cached_property
    def ancestors(self) -> Tensor:
        """[batch, nodes + 1, nodes + 1] over block positions: may row see column (itself, its parent, and so on)?"""
        batch, nodes = self.tokens.shape
        seen = torch.eye(nodes + 1, dtype=torch.bool, device=self.tokens.device).repeat(batch, 1, 1)
        rows = torch.arange(batch, device=self.tokens.device)
        for i in range(nodes):
            seen[:, i + 1] |= seen[rows, self.parents[:, i].clamp(min=0)]
        return seen

    @property
    def depths(self) -> Tensor:
        """[batch, nodes + 1] over block positions: steps down from the pending token, which has depth 0."""
        return self.ancestors.sum(2) - 1

    def row(self, i: int, count: int) -> TokenTree:
        """Row `i` alone, which has `count` nodes: without padding and without q."""
        return TokenTree(self.tokens[i : i + 1, :count], self.parents[i : i + 1, :count])

    def to(self, device: torch.device) -> TokenTree:
        return TokenTree(self.tokens.to(device), self.parents.to(device), None if self.q is None else self.q.to(device))
