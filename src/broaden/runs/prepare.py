"""From a configuration to everything a run needs, with every mistake found before any compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from broaden import tasks
from broaden.config import EsStage, GrpoStage, HeldOutConfig, RunConfig, TaskConfig
from broaden.errors import UsageError
from broaden.models import nano
from broaden.models.checkpoint import Model, load_model
from broaden.models.init import random_weights
from broaden.models.lora import LoraSettings
from broaden.models.sources import cache_root, resolve
from broaden.models.spec import ModelSpec
from broaden.models.tensor_files import write_tensors
from broaden.models.tokenizer import ChatTokenizer
from broaden.perturb import LowRank, Parameterisation, Selection, check_rank
from broaden.population.base import Prompt
from broaden.population.host import HostSettings
from broaden.records import Problem
from broaden.store import commit
from broaden.tasks.base import Family, Loaded

BATCHED_PARAMETERS = 4_000_000
SIDE_BY_SIDE_PARAMETERS = 1_000_000_000
"""Up to so many parameters a whole population is one batch; above, its weights would not fit the caches."""


@dataclass(frozen=True, slots=True)
class ProbeSet:
    """Problems that are evaluated while training goes on; `overlap` of them are training problems too."""

    name: str
    task: Family
    prompts: tuple[Prompt, ...]
    overlap: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was loaded and checked. `slots`: sequences decoded at once, None: by the model's size."""

    config: RunConfig
    folder: Path
    model: Model
    task: Family
    loaded: Loaded
    prompts: tuple[Prompt, ...]
    device: str
    probes: tuple[ProbeSet, ...] = ()
    slots: int | None = None

    @property
    def new_tokens(self) -> int:
        """The longest response that a stage asks for (64 where none generates): what a probe allows too."""
        return longest_response(self.config) or 64


def prepare(config: RunConfig) -> Prepared:
    """Load and check model, task and prompts. Raises a UsageError before any compute."""
    device = pick_device(config.engine.device)
    task = tasks.get(config.task.name)
    loaded = load_task(config.task)
    folder = model_folder(config)
    model = load_model(folder, mapped=True)
    prompts = encode(model.tokenizer, loaded.problems)
    check_context(prompts, longest_response(config), model.spec.max_positions)
    check_selections(config, {n: tuple(w.shape) for n, w in model.weights.items()})
    prepared = Prepared(config, folder, model, task, loaded, prompts, device, slots=config.engine.slots)
    if not config.probe.every:
        return prepared
    return replace(prepared, probes=probe_sets(prepared))


def check_selections(config: RunConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every pattern of every stage names tensors of the model, and ranks fit them. Raises UsageError."""
    for stage in config.stages:
        if isinstance(stage, EsStage):
            how = parameterisation(stage)
            check_rank(shapes, how.select(shapes), how.rank)
        elif isinstance(stage, GrpoStage) and (lora := lora_settings(stage)) is not None:
            lora.select(shapes)


def parameterisation(stage: EsStage) -> Parameterisation:
    """Which tensors an ES stage perturbs, and how."""
    selection = Selection(stage.include, stage.exclude)
    return selection if stage.parameterisation == "full" else LowRank(stage.rank, selection)


def lora_settings(stage: GrpoStage) -> LoraSettings | None:
    """What a stage adapts; None where it trains the weights themselves."""
    return LoraSettings(stage.lora_rank, stage.lora_alpha, stage.lora_targets) if stage.lora_rank else None


def longest_response(config: RunConfig) -> int:
    """Most new tokens that a stage allows; 0 where none generates."""
    return max((s.max_new_tokens for s in config.stages if isinstance(s, EsStage | GrpoStage)), default=0)


def probe_sets(prepared: Prepared) -> tuple[ProbeSet, ...]:
    """The probe's own problems, then each held-out task's; the training task's options hold for itself only."""
    config, probe = prepared.config, prepared.config.probe
    own = probe.task or config.task.name
    options = config.task.options if own == config.task.name else {}
    wanted = [HeldOutConfig(task=own, split=probe.split, data=probe.data, limit=probe.limit, options=options)]
    seen = {p.problem.messages for p in prepared.prompts}
    out = []
    for item in (*wanted, *probe.held_out):
        task = tasks.get(item.task)
        data = Path(item.data) if item.data is not None else None
        split = item.split or task.default_split
        problems = task.problems(split, data, item.limit, config.task.seed, **item.options)
        prompts = encode(prepared.model.tokenizer, problems)
        check_context(prompts, prepared.new_tokens, prepared.model.spec.max_positions)
        overlap = sum(p.problem.messages in seen for p in prompts)
        out.append(ProbeSet(f"{item.task}/{split}", task, prompts, overlap))
    return tuple(out)


def model_folder(config: RunConfig) -> Path:
    """The folder of the run's starting model. `init:countdown-nano` makes one with fresh weights, keyed by
    the run's seed, in the cache."""
    scheme, _, name = config.model.source.partition(":")
    if scheme != "init":
        return resolve(config.model.source)
    if name != "countdown-nano":
        raise UsageError(f"no model to initialise is called {name!r}", "init:countdown-nano")
    folder = cache_root() / "init" / f"{name}-{config.seed}"
    if not (folder / "model.safetensors").is_file():
        commit(folder, lambda temporary: _fresh(temporary, config.seed))
    return folder


def _fresh(folder: Path, seed: int) -> None:
    nano.write_folder(folder)
    write_tensors(folder, random_weights(ModelSpec.from_config(nano.config()), seed))


def load_task(config: TaskConfig) -> Loaded:
    """The training problems with the bad rows beside them."""
    data = Path(config.data) if config.data is not None else None
    task = tasks.get(config.name)
    return task.read(config.split, data, config.limit, config.seed, **config.options)


def encode(tokenizer: ChatTokenizer, problems: Sequence[Problem]) -> tuple[Prompt, ...]:
    """Render and tokenise each problem with the model's own chat template.

    Where the template ends with an opened `<think>`, the problems say so: one that is never closed holds no answer.
    """
    if problems and tokenizer.render(problems[0].messages).rstrip().endswith("<think>"):
        problems = [replace(p, extra={**p.extra, "thinking": True}) for p in problems]
    return tuple(Prompt(p, tokenizer.encode_chat(p.messages)) for p in problems)


def check_context(prompts: Sequence[Prompt], max_new_tokens: int, context: int) -> None:
    """Nothing is cut silently: a prompt that does not fit is named before any compute."""
    too_long = [p for p in prompts if len(p.ids) + max_new_tokens > context]
    if too_long:
        worst = max(too_long, key=lambda p: len(p.ids))
        raise UsageError(
            f"{len(too_long)} of {len(prompts)} prompts do not fit: problem {worst.problem.id!r} has {len(worst.ids)} "
            f"tokens, and with {max_new_tokens} new ones passes the model's context of {context}",
            "lower max_new_tokens, drop these problems, or take a model with a longer context",
        )


def pick_device(name: str) -> str:
    """`auto` is CUDA where there is one. Raises UsageError for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"{name!r} is no device", "cpu, cuda, cuda:1 or auto") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device {name!r} asked for, {torch.cuda.device_count()} CUDA devices found", "--device cpu"
        )
    return name


def host_settings(prepared: Prepared, stage: EsStage | GrpoStage) -> HostSettings:
    """How members are run: batched for small models, member by member for large ones."""
    config = prepared.config
    longest = max(len(p.ids) for p in prepared.prompts) + stage.max_new_tokens
    return HostSettings(
        model=str(prepared.folder), task=config.task.name, engine=config.engine.kind,
        dtype=config.model.dtype, device=prepared.device,
        members=members_at_once(config, stage, prepared.model.spec.family != "other", prepared.model.parameters),
        slots=prepared.slots, max_context=longest, packed=config.engine.packed,
        low_rank=low_rank_at_once(config, stage),
    )  # fmt: skip


def members_at_once(config: RunConfig, stage: EsStage | GrpoStage, own_path: bool, parameters: int) -> int:
    """Members whose weights exist together in a process; 1: member by member.

    Small models: a batch of them. Larger ones, on the CPU and in this process alone: one for each thread, since threads
    that share a member's rows each read all of its weights (not where memory is to be saved).
    """
    if isinstance(stage, EsStage) and stage.parameterisation == "low_rank":
        return 1
    kind, workers = config.population.kind, config.population.workers
    own = own_path and config.engine.kind != "generate"
    in_place = isinstance(stage, EsStage) and stage.precision == "bf16_inplace"
    if not own or in_place or kind == "serial":
        return 1
    if kind == "batched" or parameters <= BATCHED_PARAMETERS:
        return _share(config, stage)
    if workers > 1 or parameters > SIDE_BY_SIDE_PARAMETERS or not on_cpu(config.engine.device):
        return 1
    if config.low_memory:
        return 1
    return min(torch.get_num_threads(), _share(config, stage))


def on_cpu(device: str) -> bool:
    """Whether `engine.device` means the CPU here."""
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())


def low_rank_at_once(config: RunConfig, stage: EsStage | GrpoStage) -> int:
    """Low-rank members in a batch over one set of weights; 1 where a stage has none, or runs them serially."""
    if (
        not isinstance(stage, EsStage)
        or stage.parameterisation == "full"
        or config.population.kind == "serial"
    ):
        return 1
    return _share(config, stage)


def _share(config: RunConfig, stage: EsStage | GrpoStage) -> int:
    """Members of a batch: as many as may be, no more than a process gets."""
    evaluations = (
        stage.members * (2 if stage.estimator == "antithetic" else 1) if isinstance(stage, EsStage) else 1
    )
    return min(config.population.batch, -(-evaluations // config.population.workers))
