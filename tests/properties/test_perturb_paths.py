"""NumPy = Numba = PyTorch, bit for bit, for any size, offset, dtype, chunk and thread count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from broaden.perturb import NoiseSpec, apply_update, checksum, noise, normal, torch_path, write_member
from broaden.perturb.backend import NUMBA, TORCH, Increment, available
from broaden.perturb.fingerprint import checksum_reference

CPU = torch.device("cpu")
keys = st.integers(0, (1 << 64) - 1)
starts = st.one_of(st.integers(0, 5000), st.integers(0, 1 << 36))
counts = st.one_of(st.integers(1, 40), st.integers(1, 5000), st.sampled_from([2047, 2048, 2049, 4096, 4097]))
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def theta_of(count, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count).astype(np.float32))


@given(keys, starts, counts)
def test_indices_agree(key, start, count):
    reference = noise.indices(key, start, count)
    assert torch_path.indices(key, start, count, CPU).tolist() == reference.tolist()
    out = torch.empty(count)
    table = torch.arange(65536, dtype=torch.float32)
    NUMBA.write(torch.zeros(count), out, table, key, start)
    assert out.numpy().astype(np.uint16).tolist() == reference.tolist()


@given(keys, starts, counts, st.integers(0, 30))
def test_a_slice_has_the_slice_of_the_noise(key, start, count, skip):
    whole = normal(key, start, count + skip)
    assert np.array_equal(whole[skip:], normal(key, start + skip, count))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=40)
@given(keys, starts, counts, st.sampled_from([1.5e-3, 0.3, 3e-6, 1e4]), st.sampled_from([1, -1]))
def test_members_agree(dtype, key, start, count, sigma, sign):
    theta, table = theta_of(count, key), noise.scaled_table(sigma, sign)
    exact = theta.numpy() + table[noise.indices(key, start, count)]
    expected = torch.from_numpy(exact).to(dtype)
    for name, backend in available().items():
        out = torch.empty(count, dtype=dtype)
        backend.write(theta, out, torch.from_numpy(table), key, start)
        assert torch.equal(out, expected), name


@settings(max_examples=40)
@given(
    st.lists(st.tuples(keys, st.integers(-(2**30), 2**30)), max_size=5),
    starts,
    counts,
    st.floats(-1e-9, 1e-9),
    st.sampled_from([0.0, 0.01, 1 / 3, 1.0]),
)
def test_updates_agree(members, start, count, factor, decay):
    increment = Increment(tuple(c for _, c in members), factor, decay)
    member_keys = [key for key, _ in members]
    theta, anchor = theta_of(count, 1), theta_of(count, 2)
    theta[::5] = -0.0
    total = np.zeros(count, dtype=object)
    for key, coefficient in members:
        total = total + coefficient * noise.fixed_table()[noise.indices(key, start, count)].astype(object)
    delta = np.array([float(int(t)) for t in total]) * factor
    if decay:
        delta = delta - decay * (theta.numpy().astype(np.float64) - anchor.numpy().astype(np.float64))
    step = delta.astype(np.float32)
    expected = np.where(step != 0, theta.numpy() + step, theta.numpy())
    change = expected.astype(np.float64) - theta.numpy().astype(np.float64)
    for name, backend in available().items():
        out = theta.clone()
        squares, largest, changed = backend.update(out, anchor, increment, member_keys, start)
        assert np.array_equal(out.numpy().view(np.uint32), expected.view(np.uint32)), name
        assert squares == pytest.approx(float(np.sum(change**2)), rel=1e-9, abs=1e-300)
        assert largest == np.abs(change).max()
        assert changed == np.count_nonzero(change)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@given(st.integers(0, 1 << 30), starts, counts)
def test_checksums_agree_and_add_up_over_slices(width, seed, start, count):
    unsigned, signed = np.dtype(f"u{width}"), np.dtype(f"i{width}")
    bits = np.random.default_rng(seed).integers(0, 1 << (8 * width), count, dtype=unsigned)
    values = torch.from_numpy(bits.view(signed))
    reference = checksum_reference(bits, start)
    for backend in available().values():
        assert backend.checksum(values, start) == reference
        half = count // 2
        parts = backend.checksum(values[:half], start) + backend.checksum(values[half:], start + half)
        assert parts % (1 << 64) == reference


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.int64,
    ],
    ids=str,
)
def test_checksums_of_every_dtype_agree(dtype):
    values = (torch.randn(1001, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    assert checksum(values) == TORCH.checksum(values, 0) == checksum_reference(values.view(torch.uint8).numpy()
        .view(f"u{values.element_size()}"))  # fmt: skip


@pytest.mark.parametrize("chunk", [8, 64, 1000, 1 << 20])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_chunks_and_threads_change_no_bit(chunk, threads, monkeypatch):
    def once(backend_chunk, thread_count):
        monkeypatch.setattr(NUMBA, "chunk", backend_chunk)
        center = {"a": theta_of(3001, 1).view(3001), "b": theta_of(17, 2)}
        out = {name: torch.empty_like(w, dtype=torch.bfloat16) for name, w in center.items()}
        spec = NoiseSpec(3, 1, 0.02, ("a", "b"))
        write_member(center, out, spec, 2, threads=thread_count)
        stats = apply_update(center, spec, [0, 1, 2], [0.3, -1.0, 0.7], 0.1, threads=thread_count)
        sums = tuple(checksum(w, threads=thread_count) for w in (*out.values(), *center.values()))
        return sums, stats.max_abs, stats.changed

    assert once(chunk, threads) == once(1 << 20, 1)


def test_statistics_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(NUMBA, "chunk", 512)
    stats = []
    for threads in (1, 2, 4):
        center = {"a": theta_of(50_001, 1)}
        stats.append(
            apply_update(center, NoiseSpec(3, 1, 0.02, ("a",)), [0, 1], [0.3, -1.0], 0.1, threads=threads)
        )
    assert stats[0] == stats[1] == stats[2]
