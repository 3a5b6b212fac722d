"""Borrowed weights are given back exactly; the order of members cannot matter."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from broaden.perturb import NoiseSpec, apply_update, center_hash, noise, perturbed

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def make_center(seed=0):
    generator = torch.Generator().manual_seed(seed)
    center = {"w": torch.randn(23, 31, generator=generator), "norm": torch.ones(31), "bias": torch.zeros(5)}
    center["bias"][2] = -0.0
    return center


class Boom(Exception):
    """Raised on purpose inside a perturbed block."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_thousand_members_with_exceptions_leave_no_trace(dtype):
    center = make_center()
    work = {name: w.to(dtype, copy=True) for name, w in center.items()}
    before, fixed = center_hash(work), center_hash(center)
    rng, seen, raised = random.Random(0), set(), 0
    for member in range(1000):
        spec = NoiseSpec(
            1, member // 100, rng.choice([1e-3, 0.1, 1e30]), rng.choice([("w",), ("w", "norm", "bias")])
        )
        try:
            with perturbed(work, center, spec, member, rng.choice([1, -1])) as inside:
                if member < 50:
                    seen.add(center_hash(inside))
                if rng.random() < 0.3:
                    inside["w"].fill_(float("nan"))
                    raise Boom
        except Boom:
            raised += 1
        if member % 50 == 0:
            assert center_hash(work) == before
    assert center_hash(work) == before
    assert center_hash(center) == fixed
    assert len(seen) == 50
    assert before not in seen
    assert raised > 200


@given(
    st.sampled_from(DTYPES),
    st.integers(0, 1 << 40),
    st.floats(0, 1e3, allow_nan=False),
    st.integers(0, 1 << 20),
    st.sampled_from([1, -1]),
)
@settings(max_examples=60)
def test_restoring_is_exact_for_any_dtype_seed_and_sigma(dtype, run_seed, sigma, member, sign):
    center = make_center(run_seed % 7)
    work = {name: w.to(dtype, copy=True) for name, w in center.items()}
    before = center_hash(work)
    with perturbed(work, center, NoiseSpec(run_seed, 0, sigma, ("w", "bias")), member, sign):
        pass
    assert center_hash(work) == before


def test_nesting_ends_with_the_center():
    center = make_center()
    work = {name: w.clone() for name, w in center.items()}
    spec = NoiseSpec(1, 0, 0.1, ("w",))
    with perturbed(work, center, spec, 0), perturbed(work, center, spec, 1):
        pass
    assert center_hash(work) == center_hash(center)


coefficients = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=12)


@given(coefficients, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_order_of_members_changes_no_bit(values, rng):
    pairs = list(enumerate(values))
    hashes = set()
    for _ in range(3):
        center = make_center()
        spec = NoiseSpec(9, 4, 0.1, tuple(rng.sample(sorted(center), 3)))
        apply_update(center, spec, [m for m, _ in pairs], [c for _, c in pairs], 1e-3)
        hashes.add(center_hash(center))
        rng.shuffle(pairs)
    assert len(hashes) == 1


@given(coefficients, st.floats(-1.0, 1.0), st.sampled_from([0.0, 0.125, 0.3]))
@settings(max_examples=40)
def test_the_update_is_the_rounded_exact_sum(values, scale, decay):
    """Against rationals: at most one float32 ulp of the step plus one of the result, and the coefficients' grid."""
    center, anchor = {"w": torch.randn(19, generator=torch.Generator().manual_seed(3))}, {"w": torch.ones(19)}
    old = center["w"].tolist()
    spec = NoiseSpec(2, 0, 0.1, ("w",))
    apply_update(
        center, spec, range(len(values)), values, scale, decay=decay, anchor=anchor if decay else None
    )
    grid = Fraction(max(abs(v) for v in values)) / 2**29
    table = noise.normal_table()
    index = [noise.indices(spec.key(m, "w"), 0, 19) for m in range(len(values))]
    for e, theta in enumerate(old):
        eps = [Fraction(float(table[i[e]])) for i in index]
        step = Fraction(scale) * sum(Fraction(c) * z for c, z in zip(values, eps, strict=True))
        step -= Fraction(decay) * (Fraction(theta) - 1)
        error = abs(Fraction(center["w"][e].item()) - (Fraction(theta) + step))
        allowed = abs(Fraction(scale)) * (
            grid * 5 * len(values) + sum(abs(Fraction(c)) for c in values) / 2**24
        )
        assert error <= allowed + (abs(step) + abs(Fraction(theta))) / 2**23 + Fraction(1, 2**140)
