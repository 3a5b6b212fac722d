"""The main job on the bundled model: ES, GRPO and both sequences under one budget, with their nulls.

Everything is an ordinary run or evaluation in one folder, so an interrupted demo goes on where it stopped:

    es/, grpo/, es-grpo/, grpo-es/   runs of the same number of updates, N = 4G, the same prompts
    null-0/ ...               random-z walks as long as ES (no rollouts); null-grpo/: GRPO on permuted advantages
    samples/base, samples/es, samples/null-0 ...      the test split at the demo's temperature
    samples/base-T0.1 ...     the base's own temperature frontier, and the arms at some other temperatures
    samples/es-step000010 ... points along the trajectories

Not here: tables and pictures (`cli.demo`, `report`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from broaden.config import RunConfig, build_config
from broaden.errors import Interrupted
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
from broaden.perturb import center_hash, drift
from broaden.records import SampleSet
from broaden.runs.account import spent, work
from broaden.runs.arms import EvalSettings, Evaluator
from broaden.runs.events import Watcher
from broaden.runs.interrupt import Interrupts
from broaden.runs.loop import resume, train
from broaden.seeds import stream
from broaden.store import RunDir, SampleStore

MODEL = "bundled:countdown-nano"
NEW_TOKENS = 48
AGAIN = "run the same broaden demo again: it goes on where it stopped"
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
    """What the demo does; the defaults end in minutes on two cores.

    `updates` is each arm's budget; a sequence spends half on each stage. `greedy_es` is the paper's variant: ES
    rollouts at temperature 0 (everything else as it is).
    """

    seed: int = 0
    updates: int = 40
    arms: tuple[str, ...] = ("es", "grpo", "es->grpo", "grpo->es")
    problems: int = 500
    samples: int = 32
    temperature: float = 0.6
    nulls: int = 4
    temperatures: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    arm_temperatures: tuple[float, ...] = (0.3, 1.0)
    frontier_problems: int = 300
    checkpoints: int = 4
    greedy_es: bool = False
    workers: int = 2

    @property
    def frontier_limit(self) -> int:
        """Problems of the frontier: the first ones of the test problems."""
        return min(self.frontier_problems, self.problems)


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One evaluation on the plane of Pass@1 and Pass@K: an arm, a temperature, and updates done (None: all)."""

    arm: str
    temperature: float
    step: int | None
    pass_1: Interval
    pass_k: Interval

    def to_json(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "arm": self.arm, "temperature": self.temperature, "step": self.step,
            "pass@1": self.pass_1.to_json(), "pass@k": self.pass_k.to_json(),
        }  # fmt: skip


@dataclass(slots=True)
class DemoResult:
    """What the demo found."""

    arms: dict[str, ArmSummary] = field(default_factory=dict)
    paired: dict[str, Comparison | Mapping[str, Interval]] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    spent: dict[str, dict[str, int]] = field(default_factory=dict)
    frontier: list[FrontierPoint] = field(default_factory=list)
    gaps: dict[str, CoverageGap] = field(default_factory=dict)
    along_grpo: CoverageGap | None = None
    nulls: list[dict[str, float]] = field(default_factory=list)
    conditions: dict[str, Any] = field(default_factory=dict)
    example: tuple[str, str, str] | None = None


def stages_of(arm: str, settings: DemoSettings, control: str = "none") -> list[dict[str, Any]]:
    """The stage tables of an arm ("es", "grpo", "es->grpo", "grpo->es"), its budget split equally."""
    algos = arm.split("->")
    shares = [settings.updates // len(algos)] * len(algos)
    shares[-1] += settings.updates - sum(shares)
    tables: list[dict[str, Any]] = [
        {"algo": algo, "preset": "nano", "updates": share} for algo, share in zip(algos, shares, strict=True)
    ]
    for table in tables:
        if control != "none":
            table["control"] = control
        if settings.greedy_es and table["algo"] == "es":
            table["temperature"] = 0.0
    return tables


def config(arm: str, settings: DemoSettings, control: str = "none", seed: int | None = None) -> RunConfig:
    """An arm's run; that of "es" is configs/demo/es.toml (a test compares them)."""
    return build_config({
        "name": folder_of(arm) if control == "none" else "null",
        "seed": settings.seed if seed is None else seed,
        "model": {"source": MODEL}, "task": {"name": "countdown", "split": "train"},
        "population": {"workers": settings.workers},
        "checkpoint": {"every": max(1, settings.updates // settings.checkpoints), "keep": settings.checkpoints},
        "stages": stages_of(arm, settings, control),
    })  # fmt: skip


def demo(out: Path, settings: DemoSettings, stage: Stage) -> DemoResult:
    """Run (or go on with) the demo in `out`."""
    result = DemoResult()
    weights = {arm: _run(out / folder_of(arm), config(arm, settings), stage, arm) for arm in settings.arms}
    for name, null in null_configs(settings).items():
        weights[name] = _run(out / name, null, stage, name)
    with Evaluator(MODEL, eval_settings(settings)) as evaluator:
        base = evaluator.model.weights
        weights = {"base": base, **weights}
        sets = {n: _evaluate(evaluator, out, n, w, settings.temperature, stage) for n, w in weights.items()}
    _arms(result, sets, {n: drift(w, base) for n, w in weights.items()}, settings)
    _frontier(result, sets, weights, out, settings, stage)
    runs = {arm: out / folder_of(arm) for arm in settings.arms} | {
        name: out / (name if name != "null" else "null-0") for name in result.arms if name.startswith("null")
    }
    result.budgets = {
        "base": Budget(),
        **{name: spent(RunDir.open(path).records()) for name, path in runs.items()},
    }
    result.spent = {name: work(RunDir.open(path).records()) for name, path in runs.items()}
    result.conditions = {
        **sets["base"].conditions, "walks": settings.nulls, "updates": settings.updates,
        "frontier_problems": settings.frontier_limit, "greedy_es": settings.greedy_es,
    }  # fmt: skip
    result.example = _example(sets, settings.arms[0])
    return result


def folder_of(arm: str) -> str:
    """An arm's folder (no arrows in file names)."""
    return arm.replace("->", "-")


def null_configs(settings: DemoSettings) -> dict[str, RunConfig]:
    """Random-z walks where ES is an arm, and GRPO on permuted advantages where GRPO is."""
    walks = {}
    if any("es" in arm.split("->") for arm in settings.arms):
        walks = {
            f"null-{i}": config("es", settings, "random_z", stream(settings.seed, "walk", i) >> 32)
            for i in range(settings.nulls)
        }
    if settings.nulls and "grpo" in settings.arms:
        walks["null-grpo"] = config("grpo", settings, "permuted_advantages")
    return walks


def _frontier(
    result: DemoResult,
    sets: dict[str, SampleSet],
    weights: dict[str, Weights],
    out: Path,
    settings: DemoSettings,
    stage: Stage,
) -> None:
    """On the first problems of the test split: the base over temperatures, each arm over some and along its
    training, and each arm against the base's frontier at equal Pass@1."""
    with Evaluator(MODEL, replace(eval_settings(settings), limit=settings.frontier_limit)) as evaluator:
        ids = [p.id for p in evaluator.loaded.problems]

        def at(name: str, arm: str, t: float, w: Weights) -> SampleSet:
            if name == arm and t == settings.temperature:  # the very samples that this evaluation would draw
                return subset(sets[arm], ids)
            return _evaluate(evaluator, out, f"{folder_of(name)}-T{t:g}", w, t, stage)

        curve = [at("base", "base", t, weights["base"]) for t in settings.temperatures]
        points: list[tuple[str, float, int | None, SampleSet]] = [
            ("base", t, None, found) for t, found in zip(settings.temperatures, curve, strict=True)
        ]
        for arm in settings.arms:
            for t in sorted({settings.temperature, *settings.arm_temperatures}):
                points.append((arm, t, None, at(arm, arm, t, weights[arm])))
            for step, path in RunDir.open(out / folder_of(arm)).checkpoints()[:-1]:
                found = at(f"{arm}-step{step:06d}", arm, settings.temperature, read_tensors(path))
                points.append((arm, settings.temperature, step, found))
            result.gaps[arm] = gap_to_frontier(
                subset(sets[arm], ids), curve, settings.samples, seed=settings.seed
            )
    way = [found for arm, t, _, found in points if arm == "grpo" and t == settings.temperature]
    if way and "es" in settings.arms:
        way = [
            subset(sets["base"], ids),
            *way,
        ]  # GRPO's trajectory from the base on, at the demo's temperature
        result.along_grpo = gap_to_frontier(
            subset(sets["es"], ids), way, settings.samples, seed=settings.seed
        )
    result.frontier = [_point(*point, settings.seed) for point in points]


def eval_settings(settings: DemoSettings) -> EvalSettings:
    """The test split, M samples a problem."""
    return EvalSettings(
        task="countdown", split="test", limit=settings.problems, samples=settings.samples,
        temperature=settings.temperature, max_new_tokens=NEW_TOKENS, seed=settings.seed, workers=settings.workers,
    )  # fmt: skip


def _run(path: Path, config: RunConfig, stage: Stage, label: str) -> Weights:
    with stage.training(label) as watcher:
        try:
            if (path / "manifest.json").is_file():
                result = resume(path, config=config, watcher=watcher)
            else:
                result = train(config, path, watcher=watcher)
        except Interrupted as error:
            raise Interrupted(error.message, AGAIN) from error
    return read_tensors(result.checkpoint)


def _evaluate(
    evaluator: Evaluator, out: Path, name: str, weights: Weights, temperature: float, stage: Stage
) -> SampleSet:
    with (
        stage.evaluation(name, evaluator.total) as progress,
        Interrupts(AGAIN) as interrupts,
    ):

        def report(done: int, tokens: int) -> None:
            interrupts.check()
            progress(done, tokens)

        return evaluator.run(
            weights, temperature=temperature, store=SampleStore(out / "samples" / folder_of(name)),
            fingerprint=center_hash(weights), on_progress=report,
        )  # fmt: skip


def _arms(
    result: DemoResult, sets: dict[str, SampleSet], drifts: dict[str, float], settings: DemoSettings
) -> None:
    """Summaries of base, arms and nulls, and every paired difference that a claim needs."""
    ks, seed = tuple(k for k in KS if k <= settings.samples), settings.seed
    plain = {n: ratios(by_problem(found), ks) for n, found in sets.items()}
    for name in ("base", *settings.arms, *(n for n in sets if n == "null-grpo")):
        result.arms[name] = summarise(sets[name], ks, seed=seed).with_metric("drift", drifts[name])
        if name != "base":
            result.paired[f"{name}-base"] = compare(sets["base"], sets[name], ks, seed=seed)
    walks = [n for n in sets if n.startswith("null-") and n != "null-grpo"]
    nulls: dict[str, Mapping[str, Ratio]] = {"null-grpo": plain["null-grpo"]} if "null-grpo" in plain else {}
    if walks:
        nulls["null"] = mean_of([plain[n] for n in walks])
        spread = [drifts[n] for n in walks]
        result.arms["null"] = replace(
            result.arms["base"], metrics=intervals(nulls["null"], seed=seed), counts={"walks": len(walks)}
        ).with_metric("drift", Interval(sum(spread) / len(spread), min(spread), max(spread)))
        result.paired["null-base"] = paired_differences(plain["base"], nulls["null"], seed=seed)
        result.nulls = [{k: r.value for k, r in plain[n].items()} for n in walks]
    for arm in settings.arms:
        own = "null-grpo" if arm == "grpo" and "null-grpo" in nulls else "null"
        if own in nulls:
            result.paired[f"{arm}-null"] = paired_differences(nulls[own], plain[arm], seed=seed)
    if {"es", "grpo"} <= set(settings.arms):
        result.paired["es-grpo"] = compare(sets["grpo"], sets["es"], ks, seed=seed)


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


def _point(arm: str, temperature: float, step: int | None, found: SampleSet, seed: int) -> FrontierPoint:
    k = int(found.conditions["samples"])
    metrics = summarise(found, (1, k), seed=seed, expected=False).metrics
    return FrontierPoint(arm, temperature, step, metrics["pass@1"], metrics[f"pass@{k}"])


def _example(sets: dict[str, SampleSet], arm: str) -> tuple[str, str, str] | None:
    """A problem that the base's sample misses and the arm's gets: (prompt, base's text, arm's text)."""
    ours = {(s.problem_id, s.sample): s for s in sets[arm].samples}
    prompts = {p.id: p.messages[-1].content for p in sets["base"].problems}
    for sample in sets["base"].samples:
        other = ours[sample.problem_id, sample.sample]
        if sample.verdict.score == 0.0 and other.verdict.score == 1.0:
            return prompts[sample.problem_id], sample.text, other.text
    return None
