"""The loop: draft, verify, accept, commit. Autoregressive decoding is this loop with an empty draft.

    generate(lm, "Why is the sky blue?").text
    generate(lm, "Why is the sky blue?", drafter=NGram()).trace.tokens_per_pass

Prefill reads the prompt and emits the first token. From then on a round costs one pass of the target, over the pending
token and the draft, and emits the accepted tokens and one of the target's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minispec import verify
from minispec.drafters.base import Drafter
from minispec.sampling import Dice, Sampling, working_dtype
from minispec.text import TextStream, tokens_until_stop
from minispec.trace import Clock, Generation, Request, Round
from minispec.tree import TokenTree

if TYPE_CHECKING:
    from minispec.hub import LanguageModel, Prompt

GREEDY = Sampling()


def generate(lm: LanguageModel, prompt: Prompt, drafter: Drafter | None = None, **options) -> Generation:
    """Generate a continuation of `prompt`: a string (one user message), a list of chat messages, or 1-D ids.

    `options`: max_new_tokens=128, sampling=Sampling() (greedy), seed=0, stop=None (a string or several), rule="lossless"
    (the other, "typical", changes the law of the text: see `verify.typical`).
    Raises ValueError for an empty prompt, one that with the new tokens exceeds the model's positions,
    max_new_tokens < 1, and logits that are not finite.
    """
    return generate_batch(lm, [prompt], drafter, **options)[0]


def generate_batch(
    lm: LanguageModel, prompts: Sequence[Prompt], drafter: Drafter | None = None, **options
) -> list[Generation]:
    """`generate` for several prompts at once. Row i equals `generate` alone with seed + i."""
    decoder = Decoder(lm, prompts, drafter, **options)
    for _ in decoder.run():
        pass
    return decoder.results()


def stream(lm: LanguageModel, prompt: Prompt, drafter: Drafter | None = None, **options) -> Iterator[int | Round]:
    """As `generate`, but yields the first token, then each `Round` as it is committed."""
    decoder = Decoder(lm, [prompt], drafter, **options)
    return (event for events in decoder.run() for event in events.values())


class Decoder:
    """One call of `generate`: the requests, the target's cache, and the loop over them. See `generate` for arguments."""

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Prompt],
        drafter: Drafter | None = None,
        *,
        max_new_tokens: int = 128,
        sampling: Sampling = GREEDY,
        seed: int = 0,
        stop: str | Sequence[str] | None = None,
        rule: str = "lossless",
    ):
        self.lm, self.model, self.drafter = lm, lm.model, drafter
        self.max_new_tokens, self.sampling, self.rule = max_new_tokens, sampling, rule
        self.stop = [stop] if isinstance(stop, str) else list(stop or ())
        if not (isinstance(max_new_tokens, int) and max_new_tokens >= 1):
            raise ValueError(f"max_new_tokens must be a whole number, 1 or more, but is {max_new_tokens!r}")
        if self.stop and (lm.tokenizer is None or not all(isinstance(text, str) and text for text in self.stop)):
            raise ValueError("stop must be a string or several; they need a tokenizer, and none may be empty")
        if not prompts or isinstance(prompts, str):
            raise ValueError("generate_batch needs a list of prompts, with at least one in it")
        if not isinstance(sampling, Sampling):
            raise ValueError(f"sampling must be a Sampling, such as Sampling(temperature=0.8), but is {sampling!r}")
        if rule not in ("lossless", "typical"):
            raise ValueError(f"rule must be 'lossless' or 'typical', but is {rule!r}")
        if drafter and not hasattr(drafter, "propose"):
            raise ValueError(f"drafter must be one, such as NGram() or load_drafter('draft', lm), but is {drafter!r}")
        self.requests = [Request(row, lm.encode(prompt)) for row, prompt in enumerate(prompts)]
        longest, limit = max(len(r.prompt) for r in self.requests), self.model.config.max_position_embeddings
        if longest + max_new_tokens > limit:
            asked = f"prompt ({longest} tokens) plus max_new_tokens ({max_new_tokens})"
            raise ValueError(f"{asked} exceeds the model's {limit} positions; shorten the prompt or ask for fewer tokens")
        self.active = self.requests  # those that have not ended: the rows of the cache
        self.cache = self.model.new_cache(len(self.requests), longest + max_new_tokens)
        self.dice = Dice(sampling, range(seed, seed + len(self.requests)) if isinstance(seed, int) else [seed])
        self.layers = drafter.layers if drafter else ()

    @torch.inference_mode()
    def run(self) -> Iterator[dict[int, int | Round]]:
        """Yields, for each row that is still active, its first token, then its rounds: {row: token or Round}."""
        rows, events = self.requests, self.prefill()
        while True:
            yield {request.row: event for request, event in zip(rows, events, strict=True)}
            if not self.active:
                return
            rows, events = self.active, self.round()

    def prefill(self) -> list[int]:
        """Read the prompts; emit the first token of each."""
        clock, model, device = Clock(self.model.device), self.model, self.model.device
        prompts = [request.prompt for request in self.requests]
        tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_value=-1).to(device)
        *named, last = model.states(tokens, self.cache, layers=self.layers)
        rows = torch.arange(len(prompts), device=device)
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        logits = model.logits(last[rows, ends][:, None])  # [batch, 1, vocab]
        self.check(logits.amax(-1))
        no_draft = TokenTree.chain([[]] * len(prompts)).to(device)
        first = self.verdict(logits, no_draft).token.tolist()
        clock.mark()
        seconds = clock.read()[0]
        for request, token in zip(self.requests, first, strict=True):
            self.end(request, [token])
            request.tokens.append(token)
            request.trace.prefill_s = seconds
        rows = self.drop_finished()
        # The drafter reads the prompt at the start of the first round: that is its time, not the first token's.
        self.unread = torch.stack(named, 2)[rows] if named else None  # [batch, time, layers, width]
        return first

    def start_drafter(self) -> None:
        assert self.drafter
        prompts = [request.prompt for request in self.active]
        self.drafter.start(self.lm, self.cache.capacity, prompts, self.unread, self.dice)
        for request in self.active:
            request.trace.extra_bytes = self.drafter.extra_bytes  # while the batch is whole
        ends = None if self.unread is None else [h[len(p) - 1 : len(p)] for h, p in zip(self.unread, prompts, strict=True)]
        self.drafter.commit([request.tokens[:] for request in self.active], ends)

    def round(self) -> list[Round]:
        """Draft, verify, accept, commit: one target pass over all active rows."""
        clock, device, requests = Clock(self.model.device), self.model.device, self.active
        budget = [self.max_new_tokens - len(request.tokens) - 1 for request in requests]
        if self.drafter and not requests[0].trace.rounds:
            self.start_drafter()
        draft = self.drafter.propose(budget) if self.drafter else TokenTree.chain([[]] * len(requests))
        counts, tree = draft.counts, draft.to(device)
        if any(n > most for n, most in zip(counts, budget, strict=True)):
            raise ValueError(f"the drafter proposed {counts} nodes a row, but its budget was {budget}")
        clock.mark()
        pending = torch.tensor([request.tokens[-1:] for request in requests], device=device)
        starts = self.cache.lengths
        positions = torch.tensor(starts, device=device)[:, None] + tree.depths
        block = torch.cat((pending, tree.tokens), 1)  # [batch, nodes + 1]
        *named, last = self.model.states(block, self.cache, positions, tree.ancestors, self.layers)
        logits = self.model.logits(last)
        largest = logits.amax(-1)
        clock.mark()
        path, token = self.verdict(logits, tree)
        paths = [[at for at in row if at >= 0] for row in path.tolist()]  # until here nothing waits for the device
        tokens = token.tolist()
        self.check(largest)
        clock.mark()

        self.cache.keep(starts, torch.cat((torch.zeros(len(paths), 1, dtype=torch.int64), path.cpu()), 1))
        trees = map(draft.row, range(len(counts)), counts)
        rounds = [self.settle(*row) for row in zip(requests, paths, tokens, trees, strict=True)]
        clock.mark()
        rows = self.drop_finished()
        if self.drafter and rows:
            if len(rows) < len(requests):
                self.drafter.keep_rows(rows)
            states = torch.stack(named, 2) if named else None  # [batch, nodes + 1, layers, width]
            sources = None if states is None else [states[row, [0, *paths[row]]] for row in rows]
            self.drafter.commit([rounds[row].emitted for row in rows], sources)
        clock.mark()
        draft, verifying, accepting, other, committing = clock.read()
        for round in rounds:
            round.draft_s, round.verify_s = draft + committing, verifying
            round.accept_s, round.other_s = accepting, other
        return rounds

    def verdict(self, logits: Tensor, tree: TokenTree) -> verify.Verdict:
        """The lossless rule that fits the sampling and the way the draft was made, unless the lossy one was asked for."""
        if self.sampling.temperature == 0:  # where p is one token, the lossy rule says the same
            return verify.greedy(logits, tree)
        u = self.dice.roll([n + 1 for n in tree.counts], working_dtype(logits)).to(logits.device, non_blocking=True)
        if self.rule == "typical":
            return verify.typical(self.sampling(logits), tree, u)
        rows = torch.arange(len(u), device=logits.device)
        rule = verify.fixed if tree.q is None else verify.drawn
        return rule(lambda at: self.sampling(logits[rows, at]), tree, u)

    def settle(self, request: Request, path: list[int], token: int, tree: TokenTree) -> Round:
        """Emit what was accepted and one token more, up to where the request ends."""
        drafted = tree.tokens[0].tolist()
        accepted = [drafted[at - 1] for at in path]
        emitted = [*accepted, token]
        emitted = emitted[: self.end(request, emitted)]
        if len(emitted) <= len(accepted):  # cut inside the draft: what lay deeper was never put to the test
            depths = tree.depths[0, 1:].tolist()
            drafted = [x for x, depth in zip(drafted, depths, strict=True) if depth <= len(emitted)]
        n = len(emitted)
        request.tokens += emitted
        request.trace.rounds.append(Round(drafted, accepted[:n], emitted, path[:n], tree))
        return request.trace.rounds[-1]

    def end(self, request: Request, new: list[int]) -> int:
        """How many of the `new` tokens to keep; notes the reason if the request ends with them."""
        n = min(len(new), self.max_new_tokens - len(request.tokens))
        if len(request.tokens) + n == self.max_new_tokens:
            request.finish_reason = "length"
        eos = next((i + 1 for i, token in enumerate(new[:n]) if token in self.lm.eos_ids), None)
        if eos:
            n, request.finish_reason = eos, "stop"
        if self.stop and (k := tokens_until_stop(self.lm.tokenizer, request.tokens, new[:n], self.stop)):
            n, request.finish_reason = k, "stop"
        return n

    def drop_finished(self) -> list[int]:
        """Let the rows that ended go, so that they cost nothing more; the rows that go on, in their new order.

        The last rows move into the gaps: that copies one row of the cache for each that ended, not the whole cache.
        """
        going = [i for i, request in enumerate(self.active) if request.finish_reason is None]
        movers = [i for i in going if i >= len(going)]
        rows = [i if self.active[i].finish_reason is None else movers.pop() for i in range(len(going))]
        if len(rows) < len(self.active):
            self.active = [self.active[row] for row in rows]
            self.cache.keep_rows(rows)
            self.dice.keep_rows(rows)
        return rows

    def check(self, largest: Tensor) -> None:
        if not largest.isfinite().all():
            step = 1 + max(len(request.tokens) for request in self.active)
            where = f"at new token {step} in {self.model.dtype}"
            raise ValueError(f"the target's logits are not finite {where}; try dtype float32, or check the weights")

    def results(self) -> list[Generation]:
        results = []
        for request in self.requests:
            trace = request.trace
            if self.drafter and trace.rounds:
                trace.draft_passes = self.drafter.passes
            text = self.lm.tokenizer and TextStream(self.lm.tokenizer, self.stop).push(request.tokens, last=True)
            results.append(Generation(torch.tensor(request.tokens), text, request.finish_reason or "length", trace))
        return results
