"""Low-rank sums: NumPy = Numba = PyTorch, bit for bit, for any shape, rank, slice and coefficients."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from broaden.perturb import lowrank
from broaden.perturb.lowrank import Outer, sum_numba, sum_numpy, sum_torch

keys = st.integers(0, (1 << 64) - 1)
members = st.lists(st.tuples(keys, keys, st.integers(-(1 << 26), 1 << 26)), max_size=4)
PATHS = (sum_numba, sum_torch)


@settings(max_examples=60, deadline=None)
@given(members, st.integers(1, 6), st.integers(1, 700), st.integers(0, 9000), st.integers(1, 3000))
def test_sums_agree(drawn, rank, width, start, count):
    outer = Outer(tuple((a, b) for a, b, _ in drawn), tuple(c for _, _, c in drawn), rank, width)
    expected = sum_numpy(outer, start, count)
    assert expected.dtype == torch.int64
    for path in PATHS:
        assert torch.equal(path(outer, start, count), expected), path.__name__


@settings(max_examples=30, deadline=None)
@given(members, st.integers(1, 3), st.integers(1, 90), st.integers(0, 500), st.integers(2, 400), st.data())
def test_a_slice_has_the_slice_of_the_sum(drawn, rank, width, start, count, data):
    outer = Outer(tuple((a, b) for a, b, _ in drawn), tuple(c for _, _, c in drawn), rank, width)
    cut = data.draw(st.integers(1, count - 1))
    parts = [sum_numba(outer, start, cut), sum_numba(outer, start + cut, count - cut)]
    assert torch.equal(torch.cat(parts), sum_numpy(outer, start, count))


@settings(max_examples=30, deadline=None)
@given(keys, st.integers(1, 5000))
def test_drawn_factors_agree(key, count):
    assert lowrank.factors_of([key, key ^ 1], count)[0].tolist() == lowrank.factors(key, 0, count).tolist()


@settings(max_examples=30, deadline=None)
@given(members, st.integers(1, 3), st.integers(0, 300), st.integers(1, 3000), st.sampled_from([0.0, 0.3]))
def test_updates_agree(drawn, rank, start, count, decay):
    outer = Outer(tuple((a, b) for a, b, _ in drawn), tuple(c for _, _, c in drawn), rank, 64)
    generator = torch.Generator().manual_seed(count)
    theta, anchor = torch.randn(count, generator=generator), torch.randn(count, generator=generator)
    theta[::7] = -0.0
    ours, theirs = theta.clone(), theta.clone()
    stats = lowrank.update(ours, anchor, outer, 1e-17, decay, start)
    from broaden.perturb import torch_path

    expected = torch_path.update(theirs, anchor, sum_torch(outer, start, count), 1e-17, decay)
    assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    assert stats[1:] == expected[1:]
