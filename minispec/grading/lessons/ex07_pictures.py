"""Pictures of lesson 7."""

from __future__ import annotations

from typing import Any

from minispec import plots
from minispec.grading.pictures import Answer, Picture, attempt, strips
from minispec.grading.task import words


def lists(found: Any, rows: int) -> list[list[Any]]:
    """A list of as many lists, whatever an answer returned."""
    return [row for row in found if isinstance(row, list)] if isinstance(found, list) and len(found) == rows else []


def blocks(answer: Answer) -> Picture:
    pending, drafts, lengths = [5, 6, 8], [[7, 2, 1], [], [3]], [4, 9, 6]
    found, why = attempt(answer, pending, drafts, lengths)
    both = [lists(part, 3) for part in lists(found, 2)]
    rows: list[tuple[str, list]] = []
    for i, (first, draft, n) in enumerate(zip(pending, drafts, lengths, strict=True)):
        rows.append((f"row {i}: {n} in the cache", [(first, "own"), *[(x, "plain") for x in draft]]))
        for name, part in zip(("tokens", "positions"), both, strict=False):
            rows.append((f"your {name}", [(x, "kept" if x != -1 else "plain") for x in (part[i] if i < len(part) else [])]))
    title = f"Thick frame: the pending token. Below each row, what your function makes of it{f' ({why})' if why else ''}"
    alt = "Three rows: pending token and draft, and below them the tokens and positions that the function returns."
    return strips(rows, title), alt, f"tokens and positions: {why or words(found)}"


def seen(answer: Answer) -> Picture:
    lengths, counts, slots = [4, 2], [2, 3], 8
    found, why = attempt(answer, lengths, counts, slots)
    mask = lists(found, 2)
    rows, sets = [], []
    for row, (n, count) in enumerate(zip(lengths, counts, strict=True)):
        for i in range(max(counts)):
            at = mask[row][i] if row < len(mask) and i < len(mask[row]) and isinstance(mask[row][i], list) else []
            sees = [s for s in range(slots) if s < len(at) and at[s] in (1, True)]
            what = ["text"] * n + ["new"] * count + ["old"] * (slots - n - count)
            rows.append(
                (
                    f"row {row}, {f'token {i}' if i < count else 'padding'}",
                    [(w, "kept" if s in sees else "plain") for s, w in enumerate(what)],
                )
            )
            sets.append(sees)
    title = f"A box a slot; filled: seen by that token. old: leftovers of rejected guesses{f' ({why})' if why else ''}"
    alt = "Two rows of three tokens, and for each token the eight slots of the cache, filled where the function lets it see."
    return strips(rows, title), alt, f"slots seen by each token: {why or sets}"


def rolls(answer: Answer) -> Picture:
    from minispec.grading.lessons.ex07_toys import Die

    dice, rows, lines = [Die(request) for request in range(3)], [], []
    for at, (requests, counts) in enumerate((([0, 1, 2], [2, 0, 1]), ([2, 1], [1, 2]))):
        found, why = attempt(answer, dice, requests, counts)
        numbers = lists(found, len(requests))
        for row, (request, n) in enumerate(zip(requests, counts, strict=True)):
            values = [x for x in (numbers[row] if row < len(numbers) else []) if isinstance(x, float | int)]
            cells = [(f"{x:.2f}", "kept" if j <= n else "plain") for j, x in enumerate(values[:9])]
            rows.append((f"round {at + 1}: request {request}, {n} guesses", cells))
        lines.append(why or words(found))
    title = "Request 0 ends after the first round. Its numbers: 0.10, 0.11, ...; request 1: 0.20, ..."
    alt = "The random numbers that the function gives to the rows of two rounds; request 0 ends after the first one."
    return strips(rows, title), alt, f"numbers: {'; '.join(lines)}"


def loops(answer: Answer) -> Picture:
    from minispec.grading.lessons.ex07_cases import END, A, B, C
    from minispec.grading.lessons.ex07_toys import Drafters, Rows
    from minispec.grading.lessons.toys import continuation

    prompts, target = [A, B, C], Rows(0)
    wanted = [continuation(0, prompt, 9) for prompt in prompts]
    found, why = attempt(
        answer, target, Drafters(wanted, prompts, ["rw", "rr", "rr"]), [list(p) for p in prompts], 9, 2, END
    )
    mine, rows = lists(found, 3), []
    for i, alone in enumerate(wanted):
        alone = alone[: alone.index(END) + 1] if END in alone else alone
        rows.append((f"request {i} alone", [(x, "plain") for x in alone]))
        tokens = mine[i][:14] if i < len(mine) else []
        cells = [(x, "kept" if alone[j : j + 1] == [x] else "lost") for j, x in enumerate(tokens)]
        rows.append((why or "in your batch", cells))
    alt = (
        "Three requests: what the target writes alone, and what the function writes in a batch; what differs is struck out."
    )
    numbers = f"written: {why or words(found)}; rows and width of each pass: {target._shapes[:20]}"
    return strips(rows, f"Filled: as alone. Struck out: another token. Token {END} ends a text."), alt, numbers


def batches(answer: Answer) -> Picture:
    curve = [[1, 26.0], [4, 43.0], [8, 56.0], [16, 58.0], [32, 72.0], [64, 109.0]]
    kinds, found, why = [(1, 1.4), (2, 1.7), (4, 1.9), (7, 2.0)], [], ""
    for count, emitted in kinds:
        batch, why = attempt(answer, curve, count, emitted, 12.0)
        found.append(float(batch) if isinstance(batch, float | int) and 0 <= batch <= 999 else 0.0)
    figure = plots.bars(
        {"your largest batch": found, "most that the curve covers": [64 // (1 + count) for count, _ in kinds]},
        [f"{count} drafted,\n{emitted} emitted" for count, emitted in kinds],
        f"The largest batch at which drafting pays, says your function{f' ({why})' if why else ''}",
        "requests in the batch",
    )
    alt = "Bars for four draft lengths: the largest batch at which drafting pays, and the largest that the curve covers."
    return figure, alt, f"curve {curve}, drafting 12; largest batch for {kinds}: {why or words(found)}"
