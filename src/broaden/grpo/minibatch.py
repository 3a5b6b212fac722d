"""Which problems an update sees, and how its rows are cut into minibatches: pure functions of keys."""

from __future__ import annotations

import math

import numpy as np

from broaden.seeds import numpy_generator, stream


def batch_indices(n: int, size: int, step: int, run_seed: int) -> list[int]:
    """Problems of an update: a keyed shuffle an epoch, cut into batches, the short tail kept.

    The same as ES uses (same key, same cut), so that both see the same prompts at the same update.
    """
    epoch, batch = divmod(step, math.ceil(n / size))
    order = numpy_generator(stream(run_seed, "order", epoch)).permutation(n)
    return [int(i) for i in order[batch * size : (batch + 1) * size]]


def minibatches(
    groups_R: np.ndarray, size: int | None, unit: str, run_seed: int, step: int, inner: int
) -> list[np.ndarray]:
    """Rows of each optimiser step of one pass over the batch.

    Args:
        groups_R: group number of each row.
        size: minibatch size (None: everything in one).
        unit: "prompts" keeps groups whole; "responses" shuffles rows.
        run_seed, step, inner: key the shuffle, `stream(run_seed, "minibatch", step, inner)`.
    """
    rows = np.arange(len(groups_R))
    if size is None:
        return [rows]
    generator = numpy_generator(stream(run_seed, "minibatch", step, inner))
    if unit == "responses":
        order = generator.permutation(rows)
        return [order[a : a + size] for a in range(0, len(order), size)]
    order = generator.permutation(np.unique(groups_R))
    return [rows[np.isin(groups_R, order[a : a + size])] for a in range(0, len(order), size)]


def micro_batches(
    rows: np.ndarray, lengths_R: np.ndarray, groups_R: np.ndarray, size: int
) -> list[np.ndarray]:
    """Rows cut into pieces of at most `size`, a group's side by side, so that a piece holds few prompts.

    Groups stand in the order of their longest row, rows of a group in order of length (ties as they stand): less
    padding where rows are padded.
    """
    longest = {g: int(lengths_R[rows[groups_R[rows] == g]].max()) for g in np.unique(groups_R[rows])}
    most = np.array([longest[g] for g in groups_R[rows]])
    order = rows[np.lexsort((np.arange(len(rows)), lengths_R[rows], groups_R[rows], most))]
    return [order[a : a + size] for a in range(0, len(order), size)]
