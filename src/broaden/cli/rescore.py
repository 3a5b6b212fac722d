"""`broaden rescore`: verdicts again from stored samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broaden.cli import common


def rescore(
    samples: Annotated[list[Path], typer.Argument(help="Sample folders (what `broaden eval --out` wrote).")],
    out: Annotated[
        Path | None, typer.Option(help="Write the rescored samples here (one folder given).")
    ] = None,
    as_json: common.Json = False,
) -> int:
    """Judge stored samples with the verifier of this version and list every verdict that differs.

    Example: broaden rescore runs/eval-countdown-nano/countdown
    """
    from broaden.errors import ExistsError, UsageError
    from broaden.runs.rescore import rescore as judge
    from broaden.store import SampleStore

    if out is not None and len(samples) > 1:
        raise UsageError("--out takes one sample folder", "rescore them one at a time")
    if out is not None and out.exists():
        raise ExistsError(f"{out} exists already", "choose another --out")
    results = []
    for folder in samples:
        found = judge(SampleStore(folder).read())
        results.append({"samples": str(folder), **found.to_json()})
        if out is not None:
            SampleStore(out).write(found.rescored)
        if not as_json:
            console = common.stdout()
            console.print(f"{folder}: {found.text()}", markup=False, soft_wrap=True)
    if as_json:
        common.print_json({"rescored": results})
    return 0
