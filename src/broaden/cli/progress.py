"""Bars with rates and time left, on standard error: updates, rollouts inside an update, evaluation."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from broaden.records import StepRecord


def bar(console: Console) -> Progress:
    """A progress bar in the house style."""
    return Progress(
        TextColumn("{task.description:<12}"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[info]}"), console=console, transient=False, refresh_per_second=4,
    )  # fmt: skip


class TrainBars:
    """A `runs.Watcher` that draws a stage's bar and prints notes; lines instead of bars without a terminal."""

    def __init__(self, console: Console, label: str = "") -> None:
        self.console, self.label = console, label
        self.bars = bar(console)
        self.task: TaskID | None = None
        self.updates = 0
        self.rate = _Rate()
        self.last: str = ""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def stage(self, index: int, algo: str, start: int, updates: int) -> None:
        """See `runs.Watcher`."""
        self.updates = updates
        self.task = self.bars.add_task(
            self.label or f"{index} {algo}", total=updates, completed=start, info=""
        )

    def rollout(self, completions: int, tokens: int) -> None:
        """See `runs.Watcher`."""
        if self.task is not None and tokens:
            self.bars.update(self.task, info=f"{self.last} {self.rate.of(tokens)}")

    def step(self, record: StepRecord) -> None:
        """See `runs.Watcher`."""
        self.rate.reset()
        self.last = describe(record)
        done = int(record.values.get("stage_step") or 0) + 1
        if self.task is not None:
            self.bars.update(self.task, completed=done, info=self.last)
        if not self.console.is_terminal and done % max(1, self.updates // 10) == 0:
            self.console.print(f"{self.label or record.algo} {done}/{self.updates} {self.last}")

    def note(self, text: str) -> None:
        """See `runs.Watcher`."""
        self.console.print(text, markup=False, soft_wrap=True)


class EvalBars:
    """Progress of one evaluation: samples drawn and tokens a second."""

    def __init__(self, console: Console, label: str, total: int) -> None:
        self.console, self.label = console, label
        self.bars = bar(console)
        self.task = self.bars.add_task(label, total=total, info="")
        self.rate = _Rate()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def update(self, completions: int, tokens: int) -> None:
        """An engine's progress callback."""
        self.bars.update(self.task, completed=completions, info=self.rate.of(tokens))


class _Rate:
    """Tokens a second since the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.began = time.monotonic()

    def of(self, tokens: int) -> str:
        return f"{tokens / max(time.monotonic() - self.began, 1e-6):,.0f} tok/s"


def describe(record: StepRecord) -> str:
    """A step in a few words: the scalars people watch."""
    parts = []
    for name, form in (
        ("reward", ".3f"),
        ("accuracy", ".3f"),
        ("loss", ".4f"),
        ("drift", ".4f"),
        ("pooled_f", ".2f"),
    ):
        value = record.values.get(name)
        if value is not None:
            parts.append(f"{name} {value:{form}}")
    return " ".join(parts)
