"""Wrong answers to the second half of lesson 3: the rule for ragged drafts, and siblings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.ex03_cases import left_over
from minispec.grading.task import Wrong, changes

# 3.4


def pick(p: Tensor, u: Tensor) -> int:
    cumulative = p.cumsum(0)
    return min(int((cumulative <= u * cumulative[-1]).sum()), len(p) - 1)


def chain(fault: str) -> Callable[..., Any]:
    def one(guesses: list[int], p: Tensor, q: Tensor, u: Tensor) -> tuple[int, int]:
        there = [x for x in guesses if x >= 0] if fault != "pads are guesses" else [max(x, 0) for x in guesses]
        n, kept, stopped = 0, 0, False
        for i, x in enumerate(there):
            now = u[{"one number": 1, "number of the draw": 0, "shifted": i}.get(fault, i + 1)]
            at_p = p[i + 1, x] if fault == "row after" else p[i, x]
            keep = now * q[i, x] < at_p
            if fault == "inverted":
                keep = now * at_p < q[i, x]
            if fault == "u = 0":
                keep = now * q[i, x] <= at_p
            if fault == "always":
                keep = torch.tensor(True)
            if fault == "never":
                keep = torch.tensor(False)
            if fault == "threshold":
                keep = at_p >= q[i, x]
            kept += int(keep)
            stopped |= not keep
            n += int(keep and not stopped)
        if fault == "goes on":
            n = kept
        rejected = n < len(there)
        law = left_over(p[n], q[n]) if rejected or (fault == "padding rejects" and n < len(guesses)) else p[n]
        if fault == "times 0" and n < len(guesses):
            law = left_over(p[n], q[n] * rejected) if rejected else (p[n] - q[n] * 0).clamp(min=0)
        if fault == "last row" and not rejected:
            law = p[-1]
        if fault == "from p":
            law = p[n]
        if fault == "from q" and rejected:
            law = q[n]
        if fault == "sign" and rejected:
            law = left_over(q[n], p[n])
        if fault == "without the token" and rejected:
            law = p[n].index_fill(0, torch.tensor([there[n]]), 0)
            law = law if law.sum() > 0 else p[n]
        if fault == "residual of bonus" and not rejected and n:
            law = left_over(p[n], q[n - 1])
        if fault == "row before" and rejected and n:
            law = left_over(p[n - 1], q[n - 1])
        if fault == "argmax":
            return n, int(law.argmax())
        return n, pick(law, u[-1] if fault == "last number" else u[0])

    def verify_chain(guesses: Tensor, p: Tensor, q: Tensor, u: Tensor) -> Any:
        if fault == "float32":
            p, q, u = p.float(), q.float(), u.float()
        found = [one(*row) for row in zip(guesses.tolist(), p, q, u, strict=True)]
        if fault == "pairs":
            return found
        return [n for n, _ in found], [token for _, token in found]

    return verify_chain


CHAIN = [
    Wrong("it accepts with q / p; the rule needs p / q", chain("inverted")),
    Wrong("it keeps every guess, so the draft is returned unchanged", chain("always")),
    Wrong("it keeps no guess", chain("never")),
    Wrong("it keeps a guess only where p is at least q; below that it is kept with probability p / q", chain("threshold")),
    Wrong("after a rejection it draws from p; it must draw from the residual", chain("from p")),
    Wrong("after a rejection it draws from q; it must draw from the residual", chain("from q")),
    Wrong("its residual is max(0, q - p); it must be max(0, p - q)", chain("sign")),
    Wrong("after a rejection it takes only the rejected token out of p; that is right for a certain guess, not for a drawn one", chain("without the token")),
    Wrong("it draws the bonus token from a residual; nothing was rejected there", chain("residual of bonus")),
    Wrong("it takes the residual of the place before the rejected guess", chain("row before")),
    Wrong("it compares the same uniform number at every position; guess i has u[i + 1]", chain("one number")),
    Wrong("it tests with the number that the last draw uses too; guess i has u[i + 1]", chain("number of the draw")),
    Wrong("it tests guess i with u[i], and so the first one with the number of the last draw; guess i has u[i + 1]", chain("shifted")),
    Wrong("it takes the end of a short draft for a rejection: the residual is for a guess that was rejected; here draw from p", chain("padding rejects")),
    Wrong("it takes padding times 0 for nothing, but 0 times NaN is NaN: what means nothing must not be computed with", chain("times 0")),
    Wrong("it computes in float32, where numbers close to each other become equal; stay in float64", chain("float32")),
    Wrong("it returns a pair for each row; wanted are two things, all counts and then all tokens", chain("pairs")),
    Wrong("it draws the last token with the last uniform number; that belongs to a guess: use u[0]", chain("last number")),
    Wrong("it accepts at equality: a token with p = 0 passes when u is exactly 0; use <", chain("u = 0")),
    Wrong("it tests a guess with the target's distribution one place later", chain("row after")),
    Wrong("it goes on after a rejection; what stands behind a rejected guess is worthless", chain("goes on")),
    Wrong("it takes the padding of a short draft for guesses", chain("pads are guesses")),
    Wrong("a row whose draft ends early gets its bonus token from the last row of p; that belongs to longer drafts", chain("last row")),
    Wrong("it takes the likeliest token at the end instead of drawing one", chain("argmax")),
]  # fmt: skip

# 3.5


def siblings(fault: str) -> Callable[..., tuple[int, int]]:
    def choose(p: Tensor, q: Tensor, drawn: Sequence[int], u: Tensor) -> tuple[int, int]:
        now, left = p, q.clone()
        for i, x in enumerate(drawn):
            share = q if fault == "same q" else left / left.sum()
            at_p = p[x] if fault == "tests with p" else now[x]
            number = u[{"one number": 1, "shifted": i}.get(fault, i + 1)]
            keep = number * at_p < share[x] if fault == "inverted" else number * share[x] < at_p
            if fault == "u = 0":
                keep = number * share[x] <= at_p
            if keep:
                return i, x
            if fault == "first only":
                return -1, pick(left_over(now, share), u[0])
            if fault == "p without x":
                now = now.index_fill(0, torch.tensor([x]), 0)
                now = now / now.sum() if now.sum() > 0 else p
            elif fault != "keeps p":
                now = left_over(now, share)
            left = q.clone() if fault == "less the last" else left
            left[x] = 0
        law = p if fault in ("draws from p", "keeps p") else q if fault == "draws from q" else now
        return -1, pick(law, u[0])

    return choose


def pops(p: Tensor, q: Tensor, drawn: list[int], u: Tensor) -> tuple[int, int]:
    found = siblings("")(p, q, drawn, u)
    drawn.pop(0)
    return found


SIBLINGS = [
    Wrong(changes("drawn"), pops),
    Wrong("it tests sibling i with u[i], and so the first one with the number of the last draw; sibling i has u[i + 1]", siblings("shifted")),
    Wrong("it accepts with q / p; the rule needs p / q", siblings("inverted")),
    Wrong("it tests every sibling with p; after a rejection the residual has taken its place", siblings("tests with p")),
    Wrong("it goes on with p after a rejection; the residual takes its place", siblings("keeps p")),
    Wrong("it tests the second sibling with q as it was; that one was drawn from q without the first, divided by what is left", siblings("same q")),
    Wrong("it takes only the last sibling out of q; the third was drawn without the first two", siblings("less the last")),
    Wrong("it tries the first sibling only", siblings("first only")),
    Wrong("it draws the last token from p; after a rejection it must be the residual", siblings("draws from p")),
    Wrong("it draws the last token from q; it must be the residual", siblings("draws from q")),
    Wrong("after a rejection it takes the token out of p; that is right for fixed siblings, not for drawn ones", siblings("p without x")),
    Wrong("it compares the same uniform number for both siblings; sibling i has u[i + 1]", siblings("one number")),
    Wrong("it accepts at equality: a token with p = 0 passes when u is exactly 0; use <", siblings("u = 0")),
]  # fmt: skip

WRONG = {"3.4": CHAIN, "3.5": SIBLINGS}
