"""The lessons: tasks, their cases, and the bank of wrong answers, a file each."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from minispec.grading.task import Lesson, Task

NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8)


@cache
def lesson(number: int) -> Lesson:
    """Raises ValueError if there is none of that number."""
    if number not in NUMBERS:
        raise ValueError(f"there is no lesson {number}; there are {', '.join(map(str, NUMBERS))}")
    return import_module(f"minispec.grading.lessons.ex{number:02d}").LESSON


def find_task(name: str) -> Task:
    """The task "2.1". Raises ValueError if there is none of that name."""
    for number in NUMBERS:
        for task in lesson(number).tasks if str(name).split(".")[0] == str(number) else ():
            if task.id == name:
                return task
    raise ValueError(f"there is no task {name!r}; a task is named by a string such as '2.1'")
