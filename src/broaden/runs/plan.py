"""What a run would take, by arithmetic and without running it: memory, tokens, FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broaden.config import EsStage, RunConfig
from broaden.engines.torch_engine import default_slots
from broaden.ledger.flops import ModelSize, es_full, es_paper
from broaden.ledger.memory import MemoryPlan, plan_es
from broaden.population.host import HostSettings
from broaden.runs.prepare import Prepared, host_settings, prepare


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: most rollouts and tokens, FLOPs by both ledgers if every response is as long as allowed."""

    algo: str
    updates: int
    rollouts: int
    most_tokens: int
    flops_paper: float
    flops_full: float
    memory: MemoryPlan | None

    def to_json(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "algo": self.algo, "updates": self.updates, "rollouts": self.rollouts, "most_tokens": self.most_tokens,
            "flops_paper": self.flops_paper, "flops_full": self.flops_full,
            "peak_bytes": self.memory.peak if self.memory else None,
        }  # fmt: skip

    def text(self) -> str:
        """A few lines for people."""
        lines = [f"{self.algo}: {self.updates} updates"]
        if self.rollouts:
            lines.append(
                f"  {self.rollouts:,} rollouts, at most {self.most_tokens:,} tokens, {self.flops_paper:.3g} FLOPs by "
                f"the paper's ledger, {self.flops_full:.3g} with prompts"
            )
        if self.memory is not None:
            lines.append("  " + self.memory.table().replace("\n", "\n  "))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The whole run."""

    parameters: int
    problems: int
    bad_rows: int
    longest_prompt: int
    stages: tuple[StagePlan, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "parameters": self.parameters, "problems": self.problems, "bad_rows": self.bad_rows,
            "longest_prompt": self.longest_prompt, "stages": [s.to_json() for s in self.stages],
        }  # fmt: skip

    def text(self) -> str:
        """For people."""
        head = (
            f"{self.parameters:,} parameters; {self.problems:,} problems ({self.bad_rows} bad rows left out), "
            f"longest prompt {self.longest_prompt} tokens"
        )
        return "\n".join([head, *(f"stage {i}: {s.text()}" for i, s in enumerate(self.stages))])


def plan(config: RunConfig) -> RunPlan:
    """Load and check everything that the run would, and add up what it would take."""
    prepared = prepare(config)
    stages = tuple(
        _es(prepared, stage)
        if isinstance(stage, EsStage)
        else StagePlan(stage.algo, stage.updates, 0, 0, 0, 0, None)
        for stage in config.stages
    )
    return RunPlan(
        prepared.model.parameters, len(prepared.loaded.problems), len(prepared.loaded.bad),
        max(len(p.ids) for p in prepared.prompts), stages,
    )  # fmt: skip


def _es(prepared: Prepared, stage: EsStage) -> StagePlan:
    updates = 0 if stage.control == "random_z" else stage.updates  # a random walk rolls nothing out
    antithetic = stage.estimator == "antithetic"
    rollouts = updates * stage.members * (2 if antithetic else 1) * stage.prompts * stage.samples
    prompt_tokens = sum(len(p.ids) for p in prepared.prompts) / len(prepared.prompts)
    parameters = prepared.model.parameters
    paper = es_paper(
        parameters, stage.max_new_tokens, updates=updates, members=stage.members,
        prompts=stage.prompts * stage.samples, antithetic=antithetic,
    )  # fmt: skip
    full = es_full(
        ModelSize(parameters), updates=updates, members=stage.members, prompts=stage.prompts,
        prompt_tokens=prompt_tokens, response_tokens=stage.max_new_tokens, samples=stage.samples, antithetic=antithetic,
    )  # fmt: skip
    return StagePlan(
        "es", stage.updates, rollouts, rollouts * stage.max_new_tokens, paper, full.total,
        _memory(prepared, host_settings(prepared, stage)),
    )  # fmt: skip


def _memory(prepared: Prepared, host: HostSettings) -> MemoryPlan | None:
    spec = prepared.model.spec
    if spec.family == "other":
        return None
    return plan_es(
        spec, prepared.model.parameters, members_at_once=host.members,
        slots=host.members * (host.slots or default_slots(spec)), context=host.max_context or spec.max_positions,
        dtype=prepared.config.model.dtype, workers=prepared.config.population.workers,
        largest_tensor=max(t.numel() for t in prepared.model.weights.values()),
    )  # fmt: skip
