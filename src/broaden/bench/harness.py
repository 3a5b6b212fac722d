"""Alternating, warmed timings of two sides on the same work: medians, their ratio, its spread.

A side is a function that does the whole work once and returns how much it was (tokens, weights, updates), so that
sides whose amounts differ by chance (real stopping) are compared by rates. Not here: the works (one module a
bench), what the machine is (`machine`), which benches there are (`registry`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broaden.errors import MetricError

Side = Callable[[], float]
ROUNDS, QUICK_ROUNDS = 5, 2


class Unavailable(Exception):
    """A bench that cannot run here (no peer, no data); its text is the reason that is printed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line decides.

    Attributes:
        threads: CPU threads of either side.
        quick: sizes for tests: seconds, and no statement about speed.
        rounds: timed rounds of each side; None: the bench's own number.
        data: folder with gsm8k/ and math500/, for the benches that need real problems.
        peer_python: interpreter of an environment that has vLLM, a second peer of the generate benches.
    """

    threads: int
    quick: bool = False
    rounds: int | None = None
    data: Path | None = None
    peer_python: Path | None = None

    def rounds_or(self, usual: int = ROUNDS) -> int:
        """Rounds to time."""
        return self.rounds or (QUICK_ROUNDS if self.quick else usual)


@dataclass(frozen=True, slots=True)
class Round:
    """One timed run of a side: what it did, seconds on the wall, CPU seconds of this process."""

    work: float
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Work a second."""
        return self.work / self.seconds


@dataclass(frozen=True, slots=True)
class Pair:
    """The rounds of both sides; round i of one ran next to round i of the other."""

    ours: tuple[Round, ...]
    peer: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a bench says. `ours`, `peer` and `ratio` are None where it was skipped; `spread` holds [lowest, highest]
    over the rounds, by the names of those three."""

    unit: str
    ours: float | None = None
    peer: float | None = None
    ratio: float | None = None
    spread: dict[str, list[float]] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """{"ours", "peer", "ratio", "unit", "spread", "conditions"}, and "skipped" where it was."""
        out: dict[str, Any] = {
            "ours": self.ours, "peer": self.peer, "ratio": self.ratio, "unit": self.unit, "spread": self.spread,
            "conditions": self.conditions,
        }  # fmt: skip
        return out | ({"skipped": self.skipped} if self.skipped is not None else {})


def timed(side: Side) -> Round:
    """Run a side once under the clocks."""
    cpu, wall = time.process_time(), time.perf_counter()
    work = side()
    return Round(float(work), time.perf_counter() - wall, time.process_time() - cpu)


def alternate(ours: Side, peer: Side, rounds: int, warm_ups: int = 1) -> Pair:
    """`rounds` timed rounds of each side after uncounted ones; who goes first changes with the round.

    Raises:
        MetricError: rounds below 1.
    """
    if rounds < 1:
        raise MetricError(f"a bench needs at least one round, got {rounds}", "--rounds 3")
    for _ in range(warm_ups):
        ours()
        peer()
    mine: list[Round] = []
    theirs: list[Round] = []
    for index in range(rounds):
        order = ((ours, mine), (peer, theirs))
        for side, times in order if index % 2 == 0 else order[::-1]:
            times.append(timed(side))
    return Pair(tuple(mine), tuple(theirs))


def repeat(side: Side, rounds: int, warm_ups: int = 1) -> tuple[Round, ...]:
    """A side without a peer."""
    for _ in range(warm_ups):
        side()
    return tuple(timed(side) for _ in range(rounds))


def rate(rounds: Sequence[Round]) -> float:
    """Median of the rounds' rates."""
    return statistics.median(r.rate for r in rounds)


def spread(pair: Pair) -> dict[str, list[float]]:
    """Lowest and highest rate of each side, and of the ratios of rounds that ran next to each other."""
    ratios = [o.rate / p.rate for o, p in zip(pair.ours, pair.peer, strict=True)]
    sides = {"ours": [r.rate for r in pair.ours], "peer": [r.rate for r in pair.peer], "ratio": ratios}
    return {name: [min(values), max(values)] for name, values in sides.items()}


def compared(pair: Pair, unit: str, conditions: dict[str, Any]) -> Result:
    """The result of two sides by rates: ratio of medians (above 1: ours is faster).

    `cpu_ratio` is the same from CPU seconds: on a busy machine it is the steadier figure. It counts this process
    only, so benches that work in other processes leave it out.
    """
    mine, theirs = rate(pair.ours), rate(pair.peer)
    measured: dict[str, Any] = {
        "rounds": len(pair.ours),
        "seconds_ours": [round(r.seconds, 4) for r in pair.ours],
        "seconds_peer": [round(r.seconds, 4) for r in pair.peer],
    }
    if all(r.cpu > 0 for r in (*pair.ours, *pair.peer)) and not conditions.get("processes"):
        used = [statistics.median(r.work / r.cpu for r in side) for side in (pair.ours, pair.peer)]
        measured["cpu_ratio"] = used[0] / used[1]
    return Result(unit, mine, theirs, mine / theirs, spread(pair), conditions | measured)


def by_size(ours: Sequence[float], peer: Sequence[float], unit: str, conditions: dict[str, Any]) -> Result:
    """The result of two sides by size (bytes): ratio of medians, smaller is better."""
    mine, theirs = statistics.median(ours), statistics.median(peer)
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    bounds = {"ours": ours, "peer": peer, "ratio": ratios}
    return Result(
        unit, mine, theirs, mine / theirs, {k: [min(v), max(v)] for k, v in bounds.items()},
        {"rounds": len(ratios), "better": "smaller"} | conditions,
    )  # fmt: skip
