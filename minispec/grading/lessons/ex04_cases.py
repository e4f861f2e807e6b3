"""The cases of lesson 4: matches, guesses, a table that grows, ragged batches, the length of a draft."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from minispec.grading.lessons.toys import Table
from minispec.grading.task import Answer, Case

Text = tuple[int, ...]


def texts_of(longest: int) -> list[Text]:
    """Every text over two ids, the shortest first."""
    return [text for n in range(1, longest + 1) for text in itertools.product((0, 1), repeat=n)]


def matched(text: Sequence[int], size: int, which: str) -> int | None:
    """Where the continuation of the ending begins; None if it did not stand before."""
    text = list(text)
    found = [at + size for at in range(len(text) - size) if text[at : at + size] == text[len(text) - size :]]
    return (found[-1] if which == "latest" else found[0]) if found else None


def match_cases() -> list[Case]:
    def case(about: str, text: Sequence[int], size: int, which: str) -> Case:
        about = f"{about}: text {list(text)}, size {size}, which {which!r}"
        return Case(about, lambda answer: answer(list(text), size, which), matched(text, size, which))

    every = [(text, size, which) for text in texts_of(6) for size in (1, 2, 3) for which in ("latest", "earliest")]
    return [
        case("one match", (5, 6, 7, 5), 1, "latest"),
        case("no match", (5, 6, 7), 1, "latest"),
        case("the match is at the very beginning", (5, 6, 7, 5, 6), 2, "latest"),
        case("two matches, the latest wanted", (5, 6, 1, 5, 6, 2, 5, 6), 2, "latest"),
        case("two matches, the earliest wanted", (5, 6, 1, 5, 6, 2, 5, 6), 2, "earliest"),
        case("the match overlaps the ending", (4, 4, 4), 2, "latest"),
        case("the same tokens in another order", (6, 5, 1, 5, 6), 2, "latest"),
        case("the last token matches, the one before does not", (6, 5, 1, 4, 5), 2, "latest"),
        case("ids that are no bytes, and one whose digits end like another's", (300, 11, 5, 1), 1, "latest"),
        case("the text is as long as the n-gram", (5, 6), 2, "latest"),
        case("the text is shorter than the n-gram", (5, 5), 3, "latest"),
        Case(
            "every text of up to six tokens over two ids, sizes 1 to 3",
            lambda answer: [answer(list(text), size, which) for text, size, which in every],
            [matched(*given) for given in every],
            lambda i: f"text {list(every[i][0])}, size {every[i][1]}, which {every[i][2]!r}",
        ),
    ]


def cut(copy: Sequence[int], eos: int | None) -> list[int]:
    """Up to the end-of-text token, that included."""
    copy = list(copy)
    return copy[: copy.index(eos) + 1] if eos in copy else copy


def guessed(text: Sequence[int], sizes: Sequence[int], most: int, left: int, eos: int | None) -> list[int]:
    for size in sorted(sizes, reverse=True):
        if (at := matched(text, size, "latest")) is not None:
            return cut(text[at : at + min(most, left - 1)], eos)
    return []


def guess_cases() -> list[Case]:
    def case(about: str, text: Text, most: int = 4, left: int = 9, eos: int | None = None, sizes: Text = (3, 2)) -> Case:
        given = list(text), list(sizes), most, left, eos
        about = f"{about}: text {given[0]}, sizes {given[1]}, most {most}, left {left}, eos {eos}"
        return Case(about, lambda answer: answer(*given), guessed(*given))

    both = (1, 5, 6, 7, 8, 2, 5, 6, 9, 3, 1, 5, 6)  # (1, 5, 6) stood at the front, (5, 6) once more behind it
    every = [
        (text, sizes, most, left, eos)
        for text in texts_of(5)
        for sizes, most, left, eos in (((2, 1), 3, 9, 1), ((1, 2), 3, 3, 0), ((3, 1), 2, 2, None), ((2,), 9, 9, None))
    ]
    return [
        case("a copy", (5, 6, 7, 8, 9, 1, 5, 6)),
        case("no match", (5, 6, 7, 8)),
        case("a text of one token", (5,)),
        case("the longest match first", both),
        case("the sizes come in another order", both, sizes=(2, 3)),
        case("only two tokens follow", (5, 6, 5, 6)),
        case("the latest of two matches", (5, 6, 7, 5, 6, 8, 5, 6)),
        case("fewer tokens are left than may be drafted", (5, 6, 7, 8, 9, 1, 5, 6), 4, 3),
        case("one token is left: the target's own", (5, 6, 7, 8, 9, 1, 5, 6), 4, 1),
        case("the end-of-text token stands in the copy", (5, 6, 7, 2, 9, 1, 5, 6), 4, 9, 2),
        case("the end-of-text token, twice", (5, 6, 2, 7, 2, 1, 5, 6), 4, 9, 2),
        case("the end-of-text token has id 0", (5, 6, 7, 0, 9, 1, 5, 6), 4, 9, 0),
        case("the end-of-text token comes first", (5, 6, 2, 7, 9, 1, 5, 6), 4, 9, 2),
        Case(
            "every text of up to five tokens over two ids, four settings",
            lambda answer: [answer(list(t), list(sizes), most, left, eos) for t, sizes, most, left, eos in every],
            [guessed(*given) for given in every],
            lambda i: f"text {list(every[i][0])}, sizes, most, left, eos {list(map(str, every[i][1:]))}",
        ),
    ]


def places(text: Sequence[int], sizes: Sequence[int]) -> dict[Text, int]:
    """The latest place of continuation of every n-gram that something follows."""
    return {tuple(text[end - n : end]): end for end in range(1, len(text)) for n in sizes if n <= end}


def grown(answer: Answer, chunks: Sequence[Sequence[int]], sizes: Sequence[int]) -> dict[str, Any]:
    """What is in the table after the answer was called for each chunk, and whether it wrote no more than was new."""
    table, text = Table(), []
    for chunk in chunks:
        answer(table, list(text), list(chunk), list(sizes))
        text += chunk
    new = sum(n <= end for end in range(1, len(text)) for n in sizes)
    found = [[list(ngram), place] for ngram, place in sorted(table._places.items(), key=lambda x: (len(x[0]), x))]
    return {"n-grams and places": found, "more was written than is new": table._written > new}


def table_cases() -> list[Case]:
    def wanted(chunks: Sequence[Sequence[int]], sizes: Sequence[int]) -> dict[str, Any]:
        found = places([x for chunk in chunks for x in chunk], sizes)
        ordered = [[list(ngram), place] for ngram, place in sorted(found.items(), key=lambda x: (len(x[0]), x))]
        return {"n-grams and places": ordered, "more was written than is new": False}

    def case(about: str, chunks: Sequence[Sequence[int]], sizes: Sequence[int]) -> Case:
        about = f"{about}: sizes {list(sizes)}, tokens {' then '.join(str(list(chunk)) for chunk in chunks)}"
        return Case(about, lambda answer: grown(answer, chunks, sizes), wanted(chunks, sizes))

    every = [((text[:at], text[at:]), (2, 1)) for text in texts_of(4) for at in range(len(text) + 1)]
    return [
        case("one token: nothing follows it yet", [(5,)], (1,)),
        case("two tokens", [(5, 6)], (1,)),
        case("three tokens, pairs", [(5, 6, 7)], (2,)),
        case("two sizes", [(5, 6, 7)], (2, 1)),
        case("fewer tokens than the n-gram is long", [(5, 6)], (3,)),
        case("one token comes later", [(5, 6), (7,)], (2,)),
        case("an n-gram across the seam", [(5, 6), (7, 8)], (2,)),
        case("the n-gram stands twice: the latest counts", [(5, 6, 5, 7)], (1,)),
        case("the second time comes later", [(5, 6), (5, 7)], (1,)),
        case("nothing new", [(5, 6), ()], (1,)),
        case("token by token", [(5,), (6,), (5,), (6,), (7,)], (3, 2)),
        Case(
            "every text of up to four tokens over two ids, in two pieces",
            lambda answer: [grown(answer, *given) for given in every],
            [wanted(*given) for given in every],
            lambda i: f"sizes {list(every[i][1])}, tokens {list(every[i][0][0])} then {list(every[i][0][1])}",
        ),
    ]


def batch_guessed(tables: Sequence[Table], texts: Sequence[Text], active: Sequence[int], left: Sequence[int],
                  most: int, sizes: Sequence[int], eos: int | None) -> list[list[int]]:  # fmt: skip
    drafts = []
    for request in active:
        text, found = list(texts[request]), None
        for size in sorted(sizes, reverse=True):
            if found is None and size <= len(text):
                found = tables[request]._places.get(tuple(text[len(text) - size :]))
        drafts.append([] if found is None else cut(text[found : found + min(most, left[request] - 1)], eos))
    width = max(map(len, drafts))
    return [[*draft, *[-1] * (width - len(draft))] for draft in drafts]


def batch_cases() -> list[Case]:
    one, two, three = (5, 6, 7, 8, 9, 1, 5, 6), (3, 4, 3, 4), (1, 2, 3, 4, 5)
    both, other = (1, 5, 6, 7, 8, 2, 5, 6, 9, 3, 1, 5, 6), (5, 6, 9, 8, 5, 6, 3, 5, 6)

    def case(about: str, texts: list[Text], active: list[int], left: list[int], most: int = 4, sizes: Text = (3, 2),
             eos: int | None = None, earliest: bool = False) -> Case:  # fmt: skip
        def tables() -> list[Table]:
            found = [places(text, sizes) for text in texts]
            if earliest:
                found = [{ngram: matched_first(text, ngram) for ngram in f} for text, f in zip(texts, found, strict=True)]
            return [Table(f) for f in found]

        def run(answer: Answer) -> dict[str, Any]:
            mine = tables()
            found = answer(mine, [list(text) for text in texts], active, left, most, list(sizes), eos)
            often = any(len(table._asked) > min(len(sizes), len(set(table._asked))) for table in mine)
            return {"drafts": found, "a table was asked twice for one n-gram or size": often}

        about = f"{about}: texts {[list(t) for t in texts]}, active {active}, left {left}, most {most}, sizes {list(sizes)}, eos {eos}"
        wanted = batch_guessed(tables(), texts, active, left, most, sizes, eos)
        return Case(about, run, {"drafts": wanted, "a table was asked twice for one n-gram or size": False})

    return [
        case("one row", [one], [0], [9]),
        case("one row without a match", [three], [0], [9]),
        case("two rows without a match", [three, (7,)], [0, 1], [9, 9]),
        case("two rows, drafts of different lengths", [one, two], [0, 1], [9, 9]),
        case("one row of three without a match", [one, three, two], [0, 1, 2], [9, 9, 9]),
        case("the first request has ended", [other, one], [1], [3, 9]),
        case("the middle one of three has ended", [one, three, two], [0, 2], [9, 0, 9]),
        case("the rows are in another order", [one, two, three], [2, 0], [9, 0, 9]),
        case("each row has its own rest", [one, one, one], [0, 1, 2], [3, 1, 9]),
        case("the longest match first", [both], [0], [9]),
        case("the longest match first, sizes in another order", [both], [0], [9], 4, (2, 3)),
        case("the end of the text in one of the copies", [(5, 6, 7, 2, 9, 5, 6), one], [0, 1], [9, 9], 4, (2,), 2),
        case("the end of the text has id 0", [(5, 6, 7, 0, 9, 5, 6), (4, 4)], [0, 1], [9, 9], 4, (2, 1), 0),
        case("the longest size is longer than the text", [(5, 6, 9, 6, 8, 5, 6)], [0], [9], 4, (8, 2, 1)),
        case("the tables know the earliest place", [(5, 6, 7, 5, 6, 8, 5, 6)], [0], [9], 4, (3, 2), None, True),
    ]


def matched_first(text: Text, ngram: Text) -> int:
    return next(at + len(ngram) for at in range(len(text)) if text[at : at + len(ngram)] == ngram)


def best(rounds: Sequence[Sequence[int]], cost: Sequence[float]) -> list[float]:
    found = [0, 1.0]
    for n in range(1, max((drafted for drafted, _ in rounds), default=0) + 1):
        tokens = sum(min(accepted, n) + 1 for _, accepted in rounds)
        gain = tokens * cost[1] / sum(cost[min(drafted, n) + 1] for drafted, _ in rounds)
        if gain > found[1]:
            found = [n, gain]
    return found


def length_cases() -> list[Case]:
    flat, dear, steps = [0, 2, 2, 2, 2, 2], [0, 2, 4, 6, 8, 10], [0, 2, 2.25, 2.5, 4, 6]

    def case(about: str, rounds: list[tuple[int, int]], cost: Sequence[float]) -> Case:
        given = [list(x) for x in rounds]
        about = f"{about}: rounds {given}, cost {cost}"
        return Case(about, lambda answer: answer(given, cost), best(rounds, cost))

    every = [
        (rounds, cost)
        for rounds in itertools.product([(d, a) for d in range(4) for a in range(d + 1)], repeat=2)
        for cost in ([0, 4, 4.5, 5.5, 6], [0, 4, 5, 5.25, 10], [0, 4, 7, 8, 9])
    ]
    return [
        case("one round, one guess, right", [(1, 1)], flat),
        case("one round, one guess, wrong", [(1, 0)], steps),
        case("a wide pass is free", [(4, 2)], flat),
        case("a pass over n tokens costs n passes", [(4, 4)], dear),
        case("two rounds, one without a draft", [(0, 0), (2, 2)], steps),
        case("short drafts beside long ones", [(4, 4), (1, 0), (2, 2)], steps),
        case("one long success and many failures", [(4, 4), (4, 0), (4, 0), (4, 0)], steps),
        case("no draft at all", [(0, 0), (0, 0)], steps),
        case("a wider pass is cheaper", [(3, 0), (3, 1)], [0, 2, 3, 2.5, 1.5]),
        case("two lengths gain the same", [(3, 1), (3, 1)], flat),
        case("two lengths gain little, and nearly the same", [(2, 2)], [0, 100, 199, 298.496]),
        Case(
            "every two rounds of up to three guesses, three cost curves",
            lambda answer: [answer([list(x) for x in rounds], cost) for rounds, cost in every],
            [best(rounds, cost) for rounds, cost in every],
            lambda i: f"rounds {list(map(list, every[i][0]))}, cost {every[i][1]}",
        ),
    ]
