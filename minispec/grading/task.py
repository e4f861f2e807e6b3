"""A task, its cases, and the verdict on an answer: exact comparison, case by case, from the smallest to the largest.

    assess(task, Local(function)).verdict                 # "passed", or why not, with the mistake that it looks like

A wrong answer is told apart by behaviour: the bank holds wrong answers that were made before, each with a sentence on what
it does, and an answer that fails where one of them fails, in the same way, made the same mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from minispec.grading.wire import Local, Raised, Stopped, plain

Answer = Callable[..., Any]
OTHER_FORM = "something of another form than was asked for"


@dataclass(frozen=True, eq=False)
class Case:
    """One situation. `run` calls the answer and returns what is compared with `want`; `about` says it in words.

    `rows`: both are lists, and this says what entry i is about; the first entry that differs is then shown alone.
    """

    about: str
    run: Callable[[Answer], Any]
    want: Any
    rows: Callable[[int], str] | None = None


@dataclass(frozen=True)
class Wrong:
    """A banked wrong answer. `says`: what it does and what was needed, as its author is told."""

    says: str
    function: Answer


@dataclass(frozen=True, eq=False)
class Task:
    """`name`: the function that a learner writes; `hints`: a nudge, what to look for, pseudocode.

    `cases` makes the cases; `picture(answer)` draws what an answer does: a Figure, its alt text, its line of numbers.
    """

    id: str
    title: str
    name: str
    points: int
    difficulty: int
    minutes: int
    hints: tuple[str, str, str]
    cases: Callable[[], Sequence[Case]]
    wrong: Sequence[Wrong]
    picture: Callable[[Answer], tuple[Any, str, str]]


@dataclass(frozen=True)
class Result:
    """The verdict on one task: passed, failed, error, todo, missing, borrowed or stopped. The first line of `diagnosis` is
    the mistake, the others the smallest failing case."""

    task: str
    score: int
    max: int
    verdict: str
    diagnosis: str = ""


@dataclass(frozen=True)
class Lesson:
    """`slug`: the file name of its exercise."""

    number: int
    slug: str
    title: str
    tasks: Sequence[Task] = field(default_factory=tuple)


def same(a: Any, b: Any) -> bool:
    """Equal as plain data; floats to 1e-6, and NaN equals nothing."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return isinstance(a, Raised) and isinstance(b, Raised) and a.kind == b.kind
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | int) and isinstance(b, float | int):
        return math.isclose(a, b, rel_tol=0, abs_tol=1e-6)
    return a == b and (a is None) == (b is None)


def alike(a: Any, b: Any) -> bool:
    """Do two answers behave alike? As `same`, but two that give NaN, or raise, do."""
    return same(a, b) or repr(a) == repr(b)


def outcome(case: Case, answer: Answer) -> Any:
    try:
        return plain(case.run(answer))
    except Raised as raised:
        return raised
    except (TypeError, ValueError, IndexError, OverflowError):  # from the case, which found nothing that it could use
        return OTHER_FORM


@cache
def cases_of(task: Task) -> tuple[Case, ...]:
    return tuple(task.cases())


@cache
def banked(task: Task, hidden: tuple[Case, ...]) -> list[tuple[str, list[Any]]]:
    """What every banked wrong answer does in every case."""
    cases = [*cases_of(task), *hidden]
    return [(wrong.says, [outcome(case, Local(wrong.function)) for case in cases]) for wrong in task.wrong]


def assess(task: Task, answer: Answer, hidden: Sequence[Case] = ()) -> Result:
    """Run an answer on all cases, and on a teacher's `hidden` ones, whose details are not shown."""
    cases = [*cases_of(task), *hidden]
    outcomes = []
    try:
        for case in cases:
            outcomes.append(outcome(case, answer))
    except NotImplementedError:
        return Result(task.id, 0, task.points, "todo", "not done yet")
    except Stopped as stopped:
        return Result(task.id, 0, task.points, "stopped", str(stopped))
    failing = [i for i, case in enumerate(cases) if not same(outcomes[i], plain(case.want))]
    if not failing:
        return Result(task.id, task.points, task.points, "passed")
    first, verdict = failing[0], "error" if isinstance(outcomes[failing[0]], Raised) else "failed"
    shown = [] if first >= len(cases) - len(hidden) else details(cases[first], outcomes[first])
    mistake = likely(task, tuple(hidden), outcomes, failing)
    if not mistake and verdict == "error":
        mistake = f"it stops with {words(outcomes[first])}"
    lines = [mistake or "no mistake that is known here", *shown, f"{len(failing)} of {len(cases)} cases fail"]
    return Result(task.id, 0, task.points, verdict, "\n".join(lines))


def likely(task: Task, hidden: tuple[Case, ...], outcomes: list[Any], failing: list[int]) -> str | None:
    """The sentence of the banked answer that does the same in every failing case, and in most of the others."""
    found, most = None, 0
    for says, theirs in banked(task, hidden):
        if all(alike(outcomes[i], theirs[i]) for i in failing):
            agree = sum(map(alike, outcomes, theirs))
            if agree > most:
                found, most = says, agree
    return found


def details(case: Case, got: Any) -> list[str]:
    """The case in words, what was expected, what came."""
    about, want = case.about, plain(case.want)
    if case.rows and isinstance(got, list) and len(got) == len(want):
        i = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if not same(a, b))
        about, want, got = f"{about}: {case.rows(i)}", want[i], got[i]
    return [f"case: {about}", f"expected: {words(want)}", f"got: {words(got)}"]


def words(x: Any) -> str:
    """An outcome in a few words."""
    if isinstance(x, Raised):
        where = f" (line {x.line} of the function)" if x.line else ""
        return f"{x.kind}: {x.message}{where}" if x.message else f"{x.kind}{where}"
    if isinstance(x, float):
        return f"{x:.4g}"
    if isinstance(x, list):
        return f"[{', '.join(map(words, x[:12]))}{', ...' if len(x) > 12 else ''}]"
    if isinstance(x, dict):
        return ", ".join(f"{name} {words(y)}" for name, y in x.items())
    return str(x)
