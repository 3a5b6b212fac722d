"""Real data sets for tests: in the folder that BROADEN_DATA names, else the test is skipped and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def data_path(*parts: str) -> Path:
    """Path below BROADEN_DATA; skips the calling test where the variable or the path is missing."""
    root = os.environ.get("BROADEN_DATA", "")
    if not root:
        pytest.skip("BROADEN_DATA is not set: it names the folder with the real data sets")
    path = Path(root).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path} (BROADEN_DATA={root})")
    return path
