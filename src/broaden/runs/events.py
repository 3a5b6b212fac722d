"""What a run tells whoever watches it: the command line draws bars, a script may ignore it all."""

from __future__ import annotations

from typing import Protocol

from broaden.records import StepRecord


class Watcher(Protocol):
    """Callbacks of a run. None of them may change it."""

    def stage(self, index: int, algo: str, start: int, updates: int) -> None:
        """A stage begins (or goes on) at update `start`."""
        ...

    def rollout(self, completions: int, tokens: int) -> None:
        """Progress inside an update."""
        ...

    def step(self, record: StepRecord) -> None:
        """An update is done and logged."""
        ...

    def note(self, text: str) -> None:
        """Something a person should read: a checkpoint, a warning, a probe."""
        ...


class Silent:
    """Watches nothing."""

    def stage(self, index: int, algo: str, start: int, updates: int) -> None:
        """Ignored."""

    def rollout(self, completions: int, tokens: int) -> None:
        """Ignored."""

    def step(self, record: StepRecord) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""
