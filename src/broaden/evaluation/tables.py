"""Tables for the terminal (rich is imported inside: importing this module stays cheap)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from broaden.evaluation.compare import Comparison
from broaden.evaluation.summary import ArmSummary
from broaden.ledger.budget import Budget
from broaden.metrics.intervals import Interval

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")
PLAIN = {"length", "entropy", "drift"}


def format_value(name: str, interval: Interval | None, *, signed: bool = False) -> str:
    """ "0.312 [0.290, 0.334]": lengths with one digit, entropy and drift with four, scores with three."""
    if interval is None:
        return "-"
    digits = 1 if name == "length" else 4 if name in PLAIN else 3
    plus = "+" if signed else ""
    value = f"{interval.value:{plus}.{digits}f}"
    if interval.low == interval.high:
        return value
    return f"{value} [{interval.low:{plus}.{digits}f}, {interval.high:{plus}.{digits}f}]"


def metric_names(arms: Mapping[str, ArmSummary]) -> list[str]:
    """All metrics of the arms, in the first arm's order."""
    return list(dict.fromkeys(name for arm in arms.values() for name in arm.metrics))


def arms_table(
    arms: Mapping[str, ArmSummary], metrics: Sequence[str] | None = None, title: str = ""
) -> Table:
    """One row a metric, one column an arm; 95 % intervals over problems."""
    from rich.table import Table

    names = list(metrics) if metrics is not None else metric_names(arms)
    table = Table(title=title or None, caption=caption(arms))
    table.add_column("")
    for label in arms:
        table.add_column(label, justify="right")
    for name in names:
        table.add_row(name, *(format_value(name, arm.metrics.get(name)) for arm in arms.values()))
    return table


def in_groups(arms: Mapping[str, T], size: int = 4) -> list[dict[str, T]]:
    """Consecutive arms or pairs, at most `size` together: as many as a terminal shows side by side."""
    items = list(arms.items())
    return [dict(items[i : i + size]) for i in range(0, len(items), size)]


def paired_table(
    pairs: Mapping[str, Comparison | Mapping[str, Interval]],
    metrics: Sequence[str] | None = None,
    title: str = "",
) -> Table:
    """One row a metric, one column a pair: differences with 95 % intervals, starred where zero is outside."""
    from rich.table import Table

    plain = {label: pair.metrics if isinstance(pair, Comparison) else pair for label, pair in pairs.items()}
    every = dict.fromkeys(n for m in plain.values() for n in m)
    names = list(every) if metrics is None else [n for n in metrics if n in every]
    table = Table(title=title or None, caption="paired over problems; * = the 95 % interval excludes zero")
    table.add_column("difference")
    for label in pairs:
        table.add_column(label, justify="right")
    for name in names:
        table.add_row(name, *(_starred(name, plain[label].get(name)) for label in pairs))
    for name in ("progressions", "regressions"):
        table.add_row(name, *(_moved(pair, name) for pair in pairs.values()))
    return table


def budget_table(budgets: Mapping[str, Budget], work: Mapping[str, Mapping[str, int]]) -> Table:
    """What each arm spent: all four budgets, with rollouts and optimiser steps."""
    from rich.table import Table

    table = Table(
        title="what each arm spent", caption="FLOPs: the paper's ledger, and the full one with decoding"
    )
    table.add_column("")
    for arm in budgets:
        table.add_column(arm, justify="right")
    rows = {
        "updates": [f"{b.updates:,}" for b in budgets.values()],
        "rollouts": [f"{work[a]['rollouts']:,}" for a in budgets],
        "optimiser steps": [f"{work[a]['optimizer_steps']:,}" for a in budgets],
        "tokens": [f"{b.tokens:,}" for b in budgets.values()],
        "FLOPs (paper)": [f"{b.flops_paper:.2e}" for b in budgets.values()],
        "FLOPs (full)": [f"{b.flops_full:.2e}" for b in budgets.values()],
        "seconds": [f"{b.seconds:,.0f}" for b in budgets.values()],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _moved(pair: Comparison | Mapping[str, Interval], name: str) -> str:
    if not isinstance(pair, Comparison):
        return "-"
    return str(len(pair.progressions if name == "progressions" else pair.regressions))


def caption(arms: Mapping[str, ArmSummary]) -> str:
    """What a reader needs under a table: problems, samples, temperature, what was left out, flags."""
    notes = []
    sizes = {(a.problems, a.samples, a.conditions.get("temperature")) for a in arms.values()}
    if len(sizes) == 1:
        problems, samples, temperature = next(iter(sizes))
        notes.append(
            f"{problems} problems x {samples} samples, temperature {temperature}; 95 % over problems"
        )
        if problems < 50:
            notes.append("few problems: read the intervals, not the values")
    for label, arm in arms.items():
        for flag in ("unscored_problems", "mixed_ballots", "only_right_is_borderline"):
            if arm.counts.get(flag):
                notes.append(f"{label}: {arm.counts[flag]} {flag.replace('_', ' ')}")
    if any(
        int(name[5:]) >= 2 and int(name[5:]) * 4 > a.samples
        for a in arms.values()
        for name in a.metrics
        if name.startswith("pass@")
    ):
        notes.append("coverage at K wants M >= 4K samples")
    return "\n".join(notes)


def _starred(name: str, interval: Interval | None) -> str:
    text = format_value(name, interval, signed=True)
    return f"{text} *" if interval is not None and interval.excludes_zero() else text
