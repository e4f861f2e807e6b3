"""Wrong answers to lesson 6, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minispec.grading.lessons.ex06_bank_draft import CHAIN, TREE
from minispec.grading.task import Wrong, changes, of_kind

# 6.1


def moved(x: Tensor, by: int, fill: int = -1, wraps: bool = False) -> Tensor:
    if wraps:
        return x.roll(-by, 1)
    found = torch.full_like(x, fill)
    found[:, : max(0, x.shape[1] - by)] = x[:, by:]
    return found


def trainer(fault: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def training_rows(tokens: Tensor, answer: Tensor, can_draft: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        fill = 0 if fault == "pads with 0" else -1
        wraps = fault == "wraps"
        read = {"no shift": step, "shift of two": step + 2, "step forgotten": 1}.get(fault, step + 1)
        inputs = moved(tokens, read, fill, wraps)
        if fault == "pads with 0":
            inputs = inputs.clamp(min=0)
        places = torch.arange(tokens.shape[1]).expand_as(tokens).masked_fill(tokens < 0, -1)
        at = {"teacher too late": step + 2, "teacher at the feature": step, "teacher of step 0": 1}.get(fault, step + 1)
        teachers = moved(places, at)
        by = {"mask of the input": step + 1, "mask of the feature": 0, "mask of step 0": 2}.get(fault, step + 2)
        guessed = moved(tokens, step + 2, -1, wraps)
        inside = moved(answer.long(), by, 1 if fault == "end counts" else 0, wraps).bool()
        there = guessed >= 0
        can = can_draft[guessed.clamp(min=0)]
        if fault == "all can be drafted":
            can = torch.ones_like(can)
        if fault == "input can be drafted":
            can = can_draft[moved(tokens, step + 1).clamp(min=0)]
        if fault == "whole text":
            inside = torch.ones_like(inside)
        if fault == "end counts":
            behind = moved(tokens, step + 1) >= 0  # the input is there, the guessed token is not
            return inputs, teachers, torch.where(there, inside & can, behind & moved(answer.long(), step + 1, 0).bool())
        counted = inside & there & can
        return inputs, teachers, counted.long() if fault == "0 and 1" else counted

    return training_rows


TRAIN = [
    Wrong("it pairs feature j with the token of the same place; the token is one further: the target has chosen it, not read it", trainer("no shift")),
    Wrong("its tokens are shifted by two; feature j goes with token j + 1 at step 0", trainer("shift of two")),
    Wrong("its tokens stay where they are from step to step; each step reads the token that the one before has guessed", trainer("step forgotten")),
    Wrong("its teacher stands one place too late; the target's law at a place speaks of the token behind that place", trainer("teacher too late")),
    Wrong("its teacher stands at the place before the token that is read; the target's law there speaks of that very token", trainer("teacher at the feature")),
    Wrong("its teacher stays where it is from step to step", trainer("teacher of step 0")),
    Wrong("it asks whether the token that is read is in the answer; what counts is the token that is guessed", trainer("mask of the input")),
    Wrong("its marks of the answer are not shifted; what counts is the token that is guessed", trainer("mask of the feature")),
    Wrong("its marks of the answer are shifted by two at every step; each further step guesses one token further", trainer("mask of step 0")),
    Wrong("it counts the last places, which have no token left to guess: they would be trained on garbage", trainer("end counts")),
    Wrong("it wraps around: behind the end it finds the beginning of the text", trainer("wraps")),
    Wrong("it counts the prompt too", trainer("whole text")),
    Wrong("it counts tokens that cannot be drafted at all", trainer("all can be drafted")),
    Wrong("it asks whether the token that is read can be drafted; what counts is the token that is guessed", trainer("input can be drafted")),
    Wrong("where no token is left to read it says 0; that is a token: say -1", trainer("pads with 0")),
    Wrong(of_kind("bool", "int"), trainer("0 and 1")),
]  # fmt: skip

# 6.2


def widener(fault: str) -> Callable[[Tensor, Tensor, int], Tensor]:
    def to_target(logits: Tensor, d2t: Tensor, vocab: int) -> Tensor:
        batch, ids = logits.shape
        columns = torch.arange(ids)
        where = columns + d2t
        if fault == "offsets are ids":
            where = d2t
        if fault == "subtracts":
            where = columns - d2t
        if fault == "adds up":
            where = columns + d2t.cumsum(0)
        if fault == "first columns":
            where = columns
        if fault == "sorted":
            where = where.sort().values
        rest = {"zeros": 0.0, "smallest": float(logits.min()), "large": -1e4}.get(fault, -float("inf"))
        wide = torch.full((batch, vocab), rest, dtype=logits.dtype)
        wide[:, where.clamp(max=vocab - 1)] = logits.softmax(-1) if fault == "softmax" else logits
        if fault == "first row":
            wide = wide[:1].expand(batch, -1)
        return wide

    return to_target


def ids_in_place(logits: Tensor, d2t: Tensor, vocab: int) -> Tensor:
    wide = widener("")(logits, d2t, vocab)
    d2t += torch.arange(len(d2t))
    return wide


WIDE = [
    Wrong("it takes d2t for ids; it holds offsets: column i stands for the token i + d2t[i]", widener("offsets are ids")),
    Wrong("it subtracts the offsets; column i stands for the token i + d2t[i]", widener("subtracts")),
    Wrong("it adds the offsets up from column to column; each one is counted from the column itself", widener("adds up")),
    Wrong("it leaves the logits in the first columns, as if they were the target's", widener("first columns")),
    Wrong("it sorts the ids; each column has its own offset, whatever the order", widener("sorted")),
    Wrong("it gives a logit of 0 to what cannot be drafted; that is no probability of 0: minus infinity is", widener("zeros")),
    Wrong("it gives the smallest logit to what cannot be drafted; only minus infinity is a probability of 0", widener("smallest")),
    Wrong("it gives a large negative logit to what cannot be drafted; minus infinity was asked for", widener("large")),
    Wrong("it returns probabilities where logits were asked for", widener("softmax")),
    Wrong("all rows get the logits of the first one", widener("first row")),
    Wrong("it returns a tensor of torch.float32; asked for is torch.float64", lambda *args: widener("")(*args).float()),
    Wrong(changes("d2t"), ids_in_place),
]  # fmt: skip

# 6.3


def unroller(fault: str) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    def unrolled_mask(time: int, step: int) -> tuple[Tensor, Tensor]:
        causal = torch.ones(time, time, dtype=torch.bool).tril()
        own = torch.eye(time, dtype=torch.bool)
        first = causal
        if fault == "whole text":
            first = torch.ones_like(causal)
        if fault == "strict":
            first = causal & ~own
        if fault == "grows":
            first = torch.ones(time, time, dtype=torch.bool).tril(step)
        if fault == "window":
            first = causal & torch.ones(time, time, dtype=torch.bool).triu(step)
        later = {"causal": causal, "nothing": own & False, "place before": torch.diag_embed(torch.ones(time - 1), -1).bool()}
        after = later.get(fault, own)
        blocks = [first, *[after] * step]
        if fault == "last only":
            blocks = [first, *[own & False] * (step - 1), *[own] * (step > 0)]
        if fault == "not itself" and step:
            blocks[-1] = own & False
        if fault == "own of all":
            blocks = [own if step else first, *[own] * step]
        mask = torch.cat(blocks, 1)
        positions = torch.cat([torch.arange(time) + s for s in range(step + 1)])
        if fault == "place by place":
            mask = torch.stack(blocks, 2).flatten(1)
        if fault == "step forgotten":
            positions = torch.arange(time).repeat(step + 1)
        if fault == "runs on":
            positions = torch.arange(time * (step + 1))
        if fault == "one more":
            positions = positions + 1
        return mask, positions

    return unrolled_mask


UNROLL = [
    Wrong("every step is causal; keys of later steps belong to one draft alone, which began at one place: only its own key", unroller("causal")),
    Wrong("later steps are not seen at all; a draft reads its own earlier guesses, and itself", unroller("nothing")),
    Wrong("of the later steps it sees the key one place before; a draft keeps its place from step to step", unroller("place before")),
    Wrong("it sees itself, but not the steps of its draft that lie between", unroller("last only")),
    Wrong("a query does not see its own key in its own step", unroller("not itself")),
    Wrong("of the first step it sees its own place alone; what was committed before is in the cache, and seen", unroller("own of all")),
    Wrong("of the first step it sees the whole text, the future too", unroller("whole text")),
    Wrong("of the first step it does not see its own place", unroller("strict")),
    Wrong("it sees more keys of the first step at every later one; beyond its place there are only guesses, no true features", unroller("grows")),
    Wrong("it sees fewer keys of the first step at every later one; the cache keeps them all", unroller("window")),
    Wrong("its keys are in the order of places; asked for is step after step", unroller("place by place")),
    Wrong("its positions stay from step to step; a guess stands one further than the one before it", unroller("step forgotten")),
    Wrong("its positions run on from step to step; step s at place i stands at i + s", unroller("runs on")),
    Wrong("its positions are one too high; place 0 of step 0 stands at 0", unroller("one more")),
]  # fmt: skip
WRONG = {"6.1": TRAIN, "6.2": WIDE, "6.3": UNROLL, "6.4": CHAIN, "6.5": TREE}
