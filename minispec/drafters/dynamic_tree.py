"""Trees that a drafter grows level by level: of a fixed shape, or where its confidence says that it pays.

    DynamicTree(depth=5, top_k=8, nodes=16)               # EAGLE-2: Li et al. 2024b, section 4

A path's score is the sum of its log-probabilities under the drafter: how likely it thinks the whole path is. Each level,
the `top_k` best nodes of the last one get `top_k` children each; in the end the best `nodes` of all that were seen stay. A
child never scores above its parent, so those hang together. All of this is decided before the target is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minispec.tree import Shape, TokenTree


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's tree, at most `nodes` nodes and `depth` levels.

    `cost` (seconds of a target pass over 1, 2, ... tokens, or any multiple of them): then a round takes as many of the best
    nodes as give the most expected tokens for their cost; as measured once, never as the clock says now. `stop_below`: no
    further level once no path is as likely as this; a level costs a pass of the drafter.
    Raises ValueError for a depth, top_k or number of nodes below 1, and for a cost curve that is too short.
    """

    depth: int = 5
    top_k: int = 8
    nodes: int = 16
    cost: tuple[float, ...] = ()
    stop_below: float = 0.0

    def __post_init__(self) -> None:
        if min(self.depth, self.top_k, self.nodes) < 1:
            raise ValueError(f"depth, top_k and nodes must be 1 or more, but are {self.depth}, {self.top_k}, {self.nodes}")
        if self.cost and len(self.cost) <= self.nodes:
            raise ValueError(f"the cost curve must reach to {self.nodes + 1} tokens, but has {len(self.cost)}")

    @property
    def read(self) -> int:
        """Nodes that the drafter itself reads, at most."""
        return self.top_k * (self.depth - 1)


class Grower:
    """What both kinds of tree share: candidates so far, and which of the nodes that the drafter has read each node sees."""

    def __init__(self, rows: int, device: torch.device):
        self.depth = 0
        self.tokens = torch.zeros(rows, 0, dtype=torch.int64, device=device)  # [batch, candidates]
        self.seen = torch.zeros(rows, 1, 0, dtype=torch.bool, device=device)  # [batch, nodes last read, read]

    def below(self, parents: Tensor) -> Tensor:
        """The mask [batch, nodes, read + nodes] of nodes under `parents` [batch, nodes] (places in the last level read)."""
        batch, nodes = parents.shape
        inherited = self.seen.gather(1, parents[..., None].expand(-1, -1, self.seen.shape[2]))
        own = torch.eye(nodes, dtype=torch.bool, device=parents.device).expand(batch, -1, -1)
        self.seen = torch.cat((inherited, own), 2)
        return self.seen


class ShapeGrower(Grower):
    """Fills a `Shape` with the likeliest tokens. Its nodes stand level by level, so every level is a slice."""

    def __init__(self, shape: Shape, rows: int, device: torch.device):
        super().__init__(rows, device)
        self.shape, self.last = shape, [0]  # `last`: block positions of the nodes that were read last

    def add(self, logq: Tensor, vocabulary: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Take the children of the nodes that were read last, from logq [batch, nodes, ids]; the nodes to read next."""
        level = [i for i, depth in enumerate(self.shape.depths) if depth == self.depth + 1]
        parents = [self.last.index(self.shape.parents[i]) for i in level]
        ranks = [self.shape.ranks[i] for i in level]
        best = vocabulary[logq.topk(max(ranks) + 1).indices]  # [batch, nodes, ranks]
        self.tokens = torch.cat((self.tokens, best[:, parents, ranks]), 1)
        self.depth += 1
        going = [i for i in level if i + 1 in self.shape.parents]
        if not going:
            return None
        under = torch.tensor([self.last.index(self.shape.parents[i]) for i in going], device=logq.device)
        self.last = [i + 1 for i in going]
        parent = under.expand(len(logq), -1)
        return self.tokens[:, going], parent, self.below(parent)

    def tree(self, budget: list[int]) -> TokenTree:
        return self.shape.filled(self.tokens.tolist(), budget)


class DynamicGrower(Grower):
    """Scores decide, row by row."""

    def __init__(self, plan: DynamicTree, rows: int, device: torch.device):
        super().__init__(rows, device)
        self.plan = plan
        self.parents = self.tokens  # [batch, candidates]: block positions among the candidates
        self.scores = torch.zeros(rows, 0, device=device)
        self.last = torch.zeros(rows, 1, dtype=torch.int64, device=device)  # block positions of the nodes read last
        self.last_scores = torch.zeros(rows, 1, device=device)

    def add(self, logq: Tensor, vocabulary: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """As `ShapeGrower.add`."""
        best = logq.topk(min(self.plan.top_k, logq.shape[2]))  # [batch, nodes, k]
        scores = (self.last_scores[..., None] + best.values).flatten(1)  # [batch, nodes * k]
        tokens, k = vocabulary[best.indices].flatten(1), best.indices.shape[2]
        first = self.tokens.shape[1] + 1  # block position of the first new candidate
        self.tokens = torch.cat((self.tokens, tokens), 1)
        self.parents = torch.cat((self.parents, self.last.repeat_interleave(k, 1)), 1)
        self.scores = torch.cat((self.scores, scores), 1)
        self.depth += 1
        chosen = scores.topk(min(self.plan.top_k, scores.shape[1]))  # [batch, k]
        likely = chosen.values[:, :1].exp() >= self.plan.stop_below  # a row that stops gets no better than impossible nodes
        if self.depth == self.plan.depth or not likely.any():
            return None
        self.last_scores = chosen.values.masked_fill(~likely, -torch.inf)
        self.last = chosen.indices + first
        parent = chosen.indices // k
        return tokens.gather(1, chosen.indices), parent, self.below(parent)

    def tree(self, budget: list[int]) -> TokenTree:
        """The best candidates of each row, parents first."""
        order = self.scores.sort(dim=1, descending=True, stable=True)  # equal scores: the parent stands before its child
        chance = order.values[:, : self.plan.nodes].exp()
        most = torch.tensor(budget, device=chance.device)[:, None].clamp(max=self.plan.nodes)
        count = torch.minimum((chance > 0).sum(1, keepdim=True), most)
        if self.plan.cost:
            cost = torch.tensor(self.plan.cost[: chance.shape[1] + 1], device=chance.device)
            gain = torch.cat((torch.ones_like(chance[:, :1]), 1 + chance.cumsum(1)), 1) / cost
            allowed = torch.arange(gain.shape[1], device=gain.device) <= count
            count = torch.where(allowed, gain, 0).argmax(1, keepdim=True)
        kept = torch.zeros_like(self.scores, dtype=torch.bool)
        kept.scatter_(1, order.indices[:, : chance.shape[1]], torch.arange(chance.shape[1], device=kept.device) < count)
        place = torch.cat((torch.zeros_like(count), kept.cumsum(1)), 1)  # block position of a candidate that stays
        rows = zip(self.tokens, self.parents, kept, place, strict=True)
        pairs = [(tokens[keep].tolist(), at[parents[keep]].tolist()) for tokens, parents, keep, at in rows]
        return TokenTree.of([ids for ids, _ in pairs], [above for _, above in pairs])
