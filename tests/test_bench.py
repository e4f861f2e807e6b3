"""The benchmark: every method has its turn, what is counted is right, and the bound is what the rounds allow."""

import json
from pathlib import Path

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
    assert saved == [0, 36], "before the first run, in case the place cannot be written, and at the end"
    return json.loads(json.dumps(done))


def test_everything_is_run_and_every_method_goes_first_as_often(result):
    for method in ("autoregressive", "ngram", "draft"):
        rows = [row for run in result["runs"] if run["method"] == method and run["batch"] == 3 for row in run["rows"]]
        assert sorted(rows) == sorted([0, 1, 2, 3] * 2)
    plan = list(bench.schedule(6, (1, 2), 3, {1: ["a", "b", "c"], 2: ["a", "b", "c"]}))
    firsts = [names[0] for *_, names in plan]
    assert all(firsts.count(name) == 9 for name in "abc")
    assert len({tuple(names) for _, size, rows, names in plan if (size, rows) == (1, [0])}) == 3, "another turn each repeat"


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


def test_a_rehearsal_may_end_with_an_accepted_eos():
    lm, prompt = ms.toy(vocab_size=30, seed=3), torch.tensor([1, 2])
    plain = ms.generate(lm, prompt, max_new_tokens=30).tokens.tolist()
    end = next(i for i in range(4, 20) if plain[i] not in plain[:i])
    lm = ms.toy(vocab_size=30, seed=3, eos_id=plain[end])
    for count in (1, 2, 3, 4, 5):
        g = ms.generate(lm, prompt, ms.DraftModel(ms.toy(vocab_size=30, seed=3), count), max_new_tokens=30)
        drafter = ms.DraftModel(ms.toy(vocab_size=30, seed=3), count)
        rehearsed = bench.rehearse(lm, drafter, prompt, plain[: end + 1], 30)
        assert [r[:3] for r in rehearsed] == [(r.tree.counts[0], len(r.accepted), len(r.emitted)) for r in g.trace.rounds]


def test_what_cannot_be_measured_is_said_before_anything_runs():
    for options, message in (
        ({"max_new_tokens": 1}, "max_new_tokens must be 2 or more"),
        ({"max_new_tokens": 400}, "request r0 with its 30 new tokens exceeds"),
        ({"max_new_tokens": 4, "batches": (1, 9)}, "a batch of 9 needs as many requests, but there are 4"),
    ):
        lm = ms.toy(max_position_embeddings=32) if "r0" in message else ms.toy()
        with pytest.raises(ValueError, match=message):
            bench.bench(lm, {}, REQUESTS, **options)
    mixed = [REQUESTS[0], REQUESTS[1] | {"max_new_tokens": 5}]
    with pytest.raises(ValueError, match="must have the same limit"):
        bench.bench(ms.toy(), {}, mixed, max_new_tokens=20, batches=(2,))


def test_a_trimmed_head_is_the_whole_one_at_its_ids():
    weight, ids = torch.randn(9, 4), torch.tensor([2, 3, 7])
    state = torch.randn(1, 5, 4)
    out = bench.TrimmedHead(weight, ids)(state)
    assert torch.allclose(out[..., ids], (state @ weight.T)[..., ids], atol=1e-6)
    assert out.isfinite().sum() == 15


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
    run |= {"seconds": seconds, "ttft_s": 1.0, "rounds": rounds and [rounds], "same_text": [True]}
    return run | {"extra_bytes": 5_000_000}


def test_tables_from_numbers_that_can_be_checked_by_hand():
    time = {"draft_s": 0.5, "verify_s": 1.25, "accept_s": 0.25, "other_s": 0.0}
    one = {"nodes": 0, "accepted": 0, "emitted": 1, **time}
    three = {"nodes": 3, "accepted": 2, "emitted": 3, **time}
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
        "rehearsals": {"draft": {"0": [(3, 2, 3, 0.25)] * 2}},
        "cost_curve_s": {"1": 1.0, "2": 1.1, "3": 1.2, "4": 1.25},
    }
    table = bench.report(result)
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in table.split("| method | first token")[0].splitlines()
        if "|" in line
    }
    assert rows["autoregressive"][:2] == ["1.0", "1.00"], "7 tokens in the median of 7, 6 and 61 seconds"
    cells = rows["draft"]
    assert cells[1] == "1.40" and cells[3] == "1.50" and cells[4] == "3.00", "6 seconds of decoding against 4"
    assert cells[5] == "2.00" and cells[6] == "75%", "3 tokens for a pass over 4 and a proposal: 3 / (1.25 + 0.25)"
    assert cells[7] == f"{3 / (1.2 + 2 * 0.25 / 3):.2f}" and cells[8] == "1 of 1"
    assert rows["transformers"][1] == "0.50"
    assert "| draft | 1.40 (3.00) |" in table, "and by kind of request"
    assert "| draft | 1000 | 666.7 | 25.0% | 62.5% | 12.5% | 0.0% | 540% | 5.0 | 1.00, 1.00, 0.00 |" in table
    del result["cost_curve_s"]
    assert "| draft |" in bench.report(result), "a run that was stopped can be looked at"


def test_the_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    bench.write_json({"a": 1}, tmp_path / "r.json")
    whole = Path.write_text

    def stop(self, text):
        whole(self, text[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        bench.write_json({"a": 2}, tmp_path / "r.json")
    monkeypatch.undo()
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": 1}
