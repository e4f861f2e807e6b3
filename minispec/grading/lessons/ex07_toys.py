"""What answers to lesson 7 are given to work on: dice, a model with several rows, a drafter for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minispec.cache import KVCache
from minispec.grading.lessons.toys import MOST_PASSES, Scripted, toy


class Die:
    """A row's random numbers; request 0 has 0.10, 0.11, ..., request 1 has 0.20, and so on, so that one sees whose they are."""

    def __init__(self, request: int):
        self._next, self._first = 0, (request + 1) / 10

    def roll(self, n: int) -> Tensor:
        if not 0 <= int(n) < 20:
            raise ValueError(f"{int(n)} numbers were asked for")
        self._next += int(n)
        return self._first + torch.arange(self._next - int(n), self._next).double() / 100


class Rows:
    """A model and a cache with several rows. It notes the shape of each pass."""

    def __init__(self, seed: int):
        self._model = toy(seed).model
        self._cache: KVCache | None = None
        self._shapes: list[list[int]] = []

    @torch.inference_mode()
    def read(self, tokens: Any) -> Tensor:
        """The likeliest token after each of `tokens` [rows, width], -1 padded: [rows, width]; the caches grow by the tokens."""
        tokens = torch.as_tensor(tokens)
        if tokens.dim() != 2 or not tokens.numel() or tokens.is_floating_point():
            raise ValueError(f"a pass reads ids [rows, width], not a tensor of shape {list(tokens.shape)}")
        pads = tokens < 0
        if (pads[:, :-1] & ~pads[:, 1:]).any() or pads[:, 0].any() or int(tokens.max()) >= self._model.config.vocab_size:
            raise ValueError("a row is ids of the vocabulary, one or more, and then -1 as far as needed")
        if self._cache is None:
            self._cache = self._model.new_cache(len(tokens), 200)
        if len(tokens) != len(self._cache.lengths):
            raise ValueError(f"the cache has {len(self._cache.lengths)} rows, and the pass reads {len(tokens)}")
        if len(self._shapes) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} passes: does the loop ever end?")
        self._shapes.append(list(tokens.shape))
        return self._model(tokens.long(), self._cache).argmax(-1).masked_fill(pads, 0)

    def rewind(self, lengths: Sequence[int]) -> None:
        """Row i forgets all but its first lengths[i] tokens."""
        cache, lengths = self._started(), [int(n) for n in lengths]
        held = cache.lengths
        if len(lengths) != len(held) or not all(0 <= n <= most for n, most in zip(lengths, held, strict=True)):
            raise ValueError(f"the rows hold {held} tokens, so they cannot be rewound to {lengths}")
        cache.lengths = lengths

    def keep_rows(self, rows: Sequence[int]) -> None:
        """New row i is old row rows[i]."""
        cache, rows = self._started(), [int(row) for row in rows]
        held = cache.lengths
        if len(set(rows)) < len(rows) or not all(0 <= row < len(held) for row in rows):
            raise ValueError(f"there are {len(held)} rows, so {rows} cannot be kept")
        for name in ("keys", "values"):
            setattr(cache, name, getattr(cache, name)[:, rows])
        cache.lengths = [held[row] for row in rows]

    def _started(self) -> KVCache:
        if self._cache is None:
            raise ValueError("nothing was read yet, so there are no rows")
        return self._cache


class Drafters:
    """A scripted drafter for each request; one that is given another request's text guesses at random."""

    def __init__(self, wanted: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]], scripts: Sequence[str]):
        self._each = [Scripted(*given) for given in zip(wanted, prompts, scripts, strict=True)]

    def __call__(self, request: int, text: Sequence[int], count: int) -> list[int]:
        if not 0 <= int(request) < len(self._each):
            raise ValueError(f"there is no request {int(request)}")
        return self._each[int(request)](text, count)
