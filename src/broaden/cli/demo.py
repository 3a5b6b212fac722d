"""`broaden demo`: the main job on the bundled model, start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broaden.cli import common

if TYPE_CHECKING:
    from rich.console import Console

    from broaden.runs.demo import DemoResult
    from broaden.runs.events import Watcher

SHOWN = ("pass@1", "pass@8", "pass@32", "maj@32", "entropy", "drift", "truncated")


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Where everything goes (default: runs/demo-seedS).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Training and sampling seed.")] = 0,
    updates: Annotated[int, typer.Option(min=1, help="ES updates.")] = 60,
    problems: Annotated[int, typer.Option(min=10, help="Test problems.")] = 500,
    nulls: Annotated[int, typer.Option(min=0, help="Random walks of the same length, as the null.")] = 4,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one a core, 8 at most).")
    ] = None,
    as_json: common.Json = False,
) -> int:
    """Train the bundled model with ES; compare it with its base, a null and the base's temperature frontier.

    Run it again after an interruption and it goes on where it stopped.

    Example: broaden demo --seed 1
    """
    import os
    import time

    from broaden.evaluation import document
    from broaden.evaluation.tables import arms_table, paired_table
    from broaden.runs.arms import write_summary
    from broaden.runs.demo import DemoSettings
    from broaden.runs.demo import demo as run

    folder = out or Path("runs") / f"demo-seed{seed}"
    count = workers or min(8, os.cpu_count() or 1)
    settings = DemoSettings(seed=seed, updates=updates, problems=problems, nulls=nulls, workers=count)
    began = time.monotonic()
    screen = _Screen(common.stderr())
    result = run(folder, settings, screen)
    data = document(result.arms, result.paired, result.conditions, result.budgets)
    data["frontier"] = [
        {"label": p.label, "temperature": p.temperature, "pass@1": p.pass_1.to_json(), "pass@k": p.pass_k.to_json()}
        for p in result.frontier
    ]  # fmt: skip
    data["nulls"] = result.nulls
    if result.gap is not None:
        data["coverage_at_equal_pass@1"] = {"es": result.gap.to_json()}
    data["conditions"]["wall_seconds"] = time.monotonic() - began
    write_summary(folder, data)
    console = common.tables(as_json)
    shown = [m for m in SHOWN if m in result.arms["base"].metrics]
    console.print(arms_table(result.arms, shown))
    console.print(paired_table(result.paired, shown[:-1]))
    _frontier(result, console)
    _picture(data, folder, console)
    if result.example is not None:
        prompt, before, after = result.example
        console.print(f"\n{prompt}\n--- base\n{before}\n--- ES\n{after}\n", markup=False, soft_wrap=True)
    console.print(
        f"{time.monotonic() - began:,.0f} s in all; everything is in {folder}\n"
        f"next: broaden replay {folder / 'es'} --step 10   or   "
        f"broaden compare {folder}/samples/base {folder}/samples/es",
        markup=False,
        soft_wrap=True,
    )
    if as_json:
        common.print_json(data)
    return 0


def _frontier(result: DemoResult, console: Console) -> None:
    from rich.table import Table

    table = Table(title="the base's temperature frontier", caption="ES stands last, at its own temperature")
    for name in ("", "pass@1", "pass@32"):
        table.add_column(name, justify="right")
    for p in result.frontier:
        cells = [f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for i in (p.pass_1, p.pass_k)]
        table.add_row(p.label, *cells)
    console.print(table)
    if result.gap is not None:
        g = result.gap
        console.print(
            f"at ES's Pass@1 of {g.pass_1.value:.3f} the base's frontier has Pass@32 {g.frontier.value:.3f}; ES is "
            f"{g.gap.value:+.3f} [{g.gap.low:+.3f}, {g.gap.high:+.3f}] from it"
            + (f" (beyond the frontier's end in {100 * g.beyond:.0f} % of resamples)" if g.beyond else ""),
            markup=False, soft_wrap=True,
        )  # fmt: skip


def _picture(data: dict[str, object], folder: Path, console: Console) -> None:
    from broaden.errors import UsageError
    from broaden.report.frontier import frontier_figure

    try:
        path = frontier_figure(data, folder / "frontier.png")
    except UsageError as error:
        console.print(f"no picture: {error.message} ({error.fix})", markup=False, soft_wrap=True)
        return
    console.print(f"picture: {path}", markup=False, soft_wrap=True)


class _Screen:
    """Bars and notes on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, text: str) -> None:
        """A line for people."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def training(self, label: str) -> Iterator[Watcher]:
        """Bars of a run."""
        from broaden.cli.progress import TrainBars

        with TrainBars(self.console, label) as bars:
            yield bars

    @contextmanager
    def evaluation(self, label: str, total: int) -> Iterator[Callable[[int, int], None]]:
        """A bar of an evaluation."""
        from broaden.cli.progress import EvalBars

        with EvalBars(self.console, label, total) as bars:
            yield bars.update
