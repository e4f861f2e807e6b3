"""The cases of lesson 8: acceptance by position, four numbers of one name, times, the best length, paired ratios, a claim."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from minispec import theory
from minispec.grading.task import Case

Rounds = list[list[int]]  # drafted, accepted, emitted


def named(found: Any, *names: str) -> dict[str, Any]:
    """The parts of an answer by name. Raises ValueError if there are not as many."""
    if not isinstance(found, list) or len(found) != len(names):
        raise ValueError
    return dict(zip(names, found, strict=True))


def by_position(rounds: Rounds) -> list[float]:
    rates: list[float] = []
    while tried := [a for n, a, _ in rounds if min(n, a + 1) > len(rates)]:
        rates.append(sum(a > len(rates) for a in tried) / len(tried))
    return rates


def every_trace(cut: bool) -> list[Rounds]:
    """All traces of one and two rounds that draft up to two tokens; `cut`: those that end inside the last draft."""
    whole = [[n, a, a + 1] for n in range(3) for a in range(n + 1)]
    ends = [[1, 1, 1], [2, 2, 2]] if cut else whole
    return [[end] for end in ends] + [[first, end] for first in whole for end in ends]


LONGER = [[4, 4, 5], [4, 1, 2], [4, 0, 1], [4, 2, 3], [0, 0, 1], [2, 2, 3], [1, 0, 1], [4, 3, 4], [1, 1, 2], [3, 3, 3]]


def trace_cases(of: Callable[[Rounds], Any], shaped: Callable[[Any], Any], own: Sequence[tuple[str, Rounds]]) -> list[Case]:
    """Small traces of a task's own, then all very small ones, then a longer one."""

    def case(about: str, rounds: Rounds) -> Case:
        return Case(f"{about}: rounds {rounds}", lambda answer: shaped(answer(rounds)), of(rounds))

    def every(about: str, traces: list[Rounds]) -> Case:
        run = lambda answer: [shaped(answer(rounds)) for rounds in traces]
        return Case(about, run, [of(rounds) for rounds in traces], lambda i: f"rounds {traces[i]}")

    return [
        *[case(about, rounds) for about, rounds in own],
        every("every trace of two rounds that draft up to two tokens", every_trace(False)),
        every("the text ends inside the last draft", every_trace(True)),
        case("ten rounds", LONGER),
    ]


def position_cases() -> list[Case]:
    own = [
        ("one round, all accepted", [[2, 2, 3]]),
        ("one round, the first guess rejected", [[3, 0, 1]]),
        ("no draft at all", [[0, 0, 1], [0, 0, 1]]),
        ("the second guess is tried in one round of two", [[2, 2, 3], [2, 0, 1]]),
        ("a short draft, all accepted", [[1, 1, 2], [2, 2, 3], [2, 1, 2]]),
    ]
    return trace_cases(by_position, lambda found: found, own)


def four(rounds: Rounds) -> dict[str, float]:
    drafted, accepted, emitted = (sum(column) for column in zip(*rounds, strict=True))
    firsts = [a > 0 for n, a, _ in rounds if n]
    return {
        "share": accepted / drafted if drafted else 0.0,
        "accepted a round": accepted / len(rounds),
        "emitted a round": emitted / len(rounds),
        "first guess": sum(firsts) / len(firsts) if firsts else 0.0,
    }


def four_cases() -> list[Case]:
    own = [
        ("one round, all accepted", [[2, 2, 3]]),
        ("one round, one of two accepted", [[2, 1, 2]]),
        ("no draft at all", [[0, 0, 1], [0, 0, 1]]),
        ("a round without a draft", [[2, 1, 2], [0, 0, 1]]),
        ("drafts of different length", [[4, 4, 5], [1, 0, 1]]),
        ("the text ends inside the draft", [[2, 2, 3], [2, 2, 2]]),
    ]
    return trace_cases(four, lambda found: named(found, "share", "accepted a round", "emitted a round", "first guess"), own)


def times_cases() -> list[Case]:
    def case(about: str, passes: list[list[float]]) -> Case:
        first, last, tokens = passes[0][0], passes[-1][0], sum(n for _, n in passes[1:])
        rounds = len(passes) - 1
        want = [first, (last - first) / tokens if tokens else 0.0, tokens / rounds if rounds else 0.0]
        names = "first token", "each token after", "tokens a pass"
        run = lambda answer: named(answer(passes), *names)
        return Case(f"{about}: passes {passes}", run, named(want, *names))

    return [
        case("the first pass alone", [[0.5, 1]]),
        case("one round of one token", [[0.5, 1], [0.75, 1]]),
        case("one round of three tokens", [[0.5, 1], [0.8, 3]]),
        case("no speculation", [[0.5, 1], [0.75, 1], [1.0, 1], [1.25, 1]]),
        case("rounds of different worth", [[0.5, 1], [0.75, 4], [1.0, 1], [1.25, 2]]),
        case("rounds of different length", [[0.25, 1], [0.5, 1], [1.5, 5], [1.6, 1]]),
        case("a long prompt", [[8.0, 1], [8.25, 2], [8.5, 3], [8.75, 3]]),
    ]


def plan(rates: Sequence[float], cost: Sequence[float], draft_s: float) -> list[float]:
    """Best length, its speedup, and the oracle's."""
    n, speedup = theory.best_draft_length(rates, cost.__getitem__, draft_s)
    law = [math.prod(rates[:n]) * (1 - rates[n] if n < len(rates) else 1) for n in range(len(rates) + 1)]
    spent = sum(p * (cost[1 + n] + n * draft_s) for n, p in enumerate(law))
    return [n, speedup, theory.expected_tokens(rates) * cost[1] / spent]


def length_cases() -> list[Case]:
    names = "length", "speedup", "oracle"

    def case(about: str, *given: Any) -> Case:
        about = f"{about}: rates {given[0]}, cost {given[1]}, drafting {given[2]}"
        return Case(about, lambda answer: named(answer(*given), *names), named(plan(*given), *names))

    flat, steep = [0.0, 10.0, 10.5, 11.0, 11.5, 12.0], [0.0, 10.0, 16.0, 21.0, 27.0, 33.0]
    rates = [[0.8, 0.7, 0.9, 0.5], [0.3, 0.9, 0.9, 0.9], [0.95, 0.2, 0.6, 0.1], [0.65, 0.65, 0.65, 0.65]]
    grid = list(itertools.product(rates, (flat, steep), (0.0, 0.75, 4.0)))
    words = lambda i: f"rates {grid[i][0]}, cost {grid[i][1]}, drafting {grid[i][2]}"
    run = lambda answer: [named(answer(*given), *names) for given in grid]
    return [
        case("nothing was ever drafted", [], [0.0, 10.0], 1.0),
        case("one guess, free drafting", [0.5], [0.0, 10.0, 10.0], 0.0),
        case("one guess that costs more than it brings", [0.25], [0.0, 10.0, 12.0], 1.0),
        case("no guess is ever right, and none costs anything: the shortest of equals", [0.0], [0.0, 10.0, 10.0], 0.0),
        case("two guesses", [0.5, 0.5], [0.0, 10.0, 11.0, 12.0], 0.5),
        case("the second place is easy", [0.5, 0.9], [0.0, 10.0, 11.0, 12.0], 0.5),
        case("a pass costs in steps: one guess loses, two gain", [0.9, 0.9], [0.0, 10.0, 20.0, 21.0], 0.0),
        case("every guess is right", [1.0, 1.0, 1.0], [0.0, 10.0, 11.0, 12.0, 13.0], 1.0),
        case("a second guess is never right, but a wider pass is the cheaper one", [0.5, 0.0], [0.0, 10.0, 12.0, 9.0], 0.0),
        Case("rates, costs and drafting times", run, [named(plan(*given), *names) for given in grid], words),
    ]


def paired_cases() -> list[Case]:
    names = "middle", "smallest", "largest"

    def case(about: str, base: list[list[float]], mine: list[list[float]]) -> Case:
        own = [statistics.median(a / b for a, b in zip(*row, strict=True)) for row in zip(base, mine, strict=True)]
        want = named([statistics.median(own), min(own), max(own)], *names)
        about = f"{about}: base {base}, mine {mine}"
        return Case(about, lambda answer: named(answer(base, mine), *names), want)

    return [
        case("one request, one repeat", [[4.0]], [[2.0]]),
        case("one request, three repeats, one of them disturbed", [[4.0, 4.0, 4.0]], [[2.0, 2.0, 20.0]]),
        case("two repeats: the middle of two is their mean", [[4.0, 6.0]], [[2.0, 2.0]]),
        case("the machine slows down, for both alike", [[4.0, 6.0, 10.0]], [[2.0, 4.0, 4.0]]),
        case("it slows down between the two runs of a repeat", [[4.0, 5.0, 10.0]], [[2.5, 4.0, 5.0]]),
        case("two requests, a short and a long one", [[1.0, 1.0, 1.0], [30.0, 30.0, 30.0]], [[0.5, 0.5, 0.5], [24.0, 24.0, 24.0]]),
        case("three requests", [[4.0, 4.4, 4.0], [9.0, 9.0, 9.9], [6.0, 6.0, 6.0]], [[5.0, 5.0, 4.0], [3.0, 3.3, 3.0], [4.0, 4.0, 3.2]]),
        case("four requests, four repeats", [[8.0, 9.0, 7.0, 8.0], [2.0, 2.2, 2.0, 5.0], [5.0, 5.0, 6.0, 5.5], [3.0, 3.0, 3.3, 2.7]], [[4.0, 5.0, 4.0, 3.0], [2.5, 2.0, 2.0, 2.0], [2.0, 2.5, 2.0, 2.0], [3.0, 2.0, 3.0, 2.5]]),
    ]  # fmt: skip


def interval(n: int) -> int:
    """The k whose k-th smallest and k-th largest of n values enclose the median with 95 %; 0 if none does."""
    below = itertools.accumulate(math.comb(n, i) for i in range(n // 2))
    return sum(1 - 2 * mass / 2**n >= 0.95 for mass in below)


def claim_cases() -> list[Case]:
    names = "low", "high", "verdict"

    def verdict(ratios: list[float], claim: float) -> dict[str, Any]:
        k, order = interval(len(ratios)), sorted(ratios)
        if not k:
            return named([None, None, "cannot tell"], *names)
        low, high = order[k - 1], order[-k]
        words = "supported" if low >= claim else "not supported" if high < claim else "cannot tell"
        return named([low, high, words], *names)

    def case(about: str, ratios: list[float], claim: float) -> Case:
        about = f"{about}: {len(ratios)} ratios {ratios if len(ratios) < 13 else f'around {statistics.median(ratios):.3g}'}, claim {claim}"
        return Case(about, lambda answer: named(answer(ratios, claim), *names), verdict(ratios, claim))

    six = [1.3, 1.1, 1.25, 1.6, 1.2, 1.4]
    nine = [1.0, 1.3, 1.1, 1.9, 1.2, 0.7, 1.4, 1.6, 1.5]
    many = lambda n, step: [
        1 + round(i * step % 1, 3) for i in range(n)
    ]  # the golden section: they lie evenly, out of order
    return [
        case("too few to tell", [2.0, 2.1, 2.2, 2.3, 2.4], 1.5),
        case("one ratio", [3.0], 1.0),
        case("six are just enough", six, 1.05),
        case("six, a larger claim", six, 1.2),
        case("six, a claim beyond all of them", six, 1.7),
        case("six, a claim just above the interval's lower end", six, 1.1 + 1e-10),
        case("the claim is the interval's lower end", six, 1.1),
        case("the claim is the interval's upper end", six, 1.6),
        case("equal ratios count each", [1.2] * 5 + [1.6], 1.1),
        case("nine, two outliers", nine, 1.0),
        case("nine, two outliers, a claim of 1.05", nine, 1.05),
        case("nine, two outliers, a claim of 1.7", nine, 1.7),
        *[case("more ratios", many(n, 0.618), claim) for n in (7, 8, 11, 12, 16, 25, 48) for claim in (1.05, 1.3, 1.5, 1.8)],
    ]
