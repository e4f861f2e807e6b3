"""What vLLM's benchmark tool measured of a server, beside our own times: `minispec bench --served FOLDER`.

The files are those of benchmarks/serve.sh. vLLM's acceptance length counts the bonus token, as our tokens a round do.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minispec.hub import first_line

KEPT = ("method", "load", "dtype", "vllm", "completed", "output_throughput")
KEPT += ("mean_queue_ms", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms")


def read_served(folder: Path, model: str) -> list[dict[str, Any]]:
    """The runs in a folder, by method and load. Raises ValueError if there is none, or one is not of `model`."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder} holds no result of benchmarks/serve.sh")
    runs = []
    for file in files:
        try:
            stored = json.loads(file.read_text())
            run, served = {name: stored[name] for name in KEPT}, stored["model_id"]
            run["order"] = stored["load"][0], float(stored["load"][1:])
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{file} is no result of benchmarks/serve.sh ({first_line(error)})") from error
        if served != Path(model).name:
            raise ValueError(f"{file} was measured of {served}, not of {model}")
        runs.append(run | {"acceptance_length": stored.get("spec_decode_acceptance_length")})
    return sorted(runs, key=lambda run: (run["order"], run["method"] != "plain", run["method"]))


def beside(result: dict[str, Any]) -> Iterator[Sequence[Any]]:
    """Both in one table: how long a request waits, for its first token and for each further one; greedy runs alone."""
    yield "by", "load", "method", "tokens/s", "queue, ms", "first token, ms", "99%", "a token, ms", "tokens a round"
    for batch in result["settings"]["batches"]:
        for name in result["settings"]["methods"]:
            kind = batch, name, 0.0
            runs = [run for run in result["runs"] if (run["batch"], run["method"], run["temperature"]) == kind]
            if not runs or not runs[0]["rounds"]:
                continue
            tokens = sum(len(row) for run in runs for row in run["tokens"])
            rounds = sum(len(row) for run in runs for row in run["rounds"])
            rows = sum(len(run["tokens"]) for run in runs)  # each began with a token of prefill
            firsts = [1e3 * run["ttft_s"] for run in runs for _ in run["tokens"]]
            each = [1e3 * (r["seconds"] - r["ttft_s"]) / max(1, max(map(len, r["tokens"])) - 1) for r in runs]
            rate = f"{tokens / sum(run['seconds'] for run in runs):.1f}"
            last = statistics.quantiles(firsts, n=100, method="inclusive")[98] if len(firsts) > 1 else firsts[0]
            first = f"{statistics.median(firsts):.0f}", f"{last:.0f}", f"{statistics.median(each):.1f}"
            yield "minispec", f"batch {batch}", name, rate, "", *first, f"{(tokens - rows) / max(1, rounds):.2f}"
    for run in result["served"]:
        kind, size = run["order"]
        load, waits = f"{size:g} at a time" if kind == "c" else f"{size:g} a second", f"{run['mean_queue_ms']:.1f}"
        first = f"{run['median_ttft_ms']:.0f}", f"{run['p99_ttft_ms']:.0f}", f"{run['median_tpot_ms']:.1f}"
        rate, length = f"{run['output_throughput']:.1f}", run["acceptance_length"] or 1.0
        yield f"vLLM {run['vllm']}", load, run["method"], rate, waits, *first, f"{length:.2f}"
