"""`broaden bench score`: this verifier against math-verify in one process, on judged GSM8K solutions and MATH-500
golds.

Work: each of the judged solutions (its text after the last "A:" in a box) against its gold, and each MATH-500 gold
against itself. Both sides alternate; each round is timed whole; medians. Peer: math-verify as its README uses it, with
five seconds a call. Not here: whether the verdicts are right for other data (`broaden tasks verify`).
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from broaden.bench.harness import Pair, Result, Round, Settings, Unavailable, spread
from broaden.records import Problem
from broaden.tasks import get, load_problems
from broaden.tasks.files import read

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
Case = tuple[str, str, str, bool]
"""(task, gold, response, published verdict)."""


def run(settings: Settings) -> Result:
    """The bench: `--data` names the folder that holds gsm8k/ and math500/."""
    folder = settings.data
    if folder is None or not all((folder / name).is_dir() for name in ("gsm8k", "math500")):
        raise Unavailable(
            "no judged solutions here: --data FOLDER names a folder that holds gsm8k/ and math500/"
        )
    score(folder / "gsm8k", folder / "math500", 1, 5)  # imports and tables of both sides
    said = score(folder / "gsm8k", folder / "math500", settings.rounds_or(3), 40 if settings.quick else None)
    cases, seconds = said["conditions"]["cases"], said["conditions"]
    sides = [tuple(Round(cases, s, 0.0) for s in seconds[f"seconds_{side}"]) for side in ("ours", "peer")]
    return Result(
        said["unit"], said["ours"], said["peer"], said["ratio"], spread(Pair(*sides)), said["conditions"]
    )


def score(gsm8k: Path, math500: Path, rounds: int = 3, limit: int | None = None) -> dict[str, Any]:
    """Times both verifiers on the same cases.

    Args:
        gsm8k: folder with test.jsonl and example_model_solutions.jsonl.
        math500: the MATH-500 file or its folder.
        rounds: timed rounds of each side.
        limit: only the first so many solutions (for tests).

    Returns:
        {"ours", "peer", "ratio", "unit", "conditions"}: verdicts a second, ratio = ours / peer; the agreement of each
        with the published verdicts stands in the conditions.
    """
    cases = load_cases(gsm8k, math500, limit)
    ours: list[float] = []
    peer: list[float] = []
    agreement: dict[str, float] = {}
    for _ in range(rounds):
        for name, judge, times in (("ours", _ours, ours), ("peer", _math_verify, peer)):
            seconds, verdicts = _timed(judge, cases)
            times.append(seconds)
            agreement[name] = sum(v == c[3] for v, c in zip(verdicts, cases, strict=True)) / len(cases)
    speed = len(cases) / statistics.median(ours), len(cases) / statistics.median(peer)
    return {
        "ours": speed[0],
        "peer": speed[1],
        "ratio": speed[0] / speed[1],
        "unit": "verdicts/s",
        "conditions": {
            "peer": f"math-verify {version('math-verify')}, one process",
            "cases": len(cases),
            "rounds": rounds,
            "agreement_ours": agreement["ours"],
            "agreement_peer": agreement["peer"],
            "seconds_ours": ours,
            "seconds_peer": peer,
            "python": platform.python_version(),
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def load_cases(gsm8k: Path, math500: Path, limit: int | None = None) -> list[Case]:
    """The judged solutions, then each MATH-500 gold with itself."""
    problems = load_problems("gsm8k", "test", gsm8k).problems
    cases: list[Case] = []
    for (_, row), problem in zip(read(gsm8k / "example_model_solutions.jsonl"), problems, strict=True):
        for model in MODELS:
            cases.append(
                ("gsm8k", problem.gold, boxed(row[model]["solution"]), bool(row[model]["is_correct"]))
            )
    golds = [p.gold for p in load_problems("math500", "test", math500).problems]
    if limit is not None:
        cases, golds = cases[:limit], golds[:limit]
    return cases + [("math500", g, f"The answer is $\\boxed{{{g}}}$.", True) for g in golds]


def boxed(solution: str) -> str:
    """A published solution ("... A: 18") under the boxed contract; without "A:" it stays without an answer."""
    head, mark, tail = solution.rpartition("\nA:")
    return f"{head}\nThe answer is $\\boxed{{{tail.strip()}}}$." if mark else solution


def _timed(judge: Callable[[Sequence[Case]], list[bool]], cases: Sequence[Case]) -> tuple[float, list[bool]]:
    start = time.perf_counter()
    verdicts = judge(cases)
    return time.perf_counter() - start, verdicts


def _ours(cases: Sequence[Case]) -> list[bool]:
    from broaden.tasks import mathematics

    mathematics.gold_readings.cache_clear()
    tasks = {"gsm8k": get("gsm8k"), "math500": get("math500")}
    return [
        tasks[task].judge(Problem("x", task, (), gold), response, "stop").score == 1.0
        for task, gold, response, _ in cases
    ]


def _math_verify(cases: Sequence[Case]) -> list[bool]:
    """As its README uses it: the gold in dollars, the whole response, default settings but for the timeouts."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    out = []
    for _, gold, response, _ in cases:
        parsed = parse(f"\\boxed{{{gold}}}", parsing_timeout=5), parse(response, parsing_timeout=5)
        out.append(bool(verify(*parsed, timeout_seconds=5)))
    return out
