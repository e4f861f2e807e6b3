"""Our autoregressive decoding, eager and compiled, against transformers' `generate`: same weights, dtype, threads, in turn.

    python benchmarks/autoregressive.py                   # about five minutes on two cores; prints Markdown

Then where the time of a pass goes, and how far a pass is from the floor that memory bandwidth sets: the time to read
every weight once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM

import minispec as ms
from minispec.compile import PackedLinear, compiled

PROMPTS = [
    "Explain how a refrigerator keeps food cold.",
    "Write a Python function that counts the vowels in a string.",
    "Summarise the water cycle in three sentences.",
]


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def spread(values: list[float], scale: float = 1.0) -> str:
    low, mid, high = (scale * x for x in statistics.quantiles(values, n=4))
    return f"{mid:.2f} ({low:.2f} to {high:.2f})"


def against_transformers(dtype: str, tokens: int, repeats: int) -> str:
    """One table row: milliseconds a token, medians with quartiles, and the ratios repeat by repeat."""
    lm = ms.load(dtype=dtype)
    peer: Any = AutoModelForCausalLM.from_pretrained(str(lm.folder), dtype=getattr(torch, dtype)).eval()
    prompts = [lm.encode(prompt) for prompt in PROMPTS]
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 2}
    lm.eos_ids = frozenset()  # all emit exactly `tokens` tokens
    fast = compiled(lm)
    calls = [
        lambda ids: ms.generate(lm, ids, max_new_tokens=tokens),
        lambda ids: ms.generate(fast, ids, max_new_tokens=tokens),
        lambda ids: peer.generate(ids[None], attention_mask=torch.ones_like(ids[None]), **options),
    ]
    for call in calls:
        call(prompts[0])  # warm-up
    times: list[list[float]] = [[] for _ in calls]
    for repeat in tqdm(range(repeats), desc=dtype):
        for i, ids in enumerate(prompts):
            for k in range(len(calls)):
                at = (k + repeat + i) % len(calls)
                times[at].append(seconds(lambda at=at, ids=ids: calls[at](ids)) / tokens)
    ratios = [[theirs / mine for mine, theirs in zip(ours, times[2], strict=True)] for ours in times[:2]]
    return f"| {dtype} | {' | '.join([*(spread(t, 1e3) for t in times), *map(spread, ratios)])} |"


@torch.no_grad()
def parts_of_a_pass(dtype: str, build: Any, repeats: int = 60) -> str:
    """The end of a table row: a one-token pass after 200 tokens; its matrix products alone; reading the weights alone."""
    model = build(ms.load(dtype=dtype)).model
    cache, token = model.new_cache(1, 256), torch.tensor([[1]])
    model(torch.arange(200)[None], cache)
    products = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear | PackedLinear)]
    inputs = {layer: torch.randn(1, 1, layer.weight.shape[1]).to(layer.weight) for layer in products}
    size = sum(layer.weight.nbytes for layer in products)
    block = torch.ones(size // 4)  # as many bytes as the weights, in one piece

    def one_pass():
        cache.lengths = [200]
        model(token, cache)

    def multiply():
        for layer, x in inputs.items():
            layer(x)

    calls = [one_pass, multiply, block.sum]
    times = [[seconds(call) * 1e3 for call in calls] for _ in range(repeats)]
    whole, matrices, floor = (statistics.median(column) for column in zip(*times, strict=True))
    return (
        f"{whole:.1f} | {matrices:.1f} ({matrices / whole:.0%}) | {whole - matrices:.1f} "
        f"({1 - matrices / whole:.0%}) | {floor:.1f} | {whole / floor:.1f} times |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    dtypes = ("bfloat16", "float32")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads\n")
    columns = ("dtype", "minispec, ms a token", "compiled", "transformers", "transformers / minispec", "/ compiled")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for dtype in dtypes:
        print(against_transformers(dtype, args.tokens, args.repeats), flush=True)
    print("\nMedians, with the quartiles in brackets; the ratios are taken repeat by repeat.\n")
    print(f"| dtype | pass, ms | matrix products | all else | reading the weights | pass / reading |\n|{'---|' * 6}")
    for dtype in dtypes:
        for kind, build in (("", lambda lm: lm), (", compiled", compiled)):
            print(f"| {dtype}{kind} | {parts_of_a_pass(dtype, build)}", flush=True)


if __name__ == "__main__":
    main()
