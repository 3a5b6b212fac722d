"""The Logger protocol, the JSONL logger and the fan-out to several. Not here: trackers (`trackers`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from broaden.records import StepRecord


class Lines(Protocol):
    """An append-only file of JSON lines (`store.JsonlFile`; siblings do not import each other)."""

    def append(self, *lines: Mapping[str, Any]) -> None:
        """Write and flush the lines."""

    def close(self) -> None:
        """Close the file."""


class Logger(Protocol):
    """Takes a run's records as they come."""

    def log(self, record: StepRecord) -> None:
        """Take one record."""

    def close(self) -> None:
        """Flush and end; called once."""


def scalars(record: StepRecord) -> dict[str, float]:
    """The record's numbers as "algo/name"; None (unknown, not zero) is left out."""
    return {f"{record.algo}/{name}": float(v) for name, v in record.values.items() if v is not None}


class Jsonl:
    """Appends each record to an open JSONL file, one fsync a record."""

    def __init__(self, file: Lines) -> None:
        self._file = file

    def log(self, record: StepRecord) -> None:
        """Append the record; StoreError where the disk is full."""
        self._file.append(record.to_json())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Loggers:
    """Fan-out. The first logger is the record of the run and may fail it; a tracker that fails is dropped.

    Args:
        record: the JSONL logger.
        trackers: by name; a failing one is closed, reported through `on_failure` and left out from then on.
        on_failure: called with one sentence.
    """

    def __init__(
        self,
        record: Logger,
        trackers: Sequence[tuple[str, Logger]] = (),
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._record = record
        self._trackers = list(trackers)
        self._on_failure = on_failure

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the trackers that still take records."""
        return tuple(name for name, _ in self._trackers)

    def log(self, record: StepRecord) -> None:
        """JSONL first, then the trackers."""
        self._record.log(record)
        self._each(lambda tracker: tracker.log(record))

    def close(self) -> None:
        """Close the trackers, then the JSONL file."""
        self._each(lambda tracker: tracker.close())
        self._trackers = []
        self._record.close()

    def _each(self, action: Callable[[Logger], None]) -> None:
        for name, tracker in list(self._trackers):
            try:
                action(tracker)
            except Exception as error:  # a tracker's own errors are of any type, and must not end a run
                self._trackers = [pair for pair in self._trackers if pair[1] is not tracker]
                if self._on_failure is not None:
                    self._on_failure(f"{name} failed and is left out from here on: {error!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
