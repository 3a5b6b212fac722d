"""Evaluation on problems set apart while training goes on: Pass@1, Pass@K, Maj@K and entropy every n updates.

Warns when Pass@1 has risen while Pass@K has fallen below the start, both by more than their paired intervals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from broaden.evaluation import by_problem, evaluate, summarise
from broaden.metrics import Interval, paired_difference, pass_at_k
from broaden.population.base import OnProgress
from broaden.records import Sampling
from broaden.runs.events import Watcher
from broaden.runs.prepare import Prepared, ProbeSet
from broaden.runs.sampler import Sampler, sampler_settings
from broaden.store import RunDir, append_jsonl, read_jsonl
from broaden.tasks import judge_threads

Weights = dict[str, torch.Tensor]
Line = dict[str, Any]


class Prober:
    """Evaluates the center every `probe.every` updates into `probes.jsonl`; idle where that is 0."""

    def __init__(self, prepared: Prepared, run: RunDir, watcher: Watcher) -> None:
        self.prepared, self.watcher = prepared, watcher
        self.config = prepared.config.probe
        self.path = run.path / "probes.jsonl"
        self.lines: list[Line] = read_jsonl(self.path) if self.path.exists() else []
        self.sampler: Sampler | None = None

    def probe(self, center: Weights, step: int, on_progress: OnProgress) -> None:
        """Probe if this step is due and not there yet."""
        if not self.config.every or step % self.config.every:
            return
        for probes in self.prepared.probes:
            if any(line["step"] == step and line["set"] == probes.name for line in self.lines):
                continue
            if probes.overlap:
                self.watcher.note(
                    f"{probes.overlap} of {len(probes.prompts)} probe problems of {probes.name} are trained on"
                )
            line = self._evaluate(probes, center, step, on_progress)
            append_jsonl(self.path, line)
            self.lines.append(line)
            self._report(line)

    def _evaluate(self, probes: ProbeSet, center: Weights, step: int, on_progress: OnProgress) -> Line:
        config, longest = self.config, self.prepared.new_tokens
        sampler = self._sampler(center)
        found = evaluate(
            sampler.engine, self.prepared.model.tokenizer, probes.task, [p.problem for p in probes.prompts],
            samples=config.samples, sampling=Sampling(config.temperature, longest, entropy=True),
            seed=self.prepared.config.seed, on_progress=on_progress, judge_threads=judge_threads(probes.task),
        )  # fmt: skip
        summary = summarise(found, (1, config.samples), resamples=200, short="exclude")
        scores = by_problem(found)
        return {
            "step": step,
            "set": probes.name,
            "task": probes.task.name,
            "overlap": probes.overlap,
            "metrics": {k: v.to_json() for k, v in summary.metrics.items()},
            "n": scores.n_P.tolist(),
            "c": scores.c_P.tolist(),
        }

    def _report(self, line: Line) -> None:
        top = f"pass@{self.config.samples}"
        m = line["metrics"]
        self.watcher.note(
            f"probe at {line['step']}, {line['set']}: pass@1 {m['pass@1']['value']:.3f} {top} {m[top]['value']:.3f} "
            f"entropy {m['entropy']['value']:.3f}"
        )
        first = next((x for x in self.lines if x["set"] == line["set"]), line)
        if first is not line and (found := narrowed(first, line, self.config.samples)) is not None:
            up, down = found
            self.watcher.note(
                f"warning: {line['set']} narrows: since update {first['step']} pass@1 {up.value:+.3f} [{up.low:+.3f}, "
                f"{up.high:+.3f}], {top} {down.value:+.3f} [{down.low:+.3f}, {down.high:+.3f}]"
            )

    def _sampler(self, center: Weights) -> Sampler:
        exact = all(t.dtype == torch.float32 for t in center.values())
        weights = center if exact else {n: t.float() for n, t in center.items()}
        if self.sampler is None:
            run = self.prepared.config
            longest = max(len(p.ids) for probes in self.prepared.probes for p in probes.prompts)
            settings = sampler_settings(
                self.prepared.folder, run.task.name, engine=run.engine.kind, dtype=run.model.dtype,
                device=self.prepared.device, slots=self.prepared.slots, max_context=longest + self.prepared.new_tokens,
            )  # fmt: skip
            self.sampler = Sampler(settings, weights, run.population.workers)
        else:
            self.sampler.load(weights)
        return self.sampler

    def close(self) -> None:
        """End worker processes, if any."""
        if self.sampler is not None:
            self.sampler.close()


def narrowed(first: Line, now: Line, k: int) -> tuple[Interval, Interval] | None:
    """The paired changes of Pass@1 and Pass@K, where the first is wholly above zero and the second wholly below.

    Problems with fewer than K scored samples at either time are left out.
    """
    n0, c0, n1, c1 = (np.array(line[x]) for line in (first, now) for x in ("n", "c"))
    keep = (n0 >= k) & (n1 >= k)
    if k < 2 or not keep.any():
        return None
    up = paired_difference(c0[keep] / n0[keep], c1[keep] / n1[keep], seed=0)
    down = paired_difference(pass_at_k(n0[keep], c0[keep], k), pass_at_k(n1[keep], c1[keep], k), seed=0)
    return (up, down) if up.low > 0 and down.high < 0 else None
