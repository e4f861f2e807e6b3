"""Wrong answers to the second half of lesson 4: drafting for a batch, the length of a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minispec.grading.lessons.ex04_cases import cut, guessed
from minispec.grading.task import Wrong, changes

# 4.4


def batcher(fault: str) -> Callable[..., list[list[int]]]:
    def draft_batch(
        tables: list[Any],
        texts: list[list[int]],
        active: list[int],
        left: list[int],
        most: int,
        sizes: list[int],
        eos: int | None,
    ) -> list[list[int]]:
        drafts = []
        for row, request in enumerate(active):
            table = tables[row if fault in ("table by row", "all by row") else request]
            text = texts[row if fault in ("text by row", "all by row") else request]
            limit = left[row if fault in ("left by row", "all by row") else request] - 1
            limit = min(left[r] for r in active) - 1 if fault == "least left" else limit
            limit = most if fault == "no budget" else min(most, limit + 1 if fault == "all that is left" else limit)
            order = list(sizes) if fault == "as they come" else sorted(sizes, reverse=fault != "shortest first")
            beyond = fault in ("wraps round", "whole text")
            found = []
            for size in order:
                if size <= len(text) or beyond:
                    at = table.get(text[-size:] if fault == "whole text" else text[len(text) - size :])
                    found += [at] if at is not None else []
            if fault == "asks too often":
                table.get(text[-max(sizes) :])
                table.get(text[-min(sizes) :])
            before = drafts[-1] if drafts and fault == "the last one again" else []
            draft = text[found[0] :][: max(0, limit)] if found else before
            if fault == "searches":
                draft = guessed(text, sizes, most, left[request], eos)
            if fault == "zero is no eos":
                drafts.append(cut(draft, eos) if eos else draft)
            else:
                drafts.append(draft if fault == "no end" else cut(draft, eos))
        width = max(map(len, drafts))
        if fault == "shortest":
            return [draft[: min(map(len, drafts))] for draft in drafts]
        if fault == "all or none" and not all(drafts):
            return [[] for _ in drafts]
        if fault == "not padded":
            return drafts
        if fault == "full width":
            width = most
        if fault == "one column":
            width = max(1, width)
        if fault == "every request":
            there = dict(zip(active, drafts, strict=True))
            drafts = [there.get(request, []) for request in range(len(texts))]
        pad = 0 if fault == "zeros" else -1
        padding = [[pad] * (width - len(draft)) for draft in drafts]
        pairs = list(zip(drafts, padding, strict=True))
        return [[*fill, *draft] if fault == "left" else [*draft, *fill] for draft, fill in pairs]

    return draft_batch


def sorts_sizes(tables: list[Any], texts: list[list[int]], active: list[int], left: list[int], most: int, sizes: list[int],
                eos: int | None) -> list[list[int]]:  # fmt: skip
    sizes.sort(reverse=True)
    return batcher("")(tables, texts, active, left, most, sizes, eos)


BATCH = [
    Wrong("it takes row i for request i; row i is request active[i], once some have ended", batcher("all by row")),
    Wrong("it takes the table by the row's number; row i is request active[i]", batcher("table by row")),
    Wrong("it takes the text by the row's number; row i is request active[i]", batcher("text by row")),
    Wrong("it takes what is left by the row's number; row i is request active[i]", batcher("left by row")),
    Wrong("it makes a row for every request; wanted is one for each active request", batcher("every request")),
    Wrong("it pads with 0, which is a token; padding is -1", batcher("zeros")),
    Wrong("it pads on the left; padding stands on the right", batcher("left")),
    Wrong("it does not pad: all rows must have the length of the longest draft", batcher("not padded")),
    Wrong("it pads to `most`; the longest draft of this batch decides, for a wider pass costs more", batcher("full width")),
    Wrong("where no row has a draft it makes a column of padding; there are no columns then", batcher("one column")),
    Wrong("it cuts all drafts to the shortest; each row has its own length", batcher("shortest")),
    Wrong("one row without a match takes the others' drafts away", batcher("all or none")),
    Wrong("it does not look at what is left of a row's budget", batcher("no budget")),
    Wrong("it drafts as many tokens as are left; the target's own token takes one place", batcher("all that is left")),
    Wrong("it tries short n-grams first; the longest has to be first", batcher("shortest first")),
    Wrong("it tries the sizes as they come; the longest has to be first", batcher("as they come")),
    Wrong("it guesses beyond the end-of-text token", batcher("no end")),
    Wrong("it takes an end-of-text id of 0 for none: ask `eos is not None`", batcher("zero is no eos")),
    Wrong("it searches the text; the table knows the place, and which match is wanted", batcher("searches")),
    Wrong("the row with the least left limits all rows; each has its own rest", batcher("least left")),
    Wrong("a row without a match gets the draft of the row above; it has none", batcher("the last one again")),
    Wrong("it asks the table more than once for a size", batcher("asks too often")),
    Wrong("where the text is shorter than the size, its slice begins below 0, and counts from the end: another n-gram", batcher("wraps round")),
    Wrong("where the text is shorter than the size, its slice is the whole text, for which it asks more than once", batcher("whole text")),
    Wrong(changes("sizes"), sorts_sizes),
]  # fmt: skip

# 4.5


def chooser(fault: str) -> Callable[..., Any]:
    def best_length(rounds: Sequence[Sequence[int]], cost: Sequence[float]) -> Any:
        gains = {0: 1.0}
        for n in range(1, max(drafted for drafted, _ in rounds) + 1):
            right = lambda drafted, accepted, n=n: accepted if fault == "accepts all" else min(accepted, n)
            if fault == "drafted":
                right = lambda drafted, accepted, n=n: min(drafted, n)
            width = lambda drafted, n=n: drafted if fault == "pays all" else n if fault == "always n" else min(drafted, n)
            own, more = 0 if fault == "no own token" else 1, 0 if fault == "pending is free" else 1
            tokens = [right(*entry) + own for entry in rounds]
            times = [cost[max(1, width(drafted) + more)] for drafted, _ in rounds]
            gains[n] = sum(tokens) * cost[1] / sum(times)
            if fault == "mean of ratios":
                gains[n] = sum(a * cost[1] / b for a, b in zip(tokens, times, strict=True)) / len(rounds)
            if fault == "tokens alone":
                gains[n] = sum(tokens) / len(rounds)
            if fault == "seconds":
                gains[n] = sum(tokens) / sum(times)
        if fault == "up to accepted":
            gains = {n: gain for n, gain in gains.items() if n <= max(accepted for _, accepted in rounds)}
        if fault == "always drafts" and len(gains) > 1:
            del gains[0]
        if fault == "a hundredth at least":
            gains = {n: gain for n, gain in gains.items() if not n or gain >= 1.01}
        if fault == "rounds":
            best = max(gains, key=lambda n: round(gains[n], 2))
        elif fault == "longest":
            best = max(gains, key=lambda n: (gains[n], n))
        elif fault == "inverted":
            best = min(gains, key=lambda n: gains[n])
        else:
            best = max(gains, key=lambda n: gains[n])
        return (best, 1 / gains[best]) if fault == "time ratio" else best if fault == "no gain" else (best, gains[best])

    return best_length


LENGTH = [
    Wrong("it forgets the token of the target's own, which every round emits", chooser("no own token")),
    Wrong("it counts drafted tokens as accepted", chooser("drafted")),
    Wrong("it counts what a longer draft had accepted; drafts of n tokens accept at most n", chooser("accepts all")),
    Wrong("it prices a pass over the guesses alone; the pending token is read with them", chooser("pending is free")),
    Wrong("it prices every round at n guesses; where fewer were found, fewer are paid", chooser("always n")),
    Wrong("it prices every round at all its guesses; drafts of n tokens are paid for n at most", chooser("pays all")),
    Wrong("it takes the mean of the rounds' gains; wanted is all their tokens against all their time", chooser("mean of ratios")),
    Wrong("it looks at tokens alone; a wider pass costs more", chooser("tokens alone")),
    Wrong("it gives tokens by the second; the gain is against plain passes over one token", chooser("seconds")),
    Wrong("it drafts even where every length loses; then 0 is best, and gains 1", chooser("always drafts")),
    Wrong("of lengths that gain the same it takes the longest; wanted is the shortest", chooser("longest")),
    Wrong("it looks no further than what was accepted; a wider pass may be the cheaper one", chooser("up to accepted")),
    Wrong("it takes a small gain for none; any gain above 1 is one", chooser("a hundredth at least")),
    Wrong("it rounds the gains before it compares them", chooser("rounds")),
    Wrong("it takes the length that gains least", chooser("inverted")),
    Wrong("it gives the time as a share of the plain passes' time; the gain is the other way round", chooser("time ratio")),
    Wrong("it returns the length alone; wanted is the length and its gain", chooser("no gain")),
]  # fmt: skip
WRONG = {"4.4": BATCH, "4.5": LENGTH}
