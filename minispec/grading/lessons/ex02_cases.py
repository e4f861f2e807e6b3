"""The cases of lesson 2: counting what is accepted, what a round emits, a drafter's cache, the loop, ties."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from minispec.grading.lessons.toys import Reader, Scripted, continuation
from minispec.grading.task import Answer, Case

PROMPT = (3, 1, 4, 1, 5)
ASKED = "the drafter was asked for more than may be emitted"


def accepted(guesses: Sequence[int], answers: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(guesses, answers, strict=False)) if a != b), len(guesses))


def count_cases() -> list[Case]:
    def case(guesses: list[list[int]], answers: list[list[int]], about: str) -> Case:
        given = torch.tensor(guesses).view(len(answers), -1), torch.tensor(answers)
        run = lambda answer: answer(*given)
        want = [accepted([x for x in g if x >= 0], a) for g, a in zip(guesses, answers, strict=True)]
        one = f"guesses {guesses}, answers {answers}" if len(answers) < 4 else ""
        rows = None if one else lambda i: f"guesses {guesses[i]}, answers {answers[i]}"
        return Case(f"{about}: {one}" if one else about, run, want, rows, given if one else None)

    every: list[tuple[list[int], list[int]]] = []
    for n in (1, 2, 3):
        for drafted, answers in itertools.product(itertools.product((0, 1), repeat=n), itertools.product((0, 1), repeat=4)):
            every.append(([*drafted, *[-1] * (3 - n)], list(answers)))
    return [
        case([[5]], [[6, 5]], "one guess, rejected"),
        case([[5]], [[5, 6]], "one guess, accepted"),
        case([[5, 7]], [[5, 7, 9]], "both accepted"),
        case([[5, 7]], [[6, 7, 9]], "the second agrees, but follows a wrong one"),
        case([[7, 9]], [[5, 7, 9]], "right tokens, one place too early"),
        case([[5, -1]], [[5, 0, 3]], "a short draft, padded with -1"),
        case([[-1, -1]], [[5, 0, 3]], "no draft"),
        case([[], []], [[5], [6]], "a batch without drafts: no columns at all"),
        case([[5, 7], [5, 7]], [[5, 7, 1], [6, 7, 1]], "two rows accept different numbers"),
        case([g for g, _ in every], [a for _, a in every], "every draft of up to three tokens over two ids, in one batch"),
    ]


def emitted(guesses: Sequence[int], answers: Sequence[int], eos: int | None, budget: int) -> list[int]:
    n = accepted(guesses, answers)
    whole = [*guesses[:n], answers[n]][:budget]
    return whole[: whole.index(eos) + 1] if eos in whole else whole


def emit_cases() -> list[Case]:
    def case(guesses: Sequence[int], answers: Sequence[int], eos: int | None, budget: int) -> Case:
        given = list(guesses), list(answers), eos, budget
        about = f"guesses {given[0]}, answers {given[1]}, eos {eos}, budget {budget}"
        return Case(about, lambda answer: answer(*given), emitted(*given), given=given)

    small = [((), (7,), None, 3), ((), (7,), 7, 3), ((5,), (5, 7), None, 3), ((5,), (6, 7), None, 3), ((5,), (6, 7), 5, 3)]
    small += [((5, 7), (5, 7, 9), 5, 3), ((0, 7), (0, 7, 9), 0, 3), ((5, 7), (5, 7, 9), None, 2), ((5,), (5, 5), 5, 9)]
    every = [
        (guesses, answers, eos, budget)
        for n in (1, 2)
        for guesses in itertools.product((0, 1), repeat=n)
        for answers in itertools.product((0, 1), repeat=n + 1)
        for eos in (None, 0, 1)
        for budget in (1, 2, 3)
    ]
    longer = [
        ((2, 3, 4, 5), (2, 3, 4, 5, 6), 4, 9),
        ((2, 3, 4, 5), (2, 3, 9, 5, 6), 5, 9),
        ((2, 4, 4, 5), (2, 4, 4, 5, 6), 4, 4),
    ]
    return [case(*given) for given in [*small, *every, *longer]]


def draft_cases() -> list[Case]:
    text = (3, 1, 4, 1, 5, 9, 2, 6)

    def case(about: str, seen: Sequence[int], count: int, text: Sequence[int] = text) -> Case:
        common = min(accepted(seen, text) if len(seen) <= len(text) else accepted(text, seen), len(text) - 1)
        passes = [len(text) - common, *[1] * (count - 1)] if count else []

        def run(answer: Answer) -> dict[str, Any]:
            small = Reader(3, seen)
            return {"guesses": answer(small, list(seen), list(text), count), "tokens read in each pass": small._passes}

        want = {"guesses": continuation(3, tuple(text), count), "tokens read in each pass": passes}
        about = f"{about}: it has read {list(seen)}, the text is {list(text)}, {count} guesses wanted"
        return Case(about, run, want)

    return [
        case("nothing was read yet", (), 2),
        case("all but the pending token was read", text[:-1], 2),
        case("one guess", text[:-1], 1),
        case("no guess is wanted", text[:-1], 0),
        case("after a full accept, two tokens are missing", text[:-2], 3),
        case("the last two tokens that it read were rejected", (*text[:-2], 7, 7), 3),
        case("the rejected draft was longer than what the text gained", (*text[:-3], 8, 8, 8, 8), 2),
        case("a rejected token has the place of the pending one", (*text[:-1], 0), 2),
        case("it has read the pending token already", text, 2),
        case("it is ahead of the text: its guesses were right, but the text was cut", (*text, 2, 2), 2),
        case("another text altogether", (9, 9, 9), 2),
        case("what it read behind a rejected token is in the text too, by chance", (*text[:-4], 8, *text[-3:-1]), 2),
        case("a text of one token", (), 3, (4,)),
    ]


def loop_cases() -> list[Case]:
    def case(about: str, script: str, most: int, count: int, eos: int | None = None, prompt: Sequence[int] = PROMPT) -> Case:
        wanted = continuation(0, tuple(prompt), most)
        drafter = Scripted(wanted, prompt, script)

        def run(answer: Answer) -> dict[str, Any]:
            target, mine = Reader(0), Scripted(wanted, prompt, script)
            tokens = answer(target, mine, list(prompt), most, count, eos)
            found = {"emitted by each pass": tokens, "tokens read in each pass": target._passes}
            return {**found, ASKED: mine._asked_too_much(most, count)}

        texts, read = [wanted[:1]], [len(prompt)]
        while (done := sum(map(len, texts))) < most and eos not in texts[-1]:
            guesses = drafter([*prompt, *wanted[:done]], min(count, most - done - 1))
            n = accepted(guesses, wanted[done:])
            new = wanted[done : done + n + 1]
            texts.append(new[: new.index(eos) + 1] if eos in new else new)
            read.append(1 + len(guesses))
        about = f"{about}: max_new_tokens {most}, count {count}, eos {eos}"
        return Case(about, run, {"emitted by each pass": texts, "tokens read in each pass": read, ASKED: False})

    first = continuation(0, PROMPT, 12)
    late = next(x for i, x in enumerate(first) if i >= 3 and x not in first[:i])  # an EOS that stands inside a draft
    return [
        case("one token only", "rr", 1, 2),
        case("the drafter never guesses anything", "", 4, 2),
        case("every guess is wrong", "ww", 5, 2),
        case("every guess is right", "rr", 7, 2),
        case("right, then wrong", "rw", 6, 2),
        case("wrong, then right: the second is worthless", "wr", 6, 2),
        case("a drafter that returns fewer guesses than it may", "r", 8, 4),
        case("the budget ends inside a draft", "rrrr", 8, 4),
        case("a draft may be as long as what is left, less one", "rrrrrr", 5, 6),
        case("the first token is the end of the text", "rr", 6, 2, first[0]),
        case("the end of the text inside a draft", "rrrrrr", 12, 6, late),
        case("the end of the text is the correction", "rw", 12, 2, late),
        case("a prompt of one token", "rrw", 9, 3, None, (4,)),
        case(
            "the end-of-text token stands in the prompt, where it means nothing",
            "rw",
            6,
            2,
            next(x for x in PROMPT if x not in first),
        ),
    ]


def parting_cases() -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 8, generator=generator, dtype=torch.float64) * 3

    def case(about: str, first: list[int], second: list[int], rows: int = 5, logits: torch.Tensor = logits) -> Case:
        at = accepted(first, second)
        gap = None
        if at < min(len(first), len(second)):
            gap = [at, float(logits[at, first[at]] - logits[at, second[at]])]
        about = f"{about}: first {first}, second {second}"
        given = first, second, logits[:rows]
        return Case(about, lambda answer: answer(*given), gap, given=given if first else None)

    return [
        case("the same text", [5, 6, 7], [5, 6, 7]),
        case("they part at once", [5, 6, 7], [6, 6, 7]),
        case("they part in the middle", [5, 6, 7], [5, 1, 7]),
        case("they part at the end", [5, 6, 7], [5, 6, 2], 3),
        case("they part twice", [5, 6, 7, 1], [5, 2, 7, 3]),
        case("one ends earlier", [5, 6, 7], [5, 6]),
        case("the other ends earlier", [5, 6], [5, 6, 7, 7], 2),
        case("they part, and one ends earlier", [5, 6, 7, 2, 2], [5, 3]),
        case("the second text's token is the likelier one", [5, int(logits[1].argmin())], [5, int(logits[1].argmax())]),
        case("both tokens are far from the likeliest", [int(logits[0].argsort()[0])], [int(logits[0].argsort()[1])]),
        case(
            "the logits are large, and hardly apart",
            [5, 6],
            [5, 7],
            2,
            4000 + torch.arange(16).view(2, 8) * torch.tensor(1e-4).double(),
        ),
        case("no tokens", [], []),
    ]
