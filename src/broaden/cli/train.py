"""`broaden train`: run a configuration, resume a run, or show what it would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broaden.cli import common
from broaden.errors import UsageError

if TYPE_CHECKING:
    from broaden.config import RunConfig

EPILOG = "Examples: broaden train configs/demo/es.toml seed=1 --out runs/es-1   |   broaden train --resume runs/es-1"


def train(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; see configs/.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, for example stages.0.sigma=0.01.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory (default: runs/NAME-seedS).")] = None,
    stages: Annotated[str | None, typer.Option(help="Shorthand: es:117,sft:50.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run; a given CONFIG must agree with it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Print the resolved file, memory and budget; run nothing.")
    ] = False,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=1e-9, help="--dry-run: decoding rate, for an estimate of the time.")
    ] = None,
    response_tokens: Annotated[
        float | None,
        typer.Option(min=1, help="--dry-run: mean response length (default: the longest allowed)."),
    ] = None,
    prompt_tokens: Annotated[
        float | None, typer.Option(min=1, help="--dry-run: mean prompt length where it can't be measured.")
    ] = None,
    as_json: common.Json = False,
) -> int:
    """Train a model as a configuration says: stages of ES, GRPO and warm starts, in order, under one budget.

    Example: broaden train configs/demo/es.toml seed=1 --out runs/es-1
    """
    given = tuple(overrides or ())
    if config is not None and "=" in str(config):  # only overrides, with --resume
        raise UsageError(f"{config} is no configuration file", "give CONFIG.toml before key=value")
    if resume is None and config is None:
        raise UsageError("nothing to train", "give CONFIG.toml, or --resume RUN")
    said = {"--tokens-per-second": tokens_per_second, "--response-tokens": response_tokens,
            "--prompt-tokens": prompt_tokens}  # fmt: skip
    for name, value in said.items():
        if value is not None and not dry_run:
            raise UsageError(f"{name} {value:g} is for --dry-run: a run measures it", f"leave out {name}")
    if resume is not None and (out is not None or dry_run):
        raise UsageError("--resume goes with neither --out nor --dry-run", f"broaden train --resume {resume}")
    from broaden.cli.progress import TrainBars
    from broaden.config import load_config

    loaded = load_config(config, given, stages) if config is not None else None
    console = common.stderr()
    if dry_run and loaded is not None:
        return _dry_run(loaded, as_json, prompt_tokens, response_tokens, tokens_per_second)
    from broaden import runs

    with TrainBars(console) as bars:
        if resume is not None:
            result = runs.resume(resume, config=loaded, watcher=bars)
        elif loaded is not None:
            target = out or Path("runs") / f"{loaded.name or 'run'}-seed{loaded.seed}"
            result = runs.train(loaded, target, watcher=bars)
    if as_json:
        common.print_json({
            "run": str(result.path), "checkpoint": str(result.checkpoint), "step": result.step,
            "center_hash": result.center_hash, "seconds": result.seconds,
        })  # fmt: skip
    else:
        common.stdout().print(
            f"{result.step} updates in {result.seconds:,.0f} s; model in {result.checkpoint}\n"
            f"center hash {result.center_hash}\nnext: broaden eval {result.path} --task ...",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    return 0


def _dry_run(
    config: RunConfig,
    as_json: bool,
    prompt_tokens: float | None,
    response_tokens: float | None,
    rate: float | None,
) -> int:
    from broaden.config import to_dict, to_toml
    from broaden.runs.plan import Assumed, plan

    found = plan(config, Assumed(prompt_tokens, response_tokens, rate))
    if as_json:
        common.print_json({"config": to_dict(config), "plan": found.to_json()})
    else:
        common.stdout().print(to_toml(config) + "\n" + found.text(), markup=False, soft_wrap=True)
    return 0
