"""The update's edges: nothing to do, signs, decay, statistics, errors."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from broaden.errors import DivergedError, UsageError
from broaden.perturb import NoiseSpec, apply_update, center_hash, fold_signs
from broaden.perturb.update import fixed_point


def make_center():
    generator = torch.Generator().manual_seed(1)
    center = {"a": torch.randn(33, 65, generator=generator), "b": torch.randn(11, generator=generator)}
    center["a"][0, :5] = -0.0
    return center


SPEC = NoiseSpec(5, 1, 0.01, ("a", "b"))


@pytest.mark.parametrize(
    ("coefficients", "scale"), [([0.0, 0.0], 0.1), ([-0.0, 0.0], 0.1), ([1.0, -1.0], 0.0), ([], 0.1)]
)
def test_nothing_to_do_leaves_every_bit(coefficients, scale):
    center = make_center()
    before = center_hash(center)
    stats = apply_update(center, SPEC, range(len(coefficients)), coefficients, scale)
    assert (stats.norm, stats.max_abs, stats.changed) == (0.0, 0.0, 0)
    assert center_hash(center) == before
    assert math.copysign(1, center["a"][0, 0].item()) == -1


def test_a_delta_that_rounds_to_zero_leaves_negative_zero():
    center = make_center()
    before = center_hash(center)
    assert apply_update(center, SPEC, [0], [1.0], 1e-60).changed == 0
    assert center_hash(center) == before


def test_a_zero_coefficient_is_as_if_the_member_were_absent():
    """32 live members get 30-bit integers, 33 would get 29: a member without a say must not count."""
    live = [1 / (i + 3) for i in range(32)]
    left, right = make_center(), make_center()
    apply_update(left, SPEC, range(33), [*live[:5], 0.0, *live[5:]], 0.1)
    apply_update(right, SPEC, [i for i in range(33) if i != 5], live, 0.1)
    assert center_hash(left) == center_hash(right)
    members = [i for i in range(34) if i != 5]
    assert fixed_point(members[:32], live) == fixed_point(range(33), [*live[:5], 0.0, *live[5:]])


def test_only_the_named_tensors_move():
    center = make_center()
    other = center["a"].clone()
    apply_update(center, NoiseSpec(5, 1, 0.01, ("b",)), [0], [1.0], 0.1)
    assert torch.equal(center["a"], other)


def test_statistics_are_of_the_applied_change():
    center = make_center()
    before = {name: w.double() for name, w in center.items()}
    stats = apply_update(center, SPEC, [0, 1], [1.0, -0.5], 1e-3)
    change = torch.cat([(center[n].double() - before[n]).reshape(-1) for n in center])
    assert stats.norm == pytest.approx(change.norm().item(), rel=1e-12)
    assert stats.max_abs == change.abs().max().item()
    assert stats.changed == int((change != 0).sum())


def test_decay_alone_moves_toward_the_anchor():
    center, anchor = make_center(), {name: w + 1.0 for name, w in make_center().items()}
    expected = {n: (center[n].double() - 0.25 * (center[n].double() - anchor[n].double())) for n in center}
    apply_update(center, SPEC, [0], [0.0], 0.1, decay=0.25, anchor=anchor)
    for name, theta in center.items():
        assert torch.allclose(theta.double(), expected[name], rtol=0, atol=3e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_coefficient_that_is_not_finite_stops_before_the_center_is_touched(bad):
    center = make_center()
    before = center_hash(center)
    with pytest.raises(DivergedError, match="member 8"):
        apply_update(center, SPEC, [7, 8], [1.0, bad], 0.1)
    assert center_hash(center) == before


def test_an_update_beyond_float32_stops_before_the_center_is_touched():
    center = make_center()
    before = center_hash(center)
    with pytest.raises(DivergedError, match="beyond float32"):
        apply_update(center, SPEC, [0, 1], [1e30, -1e30], 1e9)
    assert center_hash(center) == before


def test_a_center_that_is_not_finite_is_reported():
    center = make_center()
    center["b"][3] = math.inf
    with pytest.raises(DivergedError, match="center holds"):
        apply_update(center, SPEC, [0], [1.0], 0.1)


ANCHOR = make_center()
BAD = [
    ({"scale": math.nan}, "scale"),
    ({"decay": 0.1}, "go together"),
    ({"anchor": ANCHOR}, "go together"),
    ({"decay": -0.1, "anchor": ANCHOR}, "decay"),
    ({"decay": 1.5, "anchor": ANCHOR}, "decay"),
    ({"decay": math.nan, "anchor": ANCHOR}, "decay"),
    ({"decay": 0.1, "anchor": {"a": ANCHOR["a"]}}, "anchor lacks"),
    ({"decay": 0.1, "anchor": {n: w.double() for n, w in ANCHOR.items()}}, "float64"),
    ({"members": [1, 2]}, "2 members but 1 coefficients"),
    ({"threads": 0}, "threads"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_arguments_that_do_not_fit_are_errors(change, message):
    arguments = {"members": [1], "coefficients": [1.0], "scale": 0.1, **change}
    with pytest.raises(UsageError, match=message):
        apply_update(make_center(), SPEC, **arguments)


def test_a_bf16_center_is_refused():
    center = {name: w.bfloat16() for name, w in make_center().items()}
    with pytest.raises(UsageError, match="float32"):
        apply_update(center, SPEC, [0], [1.0], 0.1)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 1000, 1 << 15])
@pytest.mark.parametrize("size", [1e-300, 3e-5, 1.0, 1.9999, 1e30])
def test_fixed_point_stays_below_2_62_and_is_accurate(count, size):
    coefficients = [size * (-1) ** i * (1 - i / (2 * count)) for i in range(count)]
    fixed = fixed_point(range(count), coefficients)
    assert sum(abs(c) for c in fixed.coefficients) * 2**27 <= 2**62
    bits = min(30, 35 - (count - 1).bit_length())
    for member, integer in zip(fixed.members[:50], fixed.coefficients[:50], strict=True):
        exact = Fraction(coefficients[member]) * Fraction(2) ** fixed.exponent
        assert abs(exact - integer) <= Fraction(1, 2)
    assert max(abs(c) for c in fixed.coefficients) >= 2 ** (bits - 1)


def test_too_many_members_are_refused():
    with pytest.raises(UsageError, match="at most"):
        fixed_point(range((1 << 20) + 1), [0.0] * ((1 << 20) + 1))


def test_folding_signs():
    members, coefficients = fold_signs(
        [(4, 1), (0, 1), (0, -1), (4, -1), (2, -1)], [0.5, 1.0, 0.25, 2.0, 3.0]
    )
    assert members == (0, 2, 4)
    assert coefficients == (0.75, -3.0, -1.5)
    with pytest.raises(UsageError, match="sign"):
        fold_signs([(0, 0)], [1.0])
    with pytest.raises(UsageError, match="coefficients"):
        fold_signs([(0, 1)], [])
