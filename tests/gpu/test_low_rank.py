"""Low-rank members and updates on a CUDA device have the CPU's bits."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.gpu import DEVICE

from broaden.perturb import NoiseSpec, apply_update, center_hash, write_member

pytestmark = pytest.mark.gpu


def make_center(device):
    generator = torch.Generator().manual_seed(0)
    center = {"a": torch.randn(1013, 517, generator=generator), "b": torch.randn(9, generator=generator)}
    return {name: w.to(device) for name, w in center.items()}


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_members_have_the_cpu_s_bits(dtype, on_cpu, rank):
    hashes = []
    for device, center in (("cpu", make_center("cpu")), (DEVICE, make_center("cpu" if on_cpu else DEVICE))):
        out = {name: torch.empty_like(w, dtype=dtype, device=device) for name, w in center.items()}
        write_member(center, out, NoiseSpec(3, 1, 0.02, ("a", "b"), rank), 4, -1)
        hashes.append(center_hash(out))
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("rank", [1, 3])
def test_updates_have_the_cpu_s_bits(rank):
    hashes = []
    for device in ("cpu", DEVICE):
        center, anchor = make_center(device), make_center(device)
        for step in range(3):
            spec = NoiseSpec(3, step, 0.02, ("a", "b"), rank)
            apply_update(center, spec, [0, 1, 2], [0.3, -1.0, 1 / 3], 0.1, decay=0.05, anchor=anchor)
        hashes.append(center_hash(center))
    assert hashes[0] == hashes[1]
