"""The device of the tests marked `gpu`: CUDA, or the CPU in a rehearsal.

`BROADEN_GPU_REHEARSAL=1 pytest -m gpu` runs them on the CPU where there is no CUDA device: that shows that the tests
themselves work, and says nothing about a GPU.
"""

from __future__ import annotations

import os

import torch


def rehearsal() -> bool:
    """Whether the tests are to run on the CPU."""
    return os.environ.get("BROADEN_GPU_REHEARSAL") == "1"


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
