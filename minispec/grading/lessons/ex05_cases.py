"""The cases of lesson 5: what heads learn, the mask of a tree, its tokens, its shape, and the loop over trees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from minispec.grading.lessons.toys import continuation
from minispec.grading.lessons.tree_toys import VOCABULARY, Heads, TreeReader
from minispec.grading.task import Answer, Case

PROMPT = (3, 1, 4, 1, 5)
PATHS = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))


def targets(tokens: Sequence[int], answer: Sequence[bool], head: int) -> list[int]:
    """What a head is to guess at each place of one row; -1: nothing."""
    at = range(head + 2, len(tokens) + head + 2)
    return [tokens[i] if i < len(tokens) and answer[i] else -1 for i in at]


def target_cases() -> list[Case]:
    def case(about: str, rows: Sequence[tuple[list[int], Sequence[int]]], heads: int) -> Case:
        wide = max(len(tokens) for tokens, _ in rows)
        padded = [([*t, *[-1] * (wide - len(t))], [*map(bool, a), *[False] * (wide - len(a))]) for t, a in rows]
        run = lambda answer: answer(torch.tensor([t for t, _ in padded]), torch.tensor([a for _, a in padded]), heads)
        want = [[targets(t, a, head) for head in range(heads)] for t, a in padded]
        says = [f"tokens {t}, answer {[int(x) for x in a]}" for t, a in padded]
        if len(rows) == 1:
            return Case(f"{about}: {says[0]}, {heads} heads", run, want)
        return Case(f"{about}, {heads} heads; [head][place]", run, want, lambda i: says[i])

    every = [([0, 4, 0, 7][:n], list(a)) for n in (1, 2, 3, 4) for a in itertools.product((0, 1), repeat=n)]
    return [
        case("four tokens, all of them answer", [([5, 6, 7, 8], [1, 1, 1, 1])], 1),
        case("two heads", [([5, 6, 7, 8, 9], [1, 1, 1, 1, 1])], 2),
        case("the prompt has two tokens", [([5, 6, 7, 8, 9], [0, 0, 1, 1, 1])], 2),
        case("something follows the answer that is none", [([5, 6, 7, 8, 9], [0, 1, 1, 0, 0])], 2),
        case("token 0 is a token", [([5, 6, 0, 8], [1, 1, 1, 1])], 1),
        case("fewer tokens than a head looks ahead", [([5, 6], [1, 1])], 3),
        case("rows of different lengths", [([5, 6, 7, 8], [0, 1, 1, 1]), ([5, 6], [1, 1]), ([9, 8, 7], [1, 1, 1])], 2),
        case("every answer of up to four tokens, in one batch", every, 3),
    ]


def line_of(parents: Sequence[int], node: int) -> list[int]:
    """The block positions from one up to the pending token."""
    line = [node]
    while line[-1] != 0:
        line.append(parents[line[-1] - 1])
    return line


def forests(nodes: int) -> list[tuple[int, ...]]:
    """The parents of every tree of so many nodes below the pending token, in every order of its nodes."""

    def hangs_together(parents: Sequence[int]) -> bool:
        seen = {0}
        for _ in parents:
            seen |= {i + 1 for i, parent in enumerate(parents) if parent in seen}
        return len(seen) == len(parents) + 1

    return [parents for parents in itertools.product(range(nodes + 1), repeat=nodes) if hangs_together(parents)]


def seen_of(parents: Sequence[int], wide: int, length: int) -> dict[str, Any]:
    """The mask of one row, and the positions."""
    lines = [line_of(parents, i) if i <= len(parents) else [i] for i in range(wide + 1)]
    mask = [[j in line for j in range(wide + 1)] for line in lines]
    depths = [len(line) - 1 if i <= len(parents) else 0 for i, line in enumerate(lines)]
    return {"mask": mask, "positions": [length + depth for depth in depths]}


def mask_cases() -> list[Case]:
    def case(about: str, rows: Sequence[Sequence[int]], lengths: list[int]) -> Case:
        wide = max(map(len, rows))
        padded = torch.tensor([[*row, *[-1] * (wide - len(row))] for row in rows], dtype=torch.int64).view(len(rows), wide)

        def run(answer: Answer) -> list[Any]:
            mask, positions = answer(padded, torch.tensor(lengths))
            return [{"mask": board, "positions": at} for board, at in zip(mask, positions, strict=True)]

        want = [seen_of(row, wide, length) for row, length in zip(rows, lengths, strict=True)]
        says = lambda i: f"parents {padded[i].tolist()}, length {lengths[i]}"
        return Case(f"{about}: {says(0)}" if len(rows) == 1 else about, run, want, says if len(rows) > 1 else None)

    every = [parents for n in (0, 1, 2, 3) for parents in forests(n)]
    return [
        case("no draft: the pending token alone", [()], [5]),
        case("a chain of two", [(0, 1)], [5]),
        case("two siblings, and one more below the first", [(0, 0, 1)], [5]),
        case("a node that stands before its parent", [(2, 0)], [5]),
        case("a chain that stands backwards", [(2, 3, 0)], [0]),
        case("two rows, one padded", [(0, 0, 2), (0,)], [5, 9]),
        case("two rows, one without a draft", [(0,), ()], [4, 3]),
        case("every tree of up to three nodes, in one batch", every, [7 * (i % 3) for i in range(len(every))]),
        case("a chain of six", [(0, 1, 2, 3, 4, 5)], [2]),
        case("every tree of four nodes", forests(4), [3] * len(forests(4))),
    ]


def ordered(paths: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    return sorted(map(tuple, paths), key=lambda path: (len(path), path))


def parents_of(paths: Sequence[tuple[int, ...]]) -> list[int]:
    place = {(): 0} | {path: i + 1 for i, path in enumerate(paths)}
    return [place[path[:-1]] for path in paths]


def fill_cases() -> list[Case]:
    generator = torch.Generator().manual_seed(5)

    def case(about: str, paths: Sequence[Sequence[int]], ids: list[int], batch: int = 1, heads: int = 3) -> Case:
        logits = torch.stack([torch.randperm(len(ids), generator=generator) for _ in range(batch * heads)])
        logits = logits.view(batch, heads, len(ids)).double()
        ranked = logits.argsort(-1, descending=True).tolist()
        nodes = ordered(paths)
        tokens = [[ids[row[len(path) - 1][path[-1]]] for path in nodes] for row in ranked]
        given = [list(path) for path in paths], logits, torch.tensor(ids)

        def run(answer: Answer) -> dict[str, Any]:
            mine, parents = answer(*given)
            return {"tokens": mine, "parents": parents}

        best = "; ".join(str([[ids[c] for c in head[:3]] for head in row]) for row in ranked)
        about = f"{about}: paths {given[0]}, the three likeliest ids of each head {best}"
        return Case(about, run, {"tokens": tokens, "parents": parents_of(nodes)})

    ids = [2, 3, 5, 7]
    return [
        case("one node", [[0]], ids, heads=1),
        case("two siblings", [[0], [1]], ids, heads=1),
        case("a chain of three", [[0], [0, 0], [0, 0, 0]], ids),
        case("the same rank below two parents", [[0], [1], [0, 0], [1, 0]], ids),
        case("another rank at each depth", [[2], [2, 1], [2, 1, 0]], ids),
        case("the order in which paths are given says nothing", [[0, 0], [1], [0, 0, 0], [0]], ids),
        case("a longer path before a shorter one in the alphabet", [[0], [0, 1], [1], [0, 0]], ids),
        case("two rows", [[0], [1], [0, 0], [1, 1]], ids, batch=2),
        case("the ids of the columns are not in order", PATHS, [9, 0, 4, 8, 1], batch=3),
        case("no paths", [], ids, batch=2),
        case("rank 10 stands behind rank 2", [[rank] for rank in range(11)], [*range(12)], heads=1),
    ]


def worth(rates: Sequence[Sequence[float]], path: Sequence[int]) -> float:
    return math.prod(rates[depth][rank] for depth, rank in enumerate(path))


def best_tree(rates: Sequence[Sequence[float]], cost: Sequence[float], most: int) -> list[list[int]]:
    """By sorting every path there is; a path is worth less than its beginnings, so the first n always hang together."""
    every = [path for n in range(1, len(rates) + 1) for path in itertools.product(*(range(len(row)) for row in rates[:n]))]
    every.sort(key=lambda path: -worth(rates, path))
    gains = [1 + sum(worth(rates, path) for path in every[:n]) for n in range(min(most, len(every)) + 1)]
    best = max(range(len(gains)), key=lambda n: gains[n] / cost[n])
    return sorted(map(list, every[:best]))


RATES = [[0.6, 0.21, 0.07], [0.45, 0.16, 0.11], [0.31, 0.13, 0.05]]


def shape_cases() -> list[Case]:
    def case(about: str, rates: list[list[float]], cost: list[float], most: int) -> Case:
        run = lambda answer: sorted([list(path) for path in answer(rates, cost, most)])
        return Case(f"{about}: rates {rates}, cost {cost}, most {most}", run, best_tree(rates, cost, most))

    flat, steps = [1.0] * 20, [1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 1.6, 1.6, 1.6, 1.6, 1.6, 1.6]
    return [
        case("one head with one rank, and it pays", [[0.5]], [1.0, 1.2], 1),
        case("one head with one rank, and it does not pay", [[0.5]], [1.0, 1.6], 1),
        case("a pass costs the same whatever it reads", [[0.6, 0.3], [0.5]], flat, 3),
        case("a second rank is worth more than a second depth", [[0.5, 0.4], [0.3]], flat, 2),
        case("a second depth is worth more than a second rank", [[0.7, 0.2], [0.5]], flat, 2),
        case("sure of the second token only if the first is right", [[0.2, 0.15], [0.9, 0.05]], flat, 3),
        case("each token more costs a quarter", RATES, [1 + 0.25 * n for n in range(13)], 12),
        case("each token more costs a tenth", RATES, [1 + 0.1 * n for n in range(13)], 12),
        case("each token more costs three hundredths", RATES, [1 + 0.03 * n for n in range(13)], 12),
        case("a pass costs in steps: what does not pay alone may pay with others", RATES, steps, 12),
        case("a first step that is too high", [[0.4, 0.3]], [1.0, 1.5, 1.6], 2),
        case("a later rank is the likelier one", [[0.1, 0.8], [0.3, 0.5]], [1.0, 1.2, 1.5, 4.0], 3),
        case("four heads, the last hardly ever right", [[0.9], [0.8], [0.7], [0.01]], flat, 4),
        case("three nodes pay, one or two do not", [[0.9], [0.8], [0.7]], [1.0, 2.0, 3.0, 1.2], 3),
        case("nothing pays", [[0.3, 0.2], [0.3]], [1.0, 2.0, 3.0, 4.0], 3),
        case("more room than there are nodes", [[0.5, 0.3]], flat, 9),
    ]


def loop_cases() -> list[Case]:
    def case(about: str, script: Sequence[str], most: int, paths: Any = PATHS, prompt: Sequence[int] = PROMPT) -> Case:
        wanted = continuation(0, tuple(prompt), most + 4)
        heads, end = Heads(0, [*prompt, *wanted], script), len(prompt)

        def run(answer: Answer) -> dict[str, Any]:
            target = TreeReader(0)
            emitted = answer(target, heads, torch.tensor(VOCABULARY), [list(p) for p in paths], list(prompt), most)
            return {"emitted by each pass": emitted, "tokens read in each pass": target._passes}

        texts, read, done = [wanted[:1]], [end], 1
        while done < most:
            ranks = script[(end + done - 2) % len(script)]
            fitting = [path for path in paths if len(path) < most - done]
            n = max((len(p) for p in fitting if "".join(map(str, p)) == ranks[: len(p)]), default=0)
            texts.append(wanted[done : done + n + 1])
            read.append(1 + len(fitting))
            done += n + 1
        return Case(f"{about}: {most} tokens", run, {"emitted by each pass": texts, "tokens read in each pass": read})

    return [
        case("one token only", ["000"], 1),
        case("no tree at all", ["000"], 4, ()),
        case("the heads are never right", ["xxx"], 5),
        case("one head, its likeliest guess right", ["0"], 6, ((0,), (1,))),
        case("one head, its second guess right", ["1"], 6, ((0,), (1,))),
        case("the likeliest guesses are right, three deep", ["000"], 9),
        case("the second guess, then the first", ["10x"], 9),
        case("the first guess, then the second", ["01x"], 9),
        case("right, but in no path of the tree", ["11x", "02x"], 6),
        case("now this branch, now that", ["01x", "10x", "000", "xxx", "1xx"], 20),
        case("the tree is deeper than what may still be emitted", ["000"], 3),
        case("paths in another order", ["10x", "000"], 12, ((0, 0, 0), (1, 0), (0,), (0, 0), (1,))),
        case("a prompt of one token", ["000", "10x"], 10, PATHS, (4,)),
    ]
