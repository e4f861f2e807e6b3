"""The cases of lesson 1: room for caches, drawing at given numbers, settings row by row, rewinds, ragged batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.ex03_cases import around
from minispec.grading.lessons.toys import Reader, Rows, toy
from minispec.grading.task import Answer, Case
from minispec.sampling import draw

DOUBLE = torch.float64  # numbers so close to a breakpoint are not told apart in float32
Text = tuple[int, ...]
NEARLY_ONE = 1 - 2**-53


def room_cases() -> list[Case]:
    def case(about: str, *given: int) -> Case:
        memory, weights, layers, width, heads, kv_heads, bytes_each, tokens = given
        row = 2 * layers * kv_heads * (width // heads) * bytes_each * tokens
        names = ("memory", "weights", "layers", "width", "heads", "kv_heads", "bytes_each", "tokens")
        about = f"{about}: {', '.join(f'{name} {x}' for name, x in zip(names, given, strict=True))}"
        return Case(about, lambda answer: answer(*given), max(0, memory - weights) // row)

    return [
        case("one layer, one head", 48, 0, 1, 2, 1, 1, 1, 3),
        case("a byte less than four texts need", 47, 0, 1, 2, 1, 1, 1, 3),
        case("the weights leave room for one", 48, 30, 1, 2, 1, 1, 1, 3),
        case("two layers, two bytes a number", 480, 0, 2, 2, 1, 1, 2, 3),
        case("two heads, each with its own keys", 480, 0, 1, 8, 2, 2, 1, 3),
        case("four heads share one key head", 480, 0, 1, 8, 4, 1, 1, 3),
        case("the weights alone do not fit", 100, 170, 1, 2, 1, 1, 1, 3),
        case("SmolLM2-135M in bfloat16", 1_000_000_000, 270_000_000, 30, 576, 9, 3, 2, 2048),
        case("Llama 3.1 8B on a GPU", 80_000_000_000, 16_100_000_000, 32, 4096, 32, 8, 2, 8192),
    ]


def draw_cases() -> list[Case]:
    def case(about: str, laws: Sequence[Sequence[float]], us: Sequence[float]) -> Case:
        p, u = torch.tensor(laws, dtype=DOUBLE), torch.tensor(us, dtype=DOUBLE)
        rows = (lambda i: f"p {list(laws[i])}, u {us[i]!r}") if len(us) > 1 else None
        about = about if rows else f"{about}: p {laws[0]}, u {us[0]!r}"
        return Case(about, lambda answer: answer(p, u), draw(p, u), rows)

    tenths = [0.1] * 10
    laws = [(0.2, 0.5, 0.3), (0.0, 0.6, 0.4), (0.5, 0.0, 0.5), (0.7, 0.3, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)]
    laws += [(0.1, 0.2, 0.1), (1.0, 2.0, 1.0), (0.0, 1.5, 0.0), (1e-13, 1.0, 0.0)]
    every = [(law, u) for law in laws for u in around([sum(law[: i + 1]) / sum(law) for i in range(3)])]
    return [
        case("in the middle of a piece", [(0.2, 0.5, 0.3)], [0.4]),
        case("u is 0", [(0.2, 0.5, 0.3)], [0.0]),
        case("u is 0, and the first token has p = 0", [(0.0, 0.6, 0.4)], [0.0]),
        case("u is exactly where the second piece begins", [(0.5, 0.5)], [0.5]),
        case("u is exactly where a token with p = 0 stands", [(0.5, 0.0, 0.5)], [0.5]),
        case("the sums, rounded, end below 1, and u above them", [tenths], [NEARLY_ONE]),
        case("the same, with tokens of p = 0 behind", [[*tenths, 0.0, 0.0]], [NEARLY_ONE]),
        case("a last piece that is hardly there", [(1.0, 1e-10)], [NEARLY_ONE]),
        case("p adds up to less than 1", [(0.2, 0.1, 0.1)], [0.9]),
        case("p adds up to more than 1", [(1.0, 2.0, 1.0)], [0.5]),
        case("every piece of many laws, close to both its ends", *map(list, zip(*every, strict=True))),
    ]


def shaped(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Temperature, top-k, top-p as the task defines them, ties included: float64 [vocab]."""
    x = logits.double()
    if temperature == 0:
        return torch.nn.functional.one_hot(x.argmax(), len(x)).double()
    x = (x - x.max()) / temperature
    if 0 < top_k < len(x):
        x = x.masked_fill(x < x.topk(top_k).values[-1], -math.inf)
    p = x.softmax(0)
    if top_p < 1:
        likelier = torch.stack([p[p > p[i]].sum() for i in range(len(p))])
        p = p.masked_fill(likelier >= top_p, 0)
    return p / p.sum()


def shape_cases() -> list[Case]:
    logs = lambda law: tuple(math.log(x) for x in law)

    def case(about: str, rows: Sequence[tuple[Any, list]], dtype: torch.dtype = torch.float64) -> Case:
        logits, settings = torch.tensor([row for row, _ in rows], dtype=DOUBLE).to(dtype), [list(s) for _, s in rows]
        want = [shaped(row, *s) for row, s in zip(logits, settings, strict=True)]
        words = lambda i: f"logits {[round(x, 3) for x in logits[i].tolist()]}, settings {settings[i]}"
        about = about if len(rows) > 1 else f"{about}: {words(0)}"
        return Case(about, lambda answer: answer(logits, settings), want, words if len(rows) > 1 else None)

    law, tied, flat = logs((0.2, 0.4, 0.1, 0.3)), logs((0.2, 0.4, 0.2, 0.2)), logs((0.25,) * 4)
    every = [
        (x, [t, k, p]) for x in (law, tied) for t in (0.0, 0.5, 2.0) for k in (0, 1, 2, 3, 9) for p in (0.35, 0.85, 1.0)
    ]
    rounded = (3.1, 2.7, -1.3, 2.9, 0.2, 1.7)
    return [
        case("softmax", [(law, [1.0, 0, 1.0])]),
        case("a temperature", [(law, [0.5, 0, 1.0])]),
        case("a temperature close to 0", [((0.0, 1e-6, -1e-6), [1e-7, 0, 1.0])]),
        case("temperature 0", [(law, [0.0, 0, 1.0])]),
        case("temperature 0, and two tokens are the likeliest", [((1.0, 3.0, 0.5, 3.0), [0.0, 0, 1.0])]),
        case("top-k", [(law, [1.0, 2, 1.0])]),
        case("top-k with more than there are", [(law, [1.0, 9, 1.0])]),
        case("top-k, and the last that stays has equals", [(tied, [1.0, 2, 1.0])]),
        case("top-p", [(law, [1.0, 0, 0.5])]),
        case("a top-p below the likeliest token's probability", [(law, [1.0, 0, 0.01])]),
        case("top-p, and the last that stays has equals", [(tied, [1.0, 0, 0.5])]),
        case("top-p, and all are equal", [(flat, [1.0, 0, 0.3])]),
        case("top-p of what top-k has left", [(law, [1.0, 2, 0.55])]),
        case("top-p at a temperature", [(law, [2.0, 0, 0.6])]),
        case("logits whose exponentials overflow", [((900.0, 899.0, -900.0, 898.5), [0.5, 3, 0.95])]),
        case("two rows, each with its own settings", [(law, [1.0, 0, 1.0]), (law, [0.5, 2, 1.0])]),
        case("top-p on both sides of every breakpoint", [(law, [1.0, 0, p + x]) for p in (0.4, 0.7, 0.9) for x in (-1e-5, 1e-5)]),
        case("many settings in one batch", every),
        case("logits in bfloat16", [(rounded, [0.7, 0, 1.0]), (rounded, [1.0, 4, 0.8])], torch.bfloat16),
    ]  # fmt: skip


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
        case("the end-of-text token stands in the prompt, where it means nothing", 2, 4, next(x for x in prompt if x not in first[:3])),
    ]  # fmt: skip


def mask_cases() -> list[Case]:
    def look(answer: Answer, lengths: Sequence[int], counts: Sequence[int], slots: int) -> list[Any]:
        """For each real token: its position and the slots that it sees."""
        time = max(counts)
        tokens = torch.tensor([[*range(n), *[-1] * (time - n)] for n in counts])
        positions, mask = answer(tokens, list(lengths), slots)
        if any(len(row) != slots for rows in mask for row in rows):
            raise ValueError
        return [
            [int(positions[row][i]), [slot for slot in range(slots) if mask[row][i][slot]]]
            for row, n in enumerate(counts)
            for i in range(n)
        ]

    def seen(lengths: Sequence[int], counts: Sequence[int]) -> list[Any]:
        return [[n + i, list(range(n + i + 1))] for n, count in zip(lengths, counts, strict=True) for i in range(count)]

    def words(lengths: Sequence[int], counts: Sequence[int]) -> list[str]:
        about = f"lengths {list(lengths)}, new tokens {list(counts)}"
        return [f"{about}, row {row}, token {i}" for row, count in enumerate(counts) for i in range(count)]

    def case(about: str, batches: Sequence[tuple[Sequence[int], Sequence[int]]], more: int = 0) -> Case:
        sizes = [max(n + count for n, count in zip(*batch, strict=True)) + more for batch in batches]
        run = lambda answer: [x for batch, n in zip(batches, sizes, strict=True) for x in look(answer, *batch, n)]
        names = [name for batch in batches for name in words(*batch)]
        want = [x for batch in batches for x in seen(*batch)]
        return Case(f"{about}; (position, slots that it sees)", run, want, names.__getitem__)

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
    def case(about: str, prompts: list[Text], budgets: list[int], settings: list[list], eos: int | None = None) -> Case:
        u = torch.rand(len(prompts), max(budgets), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        rows = zip(prompts, u.tolist(), budgets, settings, strict=True)
        texts = [written(prompt, numbers, budget, eos, setting) for prompt, numbers, budget, setting in rows]
        later = [[int(i < len(text)) for text in texts] for i in range(1, max(map(len, texts)))]

        def run(answer: Answer) -> dict[str, Any]:
            target = Rows(0, len(prompts))
            found = answer(target, [list(prompt) for prompt in prompts], u, list(budgets), eos, settings)
            return {"texts": found, "tokens that each pass reads, row by row": target._passes}

        about = f"{about}: prompts {[list(p) for p in prompts]}, budgets {budgets}, eos {eos}, settings {settings}"
        want = {"texts": texts, "tokens that each pass reads, row by row": [list(map(len, prompts)), *later]}
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
        case("the end of the text is token 0", [one, two, three], [9, 9, 9], [plain, sharp, plain], 0),
    ]
