"""Append-only JSON lines that survive being killed in the middle of a line.

A line counts when its newline is on the disk. A torn last line (no newline, or not JSON) is cut off
on opening, and the caller is told. Not here: what the lines mean (`records`).
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broaden.errors import StoreError
from broaden.store._disk import fsync_path, writing


class JsonlFile:
    """An open JSONL file that is appended to, one fsync a line (or a batch of lines).

    Args:
        path: made, with its folder, if it is not there.
    Attributes:
        message: what was mended on opening ("" if nothing).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing("the log", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            self.message = "" if new else trim(path)
            self._file: io.FileIO | None = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            if new:
                fsync_path(path.parent)

    def append(self, *lines: Mapping[str, Any]) -> None:
        """Write the lines and flush them to the disk. On failure the file is cut back to what it was.

        Raises:
            StoreError: disk full, or the file is closed. ValueError: NaN or infinity in a line.
        """
        if self._file is None:
            raise StoreError(f"{self.path} is closed")
        data = b"".join(encode_line(line) for line in lines)
        before = os.fstat(self._file.fileno()).st_size
        try:
            with writing("the log", self.path):
                _write_all(self._file, data)
                os.fsync(self._file.fileno())
        except StoreError:
            os.ftruncate(self._file.fileno(), before)
            raise

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def append_jsonl(path: Path, *lines: Mapping[str, Any]) -> str:
    """Open, append, flush and close; returns the message of what was mended ("" if nothing)."""
    with JsonlFile(path) as file:
        file.append(*lines)
        return file.message


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a torn last line is left out (the file is not changed).

    Raises:
        StoreError: a line other than the last is not a JSON object (named by number), or no file.
    """
    return [line for _, line in _scan(path)]


def trim(path: Path) -> str:
    """Cut a torn last line off; returns what was done ("" if nothing)."""
    end = max((offset for offset, _ in _scan(path)), default=0)
    size = path.stat().st_size
    if end == size:
        return ""
    with writing("the log", path), open(path, "r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())
    return f"{path.name}: the last line was torn ({size - end} bytes); it was cut off"


def encode_line(line: Mapping[str, Any]) -> bytes:
    """One line of JSON with its newline; NaN and infinities are refused."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _scan(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset after the line, line) of every whole line."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by the with below
    except FileNotFoundError as error:
        raise StoreError(f"there is no file {path}") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        end = 0
        for number, raw in enumerate(file, 1):
            line = _decode(raw) if raw.endswith(b"\n") else None
            last = end + len(raw) >= size
            if line is None and not last:
                raise StoreError(
                    f"{path}: line {number} is not a JSON object", "restore the file from a copy"
                )
            if line is None:
                return
            end += len(raw)
            yield end, line


def _decode(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = file.write(view)
        view = view[written or 0 :]
