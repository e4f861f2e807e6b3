"""A draft: what a drafter proposes to the target, as a tree of tokens below the pending one.

    TokenTree.chain([[5, 7, 2]])                          # 5 -> 7 -> 2, the draft of a draft model
    TokenTree([[5, 6, 7]], [[0, 0, 1]])                   # 5 and 6 both follow the pending token, 7 follows 5

The target reads pending token and tree as one block: position 0 of the block is the pending token, node i stands at
position i + 1. A chain is a tree with one branch, and no draft is a tree without nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
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
    def of(cls, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]], q: Tensor | None = None) -> TokenTree:
        """A tree a row, from token ids and parents; rows may differ in length, or be empty."""
        width = max(map(len, tokens))
        padded = [torch.tensor([[*row, *[-1] * (width - len(row))] for row in part]) for part in (tokens, parents)]
        ids, above = (part.view(len(tokens), width) for part in padded)
        return cls(ids, above, q)

    @classmethod
    def chain(cls, rows: Sequence[Sequence[int]], q: Tensor | None = None) -> TokenTree:
        """A chain a row, from token ids."""
        return cls.of(rows, [range(len(row)) for row in rows], q)

    @cached_property
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

    @cached_property
    def height(self) -> int:
        """The largest depth."""
        return int(self.depths.max())

    def row(self, i: int, count: int) -> TokenTree:
        """Row `i` alone, which has `count` nodes: without padding and without q."""
        return TokenTree(self.tokens[i : i + 1, :count], self.parents[i : i + 1, :count])

    def to(self, device: torch.device) -> TokenTree:
        """The tree there, with what follows from its parents, which is sooner found where they are."""
        tree = TokenTree(self.tokens.to(device), self.parents.to(device), None if self.q is None else self.q.to(device))
        tree.counts, tree.ancestors, tree.height = self.counts, self.ancestors.to(device), self.height
        return tree


@dataclass(frozen=True)
class Shape:
    """A tree before its tokens are known: node i hangs below block position parents[i], as its child of rank ranks[i].

    Shape.of([[0], [1], [0, 0]])                          # the two likeliest first tokens, one more below the likeliest
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]]) -> Shape:
        """From paths of ranks. Raises ValueError for a path that stands there twice, is empty, or lacks its beginning."""
        ordered = sorted(map(tuple, paths), key=lambda path: (len(path), path))
        place = {(): 0} | {path: i + 1 for i, path in enumerate(ordered)}
        if len(place) != len(ordered) + 1 or not all(path[:-1] in place for path in ordered):
            raise ValueError("a tree needs different paths that are not empty, and of each path its beginnings too")
        return cls(tuple(place[path[:-1]] for path in ordered), tuple(path[-1] for path in ordered))

    @property
    def read(self) -> int:
        """Nodes that have children."""
        return len({*self.parents} - {0})

    @property
    def depths(self) -> list[int]:
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths[1:]

    def filled(self, tokens: Sequence[Sequence[int]], budget: Sequence[int]) -> TokenTree:
        """A tree a row from tokens[row][node], each cut to its budget: no node that is deeper, and no more nodes."""
        kept = [[i for i, d in enumerate(self.depths) if d <= most][: max(0, most)] for most in budget]
        rows = [[row[i] for i in nodes] for row, nodes in zip(tokens, kept, strict=True)]
        return TokenTree.of(rows, [[self.parents[i] for i in nodes] for nodes in kept])


def grow(rates: Sequence[Sequence[float]], cost: Callable[[int], float], draft_s: float = 0.0, most: int = 64) -> Shape:
    """The tree with the highest speedup, up to `most` nodes, from rates[depth][rank]: how often the drafted token of that
    rank is the right one at that depth (given that those above it are; ranks in falling order).

    A node is worth the product of the rates along its path: it adds that many tokens a round. Nodes are added from the
    worthiest down; of all the trees on the way the one with the best tokens a round over `cost(1 + nodes) + draft_s` stays.
    """
    worth: list[tuple[float, tuple[int, ...]]] = [(-rates[0][0], (0,))]
    paths: list[tuple[int, ...]] = []
    expected, best, size = 1.0, cost(1), 0  # best: seconds a token
    while worth and len(paths) < most:
        gain, path = heapq.heappop(worth)
        paths.append(path)
        expected -= gain
        rate = rates[len(path) - 1]
        if path[-1] + 1 < len(rate) and rate[path[-1]] > 0:
            heapq.heappush(worth, (gain / rate[path[-1]] * rate[path[-1] + 1], (*path[:-1], path[-1] + 1)))
        if len(path) < len(rates):
            heapq.heappush(worth, (gain * rates[len(path)][0], (*path, 0)))
        if (cost(1 + len(paths)) + draft_s) / expected < best:
            best, size = (cost(1 + len(paths)) + draft_s) / expected, len(paths)
    return Shape.of(paths[:size])
