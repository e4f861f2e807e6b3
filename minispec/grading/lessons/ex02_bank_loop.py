"""Wrong answers to the second half of lesson 2: the loop, and where texts part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from minispec.grading.task import Wrong, changes


def agreed(guesses: list[int], answers: list[int]) -> int:
    n = 0
    while n < len(guesses) and guesses[n] == answers[n]:
        n += 1
    return n


# 2.4


def loop(fault: str) -> Callable[..., list[list[int]]]:
    def speculate(target: Any, draft: Any, prompt: list[int], most: int, count: int, eos: int | None) -> list[list[int]]:
        text = list(prompt)
        emitted = [[int(target.read(prompt)[-1].argmax())]]
        text += emitted[0]
        goes_on = lambda: eos not in emitted[-1] or fault == "no end" or (fault == "first goes on" and len(emitted) == 1)
        while fault == "endless" or (sum(map(len, emitted)) < most and goes_on()):
            if fault == "prompt ends" and eos in text:
                break
            left = most - sum(map(len, emitted))
            asked = {"overdrafts": count, "overshoots": count, "cuts": count, "all that is left": min(count, left)}
            guesses = draft(text, max(0, asked.get(fault, min(count, left - 1))))
            if fault == "cuts":
                guesses = guesses[: left - 1]
            if fault == "waits for a draft" and not guesses:
                continue
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


def grows_prompt(target: Any, draft: Any, prompt: list[int], most: int, count: int, eos: int | None) -> list[list[int]]:
    found = loop("")(target, draft, prompt, most, count, eos)
    prompt += [token for new in found for token in new]
    return found


LOOP = [
    Wrong("it never rewinds: rejected guesses stay in the target's cache, and the text follows them", loop("no rewind")),
    Wrong("after a rejection the cache keeps one token too many; the pending one is not read yet", loop("keeps pending")),
    Wrong("it drafts beyond what may still be emitted: the target's own token takes one place", loop("overdrafts")),
    Wrong("it drafts as many tokens as may still be emitted; the target's own token takes one place: left - 1", loop("all that is left")),
    Wrong("it asks for more guesses than may be emitted, and cuts them; they cost the drafter passes: ask for fewer", loop("cuts")),
    Wrong("its loop does not end: compare what was emitted with max_new_tokens, and look for the end-of-text token, in every round", loop("endless")),
    Wrong("where the drafter has no guess it asks again and again; such a round reads the pending token alone", loop("waits for a draft")),
    Wrong("it goes on where the very first token is the end of the text already", loop("first goes on")),
    Wrong(changes("prompt"), grows_prompt),
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
        row = row.float() if fault == "float32" else row
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
    Wrong("it computes in float32, which rounds large logits; they are float64", parting("float32")),
    Wrong("it loses the sign of the gap, which says which token the logits prefer", parting("absolute")),
    Wrong("it subtracts the first token's logit from the second's; wanted is first less second", parting("swapped")),
    Wrong("it counts positions from 1; they begin at 0", parting("from one")),
]  # fmt: skip

WRONG = {"2.4": LOOP, "2.5": PART}
