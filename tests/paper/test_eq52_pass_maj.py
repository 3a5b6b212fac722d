"""Eq. 52 of the paper's first version: Pass@K without replacement; Maj@K over the first K retained responses.

(The second version gives the numbers 52-53 to the FLOP equations: see test_flop_matching.)
"""

from __future__ import annotations

import json
import os
import re
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics import maj_at_k, pass_at_k


def cases(metric: str) -> list[dict[str, Any]]:
    """The lines for one metric; none where BROADEN_DATA is unset (the test then skips with that reason)."""
    root = os.environ.get("BROADEN_DATA", "")
    path = Path(root).parent / "cases" / "passk_majk_cases.jsonl"
    if not root or not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [line for line in lines if line["metric"] == metric]


def parametrise(metric: str) -> Any:
    found = cases(metric)
    skip = pytest.mark.skip(
        reason="BROADEN_DATA is not set, or ../cases/passk_majk_cases.jsonl is not beside it"
    )
    return pytest.mark.parametrize(
        "case", found or [pytest.param({}, marks=skip)], ids=lambda c: str(c.get("note"))
    )


def ballot(answer: str | None) -> str | None:
    """A canonical form from the answer alone, enough for the cases."""
    if answer is None:
        return None
    return str(Fraction(re.sub(r"^[a-z]\s*=\s*", "", answer)))


@parametrise("pass@k")
def test_pass_cases(case: dict[str, Any]) -> None:
    if case["expect"] == "error":
        with pytest.raises(MetricError, match="needs at least"):
            pass_at_k(case["n"], case["c"], case["k"])
    else:
        assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["expect"], abs=1e-15)


@parametrise("maj@k")
def test_maj_cases(case: dict[str, Any]) -> None:
    ballots = [ballot(a) for a in case["answers"]]
    gold = ballot(case["correct_answer"])
    expected = case.get("expect", case.get("expect_first_seen", 1))  # the tie case states its 1 in its note
    assert maj_at_k(ballots, [float(b == gold) for b in ballots], case["K"]) == expected


@pytest.mark.parametrize("m", [1, 4, 32, 64])
def test_pass_at_k_is_the_equation(m: int) -> None:
    for c in range(m + 1):
        for k in range(1, m + 1):
            exact = 1 - Fraction(comb(m - c, k), comb(m, k))
            assert pass_at_k(m, c, k) == pytest.approx(float(exact), abs=4e-15, rel=4e-15)


def test_pass_32_of_32_is_the_share_of_problems_with_a_hit() -> None:
    c = np.array([0, 1, 5, 32, 0])
    assert pass_at_k(np.full(5, 32), c, 32).mean() == 0.6
    assert pass_at_k(np.full(5, 32), c, 1).mean() == (0 + 1 + 5 + 32 + 0) / 160


def test_the_estimator_is_unbiased_for_k_fresh_responses() -> None:
    p, m, k = 0.13, 8, 5
    pmf = [comb(m, c) * p**c * (1 - p) ** (m - c) for c in range(m + 1)]
    mean = sum(w * pass_at_k(m, c, k) for c, w in enumerate(pmf))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-14)
