"""`broaden compare`: arms side by side, with intervals and paired tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broaden.cli import common
from broaden.cli import evaluate as ev
from broaden.errors import UsageError

if TYPE_CHECKING:
    from broaden.ledger.budget import Budget
    from broaden.records import SampleSet


def compare(
    arms: Annotated[list[str], typer.Argument(help="Evaluations, runs or models; the first is the base.")],
    task: Annotated[str | None, typer.Option(help="Task for arms that are not evaluated yet.")] = None,
    split: ev.Split = None,
    data: ev.Data = None,
    limit: ev.Limit = None,
    samples: ev.Samples = None,
    temperature: ev.Temperature = None,
    max_new_tokens: ev.NewTokens = 2048,
    k: ev.K = None,
    seed: ev.Seed = 0,
    option: common.TaskOption = None,
    device: ev.Device = "auto",
    dtype: ev.Dtype = "float32",
    workers: ev.Workers = 1,
    out: Annotated[
        Path | None, typer.Option(help="Where new evaluations go (default: runs/compare).")
    ] = None,
    as_json: common.Json = False,
) -> int:
    """Compare evaluations, runs or any Hugging Face checkpoints on the same problems, paired.

    Example: broaden compare bundled:countdown-nano runs/es-seed0 --task countdown --max-new-tokens 48 --limit 200
    """
    if len(arms) < 2:
        raise UsageError("a comparison needs two arms or more", "the first is the base")
    from broaden.evaluation import compare as paired
    from broaden.evaluation import document, summarise
    from broaden.evaluation.tables import arms_table, budget_table, in_groups, paired_table
    from broaden.runs.arms import EvalSettings, label_of, numbered, read_arm

    fresh = [a for a in arms if not _stored(a)]
    if fresh and task is None:
        raise UsageError(f"{fresh[0]} is not evaluated yet", "give --task and the options of broaden eval")
    given = {"task": task, "split": split, "data": data, "limit": limit, "samples": samples,
             "temperature": temperature, "option": option}  # fmt: skip
    unused = [f"--{name}" for name, value in given.items() if value is not None]
    if not fresh and unused:
        raise UsageError(
            f"{unused[0]} is for arms that are not evaluated yet; all of these are", f"drop {unused[0]}"
        )
    settings = EvalSettings(
        task=task or "", split=split, data=str(data) if data else None, limit=limit, samples=samples or 32,
        temperature=0.6 if temperature is None else temperature, max_new_tokens=max_new_tokens, seed=seed,
        device=device, dtype=dtype, workers=workers, options=common.parse_options(option),
    )  # fmt: skip
    names = numbered([label_of(a) for a in arms])
    folder = out or Path("runs") / "compare"
    sets = {
        name: read_arm(Path(a)) if _stored(a) else _evaluate(a, name, settings, folder / name)
        for name, a in zip(names, arms, strict=True)
    }
    ks = ev.choose_ks(k, min(int(s.conditions["samples"]) for s in sets.values()))
    summaries = {name: summarise(s, ks, seed=seed) for name, s in sets.items()}
    base = names[0]
    pairs = {f"{n}-{base}": paired(sets[base], sets[n], ks, seed=seed) for n in names[1:]}
    drifts = _drifts(arms)
    summaries = {
        n: s.with_metric("drift", d) if (d := drifts.get(a)) is not None else s
        for (n, s), a in zip(summaries.items(), arms, strict=True)
    }
    shown = (
        [f"pass@{x}" for x in ks]
        + [f"maj@{x}" for x in ks[-1:]]
        + ["entropy", "drift", "truncated", "distinct"]
    )
    budgets, work = _budgets(dict(zip(names, arms, strict=True)))
    result = document(summaries, pairs, _conditions(sets), budgets)
    console = common.tables(as_json)
    for arms_together in in_groups(summaries, 3):
        console.print(arms_table(arms_together, shown))
    for pairs_together in in_groups(pairs, 3):
        console.print(paired_table(pairs_together, shown[:-1]))
    for budgets_together in in_groups(budgets, 4):
        console.print(budget_table(budgets_together, work))
    if as_json:
        common.print_json(result)
    return 0


def _stored(arm: str) -> bool:
    return (Path(arm) / "header.json").is_file()


def _budgets(arms: dict[str, str]) -> tuple[dict[str, Budget], dict[str, dict[str, int]]]:
    """What the arms that are runs have spent."""
    from broaden.runs.account import spent, work
    from broaden.store import RunDir

    records = {
        name: RunDir.open(Path(arm)).records()
        for name, arm in arms.items()
        if (Path(arm) / "manifest.json").is_file()
    }
    return {n: spent(r) for n, r in records.items()}, {n: work(r) for n, r in records.items()}


def _evaluate(source: str, name: str, settings: Any, folder: Path) -> SampleSet:
    from broaden.cli.progress import EvalBars
    from broaden.runs.arms import Evaluator
    from broaden.runs.interrupt import Interrupts
    from broaden.store import SampleStore

    console = common.stderr()
    with (
        Evaluator(source, settings, console.print) as evaluator,
        Interrupts("run the same command again to go on") as stop,
        EvalBars(console, name, evaluator.total) as bars,
    ):

        def progress(done: int, tokens: int) -> None:
            stop.check()
            bars.update(done, tokens)

        return evaluator.run(store=SampleStore(folder), on_progress=progress)


def _drifts(arms: list[str]) -> dict[str, float]:
    """Relative distance from the base of every arm that is a model of the same shape; others have none."""
    from broaden.models.checkpoint import load_model
    from broaden.perturb import drift
    from broaden.runs.arms import model_path

    if any(_stored(a) for a in arms):
        return {}
    base = load_model(model_path(arms[0]), mapped=True).weights
    out = {}
    for arm in arms:
        weights = load_model(model_path(arm), mapped=True).weights
        same = base.keys() == weights.keys() and all(base[n].shape == weights[n].shape for n in base)
        if same:
            out[arm] = drift(weights, base)
    return out


def _conditions(sets: dict[str, SampleSet]) -> dict[str, Any]:
    """What all arms share; what differs stands by arm."""
    conditions = [s.conditions for s in sets.values()]
    shared = {k: v for k, v in conditions[0].items() if all(c.get(k) == v for c in conditions)}
    own = {n: {k: v for k, v in s.conditions.items() if k not in shared} for n, s in sets.items()}
    return {**shared, "by_arm": own}
