"""Processed distributions against transformers' own processors; draws against the distribution."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from minispec.sampling import Dice, Sampling, draw


def theirs(logits, temperature, top_k, top_p):
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return scores.softmax(-1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(-12, 12), min_size=2, max_size=12),  # few values: many ties
    st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    st.integers(0, 13),
    st.sampled_from([0.05, 0.3, 0.5, 0.75, 0.9, 1.0]),
)
def test_equals_transformers_ties_included(logits, temperature, top_k, top_p):
    x = torch.tensor([logits], dtype=torch.float64) / 4
    got, want = Sampling(temperature, top_k, top_p)(x), theirs(x, temperature, top_k, top_p)
    assert torch.equal(got > 0, want > 0)
    assert torch.allclose(got, want, atol=1e-12)


def test_equals_transformers_on_a_large_vocabulary():
    x = torch.randn(4, 49152, generator=torch.Generator().manual_seed(0)) * 3
    for temperature, top_k, top_p in [(0.8, 0, 1.0), (1.3, 50, 1.0), (0.7, 0, 0.9), (0.7, 40, 0.95), (1.0, 0, 1e-9)]:
        got, want = Sampling(temperature, top_k, top_p)(x), theirs(x, temperature, top_k, top_p)
        assert torch.equal(got > 0, want > 0)
        assert torch.allclose(got, want, atol=1e-6)


def test_order_is_temperature_then_top_k_then_top_p():
    x = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    assert Sampling(1.0, 0, 0.65)(x).tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])  # 0.3 crosses the threshold: it stays
    assert Sampling(0.5, 0, 0.65)(x).tolist() == pytest.approx([16 / 25, 9 / 25, 0, 0])  # squared first, then cut
    assert Sampling(1.0, 2, 0.5)(x).tolist() == pytest.approx([1, 0, 0, 0])  # 4/7 of what top-k left is enough


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 5e-324])
def test_temperature_close_to_0_is_greedy_and_finite(temperature):
    p = Sampling(temperature)(torch.tensor([30.0, 31.0, -1e30]))
    assert p.tolist() == [0, 1, 0]


def test_temperature_0_is_all_mass_on_the_first_of_the_likeliest():
    assert Sampling()(torch.tensor([1.0, 3.0, 3.0])).tolist() == [0, 1, 0]


def test_half_precision_is_computed_in_float32_and_float64_stays():
    assert Sampling(1.0)(torch.zeros(3, dtype=torch.bfloat16)).dtype == torch.float32
    assert Sampling(1.0)(torch.zeros(3, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"temperature": -0.1}, "temperature must be a finite number"),
        ({"temperature": math.nan}, "temperature must be a finite number"),
        ({"temperature": math.inf}, "temperature must be a finite number"),
        ({"temperature": "1"}, "temperature must be a finite number"),
        ({"top_k": -1}, "top_k must be"),
        ({"top_k": 1.5}, "top_k must be"),
        ({"top_p": 0.0}, "top_p must lie in"),
        ({"top_p": 1.1}, "top_p must lie in"),
        ({"top_p": math.nan}, "top_p must lie in"),
    ],
)
def test_bad_parameters(kwargs, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**kwargs)


def test_draw_inverts_the_cumulative_sum():
    p = torch.tensor([0.25, 0.0, 0.5, 0.25], dtype=torch.float64)
    for u, token in [(0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (1 - 2**-53, 3)]:
        assert draw(p, torch.tensor(u, dtype=torch.float64)).item() == token


def test_a_token_of_probability_0_is_never_drawn():
    for p in ([0.0, 1.0, 0.0], [0.0, 0.0, 1e-30], [1.0, 0.0, 0.0]):
        for u in (0.0, 0.5, 1 - 2**-24):
            assert p[draw(torch.tensor(p), torch.tensor(u)).item()] > 0


def test_a_sum_that_rounds_below_1_still_ends_at_a_token():
    p = torch.full((49152,), 1 / 49152) * 0.999
    assert draw(p, torch.tensor(1 - 2**-24)).item() == 49151


def test_a_row_sees_the_same_numbers_alone_and_in_a_batch():
    alone = Dice(Sampling(1.0), [7])
    batch = Dice(Sampling(1.0), [3, 7])
    for mine, other in [(2, 5), (0, 3), (4, 0)]:
        assert torch.equal(alone.roll([mine])[0], batch.roll([other, mine])[1, :mine])
    batch.keep_rows([1])
    assert torch.equal(alone.roll([3]), batch.roll([3]))
