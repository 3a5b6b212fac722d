"""Packing, batches and the endless order."""

from __future__ import annotations

import numpy as np
import pytest

from broaden.errors import DataError
from broaden.models.rows import Examples
from broaden.sft.examples import Feed

PAIRS = [([1, 2], [3]), ([4], [5, 6, 7]), ([8, 9, 10], [11, 12]), ([13], [14])]


def test_batch_is_right_padded() -> None:
    batch = Examples.of(PAIRS).batch(np.array([1, 0]))
    assert batch.ids_BT.tolist() == [[4, 5, 6, 7], [1, 2, 3, 0]]
    assert batch.prompts_B.tolist() == [1, 2]
    assert batch.lengths_B.tolist() == [4, 3]
    assert batch.completion_tokens == 4


def test_every_example_once_an_epoch_and_batches_full() -> None:
    feed = Feed(Examples.of(PAIRS), run_seed=5, batch=3)
    seen = [int(row) for step in range(4) for _, rows in feed.parts(step) for row in rows]
    assert len(seen) == 12
    assert [sorted(seen[e : e + 4]) for e in (0, 4, 8)] == [[0, 1, 2, 3]] * 3
    assert len({tuple(seen[e : e + 4]) for e in (0, 4, 8)}) > 1


def test_a_batch_depends_on_its_step_alone() -> None:
    source = Examples.of(PAIRS)
    forward, fresh = Feed(source, 5, 3), Feed(source, 5, 3)
    earlier = [forward.parts(s) for s in range(4)]
    assert [r.tolist() for _, r in earlier[3]] == [r.tolist() for _, r in fresh.parts(3)]


def test_micro_batches_hold_the_same_rows_sorted_by_length() -> None:
    feed = Feed(Examples.of(PAIRS), 5, 4)
    (whole,) = feed.micro_batches(0, 4)
    parts = feed.micro_batches(0, 2)
    assert whole.lengths_B.tolist() == [2, 3, 4, 5]
    assert [p.ids_BT.shape[1] for p in parts] == [3, 5]
    assert sum(p.completion_tokens for p in parts) == whole.completion_tokens


def test_source_as_a_function_of_the_epoch() -> None:
    asked: list[int] = []

    def source(epoch: int) -> Examples:
        asked.append(epoch)
        return Examples.of([([epoch + 1], [i + 1]) for i in range(2)])

    feed = Feed(source, 0, 3)
    rows = [b.ids_BT[:, 0].tolist() for b in feed.micro_batches(0, 3)]
    assert sorted(x for row in rows for x in row) == [1, 1, 2]
    assert asked == [0, 1]


def test_refuses_empty_and_changing_sources() -> None:
    with pytest.raises(DataError, match="pair 1"):
        Examples.of([([1], [2]), ([1], [])])
    with pytest.raises(DataError, match="empty"):
        Examples.of([])
    feed = Feed(lambda e: Examples.of(PAIRS[: 2 + e]), 0, 2)
    with pytest.raises(DataError, match="epoch 1 has 3 examples, epoch 0 had 2"):
        feed.parts(1)
