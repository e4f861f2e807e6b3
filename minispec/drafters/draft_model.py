"""A small model with the same tokenizer drafts a chain, token by token.

    DraftModel(small, num_tokens=4)                       # four passes of `small` for one pass of the target

At temperature 0 it drafts its likeliest tokens; else it samples them, with the target's temperature, top-k and top-p, and
reports the distribution q that it sampled from. Leviathan et al. 2023; Chen et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from minispec.sampling import Dice, draw, working_dtype
from minispec.tree import TokenTree

if TYPE_CHECKING:
    from minispec.hub import LanguageModel


class DraftModel:
    """Drafts up to `num_tokens` tokens with the language model `small`.

    It stops earlier where the likeliest next token has a probability below `min_confidence`: that is decided before
    the token is drawn, so it leaves the law of the output alone. `vocabulary` [ids]: draft these ids only, for the output
    matrix is most of what a step of a small model costs; the others have q = 0.
    Raises ValueError for num_tokens below 1, and (in `start`) if the tokenizers differ.
    """

    layers: Sequence[int] = ()

    def __init__(
        self, small: LanguageModel, num_tokens: int = 4, min_confidence: float = 0.0, vocabulary: Tensor | None = None
    ):
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be 1 or more, but is {num_tokens}")
        self.small, self.num_tokens, self.min_confidence = small, num_tokens, min_confidence
        self.vocabulary = vocabulary

    def start(
        self, target: LanguageModel, cache_rows: int, prompts: list[Tensor], hidden: Tensor | None, dice: Dice
    ) -> None:
        same_tokenizer(self.small, target)
        model = self.small.model
        self.limit = min(cache_rows, model.config.max_position_embeddings)
        self.width = target.model.config.vocab_size
        # Real pairs pad their vocabularies differently: what both have is drafted.
        shared = torch.arange(min(self.width, model.config.vocab_size), device=model.device)
        self.ids = shared if self.vocabulary is None else self.vocabulary
        self.head = model.lm_head.weight[: len(shared)] if self.vocabulary is None else model.lm_head.weight[self.ids]
        theirs = {weight.data_ptr() for weight in target.model.parameters()}
        mine = {weight.data_ptr(): weight.nbytes for weight in (*model.parameters(), self.head)}
        self.weight_bytes = sum(size for at, size in mine.items() if at not in theirs)
        self.texts = [prompt.tolist() for prompt in prompts]
        self.fed = [list[int]() for _ in prompts]  # the tokens whose keys and values are in the cache
        self.cache, self.dice, self.passes = model.new_cache(len(prompts), self.limit), dice, 0

    @property
    def extra_bytes(self) -> int:
        return self.weight_bytes + self.cache.nbytes

    def propose(self, budget: list[int]) -> TokenTree:
        # The text may outgrow the drafter's positions: then it drafts less, and at last nothing.
        room = [max(0, min(self.num_tokens, most, self.limit - len(t))) for most, t in zip(budget, self.texts, strict=True)]
        drafts: list[list[int]] = [[] for _ in room]
        qs: list[Tensor] = []
        # First it reads whatever its cache lacks: after a round in which all was accepted, that is two tokens.
        feed = [text[len(fed) :] if n else [] for text, fed, n in zip(self.texts, self.fed, room, strict=True)]
        while any(feed):
            logits = self.read(feed)  # [batch, ids that it drafts]
            going = [bool(new) and len(d) < n for new, d, n in zip(feed, drafts, room, strict=True)]
            if self.min_confidence:
                sure = logits.float().softmax(-1).amax(-1) >= self.min_confidence
                going = [go and ok for go, ok in zip(going, sure.tolist(), strict=True)]
            if not any(going):
                break
            if self.dice.sampling.temperature == 0:
                at = logits.argmax(-1)
            else:
                u = self.dice.roll([int(go) for go in going], working_dtype(logits))[:, 0]
                q = self.dice.sampling(logits)  # [batch, ids that it drafts]
                at = draw(q, u.to(q.device))
                qs.append(q.new_zeros(len(q), self.width).index_copy(1, self.ids, q))  # [batch, vocab of the target]
            tokens = self.ids[at]
            for draft, token, go in zip(drafts, tokens.tolist(), going, strict=True):
                draft += [token] if go else []
            feed = [d[-1:] if go and len(d) < n else [] for d, go, n in zip(drafts, going, room, strict=True)]
        return TokenTree.chain(drafts, torch.stack(qs, 1) if qs else None)

    def read(self, feed: list[list[int]]) -> Tensor:
        """Feed each row its tokens (perhaps none); the logits after the last of them, [batch, ids that it drafts]."""
        width = max(map(len, feed))
        padded = torch.tensor([[*new, *[-1] * (width - len(new))] for new in feed], device=self.small.model.device)
        # An id that its vocabulary lacks is read as another one: a worse guess, never a wrong text.
        state = self.small.model.states(padded.clamp(max=self.small.model.config.vocab_size - 1), self.cache)[-1]
        for fed, new in zip(self.fed, feed, strict=True):
            fed += new
        self.passes += 1
        ends = torch.tensor([max(0, len(new) - 1) for new in feed], device=state.device)
        return F.linear(state[torch.arange(len(feed), device=state.device), ends], self.head)

    def commit(self, tokens: list[list[int]], hidden: list[Tensor] | None) -> None:
        for text, fed, new in zip(self.texts, self.fed, tokens, strict=True):
            # Keep of the cache what it has in common with the text: the accepted part of what was drafted and fed.
            same = min(len(text), len(fed))
            text += new
            while same < len(fed) and same < len(text) and fed[same] == text[same]:
                same += 1
            del fed[same:]
        self.cache.lengths = [len(fed) for fed in self.fed]

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.texts, self.fed = [self.texts[row] for row in rows], [self.fed[row] for row in rows]
        self.cache.keep_rows(rows)


def same_tokenizer(small: LanguageModel, target: LanguageModel) -> None:
    """Raise ValueError, saying how they differ, unless both models mean the same text by the same ids."""
    if small.tokenizer is target.tokenizer is not None:
        return
    if small.tokenizer is None or target.tokenizer is None:
        sizes = small.model.config.vocab_size, target.model.config.vocab_size
        if small.tokenizer is not target.tokenizer or sizes[0] > sizes[1]:
            raise ValueError(f"the draft model's vocabulary ({sizes[0]} ids) does not fit the target's ({sizes[1]})")
        return
    ours, theirs = small.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if ours != theirs:
        apart = sorted(ours.items() ^ theirs.items(), key=lambda pair: pair[1])
        raise ValueError(
            f"the draft model {small.name} has another tokenizer than {target.name}: {len(ours)} and {len(theirs)} "
            f"tokens, the first difference at id {apart[0][1]} ({apart[0][0]!r}); use a draft model of the same family"
        )
