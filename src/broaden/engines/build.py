"""`build_engine`: an engine from plain settings, as configs, worker processes and commands have them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch

from broaden.engines.base import Engine
from broaden.engines.torch_engine import TorchEngine
from broaden.errors import UsageError
from broaden.models.spec import ModelSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KINDS = ("auto", "torch", "generate")


def build_engine(
    kind: str,
    spec: ModelSpec,
    eos_ids: Collection[int],
    *,
    folder: Path,
    members: int = 1,
    dtype: str = "float32",
    device: str = "auto",
    slots: int | None = None,
    max_context: int | None = None,
    packed: bool = True,
) -> Engine:
    """An engine with zero weights, to be written through `weights()`.

    Args:
        kind: "torch" (own decode path), "generate" (transformers) or "auto" (own where the family allows).
        folder: the model's folder (the generate engine reads its config).
        device: "cpu", "cuda", "cuda:1" or "auto".
        slots: rows a member decodes at once (generate: rows of every call); None: by the model's size.
        packed: the torch engine may hold bfloat16 weights twice where that pays.

    Raises:
        UsageError: an unknown kind, dtype or device. ModelError: an architecture that this kind cannot run.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype is one of {', '.join(DTYPES)}; got {dtype!r}")
    place = choose_device(device)
    if kind == "auto":
        kind = "generate" if spec.family == "other" else "torch"
    if kind == "torch":
        return TorchEngine(spec, eos_ids, members=members, dtype=DTYPES[dtype], device=place, slots=slots,
                           max_context=max_context, packed=None if packed else False)  # fmt: skip
    if kind == "generate":
        from broaden.engines.generate import ROWS, GenerateEngine  # transformers takes seconds to import

        return GenerateEngine(folder, eos_ids, members=members, dtype=DTYPES[dtype], device=place,
                              max_context=max_context, rows=slots or ROWS)  # fmt: skip
    raise UsageError(f"engine is one of {', '.join(KINDS)}; got {kind!r}")


def choose_device(name: str) -> torch.device:
    """CUDA where there is one for "auto", else what was named. Raises UsageError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"no device {name!r}", "use cpu, cuda, cuda:N or auto") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r} asked for, but there is no CUDA device here", "use cpu or auto")
    return device
