"""From member results to update coefficients, one-point and antithetic. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broaden.es.shaping import Shaping, shape
from broaden.population.base import Member
from broaden.records import MemberResult
from broaden.seeds import numpy_generator, stream


def evaluations(members: int, estimator: str) -> tuple[Member, ...]:
    """Who is evaluated: N members, or N pairs (+eps_i, -eps_i)."""
    signs = (1, -1) if estimator == "antithetic" else (1,)
    return tuple(Member(i, s) for i in range(members) for s in signs)


def mean_reward(result: MemberResult) -> float | None:
    """R_i: mean over scorable samples; None where there is none."""
    scored = [r for r in result.rewards if r is not None]
    return sum(scored) / len(scored) if scored else None


def coefficients(rewards: Sequence[float | None], how: Shaping, estimator: str) -> list[float]:
    """c_i of theta + (alpha/N) sum_i c_i eps_i.

    one_point: c_i = z_i (Eq. 7). antithetic: c_i = (z_i+ - z_i-)/2, z shaped over all 2N evaluations
    (arXiv 2608.27351, Appendix G.1, with alpha absorbing 1/sigma); a pair with an unscorable half gives 0.
    """
    z = shape(list(rewards), how)
    if estimator == "one_point":
        return z
    scorable = [r is not None for r in rewards]
    return [(z[i] - z[i + 1]) / 2.0 if scorable[i] and scorable[i + 1] else 0.0 for i in range(0, len(z), 2)]


def random_coefficients(members: int, how: Shaping, run_seed: int, step: int) -> list[float]:
    """The null control: standard normal in place of rewards, shaped alike, so that step lengths match."""
    draws = numpy_generator(stream(run_seed, "null", step)).standard_normal(members)
    return shape([float(d) for d in draws], how)


def shuffled(rewards: Sequence[float | None], run_seed: int, step: int) -> list[float | None]:
    """The other null: the true rewards, dealt to the wrong members."""
    order = numpy_generator(stream(run_seed, "shuffle", step)).permutation(len(rewards))
    return [rewards[int(i)] for i in order]


def reward_matrix(results: Sequence[MemberResult]) -> np.ndarray:
    """rewards_NP (member x prompt-sample), NaN where unscorable: the input of the signal analysis."""
    return np.array([[np.nan if r is None else r for r in m.rewards] for m in results], dtype=np.float64)
