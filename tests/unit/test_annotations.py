"""Annotations of the numeric packages are checked under test: a wrong type does not pass silently."""

from __future__ import annotations

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintParamViolation
from jaxtyping import Float, jaxtyped

from broaden.metrics.intervals import wilson


def test_a_wrong_type_is_caught() -> None:
    with pytest.raises(BeartypeCallHintParamViolation, match="trials"):
        wilson(1.0, "ten")  # type: ignore[arg-type]
    assert wilson(1, 2).value == 0.5  # an int is a float


def test_a_wrong_shape_is_caught() -> None:
    from beartype import beartype

    @jaxtyped(typechecker=beartype)
    def mean(rewards_NP: Float[np.ndarray, "N P"]) -> float:
        return float(rewards_NP.mean())

    assert mean(np.ones((2, 3))) == 1.0
    with pytest.raises(Exception, match="Type-check error"):
        mean(np.ones(3))
