from __future__ import annotations

import dataclasses
import io
import json
from itertools import combinations

import numpy as np
import pytest
from tests.helpers.scripted_eval import Engine, Task, Tokenizer, problems

from broaden.errors import MetricError
from broaden.evaluation import (
    ArmSummary,
    Comparison,
    by_problem,
    compare,
    document,
    evaluate,
    ratios,
    summarise,
)
from broaden.evaluation.tables import arms_table, paired_table
from broaden.ledger.budget import Budget
from broaden.metrics.intervals import Interval
from broaden.records import Sample, SampleSet, Sampling, Verdict

SAMPLING = Sampling(temperature=0.6, max_new_tokens=8, entropy=True)


def arm(seed: int = 7, count: int = 30, samples: int = 8) -> SampleSet:
    return evaluate(
        Engine(), Tokenizer(), Task(), problems(count), samples=samples, sampling=SAMPLING, seed=seed
    )


def handmade(rows: list[list[tuple[float | None, str | None, int, float]]]) -> SampleSet:
    """rows[p][m] = (score, ballot, tokens, mean entropy)."""
    ps = tuple(problems(len(rows)))
    samples = []
    for p, row in zip(ps, rows, strict=True):
        for m, (score, ballot, tokens, entropy) in enumerate(row):
            reason = {1.0: "correct", 0.0: "wrong", None: "timeout"}[score]
            verdict = Verdict(reason, score, score, ballot, ballot, verifier="v")  # type: ignore[arg-type]
            ids = tuple(range(m, m + tokens))
            finish = "length" if tokens > 5 else "stop"
            samples.append(Sample(p.id, m, m, 3, ids, finish, "", verdict, entropy))  # type: ignore[arg-type]
    return SampleSet("fake", ps, tuple(samples), {"temperature": 0.6})


def test_values_against_a_count_by_hand() -> None:
    data = handmade(
        [
            [(1.0, "7", 2, 1.0), (0.0, "5", 4, 0.5), (0.0, "5", 2, 0.0), (1.0, "7", 8, 0.25)],
            [(0.0, None, 2, 1.0), (0.0, "1", 2, 1.0), (0.0, "1", 2, 1.0), (0.0, "2", 2, 1.0)],
        ]
    )
    got = summarise(data, ks=(1, 2, 4))
    value = {name: interval.value for name, interval in got.metrics.items()}
    assert value["pass@1"] == 0.25
    assert value["pass@2"] == pytest.approx((1 - 1 / 6) / 2)
    assert value["pass@4"] == 0.5
    assert value["maj@2"] == 0.5  # 7 and 5 tie, 7 was first
    assert value["maj@4"] == 0.5
    assert value["truncated"] == 1 / 8
    assert value["no_answer"] == 1 / 8
    assert value["unscored"] == 0.0
    assert value["length"] == (16 / 4 + 8 / 4) / 2
    assert value["entropy"] == pytest.approx((2 + 2 + 0 + 2 + 8) / 24)  # tokens weigh equally
    assert value["distinct"] == 1.0
    assert "emaj@4" not in value
    pairs = list(combinations(range(4), 2))
    assert value["emaj@2"] == pytest.approx(
        np.mean([0.5 if {a, b} & {1, 2} and {a, b} & {0, 3} else {a, b} == {0, 3} for a, b in pairs]) / 2
    )
    assert got.counts["correct"] == 2
    assert got.counts["mixed_ballots"] == 0


def test_unscored_is_neither_right_nor_wrong() -> None:
    data = handmade(
        [
            [(1.0, "7", 2, 1.0), (None, "5", 2, 1.0), (None, "5", 2, 1.0), (0.0, "6", 2, 1.0)],
            [(None, None, 2, 1.0)] * 4,
        ]
    )
    got = summarise(data, ks=(1, 2))
    assert got.metrics["pass@1"].value == 0.5
    assert got.metrics["pass@2"].value == 1.0
    assert got.metrics["maj@2"].value == 1.0  # the unscored ballot abstains
    assert got.metrics["unscored"].value == 6 / 8
    assert got.counts["unscored_problems"] == 1
    with pytest.raises(MetricError, match=r"fewer than 4 scored samples \('p0': 2 of 4"):
        summarise(data, ks=(4,))
    assert "pass@4" not in summarise(data, ks=(4,), short="exclude").metrics


def test_k_above_m_and_incomplete_sets_are_refused() -> None:
    with pytest.raises(MetricError, match="K = 32 needs 32 samples"):
        summarise(arm(), ks=(1, 8, 32))
    with pytest.raises(MetricError, match="K = 0"):
        summarise(arm(), ks=(0,))
    data = arm(count=3)
    gap = dataclasses.replace(data, samples=data.samples[:-8])
    with pytest.raises(MetricError, match="1 of 3 problems have no samples"):
        summarise(gap, ks=(1,))
    with pytest.raises(MetricError, match="'p2' has 7"):
        summarise(dataclasses.replace(data, samples=data.samples[:-1]), ks=(8,))
    with pytest.raises(MetricError, match="stored twice"):
        summarise(dataclasses.replace(data, samples=data.samples + data.samples[:1]), ks=(1,))


def test_intervals_hold_their_values_and_are_seeded() -> None:
    got = summarise(arm(), ks=(1, 8))
    for interval in got.metrics.values():
        assert interval.low <= interval.value <= interval.high
    assert got.metrics["pass@1"].low < got.metrics["pass@1"].high
    assert got == summarise(arm(), ks=(1, 8))
    assert got.metrics["truncated"].low == 0.0
    assert 0.0 < got.metrics["truncated"].high < 0.2  # Wilson: none of 30 is not never


def test_flags_for_borderline_and_mixed_ballots() -> None:
    data = handmade([[(1.0, "7", 2, 1.0), (0.0, "7", 2, 1.0)]])
    right = data.samples[0]
    shaky = dataclasses.replace(right, verdict=dataclasses.replace(right.verdict, borderline=True))
    got = summarise(dataclasses.replace(data, samples=(shaky, data.samples[1])), ks=(1, 2))
    assert got.counts["mixed_ballots"] == 1
    assert got.counts["only_right_is_borderline"] == 1


def test_comparison_is_paired() -> None:
    a, b = arm(), arm(seed=8)
    same = compare(a, a, ks=(1, 8))
    assert all(i == Interval(0.0, 0.0, 0.0) for i in same.metrics.values())
    assert same.progressions == same.regressions == ()
    got = compare(a, b, ks=(1, 8))
    difference = (
        summarise(b, ks=(1, 8)).metrics["pass@8"].value - summarise(a, ks=(1, 8)).metrics["pass@8"].value
    )
    assert got.metrics["pass@8"].value == pytest.approx(difference)
    assert got.conditions_differ == {"seed": [7, 8]}
    before, after = by_problem(a).c_P > 0, by_problem(b).c_P > 0
    assert got.progressions == tuple(f"p{i}" for i in range(30) if after[i] and not before[i])
    back = compare(b, a, ks=(1, 8))
    assert back.metrics["pass@1"].value == pytest.approx(-got.metrics["pass@1"].value)
    assert back.regressions == got.progressions


def test_order_of_problems_does_not_matter() -> None:
    a, b = arm(), arm(seed=8)
    turned = dataclasses.replace(b, problems=b.problems[::-1], samples=b.samples[::-1])
    assert compare(a, turned, ks=(1, 8)).metrics == compare(a, b, ks=(1, 8)).metrics


def test_different_problem_sets_are_refused() -> None:
    with pytest.raises(MetricError, match=r"1 only in the base, 0 only in the other \(for example 'p4'\)"):
        compare(arm(count=5), arm(count=4), ks=(1,))
    a = arm(count=3)
    other = dataclasses.replace(a, problems=(*a.problems[:2], dataclasses.replace(a.problems[2], gold="9")))
    with pytest.raises(MetricError, match="differ in text or gold"):
        compare(a, other, ks=(1,))
    with pytest.raises(MetricError, match="different tasks"):
        compare(a, dataclasses.replace(a, task="x"), ks=(1,))
    judged = tuple(
        dataclasses.replace(s, verdict=dataclasses.replace(s.verdict, verifier="fake/2")) for s in a.samples
    )
    with pytest.raises(MetricError, match="different verifiers: fake/1, fake/2"):
        compare(a, dataclasses.replace(a, samples=judged), ks=(1,))


def test_json_layout() -> None:
    a, b = arm(), arm(seed=8)
    base, es = summarise(a, ks=(1, 8)), summarise(b, ks=(1, 8)).with_metric("drift", 0.03)
    got = document(
        {"base": base, "es": es},
        {"es-base": compare(a, b, ks=(1, 8)), "es-null": {"pass@1": Interval(0.1, 0.0, 0.2)}},
        a.conditions,
        {"es": Budget(updates=3, tokens=10, flops_paper=1.0, flops_full=2.0, seconds=0.5)},
    )
    got = json.loads(json.dumps(got, allow_nan=False))
    assert set(got) == {"arms", "paired", "conditions"}
    assert set(got["arms"]["es"]["pass@8"]) == {"value", "low", "high"}
    assert got["arms"]["es"]["drift"] == {"value": 0.03, "low": 0.03, "high": 0.03}
    assert got["arms"]["es"]["budget"] == {
        "updates": 3, "tokens": 10, "flops_paper": 1.0, "flops_full": 2.0, "seconds": 0.5,
    }  # fmt: skip
    assert got["paired"]["es-null"]["pass@1"]["high"] == 0.2
    assert isinstance(got["paired"]["es-base"]["progressions"], int)


def test_records_round_trip() -> None:
    summary, comparison = summarise(arm(), ks=(1, 8)), compare(arm(), arm(seed=8), ks=(1, 8))
    assert ArmSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    assert Comparison.from_json(json.loads(json.dumps(comparison.to_json()))) == comparison


def test_tables_show_intervals_and_notes() -> None:
    from rich.console import Console

    console = Console(width=240, record=True, file=io.StringIO())
    a, b = arm(), arm(seed=8)
    console.print(
        arms_table({"base": summarise(a, ks=(1, 8)), "es": summarise(b, ks=(1, 8))}, ["pass@1", "length"])
    )
    console.print(paired_table({"es-base": compare(a, b, ks=(1, 8))}, ["pass@1"]))
    text = console.export_text()
    value = summarise(a, ks=(1, 8)).metrics["pass@1"]
    assert f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]" in text
    assert "few problems" in text
    assert "M >= 4K" in text
    assert "4.0" in text


def test_every_metric_is_a_ratio_over_the_same_problems() -> None:
    got = ratios(by_problem(arm()), (1, 8))
    assert {r.num_P.shape for r in got.values()} == {(30,)}
