"""`broaden bench es-update`: one whole ES update against the loop that public code uses.

Work: SmolLM2-135M, N = 8 members, 16 prompts of 40 ids, 64 forced tokens at temperature 1: perturb, roll out, score,
update. (`es-update-64`: 64 prompts x 128 tokens.) Ours is `es.train` as runs use it: fp32 center, bfloat16 working
copies (one for each thread, members side by side), drift and center hash included.

Peer, written from the public loop's recipe: bfloat16 weights perturbed in place tensor by tensor from a member's
seed (drawn in float32 and cast: measured faster than drawing in bfloat16), transformers `generate` on the whole
batch, noise subtracted again, rewards standardised, and the update as N additions a tensor. The verifier is the same.
`outside_rollouts`: share of our update that is not generation (noise, scoring, update, drift, hash).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from broaden import tasks
from broaden.bench.harness import Result, Settings, alternate, compared
from broaden.bench.subjects import Peer, Subject, countdown_prompts, engine_for, smollm2
from broaden.engines import TorchEngine
from broaden.engines.base import OnProgress
from broaden.es import EsSettings, train
from broaden.population import LocalPopulation
from broaden.population.base import Prompt
from broaden.records import Completion, Request, Sampling

SIGMA, ALPHA = 1e-3, 5e-4


class Clocked:
    """An engine that adds up the seconds of its `generate` calls."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine, self.seconds = engine, 0.0

    @property
    def members(self) -> int:
        """See `Engine`."""
        return self.engine.members

    def weights(self, member: int = 0) -> dict[str, torch.Tensor]:
        """See `Engine`."""
        return self.engine.weights(member)

    def weights_changed(self) -> None:
        """See `Engine`."""
        self.engine.weights_changed()

    def conditions(self) -> dict[str, Any]:
        """See `Engine`."""
        return self.engine.conditions()

    def generate(
        self,
        requests: Sequence[Sequence[Request]],
        sampling: Sampling,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """See `Engine`."""
        began = time.perf_counter()
        try:
            return self.engine.generate(requests, sampling, on_progress)
        finally:
            self.seconds += time.perf_counter() - began


def run(settings: Settings, prompts: int = 16, new: int = 64) -> Result:
    """See the module."""
    members, length = (8, 40) if not settings.quick else (2, 20)
    prompts, new = (prompts, new) if not settings.quick else (4, 8)
    subject = smollm2(settings.quick)
    asked = countdown_prompts(subject, prompts, length)
    engine = Clocked(engine_for(subject, eos=(), dtype=torch.bfloat16, threads=settings.threads,
                                context=length + new, members=min(members, settings.threads)))  # fmt: skip
    population = LocalPopulation(engine, subject.tokenizer, tasks.get("countdown"), asked)
    center = {n: t.clone() for n, t in subject.weights.items()}
    stage = EsSettings(
        updates=1 << 30, members=members, prompts=prompts, sigma=SIGMA, alpha=ALPHA,
        sampling=Sampling(1.0, new),
    )  # fmt: skip
    records = train(center, subject.weights, len(asked), population, stage, run_seed=0)
    loop = PublicLoop(subject, asked, members, new)
    shares: list[float] = []

    def ours() -> float:
        generated, began = engine.seconds, time.perf_counter()
        next(records)
        shares.append(1.0 - (engine.seconds - generated) / (time.perf_counter() - began))
        return 1.0

    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = alternate(ours, loop.update, settings.rounds_or(3))
    return compared(pair, "updates/s", {
        **subject.conditions, "peer": f"the public loop over {loop.peer.conditions}", "members": members,
        "members_at_once": engine.members, "prompts": prompts, "prompt_tokens": length, "new_tokens": new,
        "outside_rollouts": statistics.median(shares[1:]),
    })  # fmt: skip


class PublicLoop:
    """Perturb in place, generate, subtract; then N additions."""

    def __init__(self, subject: Subject, prompts: Sequence[Prompt], members: int, new: int) -> None:
        self.peer = Peer(subject, torch.bfloat16, ())
        self.tokenizer, self.prompts = subject.tokenizer, prompts
        self.members, self.new, self.step = members, new, 0
        self.task = tasks.get("countdown")
        self.generator = torch.Generator()

    def update(self) -> float:
        """One update."""
        seeds = [self.step * self.members + i for i in range(self.members)]
        self.step += 1
        rewards = [self._member(seed) for seed in seeds]
        mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
        z = [(r - mean) / (std + 1e-8) for r in rewards]
        for seed, c in zip(seeds, z, strict=True):
            self._add(seed, ALPHA / self.members * c)
        return 1.0

    def _member(self, seed: int) -> float:
        self._add(seed, SIGMA)
        answers = self.peer.generate([p.ids for p in self.prompts], self.new, 1.0)
        self._add(seed, -SIGMA)
        texts = [self.tokenizer.decode(ids) for ids in answers]
        verdicts = [self.task.judge(p.problem, t, "length") for p, t in zip(self.prompts, texts, strict=True)]
        return statistics.fmean(v.reward or 0.0 for v in verdicts)

    def _add(self, seed: int, factor: float) -> None:
        self.generator.manual_seed(seed)
        for p in self.peer.parameters.values():
            drawn = torch.randn(p.shape, generator=self.generator).to(p.dtype)
            p.add_(drawn, alpha=factor)
