"""`broaden bench population` and `scale`: a whole population of the bundled model, and how it spreads over workers.

population: 32 members x 256 Countdown prompts, full-rank noise, temperature 0.6, real stopping at up to 48 tokens,
verdicts included. Ours: `threads` worker processes of one thread each, as `broaden demo` runs it (one thread: this
process). Peer: for each member, noise copied into a transformers model with `normal_` and an addition (float32), one
`generate` over all 256 prompts, the same verifier; torch's intra-operation threads are 1 or `threads`, whichever is
faster for one member, measured before.

scale: seconds of each member sent alone to one worker (message, noise, rollout, verdict, answer; median of the
rounds, since the clock's own noise is no cost of scale); the makespan of
dealing them to W workers as they become free, for several W; efficiency = sum / (W x makespan), peer = the ideal 1.
Measured beside it: the same population on `threads` workers. `bytes_a_member` (and of the answers) are counted at the
pipe of a worker that is given one update's share, N / W = 4 members one by one, with all that is new in the update.
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from broaden import tasks
from broaden.bench.harness import Result, Settings, Unavailable, alternate, compared, timed
from broaden.bench.machine import ceiling
from broaden.bench.subjects import Peer, Subject, bundled, countdown_prompts
from broaden.engines.lanes import torch_threads
from broaden.perturb import NoiseSpec
from broaden.population import Member, Population, ProcessPopulation, Prompt, RolloutJob
from broaden.population.host import HostSettings, build_host
from broaden.records import Sampling

SIGMA, TEMPERATURE, NEW = 0.01, 0.6, 48


def run(settings: Settings) -> Result:
    """The population bench."""
    members, prompts = (32, 256) if not settings.quick else (2, 16)
    subject = bundled()
    asked = countdown_prompts(subject, prompts)
    population = _population(subject, asked, members, settings.threads)
    one_by_one = OneByOne(subject, asked, members)
    step = [0]

    def ours() -> float:
        step[0] += 1
        found = population.rollout(subject.weights, _job(subject, step[0], members, prompts))
        return float(sum(r.tokens for r in found))

    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            threads = one_by_one.faster_threads(settings.threads)
            with torch_threads(threads):
                pair = alternate(ours, one_by_one.rollout, settings.rounds_or(5))
    finally:
        population.close()
    return compared(pair, "tokens/s", {
        **subject.conditions, "peer": f"{one_by_one.peer.conditions}, member by member", "peer_threads": threads,
        "members": members, "prompts": prompts, "max_new_tokens": NEW,
        "processes": settings.threads if settings.threads > 1 else 0,
        "ceiling": ceiling(subject.spec, torch.float32, 64 * settings.threads, settings.threads, 0.5),
    })  # fmt: skip


def scale(settings: Settings) -> Result:
    """The scale bench."""
    members, prompts = (32, 256) if not settings.quick else (4, 8)
    subject = bundled()
    asked = countdown_prompts(subject, prompts)
    host = _host(subject, asked, 1)
    rounds: list[list[float]] = []
    with _closing(ProcessPopulation(host, asked, subject.weights, 1)) as one:
        _job_alone(one, subject, members, prompts)  # compiles, sends what is sent once
        for _ in range(settings.rounds_or(5)):
            rounds.append([_job_alone(one, subject, member, prompts) for member in range(members)])
        sent, answered = _bytes_a_member(one, subject, prompts)
        whole = _whole(one, subject, members, prompts)
    seconds = [statistics.median(times) for times in zip(*rounds, strict=True)]
    table = {str(w): efficiency(seconds, w) for w in _workers(members)}
    measured: dict[str, Any] = {}
    if settings.threads > 1:
        with _closing(ProcessPopulation(host, asked, subject.weights, settings.threads)) as several:
            _whole(several, subject, members, prompts)
            together = _whole(several, subject, members, prompts)
        measured = {"measured_workers": settings.threads, "measured": whole / (settings.threads * together)}
    at = members // 4
    conditions = {
        **subject.conditions, "peer": "ideal: every worker busy to the end", "members": members, "workers": at,
        "rounds": len(rounds), "prompts": prompts, "simulated": table, "seconds_a_member": [min(seconds), max(seconds)],
        "bytes_a_member": sent, "answer_bytes_a_member": answered, **measured,
    }  # fmt: skip
    value = table[str(at)]
    return Result("efficiency", value, 1.0, value, {}, conditions)


def efficiency(seconds: Sequence[float], workers: int) -> float:
    """sum / (W x makespan) when tasks are dealt, in order, to whichever of W workers is free first."""
    free = [0.0] * workers
    for s in seconds:
        heapq.heapreplace(free, free[0] + s)
    return sum(seconds) / (workers * max(free))


def _workers(members: int) -> list[int]:
    return [w for w in (1, 2, 4, 8, 16, 32, 64) if w <= members]


def _host(subject: Subject, asked: Sequence[Prompt], members: int) -> HostSettings:
    longest = max(len(p.ids) for p in asked) + NEW
    return HostSettings(str(subject.folder), "countdown", members=members, max_context=longest)


def _population(subject: Subject, asked: Sequence[Prompt], members: int, threads: int) -> Population:
    if threads == 1:
        return build_host(_host(subject, asked, members), asked)
    return ProcessPopulation(_host(subject, asked, -(-members // threads)), asked, subject.weights, threads)


def _job(
    subject: Subject, step: int, members: int | Sequence[int], prompts: int, new: int = NEW
) -> RolloutJob:
    numbers = range(members) if isinstance(members, int) else members
    spec = NoiseSpec(0, step, SIGMA, tuple(subject.weights))
    return RolloutJob(spec, tuple(Member(i) for i in numbers), tuple(range(prompts)), 1,
                      Sampling(TEMPERATURE, new))  # fmt: skip


def _job_alone(population: ProcessPopulation, subject: Subject, member: int, prompts: int) -> float:
    """Seconds of one member by itself."""
    began = time.perf_counter()
    population.rollout(subject.weights, _job(subject, 0, [member], prompts))
    return time.perf_counter() - began


def _bytes_a_member(one: ProcessPopulation, subject: Subject, prompts: int) -> tuple[float, float]:
    """Bytes sent and answered a member, of a new update's 4."""
    worker = one.pool.workers[0]
    sent, received = worker.sent, worker.received
    one.rollout(subject.weights, _job(subject, 2, 4, prompts))
    return (worker.sent - sent) / 4, (worker.received - received) / 4


def _whole(population: ProcessPopulation, subject: Subject, members: int, prompts: int) -> float:
    return timed(
        lambda: float(len(population.rollout(subject.weights, _job(subject, 1, members, prompts))))
    ).seconds


class _closing:
    def __init__(self, population: ProcessPopulation) -> None:
        self.population = population

    def __enter__(self) -> ProcessPopulation:
        return self.population

    def __exit__(self, *_: object) -> None:
        self.population.close()


class OneByOne:
    """The peer: members one after another through `generate`."""

    def __init__(self, subject: Subject, prompts: Sequence[Prompt], members: int) -> None:
        if subject.folder is None:
            raise Unavailable("the population bench needs the bundled model")
        self.peer = Peer(subject, torch.float32, subject.tokenizer.eos_ids)
        self.subject, self.prompts, self.members = subject, prompts, members
        self.task = tasks.get("countdown")

    def faster_threads(self, threads: int) -> int:
        """1 or `threads`, by one member each after a warm-up."""
        self._member()
        taken = {}
        for count in {1, threads}:
            with torch_threads(count):
                taken[count] = timed(self._member).seconds
        return min(taken, key=lambda count: taken[count])

    def rollout(self) -> float:
        """All members; returns generated tokens."""
        return sum(self._member() for _ in range(self.members))

    def _member(self) -> float:
        center = self.subject.weights
        for name, p in self.peer.parameters.items():
            torch.add(center[name], torch.empty_like(p).normal_(0.0, SIGMA), out=p)
        answers = self.peer.generate([p.ids for p in self.prompts], NEW, TEMPERATURE)
        tokenizer, stops = self.subject.tokenizer, self.subject.tokenizer.eos_ids
        for prompt, ids in zip(self.prompts, answers, strict=True):
            self.task.judge(prompt.problem, tokenizer.decode(ids), "stop" if ids[-1] in stops else "length")
        return float(sum(len(a) for a in answers))
