"""What an exercise notebook calls: check, show, hint, status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from minispec.grading.lessons import find_task, lesson
from minispec.grading.report import submission, text
from minispec.grading.task import Result, Task, assess, drawable
from minispec.grading.wire import Local, borrowed

asked: dict[str, int] = {}  # how many hints of each task were seen


def judge(task: Task, function: Any) -> Result:
    """The verdict on what a notebook calls `task.name`; None: there is nothing of that name."""
    if function is None:
        return Result(task.id, 0, task.points, "missing", f"there is no function {task.name}")
    if not callable(function):
        return Result(task.id, 0, task.points, "missing", f"{task.name} is no function")
    if name := borrowed(function):
        return Result(task.id, 0, task.points, "borrowed", borrowed_words(name))
    return assess(task, Local(function))


def borrowed_words(name: str) -> str:
    return f"the answer uses `{name}`, which is minispec's; an answer stands on its own, with torch and the standard library"


def check(name: str, function: Callable[..., Any]) -> bool:
    """Check an answer to the task `name`, such as "2.1"; print the verdict, and return whether it passed."""
    task = find_task(name)
    result = judge(task, function)
    if result.verdict == "passed":
        print(f"{task.id} passed: {task.points} of {task.points} points")
    elif result.verdict == "todo":
        print(f"{task.id} is not done yet: {task.title} ({task.points} points)")
    else:
        mistake, *details = result.diagnosis.splitlines()
        print("\n".join([f"{task.id} not yet: {mistake}", *[f"    {line}" for line in details]]))
        print(f'    show("{task.id}", {task.name}) draws what it does; hint("{task.id}") helps')
    return result.verdict == "passed"


def show(name: str, function: Callable[..., Any]) -> None:
    """Draw what an answer to the task `name` does, right or wrong: in the case that fails, if that can be drawn."""
    from minispec.notebook import show as display

    task = find_task(name)
    given = drawable(task, Local(function))
    display(*(task.picture(Local(function), given) if given else task.picture(Local(function))))


def hint(name: str, step: int | None = None) -> None:
    """Print the next hint for the task `name`, or hint number `step` (1 to 3)."""
    task = find_task(name)
    at = asked.get(name, 0) + 1 if step is None else step
    if not 1 <= at <= len(task.hints):
        print(f"that were all hints for {name}: hint({name!r}, 1) to hint({name!r}, {len(task.hints)}) show them again")
        return
    asked[name] = at
    print(f"hint {at} of {len(task.hints)} for {name}, {task.title}:\n{task.hints[at - 1]}")


def status(number: int | None = None, names: Mapping[str, Any] | None = None) -> None:
    """Check every task of a lesson anew, and print the report that `minispec grade` gives for this notebook.

    `number`: which lesson (default: the one whose functions are there); `names`: where to look for the functions (default:
    the notebook).
    """
    print(text([report(number, names)]), end="")


def report(number: int | None = None, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The report on a notebook's answers, as `minispec grade --json` has it."""
    names = vars(sys.modules["__main__"]) if names is None else names
    if number is None:
        from minispec.grading.submission import lesson_of

        number = lesson_of(names)
        if number is None:
            raise ValueError("no answer of any lesson is there; run the notebook's cells first, or say status(2)")
    found = lesson(number)
    return submission(found.slug, found, [judge(task, names.get(task.name)) for task in found.tasks])
