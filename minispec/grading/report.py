"""Reports: one dictionary a submission, and the texts and files that come from it.

{"id", "lesson", "score", "max", "tasks": [{"task", "score", "max", "verdict", "diagnosis"}]}
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from minispec.grading.task import Lesson, Result

WIDTH = 96  # characters of a diagnosis in the table of a class


def submission(name: str, lesson: Lesson | None, results: Iterable[Result]) -> dict[str, Any]:
    tasks = [asdict(result) for result in results]
    return {
        "id": name,
        "lesson": lesson.number if lesson else None,
        "score": sum(task["score"] for task in tasks),
        "max": sum(task["max"] for task in tasks),
        "tasks": tasks,
    }


def as_json(reports: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"schema": 1, "submissions": list(reports)}, indent=1) + "\n"


def text(reports: Sequence[dict[str, Any]]) -> str:
    """A submission in full; several as a line each, and what the class had right and wrong."""
    return one(reports[0]) if len(reports) == 1 else many(reports)


def one(report: dict[str, Any]) -> str:
    lines = [f"{report['id']}: {report['score']} of {report['max']} points"]
    for task in report["tasks"]:
        mistake, *details = task["diagnosis"].splitlines() or [""]
        lines.append(f"{task['task']}  {task['score']:>3} of {task['max']:>3}  {task['verdict']:<8}  {mistake}".rstrip())
        lines += [f"{'':26}{line}" for line in details]
    return "\n".join(lines) + "\n"


def many(reports: Sequence[dict[str, Any]]) -> str:
    longest = max(len(report["id"]) for report in reports)
    lines = []
    for report in reports:
        scores = "  ".join(f"{task['task']} {task['score']:>2}" for task in report["tasks"])
        lines.append(f"{report['id']:<{longest}}  {report['score']:>3} of {report['max']:>3}   {scores}".rstrip())
    return "\n".join([*lines, "", *statistics(reports)]) + "\n"


def statistics(reports: Sequence[dict[str, Any]]) -> list[str]:
    """Task by task: how many passed, and how common each mistake was."""
    names = sorted({task["task"] for report in reports for task in report["tasks"]}, key=order)
    lines = []
    for name in names:
        tasks = [task for report in reports for task in report["tasks"] if task["task"] == name]
        passed = sum(task["verdict"] == "passed" for task in tasks)
        lines.append(f"{name}: {passed} of {len(tasks)} passed")
        wrong = Counter(task["diagnosis"].split("\n")[0] for task in tasks if task["verdict"] != "passed")
        for mistake, count in sorted(wrong.items(), key=lambda pair: (-pair[1], pair[0])):
            lines.append(f"{count:>6}  {mistake if len(mistake) <= WIDTH else mistake[: WIDTH - 3] + '...'}")
    return lines


def order(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))


def as_csv(reports: Sequence[dict[str, Any]]) -> str:
    """A row a submission, a column a task."""
    names = sorted({task["task"] for report in reports for task in report["tasks"]}, key=order)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["id", "lesson", "score", "max", *names])
    for report in reports:
        scores = {task["task"]: task["score"] for task in report["tasks"]}
        writer.writerow(
            [report["id"], report["lesson"], report["score"], report["max"], *[scores.get(n, "") for n in names]]
        )
    return out.getvalue()


def as_gradescope(report: dict[str, Any]) -> str:
    """What Gradescope's autograder reads as results.json, for one submission."""
    tests = [
        {
            "name": task["task"],
            "score": task["score"],
            "max_score": task["max"],
            "status": "passed" if task["verdict"] == "passed" else "failed",
            "output": task["diagnosis"] or task["verdict"],
        }
        for task in report["tasks"]
    ]
    return json.dumps({"score": report["score"], "output": one(report), "tests": tests}, indent=1) + "\n"
