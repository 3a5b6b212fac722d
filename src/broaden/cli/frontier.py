"""`broaden frontier`: Pass@1 against Pass@K over temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broaden.cli import common
from broaden.cli import evaluate as ev
from broaden.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from broaden.records import SampleSet
    from broaden.runs.arms import EvalSettings


def frontier(
    models: Annotated[list[str], typer.Argument(help="Models or runs; the first is the base.")],
    task: Annotated[str, typer.Option(help="A task's name.")],
    temperatures: Annotated[str, typer.Option(help="Sampling temperatures.")] = "0.1,0.2,0.4,0.6,0.8,1.0",
    split: ev.Split = None,
    data: ev.Data = None,
    limit: ev.Limit = None,
    samples: ev.Samples = None,
    max_new_tokens: ev.NewTokens = 2048,
    seed: ev.Seed = 0,
    option: common.TaskOption = None,
    device: ev.Device = "auto",
    dtype: ev.Dtype = "float32",
    workers: ev.Workers = 1,
    out: Annotated[
        Path | None, typer.Option(help="Where samples and picture go (default: runs/frontier).")
    ] = None,
    as_json: common.Json = False,
) -> int:
    """Evaluate models over temperatures: a claim about coverage needs the base's own frontier beside it.

    Example: broaden frontier bundled:countdown-nano runs/es-seed0 --task countdown --max-new-tokens 48 --limit 200
    """
    values = common.parse_temperatures(temperatures)
    m = 32 if samples is None else samples
    if m < 2:
        raise UsageError("a frontier of Pass@K needs --samples 2 or more", "--samples 32")
    from broaden.report.frontier import frontier_figure
    from broaden.runs.arms import EvalSettings, label_of, numbered, write_summary

    folder = out or Path("runs") / "frontier"
    settings = EvalSettings(
        task=task, split=split, data=str(data) if data else None, limit=limit, samples=m,
        max_new_tokens=max_new_tokens, seed=seed, device=device, dtype=dtype, workers=workers,
        options=common.parse_options(option),
    )  # fmt: skip
    names = numbered([label_of(x) for x in models])
    base: list[SampleSet] = []
    points: list[dict[str, Any]] = []
    for name, source in zip(names, models, strict=True):
        found = _evaluate(source, name, settings, values, folder / name)
        points += [_point(name, t, s, base, seed) for t, s in zip(values, found, strict=True)]
        base = base or found
    result = {"frontier": points, "conditions": {"task": task, "samples": m, "seed": seed, "k": m}}
    write_summary(folder, result)
    console = common.tables(as_json)
    console.print(_table(points, task, m))
    try:
        console.print(
            f"picture: {frontier_figure(result, folder / 'frontier.png', base=names[0])}", markup=False
        )
    except UsageError as error:
        console.print(f"no picture: {error.message} ({error.fix})", markup=False, soft_wrap=True)
    if as_json:
        common.print_json(result)
    return 0


def _evaluate(
    source: str, name: str, settings: EvalSettings, temperatures: Sequence[float], folder: Path
) -> list[SampleSet]:
    """One model's samples at each temperature, stored as they come."""
    from broaden.cli.progress import EvalBars
    from broaden.runs.arms import Evaluator
    from broaden.runs.interrupt import Interrupts
    from broaden.store import SampleStore

    out = []
    with (
        Evaluator(source, settings, common.stderr().print) as evaluator,
        Interrupts("run the same command again to go on") as stop,
    ):
        for t in temperatures:
            with EvalBars(common.stderr(), f"{name} T={t:g}", evaluator.total) as bars:

                def progress(done: int, tokens: int, bars: EvalBars = bars) -> None:
                    stop.check()
                    bars.update(done, tokens)

                out.append(
                    evaluator.run(temperature=t, store=SampleStore(folder / f"T{t:g}"), on_progress=progress)
                )
    return out


def _point(
    name: str, temperature: float, found: SampleSet, base: Sequence[SampleSet], seed: int
) -> dict[str, Any]:
    """Pass@1, Pass@M and entropy with intervals; against the base's frontier where this is not the base."""
    from broaden.evaluation import gap_to_frontier, summarise

    m = int(found.conditions["samples"])
    metrics = summarise(found, (1, m), seed=seed, expected=False).metrics
    point: dict[str, Any] = {
        "arm": name, "step": None, "temperature": temperature, "pass@1": metrics["pass@1"].to_json(),
        "pass@k": metrics[f"pass@{m}"].to_json(), "entropy": metrics["entropy"].to_json(),
    }  # fmt: skip
    if base:
        point["coverage_at_equal_pass@1"] = gap_to_frontier(found, base, m, seed=seed).to_json()
    return point


def _table(points: Sequence[dict[str, Any]], task: str, m: int) -> Table:
    from rich.table import Table

    against = any("coverage_at_equal_pass@1" in p for p in points)
    table = Table(title=f"{task}: Pass@1 and Pass@{m} by temperature", caption="95 % intervals over problems")
    table.add_column("model", overflow="fold")
    for column in (
        "T",
        "pass@1",
        f"pass@{m}",
        "entropy",
        *(["against the base's frontier"] if against else []),
    ):
        table.add_column(column, justify="right")
    for p in points:
        cells = [f"{p[x]['value']:.3f} [{p[x]['low']:.3f}, {p[x]['high']:.3f}]" for x in ("pass@1", "pass@k")]
        gap = p.get("coverage_at_equal_pass@1", {}).get("gap")
        last = (
            [f"{gap['value']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]" if gap else ""] if against else []
        )
        table.add_row(p["arm"], f"{p['temperature']:g}", *cells, f"{p['entropy']['value']:.3f}", *last)
    return table
