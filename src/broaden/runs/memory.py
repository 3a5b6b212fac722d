"""Memory of a run and of an evaluation: their plans, whether they fit here, and fewer slots where they would not.

How many sequences are decoded at once changes no sample, so slots are cut down to what fits; where that is not enough
the run is refused before any compute. Not here: the arithmetic (`ledger.memory`), what there is (`ledger.available`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from broaden.config import EsStage, GrpoStage, RunConfig, SftStage
from broaden.engines.build import DTYPES
from broaden.engines.lowrank import low_rank_slots
from broaden.engines.torch_engine import default_batch, default_cache_bytes, default_slots, packs
from broaden.errors import UsageError
from broaden.evaluation.sampling import CHUNK_PROBLEMS
from broaden.ledger.available import available
from broaden.ledger.memory import (
    CACHE_BYTES,
    PROCESS,
    Decoding,
    MemoryPlan,
    human,
    plan_es,
    plan_eval,
    plan_grpo,
    plan_sft,
    with_self_test,
)
from broaden.models.spec import ModelSpec
from broaden.population.processes import REQUESTS_A_GROUP
from broaden.runs.prepare import Prepared, lora_settings, low_rank_at_once, members_at_once, parameterisation

LEAST_SLOTS = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it runs: bytes that it may hold in memory and on the device (None: not known), threads of an engine, most
    bytes of keys and values."""

    device: str
    memory: int | None
    device_memory: int | None
    threads: int
    cache_bytes: int = CACHE_BYTES

    @classmethod
    def here(cls, device: str) -> Machine:
        """This machine now; the interpreter and libraries that are loaded already count as the plan's."""
        place = torch.device(device)
        there = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else None
        return cls(device, available(PROCESS), there, torch.get_num_threads(), default_cache_bytes(place))

    @property
    def on_device(self) -> bool:
        """Whether engines live on an accelerator."""
        return torch.device(self.device).type != "cpu"

    def short(self, plan: MemoryPlan) -> bool:
        """Whether the plan does not fit."""
        over = self.memory is not None and plan.peak > self.memory
        return over or (self.device_memory is not None and plan.device_peak > self.device_memory)

    def text(self, plan: MemoryPlan) -> str:
        """What is needed and what there is."""
        parts = [
            f"{human(plan.peak)} of memory"
            + (f", {human(self.memory)} available" if self.memory is not None else "")
        ]
        if plan.device_peak:
            there = f", {human(self.device_memory)} free" if self.device_memory is not None else ""
            parts.append(f"{human(plan.device_peak)} on {self.device}{there}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a stage's memory depends on beside its configuration.

    Attributes:
        longest_prompt, probe_prompt, example: tokens of the longest one.
        float32: the model is stored in that type.
        problems, probe_problems: how many there are (None, 0: not known).
    """

    spec: ModelSpec
    parameters: int
    largest_tensor: int
    longest_prompt: int
    float32: bool = True
    problems: int | None = None
    probe_prompt: int = 0
    probe_problems: int = 0
    example: int = 0


def sizes_of(prepared: Prepared) -> Sizes:
    """From what was loaded."""
    model, probed = prepared.model, [p for probes in prepared.probes for p in probes.prompts]
    return Sizes(
        model.spec, model.parameters, max(t.numel() for t in model.weights.values()),
        max(len(p.ids) for p in prepared.prompts), all(t.dtype == torch.float32 for t in model.weights.values()),
        len(prepared.prompts), max((len(p.ids) for p in probed), default=0),
        max((len(probes.prompts) for probes in prepared.probes), default=0),
    )  # fmt: skip


def stage_memory(
    config: RunConfig, index: int, sizes: Sizes, machine: Machine, slots: int | None = None
) -> MemoryPlan | None:
    """A stage's plan; None for a model that the own decode path does not know.

    Args:
        slots: instead of the configured ones.
    """
    stage, spec = config.stages[index], sizes.spec
    if spec.family == "other":
        return None
    if isinstance(stage, SftStage):
        rows = min(stage.micro_batch or stage.batch, stage.batch)
        return plan_sft(
            spec, sizes.parameters, micro_batch=rows, context=max(1, sizes.example), noisy=stage.weight_noise > 0,
            low_memory=config.low_memory,
        )  # fmt: skip
    workers, slots = config.population.workers, slots or config.engine.slots or default_slots(spec)
    probe = _probe(config, sizes, machine, slots)
    if isinstance(stage, EsStage):
        decoding = None if stage.control == "random_z" else _es(config, stage, sizes, machine, slots)
        plan = plan_es(
            spec, sizes.parameters, decoding, workers=workers, low_memory=config.low_memory,
            theta_0=bool(stage.decay) and not sizes.float32, probe=probe, on_device=machine.on_device,
        )  # fmt: skip
        return (
            with_self_test(plan, spec, config.model.dtype) if config.engine.self_test and decoding else plan
        )
    lora = lora_settings(stage)
    factors, adapted = lora.sizes(spec.shapes()) if lora else (0, 0)
    plan = plan_grpo(
        spec, sizes.parameters, _grpo(config, stage, sizes, machine, slots),
        micro_batch=min(stage.micro_batch, stage.prompts * stage.group), compute=stage.compute, workers=workers,
        low_memory=config.low_memory, checkpointing=stage.checkpoint_layers, factors=factors, adapted=adapted,
        adapted_kept=index == 0 and not sizes.float32, group=stage.group, probe=probe,
        on_device=machine.on_device,
    )  # fmt: skip
    return with_self_test(plan, spec, config.model.dtype) if config.engine.self_test else plan


def _es(config: RunConfig, stage: EsStage, sizes: Sizes, machine: Machine, slots: int) -> Decoding:
    members = members_at_once(config, stage, True, sizes.parameters)
    batch = default_batch(members, torch.device(machine.device))
    prompts = stage.prompts if sizes.problems is None else min(stage.prompts, sizes.problems)
    rows = stage.prompts * stage.samples
    drawn = Decoding(
        rows=rows, prompts=prompts, prompt=sizes.longest_prompt, new=stage.max_new_tokens, slots=slots,
        dtype=config.model.dtype, members=members, batch=batch,
        packed=_may_pack(config) and _packs(sizes.spec, config.model.dtype, machine, stage.max_new_tokens),
        cache_bytes=machine.cache_bytes,
    )  # fmt: skip
    threads = 1 if config.population.workers > 1 or machine.on_device else machine.threads
    if stage.parameterisation == "low_rank":
        shared = low_rank_at_once(config, stage)
        lanes = min(threads, shared)
        together = -(-shared // lanes)
        factors = shared * low_rank_values(stage, sizes.spec)
        return replace(
            drawn,
            batch=together,
            lanes=lanes,
            slots=low_rank_slots(together, slots),
            factors=factors,
            packed=False,
        )
    groups = -(-members // batch)
    parts = 1 if groups >= threads else min(-(-threads // groups), max(1, rows // LEAST_SLOTS))
    return replace(
        drawn, rows=-(-rows // parts), prompts=-(-prompts // parts), lanes=min(threads, groups * parts)
    )


def low_rank_values(stage: EsStage, spec: ModelSpec) -> int:
    """16-bit factors of one low-rank member."""
    how, shapes = parameterisation(stage), spec.shapes()
    return sum(how.rank * sum(shapes[name]) for name in how.select(shapes) if len(shapes[name]) == 2)


def _may_pack(config: RunConfig) -> bool:
    return config.engine.packed and config.engine.kind != "generate"


def _packs(spec: ModelSpec, dtype: str, machine: Machine, new: int) -> bool:
    return not machine.on_device and packs(spec, DTYPES[dtype], 1, new)


def _grpo(config: RunConfig, stage: GrpoStage, sizes: Sizes, machine: Machine, slots: int) -> Decoding:
    drawn = sampling(
        sizes.spec, stage.prompts, stage.group, sizes.longest_prompt, stage.max_new_tokens, slots, config.model.dtype,
        config.population.workers, machine, numbers=2,
    )  # fmt: skip
    return replace(drawn, packed=drawn.packed and _may_pack(config))


def _probe(config: RunConfig, sizes: Sizes, machine: Machine, slots: int) -> Decoding | None:
    if not config.probe.every:
        return None
    new = max((s.max_new_tokens for s in config.stages if isinstance(s, EsStage | GrpoStage)), default=64)
    problems = min(CHUNK_PROBLEMS, sizes.probe_problems or config.probe.limit)
    return sampling(
        sizes.spec, problems, config.probe.samples, sizes.probe_prompt or sizes.longest_prompt, new, slots,
        config.model.dtype, config.population.workers, machine,
    )  # fmt: skip


def sampling(
    spec: ModelSpec,
    problems: int,
    samples: int,
    prompt: int,
    new: int,
    slots: int,
    dtype: Any,
    workers: int,
    machine: Machine,
    numbers: int = 1,
) -> Decoding:
    """How a process draws `samples` responses to each of some problems in one call with one set of weights."""
    rows = problems * samples
    if workers > 1:
        rows = min(REQUESTS_A_GROUP, -(-rows // workers))
    lanes = 1 if workers > 1 or machine.on_device else min(machine.threads, max(1, rows // LEAST_SLOTS))
    rows = -(-rows // lanes)
    return Decoding(
        rows=rows, prompts=min(problems, -(-rows // samples) + (lanes > 1)), prompt=prompt, new=new, slots=slots,
        dtype=dtype, lanes=lanes, numbers=numbers, packed=_packs(spec, dtype, machine, new),
        cache_bytes=machine.cache_bytes,
    )  # fmt: skip


def fit(prepared: Prepared, note: Callable[[str], None], machine: Machine | None = None) -> Prepared:
    """The run with as many slots as fit; as it is where nothing is known or all fits.

    Raises:
        UsageError: it does not fit even so; names what is needed, what there is and what would help.
    """
    config, sizes = prepared.config, sizes_of(prepared)
    machine = machine or Machine.here(prepared.device)

    def peak(slots: int | None, config: RunConfig = config) -> MemoryPlan | None:
        plans = [stage_memory(config, i, sizes, machine, slots) for i in range(len(config.stages))]
        return max(
            (p for p in plans if p is not None), key=lambda p: (machine.short(p), p.peak), default=None
        )

    whole = peak(None)
    if whole is None or not machine.short(whole):
        return prepared
    for slots in _fewer(config.engine.slots or default_slots(sizes.spec)):
        plan = peak(slots)
        if plan is not None and not machine.short(plan):
            note(f"{slots} sequences at once: more would need {machine.text(whole)}")
            return replace(prepared, slots=slots)
    least = peak(LEAST_SLOTS) or whole
    helps = [f"{said} ({human(p.peak)})" for said, changed in _smaller(config)
             if (p := peak(LEAST_SLOTS, changed)) is not None and not machine.short(p)]  # fmt: skip
    raise UsageError(
        f"the run needs {machine.text(least)}, with {LEAST_SLOTS} sequences at once:\n{least.table()}",
        " or ".join(helps)
        if helps
        else "a machine with more memory, or a smaller model; BROADEN_MEMORY=SIZE overrides",
    )


def fit_slots(
    plan_of: Callable[[int], MemoryPlan], slots: int, machine: Machine, note: Callable[[str], None]
) -> int:
    """The most slots, up to `slots`, with which an evaluation fits.

    Raises:
        UsageError: not even the fewest do.
    """
    whole = plan_of(slots)
    if not machine.short(whole):
        return slots
    for fewer in _fewer(slots):
        if not machine.short(plan_of(fewer)):
            note(f"{fewer} sequences at once: more would need {machine.text(whole)}")
            return fewer
    least = plan_of(LEAST_SLOTS)
    raise UsageError(
        f"the evaluation needs {machine.text(least)}, with {LEAST_SLOTS} sequences at once:\n{least.table()}",
        "--workers 1, --dtype bfloat16, fewer --samples or --max-new-tokens; BROADEN_MEMORY=SIZE overrides",
    )


def eval_memory(
    spec: ModelSpec, parameters: int, decoding: Decoding, *, samples: int, workers: int, machine: Machine
) -> MemoryPlan:
    """An evaluation's plan."""
    return plan_eval(
        spec, parameters, decoding, samples=samples, workers=workers, on_device=machine.on_device
    )


def _fewer(slots: int) -> Iterator[int]:
    """Halves, down to the least."""
    while slots > LEAST_SLOTS:
        slots = max(LEAST_SLOTS, slots // 2 // LEAST_SLOTS * LEAST_SLOTS)
        yield slots


def _smaller(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """What a user could say to need less, one by one and then together."""
    stages = tuple(
        s.model_copy(update={"micro_batch": 1}) if isinstance(s, GrpoStage | SftStage) else s
        for s in config.stages
    )
    changes: list[tuple[str, dict[str, Any]]] = [
        ("low_memory=true", {"low_memory": True}),
        ("population.workers=1", {"population": config.population.model_copy(update={"workers": 1})}),
        ("model.dtype=bfloat16", {"model": config.model.model_copy(update={"dtype": "bfloat16"})}),
        ("a smaller micro_batch", {"stages": stages}),
    ]
    for said, change in changes:
        changed = config.model_copy(update=change)
        if changed != config:
            yield said, changed
    yield "all of these together", config.model_copy(update={k: v for _, c in changes for k, v in c.items()})
