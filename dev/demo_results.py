"""Tables of docs/results/demo.md from finished demos of several seeds.

    for s in 0 1 2; do broaden demo --seed $s; done
    python dev/demo_results.py runs/demo-seed0 runs/demo-seed1 runs/demo-seed2

Values are means over seeds; intervals are over seeds x problems (Student's t with Satterthwaite degrees of freedom,
`metrics.seedwise`), differences are paired within a seed and a problem.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from broaden.evaluation import by_problem, ratios
from broaden.metrics import seed_problem_interval
from broaden.store import SampleStore

METRICS = ("pass@1", "pass@8", "pass@32", "maj@32", "entropy")
ARMS = {
    "base": "base",
    "es": "es",
    "grpo": "grpo",
    "es->grpo": "es-grpo",
    "grpo->es": "grpo-es",
    "null-grpo": "null-grpo",
}


def per_problem(folder: Path) -> dict[str, np.ndarray]:
    """Each metric's value a problem (entropy: mean over the problem's tokens)."""
    found = ratios(by_problem(SampleStore(folder).read()), (1, 8, 32), expected=False)
    return {m: found[m].num_P / found[m].den_P for m in METRICS}


def arm_values(demos: list[Path]) -> dict[str, dict[str, np.ndarray]]:
    """values[arm][metric]: (seeds, problems). "null" is the mean of the random walks."""
    out: dict[str, dict[str, np.ndarray]] = {}
    for arm, name in ARMS.items():
        rows = [per_problem(d / "samples" / name) for d in demos]
        out[arm] = {m: np.stack([r[m] for r in rows]) for m in METRICS}
    walks = [[per_problem(p) for p in sorted((d / "samples").glob("null-[0-9]*"))] for d in demos]
    out["null"] = {m: np.stack([np.mean([w[m] for w in own], axis=0) for own in walks]) for m in METRICS}
    return out


def cell(values: Any, *, signed: bool = False) -> str:
    """ "0.402 [0.371, 0.433]" over seeds x problems."""
    i = seed_problem_interval(values)
    sign = "+" if signed else ""
    return f"{i.value:{sign}.3f} [{i.low:{sign}.3f}, {i.high:{sign}.3f}]"


def main() -> None:
    """Print the markdown."""
    demos = [Path(p) for p in sys.argv[1:]]
    values = arm_values(demos)
    summaries = [json.loads((d / "summary.json").read_text()) for d in demos]
    print("| arm | " + " | ".join(METRICS) + " | drift |\n|---" * 1 + "|---" * (len(METRICS) + 1) + "|")
    for arm, own in values.items():
        drift = np.mean([s["arms"][arm]["drift"]["value"] for s in summaries])
        print(f"| {arm} | " + " | ".join(cell(own[m]) for m in METRICS) + f" | {drift:.4f} |")
    print("\n| difference | " + " | ".join(METRICS) + " |\n|---" + "|---" * len(METRICS) + "|")
    pairs = [("es", "base"), ("es", "null"), ("grpo", "base"), ("grpo", "null-grpo"), ("es->grpo", "base"),
             ("grpo->es", "base"), ("null", "base"), ("null-grpo", "base"), ("es", "grpo")]  # fmt: skip
    for a, b in pairs:
        cells = [cell(values[a][m] - values[b][m], signed=True) for m in METRICS]
        print(f"| {a} - {b} | " + " | ".join(cells) + " |")
    print(
        "\n| seed | arm | Pass@1 there | Pass@32 - base frontier's at that Pass@1 | beyond its end |\n|---|---|---|---|---|"
    )
    for d, s in zip(demos, summaries, strict=True):
        for arm, g in s["coverage_at_equal_pass@1"].items():
            gap = g["gap"]
            print(f"| {d.name[-1]} | {arm} | {g['pass_1']['value']:.3f} | {gap['value']:+.3f} "
                  f"[{gap['low']:+.3f}, {gap['high']:+.3f}] | {100 * g['beyond']:.0f} % |")  # fmt: skip
    print(
        "\n| seed | arm | updates | rollouts | optimiser steps | tokens | FLOPs (paper) | FLOPs (full) | seconds |"
    )
    print("|---" * 9 + "|")
    for d, s in zip(demos, summaries, strict=True):
        for arm, spent in s["spent"].items():
            b = s["arms"][arm]["budget"]
            print(f"| {d.name[-1]} | {arm} | {b['updates']} | {spent['rollouts']:,} | {spent['optimizer_steps']} | "
                  f"{b['tokens']:,} | {b['flops_paper']:.2e} | {b['flops_full']:.2e} | {b['seconds']:.0f} |")  # fmt: skip
    print(
        "\nwall-clock of each demo: "
        + ", ".join(f"{s['conditions']['wall_seconds']:.0f} s" for s in summaries)
    )


if __name__ == "__main__":
    main()
