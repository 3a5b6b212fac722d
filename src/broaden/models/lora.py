"""Low-rank adaptation (LoRA, arXiv 2106.09685) of projection matrices, and its files in PEFT's format.

    W = W_0 + (alpha / r) B A        A [r, in], B [out, r], fp32, trained;  W_0 frozen

The model is always passed with the merged W: samples and gradients belong to the same weights, and the forward needs no
second path. The gradient G of W gives those of the factors: dA = (alpha / r) B^T G, dB = (alpha / r) G A^T.
W is computed from W_0 afresh after every step, never added to, so W_0, A and B decide it bit for bit.
Not here: the optimiser over A and B (`optimizer`), when the weights are passed or saved (`grpo`, `runs`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

import torch

from broaden.errors import ConfigError, ResumeError, StoreError
from broaden.models.optimizer import Weights
from broaden.models.tensor_files import listed, write_tensors
from broaden.seeds import numpy_generator, stream

ADAPTER = "adapter"
"""Name of an adapter's folder in a checkpoint: beside the merged weights it would be applied to them twice."""
_STATE = "lora."
_SUFFIX = ".weight"


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Plain values: rank r, alpha, and glob patterns over canonical names (`*` also crosses dots)."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.rank < 1 or not (0.0 < self.alpha < math.inf):
            raise ConfigError(
                f"LoRA wants a rank of at least 1 and alpha > 0, got {self.rank} and {self.alpha}",
                "correct lora_rank or lora_alpha (lora_rank = 0 trains the weights themselves)",
            )

    @property
    def scale(self) -> float:
        """alpha / r."""
        return self.alpha / self.rank

    def select(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """The names that are adapted, in the model's order.

        Raises:
            ConfigError: a pattern matches no tensor, or one that is not a projection's matrix.
        """
        chosen: set[str] = set()
        for pattern in self.targets:
            found = list(filter(re.compile(translate(pattern)).match, shapes))
            wrong = [n for n in found if not _is_projection(n, shapes[n])]
            if not found or wrong:
                what = f"{listed(wrong, 3)}: not a projection" if found else "no tensor"
                raise ConfigError(
                    f"lora_targets: {pattern!r} matches {what}",
                    "give patterns over the matrices of projections, such as '*.self_attn.?_proj.weight'",
                )
            chosen.update(found)
        if not chosen:
            raise ConfigError(
                "lora_targets is empty: nothing would be trained", "leave it out, or lora_rank = 0"
            )
        return tuple(name for name in shapes if name in chosen)

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        """(parameters of A and B, parameters of the adapted matrices) of a model of these shapes."""
        adapted = [shapes[name] for name in self.select(shapes)]
        return sum(self.rank * (out + into) for out, into in adapted), sum(math.prod(s) for s in adapted)


def _is_projection(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and name.endswith(_SUFFIX) and "embed_tokens" not in name


class Lora:
    """The trained factors of a model.

    Attributes:
        tensors: `MODULE.lora_A.weight` [r, in] and `MODULE.lora_B.weight` [out, r], fp32: what the optimiser holds.
        names: canonical names of the adapted matrices.

    Args:
        base: the weights that are adapted (W_0); those of the adapted names are kept, not copied (but cast to fp32
            where need be), and must not be written.
        settings: rank, alpha, patterns.
        run_seed: A is uniform in +-1 / sqrt(in) under `stream(run_seed, "lora", name)` (PEFT's distribution); B is 0.
        base_name: the model that the adapter's files name as theirs.
    """

    def __init__(
        self, base: Mapping[str, torch.Tensor], settings: LoraSettings, run_seed: int, base_name: str = ""
    ) -> None:
        self.settings, self.base_name = settings, base_name
        self.names = settings.select({n: tuple(w.shape) for n, w in base.items()})
        self._base = {n: base[n].float() for n in self.names}  # the same tensor where it is fp32
        self.tensors: Weights = {}
        for name, w in self._base.items():
            out, into = w.shape
            uniform = numpy_generator(stream(run_seed, "lora", name)).random((settings.rank, into), "float32")
            a = (2.0 * torch.from_numpy(uniform) - 1.0) / math.sqrt(into)
            self.tensors[_factor(name, "A")] = a.to(w.device)
            self.tensors[_factor(name, "B")] = torch.zeros(out, settings.rank, device=w.device)

    def factors(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """(A [r, in], B [out, r]) of an adapted matrix."""
        return self.tensors[_factor(name, "A")], self.tensors[_factor(name, "B")]

    @torch.no_grad()
    def gradients(self, gradients: Mapping[str, torch.Tensor]) -> Weights:
        """Gradients of A and B from those of the merged matrices: dA = s B^T G, dB = s G A^T, s = alpha / r."""
        out, s = {}, self.settings.scale
        for name in self.names:
            a, b = self.factors(name)
            out[_factor(name, "A")] = s * (b.T @ gradients[name])
            out[_factor(name, "B")] = s * (gradients[name] @ a.T)
        return out

    @torch.no_grad()
    def merge(self, weights: Weights) -> None:
        """Write W_0 + (alpha / r) B A into the adapted matrices of `weights`; the others are not touched."""
        for name in self.names:
            a, b = self.factors(name)
            weights[name].copy_(torch.addmm(self._base[name], b, a, alpha=self.settings.scale))

    def state(self) -> Weights:
        """A and B as tensors by name, to be saved with the optimiser's (live: copy or save before the next step)."""
        return {_STATE + name: t for name, t in self.tensors.items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Inverse of `state`, in place; gives back what is not LoRA's in it (the optimiser's part).

        Raises:
            ResumeError: names or shapes that are not those of these factors.
        """
        own = {n: t for n, t in state.items() if n.startswith(_STATE)}
        mine = self.state()
        wrong = sorted(set(mine) ^ set(own)) or sorted(n for n in mine if mine[n].shape != own[n].shape)
        if wrong:
            raise ResumeError(
                f"the saved LoRA factors are not this stage's: they differ in {listed(wrong, 3)}",
                "resume with the model and settings that the run was started with",
            )
        for name, tensor in mine.items():
            tensor.copy_(own[name])
        return {n: t for n, t in state.items() if n not in own}

    def save(self, folder: Path) -> None:
        """Write the adapter as PEFT has it: adapter_config.json and adapter_model.safetensors.

        Raises:
            StoreError: the disk is full or the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "adapter_config.json").write_text(json.dumps(self._config(), indent=2) + "\n")
        except OSError as error:
            raise StoreError(f"could not write {folder}: {error}", "free some space") from error
        write_tensors(
            folder, {f"base_model.model.{n}": t for n, t in self.tensors.items()}, stem="adapter_model"
        )

    def _config(self) -> dict[str, object]:
        return {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": self.base_name,
            "r": self.settings.rank, "lora_alpha": self.settings.alpha, "lora_dropout": 0.0, "bias": "none",
            "target_modules": [name.removesuffix(_SUFFIX) for name in self.names],
            "fan_in_fan_out": False, "use_rslora": False, "use_dora": False, "inference_mode": True,
        }  # fmt: skip


def _factor(name: str, which: str) -> str:
    return f"{name.removesuffix(_SUFFIX)}.lora_{which}{_SUFFIX}"


__all__ = ["ADAPTER", "Lora", "LoraSettings"]
