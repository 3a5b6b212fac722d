"""Schedules: values by hand."""

from __future__ import annotations

import pytest

from broaden.errors import ConfigError
from broaden.models.schedule import factor


def test_constant_with_warmup() -> None:
    assert [factor("constant", s, 10, warmup=4) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_reaches_final_at_the_end() -> None:
    assert factor("linear", 0, 4, final=0.2) == 1.0
    assert factor("linear", 2, 4, final=0.2) == pytest.approx(0.6)
    assert factor("linear", 4, 4, final=0.2) == pytest.approx(0.2)


def test_cosine_by_hand() -> None:
    # final + (1 - final) (1 + cos(pi / 2)) / 2 = 0.1 + 0.9 / 2 half-way, ramp (1 + 1) / 8 at step 1
    assert factor("cosine", 50, 100, final=0.1) == pytest.approx(0.55)
    assert factor("cosine", 1, 100, warmup=8) == pytest.approx(0.25 * 0.999753, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "kwargs"), [("exponential", {}), ("cosine", {"final": 1.5}), ("linear", {"warmup": -1})]
)
def test_refuses(kind: str, kwargs: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        factor(kind, 0, 10, **kwargs)  # type: ignore[arg-type]
