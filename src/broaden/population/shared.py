"""The center in a file that processes map: every worker reads the same bytes, none of them writes.

The file has no name: workers inherit its descriptor, and the system frees it when the last process that has
it open ends, however that ends. Not here: when it is written and read (`processes`, `worker`).
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import torch

from broaden.errors import StoreError
from broaden.population.base import Weights

ALIGN = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a float32 tensor lies: element offset and shape."""

    name: str
    offset: int
    shape: tuple[int, ...]


def shared_file(total: int) -> IO[bytes]:
    """A nameless file for `total` float32: in shared memory where the system has enough, else on the disk.

    Its blocks are taken now: writing to a mapping that outgrows a full device would end the process.
    """
    for parent in ("/dev/shm", None):
        if parent is not None and not os.access(parent, os.W_OK):
            continue
        file = tempfile.TemporaryFile(prefix="broaden-", dir=parent)  # noqa: SIM115 (the caller closes it)
        try:
            if sys.platform == "linux":
                os.posix_fallocate(file.fileno(), 0, size_of(total))
            file.truncate(size_of(total))
            return file
        except OSError:
            file.close()
    raise StoreError(
        f"no room for the {size_of(total):,} bytes of shared weights in /dev/shm or {tempfile.gettempdir()}",
        "free some, or set TMPDIR to a folder with room",
    )


def size_of(total: int) -> int:
    """Bytes of the file; never 0, which could not be mapped."""
    return 4 * max(total, 1)


def layout(center: Weights) -> tuple[list[Entry], int]:
    """Aligned places for all tensors, and the number of elements in all."""
    entries, at = [], 0
    for name, tensor in center.items():
        entries.append(Entry(name, at, tuple(tensor.shape)))
        at += -(-tensor.numel() // ALIGN) * ALIGN
    return entries, at


def map_center(descriptor: int, entries: list[Entry], total: int, *, write: bool = False) -> Weights:
    """Float32 tensors over the file; written only by the process that created it.

    Without `write` the pages are private: what this process wrote would stay its own.
    """
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_COPY
    tensor = torch.frombuffer(mmap.mmap(descriptor, size_of(total), access=access), dtype=torch.float32)
    return {e.name: tensor[e.offset : e.offset + prod(e.shape)].view(e.shape) for e in entries}


def entries_to_json(entries: list[Entry]) -> list[list[Any]]:
    """For the worker's opening message."""
    return [[e.name, e.offset, list(e.shape)] for e in entries]


def entries_from_json(data: list[list[Any]]) -> list[Entry]:
    """Inverse of `entries_to_json`."""
    return [Entry(str(n), int(o), tuple(int(x) for x in s)) for n, o, s in data]
