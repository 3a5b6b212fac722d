"""Messages between a population and its workers: length-prefixed JSON over pipes (never pickle)."""

from __future__ import annotations

import json
from typing import IO, Any

from broaden.errors import WorkerError

HEADER = 8


def send(pipe: IO[bytes], message: dict[str, Any]) -> int:
    """Write one message and flush; returns its bytes."""
    raw = json.dumps(message, separators=(",", ":")).encode()
    pipe.write(len(raw).to_bytes(HEADER, "little") + raw)
    pipe.flush()
    return HEADER + len(raw)


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], int]:
    """Read one message; returns it and its bytes. WorkerError when the other side is gone."""
    count = int.from_bytes(_exactly(pipe, HEADER), "little")
    message = json.loads(_exactly(pipe, count))
    if not isinstance(message, dict):
        raise WorkerError(f"a worker message is an object, not {type(message).__name__}")
    return message, HEADER + count


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = pipe.read(count - len(parts))
        if not part:
            raise WorkerError("the worker's pipe closed before a whole message")
        parts += part
    return bytes(parts)
