"""One decoder layer over the target's hidden states drafts token by token: it guesses the next state, and from it a token.

    Eagle(net, num_tokens=4)                              # a chain; or a static tree, or EAGLE-2's dynamic tree

What the target has computed about the text so far is worth more than the text alone. Its input at place j is the feature of
token j and the embedding of token j + 1 (the shift: the target has chosen that token, but not yet read it), its output
stands for the feature of token j + 1, from which comes token j + 2. Beyond the text its own outputs take the place of
features. EAGLE-1: Li et al. 2024, section 4; EAGLE-3 (several fused hidden states, an output matrix of its own over a part
of the vocabulary): Li et al. 2025, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from minispec.cache import KVCache
from minispec.drafters.dynamic_tree import DynamicGrower, DynamicTree, ShapeGrower
from minispec.model import Block, RMSNorm, Transformer
from minispec.sampling import Dice, draw, working_dtype
from minispec.tree import Shape, TokenTree

if TYPE_CHECKING:
    from minispec.hub import LanguageModel


class EagleBlock(Block):
    """A decoder layer whose attention reads [embedding, feature], 2 x width; the feature alone is the residual stream."""

    def __init__(self, config: Any):
        super().__init__(config, 0)
        qkv = self.self_attn.qkv_proj
        self.self_attn.qkv_proj = nn.Linear(2 * config.hidden_size, qkv.out_features, bias=qkv.bias is not None)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class EagleNet(Transformer):
    """EAGLE-3, or EAGLE-1 where `eagle` is 1. `config`: that of one Llama layer, with a vocabulary as large as the target's.

    `layers_read`: the target's hidden states that it fuses. `vocabulary` [ids]: what it can draft, in ascending order.
    EAGLE-1 has no norms of its own beside the one before its MLP, reads the last hidden state, and drafts with the target's
    output matrix, or the rows of it that `vocabulary` names. Of published EAGLE-3 heads some keep the normed feature as
    residual stream (`config.norm_before_residual`), some take their output normed for the next feature (`norm_output`).
    """

    vocabulary: Tensor

    def __init__(self, config: Any, layers_read: Sequence[int], vocabulary: Tensor, eagle: int = 3):
        super().__init__(config)
        self.eagle, self.layers_read, width = eagle, tuple(layers_read), config.hidden_size
        self.normed_residual = getattr(config, "norm_before_residual", False)
        self.normed_output = getattr(config, "norm_output", False)
        if eagle == 3:
            self.layers[0] = EagleBlock(config)
            self.fc = nn.Linear(len(self.layers_read) * width, width, bias=False)
        else:
            self.layers[0].input_layernorm = self.norm = nn.Identity()
            self.fc = nn.Linear(2 * width, width, bias=getattr(config, "bias", True))
        self.lm_head = nn.Linear(width, len(vocabulary), bias=False)
        self.register_buffer("vocabulary", vocabulary, persistent=False)

    def fuse(self, hidden: Tensor) -> Tensor:
        """The target's states [..., layers, width] -> features [..., width]."""
        return self.fc(hidden.flatten(-2)) if self.eagle == 3 else hidden[..., 0, :]

    def step(
        self,
        feature: Tensor,
        tokens: Tensor,
        cache: KVCache,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Features [batch, time, width] of `tokens` [batch, time] (-1 pads), from those one place before each."""
        shared = self.prepare(tokens, cache, positions, mask)
        block: Any = self.layers[0]
        return self.block(feature, self.embed_tokens(tokens.clamp(min=0)), lambda x: block.self_attn(x, *shared))

    def block(self, feature: Tensor, embedding: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """The layer around its attention: feature and embedding [batch, time, width] -> the next feature."""
        block: Any = self.layers[0]
        if self.eagle == 3:  # attention reads both, normed; the feature, mostly as it is, goes past it
            normed = block.hidden_norm(feature)
            both = torch.cat((block.input_layernorm(embedding), normed), -1)  # [.., 2 * width]
            x = (normed if self.normed_residual else feature) + attend(both)
        else:
            x = self.fc(torch.cat((embedding, feature), -1))
            x = x + attend(x)
        x = x + block.mlp(block.post_attention_layernorm(x))
        return self.norm(x) if self.normed_output else x

    def logits(self, state: Tensor) -> Tensor:
        """Logits [..., ids of `vocabulary`] of the token after the one whose feature is `state` [..., width]."""
        return self.lm_head(state if self.normed_output else self.norm(state))


class Eagle:
    """Drafts with `net`: a chain of `num_tokens`, or a `tree`: a `Shape`, or a `DynamicTree`.

    A chain at a temperature above 0 is sampled from q, with the target's temperature, top-k and top-p; a tree holds the
    likeliest children at any temperature. Raises ValueError for num_tokens below 1.
    """

    def __init__(self, net: EagleNet, num_tokens: int = 4, tree: Shape | DynamicTree | None = None):
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be 1 or more, but is {num_tokens}")
        self.net, self.num_tokens, self.tree, self.layers = net, num_tokens, tree, net.layers_read

    def start(
        self, target: LanguageModel, cache_rows: int, prompts: list[Tensor], hidden: Tensor | None, dice: Dice
    ) -> None:
        assert hidden is not None
        self.dice, self.passes, self.width = dice, 0, target.model.config.vocab_size
        # What is committed but not yet read: tokens, and for each the target's states one place before it.
        self.tokens = [prompt[1:].tolist() for prompt in prompts]
        self.hidden = [[states[: len(prompt) - 1]] for states, prompt in zip(hidden, prompts, strict=True)]
        drafted = self.num_tokens if self.tree is None else self.tree.read  # nodes that `net` reads, at most
        self.cache = self.net.new_cache(len(prompts), cache_rows + drafted)
        theirs = {weight.data_ptr() for weight in target.model.parameters()}
        self.weight_bytes = sum(w.nbytes for w in self.net.parameters() if w.data_ptr() not in theirs)

    @property
    def extra_bytes(self) -> int:
        return self.weight_bytes + self.cache.nbytes

    def propose(self, budget: list[int]) -> TokenTree:
        if not any(budget):
            return TokenTree.chain([[]] * len(budget))
        state = self.read()  # [batch, width]
        committed = self.cache.lengths
        tree = self.chain(state, budget) if self.tree is None else self.levels(state, budget)
        self.cache.lengths = committed  # what was read of the draft came from guessed features: forget it
        return tree

    def read(self) -> Tensor:
        """Read what was committed since, with the target's own states; the last token's feature of each row."""
        tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in self.tokens], True, -1).to(self.net.device)
        hidden = nn.utils.rnn.pad_sequence([torch.cat(parts) for parts in self.hidden], True)
        feature = self.net.step(self.net.fuse(hidden), tokens, self.cache)  # [batch, time, width]
        self.passes += 1
        ends = torch.tensor([len(row) - 1 for row in self.tokens], device=feature.device)
        self.tokens, self.hidden = [[] for _ in self.tokens], [[] for _ in self.tokens]
        return feature[torch.arange(len(feature), device=feature.device), ends]

    def chain(self, state: Tensor, budget: list[int]) -> TokenTree:
        drafts: list[Tensor] = []
        qs: list[Tensor] = []
        room = [min(self.num_tokens, most) for most in budget]
        for i in range(max(room)):
            if i:
                state = self.net.step(state[:, None], drafts[-1][:, None], self.cache)[:, 0]
                self.passes += 1
            logits = self.net.logits(state)
            if self.dice.sampling.temperature == 0:
                at = logits.argmax(-1)
            else:
                u = self.dice.roll([int(i < n) for n in room], working_dtype(logits))[:, 0]
                q = self.dice.sampling(logits)
                at = draw(q, u.to(q.device))
                qs.append(q.new_zeros(len(q), self.width).index_copy(1, self.net.vocabulary, q))  # [batch, vocab]
            drafts.append(self.net.vocabulary[at])
        rows = torch.stack(drafts, 1).tolist()
        return TokenTree.chain([row[:n] for row, n in zip(rows, room, strict=True)], torch.stack(qs, 1) if qs else None)

    def levels(self, state: Tensor, budget: list[int]) -> TokenTree:
        """Grow a tree level by level: one pass of `net` over all the nodes of a level that will have children."""
        kind = DynamicGrower if isinstance(self.tree, DynamicTree) else ShapeGrower
        grower = kind(self.tree, len(budget), self.net.device)  # pyright: ignore
        base = torch.tensor(self.cache.lengths, device=self.net.device)[:, None]
        logq = self.net.logits(state[:, None]).float().log_softmax(-1)  # [batch, 1, ids]
        features = state[:, None]
        while True:
            level = grower.add(logq, self.net.vocabulary)
            if level is None:
                return grower.tree(budget)
            tokens, parents, mask = level  # [batch, nodes], index into `features`, [batch, nodes, read of the draft]
            feature = features.gather(1, parents[..., None].expand(-1, -1, features.shape[2]))
            features = self.net.step(feature, tokens, self.cache, base + grower.depth - 1, mask)
            self.passes += 1
            logq = self.net.logits(features).float().log_softmax(-1)

    def commit(self, tokens: list[list[int]], hidden: list[Tensor] | None) -> None:
        assert hidden is not None
        for mine, states, new, theirs in zip(self.tokens, self.hidden, tokens, hidden, strict=True):
            mine += new
            states.append(theirs)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.tokens, self.hidden = [self.tokens[row] for row in rows], [self.hidden[row] for row in rows]
        self.cache.keep_rows(rows)
