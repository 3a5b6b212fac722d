"""Which benches there are, what each is to reach, and running one with its conditions.

Nothing heavy is imported before a bench runs. Not here: the works and their peers (one module each).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broaden.bench.harness import Result, Settings, Unavailable
from broaden.errors import UsageError

BUSY = 0.15
"""Cores kept busy by other processes from which on a result says that the machine was."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One bench: `function` is `module:name` below broaden.bench, called with the settings and `options`."""

    name: str
    work: str
    peer: str
    target: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)


BENCHES = (
    Bench("noise", "134.5 M weights perturbed into a copy; N = 8 update", "torch normal_ + add",
          "≥ 2, bits equal on every backend", "noise:run"),
    Bench("generate", "SmolLM2, 64 prompts × 128 forced tokens, bf16", "transformers generate",
          "≥ 2.5, ≥ 0.6 of the ceiling", "generate:fixed"),
    Bench("generate-256", "the same with 256 prompts", "transformers generate", "≥ 2.5, ≥ 0.6 of the ceiling",
          "generate:fixed", {"prompts": 256}),
    Bench("generate-ragged", "64 chat prompts, real stopping, up to 512 tokens", "transformers generate", "≥ 5",
          "generate:ragged"),
    Bench("population", "bundled model, 32 members × 256 prompts, full rank", "one generate a member", "≥ 4",
          "population:run"),
    Bench("population-lowrank", "SmolLM2, 32 rank-1 members × 16 prompts in one batch", "full rank, member by member",
          "≥ 1.5, memory ≤ 1.3 of one model", "population_lowrank:run"),
    Bench("scale", "the same members one by one, dealt to W workers", "ideal", "≥ 0.95 at N/W = 4, ≤ 1 kB a member",
          "population:scale"),
    Bench("processes", "bundled model, 32 members × 256 prompts in worker processes", "one process of as many threads",
          "tells which to use", "arrangement:run"),
    Bench("processes-smollm2", "SmolLM2, 8 members × 16 prompts × 64 tokens in worker processes",
          "one process of as many threads", "tells which to use", "arrangement:run", {"model": "smollm2"}),
    Bench("es-update", "SmolLM2, N = 8, 16 prompts × 64 tokens, whole update", "the public loop",
          "≥ 3, ≤ 15 % outside rollouts", "es_update:run"),
    Bench("es-update-64", "the same with 64 prompts × 128 tokens", "the public loop", "≤ 3 % outside rollouts",
          "es_update:run", {"prompts": 64, "new": 128}),
    Bench("grpo-update", "SmolLM2, 8 prompts × 8, 64 tokens, KL on", "TRL GRPOTrainer", "≥ 2.5, memory ≤ 0.4",
          "grpo_update:run"),
    Bench("eval", "Pass@32 of 8 GSM8K problems, 128 tokens", "lm-evaluation-harness", "≥ 3", "evaluate:run"),
    Bench("memory", "peak of an ES update on SmolLM2", "bf16 inference alone", "≤ 1.2 (smaller is better)",
          "memory:run"),
    Bench("score", "5,276 judged GSM8K solutions and MATH-500 golds", "math-verify", "≥ 5 at equal agreement",
          "score:run"),
    Bench("gpu-noise", "Qwen2.5-1.5B's shapes on a GPU: members written, N = 8 update", "torch normal_ + add",
          "≥ 2, bits equal to the CPU's", "gpu:noise"),
    Bench("gpu-generate", "the same, 256 prompts × 256 forced tokens, bf16", "transformers generate",
          "≥ 10, ≥ 0.6 of the roofline", "gpu:generate"),
    Bench("gpu-population", "the same, 8 full-rank members × 64 prompts × 128 tokens", "one generate a member",
          "≥ 10, ≥ 0.6 of the roofline", "gpu:population"),
)  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of the benches."""
    return tuple(b.name for b in BENCHES)


def find(name: str) -> Bench:
    """The bench of that name. Raises UsageError where there is none."""
    for bench in BENCHES:
        if bench.name == name:
            return bench
    raise UsageError(f"no bench {name!r}", f"one of {', '.join(names())}; broaden bench ls")


def run(bench: Bench, settings: Settings) -> Result:
    """Run one bench; its conditions and those of the machine together. Skipped where it cannot run here."""
    import torch

    from broaden.bench import machine
    from broaden.engines.lanes import torch_threads

    here = machine.conditions(settings.threads) | {"quick": settings.quick}
    began = machine.Clocks.read()
    module, _, function = bench.function.partition(":")
    try:
        with torch_threads(settings.threads), torch.random.fork_rng():
            work = getattr(importlib.import_module(f"broaden.bench.{module}"), function)
            result: Result = work(settings, **bench.options)
    except Unavailable as reason:
        return Result("", conditions=here, skipped=str(reason))
    ended = machine.Clocks.read()
    others = began.others(ended)
    here |= {
        "bench_seconds": round(ended.wall - began.wall, 1),
        "other_cores": None if others is None else round(others, 3),
        "busy": others is not None and others >= BUSY,
    }
    return replace(result, conditions=here | result.conditions)


def table(results: Sequence[tuple[Bench, Result]]) -> str:
    """A Markdown table of results."""
    lines = ["| bench | ours | peer | ratio | spread | to reach | |", "|---|---|---|---|---|---|---|"]
    for bench, r in results:
        if r.ours is None or r.peer is None or r.ratio is None:
            lines.append(f"| {bench.name} | | | | | {bench.target} | {r.skipped} |")
            continue
        low, high = r.spread.get("ratio", [r.ratio, r.ratio])
        lines.append(
            f"| {bench.name} | {number(r.ours)} {r.unit} | {number(r.peer)} | {r.ratio:.3g} | {low:.3g} to {high:.3g} "
            f"| {bench.target} | {remarks(r)} |"
        )
    return "\n".join(lines) + "\n"


REMARKS = {
    "cpu_ratio": "by CPU seconds {:.3g}", "of_ceiling": "{:.2f} of the ceiling",
    "of_products": "{:.2f} with the prompts' products", "of_roofline": "{:.2f} of the roofline",
    "bits_equal": "bits equal: {}",
    "outside_rollouts": "{:.1%} outside rollouts", "memory_ratio": "memory {:.2f}",
    "held_ratio": "weights and factors {:.2f}",
    "mapped_ratio": "mapped {:.2f}", "bytes_a_member": "{:.0f} bytes a member",
    "vllm_ratio": "{:.3g} against vLLM", "agreement_ours": "agreement {:.4f}", "agreement_peer": "against {:.4f}",
}  # fmt: skip


def remarks(result: Result) -> str:
    """What stands in a table's last column."""
    found = [text.format(result.conditions[key]) for key, text in REMARKS.items() if key in result.conditions]
    return ", ".join([*found, *(["busy machine"] if result.conditions.get("busy") else [])])


def number(value: float) -> str:
    """Three or more figures, thousands apart; millions as such."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.3g} M" if abs(value) < 1e9 else f"{value / 1e6:,.0f} M"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
