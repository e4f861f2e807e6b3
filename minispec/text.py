"""Text from tokens: stop strings that may lie across tokens and rounds, and streaming without half a character.

stream = TextStream(tokenizer, ["END"])
stream.push([5, 9]), stream.push([7], last=True)      # text that no later token can change, piece by piece
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Text of `tokens` without special tokens, and with every space as the model wrote it."""
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def find_stop(text: str, stop: Sequence[str]) -> int:
    """Where the stop string that is completed first begins in `text`; -1 if there is none.

    First completed, not first begun: so it does not matter in which pieces the text arrives, one token or a round of them.
    """
    found = ((at + len(s), at) for s in stop if (at := text.find(s)) >= 0)
    return min(found, default=(0, -1))[1]


def tokens_until_stop(tokenizer: Any, before: Sequence[int], new: Sequence[int], stop: Sequence[str]) -> int | None:
    """How many of the `new` tokens it takes to complete a stop string; None if they do not complete one."""
    if find_stop(decode(tokenizer, [*before, *new]), stop) < 0:
        return None
    return next(n for n in range(1, len(new) + 1) if find_stop(decode(tokenizer, [*before, *new[:n]]), stop) >= 0)


class TextStream:
    """Turns tokens, as they come, into text that later tokens cannot change."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()):
        self.tokenizer, self.stop = tokenizer, stop
        self.tokens: list[int] = []
        self.sent = 0

    def push(self, tokens: Sequence[int], last: bool = False) -> str:
        """The text that `tokens` settle. Held back, unless `last`: an unfinished character, and what may become a stop
        string."""
        self.tokens += tokens
        text = decode(self.tokenizer, self.tokens)
        end, at = len(text), find_stop(text, self.stop)
        if at >= 0:
            end = at
        elif not last:
            end = len(text.rstrip("\ufffd"))
            partial = (n for s in self.stop for n in range(1, len(s)) if text[:end].endswith(s[:n]))
            end -= max(partial, default=0)
        piece, self.sent = text[self.sent : end], max(self.sent, end)
        return piece
