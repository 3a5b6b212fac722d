"""Literal hashes: noise, members and a three-step update are the same on every machine, for ever.

A change here breaks the replay of every logged run: raise NOISE_VERSION with it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from broaden.perturb import (
    NOISE_VERSION,
    NoiseSpec,
    apply_update,
    center_hash,
    normal,
    normal_table,
    write_member,
)
from broaden.perturb.backend import TORCH
from broaden.perturb.noise import TABLE_SHA256, fixed_table


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(
        np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()
    ).hexdigest()


def fixed_center():
    """Exact dyadic values, no generator: the same bits everywhere."""
    wave = (torch.arange(12_345, dtype=torch.int64) * 40503 % 65536 - 32768).to(torch.float32) / 2**18
    return {"embed": wave[:12_000].view(100, 120).clone(), "norm": wave[12_000:].clone() + 1.0}


NAMES = ("embed", "norm")


def test_version_and_tables():
    assert NOISE_VERSION == "philox4x32-10/quantile-65536/1"
    assert (
        sha256(normal_table())
        == TABLE_SHA256
        == "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"
    )
    assert sha256(fixed_table()) == "686052174cc9f51f42f93e1bc99cf3dcce44740113f543db66230557511dd421"


def test_noise():
    assert sha256(normal(0, 0, 10_000)) == "686f8d0e9cb5e495d14aafdff6b9295e67e1917bba917d0b13830f24603ca02f"
    assert (
        sha256(normal(0xFEDCBA9876543210, 5, 10_001))
        == "359e07bef238b99790356f3d43914e4ff2fcac764ec072a61787b320c1a6e09f"
    )
    assert normal(0, 0, 4).tolist() == [
        1.3377435207366943,
        -0.25583475828170776,
        0.7444327473640442,
        1.1775823831558228,
    ]


@pytest.mark.parametrize(
    ("dtype", "digest"),
    [
        (torch.float32, "df7c060a41632926cf0f8019e118a0bb4ab49de8949594a048d45bb2f36500dd"),
        (torch.bfloat16, "7db3727c4afcc16a5d7c4a8eccb4300b25bd691b3f659d3780d18a6ab62d7812"),
        (torch.float16, "ac0253651891835f14a5480b1c1a266b7ba1bdf20d947768ab0b0454746b6d34"),
    ],
    ids=str,
)
def test_a_member(dtype, digest):
    center = fixed_center()
    out = {name: torch.empty_like(w, dtype=dtype) for name, w in center.items()}
    write_member(center, out, NoiseSpec(2026, 17, 1.5e-3, NAMES), 5, -1)
    assert center_hash(out) == digest


def three_steps():
    center, anchor = fixed_center(), fixed_center()
    for step in range(3):
        coefficients = [((7 * i + 3 * step) % 11 - 5) / 4 + 1 / 3 for i in range(8)]
        decay = 0.01 * step
        apply_update(
            center, NoiseSpec(2026, step, 1.5e-3, NAMES), range(8), coefficients, 2.5e-4 / 8,
            decay=decay, anchor=anchor if decay else None,
        )  # fmt: skip
    return center


def test_three_updates():
    assert center_hash(fixed_center()) == "dc28776d3736089cce5def3747e9c87904c058fd393600e4975c6baf93c46999"
    assert center_hash(three_steps()) == "8b13ba4ff43da6c45123a11876e632f2521146efe0ff5f59e0e705f662e3677e"


def test_three_updates_on_the_torch_path(monkeypatch):
    monkeypatch.setattr("broaden.perturb.update.backend_for", lambda device: TORCH)
    monkeypatch.setattr("broaden.perturb.fingerprint.backend_for", lambda device: TORCH)
    assert center_hash(three_steps()) == "8b13ba4ff43da6c45123a11876e632f2521146efe0ff5f59e0e705f662e3677e"
