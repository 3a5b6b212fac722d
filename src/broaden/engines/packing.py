"""Weights copied once into the layout that oneDNN's bfloat16 products read, which else is made anew in every product.

A copy costs what it saves in about ten steps, so it pays where many products meet the same weights over few rows.
It must change no bit: the first weight of each shape is tried both ways, and where they differ nothing is packed. The
same trial shows that rows in multiples of FEW get the bits they would get among many: they need no padding to 16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

FEW = 4  # rows of a packed product come in multiples of this
TRIED = (FEW, 2 * FEW, 3 * FEW, 16, 80)  # rows
_exact: dict[tuple[int, ...], bool] = {}  # by shape of the weight


class Packed(NamedTuple):
    """A weight [out, in] that only `product` can read."""

    weight: Tensor


def available() -> bool:
    """Whether this build of torch has the two operations."""
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


def pack(weight: Tensor) -> Packed | None:
    """A copy of a bfloat16 weight [out, in]; None where products with it would have other bits than with the weight."""
    if weight.dtype != torch.bfloat16 or not available() or not _exact.get(tuple(weight.shape), True):
        return None
    packed = Packed(_op("_reorder_linear_weight")(weight))
    if tuple(weight.shape) not in _exact:
        _exact[tuple(weight.shape)] = _agree(weight, packed)
    return packed if _exact[tuple(weight.shape)] else None


def product(x: Tensor, packed: Packed) -> Tensor:
    """x W^T for x [rows, in]."""
    y: Tensor = _op("_linear_pointwise")(x, packed.weight, None, "none", [], "")
    return y


def _agree(weight: Tensor, packed: Packed) -> bool:
    drawn = torch.randn((max(TRIED), weight.shape[1]), generator=torch.Generator().manual_seed(0))
    x = drawn.to(weight.dtype)
    expected = torch.mm(x, weight.t())
    return all(torch.equal(product(x[:rows], packed), expected[:rows]) for rows in TRIED)


def _op(name: str) -> Any:
    return getattr(torch.ops.mkldnn, name).default
