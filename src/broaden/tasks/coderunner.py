"""Runs a model's program against tests, out of this process and under limits.

`run` starts the trusted judge (`mbpp_judge.py`) in a fresh interpreter and its own process group; the judge starts the
candidate (`mbpp_candidate.py`) in another one with empty environment, temporary folder, limits on time,
memory, processes
and file size, no network where namespaces allow, and no sight of the tests. What this covers and what it does not
stands in docs/tasks/mbpp.md: it keeps honest mistakes and cheap tricks harmless; it is no virtual machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SECONDS = 10.0
WALL = 3.0
MEMORY = 1 << 30
MAX_CODE = 50_000
Status = Literal["passed", "failed", "limit", "crashed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said. "crashed" is a fault of the runner, not of the program."""

    status: Status
    note: str = ""
    network_dropped: bool = False


def run(
    code: str,
    tests: Sequence[str],
    *,
    imports: Sequence[str] = (),
    setup: str = "",
    entry: Sequence[str] = (),
    seconds: float = SECONDS,
    memory: int = MEMORY,
    isolate: bool = True,
) -> Outcome:
    """Runs `tests` (trusted assertions of the data set) against `code` (untrusted).

    Args:
        imports: import statements of the tests.
        setup: trusted code that runs before them.
        entry: names that the tests take from the code; empty: every name that is no built-in.
        seconds: CPU time of the candidate; three times as much on the wall clock (a busy machine is no fault of it).
        memory: bytes of address space.
        isolate: use new namespaces where the system allows.
    """
    if len(code) > MAX_CODE:
        return Outcome("limit", f"longer than {MAX_CODE} characters")
    if "\x00" in code:
        return Outcome("failed", "a NUL character")
    nonce = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="broaden-mbpp-", ignore_cleanup_errors=True) as folder:
        job = {
            "code": code, "tests": list(tests), "imports": list(imports), "setup": setup, "entry": list(entry),
            "seconds": seconds, "wall": WALL * seconds, "memory": memory, "nonce": nonce, "folder": folder,
            "isolate": isolate,
        }  # fmt: skip
        script = str(Path(__file__).with_name("mbpp_judge.py"))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=folder, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, start_new_session=True,
        )  # fmt: skip
        try:
            data = json.dumps(job).encode("utf-8", "surrogatepass")
            out, _ = process.communicate(data, timeout=WALL * seconds + 9)
        except subprocess.TimeoutExpired:
            out = b""
        finally:
            _end(process)
    try:
        said = json.loads(out.splitlines()[-1]) if out else {}
    except ValueError:
        said = {}
    if said.get("nonce") != nonce:
        return Outcome("crashed", "the judge gave no answer")
    return Outcome(said["status"], str(said["note"]), bool(said.get("network_dropped")))


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
