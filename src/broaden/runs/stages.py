"""From a stage's configuration to its trainer: plain settings, population, optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from broaden.config import EsStage, GrpoStage, SftStage
from broaden.errors import ConfigError
from broaden.es import EsSettings
from broaden.es import train as es_train
from broaden.grpo.settings import GrpoSettings
from broaden.grpo.trainer import optimizer_for as grpo_optimizer
from broaden.grpo.trainer import train as grpo_train
from broaden.models.lora import Lora
from broaden.models.optimizer import AdamW
from broaden.population import (
    InPlacePopulation,
    LocalPopulation,
    PoolEngine,
    Population,
    ProcessPopulation,
    WorkerPool,
)
from broaden.population.base import OnProgress
from broaden.population.host import build_host
from broaden.records import Sampling, StepRecord
from broaden.runs.prepare import Prepared, host_settings, lora_settings, parameterisation
from broaden.runs.traces import trace_source
from broaden.seeds import stream
from broaden.sft.trainer import SftSettings, optimizer_for
from broaden.sft.trainer import train as sft_train

Weights = dict[str, torch.Tensor]


def es_settings(stage: EsStage) -> EsSettings:
    """The trainer's plain values."""
    return EsSettings(
        updates=stage.updates, members=stage.members, prompts=stage.prompts, sigma=stage.sigma, alpha=stage.alpha,
        sampling=Sampling(stage.temperature, stage.max_new_tokens), samples=stage.samples,
        sigma_end=stage.sigma_end, sigma_schedule=stage.sigma_schedule, alpha_end=stage.alpha_end,
        alpha_schedule=stage.alpha_schedule, shaping=stage.shaping, estimator=stage.estimator,
        member_in_key=stage.member_in_key, precision=stage.precision, control=stage.control, decay=stage.decay,
        selection=parameterisation(stage),
    )  # fmt: skip


def sft_settings(stage: SftStage) -> SftSettings:
    """The trainer's plain values: the stage's own fields but for those that are the run's business."""
    return SftSettings(**stage.model_dump(exclude={"algo", "preset", "traces"}))


def grpo_settings(stage: GrpoStage) -> GrpoSettings:
    """The trainer's plain values: the stage's own fields but for those that are the run's business."""
    own = {"algo", "preset", "reference", "lora_rank", "lora_alpha", "lora_targets"}
    values = stage.model_dump(exclude=own)
    return GrpoSettings(**{**values, "minibatch": stage.minibatch or None})


def population_for(prepared: Prepared, stage: EsStage, center: Weights) -> Population | None:
    """Serial, batched or processes, as the configuration says; None where no rollouts are needed."""
    if stage.control == "random_z":
        return None
    settings = host_settings(prepared, stage)
    config = prepared.config.population
    if stage.precision == "bf16_inplace":
        if config.workers > 1:
            raise ConfigError(
                "the in-place control runs member by member in one process", "population.workers = 1"
            )
        host = build_host(settings, prepared.prompts)
        return InPlacePopulation(host.engine, host.tokenizer, host.task, host.prompts)
    if config.kind == "processes" or config.workers > 1:
        return ProcessPopulation(settings, prepared.prompts, center, config.workers)
    return build_host(settings, prepared.prompts)


@dataclass(slots=True)
class ActiveStage:
    """A stage under way: its records, and what a checkpoint inside it needs."""

    records: Iterator[StepRecord]
    population: Population | PoolEngine | None = None
    optimizer: AdamW | None = None
    conditions: dict[str, object] = field(default_factory=dict)
    lora: Lora | None = None

    def optimizer_state(self) -> dict[str, torch.Tensor] | None:
        """Tensors for a checkpoint, LoRA's factors with them; None where the stage has no optimiser."""
        if self.optimizer is None:
            return None
        return self.optimizer.state() | (self.lora.state() if self.lora else {})

    def close(self) -> None:
        """Give back worker processes."""
        if self.population is not None:
            self.population.close()


def start_stage(
    prepared: Prepared,
    index: int,
    center: Weights,
    origin: Weights,
    *,
    start: int,
    optimizer: Mapping[str, torch.Tensor] | None,
    stage_start: Callable[[], Weights],
    on_progress: OnProgress,
) -> ActiveStage:
    """Build stage number `index` of the run, from its update `start` on; `stage_start` gives the weights that it
    began with."""
    stage = prepared.config.stages[index]
    seed = stage_seed(prepared.config.seed, index)
    if isinstance(stage, SftStage):
        settings = sft_settings(stage)
        adamw = optimizer_for(center, settings)
        if optimizer is not None:
            adamw.load(optimizer)
        records = sft_train(
            prepared.model.spec, center, trace_source(prepared, stage, seed), settings,
            run_seed=seed, optimizer=adamw, start_step=start, flops_per_token=2 * prepared.model.parameters,
        )  # fmt: skip
        return ActiveStage(records, optimizer=adamw)
    if isinstance(stage, GrpoStage):
        return _start_grpo(prepared, stage, index, center, origin, start, optimizer, stage_start, on_progress)
    population = population_for(prepared, stage, center)
    records = es_train(
        center, origin, len(prepared.prompts), population, es_settings(stage), run_seed=seed, start=start,
        flops_per_token=2 * prepared.model.parameters, on_progress=on_progress,
    )  # fmt: skip
    return ActiveStage(records, population, conditions=population.conditions() if population else {})


def _start_grpo(
    prepared: Prepared,
    stage: GrpoStage,
    index: int,
    center: Weights,
    origin: Weights,
    start: int,
    optimizer: Mapping[str, torch.Tensor] | None,
    stage_start: Callable[[], Weights],
    on_progress: OnProgress,
) -> ActiveStage:
    settings, seed = grpo_settings(stage), stage_seed(prepared.config.seed, index)
    lora = None
    if (wanted := lora_settings(stage)) is not None:
        base_name = (
            prepared.config.model.source if index == 0 else ""
        )  # later ones adapt a checkpoint of this run
        lora = Lora(origin if index == 0 else stage_start(), wanted, seed, base_name)
    adamw = grpo_optimizer(center if lora is None else lora.tensors, settings)
    if optimizer is not None:
        adamw.load(optimizer if lora is None else lora.load(optimizer))
    reference = stage_start() if stage.reference == "stage_start" and settings.kl else origin
    host, pool = _grpo_host(prepared, stage, center)
    records = grpo_train(
        prepared.model.spec,
        center,
        host,
        settings,
        run_seed=seed,
        optimizer=adamw,
        reference=reference if settings.kl else None,
        origin=origin,
        start_step=start,
        flops_per_token=2 * prepared.model.parameters,
        on_progress=on_progress,
        lora=lora,
    )
    return ActiveStage(records, pool, adamw, host.conditions(), lora)


def _grpo_host(
    prepared: Prepared, stage: GrpoStage, center: Weights
) -> tuple[LocalPopulation, PoolEngine | None]:
    """Where rollouts are drawn: in this process, or by worker processes (the same samples)."""
    settings, workers = host_settings(prepared, stage), prepared.config.population.workers
    if workers == 1:
        return build_host(settings, prepared.prompts), None
    pool = PoolEngine(WorkerPool(settings, (), center, workers))
    return LocalPopulation(pool, prepared.model.tokenizer, prepared.task, prepared.prompts), pool


def stage_seed(run_seed: int, index: int) -> int:
    """A stage's own seed, so that two ES stages of one run never share noise."""
    return stream(run_seed, "stage", index)
