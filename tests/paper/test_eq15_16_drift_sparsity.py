"""Eq. 15 (relative distance), Eq. 16 (update sparsity), thresholded updates, and their random-walk nulls."""

from __future__ import annotations

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics.sparsity import (
    gaussian_sparsity,
    random_removal,
    random_walk_drift,
    relative_drift,
    removed_energy,
    sparsity_counts,
    threshold,
    update_sparsity,
)


def test_equation_15() -> None:
    assert relative_drift([3.0, 4.0], [3.0, 0.0]) == 4.0 / 3.0
    for bad in (([1.0], [0.0]), ([1.0], [1.0, 2.0])):
        with pytest.raises(MetricError):
            relative_drift(*bad)


def test_equation_16_leaves_unchanged_coordinates_out_and_includes_tau() -> None:
    delta = [0.0, 0.0, 1e-3, -1e-3, 2e-3, -5e-3]
    np.testing.assert_array_equal(update_sparsity(delta, [5e-4, 1e-3, 2e-3, 1.0]), [0.0, 0.5, 0.75, 1.0])
    with pytest.raises(MetricError, match="no coordinate changed"):
        update_sparsity([0.0], [1e-3])


def test_counts_add_over_tensors() -> None:
    r = np.random.default_rng(0)
    parts = [r.normal(0, 1e-3, 1000), r.normal(0, 2e-3, 500)]
    taus = [5e-4, 1.5e-3]
    counts = [sparsity_counts(p, taus) for p in parts]
    together = sum(c[0] for c in counts) / sum(c[1] for c in counts)
    np.testing.assert_allclose(together, update_sparsity(np.concatenate(parts), taus))


def test_thresholding() -> None:
    np.testing.assert_array_equal(threshold([1e-3, -2e-3, 0.0, 3e-3], 2e-3), [0, 0, 0, 3e-3])
    assert removed_energy([3.0, -4.0], 3.0) == pytest.approx(9 / 25)


def test_removal_controls_are_matched() -> None:
    delta = np.random.default_rng(0).normal(size=10_000)
    delta[::10] = 0.0
    tau = 1.0
    count = int(np.sum((np.abs(delta) <= tau) & (delta != 0)))
    by_count = random_removal(delta, np.random.default_rng(1), count=count)
    assert np.sum((by_count == 0) & (delta != 0)) == count
    energy = removed_energy(delta, tau)
    by_energy = random_removal(delta, np.random.default_rng(1), energy=energy)
    assert 1 - np.sum(by_energy**2) / np.sum(delta**2) == pytest.approx(energy, abs=1e-3)
    assert np.sum(by_energy == 0) < np.sum(by_count == 0)  # small changes hold little energy
    with pytest.raises(MetricError, match="either"):
        random_removal(delta, np.random.default_rng(1))


def test_nulls_against_a_simulated_walk() -> None:
    alpha, updates, members, size = 2.5e-4, 60, 32, 3000
    r = np.random.default_rng(0)
    theta_0 = r.normal(0, 0.03, size)
    theta = theta_0.copy()
    for _ in range(updates):
        z = r.normal(size=members)
        z = (z - z.mean()) / z.std()
        theta += alpha / members * (z @ r.normal(size=(members, size)))
    rms = float(np.sqrt(np.mean(theta_0**2)))
    assert relative_drift(theta, theta_0) == pytest.approx(
        random_walk_drift(alpha, updates, members, rms), rel=0.05
    )
    std = alpha * np.sqrt(updates / members)
    taus = [0.5 * std, std, 2 * std]
    np.testing.assert_allclose(
        update_sparsity(theta - theta_0, taus), [gaussian_sparsity(t, std) for t in taus], atol=0.03
    )
    assert gaussian_sparsity(std, std) == pytest.approx(0.682689, abs=1e-6)


def test_the_papers_settings_give_the_measured_null() -> None:
    """s_tau of a walk in exact arithmetic: near the 28.8/54.1/86.1/97.4/99.7 % of the bf16 experiment."""
    std = 2.5e-4 * np.sqrt(234 / 32)
    got = [100 * gaussian_sparsity(t, std) for t in (2.5e-4, 5e-4, 1e-3, 1.5e-3, 2e-3)]
    np.testing.assert_allclose(got, [28.8, 54.1, 86.1, 97.4, 99.7], atol=0.5)
