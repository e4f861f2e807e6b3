"""Wrong answers to lesson 3, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minispec.grading.lessons.ex03_cases import left_over
from minispec.grading.task import Wrong

# 3.1


def leftover(fault: str) -> Callable[[Tensor, Tensor], Tensor]:
    def residual(p: Tensor, q: Tensor) -> Tensor:
        narrow = q.shape[1]
        wide = torch.cat((q, q.new_zeros(len(q), p.shape[1] - narrow)), 1)
        left = (p - wide).clamp(min=0)
        if fault == "sign":
            left = (wide - p).clamp(min=0)
        if fault == "absolute":
            left = (p - wide).abs()
        if fault == "negative":
            left = p - wide
        if fault == "forgets the rest":
            left[:, narrow:] = 0
        if fault == "spreads":
            left = (p - torch.where(wide > 0, wide, q.min())).clamp(min=0)
        mass = left.sum(1, keepdim=True)
        if fault == "not divided":
            return torch.where(mass > 0, left, p)
        if fault == "divides by all":
            mass = left.sum().expand_as(mass)
        if fault == "no guard":
            return left / mass
        if fault == "batch guard":
            return p if (mass == 0).any() else left / mass
        if fault == "zeros":
            return left / mass.clamp(min=1e-30)
        return torch.where(mass > (1e-6 if fault == "a little is nothing" else 0), left / mass, p)

    return residual


RESIDUAL = [
    Wrong("it is max(0, q - p); the residual is max(0, p - q)", leftover("sign")),
    Wrong("it takes |p - q|; where q is above p nothing is left over", leftover("absolute")),
    Wrong("it keeps negative numbers; where q is above p nothing is left over", leftover("negative")),
    Wrong(
        "it gives 0 to the ids that q does not know; there q is 0, so all of p is left over", leftover("forgets the rest")
    ),
    Wrong("it does not divide by the sum, so the row is no distribution", leftover("not divided")),
    Wrong("it divides by the sum over the whole batch; each row has its own", leftover("divides by all")),
    Wrong("it divides 0 by 0 where p equals q; there the answer is p", leftover("no guard")),
    Wrong("it takes a small sum for 0; only where nothing at all is left over the answer is p", leftover("a little is nothing")),
    Wrong("it gives p for all rows if one has nothing left over", leftover("batch guard")),
    Wrong("it gives zeros where p equals q; nothing can be drawn from that: the answer there is p", leftover("zeros")),
]  # fmt: skip

# 3.2

KEEP = [
    Wrong("it accepts with q / p; the rule needs p / q", lambda p, q, u: u.log() < q - p),
    Wrong("it accepts at equality: a token with p = 0 passes when u is exactly 0; use <", lambda p, q, u: u.log() <= p - q),
    Wrong("it goes back to p and q, which are 0 where the logarithms are far below 0", lambda p, q, u: u * q.exp() < p.exp()),
    Wrong("at u = 0 it rejects a token of tiny p / q: exp of the difference may be 0, and a u lifted to a small number is no longer 0", lambda p, q, u: u.clamp(min=1e-300).log() < p - q),
    Wrong("it compares u itself with a logarithm; take the logarithm of u too", lambda p, q, u: u < p - q),
    Wrong("it keeps every guess", lambda p, q, u: torch.ones_like(u, dtype=torch.bool)),
    Wrong("it keeps a guess only if p is at least q; below that it is kept with probability p / q", lambda p, q, u: p >= q),
    Wrong("it keeps where u is large; the rule keeps where u is below the ratio", lambda p, q, u: u.log() > p - q),
    Wrong("it keeps with probability p, whatever q; that is right only for a certain guess", lambda p, q, u: u.log() < p),
    Wrong("it divides the logarithms; the logarithm of p / q is their difference", lambda p, q, u: u < p / q),
    Wrong("it adds the logarithms; the logarithm of p / q is their difference", lambda p, q, u: u.log() < p + q),
]  # fmt: skip

# 3.3


def report(fault: str) -> Callable[[Tensor, float, int], Tensor]:
    def honest_q(logits: Tensor, temperature: float, top_k: int) -> Tensor:
        if fault == "whole softmax":
            return logits.softmax(0)
        if temperature == 0:
            if fault == "softmax at 0":
                return logits.softmax(0)
            if fault != "divides by 0":
                return torch.nn.functional.one_hot(logits.argmax(), len(logits)).to(logits.dtype)
        x = logits * temperature if fault == "multiplies" else logits / temperature
        if fault == "overflows":
            q = x.exp() / x.exp().sum()
            x = q.log()
        if fault == "no temperature":
            x = logits
        kept = torch.ones_like(logits, dtype=torch.bool)
        if 0 < top_k < len(logits) and fault != "no top-k":
            order = logits.argsort(descending=fault != "smallest")
            kept[order[top_k:]] = False
        if fault == "not divided":
            return x.softmax(0).masked_fill(~kept, 0)
        if fault == "zero logits":
            return x.masked_fill(~kept, 0).softmax(0)
        return x.masked_fill(~kept, -math.inf).softmax(0)

    return honest_q


HONEST = [
    Wrong("it reports the softmax of the logits; that is not what the token was drawn from", report("whole softmax")),
    Wrong(
        "it scores a token taken by argmax as if it had been drawn: at temperature 0 q is 1 at it", report("softmax at 0")
    ),
    Wrong("it divides by a temperature of 0; there the likeliest token is certain", report("divides by 0")),
    Wrong("it multiplies by the temperature; logits are divided by it", report("multiplies")),
    Wrong("it forgets the temperature", report("no temperature")),
    Wrong("it reports q as it was before top-k; the token was drawn from q after it", report("no top-k")),
    Wrong("it keeps the least likely tokens", report("smallest")),
    Wrong("after top-k the rest is not divided by its sum, so q does not add up to 1", report("not divided")),
    Wrong("it sets the logits of what top-k cuts to 0; a logit of 0 is not a probability of 0", report("zero logits")),
    Wrong("it takes exp of large logits, which overflows; softmax does not", report("overflows")),
]  # fmt: skip

# 3.4


def pick(p: Tensor, u: Tensor) -> int:
    cumulative = p.cumsum(0)
    return min(int((cumulative <= u * cumulative[-1]).sum()), len(p) - 1)


def chain(fault: str) -> Callable[..., tuple[list[int], list[int]]]:
    def one(guesses: list[int], p: Tensor, q: Tensor, u: Tensor) -> tuple[int, int]:
        there = [x for x in guesses if x >= 0] if fault != "pads are guesses" else [max(x, 0) for x in guesses]
        n, kept, stopped = 0, 0, False
        for i, x in enumerate(there):
            now = u[1] if fault == "one number" else u[0] if fault == "number of the draw" else u[i + 1]
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
        law = left_over(p[n], q[n]) if rejected else p[n]
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

    def verify_chain(guesses: Tensor, p: Tensor, q: Tensor, u: Tensor) -> tuple[list[int], list[int]]:
        found = [one(*row) for row in zip(guesses.tolist(), p, q, u, strict=True)]
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
            number = u[1] if fault == "one number" else u[i + 1]
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


SIBLINGS = [
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
WRONG = {"3.1": RESIDUAL, "3.2": KEEP, "3.3": HONEST, "3.4": CHAIN, "3.5": SIBLINGS}
