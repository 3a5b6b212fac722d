"""`broaden eval`: samples, verdicts and metrics with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broaden.cli import common
from broaden.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from broaden.runs.arms import EvalSettings

Samples = Annotated[int | None, typer.Option(min=1, help="M: samples a problem (default 32).")]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, help="Sampling temperature (default 0.6); 0 is greedy.")
]
NewTokens = Annotated[int, typer.Option(min=1, help="Longest response.")]
Split = Annotated[str | None, typer.Option(help="The data set's split (default: the task's).")]
Data = Annotated[Path | None, typer.Option(help="A local file of problems.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")]
Seed = Annotated[int, typer.Option(help="Seed of the samples: the same seed gives the same samples.")]
Engine = Annotated[str, typer.Option(help="auto, torch or generate.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes of one thread each; changes no sample.")]
K = Annotated[str | None, typer.Option("--k", help="Which K of Pass@K and Maj@K (default 1,8,32 up to M).")]


def evaluate(
    model: Annotated[
        str, typer.Argument(help="A model folder, a run directory, a hub name, bundled:NAME, pypi:...")
    ],
    task: Annotated[str, typer.Option(help="A task's name, or several with commas; see `broaden tasks ls`.")],
    split: Split = None,
    data: Data = None,
    limit: Limit = None,
    samples: Samples = None,
    temperature: Temperature = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="One sample at temperature 0.")] = False,
    max_new_tokens: NewTokens = 2048,
    k: K = None,
    seed: Seed = 0,
    option: common.TaskOption = None,
    engine: Engine = "auto",
    device: Device = "auto",
    dtype: Dtype = "float32",
    workers: Workers = 1,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Sequences decoded at once; fewer need less memory.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where samples and summary go (default: runs/eval-...).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Load and check everything, say how much it is, stop.")
    ] = False,
    as_json: common.Json = False,
) -> int:
    """Sample M responses a problem and report Pass@K, Maj@K, entropy and truncation with 95 % intervals.

    Samples are stored as they come: run the same command again after an interruption and it goes on.

    Example: broaden eval bundled:countdown-nano --task countdown --samples 32 --max-new-tokens 48 --limit 200
    """
    if greedy and ((samples or 1) > 1 or temperature):
        raise UsageError("--greedy is one sample at temperature 0", "drop --samples and --temperature")
    if temperature == 0 and (samples or 1) > 1:
        raise UsageError(
            f"{samples} samples at temperature 0 would be copies", "--greedy, or a higher temperature"
        )
    if greedy or temperature == 0:
        samples, temperature = 1, 0.0
    m = 32 if samples is None else samples
    ks = choose_ks(k, m)
    from broaden.runs.arms import EvalSettings, label_of

    names = task.split(",")
    if data is not None and len(names) > 1:
        raise UsageError("--data is one task's file", "evaluate tasks with files one at a time")
    documents = {}
    for name in names:
        settings = EvalSettings(
            task=name, split=split, data=str(data) if data else None, limit=limit, samples=m,
            temperature=0.6 if temperature is None else temperature, max_new_tokens=max_new_tokens, seed=seed,
            engine=engine, device=device, dtype=dtype, workers=workers, slots=slots,
            options=common.parse_options(option),
        )  # fmt: skip
        folder = out or Path("runs") / f"eval-{label_of(model)}"
        documents[name] = _one(
            model, settings, ks, folder / name if len(names) > 1 or out is None else folder, dry_run, as_json
        )
    if as_json:
        common.print_json(documents[names[0]] if len(names) == 1 else {"tasks": documents})
    return 0


def choose_ks(text: str | None, samples: int) -> tuple[int, ...]:
    """K values: as asked (K > M refused), or 1, 8, 32 as far as M reaches."""
    if text is None:
        return tuple(sorted({1, *(x for x in (8, 32) if x <= samples)}))
    asked = common.parse_numbers(text, "--k")
    if any(v != int(v) for v in asked):
        raise UsageError(f"--k {text}: every K is a whole number", "for example --k 1,8,32")
    values = tuple(sorted({int(v) for v in asked}))
    if values[0] < 1 or values[-1] > samples:
        raise UsageError(
            f"--k {text} with --samples {samples}: K must lie between 1 and M",
            f"--samples {values[-1]} or a smaller K",
        )
    return values


def _one(
    model: str, settings: EvalSettings, ks: tuple[int, ...], folder: Path, dry_run: bool, as_json: bool
) -> dict[str, object]:
    from broaden.cli.progress import EvalBars
    from broaden.evaluation import document, summarise
    from broaden.evaluation.tables import arms_table
    from broaden.runs.arms import Evaluator, label_of, write_summary
    from broaden.runs.interrupt import Interrupts
    from broaden.store import SampleStore

    console = common.stderr()
    label = label_of(model)
    store = SampleStore(folder)
    store.check_free()
    with (
        Evaluator(model, settings, console.print) as evaluator,
        Interrupts("run the same command again to go on") as interrupts,
    ):
        console.print(f"{settings.task}: {evaluator.loaded.describe()}", markup=False, soft_wrap=True)
        if dry_run:
            return _plan(evaluator, console)
        there = len(store.read_samples()) if store.exists() else 0
        if there:
            console.print(
                f"{there} of {evaluator.total} samples are in {folder} already", markup=False, soft_wrap=True
            )
        with EvalBars(console, label, evaluator.total) as bars:

            def progress(done: int, tokens: int) -> None:
                interrupts.check()
                bars.update(done, tokens)

            try:
                found = evaluator.run(store=store, on_progress=progress)
            except Interrupted as error:
                raise Interrupted(f"{error.message} in {folder}", error.fix) from error
    summary = summarise(found, ks, seed=settings.seed)
    result = document({label: summary}, {}, found.conditions)
    write_summary(folder, result)
    common.tables(as_json).print(arms_table({label: summary}))
    console.print(f"samples and summary in {folder}", markup=False, soft_wrap=True)
    return result


def _plan(evaluator: object, console: object) -> dict[str, object]:
    from rich.console import Console

    from broaden.runs.arms import Evaluator

    if not isinstance(evaluator, Evaluator) or not isinstance(console, Console):
        raise TypeError("a plan needs an evaluator and a console")
    s = evaluator.settings
    plan: dict[str, object] = {
        "problems": len(evaluator.loaded.problems), "samples": evaluator.total, "longest_prompt": evaluator.longest,
        "prompt_tokens": evaluator.prompt_tokens, "most_new_tokens": evaluator.total * s.max_new_tokens,
        "parameters": evaluator.model.parameters,
    }  # fmt: skip
    console.print(plan)
    memory, machine = evaluator.memory(), evaluator.machine
    if memory is not None:
        plan |= {
            "memory": [list(row) for row in memory.rows()], "peak_bytes": memory.peak,
            "available_bytes": machine.memory,
        }  # fmt: skip
        short = (
            "; fewer sequences at once would be decoded here, or it would be refused"
            if machine.short(memory)
            else ""
        )
        console.print(f"{memory.table()}\n{machine.text(memory)}{short}", markup=False, soft_wrap=True)
    return {"plan": plan}
