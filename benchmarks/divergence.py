"""Where do the texts of a benchmark part, and was it a rounding tie? From a result of `minispec bench`.

    python benchmarks/divergence.py minispec/data/measured/bench.json.gz

Each method is compared with its own autoregressive decoding: ours with ours, transformers' with transformers'. Where two
texts part, the target in float32 reads the common part afresh and the gap between the two tokens' logits is measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import minispec as ms
from minispec.audit import TIE, first_gap
from minispec.bench import read_result


def main() -> None:
    result = read_result(Path(sys.argv[1]))
    lm = ms.load(dtype="float32")  # it measures the gaps
    prompts = [torch.tensor(request["prompt"]) for request in result["requests"]]
    texts: dict[str, dict[int, torch.Tensor]] = {}
    for run in result["runs"]:
        if run["batch"] == 1 and run["repeat"] == 0 and run["temperature"] == 0:
            texts.setdefault(run["method"], {})[run["rows"][0]] = torch.tensor(run["tokens"][0])
    dtype = result["machine"]["dtype"]
    tie = TIE[getattr(torch, dtype)]
    print(f"{dtype}; a tie is a gap, measured in float32, below {tie}\n")
    print(f"| method | compared with | equal texts | gaps where texts part: median, largest | ties |\n|{'---|' * 5}")
    for method, mine in texts.items():
        plain = "transformers autoregressive" if method.startswith("transformers") else "autoregressive"
        if method == plain:
            plain = "autoregressive"
        gaps = [first_gap(lm, prompts[row], texts[plain][row], mine[row]) for row in mine]
        parted = sorted(gap for gap in gaps if gap is not None)
        shown = f"{parted[len(parted) // 2]:.3f}, {parted[-1]:.3f}" if parted else ""
        ties = f"{sum(gap < tie for gap in parted)} of {len(parted)}"
        print(f"| {method} | {plain} | {len(gaps) - len(parted)} of {len(gaps)} | {shown} | {ties} |", flush=True)


if __name__ == "__main__":
    main()
