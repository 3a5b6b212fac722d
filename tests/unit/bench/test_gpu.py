"""The GPU benches' arithmetic and refusals; their quick runs are in `test_benches`."""

from __future__ import annotations

import pytest
import torch

from broaden.bench import gpu, registry
from broaden.bench.harness import Settings
from broaden.bench.subjects import bundled
from broaden.models.known import known_spec
from broaden.models.spec import ModelSpec

GPU = [name for name in registry.names() if name.startswith("gpu-")]


def place(bandwidth: float, operations: float) -> gpu.Place:
    return gpu.Place(torch.device("cpu"), bundled(), bandwidth, operations)


def test_the_roofline_by_hand() -> None:
    spec = ModelSpec(
        "llama", layers=1, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=10, tied=True
    )
    weights = 16 * 8 + 8 * 8 + 32 * 8 + 8 * 16 + 10 * 8  # qkv, output, gate and up, down, head
    assert weights == 656
    # 3 rows that look at 5 positions: 15 keys and 15 values of width 4, two bytes each
    assert gpu.roofline(spec, 3, 5, place(100.0, 1e30)) == pytest.approx(
        3 / ((2 * 656 + 2 * 2 * 15 * 4) / 100)
    )
    # q k and p v: two products of width 8, two operations a number
    assert gpu.roofline(spec, 3, 5, place(1e30, 100.0)) == pytest.approx(
        3 / ((2 * 3 * 656 + 2 * 2 * 15 * 8) / 100)
    )


def test_the_roofline_of_the_real_shapes() -> None:
    """Qwen2.5-1.5B, 256 rows, 192 positions, 4.8 TB/s and 800 Top/s: products and memory balance near 1 ms a step."""
    spec = known_spec(gpu.MODEL)
    assert spec is not None
    assert spec.parameters == 1_543_714_304
    step = 256 / gpu.roofline(spec, 256, 192, place(4.8e12, 8e14))
    assert 0.9e-3 < step < 1.1e-3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", GPU)
def test_no_device_is_a_reason(name: str) -> None:
    result = registry.run(registry.find(name), Settings(1))
    assert result.ratio is None
    assert "no CUDA device" in str(result.skipped)


def test_there_are_three() -> None:
    assert GPU == ["gpu-noise", "gpu-generate", "gpu-population"]
