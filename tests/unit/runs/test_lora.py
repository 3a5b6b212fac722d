"""LoRA in a run: merged weights are carried on, an interrupted run ends with the same hash, adapters are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.letters import letters
from tests.helpers.nano import Stop, es_config, fresh_model

from broaden import runs
from broaden.config import CheckpointConfig, RunConfig
from broaden.errors import ConfigError, Interrupted
from broaden.models.lora import Lora, LoraSettings
from broaden.models.tensor_files import read_tensors
from broaden.perturb import center_hash
from broaden.runs.plan import plan
from broaden.runs.stages import stage_seed
from broaden.store import RunDir

LORA: dict[str, Any] = {
    "algo": "grpo", "updates": 3, "prompts": 4, "group": 4, "minibatch": 2, "learning_rate": 1e-2, "kl": 0.01,
    "reference": "stage_start", "max_new_tokens": 12, "lora_rank": 2, "lora_targets": ["*.self_attn.[qv]_proj.weight"],
}  # fmt: skip
STAGES = [LORA, {"updates": 1, "max_new_tokens": 12}, {**LORA, "updates": 2, "lora_alpha": 4.0}]
"""LoRA, ES, LoRA on what came out: six updates."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_model(tmp_path_factory.mktemp("model"))


def config(model: Path, stages: list[dict[str, Any]]) -> RunConfig:
    task = {"name": letters(), "limit": 20}
    return es_config(model, stages=stages, task=task, checkpoint={"every": 1, "keep": 9})


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.RunResult:
    return runs.train(config(model, STAGES), tmp_path_factory.mktemp("whole") / "run")


def checkpoint(run: Path, step: int) -> dict[str, torch.Tensor]:
    return read_tensors(RunDir.open(run).checkpoint_path(step))


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_an_interrupted_run_resumes_to_the_same_hash(
    model: Path, tmp_path: Path, whole: runs.RunResult, after: int
) -> None:
    with pytest.raises(Interrupted):
        runs.train(config(model, STAGES), tmp_path / "run", watcher=Stop(after))
    result = runs.resume(tmp_path / "run")
    assert (result.step, result.center_hash) == (6, whole.center_hash)


def test_it_resumes_on_weights_that_were_bfloat16(model: Path, tmp_path: Path) -> None:
    stages = [{"updates": 1, "max_new_tokens": 12, "precision": "bf16_inplace"}, {**LORA, "updates": 2}]
    full = runs.train(config(model, stages), tmp_path / "full")
    with pytest.raises(Interrupted):
        runs.train(config(model, stages), tmp_path / "run", watcher=Stop(2))
    assert runs.resume(tmp_path / "run").center_hash == full.center_hash


def test_only_targets_drift_and_the_merged_weights_are_carried_on(whole: runs.RunResult, model: Path) -> None:
    start, after, es = read_tensors(model), checkpoint(whole.path, 3), checkpoint(whole.path, 4)
    last = checkpoint(whole.path, 6)
    moved = {n for n in start if not torch.equal(start[n], after[n])}
    assert moved == {n for n in start if n.endswith(("q_proj.weight", "v_proj.weight"))}
    assert {n for n in es if not torch.equal(es[n], last[n])} == moved
    assert all(not torch.equal(after[n], es[n]) for n in start)
    assert center_hash(last) == whole.center_hash


def test_a_checkpoint_inside_the_stage_holds_factors_and_optimiser(whole: runs.RunResult) -> None:
    state = read_tensors(RunDir.open(whole.path).checkpoint_path(1), stem="optimizer")
    names = {n for n in state if n.startswith("lora.")}
    assert len(names) == 2 * 2 * 2  # A and B of q and v in two layers
    assert {n.removeprefix("adamw.m.") for n in state if n.startswith("adamw.m.")} == {
        n.removeprefix("lora.") for n in names
    }


@pytest.mark.parametrize(("step", "before", "scale"), [(2, 0, 8.0), (3, 0, 8.0), (6, 4, 2.0)])
def test_the_adapter_on_the_weights_that_it_adapts_is_the_checkpoint(
    whole: runs.RunResult, model: Path, step: int, before: int, scale: float
) -> None:
    folder = RunDir.open(whole.path).checkpoint_path(step)
    base = checkpoint(whole.path, before) if before else read_tensors(model)
    factors = read_tensors(folder / "adapter", stem="adapter_model")
    for name, merged in read_tensors(folder).items():
        key = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        expected = base[name].double()
        if f"{key}A.weight" in factors:
            expected += scale * factors[f"{key}B.weight"].double() @ factors[f"{key}A.weight"].double()
        torch.testing.assert_close(merged.double(), expected, rtol=1e-6, atol=1e-7)
    named = json.loads((folder / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == ("" if before else str(model))


def test_a_stages_end_has_its_adapter_and_every_stage_its_own_start(model: Path, tmp_path: Path) -> None:
    stage = {**LORA, "updates": 1, "minibatch": 0}  # one optimiser step, which moves B alone
    changed = config(model, [stage, stage]).model_copy(update={"checkpoint": CheckpointConfig(every=0)})
    runs.train(changed, tmp_path / "run")
    starts = []
    for index, step in enumerate((1, 2)):
        folder = RunDir.open(tmp_path / "run").checkpoint_path(step)
        assert not (folder / "optimizer.safetensors").exists()
        settings = LoraSettings(2, 16.0, tuple(LORA["lora_targets"]))
        fresh = Lora(read_tensors(model), settings, stage_seed(changed.seed, index))
        found = read_tensors(folder / "adapter", stem="adapter_model")
        starts.append(fresh.factors(fresh.names[0])[0])
        for name in fresh.names:
            saved = found[f"base_model.model.{name.removesuffix('.weight')}.lora_A.weight"]
            assert torch.equal(saved, fresh.factors(name)[0])
    assert not torch.equal(*starts)


def test_no_adapter_without_lora(whole: runs.RunResult) -> None:
    assert not (RunDir.open(whole.path).checkpoint_path(4) / "adapter").exists()


def test_a_checkpoint_loads_as_merged(whole: runs.RunResult) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(whole.checkpoint).state_dict()
    assert all(torch.equal(theirs[n], t) for n, t in read_tensors(whole.checkpoint).items())


def test_no_update_leaves_every_bit(model: Path, tmp_path: Path) -> None:
    result = runs.train(config(model, [{**LORA, "updates": 0}]), tmp_path / "run")
    assert result.center_hash == center_hash(read_tensors(model))


def test_rank_zero_trains_everything_whatever_else_is_said(model: Path, tmp_path: Path) -> None:
    plain = {k: v for k, v in LORA.items() if not k.startswith("lora")} | {"updates": 1}
    said = {**plain, "lora_rank": 0, "lora_alpha": 3.0, "lora_targets": ["nothing"]}
    one, two = (runs.train(config(model, [s]), tmp_path / str(i)) for i, s in enumerate((plain, said)))
    assert one.center_hash == two.center_hash
    start = read_tensors(model)
    assert all(not torch.equal(start[n], t) for n, t in checkpoint(one.path, 1).items() if t.dim() > 1)
    assert not (one.checkpoint / "adapter").exists()


def test_mistakes_are_found_before_anything_is_written(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="matches no tensor"):
        runs.train(config(model, [{**LORA, "lora_targets": ["*.w1"]}]), tmp_path / "run")
    with pytest.raises(ConfigError, match="lora_rank"):
        config(model, [{**LORA, "lora_rank": -1}])
    assert not (tmp_path / "run").exists()


def test_the_plan_counts_what_lora_holds(model: Path) -> None:
    full, low = plan(config(model, [{**LORA, "lora_rank": 0}, LORA])).stages
    assert full.memory is not None
    assert low.memory is not None
    parameters = full.memory.always["master (fp32)"] // 4
    shapes = [
        t.shape for n, t in read_tensors(model).items() if n.endswith(("q_proj.weight", "v_proj.weight"))
    ]
    factors, adapted = sum(2 * (a + b) for a, b in shapes), sum(a * b for a, b in shapes)
    assert full.memory.always["AdamW moments (fp32)"] == 8 * parameters
    assert low.memory.always["AdamW moments (fp32)"] == 8 * factors
    assert low.memory.always["factors of LoRA (fp32)"] == 4 * factors
    assert (
        low.memory.always["adapted matrices as they were (fp32)"] == 0
    )  # read from the boundary's checkpoint
    assert low.memory.phases["training"]["gradients (fp32)"] == 4 * adapted
    assert low.memory.peak < full.memory.peak
