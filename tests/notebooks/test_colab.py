"""What the install cell does where the package is missing: it adds two packages, changes no other, and 00 runs.

By default the other packages are those of this environment. `MINISPEC_LOWER_BOUNDS=FOLDER` takes them from a virtual
environment at the lower bounds of pyproject.toml (several gigabytes on a machine whose torch is a CUDA build).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"(minispec|gguf|__editable__.*minispec)[-_.]?.*|.*\.pth")


def say(*command, **options):
    run = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture
def colab(tmp_path):
    """A Python that has everything but the package and gguf."""
    theirs = os.environ.get("MINISPEC_LOWER_BOUNDS")
    base = Path(theirs, "bin", "python") if theirs else Path(sys.executable)
    site = Path(say(base, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    others = tmp_path / "others"
    others.mkdir()
    for entry in site.iterdir():
        if not OURS.fullmatch(entry.name):
            (others / entry.name).symlink_to(entry)
    say(base, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    mine = Path(say(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (mine / "others.pth").write_text(f"{others}\n")
    return python


def packages(python):
    return {
        (package["name"], package["version"]) for package in json.loads(say(python, "-m", "pip", "list", "--format", "json"))
    }


def test_the_install_cell_adds_two_packages_and_the_first_notebook_runs(colab, tmp_path):
    cells = [
        c for c in nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4).cells if c.cell_type == "code"
    ]
    install, *rest = cells
    line = next(line for line in install.source.splitlines() if "%pip" in line)
    source = tmp_path / "source"
    for name in say("git", "ls-files", cwd=ROOT).split():  # the committed files stand for the repository at its tag
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = re.sub(r'"minispec @ git\+https://\S+@v[\d.]+"', str(source), line.replace("%pip", "").strip()).split()
    assert str(source) in command and "--no-deps" in command

    find = [colab, "-c", "import importlib.util as u; print(u.find_spec('minispec'), u.find_spec('gguf'))"]
    assert say(*find, cwd=tmp_path).split() == ["None", "None"]
    before = packages(colab)
    say(colab, "-m", "pip", *command, cwd=tmp_path)
    assert {name for name, _ in packages(colab) - before} == {"minispec", "gguf"} and not before - packages(colab)

    (tmp_path / "first.py").write_text("\n".join(cell.source for cell in rest))
    assert "the same text, in" in say(colab, "first.py", cwd=tmp_path)
