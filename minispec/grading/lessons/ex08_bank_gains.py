"""Wrong answers to the second half of lesson 8: the best length, paired ratios, a claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from minispec.grading.lessons.ex08_cases import interval
from minispec.grading.task import Wrong, changes

# 8.4


def planner(fault: str) -> Callable[..., Any]:
    def length_and_oracle(rates: list[float], cost: list[float], draft_s: float) -> list[float]:
        most = len(rates)

        def tokens(n: int) -> float:
            reached = [math.prod(rates[: i + 1]) for i in range(n)]
            if fault == "adds rates":
                reached = rates[:n]
            if fault == "one rate" and n:
                mean = sum(rates) / most
                reached = [mean ** (i + 1) for i in range(n)]
            if fault == "all or nothing":
                reached = [reached[-1]] * n if n else []
            return sum(reached) + (fault != "no own token")

        def spent(n: int) -> float:
            drafting = 0 if fault == "free drafting" else min(n, 1) * draft_s if fault == "drafting once" else n * draft_s
            read = max(1, n) if fault == "no pending" else 1 if fault == "free reading" else 1 + n
            return cost[read] + drafting

        gain = lambda n: tokens(n) * (1 if fault == "a second" else cost[1]) / spent(n) if n or fault == "a second" else 1.0
        lengths = range(1 if fault == "never none" and most else 0, most + 1)
        best = max(lengths, key=tokens if fault == "most tokens" else gain)
        if fault == "longest of equals":
            best = max(reversed(lengths), key=gain)
        if fault == "first failure":
            best = next((n for n in range(most) if gain(n + 1) <= gain(n)), most)
        if fault == "ends at 0":
            best = max(range(next((n for n in range(most) if not rates[n]), most) + 1), key=gain)
        law = [math.prod(rates[:n]) * (1 - rates[n] if n < most else 1) for n in range(most + 1)]
        if fault == "loose law":
            law = [math.prod(rates[:n]) for n in range(most + 1)]
        oracle = cost[1] * sum(p * (1 + n) for n, p in enumerate(law)) / sum(p * spent(n) for n, p in enumerate(law))
        if fault == "all right":
            oracle = (1 + most) * cost[1] / spent(most)
        if fault == "mean of gains":
            oracle = sum(p * (1 + n) * cost[1] / spent(n) for n, p in enumerate(law))
        if fault == "pays for all":
            oracle = tokens(most) * cost[1] / spent(most)
        if fault == "oracle is best":
            oracle = gain(best)
        if fault == "at least the best":
            oracle = max(oracle, gain(best))
        return [best, gain(best), oracle]

    return length_and_oracle


LENGTH = [
    Wrong("it looks no further than a place whose guess is never right; a wider pass may be the cheaper one", planner("ends at 0")),
    Wrong("it takes the oracle for at least as good as the best length; where a wider pass is cheaper it need not be", planner("at least the best")),
    Wrong("it adds the rates; each holds only where all before it were accepted, so they are multiplied first", planner("adds rates")),
    Wrong("it forgets the target's own token, which every round emits", planner("no own token")),
    Wrong("it takes the mean rate for every place; the rates differ", planner("one rate")),
    Wrong("it counts a draft only if all of it is accepted", planner("all or nothing")),
    Wrong("it forgets the pending token: a round with n guesses reads 1 + n tokens", planner("no pending")),
    Wrong("it takes a pass to cost the same whatever it reads", planner("free reading")),
    Wrong("it forgets what drafting costs", planner("free drafting")),
    Wrong("it charges one guess's drafting a round; each guess costs so much", planner("drafting once")),
    Wrong("it gives tokens a second; a speedup is by how much that grows over plain decoding", planner("a second")),
    Wrong("it takes the length that emits most tokens, whatever it costs", planner("most tokens")),
    Wrong("it always drafts something; where no draft gains, the best length is 0, with a speedup of 1", planner("never none")),
    Wrong("of equal lengths it takes the longest; wanted is the shortest", planner("longest of equals")),
    Wrong("its oracle has every guess right; it cannot make the drafter better, it only knows where to stop", planner("all right")),
    Wrong("its oracle is the mean of each round's speedup; divide the mean tokens by the mean time", planner("mean of gains")),
    Wrong("its oracle drafts to the end every time; it stops where the next guess would be rejected", planner("pays for all")),
    Wrong("its oracle takes the chance of n accepted or more for that of exactly n", planner("loose law")),
    Wrong("it stops at the first length that gains nothing; where the cost goes in steps, a longer one may gain again", planner("first failure")),
    Wrong("it takes the best fixed length for the oracle, which chooses anew in every round", planner("oracle is best")),
]  # fmt: skip

# 8.5


def paired(fault: str) -> Callable[..., Any]:
    middle = statistics.median

    def paired_speedup(base: list[list[float]], mine: list[list[float]]) -> list[float]:
        pairs = [[a / b for a, b in zip(*row, strict=True)] for row in zip(base, mine, strict=True)]
        if fault == "inverted":
            pairs = [[1 / x for x in row] for row in pairs]
        if fault == "first baseline":
            pairs = [[a[0] / b for b in row] for a, row in zip(base, mine, strict=True)]
        within = statistics.mean if fault == "means" else statistics.median_low if fault == "lower middle" else middle
        own = [within(row) for row in pairs]
        if fault == "of medians":
            own = [middle(a) / middle(b) for a, b in zip(base, mine, strict=True)]
        if fault == "of sums":
            own = [sum(a) / sum(b) for a, b in zip(base, mine, strict=True)]
        if fault == "best runs":
            own = [min(a) / min(b) for a, b in zip(base, mine, strict=True)]
        across = statistics.mean if fault == "mean of requests" else within if fault == "lower middle" else middle
        found = [across(own), min(own), max(own)]
        every = [x for row in pairs for x in row]
        if fault == "pooled":
            found = [middle(every), min(own), max(own)]
        if fault == "widest":
            found[1:] = [min(every), max(every)]
        if fault == "of totals":
            found[0] = sum(middle(a) for a in base) / sum(middle(b) for b in mine)
        return found

    return paired_speedup


PAIRED = [
    Wrong("it divides mine by the baseline's; a speedup is the baseline's time by mine", paired("inverted")),
    Wrong("it divides median by median; two runs of a repeat are neighbours in time: divide those, then take the median", paired("of medians")),
    Wrong("it divides sum by sum, so a single disturbed run spoils a request", paired("of sums")),
    Wrong("it takes the mean over the repeats, so a single disturbed run spoils it", paired("means")),
    Wrong("it compares the fastest runs; those are of different moments, and nobody gets the fastest run", paired("best runs")),
    Wrong("it compares every run with the first one of the baseline", paired("first baseline")),
    Wrong("it takes the lower of the two middle values; the median of an even number is their mean", paired("lower middle")),
    Wrong("it takes the mean over the requests; wanted is the median", paired("mean of requests")),
    Wrong("it throws all pairs of all requests together; first each request, then the requests", paired("pooled")),
    Wrong("its smallest and largest are of single runs; wanted are those of the requests", paired("widest")),
    Wrong("it divides the time of all requests by that of all; long requests then decide alone", paired("of totals")),
]  # fmt: skip

# 8.6


def verdict(fault: str) -> Callable[..., Any]:
    def claim_verdict(ratios: list[float], claim: float) -> list[Any]:
        n, order = len(ratios), list(ratios) if fault == "unsorted" else sorted(ratios)
        if fault == "float32":
            order = torch.tensor(order, dtype=torch.float32).tolist()
        if fault == "equals once":
            order = sorted(set(ratios))
            n = len(order)
        tail = [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(n + 1)]  # P(fewer than k of n below the median)
        k = interval(n)
        if fault == "one side":
            k = max(k for k in range(n // 2 + 1) if not k or 1 - tail[k] >= 0.95)
        if fault == "one short":
            k = max(0, k - 1)
        if fault == "one far":
            k = k and min(k + 1, (n + 1) // 2)
        if fault == "whole range" and k:
            k = 1
        if fault == "decides anyway":
            k = max(1, k)
        if not k:
            return [None, None, "cannot tell"]
        low, high = order[k - 1], order[-k]
        middle = statistics.median(order)
        if fault == "mean and error" and n > 1:
            error = 1.96 * statistics.stdev(order) / math.sqrt(n)
            low, high = statistics.mean(order) - error, statistics.mean(order) + error
        if fault == "quartiles" and n > 1:
            low, _, high = statistics.quantiles(order, n=4, method="inclusive")
        bar = 1.0 if fault == "faster at all" else claim
        supported, refused = low >= bar, high < bar
        if fault == "strict":
            supported = low > bar
        if fault == "upper end":
            refused = high <= bar
        if fault == "middle":
            supported, refused = middle >= bar, middle < bar
        if fault == "two answers":
            refused = not supported
        if fault == "hopeful":
            supported = high >= bar
        return [low, high, "supported" if supported else "not supported" if refused else "cannot tell"]

    return claim_verdict


def sorts(ratios: list[float], claim: float) -> list[Any]:
    ratios.sort()
    return verdict("")(ratios, claim)


CLAIM = [
    Wrong("it compares in float32, where numbers close to each other become equal", verdict("float32")),
    Wrong(changes("ratios"), sorts),
    Wrong("it looks at the median alone, as if it were known exactly", verdict("middle")),
    Wrong("it says not supported where the claim lies inside the interval; there the runs cannot tell", verdict("two answers")),
    Wrong("it says supported as soon as the upper end reaches the claim; the lower end must", verdict("hopeful")),
    Wrong("it takes the largest interval, smallest to largest; wanted is the narrowest that still has 95 %", verdict("whole range")),
    Wrong("it leaves 5 % on each side; both together may have 5 %", verdict("one side")),
    Wrong("its interval is one value too wide on each side: look at the k - 1 in the sum", verdict("one short")),
    Wrong("its interval is one value too narrow on each side: look at the k - 1 in the sum", verdict("one far")),
    Wrong("with too few ratios it decides all the same; no interval of theirs has 95 %", verdict("decides anyway")),
    Wrong("it takes mean and standard error, which a single outlier moves; wanted is the interval of the median", verdict("mean and error")),
    Wrong("it takes the quartiles: they say how requests differ, not how well the median is known", verdict("quartiles")),
    Wrong("it compares with 1; the claim says by how much", verdict("faster at all")),
    Wrong("it counts equal ratios once; each is a request of its own", verdict("equals once")),
    Wrong("it forgets to sort the ratios", verdict("unsorted")),
    Wrong("where the lower end is just the claim, it is supported: at least", verdict("strict")),
    Wrong("where the upper end is just the claim, it may still be true", verdict("upper end")),
]  # fmt: skip
