"""What answers are given to work on: a tiny model with its cache, and drafters that are right, wrong, or short by design."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from minispec import hub

MOST_PASSES = 60  # three times as many as any case needs; a loop that does not end is stopped here


@cache
def toy(seed: int, vocab: int = 11) -> hub.LanguageModel:
    return hub.toy(vocab_size=vocab, seed=seed)


@cache
def continuation(seed: int, text: tuple[int, ...], count: int) -> list[int]:
    """`count` greedy tokens after `text`, by reading everything again for each: there is no cache to get wrong."""
    model, ids = toy(seed).model, list(text)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]), model.new_cache(1, len(ids)))[0, -1].argmax()))
    return ids[len(text) :]


class Reader:
    """A model and its cache. It notes how many tokens each pass reads."""

    def __init__(self, seed: int, seen: Sequence[int] = ()):
        self._model = toy(seed).model
        self._cache = self._model.new_cache(1, 200)
        self._seen: list[int] = []
        if seen:
            self.read(seen)
        self._passes: list[int] = []

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], positions: Sequence[int] | None = None) -> Tensor:
        """Logits [tokens, vocab]; the cache grows by the tokens. `positions`: where each stands; default: behind the last."""
        ids = [int(x) for x in (tokens.tolist() if isinstance(tokens, Tensor) else tokens)]
        if not ids or not all(0 <= x < self._model.config.vocab_size for x in ids):
            raise ValueError(f"a pass must read one token or more, with ids of the vocabulary, not {ids}")
        if self._seen and len(self._passes) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} passes: does the loop ever end?")
        self._passes = [*getattr(self, "_passes", []), len(ids)]
        self._seen = [*self._seen, *ids]
        at = None if positions is None else torch.as_tensor(positions).view(1, len(ids))
        return self._model(torch.tensor([ids]), self._cache, at)[0]

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= int(length) <= len(self._seen):
            raise ValueError(f"the cache holds {len(self._seen)} tokens, so it cannot be rewound to {int(length)}")
        self._seen = self._seen[: int(length)]
        self._cache.lengths = [int(length)]


class Rows:
    """A model and a cache of several rows. It notes how many tokens each pass reads in each row."""

    def __init__(self, seed: int, rows: int):
        self._model = toy(seed).model
        self._cache = self._model.new_cache(rows, 200)
        self._passes: list[list[int]] = []
        self._wider = False  # was a pass wider than its longest row?

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> Tensor:
        """Logits [rows, time, vocab] for `tokens` [rows, time], padded with -1 on the right; the caches grow by the tokens."""
        tokens = torch.as_tensor(tokens).long().view(len(self._cache.lengths), -1)
        counts = (tokens >= 0).sum(1)
        if not counts.sum() or ((tokens >= 0) != (torch.arange(tokens.shape[1]) < counts[:, None])).any():
            raise ValueError("a pass must read one token or more; and -1, the padding, stands on the right")
        if tokens.max() >= self._model.config.vocab_size:
            raise ValueError(f"there is no token {int(tokens.max())}")
        if len(self._passes) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} passes: does the loop ever end?")
        self._passes.append(counts.tolist())
        self._wider |= tokens.shape[1] > int(counts.max())
        return self._model(tokens, self._cache)


class Table:
    """Where the continuation of an n-gram begins. It notes what it is asked, and how often it is written."""

    def __init__(self, places: dict[tuple[int, ...], int] | None = None):
        self._places, self._asked, self._written = dict(places or {}), [], 0

    def get(self, ngram: Sequence[int]) -> int | None:
        """The place noted for `ngram`; None if there is none."""
        self._asked = [*self._asked, tuple(int(x) for x in ngram)]
        return self._places.get(self._asked[-1])

    def put(self, ngram: Sequence[int], place: int) -> None:
        """Note `place` for `ngram`, in place of what was noted before."""
        self._written += 1
        self._places[tuple(int(x) for x in ngram)] = int(place)


class Scripted:
    """A drafter that knows what the target will write, and is right, wrong or short by design.

    `script`: a letter a guess, from the start of the draft: r right, w wrong; drafts are no longer than it.
    """

    def __init__(self, wanted: Sequence[int], prompt: Sequence[int], script: str, vocab: int = 11):
        self._whole, self._script, self._vocab = [*prompt, *wanted], script, vocab
        self._start, self._asked = len(prompt), []  # how long each text was, and how many guesses were asked for

    def __call__(self, text: Sequence[int], count: int) -> list[int]:
        text = [int(x) for x in text]
        if int(count) < 0:
            raise ValueError(f"a draft of {int(count)} tokens was asked for")
        if len(self._asked) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} drafts were asked for: does the loop ever end?")
        self._asked = [*self._asked, (len(text), int(count))]
        right = self._whole[len(text) :] if self._whole[: len(text)] == text else []
        right = [*right, *[0] * len(self._script)]
        return [
            x if letter == "r" else (x + 1) % self._vocab
            for x, letter in zip(right, self._script[: int(count)], strict=False)
        ]

    def _asked_too_much(self, most: int, count: int) -> bool:
        """Was it ever asked for more than `count`, or than a text of `most` tokens has room for beside the target's own?"""
        return any(n > max(0, min(count, most - 1 - (length - self._start))) for length, n in self._asked)
