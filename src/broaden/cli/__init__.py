"""The command line: one file a command, thin; heavy imports happen inside the commands."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer

from broaden.cli import common
from broaden.heap import one_arena

INTERRUPTED = 130


def build() -> typer.Typer:
    """The application with all its commands."""
    from broaden.cli import (
        bench,
        compare,
        demo,
        evaluate,
        frontier,
        match,
        models,
        replay,
        rescore,
        tasks,
        train,
    )

    app = typer.Typer(
        name="broaden",
        help="Post-train language models for reasoning with evolution strategies; measure honestly what came of it.",
        epilog="Start with: broaden demo",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command("demo")(demo.demo)
    app.command("train")(train.train)
    app.command("eval")(evaluate.evaluate)
    app.command("compare")(compare.compare)
    app.command("frontier")(frontier.frontier)
    app.command("match")(match.match)
    app.command("replay")(replay.replay)
    app.command("rescore")(rescore.rescore)
    app.command("bench")(bench.bench)
    app.add_typer(tasks.app, name="tasks", help="List, show, check and verify tasks.")
    app.add_typer(models.app, name="models", help="List model sources, fetch one.")
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from broaden import __version__

        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the `broaden` command. Exit codes: 0 ok, 1 failed, 2 usage, 130 interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    one_arena()
    sys.exit(run())


def _stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C and SIGTERM where no run is under way (`runs.interrupt` takes over in one): end at once.

    Raising KeyboardInterrupt is not enough: torch's import swallows it and leaves a half-imported NumPy behind.
    """
    os.write(2, b"broaden: interrupted\n")
    os._exit(INTERRUPTED)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code and never shows a traceback for a user's mistake."""
    from broaden.errors import BroadenError

    # typer carries click inside or beside it, by version: take the usage errors' base from the class that it exports.
    usage_error = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        code = int(build()(args=arguments, prog_name="broaden", standalone_mode=False) or 0)
    except BroadenError as error:
        return common.fail(error)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:
        return 1
    except Exception as error:
        if not isinstance(error, usage_error):
            raise
        error.show()  # type: ignore[attr-defined]
        return 2
    if code == INTERRUPTED:  # some versions of typer turn Ctrl-C into this code themselves
        sys.stderr.write("broaden: interrupted\n")
    return code
