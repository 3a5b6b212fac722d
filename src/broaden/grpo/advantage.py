"""Group-relative advantages: pure functions of rewards and group numbers (NumPy, float64).

Groups are keyed by prompt instance and carried with each sample; nothing is inferred from order or text, so
the same prompt twice in a batch is two groups. Not here: which tokens count (`loss`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from broaden.errors import ConfigError, RewardError
from broaden.seeds import numpy_generator, stream

Scale = Literal["population", "sample", "none"]
SCALES: tuple[Scale, ...] = ("population", "sample", "none")


@dataclass(frozen=True, slots=True)
class Advantages:
    """What `group_advantages` gives: values by sample, and how many groups had something to say.

    Attributes:
        values_R: float64, 0 for unscored samples and in groups whose scored rewards are all equal.
        groups: groups with at least one scored sample.
        informative: groups among them whose rewards differ (max - min > 0).
        unscored: samples without a reward.
    """

    values_R: np.ndarray
    groups: int
    informative: int
    unscored: int


def group_advantages(
    rewards: Sequence[float | None], groups: Sequence[int], *, scale: Scale = "population", eps: float = 0.0
) -> Advantages:
    """Advantages of samples against their own group.

        A_i = (r_i - mean_g) / (s_g + eps)      where max_g - min_g > 0, else exactly 0

    with mean and s over the scored samples of group g; s is the population standard deviation (divides by n),
    the sample one (by n - 1), or 1 for scale "none" (eps then unused). Deciding by max - min and not by s > 0
    keeps a group of equal rewards at exactly 0 whatever the rounding of its mean.

    Args:
        rewards: one a sample; None was not scorable and takes no part (its advantage is 0).
        groups: the number of each sample's group, any integers in any order.
        scale: what the deviation is divided by.
        eps: added to s.

    Raises:
        RewardError: lengths differ, or a reward is not finite. ConfigError: unknown scale.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale is one of {', '.join(SCALES)}, not {scale!r}", "correct the stage's scale")
    if len(rewards) != len(groups):
        raise RewardError(f"{len(rewards)} rewards for {len(groups)} samples", "give one reward a sample")
    scored_R = np.array([r is not None for r in rewards], bool)
    r_R = np.array([0.0 if r is None else r for r in rewards], np.float64)
    if not np.isfinite(r_R).all():
        raise RewardError("a reward is not finite", "return None for a sample that can't be scored")
    values_R = np.zeros(len(r_R))
    seen = informative = 0
    group_R = np.asarray(groups)
    for g in np.unique(group_R[scored_R]):
        at = np.flatnonzero((group_R == g) & scored_R)
        seen += 1
        if np.ptp(r_R[at]) > 0:
            informative += 1
            values_R[at] = _standardised(r_R[at], scale, eps)
    return Advantages(values_R, seen, informative, int((~scored_R).sum()))


def _standardised(r: np.ndarray, scale: Scale, eps: float) -> np.ndarray:
    deviation: np.ndarray = r - r.mean()
    if scale != "none":
        s = math.sqrt(float((deviation**2).sum()) / (len(r) - (scale == "sample")))
        deviation /= s + eps
    return deviation


def informative_share_by_chance(rewards: Sequence[float | None], groups: Sequence[int]) -> float | None:
    """The share of groups that would be informative if scored rewards were dealt to the groups at random.

        1 - mean_g sum_v C(n_v, size_g) / C(n, size_g)

    with n_v of n pooled rewards equal to v, sizes as they are. A share below it means that prompts differ in
    difficulty (solved always or never), above it cannot be by more than chance. None where nothing is scored.
    """
    pairs = [(r, g) for r, g in zip(rewards, groups, strict=True) if r is not None]
    if not pairs:
        return None
    _, counts = np.unique([r for r, _ in pairs], return_counts=True)
    _, sizes = np.unique([g for _, g in pairs], return_counts=True)
    equal = [sum(math.comb(int(c), int(k)) for c in counts) / math.comb(len(pairs), int(k)) for k in sizes]
    return 1.0 - sum(equal) / len(equal)


def permuted(values_R: np.ndarray, eligible_R: np.ndarray, run_seed: int, step: int) -> np.ndarray:
    """The null control: eligible samples' advantages dealt out at random (key `stream(run_seed, "null", step)`)."""
    out = values_R.copy()
    at = np.flatnonzero(eligible_R)
    out[at] = values_R[numpy_generator(stream(run_seed, "null", step)).permutation(at)]
    return out
