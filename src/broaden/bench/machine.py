"""What a measurement was taken on: commit, versions, instruction set, threads, load; and the matrix-product ceiling.

Nothing here names a host, a user or a path.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import broaden
from broaden.engines import packing
from broaden.engines.base import OnProgress
from broaden.engines.lanes import run_lanes
from broaden.models.spec import ModelSpec

Call = Callable[[torch.Tensor], torch.Tensor]
FLAGS = re.compile(r"avx|amx|vnni|bf16|fp16|sve|asimd")


def conditions(threads: int) -> dict[str, Any]:
    """JSON: where and with what; `load_average` is that of the last minute, before the bench starts."""
    return {
        "commit": commit(),
        "broaden": broaden.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "flags": flags(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load_average": load_average(),
    }


@dataclass(frozen=True, slots=True)
class Clocks:
    """A reading of the clocks: wall, CPU seconds of the whole machine, and of this process with its ended children."""

    wall: float
    machine: float | None
    own: float

    @classmethod
    def read(cls) -> Clocks:
        """Now. The machine's is None where /proc/stat is not to be had."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return cls(time.perf_counter(), _busy_seconds(), own)

    def others(self, later: Clocks) -> float | None:
        """Cores that everything else kept busy between two readings, on average."""
        if self.machine is None or later.machine is None:
            return None
        used = (later.machine - self.machine) - (later.own - self.own)
        return max(0.0, used / (later.wall - self.wall))


def _busy_seconds() -> float | None:
    """CPU seconds that were neither idle nor waiting for a disk, since the machine started (steal included)."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _wait, *rest = (int(w) for w in words[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def load_average() -> float | None:
    """Of the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def commit() -> str | None:
    """The checkout's commit, with "+changes" where its source differs from it; None outside of a git checkout."""
    root = Path(broaden.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    head, changes = (
        _git(root, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "src"))
    )
    return None if head is None else head + ("+changes" if changes else "")


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def cpu() -> str:
    """The processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def flags() -> str:
    """Vector and matrix instructions that the processor has."""
    found = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    return " ".join(sorted(f for f in found if FLAGS.search(f)))


def _cpuinfo(key: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(rf"^{re.escape(key)}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def ceiling(
    spec: ModelSpec, dtype: torch.dtype, rows: int, threads: int, seconds: float = 2.0, *, head: bool = True
) -> float:
    """Tokens a second if a decode step were its matrix products alone: what no engine of this model can pass.

    Every product of a step over `rows` rows, each layer with weights of its own (they come from memory, as in a
    real step); the best of one process-wide call and `threads` lanes that share the rows, with weights as they lie and
    (bfloat16) packed; best of the steps that fit into `seconds`. Without `head`: of a pass over prompts.
    """
    shapes = products(spec) if head else products(spec)[:-1]
    weights = [torch.randn(shape).mul_(0.02).to(dtype) for shape in shapes]
    calls: list[list[Call]] = [[partial(F.linear, weight=w) for w in weights]]
    packed = [p for w in weights if (p := packing.pack(w)) is not None]
    if len(packed) == len(weights):
        calls.append([partial(packing.product, packed=p) for p in packed])
    splits = ((1, threads), (threads, 1)) if threads > 1 else ((1, 1),)
    widths = [w.shape[1] for w in weights]
    return max(_lanes(c, widths, dtype, rows, *split, seconds) for c in calls for split in splits)


def products(spec: ModelSpec) -> list[tuple[int, int]]:
    """Shapes (out, in) of the matrices that one decode step multiplies with."""
    layer = [
        (spec.qkv_width, spec.hidden), (spec.hidden, spec.heads * spec.head_dim), (2 * spec.ffn, spec.hidden),
        (spec.hidden, spec.ffn),
    ]  # fmt: skip
    return [*(shape for _ in range(spec.layers) for shape in layer), (spec.vocab, spec.hidden)]


def _lanes(
    calls: Sequence[Call], widths: list[int], dtype: torch.dtype, rows: int,
    lanes: int, threads: int, seconds: float,
) -> float:  # fmt: skip
    """Tokens a second of `lanes` lanes that call every product, whose inputs have these widths."""
    share = max(1, rows // lanes)
    inputs = {width: torch.randn(share, width).to(dtype) for width in widths}
    best = [0.0] * lanes

    def steps(lane: int, _report: OnProgress, _stop: threading.Event) -> None:
        end = time.perf_counter() + seconds
        while best[lane] == 0.0 or time.perf_counter() < end:
            began = time.perf_counter()
            for call, width in zip(calls, widths, strict=True):
                call(inputs[width])
            best[lane] = max(best[lane], share / (time.perf_counter() - began))

    def job(lane: int) -> Any:
        return lambda report, stop: steps(lane, report, stop)

    run_lanes([[job(lane)] for lane in range(lanes)], threads, None)
    return sum(best)
