"""What every command shares: errors to exit codes, `--json`, consoles, progress. Imports nothing heavy at the top."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broaden.errors import BroadenError

if TYPE_CHECKING:
    from rich.console import Console

Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output; everything else on stderr.")
]

TaskOption = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="A task option as key=value; may be repeated.")
]


def stderr() -> Console:
    """A console on standard error, where all talk goes under --json."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def stdout() -> Console:
    """A console on standard output, for tables."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(data: dict[str, Any]) -> None:
    """The one object of `--json`."""
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")


def fail(error: BroadenError) -> int:
    """Print a mistake without a traceback and return its exit code."""
    sys.stderr.write(f"broaden: {error.message}\n")
    if error.fix:
        sys.stderr.write(f"  fix: {error.fix}\n")
    return error.exit_code


def parse_numbers(text: str, option: str) -> tuple[float, ...]:
    """`0.1,0.6` -> (0.1, 0.6). Raises UsageError naming the option."""
    from broaden.errors import UsageError

    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r} is not a list of numbers", f"for example {option} 0.1,0.6"
        ) from error
    if not all(math.isfinite(v) for v in values):
        raise UsageError(f"{option} {text!r}: every number must be finite", f"for example {option} 0.1,0.6")
    return values


def parse_temperatures(text: str) -> tuple[float, ...]:
    """`--temperatures 0.1,0.6`: all above 0, for a frontier needs several samples a problem, each once."""
    from broaden.errors import UsageError

    values = parse_numbers(text, "--temperatures")
    if min(values) <= 0:
        raise UsageError(f"--temperatures {text}: all must be above 0", "--temperatures 0.1,0.6,1.0")
    return tuple(dict.fromkeys(values))


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """`key=value` pairs; whole numbers become int. Raises UsageError."""
    from broaden.errors import UsageError

    out: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--option {text!r} is not key=value", "for example --option count=4")
        out[key] = int(value) if value.lstrip("-").isdigit() else value
    return out


def tables(as_json: bool) -> Console:
    """Where tables go: standard output for people, stderr under --json."""
    return stderr() if as_json else stdout()
