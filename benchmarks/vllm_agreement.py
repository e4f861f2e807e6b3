"""Does vLLM, with the drafters that we export, write our text, and does it accept as many of their tokens as we do?

    python benchmarks/vllm_agreement.py prepare runs/vllm             # exports, and the prompts as ids
    VLLM/bin/python benchmarks/vllm_agreement.py generate runs/vllm   # in the environment of benchmarks/serve.sh
    python benchmarks/vllm_agreement.py compare runs/vllm             # ours, and the table

Chains of three on both sides, greedy, in float32, eight requests at a time; one method a call of `generate`. Where two
texts part, the gap of the target's two best logits there says whether it is a tie. vLLM's mean acceptance length is 1 +
accepted / drafts, counted by vLLM itself. What was done already is kept.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

NUM_TOKENS = 3
VLLM_METHOD = {"draft": "draft_model", "medusa": "medusa", "eagle": "eagle3", "eagle-speculators": "eagle3"}


def prepare(folder: Path, limit: int, tokens: int) -> None:
    import minispec as ms
    from minispec.audit import REQUESTS, read_requests, spread
    from minispec.checkpoints import export_drafter

    lm = ms.load(dtype="float32", device="cpu")
    folder.mkdir(parents=True)
    for method in VLLM_METHOD:
        name, _, layout = method.partition("-")
        export_drafter(ms.load_drafter(name, lm), lm, folder / method, layout or "vllm")
    requests = spread(read_requests(REQUESTS), limit)
    prompts = [{"id": r["id"], "kind": r["kind"], "ids": lm.encode(r["messages"]).tolist()} for r in requests]
    (folder / "prompts.json").write_text(json.dumps({"target": str(lm.folder), "tokens": tokens, "prompts": prompts}))


def generate(folder: Path, methods: list[str]) -> None:
    """In vLLM's environment: each method's texts and vLLM's own counts, a file a method."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # all is here; a missing network must not be waited for
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm  # pyright: ignore[reportMissingImports]

    job = json.loads((folder / "prompts.json").read_text())
    for method in methods:
        file = folder / f"vllm-{method}.json"
        if file.exists():
            continue
        config = {"method": VLLM_METHOD[method], "model": str(folder / method), "num_speculative_tokens": NUM_TOKENS}
        llm = vllm.LLM(
            job["target"],
            dtype="float32",
            max_model_len=2048,
            max_num_seqs=8,
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=False,
            speculative_config=config,
        )
        greedy = vllm.SamplingParams(temperature=0, max_tokens=job["tokens"])
        done = llm.generate([{"prompt_token_ids": p["ids"]} for p in job["prompts"]], greedy)
        counts = {m.name: getattr(m, "values", getattr(m, "value", None)) for m in llm.get_metrics() if "spec" in m.name}
        result = {"version": vllm.__version__, "counts": counts, "tokens": [list(d.outputs[0].token_ids) for d in done]}
        file.write_text(json.dumps(result))
        return  # one engine a process; the next call takes the next method


def compare(folder: Path) -> None:
    import torch

    import minispec as ms
    from minispec.audit import first_gap

    job = json.loads((folder / "prompts.json").read_text())
    lm = ms.load(dtype="float32", device="cpu")
    print("| method | drafts | mean acceptance length, vLLM | ours | difference | same text | gaps where texts part |")
    print("|---|---|---|---|---|---|---|")
    for method in VLLM_METHOD:
        file, cache = folder / f"vllm-{method}.json", folder / f"ours-{method}.json"
        if not file.exists():
            continue
        theirs = json.loads(file.read_text())
        name = method.partition("-")[0]
        options: dict[str, Any] = {} if name == "draft" else {"tree": "chain"}
        drafter = ms.load_drafter(name, lm, folder / method, num_tokens=NUM_TOKENS, **options)
        ours = json.loads(cache.read_text()) if cache.exists() else []
        while len(ours) < len(job["prompts"]):
            prompts = [torch.tensor(prompt["ids"]) for prompt in job["prompts"][len(ours) : len(ours) + 8]]
            for done in ms.generate_batch(lm, prompts, drafter, max_new_tokens=job["tokens"]):
                rounds = [[len(r.drafted), len(r.accepted)] for r in done.trace.rounds]
                ours.append({"tokens": done.tokens.tolist(), "rounds": rounds})
            cache.write_text(json.dumps(ours))
        rounds = [r for run in ours for r in run["rounds"] if r[0]]
        mine = 1 + sum(accepted for _, accepted in rounds) / len(rounds)
        counts = theirs["counts"]
        drafts = counts["vllm:spec_decode_num_drafts"]
        length = 1 + counts["vllm:spec_decode_num_accepted_tokens"] / drafts
        gaps = []
        for prompt, run, tokens in zip(job["prompts"], ours, theirs["tokens"], strict=True):
            gap = first_gap(lm, torch.tensor(prompt["ids"]), torch.tensor(run["tokens"]), torch.tensor(tokens))
            gaps += [] if gap is None else [gap]
        same = len(ours) - len(gaps)
        shown = ", ".join(f"{gap:.1e}" for gap in sorted(gaps)) or "none"
        row = [method, f"{drafts} and {len(rounds)}", f"{length:.3f}", f"{mine:.3f}", f"{length - mine:+.3f}"]
        print(f"| {' | '.join([*row, f'{same} of {len(ours)}', shown])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("step", choices=["prepare", "generate", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=48, help="requests, spread over the 48")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens each, at most")
    parser.add_argument("--methods", nargs="+", default=list(VLLM_METHOD))
    args = parser.parse_args()
    if args.step == "prepare":
        prepare(args.folder, args.limit, args.tokens)
    elif args.step == "generate":
        generate(args.folder, args.methods)
    else:
        compare(args.folder)


if __name__ == "__main__":
    main()
