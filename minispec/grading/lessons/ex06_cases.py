"""The cases of lesson 6: rows of training, a reduced vocabulary, the unrolled mask, a chain, a tree that grows by confidence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from minispec.grading.lessons.eagle_toys import D2T, Expand, PairReader, features_of, guesses_of
from minispec.grading.task import Answer, Case


def rows_of(tokens: Sequence[int], answer: Sequence[int], can: Sequence[int], step: int) -> dict[str, list]:
    """What one text teaches at a step, place by place."""
    found: dict[str, list] = {"inputs": [], "teachers": [], "counted": []}
    real = len([x for x in tokens if x >= 0])
    for place in range(len(tokens)):
        read, guessed = place + 1 + step, place + 2 + step
        found["inputs"].append(tokens[read] if read < real else -1)
        found["teachers"].append(read if read < real else -1)
        found["counted"].append(guessed < real and bool(answer[guessed]) and bool(can[tokens[guessed]]))
    return found


def training_cases() -> list[Case]:
    def case(about: str, rows: Sequence[tuple[list[int], Sequence[int]]], step: int, cannot: Sequence[int] = ()) -> Case:
        wide = max(len(tokens) for tokens, _ in rows)
        padded = [([*t, *[-1] * (wide - len(t))], [*a, *[0] * (wide - len(a))]) for t, a in rows]
        can = [x not in cannot for x in range(10)]
        tokens, answer = torch.tensor([t for t, _ in padded]), torch.tensor([a for _, a in padded]).bool()

        def run(answerer: Answer) -> list[Any]:
            parts = answerer(tokens, answer, torch.tensor(can), step)
            names = "inputs", "teachers", "counted"
            return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]

        want = [rows_of(t, a, can, step) for t, a in padded]
        says = lambda i: f"tokens {padded[i][0]}, answer {padded[i][1]}"
        extra = f", step {step}" + (f", {list(cannot)} cannot be drafted" if cannot else "")
        about = f"{about}: {says(0)}{extra}" if len(rows) == 1 else about + extra
        return Case(about, run, want, says if len(rows) > 1 else None)

    every = [([0, 4, 0, 7][:n], a) for n in (1, 2, 3, 4) for a in itertools.product((0, 1), repeat=n)]
    return [
        case("four tokens, all of them answer", [([5, 6, 7, 8], [1, 1, 1, 1])], 0),
        case("the second step", [([5, 6, 7, 8], [1, 1, 1, 1])], 1),
        case("the prompt has two tokens", [([5, 6, 7, 8], [0, 0, 1, 1])], 0),
        case("the answer ends before the text", [([5, 6, 7, 8, 9], [0, 1, 1, 0, 0])], 0),
        case("a token that cannot be drafted", [([5, 6, 7, 8], [1, 1, 1, 1])], 0, [7]),
        case("a token that cannot be drafted, at the second step", [([5, 6, 7, 8, 9], [1, 1, 1, 1, 1])], 1, [7, 9]),
        case("token 0 is a token", [([5, 0, 0, 8], [1, 1, 1, 1])], 0),
        case("a step beyond the text", [([5, 6], [1, 1])], 3),
        case("rows of different lengths", [([5, 6, 7, 8], [0, 1, 1, 1]), ([5, 6], [1, 1]), ([9, 8, 7], [1, 1, 1])], 1, [8]),
        *[case("every answer of up to four tokens, in one batch", every, step, [4]) for step in (0, 1, 2)],
    ]


def widened(logits: list[list[float]], d2t: Sequence[int], vocab: int) -> list[list[float]]:
    columns = {column + offset: column for column, offset in enumerate(d2t)}
    return [[row[columns[x]] if x in columns else -float("inf") for x in range(vocab)] for row in logits]


def vocabulary_cases() -> list[Case]:
    def case(about: str, d2t: list[int], vocab: int, logits: list[list[float]]) -> Case:
        given = torch.tensor(logits).double(), torch.tensor(d2t), vocab
        about = f"{about}: logits {logits}, d2t {d2t}, vocab {vocab}"
        return Case(about, lambda answer: answer(*given), widened(logits, d2t, vocab))

    generator = torch.Generator().manual_seed(2)
    wide = [[round(x, 3) for x in row] for row in torch.randn(3, len(D2T), generator=generator).tolist()]
    return [
        case("one token can be drafted", [2], 4, [[1.5]]),
        case("offsets are no ids", [0, 1, 1], 5, [[1.0, 2.0, 3.0]]),
        case("a gap, and one more", [1, 1, 3], 7, [[1.0, 2.0, 3.0]]),
        case("the whole vocabulary", [0, 0, 0], 3, [[1.0, -2.0, 0.5]]),
        case("the ids do not ascend", [4, 0, -2], 6, [[1.0, 2.0, 3.0]]),
        case("two rows, and logits below 0", [0, 2, 2], 6, [[-1.0, -2.0, -3.0], [0.0, 4.0, -5.0]]),
        case("three rows", D2T, 11, wide),
    ]


def sees(place: int, step: int, time: int) -> list[bool]:
    """Which keys the query of this place and step sees, step after step."""
    return [i <= place for i in range(time)] + [i == place for i in range(time)] * step


def unrolled_cases() -> list[Case]:
    def case(time: int, step: int) -> Case:
        def run(answer: Answer) -> dict[str, Any]:
            mask, positions = answer(time, step)
            cut = [[row[i : i + time] for i in range(0, len(row), time)] for row in mask]  # step by step, to be read
            return {"mask": cut, "positions": positions}

        want = {
            "mask": [
                [sees(place, step, time)[i : i + time] for i in range(0, (step + 1) * time, time)] for place in range(time)
            ],
            "positions": [place + s for s in range(step + 1) for place in range(time)],
        }
        return Case(f"time {time}, step {step}", run, want)

    return [case(time, step) for step in range(5) for time in range(1, 6)]


def chain_cases() -> list[Case]:
    text = [3, 1, 4, 1, 5, 9, 2, 6]

    def case(about: str, rounds: Sequence[tuple[list[int], int]]) -> Case:
        """Each round: the text by then, and how many guesses are wanted."""
        given = [(features_of(text), text, count, guesses_of(text, count)) for text, count in rounds]

        def run(answer: Answer) -> list[dict[str, Any]]:
            layer, read, found = PairReader(), 0, []
            for features, text, count, _ in given:
                before = len(layer._passes)
                guesses = answer(layer, read, features, text, count, torch.tensor(D2T))
                found.append({"guesses": guesses, "pairs read in each pass": layer._passes[before:]})
                read = len(text) - 1 if count else read
            return found

        want, read = [], 0
        for _, text, count, guesses in given:
            passes = [len(text) - 1 - read, *[1] * (count - 1)] if count else []
            want.append({"guesses": guesses, "pairs read in each pass": passes})
            read = len(text) - 1 if count else read
        says = lambda i: f"round {i + 1}, the text is {rounds[i][0]}, {rounds[i][1]} guesses wanted"
        return Case(f"{about}: {says(0)}" if len(rounds) == 1 else about, run, want, says if len(rounds) > 1 else None)

    def after(text: list[int], accepted: int, count: int, own: int) -> list[int]:
        """The text after a round that accepted so many of its guesses."""
        return [*text, *guesses_of(text, count)[:accepted], own]

    one = after(text, 1, 3, 10)
    whole = after(text, 3, 3, 3)
    return [
        case("the first round, one guess", [(text, 1)]),
        case("the first round", [(text, 3)]),
        case("a prompt of one token", [([4, 9], 3)]),
        case("no guess is wanted", [(text, 0)]),
        case("two rounds, no guess was accepted", [(text, 3), ([*text, 6], 3)]),
        case("two rounds, one guess was accepted", [(text, 3), (one, 3)]),
        case("two rounds, all guesses were accepted", [(text, 3), (whole, 3)]),
        case("three rounds", [(text, 4), (after(text, 2, 4, 0), 2), (after(after(text, 2, 4, 0), 1, 2, 7), 4)]),
        case("a round that wanted no guess, then one", [(text, 2), (one, 0), ([*one, 2, 2], 3)]),
    ]


def grown(expand: Expand, depth: int, top_k: int, nodes: int) -> list[list[int]]:
    """The paths of EAGLE-2's tree."""
    last: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    seen: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(depth):
        if not last:
            break
        below = []
        for (score, path), law in zip(last, expand([path for _, path in last]).tolist(), strict=True):
            children = sorted(range(len(law)), key=lambda x, law=law: -law[x])[:top_k]
            below += [(score + law[x], (*path, x)) for x in children if law[x] > -float("inf")]
        seen += below
        last = sorted(below, key=lambda node: -node[0])[:top_k]
    return sorted(list(path) for _, path in sorted(seen, key=lambda node: (-node[0], len(node[1])))[:nodes])


def tree_paths(tokens: Any, parents: Any) -> Any:
    """The paths of a tree's nodes, or what is wrong with it, in words."""
    paths: list[list[int]] = [[]]
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not (isinstance(parent, int) and 0 <= parent <= i):
            return f"node {i} names the parent {parent}, and that is no block position before its own"
        paths.append([*paths[parent], token])
    return sorted(paths[1:])


Laws = dict[tuple[int, ...], list[float]]


def tree_cases() -> list[Case]:
    def case(about: str, seed: int, depth: int, top_k: int, nodes: int, vocab: int = 5, laws: Laws | None = None) -> Case:
        reference = Expand(seed, vocab, laws or {})
        paths = grown(reference, depth, top_k, nodes)

        def run(answer: Answer) -> dict[str, Any]:
            expand = Expand(seed, vocab, laws or {})
            tokens, parents = answer(expand, depth, top_k, nodes)
            return {"paths": tree_paths(tokens, parents), "paths asked for in each call": expand._asked}

        want = {"paths": paths, "paths asked for in each call": reference._asked}
        first = [round(x, 3) for x in reference._law(()).exp().tolist()]
        about = f"{about}: depth {depth}, top_k {top_k}, nodes {nodes}; probabilities of the first token {first}"
        return Case(about, run, want)

    unsure: Laws = {(): [0.4, 0.35, 0.25], (0,): [0.2, 0.3, 0.5], (1,): [0.06, 0.9, 0.04], (2,): [0.5, 0.26, 0.24]}
    certain: Laws = {(): [0.7, 0.3], (0,): [0.0, 1.0], (0, 1): [1.0, 0.0], (1,): [0.4, 0.6]}
    ended: Laws = {(): [0.6, 0.4], (0,): [0.0, 0.0], (1,): [0.0, 0.0]}
    close: Laws = {(): [0.6, 0.4, 0.0], (0,): [0.5, 0.3, 0.2], (1,): [0.75 + 1e-9, 0.2, 0.05 - 1e-9]}
    tiny: Laws = {(): [1e-200, 2e-200, 1.0], (2,): [0.0] * 3, (1,): [3e-200, 0.0, 0.0], (0,): [0.0, 0.0, 9e-200]}
    return [
        case("one node", 1, 1, 1, 1),
        case("nothing can follow the first level", 0, 3, 2, 4, 2, ended),
        case("paths so unlikely that their probabilities are 0 in float64", 0, 2, 3, 4, 3, tiny),
        case("two paths that are nearly as likely", 0, 2, 2, 3, 3, close),
        case("one level", 1, 1, 3, 3),
        case("a chain", 2, 3, 1, 3),
        case("two levels, all that was seen stays", 3, 2, 2, 6),
        case("a child of the second is likelier than one of the first", 0, 2, 3, 5, 3, unsure),
        case("fewer nodes than one level", 0, 2, 3, 2, 3, unsure),
        case("a child that is certain: its parent stays before it", 0, 3, 2, 2, 2, certain),
        case("a child that is certain, and three places", 0, 3, 2, 3, 2, certain),
        case("a token of probability 0 is no candidate", 0, 3, 2, 20, 2, certain),
        case("fewer tokens than top_k", 4, 2, 4, 9, 2),
        case("more places than candidates", 5, 2, 2, 50),
        *[case("a tree", seed, 4, 3, nodes) for seed, nodes in ((6, 8), (7, 5), (8, 12), (9, 20))],
        case("a wide one", 10, 3, 4, 10, 8),
    ]
