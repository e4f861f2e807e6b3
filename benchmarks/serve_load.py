"""What serve.sh needs of Python: exports and prompts from ours, and a run of vLLM's benchmark tool in vLLM's environment.

A load is a concurrency (c4: four requests at a time) or a rate (r1: one request a second on average, Poisson arrivals).
"""

from __future__ import annotations

import argparse
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

QUEUE = re.compile(r"^vllm:request_queue_time_seconds_(sum|count)\{[^}]*\} (\S+)", re.MULTILINE)


def prepare(work: Path, limit: int, dtype: str, methods: list[str]) -> None:
    import minispec as ms
    from minispec.audit import REQUESTS, read_requests, spread
    from minispec.checkpoints import export_drafter

    lm: Any = ms.load(dtype=dtype, device="cpu")
    for method in methods:
        if method not in ("plain", "ngram"):
            export_drafter(ms.load_drafter(method, lm), lm, work / method)
    with (work / "prompts.jsonl").open("w") as file:
        for request in spread(read_requests(REQUESTS), limit):
            text = lm.tokenizer.apply_chat_template(request["messages"], add_generation_prompt=True, tokenize=False)
            file.write(json.dumps({"prompt": text}) + "\n")
    (work / "target").write_text(str(lm.folder))


def queued(url: str) -> tuple[float, float]:
    """Seconds that all requests so far waited in the server, and how many they were."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        found = {name: float(value) for name, value in QUEUE.findall(answer.read().decode())}
    return found.get("sum", 0.0), found.get("count", 0.0)


def load(args: argparse.Namespace) -> None:
    import vllm  # pyright: ignore[reportMissingImports]
    from vllm.benchmarks.serve import add_cli_args  # pyright: ignore[reportMissingImports]
    from vllm.benchmarks.serve import main as serve  # pyright: ignore[reportMissingImports]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]

    prompts, part = args.work / "prompts.jsonl", args.out.with_name(f".{args.out.name}.part")
    kind, size = args.load[0], args.load[1:]
    count = len(prompts.read_text().splitlines())
    options = f"""--backend openai --base-url {args.url} --endpoint /v1/completions --served-model-name target
        --model {(args.work / "target").read_text()} --dataset-name custom --dataset-path {prompts} --skip-chat-template
        --num-prompts {count} --custom-output-len {args.tokens} --temperature 0 --disable-shuffle --disable-tqdm --seed 0
        --percentile-metrics ttft,tpot,e2el --metric-percentiles 50,99 --num-warmups 1
        --save-result --result-dir {part.parent} --result-filename {part.name}"""
    options += f" --max-concurrency {size}" if kind == "c" else f" --request-rate {size}"
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    parsed = parser.parse_args(options.split())
    parsed.extra_body = {"add_special_tokens": False}  # the template has them already
    before = queued(args.url)
    serve(parsed)
    waited, requests = (b - a for a, b in zip(before, queued(args.url), strict=True))
    result = json.loads(part.read_text())
    if result["completed"] != count:
        raise SystemExit(f"only {result['completed']} of {count} requests were answered")
    for name in ("model_id", "tokenizer_id"):  # where the model lies on this machine
        result[name] = Path(result[name]).name
    result |= {"method": args.method, "load": args.load, "dtype": args.dtype, "vllm": vllm.__version__}
    part.write_text(json.dumps(result | {"mean_queue_ms": 1e3 * waited / max(1.0, requests)}, indent=1) + "\n")
    part.replace(args.out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["prepare", "load"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--dtype")
    parser.add_argument("--url")
    parser.add_argument("--method")
    parser.add_argument("--load")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.step == "prepare":
        prepare(args.work, args.limit, args.dtype, args.methods)
    else:
        load(args)


if __name__ == "__main__":
    main()
