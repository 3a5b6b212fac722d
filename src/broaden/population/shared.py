"""The center in a file that processes map: every worker reads the same bytes, none of them writes."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from broaden.population.base import Weights

ALIGN = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a float32 tensor lies: element offset and shape."""

    name: str
    offset: int
    shape: tuple[int, ...]


def shared_folder() -> Path:
    """A new folder in shared memory where the system has one, else among temporary files."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="broaden-", dir=parent))


def layout(center: Weights) -> tuple[list[Entry], int]:
    """Aligned places for all tensors, and the number of elements in all."""
    entries, at = [], 0
    for name, tensor in center.items():
        entries.append(Entry(name, at, tuple(tensor.shape)))
        at += -(-tensor.numel() // ALIGN) * ALIGN
    return entries, at


def map_center(path: Path, entries: list[Entry], total: int, *, create: bool = False) -> Weights:
    """Float32 tensors over the file; written only by the process that created it."""
    flat = np.memmap(path, dtype=np.float32, mode="w+" if create else "c", shape=(max(total, 1),))
    tensor = torch.from_numpy(flat)
    return {e.name: tensor[e.offset : e.offset + prod(e.shape)].view(e.shape) for e in entries}


def entries_to_json(entries: list[Entry]) -> list[list[Any]]:
    """For the worker's opening message."""
    return [[e.name, e.offset, list(e.shape)] for e in entries]


def entries_from_json(data: list[list[Any]]) -> list[Entry]:
    """Inverse of `entries_to_json`."""
    return [Entry(str(n), int(o), tuple(int(x) for x in s)) for n, o, s in data]
