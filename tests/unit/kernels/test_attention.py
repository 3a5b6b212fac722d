"""The attention kernel against a float64 computation, position by position, over caches full of NaN elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from broaden.engines.compiled import host
from broaden.kernels.attention import TILE, attend, copy_slots, value_width

EPS, EACH = 1e-5, 3  # rows of a member
POSITIONS = (0, 30, 31, 32, 63, 64, 100)


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rope(x: Tensor, angle: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1
    )


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize("extras", [False, True], ids=["plain", "bias-and-norms"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("group", "kv_heads", "width"), [(1, 2, 16), (2, 1, 32), (3, 3, 64), (4, 1, 80), (7, 2, 64)]
)
def test_equals_float64(group: int, kv_heads: int, width: int, dtype: torch.dtype, extras: bool) -> None:
    """Seven sequences, one a slot, grown token by token in steps of ragged rows; slots in reverse order."""
    heads, rows, tiles, longest = group * kv_heads, len(POSITIONS), 4, max(POSITIONS) + 1
    members = -(-rows // EACH)
    tokens = drawn(longest, rows, heads + 2 * kv_heads, width, dtype=dtype, seed=1)
    bias = drawn(members if extras else 0, heads + 2 * kv_heads, width, dtype=dtype, seed=2)
    norms = [1 + 0.1 * drawn(members if extras else 0, width, dtype=dtype, seed=s) for s in (3, 4)]
    angle = torch.arange(tiles * TILE)[:, None] * 10000 ** (-torch.arange(width // 2) / (width // 2))
    tables = (angle.cos().numpy(), angle.sin().numpy())
    keys = torch.full((rows, kv_heads, tiles, width, TILE), torch.nan, dtype=dtype)
    values = torch.full((rows, kv_heads, tiles, TILE, value_width(width)), torch.nan, dtype=dtype)
    out = torch.zeros((rows, heads, width), dtype=dtype)
    slots, last = np.arange(rows)[::-1].copy(), np.array(POSITIONS)
    for step in range(longest):
        positions = np.where(step <= last, step, -1)
        attend(host(tokens[step]), host(bias), *(host(n) for n in norms), EACH, EPS, *tables, positions, slots,
               host(keys), host(values), False, host(out))  # fmt: skip

    for row, position in enumerate(POSITIONS):
        x = tokens[: position + 1, row].double()
        member = row // EACH
        if extras:
            x = x + bias[member].double()
        q, k, v = x[-1:, :heads], x[:, heads : heads + kv_heads], x[:, heads + kv_heads :]
        if extras:
            q, k = norm(q, norms[0][member].double()), norm(k, norms[1][member].double())
        at = angle[: position + 1, None].double()
        q, k = rope(q, at[-1:]), rope(k, at)
        k, v = (t.to(dtype).double().repeat_interleave(group, dim=1) for t in (k, v))
        weights = (torch.einsum("thd,thd->ht", q.expand_as(k), k) / width**0.5).softmax(-1)
        expected = torch.einsum("ht,thd->hd", weights, v)
        tolerance = 2e-6 if dtype == torch.float32 else 2e-2
        assert torch.allclose(out[row].double(), expected, rtol=tolerance, atol=tolerance), row


def test_copied_slots_bring_their_positions() -> None:
    source = torch.arange(2 * 3 * 2 * 4 * 10, dtype=torch.float32).view(2, 3, 2, 4, 10)
    target = torch.zeros((2, 5, 2, 4, 10))
    lengths = np.array([TILE, TILE + 1, 0])
    copy_slots(source.numpy(), target.numpy(), np.array([2, 0, 1]), np.array([4, 1, 0]), lengths)
    expected = torch.zeros_like(target)
    expected[:, 4, :, :1] = source[:, 2, :, :1]
    expected[:, 1, :, :2] = source[:, 0, :, :2]
    assert torch.equal(target, expected)
