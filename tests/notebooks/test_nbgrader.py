"""nbgrader's own run: it makes the exercise from the solved notebook, and gives the points that `minispec grade` gives.

`make test-nbgrader`; skipped where nbgrader is not installed, since it brings a database and a server of its own.
"""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minispec.grading.grade import grade

ROOT = Path(__file__).parents[2]
SLUG = "ex02_greedy_verification"
nbgrader = pytest.importorskip("nbgrader", reason="nbgrader is not installed (make test-nbgrader)")


def run(folder, *command):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls its database's tool by name
    environment = {**os.environ, "PATH": path, "JUPYTER_CONFIG_DIR": str(folder / "config"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_nbgrader_gives_the_same_points(tmp_path):
    (tmp_path / "source" / "ex02").mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / f"{SLUG}.ipynb", tmp_path / "source" / "ex02")
    run(tmp_path, "generate_assignment", "ex02", "--create")
    released = nbformat.read(tmp_path / "release" / "ex02" / f"{SLUG}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in released.cells)
    assert "SOLUTION" not in text and "HIDDEN TESTS" not in text

    # One solves all, one nothing, one only the first task.
    solved = nbformat.read(ROOT / "solutions" / f"{SLUG}.ipynb", as_version=4)
    answers = {cell.metadata.nbgrader.grade_id: cell.source for cell in solved.cells if is_answer(cell)}
    first = next(iter(answers))
    wanted = {}
    for student, done in (("all", set(answers)), ("none", set()), ("one", {first})):
        folder = tmp_path / "submitted" / student / "ex02"
        folder.mkdir(parents=True)
        mine = nbformat.read(tmp_path / "release" / "ex02" / f"{SLUG}.ipynb", as_version=4)
        for cell in mine.cells:
            if is_answer(cell) and cell.metadata.nbgrader.grade_id in done:
                cell.source = answers[cell.metadata.nbgrader.grade_id]
        nbformat.write(mine, folder / f"{SLUG}.ipynb")
        wanted[student] = grade([str(folder / f"{SLUG}.ipynb")])[0]["score"]
    assert wanted["all"] == 100 and wanted["none"] == 0 and 0 < wanted["one"] < 100
    run(tmp_path, "autograde", "ex02", "--create", "--ExecutePreprocessor.timeout=600")
    run(tmp_path, "export", "--to", "grades.csv")
    rows = csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())
    assert {row["student_id"]: float(row["score"]) for row in rows if row["assignment"] == "ex02"} == wanted


def is_answer(cell):
    return cell.metadata.get("nbgrader", {}).get("solution", False)
