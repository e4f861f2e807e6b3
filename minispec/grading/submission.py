"""Submissions: what a file holds, and which lesson it answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from minispec.grading.lessons import NUMBERS, lesson

LARGEST = 64e6  # bytes; a notebook of a lesson has about a tenth of one million
SKIPPED = {".ipynb_checkpoints", "__pycache__", ".git", ".venv"}


@dataclass(frozen=True)
class Submission:
    """`cells`: code as it can be run; `error`: why there is none. `digest` tells whether the file has changed."""

    id: str
    cells: tuple[str, ...]
    lesson: int | None
    error: str | None
    digest: str


def find(paths: Iterable[str]) -> list[tuple[str, Path]]:
    """(id, file) of every submission; a folder's are named by their path in it. Raises ValueError if there is none."""
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                file
                for file in path.rglob("*")
                if file.suffix in (".ipynb", ".py") and file.is_file() and not SKIPPED & set(file.relative_to(path).parts)
            )
            if not inside:
                raise ValueError(f"there is no notebook and no .py in {path}")
            named = [(file.relative_to(path).with_suffix("").as_posix(), file) for file in inside]
        elif path.suffix not in (".ipynb", ".py"):
            raise ValueError(f"{path} is neither a notebook (.ipynb), nor a .py, nor a folder of them")
        elif not path.is_file():
            raise ValueError(f"there is no file {path}")
        else:
            named = [(path.stem, path)]
        for name, file in named:
            if name in found:  # alice/ex02.ipynb beside alice/ex02.py, or two folders of one form
                name = file.as_posix()
            found[name] = file
    return sorted(found.items())


def read(name: str, file: Path) -> Submission:
    """A submission from a notebook or a .py; whatever is wrong with the file is a reason, never an exception."""
    error, cells = None, []
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"the file is larger than {LARGEST / 1e6:.0f} MB")
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        content = data.decode()
        cells = notebook_cells(content) if file.suffix == ".ipynb" else re.split(r"(?m)^# %%.*$", content)
    except (OSError, ValueError, RecursionError) as problem:
        digest, error = "", f"it cannot be read: {first_line(problem)}"
    cells = tuple(filter(None, map(runnable, cells)))
    names = set(re.findall(r"(?m)^(?:async )?def (\w+)|^(\w+) *=", "\n".join(cells)))
    number = lesson_of({word for pair in names for word in pair})
    if number is None and (match := re.search(r"ex0*(\d+)", file.stem)) and int(match[1]) in NUMBERS:
        number = int(match[1])
    if number is None and error is None:
        error = "it answers no lesson: it has none of their functions"
    return Submission(name, cells, number, error, digest)


def notebook_cells(content: str) -> list[str]:
    import nbformat
    from nbformat.reader import NotJSONError

    try:
        notebook = nbformat.reads(content, as_version=4)
    except (NotJSONError, KeyError, AttributeError, TypeError) as problem:
        raise ValueError(f"it is no notebook ({first_line(problem)})") from problem
    return [str(cell.get("source", "")) for cell in notebook.get("cells", ()) if cell.get("cell_type") == "code"]


def runnable(cell: str) -> str:
    """A cell without what only a notebook understands: cell magics, line magics, shell commands."""
    if cell.lstrip().startswith("%%"):
        return ""
    return re.sub(r"(?m)^(\s*)[%!?].*$", r"\1pass", cell).strip("\n")


def lesson_of(names: Iterable[str]) -> int | None:
    """The lesson most of whose functions are among `names`."""
    names = set(names)
    counts = {number: sum(task.name in names for task in lesson(number).tasks) for number in NUMBERS}
    best = max(counts, key=lambda number: counts[number])
    return best if counts[best] else None


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:120]
