"""Exercises: tasks, checks that say which mistake an answer looks like, hints, pictures, and a command for teachers.

    check("2.1", accepted_count)                          # right, or the likely mistake and the smallest failing case
    show("2.1", accepted_count)                           # what it does, drawn, also while it is wrong
    hint("2.1")                                           # one step of help; again: the next
    status()                                              # points so far: the report that `minispec grade` gives

`task.py` compares, `lessons/` holds tasks, cases and banked wrong answers, `wire.py` carries data between check and answer;
`judge.py`, `answerer.py` and `sandbox.py` run submissions, `grade.py` and `report.py` make the command.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minispec.grading.notebook import check as check
    from minispec.grading.notebook import hint as hint
    from minispec.grading.notebook import show as show
    from minispec.grading.notebook import status as status

__all__ = ["check", "hint", "show", "status"]


def __getattr__(name: str) -> Any:  # late, for the process that runs submissions must not hold any check
    if name not in __all__:
        raise AttributeError(f"module 'minispec.grading' has no attribute {name!r}")
    from minispec.grading import notebook

    return getattr(notebook, name)
