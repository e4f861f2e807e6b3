"""Pictures of lesson 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minispec import plots
from minispec.grading.lessons.ex08_cases import LONGER
from minispec.grading.pictures import Answer, Picture, attempt
from minispec.grading.task import words
from minispec.plots import GREY, SMALL


def floats(found: Any, most: int) -> list[float]:
    """The numbers that an answer gives, at most so many, whatever it returned; at least one, so that something can be drawn."""
    found = found if isinstance(found, list) else []
    good = [float(x) if isinstance(x, float | int) and abs(x) < 1e6 else 0.0 for x in found[:most]]
    return good or [0.0]


def bars(
    answer: Answer, args: Sequence[Any], names: Sequence[str], title: str, y: str, given: str, level: float | None = None
) -> Picture:
    """The numbers that an answer returns, a bar each."""
    found, why = attempt(answer, *args)
    values = floats(found, len(names))
    values += [0.0] * (len(names) - len(values))
    figure = plots.bars({"your function": values}, names, f"{title}{f' ({why})' if why else ''}", y, level)
    axes = figure.axes[0]
    axes.set_ylim(0, 1.35 * max(*values, level or 0, 0.1))
    for i, value in enumerate(values):
        axes.text(i, max(value, 0), f" {value:.3g}", ha="center", va="bottom", fontsize=SMALL)
    alt = f"Bars of what the function returns for {given.split(':')[0]}: {', '.join(names)}.".replace("\n", " ")
    return figure, alt, f"{given}; returned: {why or words(found)}"


def rates(answer: Answer) -> Picture:
    title = "Acceptance by position, says your function"
    return bars(answer, [LONGER], ["1", "2", "3", "4"], title, "share accepted", f"ten rounds: {LONGER}", 1.0)


def four(answer: Answer) -> Picture:
    names = ["share of\nall drafted", "accepted\na round", "emitted\na round", "first\nguess"]
    return bars(
        answer, [LONGER], names, "Four numbers from the same rounds", "shares, and tokens", f"ten rounds: {LONGER}", 1.0
    )


def times(answer: Answer) -> Picture:
    passes = [[2.0, 1], [2.5, 4], [3.0, 1], [3.5, 2], [4.0, 4]]
    found, why = attempt(answer, passes)
    first, each, _ = [*floats(found, 3), 0.0, 0.0][:3]
    figure, axes = plots.blank(f"Tokens written against time{f' ({why})' if why else ''}")
    at, written = [0.0], [0]
    for moment, tokens in passes:
        at.append(moment)
        written.append(written[-1] + int(tokens))
    axes.step(at, written, where="post", label="what happened", color=plots.BLUE)
    if not why:
        steady = [first + each * i for i in range(written[-1])]
        label = "your first token, and one each so many seconds"
        axes.plot(steady, range(1, written[-1] + 1), "o--", color=plots.ORANGE, markersize=4, label=label)
    axes.set(xlabel="seconds since the request was sent", ylabel="tokens", xlim=(0, 6), ylim=(0, written[-1] + 4))
    axes.legend(fontsize=SMALL, frameon=False, loc="upper left")
    alt = "Steps: tokens written against time. Dots: the same number of tokens at the pace that the function returns."
    return figure, alt, f"passes: {passes}; returned: {why or words(found)}"


def lengths(answer: Answer) -> Picture:
    rates, cost = [0.8, 0.7, 0.8, 0.5], [0.0, 26.0, 28.0, 29.0, 30.0, 31.0]
    drafting, series, lines = (0.0, 2.0, 6.0, 20.0), {"best fixed length": [], "oracle": []}, []
    for draft_s in drafting:
        found, why = attempt(answer, rates, cost, draft_s)
        values = [*floats(found, 3), 0.0, 0.0, 0.0]
        series["best fixed length"].append(values[1])
        series["oracle"].append(values[2])
        lines.append(why or words(found))
    names = [f"drafting {draft_s:g}\n{line[1:2]} guesses" for draft_s, line in zip(drafting, lines, strict=True)]
    figure = plots.bars(series, names, "Speedup, as drafting a token gets dearer", "speedup", 1.0)
    figure.axes[0].set_ylim(0, 1.35 * max(1.0, *map(max, series.values())))
    alt = "Bars for four costs of drafting: the speedup of the best fixed length and of the oracle, as the function says."
    return figure, alt, f"rates {rates}, cost {cost}; returned for drafting {drafting}: {'; '.join(lines)}"


def pairs(answer: Answer) -> Picture:
    base = [[4.0, 4.2, 8.0, 8.4], [9.0, 9.0, 9.9, 12.0], [6.0, 6.6, 12.0, 12.0]]
    mine = [[3.0, 3.0, 6.0, 6.0], [6.0, 6.0, 6.6, 6.0], [6.0, 6.0, 12.0, 12.0]]
    ratios = [[a / b for a, b in zip(*row, strict=True)] for row in zip(base, mine, strict=True)]
    found, why = attempt(answer, base, mine)
    groups = {f"request {i}": [(x, float(i)) for x in row] for i, row in enumerate(ratios)}
    figure = plots.dots(groups, f"Each pair of runs{f' ({why})' if why else ''}", "baseline's time by mine", "request")
    axes = figure.axes[0]
    for name, value, dash in zip(("middle", "smallest", "largest"), floats(found, 3), ("-", ":", "--"), strict=False):
        axes.axvline(value, color=GREY, linestyle=dash, label=f"your {name}")
    axes.set_ylim(-0.5, 4.5)
    axes.set_yticks(range(3))
    axes.set_xlim(0.9, 2.6)
    axes.legend(fontsize=SMALL, frameon=False, ncols=2, loc="upper right")
    alt = "Dots: the ratio of each pair of runs, three requests. Lines: the middle, smallest and largest of the function."
    return figure, alt, f"baseline {base}, mine {mine}; returned: {why or words(found)}"


def claims(answer: Answer) -> Picture:
    ratios = [0.93, 1.02, 1.08, 1.1, 1.13, 1.17, 1.21, 1.25, 1.34, 1.46, 1.9, 2.6]
    figure, axes = plots.blank("The interval and the verdict of your function")
    lines = []
    for y, claim in enumerate((1.0, 1.15, 1.3, 1.6)):
        found, why = attempt(answer, ratios, claim)
        low, high, verdict = found if isinstance(found, list) and len(found) == 3 else (None, None, why)
        axes.plot(ratios, [y] * len(ratios), "o", color=plots.BLUE, markersize=4)
        axes.plot([claim] * 2, [y - 0.3, y + 0.3], color="black")
        if all(isinstance(x, float | int) and abs(x) < 1e6 for x in (low, high)):
            axes.plot([low, high], [y, y], color=plots.ORANGE, linewidth=6, alpha=0.5)
        axes.text(2.75, y, str(verdict)[:24], va="center", fontsize=SMALL)
        lines.append(f"claim {claim}: {why or words(found)}")
    axes.set_yticks(range(4), ["claim 1.0", "claim 1.15", "claim 1.3", "claim 1.6"])
    axes.set(xlabel="speedup of a request: dots; thick line: interval; upright line: the claim", xlim=(0.8, 3.6))
    alt = "Twelve speedups as dots, four times over; each time a claim, the interval that the function returns, and its verdict."
    return figure, alt, f"ratios {ratios}; {'; '.join(lines)}"
