"""Wrong answers to lesson 2, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from minispec.grading.task import Wrong

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
    Wrong("it counts the guesses that were rejected", lambda g, a: (g >= 0).sum(1) - agreement(g, a).long().cumprod(1).sum(1)),
]  # fmt: skip

# 2.2


def agreed(guesses: list[int], answers: list[int]) -> int:
    n = 0
    while n < len(guesses) and guesses[n] == answers[n]:
        n += 1
    return n


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


DRAFT = [
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

# 2.4


def loop(fault: str) -> Callable[..., list[list[int]]]:
    def speculate(target: Any, draft: Any, prompt: list[int], most: int, count: int, eos: int | None) -> list[list[int]]:
        text = list(prompt)
        emitted = [[int(target.read(prompt)[-1].argmax())]]
        text += emitted[0]
        while sum(map(len, emitted)) < most and (eos not in emitted[-1] or fault == "no end"):
            if fault == "prompt ends" and eos in text:
                break
            left = most - sum(map(len, emitted))
            guesses = draft(text, count if fault in ("overdrafts", "overshoots") else min(count, left - 1))
            if fault == "whole text":
                target.rewind(0)
                answers = target.read([*text, *guesses]).argmax(-1).tolist()[len(text) - 1 :]
            elif fault == "pending forgotten" and guesses:
                answers = [guesses[0], *target.read(guesses).argmax(-1).tolist()]
            else:
                answers = target.read([text[-1], *guesses]).argmax(-1).tolist()
            n = agreed(guesses, answers)
            if fault == "first unverified" and guesses and not n:
                n = 1
            new = [*guesses[:n], answers[-1] if fault == "last answer" else answers[n]]
            if fault == "no bonus" and n == len(guesses) and n:
                new = new[:-1]
            if fault == "one a round":
                new = answers[:1]
            if fault != "overshoots":
                new = new[:left]
            if eos in new and fault not in ("no end", "end of round"):
                new = new[: new.index(eos) + 1]
            emitted.append(new)
            text += new
            if fault == "keeps pending":
                target.rewind(min(len(text), len(text) - 1 + len(guesses) - n))
            elif fault != "no rewind":
                target.rewind(len(text) - 1)
        return emitted

    return speculate


LOOP = [
    Wrong("it never rewinds: rejected guesses stay in the target's cache, and the text follows them", loop("no rewind")),
    Wrong("after a rejection the cache keeps one token too many; the pending one is not read yet", loop("keeps pending")),
    Wrong("it drafts beyond what may still be emitted: the target's own token takes one place", loop("overdrafts")),
    Wrong("it emits more than max_new_tokens", loop("overshoots")),
    Wrong("it goes on behind the end-of-text token", loop("no end")),
    Wrong("it looks for the end-of-text token in the prompt too; only an emitted one ends the text", loop("prompt ends")),
    Wrong("it stops at the end-of-text token, but emits what was accepted behind it", loop("end of round")),
    Wrong("it takes the last answer for the correction; that stands behind the accepted guesses", loop("last answer")),
    Wrong("it loses the bonus token where every guess was accepted", loop("no bonus")),
    Wrong("it emits one token a round, whatever was accepted", loop("one a round")),
    Wrong("it reads the whole text in every pass; the cache holds it already", loop("whole text")),
    Wrong("it commits the first guess without asking the target", loop("first unverified")),
    Wrong(
        "it does not read the pending token, and takes the first guess for the target's answer", loop("pending forgotten")
    ),
]  # fmt: skip

# 2.5


def parting(fault: str) -> Callable[..., Any]:
    def find(first: list[int], second: list[int], logits: Tensor) -> Any:
        shorter = min(len(first), len(second))
        apart = [i for i in range(shorter) if first[i] != second[i]]
        if not apart:
            return (shorter, 0.0) if fault == "length" and len(first) != len(second) else None
        at = apart[-1] if fault == "last" else apart[0]
        row = logits[
            max(0, at - 1) if fault == "row before" else min(at + 1, len(logits) - 1) if fault == "row after" else at
        ]
        if fault == "probabilities":
            row = row.softmax(-1)
        gap = float(row[first[at]] - row[second[at]])
        if fault == "top two":
            best = row.topk(2).values
            gap = float(best[0] - best[1])
        if fault == "absolute":
            gap = abs(gap)
        if fault == "swapped":
            gap = -gap
        return (at + 1 if fault == "from one" else at, gap)

    return find


PART = [
    Wrong("it takes the logits of the row before; row i is what token i was chosen from", parting("row before")),
    Wrong("it takes the logits of the row after; row i is what token i was chosen from", parting("row after")),
    Wrong(
        "it takes the gap between the two likeliest tokens; wanted is the one between the two written", parting("top two")
    ),
    Wrong(
        "it finds the last difference; behind the first one the texts have nothing to do with each other", parting("last")
    ),
    Wrong("it takes a text that ends earlier for one that parts", parting("length")),
    Wrong("it compares probabilities; wanted is the gap of the logits", parting("probabilities")),
    Wrong("it loses the sign of the gap, which says which token the logits prefer", parting("absolute")),
    Wrong("it subtracts the first token's logit from the second's; wanted is first less second", parting("swapped")),
    Wrong("it counts positions from 1; they begin at 0", parting("from one")),
]  # fmt: skip
WRONG = {"2.1": COUNT, "2.2": EMIT, "2.3": DRAFT, "2.4": LOOP, "2.5": PART}
