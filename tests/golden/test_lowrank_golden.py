"""Literal hashes of low-rank noise: factors, a member and three updates are the same on every machine, for ever.

A change here breaks the replay of every logged low-rank run: raise NOISE_VERSION with it.
"""

from __future__ import annotations

import pytest
import torch
from tests.golden.test_noise_golden import NAMES, fixed_center, sha256

from broaden.perturb import NoiseSpec, apply_update, center_hash, write_member
from broaden.perturb.lowrank import factor_table, factors, sum_numpy, sum_torch

MEMBER = {
    (1, torch.float32): "94ffdad5ac94451a5bc834970845c32d363f3df3c94c9fd69a181bc71046f532",
    (3, torch.float32): "f42a76ffc1bcbd763152954be42a6f9ddac68571a85d7319612145ad5c4c3ebb",
    (3, torch.bfloat16): "2778a94e6bc682afe0955e2a39797bfb46a847cd650e23d4338644d959889a0c",
}
UPDATES = {
    1: "057905bb116847308cd10f26d4851f30d247f65c3bca4fdf9fb3aea8724c1c1e",
    3: "e921f68147c0b10c7ac74f5937081fd230047055e7490d052070f7bb5aa45b73",
}


def test_table_keys_and_factors():
    assert sha256(factor_table()) == "5e1575e7cbfa118b538fd4996c44d43ed2049ecade42f9feccb84d9c7e58f41b"
    assert NoiseSpec(2026, 17, 1.5e-3, NAMES, 1).factor_keys(5, "embed") == (
        17625983068914600527,
        8909747406023566361,
    )
    assert factors(0, 0, 4).tolist() == [5479, -1048, 3049, 4823]


@pytest.mark.parametrize(("rank", "dtype"), MEMBER, ids=str)
def test_a_member(rank, dtype):
    center = fixed_center()
    out = {name: torch.empty_like(w, dtype=dtype) for name, w in center.items()}
    write_member(center, out, NoiseSpec(2026, 17, 1.5e-3, NAMES, rank), 5, -1)
    assert center_hash(out) == MEMBER[rank, dtype]


@pytest.mark.parametrize("path", ["compiled", "torch", "numpy"])
@pytest.mark.parametrize("rank", UPDATES)
def test_three_updates(rank, path, monkeypatch):
    if path != "compiled":
        slow = sum_torch if path == "torch" else sum_numpy
        monkeypatch.setattr("broaden.perturb.lowrank.sum_for", lambda device: slow)
    center, anchor = fixed_center(), fixed_center()
    for step in range(3):
        coefficients = [((7 * i + 3 * step) % 11 - 5) / 4 + 1 / 3 for i in range(8)]
        decay = 0.01 * step
        apply_update(
            center, NoiseSpec(2026, step, 1.5e-3, NAMES, rank), range(8), coefficients, 2.5e-4 / 8,
            decay=decay, anchor=anchor if decay else None,
        )  # fmt: skip
    assert center_hash(center) == UPDATES[rank]
