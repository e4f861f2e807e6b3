"""The checks: every banked wrong answer fails with its own diagnosis, every right one passes, a picture is always drawn."""

import contextlib
import re
import time
from pathlib import Path

import pytest
import torch
from right_answers import RIGHT

from minispec.grading import check, hint, notebook, show, status, wire
from minispec.grading.lessons import NUMBERS, find_task, lesson
from minispec.grading.task import Case, Result, assess, cases_of, drawable
from minispec.grading.wire import Local, Raised, borrowed, pack, plain, unpack

ROOT = Path(__file__).parent.parent
TASKS = [task for number in NUMBERS for task in lesson(number).tasks]
each_task = pytest.mark.parametrize("task", TASKS, ids=[task.id for task in TASKS])


def todo(*args):
    raise NotImplementedError("return something")


@each_task
def test_every_banked_wrong_answer_fails_and_is_told_what_it_did(task):
    assert len(task.wrong) >= 6 and len({wrong.says for wrong in task.wrong}) == len(task.wrong)
    for wrong in task.wrong:
        result = assess(task, Local(wrong.function))
        assert result.verdict in ("failed", "error") and result.score == 0, wrong.says
        assert result.diagnosis.split("\n")[0] == wrong.says


@each_task
def test_every_right_answer_passes_in_under_a_second(task):
    assert len(RIGHT[task.id]) >= 2
    cases_of(task)  # made once a process, with a toy model
    for function in RIGHT[task.id]:
        start = time.process_time()
        result = assess(task, Local(function))
        assert result == Result(task.id, task.points, task.points, "passed"), (function.__name__, result.diagnosis)
        assert time.process_time() - start < 1


@each_task
def test_what_fails_is_shown_at_its_smallest_and_without_code(task):
    for wrong in task.wrong:
        text = assess(task, Local(wrong.function)).diagnosis
        assert re.search(r"\ncase: .+\nexpected: .+\ngot: .+\n\d+ of \d+ cases fail$", text), text
        assert len(text) < 900 and "return " not in text and "0x" not in text


@each_task
def test_a_stub_is_to_be_done_and_other_answers_cost_no_exception(task):
    assert assess(task, Local(todo)).verdict == "todo"
    for answer in (
        lambda *a: None,
        lambda *a: [],
        lambda *a: 1 / 0,
        lambda: 1,
        lambda *a: object(),
        lambda *a: float("nan"),
    ):
        result = assess(task, Local(answer))
        assert result.verdict in ("failed", "error") and result.score == 0, task.id


@each_task
def test_a_picture_is_drawn_of_right_wrong_and_missing_answers(task):
    for answer in (RIGHT[task.id][0], *[wrong.function for wrong in task.wrong], todo, lambda *a: "nonsense", lambda *a: []):
        given = drawable(task, Local(answer))
        figure, alt, numbers = task.picture(Local(answer), given) if given else task.picture(Local(answer))
        assert figure.axes and len(alt) > 40 and len(numbers) > 10


def test_the_picture_is_that_of_the_case_that_fails():
    task = find_task("2.2")
    lost = Local(lambda guesses, answers, eos, budget: RIGHT["2.2"][0](guesses, answers, eos or None, budget))
    given = drawable(task, lost)
    assert given == ([0, 7], [0, 7, 9], 0, 3) and task.picture(lost, given)[2] == "emitted: [0, 7, 9]"
    assert drawable(task, Local(RIGHT["2.2"][0])) is drawable(task, Local(todo)) is None


@each_task
def test_a_task_has_its_words(task):
    assert len(task.hints) == 3 and all(len(text) > 30 for text in task.hints)
    source = next(ROOT.glob(f"solutions/ex{task.id.split('.')[0].zfill(2)}_*.py")).read_text()
    line = f"{task.points} points · difficulty {task.difficulty} of 5 · {task.minutes} minutes"
    head = f"# ## {task.id} · {task.title}\n#\n# {line}\n"
    assert head in source and f"def {task.name}(" in source


@pytest.mark.parametrize("number", NUMBERS)
def test_a_lesson_has_a_hundred_points_and_four_to_six_tasks(number):
    tasks = lesson(number).tasks
    assert sum(task.points for task in tasks) == 100 and 4 <= len(tasks) <= 6
    assert [task.id for task in tasks] == [f"{number}.{i + 1}" for i in range(len(tasks))]


def spoilt(task, at, change):
    """A right answer that then changes its argument number `at`, in the last call of each case."""

    def spoils(*args):
        found = plain(RIGHT[task.id][0](*args))
        change(args[at])
        return found

    return spoils


def turn(x):
    """Change a list or a tensor in place; its type, if not its value."""
    if isinstance(x, torch.Tensor):
        x.copy_(~x if x.dtype == torch.bool else x + 1) if x.numel() else x.resize_(1)
    else:
        x.append(7)


@each_task
def test_an_answer_that_changes_an_argument_fails_and_is_told_which(task):
    seen = []
    watch = Local(lambda *args: seen.append(args) or RIGHT[task.id][0](*args))
    assert assess(task, watch).verdict == "passed"
    places = [i for i, x in enumerate(seen[0]) if isinstance(x, list | torch.Tensor)]
    assert places or task.id in ("1.1", "6.3", "6.5")  # numbers alone, or a function
    for at in places:
        for _ in range(2):  # the cases are made once: the second round would see what the first has spoilt
            result = assess(task, Local(spoilt(task, at, turn)))
            assert result.verdict == "failed" and result.score == 0
            assert result.diagnosis.startswith("it changes its argument `args`; leave your arguments as they are"), at
            assert assess(task, Local(RIGHT[task.id][0])).verdict == "passed"


def test_a_change_is_seen_wherever_it_is():
    def answer(change):
        def f(a, b):
            change(a, b)
            return 1

        local = Local(f)
        local([[1], torch.tensor([0.0, float("nan")])], torch.zeros(2))
        return local.notes[0]["changed"]

    assert answer(lambda a, b: None) is None
    for change in (
        lambda a, b: a[0].append(2),
        lambda a, b: a[0].__setitem__(0, True),  # 1 == True
        lambda a, b: a[1].fill_(0),
        lambda a, b: a.append(None),
        lambda a, b: a.__setitem__(1, a[1].double()),
    ):
        assert answer(change) == "a"
    assert answer(lambda a, b: b.add_(1)) == answer(lambda a, b: b.resize_(3)) == "b"


def test_numbers_of_another_kind_fail_and_are_named():
    of = {task.id: task for task in TASKS}
    given = [
        ("2.1", lambda g, a: RIGHT["2.1"][0](g, a).float(), "int is asked for, and it gives float"),
        ("3.2", lambda p, q, u: RIGHT["3.2"][0](p, q, u).long(), "bool is asked for, and it gives int"),
        ("7.2", lambda *args: torch.as_tensor(RIGHT["7.2"][0](*args)).float(), "bool is asked for, and it gives float"),
        ("3.3", lambda *args: RIGHT["3.3"][0](*args).float(), "a tensor of torch.float32; asked for is torch.float64"),
    ]
    for name, answer, says in given:
        assert says in assess(of[name], Local(answer)).diagnosis.split("\n")[0], name


def test_a_forgotten_return_and_an_endless_loop_are_named(monkeypatch):
    for task in TASKS:
        said = assess(task, Local(lambda *args: None)).diagnosis.split("\n")[0]
        assert (said == "it returns None: is a `return` missing?") == (task.returns is not None), task.id
    monkeypatch.setattr(wire, "CPU_S", 0.2)

    def endless(*args):
        while True:
            with contextlib.suppress(Exception):
                args = [*args]

    result = assess(find_task("2.4"), Local(endless))
    assert result.verdict == "stopped" and result.diagnosis.startswith("does a loop never end? There was no answer in 0.2")


def test_equal_to_everything_is_equal_to_nothing():
    class Sly(list):
        __eq__ = lambda self, other: True
        __hash__ = None

    for task in TASKS:
        assert assess(task, Local(lambda *a: Sly())).verdict == "failed", task.id


def test_an_answer_that_is_wrong_by_one_thousandth_or_in_one_row_fails():
    right = RIGHT["3.1"][0]
    assert assess(find_task("3.1"), Local(lambda p, q: right(p, q) * 1.001)).verdict == "failed"

    def one_row(guesses, p, q, u):
        counts, tokens = RIGHT["3.4"][1](guesses, p, q, u)
        if len(tokens) > 400:
            tokens[400] = (tokens[400] + 1) % p.shape[2]
        return counts, tokens

    assert max(len(plain(case.want)) for case in cases_of(find_task("3.4"))) > 400
    assert assess(find_task("3.4"), Local(one_row)).verdict == "failed"


def test_a_hidden_case_counts_and_is_not_shown():
    task = find_task("2.1")
    secret = Case("a secret", lambda answer: answer(torch.tensor([[3]]), torch.tensor([[3, 3]])), [7])
    result = assess(task, Local(RIGHT["2.1"][0]), [secret])
    assert result.verdict == "failed" and "secret" not in result.diagnosis and "expected" not in result.diagnosis


def test_what_an_answer_borrows_is_seen():
    import minispec as ms
    from minispec import verify

    names = {"ms": ms, "verify": verify, "check": check, "torch": torch}

    def made(text):
        space = dict(names)
        exec(text, space)
        return borrowed(space["f"])

    assert made("def f(): return torch.ones(2).check") is None  # an attribute of that name is no function of ours
    assert made("def f(): return ms.toy()") == "ms"
    assert made("def g(): return verify.greedy\ndef f(): return [g() for _ in 'a']") == "verify"
    assert made("def f():\n    import minispec.verify as v\n    return v") == "minispec.verify"
    assert made("def f():\n    def g():\n        from minispec import verify\n    return g") == "minispec"
    assert notebook.judge(find_task("2.1"), check).verdict == "borrowed"


def test_data_passes_unchanged_and_copied():
    given = [torch.tensor([0.1, 1e-300]).double(), torch.zeros(0, 3), [1, None, True, "a", float("inf")]]
    back = unpack(pack(given))
    assert all(torch.equal(a, b) and a.dtype == b.dtype and a is not b for a, b in zip(given[:2], back[:2], strict=True))
    assert back[2] == given[2] and back[2] is not given[2]
    with pytest.raises(TypeError, match="returns a generator"):
        plain(x for x in "ab")


def test_an_exception_is_described_alike_everywhere():
    def fails(*args):
        x = object()
        raise KeyError(str(x))

    with pytest.raises(Raised) as caught:
        Local(fails)(1)
    assert caught.value.kind == "KeyError" and "0x.." in caught.value.message and caught.value.line == 3


def test_check_hint_and_status_say_what_to_do(capsys):
    notebook.asked.clear()
    assert check("2.1", RIGHT["2.1"][0]) and capsys.readouterr().out == "2.1 passed: 15 of 15 points\n"
    assert not check("2.1", todo) and "not done yet" in capsys.readouterr().out
    assert not check("2.1", lambda guesses, answers: (guesses == answers[:, :-1]).sum(1))
    assert "it counts every guess that agrees" in capsys.readouterr().out
    for step in (1, 2, 3):
        hint("2.1")
        assert f"hint {step} of 3" in capsys.readouterr().out
    hint("2.1")
    assert "that were all hints" in capsys.readouterr().out
    hint("2.1", 2)
    assert "hint 2 of 3" in capsys.readouterr().out
    status(2, {"accepted_count": RIGHT["2.1"][0], "emit": todo, "parting": 3})
    said = capsys.readouterr().out
    assert said.startswith("ex02_greedy_verification: 15 of 100 points\n2.1   15 of  15  passed\n")
    assert "todo" in said and "parting is no function" in said and "there is no function speculate" in said
    with pytest.raises(ValueError, match="no task '9.9'"):
        check("9.9", todo)
    with pytest.raises(ValueError, match="no answer of any lesson"):
        status(names={})
    show("2.1", todo)


def test_no_file_of_grading_is_long():
    for file in (ROOT / "minispec" / "grading").rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 250, file.name
