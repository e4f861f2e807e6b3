"""Wrong answers to lesson 5, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.ex05_bank_loop import LOOP, SHAPE
from minispec.grading.lessons.ex05_cases import ordered, parents_of
from minispec.grading.task import Wrong, changes, of_kind

# 5.1


def learner(fault: str) -> Callable[[Tensor, Tensor, int], Tensor]:
    def ahead(x: Tensor, by: int, fill: Any) -> Tensor:
        if fault == "wraps":
            return x.roll(-by, 1)
        moved = torch.full_like(x, 0 if fault == "pads with 0" and x.dtype != torch.bool else fill)
        moved[:, : max(0, x.shape[1] - by)] = x[:, by:]
        return moved

    def head_targets(tokens: Tensor, answer: Tensor, heads: int) -> Tensor:
        found = []
        for head in range(heads):
            by = head + 2
            if fault == "one too near":
                by = head + 1
            if fault == "one too far":
                by = head + 3
            if fault == "shifts add up":
                by = 2 * (head + 1)
            if fault == "same for all":
                by = 2
            counted = ahead(answer, by, False)
            if fault == "mask not shifted":
                counted = answer
            if fault == "mask of the next":
                counted = ahead(answer, 1, False)
            if fault == "both":
                counted = counted & answer
            if fault == "whole text":
                counted = ahead(tokens >= 0, by, False)
            wanted = ahead(tokens, by, -1)
            if fault in ("mask not shifted", "mask of the next"):
                counted = counted & ahead(tokens >= 0, by, False)
            wanted = wanted.masked_fill(~counted, 0 if fault == "pads with 0" else -1)
            found.append(wanted.double() if fault == "floats" else wanted)
        return torch.stack(found, 2 if fault == "heads last" else 1)

    return head_targets


TARGETS = [
    Wrong("head k learns token j + 1 + k; token j + 1 is what the target itself guesses, so head 0 begins with j + 2", learner("one too near")),
    Wrong("head k learns token j + 3 + k; head 0 begins with j + 2", learner("one too far")),
    Wrong("its shifts add up from head to head; each further head looks one token further, not two", learner("shifts add up")),
    Wrong("all heads learn the same token; each further head looks one token further", learner("same for all")),
    Wrong("it asks whether place j is in the answer; what counts is the token that is guessed there", learner("mask not shifted")),
    Wrong("it asks whether token j + 1 is in the answer, for every head; what counts is the token that is guessed", learner("mask of the next")),
    Wrong("it wants place j in the answer too; the last places of the prompt already guess tokens of the answer", learner("both")),
    Wrong("it learns the prompt too; only tokens of the answer count", learner("whole text")),
    Wrong("it wraps around: behind the end it finds the beginning of the text", learner("wraps")),
    Wrong("where there is nothing to learn it says 0; that is a token: say -1", learner("pads with 0")),
    Wrong("it returns [batch, time, heads]; asked for is [batch, heads, time]", learner("heads last")),
    Wrong(of_kind("int", "float"), learner("floats")),
]  # fmt: skip

# 5.2


def board(fault: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def tree_mask(parents: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        batch, nodes = parents.shape
        mask = torch.eye(nodes + 1, dtype=torch.bool).repeat(batch, 1, 1)
        depths = torch.zeros(batch, nodes + 1, dtype=torch.int64)
        for row in range(batch):
            count = int((parents[row] >= 0).sum())
            at = [int(x) for x in parents[row, : nodes if fault == "pads" else count]]
            for i in range(len(at)):
                place, steps = i + 1, 0
                while place != 0 and steps <= nodes:
                    place = at[place - 1] if fault != "pads" else max(at[place - 1], 0)
                    mask[row, i + 1, place] = True
                    steps += 1
                    if fault == "parent only" or (fault == "four at most" and steps == 4):
                        break
                depths[row, i + 1] = 1 if fault == "parent only" and at[i] == 0 else steps
            if fault == "one sweep":
                mask[row] = torch.eye(nodes + 1, dtype=torch.bool)
                for i, parent in enumerate(at):
                    mask[row, i + 1] |= mask[row, parent]
                depths[row] = mask[row].sum(1) - 1
            if fault == "parents by node":
                mask[row] = torch.eye(nodes + 1, dtype=torch.bool)
                for i, parent in enumerate(at):
                    mask[row, i + 1, 0] = True
                    mask[row, i + 1] |= mask[row, min(parent + 1, nodes)]
        if fault == "causal":
            mask = torch.ones(nodes + 1, nodes + 1, dtype=torch.bool).tril().repeat(batch, 1, 1)
            pad = torch.cat((torch.zeros(batch, 1, dtype=torch.bool), parents < 0), 1)
            mask = (mask & ~pad[:, None] & ~pad[:, :, None]) | torch.eye(nodes + 1, dtype=torch.bool)
        if fault == "not itself":
            mask = mask & ~torch.eye(nodes + 1, dtype=torch.bool)
        if fault == "not the pending":
            mask[:, 1:, 0] = False
        if fault == "turned":
            mask = mask.transpose(1, 2)
        if fault == "by place":
            depths = torch.where(torch.cat((torch.zeros(batch, 1), parents), 1) >= 0, torch.arange(nodes + 1), 0)
        if fault == "without length":
            return mask, depths
        if fault == "one more":
            depths = depths + 1
        return (mask.double() if fault == "floats" else mask), lengths[:, None] + depths

    return tree_mask


MASK = [
    Wrong("it is the mask of a chain: a node sees its siblings, and they must not see each other", board("causal")),
    Wrong("a node sees its parent, but not what stands above that", board("parent only")),
    Wrong("it climbs four steps at most; a tree may be deeper", board("four at most")),
    Wrong("a node does not see itself", board("not itself")),
    Wrong("the nodes do not see the pending token, below which they all hang", board("not the pending")),
    Wrong("it is turned round: entry [i, j] says whether i sees j, not whether j sees i", board("turned")),
    Wrong("it goes through the nodes once, in order; a parent that stands behind its child is not finished by then", board("one sweep")),
    Wrong("it takes parents for numbers of nodes; they are block positions, and node i stands at i + 1", board("parents by node")),
    Wrong("it counts positions along the block; siblings stand at the same position, their depth below the pending token", board("by place")),
    Wrong("its positions begin at 0; the pending token stands behind all that the cache holds", board("without length")),
    Wrong("its positions are one too high; with n tokens in the cache, at positions 0 to n - 1, the pending token stands at n", board("one more")),
    Wrong("it takes padding for nodes below the pending token; padding sees itself alone", board("pads")),
    Wrong(of_kind("bool", "float"), board("floats")),
]  # fmt: skip

# 5.3


def filler(fault: str) -> Callable[..., tuple[Tensor, list[int]]]:
    def fill_tree(paths: list[list[int]], logits: Tensor, vocabulary: Tensor) -> tuple[Tensor, list[int]]:
        nodes = ordered(paths)
        if fault == "by alphabet":
            nodes = sorted(nodes)
        if fault == "as words":
            nodes = sorted(nodes, key=lambda path: (len(path), [str(rank) for rank in path]))
        if fault == "as given":
            nodes = [tuple(path) for path in paths]
        best = logits.argsort(-1, descending=fault != "ascending")
        if fault == "first row":
            best = best[:1].expand_as(best)
        columns = []
        for path in nodes:
            head = len(path) - 1
            if fault == "next head":
                head = min(len(path), logits.shape[1] - 1)
            if fault == "head 0":
                head = 0
            rank = path[0] if fault == "first rank" else path[-1]
            columns.append(best[:, head, rank])
        found = torch.stack(columns, 1) if columns else best.new_zeros(len(best), 0)
        parents = parents_of(nodes)
        if fault == "node numbers":
            parents = [at - 1 for at in parents]
        if fault == "chain":
            parents = list(range(len(nodes)))
        if fault == "root":
            parents = [0] * len(nodes)
        if fault == "last of the level":
            parents = [max([i + 1 for i, p in enumerate(nodes) if len(p) == len(q) - 1], default=0) for q in nodes]
        return found if fault == "columns" else vocabulary[found], parents

    return fill_tree


def sorts_paths(paths: list[list[int]], logits: Tensor, vocabulary: Tensor) -> tuple[Tensor, list[int]]:
    paths.sort(key=lambda path: (len(path), path))
    return filler("")(paths, logits, vocabulary)


FILL = [
    Wrong("it returns columns of the heads; `vocabulary` says which token each column stands for", filler("columns")),
    Wrong("a node at depth d gets its token from head d; it is head d - 1, for the first head guesses the first level", filler("next head")),
    Wrong("it asks head 0 at every depth; each level of the tree has a head of its own", filler("head 0")),
    Wrong("it takes the rank from the beginning of a path; the node's own rank stands last", filler("first rank")),
    Wrong("it takes the least likely tokens", filler("ascending")),
    Wrong("its parents are numbers of nodes; wanted are block positions: 0 is the pending token, node i stands at i + 1", filler("node numbers")),
    Wrong("each node hangs below the one before it; that is a chain", filler("chain")),
    Wrong("all nodes hang below the pending token; a path's parent is the path without its last rank", filler("root")),
    Wrong("each node hangs below the last one of the level above; its parent is its path without the last rank", filler("last of the level")),
    Wrong("its nodes are in the order of an alphabet; shorter paths come first", filler("by alphabet")),
    Wrong("it leaves the paths as they are given; shorter ones come first, equally long ones in the order of their ranks", filler("as given")),
    Wrong("it sorts ranks as words, so that 10 comes before 2; they are numbers", filler("as words")),
    Wrong("all rows get the guesses of the first row", filler("first row")),
    Wrong(changes("paths"), sorts_paths),
]  # fmt: skip

WRONG = {"5.1": TARGETS, "5.2": MASK, "5.3": FILL, "5.4": SHAPE, "5.5": LOOP}
