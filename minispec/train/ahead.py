"""What heads that guess several tokens ahead share in training: places, targets, loss, and acceptance on held-out text.

At place j of a text, step i guesses token j + 2 + i, for which the target's own distribution is read off its state at place
j + 1 + i. Counted are places whose guessed token is part of the answer and can be drafted at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minispec.hub import DEFAULT
from minispec.train.data import HELD_OUT, Corpus, Text
from minispec.train.fit import train_folder
from minispec.train.teacher import States, padded, predicting

if TYPE_CHECKING:
    from minispec.hub import LanguageModel

Example = tuple[Text, Tensor]  # a text, and the target's states [tokens, layers, width]; the last one stands last
LONGEST = 33  # tokens of the longest pass whose cost is stored with the weights
RANKS = 10  # how deep the ranks of the right token are counted


def kept_layers(lm: LanguageModel, layers: Sequence[int] = ()) -> tuple[int, ...]:
    """The hidden states to keep of a text: EAGLE-3's own choice or `layers`, and the last one.

    Three different ones in order, at 2, the middle and three before the end: on a shallow model they would fall together.
    Raises ValueError for a layer that the target lacks, and for a target with fewer than 7 layers and none named.
    """
    n = lm.model.config.num_hidden_layers
    if not layers and n < 7:
        raise ValueError(f"{lm.name} has {n} layers, too few for the usual three; name them with --layers")
    usual = (2, n // 2, n - 3)
    if not all(0 <= layer <= n for layer in layers) or len(set(layers)) < len(layers):
        raise ValueError(f"--layers must name different hidden states of the target, 0 to {n}, but is {list(layers)}")
    return (*(usual if n >= 7 and set(layers) <= {*usual, n} else [i for i in layers if i != n]), n)


class Examples(Sequence[Example]):
    """Texts with their states, read from disk when they are asked for."""

    def __init__(self, texts: Sequence[Text], states: States, numbers: Sequence[int]):
        self.texts, self.states, self.numbers = texts, states, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.texts[self.numbers[i]], self.states[self.numbers[i]]


class Ahead(nn.Module):
    """A head that guesses `steps` tokens ahead. A subclass says what it computes (`outputs`, `logits`, `weight`)."""

    vocabulary: Tensor
    teacher: Tensor
    drafted: Tensor

    def __init__(self, lm: LanguageModel, vocabulary: Tensor, steps: int):
        super().__init__()
        self.steps = steps
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        self.register_buffer("teacher", lm.model.lm_head.weight[vocabulary], persistent=False)  # [ids, width]
        can = torch.zeros(lm.model.config.vocab_size, dtype=torch.bool, device=vocabulary.device)
        can[vocabulary] = True
        self.register_buffer("drafted", can, persistent=False)  # [vocab]

    def outputs(self, tokens: Tensor, hidden: Tensor) -> Iterator[Tensor]:
        """Of each step a state [batch, time, width], from `tokens` [batch, time] and `hidden` [.., time, layers, width]."""
        raise NotImplementedError

    def logits(self, step: int, state: Tensor) -> Tensor:
        """The step's logits [places, ids] from its states [places, width]."""
        raise NotImplementedError

    def weight(self, step: int) -> float:
        return 1.0

    def read(self, examples: list[Example]) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [batch, time], states [batch, time, layers, width], and which places predict the answer [batch, time]."""
        device = self.vocabulary.device
        tokens = padded([text for text, _ in examples]).to(device)
        hidden = nn.utils.rnn.pad_sequence([states for _, states in examples], True).to(device, self.teacher.dtype)
        answer = torch.zeros_like(tokens, dtype=torch.bool)
        for row, (text, _) in zip(answer, examples, strict=True):
            row[predicting(text)] = True
        return tokens, hidden, answer

    def counted(self, step: int, tokens: Tensor, answer: Tensor) -> Tensor:
        """Places [batch, time] whose guess at this step has a right answer."""
        guessed = ahead(tokens, step + 2)
        return ahead(answer, step + 1) & (guessed >= 0) & self.drafted[guessed.clamp(min=0)]

    def forward(self, examples: list[Example]) -> Tensor:
        """The loss: cross-entropy against the target's distribution over the ids that can be drafted, a mean over the places
        of each step, then over the steps by their weight."""
        tokens, hidden, answer = self.read(examples)
        total, weights = tokens.new_zeros((), dtype=self.teacher.dtype), 0.0
        targets = F.linear(hidden[:, :, -1][answer], self.teacher).softmax(-1)  # [answer tokens, ids]
        number = answer.flatten().cumsum(0).view_as(tokens) - 1  # [batch, time]: where a place's target stands
        for step, state in enumerate(self.outputs(tokens, hidden)):
            at = self.counted(step, tokens, answer)
            p = targets[ahead(number, step + 1)[at]]  # [places, ids]
            logq = self.logits(step, state[at]).log_softmax(-1)
            total = total - self.weight(step) * (p * logq).sum() / max(1, len(p))
            weights += self.weight(step)
        return total / weights

    @torch.inference_mode()
    def ranks(self, examples: Sequence[Example], batch: int = 8) -> Tensor:
        """[steps, RANKS]: at how many of the places, on texts written greedily, is the right token the head's likeliest, its
        second, ...? Divided by the number of places."""
        hits = torch.zeros(self.steps, RANKS)
        total = torch.zeros(self.steps, 1)
        for group in batches(examples, batch):
            tokens, hidden, answer = self.read(group)
            for step, state in enumerate(self.outputs(tokens, hidden)):
                at = ahead(answer, step + 1) & (ahead(tokens, step + 2) >= 0)
                best = self.vocabulary[self.logits(step, state[at]).topk(RANKS).indices]  # [places, RANKS]
                hits[step] += (best == ahead(tokens, step + 2)[at][:, None]).sum(0).cpu()
                total[step] += int(at.sum())
        return hits / total.clamp(min=1)

    @torch.inference_mode()
    def acceptance(self, examples: Sequence[Example], batch: int = 8) -> list[float]:
        """On texts that the target wrote greedily: how often the likeliest token of a step is the text's, given that those
        of all steps before were."""
        right, tried = [0] * self.steps, [0] * self.steps
        for group in batches(examples, batch):
            tokens, hidden, answer = self.read(group)
            alive = torch.ones_like(answer)
            for step, state in enumerate(self.outputs(tokens, hidden)):
                alive = alive & ahead(answer, step + 1)
                tried[step] += int(alive.sum())
                guess = torch.full_like(tokens, -1)
                guess[alive] = self.vocabulary[self.logits(step, state[alive]).argmax(-1)]
                alive = alive & (guess == ahead(tokens, step + 2))
                right[step] += int(alive.sum())
        return [n / max(1, of) for n, of in zip(right, tried, strict=True)]


def ahead(x: Tensor, by: int) -> Tensor:
    """x [batch, time, ...] moved `by` places towards the front; what comes in at the end is -1 (False, zero vectors)."""
    moved = torch.zeros_like(x) if x.dtype == torch.bool or x.is_floating_point() else torch.full_like(x, -1)
    moved[:, : max(0, x.shape[1] - by)] = x[:, by:]
    return moved


def rounded(rates: Sequence[float]) -> list[float]:
    return [round(rate, 4) for rate in rates]


def batches(examples: Sequence[Example], size: int) -> Iterator[list[Example]]:
    for start in range(0, len(examples), size):
        yield [examples[i] for i in range(start, min(start + size, len(examples)))]


def train_ahead(
    lm: LanguageModel,
    trainer: Ahead,
    recipe: dict[str, Any],
    corpus: Corpus,
    kept: Sequence[int],
    folder: Path,
    out: Path,
    save: Callable[[Path, dict[str, Any]], None],
) -> dict[str, Any]:
    """Train a head on the texts of `corpus`, with the target's states cached in `folder`, and put it in place of `out`.

    `save(folder, measured)` writes the weights. Measured on held-out texts that the target wrote greedily: conditional
    acceptance by position, and how often the right token has which rank.
    """
    texts = corpus.texts
    numbers = [i for i in range(len(texts)) if i % HELD_OUT]
    held = [i for i in range(0, len(texts), HELD_OUT) if texts[i].temperature == 0]
    if not held:
        raise ValueError("the training text has no held-out text that was written greedily; let it grow")
    cached: list[States] = []

    def examples(which: Sequence[int]) -> Examples:
        if not cached:
            cached.append(States(lm, texts, kept, folder))
        return Examples(texts, cached[0], which)

    def finish(done: Path) -> dict[str, Any]:
        all_held = examples(held)
        ranks = [[round(share, 4) for share in row] for row in trainer.ranks(all_held).tolist()]
        measured = {"held_out_acceptance": rounded(trainer.acceptance(all_held)), "ranks": ranks}
        save(done, measured)
        return measured

    return train_folder(
        out,
        recipe,
        [texts[i] for i in numbers],
        trainer,
        lambda: examples(numbers),
        finish,
        lambda: rounded(trainer.acceptance(examples(held[::3]))),
    )


def measured_cost(lm: LanguageModel) -> list[float]:
    """Seconds of a pass of the target over 1, 2, ... tokens, here, in the dtype that pays here: what sizes a tree."""
    from minispec.bench import cost_curve
    from minispec.hub import load

    fast = load(str(lm.folder) if lm.name != DEFAULT else DEFAULT, str(lm.model.device))
    return [round(seconds, 5) for seconds in cost_curve(fast, range(1, LONGEST + 1)).values()]
