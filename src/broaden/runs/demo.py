"""The main job on the bundled model: ES against its base, with a null and a temperature frontier beside it.

Everything is an ordinary run or evaluation in one folder, so an interrupted demo goes on where it stopped:

    es/, null-0/ ...          runs (the nulls are random-z walks of the same length: no rollouts)
    samples/base, samples/es, samples/null-0 ...      the test split at the demo's temperature
    samples/base-T0.1 ...     the base's own temperature frontier

Not here: tables and pictures (`cli.demo`, `report`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from broaden.config import RunConfig, build_config
from broaden.evaluation import (
    ArmSummary,
    Comparison,
    by_problem,
    compare,
    gap_to_frontier,
    ratios,
    subset,
    summarise,
)
from broaden.ledger.budget import Budget
from broaden.metrics import Interval, Ratio, intervals, paired_differences
from broaden.metrics.frontier import CoverageGap
from broaden.models.checkpoint import Weights
from broaden.models.tensor_files import read_tensors
from broaden.perturb import drift
from broaden.records import SampleSet
from broaden.runs.arms import EvalSettings, Evaluator
from broaden.runs.events import Watcher
from broaden.runs.interrupt import Interrupts
from broaden.runs.loop import resume, train
from broaden.store import RunDir, SampleStore

MODEL = "bundled:countdown-nano"
NEW_TOKENS = 48
KS = (1, 8, 32)
Progress = Callable[[int, int], None]


class Stage(Protocol):
    """How the demo shows itself."""

    def note(self, text: str) -> None:
        """A line for people."""
        ...

    def training(self, label: str) -> AbstractContextManager[Watcher]:
        """Bars of a run."""
        ...

    def evaluation(self, label: str, total: int) -> AbstractContextManager[Progress]:
        """A bar of an evaluation."""
        ...


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo does; the defaults end in minutes on two cores."""

    seed: int = 0
    updates: int = 60
    problems: int = 500
    samples: int = 32
    temperature: float = 0.6
    nulls: int = 4
    temperatures: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    frontier_problems: int = 300
    workers: int = 2


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One temperature (or arm) on the plane of Pass@1 and Pass@K."""

    label: str
    temperature: float
    pass_1: Interval
    pass_k: Interval


@dataclass(slots=True)
class DemoResult:
    """What the demo found."""

    arms: dict[str, ArmSummary] = field(default_factory=dict)
    paired: dict[str, Comparison | Mapping[str, Interval]] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    frontier: list[FrontierPoint] = field(default_factory=list)
    nulls: list[dict[str, float]] = field(default_factory=list)
    conditions: dict[str, Any] = field(default_factory=dict)
    gap: CoverageGap | None = None
    example: tuple[str, str, str] | None = None


def config(settings: DemoSettings, control: str = "none", seed: int | None = None) -> RunConfig:
    """The demo's run: the same as configs/demo/es.toml (a test compares them)."""
    return build_config({
        "name": "es" if control == "none" else "null", "seed": settings.seed if seed is None else seed,
        "model": {"source": MODEL}, "task": {"name": "countdown", "split": "train"},
        "population": {"workers": settings.workers}, "checkpoint": {"every": 20},
        "stages": [{"algo": "es", "preset": "nano", "updates": settings.updates, "control": control}],
    })  # fmt: skip


def demo(out: Path, settings: DemoSettings, stage: Stage) -> DemoResult:
    """Run (or go on with) the demo in `out`."""
    result = DemoResult()
    es = _run(out / "es", config(settings), stage, "es")
    nulls = [_run(out / f"null-{i}", config(settings, "random_z", _null_seed(settings, i)), stage, f"null {i}")
             for i in range(settings.nulls)]  # fmt: skip
    with Evaluator(MODEL, eval_settings(settings)) as evaluator:
        base = evaluator.model.weights
        weights = {"base": base, "es": es} | {f"null-{i}": w for i, w in enumerate(nulls)}
        sets = {n: _evaluate(evaluator, out, n, w, settings.temperature, stage) for n, w in weights.items()}
    _arms(result, sets, {n: drift(w, base) for n, w in weights.items()}, settings)
    _frontier(result, sets, out, settings, stage)
    result.budgets = {"base": Budget(), "es": budget(out / "es"), "null": budget(out / "null-0")}
    result.conditions = {**sets["base"].conditions, "nulls": settings.nulls, "updates": settings.updates,
                         "frontier_problems": settings.frontier_problems}  # fmt: skip
    result.example = _example(sets)
    return result


def _frontier(
    result: DemoResult, sets: dict[str, SampleSet], out: Path, settings: DemoSettings, stage: Stage
) -> None:
    """The base over temperatures on the first problems of the test split, and ES against it at equal Pass@1."""
    curve: dict[float, SampleSet] = {}
    with Evaluator(MODEL, replace(eval_settings(settings), limit=settings.frontier_problems)) as evaluator:
        ids = [p.id for p in evaluator.loaded.problems]
        for t in settings.temperatures:
            if t == settings.temperature:
                curve[t] = subset(sets["base"], ids)  # the very samples that this evaluation would draw
            else:
                curve[t] = _evaluate(evaluator, out, f"base-T{t:g}", evaluator.model.weights, t, stage)
    es = subset(sets["es"], ids)
    result.frontier = [_point(f"T={t:g}", t, found, settings.seed) for t, found in curve.items()]
    result.frontier.append(_point("es", settings.temperature, es, settings.seed))
    result.gap = gap_to_frontier(es, list(curve.values()), settings.samples, seed=settings.seed)


def eval_settings(settings: DemoSettings) -> EvalSettings:
    """The test split, M samples a problem."""
    return EvalSettings(
        task="countdown", split="test", limit=settings.problems, samples=settings.samples,
        temperature=settings.temperature, max_new_tokens=NEW_TOKENS, seed=settings.seed, workers=settings.workers,
    )  # fmt: skip


def _null_seed(settings: DemoSettings, index: int) -> int:
    """Each walk's run seed: the numbers after the demo's own (streams of different seeds are unrelated)."""
    return settings.seed * 1000 + 1 + index


def _run(path: Path, config: RunConfig, stage: Stage, label: str) -> Weights:
    with stage.training(label) as watcher:
        if (path / "manifest.json").is_file():
            result = resume(path, config=config, watcher=watcher)
        else:
            result = train(config, path, watcher=watcher)
    return read_tensors(result.checkpoint)


def _evaluate(
    evaluator: Evaluator, out: Path, name: str, weights: Weights, temperature: float, stage: Stage
) -> SampleSet:
    with (
        stage.evaluation(name, evaluator.total) as progress,
        Interrupts("run the same command again") as interrupts,
    ):

        def report(done: int, tokens: int) -> None:
            interrupts.check()
            progress(done, tokens)

        return evaluator.run(
            weights, temperature=temperature, store=SampleStore(out / "samples" / name), fingerprint=name,
            on_progress=report,
        )  # fmt: skip


def _arms(
    result: DemoResult, sets: dict[str, SampleSet], drifts: dict[str, float], settings: DemoSettings
) -> None:
    ks = tuple(k for k in KS if k <= settings.samples)
    for name in ("base", "es"):
        result.arms[name] = summarise(sets[name], ks, seed=settings.seed).with_metric("drift", drifts[name])
    result.paired["es-base"] = compare(sets["base"], sets["es"], ks, seed=settings.seed)
    names = [n for n in sets if n.startswith("null-")]
    if not names:
        return
    walks = [ratios(by_problem(sets[n]), ks) for n in names]
    null = mean_of(walks)
    base, es = (ratios(by_problem(sets[n]), ks) for n in ("base", "es"))
    spread = [drifts[n] for n in names]
    result.arms["null"] = replace(
        result.arms["base"], metrics=intervals(null, seed=settings.seed), counts={"walks": len(names)}
    ).with_metric("drift", Interval(sum(spread) / len(spread), min(spread), max(spread)))
    result.paired["null-base"] = paired_differences(base, null, seed=settings.seed)
    result.paired["es-null"] = paired_differences(null, es, seed=settings.seed)
    result.nulls = [{k: r.value for k, r in walk.items()} for walk in walks]


def mean_of(walks: Sequence[Mapping[str, Ratio]]) -> dict[str, Ratio]:
    """The mean arm of several: sums over the walks, problem by problem."""
    return {
        name: Ratio(
            sum((w[name].num_P for w in walks[1:]), walks[0][name].num_P),
            sum((w[name].den_P for w in walks[1:]), walks[0][name].den_P),
            walks[0][name].bounded,
        )
        for name in walks[0]
        if all(name in w for w in walks)
    }


def _point(label: str, temperature: float, found: SampleSet, seed: int) -> FrontierPoint:
    k = int(found.conditions["samples"])
    metrics = summarise(found, (1, k), seed=seed, expected=False).metrics
    return FrontierPoint(label, temperature, metrics["pass@1"], metrics[f"pass@{k}"])


def budget(path: Path) -> Budget:
    """What a run spent, from its records."""
    total = Budget()
    for record in RunDir.open(path).records():
        v = record.values
        total += Budget(1, int(v.get("tokens") or 0), float(v.get("flops_paper") or 0),
                        float(v.get("flops_full") or 0), float(v.get("seconds") or 0))  # fmt: skip
    return total


def _example(sets: dict[str, SampleSet]) -> tuple[str, str, str] | None:
    """A problem that the base's first sample misses and ES's gets: (prompt, base's text, ES's text)."""
    ours = {(s.problem_id, s.sample): s for s in sets["es"].samples}
    prompts = {p.id: p.messages[-1].content for p in sets["base"].problems}
    for sample in sets["base"].samples:
        other = ours[sample.problem_id, sample.sample]
        if sample.verdict.score == 0.0 and other.verdict.score == 1.0:
            return prompts[sample.problem_id], sample.text, other.text
    return None
