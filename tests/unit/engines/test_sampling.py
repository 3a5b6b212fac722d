"""Philox against the reference, the inverse CDF against brute force and chi-square, both kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from broaden.engines.sampling import sample_rows, sample_rows_torch, uniform, uniforms
from broaden.kernels.mathfn import exp32
from broaden.perturb import noise

KERNELS = ("compiled", "portable")


def draw(
    kernel: str,
    logits: NDArray[np.float32],
    temperature: float,
    keys: NDArray[np.uint64],
    counts: NDArray[np.int64],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], bool]:
    """(tokens, logprobs, entropies, finite) of every row by either kernel."""
    n = len(logits)
    if kernel == "portable":
        u = np.zeros(n)
        uniforms(keys, counts, u)
        out = sample_rows_torch(torch.from_numpy(logits), temperature, torch.from_numpy(u), True)
        return out[0].numpy(), out[1].numpy(), out[2].numpy(), bool(out[3].all())
    tokens, logprobs, entropies = np.zeros(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.float32)
    bad = sample_rows(
        logits, np.arange(n), temperature, keys, counts, True, True, tokens, logprobs, entropies
    )  # fmt: skip
    return tokens, logprobs, entropies, bad < 0


def uniform_reference(key: int, counter: int) -> float:
    """(k + 1/2) / 2^24 with the top 24 bits of the block's first word, by the NumPy Philox of the noise."""
    low = (1 << 32) - 1
    block = np.array([[counter & low, counter >> 32, 0, 0]], np.uint32)
    word = int(noise.philox(block, (key & low, key >> 32))[0, 0])
    return ((word >> 8) + 0.5) / 2**24


@pytest.mark.parametrize("key", [0, 1, 2**32, 2**63 + 12345, 2**64 - 1])
def test_uniform_is_philox(key: int) -> None:
    for counter in (0, 1, 2, 1000, 2**31, 2**40):
        assert uniform(np.uint64(key), counter) == uniform_reference(key, counter)


def test_uniform_literal() -> None:
    """Philox4x32-10 of an all-zero counter and key starts with 0x6627e8d5 (Random123's known answers)."""
    assert uniform(np.uint64(0), 0) == ((0x6627E8D5 >> 8) + 0.5) / 2**24


def test_exp_within_two_units() -> None:
    x = np.concatenate([np.linspace(-87, 88, 20001), [0.0, -0.0, 1e-9]]).astype(np.float32)
    ours = np.array([exp32(np.float32(v)) for v in x])
    assert np.abs(ours / np.exp(x.astype(np.float64)) - 1).max() < 2 * 2.0**-24 * 2
    assert exp32(np.float32(-87.5)) == 0.0
    assert exp32(np.float32(0.0)) == 1.0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("vocab", [3, 64, 97, 200])
def test_inverse_cdf_against_brute_force(kernel: str, vocab: int) -> None:
    random = np.random.default_rng(vocab)
    logits = random.normal(size=(40, vocab)).astype(np.float32) * 2
    keys, counts = random.integers(0, 2**63, 40).astype(np.uint64), np.arange(40)
    for temperature in (0.5, 1.0, 1.7):
        tokens, logprobs, entropies, finite = draw(kernel, logits, temperature, keys, counts)
        assert finite
        for row in range(40):
            z = logits[row].astype(np.float64)
            cdf = np.cumsum(np.exp(z / temperature))
            u = uniform_reference(int(keys[row]), int(counts[row]))
            assert tokens[row] == np.argmax(cdf > u * cdf[-1])
            logp = z - np.log(np.exp(z).sum())
            assert logprobs[row] == pytest.approx(logp[tokens[row]], abs=2e-6)
            assert entropies[row] == pytest.approx(-(np.exp(logp) * logp).sum(), abs=5e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_samples_follow_the_softmax(kernel: str) -> None:
    """Chi-square over 20,000 draws: 11 degrees of freedom exceed 31.3 once in a thousand."""
    z = np.log(np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.03, 0.02, 0.01, 0.007, 0.003])).astype(
        np.float32
    )
    n, temperature = 20_000, 0.7
    tokens = draw(
        kernel, np.tile(z, (n, 1)), temperature, np.arange(n, dtype=np.uint64), np.zeros(n, np.int64)
    )[0]
    p = np.exp(z.astype(np.float64) / temperature)
    expected = n * p / p.sum()
    seen = np.bincount(tokens, minlength=len(z))
    assert ((seen - expected) ** 2 / expected).sum() < 31.3


@pytest.mark.parametrize("kernel", KERNELS)
def test_impossible_tokens_are_never_drawn(kernel: str) -> None:
    z = np.full((5000, 70), -200.0, np.float32)
    z[:, [3, 66]] = 0.0
    tokens = draw(kernel, z, 1.0, np.arange(5000, dtype=np.uint64), np.zeros(5000, np.int64))[0]
    assert set(tokens.tolist()) == {3, 66}


@pytest.mark.parametrize("kernel", KERNELS)
def test_greedy_takes_the_first_of_equals(kernel: str) -> None:
    z = np.zeros((2, 90), np.float32)
    z[0, [17, 80]] = 5.0
    tokens = draw(kernel, z, 0.0, np.zeros(2, np.uint64), np.zeros(2, np.int64))[0]
    assert tokens.tolist() == [17, 0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_reported(kernel: str, value: float) -> None:
    z = np.zeros((3, 90), np.float32)
    z[1, 71] = value
    assert not draw(kernel, z, 1.0, np.zeros(3, np.uint64), np.zeros(3, np.int64))[3]
