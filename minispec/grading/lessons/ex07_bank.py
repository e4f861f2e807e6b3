"""Wrong answers to lesson 7, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minispec.grading.lessons.ex07_bank_loop import LOOP
from minispec.grading.lessons.ex07_cases import cost
from minispec.grading.task import Wrong, of_kind

# 7.1


def block(fault: str) -> Callable[..., Any]:
    def ragged_block(pending: list[int], drafts: list[list[int]], lengths: list[int]) -> Any:
        rows = [draft[:] if fault == "no pending" else [first, *draft] for first, draft in zip(pending, drafts, strict=True)]
        if fault == "shortest":
            rows = [row[: min(map(len, rows))] for row in rows]
        width = max(map(len, rows))
        if fault == "longest text":
            lengths = [max(lengths)] * len(rows)
        if fault == "from one":
            lengths = [n + 1 for n in lengths]
        if fault == "in the block":
            lengths = [0] * len(rows)
        tokens, positions = [], []
        for row, n in zip(rows, lengths, strict=True):
            free = [0 if fault == "pads with 0" else -1] * (width - len(row))
            tokens.append([*free, *row] if fault == "left" else [*row, *free])
            at = [*range(n, n + len(row)), *[0] * len(free)]
            if fault == "counts on":
                at = list(range(n, n + width))
            positions.append([*at[len(row) :], *at[: len(row)]] if fault == "left" else at)
        return (torch.tensor(tokens).double() if fault == "floats" else tokens), positions

    return ragged_block


BLOCK = [
    Wrong("it pads with 0, which is a token; padding is -1", block("pads with 0")),
    Wrong("it pads on the left; a row's block begins with its pending token", block("left")),
    Wrong("it gives all rows the positions of the longest text; each row goes on where its own text ends", block("longest text")),
    Wrong("its positions are one too high: the cache holds positions 0 to length - 1, so the pending token has position length", block("from one")),
    Wrong("it counts positions from the start of the block; they count from the start of the row's text", block("in the block")),
    Wrong("it forgets the pending token, which the target has not read yet", block("no pending")),
    Wrong("it cuts all drafts to the shortest; rows may differ, that is what padding is for", block("shortest")),
    Wrong("it goes on counting through the padding; there the position is 0", block("counts on")),
    Wrong(of_kind("int", "float"), block("floats")),
]  # fmt: skip

# 7.2


def visible(fault: str) -> Callable[..., Any]:
    def visible_slots(lengths: list[int], counts: list[int], slots: int) -> Any:
        time, longest = max(counts), max(lengths)
        mask = torch.zeros(len(counts), time, slots, dtype=torch.bool)
        for row, (n, count) in enumerate(zip(lengths, counts, strict=True)):
            for i in range(time):
                last = n + i if fault in ("runs on", "padding sees itself") else n + min(i, count - 1)
                if fault == "whole block":
                    last = n + count - 1
                if fault == "not itself":
                    last = n + i - 1
                if fault == "one too many":
                    last = n + i + 1
                if fault == "longest text":
                    last = longest + i
                if fault == "as in prefill":
                    last = i
                if fault == "all":
                    last = slots
                mask[row, i, max(0, last - 63) if fault == "window" else 0 : last + 1] = True
                if fault == "block only":
                    mask[row, i, :n] = False
                if fault == "blind padding" and i >= count:
                    mask[row, i] = False
                if fault == "padding sees itself" and i >= count:
                    mask[row, i, : n + i] = False
                if fault == "at the edge":
                    mask[row, i] = torch.arange(slots) < n
                    mask[row, i, slots - time : slots - time + i + 1] = True
        return mask

    return visible_slots


VISIBLE = [
    Wrong("it sees only so far back; a token sees all of its row's text", visible("window")),
    Wrong("every token sees the whole block, so a guess sees those behind it; a token sees none later than itself", visible("whole block")),
    Wrong("a token does not see itself; its own key is in the cache when attention is computed", visible("not itself")),
    Wrong("a token sees one slot too many: the one behind it", visible("one too many")),
    Wrong("it takes the longest text's length for all rows: shorter rows see leftovers between their text and there", visible("longest text")),
    Wrong("it counts slots from the start of the block: token i sees slots 0 to i, as in a first pass", visible("as in prefill")),
    Wrong("every token sees every slot, leftovers of rejected guesses among them", visible("all")),
    Wrong("it hides the text before the block", visible("block only")),
    Wrong("padding sees nothing at all, and softmax over nothing is NaN; let it see any slot", visible("blind padding")),
    Wrong("padding sees its own slot alone, and where there is none behind the last slot, nothing: softmax over that is NaN", visible("padding sees itself")),
    Wrong("it looks for the block in the cache's last slots; a row's block stands right behind its own text", visible("at the edge")),
]  # fmt: skip

# 7.3


def roller(fault: str) -> Callable[..., Any]:
    def roll_rows(dice: list[Any], requests: list[int], counts: list[int]) -> Any:
        width = 1 + max(counts)
        u = torch.zeros(len(requests), width, dtype=torch.float64)
        if fault == "everyone":
            for request, die in enumerate(dice):
                if request not in requests:
                    die.roll(width)
        for row, (request, n) in enumerate(zip(requests, counts, strict=True)):
            n += fault != "no last draw"
            die = dice[row if fault == "row number" else 0 if fault == "one die" else request]
            if fault == "one number":
                u[row, :n] = die.roll(1)[0]
            elif fault == "full width":
                u[row] = die.roll(width)
            elif fault == "takes the width":
                u[row, :n] = die.roll(width)[:n]
            elif fault == "left":
                u[row, width - n :] = die.roll(n)
            elif fault == "backwards":
                u[row, :n] = die.roll(n).flip(0)
            else:
                u[row, :n] = die.roll(n)
        return u

    return roll_rows


ROLL = [
    Wrong("it returns a tensor of torch.float32; asked for is torch.float64", lambda *args: roller("")(*args).float()),
    Wrong("it takes the die by the row's number; once a request has ended, another one stands in that row: use requests[row]", roller("row number")),
    Wrong("all rows draw from the first die, so what a row gets depends on its neighbours", roller("one die")),
    Wrong("every row draws as many numbers as the widest, padding too: alone it would draw fewer, and go on with others", roller("full width")),
    Wrong("every row draws as many numbers as the widest and throws some away: alone it would go on with those", roller("takes the width")),
    Wrong("it draws a number for each guess, and none for the token behind them", roller("no last draw")),
    Wrong("it draws one number a row, and uses it for every guess; each needs its own", roller("one number")),
    Wrong("it pads on the left; a row's numbers stand from the left", roller("left")),
    Wrong("it turns the order of a row's numbers round", roller("backwards")),
    Wrong("it also rolls the dice of requests that are not in the batch; one that waits would go on with other numbers", roller("everyone")),
]  # fmt: skip

# 7.5


def largest(fault: str) -> Callable[..., int]:
    def largest_batch(curve: list[list[float]], count: int, emitted: float, draft_s: float) -> int:
        def seconds(tokens: float) -> float:
            if fault == "nearest below":
                return max((n, s) for n, s in curve if n <= tokens)[1]
            if fault == "one slope":
                (a, low), (b, high) = curve[0], curve[-1]
                return low + (high - low) * (tokens - a) / (b - a)
            return cost(curve, tokens) if tokens <= curve[-1][0] else curve[-1][1]

        best, last = 0, int(curve[-1][0])
        read = count if fault == "no pending" else 1 + count
        drafting = 0 if fault == "drafting is free" else draft_s * count if fault == "drafting a token" else draft_s
        if fault == "64 at most":
            last = min(last, 64 * (1 + count))
        for batch in range(1, last + 1 if fault == "beyond" else last // (1 + count) + 1):
            plain = seconds(1 if fault == "alone" else batch)
            verify = seconds(batch if fault == "free rows" else read if fault == "one row" else batch * read)
            own = 1 if fault == "a token a round" else emitted + 1 if fault == "one more" else emitted
            drafted = drafting * batch if fault == "drafting a row" else drafting
            if own * plain > verify + drafted:
                best = batch
            elif fault in ("first failure", "the next one"):
                return batch - (fault == "first failure")
        return best + 1 if fault == "the next one" else best

    return largest_batch


BATCH = [
    Wrong("it compares with plain decoding of one request; the same batch without drafts is what must be beaten", largest("alone")),
    Wrong("it forgets that the drafts of all rows are read: a pass reads batch * (1 + drafted) tokens", largest("free rows")),
    Wrong("it charges the draft of one row only: a pass reads batch * (1 + drafted) tokens", largest("one row")),
    Wrong("it forgets the pending tokens: a pass reads 1 + drafted tokens a row", largest("no pending")),
    Wrong("it forgets what drafting costs", largest("drafting is free")),
    Wrong("it charges the drafting for every token; the figure given is for the whole round", largest("drafting a token")),
    Wrong("it charges the drafting for every row; the figure given is for the whole round", largest("drafting a row")),
    Wrong("it takes the nearest measured point below; between two points the curve is a straight line", largest("nearest below")),
    Wrong("it draws one line from the first point to the last; the points between count", largest("one slope")),
    Wrong("it goes beyond the end of the curve, where nothing was measured", largest("beyond")),
    Wrong("it stops at the first batch that does not pay; on a curve with steps a larger one may pay again", largest("first failure")),
    Wrong("it returns the first batch that does not pay; wanted is the largest one that does", largest("the next one")),
    Wrong("it looks no further than 64 requests; only the curve's end is a limit", largest("64 at most")),
    Wrong("it adds a token to those that a round emits; the target's own is among them", largest("one more")),
]  # fmt: skip
WRONG = {"7.1": BLOCK, "7.2": VISIBLE, "7.3": ROLL, "7.4": LOOP, "7.5": BATCH}
