"""`benchmarks/gpu.sh`, with a tiny random model on the CPU: every step runs, and one that fails stops nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEPS = ["parity", "audit", "curve", "bench", "batches", "train"]


def gpu(*argv, python=sys.executable):
    script = [str(ROOT / "benchmarks" / "gpu.sh"), *map(str, argv)]
    return subprocess.run(script, capture_output=True, text=True, env=os.environ | {"PYTHON": str(python)}, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, target):
    made = tmp_path_factory.mktemp("gpu") / "folder"
    done = gpu("--prepare", made)
    assert done.returncode == 0, done.stderr
    return made


def test_every_step_runs_and_one_that_fails_is_noted(folder, tmp_path):
    """The curve is measured, then its command ends with status 3."""
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text(f'#!/bin/sh\n{sys.executable} "$@" || exit $?\n[ "$2" != curve ] || exit 3\n')
    python.chmod(0o755)
    done = gpu(folder, out, "--device", "cpu", "--tiny", python=python)
    result = json.loads((out / "gpu.json").read_text())
    logs = {file.name: file.read_text() for file in out.glob("*.log")}
    found = {step["step"]: step["status"] for step in result["steps"]}
    assert set(logs) == {"curve.log"}, logs
    assert found == dict.fromkeys(STEPS, "passed") | {"curve": "failed, exit status 3"}, logs
    assert done.returncode == 1 and not result["passed"] and "| curve | failed, exit status 3 |" in done.stdout
    for name in {*STEPS} - {"audit"}:
        assert json.loads((out / f"{name}.json").read_text()), name
    methods = {run["method"] for run in json.loads((out / "bench.json").read_text())["runs"]}
    assert methods == {"autoregressive", "ngram", "autoregressive compiled", "ngram compiled"}
    assert {run["batch"] for run in json.loads((out / "batches.json").read_text())["runs"]} == {1, 2, 8}
    curves = json.loads((out / "curve.json").read_text())["curves"]
    assert {curve["dtype"] for curve in curves} == {"float32", "bfloat16", "float16"}
    assert all(set(curve["seconds"]) >= {"1", "256"} for curve in curves)
    page = (out / "gpu.md").read_text()
    assert all(f"## {name}" in page for name in STEPS) and "| ngram compiled |" in page


def test_the_parts_are_small_and_damage_is_noticed(folder, tmp_path):
    parts = sorted(folder.glob("target/model.safetensors.part*"))
    assert len(parts) > 10 and all(part.stat().st_size <= 20e6 for part in folder.rglob("*"))
    damaged = tmp_path / "damaged"
    (damaged / "target").mkdir(parents=True)
    for file in (folder / "target.sha256", *folder.glob("target/*")):
        os.link(file, damaged / file.relative_to(folder))
    (damaged / "target" / parts[3].name).unlink()
    done = gpu(damaged, tmp_path / "out", "--device", "cpu")
    assert done.returncode == 2 and done.stderr == f"gpu.sh: error: the parts in {damaged} are damaged; prepare it again\n"
    assert not (tmp_path / "out").exists()


def test_mistakes_are_named_in_one_line(folder, tmp_path):
    (tmp_path / "there").mkdir()
    for argv, message in (
        ((), "needs the prepared folder and one for the results (see the top of the script)"),
        ((tmp_path / "there", tmp_path / "out"), f"{tmp_path / 'there'} was not made by gpu.sh --prepare"),
        ((folder, tmp_path / "there"), f"{tmp_path / 'there'} is there already; name a new folder"),
        ((folder, tmp_path / "out", "--fast"), "unknown option --fast"),
        ((folder, tmp_path / "out", "--device", "cuda:77"), "there is no device cuda:77 here; give another --device"),
        (("--prepare", folder), f"{folder} is there already; name a new folder"),
    ):
        done = gpu(*argv)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"gpu.sh: error: {message}\n")
