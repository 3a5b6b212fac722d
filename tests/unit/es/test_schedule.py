"""Mini-batches by keep-tail epochs, schedules, and the collapse guard."""

from __future__ import annotations

import pytest

from broaden.errors import DivergedError
from broaden.es import check_collapse
from broaden.es.guard import smoothed
from broaden.es.schedule import batch_indices, scheduled


def test_an_epoch_sees_every_problem_once_and_keeps_the_tail() -> None:
    batches = [batch_indices(10, 4, step, 1) for step in range(3)]
    assert [len(b) for b in batches] == [4, 4, 2]
    assert sorted(i for b in batches for i in b) == list(range(10))


def test_epochs_and_seeds_have_their_own_order() -> None:
    first, second = batch_indices(50, 50, 0, 1), batch_indices(50, 50, 1, 1)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second != batch_indices(50, 50, 0, 2)


def test_two_epochs_of_gsm8k_are_the_papers_234_updates() -> None:
    sizes = [len(batch_indices(7473, 64, s, 0)) for s in range(234)]
    assert sum(sizes) == 2 * 7473
    assert sizes[116] == sizes[233] == 7473 - 116 * 64


def test_schedules_reach_their_end_at_the_last_update() -> None:
    assert [scheduled(1.0, None, "constant", s, 5) for s in (0, 4)] == [1.0, 1.0]
    assert [scheduled(1.0, 0.0, "linear", s, 5) for s in range(5)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert [scheduled(1.0, 0.0, "cosine", s, 5) for s in (0, 2, 4)] == pytest.approx([1, 0.5, 0])


def test_smoothing_is_debiased() -> None:
    assert smoothed([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert smoothed([0.0, 1.0], weight=0.5) == pytest.approx([0.0, 1 / 1.5])


def test_the_guard_stops_a_collapse_and_nothing_else() -> None:
    healthy = [0.3] * 30
    check_collapse(healthy, 0.25)
    check_collapse([0.3] * 5 + [0.0] * 4, 0.25)  # too few to tell
    with pytest.raises(DivergedError, match="smoothed reward fell"):
        check_collapse(healthy + [0.0] * 10, 0.25)
    check_collapse(healthy + [0.0] * 10, 0.0)
