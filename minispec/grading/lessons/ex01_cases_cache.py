"""The cases of lesson 1, second half: rewinds, the mask of a ragged batch, the loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.ex01_cases import DOUBLE, NEARLY_ONE, shaped
from minispec.grading.lessons.toys import Reader, Rows, toy
from minispec.grading.task import Answer, Case
from minispec.sampling import draw

Text = tuple[int, ...]
WIDER = "a pass was wider than its longest row"


@cache
def after(seed: int, text: Text) -> Tensor:
    """The logits after `text`, by reading all of it: there is no cache to get wrong."""
    model = toy(seed).model
    with torch.inference_mode():
        return model(torch.tensor([text]), model.new_cache(1, len(text)))[0, -1]


def branched(seed: int, prompt: Text, rank: int, most: int, eos: int | None) -> list[int]:
    """The text that begins with the token of that rank, and goes on greedily."""
    text = [int(after(seed, prompt).argsort(descending=True)[rank])]
    while len(text) < most and text[-1] != eos:
        text.append(int(after(seed, (*prompt, *text)).argmax()))
    return text


def branch_cases() -> list[Case]:
    def case(about: str, count: int, most: int, eos: int | None = None, prompt: Text = (3, 1, 4, 1, 5)) -> Case:
        texts = [branched(2, prompt, rank, most, eos) for rank in range(count)]
        read = [len(prompt), *[1] * sum(len(text) - 1 for text in texts)]

        def run(answer: Answer) -> dict[str, Any]:
            target = Reader(2)
            found = answer(target, list(prompt), count, most, eos)
            return {"texts": found, "tokens read in each pass": target._passes}

        about = f"{about}: prompt {list(prompt)}, count {count}, max_new_tokens {most}, eos {eos}"
        return Case(about, run, {"texts": texts, "tokens read in each pass": read})

    prompt = (3, 1, 4, 1, 5)
    first, second = (branched(2, prompt, rank, 6, None) for rank in range(2))
    late = next(x for i, x in enumerate(second) if i and x not in second[:i])
    return [
        case("one token", 1, 1),
        case("one text", 1, 4),
        case("two texts of one token", 2, 1),
        case("two texts", 2, 2),
        case("three texts", 3, 6),
        case("the first token is the end of the text", 2, 4, first[0]),
        case("the end of the text inside the second", 3, 6, late),
        case("a prompt of one token", 3, 5, None, (4,)),
        case("two of the first logits are equal in half precision", 5, 2, None, (10, 7, 0)),
        case("the end-of-text token stands in the prompt, where it means nothing", 2, 4, next(x for x in prompt if x not in first[:3])),
    ]  # fmt: skip


def mask_cases() -> list[Case]:
    def look(answer: Answer, lengths: Sequence[int], counts: Sequence[int], slots: int) -> list[Any]:
        """For each real token: its position and its row of the mask."""
        time = max(counts)
        tokens = torch.tensor([[*range(n), *[-1] * (time - n)] for n in counts])
        positions, mask = answer(tokens, list(lengths), slots)
        if any(len(row) != slots for rows in mask for row in rows):
            raise ValueError
        return [[positions[row][i], mask[row][i]] for row, n in enumerate(counts) for i in range(n)]

    def seen(lengths: Sequence[int], counts: Sequence[int], slots: int) -> list[Any]:
        rows = zip(lengths, counts, strict=True)
        return [[n + i, [slot <= n + i for slot in range(slots)]] for n, count in rows for i in range(count)]

    def words(lengths: Sequence[int], counts: Sequence[int]) -> list[str]:
        about = f"lengths {list(lengths)}, new tokens {list(counts)}"
        return [f"{about}, row {row}, token {i}" for row, count in enumerate(counts) for i in range(count)]

    def case(about: str, batches: Sequence[tuple[Sequence[int], Sequence[int]]], more: int = 0) -> Case:
        sizes = [max(n + count for n, count in zip(*batch, strict=True)) + more for batch in batches]
        run = lambda answer: [x for batch, n in zip(batches, sizes, strict=True) for x in look(answer, *batch, n)]
        names = [name for batch in batches for name in words(*batch)]
        want = [x for batch, n in zip(batches, sizes, strict=True) for x in seen(*batch, n)]
        return Case(f"{about}; (position, which slots it sees)", run, want, names.__getitem__)

    pairs = itertools.product(itertools.product(range(4), repeat=2), itertools.product(range(3), repeat=2))
    every = [(lengths, counts) for lengths, counts in pairs if max(counts)]
    return [
        case("one row, nothing read yet", [([0], [3])]),
        case("one row, one token behind three", [([3], [1])]),
        case("one row, three tokens behind two", [([2], [3])]),
        case("more slots than are used", [([2], [2])], 3),
        case("two rows with caches of different lengths", [([1, 4], [1, 1])]),
        case("two rows that read different numbers of tokens", [([2, 2], [1, 3])]),
        case("a row that reads nothing", [([3, 1], [0, 2])]),
        case("every batch of two rows, lengths up to 3, up to 2 new tokens", every, 1),
    ]


def written(prompt: Text, u: Sequence[float], budget: int, eos: int | None, setting: Sequence) -> list[int]:
    """What one row writes, alone and without a cache."""
    text: list[int] = []
    while len(text) < budget and (not text or text[-1] != eos):
        law = shaped(after(0, (*prompt, *text)), *setting)
        text.append(int(draw(law, torch.tensor(u[len(text)], dtype=DOUBLE))))
    return text


def batch_cases() -> list[Case]:
    def case(about: str, prompts: list[Text], budgets: list[int], settings: list[list], eos: int | None = None,
             largest: bool = False) -> Case:  # fmt: skip
        u = torch.rand(len(prompts), max(budgets), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        u = torch.full_like(u, NEARLY_ONE) if largest else u
        rows = zip(prompts, u.tolist(), budgets, settings, strict=True)
        texts = [written(prompt, numbers, budget, eos, setting) for prompt, numbers, budget, setting in rows]
        later = [[int(i < len(text)) for text in texts] for i in range(1, max(map(len, texts)))]

        def run(answer: Answer) -> dict[str, Any]:
            target = Rows(0, len(prompts))
            found = answer(target, [list(prompt) for prompt in prompts], u, list(budgets), eos, settings)
            return {"texts": found, "tokens that each pass reads, row by row": target._passes, WIDER: target._wider}

        about = f"{about}: prompts {[list(p) for p in prompts]}, budgets {budgets}, eos {eos}, settings {settings}"
        want = {"texts": texts, "tokens that each pass reads, row by row": [list(map(len, prompts)), *later], WIDER: False}
        return Case(about, run, want)

    one, two, three = (3, 1, 4, 1, 5), (4, 2), (7, 7, 7)
    greedy, plain, sharp = [0.0, 0, 1.0], [1.0, 0, 1.0], [0.7, 5, 0.9]
    return [
        case("one row, one token", [two], [1], [greedy]),
        case("one row, greedy", [one], [4], [greedy]),
        case("one row, drawn", [one], [6], [plain]),
        case("two rows of one length", [one, (2, 7, 1, 8, 2)], [3, 3], [plain, plain]),
        case("prompts of different lengths", [one, two], [3, 3], [greedy, greedy]),
        case("different settings", [one, one], [5, 5], [sharp, plain]),
        case("different budgets", [one, two, three], [2, 5, 1], [plain, plain, plain]),
        case("the end of the text, in some rows", [one, two, three], [9, 9, 9], [plain, sharp, plain], 2),
        case("the end of the text is the first token", [one, two, three], [9, 9, 9], [greedy, sharp, plain], 5),
        case("the end-of-text token stands in a prompt, where it means nothing", [one, three], [5, 5], [plain, plain], 7),
        case("the largest number below 1", [one, three], [2, 2], [sharp, sharp], None, True),
        case("the end of the text is token 0", [one, two, three], [9, 9, 9], [plain, sharp, plain], 0),
    ]
