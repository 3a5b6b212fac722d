"""Tests of Triton's kernels where there is no GPU: in processes of their own, skipped where triton is not installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install --no-deps triton)",
)


def child(module: str) -> str:
    """What `python -m MODULE` prints; it must succeed."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, text=True,
        capture_output=True, timeout=850,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
