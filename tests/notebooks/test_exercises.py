"""Exercises and solutions: made from one source, no solution leaks, stubs raise, solutions score full marks."""

import os
import re
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from test_rules import ROOT, build_course, code_cells, read

from minispec.grading.grade import grade
from minispec.grading.lessons import NUMBERS, lesson

EXERCISES = ROOT / "exercises"
TASKS = {lesson(number).slug: len(lesson(number).tasks) for number in NUMBERS}
SLUGS = list(TASKS)
each_exercise = pytest.mark.parametrize("slug", SLUGS, ids=[slug[:4] for slug in SLUGS])
ENV = {**os.environ}
MARKERS = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS")


def source_of(slug):
    return ROOT / "solutions" / f"{slug}.py"


def solution_lines(slug):
    """The lines between the markers that say something: long enough not to stand elsewhere by chance."""
    text = source_of(slug).read_text()
    regions = re.findall(r"### BEGIN (?:SOLUTION|HIDDEN TESTS)\n(.*?)### END", text, re.DOTALL)
    given = re.sub(r"### BEGIN (?:SOLUTION|HIDDEN TESTS)\n.*?### END", "", text, flags=re.DOTALL)
    lines = {line.strip() for region in regions for line in region.splitlines()}
    return {line for line in lines if len(line) > 12 and line not in given}


def leaks(slug, notebook):
    """What a learner must not find in an exercise."""
    text = "\n".join(cell.source for cell in notebook.cells)
    found = [line for line in solution_lines(slug) if line in text] + [marker for marker in MARKERS if marker in text]
    found += [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    bank = [file.read_text() for file in (ROOT / "tests/right_answers").glob("ex*.py")]
    return found + [line for line in text.splitlines() if len(line.strip()) > 40 and any(line in right for right in bank)]


def test_every_lesson_has_both_notebooks():
    for folder in ("exercises", "solutions"):
        assert sorted(file.stem for file in (ROOT / folder).glob("*.ipynb")) == SLUGS


@each_exercise
def test_both_notebooks_are_what_the_source_says(slug):
    assert build_course.differences(source_of(slug)) == [] and build_course.exercise_differences(source_of(slug)) == []


@each_exercise
@pytest.mark.parametrize("change", ["a word", "a solution", "an output", "a point"])
def test_a_changed_exercise_is_seen(slug, change, tmp_path, monkeypatch):
    notebook = read(EXERCISES / f"{slug}.ipynb")
    cell = next(cell for cell in notebook.cells if "raise NotImplementedError" in cell.source)
    check = next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade"))
    if change == "a word":
        notebook.cells[0].source += "."
    elif change == "a solution":
        cell.source = cell.source.replace("raise NotImplementedError", "return accepted #")
    elif change == "an output":
        check.outputs = [nbformat.v4.new_output("stream", text="x")]
    else:
        check.metadata.nbgrader.points += 1
    nbformat.write(notebook, tmp_path / f"{slug}.ipynb")
    monkeypatch.setattr(build_course, "EXERCISES", tmp_path)
    assert build_course.exercise_differences(source_of(slug)) == [f"exercises/{slug}.ipynb is not what its source says"]


@each_exercise
def test_nothing_leaks(slug):
    assert len(solution_lines(slug)) > 15
    assert leaks(slug, read(EXERCISES / f"{slug}.ipynb")) == []


@each_exercise
def test_a_leak_is_seen(slug):
    for line in sorted(solution_lines(slug))[:5]:
        notebook = read(EXERCISES / f"{slug}.ipynb")
        notebook.cells[-1].source += f"\n# {line}"
        assert leaks(slug, notebook) == [line]
    assert leaks(slug, read(ROOT / "solutions" / f"{slug}.ipynb"))


@each_exercise
def test_the_same_source_gives_the_same_bytes(slug):
    code = f"""
import sys; sys.path.insert(0, "tools")
import build_course as b, nbformat, pathlib
sys.stdout.write(nbformat.writes(b.unsolved(b.build(pathlib.Path("solutions/{slug}.py")))) + "\\n")
"""
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={**ENV, "PYTHONHASHSEED": seed}
        )
        assert run.stdout == (EXERCISES / f"{slug}.ipynb").read_text(), run.stderr


@each_exercise
def test_an_exercise_runs_to_its_end_and_only_what_is_to_be_done_fails(slug):
    notebook = read(EXERCISES / f"{slug}.ipynb")
    NotebookClient(notebook, timeout=300, allow_errors=True, resources={"metadata": {"path": str(EXERCISES)}}).execute()
    failed = [output for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "error"]
    assert failed and {output.ename for output in failed} == {"NotImplementedError"}
    assert len(failed) == 1  # the last cell, on the real target; checks and pictures do with stubs
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    tasks = TASKS[slug]
    assert said.count("is not done yet") == said.count("todo") == tasks and f"{slug}: 0 of 100 points" in said


@each_exercise
def test_a_solution_has_full_marks_in_its_notebook_and_from_the_command(slug):
    report = grade([str(ROOT / "solutions" / f"{slug}.ipynb")])[0]
    assert report["score"] == report["max"] == 100
    said = [
        output.text
        for cell in code_cells(ROOT / "solutions" / f"{slug}.ipynb")
        for output in cell.outputs
        if "text" in output
    ]
    from minispec.grading.report import text

    assert text([report]) in said  # the same words, byte for byte
    assert grade([str(EXERCISES / f"{slug}.ipynb")])[0]["score"] == 0


@each_exercise
def test_cells_carry_what_nbgrader_needs(slug):
    cells = [cell for cell in read(ROOT / "solutions" / f"{slug}.ipynb").cells if "nbgrader" in cell.metadata]
    answers = [cell for cell in cells if cell.metadata.nbgrader.solution]
    checks = [cell for cell in cells if cell.metadata.nbgrader.grade]
    assert len(answers) == len(checks) == TASKS[slug] and sum(cell.metadata.nbgrader.points for cell in checks) == 100
    assert all("### BEGIN SOLUTION" in cell.source for cell in answers)
    assert all("### BEGIN HIDDEN TESTS" in cell.source and cell.metadata.nbgrader.locked for cell in checks)
