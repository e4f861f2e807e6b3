"""The pictures of lesson 5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minispec import plots
from minispec.grading.pictures import PROMPT, Picture, attempt, loop_picture, strips

Answer = Callable[..., Any]


def sound(parents: Any) -> bool:
    """Are these parents of a tree, each before its children?"""
    return isinstance(parents, list) and all(isinstance(p, int) and 0 <= p <= i for i, p in enumerate(parents))


def drawing(parents: Any, labels: Sequence[str], why: str, alt: str, numbers: str) -> Picture:
    """A tree, or the reason why there is none."""
    if sound(parents) and len(labels) == len(parents):
        return plots.tree(parents, labels), alt, numbers
    return strips([(why or "no tree", [])], f"There is no tree to draw: {why or 'see the numbers'}"), alt, numbers


def learnt(answer: Answer) -> Picture:
    tokens, heads = [5, 6, 7, 8, 9, 4], 3
    found, why = attempt(answer, torch.tensor([tokens]), torch.tensor([[False, False, True, True, True, True]]), heads)
    rows: list[tuple[str, list]] = [("the text", [(x, "plain" if i < 2 else "own") for i, x in enumerate(tokens)])]
    good = isinstance(found, list) and len(found) == 1 and isinstance(found[0], list)
    good = good and all(isinstance(row, list) and len(row) <= 12 for row in found[0])
    for head, row in enumerate(found[0][:6] if good else []):
        rows.append((f"head {head} learns", [(x, "plain" if x == -1 else "kept") for x in row]))
    if not good:
        rows.append((why or "another form", []))
    alt = "A text, and below each of its places the token that each head learns to guess there, as the function says."
    figure = strips(rows, "Thick frame: the answer. Filled: what a head is to guess at that place; -1: nothing.")
    return figure, alt, f"text {tokens}, answer from place 2; targets: {why or found}"


def boards(answer: Answer) -> Picture:
    parents = [0, 0, 1, 2, 3]
    found, why = attempt(answer, torch.tensor([parents]), torch.tensor([7]))
    names = ["pending", *[f"node{i}" for i in range(len(parents))]]
    alt = "A board: a row a place of the block, a column a place that it may see; what the function lets it see is filled."
    numbers = f"parents {parents}, 7 tokens in the cache; {why or found}"
    rows = found[0][0] if isinstance(found, list) and len(found) == 2 and found[0] and isinstance(found[0], list) else None
    whole = isinstance(rows, list) and len(rows) == 6 and all(isinstance(row, list) and len(row) == 6 for row in rows)
    if whole and rows:
        words = ["".join(str(int(bool(x))) for x in row) for row in rows]
        numbers = f"parents {parents}, 7 tokens in the cache; rows {' '.join(words)}; positions {found[1]}"
        return plots.mask([[bool(x) for x in row] for row in rows], names, "A row sees where × is"), alt, numbers
    return strips([(why or "another form", [])], f"There is no mask to draw: {why or 'see the numbers'}"), alt, numbers


def filled(answer: Answer) -> Picture:
    paths, ids = [[0], [1], [0, 0], [0, 1], [1, 0]], [11, 12, 13, 14]
    logits = torch.tensor([[[1.0, 4.0, 3.0, 2.0], [4.0, 1.0, 2.0, 3.0]]])
    found, why = attempt(answer, paths, logits, torch.tensor(ids))
    good = isinstance(found, list) and len(found) == 2 and isinstance(found[0], list) and len(found[0]) == 1
    tokens, parents = (found[0][0], found[1]) if good else ([], None)
    labels = [str(x) for x in tokens] if isinstance(tokens, list) else []
    alt = "The tree of tokens that the function makes from the guesses of two heads, from left to right."
    heads = "head 0 guesses 12, 13, 14, 11; head 1 guesses 11, 14, 13, 12"
    return drawing(parents, labels, why, alt, f"{heads}; paths {paths}; {why or found}")


def shaped(answer: Answer) -> Picture:
    from minispec.grading.lessons.ex05_cases import RATES, ordered, parents_of, worth

    cost = [1 + 0.1 * n for n in range(13)]
    found, why = attempt(answer, RATES, cost, 12)
    alt = "The tree that the function chooses, from left to right; at each node its path of ranks and what it is worth."
    try:
        paths = ordered(found or [])
        labels = [f"{''.join(map(str, path))}:{worth(RATES, path):.2f}" for path in paths]
        parents = parents_of(paths)
    except (TypeError, KeyError, IndexError, ValueError):
        return drawing(None, [], why, alt, f"rates {RATES}; found: {why or str(found)[:200]}")
    ratio = (1 + sum(worth(RATES, path) for path in paths)) / cost[min(len(paths), 12)]
    numbers = f"rates {RATES}, a token more costs a tenth; {len(paths)} nodes, tokens for their cost {ratio:.3f}"
    return drawing(parents, labels, why, alt, numbers + (f"; {why}" if why else ""))


def rounds(answer: Answer) -> Picture:
    from minispec.grading.lessons.ex05_cases import PATHS
    from minispec.grading.lessons.toys import continuation
    from minispec.grading.lessons.tree_toys import VOCABULARY, Heads, TreeReader

    wanted = continuation(0, tuple(PROMPT), 14)
    target, heads = TreeReader(0), Heads(0, [*PROMPT, *wanted], ["01x", "10x", "000"])
    found, why = attempt(answer, target, heads, torch.tensor(VOCABULARY), [list(path) for path in PATHS], PROMPT, 10)
    return loop_picture(found, why, wanted[:10], target._passes)
