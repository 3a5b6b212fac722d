"""Plans: counts by hand for every stage kind, what is assumed is said, and a budget cuts a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.helpers.nano import es_config, fresh_model

from broaden.config import EsStage, RunConfig, build_config
from broaden.errors import ModelError, UsageError
from broaden.runs.plan import Assumed, RunPlan, plan
from broaden.runs.prepare import members_at_once

QWEN, P = "Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_model(tmp_path_factory.mktemp("model"))


def far(*stages: dict[str, Any], **more: Any) -> RunConfig:
    """A run of a model and of data that are not on this machine."""
    return build_config(
        {"model": {"source": QWEN}, "task": {"name": "gsm8k"}, "stages": list(stages), **more}
    )


def test_es_and_grpo_by_shape_by_hand() -> None:
    es = {"algo": "es", "updates": 3, "members": 4, "prompts": 5, "samples": 2, "max_new_tokens": 100}
    grpo = {
        "algo": "grpo",
        "updates": 2,
        "prompts": 6,
        "group": 4,
        "minibatch": 3,
        "max_new_tokens": 80,
        "kl": 0.01,
    }
    found = plan(far(es, grpo), Assumed(prompt_tokens=50, response_tokens=90, tokens_per_second=1e4))
    assert found.facts.by_shape
    assert found.facts.problems is None
    a, b = found.stages
    assert (a.rollouts, a.tokens, a.optimizer_steps) == (3 * 4 * 5 * 2, 3 * 4 * 5 * 2 * 90, 0)
    assert a.flops_paper == 2 * P * a.tokens
    assert a.flops_full == 2 * P * (3 * 4 * 5 * 50 + a.tokens)
    assert (b.rollouts, b.tokens, b.optimizer_steps) == (48, 48 * 80, 4)  # responses end at the limit
    assert b.flops_paper == 8 * P * b.tokens
    assert b.flops_full == 2 * P * (
        2 * 6 * 50 + b.tokens + 48 * 130 * (1 + 1 + 1 + 2)
    )  # pi_old: two steps a batch
    assert a.seconds == pytest.approx(a.flops_full / (2 * P * 1e4))
    assert a.memory is not None
    assert b.memory is not None
    assert b.memory.peak > a.memory.peak > 8 * P


def test_a_random_walk_rolls_nothing_out() -> None:
    (stage,) = plan(far({"algo": "es", "updates": 3, "control": "random_z"})).stages
    assert (stage.rollouts, stage.tokens, stage.flops_full) == (0, 0, 0)


def test_what_is_not_known_is_said() -> None:
    text = plan(far({"algo": "grpo", "updates": 2, "preset": "paper"})).text()
    for said in ("problems unknown", "by its shapes", "is not fetched here", "assumed: prompts of 150 tokens",
                 "as long as it may be", "differs from the defaults of trl in: ", "aggregation sequence (token)",
                 "differs from the defaults of verl in: ", "dual_clip none (3)"):  # fmt: skip
        assert said in text
    trl = plan(far({"algo": "grpo", "updates": 2, "preset": "trl"})).text()
    assert "differs from the defaults of trl in: nothing" in trl


def test_local_data_are_counted_though_the_model_is_elsewhere(tmp_path: Path) -> None:
    rows = tmp_path / "train.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 3)
    task = {"name": "gsm8k", "split": "train", "data": str(rows)}
    found = plan(far({"algo": "es", "updates": 1}, task=task))
    assert (found.facts.problems, found.facts.by_shape) == (3, True)


def measured(model: Path, **changes: Any) -> RunPlan:
    return plan(es_config(model, **changes), Assumed(prompt_tokens=999))


def test_a_local_model_is_measured_and_not_assumed(model: Path) -> None:
    found = measured(model)
    assert not found.facts.by_shape
    assert found.facts.problems == 64
    assert found.facts.prompt_tokens < found.facts.longest_prompt + 1 < 40
    assert not found.facts.notes


def test_a_warm_start_counts_the_tokens_of_its_traces(model: Path) -> None:
    found = measured(model, task={"name": "countdown", "split": "warmup", "limit": 50},
                     stages=[{"algo": "sft", "updates": 7, "batch": 4}])  # fmt: skip
    (stage,) = found.stages
    mean = stage.tokens / 28
    assert 20 < mean < 128
    assert stage.flops_full == pytest.approx(6 * found.facts.parameters * stage.tokens, rel=1e-3)
    assert stage.flops_paper is None
    assert stage.memory is not None


def test_a_budget_cuts_the_stages() -> None:
    stage = {"algo": "es", "updates": 100, "members": 2, "prompts": 5, "max_new_tokens": 10}
    grpo = {"algo": "grpo", "updates": 100, "prompts": 5, "group": 2, "max_new_tokens": 10}
    found = plan(far(stage, grpo, budget={"total": "tokens", "value": 1000, "split": [1, 3]}))
    assert [s.planned for s in found.stages] == [3, 8]  # 100 tokens an update, of 250 and 750
    assert "100 updates, of which its share of the budget lasts for 3" in found.text()
    timed = far(stage, budget={"total": "seconds", "value": 50})
    assert plan(timed).stages[0].planned == 100  # no rate was given
    assert (
        plan(timed, Assumed(prompt_tokens=10, tokens_per_second=100)).stages[0].planned == 25
    )  # 200 an update


def test_mistakes_are_found_without_the_model() -> None:
    es = {"algo": "es", "updates": 1}
    with pytest.raises(UsageError, match="matches none"):
        plan(far({**es, "include": ["nothing*"]}))
    with pytest.raises(UsageError, match="context of 32768"):
        plan(far({**es, "max_new_tokens": 40000}))
    with pytest.raises(UsageError, match="no option"):
        plan(far(es, task={"name": "gsm8k", "options": {"x": 1}}))
    with pytest.raises(ModelError, match="its shapes are not known"):
        plan(far(es, model={"source": "nobody/nothing"}))


@pytest.mark.parametrize(
    ("population", "engine", "precision", "parameters", "expected"),
    [
        ({}, {}, "fp32_master", 5_000_000, 3),
        ({}, {}, "fp32_master", 4_000_000, 10),
        ({"batch": 2}, {}, "fp32_master", 5_000_000, 2),
        ({"kind": "batched"}, {}, "fp32_master", 5_000_000, 10),
        ({"kind": "serial"}, {}, "fp32_master", 5_000_000, 1),
        ({"workers": 2}, {}, "fp32_master", 5_000_000, 1),
        ({"workers": 4}, {}, "fp32_master", 4_000_000, 3),
        ({}, {"kind": "generate"}, "fp32_master", 5_000_000, 1),
        ({}, {"device": "cuda"}, "fp32_master", 5_000_000, 1),
        ({}, {}, "bf16_inplace", 5_000_000, 1),
        ({}, {}, "fp32_master", 2_000_000_000, 1),
    ],
)
def test_members_at_once(
    monkeypatch: pytest.MonkeyPatch, population: dict[str, Any], engine: dict[str, Any], precision: str,
    parameters: int, expected: int,
) -> None:  # fmt: skip
    """Ten members and three threads: a batch of small models, a larger one for each thread, else one by one."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    model = {"source": QWEN, "dtype": "bfloat16" if precision == "bf16_inplace" else "float32"}
    config = build_config({
        "model": model, "task": {"name": "gsm8k"}, "population": population, "engine": engine,
        "stages": [{"algo": "es", "members": 10, "precision": precision}],
    })  # fmt: skip
    stage = config.stages[0]
    assert isinstance(stage, EsStage)
    assert members_at_once(config, stage, True, parameters) == expected
    assert members_at_once(config, stage, False, parameters) == 1
    if parameters > 4_000_000 and population.get("kind") != "batched":
        sparing = config.model_copy(update={"low_memory": True})
        assert members_at_once(sparing, stage, True, parameters) == 1


def test_packed_weights_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    es = {"algo": "es", "members": 4, "max_new_tokens": 32}
    grpo = {"algo": "grpo", "max_new_tokens": 32}
    half = {"source": QWEN, "dtype": "bfloat16"}

    def copies(*stages: dict[str, Any], **more: Any) -> list[float]:
        found = plan(far(*stages, **{"model": half, **more}))
        rollouts = [stage.memory.phases["rollout"] for stage in found.stages if stage.memory is not None]
        return [rollout.get("packed weights", 0) / (2 * P) for rollout in rollouts]

    assert copies(es, grpo) == [0, 0]  # 3 GB
    monkeypatch.setattr("broaden.engines.torch_engine.PACKED_BYTES", 4 << 30)
    assert copies(es, grpo) == [1, 1]
    assert copies(es, population={"kind": "batched"}) == [2]
    assert copies(es, population={"workers": 3}) == [3]
    assert copies({**es, "max_new_tokens": 31}) == [0]
    assert copies(es, engine={"packed": False}) == [0]
    assert copies(es, engine={"kind": "generate"}) == [0]
    assert copies(es, model={"source": QWEN}) == [0]
