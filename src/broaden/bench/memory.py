"""`broaden bench memory`: peak anonymous memory of an ES run over that of inference alone.

Work: SmolLM2-135M in bfloat16, 64 Countdown problems, up to 128 new tokens. Peer: the own engine answering them
once, its weights read from the mapped file, in as many slots (so the same KV cache). Ours: `broaden train` itself, from
loading to the last checkpoint, with one update of N = 2, in two ways:

    trained:    by default: the float32 master in memory, theta_0 in the model's mapped file (the ratio)
    mapped:     low_memory = true: the master in a mapped file too

Each runs in a process of its own. Figures are above what the process held after a small run of the same kind
(interpreter, libraries, compiled kernels); whole-process peaks stand beside them. Smaller is better.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from broaden import runs
from broaden.bench.child import Watch, call
from broaden.bench.harness import Result, Settings, Unavailable, by_size
from broaden.bench.subjects import BUNDLED, SMOLLM2
from broaden.config import build_config
from broaden.engines.build import build_engine
from broaden.models.checkpoint import load_model
from broaden.models.sources import at_hand
from broaden.perturb import write_center
from broaden.records import Request, Sampling
from broaden.runs.prepare import encode, load_task

MIB = float(1 << 20)
KINDS = ("trained", "mapped", "inference")


def run(settings: Settings) -> Result:
    """See the module."""
    peaks: dict[str, list[dict[str, int]]] = {kind: [] for kind in KINDS}
    for _ in range(settings.rounds or (1 if settings.quick else 2)):
        for kind in KINDS:
            said = call(
                "broaden.bench.memory:side", kind=kind, quick=settings.quick, threads=settings.threads
            )
            peaks[kind].append(said["memory"])
    above = {kind: [p["above"] / MIB for p in found] for kind, found in peaks.items()}
    whole = {kind: max(p["peak"] for p in found) / MIB for kind, found in peaks.items()}
    lowest = min(above["inference"])
    return by_size(above["trained"], above["inference"], "MiB", {
        "model": BUNDLED if settings.quick else SMOLLM2, "peer": "bf16 inference alone, same slots",
        "mapped": max(above["mapped"]), "mapped_ratio": max(above["mapped"]) / lowest,
        "whole_process": whole, "whole_process_ratio": whole["trained"] / whole["inference"],
        "whole_process_mapped_ratio": whole["mapped"] / whole["inference"],
    })  # fmt: skip


def side(watch: Watch, kind: str, quick: bool, threads: int) -> dict[str, Any]:
    """A child's work."""
    torch.set_num_threads(threads)
    if not quick and at_hand(SMOLLM2) is None:
        raise Unavailable(f"{SMOLLM2} is not on this machine: broaden models get {SMOLLM2}")
    source, prompts, new = (BUNDLED, 16, 8) if quick else (SMOLLM2, 64, 128)
    _work(kind, BUNDLED, 2, 4)
    watch.start()
    _work(kind, source, prompts, new)
    return {}


def _work(kind: str, source: str, prompts: int, new: int) -> None:
    """Train for one update, or answer the same problems once."""
    config = build_config({
        "model": {"source": source, "dtype": "bfloat16"}, "task": {"name": "countdown", "limit": prompts},
        "low_memory": kind == "mapped",
        "stages": [{"algo": "es", "updates": 1, "members": 2, "prompts": prompts, "sigma": 1e-3, "alpha": 5e-4,
                    "max_new_tokens": new}],
    })  # fmt: skip
    if kind != "inference":
        with tempfile.TemporaryDirectory() as folder:
            runs.train(config, Path(folder) / "run")
        return
    folder_of_model = at_hand(source)
    if folder_of_model is None:
        raise Unavailable(f"{source} is not on this machine")
    model = load_model(folder_of_model, mapped=True)
    asked = encode(model.tokenizer, load_task(config.task).problems)
    engine = build_engine(
        "torch", model.spec, model.tokenizer.eos_ids, folder=folder_of_model, dtype="bfloat16", device="cpu",
        max_context=max(len(p.ids) for p in asked) + new,
    )  # fmt: skip
    write_center(model.weights, engine.weights(0))
    engine.weights_changed()
    engine.generate([[Request(p.ids, i) for i, p in enumerate(asked)]], Sampling(1.0, new))
