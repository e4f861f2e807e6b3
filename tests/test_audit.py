"""The gate for drafters: it lets the shipped ones pass, and each planted fault fails the check that is meant for it."""

import pytest
import torch

import minispec as ms
from minispec import audit, faults
from minispec.sampling import Dice


def small(lm):
    return ms.toy(lm.model.config.vocab_size, seed=1, num_hidden_layers=1)


class KeepsRejected(ms.NGram):
    """Takes its own guesses for text before the target has seen them."""

    def propose(self, budget):
        tree = super().propose(budget)
        super().commit([[x for x in row if x >= 0] for row in tree.tokens.tolist()], None)
        return tree


class OneTooMany(ms.NGram):
    def propose(self, budget):
        return super().propose([most + 1 for most in budget])


class KeepsTheLastText(ms.NGram):
    def start(self, target, cache_rows, prompts, hidden, dice):
        before = getattr(self, "texts", [[]])[0]
        super().start(target, cache_rows, [torch.tensor([*before, *p.tolist()]) for p in prompts], hidden, dice)


class MixesRows(ms.NGram):
    def keep_rows(self, rows):
        super().keep_rows(range(len(rows)))


class ReadsAGlobalSeed(ms.NGram):
    def propose(self, budget):
        return ms.TokenTree.chain([torch.randint(5, (min(2, most),)).tolist() for most in budget])


class NeedsTwoTokens(ms.NGram):
    def propose(self, budget):
        assert all(len(text) > 2 for text in self.texts), "no bigram"
        return super().propose(budget)


class Silent(ms.NGram):
    def propose(self, budget):
        return ms.TokenTree.chain([[] for _ in budget])


class TwoWins(ms.NGram):
    """The same token twice below one node."""

    def propose(self, budget):
        return ms.TokenTree([[1] * min(2, min(budget))] * len(budget), [[0] * min(2, min(budget))] * len(budget))


class Backwards(ms.NGram):
    def propose(self, budget):
        n = min(2, min(budget))
        return ms.TokenTree([[1, 2][:n]] * len(budget), [[2, 0][:n]] * len(budget))


class BeyondTheVocabulary(ms.NGram):
    def propose(self, budget):
        return ms.TokenTree.chain([[5][:most] for most in budget])


class Hole(ms.DraftModel):
    """Believes that its cache lacks the last token only."""

    def commit(self, tokens, hidden):
        super().commit(tokens, hidden)
        for text, fed in zip(self.texts, self.fed, strict=True):
            if fed:
                fed[:] = text[:-1]
        self.cache.lengths = [len(fed) for fed in self.fed]


class WarmerQ(ms.DraftModel):
    """Draws at another temperature than it reports."""

    def propose(self, budget):
        tree = super().propose(budget)
        if tree.q is not None:
            tree.q = tree.q**0.7 / (tree.q**0.7).sum(-1, keepdim=True)
        return tree


class SameNumbers(ms.DraftModel):
    """Draws with a copy of the generators with which the target then judges."""

    def propose(self, budget):
        shared, self.dice = self.dice, Dice(self.dice.sampling, range(len(budget)))
        for mine, theirs in zip(self.dice.generators, shared.generators, strict=True):
            mine.set_state(theirs.get_state())
        tree = super().propose(budget)
        self.dice = shared
        return tree


FAULTS = [
    (OneTooMany, "trees and budgets", "but the budget was"),
    (TwoWins, "trees and budgets", "the same token twice"),
    (Backwards, "trees and budgets", "a parent that does not stand before"),
    (BeyondTheVocabulary, "trees and budgets", "token 5, but the target has 5 ids"),
    (NeedsTwoTokens, "trees and budgets", "AssertionError in propose, line"),
    (KeepsRejected, "drafts follow from the text", "has it kept what was rejected"),
    (Silent, "drafts follow from the text", "it drafted nothing"),
    (Hole, "drafts follow from the text", "or missed what was accepted"),
    (KeepsTheLastText, "the last generation is forgotten", "a drafter that has written another text before drafts"),
    (ReadsAGlobalSeed, "the last generation is forgotten", "a new one"),
    (MixesRows, "rows of a batch stay apart", "the same request alone"),
    (faults.ArgmaxWithSoftmax, "drawn from the q it reports, T=1, top-p=1", "not drawn from the q"),
    (WarmerQ, "drawn from the q it reports, T=1, top-p=1", "not drawn from the q"),
    (SameNumbers, "the target's law on a toy, T=1, top-p=1", "the texts have another law"),
]


@pytest.mark.parametrize(("kind", "name", "words"), FAULTS, ids=[kind.__name__ for kind, *_ in FAULTS])
def test_a_planted_fault_fails_the_check_that_is_meant_for_it(kind, name, words, target):
    make = (lambda lm: kind(small(lm), 2)) if issubclass(kind, ms.DraftModel) else (lambda lm: kind(1, 3, 4))
    found = next(check for check in audit.check_drafter(make, target) if not check.passed)
    assert found.name == name and words in found.measured


@pytest.mark.parametrize(
    "judged", [lambda lm: audit.run(lm, ("ngram",), False), lambda lm: audit.check_drafter(ms.NGram, lm)]
)
def test_gaps_are_measured_in_float32_whatever_is_audited(judged, monkeypatch):
    found = []
    for slow in ("enumeration", "wrong_rules", "sampling_tests", "lossy"):
        monkeypatch.setattr(audit, slow, lambda *_: [])
    monkeypatch.setattr(audit, "attempt", lambda name, test: audit.Check(name, "", True))
    monkeypatch.setattr(audit, "identity", lambda *given: found.append(given[-1].model.dtype) or [])
    list(judged(ms.load(dtype="bfloat16")))
    assert found == [torch.float32]


class NeverLosesARow(ms.NGram):
    keep_rows = None


def test_an_error_with_the_real_target_is_a_failed_check_too(target):
    *_, last = audit.check_drafter(lambda lm: NeverLosesARow(1, 3, 4), target)
    assert last.name == "identity" and not last.passed and "TypeError" in last.measured


def shipped(lm):
    return ms.load_drafter("eagle", lm, tree="chain") if lm.tokenizer else audit.toy_heads(lm)["eagle chain"]


@pytest.mark.parametrize("make", [lambda lm: ms.NGram(1, 3, 4), shipped], ids=["ngram", "eagle"])
def test_a_sound_drafter_passes(make, target):
    checks = list(audit.check_drafter(make, target))
    assert [check for check in checks if not check.passed] == [] and len(checks) == 11
