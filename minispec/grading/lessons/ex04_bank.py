"""Wrong answers to lesson 4, as people and published code have got it wrong. Each must fail, and be told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minispec.grading.lessons import ex04_bank_batch
from minispec.grading.lessons.ex04_cases import cut, matched
from minispec.grading.task import Wrong

# 4.1


def finder(fault: str) -> Callable[[list[int], int, str], Any]:
    def find_match(text: list[int], size: int, which: str) -> Any:
        ending = text[-size:] if fault == "short texts" else text[len(text) - size :]
        end = len(text) - size + (1 if fault == "itself" else 0)
        if fault == "no overlap":
            end = len(text) - 2 * size + 1
        if fault == "short texts":
            end = len(text) - len(ending) if len(ending) == size else len(text) - 1
            size = size if len(ending) == size else 1
            ending = text[-size:]
        same = lambda a, b: sorted(a) == sorted(b) if fault == "any order" else a == b
        if fault == "last token":
            same = lambda a, b: a[-1:] == b[-1:]
        found = [at for at in range(1 if fault == "not at 0" else 0, end) if same(text[at : at + size], ending)]
        if fault == "as words":
            words, sought = "".join(f"{x} " for x in text[:-1]), "".join(f"{x} " for x in text[-size:])
            start = words.rfind(sought) if which == "latest" else words.find(sought)
            return None if start < 0 or size >= len(text) else words[:start].count(" ") + size
        if not found:
            return {"0 for none": 0, "-1 for none": -1, "end for none": len(text)}.get(fault)
        latest = {"always latest": True, "always earliest": False, "swapped": which != "latest"}.get(
            fault, which == "latest"
        )
        at = found[-1] if latest else found[0]
        return text[at + size :] if fault == "tokens" else at if fault == "its start" else at + size

    return find_match


MATCH = [
    Wrong("the ending finds itself, and nothing follows it; the search has to leave it out", finder("itself")),
    Wrong("it returns where the match begins; wanted is where its continuation does", finder("its start")),
    Wrong("it takes the latest match always; `which` may ask for the earliest", finder("always latest")),
    Wrong("it takes the earliest match always; `which` may ask for the latest", finder("always earliest")),
    Wrong("it takes the earliest for the latest, and the other way round", finder("swapped")),
    Wrong("it misses a match that overlaps the ending; something follows that one too", finder("no overlap")),
    Wrong("it misses a match at the very beginning of the text", finder("not at 0")),
    Wrong("it compares the tokens without their order", finder("any order")),
    Wrong("it compares the ids as text: the end of 11 is taken for 1", finder("as words")),
    Wrong("it compares the last token only; all of the n-gram must agree", finder("last token")),
    Wrong("in a text shorter than the n-gram it looks for a shorter one; there is no match then", finder("short texts")),
    Wrong("it gives 0 where there is no match; 0 is a place: give None", finder("0 for none")),
    Wrong("it gives -1 where there is no match, which counts from the end in Python: give None", finder("-1 for none")),
    Wrong("it gives the end of the text where there is no match: give None", finder("end for none")),
    Wrong("it returns the tokens; wanted is the place at which they begin", finder("tokens")),
]  # fmt: skip

# 4.2


def guesser(fault: str) -> Callable[..., list[int]]:
    def guess_next(text: list[int], sizes: list[int], most: int, left: int, eos: int | None) -> list[int]:
        limit = min(most, left if fault == "all that is left" else left - 1)
        if fault == "no budget":
            limit = most
        order = sorted(sizes, reverse=fault != "shortest first")
        for size in sizes if fault == "as they come" else order:
            at = matched(text, size, "earliest" if fault == "earliest" else "latest")
            if fault == "itself" and len(text) >= size:
                at = len(text)
            if at is None:
                continue
            if fault == "whole or nothing" and len(text) - at < limit:
                return []
            copy = text[at - size if fault == "n-gram too" else at :][: max(0, limit)]
            if fault == "runs on":
                while len(copy) < limit:
                    copy.append(copy[len(copy) - (len(text) - at)])
            ends = fault != "no end" and (eos if fault == "zero is no eos" else eos is not None)
            if not ends or eos not in copy:
                return copy
            if fault == "last eos":
                return copy[: len(copy) - copy[::-1].index(eos)]
            return copy[: copy.index(eos)] if fault == "drops eos" else cut(copy, eos)
        return (text[-1:] if fault == "made up" else [0] * limit if fault == "zeros" else [])[: max(0, limit)]

    return guess_next


GUESS = [
    Wrong("it tries short n-grams first; where more tokens agree, the continuation is likelier to agree too", guesser("shortest first")),
    Wrong("it tries the sizes as they come; the longest has to be first", guesser("as they come")),
    Wrong("it takes the earliest match; wanted is the latest", guesser("earliest")),
    Wrong("the ending finds itself, so nothing is ever guessed", guesser("itself")),
    Wrong("it guesses nothing where fewer tokens follow than may be drafted; a short copy is used", guesser("whole or nothing")),
    Wrong("it copies the n-gram too; the text has that already", guesser("n-gram too")),
    Wrong("it goes on behind the end of the text with its own guesses; the copy ends there", guesser("runs on")),
    Wrong("it drafts as many tokens as are left; the target's own token takes one place", guesser("all that is left")),
    Wrong("it does not look at what is left", guesser("no budget")),
    Wrong("it guesses beyond the end-of-text token; nothing can be emitted there", guesser("no end")),
    Wrong("it leaves the end-of-text token out; that may be guessed, and ends the draft", guesser("drops eos")),
    Wrong("it cuts at the last end-of-text token; the first ends the text", guesser("last eos")),
    Wrong("it takes an end-of-text id of 0 for none: ask `eos is not None`", guesser("zero is no eos")),
    Wrong("without a match it makes a guess up; no guess costs less", guesser("made up")),
    Wrong("without a match it guesses zeros, which are tokens; an empty list is no draft", guesser("zeros")),
]  # fmt: skip

# 4.3


def grower(fault: str) -> Callable[..., None]:
    def extend_table(table: Any, text: list[int], new: list[int], sizes: list[int]) -> None:
        whole, start = [*text, *new], len(text)
        if fault == "from nothing":
            start = 1
        if fault == "new alone":
            whole, start = new, 1
        if fault == "seam":
            start = len(text) + 1
        stop = len(whole) + (1 if fault == "the end too" else 0)
        if fault == "last only":
            start = max(start, stop - 1)
        for end in range(max(1, start), stop):
            for size in [max(sizes)] if fault == "longest only" else [min(sizes)] if fault == "shortest only" else sizes:
                if size > end and fault != "short ones":
                    continue
                ngram = whole[max(0, end - size) : end]
                if fault == "earliest" and table.get(ngram) is not None:
                    continue
                place = end + len(text) if fault == "new alone" else end
                table.put(ngram, end - size if fault == "its start" else end + 1 if fault == "one late" else place)

    return extend_table


TABLE = [
    Wrong("it notes the n-gram at the end of the text, which nothing follows yet: the ending would find itself", grower("the end too")),
    Wrong("it looks at the new tokens alone; n-grams that reach back into the text are missing", grower("new alone")),
    Wrong("it misses the n-gram at the old end of the text; the first new token is its continuation", grower("seam")),
    Wrong("it notes where the n-gram begins; wanted is where its continuation does", grower("its start")),
    Wrong("its places are one too high", grower("one late")),
    Wrong("it keeps the earliest place; a later one takes its place", grower("earliest")),
    Wrong("it goes through the whole text again; what was there is in the table already", grower("from nothing")),
    Wrong("it notes the longest n-grams only; every size is looked up", grower("longest only")),
    Wrong("it notes the shortest n-grams only; every size is looked up", grower("shortest only")),
    Wrong("where the text is shorter than the n-gram it notes a shorter one", grower("short ones")),
    Wrong("it notes only what the last new token follows; each new token follows something", grower("last only")),
]  # fmt: skip
WRONG = {"4.1": MATCH, "4.2": GUESS, "4.3": TABLE, **ex04_bank_batch.WRONG}
