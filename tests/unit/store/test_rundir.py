from __future__ import annotations

from pathlib import Path

import pytest

from broaden.errors import MissingFileError, StoreError
from broaden.records import StepRecord
from broaden.store import RunDir


def new(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "run", {"run_seed": 7}, "seed = 7\n")


def write(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"x")


def test_create_and_open(tmp_path: Path) -> None:
    run = new(tmp_path)
    assert run.manifest == {"schema": 1, "run_seed": 7}
    assert run.config_toml == "seed = 7\n"
    run.amend_manifest(finished=True)
    again = RunDir.open(run.path)
    assert again.manifest == {"schema": 1, "run_seed": 7, "finished": True}
    assert again.messages == ()
    assert again.records() == []
    assert again.seedlog() == []
    assert again.latest_checkpoint() is None
    assert again.sample_names() == []


def test_create_refuses_what_is_there(tmp_path: Path) -> None:
    new(tmp_path)
    with pytest.raises(StoreError, match="--resume"):
        new(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty and not a run"):
        RunDir.create(other, {}, "")
    with pytest.raises(MissingFileError, match=r"no manifest\.json"):
        RunDir.open(other)


def test_a_folder_killed_before_its_manifest_is_not_a_run_and_can_be_named(tmp_path: Path) -> None:
    run = new(tmp_path)
    (run.path / "manifest.json").unlink()
    with pytest.raises(MissingFileError):
        RunDir.open(run.path)


def test_records_and_seedlog(tmp_path: Path) -> None:
    run = new(tmp_path)
    record = StepRecord("es", 0, {"reward": 0.25, "signal": None}, {"members": [0, 1]})
    with run.records_file() as records, run.seedlog_file() as seeds:
        records.append(record.to_json())
        seeds.append({"step": 0})
    assert run.records() == [record]
    assert run.seedlog() == [{"step": 0}]


def test_opening_mends_and_says_so(tmp_path: Path) -> None:
    run = new(tmp_path)
    with run.records_file() as records:
        records.append(StepRecord("es", 0, {}).to_json())
    with open(run.path / "records.jsonl", "ab") as file:
        file.write(b'{"algo":"es","st')
    torn = run.path / "checkpoints" / ".partial-step-000001-1-abc"
    torn.mkdir(parents=True)
    (torn / "half.safetensors").write_bytes(b"x")
    again = RunDir.open(run.path)
    assert len(again.messages) == 2
    assert "interrupted write" in again.messages[0]
    assert "torn (16 bytes)" in again.messages[1]
    assert [r.step for r in again.records()] == [0]
    assert again.checkpoints() == []
    assert not torn.exists()


def test_checkpoints_in_step_order(tmp_path: Path) -> None:
    run = new(tmp_path)
    for step in (10, 2, 1000000):
        run.commit_checkpoint(step, write)
    (run.path / "checkpoints" / "notes").mkdir()
    assert [(s, p.name) for s, p in run.checkpoints()] == [
        (2, "step-000002"),
        (10, "step-000010"),
        (1000000, "step-1000000"),
    ]
    assert run.latest_checkpoint() == (1000000, run.path / "checkpoints" / "step-1000000")


def test_logs_are_cut_back_to_a_checkpoint(tmp_path: Path) -> None:
    run = new(tmp_path)
    with run.records_file() as records, run.seedlog_file() as seeds:
        for step in range(4):
            records.append(StepRecord("es", step, {}).to_json())
            seeds.append({"step": step})
    assert run.truncate_logs(4) == []
    assert run.truncate_logs(2) == [
        "records.jsonl: 2 lines from step 2 on were dropped",
        "seedlog.jsonl: 2 lines from step 2 on were dropped",
    ]
    assert [line["step"] for line in run.seedlog()] == [0, 1]
    assert [r.step for r in run.records()] == [0, 1]
