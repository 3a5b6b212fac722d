"""What a run would take, by arithmetic and without running it: memory, tokens, FLOPs by both ledgers, time.

Nothing is fetched. Where the model is not on this machine its shapes are used (`models.known`), and where the data or
the tokenizer is not, assumed prompt lengths, which the plan states. Not here: how FLOPs and bytes are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from broaden.config import EsStage, GrpoStage, RunConfig, SftStage
from broaden.config.presets import GRPO
from broaden.errors import UnreachableError, UsageError
from broaden.grpo.settings import differences
from broaden.ledger.budget import Budget, EsPlan, GrpoPlan
from broaden.ledger.flops import ModelSize, sft_full
from broaden.ledger.memory import MemoryPlan
from broaden.models.known import spec_of
from broaden.models.sources import at_hand
from broaden.models.spec import ModelSpec
from broaden.runs.memory import Machine, Sizes, sizes_of, stage_memory
from broaden.runs.prepare import (
    Prepared,
    check_selections,
    load_task,
    longest_response,
    model_folder,
    pick_device,
    prepare,
)
from broaden.runs.stages import grpo_settings, stage_seed
from broaden.runs.traces import trace_lengths
from broaden.tasks.base import Loaded
from broaden.tasks.hub import nothing_fetched

PROMPT_TOKENS, LONGEST_PROMPT = 150.0, 512
"""Assumed where prompts can't be tokenised: mean and longest prompt, template included."""
EXAMPLE_TOKENS = 256
"""Assumed for a warm start's pairs, likewise."""
LIBRARIES = ("trl", "verl")
"""Whose defaults a GRPO stage is compared with."""
Stage = EsStage | SftStage | GrpoStage


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the caller says of things that a plan cannot know.

    Attributes:
        prompt_tokens: mean prompt length, where it can't be measured.
        response_tokens: mean response length; None: every response is as long as it may be.
        tokens_per_second: decoding rate of the whole machine; None: no time is estimated.
    """

    prompt_tokens: float | None = None
    response_tokens: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of model and data. `by_shape`: the model is not on this machine, so no prompt was tokenised."""

    spec: ModelSpec
    parameters: int
    largest_tensor: int
    problems: int | None
    bad_rows: int
    prompt_tokens: float
    longest_prompt: int
    by_shape: bool
    notes: tuple[str, ...] = ()
    prepared: Prepared | None = None


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: what `planned` of its updates take (all of them, but where its share of the budget ends it before)."""

    algo: str
    updates: int
    planned: int
    rollouts: int
    optimizer_steps: int
    response_tokens: float
    tokens: int
    flops_paper: float | None
    flops_full: float
    seconds: float | None
    memory: MemoryPlan | None
    differs: dict[str, dict[str, tuple[Any, Any]]]

    def to_json(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "algo": self.algo, "updates": self.updates, "planned_updates": self.planned, "rollouts": self.rollouts,
            "optimizer_steps": self.optimizer_steps, "response_tokens": self.response_tokens, "tokens": self.tokens,
            "flops_paper": self.flops_paper, "flops_full": self.flops_full, "seconds": self.seconds,
            "peak_bytes": self.memory.peak if self.memory else None,
            "memory": [list(row) for row in self.memory.rows()] if self.memory else None,
            "differs": {name: {k: list(v) for k, v in d.items()} for name, d in self.differs.items()},
        }  # fmt: skip

    def text(self) -> str:
        """A few lines for people."""
        cut = (
            f", of which its share of the budget lasts for {self.planned}"
            if self.planned < self.updates
            else ""
        )
        lines = [f"{self.algo}: {self.updates} updates{cut}"]
        paper = "" if self.flops_paper is None else f"{self.flops_paper:.3g} FLOPs by the paper's ledger, "
        time = "" if self.seconds is None else f", {_duration(self.seconds)}"
        if self.algo == "sft":
            lines.append(f"  {self.tokens:,} training tokens, {self.flops_full:.3g} FLOPs{time}")
        else:
            lines.append(
                f"  {self.rollouts:,} rollouts of {self.response_tokens:g} tokens: {self.tokens:,} tokens, {paper}"
                f"{self.flops_full:.3g} by the full one{time}; {self.optimizer_steps:,} optimiser steps"
            )
        for name, differs in self.differs.items():
            said = ", ".join(
                f"{key} {_value(here)} ({_value(there)})" for key, (here, there) in differs.items()
            )
            lines.append(f"  differs from the defaults of {name} in: {said or 'nothing'}")
        if self.memory is not None:
            lines.append("  " + self.memory.table().replace("\n", "\n  "))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The whole run."""

    facts: Facts
    stages: tuple[StagePlan, ...]
    assumed: Assumed
    machine: Machine

    def to_json(self) -> dict[str, Any]:
        """JSON types."""
        f = self.facts
        return {
            "parameters": f.parameters, "by_shape": f.by_shape, "problems": f.problems, "bad_rows": f.bad_rows,
            "prompt_tokens": f.prompt_tokens, "longest_prompt": f.longest_prompt, "notes": list(f.notes),
            "tokens_per_second": self.assumed.tokens_per_second, "stages": [s.to_json() for s in self.stages],
            "available_bytes": self.machine.memory, "total": self._total(),
        }  # fmt: skip

    def _total(self) -> dict[str, Any]:
        seconds = [s.seconds for s in self.stages]
        return {
            "updates": sum(s.planned for s in self.stages),
            "tokens": sum(s.tokens for s in self.stages),
            "flops_paper": sum(s.flops_paper or 0.0 for s in self.stages),
            "flops_full": sum(s.flops_full for s in self.stages),
            "seconds": None if None in seconds else sum(s for s in seconds if s is not None),
            "peak_bytes": max((s.memory.peak for s in self.stages if s.memory), default=None),
        }

    def text(self) -> str:
        """For people."""
        f = self.facts
        known = (
            "problems unknown"
            if f.problems is None
            else f"{f.problems:,} problems ({f.bad_rows} bad rows left out)"
        )
        head = [
            f"{f.parameters:,} parameters; {known}, prompts of {f.prompt_tokens:.0f} tokens, "
            f"the longest {f.longest_prompt}",
            *(f"note: {note}" for note in f.notes),
        ]
        if self.assumed.response_tokens is None and any(s.rollouts for s in self.stages):
            head.append(
                "note: every response is taken to be as long as it may be (--response-tokens says otherwise)"
            )
        if self.assumed.tokens_per_second is not None:
            head.append(
                f"note: seconds = full ledger / (2 P x {self.assumed.tokens_per_second:g} tokens/s): all passes at the "
                "rate of decoding, though prompts and training usually run faster"
            )
        total = self._total()
        foot = (
            f"in all: {total['updates']:,} updates, {total['tokens']:,} tokens, {total['flops_paper']:.3g} FLOPs by "
            f"the paper's ledger, {total['flops_full']:.3g} by the full one"
        )
        foot += "" if total["seconds"] is None else f", {_duration(total['seconds'])}"
        stages = [f"stage {i}: {s.text()}" for i, s in enumerate(self.stages)]
        return "\n".join([*head, *stages, *self._fits(), foot])

    def _fits(self) -> list[str]:
        """Whether the most that a stage needs is there; nothing where no plan is known."""
        plans = [s.memory for s in self.stages if s.memory is not None]
        if not plans:
            return []
        worst = max(plans, key=lambda p: (self.machine.short(p), p.peak))
        short = (
            "; a run here would decode fewer sequences at once, or refuse"
            if self.machine.short(worst)
            else ""
        )
        return [f"the most: {self.machine.text(worst)}{short}"]


def plan(config: RunConfig, assumed: Assumed | None = None) -> RunPlan:
    """Check what the run would, as far as it lies on this machine, and add up what it would take.

    Raises:
        UsageError: any mistake in the configuration, the model or the data that can be seen from here.
    """
    assumed = assumed or Assumed()
    known = facts(config, assumed)
    machine = Machine.here(pick_device(config.engine.device))
    stages = (_stage(known, config, i, assumed, machine) for i in range(len(config.stages)))
    return RunPlan(known, tuple(stages), assumed, machine)


def facts(config: RunConfig, assumed: Assumed) -> Facts:
    """What is known of model and data; nothing is fetched."""
    pick_device(config.engine.device)
    source = config.model.source
    folder = model_folder(config) if source.startswith("init:") else at_hand(source)
    with nothing_fetched():
        try:
            loaded: Loaded | None = load_task(config.task)
            missing = ""
        except UnreachableError as error:
            loaded, missing = None, error.message
        if folder is not None and loaded is not None:
            try:
                return _measured(prepare(config))
            except UnreachableError as error:  # the probe's data
                missing = error.message
    spec = spec_of(str(folder) if folder is not None else source)
    return _assumed(config, spec, loaded, missing, by_shape=folder is None, assumed=assumed)


def _measured(prepared: Prepared) -> Facts:
    lengths = [len(p.ids) for p in prepared.prompts]
    return Facts(
        prepared.model.spec, prepared.model.parameters, max(t.numel() for t in prepared.model.weights.values()),
        len(prepared.loaded.problems), len(prepared.loaded.bad), sum(lengths) / len(lengths), max(lengths), False,
        prepared=prepared,
    )  # fmt: skip


def _assumed(
    config: RunConfig,
    spec: ModelSpec,
    loaded: Loaded | None,
    missing: str,
    *,
    by_shape: bool,
    assumed: Assumed,
) -> Facts:
    """Facts by the model's shapes, with assumed prompt lengths, stated in notes."""
    shapes = spec.shapes()
    check_selections(config, shapes)
    mean = PROMPT_TOKENS if assumed.prompt_tokens is None else assumed.prompt_tokens
    longest = max(LONGEST_PROMPT, math.ceil(mean))
    response = longest_response(config)
    if response >= spec.max_positions:
        raise UsageError(
            f"{response} new tokens pass the model's context of {spec.max_positions}, whatever the prompt",
            "lower max_new_tokens, or take a model with a longer context",
        )
    notes = [f"assumed: prompts of {mean:g} tokens, the longest {longest}; nothing was tokenised"]
    if missing:
        notes.insert(0, missing)
    if by_shape:
        notes.insert(
            0, f"{config.model.source} is not on this machine: the plan is by its shapes, nothing was loaded"
        )
    return Facts(
        spec, spec.parameters, max(math.prod(shape) for shape in shapes.values()),
        len(loaded.problems) if loaded else None, len(loaded.bad) if loaded else 0, mean, longest, by_shape,
        tuple(notes),
    )  # fmt: skip


def _stage(known: Facts, config: RunConfig, index: int, assumed: Assumed, machine: Machine) -> StagePlan:
    """A stage's plan, over as many updates as its share of the budget lasts for."""
    stage = config.stages[index]
    if isinstance(stage, EsStage):
        make = _es_costs(known, stage, assumed)
    elif isinstance(stage, GrpoStage):
        make = _grpo_costs(known, stage, assumed)
    else:
        make = _sft_costs(known, config, index)
    full = make(stage.updates)
    if assumed.tokens_per_second is not None:
        full = _timed(full, known, assumed.tokens_per_second)
    planned = _lasts(config, index, full)
    found = make(planned)
    if assumed.tokens_per_second is not None:
        found = _timed(found, known, assumed.tokens_per_second)
    memory = stage_memory(config, index, _sizes(known, config, index), machine)
    return replace(found, updates=stage.updates, planned=planned, memory=memory)


def _lasts(config: RunConfig, index: int, full: StagePlan) -> int:
    """Updates until the stage's share of the budget is used up, as they cost here."""
    budget = config.budget
    if budget is None or budget.total == "updates" or not full.updates:
        return full.updates
    total: float | None = getattr(full, budget.total)
    if not total:  # no rate was given
        return full.updates
    share = budget.shares(len(config.stages))[index]
    return min(full.updates, math.ceil(share / (total / full.updates)))


def _timed(found: StagePlan, known: Facts, rate: float) -> StagePlan:
    return replace(found, seconds=found.flops_full / (2.0 * known.parameters * rate))


def _response(stage: EsStage | GrpoStage, assumed: Assumed) -> float:
    limit = float(stage.max_new_tokens)
    return limit if assumed.response_tokens is None else min(assumed.response_tokens, limit)


def _es_costs(known: Facts, stage: EsStage, assumed: Assumed) -> Callable[[int], StagePlan]:
    antithetic, walk = stage.estimator == "antithetic", stage.control == "random_z"
    response = _response(stage, assumed)

    def make(updates: int) -> StagePlan:
        costed = EsPlan(
            members=stage.members, prompts=stage.prompts, updates=0 if walk else updates,  # a walk rolls nothing out
            prompt_tokens=known.prompt_tokens, response_tokens=response, samples=stage.samples, antithetic=antithetic,
        )  # fmt: skip
        rollouts = costed.updates * costed.evaluations * stage.prompts * stage.samples
        return _plan("es", updates, rollouts, 0, response, costed.budget(ModelSize(known.parameters)))

    return make


def _grpo_costs(known: Facts, stage: GrpoStage, assumed: Assumed) -> Callable[[int], StagePlan]:
    settings = grpo_settings(stage)
    response = _response(stage, assumed)
    differs = {name: differences(settings, name) for name in LIBRARIES if name in GRPO}

    def make(updates: int) -> StagePlan:
        costed = GrpoPlan(
            group=stage.group, prompts=stage.prompts, updates=updates, prompt_tokens=known.prompt_tokens,
            response_tokens=response, kl=stage.kl > 0, old_pass=settings.steps_per_update > 1, inner=stage.inner,
        )  # fmt: skip
        found = _plan(
            "grpo", updates, updates * stage.prompts * stage.group, updates * settings.steps_per_update, response,
            costed.budget(ModelSize(known.parameters)),
        )  # fmt: skip
        return replace(found, differs=differs)

    return make


def _sft_costs(known: Facts, config: RunConfig, index: int) -> Callable[[int], StagePlan]:
    stage = config.stages[index]
    if not isinstance(stage, SftStage):
        raise TypeError("an sft stage is expected")
    mean, _ = _example_tokens(known, config, index)

    def make(updates: int) -> StagePlan:
        flops = sft_full(ModelSize(known.parameters), sequences=updates * stage.batch, tokens=mean).total
        tokens = round(updates * stage.batch * mean)
        return StagePlan("sft", updates, updates, 0, updates, 0.0, tokens, None, flops, None, None, {})

    return make


def _example_tokens(known: Facts, config: RunConfig, index: int) -> tuple[float, int]:
    """(mean, longest) tokens of a warm start's pairs."""
    stage = config.stages[index]
    if known.prepared is None or not isinstance(stage, SftStage):
        return float(EXAMPLE_TOKENS), 2 * EXAMPLE_TOKENS
    lengths = trace_lengths(known.prepared, stage, stage_seed(config.seed, index))
    return sum(lengths) / len(lengths), max(lengths)


def _plan(algo: str, updates: int, rollouts: int, steps: int, response: float, budget: Budget) -> StagePlan:
    return StagePlan(
        algo, updates, updates, rollouts, steps, response, budget.tokens, budget.flops_paper, budget.flops_full,
        None, None, {},
    )  # fmt: skip


def _sizes(known: Facts, config: RunConfig, index: int) -> Sizes:
    """What the stage's memory depends on."""
    stage = config.stages[index]
    example = _example_tokens(known, config, index)[1] if isinstance(stage, SftStage) else 0
    if known.prepared is not None:
        return replace(sizes_of(known.prepared), example=example)
    return Sizes(known.spec, known.parameters, known.largest_tensor, known.longest_prompt, example=example)


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 36000 else f"{seconds / 3600:,.1f} h"


def _value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
