"""The bundled model's shape with fresh weights, and small ES configurations over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broaden.config import RunConfig, build_config
from broaden.errors import Interrupted
from broaden.models import nano
from broaden.models.init import random_weights
from broaden.models.spec import ModelSpec
from broaden.models.tensor_files import write_tensors
from broaden.records import StepRecord


def fresh_model(folder: Path, seed: int = 0) -> Path:
    """A folder with random weights."""
    nano.write_folder(folder)
    write_tensors(folder, random_weights(ModelSpec.from_config(nano.config()), seed))
    return folder


def es_config(model: str | Path, *, stages: list[dict[str, Any]] | None = None, **changes: Any) -> RunConfig:
    """Three small updates: 4 members, 8 prompts."""
    stage = {
        "algo": "es", "updates": 3, "members": 4, "prompts": 8, "sigma": 0.02, "alpha": 0.01, "max_new_tokens": 40,
    }  # fmt: skip
    merged = [{**stage, **s} if s.get("algo", "es") == "es" else s for s in stages or [{}]]
    data: dict[str, Any] = {
        "name": "small", "model": {"source": str(model)}, "task": {"name": "countdown", "limit": 64},
        "checkpoint": {"every": 2}, "stages": merged,
    }  # fmt: skip
    return build_config({**data, **changes})


class Watching:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.records: list[StepRecord] = []

    def stage(self, index: int, algo: str, start: int, updates: int) -> None:
        self.notes.append(f"stage {index} {algo} {start}/{updates}")

    def rollout(self, completions: int, tokens: int) -> None:
        pass

    def step(self, record: StepRecord) -> None:
        self.records.append(record)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Stop(Watching):
    """Asks for an interruption after so many updates, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def step(self, record: StepRecord) -> None:
        super().step(record)
        if len(self.records) == self.after:
            raise Interrupted("test", "resume")
