"""Evaluation on a probe set while training goes on: Pass@1, Pass@K, Maj@K and entropy every n updates."""

from __future__ import annotations

from typing import Any

import torch

from broaden import tasks
from broaden.evaluation import evaluate, summarise
from broaden.population.base import OnProgress
from broaden.records import Sampling
from broaden.runs.events import Watcher
from broaden.runs.prepare import Prepared
from broaden.runs.sampler import Sampler, sampler_settings
from broaden.store import RunDir, append_jsonl, read_jsonl

Weights = dict[str, torch.Tensor]


class Prober:
    """Evaluates the center every `probe.every` updates into `probes.jsonl`; idle where that is 0."""

    def __init__(self, prepared: Prepared, run: RunDir, watcher: Watcher) -> None:
        self.prepared, self.watcher = prepared, watcher
        self.config = prepared.config.probe
        self.path = run.path / "probes.jsonl"
        self.done = {int(line["step"]) for line in read_jsonl(self.path)} if self.path.exists() else set()
        self.sampler: Sampler | None = None

    def probe(self, center: Weights, step: int, on_progress: OnProgress) -> None:
        """Probe if this step is due and not there yet."""
        every = self.config.every
        if not every or step % every or step in self.done:
            return
        line = self._evaluate(center, step, on_progress)
        append_jsonl(self.path, line)
        self.done.add(step)
        top = f"pass@{self.config.samples}"
        m = line["metrics"]
        self.watcher.note(
            f"probe at {step}: pass@1 {m['pass@1']['value']:.3f} {top} {m[top]['value']:.3f} "
            f"entropy {m['entropy']['value']:.3f}"
        )

    def _evaluate(self, center: Weights, step: int, on_progress: OnProgress) -> dict[str, Any]:
        config, run = self.config, self.prepared.config
        task = tasks.get(config.task or run.task.name)
        problems = [p.problem for p in self.prepared.probe]
        longest = self.prepared.new_tokens
        sampler = self._sampler(center, max(len(p.ids) for p in self.prepared.probe) + longest)
        sampling = Sampling(config.temperature, longest, entropy=True)
        found = evaluate(
            sampler.engine, self.prepared.model.tokenizer, task, problems, samples=config.samples,
            sampling=sampling, seed=run.seed, on_progress=on_progress,
        )  # fmt: skip
        summary = summarise(found, (1, config.samples), resamples=200)
        return {
            "step": step,
            "task": task.name,
            "metrics": {k: v.to_json() for k, v in summary.metrics.items()},
        }

    def _sampler(self, center: Weights, context: int) -> Sampler:
        weights = {n: t.float() for n, t in center.items()}
        if self.sampler is None:
            run = self.prepared.config
            settings = sampler_settings(
                self.prepared.folder, run.task.name, engine=run.engine.kind, dtype=run.model.dtype,
                device=self.prepared.device, slots=run.engine.slots, max_context=context,
            )  # fmt: skip
            self.sampler = Sampler(settings, weights, run.population.workers)
        else:
            self.sampler.load(weights)
        return self.sampler

    def close(self) -> None:
        """End worker processes, if any."""
        if self.sampler is not None:
            self.sampler.close()
