"""Intervals: Wilson for hit rates, a bootstrap over documents for perplexity."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for a proportion that stays honest at 0 and 1 (Wilson 1927).

    Unlike the textbook interval ``p +- z sqrt(p (1 - p) / n)`` it has a positive
    width when every trial succeeded, which is the usual case for a passkey.

    Args:
        successes: Number of hits, between 0 and ``trials``.
        trials: Number of trials. 0 gives ``(nan, nan)``.
        confidence: Two-sided level, in (0, 1).

    Returns:
        Lower and upper end, both in [0, 1].

    Raises:
        ValueError: If the counts are impossible or the level is outside (0, 1).
    """
    _check_confidence(confidence)
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials is impossible")
    if trials == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    denominator = 1 + z**2 / trials
    center = (share + z**2 / (2 * trials)) / denominator
    spread = z**2 / (4 * trials**2) + share * (1 - share) / trials
    half_width = z * math.sqrt(spread) / denominator
    low = 0.0 if successes == 0 else max(0.0, center - half_width)
    high = 1.0 if successes == trials else min(1.0, center + half_width)
    return low, high


def perplexity(nll_sums: ArrayLike, tokens: ArrayLike) -> float:
    """Token-weighted perplexity: ``exp(sum of nats / sum of tokens)``.

    Args:
        nll_sums: Summed negative log-likelihoods in nats, any shape.
        tokens: Number of scored tokens behind each sum, the same shape.

    Returns:
        The perplexity. A NaN among the sums gives NaN and an infinite one gives
        infinity; no token at all gives NaN.
    """
    num_tokens = float(np.sum(np.asarray(tokens, dtype=np.float64)))
    if num_tokens == 0:
        return math.nan
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.exp(np.sum(np.asarray(nll_sums, dtype=np.float64)) / num_tokens))


def bootstrap_perplexity(
    nll_sums: ArrayLike,
    tokens: ArrayLike,
    *,
    seed: int,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the perplexity, documents redrawn.

    Documents are the independent units: tokens of one document are not. The
    draws depend on ``seed`` and the number of documents alone, so methods that
    were given the same documents in the same order share their resamples.

    Args:
        nll_sums: Summed nats of each document, shape ``[documents]``.
        tokens: Scored tokens of each document, shape ``[documents]``.
        seed: Seed of the draws.
        resamples: Number of draws, at least 1.
        confidence: Two-sided level, in (0, 1).

    Returns:
        Lower and upper perplexity. ``(nan, nan)`` with fewer than two documents
        (there is no spread to see) or with a loss that is not finite.

    Raises:
        ValueError: If the shapes differ, are not one-dimensional, ``resamples``
            is below 1 or ``confidence`` outside (0, 1).
    """
    _check_confidence(confidence)
    sums = np.asarray(nll_sums, dtype=np.float64)
    counts = np.asarray(tokens, dtype=np.float64)
    if sums.ndim != 1 or sums.shape != counts.shape:
        raise ValueError(f"need two equal lists, one entry a document: {sums.shape} {counts.shape}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    if sums.size < 2 or not np.isfinite(sums).all() or not (counts > 0).all():
        return math.nan, math.nan
    draws = np.random.default_rng(seed).integers(sums.size, size=(resamples, sums.size))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    with np.errstate(over="ignore"):
        return float(np.exp(low)), float(np.exp(high))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence}")
