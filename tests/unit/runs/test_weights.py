"""Where weights live changes no bit, and nothing stays behind: low memory, shared master, mapped theta_0."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.letters import letters
from tests.helpers.nano import Stop, Watching, es_config, fresh_model

from broaden import runs
from broaden.config import RunConfig
from broaden.errors import Interrupted, ModelError, StoreError
from broaden.models.checkpoint import load_model
from broaden.models.tensor_files import read_tensors, write_tensors
from broaden.perturb import center_hash
from broaden.population import SharedWeights
from broaden.runs import weights
from broaden.store import RunDir

ES = {"updates": 2, "max_new_tokens": 12, "decay": 0.01}
GRPO: dict[str, Any] = {
    "algo": "grpo", "updates": 2, "prompts": 4, "group": 4, "minibatch": 2, "learning_rate": 1e-2, "kl": 0.01,
    "reference": "stage_start", "max_new_tokens": 12,
}  # fmt: skip
LORA = {**GRPO, "lora_rank": 2, "lora_targets": ["*.self_attn.[qv]_proj.weight"], "reference": "theta_0"}
STAGES = [ES, GRPO, {**ES, "updates": 1}, LORA]
UPDATES = 7


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose weights are stored in either type."""
    folder = fresh_model(tmp_path_factory.mktemp("model"))
    stored = read_tensors(folder, dtype=getattr(torch, request.param))
    write_tensors(folder, stored)
    return folder


def config(model: Path, **changes: Any) -> RunConfig:
    task = {"name": letters(), "limit": 20}
    return es_config(
        model, **{"stages": STAGES, "task": task, "checkpoint": {"every": 2, "keep": 9}, **changes}
    )


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.RunResult:
    """In ordinary memory, without interruption."""
    return runs.train(config(model), tmp_path_factory.mktemp("whole") / "run")


def test_low_memory_changes_no_bit(model: Path, whole: runs.RunResult, tmp_path: Path) -> None:
    low = runs.train(config(model, low_memory=True), tmp_path / "run")
    assert low.center_hash == whole.center_hash
    mine, theirs = (RunDir.open(r.path) for r in (low, whole))
    assert mine.seedlog() == theirs.seedlog()
    for step, folder in theirs.checkpoints():
        found, expected = read_tensors(mine.checkpoint_path(step)), read_tensors(folder)
        assert all(torch.equal(found[n], t) for n, t in expected.items())
    drifts = [[r.values["drift"] for r in run.records()] for run in (mine, theirs)]
    assert drifts[0] == drifts[1]


def test_the_drift_is_that_from_theta_0(model: Path, whole: runs.RunResult) -> None:
    start, end = load_model(model).weights, read_tensors(whole.checkpoint)
    moved = sum(float((end[n].double() - t.double()).square().sum()) for n, t in start.items())
    length = sum(float(t.double().square().sum()) for t in start.values())
    last = RunDir.open(whole.path).records()[-1]
    assert float(last.values["drift"] or 0) == pytest.approx((moved / length) ** 0.5, rel=1e-9)


@pytest.mark.parametrize("after", [1, 2, 3, 4, 6])
def test_an_interrupted_run_may_go_on_with_or_without_it(
    model: Path, whole: runs.RunResult, tmp_path: Path, after: int
) -> None:
    with pytest.raises(Interrupted):
        runs.train(config(model, low_memory=after % 2 == 0), tmp_path / "run", watcher=Stop(after))
    result = runs.resume(tmp_path / "run", config=config(model, low_memory=after % 2 == 1))
    assert (result.step, result.center_hash) == (UPDATES, whole.center_hash)


def bundled(**changes: Any) -> RunConfig:
    """A model that scores on a task which worker processes know too."""
    stages = [{"updates": 2, "prompts": 16}, {**GRPO, "max_new_tokens": 40, "prompts": 8}]
    return es_config("bundled:countdown-nano", **{"stages": stages, **changes})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> runs.RunResult:
    """ES, then GRPO, in one process."""
    found = runs.train(bundled(), tmp_path_factory.mktemp("alone") / "run")
    assert len({r["line"]["center_hash"] for r in RunDir.open(found.path).seedlog()}) == 2
    return found


@pytest.mark.parametrize("low", [False, True])
def test_workers_read_the_master_itself(
    alone: runs.RunResult, tmp_path: Path, low: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path | None] = []
    real = SharedWeights.__init__

    def counted(self: SharedWeights, like: dict[str, torch.Tensor], folder: Path | None = None) -> None:
        made.append(folder)
        real(self, like, folder)

    monkeypatch.setattr(SharedWeights, "__init__", counted)
    probe = {"every": 3, "limit": 4, "samples": 2}
    found = runs.train(bundled(low_memory=low, population={"workers": 2}, probe=probe), tmp_path / "run")
    assert found.center_hash == alone.center_hash
    assert made == [tmp_path / "run" if low else None]  # one for ES, GRPO and probes together


def test_nothing_stays_behind(model: Path, tmp_path: Path) -> None:
    """A run that ended, and one whose process was killed without warning (its file never had a name)."""
    result = runs.train(config(model, low_memory=True, stages=[ES]), tmp_path / "run")
    assert names(result.path) == {
        "manifest.json",
        "config.toml",
        "records.jsonl",
        "seedlog.jsonl",
        "checkpoints",
    }
    program = (
        "import os, sys; from pathlib import Path; import torch; from broaden.population import SharedWeights; "
        "held = SharedWeights({'a': torch.ones(10_000)}, Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    dead = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert dead.returncode == -signal.SIGKILL
    assert names(tmp_path) == {"run"}


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_a_disk_without_room_is_said_before_anything_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(StoreError, match="where 1 are free"):
        runs.train(config(model, low_memory=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    runs.train(config(model, stages=[{**ES, "updates": 0}]), tmp_path / "run")  # not in ordinary memory


class Overwrite(Watching):
    """Puts other bytes into the model's file after the first update."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def step(self, record: Any) -> None:
        super().step(record)
        if len(self.records) == 1:
            with self.file.open("r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"abcd")


def test_a_model_overwritten_during_the_run_ends_it(model: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(model, tmp_path / "model")
    watching = Overwrite(mine / "model.safetensors")
    with pytest.raises(ModelError, match="overwritten while its weights were in use"):
        runs.train(config(mine), tmp_path / "run", watcher=watching)
    assert len(RunDir.open(tmp_path / "run").records()) == 1


def test_a_model_replaced_or_removed_during_the_run_changes_nothing(
    model: Path, whole: runs.RunResult, tmp_path: Path
) -> None:
    mine = shutil.copytree(model, tmp_path / "model")

    class Remove(Watching):
        def step(self, record: Any) -> None:
            (mine / "model.safetensors").unlink(missing_ok=True)

    found = runs.train(config(mine), tmp_path / "run", watcher=Remove())
    assert found.center_hash == whole.center_hash


def test_mapped_weights_are_those_of_the_files(model: Path) -> None:
    mapped, read = load_model(model, mapped=True), load_model(model)
    assert mapped.fingerprint == read.fingerprint
    cast = {n: t.float() for n, t in mapped.weights.items()}
    assert center_hash(cast) == center_hash(read.weights)
