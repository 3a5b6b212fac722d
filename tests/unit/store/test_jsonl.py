from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from broaden.errors import StoreError
from broaden.store import JsonlFile, append_jsonl, read_jsonl
from broaden.store import jsonl as module

LINES = [{"step": 1, "text": "α\n"}, {"step": 2, "z": [0.1, -2.0]}, {"step": 3, "note": "last"}]


def written(path: Path) -> bytes:
    append_jsonl(path, *LINES)
    return path.read_bytes()


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    written(path)
    assert append_jsonl(path, {"step": 4}) == ""
    assert read_jsonl(path) == [*LINES, {"step": 4}]


def test_torn_at_every_byte_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    data = written(path)
    start = data[:-1].rindex(b"\n") + 1
    for cut in range(start, len(data)):
        path.write_bytes(data[:cut])
        assert read_jsonl(path) == LINES[:2]
        assert path.read_bytes() == data[:cut]  # reading mends nothing
        with JsonlFile(path) as file:
            torn = cut - start
            assert file.message == (
                f"log.jsonl: the last line was torn ({torn} bytes); it was cut off" if torn else ""
            )
            file.append(LINES[2])
        assert path.read_bytes() == data


def test_a_last_line_of_garbage_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    data = written(path)
    for garbage in (b"\0" * 50, b"{]\n", b'"text"\n', b"\xff\xfe\n", b"{" * 9):
        path.write_bytes(data + garbage)
        with JsonlFile(path) as file:
            assert f"torn ({len(garbage)} bytes)" in file.message
        assert path.read_bytes() == data


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":\n{"a":3}\n')
    with pytest.raises(StoreError, match="line 2 is not a JSON object"):
        read_jsonl(path)
    with pytest.raises(StoreError, match="line 2"):
        JsonlFile(path)
    assert path.read_bytes() == b'{"a":1}\n{"a":\n{"a":3}\n'


def test_nan_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    data = written(path)
    with JsonlFile(path) as file, pytest.raises(ValueError, match="JSON compliant"):
        file.append({"step": 4}, {"x": float("nan")})
    assert path.read_bytes() == data


def test_disk_full_in_the_middle_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    data = written(path)

    def half(file: object, payload: bytes) -> None:
        os.write(file.fileno(), payload[:5])  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JsonlFile(path) as file:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_write_all", half)
            with pytest.raises(StoreError, match="no space left") as error:
                file.append({"step": 4})
        assert "free some space" in error.value.fix
        assert path.read_bytes() == data
        file.append({"step": 4})
    assert read_jsonl(path)[-1] == {"step": 4}


def test_every_append_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    with JsonlFile(tmp_path / "log.jsonl") as file:
        monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), fsync(fd)))
        file.append({"a": 1})
        file.append({"a": 2}, {"a": 3})
    assert len(synced) == 2


def test_closed_and_missing(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "log.jsonl")
    file.close()
    file.close()
    with pytest.raises(StoreError, match="closed"):
        file.append({"a": 1})
    with pytest.raises(StoreError, match="no file"):
        read_jsonl(tmp_path / "other.jsonl")
    assert json.dumps(read_jsonl(tmp_path / "log.jsonl")) == "[]"
