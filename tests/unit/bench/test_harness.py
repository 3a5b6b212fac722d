"""The arithmetic of the harness, with clocks of our own where time would blur it."""

from __future__ import annotations

import json

import pytest

from broaden.bench import harness, registry
from broaden.bench.harness import Pair, Result, Round, Settings, alternate, by_size, compared
from broaden.bench.machine import Clocks
from broaden.bench.population import efficiency
from broaden.bench.subjects import cut
from broaden.errors import MetricError, UsageError

PAIR = Pair(
    (Round(100, 1.0, 2.0), Round(100, 2.0, 2.0), Round(90, 1.0, 1.0)),
    (Round(50, 1.0, 1.0), Round(60, 2.0, 1.0), Round(20, 1.0, 1.0)),
)


def test_ratio_of_medians_and_spread_of_neighbouring_rounds() -> None:
    said = compared(PAIR, "tokens/s", {"peer": "p"})
    assert (said.ours, said.peer, said.ratio) == (90.0, 30.0, 3.0)
    assert said.spread == {"ours": [50.0, 100.0], "peer": [20.0, 50.0], "ratio": [50 / 30, 4.5]}
    assert said.conditions["cpu_ratio"] == 50.0 / 50.0
    assert said.conditions["seconds_ours"] == [1.0, 2.0, 1.0]
    assert "cpu_ratio" not in compared(PAIR, "tokens/s", {"processes": 2}).conditions


def test_sizes_are_compared_as_they_are() -> None:
    said = by_size([30.0, 40.0, 20.0], [10.0, 20.0, 40.0], "MiB", {})
    assert (said.ours, said.peer, said.ratio) == (30.0, 20.0, 1.5)
    assert said.spread["ratio"] == [0.5, 3.0]
    assert said.conditions["better"] == "smaller"


def test_sides_alternate_and_the_first_changes() -> None:
    order: list[str] = []

    def side(name: str) -> harness.Side:
        def work() -> float:
            order.append(name)
            return 7.0

        return work

    pair = alternate(side("a"), side("b"), rounds=3)
    assert "".join(order) == "ab" + "abbaab"
    assert [r.work for r in (*pair.ours, *pair.peer)] == [7.0] * 6
    assert all(r.seconds > 0 for r in pair.ours)
    with pytest.raises(MetricError, match="at least one round"):
        alternate(side("a"), side("b"), rounds=0)


def test_the_object_has_its_keys() -> None:
    keys = {"ours", "peer", "ratio", "unit", "spread", "conditions"}
    assert set(compared(PAIR, "tokens/s", {}).to_json()) == keys
    skipped = Result("", skipped="no peer").to_json()
    assert set(skipped) == keys | {"skipped"}
    assert skipped["ratio"] is None
    json.dumps(skipped, allow_nan=False)


def test_rounds() -> None:
    assert Settings(1).rounds_or(3) == 3
    assert Settings(1, quick=True).rounds_or(3) == 2
    assert Settings(1, quick=True, rounds=9).rounds_or(3) == 9


@pytest.mark.parametrize(
    ("seconds", "workers", "expected"),
    [([1.0] * 8, 2, 1.0), ([1.0] * 8, 3, 8 / 9), ([3.0, 1.0, 1.0, 1.0], 2, 1.0), ([1.0, 1.0, 3.0], 2, 5 / 8)],
)
def test_dealing_to_workers(seconds: list[float], workers: int, expected: float) -> None:
    assert efficiency(seconds, workers) == expected


def test_what_others_used_is_the_rest() -> None:
    began, ended = Clocks(10.0, 100.0, 3.0), Clocks(20.0, 118.0, 13.0)
    assert began.others(ended) == 0.8
    assert began.others(Clocks(20.0, 105.0, 13.0)) == 0.0
    assert began.others(Clocks(20.0, None, 13.0)) is None


def test_figures() -> None:
    said = [registry.number(x) for x in (0.0123, 12.345, 1234.5, 9.97e7, 4.4e9)]
    assert said == ["0.0123", "12.3", "1,234", "99.7 M", "4,400 M"]


def test_a_completion_ends_with_its_first_stop() -> None:
    assert cut([5, 2, 7, 2], [2, 9]) == [5, 2]
    assert cut([5, 6], [2]) == [5, 6]


def test_an_unknown_bench_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match="generate-ragged"):
        registry.find("fly")


def test_the_table_has_results_and_reasons() -> None:
    rows = registry.table([
        (registry.find("generate"), compared(PAIR, "tokens/s", {"of_ceiling": 0.5, "busy": True})),
        (registry.find("score"), Result("", skipped="no data")),
    ]).splitlines()  # fmt: skip
    assert "90 tokens/s | 30 | 3 | 1.67 to 4.5" in rows[2]
    assert "0.50 of the ceiling, busy machine" in rows[2]
    assert rows[3].endswith("| no data |")
    assert len({row.count("|") for row in rows}) == 1
