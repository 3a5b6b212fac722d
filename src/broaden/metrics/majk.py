"""Maj@K: plurality over canonical ballots, with abstention.

A ballot is the canonical form of an answer, computed from the answer alone (`Verdict.ballot`). Classes are
equal ballots; pairwise equality by a verifier never defines them. Failed extraction (ballot None) and
unscored responses (correct None) abstain; all abstaining scores 0; of tied classes the one seen first wins.
Not here: how an answer becomes a ballot (`tasks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray

Ballots = Sequence[str | None]
Correct = Sequence[bool | float | None]


@dataclass(frozen=True, slots=True)
class Vote:
    """Outcome of one plurality vote.

    `score` is the verdict on the winner's first response; `mixed` says that some class holds both right
    and wrong verdicts (a ballot that is coarser than the verifier: a fault to look at).
    """

    score: float
    winner: str | None
    votes: int
    tied: bool
    mixed: bool
    abstained: int


def vote(ballots: Ballots, correct: Correct, k: int) -> Vote:
    """Plurality over the first K retained responses, in stored order.

    Args:
        ballots: canonical answers of the retained responses (None abstains).
        correct: the verifier's score of each response (None: unscored, abstains).
        k: K, at most len(ballots).
    """
    _check(ballots, correct, k)
    classes = _classes(ballots[:k], correct[:k])
    abstained = k - sum(len(v) for v in classes.values())
    mixed = any(len(set(v)) > 1 for v in classes.values())
    if not classes:
        return Vote(0.0, None, 0, False, False, abstained)
    most = max(len(v) for v in classes.values())
    leaders = [name for name, v in classes.items() if len(v) == most]  # dicts keep first-seen order
    return Vote(classes[leaders[0]][0], leaders[0], most, len(leaders) > 1, mixed, abstained)


def maj_at_k(ballots: Ballots, correct: Correct, k: int) -> float:
    """Maj@K of one problem, 0.0 or 1.0: the score of `vote(ballots, correct, k)`."""
    return vote(ballots, correct, k).score


def mixed_classes(ballots: Ballots, correct: Correct) -> list[str]:
    """Ballots that were judged right in one response and wrong in another, in first-seen order."""
    return [name for name, v in _classes(ballots, correct).items() if len(set(v)) > 1]


def expected_maj_at_k(ballots: Ballots, correct: Correct, k: int) -> float:
    """Exact expectation of Maj@K over K responses drawn without replacement, in random order, from all M.

        E[Maj@K] = sum_a f_a P(a wins),   P(a wins) = sum_v sum_t w_a(v, t) / (1 + t) / C(M, K)

    w_a(v, t) counts the subsets of size K in which class a has v votes, t other classes have v as well
    and the rest fewer; under a random order each of the 1 + t tied classes is seen first equally often,
    and the winner's first response is a uniform draw from its class, so f_a is the class's share of right
    verdicts (0 or 1 unless mixed).
    """
    _check(ballots, correct, k)
    classes = list(_classes(ballots, correct).values())
    sizes = tuple(len(v) for v in classes)
    abstain = len(ballots) - sum(sizes)
    shares = [sum(v) / len(v) for v in classes]
    total = 0.0
    for a, share in enumerate(shares):
        if share > 0.0:
            total += share * _win_probability(sizes[a], tuple(sorted(sizes[:a] + sizes[a + 1 :])), abstain, k)
    return min(total, 1.0)


def sampled_maj_at_k(
    ballots: Ballots, correct: Correct, k: int, rng: np.random.Generator, draws: int = 1000
) -> float:
    """Monte-Carlo version of `expected_maj_at_k` (for M in the thousands, and to check the exact one)."""
    _check(ballots, correct, k)
    hits = 0.0
    for _ in range(draws):
        pick = rng.permutation(len(ballots))[:k]
        hits += vote([ballots[i] for i in pick], [correct[i] for i in pick], k).score
    return hits / draws


@lru_cache(maxsize=65536)
def _win_probability(size: int, others: tuple[int, ...], abstain: int, k: int) -> float:
    """P(a class of `size` wins a vote of K drawn from all), ties shared equally."""
    total = size + sum(others) + abstain
    ways = 0.0
    for v in range(1, min(size, k) + 1):
        rest = k - v
        table = _tie_table(others, abstain, v, rest)
        ways += comb(size, v) * float(np.sum(table[rest] / np.arange(1, table.shape[1] + 1)))
    return ways / comb(total, k)


def _tie_table(others: tuple[int, ...], abstain: int, v: int, rest: int) -> FloatArray:
    """table[r, t]: subsets of the other responses of size r in which t classes have v votes, none more."""
    ties = min(sum(s >= v for s in others), rest // v)
    table = np.zeros((rest + 1, ties + 1))
    table[:, 0] = [float(comb(abstain, r)) for r in range(rest + 1)]
    for s in others:
        new = np.zeros_like(table)
        for u in range(min(s, v - 1, rest) + 1):
            new[u:] += comb(s, u) * table[: rest + 1 - u]
        if s >= v and v <= rest:
            new[v:, 1:] += comb(s, v) * table[: rest + 1 - v, :-1]
        table = new
    return table


def _classes(ballots: Ballots, correct: Correct) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for ballot, right in zip(ballots, correct, strict=True):
        if ballot is not None and right is not None:
            out.setdefault(ballot, []).append(float(right))
    return out


def _check(ballots: Ballots, correct: Correct, k: int) -> None:
    if len(ballots) != len(correct):
        raise MetricError(f"one verdict a ballot: got {len(ballots)} ballots and {len(correct)} verdicts")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise MetricError(f"K must be an integer of at least 1, got {k!r}")
    if k > len(ballots):
        raise MetricError(
            f"Maj@{k} needs {k} retained samples, there are {len(ballots)}",
            f"ask for K <= {len(ballots)} or draw more samples",
        )
