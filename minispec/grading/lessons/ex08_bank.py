"""Wrong answers to lesson 8, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from minispec.grading.lessons.ex08_bank_gains import CLAIM, LENGTH, PAIRED
from minispec.grading.task import Wrong

# 8.1


def positions(fault: str) -> Callable[..., Any]:
    def acceptance_by_position(rounds: list[list[int]]) -> Any:
        deepest = max(max(n if fault in ("drafted", "untried") else min(n, a + 1) for n, a, _ in rounds), 0)
        rates: list[float] = []
        for i in range(deepest):
            tried = sum(min(n, a + 1) > i for n, a, _ in rounds)
            if fault == "all rounds":
                tried = len(rounds)
            if fault == "drafted":
                tried = sum(n > i for n, _, _ in rounds)
            if fault == "reached":
                tried = sum(a >= i for _, a, _ in rounds)
            if fault == "all that drafted":
                tried = sum(n > 0 for n, _, _ in rounds)
            kept = sum(a == i + 1 for _, a, _ in rounds) if fault == "stopped here" else sum(a > i for _, a, _ in rounds)
            if fault == "emitted":
                kept = min(tried, sum(e > i for _, _, e in rounds))
            rates.append(kept / tried if tried else 0.0)
        if fault == "running product":
            rates = [math.prod(rates[: i + 1]) for i in range(len(rates))]
        if fault == "rejected":
            rates = [1 - rate for rate in rates]
        if fault == "one rate":
            rates = [sum(a for _, a, _ in rounds) / sum(n for n, _, _ in rounds)] * len(rates)
        return rates

    return acceptance_by_position


POSITIONS = [
    Wrong("it divides by all rounds; a guess behind a rejected one was never tried", positions("all rounds")),
    Wrong("it divides by the rounds that drafted anything; a guess behind a rejected one was never tried", positions("all that drafted")),
    Wrong("it divides by the guesses that were drafted in that place; those behind a rejected one were never tried", positions("drafted")),
    Wrong("it divides by the rounds that got so far; where a draft was shorter, there was nothing to try", positions("reached")),
    Wrong("it counts the rounds that accepted exactly so many; those that accepted more passed here too", positions("stopped here")),
    Wrong("it counts the target's own token as an accepted guess", positions("emitted")),
    Wrong("it multiplies the rates up to each place; wanted is the rate there, given that all before were accepted", positions("running product")),
    Wrong("it gives the share that was rejected", positions("rejected")),
    Wrong("it gives one rate for all places", positions("one rate")),
    Wrong("it lists places that were drafted but never tried; there is no rate there", positions("untried")),
]  # fmt: skip

# 8.2


def four(fault: str) -> Callable[..., Any]:
    def four_acceptances(rounds: list[list[int]]) -> list[float]:
        drafted, accepted, emitted = (sum(column) for column in zip(*rounds, strict=True))
        counted = [x for x in rounds if x[0]]
        firsts = sum(a > 0 for _, a, _ in rounds)
        share = accepted / drafted if drafted or fault == "divides by 0" else 0.0
        if fault == "mean of shares":
            share = sum(a / n for n, a, _ in counted) / len(counted) if counted else 0.0
        if fault == "tried":
            share = accepted / max(1, sum(min(n, a + 1) for n, a, _ in rounds))
        if fault == "longest":
            share = accepted / max(1, max(n for n, _, _ in rounds) * len(rounds))
        kept = accepted / len(rounds)
        if fault == "with own token":
            kept = emitted / len(rounds)
        if fault == "drafting rounds":
            kept = accepted / max(1, len(counted))
        written = emitted / len(rounds)
        if fault == "always one more":
            written = kept + 1
        if fault == "without own token":
            written = accepted / len(rounds)
        first = firsts / max(1, len(rounds) if fault == "first of all" else len(counted))
        if fault == "all accepted":
            first = sum(n == a for n, a, _ in counted) / max(1, len(counted))
        if fault == "first is share":
            first = share
        return [share, kept, written, first]

    return four_acceptances


FOUR = [
    Wrong("its share is a mean over rounds, in which a draft of one guess weighs as much as one of eight; divide sum by sum", four("mean of shares")),
    Wrong("its share divides by the guesses that were tried; this number is about all that were drafted", four("tried")),
    Wrong("its share takes every draft to be as long as the longest", four("longest")),
    Wrong("it divides by 0 where nothing was drafted; there the share is 0", four("divides by 0")),
    Wrong("its accepted tokens a round include the target's own token", four("with own token")),
    Wrong("its accepted tokens a round leave out the rounds without a draft, which cost a pass all the same", four("drafting rounds")),
    Wrong("it takes emitted to be accepted and one more; where the text ended inside the draft, there was no more", four("always one more")),
    Wrong("its emitted tokens a round leave out the target's own token", four("without own token")),
    Wrong("its rate of the first guess divides by all rounds; one without a draft had no first guess", four("first of all")),
    Wrong("for the first guess it asks whether the whole draft was accepted", four("all accepted")),
    Wrong("it takes the share for the rate of the first guess", four("first is share")),
]  # fmt: skip

# 8.3


def times(fault: str) -> Callable[..., Any]:
    def reading_times(passes: list[list[float]]) -> list[float]:
        first, last = passes[1 % len(passes)][0] if fault == "first round" else passes[0][0], passes[-1][0]
        tokens, rounds = sum(n for _, n in passes[1:]), len(passes) - 1
        if fault == "durations":
            last = sum(at for at, _ in passes)
        spent = last - passes[0][0]
        each = spent / tokens if tokens or fault == "divides by 0" else 0.0
        if fault == "whole time":
            each = last / (tokens + 1)
        if fault == "prefill in time":
            each = last / max(1, tokens)
        if fault == "first token too":
            each = spent / (tokens + 1)
        if fault == "a round":
            each = spent / max(1, rounds)
        if fault == "mean of rounds":
            gaps = [(b[0] - a[0]) / b[1] for a, b in itertools.pairwise(passes)]
            each = sum(gaps) / max(1, len(gaps))
        if fault == "a second":
            each = tokens / spent if spent else 0.0
        a_pass = tokens / rounds if rounds else 0.0
        if fault == "prefill is a pass":
            a_pass = (tokens + 1) / (rounds + 1)
        if fault == "first token is a round's":
            a_pass = (tokens + 1) / max(1, rounds)
        return [first, each, a_pass]

    return reading_times


TIMES = [
    Wrong("it divides the whole time by all tokens; reading the prompt belongs to the first token alone", times("whole time")),
    Wrong("its time of a token includes the reading of the prompt", times("prefill in time")),
    Wrong("it counts the first token among those that came after it", times("first token too")),
    Wrong("it gives the time of a round; a round emits several tokens", times("a round")),
    Wrong("it takes the mean over rounds of time by tokens; a round of one token then weighs as much as one of five", times("mean of rounds")),
    Wrong("it gives tokens a second; wanted are seconds a token", times("a second")),
    Wrong("it takes the times for durations; each is the moment at which a pass was done", times("durations")),
    Wrong("it divides by 0 where there was no round", times("divides by 0")),
    Wrong("it counts the first pass as a round: that reads the prompt, and always emits one token", times("prefill is a pass")),
    Wrong("its tokens a pass include the first token, which no round emitted", times("first token is a round's")),
    Wrong("it takes the first round for the first token; that comes with the first pass", times("first round")),
]  # fmt: skip

WRONG = {"8.1": POSITIONS, "8.2": FOUR, "8.3": TIMES, "8.4": LENGTH, "8.5": PAIRED, "8.6": CLAIM}
