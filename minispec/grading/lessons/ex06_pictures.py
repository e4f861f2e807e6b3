"""The pictures of lesson 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minispec import plots
from minispec.grading.lessons.ex05_pictures import drawing
from minispec.grading.pictures import Picture, attempt, laws, strips

Answer = Callable[..., Any]


def pairs(answer: Answer) -> Picture:
    tokens, marks = [5, 6, 7, 8, 9, 4], [False, False, True, True, True, True]
    rows: list[tuple[str, list]] = [("the text", [(x, "own" if m else "plain") for x, m in zip(tokens, marks, strict=True)])]
    lines = []
    for step in (0, 1):
        found, why = attempt(answer, torch.tensor([tokens]), torch.tensor([marks]), torch.ones(10, dtype=torch.bool), step)
        good = isinstance(found, list) and len(found) == 3 and all(isinstance(x, list) and len(x) == 1 for x in found)
        parts = [x[0] for x in found] if good else []
        if good and all(isinstance(x, list) and len(x) == len(tokens) for x in parts):
            read, teachers, counted = parts
            rows.append((f"step {step} reads", [(x, "kept" if c else "plain") for x, c in zip(read, counted, strict=True)]))
            learns = [(x, "kept" if c else "plain") for x, c in zip(teachers, counted, strict=True)]
            rows.append(("its teacher's place", learns))
        else:
            rows.append((why or "another form", []))
        lines.append(f"step {step}: {why or found}")
    alt = "A text, and below each place the token that each step reads with that place's feature, and its teacher's place."
    return strips(rows, "Thick frame: the answer. Filled: places that count."), alt, "; ".join(lines)


def wide(answer: Answer) -> Picture:
    logits, d2t = torch.tensor([[0.5, 2.0, 1.0]]).double(), torch.tensor([1, 1, 3])
    found, why = attempt(answer, logits, d2t, 7)
    row = found[0] if isinstance(found, list) and found and isinstance(found[0], list) else []
    good = bool(row) and all(isinstance(x, float | int) for x in row) and max(row) > -float("inf")
    mine = torch.tensor(row).double().softmax(0).tolist() if good else None
    series = {"right": [0.0, *logits[0].softmax(0)[:2].tolist(), 0, 0, logits[0].softmax(0)[2].item(), 0], "yours": mine}
    alt = "Bars: the probability of each of seven tokens, as it should be, and from the logits of the function."
    figure, alt, numbers = laws(series, "Softmax of the widened logits; a to g are tokens 0 to 6", why, alt)
    return figure, alt, f"logits 0.5 2.0 1.0, d2t 1 1 3; {numbers}"


def board(answer: Answer) -> Picture:
    time, step = 4, 2
    found, why = attempt(answer, time, step)
    rows = found[0] if isinstance(found, list) and len(found) == 2 else None
    good = isinstance(rows, list) and len(rows) == time
    good = good and all(isinstance(row, list) and len(row) == time * (step + 1) for row in rows or [])
    alt = "A board: a row a query of step 2, a column a key of steps 0, 1 and 2; what the function lets it see is filled."
    numbers = f"time 4, step 2; {why or found}"
    if good and rows:
        words = ["".join(str(int(bool(x))) for x in row) for row in rows]
        numbers = f"time 4, step 2; rows {' '.join(words)}; positions {found[1]}"
        names = [f"{s}/{i}" for s in range(step + 1) for i in range(time)]
        return plots.mask([[bool(x) for x in row] for row in rows], names, "A row sees where × is: step/place"), alt, numbers
    return strips([(why or "another form", [])], f"There is no mask to draw: {why or 'see the numbers'}"), alt, numbers


def chain(answer: Answer) -> Picture:
    from minispec.grading.lessons.eagle_toys import D2T, PairReader, features_of, guesses_of

    text, layer, read = [3, 1, 4, 1, 5, 9, 2, 6], PairReader(), 0
    rows: list[tuple[str, list]] = []
    lines = []
    for number in (1, 2):
        wanted = guesses_of(text, 3)
        found, why = attempt(answer, layer, read, features_of(text), text, 3, torch.tensor(D2T))
        guesses = found if isinstance(found, list) else []
        rows.append((f"round {number}: the text", [(x, "plain") for x in text]))
        right = [(x, "kept" if wanted[i : i + 1] == [x] else "lost") for i, x in enumerate(guesses[:9])]
        rows.append((why or "your guesses", [("", "none")] * len(text) + right))
        rows.append(("without a cache", [("", "none")] * len(text) + [(x, "own") for x in wanted]))
        lines.append(f"round {number}: {why or found}, without a cache {wanted}")
        read, text = len(text) - 1, [*text, wanted[0], 1]
    alt = "Two rounds: the text, the guesses of the function, and those of a layer that reads everything anew."
    figure = strips(rows, "Filled: as a layer without a cache guesses. Struck out: another token.")
    return figure, alt, f"{'; '.join(lines)}; pairs read in each pass: {layer._passes}"


def tree(answer: Answer) -> Picture:
    from minispec.grading.lessons.eagle_toys import Expand
    from minispec.grading.lessons.ex06_cases import grown, tree_paths

    expand, reference = Expand(6, 5, {}), Expand(6, 5, {})
    found, why = attempt(answer, expand, 3, 3, 7)
    alt = "The tree that the function grows, from left to right; at each node its token and the probability of its path."
    wanted = f"wanted paths {grown(reference, 3, 3, 7)}"
    try:
        tokens, parents = found
        assert isinstance(tree_paths(tokens, parents), list)
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*paths[parent], token))
        chances = [sum(float(expand._law(path[:i])[path[i]]) for i in range(len(path))) for path in paths[1:]]
        labels = [f"{path[-1]}:{torch.tensor(x).exp():.2f}" for path, x in zip(paths[1:], chances, strict=True)]
    except (TypeError, ValueError, IndexError, AssertionError, RuntimeError):
        return drawing(None, [], why, alt, f"{wanted}; yours {why or str(found)[:200]}")
    return drawing(parents, labels, why, alt, f"{wanted}; yours {sorted(map(list, paths[1:]))}")
