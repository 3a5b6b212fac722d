"""What the scheduler needs from the arithmetic: prompts into a cache, one decode step, sampling, moving slots.

Two implementations give the same meaning (not the same bits): `compiled` (CPU, Numba between matrix products)
and `portable` (tensor operations, any device). Not here: which request sits in which row (`scheduler`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broaden.models.spec import ModelSpec
from broaden.records import Sampling

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
ROW_MULTIPLE = 16  # rows of a member in every product
CAPACITY_MULTIPLE = 64  # positions of a cache


def round_up(n: int, multiple: int) -> int:
    """Smallest multiple that is at least n."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of some sequences, [layers, slots, kv_heads, ...] each, laid out as its runner likes."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def bytes_per_slot(spec: ModelSpec, positions: int, itemsize: int) -> int:
        """Bytes of one sequence."""
        return 2 * spec.layers * spec.kv_width * round_up(positions, CAPACITY_MULTIPLE) * itemsize


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sampled token a row (entries of rows that were not asked for are stale)."""

    tokens: Ints
    logprobs: Floats
    entropies: Floats


class Runner(Protocol):
    """The arithmetic of a batch of members."""

    @property
    def members(self) -> int:
        """Members in the batch; rows are member-major."""

    @property
    def row_multiple(self) -> int:
        """Rows of a member in a step come in multiples of this, so that a row's bits do not depend on their number."""

    def cache(self, slots: int, positions: int) -> Cache:
        """An empty cache."""

    def prompts(
        self, member: int, prompts: Sequence[Sequence[int]], cache: Cache, slots: Sequence[int]
    ) -> None:
        """Keys and values of whole prompts (any may be empty) into their slots of a cache."""

    def logits(self, ids: Ints, positions: Ints, cache: Cache) -> Tensor:
        """Feed one token a row (row r has slot r; position -1: padding) and return logits [rows, V]."""

    def sample(
        self, logits: Tensor, rows: Ints, sampling: Sampling, keys: NDArray[np.uint64], counts: Ints
    ) -> Drawn:
        """Draw a token for each of the given rows. Raises DivergedError where logits are not finite."""

    def copy(self, source: Cache, target: Cache, from_slots: Ints, to_slots: Ints, lengths: Ints) -> None:
        """Copy the first `lengths` positions of slots (within one cache: each to itself or to a lower slot)."""


def table_index(ids: Ints, members: int, vocab: int) -> Tensor:
    """Row of each token in the stacked embedding [members * V, H], for member-major ids (negative: padding)."""
    index = torch.from_numpy(np.maximum(ids, 0))
    if members == 1:
        return index
    return (index.view(members, -1) + torch.arange(members)[:, None] * vocab).view(-1)
