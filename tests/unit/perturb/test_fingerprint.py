"""Checksums see every bit and place; hashes see names, shapes and dtypes; drift is Eq. 15."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from broaden.errors import DivergedError, MetricError, UsageError
from broaden.perturb import center_hash, checksum, drift
from broaden.perturb.fingerprint import checksum_reference

MASK = (1 << 64) - 1


def brute(bits: list[int]) -> int:
    """The checksum in Python integers."""
    total = 0
    for e, value in enumerate(bits):
        x = value ^ ((e + 1) * 0x9E3779B97F4A7C15 & MASK)
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        total += x ^ (x >> 31)
    return total & MASK


def test_the_checksum_is_the_documented_sum():
    values = torch.tensor([0.0, -0.0, 1.5, -2.25, math.inf, math.nan, 1e-42])
    bits = values.numpy().view(np.uint32)
    assert checksum(values) == brute(bits.tolist()) == checksum_reference(bits)


def test_a_known_value():
    assert checksum(torch.tensor([1.0, 2.0, 3.0])) == 11674917498419456435


@pytest.mark.parametrize("change", ["flip", "swap", "negative zero", "shift"])
def test_the_smallest_changes_are_seen(change):
    values = torch.linspace(-1, 1, 4096)
    values[7] = 0.0
    other = values.clone()
    if change == "flip":
        other.view(torch.int32)[1234] ^= 1
    elif change == "swap":
        other[[10, 11]] = other[[11, 10]]
    elif change == "negative zero":
        other[7] = -0.0
    else:
        other = other.roll(1)
    assert checksum(values) != checksum(other)


def test_zeros_of_different_length_differ():
    assert len({checksum(torch.zeros(n)) for n in range(50)}) == 50


def test_layout_and_threads_do_not_matter():
    values = torch.randn(1500, 1100)
    assert checksum(values.T) == checksum(values.T.contiguous()) != checksum(values)
    assert checksum(values, threads=3) == checksum(values)


def test_a_complex_tensor_is_refused():
    with pytest.raises(UsageError, match="complex"):
        checksum(torch.zeros(2, dtype=torch.complex64))


def test_the_center_hash_sees_names_shapes_and_dtypes_but_not_order():
    base = {"a": torch.ones(2, 3), "b": torch.zeros(4)}
    same = {"b": torch.zeros(4), "a": torch.ones(2, 3)}
    assert center_hash(base) == center_hash(same)
    others = [
        {"a": torch.ones(3, 2), "b": torch.zeros(4)},
        {"a": torch.ones(6), "b": torch.zeros(4)},
        {"a": torch.ones(2, 3), "c": torch.zeros(4)},
        {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.float64)},
        {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)},
        {"a": torch.ones(2, 3)},
        {"a": torch.zeros(4), "b": torch.ones(2, 3)},
    ]
    assert len({center_hash(w) for w in [base, *others]}) == 8


def test_drift_is_the_relative_distance():
    anchor = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    weights = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([[6.0]])}
    assert drift(weights, anchor) == pytest.approx(math.sqrt(5) / 5, rel=1e-15)
    assert drift(anchor, anchor) == 0.0


def test_drift_is_summed_in_float64():
    anchor = {"w": torch.full((100_000,), 1.0)}
    weights = {"w": torch.full((100_000,), 1.0 + 2**-20)}
    assert drift(weights, anchor) == pytest.approx(2.0**-20, rel=1e-12)


def test_drift_that_is_not_defined_is_an_error():
    with pytest.raises(MetricError, match="zero everywhere"):
        drift({"w": torch.ones(2)}, {"w": torch.zeros(2)})
    with pytest.raises(DivergedError):
        drift({"w": torch.tensor([math.nan])}, {"w": torch.ones(1)})
    with pytest.raises(UsageError):
        drift({"w": torch.ones(2)}, {"v": torch.ones(2)})
