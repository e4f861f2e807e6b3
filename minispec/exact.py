"""Is it lossless? The exact law of a rule by enumeration, and a sampling test with stated power.

    world, draft = World(vocab=3, seed=0), sampled_tree((1, 1))     # a chain of two tokens drawn from q
    distance(composed(drawn, world, draft, length=3), world.law(3)) # 0, up to rounding

A rule takes its uniform numbers as an argument, and given p, q and a draft its outcome is piecewise constant in them. So
its law is a finite sum: cut every axis at its breakpoints, run the rule once in each cell, weight by the cell's volume.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minispec import verify
from minispec.sampling import Sampling
from minispec.tree import TokenTree

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel

Text = tuple[int, ...]
Law = dict[Text, float]
Rule = Callable[[Tensor, TokenTree, Tensor], verify.Verdict]  # p [batch, nodes + 1, vocab], tree, u -> verdict


@dataclass(frozen=True)
class World:
    """A target and a drafter with known laws: p and q after every text, random but fixed, in float64.

    `zeros`: how many tokens of p, and of q, have probability 0 (as top-k and top-p make them); `same`: q equals p.
    """

    vocab: int
    seed: int
    zeros: int = 0
    same: bool = False

    def p(self, text: Text) -> Tensor:
        return self.random(text, 0)

    def q(self, text: Text) -> Tensor:
        return self.random(text, 0 if self.same else 1)

    def random(self, text: Text, stream: int) -> Tensor:
        number = int("".join(map(str, (1, self.seed, stream, *text))))
        generator = torch.Generator().manual_seed(number)
        weights = torch.rand(self.vocab, generator=generator, dtype=torch.float64) ** 2 + 0.02
        weights[torch.randperm(self.vocab, generator=generator)[: self.zeros]] = 0
        return weights / weights.sum()

    def law(self, length: int) -> Law:
        """The target's own law of `length` tokens."""
        law: Law = {(): 1.0}
        for _ in range(length):
            law = {(*s, x): w * float(self.p(s)[x]) for s, w in law.items() for x in range(self.vocab)}
        return law


Draft = Callable[[World, Text], Iterator[tuple[float, TokenTree]]]  # every draft that may be made, with its probability


def sampled_tree(widths: tuple[int, ...]) -> Draft:
    """Every node at depth d gets widths[d] children, drawn from q without replacement; (1, 1) is a chain of two."""

    def drafts(world: World, text: Text) -> Iterator[tuple[float, TokenTree]]:
        def grow(nodes: list[tuple[int, int, Text]], level: list[int], depth: int) -> Iterator[tuple[float, list]]:
            if depth == len(widths):
                yield 1.0, nodes
                return
            choices = [list(draws(world.q(path_of(nodes, at)), widths[depth])) for at in level]
            for chosen in itertools.product(*choices):
                weight, grown = 1.0, list(nodes)
                for at, (w, tokens) in zip(level, chosen, strict=True):
                    weight *= w
                    grown += [(token, at, (*path_of(nodes, at), token)) for token in tokens]
                below = list(range(len(nodes) + 1, len(grown) + 1))
                yield from ((weight * w, done) for w, done in grow(grown, below, depth + 1))

        def path_of(nodes: list[tuple[int, int, Text]], at: int) -> Text:
            return text if at == 0 else nodes[at - 1][2]

        for weight, nodes in grow([], [0], 0):
            if weight > 0:
                q = torch.stack([world.q(path_of(nodes, parent)) for _, parent, _ in nodes])
                yield weight, make_tree([token for token, _, _ in nodes], [at for _, at, _ in nodes], q)

    return drafts


def draws(q: Tensor, count: int) -> Iterator[tuple[float, Text]]:
    """Ordered draws of `count` tokens from q without replacement (fewer where q has fewer), with their probability."""
    count = min(count, int((q > 0).sum()))
    for tokens in itertools.permutations(range(len(q)), count):
        weight, left = 1.0, 1.0
        for token in tokens:
            weight, left = weight * float(q[token]) / left, left - float(q[token])
        yield weight, tokens


def fixed_tree(widths: tuple[int, ...], with_q: bool = False) -> Draft:
    """The likeliest children by q, chosen before the target is looked at: one draft, without q.

    `with_q` claims, wrongly, that they were drawn from q.
    """

    def drafts(world: World, text: Text) -> Iterator[tuple[float, TokenTree]]:
        tokens, parents, paths, level = [], [], [], [(0, text)]
        for width in widths:
            below = []
            for at, path in level:
                for token in world.q(path).topk(width).indices.tolist():
                    tokens.append(token)
                    parents.append(at)
                    paths.append((*path, token))
                    below.append((len(tokens), paths[-1]))
            level = below
        q = [world.q(path[:-1]) for path in paths] if with_q else None
        yield 1.0, make_tree(tokens, parents, torch.stack(q) if q else None)

    return drafts


def make_tree(tokens: list[int], parents: list[int], q: Tensor | None) -> TokenTree:
    ids = torch.tensor([tokens, parents], dtype=torch.int64)[:, None]
    return TokenTree(ids[0], ids[1], None if q is None else q[None])


def target_rows(world: World, text: Text, tree: TokenTree) -> Tensor:
    """p after every block position, [nodes + 1, vocab]."""
    paths: list[Text] = [text]
    for token, parent in zip(tree.tokens[0].tolist(), tree.parents[0].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return torch.stack([world.p(path) for path in paths])


Cuts = Callable[[Tensor, TokenTree], list[list[float]]]  # every axis cut into cells


def breakpoints(p: Tensor, tree: TokenTree) -> list[list[float]]:
    """Where the outcome of a right rule may change, on the axis of each block position.

    The accept test of a node and the draws, in every state that p can be in: as it is, or after any number of siblings
    were rejected.
    """
    nodes = tree.tokens.shape[1]
    cuts: list[set[float]] = [{0.0, 1.0} for _ in range(nodes + 1)]
    for at in range(nodes + 1):
        state, taken = p[at], []
        cuts[at] |= set(state.cumsum(0).tolist())
        cuts[0] |= set(state.cumsum(0).tolist())
        for i in (tree.parents[0] == at).nonzero()[:, 0].tolist() if tree.q is not None else ():
            x, q = int(tree.tokens[0, i]), tree.q[0, i].clone()  # pyright: ignore[reportOptionalSubscript]
            q[taken] = 0
            q = q / q.sum()
            cuts[i + 1].add(min(1.0, float(state[x] / q[x])))
            residual = (state - q).clamp(min=0)
            state = residual / residual.sum() if residual.sum() > 0 else state
            cuts[0] |= set(state.cumsum(0).tolist())
            taken.append(x)
    return [sorted(c for c in axis if 0 <= c <= 1) for axis in cuts]


def round_law(rule: Rule, world: World, draft: Draft, text: Text = (), cuts: Cuts = breakpoints) -> Law:
    """The exact law of what one round emits after `text`, over all drafts and all uniform numbers.

    `cuts` must hold every breakpoint of the rule; were one missing, a right rule would not come out right.
    """
    law: Law = {}
    for weight, tree in draft(world, text):
        p = target_rows(world, text, tree)
        axes = cuts(p, tree)
        middles = [torch.tensor([(a + b) / 2 for a, b in itertools.pairwise(axis)], dtype=torch.float64) for axis in axes]
        widths = [torch.tensor([b - a for a, b in itertools.pairwise(axis)], dtype=torch.float64) for axis in axes]
        u = torch.cartesian_prod(*middles).view(-1, len(axes))  # [cells, nodes + 1]
        volume = torch.cartesian_prod(*widths).view(-1, len(axes)).prod(1)
        cells = len(u)
        many = TokenTree(
            tree.tokens.expand(cells, -1),
            tree.parents.expand(cells, -1),
            None if tree.q is None else tree.q.expand(cells, -1, -1),
        )
        verdict = rule(p.expand(cells, -1, -1), many, u)
        tokens = tree.tokens[0].tolist()
        for path, token, mass in zip(verdict.path.tolist(), verdict.token.tolist(), volume.tolist(), strict=True):
            emitted = (*(tokens[at - 1] for at in path if at >= 0), token)
            law[emitted] = law.get(emitted, 0.0) + weight * mass
    return law


def composed(rule: Rule, world: World, draft: Draft, length: int, cuts: Cuts = breakpoints) -> Law:
    """The law of the first `length` tokens that whole rounds emit, one after the other."""
    law: Law = {}
    pending: list[tuple[Text, float]] = [((), 1.0)]
    rounds: dict[Text, Law] = {}
    while pending:
        text, weight = pending.pop()
        if len(text) >= length:
            law[text[:length]] = law.get(text[:length], 0.0) + weight
            continue
        if text not in rounds:
            rounds[text] = round_law(rule, world, draft, text, cuts)
        pending += [((*text, *emitted), weight * mass) for emitted, mass in rounds[text].items() if mass > 0]
    return law


def distance(a: Law, b: Law) -> float:
    """Total variation: half the sum of the absolute differences."""
    return sum(abs(a.get(s, 0.0) - b.get(s, 0.0)) for s in {*a, *b}) / 2


def right_rules() -> dict[str, tuple[Rule, Draft]]:
    """Every shipped rule with a way of drafting that it serves."""
    return {
        "drawn, chain of 1": (drawn, sampled_tree((1,))),
        "drawn, chain of 2": (drawn, sampled_tree((1, 1))),
        "drawn, 2 siblings": (drawn, sampled_tree((2,))),
        "drawn, 2 siblings with 1 child each": (drawn, sampled_tree((2, 1))),
        "fixed, chain of 2": (fixed, fixed_tree((1, 1))),
        "fixed, 2 siblings with 1 child each": (fixed, fixed_tree((2, 1))),
        "no draft": (fixed, fixed_tree(())),
    }


def drawn(p: Tensor, tree: TokenTree, u: Tensor) -> verify.Verdict:
    return verify.drawn(lambda at: p[torch.arange(len(u)), at], tree, u)


def fixed(p: Tensor, tree: TokenTree, u: Tensor) -> verify.Verdict:
    return verify.fixed(lambda at: p[torch.arange(len(u)), at], tree, u)


def conditional_laws(law: Law, draft_length: int, world: World) -> Iterable[tuple[Text, Tensor]]:
    """For every text that a round can accept: the law of the token emitted after it, given that it was accepted."""
    texts = {emitted[:n] for emitted in law for n in range(min(len(emitted), draft_length + 1))}
    for text in texts:
        after = torch.zeros(world.vocab, dtype=torch.float64)
        for emitted, mass in law.items():
            if len(emitted) > len(text) and emitted[: len(text)] == text:
                after[emitted[len(text)]] += mass
        if after.sum() > 0:
            yield text, after / after.sum()


@dataclass(frozen=True)
class SamplingTest:
    """A G-test of sampled texts against their exact law. `power`: the chance to notice a law that is off by `effect`
    (total variation, over the cells as they are pooled), at the given false-alarm rate; a lower bound over all such laws."""

    p_value: float
    samples: int
    cells: int
    effect: float
    power: float
    false_alarms: float = 1e-3

    @property
    def passed(self) -> bool:
        return self.p_value >= self.false_alarms


def exact_law(lm: LanguageModel, prompt: Tensor, sampling: Sampling, length: int) -> Tensor:
    """The target's own law of `length` new tokens after `prompt`, [vocab] * length, from the model itself."""
    vocab = lm.model.config.vocab_size
    texts = torch.cartesian_prod(*[torch.arange(vocab)] * length).view(-1, length)  # [vocab ** length, length]
    block = torch.cat((prompt.expand(len(texts), -1), texts[:, :-1]), 1)
    logits = lm.model(block, lm.model.new_cache(len(block), block.shape[1]))[:, len(prompt) - 1 :]
    return sampling(logits).gather(2, texts[:, :, None])[:, :, 0].prod(1).view([vocab] * length)


def g_test(counts: Tensor, law: Tensor, effect: float = 0.02, false_alarms: float = 1e-3) -> SamplingTest:
    """Compare `counts` with the probabilities `law`, both of any one shape.

    Cells that expect fewer than five are pooled. A count where the law has probability 0 settles it: p-value 0.
    """
    from scipy import stats

    counts, law, total = counts.flatten().double(), law.flatten().double(), float(counts.sum())
    few = law * total < 5
    observed = torch.cat((counts[~few], counts[few].sum()[None]))
    expected = torch.cat((law[~few], law[few].sum()[None])) * total
    keep = expected > 0
    if (counts[law == 0] > 0).any() or (observed[~keep] > 0).any():
        p_value = 0.0
    elif keep.sum() < 2:
        p_value = 1.0  # only one outcome is possible, and it came
    else:
        result = stats.power_divergence(
            observed[keep], expected[keep] * (observed.sum() / expected.sum()), lambda_="log-likelihood"
        )
        p_value = float(result.pvalue)
    freedom = int(keep.sum()) - 1
    critical = stats.chi2.isf(false_alarms, freedom)
    # A law off by `effect` has a chi-square divergence of at least 4 effect^2 (Cauchy-Schwarz).
    power = float(stats.ncx2.sf(critical, freedom, 4 * effect**2 * total)) if freedom else 0.0
    return SamplingTest(p_value, int(total), freedom + 1, effect, power, false_alarms)


def sampling_test(
    lm: LanguageModel,
    drafter: Drafter | None,
    sampling: Sampling,
    samples: int = 100_000,
    rule: Rule | None = None,
    effect: float = 0.02,
) -> SamplingTest:
    """Sample whole generations and test the joint law of tokens 2 to 4; the first comes from prefill, without a draft.

    `rule`: a wrong one in place of the shipped one, to see it caught. `effect`: whose power is stated.
    """
    from minispec.decode import Decoder

    prompt = torch.tensor([1, 2, 1])
    vocab = lm.model.config.vocab_size
    counts = torch.zeros([vocab] * 3, dtype=torch.int64)
    for start in range(0, samples, 10_000):
        prompts = [prompt] * min(10_000, samples - start)
        decoder = Decoder(lm, prompts, drafter, max_new_tokens=8, sampling=sampling, seed=start)
        if rule:

            def verdict(logits: Tensor, tree: TokenTree, d: Decoder = decoder, rule: Rule = rule) -> verify.Verdict:
                return rule(sampling(logits), tree, d.dice.roll([n + 1 for n in tree.counts], logits.dtype))

            decoder.verdict = verdict
        for _ in decoder.run():
            pass
        texts = torch.tensor([request.tokens[1:4] for request in decoder.requests])
        counts += torch.bincount(texts @ torch.tensor([vocab**2, vocab, 1]), minlength=vocab**3).view_as(counts)
    return g_test(counts, exact_law(lm, prompt, sampling, 4).sum(0), effect)
