"""From logits to the distribution that a token is drawn from: temperature, then top-k, then top-p.

    p = Sampling(temperature=0.8, top_p=0.9)(logits)      # [..., vocab], sums to 1; zeros where a token was cut

The target's logits and the drafter's go through the same object. That is half of what makes speculative sampling exact:
q has to be what the drafted token was really drawn from, and p what the target would really have drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy decoding; top_k 0 and top_p 1 leave the distribution whole.

    Raises ValueError for a temperature below 0 or not finite, a top_k below 0, a top_p outside (0, 1].
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.temperature, float | int) and math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be a finite number, 0 or more, but is {self.temperature!r}")
        if not (isinstance(self.top_k, int) and self.top_k >= 0):
            raise ValueError(f"top_k must be a whole number, 0 (off) or more, but is {self.top_k!r}")
        if not (isinstance(self.top_p, float | int) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must lie in (0, 1], but is {self.top_p!r}")

    def __call__(self, logits: Tensor) -> Tensor:
        """Probabilities [..., vocab] from logits [..., vocab]; float64 stays float64, all else becomes float32."""
        logits = logits.to(working_dtype(logits))
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
        # Only differences between logits matter; with the largest at 0, no temperature can make one overflow.
        temperature = max(self.temperature, torch.finfo(logits.dtype).tiny)
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
        if 0 < self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -math.inf)  # a tie with the k-th stays
        if self.top_p < 1:
            ascending, order = logits.sort(dim=-1)
            cut = ascending.softmax(-1).cumsum(-1) <= 1 - self.top_p  # the token that crosses the threshold stays
            cut[..., -1] = False  # and so does the likeliest, whatever the rounding
            logits = logits.masked_fill(cut.scatter(-1, order, cut), -math.inf)
        return logits.softmax(-1)


def working_dtype(x: Tensor) -> torch.dtype:
    """What probabilities are computed in: rows of a bfloat16 softmax do not sum to 1."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def draw(p: Tensor, u: Tensor) -> Tensor:
    """Tokens [...] drawn from `p` [..., vocab] by inverting its cumulative sum at `u` [...] in [0, 1).

    A token of probability 0 is never drawn, not even at u = 0. `p` need not sum to 1.
    """
    cumulative = p.cumsum(-1)
    total = cumulative[..., -1]
    level = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))  # rounding must not reach the end
    return torch.searchsorted(cumulative, level[..., None], right=True)[..., 0]


class Dice:
    """Uniform random numbers for the rows of a batch, each row from a generator of its own.

    A row takes only what it needs, so it sees the same numbers alone and in any batch.
    """

    def __init__(self, sampling: Sampling, seeds: Sequence[int]):
        if not all(isinstance(seed, int) and -(2**63) <= seed < 2**63 for seed in seeds):
            raise ValueError(f"a seed must be a whole number between -2**63 and 2**63, but is {seeds[0]!r}")
        self.sampling = sampling
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def roll(self, counts: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers in [0, 1), [rows, max(counts)]: row i takes counts[i] new ones; the rest is padding (0)."""
        u = torch.zeros(len(counts), max(counts), dtype=dtype)
        for row, (n, generator) in enumerate(zip(counts, self.generators, strict=True)):
            if n:
                u[row, :n] = torch.rand(n, generator=generator, dtype=dtype)
        return u

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.generators = [self.generators[row] for row in rows]
