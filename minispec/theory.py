"""What speculation can gain: expected tokens a round, the bound on the speedup, the best draft length, the oracle.

    expected_tokens([0.8, 0.7, 0.6])                      # 2.696: one, and one more for each prefix that is accepted
    speedup_bound(2.7, cost, nodes=3, draft_s=0.004)      # against one token a pass; cost(n) = seconds of a pass over n

Leviathan et al. 2023, section 3. Acceptance is taken as measured, position by position, given all before it accepted: a
single rate for all positions underestimates, since what was easy once tends to stay easy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def oracle_bound(accepted: Sequence[int], cost: Cost, draft_token_s: float) -> float:
    """Speedup if every round drafted exactly as many tokens as are then accepted, from the `accepted` of real rounds.

    A round without accepted tokens is then a plain pass: the oracle never wastes a row of verification.
    """
    tokens = sum(n + 1 for n in accepted)
    return tokens * cost(1) / sum(cost(1 + n) + n * draft_token_s for n in accepted)
