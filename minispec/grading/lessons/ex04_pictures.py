"""The pictures of lesson 4: what an answer does, drawn."""

from __future__ import annotations

import math
from typing import Any

from minispec import plots
from minispec.grading.lessons.ex04_cases import matched, places
from minispec.grading.lessons.toys import Table
from minispec.grading.pictures import Answer, Picture, attempt, strips

TEXT = [5, 6, 7, 8, 2, 5, 6, 9, 3, 5, 6]


def matches(answer: Answer) -> Picture:
    rows, lines = [], []
    for which in ("latest", "earliest"):
        found, why = attempt(answer, TEXT, 2, which)
        styles = ["kept" if i == found and isinstance(found, int) else "plain" for i in range(len(TEXT))]
        rows.append((f"{which}: {why or found}", list(zip(TEXT, [*styles[:-2], "own", "own"], strict=True))))
        lines.append(f"{which}: {why or found}")
    alt = "A text, twice, its last two tokens framed; filled is the token that the function says the match continues with."
    return (
        strips(rows, "Thick frame: the ending. Filled: where the match continues, says your function."),
        alt,
        "; ".join(lines),
    )


def tokens_of(found: Any) -> list[Any]:
    return found if isinstance(found, list) and all(isinstance(x, int) for x in found) else []


def guesses(answer: Answer) -> Picture:
    rows: list[tuple[str, list]] = []
    lines = []
    for text, left, eos in (
        (TEXT, 9, None),
        (TEXT, 3, None),
        (TEXT, 9, 3),
        ([5, 6, 7, 5, 6], 9, None),
        ([5, 6, 7], 9, None),
    ):
        found, why = attempt(answer, text, [3, 2], 4, left, eos)
        place = matched(text, 2, "latest")
        shown = [(x, "own" if i >= len(text) - 2 else "plain") for i, x in enumerate(text)]
        rows.append((f"text (left {left}, eos {eos}); match goes on at {place}", shown))
        rows.append((why or "your guesses", [*[("", "none")] * len(text), *[(x, "kept") for x in tokens_of(found)]]))
        lines.append(why or str(found))
    alt = "Five texts, their endings framed, and below each what the function guesses after it."
    return strips(rows, "Thick frame: the ending. Filled: what your function guesses."), alt, f"guesses: {'; '.join(lines)}"


def tables(answer: Answer) -> Picture:
    table, text, why = Table(), [5, 6, 7, 5, 6, 8], ""
    for start, end in ((0, 4), (4, 6)):
        _, why = attempt(answer, table, text[:start], text[start:end], [2])
    wanted = places(text, [2])
    rows: list[tuple[str, list]] = [("the text", [(x, "plain") for x in text])]
    for ngram in sorted({**wanted, **table._places}):
        mine = table._places.get(ngram)
        shown = [(x, "own" if i == mine else "plain") for i, x in enumerate(text)]
        rows.append((f"{list(ngram)}: noted {mine}, should be {wanted.get(ngram)}", shown))
    alt = "A text of six tokens, and for each pair of tokens the place that the function notes, framed in the text."
    figure = strips(
        rows, f"After [5, 6, 7, 5], then [6, 8]. Thick frame: the place that is noted{f' ({why})' if why else ''}."
    )
    noted = ", ".join(f"{list(ngram)} at {place}" for ngram, place in sorted(table._places.items()))
    return figure, alt, f"noted: {noted or why or 'nothing'}; wanted: {[[list(n), p] for n, p in sorted(wanted.items())]}"


def batches(answer: Answer) -> Picture:
    texts, active = [TEXT, [1, 2, 3, 4], [5, 6, 7, 5, 6]], [0, 2]
    noted = [Table(places(text, [3, 2])) for text in texts]
    found, why = attempt(answer, noted, texts, active, [9, 0, 9], 4, [3, 2], None)
    good = isinstance(found, list) and all(isinstance(row, list) for row in found)
    rows: list[tuple[str, list]] = []
    for i, request in enumerate(active):
        text = texts[request]
        rows.append((f"request {request}", [(x, "own" if j >= len(text) - 2 else "plain") for j, x in enumerate(text)]))
        draft = tokens_of(found[i]) if good and i < len(found) else []
        shown = [(x, "kept" if x >= 0 else "lost") for x in draft]
        rows.append((why or f"your row {i}", [*[("", "none")] * len(text), *shown]))
    alt = "Two requests of three, their endings framed, and below each the row that the function drafts; padding is struck out."
    figure = strips(rows, "Thick frame: the ending. Filled: your draft. Struck out: padding. Request 1 has ended.")
    return figure, alt, f"your drafts: {why or found}"


def lengths(answer: Answer) -> Picture:
    rounds = [[4, 4], [1, 0], [3, 2], [4, 0], [0, 0]]
    curves = {"flat": [0, 2, 2, 2, 2, 2], "rising": [0, 2, 2.25, 2.5, 4, 6], "n passes": [0, 2, 4, 6, 8, 10]}
    names, gains, lines = [], [], []
    for name, cost in curves.items():
        found, why = attempt(answer, rounds, cost)
        good = isinstance(found, list) and len(found) == 2 and all(isinstance(x, int | float) for x in found)
        gain = float(found[1]) if good and math.isfinite(found[1]) else 0.0
        names.append(f"{name}: {found[0] if good else '-'} tokens")
        gains.append(min(10.0, max(0.0, gain)))
        lines.append(f"{name}: {why or found}")
    title = "The best length that your function finds, and its gain, for three cost curves"
    figure = plots.bars({"plain decoding": [1.0] * 3, "your best length": gains}, names, title, "times as fast", level=1)
    return (
        figure,
        "For each of three cost curves a bar at 1, plain decoding, and one of the gain that the function finds.",
        "; ".join(lines),
    )
