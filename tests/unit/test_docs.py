"""The documentation says what is there: commands parse, names import, links and files resolve, keys are described."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import io
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from broaden.cli import build
from broaden.config import build_config, load_config
from broaden.es import EsSettings, train
from broaden.metrics.signal import Signal
from broaden.perturb.seedlog import KEYS
from broaden.population.base import RolloutJob
from broaden.records import MemberResult, Sampling, StepRecord
from broaden.runs.checkpoints import Position
from broaden.store.samples import to_parquet

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    p.relative_to(ROOT).as_posix()
    for p in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "configs").rglob("*.md"),
    ]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"broaden(?:\.\w+)+:\w+(?:\.\w+)*")
OWN_FILE = re.compile(r"(?:configs|docs|scripts|src|tests|dev)/[\w./-]+")
EXAMPLE = re.compile(r"^Examples?: (broaden .*)$", re.MULTILINE)
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
LEFT_OUT = ("…", "...")


def text(page: str) -> str:
    """The page without HTML comments (places that are not filled in yet)."""
    return re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def spans(page: str) -> list[str]:
    """Inline code of a page, outside of fenced blocks."""
    return INLINE.findall(FENCE.sub("", text(page)))


def commands(page: str) -> list[str]:
    """Every `broaden ...` of shell blocks (continued lines joined, comments cut) and of inline code; of the generated
    reference, the examples."""
    if page == "docs/cli.md":
        return [c.strip() for c in "|".join(EXAMPLE.findall(text(page))).split("|")]
    lines = []
    for language, block in FENCE.findall(text(page)):
        if language in ("sh", "bash", "shell", "console"):
            lines += block.replace("\\\n", " ").splitlines()
    found = [line.removeprefix("$ ").strip() for line in [*lines, *spans(page)]]
    return [c for c in found if c == "broaden" or c.startswith("broaden ")]


@functools.cache
def tree() -> Any:
    return typer.main.get_command(build())


def parse(command: str) -> None:
    """Parse a command line against the tree of commands, without running it."""
    words = [w for w in shlex.split(command, comments=True)[1:] if w not in LEFT_OUT]
    at = tree()
    context, name = at.make_context("broaden", [], resilient_parsing=True), "broaden"
    while words and hasattr(at, "commands"):
        if words[0].startswith("-"):
            break
        name, words = words[0], words[1:]
        assert name in at.commands, f"no command {name!r}"
        at = at.commands[name]
    if words and not hasattr(at, "commands"):
        with at.make_context(name, list(words), parent=context) as parsed:
            _check_overrides(name, parsed.params)
    elif words:
        options = {o for p in at.params for o in p.opts} | set(at.get_help_option_names(context))
        assert set(words) <= options


def _check_overrides(name: str, given: dict[str, Any]) -> None:
    """The key=value of `train` fit the configuration they are given with."""
    config = given.get("config")
    if name == "train" and config is not None and (ROOT / str(config)).is_file():
        load_config(ROOT / str(config), tuple(given["overrides"] or ()), given["stages"])


@pytest.mark.parametrize(("page", "command"), sorted({(p, c) for p in PAGES for c in commands(p)}))
def test_a_command_parses(page: str, command: str) -> None:
    parse(command)


def test_the_parser_of_this_test_refuses() -> None:
    for wrong in (
        "broaden fly",
        "broaden eval MODEL --task t --samplez 3",
        "broaden replay RUN --step many",
        "broaden tasks fly",
        "broaden eval MODEL",
    ):
        with pytest.raises(Exception, match=r"."):
            parse(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page: str) -> None:
    here = (ROOT / page).parent
    for target in LINK.findall(FENCE.sub("", text(page))):
        if not re.match(r"[a-z]+:|#", target):
            assert (here / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ("CONTRIBUTING.md", "docs/cli.md")])
def test_files_of_the_repository_that_are_named_exist(page: str) -> None:
    for span in spans(page):
        if OWN_FILE.fullmatch(span):
            assert (ROOT / span).exists(), span


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_are_named_exist(page: str) -> None:
    for file, name in TEST.findall(text(page)):
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


@functools.cache
def _imported(reference: str) -> object:
    module, _, path = reference.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


@pytest.mark.parametrize("page", PAGES)
def test_module_and_function_references_import(page: str) -> None:
    for reference in sorted({s for s in spans(page) if REFERENCE.fullmatch(s)}):
        assert _imported(reference) is not None, reference


@pytest.mark.parametrize("page", ["docs/es.md", "docs/paper.md"])
def test_the_pages_of_equations_hold_references(page: str) -> None:
    assert sum(bool(REFERENCE.fullmatch(s)) for s in spans(page)) >= 15


@pytest.mark.parametrize("page", PAGES)
def test_configurations_are_valid(page: str) -> None:
    for language, block in FENCE.findall(text(page)):
        if language == "toml":
            data = tomllib.loads(block)
            build_config({"stages": [{"algo": "es"}], **data})


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        shell = "\n".join(block for language, block in FENCE.findall(text(page)) if language == "sh")
        named = re.findall(r"^make (\w+)", shell, re.MULTILINE)
        assert set(named) <= targets, page


def test_the_command_reference_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("cli_reference", ROOT / "scripts" / "cli_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        module.main()
    assert (ROOT / "docs/cli.md").read_text(encoding="utf-8") == printed.getvalue(), "run scripts/docs"


def test_the_navigation_names_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r": ([\w/-]+\.md)$", nav, re.MULTILINE))
    there = {p.removeprefix("docs/") for p in PAGES if p.startswith("docs/")}
    assert named <= there
    assert {p for p in there if "/" not in p} <= named


class Coin:
    """A population of two members that answer two prompts."""

    def rollout(self, center: Any, job: RolloutJob, on_progress: Any = None) -> list[MemberResult]:
        return [MemberResult(m.number, (float(m.number), 0.0), (1.0, 0.0), 2, 2, 0) for m in job.members]

    def conditions(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        """Nothing to give back."""


def documented(page: str) -> set[str]:
    """Every word that stands in inline code of a page."""
    return {s.strip() for span in spans(page) for s in span.split(",")}


def test_every_logged_value_of_es_is_described() -> None:
    center = {"w": torch.ones(4)}
    settings = EsSettings(1, 2, 2, 0.1, 0.1, Sampling())
    (record,) = train(center, {"w": torch.ones(4)}, 2, Coin(), settings, run_seed=0)
    logged = {*record.values, "stage", "stage_step", "pooled_f", "pooled_rho", "pooled_p"}
    assert "reward" in logged
    assert {f"signal_{f.name}" for f in dataclasses.fields(Signal)} <= logged
    assert logged - documented("docs/es.md") == set()


def test_every_key_of_the_files_is_described() -> None:
    import pyarrow.parquet as pq

    columns = pq.read_schema(io.BytesIO(to_parquet([]))).names
    fields = [f.name for kind in (Position, StepRecord) for f in dataclasses.fields(kind)]
    words = set(re.findall(r"\w+", " ".join(spans("docs/formats.md"))))
    assert {*columns, *fields, *KEYS} - words == set()
