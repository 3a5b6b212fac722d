"""The center in a file that processes map: every worker reads the same bytes, none of them writes.

The file has no name: workers inherit its descriptor, and the system frees it when the last process that has
it open ends, however that ends. In shared memory it is the one copy of all processes; in a folder on a disk the system
can also write its pages out and drop them, so it counts for no memory that must be there.
Not here: when it is written and read (`processes`, `worker`).
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import torch

from broaden.errors import StoreError
from broaden.population.base import Weights

ALIGN = 64
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a float32 tensor lies: element offset and shape."""

    name: str
    offset: int
    shape: tuple[int, ...]


def shared_file(total: int, folder: Path | None = None) -> IO[bytes]:
    """A nameless file for `total` float32: in `folder`, or in shared memory where the system has enough, else on the
    disk.

    Its blocks are taken now: writing to a mapping that outgrows a full device would end the process.

    Raises:
        StoreError: there is no room.
    """
    places = (SHARED_MEMORY, None) if folder is None else (str(folder),)
    for parent in places:
        if parent == SHARED_MEMORY and not os.access(parent, os.W_OK):
            continue
        file = tempfile.TemporaryFile(prefix="broaden-", dir=parent)  # noqa: SIM115 (the caller closes it)
        try:
            if sys.platform == "linux":
                os.posix_fallocate(file.fileno(), 0, size_of(total))
            elif shutil.disk_usage(parent or tempfile.gettempdir()).free < size_of(total):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.truncate(size_of(total))
            return file
        except OSError:
            file.close()
    if folder is not None:
        free = shutil.disk_usage(folder).free
        raise StoreError(
            f"no room in {folder} for the float32 weights: {size_of(total):,} bytes are needed, {free:,} are free",
            "free some, choose a run directory on another disk (--out), or leave out low_memory",
        )
    raise StoreError(
        f"no room for the {size_of(total):,} bytes of shared weights in /dev/shm or {tempfile.gettempdir()}",
        "free some, or set TMPDIR to a folder with room",
    )


class SharedWeights(dict[str, torch.Tensor]):
    """Float32 weights by name over a file of their own: an ordinary dictionary that other processes can map.

    Args:
        like: names, shapes and values (of any floating type, copied one tensor at a time).
        folder: where the file lies; None: in shared memory.

    Raises:
        StoreError: there is no room.
    """

    def __init__(self, like: Mapping[str, torch.Tensor], folder: Path | None = None) -> None:
        self.entries, self.total = layout(like)
        self.file = shared_file(self.total, folder)
        weakref.finalize(self, self.file.close)
        super().__init__(map_center(self.file.fileno(), self.entries, self.total, write=True))
        for name, tensor in like.items():
            self[name].copy_(tensor)

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor]) -> tuple[SharedWeights, bool]:
        """(these very weights where they are shared already, else a shared copy; whether it is a new one)."""
        return (weights, False) if isinstance(weights, SharedWeights) else (cls(weights), True)

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last mapping does."""
        self.file.close()


def size_of(total: int) -> int:
    """Bytes of the file; never 0, which could not be mapped."""
    return 4 * max(total, 1)


def layout(center: Mapping[str, torch.Tensor]) -> tuple[list[Entry], int]:
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
