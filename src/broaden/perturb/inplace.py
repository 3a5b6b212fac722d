"""The labelled control "bf16_inplace": what public code does, so that its damage can be measured.

bf16 weights are perturbed in place, restored by subtracting, and updated by N small additions, all in bf16:

    perturb:  w <- bf16(w + bf16(sigma * sign * bf16(eps)))
    restore:  w <- bf16(w - bf16(sigma * sign * bf16(eps)))        (w is not what it was)
    update:   for i = 1 .. N:  w <- bf16(w + bf16(scale * c_i * bf16(eps_i)))

The noise is that of `NoiseSpec`, so runs with and without the control differ in arithmetic only.
Never use this to train; `write_member` and `apply_update` are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from broaden.errors import DivergedError, UsageError
from broaden.perturb import chunks, noise
from broaden.perturb.backend import Backend, backend_for
from broaden.perturb.chunks import Chunk
from broaden.perturb.spec import NoiseSpec, Weights


class InPlaceControl:
    """In-place bf16 arithmetic on `weights` (bfloat16, contiguous), which it changes.

    Args:
        weights: bfloat16 tensors by canonical name; there is no fp32 center behind them.
        threads: CPU threads; the bits do not depend on it.

    Raises:
        UsageError: a tensor is not bfloat16 or not contiguous.
    """

    precision = "bf16_inplace"

    def __init__(self, weights: Weights, *, threads: int = 1) -> None:
        chunks.check_dtype(weights, torch.bfloat16, "the in-place weights")
        chunks.check_contiguous(weights, "the in-place weights")
        self.weights = weights
        self.threads = threads

    def perturb(self, spec: NoiseSpec, member: int, sign: int = 1) -> None:
        """w <- w + sigma * sign * eps in bf16."""
        noise.check_sign(sign)
        self._add(spec, member, spec.sigma * sign)

    def restore(self, spec: NoiseSpec, member: int, sign: int = 1) -> None:
        """w <- w - sigma * sign * eps in bf16: what public code calls restoring."""
        noise.check_sign(sign)
        self._add(spec, member, -spec.sigma * sign)

    @contextmanager
    def perturbed(self, spec: NoiseSpec, member: int, sign: int = 1) -> Iterator[Weights]:
        """Perturbed inside the block, "restored" by subtraction after it."""
        self.perturb(spec, member, sign)
        try:
            yield self.weights
        finally:
            self.restore(spec, member, sign)

    def update(
        self, spec: NoiseSpec, members: Sequence[int], coefficients: Sequence[float], scale: float
    ) -> None:
        """N bf16 additions in the order given. Raises DivergedError on a coefficient that is not finite."""
        if len(members) != len(coefficients):
            raise UsageError(f"{len(members)} members but {len(coefficients)} coefficients")
        if not all(math.isfinite(scale * c) for c in coefficients):
            raise DivergedError("a coefficient is not finite; the weights were not touched")
        for member, coefficient in zip(members, coefficients, strict=True):
            self._add(spec, member, scale * coefficient)

    def _add(self, spec: NoiseSpec, member: int, factor: float) -> None:
        chunks.check_same(self.weights, self.weights, "the in-place weights", spec.names)
        if spec.rank:
            raise UsageError(
                f"the in-place control has noise of full rank, not rank {spec.rank}", fix="take a `Selection`"
            )
        table = bf16_table(factor)
        for device, group in chunks.by_device(self.weights, spec.names).items():
            keys = {name: spec.key(member, name) for name in group}
            work = partial(self._add_chunk, keys, table.to(device), backend_for(device))
            pieces = chunks.cut(self.weights, group, backend_for(device).chunk)
            chunks.run(work, pieces, chunks.threads_for(device, self.threads))

    def _add_chunk(self, keys: Mapping[str, int], table: Tensor, backend: Backend, chunk: Chunk) -> None:
        part = chunk.of(self.weights[chunk.name])
        backend.write(part.float(), part, table, keys[chunk.name], chunk.start)


def bf16_table(factor: float) -> Tensor:
    """bf16(factor * bf16(table)) as float32[65536]; adding it to bf16 and rounding is a bf16 addition."""
    table = torch.tensor(noise.normal_table()).to(torch.bfloat16)
    return (table * factor).to(torch.float32)
