"""Builds a local population from plain settings: in this process, and again in each worker process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from broaden import tasks
from broaden.engines import build_engine
from broaden.models.spec import ModelSpec
from broaden.models.tokenizer import ChatTokenizer
from broaden.population.base import Prompt
from broaden.population.local import LocalPopulation
from broaden.records import Problem


@dataclass(frozen=True, slots=True)
class HostSettings:
    """JSON-able: what a process needs to run members, beside the center and the prompts."""

    model: str
    task: str
    engine: str = "auto"
    dtype: str = "float32"
    device: str = "cpu"
    members: int = 1
    low_rank: int = 1
    slots: int | None = None
    max_context: int | None = None
    packed: bool = True

    def to_json(self) -> dict[str, Any]:
        """For the worker's opening message."""
        return asdict(self)


def build_host(settings: HostSettings, prompts: Sequence[Prompt]) -> LocalPopulation:
    """Load tokenizer and shapes (no weights: they are written by `perturb`) and build the engine."""
    folder = Path(settings.model)
    config, generation = (_json(folder / f"{name}.json") for name in ("config", "generation_config"))
    spec = ModelSpec.from_config(config)
    tokenizer = ChatTokenizer.from_folder(
        folder, generation_config=generation, config=config, vocab=spec.vocab or None
    )
    engine = build_engine(
        settings.engine, spec, tokenizer.eos_ids, folder=folder, members=settings.members, dtype=settings.dtype,
        device=settings.device, slots=settings.slots, max_context=settings.max_context,
        packed=settings.packed,
    )  # fmt: skip
    return LocalPopulation(engine, tokenizer, tasks.get(settings.task), prompts, settings.low_rank)


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def prompts_to_json(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """For the worker's opening message."""
    return [{"problem": p.problem.to_json(), "ids": list(p.ids)} for p in prompts]


def prompts_from_json(data: list[dict[str, Any]]) -> list[Prompt]:
    """Inverse of `prompts_to_json`."""
    return [Prompt(Problem.from_json(d["problem"]), tuple(d["ids"])) for d in data]
