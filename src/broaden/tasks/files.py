"""Rows out of local files: JSONL, JSON, Parquet, CSV. A broken line is an error that names it.

Not here: what a row means (each family knows its own columns), and the hub (`hub.py`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from broaden.errors import DataError, MissingFileError

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
MAX_FILE = 4 << 30


def find(data: Path, split: str, names: Sequence[str] = ()) -> Path:
    """The file for a split: `data` itself, or in a folder one of `names`, or the split's name with a known suffix."""
    if data.is_file():
        return data
    if not data.is_dir():
        raise MissingFileError(f"no file or folder {data}", "give --data the path of the data set's file")
    wanted = [*names, *(f"{split}{suffix}" for suffix in SUFFIXES)]
    for name in wanted:
        if (data / name).is_file():
            return data / name
    shards = sorted(p for p in data.rglob(f"{split}-*.parquet"))
    if len(shards) == 1:
        return shards[0]
    there = ", ".join(sorted(p.name for p in data.iterdir())[:12]) or "nothing"
    raise MissingFileError(
        f"no file for split {split!r} in {data} (looked for {', '.join(wanted)}; it holds {there})",
        "give --data the file itself",
    )


def read(path: Path) -> Iterator[tuple[int, Row]]:
    """(row number from 0, row) of a file; its format is told by its suffix, JSON lines also by content."""
    if not path.is_file():
        raise MissingFileError(f"no file {path}", "give --data the path of the data set's file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty", "give --data a file with rows")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path)
    if suffix == ".csv":
        return csv_rows(_text(path), str(path))
    if suffix == ".json":
        return _json(path)
    if suffix in (".jsonl", ".ndjson"):
        return _lines(path)
    raise DataError(f"{path}: unknown suffix {path.suffix!r}", f"known: {', '.join(SUFFIXES)}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start})", "save it as UTF-8") from error


def _lines(path: Path) -> Iterator[tuple[int, Row]]:
    number = 0
    with path.open("rb") as file:
        for at, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {at}: not JSON ({error})", f"mend or remove line {at}"
                ) from error
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {at}: a JSON object was expected, got {type(row).__name__}")
            yield number, row
            number += 1


def _json(path: Path) -> Iterator[tuple[int, Row]]:
    text = _text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines(path)  # JSON lines under the suffix .json, as several published sets have it
        return
    if isinstance(data, dict):
        lists = {k: v for k, v in data.items() if isinstance(v, list)}
        data = next(iter(lists.values())) if len(lists) == 1 else [data]
    if not isinstance(data, list):
        raise DataError(f"{path}: a list of objects was expected, got {type(data).__name__}")
    for number, row in enumerate(data):
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number}: an object was expected, got {type(row).__name__}")
        yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                yield number, row
                number += 1
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file ({error})", "download it again") from error


def csv_rows(text: str, where: str) -> Iterator[tuple[int, Row]]:
    """Rows of a CSV with a header line."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        for number, row in enumerate(reader):
            if None in row:
                raise DataError(f"{where}, row {number}: more fields than the header has")
            yield number, dict(row)
    except csv.Error as error:
        raise DataError(f"{where}: not readable as CSV ({error})") from error


def column(row: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    """The first of `names` that the row has; else an error that lists what it has."""
    for name in names:
        if name in row:
            return row[name]
    raise DataError(f"{where}: no column {' or '.join(map(repr, names))}; it has {', '.join(map(str, row))}")
