"""Which code runs the arithmetic on which device. All backends give the same bits.

A backend works on flat slices: `start` is the slice's offset in its whole tensor. CPU: Numba. CUDA: Triton, where
it can be imported and proves on that device, once a process, that it has the bits of the PyTorch operations.
Everything else: PyTorch integer operations. The tests of this package run over every backend listed in `available`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broaden.errors import UsageError
from broaden.perturb import kernels, noise, torch_path

ChangeStats = tuple[float, float, int]
"""(sum of squares, largest absolute value, number) of the changes made to a slice."""

_NO_DOUBLE = frozenset({"mps"})
_BITS: dict[int, tuple[torch.dtype, type[np.unsignedinteger[Any]]]] = {
    1: (torch.int8, np.uint8),
    2: (torch.int16, np.uint16),
    4: (torch.int32, np.uint32),
    8: (torch.int64, np.uint64),
}


@dataclass(frozen=True, slots=True)
class Increment:
    """float32(factor * sum_i C_i Z_i - decay * (theta - anchor)), without the members' keys.

    `coefficients` are the integers C_i, `factor` undoes both fixed points and holds the caller's scale.
    """

    coefficients: tuple[int, ...]
    factor: float
    decay: float


@runtime_checkable
class Backend(Protocol):
    """What a device must be able to do."""

    chunk: int

    def write(self, theta: Tensor, out: Tensor, table: Tensor, key: int, start: int) -> None:
        """out = cast(theta + table[index]): theta float32, out any floating dtype, table float32[65536]."""

    def update(
        self, theta: Tensor, anchor: Tensor, increment: Increment, keys: Sequence[int], start: int
    ) -> ChangeStats:
        """Adds the increment to theta (float32) in place; `keys` are the members', in their order."""

    def checksum(self, values: Tensor, start: int) -> int:
        """Order-free checksum of a slice of any dtype, in [0, 2**64)."""


class NumbaBackend:
    """The CPU kernels; safe to call from several threads on disjoint slices."""

    chunk = 1 << 20

    def write(self, theta: Tensor, out: Tensor, table: Tensor, key: int, start: int) -> None:
        """See `Backend.write`. Fused for float32, bfloat16 and float16; others go through float32."""
        k0, k1 = (np.uint32(word) for word in noise.split_key(key))
        arguments = (table.numpy(), start, k0, k1)
        if out.dtype == torch.float32:
            kernels.write_float32(theta.numpy(), out.numpy(), *arguments)
        elif out.dtype == torch.bfloat16:
            kernels.write_bfloat16(theta.numpy(), bits(out), *arguments)
        elif out.dtype == torch.float16:
            kernels.write_float16(theta.numpy(), bits(out), *arguments)
        else:
            exact = torch.empty_like(theta)
            kernels.write_float32(theta.numpy(), exact.numpy(), *arguments)
            out.copy_(exact)

    def update(
        self, theta: Tensor, anchor: Tensor, increment: Increment, keys: Sequence[int], start: int
    ) -> ChangeStats:
        """See `Backend.update`."""
        keys_N2 = np.array([noise.split_key(key) for key in keys], dtype=np.uint32).reshape(-1, 2)
        coefficients_N = np.array(increment.coefficients, dtype=np.int64)
        squares, largest, changed = kernels.update_float32(
            theta.numpy(), anchor.numpy(), noise.fixed_table(), coefficients_N, keys_N2,
            start, increment.factor, increment.decay,
        )  # fmt: skip
        return float(squares), float(largest), int(changed)

    def checksum(self, values: Tensor, start: int) -> int:
        """See `Backend.checksum`."""
        return int(kernels.checksum(bits(values), start))


class TorchBackend:
    """PyTorch integer operations: any device with int64 and float64, the CPU included."""

    chunk = 1 << 22

    def write(self, theta: Tensor, out: Tensor, table: Tensor, key: int, start: int) -> None:
        """See `Backend.write`."""
        torch_path.write(theta, out, table, key, start)

    def update(
        self, theta: Tensor, anchor: Tensor, increment: Increment, keys: Sequence[int], start: int
    ) -> ChangeStats:
        """See `Backend.update`."""
        total = torch_path.weighted_sum(increment.coefficients, keys, start, theta.numel(), theta.device)
        return torch_path.update(theta, anchor, total, increment.factor, increment.decay)

    def checksum(self, values: Tensor, start: int) -> int:
        """See `Backend.checksum`."""
        return torch_path.checksum(values.view(_BITS[values.element_size()][0]), start)


class TritonBackend:
    """The CUDA kernels of `triton_path`. Raises ImportError where triton is not installed."""

    chunk = 1 << 26

    def __init__(self) -> None:
        self.path: Any = importlib.import_module("broaden.perturb.triton_path")

    def write(self, theta: Tensor, out: Tensor, table: Tensor, key: int, start: int) -> None:
        """See `Backend.write`. Fused for float32, bfloat16 and float16; others go through float32."""
        if out.dtype in (torch.float32, torch.bfloat16, torch.float16):
            self.path.write(theta, out, table, key, start)
        else:
            exact = torch.empty_like(theta)
            self.path.write(theta, exact, table, key, start)
            out.copy_(exact)

    def update(
        self, theta: Tensor, anchor: Tensor, increment: Increment, keys: Sequence[int], start: int
    ) -> ChangeStats:
        """See `Backend.update`."""
        found: ChangeStats = self.path.update(
            theta, anchor, increment.coefficients, keys, start, increment.factor, increment.decay
        )
        return found

    def checksum(self, values: Tensor, start: int) -> int:
        """See `Backend.checksum`."""
        return int(self.path.checksum(values.view(_BITS[values.element_size()][0]), start))


def bits(values: Tensor) -> NDArray[np.unsignedinteger[Any]]:
    """A flat CPU tensor's bits as unsigned integers of its width, without a copy."""
    signed, unsigned = _BITS[values.element_size()]
    return values.view(signed).numpy().view(unsigned)


NUMBA, TORCH = NumbaBackend(), TorchBackend()


def available() -> dict[str, Backend]:
    """Every backend that runs on this machine's CPU, by name; they must agree bit for bit."""
    both: dict[str, Backend] = {"numba": NUMBA, "torch": TORCH}
    return both if sys.byteorder == "little" else {"torch": TORCH}


def backend_for(device: torch.device) -> Backend:
    """The fastest backend of a device. Raises UsageError for devices without float64."""
    if device.type == "cpu":
        return NUMBA if sys.byteorder == "little" else TORCH
    if device.type in _NO_DOUBLE:
        raise UsageError(
            f"exact perturbations need float64, which {device.type} lacks", fix="keep the weights on cpu"
        )
    return fused_backend(device) if device.type == "cuda" else TORCH


@functools.lru_cache(maxsize=16)
def fused_backend(device: torch.device) -> Backend:
    """Triton's kernels where they can be had and agree with PyTorch's bits on this device, else PyTorch's."""
    if importlib.util.find_spec("triton") is None:
        return TORCH
    try:
        fused = TritonBackend()
        reason = "" if _probe(fused, device) == _probe(TORCH, device) else "their bits differ"
    except (
        Exception
    ) as error:  # whatever a compiler, a driver or an old version may raise: the slower path is there
        reason = f"{type(error).__name__}: {error}"
    if reason:
        warnings.warn(
            f"Triton's noise kernels are not used on {device} ({reason}); PyTorch's are", stacklevel=2
        )
        return TORCH
    return fused


def _probe(backend: Backend, device: torch.device) -> list[int]:
    """Checksums of members and of an update, with odd sizes, a cut block, subnormal numbers and a full key."""
    spread = torch.arange(1, 3002, dtype=torch.float64) * 0.618033988749895 % 1.0 - 0.5
    theta = (
        torch.cat([spread, spread * 1e-39, -torch.zeros(7, dtype=torch.float64)]).to(torch.float32).to(device)
    )
    table = torch.from_numpy(noise.scaled_table(2e-3)).to(device)
    tiny = torch.from_numpy(noise.scaled_table(1e-40, -1)).to(device)
    key, start = 0xFEDCBA9876543210, (1 << 36) + 5
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for scaled in (table, tiny):
            out = torch.empty_like(theta, dtype=dtype)
            backend.write(theta, out, scaled, key, start)
            found.append(backend.checksum(out, start))
    for decay in (0.0, 1 / 3):
        changed = theta.clone()
        increment = Increment((1 << 30, -(1 << 30), 12345), 1e-19, decay)
        backend.update(changed, -theta, increment, (key, 1, (1 << 64) - 1), start)
        found.append(backend.checksum(changed, start))
    return found
