import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import minispec as ms
from minispec.theory import CostModel, best_draft_length, expected_tokens, fixed_length, interpolated, oracle, speedup_bound

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


offers = st.lists(st.integers(0, 5), min_size=1, max_size=20)


def rising(n):
    return 1 + 0.1 * n


def replayed(accepted, lengths):
    """Seconds and rounds of drafting lengths[place] tokens at each place, token by token, as the loop would."""
    at, spent = 0, 0.0
    while at < len(accepted):
        spent += rising(1 + lengths[at]) + 0.05 * lengths[at]
        at += min(lengths[at], accepted[at]) + 1
    return spent


@given(offers, st.integers(0, 6))
def test_a_fixed_length_is_the_loop_replayed(accepted, length):
    known = [(6, n) for n in accepted]
    wanted = len(accepted) * rising(1) / replayed(accepted, [length] * len(accepted))
    assert fixed_length(known, length, rising, 0.05) == pytest.approx(wanted)


@given(offers, st.data())
def test_no_choice_of_lengths_and_no_single_drafter_beats_the_oracle(accepted, data):
    best = oracle([accepted], rising, [0.05])
    lengths = [data.draw(st.integers(0, 6)) for _ in accepted]
    assert best >= len(accepted) * rising(1) / replayed(accepted, lengths) - 1e-9
    other = [data.draw(st.integers(0, 5)) for _ in accepted]
    assert oracle([accepted, other], rising, [0.05, 0.0]) >= max(best, oracle([other], rising, [0.0])) - 1e-9


def test_the_oracle_by_hand():
    assert oracle([[2, 1, 0]], flat, [0.0]) == 3.0, "three tokens in one pass"
    assert oracle([[2, 1, 0]], steep, [0.0]) == 1.0, "nothing to be had where a row costs a pass"
    assert oracle([[0, 0, 0, 0], [1, 0, 1, 0]], flat, [0.0, 0.5]) == pytest.approx(4 / 3), "the second drafter, twice"


def test_a_cost_curve_between_its_points_and_beyond():
    cost = interpolated({1: 1.0, 5: 2.0})
    assert [cost(1), cost(3), cost(5)] == [1.0, 1.5, 2.0]
    with pytest.raises(ValueError, match="known up to 5 tokens, but not for 6"):
        cost(6)


def test_the_cost_model_finds_its_three_terms():
    cells = [(n, cached) for n in (1, 4, 16) for cached in (50, 200, 800)]
    model = CostModel.fit(cells, [0.04 + 0.002 * n + 1e-5 * cached for n, cached in cells])
    assert (model.fixed, model.per_token, model.per_cached) == pytest.approx((0.04, 0.002, 1e-5))
    assert model(10, 100) == pytest.approx(0.061)


def test_expected_tokens_are_those_of_the_loop():
    lm, small = ms.toy(vocab_size=5), ms.toy(vocab_size=5, seed=1, num_hidden_layers=1)
    rounds = []
    for seed in range(40):
        g = ms.generate(
            lm, torch.tensor([1, 2]), ms.DraftModel(small, 3), max_new_tokens=60, sampling=ms.Sampling(1.0), seed=seed
        )
        rounds += [r for r in g.trace.rounds if len(r.drafted) == 3 and not r.was_cut]
    tried = [sum(r.tried > i for r in rounds) for i in range(3)]
    by_position = [sum(len(r.accepted) > i for r in rounds) / n for i, n in enumerate(tried)]
    assert expected_tokens(by_position) == pytest.approx(sum(len(r.emitted) for r in rounds) / len(rounds), rel=1e-12)


def test_rates_outside_0_and_1_are_refused():
    with pytest.raises(ValueError, match="must lie in"):
        expected_tokens([0.5, 1.2])
