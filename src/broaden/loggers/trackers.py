"""TensorBoard, Weights & Biases, MLflow and trackio, imported only when asked for.

Each is an optional package; a missing one is a clear error before any compute. Configurations passed on
must hold no secrets (the config layer leaves them out). Not here: the run's own JSONL (`base`).
"""

from __future__ import annotations

import hashlib
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broaden.errors import ConfigError
from broaden.loggers.base import Jsonl, Lines, Logger, Loggers, scalars
from broaden.records import StepRecord


@dataclass(frozen=True, slots=True)
class Tracker:
    """What a tracker is told about a run.

    `folder` takes local files; `config` is shown beside the run; `resume` joins the earlier run of that name
    where the tracker can.
    """

    folder: Path
    project: str = "broaden"
    run: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False

    @property
    def identity(self) -> str:
        """An id that is the same when this run is resumed and differs between folders."""
        where = f"{self.folder.resolve()}\n{self.run}".encode()
        return hashlib.blake2b(where, digest_size=8).hexdigest()


class TensorBoard:
    """Event files in folder/tensorboard (no torch, no TensorFlow)."""

    def __init__(self, about: Tracker) -> None:
        writer = _import("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._event = _import("tensorboard", "tensorboard.compat.proto.event_pb2").Event
        self._summary = _import("tensorboard", "tensorboard.compat.proto.summary_pb2").Summary
        self._writer = writer.EventFileWriter(str(about.folder / "tensorboard"))

    def log(self, record: StepRecord) -> None:
        """One event with every scalar."""
        values = [self._summary.Value(tag=tag, simple_value=v) for tag, v in scalars(record).items()]
        event = self._event(wall_time=time.time(), step=record.step, summary=self._summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class Wandb:
    """A Weights & Biases run (offline where WANDB_MODE says so)."""

    def __init__(self, about: Tracker) -> None:
        self._run = _import("wandb", "wandb").init(
            project=about.project,
            name=about.run,
            id=about.identity,
            resume="allow" if about.resume else None,
            config=dict(about.config),
            dir=str(about.folder),
        )

    def log(self, record: StepRecord) -> None:
        """Log the scalars at the record's step."""
        self._run.log(scalars(record), step=record.step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MLflow:
    """An MLflow run through its client (no global active run)."""

    def __init__(self, about: Tracker) -> None:
        mlflow = _import("mlflow-skinny", "mlflow")
        self._client = mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(about.project)
        experiment = found.experiment_id if found else self._client.create_experiment(about.project)
        self._run = self._client.create_run(experiment, run_name=about.run).info.run_id
        for name, value in about.config.items():
            self._client.log_param(self._run, name, value)

    def log(self, record: StepRecord) -> None:
        """Log the scalars at the record's step."""
        for tag, value in scalars(record).items():
            self._client.log_metric(self._run, tag, value, step=record.step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


class Trackio:
    """A trackio run (a local database, wandb-like interface)."""

    def __init__(self, about: Tracker) -> None:
        self._trackio = _import("trackio", "trackio")
        self._trackio.init(
            project=about.project,
            name=about.run,
            config=dict(about.config),
            resume="allow" if about.resume else "never",
        )

    def log(self, record: StepRecord) -> None:
        """Log the scalars at the record's step."""
        self._trackio.log(scalars(record), step=record.step)

    def close(self) -> None:
        """Finish the run."""
        self._trackio.finish()


TRACKERS: dict[str, Callable[[Tracker], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def open_tracker(name: str, about: Tracker) -> Logger:
    """The tracker of that name. Raises ConfigError for an unknown name or a missing package."""
    if name not in TRACKERS:
        raise ConfigError(
            f"unknown logger {name!r}", f"use some of {', '.join(TRACKERS)}; JSONL is always on"
        )
    return TRACKERS[name](about)


def open_loggers(
    names: Sequence[str],
    *,
    records: Lines,
    about: Tracker,
    on_failure: Callable[[str], None] | None = None,
) -> Loggers:
    """The run's JSONL file and the named trackers as one logger (a context manager)."""
    opened: list[tuple[str, Logger]] = []
    try:
        for name in names:
            opened.append((name, open_tracker(name, about)))
    except Exception:
        for _, tracker in opened:
            tracker.close()
        records.close()
        raise
    return Loggers(Jsonl(records), opened, on_failure)


def _import(package: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name.split(".")[0]):
            raise
        raise ConfigError(f"this logger needs the package {package}", f"pip install {package}") from error
