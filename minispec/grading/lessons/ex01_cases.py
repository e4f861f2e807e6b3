"""The cases of lesson 1, first half: room for caches, drawing at given numbers, settings row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.ex03_cases import around
from minispec.grading.task import Case
from minispec.sampling import draw

DOUBLE = torch.float64  # numbers so close to a breakpoint are not told apart in float32
NEARLY_ONE = 1 - 2**-53


def room_cases() -> list[Case]:
    def case(about: str, *given: int) -> Case:
        memory, weights, layers, width, heads, kv_heads, bytes_each, tokens = given
        row = 2 * layers * kv_heads * (width // heads) * bytes_each * tokens
        names = ("memory", "weights", "layers", "width", "heads", "kv_heads", "bytes_each", "tokens")
        about = f"{about}: {', '.join(f'{name} {x}' for name, x in zip(names, given, strict=True))}"
        return Case(about, lambda answer: answer(*given), max(0, memory - weights) // row)

    return [
        case("one layer, one head", 48, 0, 1, 2, 1, 1, 1, 3),
        case("a byte less than four texts need", 47, 0, 1, 2, 1, 1, 1, 3),
        case("the weights leave room for one", 48, 30, 1, 2, 1, 1, 1, 3),
        case("two layers, two bytes a number", 480, 0, 2, 2, 1, 1, 2, 3),
        case("two heads, each with its own keys", 480, 0, 1, 8, 2, 2, 1, 3),
        case("four heads share one key head", 480, 0, 1, 8, 4, 1, 1, 3),
        case("the weights alone do not fit", 100, 170, 1, 2, 1, 1, 1, 3),
        case("SmolLM2-135M in bfloat16", 1_000_000_000, 270_000_000, 30, 576, 9, 3, 2, 2048),
        case("Llama 3.1 8B on a GPU", 80_000_000_000, 16_100_000_000, 32, 4096, 32, 8, 2, 8192),
    ]


def draw_cases() -> list[Case]:
    def case(about: str, laws: Sequence[Sequence[float]], us: Sequence[float]) -> Case:
        p, u = torch.tensor(laws, dtype=DOUBLE), torch.tensor(us, dtype=DOUBLE)
        rows = (lambda i: f"p {list(laws[i])}, u {us[i]!r}") if len(us) > 1 else None
        about = about if rows else f"{about}: p {laws[0]}, u {us[0]!r}"
        return Case(about, lambda answer: answer(p, u), draw(p, u), rows)

    tenths = [0.1] * 10
    laws = [(0.2, 0.5, 0.3), (0.0, 0.6, 0.4), (0.5, 0.0, 0.5), (0.7, 0.3, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)]
    laws += [(0.1, 0.2, 0.1), (1.0, 2.0, 1.0), (0.0, 1.5, 0.0), (1e-13, 1.0, 0.0)]
    every = [(law, u) for law in laws for u in around([sum(law[: i + 1]) / sum(law) for i in range(3)])]
    return [
        case("in the middle of a piece", [(0.2, 0.5, 0.3)], [0.4]),
        case("u is 0", [(0.2, 0.5, 0.3)], [0.0]),
        case("u is 0, and the first token has p = 0", [(0.0, 0.6, 0.4)], [0.0]),
        case("u is exactly where the second piece begins", [(0.5, 0.5)], [0.5]),
        case("u is exactly where a token with p = 0 stands", [(0.5, 0.0, 0.5)], [0.5]),
        case("the sums, rounded, end below 1, and u above them", [tenths], [NEARLY_ONE]),
        case("the same, with tokens of p = 0 behind", [[*tenths, 0.0, 0.0]], [NEARLY_ONE]),
        case("a last piece that is hardly there", [(1.0, 1e-10)], [NEARLY_ONE]),
        case("p adds up to less than 1", [(0.2, 0.1, 0.1)], [0.9]),
        case("p adds up to more than 1", [(1.0, 2.0, 1.0)], [0.5]),
        case("every piece of many laws, close to both its ends", *map(list, zip(*every, strict=True))),
    ]


def shaped(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Temperature, top-k, top-p as the task defines them, ties included: float64 [vocab]."""
    x = logits.double()
    if temperature == 0:
        return torch.nn.functional.one_hot(x.argmax(), len(x)).double()
    x = (x - x.max()) / temperature
    if 0 < top_k < len(x):
        x = x.masked_fill(x < x.topk(top_k).values[-1], -math.inf)
    p = x.softmax(0)
    if top_p < 1:
        likelier = torch.stack([p[p > p[i]].sum() for i in range(len(p))])
        p = p.masked_fill(likelier >= top_p, 0)
    return p / p.sum()


def shape_cases() -> list[Case]:
    logs = lambda law: tuple(math.log(x) for x in law)

    def case(about: str, rows: Sequence[tuple[Any, list]], dtype: torch.dtype = torch.float64) -> Case:
        logits, settings = torch.tensor([row for row, _ in rows], dtype=DOUBLE).to(dtype), [list(s) for _, s in rows]
        want = [shaped(row, *s) for row, s in zip(logits, settings, strict=True)]
        words = lambda i: f"logits {[round(x, 3) for x in logits[i].tolist()]}, settings {settings[i]}"
        about = about if len(rows) > 1 else f"{about}: {words(0)}"
        return Case(about, lambda answer: answer(logits, settings), want, words if len(rows) > 1 else None)

    law, tied, flat = logs((0.2, 0.4, 0.1, 0.3)), logs((0.2, 0.4, 0.2, 0.2)), logs((0.25,) * 4)
    every = [
        (x, [t, k, p]) for x in (law, tied) for t in (0.0, 0.5, 2.0) for k in (0, 1, 2, 3, 9) for p in (0.35, 0.85, 1.0)
    ]
    rounded = (3.1, 2.7, -1.3, 2.9, 0.2, 1.7)
    return [
        case("softmax", [(law, [1.0, 0, 1.0])]),
        case("a temperature", [(law, [0.5, 0, 1.0])]),
        case("a temperature close to 0", [((0.0, 1e-6, -1e-6), [1e-7, 0, 1.0])]),
        case("temperature 0", [(law, [0.0, 0, 1.0])]),
        case("temperature 0, and two tokens are the likeliest", [((1.0, 3.0, 0.5, 3.0), [0.0, 0, 1.0])]),
        case("top-k", [(law, [1.0, 2, 1.0])]),
        case("top-k with more than there are", [(law, [1.0, 9, 1.0])]),
        case("top-k, and the last that stays has equals", [(tied, [1.0, 2, 1.0])]),
        case("top-p", [(law, [1.0, 0, 0.5])]),
        case("a top-p below the likeliest token's probability", [(law, [1.0, 0, 0.01])]),
        case("top-p, and the last that stays has equals", [(tied, [1.0, 0, 0.5])]),
        case("top-p, and all are equal", [(flat, [1.0, 0, 0.3])]),
        case("top-p, and two are nearly equal", [(logs((0.4, 0.3 + 4.5e-7, 0.3 - 4.5e-7)), [1.0, 0, 0.7 + 2e-7])]),
        case("top-p of what top-k has left", [(law, [1.0, 2, 0.55])]),
        case("top-p at a temperature", [(law, [2.0, 0, 0.6])]),
        case("logits whose exponentials overflow", [((900.0, 899.0, -900.0, 898.5), [0.5, 3, 0.95])]),
        case("two rows, each with its own settings", [(law, [1.0, 0, 1.0]), (law, [0.5, 2, 1.0])]),
        case("top-p on both sides of every breakpoint", [(law, [1.0, 0, p + x]) for p in (0.4, 0.7, 0.9) for x in (-1e-5, 1e-5)]),
        case("many settings in one batch", every),
        case("logits in bfloat16", [(rounded, [0.7, 0, 1.0]), (rounded, [1.0, 4, 0.8])], torch.bfloat16),
    ]  # fmt: skip
