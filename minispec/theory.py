"""What speculation can gain: expected tokens a round, bound, best draft length, oracle, and a model of what a pass costs.

    expected_tokens([0.8, 0.7, 0.6])                      # 2.696: one, and one more for each prefix that is accepted
    speedup_bound(2.7, cost, nodes=3, draft_s=0.004)      # against one token a pass; cost(n) = seconds of a pass over n
    oracle([[3, 2, 1, 0], [0, 2, 1, 0]], cost, [0.0, 0.004])    # two drafters, the better one at each step

Leviathan et al. 2023, section 3. Acceptance is taken as measured, position by position, given all before it accepted: a
single rate for all positions underestimates, since what was easy once tends to stay easy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Cost = Callable[[int], float]  # seconds of a target pass over so many tokens


def expected_tokens(rates: Sequence[float]) -> float:
    """Mean tokens a round emits, from conditional acceptance `rates` by position: 1 + sum over k of prod of the first k.

    With one rate α for all γ positions this is (1 - α^(γ+1)) / (1 - α), equation 1. Raises ValueError outside [0, 1].
    """
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"acceptance rates must lie in [0, 1], but are {list(rates)}")
    total, reached = 1.0, 1.0
    for rate in rates:
        reached *= rate
        total += reached
    return total


def speedup_bound(tokens_per_pass: float, cost: Cost, nodes: int, draft_s: float) -> float:
    """Speedup over one token a pass if nothing cost time but the target's pass and the drafting, draft_s a round."""
    return tokens_per_pass * cost(1) / (cost(1 + nodes) + draft_s)


def best_draft_length(rates: Sequence[float], cost: Cost, draft_token_s: float) -> tuple[int, float]:
    """The number of drafted tokens, at most len(rates), with the highest bound, and that bound; (0, 1.0) if none gains.

    `draft_token_s`: seconds to draft one token.
    """
    bounds = [
        speedup_bound(expected_tokens(rates[:n]), cost, n, n * draft_token_s) if n else 1.0 for n in range(len(rates) + 1)
    ]
    best = max(range(len(bounds)), key=bounds.__getitem__)
    return best, bounds[best]


def fixed_length(offers: Sequence[tuple[int, int]], length: int, cost: Cost, draft_token_s: float) -> float:
    """Speedup over one known text of drafting `length` tokens a round, or as many as there are to draft.

    offers[i] = (how many tokens would be drafted after i tokens of the text, how many of them the text accepts).
    """
    at, spent = 0, 0.0
    while at < len(offers):
        drafted, accepted = (min(length, n) for n in offers[at])
        spent += cost(1 + drafted) + drafted * draft_token_s
        at += accepted + 1
    return len(offers) * cost(1) / spent


def oracle(accepted: Sequence[Sequence[int]], cost: Cost, draft_token_s: Sequence[float]) -> float:
    """The highest speedup over one known text: each round drafts what will be accepted, by the drafter that suits it best.

    accepted[d][i]: how many of drafter d's tokens after i tokens of the text are right. No row of verification is wasted;
    how much of the right draft to take is chosen so that the whole text takes least time.
    """
    length = len(accepted[0])
    least = [0.0] * (length + 1)  # seconds for what follows the first i tokens
    for i in reversed(range(length)):
        least[i] = cost(1) + least[i + 1]
        for right, token_s in zip(accepted, draft_token_s, strict=True):
            for k in range(1, min(right[i], length - i) + 1):
                least[i] = min(least[i], cost(1 + k) + k * token_s + least[min(length, i + k + 1)])
    return length * cost(1) / least[0]


def interpolated(points: Mapping[int, float]) -> Cost:
    """A cost curve from some of its points, by straight lines between them. ValueError beyond the last one."""
    sizes = sorted(points)

    def cost(tokens: int) -> float:
        if tokens > sizes[-1]:
            raise ValueError(f"the cost of a pass is known up to {sizes[-1]} tokens, but not for {tokens}")
        return float(np.interp(tokens, sizes, [points[size] for size in sizes]))

    return cost


@dataclass(frozen=True)
class CostModel:
    """Seconds of a target pass over `tokens` tokens that see `cached` earlier ones: fixed + per_token + per_cached.

    A pass has a part that does not depend on how much is in it (reading the weights), one for each token, and one for
    each cached token (reading keys and values).
    """

    fixed: float
    per_token: float
    per_cached: float

    @classmethod
    def fit(cls, cells: Sequence[tuple[int, int]], seconds: Sequence[float]) -> CostModel:
        """Least squares of the relative error over (tokens, cached) cells; three cells or more."""
        table = np.array([(1.0, tokens, cached) for tokens, cached in cells]) / np.array(seconds)[:, None]
        return cls(*map(float, np.linalg.lstsq(table, np.ones(len(cells)), rcond=None)[0]))

    def __call__(self, tokens: float, cached: float) -> float:
        return self.fixed + self.per_token * tokens + self.per_cached * cached
