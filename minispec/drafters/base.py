"""The protocol: what the decoding loop asks of a drafter. Writing one takes three methods.

drafter.start(target, cache_rows, prompts, hidden, dice)    # a new generation
tree = drafter.propose(budget)                              # a guess at what comes next
drafter.commit(tokens, hidden)                              # what really came next
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from minispec.sampling import Dice
from minispec.tree import TokenTree

if TYPE_CHECKING:
    from minispec.hub import LanguageModel


class Drafter(Protocol):
    """Guesses the target's next tokens. Whatever it guesses, the emitted text keeps the target's law."""

    @property
    def layers(self) -> Sequence[int]:
        """The hidden states that it wants, by the numbers of `Transformer.states`."""
        ...

    @property
    def passes(self) -> int:
        """Forward passes of its own network since `start`."""
        ...

    @property
    def extra_bytes(self) -> int:
        """Memory of its weights and its cache."""
        ...

    def start(
        self, target: LanguageModel, cache_rows: int, prompts: list[Tensor], hidden: Tensor | None, dice: Dice
    ) -> None:
        """A new generation: bind the target's device and dtype, and forget the last one.

        `cache_rows`: no text will grow longer than this. `prompts`: ids of each row, 1-D. `hidden` [batch, time,
        layers, width]: the target's states at the prompts, in the order of `layers`; None if there are none.
        `dice`: sampling parameters, and each row's random numbers, for a drafter that samples.
        """

    def propose(self, budget: list[int]) -> TokenTree:
        """At most budget[row] nodes below each row's last committed token; with q where children were sampled."""
        ...

    def commit(self, tokens: list[list[int]], hidden: list[Tensor] | None) -> None:
        """The tokens that each row emitted, the prompt's first among them, and for each the state that gave rise to it:
        hidden[row] [tokens, layers, width] holds the target's states one position before each."""

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Only these rows of the batch go on, in this order; the others have finished. A drafter that is used for single
        requests alone never sees this call."""
