"""What answers to lesson 7 are given to work on: dice, a model with several rows, a drafter for each request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.toys import Scripted, toy

MOST_PASSES = 30  # no batch of the cases needs half as many


class Die:
    """A row's random numbers; request 0 has 0.10, 0.11, ..., request 1 has 0.20, and so on, so that one sees whose they are."""

    def __init__(self, request: int):
        self._next, self._first = 0, (request + 1) / 10

    def roll(self, n: int) -> Tensor:
        if not 0 <= int(n) < 20:
            raise ValueError(f"{int(n)} numbers were asked for")
        self._next += int(n)
        return self._first + torch.arange(self._next - int(n), self._next).double() / 100


@cache
def likeliest(seed: int, text: tuple[int, ...]) -> list[int]:
    """The likeliest token after each token of `text`, read as a whole; remembered, as all answers are given the same texts."""
    model = toy(seed).model
    with torch.inference_mode():
        return model(torch.tensor([text]), model.new_cache(1, len(text)))[0].argmax(-1).tolist()


class Rows:
    """A model and a cache with several rows. It notes the shape of each pass."""

    def __init__(self, seed: int):
        self._seed = seed
        self._held: list[list[int]] = []
        self._shapes: list[list[int]] = []

    def read(self, tokens: Any) -> Tensor:
        """The likeliest token after each of `tokens` [rows, width], -1 padded: [rows, width]; the caches grow by the tokens."""
        tokens = torch.as_tensor(tokens)
        if tokens.dim() != 2 or not tokens.numel() or tokens.is_floating_point():
            raise ValueError(f"a pass reads ids [rows, width], not a tensor of shape {list(tokens.shape)}")
        pads = tokens < 0
        if (
            (pads[:, :-1] & ~pads[:, 1:]).any()
            or pads[:, 0].any()
            or int(tokens.max()) >= toy(self._seed).model.config.vocab_size
        ):
            raise ValueError("a row is ids of the vocabulary, one or more, and then -1 as far as needed")
        if not self._shapes:
            self._held = [[] for _ in tokens]
        if len(tokens) != len(self._held):
            raise ValueError(f"the cache has {len(self._held)} rows, and the pass reads {len(tokens)}")
        if len(self._shapes) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} passes: does the loop ever end?")
        self._shapes.append(list(tokens.shape))
        answers = torch.zeros_like(tokens)  # what stands in the place of padding means nothing
        for row, new in enumerate(tokens.tolist()):
            new = [x for x in new if x >= 0]
            self._held[row] = [*self._held[row], *new]
            answers[row, : len(new)] = torch.tensor(likeliest(self._seed, tuple(self._held[row]))[-len(new) :])
        return answers

    def rewind(self, lengths: Sequence[int]) -> None:
        """Row i forgets all but its first lengths[i] tokens."""
        held, lengths = [len(row) for row in self._held], [int(n) for n in lengths]
        if len(lengths) != len(held) or not all(0 <= n <= most for n, most in zip(lengths, held, strict=True)):
            raise ValueError(f"the rows hold {held} tokens, so they cannot be rewound to {lengths}")
        self._held = [row[:n] for row, n in zip(self._held, lengths, strict=True)]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """New row i is old row rows[i]."""
        rows = [int(row) for row in rows]
        if len(set(rows)) < len(rows) or not all(0 <= row < len(self._held) for row in rows):
            raise ValueError(f"there are {len(self._held)} rows, so {rows} cannot be kept")
        self._held = [self._held[row] for row in rows]


class Drafters:
    """A scripted drafter for each request; one that is given another request's text guesses at random."""

    def __init__(self, wanted: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]], scripts: Sequence[str]):
        self._each = [Scripted(*given) for given in zip(wanted, prompts, scripts, strict=True)]

    def __call__(self, request: int, text: Sequence[int], count: int) -> list[int]:
        if not 0 <= int(request) < len(self._each):
            raise ValueError(f"there is no request {int(request)}")
        return self._each[int(request)](text, count)

    def _asked_too_much(self, most: int, count: int) -> bool:
        return any(each._asked_too_much(most, count) for each in self._each)
