"""Intervals against known values, and the invariants they keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.statistics import bootstrap_perplexity, perplexity, wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe 1998, table I, method 3 (Wilson's score without continuity correction).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_published_values(
    successes: int, trials: int, low: float, high: float
) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_level() -> None:
    # z^2 / (1 + z^2 / n) / n at one success in one trial: the lower end is 1 / (1 + z^2).
    low, high = wilson_interval(1, 1, confidence=0.99)
    assert low == pytest.approx(1 / (1 + 2.5758293035489**2))
    assert high == 1.0


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_share_and_mirrors(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    assert low < high
    mirrored = wilson_interval(trials - successes, trials)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-12)


def test_wilson_without_trials_is_nan() -> None:
    assert all(math.isnan(end) for end in wilson_interval(0, 0))


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3), (0, -1)])
def test_wilson_refuses_impossible_counts(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        wilson_interval(successes, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 2, confidence)
    with pytest.raises(ValueError, match="confidence"):
        bootstrap_perplexity([1.0, 2.0], [1, 1], seed=0, confidence=confidence)


def test_perplexity_weighs_tokens_not_windows() -> None:
    assert perplexity([10.0, 90.0], [10, 30]) == pytest.approx(math.exp(100 / 40))


@pytest.mark.parametrize(
    ("nats", "tokens", "expected"),
    [([math.nan, 1.0], [1, 1], math.nan), ([math.inf, 1.0], [1, 1], math.inf), ([], [], math.nan)],
)
def test_perplexity_keeps_what_is_not_finite(
    nats: list[float], tokens: list[int], expected: float
) -> None:
    assert perplexity(nats, tokens) == pytest.approx(expected, nan_ok=True)


def test_perplexity_too_large_for_a_float_is_infinite() -> None:
    assert perplexity([1e6], [10]) == math.inf


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    # A percentile bootstrap is a little short with few documents: about 93% at 60 for 95%.
    random = np.random.default_rng(1)
    tokens = np.full(60, 100)
    hits = 0
    for trial in range(800):
        nats = tokens * random.normal(3.0, 0.4, size=60)
        low, high = bootstrap_perplexity(nats, tokens, seed=trial, resamples=400)
        hits += low <= math.exp(3.0) <= high
    assert 0.90 <= hits / 800 <= 0.97


def test_bootstrap_shares_its_resamples_between_methods() -> None:
    tokens = np.full(12, 100)
    nats = tokens * np.linspace(2.0, 3.0, 12) ** 2
    low, high = bootstrap_perplexity(nats, tokens, seed=3)
    shifted = bootstrap_perplexity(nats + 0.5 * tokens, tokens, seed=3)
    assert shifted == pytest.approx((low * math.exp(0.5), high * math.exp(0.5)))
    assert bootstrap_perplexity(nats, tokens, seed=4) != (low, high)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.1, 8), st.integers(1, 999)), min_size=2, max_size=8))
def test_bootstrap_stays_within_the_documents(documents: list[tuple[float, int]]) -> None:
    losses, tokens = np.array([d[0] for d in documents]), np.array([d[1] for d in documents])
    low, high = bootstrap_perplexity(losses * tokens, tokens, seed=0, resamples=200)
    slack = 1 + 1e-9
    assert math.exp(losses.min()) <= low * slack
    assert low <= high <= math.exp(losses.max()) * slack


@pytest.mark.parametrize("nats", [[5.0], [], [1.0, math.nan], [1.0, math.inf]])
def test_bootstrap_without_spread_or_numbers_is_nan(nats: list[float]) -> None:
    interval = bootstrap_perplexity(nats, [1] * len(nats), seed=0)
    assert all(math.isnan(end) for end in interval)


def test_bootstrap_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="equal lists"):
        bootstrap_perplexity([1.0, 2.0], [1], seed=0)
    with pytest.raises(ValueError, match="resamples"):
        bootstrap_perplexity([1.0, 2.0], [1, 1], seed=0, resamples=0)
