"""`minispec grade`: submissions in, reports out. Parallel, resumable; one submission never touches another."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch

from minispec.grading import report
from minispec.grading.judge import Workshop
from minispec.grading.lessons import NUMBERS, lesson
from minispec.grading.submission import Submission, find, read
from minispec.grading.task import Case, Result, banked

Hidden = Mapping[str, Sequence[Case]]


def grade(paths: Sequence[str], checks: str | None = None, progress_file: Path | None = None) -> list[dict[str, Any]]:
    """The reports on all submissions, in the order of their ids. What is done is kept in `progress_file`, not done again.

    Raises ValueError for paths without a submission, and for a folder of checks that cannot be used.
    """
    from tqdm import tqdm

    if not hasattr(os, "fork") or not hasattr(os, "setsid"):
        raise ValueError("submissions run in forked processes, which this system lacks; use Linux, macOS or WSL")
    torch.set_num_threads(1)  # as everywhere where an answer is judged; and a process that forks may have no other threads
    submissions = [read(name, file) for name, file in find(paths)]
    hidden = hidden_cases(checks) if checks else {}
    version = digest_of(checks)
    done = finished(progress_file, version)
    reports = {s.id: done[s.digest, s.id] for s in submissions if (s.digest, s.id) in done}
    waiting = [s for s in submissions if s.id not in reports]
    for number in {s.lesson for s in waiting if s.lesson}:  # made once, here, for all the processes that fork from this one
        for task in lesson(number).tasks:
            banked(task, tuple(hidden.get(task.id, ())))
    workers = max(1, min(len(waiting), processors()))
    with tqdm(total=len(submissions), initial=len(reports), unit="submission", disable=not sys.stderr.isatty()) as bar:
        while waiting:
            try:
                with pool(workers, hidden) as processes:
                    futures = {processes.submit(judge_one, s): s for s in waiting}
                    for future in as_completed(futures):
                        submission = futures[future]
                        reports[submission.id] = future.result()
                        note(progress_file, version, submission, reports[submission.id])
                        waiting.remove(submission)
                        bar.update()
            except BrokenProcessPool:  # somebody ended a judge; one at a time shows whose submission it was
                if workers == 1:
                    lost = waiting.pop(0)
                    reports[lost.id] = given_up(lost)
                workers = 1
    for s in submissions:
        if s.lesson is None:  # a row without tasks has no place for a reason
            print(f"{s.id}: {s.error}", file=sys.stderr)
    return [reports[s.id] for s in submissions]


def pool(workers: int, hidden: Hidden) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=open_workshop, initargs=(hidden,))


def open_workshop(hidden: Hidden) -> None:
    global workshop, extra
    workshop, extra = Workshop().__enter__(), hidden
    Finalize(None, workshop.__exit__, exitpriority=1)  # what atexit is to a process of multiprocessing


def judge_one(submission: Submission) -> dict[str, Any]:
    return workshop.grade(submission, extra)


def given_up(submission: Submission) -> dict[str, Any]:
    found = lesson(submission.lesson) if submission.lesson else None
    why = "the process that judges it was ended"
    return report.submission(
        submission.id, found, [Result(t.id, 0, t.points, "stopped", why) for t in (found.tasks if found else ())]
    )


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hidden_cases(folder: str) -> dict[str, list[Case]]:
    """A teacher's own cases: DIR/exNN.py with a function `cases()` that returns {"2.1": [Case(...), ...]}."""
    files = [file for number in NUMBERS if (file := Path(folder) / f"ex{number:02d}.py").is_file()]
    if not files:
        raise ValueError(f"{folder} holds no checks: wanted is a file such as {Path(folder) / 'ex02.py'}")
    found: dict[str, list[Case]] = {}
    for file in files:
        spec = importlib.util.spec_from_file_location(f"hidden_{file.stem}", file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            make: Callable[[], dict[str, list[Case]]] = module.cases
            found |= {name: list(cases) for name, cases in make().items()}
        except Exception as error:
            raise ValueError(f"the checks in {file} cannot be used ({type(error).__name__}: {error})") from error
    known = {task.id for number in NUMBERS for task in lesson(number).tasks}
    if set(found) - known:
        raise ValueError(f"the checks in {folder} name tasks that do not exist: {', '.join(sorted(set(found) - known))}")
    return found


def digest_of(checks: str | None) -> str:
    """What the verdicts depend on, beside the submission: the checks here, and the teacher's."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, *([Path(checks)] if checks else [])):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def finished(file: Path | None, version: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What an interrupted run left: reports by (digest of the submission, id)."""
    found = {}
    if file and file.is_file():
        for line in file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the line at which it was interrupted
                continue
            if entry["version"] == version:
                found[entry["digest"], entry["report"]["id"]] = entry["report"]
    return found


def note(file: Path | None, version: str, submission: Submission, done: dict[str, Any]) -> None:
    if file:
        with file.open("a") as out:
            out.write(json.dumps({"version": version, "digest": submission.digest, "report": done}) + "\n")


def write(file: Path, content: str) -> None:
    beside = file.with_name(file.name + ".tmp")
    beside.write_text(content)
    beside.replace(file)


def command(paths: Sequence[str], checks: str | None, outputs: Mapping[str, str | None]) -> str:
    """Grade, write the files asked for (`outputs`: json, csv, gradescope), and return the text for the terminal."""
    files = {kind: Path(name) for kind, name in outputs.items() if name}
    for kind, file in files.items():
        if not file.parent.is_dir() or file.is_dir():
            raise ValueError(f"--{kind} needs a file in a folder that exists, and {file} is none")
    if "gradescope" in files and len(find(paths)) != 1:
        raise ValueError("--gradescope is for one submission, as its autograder runs; use --json or --csv for several")
    progress = files["json"].with_name(files["json"].name + ".part") if "json" in files else None
    reports = grade(paths, checks, progress)
    if "json" in files:
        write(files["json"], report.as_json(reports))
        assert progress
        progress.unlink(missing_ok=True)
    if "csv" in files:
        write(files["csv"], report.as_csv(reports))
    if "gradescope" in files:
        write(files["gradescope"], report.as_gradescope(reports[0]))
    return report.text(reports)
