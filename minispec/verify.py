"""The acceptance rules: which drafted tokens stay, and which token the target adds. All but the last keep the target's law.

    greedy(logits, tree)                                  # temperature 0: go down while the target's choice is a child
    fixed(p_at, tree, u)                                  # children chosen beforehand: draw from p, go down if it is one
    drawn(p_at, tree, u)                                  # children drawn from q: accept with min(1, p/q), else residual
    typical(p, tree, u)                                   # lossy: accept what is likely enough

All return a `Verdict`: a path down the tree and one token more. Randomness comes in as `u` [batch, nodes + 1], uniform
numbers in [0, 1) by block position, which is what lets `exact.py` compute a rule's law by enumeration. `p_at(at)` gives
the target's distribution [batch, vocab] after block position `at` [batch]: only the nodes that are visited are paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from minispec.sampling import draw
from minispec.tree import TokenTree


class Verdict(NamedTuple):
    """`path` [batch, depth]: accepted block positions (-1 pads); `token` [batch]: the correction or bonus token."""

    path: Tensor
    token: Tensor


def greedy(logits: Tensor, tree: TokenTree) -> Verdict:
    """Accept as long as the likeliest token after a node is among its children. `logits` [batch, nodes + 1, vocab]."""
    best = logits.argmax(-1)
    rows = torch.arange(len(best), device=best.device)
    return descend(tree, lambda at: best[rows, at])


def fixed(p_at: Callable[[Tensor], Tensor], tree: TokenTree, u: Tensor) -> Verdict:
    """Draw the next token from p at each node; where the draft holds it, the draft saved a pass.

    Exact for any children that were fixed before the target's random numbers: the emitted tokens are the target's own
    draws. It equals accepting child x with probability p(x) and, on rejection, taking x out of p.
    """
    rows = torch.arange(len(u), device=u.device)
    return descend(tree, lambda at: draw(p_at(at), u[rows, at]))


def descend(tree: TokenTree, choose: Callable[[Tensor], Tensor]) -> Verdict:
    """Follow `choose(at)`, the target's own next token after block position `at`, for as long as the tree has it."""
    at = torch.zeros(len(tree.tokens), dtype=torch.int64, device=tree.tokens.device)
    token, path = choose(at), []
    for _ in range(tree.height):
        child = (tree.parents == at[:, None]) & (tree.tokens == token[:, None])  # [batch, nodes]
        going = child.any(1) & (at >= 0)
        if is_none(going):
            break
        at = torch.where(going, child.int().argmax(1) + 1, -1)
        path.append(at)
        token = torch.where(going, choose(at.clamp(min=0)), token)
    return Verdict(as_path(path, tree), token)


def drawn(p_at: Callable[[Tensor], Tensor], tree: TokenTree, u: Tensor) -> Verdict:
    """Rejection sampling down a tree whose siblings were drawn from q without replacement; a chain has one child each.

    Child x of a node is accepted if u * q(x) < p(x), strictly, so that a token with p = 0 is never taken. If it is
    rejected, p becomes the residual distribution norm(max(0, p - q)) and q loses x. After the last child, the token is
    drawn from what p has become; where every token of a branch was accepted, that is p itself.
    Leviathan et al. 2023, algorithm 1; for siblings, Yang et al. 2024 (multi-candidate), algorithm 2.
    """
    assert tree.q is not None
    batch, nodes = tree.tokens.shape
    rows = torch.arange(batch, device=u.device)
    at = torch.zeros(batch, dtype=torch.int64, device=u.device)
    p = p_at(at)
    taken = torch.zeros_like(p, dtype=torch.bool)  # siblings that were rejected
    accepted = torch.zeros(batch, nodes, dtype=torch.bool, device=u.device)
    for i in range(nodes):
        trying = tree.parents[:, i] == at
        if is_none(trying):
            continue
        x = tree.tokens[:, i].clamp(min=0)
        q = tree.q[:, i].to(p.dtype).masked_fill(taken, 0)
        q = q / q.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
        accept = trying & (u[:, i + 1] * q[rows, x] < p[rows, x])
        reject = trying & ~accept
        residual = (p - q).clamp(min=0)
        mass = residual.sum(-1, keepdim=True)
        residual = torch.where(mass > 0, residual / mass, p)  # p equal to q: a rejection is rounding, so p stays
        p = torch.where(reject[:, None], residual, p)
        taken[rows, x] |= reject
        if not is_none(accept):
            at = torch.where(accept, i + 1, at)
            p = torch.where(accept[:, None], p_at(at), p)
            taken &= ~accept[:, None]
            accepted[:, i] = accept
    return Verdict(as_path_of(accepted), draw(p, u[:, 0]))


def typical(p: Tensor, tree: TokenTree, u: Tensor, epsilon: float = 0.09, alpha: float = 0.3) -> Verdict:
    """LOSSY: the emitted text has another law than the target's. Accept a token that is likely enough, draw or no draw.

    Node x below a position is accepted if p(x) > min(epsilon, alpha * exp(-entropy of p)) there: where the target is
    unsure, less will do. The longest accepted path stays, among equals the likeliest; the token after it is drawn from p.
    `p` [batch, nodes + 1, vocab] by block position. Cai et al. 2024 (Medusa), section 2.3.1.
    """
    rows = torch.arange(len(p), device=p.device)
    threshold = (alpha * torch.special.entr(p).sum(-1).neg().exp()).clamp(max=epsilon)  # [batch, nodes + 1]
    parents, real = tree.parents.clamp(min=0), tree.tokens >= 0
    chance = p[rows[:, None], parents, tree.tokens.clamp(min=0)]  # [batch, nodes]
    passed = real & (chance > threshold.gather(1, parents))
    ok = torch.cat((torch.ones_like(passed[:, :1]), passed), 1)  # the pending token is text already
    whole = (tree.ancestors <= ok[:, None]).all(2)  # [batch, nodes + 1]: accepted, and all above it
    log = torch.cat((torch.zeros_like(chance[:, :1]), chance.log()), 1)
    likelihood = torch.where(tree.ancestors, log[:, None], 0).sum(2)
    longest = torch.where(whole, tree.depths, -1)
    at = torch.where(longest == longest.amax(1, keepdim=True), likelihood, -torch.inf).argmax(1)
    on_path = tree.ancestors[rows, at][:, 1:]  # [batch, nodes]
    return Verdict(as_path_of(on_path), draw(p[rows, at], u[:, 0]))


def is_none(x: Tensor) -> bool:
    """Whether `x` is False throughout, asked only where that costs nothing: another device would have to be waited for, so
    there a rule does what it could have left out."""
    return x.is_cpu and not x.any()


def as_path_of(accepted: Tensor) -> Tensor:
    """Block positions of the accepted nodes [batch, nodes] in ascending order, [batch, depth]; -1 pads."""
    nodes = accepted.shape[1]
    positions = torch.where(accepted, torch.arange(1, nodes + 1, device=accepted.device), nodes + 1).sort(1).values
    path = positions[:, : int(accepted.sum(1).max())] if accepted.is_cpu else positions
    return torch.where(path <= nodes, path, -1)


def as_path(steps: list[Tensor], tree: TokenTree) -> Tensor:
    return torch.stack(steps, 1) if steps else tree.tokens.new_empty(len(tree.tokens), 0)
