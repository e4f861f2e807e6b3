"""Wrong answers to the last two tasks of lesson 5, the tree's shape and the loop. Each must fail, and be told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.ex05_cases import line_of, ordered, parents_of, worth
from minispec.grading.task import Wrong

# 5.4


def grower(fault: str) -> Callable[..., list[tuple[int, ...]]]:
    def value(rates: list[list[float]], path: Sequence[int]) -> float:
        each = [rates[depth][rank] for depth, rank in enumerate(path)]
        return sum(each) if fault == "adds" else each[-1] if fault == "own rate" else math.prod(each)

    def best_shape(rates: list[list[float]], cost: list[float], most: int) -> list[tuple[int, ...]]:
        tree: list[tuple[int, ...]] = []
        waiting = [(rank,) for rank in range(1 if fault == "chain" else len(rates[0]))]
        limit = sum(len(rates[0]) ** n for n in range(1, len(rates) + 1)) if fault == "no limit" else most
        base = 0.0 if fault == "no own token" else 1.0
        gain, best, size = base, base / cost[0], 0
        while waiting and len(tree) < min(limit, len(cost) - 1):
            key = (lambda p: (-len(p), value(rates, p))) if fault == "level by level" else lambda p: value(rates, p)
            path = max(waiting, key=key)
            if fault == "ranks fall":
                path = max((p for p in waiting if not p[-1] or (*p[:-1], p[-1] - 1) in tree), key=key)
            if fault == "unlikely ones left out" and worth(rates, path) < 0.01:
                break
            waiting.remove(path)
            tree.append(path)
            gain += worth(rates, path)
            if len(path) < len(rates):
                waiting += [(*path, r) for r in range(1 if fault == "chain" else len(rates[len(path)]))]
            n = len(tree)
            now = gain / cost[n - 1 if fault == "nodes only" else n]
            if fault == "no cost":
                now = gain
            if fault == "difference":
                best, now = (best if n > 1 else base - cost[0]), gain - cost[n]
            if fault == "last step":
                now, best = worth(rates, path), cost[n] - cost[n - 1]
            if now > best or (fault == "never empty" and n == 1):
                best, size = now, n
            elif fault in ("stops early", "last step") or (fault == "patience" and n > size + 1):
                break
        return tree[:size]

    return best_shape


SHAPE = [
    Wrong("it adds the rates along a path; the whole path must be right, so they are multiplied", grower("adds")),
    Wrong("it looks at a node's own rate alone; the tokens above it must be right too", grower("own rate")),
    Wrong("it stops at the first node that does not pay; where the cost goes in steps, later ones may pay again", grower("stops early")),
    Wrong("it forgets the target's own token: a round emits one token more than it accepts", grower("no own token")),
    Wrong("it takes the cost of the nodes alone; the pass reads the pending token too, 1 + nodes, at cost[nodes]", grower("nodes only")),
    Wrong("it does not ask what a pass costs: more nodes are not always better", grower("no cost")),
    Wrong("it takes tokens less cost; what counts is tokens for their cost, a ratio", grower("difference")),
    Wrong("it compares a node's gain with the cost of one token more; what counts is the ratio of the whole round", grower("last step")),
    Wrong("it makes a chain; a second guess for the same place may be worth more than a deeper one", grower("chain")),
    Wrong("it fills one level before it begins the next; a deeper node may be worth more", grower("level by level")),
    Wrong("it takes a rank only behind all lower ranks; nothing says that rates fall with the rank", grower("ranks fall")),
    Wrong("it leaves unlikely paths out; where reading is cheap, they pay too", grower("unlikely ones left out")),
    Wrong("it stops after two nodes that do not pay; where the cost goes in steps, later ones may pay again", grower("patience")),
    Wrong("it takes more nodes than it may", grower("no limit")),
    Wrong("it always takes a node; where none pays, the best tree is empty", grower("never empty")),
]  # fmt: skip

# 5.5


def right_tree(paths: list[list[int]], guesses: Tensor, ids: Tensor) -> tuple[list[int], list[int]]:
    """Tokens and parents of the nodes, from the heads' logits [heads, columns]."""
    nodes, best = ordered(paths), guesses.argsort(-1, descending=True)
    return [int(ids[best[len(path) - 1, path[-1]]]) for path in nodes], parents_of(nodes)


def right_mask(parents: list[int]) -> tuple[Tensor, Tensor]:
    """The mask of the block, and the depths."""
    lines = [line_of(parents, i) for i in range(len(parents) + 1)]
    mask = torch.tensor([[j in line for j in range(len(lines))] for line in lines])
    return mask, mask.sum(1) - 1


def decoder(fault: str) -> Callable[..., list[list[int]]]:
    def medusa(
        target: Any, heads: Any, vocabulary: Tensor, paths: list[list[int]], prompt: list[int], most: int
    ) -> list[list[int]]:
        n = len(prompt)
        logits, states = target.read(prompt, torch.arange(n), torch.ones(n, n, dtype=torch.bool).tril())
        emitted, state, length = [[int(logits[-1].argmax())]], states[-1], n
        while (left := most - sum(map(len, emitted))) > 0:
            deepest = 99 if fault in ("too deep", "overshoots") else left if fault == "one too deep" else left - 1
            nodes = [path for path in paths if len(path) <= deepest]
            if fault == "chain only":
                nodes = [path for path in nodes if not any(path)]
            drafted, parents = right_tree(nodes, heads(state), vocabulary)
            mask, depths = right_mask(parents)
            if fault == "causal":
                mask = torch.ones_like(mask).tril()
            if fault == "by place":
                depths = torch.arange(len(parents) + 1)
            logits, states = target.read([emitted[-1][-1], *drafted], length + depths, mask)
            answers = logits.argmax(-1).tolist()
            at, path, new = 0, [0], []
            while True:
                new.append(answers[at])
                fits = [
                    i + 1
                    for i, x in enumerate(drafted)
                    if i + 1 > at
                    and (fault == "anywhere" or parents[i] == at)
                    and x == answers[i + 1 if fault == "own answer" else at]
                ]
                if not fits or (fault == "one level" and at):
                    break
                if fault == "own answer":
                    new[-1] = drafted[fits[0] - 1]
                at = fits[0]
                path.append(at)
            if fault == "no own token" and len(new) > 1:
                new = new[:-1]
                path = path[:-1]
            if fault != "overshoots":
                new = new[:left]
            kept = path
            if fault == "first slots":
                kept = list(range(len(path)))
            if fault == "not the pending":
                kept = path[1:]
            if fault == "keeps the pending alone":
                kept = [0]
            if fault != "keeps all":
                target.keep(kept)
            length += len(drafted) + 1 if fault == "keeps all" else len(kept)
            if fault == "position of the nodes":
                length += len(drafted) - (len(path) - 1)
            state = states[-1] if fault == "last state" else states[0] if fault == "first state" else states[at]
            emitted.append(new)
        return emitted

    return medusa


LOOP = [
    Wrong("it keeps the whole tree in the cache; only the pending token and the accepted path may stay", decoder("keeps all")),
    Wrong("it keeps the first places of the block, as of a chain; the accepted path may lie elsewhere in it", decoder("first slots")),
    Wrong("it forgets the pending token when it says what to keep: that was read in this pass too, at place 0", decoder("not the pending")),
    Wrong("it keeps the pending token alone; the accepted nodes were read too, and belong to the text", decoder("keeps the pending alone")),
    Wrong("it hands the heads the state of the last node; wanted is the one from which the pending token came", decoder("last state")),
    Wrong("it hands the heads the state at place 0 of the block; wanted is that of the last accepted node", decoder("first state")),
    Wrong("it reads the tree with the mask of a chain, so that branches see each other", decoder("causal")),
    Wrong("its positions go along the block; a node stands at its depth", decoder("by place")),
    Wrong("its positions go on from all the nodes that were read; the rejected ones are gone", decoder("position of the nodes")),
    Wrong("it accepts a token wherever in the tree it stands; it must hang below the last accepted node", decoder("anywhere")),
    Wrong("it compares a node's token with the answer after that node; the answer after its parent decides", decoder("own answer")),
    Wrong("it goes one level down at most", decoder("one level")),
    Wrong("it emits no token of its own behind accepted ones, though the pass has computed it", decoder("no own token")),
    Wrong("it uses the likeliest guess of each head alone, not the tree", decoder("chain only")),
    Wrong("it reads nodes that lie too deep to be emitted: with `left` tokens to go, at most left - 1 levels", decoder("too deep")),
    Wrong("it reads one level too many at the end: the target adds a token of its own", decoder("one too deep")),
    Wrong("it emits more than max_new_tokens", decoder("overshoots")),
]  # fmt: skip
