"""`minispec grade`: what a hostile, broken or clumsy submission does, and that reports are the same everywhere."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from minispec import cli
from minispec.grading import judge, notebook, sandbox, wire
from minispec.grading.grade import grade
from minispec.grading.submission import Submission, read

if sys.platform == "win32":
    pytest.skip("submissions run in forked processes", allow_module_level=True)

ROOT = Path(__file__).parent.parent
RIGHT = "def accepted_count(guesses, answers):\n    return (guesses == answers[:, :-1]).long().cumprod(1).sum(1)\n"
PART = """
def parting(first, second, logits):
    for i, (a, b) in enumerate(zip(first, second)):
        if a != b:
            return i, float(logits[i, a] - logits[i, b])
"""


@pytest.fixture(scope="module")
def workshop():
    with judge.Workshop() as opened:
        yield opened


@pytest.fixture
def graded(workshop):
    def run(*cells, number=2):
        report = workshop.grade(Submission("x", ("import torch", *cells), number, None, ""))
        return {task["task"]: task for task in report["tasks"]}

    return run


def body(code):
    """An answer to 2.1 that does `code` when it is called."""
    return "def accepted_count(guesses, answers):\n" + "".join(f"    {line}\n" for line in code.splitlines())


def test_right_answers_pass_and_the_rest_is_missing(graded):
    tasks = graded(RIGHT, PART)
    assert [task["verdict"] for task in tasks.values()] == ["passed", "missing", "missing", "missing", "passed"]
    assert tasks["2.2"]["diagnosis"] == "there is no function emit"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os, signal\nos.abort()", "it crashed (SIGABRT)"),
        ("import os\nos._exit(3)", "it ended the process (exit status 3)"),
        ("while True: pass", "no answer in 2 seconds of computing"),
        ("import os\nos.close(3); os.close(4); os.close(5); os.close(6)", None),
        ("import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'x' * 100)\n    except OSError: pass\nreturn 1", None),
    ],
    ids=["crash", "exit", "hang", "hangs up", "garbage in the channel"],
)
def test_an_answer_that_ends_or_hangs_costs_its_own_task_alone(graded, code, says, monkeypatch):
    monkeypatch.setattr(wire, "CPU_S", 2)
    tasks = graded(body(code), PART)
    assert tasks["2.1"]["score"] == 0 and tasks["2.1"]["verdict"] in ("stopped", "error", "failed")
    assert says is None or says in tasks["2.1"]["diagnosis"]
    assert tasks["2.5"]["verdict"] == "passed" and len(tasks) == 5


def test_an_answer_that_sleeps_is_ended_by_the_clock(graded, monkeypatch):
    monkeypatch.setattr(wire, "WALL_S", 5)
    assert graded(body("import time\ntime.sleep(1000)"))["2.1"]["diagnosis"].endswith("or 5 by the clock")


@pytest.mark.parametrize("code", ["raise SystemExit", "exit()", "raise KeyboardInterrupt", "raise BaseException('x')"])
def test_leaving_by_an_exception_is_an_error(graded, code):
    assert graded(body(code))["2.1"]["verdict"] == "error"


def test_a_cell_that_crashes_or_hangs_is_skipped(graded):
    tasks = graded("import os\nos._exit(0)", RIGHT, "import os\nos.abort()\ndef emit(*a): pass", "raise ValueError", PART)
    assert tasks["2.1"]["verdict"] == tasks["2.5"]["verdict"] == "passed"
    wanted = "there is no function emit; cell 2: it ended the process (exit status 0); cell 4: it crashed (SIGABRT)"
    assert tasks["2.2"]["diagnosis"] == wanted


def test_a_million_lines_cost_nothing(graded):
    code = "import sys\nfor _ in range(100_000):\n    print('x' * 10)\n    print('y', file=sys.stderr)\n"
    start = time.monotonic()
    tasks = graded("for _ in range(1_000_000):\n    print('a line')", body(code + "return [0]"), PART)
    assert tasks["2.1"]["verdict"] == "failed" and tasks["2.5"]["verdict"] == "passed"
    assert time.monotonic() - start < 120


def test_too_much_memory_is_an_error_of_that_task(graded):
    for code in ("x = bytearray(2**34)", "x = torch.ones(2**31)"):
        tasks = graded(body(f"{code}\nreturn x"), PART)
        assert "MemoryError" in tasks["2.1"]["diagnosis"] and tasks["2.5"]["verdict"] == "passed"


def test_a_patched_torch_or_builtin_changes_no_verdict(graded):
    patches = (
        "torch.equal = torch.allclose = lambda *a, **k: True\ntorch.Tensor.__eq__ = lambda *a: True",
        "torch.Tensor.tolist = lambda self: []",
        "import builtins, json, math\nmath.isclose = lambda *a, **k: True\njson.dumps = lambda x: '{\"value\": true}'",
        "import sys\nfor name, module in list(sys.modules.items()):\n    for part in ('same', 'assess', 'plain', 'run'):\n"
        "        if hasattr(module, part) and 'grading' in name: setattr(module, part, lambda *a: True)",
        "import minispec.grading.task as t\nt.assess = t.same = lambda *a, **k: True",
    )
    for patch in patches:
        tasks = graded(patch, body("return [0]"), PART)
        assert tasks["2.1"]["score"] == 0 and sum(task["score"] for task in tasks.values()) <= 15, patch


def test_importing_the_reference_is_seen(graded):
    cells = (
        "import minispec as ms\ndef accepted_count(g, a): return ms.verify.greedy(g, a)",
        "from minispec import verify as v\ndef accepted_count(g, a): return v.greedy(g, a)",
        "def accepted_count(g, a):\n    from minispec.grading.lessons.ex02_cases import accepted\n    return accepted(g, a)",
    )
    for cell in cells:
        task = graded(cell)["2.1"]
        assert task["verdict"] == "borrowed" and "an answer stands on its own" in task["diagnosis"]
    hidden = body("m = __import__('mini' + 'spec.grading.lessons.ex02_cases', fromlist=['x'])\nreturn m.accepted(1, 2)")
    assert graded(hidden)["2.1"]["verdict"] == "error"
    reload = body("import importlib\nm = importlib.import_module('mini' + 'spec.verify')\nreturn m.greedy(1)")
    assert graded(reload)["2.1"]["verdict"] == "error"


def test_nothing_to_find_in_memory_and_the_files_cannot_be_read(graded):
    search = (
        "import gc, sys\nfound = [m for m in sys.modules if 'lessons' in m or 'verify' in m]\n"
        "found += [o for o in gc.get_objects() if getattr(type(o), '__name__', '') in ('Case', 'Task')]\n"
        "raise ValueError(f'{len(found)} found')"
    )
    assert "ValueError: 0 found" in graded(body(search))["2.1"]["diagnosis"]
    file = Path(sandbox.PACKAGE) / "grading" / "lessons" / "ex02_cases.py"
    for code in (f"return open({str(file)!r}).read()", f"import os\nreturn os.open({str(file)!r}, 0)"):
        assert "PermissionError" in graded(body(code))["2.1"]["diagnosis"]


def test_no_writing_outside_its_folder_no_network_no_processes(graded, tmp_path, monkeypatch):
    secret = tmp_path / "other.txt"
    secret.write_text("theirs")
    refused = [
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(secret)!r}, 'a')",
        f"import os; os.remove({str(secret)!r})",
        f"import os; os.rename({str(secret)!r}, 'mine')",
        f"import os; os.mkdir({str(tmp_path / 'folder')!r})",
        f"import shutil; shutil.rmtree({str(tmp_path)!r})",
        f"torch.save(torch.ones(2), {str(tmp_path / 'new')!r})",
        "import socket; socket.create_connection(('127.0.0.1', 22))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.fork()",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.environ['HOME_OF_THE_TEACHER']",
    ]
    monkeypatch.setenv("HOME_OF_THE_TEACHER", "x")
    for code in refused:
        task = graded(body(code + "\nraise ValueError('it was allowed')"))["2.1"]
        assert task["verdict"] == "error" and "it was allowed" not in task["diagnosis"], code
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.txt"] and secret.read_text() == "theirs"
    own = "open('mine', 'w').write('x')\nraise ValueError(open('mine').read() + ' was written')"
    assert "x was written" in graded(body(own))["2.1"]["diagnosis"]


@pytest.mark.skipif(sys.platform != "linux", reason="a wall of Linux")
def test_the_kernel_refuses_too(tmp_path):
    """The same without the hook: in a process that has only the kernel's walls."""
    code = f"""
import os, socket, sys, torch
from minispec.grading import sandbox
own = {str(tmp_path / "own")!r}
os.mkdir(own)
walls = sandbox.unplug(), sandbox.landlock(own)
open(own + "/mine", "w").write("x")
for path, mode in (({str(tmp_path / "new")!r}, "w"), (sandbox.PACKAGE + "/verify.py", "r")):
    try:
        open(path, mode)
        print("opened")
    except PermissionError:
        print("refused")
try:
    socket.create_connection(("127.0.0.1", 1), timeout=1)
except OSError as error:
    print(type(error).__name__)
print(walls)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, third, walls = run.stdout.splitlines()
    if "False" in walls:
        pytest.skip(f"this kernel does not let us: {walls}")
    installed = sandbox.PACKAGE.startswith((sys.prefix, "/usr"))  # then Python itself lives beside the package
    assert first == "refused" and (installed or second == "refused") and third in ("OSError", "PermissionError")


def written(folder, name, source, metadata=None):
    cells = [nbformat.v4.new_code_cell(cell) for cell in source]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / name)


def test_files_of_every_kind_have_a_row(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "class"
    for name in ("ann", "bob", "cy", "dee", "eve"):
        (folder / name).mkdir(parents=True)
    written(folder / "ann", "ex02.ipynb", ["%pip install x\n!ls\nimport torch", RIGHT, "%%bash\nrm -rf x"])
    (folder / "bob" / "ex02.py").write_text(f"# %% [markdown]\n# # Hello\n# %%\nimport torch\n# %%\n{RIGHT}# %%\n{PART}")
    (folder / "cy" / "ex02.ipynb").write_text("{")
    (folder / "dee" / "other.ipynb").write_text(json.dumps({"cells": 1}))
    (folder / "eve" / "ex02.py").write_bytes(b"\xff\xfe")
    (folder / ".ipynb_checkpoints").mkdir()
    written(folder / ".ipynb_checkpoints", "ex02.ipynb", [RIGHT])
    outputs = {name: tmp_path / f"out.{name}" for name in ("json", "csv")}
    cli.main(["grade", str(folder), "--json", str(outputs["json"]), "--csv", str(outputs["csv"])])
    text, errors = capsys.readouterr()
    assert errors.startswith("dee/other: it cannot be read: it is no notebook") and errors.count("\n") == 1
    found = json.loads(outputs["json"].read_text())
    assert found["schema"] == 1
    rows = {entry["id"]: entry for entry in found["submissions"]}
    assert {name: (row["score"], row["max"]) for name, row in rows.items()} == {
        "ann/ex02": (15, 100), "bob/ex02": (30, 100), "cy/ex02": (0, 100), "dee/other": (0, 0), "eve/ex02": (0, 100)
    }  # fmt: skip
    assert set(rows["ann/ex02"]) == {"id", "lesson", "score", "max", "tasks"}
    assert set(rows["ann/ex02"]["tasks"][0]) == {"task", "score", "max", "verdict", "diagnosis"}
    assert "it is no notebook" in rows["cy/ex02"]["tasks"][0]["diagnosis"]
    table = list(csv.reader(outputs["csv"].open()))
    assert table[0] == ["id", "lesson", "score", "max", "2.1", "2.2", "2.3", "2.4", "2.5"] and len(table) == 6
    assert "2.1: 2 of 4 passed\n     1  it cannot be read" in text and "bob/ex02    30 of 100" in text
    assert not list(tmp_path.glob("*.part"))


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    from minispec.grading import grade as module

    for name, source in {"a": RIGHT, "b": body("return [0]"), "c": PART}.items():
        (tmp_path / f"ex02_{name}.py").write_text(f"import torch\n{source}")
    part = tmp_path / "out.json.part"
    whole = grade([str(tmp_path)], None, part)
    lines = part.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    part.write_text(lines[0] + lines[1] + lines[2][:20])  # interrupted while the third was written
    graded = []
    monkeypatch.setattr(module, "note", lambda file, version, submission, done: graded.append(submission.id))
    assert grade([str(tmp_path)], None, part) == whole and len(graded) == 1
    (tmp_path / "ex02_a.py").write_text("import torch\n")  # a changed submission is graded anew
    assert grade([str(tmp_path)], None, part)[0]["score"] == 0


def test_hidden_checks_of_a_teacher(tmp_path, capsys):
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "ex02.py").write_text(
        "import torch\nfrom minispec.grading.task import Case\n"
        "def cases():\n    return {'2.1': [Case('secret', lambda f: f(torch.tensor([[1]]), torch.tensor([[1, 2]])), [9])]}\n"
    )
    file = tmp_path / "ex02.py"
    file.write_text(f"import torch\n{RIGHT}{PART}")
    found = grade([str(file)], str(checks))[0]["tasks"]
    assert found[0]["verdict"] == "failed" and "secret" not in found[0]["diagnosis"] and found[4]["verdict"] == "passed"


def test_gradescope_gets_its_form(tmp_path):
    (tmp_path / "ex02.py").write_text(f"import torch\n{RIGHT}")
    cli.main(["grade", str(tmp_path / "ex02.py"), "--gradescope", str(tmp_path / "results.json")])
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["score"] == 15 and len(found["tests"]) == 5
    assert found["tests"][0] == {"name": "2.1", "score": 15, "max_score": 15, "status": "passed", "output": "passed"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.ipynb"], "there is no file nothing.ipynb"),
        (["README.md"], "README.md is neither a notebook"),
        (["minispec/data"], "there is no notebook and no .py in minispec/data"),
        (["solutions", "--checks", "nowhere"], "nowhere holds no checks"),
        (["solutions", "--json", "nowhere/out.json"], "--json needs a file in a folder that exists"),
        (["solutions", "--gradescope", "out.json"], "--gradescope is for one submission"),
    ],
)
def test_a_mistake_gets_one_line_and_status_2(arguments, says, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        cli.main(["grade", *arguments])
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1 and says in error


def test_notebook_and_command_give_the_same_report_byte_for_byte(tmp_path, capsys):
    """Right, wrong, raising, borrowed and unwritten answers: as the notebook holds them, and as the file has them."""
    cells = [
        "import torch\nimport minispec as ms\nfrom minispec.grading import check, status",
        body("return (guesses == answers[:, :-1]).sum(1)"),
        "def emit(g, a, eos, budget):\n    n = 1\n    raise KeyError(object())",
        "def write_draft(small, seen, text, count):\n    small.rewind(99)",
        "def speculate(*a): return ms.generate(*a)",
        "def parting(a, b, logits): raise NotImplementedError('x')",
        "check('2.1', accepted_count)",
    ]
    written(tmp_path, "ex02_greedy_verification.ipynb", cells)
    names = {"__name__": "__main__"}
    for cell in cells:
        exec(cell, names)
    capsys.readouterr()
    notebook.status(names=names)
    in_notebook = capsys.readouterr().out
    cli.main(["grade", str(tmp_path / "ex02_greedy_verification.ipynb"), "--json", str(tmp_path / "out.json")])
    assert capsys.readouterr().out == in_notebook
    assert json.loads((tmp_path / "out.json").read_text())["submissions"] == [notebook.report(names=names)]
    for verdict in ("failed", "error", "borrowed", "todo"):
        assert verdict in in_notebook


def test_what_is_noted_of_calls_is_the_same_from_the_sandbox(workshop):
    """An answer that changes an argument, one of another kind, one of another dtype, one without a return."""
    cells = (
        "import torch",
        "def residual(p, q):\n    wide = torch.nn.functional.pad(q, (0, p.shape[1] - q.shape[1]))\n"
        "    left = p.sub_(wide).clamp(min=0)\n    p += wide\n    mass = left.sum(1, keepdim=True)\n"
        "    p *= 1.0 + 1e-9\n    return torch.where(mass > 0, left / mass, p)",
        "def keep(log_p, log_q, u):\n    return (u.log() < log_p - log_q).int()",
        "def honest_q(logits, temperature, top_k):\n    if temperature == 0:\n"
        "        return torch.nn.functional.one_hot(logits.argmax(), len(logits))\n    if 0 < top_k < len(logits):\n"
        "        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)\n"
        "    return (logits / temperature).softmax(0)",
        "def verify_chain(guesses, p, q, u):\n    counts = (guesses >= 0).sum(1)",
        "def choose_sibling(p, q, siblings, u):\n    return siblings.pop(), 0",
    )
    names = {"__name__": "__main__"}
    for cell in cells:
        exec(cell, names)
    in_notebook = notebook.report(3, names)
    tasks = workshop.grade(Submission(in_notebook["id"], cells, 3, None, ""))["tasks"]
    assert tasks == in_notebook["tasks"]
    said = (
        "changes its argument `p`",
        "bool is asked for, and it gives int",
        "tensor of torch.int64",
        "it returns None: is a `return` missing?",
        "changes its argument `siblings`",
    )
    for task, says in zip(tasks, said, strict=True):
        assert task["verdict"] == "failed" and says in task["diagnosis"].split("\n")[0], task


def test_submissions_are_told_apart_by_their_functions(tmp_path):
    for name, source, number in (
        ("a.py", RIGHT, 2),
        ("b.py", "def keep(a, b, c): pass", 3),
        ("ex03_x.py", "x = 1", 3),
        ("c.py", "", None),
    ):
        (tmp_path / name).write_text(source)
        assert read("x", tmp_path / name).lesson == number
