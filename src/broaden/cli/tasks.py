"""`broaden tasks`: what there is to train on and to measure with, and whether its verdicts can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broaden.cli import common

app = typer.Typer(no_args_is_help=True)
Name = Annotated[
    str,
    typer.Argument(
        help="A task's name (broaden tasks ls), or jsonl:FAMILY, trl:FILE.py:NAME, verl:FILE.py:NAME."
    ),
]
Data = Annotated[Path | None, typer.Option(help="A file, or a folder that holds one named after the split.")]
Split = Annotated[str | None, typer.Option(help="The data set's own split name.")]


@app.command("ls")
def ls(as_json: common.Json = False) -> int:
    """List the built-in tasks.

    Example: broaden tasks ls
    """
    from broaden import tasks

    found = [tasks.get(name) for name in tasks.names()]
    if as_json:
        common.print_json(
            {
                "tasks": [
                    {
                        "name": t.name,
                        "version": t.version,
                        "title": t.title,
                        "hub": t.hub,
                        "split": t.default_split,
                    }
                    for t in found
                ]
            }
        )
        return 0
    from rich.table import Table

    table = Table("task", "version", "what", "split", "hub")
    for t in found:
        table.add_row(t.name, t.version, t.title, t.default_split, t.hub)
    common.stdout().print(table)
    return 0


@app.command("show")
def show(
    name: Name, data: Data = None, split: Split = None, index: Annotated[int, typer.Option(min=0,
    help="Which problem.")] = 0,
    seed: Annotated[int, typer.Option(help="The data seed.")] = 0, option: common.TaskOption = None,
    as_json: common.Json = False,
) -> int:  # fmt: skip
    """Show one problem as the model is asked it.

    Example: broaden tasks show countdown --split test --index 3
    """
    from broaden import tasks
    from broaden.errors import UsageError

    loaded = tasks.load_problems(name, split, data, index + 1, seed, **common.parse_options(option))
    if len(loaded.problems) <= index:
        raise UsageError(
            f"there are {len(loaded.problems)} problems", f"use --index 0 to {len(loaded.problems) - 1}"
        )
    problem = loaded.problems[index]
    if as_json:
        common.print_json({"problem": problem.to_json()})
        return 0
    console = common.stdout()
    for message in problem.messages:
        console.print(f"[{message.role}]\n{message.content}\n", markup=False, soft_wrap=True)
    console.print(
        f"id {problem.id}, gold {problem.gold!r}, extra {problem.extra}", markup=False, soft_wrap=True
    )
    return 0


@app.command("check")
def check(
    name: Name, data: Data = None, split: Split = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    seed: Annotated[int, typer.Option(help="The data seed.")] = 0,
    against: Annotated[Path | None, typer.Option(help="Another file: which problems stand in both.")] = None,
    against_task: Annotated[str | None, typer.Option(help="The other file's task, where it is another one.")] = None,
    model: Annotated[str | None, typer.Option(help="Count the longest prompt in this model's tokens.")] = None,
    option: common.TaskOption = None, as_json: common.Json = False,
) -> int:  # fmt: skip
    """Look at a data set: rows, bad rows by id and reason, golds, duplicates, overlap, longest prompt.

    Example: broaden tasks check gsm8k --data gsm8k/test.jsonl --against gsm8k/train.jsonl
    """
    from broaden.tasks.check import check as look

    tokens = _counter(model) if model is not None else None
    found = look(
        name, split, data, limit, seed, against, against_task, tokens, **common.parse_options(option)
    )
    if as_json:
        common.print_json(found.to_json())
    else:
        common.stdout().print(found.text(), markup=False, soft_wrap=True)
    return 0


@app.command("verify")
def verify(
    cases: Annotated[
        Path, typer.Argument(help="JSONL: task, gold, response, verdict (and choices, contested).")
    ],
    as_json: common.Json = False,
) -> int:
    """Judge answers whose verdicts are known; prints one JSON object, exit 0 only when every uncontested case agrees.

    Example: broaden tasks verify CASES.jsonl
    """
    from broaden.tasks.verify import verify_file

    found = verify_file(cases)
    common.print_json(found.to_json())
    if not as_json:
        console = common.stderr()
        for r in found.results:
            if not r.agrees:
                contested = " (contested: see docs/tasks)" if r.contested else ""
                said = f"{r.verdict.reason}{': ' + r.verdict.note if r.verdict.note else ''}"
                console.print(
                    f"{r.id}: expected {'right' if r.expected else 'not right'}, got {said}{contested}",
                    markup=False,
                )
    return 0 if found.passed else 1


@app.command("audit")
def audit(
    samples: Annotated[Path, typer.Argument(help="A sample folder (what `broaden eval --out` wrote).")],
    as_json: common.Json = False,
) -> int:
    """A second opinion on every verdict that decides Pass@M, and all borderline verdicts. Exit 1 where one is
    contradicted.

    Example: broaden tasks audit runs/eval-countdown-nano/countdown
    """
    from broaden.store import SampleStore
    from broaden.tasks.audit import audit as look

    found = look(SampleStore(samples).read())
    if as_json:
        common.print_json(found.to_json())
    else:
        common.stdout().print(found.text(), markup=False, soft_wrap=True)
    return 1 if found.differs else 0


def _counter(model: str) -> Any:
    """The number of tokens of a problem's prompt under the model's own chat template."""
    from broaden.models.sources import resolve
    from broaden.models.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer.from_folder(resolve(model))
    return lambda problem: len(tokenizer.encode_chat(problem.messages))
