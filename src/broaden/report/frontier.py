"""Pass@1 against Pass@K: the base along its sampling temperature, and each arm where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broaden.errors import UsageError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def frontier_figure(data: Mapping[str, Any], path: Path) -> Path:
    """Draw the base's temperature curve with every other point of `data["frontier"]`, and save it.

    Args:
        data: `frontier` as a list of {"label", "temperature", "pass@1", "pass@k"} (intervals as objects); points whose
            label starts with "T=" form the base's curve. `nulls` (a list of metric dicts) is drawn where present.
        path: a .png, .svg or .pdf file.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure, axes = new_figure()
    points = list(data["frontier"])
    curve = [p for p in points if p["label"].startswith("T=")]
    axes.plot(
        [p["pass@1"]["value"] for p in curve], [p["pass@k"]["value"] for p in curve],
        "-o", color="0.45", markersize=4, label="base, by temperature",
    )  # fmt: skip
    _temperatures(axes, curve)
    arms = [p for p in points if not p["label"].startswith("T=")]
    for p, colour in zip(arms, COLOURS * len(arms), strict=False):
        _point(axes, p, colour)
    nulls = [n for n in data.get("nulls", ()) if "pass@1" in n]
    top = max((k for n in nulls for k in n if k.startswith("pass@")), key=lambda k: int(k[5:]), default=None)
    if top is not None:
        axes.plot(
            [n["pass@1"] for n in nulls],
            [n[top] for n in nulls],
            "x",
            color="0.2",
            label="null walks (all problems)",
        )
    axes.set_xlabel("Pass@1")
    axes.set_ylabel("Pass@K" if not nulls or top is None else f"Pass@{top[5:]}")
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


def _point(axes: Any, point: Mapping[str, Any], colour: str) -> None:
    x, y = point["pass@1"], point["pass@k"]
    axes.errorbar(
        x["value"], y["value"], xerr=_ends(x), yerr=_ends(y), fmt="s", color=colour, markersize=6,
        capsize=2, label=f"{point['label']} (T={point['temperature']:g})",
    )  # fmt: skip


def _ends(interval: Mapping[str, float]) -> Sequence[Sequence[float]]:
    return [[interval["value"] - interval["low"]], [interval["high"] - interval["value"]]]
