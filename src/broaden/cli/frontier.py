"""`broaden frontier`: Pass@1 against Pass@K over temperatures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broaden.cli import common
from broaden.cli import evaluate as ev
from broaden.errors import UsageError


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
    values = common.parse_numbers(temperatures, "--temperatures")
    if min(values) <= 0:
        raise UsageError(f"--temperatures {temperatures}: all must be above 0", "--temperatures 0.1,0.6,1.0")
    m = 32 if samples is None else samples
    if m < 2:
        raise UsageError("a frontier of Pass@K needs --samples 2 or more", "--samples 32")
    from rich.table import Table

    from broaden.cli.progress import EvalBars
    from broaden.evaluation import gap_to_frontier, summarise
    from broaden.records import SampleSet
    from broaden.report.frontier import frontier_figure
    from broaden.runs.arms import EvalSettings, Evaluator, label_of, numbered, write_summary
    from broaden.runs.interrupt import Interrupts
    from broaden.store import SampleStore

    folder = out or Path("runs") / "frontier"
    settings = EvalSettings(
        task=task, split=split, data=str(data) if data else None, limit=limit, samples=m,
        max_new_tokens=max_new_tokens, seed=seed, device=device, dtype=dtype, workers=workers,
    )  # fmt: skip
    points: list[dict[str, object]] = []
    base: list[SampleSet] = []
    table = Table(
        title=f"{task}: Pass@1 and Pass@{m} over temperatures", caption="95 % intervals over problems"
    )
    for column in ("model", "T", "pass@1", f"pass@{m}", "entropy", "against the base's frontier"):
        table.add_column(column, justify="left" if column == "model" else "right")
    names = numbered([label_of(x) for x in models])
    for index, (name, source) in enumerate(zip(names, models, strict=True)):
        with (
            Evaluator(source, settings) as evaluator,
            Interrupts("run the same command again to go on") as stop,
        ):
            for t in values:
                with EvalBars(common.stderr(), f"{name} T={t:g}", evaluator.total) as bars:

                    def progress(
                        done: int, tokens: int, bars: EvalBars = bars, stop: Interrupts = stop
                    ) -> None:
                        stop.check()
                        bars.update(done, tokens)

                    store = SampleStore(folder / name / f"T{t:g}")
                    found = evaluator.run(temperature=t, store=store, on_progress=progress)
                metrics = summarise(found, (1, m), seed=seed, expected=False).metrics
                point: dict[str, object] = {
                    "model": name, "label": f"T={t:g}" if index == 0 else name, "temperature": t,
                    "pass@1": metrics["pass@1"].to_json(), "pass@k": metrics[f"pass@{m}"].to_json(),
                    "entropy": metrics["entropy"].to_json(),
                }  # fmt: skip
                if index == 0:
                    base.append(found)
                    gap = ""
                else:
                    against = gap_to_frontier(found, base, m, seed=seed)
                    point["coverage_at_equal_pass@1"] = against.to_json()
                    g = against.gap
                    gap = f"{g.value:+.3f} [{g.low:+.3f}, {g.high:+.3f}]"
                points.append(point)
                cells = [f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]"
                         for i in (metrics["pass@1"], metrics[f"pass@{m}"], metrics["entropy"])]  # fmt: skip
                table.add_row(name, f"{t:g}", *cells, gap)
    result = {"frontier": points, "conditions": {"task": task, "samples": m, "seed": seed, "k": m}}
    write_summary(folder, result)
    console = common.tables(as_json)
    console.print(table)
    try:
        console.print(f"picture: {frontier_figure(result, folder / 'frontier.png')}", markup=False)
    except UsageError as error:
        console.print(f"no picture: {error.message} ({error.fix})", markup=False)
    if as_json:
        common.print_json(result)
    return 0
