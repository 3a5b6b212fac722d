from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broaden.errors import ConfigError
from broaden.loggers import TRACKERS, Jsonl, Logger, Loggers, Tracker, open_loggers, open_tracker, scalars
from broaden.records import StepRecord
from broaden.store import JsonlFile, read_jsonl

RECORD = StepRecord("es", 3, {"reward": 0.25, "F": None, "tokens": 10}, {"members": [1]})


class Memory:
    def __init__(self, fail_at: int | None = None) -> None:
        self.seen: list[int] = []
        self.closed = 0
        self.fail_at = fail_at

    def log(self, record: StepRecord) -> None:
        if record.step == self.fail_at:
            raise TimeoutError("network away")
        self.seen.append(record.step)

    def close(self) -> None:
        self.closed += 1


def test_unknown_values_are_left_out_not_zero() -> None:
    assert scalars(RECORD) == {"es/reward": 0.25, "es/tokens": 10.0}


def test_jsonl_is_always_on(tmp_path: Path) -> None:
    about = Tracker(tmp_path)
    with open_loggers([], records=JsonlFile(tmp_path / "records.jsonl"), about=about) as log:
        log.log(RECORD)
    assert [StepRecord.from_json(line) for line in read_jsonl(tmp_path / "records.jsonl")] == [RECORD]


def test_a_failing_tracker_is_dropped_with_a_message_and_the_run_goes_on(tmp_path: Path) -> None:
    good, bad = Memory(), Memory(fail_at=1)
    messages: list[str] = []
    path = tmp_path / "records.jsonl"
    with Loggers(Jsonl(JsonlFile(path)), [("bad", bad), ("good", good)], messages.append) as log:
        for step in range(3):
            log.log(StepRecord("es", step, {}))
        assert log.active == ("good",)
    assert messages == ["bad failed and is left out from here on: TimeoutError('network away')"]
    assert (good.seen, bad.seen, good.closed) == ([0, 1, 2], [0], 1)
    assert len(read_jsonl(path)) == 3


def test_unknown_and_missing_trackers_are_clear_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = Tracker(tmp_path)
    with pytest.raises(ConfigError, match="unknown logger 'mlfow'"):
        open_tracker("mlfow", about)
    for name, module in (
        ("wandb", "wandb"),
        ("trackio", "trackio"),
        ("mlflow", "mlflow"),
        ("tensorboard", "tensorboard"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        for inner in [m for m in sys.modules if m.startswith(f"{module}.")]:
            monkeypatch.delitem(sys.modules, inner)
        with pytest.raises(ConfigError, match="needs the package") as error:
            open_tracker(name, about)
        assert error.value.fix.startswith(f"pip install {name}")


def test_one_tracker_missing_closes_those_that_were_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Memory()
    monkeypatch.setitem(TRACKERS, "first", lambda about: first)
    with pytest.raises(ConfigError):
        open_loggers(["first", "nope"], records=JsonlFile(tmp_path / "r.jsonl"), about=Tracker(tmp_path))
    assert first.closed == 1


def fake_wandb(calls: list[Any]) -> SimpleNamespace:
    run = SimpleNamespace(
        log=lambda values, step: calls.append(("log", values, step)), finish=lambda: calls.append("finish")
    )
    return SimpleNamespace(init=lambda **about: (calls.append(about), run)[1])


def test_wandb_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(calls))
    tracker: Logger = open_tracker("wandb", Tracker(tmp_path, run="r1", config={"n": 8}, resume=True))
    tracker.log(RECORD)
    tracker.close()
    assert calls[0]["id"] == Tracker(tmp_path, run="r1").identity
    assert calls[0]["id"] != Tracker(tmp_path / "other", run="r1").identity
    assert calls[0]["resume"] == "allow"
    assert calls[0]["config"] == {"n": 8}
    assert calls[1:] == [("log", {"es/reward": 0.25, "es/tokens": 10.0}, 3), "finish"]


def test_trackio_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    fake = SimpleNamespace(
        init=lambda **about: calls.append(about),
        log=lambda values, step: calls.append((values, step)),
        finish=lambda: calls.append("finish"),
    )
    monkeypatch.setitem(sys.modules, "trackio", fake)
    tracker = open_tracker("trackio", Tracker(tmp_path))
    tracker.log(RECORD)
    tracker.close()
    assert calls[0]["resume"] == "never"
    assert calls[1:] == [({"es/reward": 0.25, "es/tokens": 10.0}, 3), "finish"]


def test_mlflow_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Client:
        def get_experiment_by_name(self, name: str) -> None:
            calls.append(name)

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, experiment: str, run_name: str) -> SimpleNamespace:
            return SimpleNamespace(info=SimpleNamespace(run_id=f"{experiment}/{run_name}"))

        def log_param(self, run: str, name: str, value: object) -> None:
            calls.append((run, name, value))

        def log_metric(self, run: str, name: str, value: float, step: int) -> None:
            calls.append((run, name, value, step))

        def set_terminated(self, run: str) -> None:
            calls.append(run)

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    tracker = open_tracker("mlflow", Tracker(tmp_path, run="a", config={"n": 8}))
    tracker.log(RECORD)
    tracker.close()
    assert calls == [
        "broaden", ("7/a", "n", 8), ("7/a", "es/reward", 0.25, 3), ("7/a", "es/tokens", 10.0, 3), "7/a",
    ]  # fmt: skip


def test_tensorboard_writes_an_event_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (an extra)")
    tracker = open_tracker("tensorboard", Tracker(tmp_path))
    tracker.log(RECORD)
    tracker.close()
    files = list((tmp_path / "tensorboard").iterdir())
    assert len(files) == 1
    assert b"es/reward" in files[0].read_bytes()
