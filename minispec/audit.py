"""`minispec audit`: is every method lossless? By enumeration, by a sampling test, by token identity, in that order.

A check prints one line with what was measured, the bound, and its verdict; the audit fails if one of them does.
"""

from __future__ import annotations

import itertools
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minispec import exact, faults
from minispec.checkpoints import load_drafter
from minispec.decode import GREEDY, generate, generate_batch
from minispec.drafters.draft_model import DraftModel
from minispec.drafters.dynamic_tree import DynamicTree
from minispec.drafters.eagle import Eagle
from minispec.drafters.medusa import Medusa
from minispec.drafters.ngram import NGram
from minispec.hub import load, toy
from minispec.sampling import Dice, Sampling
from minispec.tree import Shape, TokenTree
from minispec.verify import Verdict, typical

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel
    from minispec.trace import Generation

REQUESTS = Path(__file__).parent / "data" / "requests.jsonl"
EXACT = 1e-10  # rounding of sums in float64
CAUGHT = 0.01  # total variation that a wrong rule must show in one world or another
# Logits closer than this tie. The gap is measured in float32 or better: near 32, bfloat16 logits lie 0.25 apart themselves.
TIE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.06}


@dataclass
class Check:
    name: str
    measured: str
    passed: bool | None  # None: no check, a number to compare with


def enumeration(full: bool) -> Iterator[Check]:
    """Every shipped rule, in worlds with and without zeros and with q = p: node by node, then whole rounds."""
    vocabularies = (2, 3, 4, 5) if full else (2, 3)
    for name, (rule, draft) in exact.right_rules().items():
        worst, laws = 0.0, 0
        for vocab, (zeros, same) in itertools.product(vocabularies, ((0, False), (1, False), (0, True))):
            if "child each" in name and "drawn" in name and vocab > 3:
                continue  # too many cells; whole rounds at vocabulary 3 cover it
            world = exact.World(vocab, seed=vocab, zeros=zeros, same=same)
            for text, law in exact.conditional_laws(exact.round_law(rule, world, draft), 2, world):
                worst, laws = max(worst, float((law - world.p(text)).abs().sum()) / 2), laws + 1
        yield Check(f"enumeration: {name}", f"{worst:.1e} from the target's law at worst, {laws} nodes", worst < EXACT)
        if "drawn, 2 siblings with" in name and not full:
            continue  # half a minute
        world = exact.World(3, seed=7)
        apart = exact.distance(exact.composed(rule, world, draft, 3), world.law(3))
        yield Check(f"composition: {name}", f"{apart:.1e} over three tokens", apart < EXACT)


def wrong_rules(samples: int) -> Iterator[Check]:
    """Every wrong rule must be caught, and the same code without a fault must not be."""
    worlds = [exact.World(3, 2), exact.World(3, 1, zeros=1)]
    small = toy(vocab_size=5, seed=1, num_hidden_layers=1)
    for fault in ("", *faults.FAULTS):
        rule = faults.chain_rule(fault)
        argmax = fault == "argmax scored with softmax"
        draft = exact.fixed_tree((1, 1), with_q=True) if argmax else exact.sampled_tree((1, 1))
        apart = max(
            exact.distance(exact.composed(rule, world, draft, 3, faults.fault_breakpoints), world.law(3)) for world in worlds
        )
        passed_zero = zero_probability_token_passes(rule)
        caught = apart > CAUGHT or passed_zero
        how = "by injecting u = 0" if passed_zero and apart <= CAUGHT else f"by enumeration ({apart:.3f} off)"
        if not fault:
            yield Check("no fault", f"{apart:.1e} off", not caught)
        else:
            yield Check(f"wrong rule: {fault}", how if caught else "NOT caught", caught)
        if apart > 0.02 or not fault:
            sampling = (
                Sampling(faults.TEMPERATURE)
                if "temperature" in fault
                else Sampling(1.0, top_p=0.8 if "top-p" in fault else 1.0)
            )
            drafter = faults.ArgmaxWithSoftmax(small, 1) if argmax else DraftModel(small, 2)
            test = exact.sampling_test(toy(), drafter, sampling, samples, rule=rule)
            measured = f"p-value {test.p_value:.1e} from {samples} texts"
            yield Check(f"sampled: {fault or 'no fault'}", measured, test.passed == (not fault))


def zero_probability_token_passes(rule: exact.Rule) -> bool:
    """Inject what has measure zero: u = 0 at a drafted token whose target probability is 0."""
    p = torch.tensor([[[0.0, 0.5, 0.5]] * 2], dtype=torch.float64)
    tree = exact.make_tree([0], [0], torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64))
    return bool((rule(p, tree, torch.zeros(1, 2, dtype=torch.float64)).path >= 0).any())


def toy_heads(lm: LanguageModel) -> dict[str, Drafter]:
    """Medusa and EAGLE with random weights on a toy target: they guess badly, and must change nothing."""
    from minispec.train.eagle import new_net
    from minispec.train.medusa import new_heads

    last, ids = lm.model.config.num_hidden_layers, torch.arange(lm.model.config.vocab_size)
    net, heads = new_net(lm, (0, 1, last), ids), new_heads(lm, 3, ids)
    generator = torch.Generator().manual_seed(0)
    for weight in (*net.parameters(), *heads.parameters()):
        if weight is not net.embed_tokens.weight:
            weight.data += 0.3 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    shape = Shape.of([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
    return {
        "medusa": Medusa(heads, shape, last),
        "eagle chain": Eagle(net, 3),
        "eagle static": Eagle(net, tree=shape),
        "eagle dynamic": Eagle(net, tree=DynamicTree(depth=3, top_k=2, nodes=5)),
    }


def lossy() -> Iterator[Check]:
    """How far typical acceptance is from the target's law: a distance over three tokens, at its usual and other settings."""
    world, draft = exact.World(4, seed=5), exact.fixed_tree((2, 1))
    for epsilon in (0.05, 0.09, 0.3):
        alpha = epsilon**0.5

        def rule(p: Tensor, tree: TokenTree, u: Tensor, epsilon: float = epsilon, alpha: float = alpha) -> Verdict:
            return typical(p, tree, u, epsilon, alpha)

        apart = exact.distance(exact.composed(rule, world, draft, 3), world.law(3))
        measured = f"{apart:.3f} from the target's law over three tokens (total variation)"
        yield Check(f"NOT lossless: typical acceptance, epsilon {epsilon}, alpha {alpha:.2f}", measured, None)


def sampling_tests(samples: int) -> Iterator[Check]:
    """Whole generations on a toy model, method by method, with and without top-k and top-p."""
    lm, small = toy(), toy(vocab_size=5, seed=1, num_hidden_layers=1)
    drafters = {"autoregressive": None, "ngram": NGram(1, 3, 3), "draft": DraftModel(small, 3), **toy_heads(lm)}
    for (method, drafter), sampling in itertools.product(
        drafters.items(), (Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.0, top_p=0.8))
    ):
        test = exact.sampling_test(lm, drafter, sampling, samples)
        settings = f"T={sampling.temperature} top-k={sampling.top_k} top-p={sampling.top_p}"
        measured = (
            f"p-value {test.p_value:.3f}, {samples} texts; power {test.power:.0%} against {test.effect} total variation"
        )
        yield Check(f"sampling: {method}, {settings}", measured, test.passed)


def read_requests(file: Path = REQUESTS) -> list[dict[str, Any]]:
    """Requests, one JSON object a line: id, kind, messages, max_new_tokens. Raises ValueError, naming a broken line."""
    requests = []
    try:
        text = file.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise ValueError(f"cannot read the requests in {file}: {error.strerror}") from error
    for number, line in enumerate(text.split("\n") if text else [], 1):
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise TypeError(f"it is a {type(request).__name__}")
            missing = {"id", "kind", "messages", "max_new_tokens"} - set(request)
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"line {number} of {file} is not a JSON object: {error}") from error
        if missing:
            raise ValueError(f"line {number} of {file} lacks {', '.join(sorted(missing))}")
        if not (
            isinstance(request["kind"], str) and type(request["max_new_tokens"]) is int and request["max_new_tokens"] > 1
        ):
            raise ValueError(f"line {number} of {file}: kind must be text, and max_new_tokens a number above 1")
        requests.append(request)
    if not requests:
        raise ValueError(f"{file} holds no requests")
    return requests


def identity(
    lm: LanguageModel,
    drafters: dict[str, Callable[[], Drafter]],
    limit: int,
    tokens: int,
    batches: tuple[int, ...],
    judge: LanguageModel,
) -> Iterator[Check]:
    """At temperature 0 every method emits the tokens of autoregressive decoding, alone and in batches, or ties.

    `judge`: the same target in the precision in which gaps are measured.
    """
    prompts = some_prompts(lm, limit)
    wanted = [generate(lm, prompt, max_new_tokens=tokens).tokens for prompt in prompts]
    for (method, make), size in itertools.product(drafters.items(), batches):
        got: list[Tensor] = []
        for start in range(0, len(prompts), size):
            group = prompts[start : start + size]
            got += [g.tokens for g in generate_batch(lm, group, make(), max_new_tokens=tokens)]
        measured, worst = compare(judge, TIE[lm.model.dtype], prompts, wanted, got)
        yield Check(f"identity: {method}, {dtype_name(lm)}, batch {size}", measured, worst < TIE[lm.model.dtype])


def precise(lm: LanguageModel) -> LanguageModel:
    """The same target in float32, in which gaps are measured; `lm` itself if it is as precise."""
    enough = lm.model.dtype in (torch.float32, torch.float64)
    return lm if enough else load(lm.name, str(lm.model.device), torch.float32)


def peers(
    lm: LanguageModel, drafters: dict[str, Callable[[], Drafter]], limit: int, tokens: int, judge: LanguageModel
) -> Iterator[Check]:
    """How often transformers' own assisted generation and prompt lookup part from its `generate`, on the same requests."""
    from minispec.peers import transformers_methods

    prompts = some_prompts(lm, limit)
    plain, *others = transformers_methods(lm, {name: make() for name, make in drafters.items()}).items()
    wanted, *texts = (
        [torch.tensor(method([p], tokens, 0.0, 0).tokens[0]) for p in prompts] for _, method in (plain, *others)
    )
    for (name, _), got in zip(others, texts, strict=True):
        measured, _ = compare(judge, TIE[lm.model.dtype], prompts, wanted, got)
        yield Check(f"for comparison: {name}, {dtype_name(lm)}", measured, None)


def some_prompts(lm: LanguageModel, limit: int) -> list[Tensor]:
    """Prompts of `limit` of our requests, spread over the kinds."""
    return [lm.encode(request["messages"]) for request in spread(read_requests(), limit)]


def spread(requests: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """`count` of them, evenly from all over the list, so that every kind is among them."""
    count = min(count, len(requests))
    return [requests[i * len(requests) // count] for i in range(count)]


def dtype_name(lm: LanguageModel) -> str:
    return str(lm.model.dtype).removeprefix("torch.")


def compare(
    judge: LanguageModel, tie: float, prompts: list[Tensor], wanted: list[Tensor], got: list[Tensor]
) -> tuple[str, float]:
    """How many texts are equal, in words, and the widest gap between two logits at which texts part (0: none do)."""
    gaps = [first_gap(judge, *texts) for texts in zip(prompts, wanted, got, strict=True)]
    parted = [gap for gap in gaps if gap is not None]
    words = f"{len(prompts) - len(parted)} of {len(prompts)} texts equal"
    if float("inf") in parted:
        words += "; one text is only a part of another"
    elif parted:
        words += f"; {len(parted)} part where the two best logits are {max(parted):.4f} apart or less"
        words += f" (tie: {tie})"
    return words, max(parted, default=0.0)


@torch.inference_mode()
def first_gap(lm: LanguageModel, prompt: Tensor, a: Tensor, b: Tensor) -> float | None:
    """None if two texts are equal; else the gap between the two tokens' logits where they part, computed afresh."""
    if torch.equal(a, b):
        return None
    n = next((i for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=False)) if x != y), None)
    if n is None:
        return float("inf")  # one is a prefix of the other: that is no tie
    ids = torch.cat((prompt, a[:n]))[None].to(lm.model.device)
    logits = lm.model(ids, lm.model.new_cache(1, ids.shape[1]))[0, -1].float()
    best = logits.topk(2).values
    # A token that was not even the runner-up cannot have won by rounding.
    return max(float(best[0] - logits[a[n]]), float(best[0] - logits[b[n]]))


def run(lm: LanguageModel, methods: tuple[str, ...], full: bool) -> Iterator[Check]:
    """All checks of the audit, as they are done. The full one repeats token identity in bfloat16, beside transformers'."""
    makers: dict[str, dict[str, Callable[[], Drafter]]] = {
        "draft": {"draft": lambda: load_drafter("draft", lm)},
        "ngram": {"ngram": NGram},
        "medusa": {"medusa": lambda: load_drafter("medusa", lm)},
        "eagle": {
            f"eagle {tree}": lambda tree=tree: load_drafter("eagle", lm, tree=tree)
            for tree in ("chain", "static", "dynamic")
        },
    }
    chosen = {name: make for method in methods for name, make in makers.get(method, {}).items()}
    yield from enumeration(full)
    yield from wrong_rules(20_000 if full else 4_000)
    yield from sampling_tests(100_000 if full else 5_000)
    yield from lossy()
    judge = precise(lm)
    yield from identity(lm, chosen, 48 if full else 4, 128 if full else 32, (1, 4, 16) if full else (1, 4), judge)
    if full and lm.model.dtype == torch.float32:
        lm = load(lm.name, str(lm.model.device), torch.bfloat16)
        yield from identity(lm, chosen, 48, 64, (1,), judge)
        yield from peers(lm, chosen, 48, 64, judge)


# What any drafter owes, whoever wrote it.

Make = Callable[["LanguageModel"], "Drafter"]  # a new drafter for this target
PROMPTS = ([1, 2, 3, 1, 2], [4], [3, 1, 4, 1, 0, 3, 1])  # one of a single token


class Fault(Exception):
    """What a drafter did wrong, in words."""


def check_drafter(make: Make, lm: LanguageModel) -> Iterator[Check]:
    """Does a drafter keep the protocol, and the target's law? In seconds; all but the last checks run on toy targets.

    `make(target)` builds a new drafter: for `lm`, and for targets without a tokenizer, of 3 and of 5 ids. It has to draft
    something there too, or nothing is tested. What it drafts must follow from the text and the sampling parameters; how
    much of it, may depend on past rounds.
    """
    built: Make = lambda target: watched(make(target), target)
    first = attempt("trees and budgets", lambda: keeps_to_budgets(built, toy()))
    yield first
    if not first.passed:
        return  # no generation would come to its end
    yield attempt("the last generation is forgotten", lambda: forgets(built, toy()))
    yield attempt("drafts follow from the text", lambda: follows_the_text(built, toy()))
    yield attempt("rows of a batch stay apart", lambda: keeps_rows_apart(built, toy(eos_id=0)))
    yield attempt("the target's text on a toy", lambda: keeps_the_text(built, toy()))
    for sampling in (Sampling(1.0), Sampling(0.7, top_p=0.8)):
        settings = f"T={sampling.temperature:g}, top-p={sampling.top_p:g}"
        yield attempt(f"drawn from the q it reports, {settings}", lambda s=sampling: draws_from_q(built, toy(), s))
        yield attempt(f"the target's law on a toy, {settings}", lambda s=sampling: keeps_the_law(built, toy(3), s))
    try:
        yield from identity(lm, {"the drafter": lambda: built(lm)}, 4, 24, (1, 4), precise(lm))
    except Exception as error:
        yield raised("identity", error)


def attempt(name: str, test: Callable[[], str]) -> Check:
    try:
        return Check(name, test(), True)
    except Fault as fault:
        return Check(name, str(fault), False)
    except Exception as error:
        return raised(name, error)


def raised(name: str, error: Exception) -> Check:
    """A failed check: the drafter's own error, whatever it is."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return Check(name, f"{type(error).__name__} in {at.name}, line {at.lineno}: {error}", False)


def watched(drafter: Drafter, lm: LanguageModel) -> Drafter:
    """The drafter, whose every proposal is looked at first."""
    propose = drafter.propose

    def looked_at(budget: list[int]) -> TokenTree:
        tree = propose(budget)
        if fault := malformed(tree, budget, lm.model.config.vocab_size):
            raise Fault(fault)
        return tree

    drafter.propose = looked_at
    return drafter


def malformed(tree: TokenTree, budget: list[int], vocab: int) -> str | None:
    tokens, parents, nodes = tree.tokens, tree.parents, tree.tokens.shape[-1]
    if tokens.shape != (len(budget), nodes) or parents.shape != tokens.shape:
        return f"tokens {tuple(tokens.shape)} and parents {tuple(parents.shape)} of a tree for {len(budget)} rows"
    real = tokens >= 0
    if any(count > most for count, most in zip(tree.counts, budget, strict=True)):
        return f"{tree.counts} nodes a row, but the budget was {budget}"
    if (real[:, 1:] & ~real[:, :-1]).any():
        return f"a node to the right of padding: {tokens.tolist()}"
    if (tokens >= vocab).any():
        return f"token {int(tokens.max())}, but the target has {vocab} ids"
    if (real & ((parents < 0) | (parents > torch.arange(nodes)))).any():
        return f"a parent that does not stand before its node: {parents.tolist()}"
    for row, (xs, ps) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        below = [pair for pair in zip(ps, xs, strict=True) if pair[1] >= 0]
        if len(set(below)) < len(below):
            return f"row {row} has the same token twice below one node: {xs} below {ps}"
    if tree.q is not None:
        if tree.q.shape != (*tokens.shape, vocab):
            return f"q of shape {tuple(tree.q.shape)}, but it must be {(*tokens.shape, vocab)}"
        if ((tree.q.sum(-1) - 1).abs() > 1e-5)[real].any():
            return "a q that does not sum to 1"
        if (tree.q.gather(2, tokens.clamp(min=0)[:, :, None])[:, :, 0] <= 0)[real].any():
            return "a token that its q gives probability 0"
    return None


class Told:
    """A drafter that is told texts as the loop would tell it, but of anybody's choosing."""

    def __init__(self, drafter: Drafter, lm: LanguageModel, prompts: Sequence[list[int]], sampling: Sampling = GREEDY):
        self.drafter, self.lm, self.texts = drafter, lm, [list(prompt) for prompt in prompts]
        self.known: dict[tuple[int, ...], Tensor] = {}
        hidden = None
        if drafter.layers:
            hidden = torch.nn.utils.rnn.pad_sequence([self.states(text) for text in self.texts], batch_first=True)
        drafter.start(lm, 128, [torch.tensor(p) for p in prompts], hidden, Dice(sampling, range(len(prompts))))

    def states(self, text: list[int]) -> Tensor:
        """The target's hidden states [time, layers, width] that the drafter asks for."""
        if tuple(text) not in self.known:
            cache = self.lm.model.new_cache(1, len(text))
            *named, _ = self.lm.model.states(torch.tensor([text]), cache, layers=self.drafter.layers)
            self.known[tuple(text)] = torch.stack(named, 2)[0]
        return self.known[tuple(text)]

    def commit(self, tokens: list[list[int]]) -> None:
        starts = [len(text) - 1 for text in self.texts]
        for text, new in zip(self.texts, tokens, strict=True):
            text += new
        hidden = None
        if self.drafter.layers:
            hidden = [self.states(text)[at:-1] for text, at in zip(self.texts, starts, strict=True)]
        self.drafter.commit(tokens, hidden)


@torch.inference_mode()
def keeps_to_budgets(make: Make, lm: LanguageModel) -> str:
    proposals = 0
    for temperature in (0.0, 1.0):
        told = Told(make(lm), lm, PROMPTS, Sampling(temperature))
        for budget in ([0, 0, 0], [0, 1, 9], [9, 2, 0], [1, 1, 1], [5, 2, 30]):
            told.commit([[3], [4], [1]])
            told.drafter.propose(budget)
            proposals += 1
    return f"{proposals} proposals for three rows, with budgets from 0 to 30"


@torch.inference_mode()
def follows_the_text(make: Make, lm: LanguageModel) -> str:
    """Walk down its drafts by chance; then ask another one of its kind, which is told the same text at once."""
    chance, vocab = torch.Generator().manual_seed(0), lm.model.config.vocab_size
    told, other, tokens = Told(make(lm), lm, PROMPTS[:1]), make(lm), [3]
    told.commit([tokens[:]])
    rounds = whole = none = 0
    while len(tokens) < 100:
        tree = told.drafter.propose([110 - len(tokens)])
        again = Told(other, lm, PROMPTS[:1])
        again.commit([tokens])
        mine, theirs = paths(tree), paths(again.drafter.propose([110 - len(tokens)]))
        if not (mine <= theirs or theirs <= mine):
            raise Fault(
                f"after {len(tokens)} tokens it drafts {longest(mine)}, but {longest(theirs)} if told the same text at "
                "once: has it kept what was rejected, or missed what was accepted?"
            )
        at, new = 0, list[int]()
        while True:
            below = [i for i, parent in enumerate(tree.parents[0].tolist()) if parent == at]
            others = sorted({*range(vocab)} - {int(tree.tokens[0, i]) for i in below})
            if not below or (others and torch.rand((), generator=chance) < 0.3):
                new.append(others[int(torch.randint(len(others), (), generator=chance))])
                break
            at = below[int(torch.randint(len(below), (), generator=chance))] + 1
            new.append(int(tree.tokens[0, at - 1]))
        drafts = bool(tree.counts[0])
        rounds, whole, none = rounds + drafts, whole + (drafts and not below), none + (drafts and len(new) == 1)
        tokens += new
        told.commit([new])
    if not rounds:
        raise Fault("it drafted nothing, so nothing was tested: let make(target) build one that drafts on a toy")
    return f"{rounds} drafts, {whole} of them accepted to the end and {none} not at all"


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    """Of the only row: the tokens from the root down to every node."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[0].tolist(), tree.parents[0].tolist(), strict=True):
        found.append((*found[parent], token))
    return {*found[1:]}


def longest(found: set[tuple[int, ...]]) -> list[int]:
    return list(max(found, key=lambda path: (len(path), path), default=()))


def forgets(make: Make, lm: LanguageModel) -> str:
    rounds = 0
    for temperature in (0.0, 1.0):
        used = make(lm)
        for prompt in (*PROMPTS, PROMPTS[0]):
            options: dict[str, Any] = {"max_new_tokens": 20, "sampling": Sampling(temperature)}
            again, anew = (generate(lm, torch.tensor(prompt), drafter, **options) for drafter in (used, make(lm)))
            same_drafts(again, anew, "a drafter that has written another text before", "a new one")
            rounds += len(anew.trace.rounds)
    return f"{rounds} rounds as a new drafter drafts them"


def keeps_rows_apart(make: Make, lm: LanguageModel) -> str:
    prompts, lengths = [torch.tensor(prompt) for prompt in (*PROMPTS, PROMPTS[0])], list[int]()
    for temperature, seed in itertools.product((0.0, 1.0), (0, 10)):
        options: dict[str, Any] = {"max_new_tokens": 20, "sampling": Sampling(temperature)}
        together = generate_batch(lm, prompts, make(lm), seed=seed, **options)
        for row, (prompt, mine) in enumerate(zip(prompts, together, strict=True)):
            alone = generate(lm, prompt, make(lm), seed=seed + row, **options)
            same_drafts(mine, alone, f"row {row} of {len(prompts)}", "the same request alone")
        lengths += [len(mine.tokens) for mine in together]
    return f"{len(lengths)} rows in batches of {len(prompts)}, which ended after {min(lengths)} to {max(lengths)} tokens"


def same_drafts(a: Generation, b: Generation, mine: str, theirs: str) -> None:
    for i, (x, y) in enumerate(zip(a.trace.rounds, b.trace.rounds, strict=False), 1):
        if paths(x.tree) != paths(y.tree):
            raise Fault(f"round {i}: {mine} drafts {longest(paths(x.tree))}, {theirs} {longest(paths(y.tree))}")
    if not torch.equal(a.tokens, b.tokens):
        raise Fault(f"{mine} writes {a.tokens.tolist()}, {theirs} {b.tokens.tolist()}")


def keeps_the_text(make: Make, lm: LanguageModel) -> str:
    """Prompts of one token and up to the last position, every small number of new tokens, temperatures close to 0."""
    limit, texts = lm.model.config.max_position_embeddings, 0
    cases = [(prompt, most) for prompt in PROMPTS for most in (1, 2, 3, 4, 5, 24)]
    for prompt, most in (*cases, ((PROMPTS[2] * limit)[: limit - 6], 6)):
        ids, drafter = torch.tensor(prompt), make(lm)
        wanted = generate(lm, ids, max_new_tokens=most).tokens
        for sampling in (GREEDY, Sampling(1e-9), Sampling(1.0, top_k=1)):
            got = generate(lm, ids, drafter, max_new_tokens=most, sampling=sampling).tokens
            if not torch.equal(got, wanted):
                asked = f"{len(prompt)} tokens of prompt, {most} new ones, {sampling}"
                raise Fault(f"{asked}: {got.tolist()}, but plain decoding writes {wanted.tolist()}")
            texts += 1
    return f"{texts} texts equal, of 1 to 24 tokens, also at the last position and close to temperature 0"


@torch.inference_mode()
def draws_from_q(make: Make, lm: LanguageModel, sampling: Sampling, rows: int = 5_000) -> str:
    """Node by node, given the nodes before it: are its tokens as frequent as q, without its earlier siblings, says?"""
    told = Told(make(lm), lm, PROMPTS[2:] * rows, sampling)  # several tokens follow its last one, for drafters that count
    told.commit([[1]] * rows)
    tree = told.drafter.propose([4] * rows)
    if tree.q is None:
        return "it reports no q: its drafts are fixed before the target draws"
    tests = []
    for i in range(tree.tokens.shape[1]):
        before = torch.cat((tree.tokens[:, :i], tree.parents[:, : i + 1]), 1)
        _, groups = before.unique(dim=0, return_inverse=True)
        for group in range(int(groups.max()) + 1):
            mine = (groups == group) & (tree.tokens[:, i] >= 0)
            if mine.sum() < 200:
                continue
            q = tree.q[mine, i].double()
            for j in range(i):
                sibling = tree.parents[mine, j] == tree.parents[mine, i]
                q[sibling, tree.tokens[mine, j][sibling]] = 0
            counts = torch.bincount(tree.tokens[mine, i], minlength=q.shape[1])
            tests.append(exact.g_test(counts, (q / q.sum(-1, keepdim=True)).mean(0), 0.04, false_alarms=1e-4))
    if not tests:
        raise Fault("it drafted nothing")
    worst = min(tests, key=lambda test: test.p_value)
    if not worst.passed:
        raise Fault(f"tokens are not drawn from the q they come with (p-value {worst.p_value:.0e}, {worst.samples} drafts)")
    power = f"power {tests[0].power:.0%} against {tests[0].effect} total variation at the first"
    return f"p-value {worst.p_value:.3f} at worst of {len(tests)} tests; {power}"


def keeps_the_law(make: Make, lm: LanguageModel, sampling: Sampling, samples: int = 5_000) -> str:
    test = exact.sampling_test(lm, make(lm), sampling, samples, effect=0.05)
    if not test.passed:
        raise Fault(f"the texts have another law (p-value {test.p_value:.0e}, {samples} texts)")
    return f"p-value {test.p_value:.3f}, {samples} texts; power {test.power:.0%} against {test.effect} total variation"
