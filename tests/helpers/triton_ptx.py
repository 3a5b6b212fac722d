"""Compiles the Triton kernels for NVIDIA chips, which needs no GPU, and looks at the instructions.

Run in a process of its own: `python -m tests.helpers.triton_ptx`. Prints JSON: for each kernel and chip the fused
multiply-adds, flushes of subnormal numbers and register spills (all wanted empty; the decode kernels may fuse), and
whether a fused multiply-add would appear without the launch option that forbids it (so that the test can fail).
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from broaden.engines import triton_decode
from broaden.perturb import triton_path

WORDS = {"first_low": "i32", "first_high": "i32", "skip": "i32", "count": "i32"}
WRITE = {"theta": "*fp32", "out": "*u16", "table": "*fp32", **WORDS, "k0": "i32", "k1": "i32"}
UPDATE = {"theta": "*fp32", "anchor": "*fp32", "half": "*i32", "coefficients": "*i32", "keys": "*i32",
          "scalars": "*fp64", "squares": "*fp64", "largest": "*fp64", "changed": "*i32", **WORDS,
          "members": "i32"}  # fmt: skip
CHECKSUM = {"bits": "*i16", "sums": "*i64", "start_low": "i32", "start_high": "i32", "count": "i32"}
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
STEP = {"eps": "fp32", "each": "i32"}
CACHE = {"kv_heads": "i32", "capacity": "i32"}
# Qwen2.5-1.5B's shapes in bfloat16
DECODE: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "add_norm": (
        triton_decode._add_norm,
        {**dict.fromkeys(("h", "delta", "weight", "out"), "*bf16"), **STEP, "width": "i32"},
        {"ADD": True, "SIZE": 2048},
    ),
    "rope": (
        triton_decode._rope,
        {
            **dict.fromkeys(("qkv", "q_norm", "k_norm"), "*bf16"), "cos": "*fp32", "sin": "*fp32", "positions": "*i64",
            **dict.fromkeys(("q", "keys", "values"), "*bf16"), **STEP, "heads": "i32", **CACHE,
        },
        {"NORM": True, "HALF": 64, "SIZE": 64},
    ),
    "attend": (
        triton_decode._attend,
        {
            **dict.fromkeys(("q", "keys", "values"), "*bf16"), "positions": "*i64", "out": "*bf16", "scale": "fp32",
            **CACHE,
        },
        {"GROUP": 6, "ROWS": 16, "WIDTH": 128, "SIZE": 128, "TILE": triton_decode.TILE, "WIDE": False},
    ),
    "swiglu": (triton_decode._swiglu, {"gate_up": "*bf16", "out": "*bf16", "width": "i32"}, {"SIZE": 1024}),
    "blocks": (
        triton_decode._blocks,
        {
            "logits": "*bf16", "tops": "*fp32", "first": "*i32", "hot": "*fp64", "plain": "*fp64", "moment": "*fp64",
            "bad": "*i32", "inverse": "fp32", "vocab": "i32",
        },
        {"SIZE": triton_decode.LOGITS},
    ),
    "choose": (
        triton_decode._choose,
        {
            "logits": "*bf16", "tops": "*fp32", "first": "*i32", "hot": "*fp64", "plain": "*fp64", "moment": "*fp64",
            "bad": "*i32", "uniforms": "*fp64", "tokens": "*i64", "logprobs": "*fp32", "entropies": "*fp32",
            "faults": "*i32", "inverse": "fp32", "vocab": "i32", "count": "i32",
        },
        {"GREEDY": False, "BLOCKS": 256, "SIZE": triton_decode.LOGITS},
    ),
}  # fmt: skip
EVEN = ("skip", "count", "width", "capacity", "vocab")


def ptx(name: str, chip: int, fusion: bool) -> str:
    """PTX of a kernel for compute capability `chip` with the arguments that a real launch has."""
    kernel, arguments, constants = (KERNELS | DECODE)[name]
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    hints = {
        (place,): [["tt.divisibility", 16]]
        for place, (argument, kind) in enumerate(signature.items())
        if kind.startswith("*") or argument in EVEN
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    options = {"num_warps": 1 if name == "rope" else 4, "enable_fp_fusion": fusion}
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    return str(made.asm["ptx"])


def main() -> None:
    """Every kernel for Ampere and Hopper."""
    found = {}
    for chip in (80, 90):
        for name in KERNELS | DECODE:
            text = ptx(name, chip, fusion=name in DECODE)
            found[f"{name} sm_{chip}"] = {
                "fused": [] if name in DECODE else re.findall(r"\bfma\.\S+", text),
                "flushed": [] if name in DECODE else re.findall(r"\S+\.ftz\S*", text),
                "spilled": re.findall(r"\b(?:ld|st)\.local\S*", text),
                "vectors": len(re.findall(r"\b(?:ld|st)\.global\S*\.v4\.b32|cp\.async\S* .*, 16", text)),
                "matrix": len(re.findall(r"\bmma\.sync\S+bf16", text)),
            }
    print(
        json.dumps(
            {"kernels": found, "fused_by_default": bool(re.search(r"\bfma\.", ptx("update", 90, True)))}
        )
    )


if __name__ == "__main__":
    main()
