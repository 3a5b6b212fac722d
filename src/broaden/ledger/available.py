"""How much memory this process may still take: the smaller of what the system has and what its control groups allow.

Linux only; elsewhere nothing is known (None), and nothing is refused. `BROADEN_MEMORY` (bytes, or 24GiB) says instead
how much this process and its workers may hold.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from broaden.errors import UsageError

VARIABLE = "BROADEN_MEMORY"
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def available(base: int = 0, root: Path = Path("/")) -> int | None:
    """Bytes that this process and its workers may hold in all; None where that is not known.

    Args:
        base: of what this process holds already so much counts as part of that.

    Raises:
        UsageError: BROADEN_MEMORY is no size.
    """
    said = os.environ.get(VARIABLE)
    if said:
        return _size(said)
    found = [x for x in (_field(root / "proc/meminfo", "MemAvailable"), *_groups(root)) if x is not None]
    return min(found) + min(base, held(root)) if found else None


def held(root: Path = Path("/")) -> int:
    """Anonymous bytes of this process (0 where the system doesn't say)."""
    return _field(root / "proc/self/status", "RssAnon") or 0


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower())
    if match is None:
        raise UsageError(f"{VARIABLE}={text} is no size", f"bytes, or for example {VARIABLE}=24GiB")
    return int(float(match[1]) * UNITS[match[2]])


def _field(path: Path, name: str) -> int | None:
    """A line `name: 123 kB` in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(x.split()[1]) for x in lines if x.startswith(name + ":")), None)


def _groups(root: Path) -> list[int]:
    """What is left to every control group (version 2) that this process is in; the page cache counts as free."""
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    inside = next((x.removeprefix("0::").lstrip("/") for x in lines if x.startswith("0::")), None)
    if inside is None:
        return []
    out = []
    folder = top / inside
    for place in (folder, *folder.parents):
        if (limit := _number(place / "memory.max")) is not None:
            cached = _number(place / "memory.stat", "inactive_file") or 0
            out.append(max(0, limit - (_number(place / "memory.current") or 0) + cached))
        if place == top:
            break
    return out


def _number(path: Path, name: str = "") -> int | None:
    """A file's number, or the one after `name` in it; None for "max" and where there is none."""
    try:
        text = path.read_text()
    except OSError:
        return None
    if name:
        text = next((x.split()[1] for x in text.splitlines() if x.startswith(name + " ")), "")
    return int(text) if text.strip().isdigit() else None
