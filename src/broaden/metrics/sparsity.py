"""Drift and update sparsity (Eq. 15-16), with what a random walk gives.

Pure functions of arrays; a caller adds over tensors. Every drift or sparsity figure wants its null beside it:
z-scored ES walks alpha sqrt(T/N) a coordinate whatever the rewards. Not here: loading checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray


def relative_drift(theta: Any, theta_0: Any) -> float:
    """D_rel = ||theta - theta_0|| / ||theta_0|| (Eq. 15), in float64."""
    a, b = np.asarray(theta, dtype=np.float64), np.asarray(theta_0, dtype=np.float64)
    if a.shape != b.shape:
        raise MetricError(f"shapes differ: {a.shape} and {b.shape}")
    norm = float(np.linalg.norm(b))
    if norm == 0.0:
        raise MetricError("relative drift from a zero vector is not defined")
    return float(np.linalg.norm(a - b)) / norm


def sparsity_counts(delta: Any, taus: Sequence[float]) -> tuple[npt.NDArray[np.int64], int]:
    """(|{0 < |d| <= tau}| for each tau, |{|d| > 0}|): add these over tensors."""
    size = np.abs(np.asarray(delta, dtype=np.float64)).ravel()
    size = size[size > 0]
    return np.array([int(np.sum(size <= tau)) for tau in taus], dtype=np.int64), int(size.size)


def update_sparsity(delta: Any, taus: Sequence[float]) -> FloatArray:
    """s_tau = |{i: 0 < |d_i| <= tau}| / |{i: |d_i| > 0}| (Eq. 16) for each tau.

    Coordinates that did not change count neither way.
    """
    within, changed = sparsity_counts(delta, taus)
    if changed == 0:
        raise MetricError("no coordinate changed, so update sparsity is not defined")
    return within / changed


def threshold(delta: Any, tau: float) -> FloatArray:
    """The update with 0 < |d_i| <= tau set to zero."""
    d = np.asarray(delta, dtype=np.float64)
    return np.where(np.abs(d) <= tau, 0.0, d)


def removed_energy(delta: Any, tau: float) -> float:
    """Share of ||d||^2 that thresholding at tau removes."""
    d = np.asarray(delta, dtype=np.float64)
    total = float(np.sum(d * d))
    if total == 0.0:
        raise MetricError("no coordinate changed")
    return float(np.sum(d[np.abs(d) <= tau] ** 2)) / total


def random_removal(
    delta: Any, rng: np.random.Generator, *, count: int | None = None, energy: float | None = None
) -> FloatArray:
    """Controls for thresholding: remove random changed coordinates, matched by count or by energy.

    Args:
        rng: keyed generator.
        count: how many coordinates, or
        energy: what share of ||d||^2 (the prefix of a random order that comes nearest).
    """
    d = np.array(delta, dtype=np.float64)
    order = rng.permutation(np.flatnonzero(d))
    if (count is None) == (energy is None):
        raise MetricError("give either count or energy")
    if count is None:
        spent = np.concatenate([[0.0], np.cumsum(d.flat[order] ** 2)])
        count = int(np.argmin(np.abs(spent / spent[-1] - float(energy or 0.0)))) if spent[-1] > 0 else 0
    d.flat[order[:count]] = 0.0
    return d


def random_walk_drift(alpha: float, updates: int, members: int, rms_0: float) -> float:
    """Null drift: each z-scored update adds N(0, alpha^2/N) a coordinate, so D_rel = alpha sqrt(T/N) / rms(theta_0)."""
    if members < 1 or rms_0 <= 0.0:
        raise MetricError(f"members and rms must be positive, got {members} and {rms_0}")
    return alpha * math.sqrt(updates / members) / rms_0


def gaussian_sparsity(tau: float, std: float) -> float:
    """Null sparsity: s_tau of N(0, std^2) changes = erf(tau / (std sqrt 2)); std = alpha sqrt(T/N) for a walk."""
    return math.erf(tau / (std * math.sqrt(2.0)))
