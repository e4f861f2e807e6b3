"""A task, its cases, and the verdict on an answer: exact comparison, case by case, from the smallest to the largest.

    assess(task, Local(function)).verdict                 # "passed", or why not, with the mistake that it looks like

A wrong answer is told apart by behaviour: the bank holds wrong answers that were made before, each with a sentence on what
it does, and an answer that fails where one of them fails, in the same way, made the same mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from minispec.grading.wire import Local, Raised, Stopped, plain

Answer = Any  # a callable, with `notes` on its calls: see `wire.Local`
OTHER_FORM = "something of another form than was asked for"


@dataclass(frozen=True, eq=False)
class Case:
    """One situation. `run` calls the answer and returns what is compared with `want`; `about` says it in words.

    `rows`: both are lists, and this says what entry i is about; the first entry that differs is then shown alone. `given`:
    the arguments of the only call, if the task's picture can draw it.
    """

    about: str
    run: Callable[[Answer], Any]
    want: Any
    rows: Callable[[int], str] | None = None
    given: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Wrong:
    """A banked wrong answer. `says`: what it does and what was needed, as its author is told."""

    says: str
    function: Answer


@dataclass(frozen=True, eq=False)
class Task:
    """`name`: the function that a learner writes; `hints`: a nudge, what to look for, pseudocode.

    `cases` makes the cases; `picture(answer)` draws what an answer does: a Figure, its alt text, its line of numbers. Where
    cases have `given`, it draws these arguments if they are handed to it.
    `returns`: the dtypes of which a tensor may be that it returns (none named: any); None: it returns nothing.
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
    picture: Callable[..., tuple[Any, str, str]]
    returns: Sequence[str] | None = ()


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
    tasks: Sequence[Task]


def same(got: Any, want: Any, kinds: bool = True) -> bool:
    """Equal as plain data; floats to 1e-6, and NaN equals nothing. `kinds`: where a bool or an int is wanted, only that will
    do; where a float is wanted, an int will too."""
    if isinstance(got, Raised) or isinstance(want, Raised):
        return isinstance(got, Raised) and isinstance(want, Raised) and got.kind == want.kind
    if isinstance(got, dict) and isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[name], want[name], kinds) for name in got)
    if isinstance(got, list) and isinstance(want, list):
        return len(got) == len(want) and all(same(a, b, kinds) for a, b in zip(got, want, strict=True))
    if isinstance(got, float | int) and isinstance(want, float | int):
        fits = type(got) is type(want) or (type(got), type(want)) == (int, float)
        return (fits or not kinds) and math.isclose(got, want, rel_tol=0, abs_tol=1e-6)
    return got == want and (got is None) == (want is None)


def alike(a: Any, b: Any) -> bool:
    """Do two answers behave alike? As `same`, but two that give NaN, or raise, do."""
    return same(a, b, kinds=False) or repr(a) == repr(b)


def kinds(got: Any, want: Any) -> str | None:
    """The sentence on the first number that is right, but of another kind."""
    if isinstance(got, list | dict) and type(got) is type(want):
        pairs = zip(got, want, strict=True) if isinstance(got, list) else [(got[name], want[name]) for name in got]
        return next(filter(None, (kinds(a, b) for a, b in pairs)), None)
    if same(got, want):
        return None
    return of_kind(type(want).__name__, type(got).__name__)


def of_kind(want: str, got: str) -> str:
    return f"its numbers are right, but of another type: {want} is asked for, and it gives {got}"


def changes(name: str) -> str:
    return f"it changes its argument `{name}`; leave your arguments as they are, and work on a copy"


def remark(task: Task, note: Any) -> tuple[str, str, str] | None:
    """What is to be said of a call whatever its value: a sentence, what was expected, what came."""
    name, kind = (str(note.get(key) or "")[:80] for key in ("changed", "type")) if isinstance(note, dict) else ("", "")
    if name:
        return changes(name), f"`{name}` as it was", f"`{name}` changed"
    if task.returns and kind.startswith("torch.") and kind not in task.returns:
        return f"it returns a tensor of {kind}; asked for is {task.returns[0]}", task.returns[0], kind
    return None


def outcome(case: Case, answer: Answer) -> Any:
    try:
        return plain(case.run(answer))
    except Raised as raised:
        return raised
    except (TypeError, ValueError, IndexError, OverflowError):  # from the case, which found nothing that it could use
        return OTHER_FORM


def drawable(task: Task, answer: Answer) -> tuple[Any, ...] | None:
    """The arguments of the first case that fails and can be drawn."""
    try:
        for case in cases_of(task):
            if case.given and not same(outcome(case, answer), plain(case.want)):
                return case.given
    except (NotImplementedError, Stopped):
        pass
    return None


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
    outcomes, remarks, silent = [], {}, task.returns is not None
    try:
        for i, case in enumerate(cases):
            answer.notes = []
            outcomes.append(outcome(case, answer))
            if said := next(filter(None, (remark(task, note) for note in answer.notes)), None):
                remarks[i] = said
            silent &= bool(answer.notes) and all(isinstance(n, dict) and n.get("type") == "NoneType" for n in answer.notes)
    except NotImplementedError:
        return Result(task.id, 0, task.points, "todo", "not done yet")
    except Stopped as stopped:
        return Result(task.id, 0, task.points, "stopped", str(stopped))
    failing = [i for i, case in enumerate(cases) if not same(outcomes[i], plain(case.want))]
    all_failing = sorted({*failing, *remarks})
    if not all_failing:
        return Result(task.id, task.points, task.points, "passed")
    first = (failing or all_failing)[0]
    verdict = "error" if isinstance(outcomes[first], Raised) else "failed"
    shown = details(cases[first], outcomes[first]) if failing else []
    mistake = None
    if silent:
        mistake = "it returns None: is a `return` missing?"
    elif failing and all(same(outcomes[i], plain(cases[i].want), kinds=False) for i in failing):
        mistake = kinds(outcomes[first], plain(cases[first].want))
    elif failing:
        mistake = likely(task, tuple(hidden), outcomes, failing)
    if not mistake and remarks:
        first = min(remarks)
        mistake, want, got = remarks[first]
        shown = [f"case: {cases[first].about}", f"expected: {want}", f"got: {got}"]
    if not mistake and verdict == "error":
        mistake = f"it stops with {words(outcomes[first])}"
    shown = [] if first >= len(cases) - len(hidden) else shown
    lines = [mistake or "no mistake that is known here", *shown, f"{len(all_failing)} of {len(cases)} cases fail"]
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
        return f"{x:.4g}.0" if x == int(x if math.isfinite(x) else 0) and abs(x) < 1e4 else f"{x:.4g}"
    if isinstance(x, list) and len(x) > 1 and all(isinstance(y, bool) for y in x):
        return "".join("01"[y] for y in x[:60]) + ("..." if len(x) > 60 else "")  # a row of a mask
    if isinstance(x, list):
        return f"[{', '.join(map(words, x[:12]))}{', ...' if len(x) > 12 else ''}]"
    if isinstance(x, dict):
        return ", ".join(f"{name} {words(y)}" for name, y in x.items())
    return str(x)
