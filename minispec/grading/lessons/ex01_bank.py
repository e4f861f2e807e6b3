"""Wrong answers to lesson 1, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons import ex01_bank_cache
from minispec.grading.lessons.ex01_cases import shaped
from minispec.grading.task import Wrong
from minispec.sampling import draw

# 1.1


def room(fault: str) -> Callable[..., Any]:
    def rows_that_fit(memory: int, weights: int, layers: int, width: int, heads: int, kv_heads: int, size: int, tokens: int):
        stored = heads if fault == "query heads" else kv_heads
        head = width if fault == "whole width" else width // heads
        row = (1 if fault == "keys only" else 2) * stored * head * size
        row *= (1 if fault == "one layer" else layers) * (1 if fault == "one token" else tokens)
        left = memory if fault == "no weights" else memory - weights
        if fault == "fraction":
            return max(0, left) / row
        if fault == "rounds up":
            return max(0, math.ceil(left / row))
        return left // row if fault == "below 0" else max(0, left) // row

    return rows_that_fit


ROOM = [
    Wrong("it counts keys alone; a cache holds a key and a value", room("keys only")),
    Wrong("it takes heads * head width, or the model's width: only kv_heads are stored, each width / heads wide", room("query heads")),
    Wrong("it takes every head to be as wide as the model; it is width / heads wide", room("whole width")),
    Wrong("it forgets the layers; each has a cache of its own", room("one layer")),
    Wrong("it counts one token; a text has `tokens` of them", room("one token")),
    Wrong("it forgets the weights, which take their part of the memory", room("no weights")),
    Wrong("it rounds up; a text that fits in part does not fit", room("rounds up")),
    Wrong("it returns a fraction; wanted is a whole number", room("fraction")),
    Wrong("it gives a number below 0 where the weights alone do not fit; then no text does: 0", room("below 0")),
]  # fmt: skip

# 1.2


def drawer(fault: str) -> Callable[[Tensor, Tensor], Any]:
    def draw_rows(p: Tensor, u: Tensor) -> Any:
        if fault == "argmax":
            return p.argmax(1)
        if fault == "from the end":
            return p.shape[1] - 1 - draw(p.flip(1), u)
        if fault == "sorted":
            values, order = p.sort(dim=1, descending=True)
            return order.gather(1, draw(values, u)[:, None])[:, 0]
        if fault == "one number":
            return draw(p, u[:1].expand(len(p)))
        if fault == "first row":
            return draw(p[:1].expand_as(p), u)
        if fault == "rounds":
            return draw(p.masked_fill(p < 1e-9, 0), u)
        sums = p.cumsum(1)
        if fault == "broken":
            return torch.searchsorted(sums, u[:, None])[:, 0]
        if fault == "softmax":
            return draw(p.softmax(1), u)
        level = u if fault in ("falls off", "last token", "wraps") else u * sums[:, -1]
        found = torch.searchsorted(sums, level[:, None], right=fault != "left")[:, 0]
        if fault == "last token":
            return found.clamp(max=p.shape[1] - 1)
        return found % p.shape[1] if fault == "wraps" else found - 1 if fault == "one before" else found

    return draw_rows


DRAW = [
    Wrong("where u falls on the end of a piece it takes the token that ends there, even one with p = 0; the next one is due", drawer("left")),
    Wrong("as in the broken version, u falls on the wrong side of a piece's end, and off the end of the line", drawer("broken")),
    Wrong("it falls off the end: the last sum may be below u, or need not be 1 at all; scale u by the last sum", drawer("falls off")),
    Wrong("where it would fall off the end it takes the last token, whatever its p; scale u by the last sum", drawer("last token")),
    Wrong("where it falls off the end it goes on at token 0; scale u by the last sum", drawer("wraps")),
    Wrong("it takes the likeliest token; wanted is the one on whose piece u falls", drawer("argmax")),
    Wrong("it lays the pieces from the end; token 0 comes first", drawer("from the end")),
    Wrong("it sorts the tokens by p first; the pieces lie in the order of the ids", drawer("sorted")),
    Wrong("it uses the first uniform number for all rows; each has its own", drawer("one number")),
    Wrong("it draws all rows from the first row of p", drawer("first row")),
    Wrong("it takes softmax of p, which is a distribution already", drawer("softmax")),
    Wrong("it takes a small p for 0; only a token with p = 0 is never drawn", drawer("rounds")),
    Wrong("it takes the token before the one on whose piece u falls", drawer("one before")),
]  # fmt: skip

# 1.3


def shaper(fault: str) -> Callable[[Tensor, list], Tensor]:
    def one(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
        if fault == "half":
            return shaped((logits / (temperature or 1.0)).softmax(-1).log(), 1.0 if temperature else 0.0, top_k, top_p)
        x = logits.double()
        if temperature == 0:
            if fault == "softmax at 0":
                return x.softmax(0)
            if fault == "all likeliest":
                return (x == x.max()).double() / (x == x.max()).sum()
            if fault != "divides by 0":
                return torch.nn.functional.one_hot(x.argmax(), len(x)).double()
        temperature = max(temperature, 1e-5) if fault == "at least" else temperature
        scaled = x * temperature if fault == "multiplies" else x / temperature
        if fault == "overflows":
            scaled = (scaled.exp() / scaled.exp().sum()).log()
        kept = torch.ones_like(x, dtype=torch.bool)
        if 0 < top_k < len(x) and fault != "no top-k":
            kept = x >= x.topk(top_k).values[-1]
            if fault == "cuts equals":
                kept = torch.zeros_like(kept).index_fill(0, x.sort(descending=True, stable=True).indices[:top_k], True)
        if top_p < 1:
            p = scaled.masked_fill(~kept, -math.inf).softmax(0)
            if fault == "p of all":
                p = scaled.softmax(0)
            if fault == "p before temperature":
                p = x.masked_fill(~kept, -math.inf).softmax(0)
            likelier = torch.stack([p[p > y + (1e-6 if fault == "tolerance" else 0)].sum() for y in p])
            stays = likelier < top_p
            if fault == "drops the last":
                stays = torch.stack([p[p >= y].sum() for y in p]) <= top_p
            if fault == "drops all but one":
                stays = (torch.stack([p[p >= y].sum() for y in p]) <= top_p) | (p == p.max())
            if fault == "one more":
                stays |= p == p[~stays].max() if (~stays & (p > 0)).any() else False
            if fault == "by order":
                sums, order = p.sort(descending=True, stable=True)
                stays = torch.zeros_like(kept).index_fill(0, order[sums.cumsum(0) - sums < top_p], True)
            if fault == "threshold":
                stays = p >= 1 - top_p
            kept &= stays
        if fault == "not divided":
            return scaled.softmax(0).masked_fill(~kept, 0)
        return scaled.masked_fill(~kept, 0.0 if fault == "zero logits" else -math.inf).softmax(0)

    def processed(logits: Tensor, settings: list) -> Tensor:
        settings = settings[:1] * len(logits) if fault == "first row's" else settings
        return torch.stack([one(row, *setting).double() for row, setting in zip(logits, settings, strict=True)])

    return processed


SHAPE = [
    Wrong("it multiplies by the temperature; logits are divided by it", shaper("multiplies")),
    Wrong("it divides by a temperature of 0; there the likeliest token is certain", shaper("divides by 0")),
    Wrong("at temperature 0 it gives softmax; there the likeliest token is certain", shaper("softmax at 0")),
    Wrong("at temperature 0 it shares between equal tokens; the lowest id is certain", shaper("all likeliest")),
    Wrong("it lifts a small temperature to a larger one; every temperature above 0 divides the logits as it is", shaper("at least")),
    Wrong("it leaves out top-k", shaper("no top-k")),
    Wrong("top-k keeps exactly k tokens, and cuts some that are equal to the last one kept", shaper("cuts equals")),
    Wrong("top-p drops the token that crosses the threshold, and may be left with none; that token stays", shaper("drops the last")),
    Wrong("top-p drops the token that crosses the threshold; it stays", shaper("drops all but one")),
    Wrong("top-p keeps one token more, behind the one that crosses the threshold", shaper("one more")),
    Wrong("top-p cuts between equal tokens; either all of them stay or none", shaper("by order")),
    Wrong("top-p takes nearly equal tokens for equal; strictly above is above, by however little", shaper("tolerance")),
    Wrong("it takes top-p for a threshold on each token; it is one on the sum over the likelier ones", shaper("threshold")),
    Wrong("top-p counts with the probabilities before top-k; what top-k has left is a distribution of its own", shaper("p of all")),
    Wrong("top-p counts with the probabilities before the temperature", shaper("p before temperature")),
    Wrong("it does not divide by the sum of what is left, so that the row adds up to less than 1", shaper("not divided")),
    Wrong("it sets the logits of what is cut to 0; a logit of 0 is not a probability of 0", shaper("zero logits")),
    Wrong("it takes exp of large logits, which overflows; softmax does not", shaper("overflows")),
    Wrong("it uses the settings of row 0 for all rows", shaper("first row's")),
    Wrong("it computes in bfloat16, whose probabilities have two or three digits; go to float32 first", shaper("half")),
]  # fmt: skip
WRONG = {"1.1": ROOM, "1.2": DRAW, "1.3": SHAPE, **ex01_bank_cache.WRONG}
