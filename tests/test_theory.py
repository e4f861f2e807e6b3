import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minispec.theory import best_draft_length, expected_tokens, oracle_bound, speedup_bound

rates = st.lists(st.floats(0, 1), max_size=8)


def flat(n):
    return 1.0


def steep(n):
    return float(n)


@given(st.floats(0, 0.999), st.integers(0, 12))
def test_one_rate_gives_the_closed_form(rate, count):
    assert expected_tokens([rate] * count) == pytest.approx((1 - rate ** (count + 1)) / (1 - rate))


def test_equals_simulation():
    by_position, rounds = [0.9, 0.6, 0.3], 1_000_000
    hits = torch.rand(rounds, 3, generator=torch.Generator().manual_seed(0)) < torch.tensor(by_position)
    emitted = 1 + hits.cumprod(1).sum(1).double()
    assert expected_tokens(by_position) == pytest.approx(emitted.mean().item(), abs=4 * emitted.std().item() / rounds**0.5)


def test_correlated_acceptance_beats_its_mean_rate():
    easy, hard = expected_tokens([0.9] * 5), expected_tokens([0.1] * 5)
    assert (easy + hard) / 2 > expected_tokens([0.5] * 5)


def test_the_bound_by_hand():
    assert speedup_bound(3.0, flat, nodes=4, draft_s=0.5) == 2.0
    assert speedup_bound(3.0, steep, nodes=4, draft_s=0.0) == 0.6


def test_the_best_length_follows_the_cost_curve():
    assert best_draft_length([0.9] * 6, flat, 0.0)[0] == 6, "free rows: draft all"
    assert best_draft_length([0.9] * 6, steep, 0.0) == (0, 1.0), "no spare arithmetic: draft nothing"
    length, bound = best_draft_length([0.9] * 6, flat, 0.3)
    assert 0 < length < 6 and bound > 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.floats(0, 1))
def test_no_fixed_length_beats_the_oracle(accepted, draft_token_s):
    def cost(n):
        return 1 + 0.1 * n

    best = oracle_bound(accepted, cost, draft_token_s)
    for length in range(6):
        tokens = sum(min(n, length) + 1 for n in accepted) / len(accepted)
        assert best >= speedup_bound(tokens, cost, length, length * draft_token_s) - 1e-9


def test_rates_outside_0_and_1_are_refused():
    with pytest.raises(ValueError, match="must lie in"):
        expected_tokens([0.5, 1.2])
