"""The CPU's bits on a CUDA device: members, updates, checksums, by PyTorch's operations and by Triton's kernels."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch
from tests.helpers.gpu import DEVICE, rehearsal
from tests.helpers.noise_bits import everything

from broaden.perturb import NoiseSpec, apply_update, center_hash, noise, perturbed, write_member
from broaden.perturb.backend import TORCH, TritonBackend, backend_for

pytestmark = pytest.mark.gpu
SPEC = NoiseSpec(3, 1, 0.02, ("a", "b"))


def make_center(device):
    generator = torch.Generator().manual_seed(0)
    center = {"a": torch.randn(1013, 517, generator=generator), "b": torch.randn(9, generator=generator)}
    return {name: w.to(device) for name, w in center.items()}


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_members_have_the_cpu_s_bits(dtype, on_cpu):
    hashes = []
    for device, center in (("cpu", make_center("cpu")), (DEVICE, make_center("cpu" if on_cpu else DEVICE))):
        out = {name: torch.empty_like(w, dtype=dtype, device=device) for name, w in center.items()}
        write_member(center, out, SPEC, 4, -1)
        hashes.append(center_hash(out))
    assert hashes[0] == hashes[1]


def test_updates_have_the_cpu_s_bits():
    hashes, stats = [], []
    for device in ("cpu", DEVICE):
        center, anchor = make_center(device), make_center(device)
        for step in range(3):
            spec = NoiseSpec(3, step, 0.02, ("a", "b"))
            found = apply_update(center, spec, [0, 1, 2], [0.3, -1.0, 1 / 3], 0.1, decay=0.05, anchor=anchor)
            stats.append((found.max_abs, found.changed, pytest.approx(found.norm, rel=1e-12)))
        hashes.append(center_hash(center))
    assert hashes[0] == hashes[1]
    assert stats[:3] == stats[3:]


def test_torch_s_operations_have_numpy_s_bits():
    assert everything(TORCH, DEVICE) > 300


def test_triton_s_kernels_have_numpy_s_bits_and_are_used():
    if rehearsal() and DEVICE.type == "cpu":
        pytest.skip("Triton's kernels run on a GPU; tests/unit/perturb/test_triton.py interprets them")
    assert importlib.util.find_spec("triton") is not None, "this torch came without triton"
    assert everything(TritonBackend(), DEVICE) > 300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(backend_for(DEVICE), TritonBackend)


def test_a_tensor_of_several_chunks_has_one_noise():
    """Around the end of a chunk, and with a count that is no multiple of anything."""
    chunk = backend_for(DEVICE).chunk
    center = {"a": torch.zeros(chunk + 12_345, device=DEVICE)}
    out = {"a": torch.empty_like(center["a"])}
    spec = NoiseSpec(5, 2, 1.0, ("a",))
    write_member(center, out, spec, 3)
    for start, count in ((0, 99), (chunk - 50, 100), (chunk + 12_345 - 77, 77)):
        expected = torch.from_numpy(noise.normal(spec.key(3, "a"), start, count))
        assert torch.equal(out["a"][start : start + count].cpu(), expected)


def test_restoring_is_exact_after_many_members_and_after_an_exception():
    center = make_center(DEVICE)
    work = {name: w.to(torch.bfloat16) for name, w in center.items()}
    before, untouched = center_hash(work), center_hash(center)
    for member in range(100):
        with perturbed(work, center, SPEC, member, (-1) ** member):
            assert center_hash(work) != before
    with pytest.raises(RuntimeError, match="in the middle"), perturbed(work, center, SPEC, 1):
        raise RuntimeError("in the middle")
    assert (center_hash(work), center_hash(center)) == (before, untouched)
