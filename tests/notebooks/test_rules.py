"""What every notebook of the course must keep to, and whether the comparison with fresh runs can fail at all."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "notebooks").glob("*.ipynb"))
SANITISER = Path(__file__).with_name("sanitize.cfg")
MARKED = re.compile("⟦[^⟦⟧]*⟧")
SKIPPED = {  # cells whose output is not compared, by tag, with the reason
    "live": "a widget waits for the reader; its static panel above it is compared",
}

spec = importlib.util.spec_from_file_location("build_course", ROOT / "tools" / "build_course.py")
assert spec and spec.loader
build_course = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build_course)

each_notebook = pytest.mark.parametrize("file", FILES, ids=[file.stem[:2] for file in FILES])


def read(file):
    return nbformat.read(file, as_version=4)


def code_cells(file):
    return [cell for cell in read(file).cells if cell.cell_type == "code"]


def words_of(output):
    """The text of an output that a comparison sees."""
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


def is_compared(cell):
    skipped = any(tag in SKIPPED for tag in cell.metadata.get("tags", ()))
    return not skipped and any(MARKED.sub("", words_of(output)).strip() for output in cell.outputs)


def test_the_course_is_there():
    assert [file.stem[:2] for file in FILES] == [f"{number:02}" for number in range(12)]


@each_notebook
def test_a_notebook_is_what_its_source_says(file):
    assert build_course.differences(file.with_suffix(".py")) == []


@each_notebook
@pytest.mark.parametrize("part", ["id", "source", "metadata", "kernel", "cell"])
def test_a_difference_from_the_source_is_seen(file, part, tmp_path):
    notebook, source = read(file), tmp_path / file.with_suffix(".py").name
    if part == "kernel":
        notebook.metadata.kernelspec.name = "other"
    elif part == "cell":
        del notebook.cells[-1]
    else:
        notebook.cells[4][part] = {"id": "x", "source": "x", "metadata": {"collapsed": True}}[part]
    nbformat.write(notebook, source.with_suffix(".ipynb"))
    source.write_text(file.with_suffix(".py").read_text())
    assert len(build_course.differences(source)) == 1


@each_notebook
def test_form(file):
    notebook, text = read(file), file.read_text()
    assert len(text) < 500_000
    assert notebook.metadata.kernelspec.name == "python3" and "widgets" not in notebook.metadata
    counts = [cell.execution_count for cell in code_cells(file)]
    assert counts == list(range(1, len(counts) + 1)), "run it top to bottom"
    for cell in code_cells(file):
        assert not cell.source.rstrip().endswith(";")
        cut_off = [line for line in cell.source.splitlines() if len(line) > 100]  # in a window 1280 pixels wide
        assert not cut_off, cell.id
    assert not re.search(r"(?<![\w.⟦/])/(root|work|home|Users|tmp)/", text), "an absolute path"


@each_notebook
def test_outputs_are_clean_and_every_figure_has_its_words_and_numbers(file):
    for cell in code_cells(file):
        for output, before in zip(cell.outputs, [None, *cell.outputs], strict=False):
            assert output.output_type != "error" and output.get("name") != "stderr", cell.id
            if "image/png" in output.get("data", {}):
                alt = output.metadata["image/png"]["alt"]
                assert len(alt) > 40 and alt == output.data["text/plain"], cell.id
                assert before is not None and re.search(r"\d", words_of(before)), f"{cell.id}: no line of numbers"


@each_notebook
def test_prose_leads_and_code_is_short(file):
    lengths = sorted(len(cell.source.splitlines()) for cell in code_cells(file))
    assert lengths[len(lengths) // 2] < 12
    prose = "\n".join(cell.source for cell in read(file).cells if cell.cell_type == "markdown")
    assert len(prose.split()) > sum(len(cell.source.split()) for cell in code_cells(file))
    for part in ("**You will be able to**", "**You should know**", "**Time:**", "**Needs:**", "## Summary", "## Questions"):
        assert part in prose, part
    assert prose.count("<details>") >= 3
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", prose):
        assert (file.parent / link).exists(), link


def test_a_quoted_measurement_is_that_of_its_page():
    page = (ROOT / "results" / "xeon-avx512-2-cores" / "vllm-agreement.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "---" not in line]
    assert len(rows) > 1 and all(row in (ROOT / "notebooks" / "10_bigger.py").read_text() for row in rows)


def test_nine_tenths_of_the_outputs_are_compared():
    cells = [cell for file in FILES for cell in code_cells(file) if cell.outputs or "live" in cell.metadata.get("tags", ())]
    ignored = [cell for cell in cells if "nbval-ignore-output" in cell.metadata.get("tags", ())]
    assert all(any(tag in SKIPPED for tag in cell.metadata.tags) for cell in ignored)
    assert not any("nbval-skip" in cell.metadata.get("tags", ()) for cell in cells)
    assert sum(map(is_compared, cells)) >= 0.9 * len(cells)


def replay(file):
    """The notebook with its outputs, where each cell's code only gives these outputs again: a run that takes a second."""
    notebook = read(file)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            outputs = [dict(output) for output in cell.outputs]
            cell.source = (
                f"import json\nfrom IPython.display import display\nfor o in json.loads({json.dumps(outputs)!r}):\n"
                + (
                    "    if 'text' in o:\n        print(o['text'], end='')\n"
                    "    else:\n        display(o['data'], raw=True, metadata=o['metadata'])"
                )
            )
    return notebook


def nbval(notebook, file):
    """(passed, failed) cells of an nbval run over `notebook`, written to `file`."""
    nbformat.write(notebook, file)
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-sanitize-with", SANITISER, "-p", "no:cacheprovider", file]
    run = subprocess.run(command, capture_output=True, text=True, cwd=file.parent)
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed)", run.stdout)}
    return found.get("passed", 0), found.get("failed", 0)


def altered(text, inside):
    """`text` with one digit changed, inside or outside the marks; None if there is no such digit."""
    spans = [match.span() for match in MARKED.finditer(text)]
    for match in re.finditer(r"\d", text):
        if inside == any(start <= match.start() < stop for start, stop in spans):
            return text[: match.start()] + str((int(match[0]) + 1) % 10) + text[match.end() :]
    return None


@each_notebook
@pytest.mark.parametrize("inside", [False, True], ids=["a number", "a reading of the machine"])
def test_the_comparison_sees_an_altered_number_and_no_altered_reading(file, inside, tmp_path):
    notebook = replay(file)
    changed = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text" in output and is_compared(cell) and (text := altered(output.text, inside)):
                output.text = text
                changed += 1
                break
    assert changed or (inside and not MARKED.search(json.dumps(notebook, ensure_ascii=False)))  # 03 reads no clock
    passed, failed = nbval(notebook, tmp_path / file.name)
    assert failed == (0 if inside else changed)
    assert passed + failed == len(code_cells(file))


def test_outputs_stay_when_prose_or_layout_changes_and_nothing_is_lost_when_code_does(tmp_path, monkeypatch, capsys):
    source, file = tmp_path / FILES[0].with_suffix(".py").name, tmp_path / FILES[0].name
    monkeypatch.setattr(build_course, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(build_course, "SOLUTIONS", tmp_path / "none")  # the real ones stay as they are
    monkeypatch.setattr(build_course, "address", lambda: "https://github.com/someone/else")
    monkeypatch.setattr(sys, "argv", ["build_course.py"])
    file.write_bytes(FILES[0].read_bytes())
    source.write_text(FILES[0].with_suffix(".py").read_text().replace("# # 00 ·", "# # 00 · Anew:"))
    build_course.main()
    assert "someone/else@v" in file.read_text() and "Anew" in file.read_text()
    assert [cell.outputs for cell in code_cells(file)] == [cell.outputs for cell in code_cells(FILES[0])]
    relaid = source.read_text().replace("in runs.items():\n", "in (\n    runs.items()\n):  # anew\n")
    source.write_text(relaid)
    build_course.main()
    assert ":  # anew" in file.read_text() and build_course.differences(source) == []
    assert [cell.outputs for cell in code_cells(file)] == [cell.outputs for cell in code_cells(FILES[0])]
    built = file.read_bytes()
    for changed in (relaid + "\n# %%\nprint(1)\n", relaid.replace("max_new_tokens=64", "max_new_tokens=65")):
        source.write_text(changed)
        with pytest.raises(SystemExit, match="00_start_here has changed"):
            build_course.main()
        assert file.read_bytes() == built


def test_the_address_is_written_in_one_place(tmp_path, monkeypatch):
    old, new = build_course.address(), "https://github.com/someone/else"
    monkeypatch.setattr(build_course, "ROOT", tmp_path)
    for name in (*build_course.LINKED, "minispec/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    build_course.move(new + "/")
    assert build_course.address() == new
    badge, install = build_course.for_colab("02_x")
    assert "someone/else/blob/v" in badge.source and f"git+{new}@v" in install.source
    assert not [name for name in build_course.LINKED if old in (tmp_path / name).read_text()]
    tracked = subprocess.run(["git", "grep", "-l", old], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert {name for name in tracked if not name.endswith(".ipynb")} <= set(build_course.LINKED)  # those are built
