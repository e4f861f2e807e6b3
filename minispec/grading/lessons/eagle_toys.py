"""What an EAGLE drafter is given to work on: a tiny layer over a tiny target, and laws for trees to grow by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minispec.drafters.eagle import EagleNet
from minispec.grading.lessons.toys import MOST_PASSES, toy
from minispec.train.eagle import new_net

DRAFTABLE = [1, 2, 4, 5, 7, 8, 10]  # what the layer can draft, of the target's eleven tokens
D2T = [token - column for column, token in enumerate(DRAFTABLE)]


@cache
def net() -> EagleNet:
    """An EAGLE-3 layer of random weights, whose branches all count."""
    made = new_net(toy(0), [1], torch.tensor(DRAFTABLE))
    generator = torch.Generator().manual_seed(34)  # one that does not guess the same token over and over
    for name, weight in made.named_parameters():
        if weight.dim() == 2 and not name.startswith("embed"):
            weight.data.normal_(0, 1.5 * weight.shape[1] ** -0.5, generator=generator)
    return made.requires_grad_(False)


def features_of(text: Sequence[int]) -> Tensor:
    """The target's features of all tokens of a text but the last, [tokens - 1, width]."""
    model = toy(0).model
    states = model.states(torch.tensor([text[:-1]]), model.new_cache(1, len(text)), layers=[1])[0]
    return net().fuse(states[0, :, None])


def guesses_of(text: Sequence[int], count: int) -> list[int]:
    """`count` guesses after `text`, all of it read anew for each: there is no cache to get wrong."""
    tokens, features = list(text[1:]), features_of(text)
    for _ in range(count):
        state = net().step(features[None], torch.tensor([tokens]), net().new_cache(1, len(tokens)))[0, -1:]
        tokens.append(DRAFTABLE[int(net().logits(state)[0].argmax())])
        features = torch.cat((features, state))
    return tokens[len(text) - 1 :]


class PairReader:
    """The layer and its cache of pairs. It notes how many pairs each pass reads."""

    def __init__(self):
        self._cache, self._passes = net().new_cache(1, 200), []

    def step(self, features: Any, tokens: Any) -> Tensor:
        """Outputs [pairs, width]; the cache grows by the pairs."""
        given, ids = torch.as_tensor(features).double(), torch.as_tensor(tokens).tolist()
        width = net().config.hidden_size
        if not ids or list(given.shape) != [len(ids), width]:
            raise ValueError(f"one pair or more: features [n, {width}] and n tokens, not {list(given.shape)} and {len(ids)}")
        if not all(isinstance(x, int) and 0 <= x < net().config.vocab_size for x in ids):
            raise ValueError(f"tokens are ids of the target's vocabulary, not {ids}")
        if len(self._passes) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} passes: does the loop ever end?")
        self._passes = [*self._passes, len(ids)]
        return net().step(given[None], torch.tensor([ids]), self._cache)[0]

    def logits(self, outputs: Any) -> Tensor:
        """Logits [pairs, ids] of the tokens that the layer can draft."""
        return net().logits(torch.as_tensor(outputs).double())

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` pairs."""
        held = self._cache.lengths[0]
        if not 0 <= int(length) <= held:
            raise ValueError(f"the cache holds {held} pairs, so it cannot be rewound to {int(length)}")
        self._cache.lengths = [int(length)]


class Expand:
    """What follows each path, as a script or a seed says; it notes which paths were asked for in each call.

    `laws`: {path: probabilities}; for other paths they are made from the path and the seed.
    """

    def __init__(self, seed: int, vocab: int, laws: dict[tuple[int, ...], list[float]]):
        self._seed, self._vocab, self._laws = seed, vocab, laws
        self._asked: list[list[list[int]]] = []

    def _law(self, path: tuple[int, ...]) -> Tensor:
        if path in self._laws:
            return torch.tensor(self._laws[path], dtype=torch.float64).log()
        number = self._seed
        for token in path:
            number = 31 * number + token + 1
        generator = torch.Generator().manual_seed(number)
        return (1.5 * torch.randn(self._vocab, generator=generator).double()).log_softmax(0)

    def __call__(self, paths: Any) -> Tensor:
        asked = [[int(x) for x in path] for path in paths]
        if not asked or not all(0 <= x < self._vocab for path in asked for x in path):
            raise ValueError(f"expand needs a list of paths, one or more, each a list of ids, not {asked}")
        if len(self._asked) >= MOST_PASSES:
            raise RuntimeError(f"more than {MOST_PASSES} passes: does the loop ever end?")
        self._asked = [*self._asked, sorted(asked)]
        return torch.stack([self._law(tuple(path)) for path in asked])
