"""Build the course: each notebooks/NN_title.py (jupytext percent) becomes the notebook beside it.

    python tools/build_course.py                    # write the notebooks whose prose or layout has changed; outputs stay
    python tools/build_course.py --run [NAME..]     # write and run, all or the named ones
    python tools/build_course.py --check            # fail if a notebook is not what its source says
    python tools/build_course.py --repository URL   # put the repository's address into every link and install cell

An exercise, solutions/exNN_title.py, becomes two notebooks: solved and run beside it, and in exercises/ to be solved. There
a cell says what it is: `# %% task="2.1"` holds an answer, `check="2.1"` checks it; solutions and hidden tests stand between
nbgrader's own markers, each on a line of its own.

The badge and the install cell for Colab are written here, once for all notebooks. Cell ids come from the file's name and the
place of the cell, so the same source gives the same bytes. A cell tagged `live` waits for a reader: it is run, but its
output is not kept. One tagged `folded` holds a solution: it is run, and its source shows when it is opened.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from minispec.grading.lessons import find_task

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
SOLUTIONS, EXERCISES = ROOT / "solutions", ROOT / "exercises"
LINKED = ("README.md", "CITATION.cff", "pyproject.toml")  # files that name the address, beside the notebooks
SOLUTION = re.compile(r"(?m)^( *)### BEGIN SOLUTION\n(?:.*\n)*? *### END SOLUTION(?:\n|\Z)")
HIDDEN = re.compile(r"(?m)^### BEGIN HIDDEN TESTS\n(?:.*\n)*?### END HIDDEN TESTS(?:\n|\Z)")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def address() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def for_colab(stem: str, folder: str = "notebooks") -> list[NotebookNode]:
    """The badge, and the cell that installs this version where the package is missing, without changing any other."""
    text = (ROOT / "minispec" / "__init__.py").read_text()
    tag = "v" + text.split('__version__ = "')[1].split('"')[0]
    where = address().removeprefix("https://github.com/")
    link = f"https://colab.research.google.com/github/{where}/blob/{tag}/{folder}/{stem}.ipynb"
    image = "https://colab.research.google.com/assets/colab-badge.svg"
    install = f"""# On Colab: this package, and the reader of the model's file. All else is there, and stays as it is.
import importlib.util

if importlib.util.find_spec("minispec") is None:
    %pip install --quiet --no-deps gguf "minispec @ git+{address()}@{tag}\""""
    return [new_markdown_cell(f"[![Open in Colab]({image})]({link})"), new_code_cell(install)]


def build(source: Path) -> NotebookNode:
    """The notebook that `source` describes, without outputs."""
    notebook = jupytext.reads(source.read_text(), fmt="py:percent")
    first, *rest = notebook.cells
    exercise = source.stem.startswith("ex")
    cells = [first, *for_colab(source.stem, "exercises" if exercise else "notebooks"), *rest]
    slug = source.stem.replace("_", "-")
    for i, cell in enumerate(cells):
        cell.id = f"{slug}-{i:02d}"
        if exercise:
            cell.metadata = nbgrader_metadata(cell)
            continue
        tags = cell.metadata.get("tags", [])
        tags = [*tags, "nbval-ignore-output"] if "live" in tags else tags
        cell.metadata = NotebookNode({"tags": tags} if tags else {})
        if "folded" in tags:  # JupyterLab and Colab show such a cell closed
            cell.metadata |= {"cellView": "form", "jupyter": NotebookNode(source_hidden=True)}
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def keep_outputs(new: NotebookNode, old: NotebookNode) -> bool:
    """Take the outputs of `old` over if all code means the same, the install cell apart, which has none; else False."""
    code = [[cell for cell in notebook.cells if cell.cell_type == "code"] for notebook in (new, old)]
    if [meaning(cell.source) for cell in code[0][1:]] != [meaning(cell.source) for cell in code[1][1:]]:
        return False
    for mine, theirs in zip(*code, strict=True):
        mine.outputs, mine.execution_count = theirs.outputs, theirs.execution_count
    return True


def meaning(source: str) -> str:
    """Code without layout, comments and the functions' docstrings, none of which an output depends on."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def run(notebook: NotebookNode, folder: Path = NOTEBOOKS) -> None:
    from nbclient import NotebookClient

    os.environ["PYTHONWARNINGS"] = "default"  # what a reader would see, a check should see
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [] if "live" in cell.metadata.get("tags", ()) else joined(cell.outputs)
    notebook.metadata = NotebookNode(METADATA)


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Pieces of one stream put together: where they were cut is chance."""
    result: list[NotebookNode] = []
    for output in outputs:
        if result and output.output_type == "stream" and result[-1].get("name") == output.name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def write(notebook: NotebookNode, file: Path) -> None:
    nbformat.validate(notebook)
    beside = file.with_suffix(".part")
    beside.write_text(nbformat.writes(notebook) + "\n")
    beside.replace(file)


def differences(source: Path) -> list[str]:
    """Where the notebook beside `source` is not what it should be, outputs apart."""
    file = source.with_suffix(".ipynb")
    if not file.exists():
        return [f"{file.name} is missing"]
    new, old = build(source), nbformat.read(file, as_version=4)
    found = [] if old.metadata == new.metadata else [f"{file.name}: its metadata differ"]
    if len(new.cells) != len(old.cells):
        return [*found, f"{file.name}: {len(old.cells)} cells, and its source has {len(new.cells)}"]
    for mine, theirs in zip(new.cells, old.cells, strict=True):
        for part in ("id", "cell_type", "source", "metadata"):
            if mine[part] != theirs[part]:
                found.append(f"{file.name}: cell {mine.id}: its {part} differs")
    return found


def exercise_differences(source: Path) -> list[str]:
    """Is the exercise in exercises/ byte for byte what its source says?"""
    file = EXERCISES / source.with_suffix(".ipynb").name
    wanted = nbformat.writes(unsolved(build(source))) + "\n"
    return [] if file.exists() and file.read_text() == wanted else [f"exercises/{file.name} is not what its source says"]


def nbgrader_metadata(cell: NotebookNode) -> NotebookNode:
    """nbgrader's metadata for a cell of a source: an answer, or a check with points; nothing for other cells."""
    for kind in ("task", "check"):
        if name := cell.metadata.get(kind):
            found = {"grade": False, "grade_id": f"{kind}-{name.replace('.', '-')}", "locked": kind == "check"}
            found |= {"schema_version": 3, "solution": kind == "task", "task": False}
            if kind == "check":
                found |= {"grade": True, "points": find_task(name).points}
            return NotebookNode({"nbgrader": NotebookNode(sorted(found.items()))})
    return NotebookNode()


def unsolved(notebook: NotebookNode) -> NotebookNode:
    """The notebook without solutions, hidden tests and outputs; a stub says what to compute."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            while found := SOLUTION.search(cell.source):
                cell.source = cell.source[: found.start()] + stub(cell.source, found) + cell.source[found.end() :]
            cell.source = HIDDEN.sub("", cell.source).rstrip("\n")
    return notebook


def stub(source: str, found: re.Match[str]) -> str:
    """The line that stands for a solution, from the docstring of the function around it."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    line = source[: found.start()].count("\n") + 1
    around = max((node for node in functions if node.lineno <= line), key=lambda node: node.lineno)
    words = (ast.get_docstring(around) or "").split("\n")[0]
    assert words, f"{around.name} has no docstring to make its stub from"
    return f'{found[1]}raise NotImplementedError("{words[0].lower()}{words[1:].rstrip(".")}")\n'


def move(new: str) -> None:
    """Write the repository's address anew wherever it stands."""
    old = address()
    for name in LINKED:
        file = ROOT / name
        file.write_text(file.read_text().replace(old, new.rstrip("/")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the notebooks from their sources.")
    parser.add_argument("names", nargs="*", help="notebooks to build, such as 02 or ex02 (default: all)")
    parser.add_argument("--run", action="store_true", help="run them, and keep the outputs")
    parser.add_argument("--check", action="store_true", help="only compare, and fail on any difference")
    parser.add_argument(
        "--repository", metavar="URL", help="the repository's address, such as https://github.com/NAME/PROJECT"
    )
    args = parser.parse_args()
    if args.repository:
        move(args.repository)
    sources = [*sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py")), *sorted(SOLUTIONS.glob("ex[0-9][0-9]_*.py"))]
    if args.names:
        sources = [source for source in sources if source.stem.startswith(tuple(args.names))]
    if not sources:
        sys.exit(f"no notebook is named {' or '.join(args.names) or 'NN_title.py'} in {NOTEBOOKS.name}/")
    if args.check:
        found = [line for source in sources for line in differences(source)]
        built = [file for folder in (NOTEBOOKS, SOLUTIONS, EXERCISES) for file in folder.glob("*.ipynb")]
        strays = {f.stem for f in built if not any((d / f"{f.stem}.py").exists() for d in (NOTEBOOKS, SOLUTIONS))}
        found += [line for source in sources if source.parent == SOLUTIONS for line in exercise_differences(source)]
        found += [f"{name}.ipynb has no source" for name in sorted(strays)]
        if found:
            sys.exit("\n".join([*found, "python tools/build_course.py --run builds them"]))
        print(f"{len(sources)} notebooks, and the exercises among them, are what their sources say")
        return
    stale = []
    for source in sources:
        notebook, file = build(source), source.with_suffix(".ipynb")
        if source.parent == SOLUTIONS:
            write(unsolved(build(source)), EXERCISES / file.name)
        if args.run:
            print(f"running {source.stem}", flush=True)
            run(notebook, source.parent)
        elif file.exists() and not keep_outputs(notebook, nbformat.read(file, as_version=4)):
            stale.append(source.stem)
            continue
        write(notebook, file)
    if stale:
        sys.exit(f"the code of {', '.join(stale)} has changed, so the notebook was left as it is; --run builds it anew")


if __name__ == "__main__":
    main()
