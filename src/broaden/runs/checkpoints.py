"""What a checkpoint of a run is: an ordinary model folder (the fp32 master) and `broaden.json` beside it.

    model.safetensors, config.json, tokenizer...    loads in transformers and vLLM
    broaden.json      step, stage, updates done in the stage, hash of the center
    optimizer.safetensors    only inside a stage that has an optimiser
    adapter/          only of a stage with LoRA: its factors in PEFT's format

Not here: when checkpoints are made (`train`) and the atomic commit (`store`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from broaden.errors import ExactnessError, StoreError
from broaden.models.checkpoint import Model, save_model
from broaden.models.lora import ADAPTER, Lora
from broaden.models.tensor_files import map_tensors, write_tensors
from broaden.perturb import center_hash
from broaden.records import Record
from broaden.store import RunDir

STATE = "broaden.json"
OPTIMIZER = "optimizer"
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Position(Record):
    """Where a run stands: `step` updates in all, of which `stage_step` in stage number `stage`."""

    step: int
    stage: int
    stage_step: int
    center_hash: str


def save(
    run: RunDir,
    model: Model,
    center: Weights,
    at: Position,
    optimizer: Mapping[str, torch.Tensor] | None,
    lora: Lora | None = None,
) -> Path:
    """Commit a checkpoint; one that is there already for this step is kept. Raises StoreError (disk full)."""
    folder = run.checkpoint_path(at.step)
    if folder.exists():
        return folder

    def write(temporary: Path) -> None:
        save_model(model, temporary, center)
        if optimizer is not None:
            write_tensors(temporary, dict(optimizer), stem=OPTIMIZER)
        if lora is not None:
            lora.save(temporary / ADAPTER)
        (temporary / STATE).write_text(json.dumps(at.to_json(), indent=2) + "\n")

    return run.commit_checkpoint(at.step, write)


def position(folder: Path) -> Position:
    """Read `broaden.json`. Raises StoreError when it is missing or broken."""
    try:
        return Position.from_json(json.loads((folder / STATE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{folder} has no usable {STATE}: {error}", "remove that checkpoint and resume"
        ) from error


def load_center(folder: Path, at: Position) -> Weights:
    """The checkpoint's weights, over its mapped files (read only), checked against their hash.

    Raises ExactnessError.
    """
    center = map_tensors(folder)
    found = center_hash(center)
    if found != at.center_hash:
        raise ExactnessError(
            f"the weights in {folder} have hash {found}, its {STATE} says {at.center_hash}",
            "the checkpoint was changed or damaged: remove it and resume from an earlier one",
        )
    return center


def load_optimizer(folder: Path) -> dict[str, torch.Tensor] | None:
    """The optimiser's tensors, over its mapped files; None where the checkpoint has none."""
    if not any(folder.glob(f"{OPTIMIZER}*.safetensors")):
        return None
    return map_tensors(folder, stem=OPTIMIZER)


def prune(run: RunDir, keep: int, ends: frozenset[int]) -> None:
    """Remove all but the newest `keep` checkpoints and those at stage ends."""
    spare = [folder for step, folder in run.checkpoints() if step not in ends]
    for folder in spare[:-keep]:
        shutil.rmtree(folder, ignore_errors=True)
