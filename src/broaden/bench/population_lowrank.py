"""`broaden bench population-lowrank`: 32 members of rank 1 in one batch against full-rank members one by one.

Work: SmolLM2-135M in bfloat16, N = 32 members x 16 prompts of 40 ids, 64 forced tokens at temperature 1, verdicts
included. Ours: rank-1 members over one set of weights, all in one batch (`engines.lowrank`); drawing their factors is
part of it. Peer: the own engine again, full-rank noise written into its weights member after member: what a model
of this size otherwise does. So the ratio is what shared products gain, not what the engine does.

Memory, highest anonymous memory of processes of their own above what they held after a warm-up:

    low_rank   the 32 members, 512 rows at once
    model      one model answering 512 prompts at once, weights not packed: the same rows, so the same cache (the ratio)
    serial     the peer: one model, 16 rows at a time, weights packed where that pays

`held_ratio` leaves the cache out: weights, factors and vectors of 32 members over the weights of one model.
"""

from __future__ import annotations

from typing import Any

import torch

from broaden import tasks
from broaden.bench.child import Watch, call
from broaden.bench.harness import Result, Settings, Unavailable, alternate, compared
from broaden.bench.subjects import Subject, bundled, countdown_prompts, engine_for, smollm2
from broaden.engines import TorchEngine
from broaden.engines.lowrank import LowRankMembers
from broaden.perturb import NoiseSpec
from broaden.population import LocalPopulation, Member, RolloutJob
from broaden.records import Request, Sampling

SIGMA, RANK, MIB = 1e-3, 1, float(1 << 20)
KINDS = ("low_rank", "model", "serial")


def run(settings: Settings) -> Result:
    """See the module."""
    members, prompts, length, new = sizes(settings.quick)
    subject = smollm2(settings.quick)
    population = _population(subject, members, prompts, length, new, settings.threads)
    step = [0]

    def side(rank: int) -> float:
        step[0] += 1
        found = population.rollout(subject.weights, _job(subject, step[0], members, prompts, new, rank))
        return float(sum(r.tokens for r in found))

    pair = alternate(lambda: side(RANK), lambda: side(0), settings.rounds_or(2))
    return compared(pair, "tokens/s", {
        **subject.conditions, "peer": "own engine, full rank, member by member", "members": members, "rank": RANK,
        "prompts": prompts, "prompt_tokens": length, "new_tokens": new, "dtype": "bfloat16",
        **_memory(settings, held_ratio(subject, members)),
    })  # fmt: skip


def sizes(quick: bool) -> tuple[int, int, int, int]:
    """(members, prompts, prompt tokens, new tokens)."""
    return (32, 16, 40, 64) if not quick else (4, 16, 20, 8)


def held_ratio(subject: Subject, members: int) -> float:
    """Bytes of weights, factors and vectors of the members over the weights of one model, both bfloat16."""
    model = 2 * subject.spec.parameters
    drawn = LowRankMembers(
        subject.spec, subject.weights, _noise(subject, 0, RANK), _numbers(members), torch.bfloat16
    )
    return (model + drawn.bytes) / model


def side(watch: Watch, kind: str, quick: bool, threads: int) -> dict[str, Any]:
    """A child's work: one rollout of a kind."""
    torch.set_num_threads(threads)
    members, prompts, length, new = sizes(quick)
    subject = smollm2(quick)
    small = bundled()
    for rank in (0, RANK):
        _population(small, 1, 2, 8, 4, threads).rollout(small.weights, _job(small, 0, 1, 2, 4, rank))
    watch.start()
    if kind == "model":
        engine = engine_for(
            subject, eos=(), dtype=torch.bfloat16, threads=threads, context=length + new,
            slots=members * prompts,
        )  # fmt: skip
        engine.packed, engine.cache_bytes = False, 1 << 62  # all rows at once, each weight held once
        asked = countdown_prompts(subject, members * prompts, length)
        engine.generate([[Request(p.ids, i) for i, p in enumerate(asked)]], Sampling(1.0, new))
    else:
        population = _population(subject, members, prompts, length, new, threads)
        rank = RANK if kind == "low_rank" else 0
        numbers = members if kind == "low_rank" else 2
        population.rollout(subject.weights, _job(subject, 0, numbers, prompts, new, rank))
    return {}


def _memory(settings: Settings, held: float) -> dict[str, Any]:
    """The memory figures; without them where the system does not say."""
    peaks = {}
    try:
        for kind in KINDS:
            said = call(
                "broaden.bench.population_lowrank:side",
                kind=kind,
                quick=settings.quick,
                threads=settings.threads,
            )
            peaks[kind] = said["memory"]["above"] / MIB
    except Unavailable as reason:
        return {"held_ratio": held, "memory": str(reason)}
    return {"held_ratio": held, "memory_ratio": peaks["low_rank"] / peaks["model"], "memory_mib": peaks}


def _population(
    subject: Subject, members: int, prompts: int, length: int, new: int, threads: int
) -> LocalPopulation:
    engine: TorchEngine = engine_for(
        subject, eos=(), dtype=torch.bfloat16, threads=threads, context=length + new
    )
    asked = countdown_prompts(subject, prompts, length)
    return LocalPopulation(engine, subject.tokenizer, tasks.get("countdown"), asked, low_rank=members)


def _job(subject: Subject, step: int, members: int, prompts: int, new: int, rank: int) -> RolloutJob:
    return RolloutJob(
        _noise(subject, step, rank), _numbers(members), tuple(range(prompts)), 1, Sampling(1.0, new)
    )


def _numbers(members: int) -> tuple[Member, ...]:
    return tuple(Member(i) for i in range(members))


def _noise(subject: Subject, step: int, rank: int) -> NoiseSpec:
    return NoiseSpec(0, step, SIGMA, tuple(subject.weights), rank)
