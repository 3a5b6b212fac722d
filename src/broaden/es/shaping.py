"""From member rewards to coefficients z. Pure functions of a float64 vector."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Shaping = Literal["zscore", "centered_ranks", "none"]
Rewards = NDArray[np.float64]


def zscore(rewards_N: Rewards) -> Rewards:
    """z_i = (R_i - mean R) / (std R + 1e-8), population standard deviation (arXiv 2608.27351, Eq. 7).

    Equal rewards, decided by max - min rather than by a rounded standard deviation, give exact zeros.
    """
    if rewards_N.size == 0 or rewards_N.max() == rewards_N.min():
        return np.zeros_like(rewards_N)
    z_N: Rewards = (rewards_N - rewards_N.mean()) / (rewards_N.std() + 1e-8)
    return z_N


def centered_ranks(rewards_N: Rewards) -> Rewards:
    """Ranks over [-1/2, 1/2]; ties share the mean of their ranks, so equal rewards give exact zeros."""
    n = rewards_N.size
    if n == 0 or rewards_N.max() == rewards_N.min():
        return np.zeros_like(rewards_N)
    _, inverse, counts = np.unique(rewards_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts + 1) / 2.0
    return mean_rank[inverse] / (n - 1) - 0.5


def raw(rewards_N: Rewards) -> Rewards:
    """R_i as they are (Eq. 6 without a baseline); equal rewards carry no signal and give exact zeros."""
    if rewards_N.size == 0 or rewards_N.max() == rewards_N.min():
        return np.zeros_like(rewards_N)
    return rewards_N.copy()


_BY_NAME = {"zscore": zscore, "centered_ranks": centered_ranks, "none": raw}


def shape(rewards: list[float | None], how: Shaping) -> list[float]:
    """Coefficients for a list of mean rewards; a member without any scorable sample gets 0 and
    does not enter the others' mean and spread."""
    valid = [i for i, r in enumerate(rewards) if r is not None]
    z = _BY_NAME[how](np.array([rewards[i] for i in valid], dtype=np.float64))
    out = [0.0] * len(rewards)
    for i, value in zip(valid, z, strict=True):
        out[i] = float(value)
    return out
