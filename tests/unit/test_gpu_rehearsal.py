"""The tests marked `gpu` pass on the CPU, so that they do not rot where there is no GPU; it proves nothing more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a CUDA device: pytest -m gpu is the real thing"
)
def test_a_rehearsal_on_the_cpu() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
        "tests/gpu",
        "-k",
        "not real_model",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "BROADEN_GPU_REHEARSAL": "1"},
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
