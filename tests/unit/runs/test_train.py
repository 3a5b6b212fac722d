"""A run's promises: resume equals the uninterrupted run, replay equals both, nothing is lost."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.letters import letters
from tests.helpers.nano import Stop, Watching, es_config, fresh_model

from broaden import runs
from broaden.config import RunConfig
from broaden.errors import (
    DataError,
    DivergedError,
    ExactnessError,
    Interrupted,
    ResumeError,
    StoreError,
    UsageError,
)
from broaden.models.checkpoint import load_model
from broaden.models.tensor_files import read_tensors, write_tensors
from broaden.perturb import center_hash
from broaden.runs import checkpoints
from broaden.store import RunDir, read_jsonl


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_model(tmp_path_factory.mktemp("model"))


def config(model: Path, **changes: Any) -> RunConfig:
    return es_config(model, **{"task": {"name": letters(), "limit": 20}, **changes})


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.RunResult:
    """Five updates without interruption."""
    return runs.train(config(model, stages=[{"updates": 5}]), tmp_path_factory.mktemp("whole") / "run")


def test_a_run_learns_and_its_checkpoint_is_a_model(whole: runs.RunResult, model: Path) -> None:
    records = RunDir.open(whole.path).records()
    assert [r.step for r in records] == list(range(5))
    drifts = [float(r.values["drift"] or 0) for r in records]
    assert all(0 < a < b for a, b in itertools.pairwise(drifts))
    assert center_hash(load_model(whole.checkpoint).weights) == whole.center_hash
    assert whole.center_hash != center_hash(load_model(model).weights)


def test_a_checkpoint_loads_in_transformers(whole: runs.RunResult) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(whole.checkpoint).state_dict()
    ours = read_tensors(whole.checkpoint)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_an_interrupted_run_resumes_to_the_same_hash(
    model: Path, tmp_path: Path, whole: runs.RunResult, after: int
) -> None:
    with pytest.raises(Interrupted):
        runs.train(config(model, stages=[{"updates": 5}]), tmp_path / "run", watcher=Stop(after))
    result = runs.resume(tmp_path / "run")
    assert (result.step, result.center_hash) == (5, whole.center_hash)
    assert [r.step for r in RunDir.open(tmp_path / "run").records()] == list(range(5))


def cut(source: Path, target: Path, *, records: int, seedlog: int, checkpoint: int | None) -> Path:
    """What a killed run leaves: so many log lines and nothing newer than a checkpoint."""
    shutil.copytree(source, target)
    for name, count in (("records.jsonl", records), ("seedlog.jsonl", seedlog)):
        lines = (target / name).read_bytes().splitlines(keepends=True)
        (target / name).write_bytes(b"".join(lines[:count]))
    for step, folder in RunDir.open(target).checkpoints():
        if checkpoint is None or step > checkpoint:
            shutil.rmtree(folder)
    return target


@pytest.mark.parametrize(
    ("records", "seedlog", "checkpoint"),
    [(3, 3, 2), (4, 3, 2), (1, 1, None), (0, 0, None), (5, 5, 4), (4, 4, 4)],
)
def test_every_way_to_die_resumes_to_the_same_hash(
    whole: runs.RunResult, tmp_path: Path, records: int, seedlog: int, checkpoint: int | None
) -> None:
    run = cut(whole.path, tmp_path / "run", records=records, seedlog=seedlog, checkpoint=checkpoint)
    result = runs.resume(run)
    assert result.center_hash == whole.center_hash
    assert read_jsonl(run / "seedlog.jsonl") == read_jsonl(whole.path / "seedlog.jsonl")


def test_a_torn_line_and_a_partial_checkpoint_are_mended_with_a_message(
    whole: runs.RunResult, tmp_path: Path
) -> None:
    run = cut(whole.path, tmp_path / "run", records=3, seedlog=3, checkpoint=2)
    with open(run / "seedlog.jsonl", "ab") as file:
        file.write(b'{"step": 3, "sta')
    (run / "checkpoints" / ".partial-step-000004-1-x").mkdir()
    watching = Watching()
    assert runs.resume(run, watcher=watching).center_hash == whole.center_hash
    assert any("torn" in n for n in watching.notes)
    assert any("partial" in n for n in watching.notes)


def test_a_finished_run_says_that_nothing_is_left(whole: runs.RunResult) -> None:
    watching = Watching()
    assert runs.resume(whole.path, watcher=watching).center_hash == whole.center_hash
    assert any("nothing left to do" in n for n in watching.notes)
    assert not watching.records


@pytest.mark.parametrize("step", [1, 3, 5])
def test_replay_rebuilds_every_step(whole: runs.RunResult, step: int) -> None:
    seen: list[tuple[int, str]] = []
    center, at, digest = runs.replay_run(whole.path, step, lambda s, h: seen.append((s, h)))
    assert at == step == len(seen)
    assert (
        center_hash(center)
        == digest
        == read_jsonl(whole.path / "seedlog.jsonl")[step - 1]["line"]["center_hash"]
    )


def test_replay_notices_an_edited_log(whole: runs.RunResult, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole.path, run)
    text = (run / "seedlog.jsonl").read_text().replace('"coefficients":[', '"coefficients":[1e-3,', 1)
    (run / "seedlog.jsonl").write_text(text.replace('"members":[0,1,2,3]', '"members":[0,1,2,3,4]', 1))
    with pytest.raises(ExactnessError, match="step 0"):
        runs.replay_run(run, 2)


def test_replay_refuses_steps_that_are_not_there(whole: runs.RunResult) -> None:
    with pytest.raises(UsageError, match="not in the log"):
        runs.replay_run(whole.path, 99)


def test_two_es_stages_have_their_own_noise_and_resume_across_the_boundary(
    model: Path, tmp_path: Path
) -> None:
    stages = [{"updates": 2}, {"updates": 2, "estimator": "antithetic"}]
    full = runs.train(config(model, stages=stages), tmp_path / "full")
    lines = read_jsonl(tmp_path / "full" / "seedlog.jsonl")
    assert [x["stage"] for x in lines] == [0, 0, 1, 1]
    for after in (1, 2, 3):
        path = tmp_path / f"cut{after}"
        with pytest.raises(Interrupted):
            runs.train(config(model, stages=stages), path, watcher=Stop(after))
        assert runs.resume(path).center_hash == full.center_hash
    assert runs.replay_run(tmp_path / "full", 4)[2] == full.center_hash
    assert runs.replay_run(tmp_path / "full", 1)[2] == lines[0]["line"]["center_hash"]


def test_resume_with_another_configuration_shows_the_difference(whole: runs.RunResult, model: Path) -> None:
    with pytest.raises(ResumeError, match=r"\+sigma = 0.5") as caught:
        runs.resume(whole.path, config=config(model, stages=[{"updates": 5, "sigma": 0.5}]))
    assert "-sigma = 0.02" in str(caught.value)


def test_resume_with_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "model"
    shutil.copytree(model, own)
    runs.train(config(own, stages=[{"updates": 1}]), tmp_path / "run")
    weights = read_tensors(own)
    weights["model.norm.weight"][0] += 1
    (own / "model.safetensors").unlink()
    write_tensors(own, weights)
    with pytest.raises(ResumeError, match="model_fingerprint"):
        runs.resume(tmp_path / "run")


def test_a_damaged_checkpoint_is_noticed(whole: runs.RunResult, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole.path, run)
    folder = RunDir.open(run).checkpoint_path(5)
    weights = read_tensors(folder)
    weights["model.norm.weight"][0] += 1
    (folder / "model.safetensors").unlink()
    write_tensors(folder, weights)
    with pytest.raises(ExactnessError, match="have hash"):
        runs.resume(run)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    model: Path, tmp_path: Path, whole: runs.RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoints.save

    def full(run: RunDir, *rest: Any) -> Path:
        if rest[2].step == 2:
            raise StoreError("no space left on device", "free some")
        return real(run, *rest)

    monkeypatch.setattr(checkpoints, "save", full)
    watching = Watching()
    result = runs.train(config(model, stages=[{"updates": 5}]), tmp_path / "run", watcher=watching)
    assert result.center_hash == whole.center_hash
    assert any("not saved" in n and "no space" in n for n in watching.notes)
    assert [s for s, _ in RunDir.open(tmp_path / "run").checkpoints()] == [4, 5]


def test_constant_rewards_leave_the_center_alone(model: Path, tmp_path: Path) -> None:
    watching = Watching()
    # fresh weights solve no Countdown: all rewards 0
    result = runs.train(es_config(model), tmp_path / "run", watcher=watching)
    assert result.center_hash == center_hash(load_model(model).weights)
    assert len([n for n in watching.notes if "every member had the reward 0" in n]) == 1


@pytest.mark.parametrize("control", ["random_z", "shuffled_rewards"])
def test_null_controls_walk_as_far(model: Path, tmp_path: Path, whole: runs.RunResult, control: str) -> None:
    result = runs.train(config(model, stages=[{"updates": 5, "control": control}]), tmp_path / "run")
    ours, null = (RunDir.open(p).records()[-1].values["drift"] for p in (whole.path, result.path))
    assert null == pytest.approx(ours, rel=0.2)
    assert result.center_hash != whole.center_hash


def test_the_in_place_control_drifts_without_learning(model: Path, tmp_path: Path) -> None:
    stage = {"updates": 2, "precision": "bf16_inplace", "alpha": 0.0}
    result = runs.train(config(model, stages=[stage]), tmp_path / "run")
    records = RunDir.open(result.path).records()
    assert (
        float(records[-1].values["drift"] or 0) > 1e-3
    )  # a step size of zero moves the weights all the same
    with pytest.raises(UsageError, match="bf16_inplace"):
        runs.replay_run(result.path, 1)


def test_decay_pulls_toward_the_start_and_is_replayed(
    model: Path, tmp_path: Path, whole: runs.RunResult
) -> None:
    result = runs.train(config(model, stages=[{"updates": 5, "decay": 0.5}]), tmp_path / "run")
    assert float(RunDir.open(result.path).records()[-1].values["drift"] or 0) < float(
        RunDir.open(whole.path).records()[-1].values["drift"] or 0
    )
    assert runs.replay_run(result.path)[2] == result.center_hash


def test_probes_are_written_once(model: Path, tmp_path: Path) -> None:
    probe = {"every": 2, "limit": 4, "samples": 2, "split": "probe"}
    runs.train(config(model, stages=[{"updates": 3}], probe=probe), tmp_path / "run")
    runs.resume(tmp_path / "run")
    assert [line["step"] for line in read_jsonl(tmp_path / "run" / "probes.jsonl")] == [0, 2]


def test_collapse_stops_the_run_with_its_log_intact(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collapsed(rewards: Any, share: float) -> None:
        if len(rewards) == 3:
            raise DivergedError("the smoothed reward fell")

    monkeypatch.setattr("broaden.runs.loop.check_collapse", collapsed)
    with pytest.raises(DivergedError):
        runs.train(config(model, stages=[{"updates": 5}]), tmp_path / "run")
    run = RunDir.open(tmp_path / "run")
    assert run.manifest["status"] == "failed"
    assert len(run.seedlog()) == 3
    assert runs.replay_run(tmp_path / "run", 3)[1] == 3


def test_what_cannot_fit_is_refused_before_anything_is_written(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="context of 128"):
        runs.train(config(model, stages=[{"max_new_tokens": 500}]), tmp_path / "run")
    with pytest.raises(UsageError, match="matches none"):
        runs.train(config(model, stages=[{"include": ["nothing*"]}]), tmp_path / "run")
    with pytest.raises((DataError, UsageError), match="no option"):
        runs.train(config(model, task={"name": "letters", "options": {"x": 1}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
