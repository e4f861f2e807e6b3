"""The cases of lesson 3, second half: the rule for ragged drafts, and siblings, against the shipped rule in `verify.py`."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from minispec import exact, verify
from minispec.grading.lessons.ex03_cases import P, Q, around, left_over, numbers
from minispec.grading.task import Answer, Case
from minispec.tree import TokenTree


def chain_rows(p: Tensor, q: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Every draft of those lengths from q, padded, at every combination of telling uniform numbers: guesses, p, q, u.

    `p` [n + 1, vocab], `q` [n, vocab]: the same whatever was guessed before.
    """
    n, vocab = q.shape
    guesses, us = [], []
    for length in lengths:
        for draft in itertools.product(*[[x for x in range(vocab) if q[i, x] > 0] for i in range(length)]):
            for tests in itertools.product(*[around([float(p[i, x] / q[i, x])]) for i, x in enumerate(draft)]):
                kept = next((i for i, x in enumerate(draft) if tests[i] * q[i, x] >= p[i, x]), length)
                law = left_over(p[kept], q[kept]) if kept < length else p[kept]
                for last in around(law.cumsum(0).tolist()):
                    guesses.append([*draft, *[-1] * (n - length)])
                    us.append([last, *tests, *[0.5] * (n - length)])
    rows = len(us)
    return torch.tensor(guesses), p.expand(rows, -1, -1), q.expand(rows, -1, -1), torch.tensor(us, dtype=torch.float64)


def chain_verdict(guesses: Tensor, p: Tensor, q: Tensor, u: Tensor) -> list[list[int]]:
    rows = torch.arange(len(u))
    tree = TokenTree(guesses, torch.where(guesses >= 0, torch.arange(guesses.shape[1]), -1), q)
    path, token = verify.drawn(lambda at: p[rows, at], tree, u)
    return torch.stack(((path >= 0).sum(1), token), 1).tolist()


def pairs(found: Any, rows: int) -> Any:
    """[(count, token), ...] from what a rule returned, if it has that form."""
    if isinstance(found, list) and len(found) == rows and all(isinstance(x, list) and len(x) == 2 for x in found):
        return "a list of pairs"
    fits = isinstance(found, list) and len(found) == 2 and all(isinstance(x, list) and len(x) == rows for x in found)
    return [list(pair) for pair in zip(*found, strict=True)] if fits else found


def first_token_law(answer: Answer, p: Tensor, q: Tensor) -> list[float]:
    """The exact law of the first emitted token, with one guess: a run in each cell, weighed by its volume."""
    after = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    tests = {0.0, 1.0, *(p / q).tolist(), *(q / p).tolist()}
    draws = {x for law in (p, q, after, left_over(p, q), left_over(q, p)) for x in (0.0, 1.0, *law.cumsum(0).tolist())}
    cells = [
        [((a + b) / 2, b - a) for a, b in itertools.pairwise(sorted(x for x in cuts if x <= 1))] for cuts in (draws, tests)
    ]
    runs = list(itertools.product(range(len(p)), cells[0], cells[1]))
    u = torch.tensor([[last[0], test[0]] for _, last, test in runs], dtype=torch.float64)
    guesses = torch.tensor([[x] for x, _, _ in runs])
    found = answer(guesses, torch.stack((p, after)).expand(len(runs), -1, -1), q.expand(len(runs), 1, -1), u)
    law = [0.0] * len(p)
    for (x, last, test), (count, token) in zip(runs, pairs(found, len(runs)), strict=True):
        law[x if count else int(token)] += float(q[x]) * last[1] * test[1]
    return law


def chain_cases() -> list[Case]:
    def case(
        about: str, p: list[list[float]], q: list[list[float]], lengths: tuple[int, ...], rubbish: bool = False
    ) -> Case:
        given = chain_rows(torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64), lengths)
        guesses, _, _, u = given
        verdict = chain_verdict(*given)
        if rubbish:
            behind = (guesses >= 0).sum(1)[:, None] < torch.arange(len(p))  # [rows, n + 1]: p is padding there
            laws = [
                given[1].masked_fill(behind[..., None], math.nan),
                given[2].masked_fill(guesses[..., None] < 0, math.nan),
            ]
            given = (guesses, *laws, u)
        about = f"{about}, p {p}, q {q}; (count, token)"
        rows = lambda i: f"guesses {guesses[i].tolist()}, u {numbers(u[i])}"
        return Case(about, lambda answer: pairs(answer(*given), len(u)), verdict, rows)

    one, two = [[0.5, 0.4, 0.1], [0.2, 0.3, 0.5]], [[0.2, 0.3, 0.5], [0.6, 0.25, 0.15]]
    three, zeros = [*one, [0.3, 0.1, 0.6]], [[0.0, 0.7, 0.3], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]]
    law = f"the law of the first token, with one guess, p {one[0]}, q {two[0]}"
    return [
        case("one guess", one, two[:1], (1,)),
        Case(law, lambda answer: first_token_law(answer, P, Q), P),
        case("one guess, tokens with p = 0", zeros[:2], [[0.4, 0.2, 0.4]], (1,)),
        case("drafts of different lengths in one batch", three, two, (0, 1, 2)),
        case("tokens with p = 0", zeros, [[0.4, 0.2, 0.4], [0.1, 0.5, 0.4]], (0, 1, 2)),
        case("NaN in the places of padding, which mean nothing", one, two[:1], (0, 1), True),
    ]


def sibling_runs(p: Tensor, q: Tensor, count: int) -> list[tuple[list[int], list[float]]]:
    """Every way to draw `count` siblings from q, at every combination of telling uniform numbers."""
    runs = []
    for _, drawn in exact.draws(q, count):
        state, left, tests = p, q.clone(), []
        for x in drawn:
            now = left / left.sum()
            tests.append(around([float(state[x] / now[x])]))
            state = left_over(state, now)
            left[x] = 0
        last = around([*state.cumsum(0).tolist(), *p.cumsum(0).tolist()[:1]])
        runs += [(list(drawn), list(u)) for u in itertools.product(last, *tests)]
    return runs


def sibling_verdict(p: Tensor, q: Tensor, runs: list[tuple[list[int], list[float]]]) -> list[list[int]]:
    tokens = torch.tensor([drawn for drawn, _ in runs])
    rows, n = tokens.shape
    tree = TokenTree(tokens, torch.zeros_like(tokens), q.expand(rows, n, -1))
    # Whatever comes after an accepted sibling: a law that gives token 0, which is not looked at.
    after = torch.zeros_like(p).index_fill(0, torch.tensor([0]), 1)
    laws = torch.stack((p, *[after] * n))
    path, token = verify.drawn(lambda at: laws[at], tree, torch.tensor([u for _, u in runs], dtype=torch.float64))
    first = path[:, 0] if path.shape[1] else torch.full((rows,), -1)
    return [
        [i - 1, drawn[i - 1]] if i > 0 else [-1, t]
        for i, t, (drawn, _) in zip(first.tolist(), token.tolist(), runs, strict=True)
    ]


def sibling_law(answer: Answer, p: Tensor, q: Tensor, count: int) -> list[float]:
    """The exact law of the emitted token over all draws of `count` siblings."""
    law = [0.0] * len(p)
    for weight, drawn in exact.draws(q, count):
        state, left, axes, draws = p, q.clone(), [], {0.0, 1.0, *p.cumsum(0).tolist(), *q.cumsum(0).tolist()}
        for x in drawn:
            now = left / left.sum()
            axes.append(sorted({0.0, 1.0, *(float(r) for r in (state[x] / now[x], p[x] / q[x]) if r < 1)}))
            state = left_over(state, now)
            draws |= set(state.cumsum(0).tolist())
            left[x] = 0
        cells = [list(itertools.pairwise(axis)) for axis in (sorted(x for x in draws if x <= 1), *axes)]
        for cell in itertools.product(*cells):
            u = torch.tensor([(a + b) / 2 for a, b in cell], dtype=torch.float64)
            law[int(answer(p, q, list(drawn), u)[1])] += weight * math.prod(b - a for a, b in cell)
    return law


def sibling_cases() -> list[Case]:
    def case(about: str, p: list[float], q: list[float], count: int) -> Case:
        a, b = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
        runs = sibling_runs(a, b, count)[:: 1 if count < 3 else 7]
        run = lambda answer: [answer(a, b, drawn, torch.tensor(u, dtype=torch.float64)) for drawn, u in runs]
        rows = lambda i: f"siblings {runs[i][0]}, u {[round(x, 4) for x in runs[i][1]]}"
        return Case(f"{about}, p {p}, q {q}; (which, token)", run, sibling_verdict(a, b, runs), rows)

    return [
        case("one sibling", P.tolist(), Q.tolist(), 1),
        case("two siblings", P.tolist(), Q.tolist(), 2),
        case("three siblings", [0.1, 0.15, 0.35, 0.4], [0.4, 0.3, 0.2, 0.1], 3),
        case("a token with p = 0", [0.0, 0.6, 0.4], [0.5, 0.2, 0.3], 2),
        case("a token with q = 0", [0.3, 0.25, 0.45], [0.7, 0.3, 0.0], 2),
    ]
