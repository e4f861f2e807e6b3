"""Wrong answers to the last two tasks of lesson 6, the chain and the tree. Each must fail, and be told apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minispec.grading.task import Wrong

# 6.4


def drafter(fault: str) -> Callable[..., list[int]]:
    def eagle_chain(layer: Any, read: int, features: Tensor, text: list[int], count: int, d2t: Tensor) -> list[int]:
        if count == 0 and fault != "pass for nothing":
            return []
        start = read
        if fault == "reads all again":
            start = 0
        if fault == "keeps the accepted" and read:
            start = len(text) - 2
        if fault == "one too few" and read:
            start = read - 1
        if fault != "no rewind":
            layer.rewind(start)
        tokens = text[start : len(text) - 1] if fault == "no shift" else text[start + 1 :]
        new = features[start:]
        if fault == "pending only":
            tokens, new = tokens[-1:], new[-1:]
        if fault == "repeats the first":
            new = features[start : start + 1].expand_as(new)
        if fault == "one by one":
            for i in range(len(tokens) - 1):
                layer.step(new[i : i + 1], tokens[i : i + 1])
            tokens, new = tokens[-1:], new[-1:]
        guesses: list[int] = []
        state = layer.step(new, tokens)
        while len(guesses) < count:
            row = layer.logits(state)[0 if fault == "first row" else -1]
            column = int(row.argmax())
            token = column + int(d2t[column])
            if fault == "columns":
                token = column
            if fault == "offsets are ids":
                token = int(d2t[column])
            guesses.append(token)
            if len(guesses) == count and fault != "reads the last guess":
                break
            feature = state[-1:]
            if fault == "true feature again":
                feature = features[-1:]
            fed = text[-1] if fault == "pending again" else column if fault == "feeds columns" else token
            state = layer.step(feature, [fed])
        return guesses

    return eagle_chain


CHAIN = [
    Wrong("it pairs a feature with the token of its own place; the token is one further", drafter("no shift")),
    Wrong("it does not rewind: pairs of guessed features stay in the cache, and the true ones come behind them", drafter("no rewind")),
    Wrong("it keeps what was read of accepted guesses; those pairs hold guessed features: read them again with the true ones", drafter("keeps the accepted")),
    Wrong("it reads all pairs again; those of true features may stay in the cache", drafter("reads all again")),
    Wrong("it reads one pair too many again", drafter("one too few")),
    Wrong("it reads the last pair alone; the other tokens since the last round are missing from the cache", drafter("pending only")),
    Wrong("it reads the missing pairs one by one; one pass reads them all", drafter("one by one")),
    Wrong("it gives every token the first feature; each has its own", drafter("repeats the first")),
    Wrong("from the second guess on it feeds the target's last feature again; the layer's own output takes its place", drafter("true feature again")),
    Wrong("from the second guess on it feeds the pending token again, not its own last guess", drafter("pending again")),
    Wrong("it feeds the column of its guess; the layer reads the target's ids", drafter("feeds columns")),
    Wrong("it returns columns of the logits; column i stands for the token i + d2t[i]", drafter("columns")),
    Wrong("it takes d2t for ids; it holds offsets: column i stands for the token i + d2t[i]", drafter("offsets are ids")),
    Wrong("it takes the output of the first pair; the guess follows the last one", drafter("first row")),
    Wrong("it reads its last guess too: a pass for nothing", drafter("reads the last guess")),
    Wrong("it reads where no guess is wanted: a pass for nothing", drafter("pass for nothing")),
]  # fmt: skip

# 6.5

Node = tuple[float, tuple[int, ...]]


def in_float32(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float32))


def grower(fault: str) -> Callable[..., tuple[list[int], list[int]]]:
    def dynamic_tree(expand: Any, depth: int, top_k: int, nodes: int) -> tuple[list[int], list[int]]:
        last: list[Node] = [(0.0, ())]
        seen: list[Node] = []
        levels = {"one level more": depth + 1, "one level less": max(1, depth - 1)}.get(fault, depth)
        for level in range(levels):
            if not last:
                if fault == "asks for nothing":
                    expand([])
                break
            below: list[Node] = []
            for (score, path), law in zip(last, expand([list(path) for _, path in last]).tolist(), strict=True):
                allowed = [x for x, logp in enumerate(law) if logp > -math.inf or fault == "impossible ones"]
                children = sorted(allowed, key=lambda x, law=law: -law[x])[:top_k]
                for x in children:
                    value = score + law[x]
                    if fault == "own score":
                        value = law[x]
                    if fault == "adds probabilities":
                        value = score + math.exp(law[x])
                    if fault == "mean":
                        value = (score * level + law[x]) / (level + 1)
                    if fault == "inverted":
                        value = score - law[x]
                    below.append((value, (*path, x)))
            seen += below
            best = sorted(below, key=lambda node: -node[0])
            last = best[:1] if fault == "beam of one" else best if fault == "expands all" else best[:top_k]
            if fault == "in the order found":
                last = below[:top_k]
            if fault == "best child of each":
                last = [max((n for n in below if n[1][:-1] == p), key=lambda n: n[0]) for _, p in last]
        score = math.exp if fault == "multiplies probabilities" else in_float32 if fault == "float32" else float
        ranked = sorted(seen, key=lambda node: (-score(node[0]), len(node[1])))
        if fault == "child before parent":
            ranked = sorted(seen, key=lambda node: (-node[0], -len(node[1])))
        if fault == "no second ranking":
            ranked = seen
        if fault == "last level":
            ranked = [node for node in ranked if len(node[1]) == levels]
        kept = [path for _, path in ranked][: nodes + (fault == "one node more")]
        kept = sorted(kept, key=lambda path: (len(path), path)) if fault != "by score" else kept[::-1]
        place = {(): 0} | {path: i + 1 for i, path in enumerate(kept)}
        parents = []
        for path in kept:
            above = path[:-1]
            while above not in place:  # what has lost its parent hangs below the nearest place above it that stayed
                above = above[:-1]
            parents.append(place[above])
        if fault == "node numbers":
            parents = [at - 1 for at in parents]
        if fault == "chain":
            parents = list(range(len(kept)))
        return [path[-1] for path in kept], parents

    return dynamic_tree


TREE = [
    Wrong("it scores a node by its own log-probability; the whole path must be right, so they are added up", grower("own score")),
    Wrong("it adds probabilities; the logarithms are added", grower("adds probabilities")),
    Wrong("it takes the mean of a path's log-probabilities, which favours deep nodes; the sum is what counts", grower("mean")),
    Wrong("it subtracts log-probabilities, so that unlikely paths come first", grower("inverted")),
    Wrong("it goes on from the best node of a level alone; the best top_k are read", grower("beam of one")),
    Wrong("it reads every node of a level; only the best top_k are read", grower("expands all")),
    Wrong("it goes on from the best child of each parent; all nodes of a level compete", grower("best child of each")),
    Wrong("it goes on from the first nodes of a level in the order in which it found them; the best ones are read", grower("in the order found")),
    Wrong("it keeps the first nodes that it saw; in the end all of them compete, whatever their level", grower("no second ranking")),
    Wrong("it keeps nodes of the last level alone; all that were seen compete", grower("last level")),
    Wrong("where a child scores as high as its parent it keeps the child; without its parent that cannot be reached", grower("child before parent")),
    Wrong("it multiplies probabilities, and those of long paths are 0 in float64; add their logarithms", grower("multiplies probabilities")),
    Wrong("it compares scores in float32, where near ones become equal; stay in float64", grower("float32")),
    Wrong("it calls expand without a path when a level has no nodes; stop there", grower("asks for nothing")),
    Wrong("it grows one level too deep", grower("one level more")),
    Wrong("it grows one level too few", grower("one level less")),
    Wrong("it keeps one node too many", grower("one node more")),
    Wrong("it takes tokens of probability 0 where too few others are left", grower("impossible ones")),
    Wrong("its nodes stand before their parents; a parent must come first", grower("by score")),
    Wrong("its parents are numbers of nodes; wanted are block positions: 0 is the pending token, node i stands at i + 1", grower("node numbers")),
    Wrong("each node hangs below the one before it; that is a chain", grower("chain")),
]  # fmt: skip
