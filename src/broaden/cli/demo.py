"""`broaden demo`: the main job on the bundled model, start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broaden.cli import common
from broaden.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from broaden.runs.demo import DemoResult
    from broaden.runs.events import Watcher

ARMS = ("es", "grpo", "es->grpo", "grpo->es")
SHOWN = ("pass@1", "pass@8", "pass@32", "maj@32", "entropy", "drift", "truncated")


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Where everything goes (default: runs/demo-seedS).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Training and sampling seed.")] = 0,
    updates: Annotated[int, typer.Option(min=2, help="Updates of each arm; sequences halve them.")] = 40,
    arms: Annotated[str, typer.Option(help="Which arms, with commas.")] = "es,grpo,es->grpo,grpo->es",
    greedy_es: Annotated[
        bool, typer.Option("--greedy-es", help="The paper's variant: greedy ES rollouts.")
    ] = False,
    problems: Annotated[int, typer.Option(min=10, help="Test problems.")] = 500,
    nulls: Annotated[int, typer.Option(min=0, help="Random walks of the same length, as the null.")] = 4,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one a core, 8 at most).")
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help="Temperatures of the base's frontier.")
    ] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0",
    as_json: common.Json = False,
) -> int:
    """Train the bundled model with ES, GRPO and both sequences; compare them with the base, nulls and frontier.

    Run it again after an interruption and it goes on where it stopped.

    Example: broaden demo --seed 1
    """
    frontier = common.parse_temperatures(temperatures)
    chosen = parse_arms(arms)
    import os
    import time

    from broaden.evaluation import document
    from broaden.evaluation.tables import arms_table, budget_table, in_groups, paired_table
    from broaden.runs.arms import write_summary
    from broaden.runs.demo import DemoSettings, folder_of
    from broaden.runs.demo import demo as run

    folder = out or Path("runs") / f"demo-seed{seed}"
    count = workers or min(8, os.cpu_count() or 1)
    settings = DemoSettings(
        seed=seed, updates=updates, arms=chosen, greedy_es=greedy_es, problems=problems, nulls=nulls,
        workers=count, temperatures=frontier,
    )  # fmt: skip
    began = time.monotonic()
    screen = _Screen(common.stderr())
    result = run(folder, settings, screen)
    data = document(result.arms, result.paired, result.conditions, result.budgets)
    data["frontier"] = [p.to_json() for p in result.frontier]
    data["nulls"] = result.nulls
    data["spent"] = result.spent
    data["coverage_at_equal_pass@1"] = {arm: gap.to_json() for arm, gap in result.gaps.items()}
    data["es_against_grpo's_trajectory"] = result.along_grpo.to_json() if result.along_grpo else None
    data["conditions"]["wall_seconds"] = time.monotonic() - began
    write_summary(folder, data)
    console = common.tables(as_json)
    shown = [m for m in SHOWN if m in result.arms["base"].metrics]
    for arms_together in in_groups(result.arms, 3):
        console.print(arms_table(arms_together, shown))
    for pairs_together in in_groups(result.paired, 3):
        console.print(paired_table(pairs_together, shown[:-1]))
    for together in in_groups({arm: result.budgets[arm] for arm in result.spent}, 4):
        console.print(budget_table(together, result.spent))
    _frontier(result, settings.samples, console)
    _picture(data, folder, console)
    if result.example is not None:
        prompt, before, after = result.example
        console.print(f"\n{prompt}\n--- base\n{before}\n--- trained\n{after}\n", markup=False, soft_wrap=True)
    console.print(
        f"{time.monotonic() - began:,.0f} s in all; everything is in {folder}\n"
        f"next: broaden replay {folder / folder_of(chosen[0])}   or   "
        f"broaden compare {folder}/samples/base {folder}/samples/{folder_of(chosen[0])}",
        markup=False,
        soft_wrap=True,
    )
    if as_json:
        common.print_json(data)
    return 0


def parse_arms(text: str) -> tuple[str, ...]:
    """`es,es->grpo`: known arms, each once. Raises UsageError."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    wrong = [n for n in names if n not in ARMS]
    if wrong:
        raise UsageError(f"the demo has no arm {wrong[0]!r}", f"its arms are: {', '.join(ARMS)}")
    return names


def _frontier(result: DemoResult, k: int, console: Console) -> None:
    from rich.table import Table

    table = Table(title=f"Pass@1 against Pass@{k}, by temperature and along training")
    for name in ("arm", "T", "update", "pass@1", f"pass@{k}"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for p in result.frontier:
        cells = [f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for i in (p.pass_1, p.pass_k)]
        table.add_row(p.arm, f"{p.temperature:g}", "" if p.step is None else str(p.step), *cells)
    console.print(table)
    if result.along_grpo is not None:
        g = result.along_grpo
        console.print(
            f"es against grpo at equal Pass@1, along grpo's trajectory: {g.gap.value:+.3f} "
            f"[{g.gap.low:+.3f}, {g.gap.high:+.3f}] Pass@{k}", markup=False, soft_wrap=True,
        )  # fmt: skip
    for arm, g in result.gaps.items():
        console.print(
            f"{arm}: at its Pass@1 of {g.pass_1.value:.3f} the base's own frontier has "
            f"Pass@{k} {g.frontier.value:.3f}; {arm} is {g.gap.value:+.3f} "
            f"[{g.gap.low:+.3f}, {g.gap.high:+.3f}] from it"
            + (f" (beyond the frontier's end in {100 * g.beyond:.0f} % of resamples)" if g.beyond else ""),
            markup=False, soft_wrap=True,
        )  # fmt: skip


def _picture(data: dict[str, object], folder: Path, console: Console) -> None:
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
