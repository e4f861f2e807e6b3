"""Our autoregressive decoding against transformers' `generate`: same weights, dtype, threads and process, interleaved.

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
import torch.nn.functional as F
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM

import minispec as ms

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
    """One table row: milliseconds a token, medians with quartiles, and the ratio pair by pair."""
    lm = ms.load(dtype=dtype)
    peer: Any = AutoModelForCausalLM.from_pretrained(str(lm.folder), dtype=getattr(torch, dtype)).eval()
    prompts = [lm.encode(prompt) for prompt in PROMPTS]
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 2}
    lm.eos_ids = frozenset()  # both emit exactly `tokens` tokens

    def ours(ids):
        return ms.generate(lm, ids, max_new_tokens=tokens)

    def theirs(ids):
        return peer.generate(ids[None], attention_mask=torch.ones_like(ids[None]), **options)

    ours(prompts[0])  # warm-up
    theirs(prompts[0])
    pairs = []
    for repeat in tqdm(range(repeats), desc=dtype):
        for i, ids in enumerate(prompts):
            calls = [ours, theirs] if (repeat + i) % 2 else [theirs, ours]
            took = {call: seconds(lambda call=call, ids=ids: call(ids)) / tokens for call in calls}
            pairs.append((took[ours], took[theirs]))
    mine, other = [a for a, _ in pairs], [b for _, b in pairs]
    ratios = [b / a for a, b in pairs]
    return f"| {dtype} | {spread(mine, 1e3)} | {spread(other, 1e3)} | {spread(ratios)} |"


@torch.no_grad()
def parts_of_a_pass(dtype: str, repeats: int = 60) -> str:
    """One table row: a one-token pass after 200 tokens; its matrix products alone; reading the weights alone."""
    lm = ms.load(dtype=dtype)
    model, cache = lm.model, lm.model.new_cache(1, 256)
    model(torch.arange(200)[None], cache)
    token, weights = torch.tensor([[1]]), [w for w in model.parameters() if w.dim() == 2]
    inputs = {w.shape[1]: torch.randn(1, 1, w.shape[1]).to(w) for w in weights}
    size = sum(w.nbytes for w in weights)
    block = torch.ones(size // 4)  # as many bytes as the weights, in one piece

    def one_pass():
        cache.lengths = [200]
        model(token, cache)

    def products():
        for w in weights:
            F.linear(inputs[w.shape[1]], w)

    calls = [one_pass, products, block.sum]
    times = [[seconds(call) * 1e3 for call in calls] for _ in range(repeats)]
    whole, matrices, floor = (statistics.median(column) for column in zip(*times, strict=True))
    return (
        f"| {dtype} | {whole:.1f} | {matrices:.1f} ({matrices / whole:.0%}) | {whole - matrices:.1f} "
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
    print(f"| dtype | minispec, ms a token | transformers, ms a token | ratio |\n|{'---|' * 4}")
    for dtype in dtypes:
        print(against_transformers(dtype, args.tokens, args.repeats), flush=True)
    print("\nMedians, with the quartiles in brackets; the ratio is taken pair by pair.\n")
    print(f"| dtype | pass, ms | matrix products | all else | reading the weights | pass / reading |\n|{'---|' * 6}")
    for dtype in dtypes:
        print(parts_of_a_pass(dtype), flush=True)


if __name__ == "__main__":
    main()
