"""`broaden replay`: rebuild any logged update's weights and check their hash."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broaden.cli import common


def replay(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    step: Annotated[int | None, typer.Option(help="After so many updates (default: all logged).")] = None,
    out: Annotated[Path | None, typer.Option(help="Save the rebuilt model here.")] = None,
    as_json: common.Json = False,
) -> int:
    """Rebuild the weights after an update from the seed log, checking the hash of every update on the way.

    Example: broaden replay runs/es-1 --step 20 --out runs/es-1-step20
    """
    from broaden.errors import ExistsError
    from broaden.models.checkpoint import load_model, save_model
    from broaden.runs import replay_run
    from broaden.runs.loop import stored_config
    from broaden.runs.prepare import model_folder
    from broaden.store import RunDir, commit

    if out is not None and out.exists():
        raise ExistsError(f"{out} exists already", "choose another --out")
    checked: list[tuple[int, str]] = []
    center, at, digest = replay_run(run, step, lambda s, h: checked.append((s, h)))
    if out is not None:
        model = load_model(model_folder(stored_config(RunDir.open(run))))
        commit(out, lambda folder: save_model(model, folder, center))
    if as_json:
        common.print_json({"run": str(run), "step": at, "center_hash": digest, "checked": len(checked),
                           "out": str(out) if out else None})  # fmt: skip
    else:
        common.stdout().print(
            f"update {at}: {len(checked)} hashes checked, all equal; center {digest}"
            + (f"; saved in {out}" if out else ""), markup=False, soft_wrap=True,
        )  # fmt: skip
    return 0
