"""Evaluating models and runs: samples into a store, resumed sample by sample, read back as arms to compare."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broaden import tasks
from broaden.engines.build import DTYPES, KINDS
from broaden.engines.torch_engine import default_slots
from broaden.errors import MissingFileError, UsageError
from broaden.evaluation import conditions, evaluate
from broaden.ledger.memory import MemoryPlan
from broaden.models.checkpoint import Model, Weights, load_model
from broaden.models.sources import resolve
from broaden.records import Sample, SampleSet, Sampling
from broaden.runs.memory import Machine, eval_memory, fit_slots, sampling
from broaden.runs.prepare import check_context, encode, pick_device
from broaden.runs.sampler import Sampler, sampler_settings
from broaden.store import RunDir, SampleStore
from broaden.tasks.base import Loaded

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """What is asked of a model: the problems, and how samples are drawn."""

    task: str
    split: str | None = None
    data: str | None = None
    limit: int | None = None
    task_seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 32
    temperature: float = 0.6
    max_new_tokens: int = 2048
    seed: int = 0
    engine: str = "auto"
    device: str = "auto"
    dtype: str = "float32"
    slots: int | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        """Raises UsageError before anything is loaded."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(
                f"the temperature is a number from 0 on, got {self.temperature}", "--temperature 0.6"
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}", "--dtype float32")
        if self.engine not in KINDS:
            raise UsageError(f"engine is one of {', '.join(KINDS)}; got {self.engine!r}", "--engine auto")

    def sampling(self, temperature: float | None = None) -> Sampling:
        """How completions are drawn; the exact token entropy is always recorded."""
        return Sampling(
            self.temperature if temperature is None else temperature, self.max_new_tokens, entropy=True
        )


def model_path(source: str) -> Path:
    """The model folder behind a run directory (its newest checkpoint), a folder or a named source."""
    path = Path(source).expanduser()
    if (path / "manifest.json").is_file() and (path / "checkpoints").is_dir():
        newest = RunDir.open(path).latest_checkpoint()
        if newest is None:
            raise MissingFileError(f"run {path} has no checkpoint yet", f"broaden train --resume {path}")
        return newest[1]
    return resolve(source)


def label_of(source: str) -> str:
    """A short name for an arm: the run's or folder's name, or the source's."""
    path = Path(source).expanduser()
    if path.exists():
        path = path.resolve()
        return path.parent.parent.name + "-" + path.name if path.parent.name == "checkpoints" else path.name
    return source.rpartition(":")[2].rpartition("/")[2]


class Evaluator:
    """One model family's engine with the problems ready: evaluates any weights of it, at any temperature.

    A context manager, since worker processes may stand behind it.
    """

    def __init__(
        self, source: str, settings: EvalSettings, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self.settings, self.note = settings, note
        self.device = pick_device(settings.device)
        self.machine = Machine.here(self.device)
        self.task = tasks.get(settings.task)
        data = Path(settings.data) if settings.data is not None else None
        split = settings.split or self.task.default_split
        self.loaded: Loaded = self.task.read(
            split, data, settings.limit, settings.task_seed, **settings.options
        )
        self.split = split
        self.folder = model_path(source)
        self.model: Model = load_model(self.folder, mapped=True)
        prompts = encode(self.model.tokenizer, self.loaded.problems)
        self.problems = [p.problem for p in prompts]
        check_context(prompts, settings.max_new_tokens, self.model.spec.max_positions)
        self.longest = max(len(p.ids) for p in prompts)
        self.prompt_tokens = sum(len(p.ids) for p in prompts)
        self.sampler: Sampler | None = None
        self._loaded: Weights | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.sampler is not None:
            self.sampler.close()

    def memory(self, slots: int | None = None) -> MemoryPlan | None:
        """What it would hold with so many slots (default: those asked for); None for a model of another family."""
        s, spec = self.settings, self.model.spec
        if spec.family == "other" or s.engine == "generate":
            return None
        at_once = min(len(self.problems), max(1, CHUNK_SAMPLES // s.samples))
        drawn = sampling(
            spec, at_once, s.samples, self.longest, s.max_new_tokens, slots or s.slots or default_slots(spec), s.dtype,
            s.workers, self.machine,
        )  # fmt: skip
        return eval_memory(
            spec, self.model.parameters, drawn, samples=self.total, workers=s.workers, machine=self.machine
        )

    def fit(self) -> None:
        """Take as many slots as fit. Raises UsageError where not even the fewest do."""
        if self.memory() is None:
            return
        wanted = self.settings.slots or default_slots(self.model.spec)
        slots = fit_slots(lambda n: self.memory(n) or MemoryPlan({}, {}), wanted, self.machine, self.note)
        if slots != wanted:
            self.settings = replace(self.settings, slots=slots)

    @property
    def total(self) -> int:
        """Samples of one evaluation."""
        return len(self.problems) * self.settings.samples

    def run(
        self,
        weights: Weights | None = None,
        *,
        temperature: float | None = None,
        store: SampleStore | None = None,
        fingerprint: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> SampleSet:
        """Evaluate the model's own weights (or others of the same model).

        Args:
            store: where samples go as they are drawn; what is there already is not drawn again.
            fingerprint: of the weights, for the conditions (default: the model folder's).
        """
        s = self.settings
        engine = self._engine(self.model.weights if weights is None else weights)
        sampling = s.sampling(temperature)
        drawn_under = {
            **conditions(engine, self.task, self.problems, samples=s.samples, sampling=sampling, seed=s.seed),
            "model": fingerprint or self.model.fingerprint, "split": self.split, "dtype": s.dtype,
        }  # fmt: skip
        existing: list[Sample] = []
        if store is not None:
            store.start(s.task, self.problems, drawn_under)
            existing = store.read_samples()
        found = evaluate(
            engine, self.model.tokenizer, self.task, self.problems, samples=s.samples, sampling=sampling,
            seed=s.seed, sink=store.append if store is not None else None, existing=existing,
            on_progress=on_progress, chunk=max(1, CHUNK_SAMPLES // s.samples),
            judge_threads=tasks.judge_threads(self.task),
        )  # fmt: skip
        return replace(found, conditions=drawn_under)

    def _engine(self, weights: Weights) -> Any:
        s = self.settings
        if self.sampler is None:
            self.fit()
            s = self.settings
            host = sampler_settings(
                self.folder, s.task, engine=s.engine, dtype=s.dtype, device=self.device, slots=s.slots,
                max_context=self.longest + s.max_new_tokens,
            )  # fmt: skip
            self.sampler = Sampler(host, weights, s.workers)
        elif self._loaded is not weights:
            self.sampler.load(weights)
        self._loaded = weights
        return self.sampler.engine


CHUNK_SAMPLES = 8192
"""Samples in one engine call: enough to keep its slots full, few enough to be stored often."""


def read_arm(path: Path) -> SampleSet:
    """A stored evaluation, which must be whole. Raises UsageError for one that is not."""
    found = SampleStore(path).read()
    expected = len(found.problems) * int(found.conditions["samples"])
    if len(found.samples) != expected:
        raise UsageError(
            f"{path} holds {len(found.samples)} of {expected} samples",
            "run the same broaden eval again to go on",
        )
    return found


def numbered(labels: Sequence[str]) -> list[str]:
    """Arm names, numbered where two are equal."""
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        out.append(label if labels.count(label) == 1 else f"{label}#{seen[label]}")
    return out


def write_summary(path: Path, data: dict[str, Any]) -> None:
    """The JSON object that the command printed, beside the samples."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "summary.json").write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
