"""The command line from tests: in this process (fast), or as a user runs it (exit codes, signals, tracebacks)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broaden.cli import run

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from broaden.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one object on standard output; anything beside it is an error."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Command:
    """Runs commands in this process and captures what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str | Path) -> Done:
        self.capsys.readouterr()
        code = run([str(a) for a in arguments])
        printed = self.capsys.readouterr()
        return Done(code, printed.out, printed.err)

    def ok(self, *arguments: str | Path) -> Done:
        """The same, which must succeed."""
        done = self(*arguments)
        assert done.code == 0, done.err
        return done


def environment() -> dict[str, str]:
    """For a subprocess: this tree's package, one thread a library."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def command_line(arguments: Sequence[str | Path]) -> list[str]:
    """The command in a fresh interpreter, with warnings as a user has them."""
    return [sys.executable, "-c", PROGRAM, *map(str, arguments)]


def subprocess_run(*arguments: str | Path, cwd: Path | None = None, timeout: float = 240) -> Done:
    """Run the command in a fresh interpreter to its end."""
    done = subprocess.run(
        command_line(arguments), capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd,
        env=environment(),
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def tree(folder: Path) -> set[str]:
    """Everything under a folder."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}
