"""Pass@1 against Pass@K: the base along its sampling temperature, and each arm where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broaden.errors import UsageError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def frontier_figure(data: Mapping[str, Any], path: Path, *, base: str = "base") -> Path:
    """Draw the base's temperature curve with every arm's points, and save it.

    Args:
        data: `frontier` as a list of {"arm", "temperature", "step", "pass@1", "pass@k"} (intervals as objects; step
            None: the arm's end). An arm's trajectory is joined by a line; where it has several temperatures, the
            end's are marked small. `nulls` (a list of metric dicts) is drawn where present.
        path: a .png, .svg or .pdf file.
        base: the arm whose temperatures form the frontier.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure, axes = new_figure()
    points = list(data["frontier"])
    curve = [p for p in points if p["arm"] == base]
    axes.plot(_values(curve, "pass@1"), _values(curve, "pass@k"), "-o", color="0.45", markersize=4,
              label=f"{base}, by temperature")  # fmt: skip
    _temperatures(axes, curve)
    arms = list(dict.fromkeys(p["arm"] for p in points if p["arm"] != base))
    for arm, colour in zip(arms, COLOURS * len(arms), strict=False):
        _arm(axes, arm, [p for p in points if p["arm"] == arm], colour)
    top = _nulls(axes, data.get("nulls", ()))
    axes.set_xlabel("Pass@1")
    axes.set_ylabel(top.replace("p", "P", 1) if top else "Pass@K")
    axes.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(path, dpi=150)
    return path


def new_figure() -> tuple[Any, Any]:
    """A figure and axes in the house style. Raises UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("pictures need matplotlib", "pip install 'broaden[plots]'") from error
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def _temperatures(axes: Any, curve: Sequence[Mapping[str, Any]]) -> None:
    """Each point's temperature, but for those too near to the last one labelled."""
    values = [p["pass@k"]["value"] for p in curve]
    apart = 0.04 * (max(values) - min(values)) if values else 0.0
    last = None
    for p in curve:
        y = p["pass@k"]["value"]
        if last is None or abs(y - last) > apart:
            axes.annotate(f"{p['temperature']:g}", (p["pass@1"]["value"], y),
                          textcoords="offset points", xytext=(5, -9), fontsize=7, color="0.35")  # fmt: skip
            last = y


def _arm(axes: Any, arm: str, points: Sequence[Mapping[str, Any]], colour: str) -> None:
    """The arm's way through training, its end with intervals, and its end at other temperatures."""
    way = [p for p in points if p.get("step") is not None]
    ends = [p for p in points if p.get("step") is None]
    at = way[0]["temperature"] if way else ends[len(ends) // 2]["temperature"]
    end = next((p for p in ends if p["temperature"] == at), ends[0])
    joined = [*way, end]
    axes.plot(
        _values(joined, "pass@1"), _values(joined, "pass@k"), ":.", color=colour, linewidth=1, markersize=5
    )
    others = [p for p in ends if p is not end]
    axes.plot(_values(others, "pass@1"), _values(others, "pass@k"), "+", color=colour, markersize=6)
    for p in others:
        axes.annotate(f"{p['temperature']:g}", (p["pass@1"]["value"], p["pass@k"]["value"]),
                      textcoords="offset points", xytext=(4, 3), fontsize=6, color=colour)  # fmt: skip
    x, y = end["pass@1"], end["pass@k"]
    axes.errorbar(x["value"], y["value"], xerr=_ends(x), yerr=_ends(y), fmt="s", color=colour, markersize=5,
                  elinewidth=0.8, capsize=2, label=f"{arm} (T={at:g})")  # fmt: skip


def _nulls(axes: Any, nulls: Sequence[Mapping[str, float]]) -> str:
    """Crosses for the null walks; the name of the metric on the vertical axis ("" without nulls)."""
    drawn = [n for n in nulls if "pass@1" in n]
    top = max((k for n in drawn for k in n if k.startswith("pass@")), key=lambda k: int(k[5:]), default="")
    if top:
        axes.plot([n["pass@1"] for n in drawn], [n[top] for n in drawn], "x", color="0.2", label="null walks")
    return top


def _values(points: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [p[metric]["value"] for p in points]


def _ends(interval: Mapping[str, float]) -> Sequence[Sequence[float]]:
    return [[interval["value"] - interval["low"]], [interval["high"] - interval["value"]]]
