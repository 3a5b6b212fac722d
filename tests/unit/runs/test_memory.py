"""What does not fit is cut down or refused before any compute, and what is planned is what is held."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.letters import letters
from tests.helpers.nano import Watching, es_config, fresh_model

from broaden import runs
from broaden.config import RunConfig
from broaden.errors import UsageError
from broaden.ledger.memory import MemoryPlan
from broaden.runs.arms import EvalSettings, Evaluator
from broaden.runs.memory import Machine, fit, fit_slots, sizes_of, stage_memory
from broaden.runs.prepare import Prepared, host_settings, prepare

MIB = 1 << 20
GRPO: dict[str, Any] = {"algo": "grpo", "updates": 1, "prompts": 8, "group": 16, "max_new_tokens": 40}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_model(tmp_path_factory.mktemp("model"))


def config(model: Path, **changes: Any) -> RunConfig:
    stages = [{"updates": 1, "prompts": 64, "max_new_tokens": 12, "members": 2}]
    return es_config(model, **{"task": {"name": letters(), "limit": 64}, "stages": stages, **changes})


def machine(plan: MemoryPlan, spare: int) -> Machine:
    """One that has so much more than a plan needs."""
    return Machine("cpu", plan.peak + spare, None, 1)


def plan_of(prepared: Prepared, slots: int | None = None) -> MemoryPlan:
    found = stage_memory(prepared.config, 0, sizes_of(prepared), Machine("cpu", None, None, 1), slots)
    assert found is not None
    return found


def test_slots_are_cut_to_what_fits_and_it_is_said(model: Path) -> None:
    prepared, notes = prepare(config(model)), list[str]()
    whole = machine(plan_of(prepared), 0)
    assert fit(prepared, notes.append, whole) is prepared
    assert not notes
    fitted = fit(prepared, notes.append, machine(plan_of(prepared, 32), 0))
    assert fitted.slots == 32
    assert host_settings(fitted, fitted.config.stages[0]).slots == 32  # type: ignore[arg-type]
    assert notes[0].startswith("32 sequences at once: more would need ")


def test_what_cannot_fit_is_refused_with_what_would_help(model: Path) -> None:
    prepared = prepare(config(model, population={"workers": 2}))
    least = plan_of(prepared, 16)
    with pytest.raises(UsageError, match=r"the run needs .* available, with 16 sequences") as caught:
        fit(prepared, print, machine(least, -1))
    assert "population.workers=1" in str(caught.value.fix)
    assert "low_memory=true" in str(caught.value.fix)
    with pytest.raises(UsageError) as caught:
        fit(prepared, print, Machine("cpu", 1, None, 1))
    assert "more memory" in str(caught.value.fix)


def test_a_device_has_a_limit_of_its_own(model: Path) -> None:
    prepared = prepare(config(model))
    gpu = Machine("cuda", None, 10**12, 1)
    plan = stage_memory(prepared.config, 0, sizes_of(prepared), gpu, 64)
    assert plan is not None
    assert plan.device_peak > plan.always["master (fp32)"]
    assert not gpu.short(plan)
    assert replace(gpu, device_memory=plan.device_peak - 1).short(plan)


def test_a_run_is_refused_before_its_directory_is_made(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADEN_MEMORY", "100MiB")
    with pytest.raises(UsageError, match="the run needs"):
        runs.train(config(model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fewer_slots_change_no_bit(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runs.train(config(model), tmp_path / "whole")
    prepared, watching = prepare(config(model)), Watching()
    monkeypatch.setenv("BROADEN_MEMORY", str(plan_of(prepared, 16).peak))
    less = runs.train(config(model), tmp_path / "less", watcher=watching)
    assert watching.notes[0].startswith("16 sequences at once")
    assert less.center_hash == whole.center_hash


def test_an_evaluation_is_cut_down_too() -> None:
    settings = EvalSettings(task="countdown", limit=8, samples=16, max_new_tokens=40)
    with Evaluator("bundled:countdown-nano", settings) as whole:
        expected = whole.run()
        small = whole.memory(16)
        assert small is not None
    notes: list[str] = []
    with Evaluator("bundled:countdown-nano", settings, notes.append) as less:
        less.machine = machine(small, 0)
        assert less.run().samples == expected.samples
        assert less.settings.slots == 16
    assert len(notes) == 1
    with pytest.raises(UsageError, match="the evaluation needs"):
        fit_slots(lambda n: MemoryPlan({"x": n}, {}), 64, Machine("cpu", 15, None, 1), notes.append)


BIG = {"layers": 6, "hidden": 768, "heads": 12, "kv_heads": 4, "ffn": 2048}
"""38 million parameters: 146 MiB in float32."""
TRAIN = "from broaden.cli import main; main()"
CASES: dict[str, list[str]] = {
    "es": [],
    "low memory": ["low_memory=true"],
    "two workers": ["population.workers=2"],
    "bfloat16": ["model.dtype=bfloat16"],
    "grpo": ["--stages", "grpo:1", "stages.0.prompts=4", "stages.0.group=8", "stages.0.max_new_tokens=40",
             "stages.0.micro_batch=16"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("case", CASES)
def test_the_measured_peak_is_the_planned_one(case: str, tmp_path: Path) -> None:
    """Within 15 %, from loading to the last checkpoint, parent and workers together."""
    from tests.helpers.command import command_line, environment
    from tests.helpers.peak import measure

    from broaden.config import load_config
    from broaden.models import nano
    from broaden.models.init import random_weights
    from broaden.models.spec import ModelSpec
    from broaden.models.tensor_files import write_tensors

    folder = tmp_path / "model"
    nano.write_folder(folder, **BIG)
    write_tensors(folder, random_weights(ModelSpec.from_config(nano.config(**BIG)), 0))
    file = tmp_path / "run.toml"
    file.write_text(
        f'[model]\nsource = "{folder}"\n[task]\nname = "countdown"\nlimit = 64\n[[stages]]\nalgo = "es"\n'
        "updates = 1\nmembers = 2\nprompts = 64\nmax_new_tokens = 40\n"
    )
    more = CASES[case]
    stages = more[1] if "--stages" in more else None
    loaded = load_config(file, tuple(m for m in more if "=" in m), stages)
    plan = stage_memory(loaded, 0, sizes_of(prepare(loaded)), Machine("cpu", None, None, 1))
    assert plan is not None
    with (tmp_path / "log").open("w") as log:
        command = command_line(["train", file, *more, "--out", tmp_path / "run"])
        threads = {
            "OMP_NUM_THREADS": str(torch.get_num_threads())
        }  # as many members at once as the plan says
        found = measure(command, env=environment() | threads, stdout=log, stderr=log)
    assert found.total == pytest.approx(plan.peak, rel=0.15), f"{found.text()}\n{plan.table()}"
