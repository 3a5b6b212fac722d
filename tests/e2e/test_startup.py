"""The command starts light: help comes before anything heavy is loaded, and quickly."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

# numpy, and what costs as much or more.
HEAVY = ["numpy", "numba", "torch", "transformers", "tokenizers", "safetensors", "pyarrow", "scipy", "sympy",
         "math_verify", "matplotlib", "pydantic", "huggingface_hub", "jinja2", "vllm", "ray"]  # fmt: skip

PROGRAM = f"""
import json, sys
from broaden.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(set({HEAVY!r}) & set(sys.modules))), file=sys.stderr)
"""


def broaden(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_loads_nothing_heavy() -> None:
    done = broaden("--help")
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("demo", "train", "eval", "compare", "replay", "models"))
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_version_loads_nothing_heavy() -> None:
    done = broaden("--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(".") == 2
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_help_takes_less_than_a_third_of_a_second_of_processor_time() -> None:
    """Processor time, the best of five: the clock on the wall depends on what else the machine is doing."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        broaden("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(spent) < 0.3
