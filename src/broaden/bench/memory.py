"""`broaden bench memory`: peak anonymous memory of an ES update over that of inference alone.

Work: SmolLM2-135M in bfloat16, 64 prompts of 40 ids, 128 forced tokens, the same slots (so the same KV cache).
Peer: the own engine generating once, its weights read from a mapped file. Ours: one update of `es.train` with N = 2,
in two ways:

    as trained: fp32 center and theta_0 in ordinary memory, as `broaden train` holds them in one process (the ratio)
    mapped:     center and theta_0 in memory-mapped files (library only: `es.train` takes any tensors)

Each runs in a process of its own. Figures are above what the process held after a small warm-up (interpreter,
libraries, compiled kernels); whole-process peaks stand beside them. Smaller is better.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from broaden import tasks
from broaden.bench.child import Watch, call
from broaden.bench.harness import Result, Settings, by_size
from broaden.bench.subjects import Subject, bundled, countdown_prompts, engine_for, smollm2, token_prompts
from broaden.engines import TorchEngine
from broaden.es import EsSettings, train
from broaden.population import LocalPopulation
from broaden.population.shared import layout, map_center, size_of
from broaden.records import Request, Sampling

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
        "model": smollm2(settings.quick).source, "peer": "bf16 inference alone, same slots",
        "mapped": max(above["mapped"]), "mapped_ratio": max(above["mapped"]) / lowest,
        "whole_process": whole, "whole_process_ratio": whole["trained"] / whole["inference"],
        "whole_process_mapped_ratio": whole["mapped"] / whole["inference"],
    })  # fmt: skip


def side(watch: Watch, kind: str, quick: bool, threads: int) -> dict[str, Any]:
    """A child's work."""
    torch.set_num_threads(threads)
    prompts, length, new = (64, 40, 128) if not quick else (16, 20, 8)
    with tempfile.TemporaryDirectory() as folder:
        subject = _mapped_subject(smollm2(quick), Path(folder) / "theta_0")
        _warm_up(threads)
        watch.start()
        engine = engine_for(subject, eos=(), dtype=torch.bfloat16, threads=threads, context=length + new)
        if kind == "inference":
            _generate(engine, subject, prompts, length, new)
        else:
            center = _mapped_subject(subject, Path(folder) / "center").weights
            origin = subject.weights
            if kind == "trained":
                center, origin = ({n: t.clone() for n, t in w.items()} for w in (center, origin))
            asked = countdown_prompts(subject, prompts, length)
            population = LocalPopulation(engine, subject.tokenizer, tasks.get("countdown"), asked)
            stage = EsSettings(
                updates=1, members=2, prompts=prompts, sigma=1e-3, alpha=5e-4, sampling=Sampling(1.0, new)
            )
            list(train(center, origin, prompts, population, stage, run_seed=0))
        return {}


def _generate(engine: TorchEngine, subject: Subject, prompts: int, length: int, new: int) -> None:
    asked = [Request(p, i) for i, p in enumerate(token_prompts(subject.spec, prompts, length))]
    engine.generate([asked], Sampling(1.0, new))


def _warm_up(threads: int) -> None:
    """Load the kernels: a whole small update in both types of weights that occur."""
    subject = bundled()
    engine = engine_for(subject, eos=(), dtype=torch.bfloat16, threads=threads, context=32)
    asked = countdown_prompts(subject, 2, 8)
    population = LocalPopulation(engine, subject.tokenizer, tasks.get("countdown"), asked)
    stage = EsSettings(updates=1, members=2, prompts=2, sigma=1e-3, alpha=1e-3, sampling=Sampling(1.0, 4))
    center = {n: t.clone() for n, t in subject.weights.items()}
    list(train(center, subject.weights, 2, population, stage, run_seed=0))


def _mapped_subject(subject: Subject, path: Path) -> Subject:
    """The same model with its weights in a mapped file."""
    entries, total = layout(subject.weights)
    with path.open("w+b") as file:
        file.truncate(size_of(total))
        mapped = map_center(file.fileno(), entries, total, write=True)
    for name, tensor in mapped.items():
        tensor.copy_(subject.weights[name])
    return Subject(subject.spec, mapped, subject.tokenizer, subject.source, subject.folder)
