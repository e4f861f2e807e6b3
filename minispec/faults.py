"""The bank of wrong rules: rejection sampling for a chain, as published code has got it wrong.

    chain_rule("inverted ratio")(p, tree, u)              # same arguments as a right rule; the law is not the target's

Every fault was reported of a real implementation or is one step away from one. Each of them must be caught by a test
that the right rule passes; what catches nothing proves nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minispec.drafters.draft_model import DraftModel
from minispec.exact import Rule
from minispec.sampling import draw
from minispec.tree import TokenTree
from minispec.verify import Verdict

FAULTS = {
    "inverted ratio": "accepts with q / p; the rule needs p / q",
    "accept always": "keeps every drafted token",
    "resample from q": "after a rejection draws from q; it must draw from the residual",
    "resample from p": "after a rejection draws from p; it must draw from the residual",
    "residual of the wrong sign": "draws from max(0, q - p); the residual is max(0, p - q)",
    "residual without rejection": "draws the bonus token from a residual; nothing was rejected there",
    "q before top-p": "scores with q as it was before top-p; the token was drawn from q after it",
    "argmax scored with softmax": "scores a token taken by argmax as if it had been drawn from q",
    "one uniform number": "compares the same random number at every position",
    "bonus without temperature": "draws the bonus token from p at temperature 1",
    "zero probability at u = 0": "accepts if u * q <= p; a token with p = 0 passes when u is exactly 0",
    "off-by-one row of p": "tests a token against the target's distribution one position later",
}
TEMPERATURE = 2.0  # what p is taken to have been processed with, where a fault forgets it


def chain_rule(fault: str = "") -> Rule:
    """Rejection sampling for chains (Leviathan et al. 2023, algorithm 1) with one fault; with none, the right rule."""

    def rule(p: Tensor, tree: TokenTree, u: Tensor) -> Verdict:
        batch, nodes = tree.tokens.shape
        qs = p[:, :0] if tree.q is None else tree.q  # without a draft there is no q
        rows = torch.arange(batch)
        alive = torch.ones(batch, dtype=torch.bool)
        path = torch.full((batch, nodes), -1)
        last = p[:, nodes]
        if fault == "bonus without temperature" and nodes:
            last = normalised(last**TEMPERATURE)
        if fault == "residual without rejection" and nodes:
            last = residual(last, qs[:, nodes - 1])
        for i in range(nodes):
            x, q = tree.tokens[:, i].clamp(min=0), qs[:, i].to(p.dtype)
            target = p[:, i + 1] if fault == "off-by-one row of p" else p[:, i]
            if fault == "q before top-p":
                q = before_top_p(q)
            drawn = u[:, 1] if fault == "one uniform number" else u[:, i + 1]
            there = tree.tokens[:, i] >= 0
            at_p, at_q = target[rows, x], q[rows, x]
            ok = drawn * at_q < at_p
            if fault == "inverted ratio":
                ok = drawn * at_p < at_q
            if fault == "accept always":
                ok = torch.ones_like(ok)
            if fault == "zero probability at u = 0":
                ok = drawn * at_q <= at_p
            left = residual(p[:, i], q)
            if fault == "resample from q":
                left = q
            if fault == "resample from p":
                left = p[:, i]
            if fault == "residual of the wrong sign":
                left = residual(q, p[:, i])
            end = alive & there & ~ok
            last = torch.where((alive & ~there)[:, None], p[:, i], torch.where(end[:, None], left, last))
            alive &= there & ok
            path[alive, i] = i + 1
        return Verdict(path, draw(last, u[:, 0]))

    return rule


class ArgmaxWithSoftmax(DraftModel):
    """Drafts one token by argmax and reports the distribution it did not draw from."""

    def propose(self, budget: list[int]) -> TokenTree:
        tree = super().propose(budget)
        if tree.q is not None:
            tree.tokens = torch.where(tree.tokens >= 0, tree.q.argmax(-1), -1)
        return tree


def normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)), and p itself where that is empty."""
    left = (p - q).clamp(min=0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > 0, left / mass, p)


def before_top_p(q: Tensor) -> Tensor:
    """A distribution that top-p could have cut down to q: a fifth of the mass lay on what was cut."""
    cut = (q == 0).to(q.dtype)
    return torch.where(cut.any(-1, keepdim=True), 0.8 * q + 0.2 * cut / cut.sum(-1, keepdim=True).clamp(min=1), q)


def fault_breakpoints(p: Tensor, tree: TokenTree) -> list[list[float]]:
    """`exact.breakpoints` for every rule of this bank: all thresholds that any of them compares a number with."""
    assert tree.q is not None
    nodes = tree.tokens.shape[1]
    accepts, levels = {0.0, 1.0}, {0.0, 1.0}
    for row in p:
        levels |= set(row.cumsum(0).tolist()) | set(normalised(row**TEMPERATURE).cumsum(0).tolist())
        for i in range(nodes):
            for q in (tree.q[0, i], before_top_p(tree.q[0, i])):
                x = int(tree.tokens[0, i])
                ratios = [float(row[x] / q[x]), float(q[x] / row[x]) if row[x] > 0 else 1.0]
                accepts |= {ratio for ratio in ratios if ratio < 1}
                for law in (q, residual(row, q), residual(q, row)):
                    levels |= set(law.cumsum(0).tolist())
    return [sorted(c for c in axis if c <= 1) for axis in [levels, *[accepts] * nodes]]
