"""What happened and what it cost: one `Round` for each pass of the target after prefill.

    generation.trace.tokens_per_pass                      # mean tokens emitted a round: 1.0 without a drafter
    generation.trace.acceptance_by_position               # [0.8, 0.7]: of the first, then of the second drafted tokens

Only raw facts are stored (which tokens were drafted, accepted, emitted; seconds by phase); every metric is derived.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from minispec.tree import TokenTree


@dataclass
class Round:
    """One target pass for one request. In a batch the seconds are those of the whole batch.

    `drafted`, `accepted`, `emitted` are token ids, cut where the request ended (EOS, stop string, token budget).
    `emitted` is `accepted` and the target's own token (correction or bonus); without it, the request was cut there.
    `path` holds the accepted block positions of `tree`, cut alike.
    """

    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    path: list[int]
    tree: TokenTree
    draft_s: float = 0.0
    verify_s: float = 0.0
    accept_s: float = 0.0
    other_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.draft_s + self.verify_s + self.accept_s + self.other_s

    @property
    def was_cut(self) -> bool:
        return len(self.emitted) == len(self.accepted)

    @property
    def tried(self) -> int:
        """How many positions were put to the test: the accepted ones, and the next if something was drafted there."""
        last = self.path[-1] if self.path else 0
        return len(self.accepted) + bool(not self.was_cut and (self.tree.parents == last).any())


@dataclass
class Trace:
    """The rounds of one request. Target passes are the rounds and the prefill, which emits the first token."""

    rounds: list[Round] = field(default_factory=list)
    prefill_s: float = 0.0
    draft_passes: int = 0  # forward passes of the drafter's own network, for the whole batch
    extra_bytes: int = 0  # memory that the drafter adds: weights and cache

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the drafted tokens that were tried at a position (all before them accepted), the share accepted.

        In a tree, a position is a depth.
        """
        deepest = max((round.tried for round in self.rounds), default=0)
        tried = [sum(round.tried > i for round in self.rounds) for i in range(deepest)]
        return [sum(len(round.accepted) > i for round in self.rounds) / n for i, n in enumerate(tried)]

    @property
    def tokens_per_pass(self) -> float:
        """Mean tokens emitted a round (accepted and the target's own); 0 if there was no round."""
        return sum(len(round.emitted) for round in self.rounds) / max(1, len(self.rounds))

    @property
    def ttft_s(self) -> float:
        """Time to first token, seconds."""
        return self.prefill_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first, seconds; 0 if there was no other."""
        tokens = sum(len(round.emitted) for round in self.rounds)
        return sum(round.seconds for round in self.rounds) / max(1, tokens)


@dataclass
class Generation:
    """`tokens`: 1-D int64, the new ones only, EOS included if it was produced. `finish_reason`: "stop" or "length".

    `text` ends where a stop string begins, and is None for a model without a tokenizer.
    """

    tokens: torch.Tensor
    text: str | None
    finish_reason: str
    trace: Trace


@dataclass
class Request:
    """One row of a generation that is going on: what was asked, and what has been emitted so far."""

    row: int
    prompt: torch.Tensor
    tokens: list[int] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    finish_reason: str | None = None


class Clock:
    """Seconds between marks; on CUDA from events, so that marking does not wait for the device."""

    def __init__(self, device: torch.device):
        self.device, self.cuda, self.mps = device, device.type == "cuda", device.type == "mps"
        self.marks: list = []
        self.mark()

    def mark(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.marks.append(event)
        else:
            if self.mps:
                torch.mps.synchronize()
            self.marks.append(time.perf_counter())

    def read(self) -> list[float]:
        """Seconds from each mark to the next since the last reading; the last mark starts the next one."""
        marks, self.marks = self.marks, self.marks[-1:]
        if self.cuda:
            marks[-1].synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
        return [b - a for a, b in pairwise(marks)]
