"""Cutting tensors into chunks and running them in threads; no arithmetic here.

Chunks have a fixed size, so the number of threads cannot show in any result, not even in a statistic
that is summed in floating point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from broaden.errors import UsageError
from broaden.perturb.spec import Weights

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements start .. stop - 1 of a flattened tensor."""

    name: str
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """This part of a contiguous tensor, as a flat view."""
        return flat(tensor)[self.start : self.stop]


def flat(tensor: Tensor) -> Tensor:
    """A contiguous tensor as one dimension, without autograd and without a copy."""
    return tensor.detach().view(-1)


def cut(weights: Weights, names: Iterable[str], size: int) -> Iterator[Chunk]:
    """The chunks of the named tensors, `size` elements each but for the last of a tensor."""
    for name in names:
        count = weights[name].numel()
        for start in range(0, count, size):
            yield Chunk(name, start, min(start + size, count))


def by_device(weights: Weights, names: Iterable[str]) -> dict[torch.device, list[str]]:
    """The names, grouped by the device their tensor lives on."""
    groups: dict[torch.device, list[str]] = {}
    for name in names:
        groups.setdefault(weights[name].device, []).append(name)
    return groups


def run(work: Callable[[Chunk], T], chunks: Iterable[Chunk], threads: int) -> list[T]:
    """Results of `work` on each chunk, in the chunks' order."""
    if threads == 1:
        return [work(chunk) for chunk in chunks]
    with ThreadPoolExecutor(threads, thread_name_prefix="perturb") as pool:
        return list(pool.map(work, chunks))


def threads_for(device: torch.device, threads: int) -> int:
    """Threads to use on a device: CPU work is spread, a device's queue is fed by one thread.

    Raises UsageError when threads < 1.
    """
    if threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    return threads if device.type == "cpu" else 1


def check_same(left: Weights, right: Weights, what: str, names: Iterable[str] | None = None) -> None:
    """Raises UsageError unless both hold the same names (or all of `names`) with equal shapes.

    Args:
        left, right: the two sets; a message calls left "the center".
        what: how a message calls the right one.
        names: the names that matter; None means that the two name sets must be equal.
    """
    wanted = set(left) | set(right) if names is None else set(names)
    for side, have in (("the center", left), (what, right)):
        missing = sorted(wanted - set(have))
        if missing:
            raise UsageError(f"{side} lacks {len(missing)} tensor(s), first {missing[0]!r}")
    for name in sorted(wanted):
        if left[name].shape != right[name].shape:
            ours, theirs = tuple(left[name].shape), tuple(right[name].shape)
            raise UsageError(f"{name}: the center has shape {ours}, {what} has {theirs}")


def check_contiguous(weights: Weights, what: str) -> None:
    """Raises UsageError unless every tensor is contiguous (elements are addressed flat, in C order)."""
    for name, tensor in weights.items():
        if not tensor.is_contiguous():
            raise UsageError(f"{name} of {what} is not contiguous", fix="pass a contiguous tensor or view")


def check_dtype(weights: Weights, dtype: torch.dtype, what: str) -> None:
    """Raises UsageError unless every tensor has this dtype."""
    for name, tensor in weights.items():
        if tensor.dtype != dtype:
            raise UsageError(
                f"{name} of {what} is {tensor.dtype}, expected {dtype}", fix=f"convert to {dtype}"
            )
