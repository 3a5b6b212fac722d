"""Choose the demo's step sizes on the probe split: one rule, the same number of trials for ES and GRPO.

    python dev/tune_demo.py --out runs/tune

Rule: seed 1000 (never a reported one), as many updates as the demo makes, four step sizes each (a factor of about
two to three apart), everything else as in the demo; the one with the highest Pass@1 on 300 probe problems x 8 samples at
temperature 0.6 after the last update is taken. Every trial is printed, whatever came of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from broaden import runs
from broaden.config import build_config

ES = [{"alpha": a} for a in (0.003, 0.006, 0.012, 0.024)]
GRPO = [{"learning_rate": lr} for lr in (3e-5, 1e-4, 3e-4, 1e-3)]


def trial(out: Path, algo: str, changes: dict[str, Any], updates: int, workers: int) -> dict[str, Any]:
    """Train one setting and read its probes."""
    config = build_config({
        "name": out.name, "seed": 1000, "population": {"workers": workers},
        "probe": {"every": updates // 2, "limit": 300, "samples": 8, "temperature": 0.6},
        "stages": [{"algo": algo, "preset": "nano", "updates": updates, **changes}],
    })  # fmt: skip
    runs.resume(out) if (out / "manifest.json").exists() else runs.train(config, out)
    lines = [json.loads(line) for line in (out / "probes.jsonl").read_text().splitlines()]
    probes = {p["step"]: {k: round(p["metrics"][k]["value"], 4) for k in ("pass@1", "pass@8")} for p in lines}
    return {"algo": algo, **changes, "probes": probes}


def main() -> None:
    """Run all trials and print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/tune"))
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    for algo, grid in (("es", ES), ("grpo", GRPO)):
        for changes in grid:
            name = f"{algo}-{next(iter(changes.values())):g}"
            print(json.dumps(trial(args.out / name, algo, changes, args.updates, args.workers)), flush=True)


if __name__ == "__main__":
    main()
