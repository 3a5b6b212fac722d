"""One budget over the stages: where they end, that a resumed run ends them there too, and what the manifest says."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers.letters import letters
from tests.helpers.nano import Stop, Watching, es_config, fresh_model

from broaden import runs
from broaden.config import RunConfig, build_config, to_dict
from broaden.errors import ConfigError, Interrupted
from broaden.records import StepRecord
from broaden.runs.account import hand_over, is_over, spent, stage_ends
from broaden.store import RunDir

GRPO = {
    "algo": "grpo", "prompts": 4, "group": 4, "minibatch": 2, "learning_rate": 1e-3, "kl": 0.001,
    "reference": "stage_start", "max_new_tokens": 12,
}  # fmt: skip
ES = {"algo": "es", "max_new_tokens": 12}
TOKENS = {"total": "tokens", "value": 2500, "split": [1, 1.5]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_model(tmp_path_factory.mktemp("model"))


def config(model: Path, order: str, budget: dict[str, Any] | None = None) -> RunConfig:
    """`es,grpo` or `grpo,es`, with far more updates than the budget allows."""
    stages = [{**(GRPO if algo == "grpo" else ES), "updates": 50} for algo in order.split(",")]
    changes = {} if budget is None else {"budget": budget}
    task = {"name": letters(), "limit": 20}
    return es_config(model, stages=stages, task=task, checkpoint={"every": 2, "keep": 2}, **changes)


def record(stage: int, **values: Any) -> StepRecord:
    return StepRecord("es", 0, {"stage": stage, **values})


def by_stage(path: Path) -> list[list[StepRecord]]:
    records = RunDir.open(path).records()
    return [[r for r in records if r.values["stage"] == i] for i in (0, 1)]


@pytest.mark.parametrize("order", ["es,grpo", "grpo,es"])
def test_shares_in_tokens_and_resume_over_the_boundary(model: Path, tmp_path: Path, order: str) -> None:
    settings = config(model, order, TOKENS)
    watching = Watching()
    whole = runs.train(settings, tmp_path / "whole", watcher=watching)
    stages = by_stage(tmp_path / "whole")
    for share, records in zip((1000, 1500), stages, strict=True):
        used = [int(r.values["tokens"] or 0) for r in records]
        assert sum(used) >= share > sum(used[:-1])  # the update that used it up is the last
    assert sum("its share of the budget is used up" in n for n in watching.notes) == 2
    first, total = len(stages[0]), whole.step
    assert 1 < first < total - 1 < 50
    for after in sorted({1, first - 1, first, first + 1, total - 1, total}):
        path = tmp_path / f"cut{after}"
        with pytest.raises(Interrupted):
            runs.train(settings, path, watcher=Stop(after))
        result = runs.resume(path)
        assert (result.step, result.center_hash) == (total, whole.center_hash), after
        assert [len(s) for s in by_stage(path)] == [first, total - first]
    steps = [s for s, _ in RunDir.open(tmp_path / "whole").checkpoints()]
    assert {first, total} <= set(steps)  # stage ends are kept, wherever the budget put them
    es_end = first if order == "es,grpo" else total
    assert runs.replay_run(tmp_path / "whole", es_end)[1] == es_end


def test_a_budget_in_seconds_counts_the_logged_ones(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's clock goes on by a second whenever it is looked at: each update logs one, whatever passes by."""
    seconds = itertools.count()
    monkeypatch.setattr("broaden.es.trainer.time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    data = to_dict(config(model, "es,es", {"total": "seconds", "value": 5, "split": [2, 3]}))
    settings = build_config(data)
    whole = runs.train(settings, tmp_path / "whole")
    assert [len(s) for s in by_stage(tmp_path / "whole")] == [2, 3]
    with pytest.raises(Interrupted):
        runs.train(settings, tmp_path / "cut", watcher=Stop(2))
    assert runs.resume(tmp_path / "cut").center_hash == whole.center_hash


def test_the_manifest_says_what_each_stage_takes_over_and_spends(model: Path, tmp_path: Path) -> None:
    budget = {"total": "updates", "value": 5}
    result = runs.train(config(model, "es,grpo", budget), tmp_path / "run")
    manifest = RunDir.open(result.path).manifest
    es, grpo = manifest["stages"]
    assert (es["updates_at_most"], grpo["updates_at_most"], result.step) == (3, 2, 5)
    assert (es["share"], grpo["share"]) == ({"updates": 3}, {"updates": 2})
    assert es["weights"] == "theta_0, float32 master"
    assert grpo["weights"] == "carried from the end of stage 0, float32 master"
    assert (es["optimizer"], grpo["optimizer"].split(",")[1]) == (
        "none",
        " reset: moments and step count at zero",
    )
    assert (es["reference"], grpo["reference"]) == (None, "stage_start")
    assert grpo["schedule"] == "restarted: update 0 of 2"
    assert [s["seed"] for s in manifest["stages"]] == manifest["stage_seeds"]
    assert es["seed"] != grpo["seed"]
    assert (es["first_step"], grpo["first_step"]) == (0, 3)
    assert es["spent"]["updates"] == 3
    records = by_stage(result.path)[1]
    assert grpo["spent"]["tokens"] == sum(int(r.values["tokens"] or 0) for r in records) > 0
    assert grpo["spent"]["flops_full"] > grpo["spent"]["flops_paper"] > 0
    assert grpo["spent"]["seconds"] > 0


def test_the_bf16_control_says_that_its_weights_are_rounded(model: Path) -> None:
    stages = [{"updates": 1}, {"updates": 1, "precision": "bf16_inplace"}]
    found = hand_over(es_config(model, stages=stages))
    assert [s["weights"].split(", ")[1] for s in found] == ["float32 master", "rounded to bfloat16"]


def test_spent_adds_and_ends_a_stage_at_its_share(model: Path) -> None:
    first, second = record(0, tokens=7, flops_paper=10, flops_full=20, seconds=0.5), record(0, tokens=None)
    total = spent([first, second])
    assert (total.updates, total.tokens, total.flops_paper, total.flops_full, total.seconds) == (
        2,
        7,
        10,
        20,
        0.5,
    )
    for unit, value in (("tokens", 14), ("flops_paper", 20), ("flops_full", 40), ("seconds", 1.0)):
        exactly = config(model, "es,es", {"total": unit, "value": value})
        beyond = config(model, "es,es", {"total": unit, "value": value * 1.01})
        assert is_over(exactly, 0, total), unit
        assert not is_over(beyond, 0, total), unit
    assert not is_over(config(model, "es,es"), 0, total)


def test_stage_ends_are_the_logged_ones_where_a_stage_is_over(model: Path) -> None:
    settings = config(model, "es,grpo", TOKENS)
    assert stage_ends(settings, []) == [50, 100]
    assert stage_ends(settings, [record(0)] * 3) == [50, 100]
    assert stage_ends(settings, [record(0)] * 3, over=1) == [3, 53]
    assert stage_ends(settings, [*[record(0)] * 3, record(1)]) == [3, 53]


def test_a_budget_in_updates_settles_each_stages_updates() -> None:
    def updates(budget: dict[str, Any], *stages: dict[str, Any]) -> list[int]:
        return [s.updates for s in build_config({"stages": list(stages), "budget": budget}).stages]

    es, grpo = {"algo": "es", "preset": "paper-easy"}, {"algo": "grpo", "preset": "paper"}
    assert updates({"total": "updates", "value": 234}, es, grpo) == [117, 117]
    assert updates({"total": "updates", "value": 235}, es, grpo) == [118, 117]
    assert updates({"total": "updates", "value": 400, "split": [1, 3]}, es, grpo) == [100, 300]
    assert updates({"total": "updates", "value": 10}, {**es, "updates": 3}, grpo) == [3, 5]


@pytest.mark.parametrize(
    ("budget", "stage", "text"),
    [
        ({"total": "tokens", "value": 10, "split": [1, 1]}, {"updates": 1}, "1 stages need as many shares"),
        ({"total": "tokens", "value": 10, "split": [0]}, {"updates": 1}, "all above 0"),
        ({"total": "updates", "value": 2.5}, {}, "give a whole number"),
        ({"total": "rollouts", "value": 10}, {}, "budget.total"),
        ({"total": "tokens"}, {"updates": 1}, "budget.value"),
        ({"total": "tokens", "value": 10}, {}, "stage 0 does not say how many updates"),
        ({"total": "tokens", "value": 10}, {"updates": 1, "control": "random_z"}, "no such figure"),
        ({"total": "flops_paper", "value": 10}, {"algo": "sft", "updates": 1}, "no such figure"),
    ],
)
def test_a_budget_that_cannot_end_a_stage_is_refused(
    budget: dict[str, Any], stage: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config({"stages": [{"algo": "es", **stage}], "budget": budget})
    assert text in str(caught.value)
