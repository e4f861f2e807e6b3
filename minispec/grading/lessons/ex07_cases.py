"""The cases of lesson 7: a ragged block, what its tokens see, a row's own dice, the loop for a batch, what a batch costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from minispec.grading.lessons.ex02_cases import ASKED, accepted
from minispec.grading.lessons.ex07_toys import Die, Drafters, Rows
from minispec.grading.lessons.toys import Scripted, continuation
from minispec.grading.task import Answer, Case


def block_cases() -> list[Case]:
    def case(about: str, pending: list[int], drafts: list[list[int]], lengths: list[int]) -> Case:
        width = 1 + max(map(len, drafts))
        rows = [[first, *draft] for first, draft in zip(pending, drafts, strict=True)]
        want = {
            "tokens": [[*row, *[-1] * (width - len(row))] for row in rows],
            "positions": [
                [*range(n, n + len(row)), *[0] * (width - len(row))] for row, n in zip(rows, lengths, strict=True)
            ],
        }

        def run(answer: Answer) -> dict[str, Any]:
            tokens, positions = answer(pending, drafts, lengths)
            return {"tokens": tokens, "positions": positions}

        return Case(f"{about}: pending {pending}, drafts {drafts}, lengths {lengths}", run, want)

    return [
        case("one row", [5], [[7, 2]], [3]),
        case("nobody drafts", [5, 6], [[], []], [3, 3]),
        case("two rows of the same form", [5, 6], [[7], [8]], [4, 4]),
        case("two texts of different length", [5, 6], [[7, 2], [8, 3]], [4, 9]),
        case("two drafts of different length", [5, 6], [[7, 2, 1], [8]], [4, 4]),
        case("both differ, and a row has no draft", [5, 6, 0], [[0], [], [8, 0, 3]], [9, 2, 5]),
        case("an empty cache: the first pass reads prompts like this", [3, 4], [[1, 4, 1], []], [0, 0]),
    ]


def visible_cases() -> list[Case]:
    def case(about: str, lengths: list[int], counts: list[int], slots: int) -> Case:
        time = max(counts)
        places = [(row, i) for row in range(len(counts)) for i in range(time)]
        want = [[s <= lengths[row] + i for s in range(slots)] if i < counts[row] else True for row, i in places]

        def run(answer: Answer) -> list[Any]:
            mask = answer(lengths, counts, slots)
            form = len(mask) == len(counts) and all(len(row) == time and all(len(x) == slots for x in row) for row in mask)
            if not form:
                raise ValueError
            return [mask[row][i] if i < counts[row] else any(mask[row][i]) for row, i in places]

        def words(at: int) -> str:
            row, i = places[at]
            return (
                f"row {row}, token {i}, the slots it sees" if i < counts[row] else f"row {row}, padding: sees it anything?"
            )

        return Case(f"{about}, lengths {lengths}, counts {counts}, {slots} slots", run, want, words)

    grid = itertools.product(itertools.product((0, 1, 3), repeat=2), itertools.product((1, 2, 3), repeat=2), (6, 8))
    return [
        case("one row, one token", [2], [1], 3),
        case("one row, a draft of two", [2], [3], 5),
        case("an empty cache", [0], [3], 3),
        case("room behind the block, with leftovers in it", [2], [2], 7),
        case("two texts of different length", [1, 4], [2, 2], 6),
        case("two drafts of different length", [3, 3], [3, 1], 6),
        case("both differ", [4, 1, 2], [1, 3, 2], 8),
        case("padding would stand behind the last slot", [4, 0], [1, 3], 5),
        case("a long text", [700], [1], 702),
        *[case("a grid", list(lengths), list(counts), slots) for lengths, counts, slots in grid],
    ]


def roll_cases() -> list[Case]:
    def case(about: str, *rounds: tuple[list[int], list[int]]) -> Case:
        everyone = range(1 + max(max(requests) for requests, _ in rounds))

        def run(answer: Answer) -> list[Any]:
            dice = [Die(request) for request in everyone]
            return [answer(dice, requests, counts) for requests, counts in rounds]

        want, dice = [], [Die(request) for request in everyone]
        for requests, counts in rounds:
            rows = [dice[r].roll(n + 1).tolist() for r, n in zip(requests, counts, strict=True)]
            want.append([[*row, *[0.0] * (1 + max(counts) - len(row))] for row in rows])
        words = lambda i: f"round {i + 1}: requests {rounds[i][0]}, counts {rounds[i][1]}"
        return Case(about, run, want, words)

    return [
        case("one request, a draft of two", ([0], [2])),
        case("one request, no draft", ([0], [0])),
        case("one request, two rounds", ([0], [1]), ([0], [2])),
        case("two requests, drafts of one length", ([0, 1], [1, 1]), ([0, 1], [1, 1])),
        case("two requests, drafts of different length", ([0, 1], [2, 0])),
        case("two requests, two rounds: a row takes only what it needs", ([0, 1], [2, 0]), ([0, 1], [1, 1])),
        case("request 1 of three has ended", ([0, 2], [1, 1])),
        case("request 0 has ended, and the last row took its place", ([0, 1, 2], [0, 2, 1]), ([2, 1], [2, 0])),
        case("request 1 has to wait for a round, then goes on", ([0, 1], [1, 1]), ([0], [2]), ([0, 1], [0, 1])),
    ]


A, B, C = (3, 1, 4, 1, 5), (7, 7, 1), (2, 8, 1, 8)  # B's text has a 7 early on, those of A and C have none for a while
END = 7


def rounds_alone(wanted: list[int], prompt: Sequence[int], script: str, most: int, count: int, eos: int | None) -> Any:
    """What a request does alone: its new tokens, and the tokens it feeds in each pass."""
    drafter, done, fed = Scripted(wanted, prompt, script), 1, [len(prompt)]
    while done < most and wanted[done - 1] != eos:
        guesses = drafter([*prompt, *wanted[:done]], min(count, most - done - 1))
        fed.append(1 + len(guesses))
        new = wanted[done : done + accepted(guesses, wanted[done:]) + 1]
        done += new.index(eos) + 1 if eos in new else len(new)
    return wanted[:done], fed


def loop_cases() -> list[Case]:
    def case(
        about: str, prompts: Sequence[Sequence[int]], scripts: Sequence[str], most: int, count: int, eos: int | None = None
    ) -> Case:
        wanted = [continuation(0, tuple(prompt), most) for prompt in prompts]
        alone = [rounds_alone(*row, most, count, eos) for row in zip(wanted, prompts, scripts, strict=True)]
        passes = [[n for n in column if n] for column in itertools.zip_longest(*[fed for _, fed in alone])]

        def run(answer: Answer) -> dict[str, Any]:
            target, drafters = Rows(0), Drafters(wanted, prompts, scripts)
            tokens = answer(target, drafters, [list(prompt) for prompt in prompts], most, count, eos)
            asked = drafters._asked_too_much(most, count)
            return {"tokens": tokens, "rows and width of each pass": target._shapes, ASKED: asked}

        want = {
            "tokens": [tokens for tokens, _ in alone],
            "rows and width of each pass": [[len(fed), max(fed)] for fed in passes],
            ASKED: False,
        }
        about = f"{about}: {len(prompts)} requests, max_new_tokens {most}, count {count}, eos {eos}"
        return Case(about, run, want)

    return [
        case("one token only", [A, C], ["rr", "rr"], 1, 2),
        case("one request alone", [A], ["rw"], 6, 2),
        case("the same request twice", [A, A], ["rr", "rr"], 6, 2),
        case("one is always right, one always wrong", [A, A], ["rr", "ww"], 7, 2),
        case("prompts of different length, no guesses", [A, (4,)], ["", ""], 4, 2),
        case("prompts of different length, guesses of different worth", [B, A], ["rw", "rrr"], 8, 3),
        case("drafts of different length", [A, C], ["rrr", "r"], 8, 3),
        case("the budget ends inside a draft", [A, C], ["rrrr", "rww"], 8, 4),
        case("the middle one ends first", [A, B, C], ["rw", "rw", "wr"], 9, 2, END),
        case("the middle one ends inside a draft", [A, B, C], ["w", "rrrr", "rw"], 9, 4, END),
        case("the first one ends with its first token", [A, B, C], ["rr", "rw", "rr"], 8, 2, 5),
        case("the end of the text has id 0", [A, C], ["rw", "rr"], 12, 2, 0),
        case("all end at different times", [(4,), A, B, C, (6, 0, 3)], ["rrw", "w", "rr", "rrr", ""], 12, 3, 6),
    ]  # fmt: skip


def cost(curve: Sequence[Sequence[float]], tokens: float) -> float:
    """The curve between its points, along straight lines."""
    (a, low), (b, high) = next((x, y) for x, y in itertools.pairwise(curve) if tokens <= y[0])
    return low + (high - low) * (tokens - a) / (b - a)


def batch_cases() -> list[Case]:
    def largest(curve: list[list[float]], count: int, emitted: float, draft_s: float) -> int:
        best = 0
        for batch in range(1, int(curve[-1][0]) // (1 + count) + 1):
            gain = emitted * cost(curve, batch) - cost(curve, batch * (1 + count)) - draft_s
            assert abs(gain) > 1e-6, "rounding would decide"
            best = batch if gain > 0 else best
        return best

    def case(about: str, curve: list[list[float]], *given: Any) -> Case:
        about = f"{about}: curve {curve}, {given[0]} drafted, {given[1]} emitted, drafting {given[2]}"
        return Case(about, lambda answer: answer(curve, *given), largest(curve, *given))

    flat, steep = [[1, 20.0], [16, 21.0], [64, 60.0]], [[1, 10.0], [2, 19.0], [32, 300.0]]
    steps = [[1, 10.0], [8, 10.5], [9, 17.0], [16, 17.5], [17, 24.0], [24, 24.5], [25, 31.0], [32, 31.5]]
    grid = [
        (curve, count, emitted, draft_s)
        for curve in (flat, steep, steps)
        for count, emitted in ((1, 1.7), (2, 2.3), (3, 1.55), (4, 3.1), (7, 4.2))
        for draft_s in (0.0, 2.25, 9.1)
    ]

    def words(i: int) -> str:
        return f"curve {grid[i][0]}, {grid[i][1]} drafted, {grid[i][2]} emitted, drafting {grid[i][3]}"

    run = lambda answer: [answer(*given) for given in grid]
    return [
        case("a pass costs nearly the same whatever it reads", flat, 1, 1.7, 0.0),
        case("a pass costs as much as it reads", steep, 2, 2.3, 0.0),
        case("one point", [[1, 10.0]], 1, 1.7, 0.0),
        case("a long curve", [[1, 20.0], [800, 30.0]], 3, 2.5, 1.0),
        case("it never pays", [[1, 10.0], [3, 28.0]], 1, 1.2, 0.0),
        case("drafting costs time too", flat, 2, 1.55, 12.0),
        case("the curve ends before it stops paying", [[1, 20.0], [16, 20.5]], 3, 2.5, 1.0),
        case("a curve with steps: it does not pay at 3, and pays again at 4", [[1, 10.0], [3, 10.0], [4, 13.0], [5, 13.0], [6, 19.0], [8, 19.5]], 1, 1.55, 0.0),
        Case("several curves and drafts", run, [largest(*given) for given in grid], words),
    ]  # fmt: skip
