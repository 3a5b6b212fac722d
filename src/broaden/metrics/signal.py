"""Is there anything but noise in a population's rewards? Two-way member x prompt analysis of variance.

Members answer the same prompts, so a member's mean reward varies far less by chance than p(1 - p)/D says;
the prompt effect is taken out first. F near 1: the update is a random walk. One step cannot detect
F = 1.1; `pool` adds sums of squares and degrees of freedom over steps.
Not here: what the trainer does about it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import BoolArray, FloatArray
from broaden.records import Record
from broaden.seeds import numpy_generator

PERMUTATIONS = 1000
_CELLS = 4_000_000


@dataclass(frozen=True, slots=True)
class Signal(Record):
    """Result of the analysis, one step or pooled.

    `F` = MS_member/MS_residual (None where a mean square is zero or undefined); `rho` = 1 - 1/F, the share
    of the variance between members' means that is skill (raw: negative where F < 1); `p_value` of the
    within-prompt permutation null (None where rewards do not vary); `null_mean`, `null_var`: of ss_member
    under that null; `members`, `prompts`: as many as had comparable cells (means over pooled steps).
    """

    F: float | None
    rho: float | None
    p_value: float | None
    ss_member: float
    df_member: int
    ss_residual: float
    df_residual: int
    null_mean: float
    null_var: float
    members: float
    prompts: float
    steps: int = 1


def signal(rewards: Any, *, key: int | None = None, permutations: int = PERMUTATIONS) -> Signal:
    """Analysis of one step's rewards.

        y_np = mu + a_n + b_p + e_np,   F = (SS_a/df_a)/(SS_e/df_e),   rho = 1 - 1/F

    SS_a is adjusted for prompts. With the prompt-centred values z and Q_n = sum_p z_np it is Q^T C^- Q, where
    C = diag(cells of n) - sum_p m_p m_p^T/|m_p| over the observed cells m; complete tables give the textbook
    SS_a = P sum_n (ybar_n - ybar)^2. The null permutes the rewards of each prompt among its members: the
    within-prompt sum of squares is fixed, so F grows with SS_a, whose null mean and variance are
    computed in closed form (exact for complete tables).

    Args:
        rewards: (N members, P prompts), means over samples where there are several; None or NaN: unscored.
        key: of the permutation draws (`stream(seed, "null", step)`). Without a key the p-value comes from a
            scaled chi-square with the permutation null's mean and variance, which costs nothing.
        permutations: draws, with a key.
    Returns:
        With zero degrees of freedom, and F None, where no prompt was scored for two members.
    """
    y_NP, seen_NP = _table(rewards)
    z_NP = _centred(y_NP, seen_NP)
    inverse, df_member = _information(seen_NP)
    ss_within = float(np.sum(z_NP**2))
    q_N = z_NP.sum(1)
    ss_member = float(q_N @ inverse @ q_N)
    used = seen_NP.sum(0) > 1
    df_residual = int(seen_NP[:, used].sum() - used.sum()) - df_member
    ss_residual = max(ss_within - ss_member, 0.0)
    if ss_residual <= 1e-12 * ss_within:
        ss_residual = 0.0
    mean, var = _null_moments(z_NP, seen_NP, inverse)
    p = _chi_square_tail(ss_member, mean, var)
    if key is not None and p is not None:
        p = _permutation_p(z_NP, seen_NP, inverse, ss_member, key, permutations)
    f, rho = _ratios(ss_member, df_member, ss_residual, df_residual)
    members = float((seen_NP[:, used].sum(1) > 0).sum())
    return Signal(
        f, rho, p, ss_member, df_member, ss_residual, df_residual, mean, var, members, float(used.sum())
    )


def anova(rewards: Any) -> Signal:
    """The analysis of one training step: `signal` without permutation draws."""
    return signal(rewards)


def from_values(values: Mapping[str, float | int | None]) -> Signal | None:
    """The signal of a logged step (`StepRecord.values`), None where the step has none.

    Without logged null moments those of a complete table with equal variances stand in: mean
    df_member/(df_member + df_residual) of the total, variance 2 mean^2/df_member.
    """
    terms = [values.get(name) for name in ("ss_member", "df_member", "ss_residual", "df_residual")]
    if any(t is None for t in terms):
        return None
    ss_member, df_member, ss_residual, df_residual = (float(t or 0.0) for t in terms)
    df = df_member + df_residual
    mean = _or(values.get("null_mean"), (ss_member + ss_residual) * df_member / df if df else 0.0)
    var = _or(values.get("null_var"), 2.0 * mean * mean / df_member if df_member else 0.0)
    f, rho = _ratios(ss_member, int(df_member), ss_residual, int(df_residual))
    p = _chi_square_tail(ss_member, mean, var)
    members = df_member + 1.0
    prompts = 1.0 + df_residual / df_member if df_member else 0.0
    return Signal(
        f, rho, p, ss_member, int(df_member), ss_residual, int(df_residual), mean, var, members, prompts
    )


def pool(signals: Sequence[Signal]) -> Signal:
    """One signal from several steps: sums of squares and degrees of freedom add, and so do null moments."""
    if not signals:
        raise MetricError("there are no steps to pool")
    if len(signals) == 1:
        return signals[0]
    ss_member, ss_residual = sum(s.ss_member for s in signals), sum(s.ss_residual for s in signals)
    df_member, df_residual = sum(s.df_member for s in signals), sum(s.df_residual for s in signals)
    mean, var = sum(s.null_mean for s in signals), sum(s.null_var for s in signals)
    steps = sum(s.steps for s in signals)
    f, rho = _ratios(ss_member, df_member, ss_residual, df_residual)
    return Signal(
        f,
        rho,
        _chi_square_tail(ss_member, mean, var),
        ss_member,
        df_member,
        ss_residual,
        df_residual,
        mean,
        var,
        sum(s.members * s.steps for s in signals) / steps,
        sum(s.prompts * s.steps for s in signals) / steps,
        steps,
    )


def prompts_for(result: Signal, rho: float = 0.5) -> int | None:
    """Prompts a member for a wanted reliability, None where no signal is seen (F <= 1 or unknown).

    F = 1 + P g,  g = Var(member)/Var(residual)   =>   P = rho / ((1 - rho) g)
    """
    if not 0.0 < rho < 1.0:
        raise MetricError(f"rho must lie between 0 and 1, got {rho}")
    if result.F is None or result.F <= 1.0 or result.prompts == 0:
        return None
    return math.ceil(rho / (1.0 - rho) * result.prompts / (result.F - 1.0) - 1e-9)


def steps_to_detect(result: Signal, z: float = 3.0) -> int | None:
    """Steps like these after which F stands z standard deviations above 1 (None where F <= 1 or unknown)."""
    if result.F is None or result.F <= 1.0:
        return None
    variance = 2.0 * result.steps * (1.0 / result.df_member + 1.0 / result.df_residual)
    return max(1, math.ceil(z * z * variance / (result.F - 1.0) ** 2))


def advice(result: Signal) -> str:
    """What the figure means and what N, prompts or sigma would help, in a few sentences."""
    if result.p_value is None:
        return (
            "All members got the same rewards: nothing to learn from. "
            "Use harder or easier prompts, or a larger sigma."
        )
    if result.F is None or result.rho is None:
        return "The members differ and nothing else does: every prompt ranks them alike. More members use that best."
    head = f"F = {result.F:.3f} over {result.steps} step(s), p = {result.p_value:.2g}. "
    if result.F <= 1.0:
        return head + (
            "No signal: members differ no more than chance. Raise prompts or sigma, keep the sampling key common "
            "to all members, or choose prompts that are sometimes solved."
        )
    share = f"{100 * result.rho:.0f} % of the spread between members is skill. "
    prompts, steps = prompts_for(result), steps_to_detect(result)
    if result.p_value > 0.05:
        return (
            head
            + share
            + (
                f"Not told from noise yet: about {steps} steps of this size would. "
                f"{prompts} prompts a member would bring it to 50 %."
            )
        )
    if result.rho < 0.5:
        return (
            head
            + share
            + (
                f"Prompts help most now: {prompts} a member (from {result.prompts:.0f}) bring it to 50 %; "
                f"doubling N or prompts costs the same and gains about as much."
            )
        )
    return (
        head
        + share
        + (
            "Rewards are reliable: more members improve the direction, more prompts hardly do; "
            "fewer prompts would be cheaper."
        )
    )


def _or(value: float | int | None, default: float) -> float:
    return default if value is None else float(value)


def _table(rewards: Any) -> tuple[FloatArray, BoolArray]:
    y_NP = np.asarray(rewards, dtype=np.float64)  # None becomes NaN
    if y_NP.ndim != 2 or y_NP.size == 0:
        raise MetricError(f"rewards must be (members, prompts), got shape {y_NP.shape}")
    if np.isinf(y_NP).any():
        raise MetricError("rewards hold infinity")
    return y_NP, ~np.isnan(y_NP)


def _centred(y_NP: FloatArray, seen_NP: BoolArray) -> FloatArray:
    """Prompt-centred rewards, 0 in missing cells; constant prompts are exactly 0 (decided by max - min)."""
    filled = np.where(seen_NP, y_NP, 0.0)
    counts_P = np.maximum(seen_NP.sum(0), 1)
    z_NP = np.where(seen_NP, filled - filled.sum(0) / counts_P, 0.0)
    high, low = np.where(seen_NP, y_NP, -np.inf).max(0), np.where(seen_NP, y_NP, np.inf).min(0)
    return np.where((high > low)[None, :], z_NP, 0.0)


def _information(seen_NP: BoolArray) -> tuple[FloatArray, int]:
    """Pseudo-inverse of the member information matrix C and its rank (N - 1 for a connected table)."""
    m_NP = seen_NP.astype(np.float64)
    counts_P = np.maximum(m_NP.sum(0), 1.0)
    c_NN = np.diag(m_NP.sum(1)) - (m_NP / counts_P) @ m_NP.T
    values, vectors = np.linalg.eigh(c_NN)
    keep = values > 1e-9 * max(values.max(), 1.0)
    inverse = (vectors[:, keep] / values[keep]) @ vectors[:, keep].T
    return inverse, int(keep.sum())


def _null_moments(z_NP: FloatArray, seen_NP: BoolArray, inverse: FloatArray) -> tuple[float, float]:
    """Mean and variance of SS_a when each prompt's rewards are permuted among its members.

    Cov(z_p) = s_p^2 (diag(m_p) - m_p m_p^T/n_p) with s_p^2 = sum z^2/(n_p - 1); with S the sum of these,
    E = tr(C^- S),  Var = 2 (tr(C^- S C^- S) - sum_p tr(C^- S_p C^- S_p))   (exact where C^- is one projector).
    """
    n_P = seen_NP.sum(0).astype(np.float64)
    s2_P = np.sum(z_NP**2, axis=0) / np.maximum(n_P - 1.0, 1.0)
    m_NP = seen_NP.astype(np.float64)
    total = np.diag(m_NP @ s2_P) - (m_NP * (s2_P / np.maximum(n_P, 1.0))) @ m_NP.T
    product = inverse @ total
    a_NN = inverse**2
    direct_P = np.einsum("np,nm,mp->p", m_NP, a_NN, m_NP, optimize=True)
    row_NP = inverse @ m_NP
    cross_P = np.sum(m_NP * row_NP**2, axis=0)
    square_P = np.sum(m_NP * row_NP, axis=0) ** 2
    n_P = np.maximum(n_P, 1.0)
    own_P = direct_P - 2.0 * cross_P / n_P + square_P / n_P**2
    variance = 2.0 * (float(np.trace(product @ product)) - float(np.sum(s2_P**2 * own_P)))
    return float(np.trace(product)), max(variance, 0.0)


def _permutation_p(
    z_NP: FloatArray, seen_NP: BoolArray, inverse: FloatArray, observed: float, key: int, permutations: int
) -> float:
    """(1 + draws with SS_a at least as large)/(1 + draws)."""
    rng = numpy_generator(key)
    n, p = z_NP.shape
    packed_NP = np.take_along_axis(z_NP, np.argsort(~seen_NP, axis=0, kind="stable"), axis=0)
    block, hits = max(1, _CELLS // (n * p)), 0
    for start in range(0, permutations, block):
        rows = min(block, permutations - start)
        order = rng.random((rows, n, p))
        rank = np.argsort(np.where(seen_NP, order, 2.0), axis=1)  # observed members in random order first
        q_RN = np.zeros((rows, n))
        moved = np.zeros((rows, n, p))
        np.put_along_axis(moved, rank, np.broadcast_to(packed_NP, moved.shape), axis=1)
        q_RN = moved.sum(2)
        hits += int(np.sum(np.einsum("rn,nm,rm->r", q_RN, inverse, q_RN) >= observed * (1 - 1e-12)))
    return (1 + hits) / (1 + permutations)


def _ratios(
    ss_member: float, df_member: int, ss_residual: float, df_residual: int
) -> tuple[float | None, float | None]:
    """(F, rho), None where undefined; without any residual F has no finite value and rho is 1."""
    if df_member < 1 or df_residual < 1 or (ss_member <= 0.0 and ss_residual <= 0.0):
        return None, None
    if ss_residual <= 0.0:
        return None, 1.0
    f = (ss_member / df_member) / (ss_residual / df_residual)
    return f, (1.0 - 1.0 / f if f > 1e-12 else None)


def _chi_square_tail(value: float, mean: float, var: float) -> float | None:
    """P(X >= value), X a scaled chi-square of this mean and variance (Wilson-Hilferty); None without variance."""
    if mean <= 0.0 or var <= 0.0:
        return None
    df = 2.0 * mean * mean / var
    z = ((max(value, 0.0) / mean) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))
    return 0.5 * math.erfc(z / math.sqrt(2.0))
