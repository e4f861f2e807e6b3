"""The benchmark: every method has its turn, what is counted is right, a stop loses nothing, tables add up by hand."""

import gzip
import importlib
import json
import re
import statistics
from pathlib import Path

import pytest
import torch

import minispec as ms
from minispec import bench, figures, peers, report
from minispec.served import read_served

REQUESTS = [
    {"id": f"r{i}", "kind": kind, "messages": torch.tensor(ids), "max_new_tokens": 30}
    for i, (kind, ids) in enumerate([("chat", [1, 2, 1, 2]), ("code", [3]), ("chat", [4, 4, 4]), ("code", [2, 3, 2])])
]
OPTIONS = {"max_new_tokens": 20, "batches": (1, 3), "temperatures": (0.0, 0.7), "repeats": 2}


def drafters():
    return {"ngram": ms.NGram(1, 3, 4), "draft": ms.DraftModel(ms.toy(), 3)}


@pytest.fixture(scope="module")
def result():
    saved = []
    done = bench.bench(ms.toy(), drafters(), REQUESTS, **OPTIONS, save=lambda r: saved.append(len(r["runs"])))
    assert saved == [0, 72], "before the first run, in case the place cannot be written, and at the end"
    return json.loads(json.dumps(done))


def test_everything_is_run_and_every_method_goes_first_as_often(result):
    for method in ("autoregressive", "ngram", "draft"):
        rows = [row for run in result["runs"] if run["method"] == method and run["batch"] == 3 for row in run["rows"]]
        assert sorted(rows) == sorted([0, 1, 2, 3, 0, 1] * 4), "the last batch is filled up, so that all are of one size"
    plan = list(bench.schedule(6, (1, 2), (0.0,), 3, 0, ["a", "b", "c"], []))
    firsts = [step.turns[0] for step in plan]
    assert all(firsts.count(name) == 9 for name in "abc")
    assert plan == list(bench.schedule(6, (1, 2), (0.0,), 3, 0, ["a", "b", "c"], []))
    assert plan != list(bench.schedule(6, (1, 2), (0.0,), 3, 1, ["a", "b", "c"], [])), "the seed shuffles"
    peers = [
        (step.batch, step.temperature) for step in bench.schedule(2, (1, 2), (0, 1), 1, 0, ["a"], ["t"]) if "t" in step.turns
    ]
    assert set(peers) == {(1, 0)}


def test_texts_are_the_same_and_rounds_add_up(result):
    for run in result["runs"]:
        if run["temperature"]:
            assert run["same_text"] is None
        else:
            assert all(run["same_text"]) and len(run["same_text"]) == len(run["rows"])
        for tokens, rounds in zip(run["tokens"], run["rounds"], strict=True):
            rounds = [report.named(r) for r in rounds]
            assert 1 + sum(r["emitted"] for r in rounds) == len(tokens) == 20
            assert sum(r["draft_s"] + r["verify_s"] + r["accept_s"] + r["other_s"] for r in rounds) < run["seconds"]
            assert all(r["accepted"] <= r["tried"] <= r["accepted"] + 1 and r["tried"] <= r["nodes"] for r in rounds)


def test_a_run_that_was_stopped_goes_on_where_it_was(result, monkeypatch):
    kept = []
    whole = bench.PassMeter.sweep

    def stop_later(meter, calls=[0]):  # noqa: B006
        calls[0] += 1
        if calls[0] == 9:
            raise KeyboardInterrupt
        return whole(meter)

    monkeypatch.setattr(bench.PassMeter, "sweep", stop_later)
    with pytest.raises(KeyboardInterrupt):
        bench.bench(ms.toy(), drafters(), REQUESTS, **OPTIONS, save=lambda r: kept.append(json.dumps(r)))
    monkeypatch.undo()
    begun = json.loads(kept[-1])
    assert len(begun["runs"]) == 7 * 3 and not bench.is_complete(begun), "whole groups: the eighth was not finished"
    assert "| draft |" in report.report(begun), "what there is can be looked at"
    assert "Nothing" in report.report({**begun, "runs": []})
    done = bench.bench(ms.toy(), drafters(), REQUESTS, **OPTIONS, begun=begun)
    assert bench.is_complete(done)
    plain = [[(run["method"], run["rows"], run["tokens"]) for run in r["runs"]] for r in (result, done)]
    assert plain[0] == plain[1]
    other = {**begun, "settings": {**begun["settings"], "seed": 5, "repeats": 9}}
    with pytest.raises(ValueError, match=r"begun with other settings \(repeats, seed\); name a new file"):
        bench.bench(ms.toy(), drafters(), REQUESTS, **OPTIONS, begun=other)
    with pytest.raises(ValueError, match="begun with other drafters"):
        bench.bench(ms.toy(), drafters() | {"draft": ms.DraftModel(ms.toy(seed=1), 3)}, REQUESTS, **OPTIONS, begun=begun)


def test_a_rehearsal_makes_the_rounds_of_the_real_run(result):
    for method in ("ngram", "draft"):
        for run in result["runs"]:
            if run["method"] == method and run["batch"] == 1 and run["repeat"] == 0 and not run["temperature"]:
                real = [[r["nodes"], r["accepted"]] for r in map(report.named, run["rounds"][0])]
                (first, again) = result["rehearsals"][method][str(run["rows"][0])]
                assert [[row[0], row[2]] for row in first] == [[row[0], row[2]] for row in again] == real
                ahead, at = result["ahead"][method][str(run["rows"][0])], 0
                assert len(ahead) == 19
                for row in first:
                    assert ahead[at][:3] == row[:3], "what is drafted at a place does not depend on how it was reached"
                    at += row[3]


def test_a_rehearsal_may_end_with_an_accepted_eos():
    lm, prompt = ms.toy(vocab_size=30, seed=3), torch.tensor([1, 2])
    plain = ms.generate(lm, prompt, max_new_tokens=30).tokens.tolist()
    end = next(i for i in range(4, 20) if plain[i] not in plain[:i])
    lm = ms.toy(vocab_size=30, seed=3, eos_id=plain[end])
    for count in (1, 2, 3, 4, 5):
        g = ms.generate(lm, prompt, ms.DraftModel(ms.toy(vocab_size=30, seed=3), count), max_new_tokens=30)
        drafter = ms.DraftModel(ms.toy(vocab_size=30, seed=3), count)
        found = [
            (r.nodes, r.levels, r.accepted, r.emitted) for r in bench.rehearse(lm, drafter, prompt, plain[: end + 1], 30)
        ]
        real = [(r.tree.counts[0], r.tree.counts[0], len(r.accepted), len(r.emitted)) for r in g.trace.rounds]
        assert found == real


def test_what_cannot_be_measured_is_said_before_anything_runs():
    for options, message in (
        ({"max_new_tokens": 1}, "max_new_tokens must be 2 or more"),
        ({"max_new_tokens": 400}, "request r0 with its 30 new tokens exceeds"),
        ({"max_new_tokens": 4, "batches": (1, 10**9)}, "a batch of 1000000000 needs about .* GB, and .* GB are free"),
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
    out = peers.TrimmedHead(weight, ids)(state)
    assert torch.allclose(out[..., ids], (state @ weight.T)[..., ids], atol=1e-6)
    assert out.isfinite().sum() == 15


def rows_of(text, after, columns=slice(2, -1)):
    """Cells of a table by the name of each row: the first table whose head holds `after`."""
    block = next(block for block in text.split("\n\n") if block.startswith("|") and after in block.split("\n")[0])
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[columns]] for line in block.split("\n")}


def test_a_text_that_differs_is_counted(monkeypatch):
    right = bench.our_method

    def wrong(lm, drafter):
        def run(prompts, *rest):
            done = right(lm, drafter)(prompts, *rest)
            if drafter and prompts[0].tolist() == [3]:
                done.tokens[0][2] = (done.tokens[0][2] + 1) % 5
            return done

        return run

    monkeypatch.setattr(bench, "our_method", wrong)
    result = bench.bench(ms.toy(), {"ngram": ms.NGram()}, REQUESTS, max_new_tokens=6)
    table = rows_of(report.report(result), "same text")
    assert table["ngram"][-1] == "3 of 4" and table["autoregressive"][-1] == "4 of 4"


def known(method, seconds, tokens, rounds=None, repeat=0, rows=(0,)):
    run = {"method": method, "batch": 1, "temperature": 0.0, "repeat": repeat, "rows": list(rows)}
    run |= {"tokens": [list(range(tokens))], "seconds": seconds, "ttft_s": 1.0, "rounds": rounds and [rounds]}
    return run | {"extra_bytes": 5_000_000, "same_text": [True]}


def by_hand():
    """Three repeats of one request: 7 tokens, in six passes or in two rounds that draft three and accept two."""
    one, three = [0, 0, 0, 1, 0.5, 1.25, 0.25, 0.0], [3, 3, 2, 3, 0.5, 1.25, 0.25, 0.0]
    machine = {"model": "m", "dtype": "d", "threads": 2, "cpu": "c", "device": "cpu", "torch": "t", "transformers": "f"}
    stored = [[5, 6, 7], [0, 1, 2], [1, 2], [5, 6, 9]]
    return {
        "machine": machine,
        "settings": {
            "max_new_tokens": 7,
            "batches": [1],
            "temperatures": [0.0],
            "seed": 0,
            "methods": ["autoregressive", "draft", "transformers"],
        },
        "drafters": {"draft": {}},
        "requests": [{"id": "a", "kind": "chat", "prompt": [1, 2, 3]}],
        "runs": [
            *(known("autoregressive", 1 + s, 7, [one] * 6, i) for i, s in enumerate((6.0, 5.0, 60.0))),
            *(known("draft", 1 + s, 7, [three] * 2, i) for i, s in enumerate((4.0, 30.0, 3.0))),
            *(known("transformers", 14.0, 7, None, i) for i in range(3)),
        ],
        "rehearsals": {"draft": {"0": [[[3, 3, 2, 3, s]] * 2 for s in (0.25, 9.0, 0.2)]}},
        "ahead": {"draft": {"0": [[3, 3, 2, 1, 0.3], [3, 3, 1, 1, 0.3], [3, 3, 0, 1, 0.3]] * 2}},
        "passes": {"cells": [[1, 9], [2, 9], [3, 9], [4, 9], [1, 90]], "seconds": [[1.0, 1.1, 1.2, 1.25, 1.5]] * 2},
        "examples": {"draft": {"rounds": [stored], "texts": {str(i): "x" for i in range(10)}}},
    }


def test_tables_from_numbers_that_can_be_checked_by_hand():
    table = report.report(by_hand(), per_request=True)
    rows = rows_of(table, "same text")
    assert rows["autoregressive"][:2] == ["1.0", "1.00"], "7 tokens in the median of 7, 6 and 61 seconds"
    cells = rows["draft"]
    assert cells[1] == "1.40", "7 seconds against 5"
    assert cells[2:4] == ["1.40", "0.80 to 8.32"], "pairs: 7/5, 6/31, 61/4; quartiles between them"
    assert cells[4] == "1 of 1" and rows["autoregressive"][4] == "", "5 seconds against 7, in the median"
    assert cells[5:8] == ["1.50", "3.00", "540%"], "6 seconds of decoding against 4; (31 - 4) / 5"
    assert cells[8] == "1 of 1" and rows["transformers"][1] == "0.50"
    assert rows_of(table, "first token")["draft"] == ["1000", "666.7", "5.00", "25.0%", "62.5%", "12.5%", "0.0%", "5.0"]
    found = rows_of(table, "nodes a round")["draft"]
    assert found == ["3.0", "2.00", "3.00", "0.67", "1.00, 1.00, 0.00", "1.00, 1.00, 0.00"]
    assert rows_of(table, "speedup (tokens a round)")["draft"] == ["1.40 (3.00)"]
    bound = rows_of(table, "of bound")["draft"]
    assert bound[:3] == ["1.50", "2.00", "75%"], "3 tokens for a pass over 4 and a proposal: 3 / (1.25 + 0.25)"
    assert bound[3] == "2 (2.14)", "6 tokens in two passes over 3 with two drafted, 1.2 + 2 x 0.1 each"
    assert bound[4] == "2.14", "here no choice of lengths is better"
    assert "first token, milliseconds a token" in table and "1000 / 666.7 / 5.00 / 3.00" in table


def test_each_method_beside_its_counterpart_in_transformers():
    result = by_hand()
    theirs = {"transformers autoregressive": 14.0, "transformers assisted": 10.0}
    result["runs"] += [known(name, s, 7, None, i) for name, s in theirs.items() for i in range(3)]
    rows = rows_of(report.report(result), "ours / transformers")
    assert rows["autoregressive (autoregressive)"] == ["1.0", "0.5", "2.00", "1.11 to 2.17", "1.00", "1.00"], (
        "14/6, 14/7, 14/61"
    )
    assert rows["draft (assisted)"] == ["1.4", "0.7", "2.00", "1.16 to 2.25", "1.40", "1.40"], "10/5, 10/31, 10/4"
    assert not any(name.startswith("ngram") for name in rows)


def test_the_four_acceptances_come_from_the_same_rounds():
    result = by_hand()
    rounds = [[3, 1, 0, 1], [3, 3, 2, 3], [2, 2, 2, 3], [0, 0, 0, 1], [3, 2, 2, 2]]  # the last one was cut by the budget
    result["runs"] = [known("draft", 3.0, 11, [[*r, 0.1, 1.0, 0.0, 0.0] for r in rounds])]
    times = report.Times(result, "draft")
    assert times.conditional() == [3 / 4, 1, 0], "position 3 was tried once: full and cut drafts do not count there"
    assert times.unconditional() == [3 / 4, 3 / 4, 0], "of four drafts; the round without one is none"
    assert times.tokens_a_round() == 2.0


def test_every_figure_of_a_result_is_drawn_with_words_from_its_data(result, tmp_path, monkeypatch):
    file = tmp_path / "r.json"
    bench.write_json(result, file)
    page = figures.write(bench.read_result(file), file).read_text()
    names = {path.stem for path in (tmp_path / "r").iterdir()}
    wanted = {
        "cost_curve",
        "breakdown",
        "race",
        "overlap",
        "bounds",
        "tape_draft",
        "speedup_by_batch",
        "speedup_by_temperature",
        "accepting",
    }
    assert names >= wanted | {f"acceptance_by_{what}" for what in ("position", "kind", "request", "context")}
    assert all(f"](r/{name}.png)" in page for name in names)
    drawn = dict(figures.figures(by_hand()))
    assert not len(drawn["acceptance_by_position"].figure.axes[0].lines[0].get_ydata()), "one try is no rate"
    monkeypatch.setattr(figures, "FEW", 1)
    drawn = dict(figures.figures(by_hand()))
    assert "draft: 1.00, 1.00, 0.00" in drawn["acceptance_by_position"].alt
    assert "draft 0.62" in drawn["breakdown"].alt and "observed: draft 1.50" in drawn["bounds"].alt
    lines = drawn["acceptance_by_position"].figure.axes[0].lines
    assert list(lines[0].get_ydata()) == [1, 1, 0]


def test_batches_without_single_requests_have_tables_and_figures_too(tmp_path):
    result = bench.bench(ms.toy(), drafters(), REQUESTS, max_new_tokens=8, batches=(2,))
    page = figures.write(result, tmp_path / "r.json").read_text()
    assert "Batch 2, temperature 0:" in page and "By request" not in page and "](r/cost_curve.png)" in page


def test_what_was_measured_before_a_stop_is_reported(tmp_path):
    """Here before the first single request, and before the first text at temperature 0.7."""
    result = bench.bench(ms.toy(), drafters(), REQUESTS, max_new_tokens=8, batches=(2, 1), temperatures=(0.0, 0.7))
    for left in ({"batch": 2, "temperature": 0.0}, {"batch": 1, "temperature": 0.0}):
        runs = [run for run in result["runs"] if left.items() <= run.items()]
        drawn = figures.write(result | {"runs": runs}, tmp_path / "r.json").read_text()
        assert f"Batch {left['batch']}, temperature 0:" in drawn and "temperature 0.7:" not in drawn


def test_a_batch_of_several_kinds_is_of_no_kind():
    result = bench.bench(ms.toy(), drafters(), REQUESTS, max_new_tokens=8, batches=(2,))
    names = dict(figures.figures(result))
    assert "acceptance_by_position" in names and not names.keys() & {
        "acceptance_by_kind",
        "acceptance_by_request",
        "overlap",
    }


def test_texts_of_one_token_have_no_rate_of_decoding():
    result = by_hand()
    result["requests"] += [{"id": "b", "kind": "code", "prompt": [4]}]
    short = [known(name, 1.0, 1, None, i, (1,)) for name in ("autoregressive", "draft") for i in range(3)]
    result["runs"] += [run | {"rounds": [[]]} for run in short]
    result["rehearsals"]["draft"]["1"], result["ahead"]["draft"]["1"] = [[]] * 3, []
    assert rows_of(report.report(result), "speedup (tokens a round)")["autoregressive"][1:] == ["nan ms a token"]
    assert dict(figures.figures(result))["bounds"].alt == dict(figures.figures(by_hand()))["bounds"].alt


def test_the_cost_model_is_that_of_eager_passes():
    result = by_hand()
    result["settings"]["methods"] += ["autoregressive compiled", "draft compiled"]
    result["runs"] += [run | {"method": f"{run['method']} compiled"} for run in result["runs"] if run["rounds"]]
    text = report.report(result)
    assert {"autoregressive compiled", "draft compiled"} <= rows_of(text, "same text").keys()
    assert "draft" in (names := rows_of(text, "predicted, s")) and not any("compiled" in name for name in names)


def test_overlap_by_hand():
    assert report.overlap([1, 2, 3, 4], [2, 3, 4, 9], n=3) == 1 / 4, "2 3 4 stands in the prompt"
    assert report.overlap([], [5, 6, 7, 5, 6, 7], n=3) == 1 / 6, "the text repeats itself"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a result"),
        ("[]", "is no result"),
        ('{"schema": 1, "runs": []}', "has schema 1; this version"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, content, message):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        bench.read_result(tmp_path / "r.json")


def test_a_compressed_result_is_read_and_a_torn_one_refused(tmp_path):
    whole = gzip.compress(json.dumps(by_hand() | {"schema": bench.SCHEMA}).encode())
    (tmp_path / "r.json.gz").write_bytes(whole)
    assert report.report(bench.read_result(tmp_path / "r.json.gz")) == report.report(by_hand())
    for torn in (whole[: len(whole) // 2], b"no gzip", whole[:20] + b"\0\0" + whole[22:]):
        (tmp_path / "r.json.gz").write_bytes(torn)
        with pytest.raises(ValueError, match="cannot be read as a result"):
            bench.read_result(tmp_path / "r.json.gz")


def test_the_pages_say_what_the_committed_results_say(monkeypatch):
    """`python benchmarks/findings.py` writes what stands between the marks."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    findings = importlib.import_module("findings")
    made = findings.blocks(findings.committed())
    pictures = re.findall(r"]\((\S+\.png)\)", "".join(made.values()))
    assert len(pictures) == 8 and all((findings.RESULTS / picture).exists() for picture in pictures)
    for page in findings.PAGES:
        text = page.read_text()
        assert "<!-- end -->" in text and findings.filled(text, made) == text, page


def test_the_default_run_was_made_twice_with_the_same_texts_and_speedups(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    findings = importlib.import_module("findings")
    one, two = (findings.committed()[name] for name in ("bench", "bench-again"))
    assert one["settings"] == two["settings"] and one["machine"] == two["machine"]
    for name in report.drafting(one):
        (a, base), (b, other) = ([report.Times(r, name), report.Times(r, "autoregressive")] for r in (one, two))
        assert all(a.runs[g][0]["tokens"] == b.runs[g][0]["tokens"] for g in a.groups)
        for speedup in (findings.median_of_pairs, findings.of_all):
            assert speedup(b, other) == pytest.approx(speedup(a, base), rel=0.05) and speedup(a, base) != speedup(b, other)


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


SERVED = {"method": "eagle", "load": "c4", "dtype": "float32", "vllm": "0.32.0", "completed": 4, "output_throughput": 51.5}
SERVED |= {"model_id": "toy", "mean_queue_ms": 2.5, "median_ttft_ms": 88.0, "p99_ttft_ms": 120.0, "median_tpot_ms": 31.25}


def test_a_servers_runs_stand_in_the_same_table(result, tmp_path):
    for load, method, more in (
        ("c4", "eagle", {"spec_decode_acceptance_length": 1.75}),
        ("c4", "plain", {}),
        ("c16", "plain", {}),
        ("r0.5", "eagle", {}),
    ):
        (tmp_path / f"{method}-{load}.json").write_text(json.dumps(SERVED | {"load": load, "method": method} | more))
    served = read_served(tmp_path, "toy")
    assert [(run["load"], run["method"]) for run in served] == [
        ("c4", "plain"),
        ("c4", "eagle"),
        ("c16", "plain"),
        ("r0.5", "eagle"),
    ]
    lines = report.report(result | {"served": served}).splitlines()
    assert "| vLLM 0.32.0 | 4 at a time | eagle | 51.5 | 2.5 | 88 | 120 | 31.2 | 1.75 |" in lines
    assert "| vLLM 0.32.0 | 0.5 a second | eagle | 51.5 | 2.5 | 88 | 120 | 31.2 | 1.00 |" in lines
    ours = [line.split(" | ") for line in lines if line.startswith("| minispec | batch 3 | ngram")]
    runs = [run for run in result["runs"] if (run["method"], run["batch"], run["temperature"]) == ("ngram", 3, 0)]
    assert float(ours[0][3]) == pytest.approx(
        sum(20 * len(r["tokens"]) for r in runs) / sum(r["seconds"] for r in runs), 0.01
    )
    each = statistics.median(1e3 * (run["seconds"] - run["ttft_s"]) / 19 for run in runs)
    assert float(ours[0][7]) == pytest.approx(each, abs=0.1)
    with pytest.raises(ValueError, match="was measured of toy, not of another/model"):
        read_served(tmp_path, "another/model")
    for name, content, message in (
        ("bad.json", json.dumps({"method": "eagle"}), "bad.json is no result"),
        ("bad.json", "{", "bad.json is no result"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read_served(tmp_path, "toy")
    with pytest.raises(ValueError, match="holds no result"):
        read_served(tmp_path / "nowhere", "toy")
