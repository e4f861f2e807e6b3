"""Wrong answers to lesson 2, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from minispec.grading.lessons import ex02_bank_loop
from minispec.grading.lessons.ex02_bank_loop import agreed
from minispec.grading.task import Wrong, changes, of_kind

# 2.1


def agreement(guesses: Tensor, answers: Tensor) -> Tensor:
    return (guesses == answers[:, :-1]) & (guesses >= 0)


def first_false(guesses: Tensor, answers: Tensor) -> Tensor:
    return agreement(guesses, answers).int().argmin(1) if guesses.shape[1] else answers.new_zeros(len(answers))


def zero_for_pads(guesses: Tensor, answers: Tensor) -> Tensor:
    return (guesses.clamp(min=0) == answers[:, :-1]).long().cumprod(1).sum(1)


def same_for_all(guesses: Tensor, answers: Tensor) -> Tensor:
    return agreement(guesses, answers).long().cumprod(1).sum(1).amin(0).expand(len(answers))


COUNT = [
    Wrong("it counts every guess that agrees; behind the first difference none may", lambda g, a: agreement(g, a).sum(1)),
    Wrong("it compares guess i with answer i + 1; answer i is what the target writes in the place of guess i", lambda g, a: ((g == a[:, 1:]) & (g >= 0)).long().cumprod(1).sum(1)),
    Wrong("it looks for the first difference, and finds place 0 where there is none: all accepted", first_false),
    Wrong("it takes the padding for token 0, and accepts it where the target writes 0", zero_for_pads),
    Wrong("it gives all rows the smallest count; each row has its own", same_for_all),
    Wrong("it counts the target's own token too; asked for are the accepted guesses alone", lambda g, a: agreement(g, a).long().cumprod(1).sum(1) + 1),
    Wrong("it sums differences, and two of them may cancel: compare, then multiply", lambda g, a: ((g - a[:, :-1]).cumsum(1) == 0).sum(1)),
    Wrong("it takes token 0 for padding; only -1 pads", lambda g, a: (agreement(g, a) & (g > 0)).long().cumprod(1).sum(1)),
    Wrong(of_kind("int", "float"), lambda g, a: agreement(g, a).double().cumprod(1).sum(1)),
    Wrong("it counts the guesses that were rejected", lambda g, a: (g >= 0).sum(1) - agreement(g, a).long().cumprod(1).sum(1)),
]  # fmt: skip

# 2.2


def emitter(fault: str) -> Callable[..., list[int]]:
    def emit(guesses: list[int], answers: list[int], eos: int | None, budget: int) -> list[int]:
        n = agreed(guesses, answers)
        own = answers[-1] if fault == "last answer" else answers[n]
        new = [*guesses[:n], own]
        if fault == "no own token":
            new = new[:n] or [own]
        if fault == "own token only":
            new = [own]
        if fault == "whole draft":
            new = [*guesses, answers[-1]]
        if fault == "rejected eos" and eos in guesses:
            new = [*guesses[: guesses.index(eos)], eos]
        if fault != "no budget":
            new = new[: budget - 1 if fault == "budget of drafts" and budget > 1 else budget]
        ends = eos if fault == "zero is no eos" else eos is not None
        if ends and eos in new and fault != "no end":
            at = len(new) - 1 - new[::-1].index(eos) if fault == "last eos" else new.index(eos)
            new = new[: at + (fault != "drops eos")]
        return new

    return emit


EMIT = [
    Wrong("it goes on behind the end-of-text token; nothing may follow that", emitter("no end")),
    Wrong("it drops the end-of-text token; that one is emitted, and ends the text", emitter("drops eos")),
    Wrong("it takes the last answer for the target's own token; that stands behind the accepted guesses", emitter("last answer")),
    Wrong(
        "it emits no token of the target's own after accepted guesses; the pass has computed one", emitter("no own token")
    ),
    Wrong("it emits the target's own token alone, without the accepted guesses", emitter("own token only")),
    Wrong("it emits the draft unchanged, without asking the target", emitter("whole draft")),
    Wrong("it emits more tokens than the budget allows", emitter("no budget")),
    Wrong("it emits one token less than the budget allows", emitter("budget of drafts")),
    Wrong("it ends at the end-of-text token of a guess that was rejected", emitter("rejected eos")),
    Wrong("it cuts at the last end-of-text token; the first one ends the text", emitter("last eos")),
    Wrong("it takes an end-of-text id of 0 for none: ask `eos is not None`", emitter("zero is no eos")),
]  # fmt: skip

# 2.3


def drafter(fault: str) -> Callable[..., list[int]]:
    def write_draft(small: Any, seen: list[int], text: list[int], count: int) -> list[int]:
        common = min(agreed(seen[: len(text)], text), len(text) - 1)
        if fault == "lengths only":
            common = min(len(seen), len(text) - 1)
        if fault == "reads all again":
            common = 0
        if fault == "may read nothing":
            common = agreed(seen[: len(text)], text)
        if fault == "agreeing places":
            common = min(sum(a == b for a, b in zip(seen, text, strict=False)), len(text) - 1)
        if fault == "keeps the rejected one" and common < min(len(seen), len(text) - 1):
            common += 1
        new, guesses = text[common:], []
        if fault == "no rewind":
            new = text[len(seen) :] or text[-1:]
        elif fault != "forgets to rewind":
            small.rewind(common)
        if fault == "pending only":
            new = text[-1:]
        if fault == "one by one":
            for token in new[:-1]:
                small.read([token])
            new = new[-1:]
        for _ in range(count):
            logits = small.read(new)
            guesses.append(int(logits[0 if fault == "first row" else -1].argmax()))
            new = guesses[-1:]
        if fault == "reads the last guess" and guesses:
            small.read(new)
        return guesses

    return write_draft


def cuts_seen(small: Any, seen: list[int], text: list[int], count: int) -> list[int]:
    del seen[min(agreed(seen[: len(text)], text), len(text) - 1) :]
    return drafter("")(small, seen, text, count)


DRAFT = [
    Wrong(changes("seen"), cuts_seen),
    Wrong("it never rewinds: tokens that were rejected stay in the cache, and it guesses from them", drafter("no rewind")),
    Wrong("it reads what the cache lacks, but does not rewind first: what was rejected stays in between", drafter("forgets to rewind")),
    Wrong("it looks at lengths alone; the cache may hold other tokens than the text: compare", drafter("lengths only")),
    Wrong("it reads the pending token only: after a full accept a second token is missing, and leaves a hole in the cache", drafter("pending only")),
    Wrong("it reads the whole text again; what agrees with the text may stay in the cache", drafter("reads all again")),
    Wrong("it has nothing to read where the cache holds the whole text; read the last token again, for its logits", drafter("may read nothing")),
    Wrong("it keeps what agrees behind the first difference too; from there on the cache is worthless", drafter("agreeing places")),
    Wrong("it keeps the first token that differs from the text", drafter("keeps the rejected one")),
    Wrong("it takes the logits after the first token that it read; the guess follows the last one", drafter("first row")),
    Wrong("it reads its last guess too: a pass for nothing", drafter("reads the last guess")),
    Wrong("it reads the missing tokens one by one; one pass reads them all", drafter("one by one")),
]  # fmt: skip

WRONG = {"2.1": COUNT, "2.2": EMIT, "2.3": DRAFT, **ex02_bank_loop.WRONG}
