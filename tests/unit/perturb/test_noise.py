"""Noise: published Philox vectors, the table's moments, equality of paths, independence of streams."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import special, stats

from broaden.errors import ExactnessError, UsageError
from broaden.perturb import NoiseSpec, kernels, noise, normal, normal_table, torch_path

# Random123's known answers for philox4x32-10: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
KEYS = [0, 1, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1, 0x0123456789ABCDEF]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_vectors(counter, key, words):
    assert tuple(noise.philox(np.array(counter, dtype=np.uint32), key)) == words


@pytest.mark.parametrize("path", ["numpy", "numba", "torch"])
def test_every_path_starts_with_the_published_zero_vector(path):
    words = np.zeros(4, dtype=np.uint32)
    if path == "numpy":
        words = noise.philox(np.zeros(4, dtype=np.uint32), (0, 0))
    elif path == "numba":
        kernels.fill_words(words, 0, np.uint32(0), np.uint32(0))
    else:
        words = torch_path.words(0, 0, 1, torch.device("cpu"))[0].numpy()
    assert tuple(words) == KNOWN[0][2]


def brute_words(key: int, block: int) -> list[int]:
    """Philox4x32-10 in Python integers, written from the paper's round function."""
    mask = 0xFFFFFFFF
    counter, k = [block & mask, block >> 32, 0, 0], [key & mask, key >> 32]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 1 << 32)
        counter = [high1 ^ counter[1] ^ k[0], low1, high0 ^ counter[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return counter


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("block", [0, 1, (1 << 32) - 1, 1 << 32, (1 << 35) + 5])
def test_words_of_large_keys_and_blocks_on_every_path(key, block):
    expected = brute_words(key, block)
    numba_words = np.zeros(8, dtype=np.uint32)
    kernels.fill_words(numba_words, block, *(np.uint32(word) for word in noise.split_key(key)))
    assert numba_words[:4].tolist() == expected
    assert numba_words[4:].tolist() == brute_words(key, block + 1)
    assert torch_path.words(key, block, 1, torch.device("cpu"))[0].tolist() == expected
    halves = [half for word in expected for half in (word & 0xFFFF, word >> 16)]
    assert noise.indices(key, 8 * block, 8).tolist() == halves


def test_the_table_is_symmetric_increasing_and_of_unit_variance():
    table = normal_table().astype(np.float64)
    assert table.shape == (65536,)
    assert np.all(np.diff(normal_table()) > 0)
    assert np.array_equal(table, -table[::-1])
    assert abs(np.mean(table**2) - 1.0) < 1e-7  # float32 rounding of each entry
    exact = special.ndtri((np.arange(65536) + 0.5) / 65536)
    assert np.allclose(table, exact / math.sqrt(np.mean(exact**2)), rtol=2e-7, atol=0.0)


def test_a_wrong_table_is_refused():
    wrong = normal_table().copy()
    wrong[12345] = np.nextafter(wrong[12345], np.float32(9))
    with pytest.raises(ExactnessError, match="SHA-256"):
        noise.check_table(wrong)


def test_the_tables_cannot_be_written():
    for table in (normal_table(), noise.fixed_table()):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0


def test_the_fixed_table_is_the_rounded_table():
    for i in (0, 1, 777, 32767, 32768, 40000, 65535):
        exact = Fraction(float(normal_table()[i])) * 2**24
        assert noise.fixed_table()[i] == round(exact)
    assert int(np.abs(noise.fixed_table().astype(np.int64)).max()) < 2**27


@pytest.mark.parametrize("sigma", [1.5e-3, 0.1, 1.0, 3e-8, 1 / 3])
def test_scaled_table_is_rounded_once_from_float64(sigma):
    table = noise.scaled_table(sigma, -1)
    for i in (0, 5, 30000, 65535):
        assert table[i] == np.float32(-sigma * float(normal_table()[i]))
    assert table.dtype == np.float32


@pytest.mark.parametrize("sigma", [math.nan, math.inf, -math.inf, -1e-3, 1e31])
def test_bad_sigma_is_an_error(sigma):
    with pytest.raises(UsageError, match="sigma"):
        noise.scaled_table(sigma)
    with pytest.raises(UsageError, match="sigma"):
        NoiseSpec(1, 0, sigma, ("w",))


@pytest.mark.parametrize(
    "call", [lambda: normal(-1, 0, 1), lambda: normal(1 << 64, 0, 1), lambda: normal(0, -1, 1)]
)
def test_bad_keys_and_slices_are_errors(call):
    with pytest.raises(UsageError):
        call()


N = 1 << 20


def tensor_noise(run_seed=7, step=0, member=0, name="model.layers.0.mlp.up_proj.weight", count=N):
    spec = NoiseSpec(run_seed, step, 1.0, (name,))
    return normal(spec.key(member, name), 0, count).astype(np.float64)


def test_moments_and_tails_are_a_normal_s():
    x = tensor_noise()
    root = math.sqrt(N)
    assert abs(x.mean()) < 5 / root
    assert abs(x.var() - 1) < 5 * math.sqrt(2) / root
    assert abs(stats.skew(x)) < 5 * math.sqrt(6) / root
    assert abs(stats.kurtosis(x)) < 5 * math.sqrt(24) / root
    for threshold in (-3.5, -3.0, -2.0, -1.0, 0.5, 1.0, 2.0, 3.0, 3.5):
        p = stats.norm.sf(threshold)
        assert abs(np.mean(x > threshold) - p) < 5 * math.sqrt(p * (1 - p) / N)
    assert stats.kstest(x, "norm").statistic < 2.0 / root


def test_all_table_entries_are_reached_evenly():
    counts = np.bincount(noise.indices(99, 0, 1 << 22), minlength=65536)
    chi2 = float(np.sum((counts - 64.0) ** 2) / 64.0)
    assert abs(chi2 - 65535) < 5 * math.sqrt(2 * 65535)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "model.layers.1.mlp.up_proj.weight"},
        {"name": "model.layers.0.mlp.gate_proj.weight"},
        {"member": 1},
        {"step": 1},
        {"run_seed": 8},
        {"run_seed": 6},
        {"run_seed": 8, "step": 1, "member": 1},
    ],
    ids=str,
)
def test_any_other_stream_is_uncorrelated(other):
    x, y = tensor_noise(), tensor_noise(**other)
    bound = 5 / math.sqrt(N)
    for lag in (0, 1, 8, 1024):
        assert abs(np.mean(x[: N - lag] * y[lag:])) < bound
    assert abs(np.mean((x**2 - 1) * (y**2 - 1)) / 2) < bound
    assert np.mean(x == y) < 1e-4


def test_neighbouring_elements_are_uncorrelated():
    x = tensor_noise()
    for lag in (1, 2, 3, 4, 7, 8, 9, 64, 2048):
        assert abs(np.mean(x[:-lag] * x[lag:])) < 5 / math.sqrt(N)


def test_step_member_and_name_do_not_run_into_each_other():
    keys = {
        NoiseSpec(seed, step, 0.1, ("a", "b")).key(member, name)
        for seed in range(4) for step in range(12) for member in range(12) for name in ("a", "b", "1a")
    }  # fmt: skip
    assert len(keys) == 4 * 12 * 12 * 3
