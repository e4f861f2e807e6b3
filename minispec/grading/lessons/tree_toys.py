"""What a loop over trees is given to work on: a tiny model that reads a tree in one pass, and heads that follow a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.toys import MOST_PASSES, toy

VOCABULARY = [(3 * column + 2) % 11 for column in range(11)]  # the ids of the heads' columns, in no order


class TreeReader:
    """A model and its cache, read a tree at a time. It notes how many tokens each pass reads."""

    def __init__(self, seed: int):
        self._model = toy(seed).model
        self._cache = self._model.new_cache(1, 250)
        self._start, self._passes = 0, []

    @torch.inference_mode()
    def read(self, tokens: Any, positions: Any, mask: Any) -> tuple[Tensor, Tensor]:
        """Logits [tokens, vocab] and last hidden states [tokens, width]; the cache grows by the tokens."""
        ids, seen, at = torch.as_tensor(tokens).tolist(), torch.as_tensor(mask), torch.as_tensor(positions)
        n = len(ids)
        if not n or not all(isinstance(x, int) and 0 <= x < self._model.config.vocab_size for x in ids):
            raise ValueError(f"a pass must read one token or more, with ids of the vocabulary, not {ids}")
        if list(at.shape) != [n] or list(seen.shape) != [n, n] or seen.dtype != torch.bool:
            shapes = f"positions {list(at.shape)} and a {str(seen.dtype)[6:]} mask {list(seen.shape)}"
            raise ValueError(f"{n} tokens need positions [{n}] and a bool mask [{n}, {n}], not {shapes}")
        if len(self._passes) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} passes: does the loop ever end?")
        self._passes = [*self._passes, n]
        self._start = self._cache.lengths[0]
        state = self._model.states(torch.tensor([ids]), self._cache, at[None], seen[None])[-1][0]
        return self._model.logits(state), state

    def keep(self, slots: Any) -> None:
        """Of the tokens of the last pass, keep these (0: its first), in this order, and forget the others."""
        kept, n = [int(x) for x in slots], self._cache.lengths[0] - self._start
        if len(set(kept)) < len(kept) or not all(0 <= x < n for x in kept):
            raise ValueError(f"the last pass has tokens 0 to {n - 1} in the cache, so {kept} cannot be kept of it")
        self._cache.keep([self._start], torch.tensor([kept], dtype=torch.int64))


class Heads:
    """Heads that know what the target will write, and rank it as a script says.

    `script`: for place j of the text, script[j % len(script)] has a letter a head: the rank of the right token, or x: last.
    A state that is none of the target's along its text gets guesses that know nothing.
    """

    def __init__(self, seed: int, text: Sequence[int], script: Sequence[str]):
        model = toy(seed).model
        with torch.inference_mode():
            self._states = model.states(torch.tensor([text]), model.new_cache(1, len(text)))[-1][0]
        self._text, self._script = list(text), list(script)

    def __call__(self, state: Any) -> Tensor:
        given = torch.as_tensor(state).double()
        if list(given.shape) != [self._states.shape[1]]:
            raise ValueError(f"heads read one state, [{self._states.shape[1]}], not {list(given.shape)}")
        gap = (self._states - given).abs().amax(1)
        at = int(gap.argmin())
        rows = []
        for head in range(len(self._script[0])):
            order = sorted(range(11), key=lambda x: (5 * x + at + 3 * head) % 11)
            right = at + 2 + head
            if gap[at] < 1e-6 and right < len(self._text):
                order.remove(self._text[right])
                rank = self._script[at % len(self._script)][head]
                order.insert(10 if rank == "x" else int(rank), self._text[right])
            rows.append([-float(order.index(x)) for x in VOCABULARY])
        return torch.tensor(rows).double()
