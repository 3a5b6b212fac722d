"""The score bench on a few cases: both sides run, the object has its five keys."""

from __future__ import annotations

from tests.helpers.data import data_path

from broaden.bench.score import boxed, load_cases, score


def test_cases_are_the_judged_solutions_and_the_golds() -> None:
    cases = load_cases(data_path("gsm8k"), data_path("math500"))
    assert len(cases) == 5276 + 500
    assert boxed("so\nA: 18") == "so\nThe answer is $\\boxed{18}$."
    assert boxed("no answer") == "no answer"


def test_a_short_run() -> None:
    said = score(data_path("gsm8k"), data_path("math500"), rounds=1, limit=40)
    assert set(said) == {"ours", "peer", "ratio", "unit", "conditions"}
    assert said["conditions"]["cases"] == 80
    assert said["conditions"]["agreement_ours"] >= said["conditions"]["agreement_peer"]
    assert said["ratio"] > 1
