"""Promises about the repository itself."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BOOK = ["model", "cache", "sampling", "tree", "verify", "trace", "decode"]


def requirements(lines):
    """{'torch': '>=2.5'} from requirement lines; names in one spelling."""
    pairs = (re.fullmatch(r"([A-Za-z0-9._-]+)(.*)", re.sub(r"\s*[#;].*|\[.*\]", "", line)) for line in lines)
    return {pair[1].lower().replace("_", "-"): pair[2].strip() for pair in pairs if pair}


def test_environment_yml_says_what_pyproject_says():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    conda = requirements(line for line in environment["dependencies"] if isinstance(line, str))
    wanted = requirements(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["course"])
    renamed = {"torch": "pytorch", "huggingface-hub": "huggingface_hub"}
    for name, bound in wanted.items():
        assert conda[renamed.get(name, name).replace("_", "-")] == bound, name
    assert conda["python"] == PROJECT["requires-python"]


def test_constraints_are_within_the_bounds():
    from packaging.specifiers import SpecifierSet

    pinned = requirements((ROOT / "constraints.txt").read_text().splitlines())
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for name, bound in requirements(PROJECT["dependencies"] + extras).items():
        assert pinned[name].removeprefix("==") in SpecifierSet(bound), name


@pytest.mark.parametrize("name", BOOK)
def test_a_file_of_the_book_is_short_and_needs_only_those_before_it(name):
    text = (ROOT / "minispec" / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 250
    runtime = text.split("if TYPE_CHECKING:")[0]
    used = set(re.findall(r"^from minispec\.(\w+)", runtime, re.MULTILINE))
    used |= set(re.findall(r"^from minispec import (\w+)", runtime, re.MULTILINE))
    allowed = {*BOOK[: BOOK.index(name)], "drafters", "text"} | ({"cache"} if name == "model" else set())
    assert used <= allowed, f"{name}.py uses {used - allowed}"


def test_every_public_name_can_be_imported():
    import minispec as ms

    for name in ms.__all__:
        assert getattr(ms, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ms.nothing


def test_the_readme_names_the_commands_that_ci_runs():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "lab", "test-notebooks", "test-notebooks-bare", "course"):
        assert f"make {target}" in readme and re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "default_url=/lab/tree/notebooks/00_start_here.ipynb" in makefile and list(
        ROOT.glob("notebooks/00_start_here.ipynb")
    )
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "make test" in ci and "make test-notebooks" in ci


def test_no_tracked_file_is_large_or_names_a_folder_of_one_machine():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        path = ROOT / name
        assert path.stat().st_size < 25e6, name
        if path.suffix in (".py", ".md", ".toml", ".yml", ".txt", ".ipynb", ".json"):
            found = re.search(r"(?<![\w.])/(root|work|home|Users)/\w+", path.read_text())
            assert not found, f"{name} names {found and found[0]}"
