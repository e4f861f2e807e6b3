"""Prompt lookup: if the last few tokens stood in the text before, guess that the same continuation follows.

    NGram(min_ngram=2, max_ngram=4, num_tokens=8)         # "... the red fox" again? then what came after it last time

No model, no training, and nothing to pay where nothing matches. It wins where the output repeats the prompt (editing,
summarising, answering from a text). Saxena 2023, "Prompt Lookup Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from minispec.sampling import Dice
from minispec.tree import TokenTree


class NGram:
    """Look up the longest n-gram, from `max_ngram` down to `min_ngram` tokens, that ends the text and occurred before.

    `match`: where several occurrences match, copy after the "latest" or the "earliest". A continuation that is shorter
    than `num_tokens` is used as it is. Raises ValueError for sizes below 1, or min_ngram above max_ngram.
    """

    layers: Sequence[int] = ()
    passes = 0
    extra_bytes = 0

    def __init__(self, min_ngram: int = 2, max_ngram: int = 4, num_tokens: int = 8, match: str = "latest"):
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, but they are {min_ngram} and {max_ngram}")
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be 1 or more, but is {num_tokens}")
        if match not in ("latest", "earliest"):
            raise ValueError(f"match must be 'latest' or 'earliest', but is {match!r}")
        self.sizes, self.num_tokens, self.match = range(max_ngram, min_ngram - 1, -1), num_tokens, match

    def start(self, target: Any, cache_rows: int, prompts: list[Tensor], hidden: Tensor | None, dice: Dice) -> None:
        self.texts: list[list[int]] = [[] for _ in prompts]
        self.after: list[dict[tuple[int, ...], int]] = [{} for _ in prompts]  # n-gram -> where its continuation starts
        self.commit([prompt.tolist() for prompt in prompts], None)

    def propose(self, budget: list[int]) -> TokenTree:
        return TokenTree.chain([self.look_up(row, min(self.num_tokens, most)) for row, most in enumerate(budget)])

    def look_up(self, row: int, most: int) -> list[int]:
        """At most `most` tokens that followed the longest n-gram at the end of this row's text."""
        text = self.texts[row]
        for n in self.sizes:
            at = self.after[row].get(tuple(text[-n:])) if len(text) >= n else None
            if at is not None:
                return text[at : at + most]
        return []

    def commit(self, tokens: list[list[int]], hidden: list[Tensor] | None) -> None:
        for text, after, new in zip(self.texts, self.after, tokens, strict=True):
            for token in new:
                # What ends here gets its continuation only now: so the end of the text never matches itself.
                for n in self.sizes:
                    if len(text) >= n:
                        ngram = tuple(text[-n:])
                        after[ngram] = len(text) if self.match == "latest" else after.get(ngram, len(text))
                text.append(token)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.texts, self.after = [self.texts[row] for row in rows], [self.after[row] for row in rows]
