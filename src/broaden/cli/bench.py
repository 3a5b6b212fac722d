"""`broaden bench`: speed and memory against peers, on the same work, alternating, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broaden.cli import common
from broaden.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from broaden.bench.harness import Result
    from broaden.bench.registry import Bench

    Results = list[tuple[Bench, Result]]


def bench(
    name: Annotated[str, typer.Argument(help="A bench; ls: list them; all: one after the other.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Sizes for tests: seconds, and no statement about speed.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds of each side (default: the bench's).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of either side (default: torch's).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with gsm8k/ and math500/, for the benches that need them.")
    ] = None,
    peer_python: Annotated[
        Path | None, typer.Option(help="Python of an environment with vLLM: a second peer of generate.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for NAME.json of each bench and table.md of all.")
    ] = None,
    as_json: common.Json = False,
) -> int:
    """Compare with a peer: ratio of medians with its spread, and the conditions. Leave the machine alone meanwhile.

    Example: broaden bench noise --json
    """
    from broaden.bench import registry
    from broaden.bench.harness import Settings

    if name == "ls":
        return _ls(as_json)
    chosen = registry.BENCHES if name == "all" else (registry.find(name),)
    if data is not None and not data.is_dir():
        raise UsageError(f"no folder {data}", "--data names the folder that holds gsm8k/ and math500/")
    if peer_python is not None and not any(b.name.startswith("generate") for b in chosen):
        raise UsageError(f"--peer-python is for the generate benches, not {name}", "leave it out")
    import torch

    settings = Settings(threads or torch.get_num_threads(), quick, rounds, data, peer_python)
    console = common.stderr()
    results = []
    for each in chosen:
        console.print(f"{each.name}: {each.work}; peer: {each.peer}", markup=False, soft_wrap=True)
        results.append((each, registry.run(each, settings)))
        if out is not None:
            _write(out, each.name, results)
    if as_json:
        found = {b.name: r.to_json() for b, r in results}
        common.print_json({"benches": found} if name == "all" else found[name])
    else:
        _show(results)
    return 0


def _ls(as_json: bool) -> int:
    from broaden.bench.registry import BENCHES

    if as_json:
        common.print_json(
            {
                "benches": [
                    {"name": b.name, "work": b.work, "peer": b.peer, "target": b.target} for b in BENCHES
                ]
            }
        )
        return 0
    from rich.table import Column, Table

    table = Table(Column("bench", no_wrap=True), "work", "peer", "ratio to reach")
    for b in BENCHES:
        table.add_row(b.name, b.work, b.peer, b.target)
    common.stdout().print(table)
    return 0


def _write(folder: Path, name: str, results: Results) -> None:
    import json

    from broaden.bench.registry import table

    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results[-1][1].to_json(), indent=1, allow_nan=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table(results), encoding="utf-8")


def _show(results: Results) -> None:
    from rich.table import Column, Table

    from broaden.bench.registry import number, remarks

    console = common.stdout()
    table = Table(Column("bench", no_wrap=True), "ours", "peer", "ratio", "spread", "to reach", "")
    for b, r in results:
        if r.ours is None or r.peer is None or r.ratio is None:
            table.add_row(b.name, "", "", "", "", b.target, f"skipped: {r.skipped}")
            continue
        low, high = r.spread.get("ratio", [r.ratio, r.ratio])
        table.add_row(
            b.name, f"{number(r.ours)} {r.unit}", number(r.peer), f"{r.ratio:.3g}", f"{low:.3g} to {high:.3g}",
            b.target, remarks(r),
        )  # fmt: skip
    console.print(table)
    for b, r in results:
        if rows := r.conditions.get("rows"):
            console.print(_rows(b.name, r.unit, rows))


def _rows(name: str, unit: str, rows: list[dict[str, Any]]) -> Table:
    """The parts of a bench that has several."""
    from rich.table import Column, Table

    from broaden.bench.registry import number

    table = Table(Column(name, no_wrap=True), unit, "peer", "ratio", "CPU s", "peer", "ratio")
    for row in rows:
        cells = [
            row.get(k) for k in ("ours", "peer", "ratio", "cpu_seconds", "peer_cpu_seconds", "cpu_ratio")
        ]
        table.add_row(row["what"], *("" if c is None else number(c) for c in cells))
    return table
