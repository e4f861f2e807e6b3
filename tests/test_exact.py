"""Losslessness by enumeration, by injection and by sampling; and that each wrong rule is caught."""

import pytest
import torch

import minispec as ms
from minispec import audit, exact, faults, verify
from minispec.sampling import Sampling

WORLDS = [exact.World(2, 0), exact.World(3, 1), exact.World(3, 2, zeros=1), exact.World(3, 3, same=True)]
RULES = exact.right_rules()


@pytest.mark.parametrize("name", RULES)
def test_after_every_node_the_next_token_has_the_law_of_the_target(name):
    rule, draft = RULES[name]
    texts = 0
    for world in WORLDS:
        law = exact.round_law(rule, world, draft)
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        for text, after in exact.conditional_laws(law, 2, world):
            assert (after - world.p(text)).abs().sum() / 2 < 1e-10
            texts += 1
    assert texts > len(WORLDS) or name == "no draft", "some draft should have been accepted"


@pytest.mark.parametrize("name", [name for name in RULES if name != "drawn, 2 siblings with 1 child each"])
def test_whole_rounds_compose_to_the_law_of_the_target(name):
    world = exact.World(3, 7)
    assert exact.distance(exact.composed(*RULES[name][:1], world, RULES[name][1], 3), world.law(3)) < 1e-10


def test_larger_vocabularies():
    for vocab in (4, 5):
        world = exact.World(vocab, vocab, zeros=1)
        for name in ("drawn, chain of 2", "drawn, 2 siblings", "fixed, 2 siblings with 1 child each"):
            rule, draft = RULES[name]
            for text, after in exact.conditional_laws(exact.round_law(rule, world, draft), 2, world):
                assert (after - world.p(text)).abs().sum() / 2 < 1e-10


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_wrong_rule_is_caught(fault):
    rule = faults.chain_rule(fault)
    if fault == "zero probability at u = 0":
        assert audit.zero_probability_token_passes(rule)
        return
    draft = exact.sampled_tree((1, 1))
    if fault == "argmax scored with softmax":
        draft = exact.fixed_tree((1, 1), with_q=True)
    off = [
        exact.distance(exact.composed(rule, world, draft, 3, faults.fault_breakpoints), world.law(3))
        for world in (exact.World(3, 2), exact.World(3, 1, zeros=1))
    ]
    assert max(off) > 0.01


def test_the_bank_without_a_fault_is_the_right_rule():
    world, draft = exact.World(3, 1, zeros=1), exact.sampled_tree((1, 1))
    law = exact.composed(faults.chain_rule(), world, draft, 3, faults.fault_breakpoints)
    assert exact.distance(law, world.law(3)) < 1e-10
    assert not audit.zero_probability_token_passes(faults.chain_rule())


def test_u_exactly_0_never_accepts_a_token_of_probability_0():
    assert not audit.zero_probability_token_passes(exact.drawn)
    tree = ms.TokenTree([[0, 1]], [[0, 0]], torch.tensor([[[0.6, 0.4, 0.0]] * 2]))
    p = torch.tensor([[[0.0, 0.0, 1.0]] * 3])
    verdict = exact.drawn(p, tree, torch.zeros(1, 3))
    assert verdict.path.numel() == 0 and verdict.token.item() == 2


def test_an_empty_residual_leaves_p():
    p = torch.tensor([[[0.5, 0.5]] * 2])
    tree = ms.TokenTree([[0]], [[0]], p[:, :1].clone())
    almost = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    tree.q[0, 0, 0] += 1e-7  # the ratio rounds below u: a rejection that theory forbids
    verdict = exact.drawn(p, tree, torch.tensor([[0.7, almost]]))
    assert torch.isfinite(p).all() and verdict.token.item() == 1


def test_rules_keep_float64_and_shapes():
    logits = torch.zeros(2, 3, 4, dtype=torch.float64)
    logits[:, 0, 1] = logits[:, 1, 2] = logits[:, 2, 3] = 1
    tree = ms.TokenTree([[1, 2], [1, -1]], [[0, 1], [0, -1]])
    verdict = verify.greedy(logits, tree)
    assert verdict.path.tolist() == [[1, 2], [1, -1]] and verdict.token.tolist() == [3, 2]


def test_the_right_sibling_is_followed():
    logits = torch.zeros(1, 5, 9)
    for at, token in enumerate([7, 1, 8, 5, 6]):
        logits[0, at, token] = 1
    tree = ms.TokenTree([[6, 7, 8, 8]], [[0, 0, 1, 2]])  # 6 -> 8 and 7 -> 8: the second 8 is the right one
    verdict = verify.greedy(logits, tree)
    assert verdict.path.tolist() == [[2, 4]] and verdict.token.item() == 6


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_sampling_end_to_end(method):
    drafter = ms.NGram(1, 3, 3) if method == "ngram" else ms.DraftModel(ms.toy(seed=1, num_hidden_layers=1), 3)
    for sampling in (Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.0, top_p=0.8)):
        assert exact.sampling_test(ms.toy(), drafter, sampling, 6_000).passed


@pytest.mark.parametrize("fault", ["accept always", "resample from p", "one uniform number"])
def test_sampling_end_to_end_catches_a_wrong_rule(fault):
    drafter = ms.DraftModel(ms.toy(seed=1, num_hidden_layers=1), 2)
    assert not exact.sampling_test(ms.toy(), drafter, Sampling(1.0), 6_000, rule=faults.chain_rule(fault)).passed


def test_power_is_what_simulation_finds():
    """The law is shifted by 0.02 in the way that is hardest to see; the test notices it as often as it says."""
    law = torch.tensor([0.5, 0.5], dtype=torch.float64)
    noticed, generator = 0, torch.Generator().manual_seed(0)
    for _ in range(300):
        first = int((torch.rand(10_000, generator=generator) < 0.52).sum())
        test = exact.g_test(torch.tensor([first, 10_000 - first]), law)
        noticed += not test.passed
    assert noticed / 300 == pytest.approx(test.power, abs=0.08)


def test_an_impossible_token_settles_it():
    assert exact.g_test(torch.tensor([50, 49, 1]), torch.tensor([0.5, 0.5, 0.0])).p_value == 0


def test_a_law_of_one_outcome_is_kept_or_broken_and_has_no_power():
    law = torch.tensor([1.0, 0.0])
    kept = exact.g_test(torch.tensor([100, 0]), law)
    assert (kept.p_value, kept.power) == (1.0, 0.0) and kept.passed
    assert not exact.g_test(torch.tensor([99, 1]), law).passed


def test_requests(tmp_path):
    requests = audit.read_requests()
    kinds = {request["kind"] for request in requests}
    assert len(requests) == 48 == len({request["id"] for request in requests}) and len(kinds) == 8
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": 1, "kind": "chat", "messages": [], "max_new_tokens": 3}\n{"id": 2,\n')
    with pytest.raises(ValueError, match="line 2 of"):
        audit.read_requests(broken)
    broken.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match="line 1 of .* lacks kind, max_new_tokens, messages"):
        audit.read_requests(broken)
    right = '{"id": 1, "kind": "chat", "messages": [], "max_new_tokens": 3}'
    for line, message in (
        ('["id", "kind", "messages", "max_new_tokens"]', "line 2 of .* is not a JSON object: it is a list"),
        (right.replace("3", '"3"'), "line 2 of .*: kind must be text, and max_new_tokens a number above 1"),
        (right.replace('"chat"', "5"), "line 2 of .*: kind must be text"),
    ):
        broken.write_text(f"{right}\n{line}\n")
        with pytest.raises(ValueError, match=message):
            audit.read_requests(broken)
    broken.write_text(right.replace("chat", "a\u2028b") + "\n")
    assert audit.read_requests(broken)[0]["kind"] == "a\u2028b", "that character ends no line"
    broken.write_text("")
    with pytest.raises(ValueError, match="holds no requests"):
        audit.read_requests(broken)
    for count in (1, 8, 10, 30, 48, 99):
        assert len(audit.spread(requests, count)) == min(count, 48)
        assert count < 8 or {request["kind"] for request in audit.spread(requests, count)} == kinds
    with pytest.raises(ValueError, match="cannot read the requests"):
        audit.read_requests(tmp_path / "none.jsonl")


def test_a_text_that_parts_without_a_tie_is_not_called_one():
    lm, prompt = ms.toy(vocab_size=50), torch.tensor([1, 2, 3])
    right = ms.generate(lm, prompt, max_new_tokens=5).tokens
    wrong = right.clone()
    wrong[2] = (wrong[2] + 1) % 50
    assert audit.first_gap(lm, prompt, right, right) is None
    assert audit.first_gap(lm, prompt, right, wrong) > audit.TIE[torch.float64]
    assert audit.first_gap(lm, prompt, right, right[:3]) == float("inf")


def test_token_identity_fails_when_a_rule_is_wrong(target, monkeypatch):
    right = verify.greedy
    monkeypatch.setattr(
        verify, "greedy", lambda logits, tree: right(logits.roll(1, -1) if tree.tokens.numel() else logits, tree)
    )
    checks = list(audit.identity(target, {"ngram": ms.NGram}, 2, 24, (1,), target))
    assert [check.passed for check in checks] == [False]
    assert "part where the two best logits are" in checks[0].measured


def test_transformers_counterparts_are_numbers_to_compare_with(target):
    makers = {"ngram": ms.NGram, "draft": lambda: ms.load_drafter("draft", target)}
    checks = list(audit.peers(target, makers, 2, 8, target))
    assert [(check.passed, check.measured) for check in checks] == [(None, "2 of 2 texts equal")] * 2
