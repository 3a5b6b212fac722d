"""Rows from a local file, or from the Hugging Face hub by the data set's name (extra `datasets`).

Not here: file formats (`files`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from broaden.errors import UnreachableError, UsageError
from broaden.tasks.files import Row, read

if TYPE_CHECKING:
    from broaden.tasks.base import Family

CONFIGS: dict[str, tuple[str, str]] = {
    "gsm8k": ("main", ""), "hotpotqa": ("distractor", "validation"), "commonsenseqa": ("", "validation"),
    "mbpp": ("sanitized", ""), "countdown": ("all", ""), "gpqa": ("gpqa_diamond", "train"),
}  # fmt: skip
"""(configuration, split to use for "test") on the hub, where they differ from the plain ones."""


_FETCH: ContextVar[bool] = ContextVar("fetch", default=True)


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """Inside, a task that would have to be fetched raises UnreachableError (a dry run reaches for nothing)."""
    token = _FETCH.set(False)
    try:
        yield
    finally:
        _FETCH.reset(token)


def rows_of(task: Family, path: Path | None, split: str) -> Iterator[tuple[int, Row]]:
    """Rows of the file, or of the task's hub name where no file was given."""
    return read(path) if path is not None else from_hub(task.name, task.hub, split)


def from_hub(name: str, hub: str, split: str) -> Iterator[tuple[int, Row]]:
    """Rows of a hub data set. Raises UsageError without a hub name, UnreachableError without the extra, or where it
    can't be (or, inside `nothing_fetched`, is not to be) reached."""
    if not hub:
        raise UsageError(
            f"task {name} is read from a file", "give --data the path of a JSONL, JSON, CSV or Parquet file"
        )
    if not _FETCH.get():
        raise UnreachableError(
            f"task {name} lies on the hub ({hub}) and is not fetched here", "give --data a local copy"
        )
    if importlib.util.find_spec("datasets") is None:
        raise UnreachableError(
            f"task {name} without --data is loaded from the hub ({hub}), which needs the package datasets",
            "give --data a local file, or: pip install 'broaden[datasets]'",
        )
    configuration, test_split = CONFIGS.get(name, ("", ""))
    wanted = test_split if split in ("test", "dev", "diamond") and test_split else split
    datasets = importlib.import_module("datasets")
    try:
        loaded = datasets.load_dataset(hub, configuration or None, split=wanted)
    except Exception as error:  # the hub's client raises many unrelated types
        raise UnreachableError(
            f"{hub} could not be loaded from the hub: {type(error).__name__}: {str(error)[:200]}",
            "give --data a local copy",
        ) from error
    return ((at, dict(row)) for at, row in enumerate(loaded))
