"""The benchmark: every method has its turn, what is counted is right, and the bound is what the rounds allow."""

import json

import pytest
import torch

import minispec as ms
from minispec import bench

REQUESTS = [
    {"id": f"r{i}", "kind": kind, "messages": torch.tensor(ids), "max_new_tokens": 30}
    for i, (kind, ids) in enumerate([("chat", [1, 2, 1, 2]), ("code", [3]), ("chat", [4, 4, 4]), ("code", [2, 3, 2])])
]


@pytest.fixture(scope="module")
def result():
    drafters = {"ngram": ms.NGram(1, 3, 4), "draft": ms.DraftModel(ms.toy(), 3)}
    saved = []
    done = bench.bench(
        ms.toy(),
        drafters,
        REQUESTS,
        max_new_tokens=20,
        batches=(1, 3),
        repeats=2,
        save=lambda r: saved.append(len(r["runs"])),
    )
    assert saved == [18, 36, 36], "saved after each repeat: 3 methods on 4 + 2 groups"
    return json.loads(json.dumps(done))


def test_everything_is_run_and_every_method_goes_first_as_often(result):
    for method in ("autoregressive", "ngram", "draft"):
        rows = [row for run in result["runs"] if run["method"] == method and run["batch"] == 3 for row in run["rows"]]
        assert sorted(rows) == sorted([0, 1, 2, 3] * 2)
    firsts = [names[0] for *_, names in bench.schedule(6, (1,), 2, ["a", "b", "c"])]
    assert all(firsts.count(name) == 4 for name in "abc")


def test_texts_are_the_same_and_rounds_add_up(result):
    for run in result["runs"]:
        assert all(run["same_text"]) and len(run["same_text"]) == len(run["rows"])
        for tokens, rounds in zip(run["tokens"], run["rounds"], strict=True):
            assert 1 + sum(r["emitted"] for r in rounds) == len(tokens) == 20
            assert sum(r["draft_s"] + r["verify_s"] + r["accept_s"] + r["other_s"] for r in rounds) < run["seconds"]


def test_a_rehearsal_makes_the_rounds_of_the_real_run(result):
    for method in ("ngram", "draft"):
        for run in result["runs"]:
            if run["method"] == method and run["batch"] == 1 and run["repeat"] == 0:
                real = [[r["nodes"], r["accepted"]] for r in run["rounds"][0]]
                rehearsed = [row[:2] for row in result["rehearsals"][method][str(run["rows"][0])]]
                assert rehearsed == real


def test_a_text_that_differs_is_counted(monkeypatch):
    right = bench.our_method

    def wrong(lm, drafter):
        def run(prompts, most):
            done = right(lm, drafter)(prompts, most)
            if drafter and prompts[0].tolist() == [3]:
                done.tokens[0][2] = (done.tokens[0][2] + 1) % 5
            return done

        return run

    monkeypatch.setattr(bench, "our_method", wrong)
    result = bench.bench(ms.toy(), {"ngram": ms.NGram()}, REQUESTS, max_new_tokens=6)
    table = bench.report(result).splitlines()
    assert next(line for line in table if line.startswith("| ngram |")).endswith("| 3 of 4 |")
    assert next(line for line in table if line.startswith("| autoregressive |")).endswith("| 4 of 4 |")


def known(method, seconds, tokens, rounds=None, rows=(0,), repeat=0):
    run = {"method": method, "batch": 1, "repeat": repeat, "rows": list(rows), "tokens": [list(range(tokens))]}
    return run | {"seconds": seconds, "ttft_s": 1.0, "rounds": rounds and [rounds], "same_text": [True]}


def test_tables_from_numbers_that_can_be_checked_by_hand():
    one = {"nodes": 0, "accepted": 0, "emitted": 1}
    three = {"nodes": 3, "accepted": 2, "emitted": 3}
    result = {
        "machine": {
            "model": "m",
            "dtype": "d",
            "threads": 2,
            "cpu": "c",
            "device": "cpu",
            "torch": "t",
            "transformers": "f",
        },
        "max_new_tokens": 7,
        "requests": [{"id": "a", "kind": "chat", "prompt_tokens": 3}],
        "runs": [
            *(known("autoregressive", 1 + s, 7, [one] * 6, repeat=i) for i, s in enumerate((6.0, 5.0, 60.0))),
            *(known("draft", 1 + s, 7, [three] * 2, repeat=i) for i, s in enumerate((4.0, 30.0, 3.0))),
            *(known("transformers", 14.0, 7, repeat=i) for i in range(3)),
        ],
        "rehearsals": {"draft": {"0": [(3, 2, 0.25)] * 2}},
        "cost_curve_s": {"1": 1.0, "2": 1.1, "3": 1.2, "4": 1.25},
    }
    table = bench.report(result)
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in table.split("| speedup (")[0].splitlines()
        if "|" in line
    }
    assert rows["autoregressive"][:2] == ["1.0", "1.00"], "7 tokens in the median of 7, 6 and 61 seconds"
    cells = rows["draft"]
    assert cells[1] == "1.40" and cells[3] == "1.50" and cells[4] == "3.00", "6 seconds of decoding against 4"
    assert cells[5] == "2.00" and cells[6] == "75%", "3 tokens for a pass over 4 and a proposal: 3 / (1.25 + 0.25)"
    assert cells[7] == f"{3 / (1.2 + 2 * 0.25 / 3):.2f}" and cells[8] == "1 of 1"
    assert rows["transformers"][1] == "0.50"
    assert "| draft | 1.40 (3.00) |" in table, "and by kind of request"


def test_the_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    bench.write_json({"a": 1}, tmp_path / "r.json")
    monkeypatch.setattr(json, "dumps", lambda result: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        bench.write_json({"a": 2}, tmp_path / "r.json")
    monkeypatch.undo()
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": 1}
