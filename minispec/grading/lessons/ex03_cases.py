"""The cases of lesson 3: the residual, the test in logarithms, an honest q, ragged chains, siblings.

Every rule is compared with the shipped one in `verify.py`, on all drafts of a small vocabulary and at uniform numbers close
to every breakpoint, on both sides, and at 0: between breakpoints a right rule is constant. Nowhere are p and q equal at one
token only: there rounding decides.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from minispec.grading.task import Case
from minispec.grading.wire import plain
from minispec.sampling import Sampling

P, Q = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
CLOSE = 1e-10  # how near to a breakpoint a rule is tried
NEARLY_ONE = 1 - 2**-24


def left_over(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)), and p where that is empty; over the last axis."""
    left = (p - q).clamp(min=0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > 0, left / mass, p)


def numbers(*x: Any) -> str:
    return ", ".join(str([round(y, 4) for y in plain(t)] if isinstance(t, Tensor) else t) for t in x)


def residual_cases() -> list[Case]:
    def case(about: str, p: list[list[float]], q: list[list[float]]) -> Case:
        a, b = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
        wide = torch.nn.functional.pad(b, (0, a.shape[1] - b.shape[1]))
        rows = (lambda i: f"p {numbers(a[i])}, q {numbers(b[i])}") if len(p) > 1 else None
        about = about if rows else f"{about}: p {p}, q {q}"
        return Case(about, lambda answer: answer(a, b), left_over(a, wide), rows, None if rows else (a, b))

    generator = torch.Generator().manual_seed(1)
    p, q = torch.rand(40, 8, generator=generator), torch.rand(40, 5, generator=generator) ** 3
    return [
        case("one row", [[0.5, 0.4, 0.1]], [[0.2, 0.3, 0.5]]),
        case("p equal to q: nothing is left over", [[0.7, 0.2, 0.1]], [[0.7, 0.2, 0.1]]),
        case("hardly anything is left over", [[0.5, 0.5]], [[0.5 + 2**-23, 0.5 - 2**-23]]),
        case("a difference that float32 does not hold", [[0.5, 0.5]], [[0.5 + 2**-40, 0.5 - 2**-40]]),
        case(
            "two rows that have different amounts left over",
            [[0.5, 0.4, 0.1], [0.7, 0.3, 0]],
            [[0.2, 0.3, 0.5], [0.6, 0.4, 0]],
        ),
        case("one of two rows has nothing left over", [[0.5, 0.5], [0.9, 0.1]], [[0.5, 0.5], [0.2, 0.8]]),
        case("q knows fewer ids than p", [[0.5, 0.2, 0.2, 0.1]], [[0.4, 0.6]]),
        case("all of p lies beyond the ids of q", [[0.0, 0.0, 0.75, 0.25]], [[0.5, 0.5]]),
        case("40 rows, 8 ids against 5", (p / p.sum(1, True)).tolist(), (q / q.sum(1, True)).tolist()),
    ]


def keep_cases() -> list[Case]:
    def case(about: str, log_p: float, log_q: float, u: float) -> Case:
        given = [torch.tensor([x], dtype=torch.float64) for x in (log_p, log_q, u)]
        want = log_p > -math.inf and (u == 0 or math.log(u) < log_p - log_q)
        about = f"{about}: log p {log_p:.4g}, log q {log_q:.4g}, u {u:.4g}"
        return Case(about, lambda answer: answer(*given), [want])

    third, half = math.log(1 / 3), math.log(1 / 2)
    grid = [(p, q) for p in (0.1, 0.3, 0.6, 0.9) for q in (0.1, 0.3, 0.6, 0.9)]
    return [
        case("p above q: kept whatever u", half, third, 0.99),
        case("p below q, u below the ratio", third, half, 0.6),
        case("p below q, u above the ratio", third, half, 0.7),
        case("u is 0", third, half, 0.0),
        case("p equal to q, and u nearly 1", half, half, 1 - 2**-40),
        case("p is 0", -math.inf, third, 0.5),
        case("p is 0 and u is 0", -math.inf, third, 0.0),
        case("both so small that their exponentials are 0, u below the ratio", -800.0, -799.0, 0.3),
        case("both so small that their exponentials are 0, u above the ratio", -2000.0, -1999.0, 0.4),
        case("p far above q", -1.0, -900.0, 0.5),
        case("p far below q, and u is 0", -900.0, -1.0, 0.0),
        *[case("p and q", math.log(p), math.log(q), min(p / q, 1) - CLOSE) for p, q in grid],
        *[case("p and q", math.log(p), math.log(q), p / q + CLOSE) for p, q in grid if p < q],
        *[case("p and q", math.log(p), math.log(q), u) for p, q in grid for u in (0.02, 0.2, 0.5, 0.8)],
    ]


def honest_cases() -> list[Case]:
    def case(about: str, temperature: float, top_k: int, logits: tuple[float, ...] = (2.0, -1.0, 0.5, 1.0)) -> Case:
        x = torch.tensor(logits, dtype=torch.float64)
        about = f"{about}: logits {list(logits)}, temperature {temperature}, top_k {top_k}"
        return Case(about, lambda answer: answer(x, temperature, top_k), Sampling(temperature, top_k)(x))

    return [
        case("drawn from softmax", 1.0, 0),
        case("a temperature", 0.5, 0),
        case("a high temperature", 3.0, 0),
        case("the likeliest token, without dice", 0.0, 0),
        case("the likeliest two", 1.0, 2),
        case("the likeliest two, at a temperature", 2.0, 2),
        case("the likeliest one", 0.7, 1),
        case("more than there are", 0.7, 9),
        case("without dice, and top-k", 0.0, 3),
        case("a temperature close to 0", 1e-3, 0, (2.0, 2.001, 1.999)),
        case("large logits", 0.5, 3, (900.0, 899.0, -900.0, 898.5)),
    ]


def around(points: list[float]) -> list[float]:
    """0, a number on either side of every breakpoint, and nearly 1."""
    sides = [x + step for x in points for step in (-CLOSE, CLOSE)]
    return sorted({0.0, NEARLY_ONE, *(x for x in sides if 0 < x < 1)})
