"""The judge: runs the checks on a submission's answers, which live in another process.

    with Workshop() as workshop:
        report = workshop.grade(submission)               # the dictionary that `minispec grade --json` writes

A crash, a hang or an exit costs the task in whose answer it happens; a cell that does the like while it is run is skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from minispec.grading import report, wire
from minispec.grading.lessons import lesson
from minispec.grading.notebook import borrowed_words
from minispec.grading.submission import Submission
from minispec.grading.task import Case, Result, Task, assess
from minispec.grading.wire import Raised, Stopped, pack, receive, send, serve, too_long

BABBLE = "it wrote something else where its answer belongs"
MOST_SKIPPED = 5  # cells that crash or hang, before the rest of a submission is given up


class Workshop:
    """A process that forks answerers. Use it in a `with`; it ends with it."""

    def __enter__(self) -> Workshop:
        self.control, theirs = socket.socketpair()
        self.folder = tempfile.TemporaryDirectory(prefix="minispec-", ignore_cleanup_errors=True)
        keep = (
            "PATH",
            "PYTHONPATH",
            "LANG",
            "LC_ALL",
            "LD_LIBRARY_PATH",
            "DYLD_LIBRARY_PATH",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
        )
        environment = {name: os.environ[name] for name in keep if name in os.environ}  # nothing else of the teacher's
        environment |= {
            "HOME": self.folder.name,
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minispec.grading.answerer", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        return self

    def __exit__(self, *error: Any) -> None:
        self.control.close()
        self.process.wait()
        self.folder.cleanup()

    def grade(self, submission: Submission, hidden: Mapping[str, Sequence[Case]] | None = None) -> dict[str, Any]:
        """The report on a submission, one entry for each task of its lesson, whatever the submission does."""
        if submission.lesson is None:
            return report.submission(submission.id, None, [])
        found, skipped, results = lesson(submission.lesson), {}, []
        for task in found.tasks:
            if submission.error:
                results.append(Result(task.id, 0, task.points, "missing", submission.error))
                continue
            results.append(self.judge(task, submission, skipped, (hidden or {}).get(task.id, ())))
        return report.submission(submission.id, found, results)

    def judge(self, task: Task, submission: Submission, skipped: dict[int, str], hidden: Sequence[Case]) -> Result:
        """The verdict on one task; notes in `skipped` the cells that cannot be run."""
        while True:
            with Answerer(self) as answer:
                try:
                    there, name = answer.load(submission.cells, skipped, task.name)
                except Stopped as stopped:
                    if answer.cell is None or len(skipped) >= MOST_SKIPPED:
                        return Result(task.id, 0, task.points, "stopped", str(stopped))
                    skipped[answer.cell] = str(stopped)
                    continue
                if there == "nothing":
                    cells = [f"; cell {i + 1}: {why}" for i, why in sorted(skipped.items())]
                    missing = f"there is no function {task.name}{''.join(cells)}"
                    return Result(task.id, 0, task.points, "missing", missing)
                if there == "other":
                    return Result(task.id, 0, task.points, "missing", f"{task.name} is no function")
                if name:
                    return Result(task.id, 0, task.points, "borrowed", borrowed_words(name))
                return assess(task, answer, hidden)


class Answerer:
    """A fork that holds one submission; calling it calls the submission's function there."""

    def __init__(self, workshop: Workshop):
        self.workshop, self.cell, self.pid, self.notes = workshop, None, 0, []

    def __enter__(self) -> Answerer:
        control = self.workshop.control
        self.folder = tempfile.mkdtemp(dir=self.workshop.folder.name)
        self.channel, theirs = socket.socketpair()
        socket.send_fds(control, [b"f"], [theirs.fileno()])
        theirs.close()
        self.pid = receive(control)
        self.end = time.monotonic() + wire.WALL_S
        return self

    def __exit__(self, *error: Any) -> None:
        if self.pid:
            self.finish()
        self.channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self) -> int:
        """End the fork; how it had ended before: 0 or an exit status, or less a signal (-9: it was still running)."""
        control, pid = self.workshop.control, self.pid
        self.pid = 0
        control.sendall(b"r")
        send(control, pid)
        return receive(control)

    def load(self, cells: Sequence[str], skipped: Mapping[int, str], name: str) -> tuple[str, str | None]:
        """Run the cells. Is there a function of that name, and what of minispec's does it use?"""
        order = {"cells": list(cells), "skip": list(skipped), "name": name, "folder": self.folder, "seconds": wire.CPU_S}
        self.exchange(order)
        while "there" not in (message := self.listen()):
            if not isinstance(message.get("cell"), int):
                raise Stopped(BABBLE)
            self.cell = message["cell"]
        self.cell = None
        return str(message["there"]), message["borrowed"] and str(message["borrowed"])

    def __call__(self, *args: Any) -> Any:
        objects: list = []
        self.exchange({"call": pack(args, objects)})
        while True:
            message = self.listen()
            if "value" in message:
                self.notes.append(message.get("notes"))
                return message["value"]
            if "todo" in message:
                raise NotImplementedError
            if "raised" in message:
                kind, words, line = message["raised"]
                raise Raised(str(kind), str(words), int(line))
            try:
                self.exchange({"value": serve(objects, *message["ask"])})
            except Exception as error:
                if isinstance(error, Stopped):
                    raise
                self.exchange({"raised": [type(error).__name__, str(error)]})

    def exchange(self, message: Any) -> None:
        try:
            self.channel.settimeout(max(0.01, self.end - time.monotonic()))
            send(self.channel, message)
        except OSError:
            raise Stopped(self.reason()) from None

    def listen(self) -> dict[str, Any]:
        try:
            self.channel.settimeout(max(0.01, self.end - time.monotonic()))
            message = receive(self.channel)
            if not isinstance(message, dict):
                raise ValueError
            return message
        except TimeoutError:
            raise Stopped(too_long()) from None
        except (EOFError, OSError):
            raise Stopped(self.reason()) from None
        except (ValueError, RecursionError):
            raise Stopped(BABBLE) from None

    def reason(self) -> str:
        """Why the process has gone."""
        status = self.finish()
        if -status in (signal.SIGXCPU, signal.SIGKILL):
            return too_long()
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"it crashed ({signal.Signals(-status).name})"
            return f"it crashed (signal {-status})"
        return f"it ended the process (exit status {status})"
