"""Holds the Triton noise kernels to the NumPy reference, on CPU tensors with Triton's interpreter.

Run in a process of its own (`python -m tests.helpers.triton_bits`), since TRITON_INTERPRET counts when triton is
imported. Prints how many comparisons there were; the first that fails ends it.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from tests.helpers.noise_bits import everything

from broaden.perturb.backend import NUMBA, TORCH, TritonBackend, _probe

CPU = torch.device("cpu")


def main() -> None:
    """Everything, over the Triton backend, and what decides whether it is used."""
    backend = TritonBackend()
    done = everything(backend, CPU)
    theta = torch.tensor([float("nan")]).expand(8).contiguous()
    ours, theirs = (torch.empty(8, dtype=torch.bfloat16) for _ in range(2))
    for each, out in ((backend, ours), (NUMBA, theirs)):
        each.write(theta, out, torch.zeros(65536), 1, 0)
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
    assert _probe(backend, CPU) == _probe(TORCH, CPU) == _probe(NUMBA, CPU)
    print(f"{done + 2} comparisons")


if __name__ == "__main__":
    main()
