"""A run's folder: one place for its manifest, config, logs, samples and checkpoints.

    manifest.json      what the run is (written once, amended atomically)
    config.toml        the resolved configuration
    records.jsonl      one StepRecord a line
    seedlog.jsonl      one ES update a line: all that replay needs
    samples/NAME/      one sample store an evaluation (`samples.SampleStore`)
    checkpoints/step-000010/   committed whole or not at all

Not here: what a checkpoint or a manifest contains (`runs`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broaden.errors import ExistsError, MissingFileError, StoreError
from broaden.records import SCHEMA_VERSION, StepRecord
from broaden.store.commit import clean_partial, commit, is_free, write_text
from broaden.store.jsonl import JsonlFile, read_jsonl, trim
from broaden.store.samples import SampleStore

_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run's folder. `messages` says what was mended on opening."""

    path: Path
    messages: tuple[str, ...] = ()

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any], config_toml: str) -> RunDir:
        """Make a new run directory. Raises ExistsError (see `check_free`) and StoreError."""
        cls.check_free(path)
        write_text(path / "config.toml", config_toml)
        run = cls(path)
        run.write_manifest({"schema": SCHEMA_VERSION, **manifest})  # last: a folder with a manifest is a run
        return run

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise ExistsError where a run is there already, or other files are."""
        if (path / "manifest.json").exists():
            raise ExistsError(f"{path} holds a run already", f"use --resume {path}, or another --out")
        if not is_free(path):
            raise ExistsError(f"{path} is not empty and not a run", "choose another --out")

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Open an existing run: torn last lines are cut off, partial commits removed (see `messages`)."""
        if not (path / "manifest.json").is_file():
            raise MissingFileError(f"{path} is not a run directory: it has no manifest.json")
        messages = [*clean_partial(path), *clean_partial(path / "checkpoints")]
        for name in ("records.jsonl", "seedlog.jsonl"):
            if (path / name).exists():
                messages.append(trim(path / name))
        return cls(path, tuple(m for m in messages if m))

    @property
    def manifest(self) -> dict[str, Any]:
        """manifest.json as it is now."""
        value = json.loads((self.path / "manifest.json").read_text())
        if not isinstance(value, dict):
            raise StoreError(f"{self.path / 'manifest.json'} is not a JSON object")
        return value

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace manifest.json atomically."""
        write_text(
            self.path / "manifest.json", json.dumps(manifest, indent=2, allow_nan=False, default=str) + "\n"
        )

    def amend_manifest(self, **entries: Any) -> None:
        """Set some keys of the manifest, atomically."""
        self.write_manifest({**self.manifest, **entries})

    @property
    def config_toml(self) -> str:
        """The resolved configuration as text."""
        return (self.path / "config.toml").read_text()

    def records_file(self) -> JsonlFile:
        """records.jsonl, open for appending."""
        return JsonlFile(self.path / "records.jsonl")

    def seedlog_file(self) -> JsonlFile:
        """seedlog.jsonl, open for appending."""
        return JsonlFile(self.path / "seedlog.jsonl")

    def records(self) -> list[StepRecord]:
        """The records written so far ([] before the first)."""
        path = self.path / "records.jsonl"
        return [StepRecord.from_json(line) for line in read_jsonl(path)] if path.exists() else []

    def seedlog(self) -> list[dict[str, Any]]:
        """The seed-log lines written so far."""
        path = self.path / "seedlog.jsonl"
        return read_jsonl(path) if path.exists() else []

    def truncate_logs(self, step: int) -> list[str]:
        """Drop log lines of steps >= `step` (an update that was logged after the last checkpoint)."""
        messages = []
        for name in ("records.jsonl", "seedlog.jsonl"):
            path = self.path / name
            lines = read_jsonl(path) if path.exists() else []
            kept = [line for line in lines if int(line["step"]) < step]
            if len(kept) < len(lines):
                write_text(
                    path,
                    "".join(
                        json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in kept
                    ),
                )
                messages.append(f"{name}: {len(lines) - len(kept)} lines from step {step} on were dropped")
        return messages

    def checkpoint_path(self, step: int) -> Path:
        """checkpoints/step-000010 for step 10."""
        return self.path / "checkpoints" / f"step-{step:06d}"

    def commit_checkpoint(self, step: int, writer: Callable[[Path], None]) -> Path:
        """Write a checkpoint folder atomically (see `commit`)."""
        return commit(self.checkpoint_path(step), writer)

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Committed checkpoints as (step, folder), oldest first; partial ones are not listed."""
        folder = self.path / "checkpoints"
        found = (
            [(m, p) for p in folder.iterdir() if (m := _STEP.fullmatch(p.name))] if folder.is_dir() else []
        )
        return sorted((int(m.group(1)), p) for m, p in found)

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """The newest committed checkpoint, None before the first."""
        found = self.checkpoints()
        return found[-1] if found else None

    def samples(self, name: str) -> SampleStore:
        """The sample store of an evaluation, by name ("base", "step-000100", ...)."""
        return SampleStore(self.path / "samples" / name)

    def sample_names(self) -> Sequence[str]:
        """Names of the evaluations that have stored samples."""
        folder = self.path / "samples"
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
