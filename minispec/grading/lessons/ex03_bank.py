"""Wrong answers to lesson 3, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from minispec.grading.lessons import ex03_bank_rule
from minispec.grading.task import Wrong, of_kind

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
    Wrong("it computes in float32, which does not hold so small a difference; stay in float64", lambda p, q: leftover("")(p.float(), q.float()).double()),
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
    Wrong("it computes in float32, where a u close to 1 becomes 1; stay in float64", lambda p, q, u: u.float().log() < p.float() - q.float()),
    Wrong(of_kind("bool", "int"), lambda p, q, u: (u.log() < p - q).long()),
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

WRONG = {"3.1": RESIDUAL, "3.2": KEEP, "3.3": HONEST, **ex03_bank_rule.WRONG}
