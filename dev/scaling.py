"""Does a population's cost grow linearly in members and in tokens? Writes a figure and prints a table.

    OMP_NUM_THREADS=1 python dev/scaling.py --out docs/images/scaling.png

The bundled model, 64 Countdown prompts, full-rank members one by one in this process, every response exactly as long as
asked (no stop token), verdicts included; CPU seconds, median of the rounds. The dashed line is the least-squares
line; where it meets the axis is what a rollout costs beside: prompts, noise and bookkeeping of 16 members on the right.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from broaden import tasks
from broaden.bench.subjects import Subject, bundled, countdown_prompts, engine_for
from broaden.perturb import NoiseSpec
from broaden.population import LocalPopulation, Member, Prompt, RolloutJob
from broaden.records import Sampling

PROMPTS = 64
MEMBERS, TOKENS = (4, 8, 16, 32, 64), (8, 16, 24, 32, 48, 64)
AT_TOKENS, AT_MEMBERS = 32, 16


def main() -> None:
    """Measure both series, print the table, draw the figure."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, default=Path("docs/images/scaling.png"))
    asked.add_argument("--rounds", type=int, default=5)
    options = asked.parse_args()
    torch.set_num_threads(1)
    subject = bundled()
    prompts = countdown_prompts(subject, PROMPTS)
    population = population_of(subject, prompts)
    seconds(population, subject, 2, 8)  # compiles
    by_members = [
        [seconds(population, subject, n, AT_TOKENS) for n in MEMBERS] for _ in range(options.rounds)
    ]
    by_tokens = [[seconds(population, subject, AT_MEMBERS, t) for t in TOKENS] for _ in range(options.rounds)]
    series = [
        ("members", f"{AT_TOKENS} tokens a response", MEMBERS, medians(by_members)),
        ("tokens a response", f"{AT_MEMBERS} members", TOKENS, medians(by_tokens)),
    ]
    for what, held, at, took in series:
        print(table(what, held, at, took))
    draw(options.out, series)


def population_of(subject: Subject, prompts: list[Prompt]) -> LocalPopulation:
    """Members one by one, with no stop token."""
    context = max(len(p.ids) for p in prompts) + max(TOKENS)
    engine = engine_for(subject, eos=(), dtype=torch.float32, threads=1, context=context)
    return LocalPopulation(engine, subject.tokenizer, tasks.get("countdown"), prompts)


def seconds(population: LocalPopulation, subject: Subject, members: int, tokens: int) -> float:
    """CPU seconds of one rollout, noise and verdicts included."""
    job = RolloutJob(
        NoiseSpec(0, members, 0.01, tuple(subject.weights)), tuple(Member(i) for i in range(members)),
        tuple(range(PROMPTS)), 1, Sampling(0.6, tokens),
    )  # fmt: skip
    began = time.process_time()
    found = population.rollout(subject.weights, job)
    took = time.process_time() - began
    if sum(r.tokens for r in found) != members * PROMPTS * tokens:
        raise RuntimeError("a response ended early")
    return took


def medians(rounds: list[list[float]]) -> list[float]:
    """Of each point over the rounds."""
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def line(at: Sequence[int], took: Sequence[float]) -> tuple[float, float]:
    """Least-squares (slope, intercept) of seconds over x."""
    slope, intercept = np.polyfit(np.array(at, float), np.array(took), 1)
    return float(slope), float(intercept)


def table(what: str, held: str, at: Sequence[int], took: Sequence[float]) -> str:
    """A Markdown table: seconds, and those over the line's."""
    slope, intercept = line(at, took)
    rows = {
        f"{what} ({held})": [str(x) for x in at],
        "CPU s": [f"{s:.3f}" for s in took],
        f"over {1e3 * slope:.2f} ms each + {1e3 * intercept:.0f} ms": [
            f"{s / (slope * x + intercept):.3f}" for x, s in zip(at, took, strict=True)
        ],
    }
    lines = [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join([lines[0], "|---" * (len(at) + 1) + "|", *lines[1:]]) + "\n"


def draw(path: Path, series: list[tuple[str, str, tuple[int, ...], list[float]]]) -> None:
    """Two panels beside each other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(7.2, 2.9), dpi=110, layout="constrained")
    for axis, (what, held, at, took) in zip(axes, series, strict=True):
        (slope, intercept), end = line(at, took), max(at)
        axis.plot(
            [0, end], [intercept, slope * end + intercept], "--", color="0.6", linewidth=1, label="line"
        )
        axis.plot(at, took, "o", color="#1f6f8b", markersize=5, label="measured")
        axis.set(xlabel=what, ylabel="CPU seconds", title=held, xlim=(0, None), ylim=(0, None), xticks=at[1:])
        axis.title.set_fontsize(10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
