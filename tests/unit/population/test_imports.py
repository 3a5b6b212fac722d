"""What a worker process and an evaluation do not import: seconds of start-up each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# pandas is not in it: pyarrow takes it along where it is installed (it comes with the peers)
HEAVY = ("transformers", "sympy", "math_verify", "latex2sympy2_extended", "matplotlib", "datasets")
WORKER = """
from broaden.models.sources import resolve
from broaden.population import worker
from broaden.population.host import HostSettings, build_host
host = build_host(HostSettings(str(resolve("bundled:countdown-nano")), "countdown", max_context=64), ())
"""
EVAL = """
import contextlib, io
import sys
from broaden.cli import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(["eval", "bundled:countdown-nano", "--task", "countdown", "--greedy", "--limit", "1",
                "--max-new-tokens", "2", "--out", sys.argv[1]])
assert code == 0, code
"""


@pytest.mark.parametrize("script", [WORKER, EVAL], ids=["worker", "eval"])
def test_nothing_heavy_is_imported(tmp_path: Path, script: str) -> None:
    report = "\nimport json, sys\nprint(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    command = [sys.executable, "-c", script + report, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "torch" in loaded
    assert not loaded & set(HEAVY)
