"""Compiles the Triton noise kernels for NVIDIA chips, which needs no GPU, and looks at the instructions.

Run in a process of its own: `python -m tests.helpers.triton_ptx`. Prints JSON: for each kernel and chip the fused
multiply-adds, flushes of subnormal numbers and register spills (all wanted empty), and whether a fused
multiply-add would appear without the launch option that forbids it (so that the test can fail).
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from broaden.perturb import triton_path

WORDS = {"first_low": "i32", "first_high": "i32", "skip": "i32", "count": "i32"}
WRITE = {"theta": "*fp32", "out": "*u16", "table": "*fp32", **WORDS, "k0": "i32", "k1": "i32",
         "ROUND": "constexpr", "BLOCKS": "constexpr"}  # fmt: skip
UPDATE = {"theta": "*fp32", "anchor": "*fp32", "half": "*i32", "coefficients": "*i32", "keys": "*i32",
          "scalars": "*fp64", "squares": "*fp64", "largest": "*fp64", "changed": "*i32", **WORDS,
          "members": "i32", "DECAY": "constexpr", "BLOCKS": "constexpr"}  # fmt: skip
CHECKSUM = {"bits": "*i16", "sums": "*i64", "start_low": "i32", "start_high": "i32", "count": "i32",
            "MASK": "constexpr", "SIZE": "constexpr"}  # fmt: skip
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "write bfloat16": (triton_path._write, WRITE, {"ROUND": True, "BLOCKS": triton_path.BLOCKS}),
    "write float16": (
        triton_path._write, {**WRITE, "out": "*fp16"}, {"ROUND": False, "BLOCKS": triton_path.BLOCKS},
    ),
    "write float32": (
        triton_path._write, {**WRITE, "out": "*fp32"}, {"ROUND": False, "BLOCKS": triton_path.BLOCKS},
    ),
    "update": (triton_path._update, UPDATE, {"DECAY": True, "BLOCKS": triton_path.BLOCKS}),
    "checksum": (triton_path._checksum, CHECKSUM, {"MASK": 0xFFFF, "SIZE": 1024}),
}  # fmt: skip
ALIGNED = ("theta", "out", "table", "anchor", "half", "skip", "count")


def ptx(name: str, chip: int, fusion: bool = False) -> str:
    """PTX of a kernel for compute capability `chip` with the arguments that a real launch has."""
    kernel, signature, constants = KERNELS[name]
    places = list(signature)
    hints = {(places.index(n),): [["tt.divisibility", 16]] for n in ALIGNED if n in signature}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    options = {"num_warps": triton_path.WARPS, "enable_fp_fusion": fusion}
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    return str(made.asm["ptx"])


def main() -> None:
    """Every kernel for Ampere and Hopper."""
    found = {}
    for chip in (80, 90):
        for name in KERNELS:
            text = ptx(name, chip)
            found[f"{name} sm_{chip}"] = {
                "fused": re.findall(r"\bfma\.\S+", text),
                "flushed": re.findall(r"\S+\.ftz\S*", text),
                "spilled": re.findall(r"\b(?:ld|st)\.local\S*", text),
                "vectors": len(re.findall(r"\b(?:ld|st)\.global\S*\.v4\.b32", text)),
            }
    print(
        json.dumps(
            {"kernels": found, "fused_by_default": bool(re.search(r"\bfma\.", ptx("update", 90, True)))}
        )
    )


if __name__ == "__main__":
    main()
