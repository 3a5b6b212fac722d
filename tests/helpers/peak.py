"""Highest memory of a command and its children: `python -m tests.helpers.peak broaden train ...` (Linux).

Counted: anonymous memory of every process (heap, private copies) and shared memory once. Not counted: pages of files
(libraries, mapped models and masters on a disk), which the system can drop and read again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

EVERY = 0.005  # seconds between two looks
MIB = 1 << 20


@dataclass
class Peak:
    """Bytes: the highest sum, and of each process (in the order of their start) its own highest anonymous memory."""

    total: int = 0
    at: tuple[int, ...] = ()
    shared: int = 0
    own: dict[int, int] = field(default_factory=dict)

    def text(self) -> str:
        """One line, MiB."""
        each = ", ".join(f"{x / MIB:.0f}" for x in self.own.values())
        then = " + ".join(f"{x / MIB:.0f}" for x in self.at)
        return (
            f"peak {self.total / MIB:.0f} MiB = {then}, of which shared {self.shared / MIB:.0f}; peaks {each}"
        )


def watch(process: subprocess.Popen[bytes]) -> Peak:
    """Look until the process has ended."""
    found = Peak()
    while process.poll() is None:
        pids = family(process.pid)
        held = {pid: memory(pid) for pid in pids}
        shared = max((s for _, s in held.values()), default=0)
        for pid, (anonymous, _) in held.items():
            found.own[pid] = max(found.own.get(pid, 0), anonymous)
        total = sum(a for a, _ in held.values()) + shared
        if total > found.total:
            found.total, found.shared = total, shared
            found.at = (*(a for a, _ in held.values()), shared)
        time.sleep(EVERY)
    return found


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    out = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                out += family(int(child))
    except OSError:
        pass
    return out


def memory(pid: int) -> tuple[int, int]:
    """(anonymous, shared) bytes; zeros where the process is gone."""
    found = {"RssAnon": 0, "RssShmem": 0}
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = 1024 * int(rest.split()[0])
    except OSError:
        pass
    return found["RssAnon"], found["RssShmem"]


def measure(command: list[str], **popen: object) -> Peak:
    """Run a command to its end. Raises CalledProcessError where it fails."""
    process = subprocess.Popen(command, **popen)  # type: ignore[call-overload]
    found = watch(process)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return found


if __name__ == "__main__":
    program = sys.argv[1:]
    if program[0] == "broaden":
        program = [sys.executable, "-c", "from broaden.cli import main; main()", *program[1:]]
    print(measure(program, env=dict(os.environ), stdout=sys.stderr).text())
