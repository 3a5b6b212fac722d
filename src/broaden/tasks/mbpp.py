"""MBPP: a Python function from its description; exactly one Python code block, judged by the data set's assertions.

The prompt shows the assertions (the function's name is known only from them); the answer is the block without them.
Not here: how a program is run without harm (`coderunner`).
"""

from __future__ import annotations

import ast
import hashlib
import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from broaden.errors import DataError, UsageError
from broaden.records import FinishReason, Problem, Verdict
from broaden.tasks import coderunner
from broaden.tasks.base import BadRow, Family, user
from broaden.tasks.extract import Extracted, visible
from broaden.tasks.files import Row, find
from broaden.tasks.hub import rows_of

PROMPT = (
    "{text}\n\nYour code should pass these tests:\n\n{tests}\n\n"
    "Answer with exactly one Python code block (```python ... ```) that holds the function, without the tests."
)
SPLITS = {
    "test": range(11, 511),
    "prompt": range(1, 11),
    "validation": range(511, 601),
    "train": range(601, 975),
}
_FENCE = re.compile(r"(?:(?<=\n)|^|(?<=[^`]))(`{3,10}|~{3,10})(?!`)([A-Za-z0-9_+-]*)")
PYTHON_TAGS = ("python", "py", "python3", "python2", "python3.11")


class MBPP(Family):
    """Splits test, prompt, validation, train by task id; "all" for every row of the file."""

    name, version = "mbpp", "1"
    title = "MBPP sanitized: one Python code block, judged by assertions"
    hub = "google-research-datasets/mbpp"
    default_split = "test"
    options: ClassVar[Mapping[str, Any]] = {"seconds": coderunner.SECONDS}
    apart = True

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        if split not in (*SPLITS, "all"):
            raise UsageError(f"mbpp has no split {split!r}", f"its splits are: {', '.join((*SPLITS, 'all'))}")
        path = find(data, split, ("sanitized-mbpp.json", "mbpp.jsonl")) if data is not None else None
        for at, row in rows_of(self, path, split):
            if "task_id" not in row:
                raise DataError(f"mbpp row {at}: no column 'task_id'; it has {', '.join(map(str, row))}")
            if split != "all" and int(row["task_id"]) not in SPLITS[split]:
                continue
            yield self._problem(row, float(options["seconds"]))

    def _problem(self, row: Row, seconds: float) -> Problem | BadRow:
        row_id = str(row["task_id"])
        text = str(row.get("prompt", row.get("text", ""))).strip()
        tests = [str(t) for t in row.get("test_list") or []]
        imports = [str(t) for t in row.get("test_imports") or []]
        setup = str(row.get("test_setup_code") or "")
        if not text or not tests:
            return BadRow(row_id, "the description or the tests are empty")
        try:
            entry = entry_points(str(row.get("code", "")), tests)
            if entry_points(str(row.get("code", "")), [setup]):
                return BadRow(
                    row_id,
                    "the set-up code builds objects of the solution's own class, which the runner keeps apart",
                )
        except (SyntaxError, ValueError) as error:
            return BadRow(row_id, f"a test or the reference code is not Python ({type(error).__name__})")
        extra = {"tests": tests, "imports": imports, "setup": setup, "entry": entry, "seconds": seconds}
        prompt = PROMPT.format(text=text, tests="\n".join([*imports, *tests]))
        return Problem(row_id, self.name, user(prompt), "", extra)

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        tests = problem.extra.get("tests") or []
        if not tests:
            return self.verdict("gold_unparseable", note="the problem has no tests")
        found = code_block(completion, finish, bool(problem.extra.get("thinking")))
        if found.text is None:
            reason = "truncated" if found.missing == "truncated" else "no_answer"
            if found.missing == "several":
                return self.verdict("unparseable", borderline=True, note="more than one Python code block")
            return self.verdict("truncated" if reason == "truncated" else "no_answer")
        code = found.text
        said = _run(
            code, tuple(tests), tuple(problem.extra.get("imports") or ()), str(problem.extra.get("setup") or ""),
            tuple(problem.extra.get("entry") or ()), float(problem.extra.get("seconds") or coderunner.SECONDS),
        )  # fmt: skip
        ballot = hashlib.blake2b(
            "\n".join(x.rstrip() for x in code.strip().splitlines()).encode("utf-8", "replace"), digest_size=8
        ).hexdigest()
        if said.status == "crashed":
            return self.verdict("crashed", answer=code, ballot=ballot, note=said.note)
        reason = {"passed": "correct", "failed": "wrong", "limit": "limit"}[said.status]
        formed = (
            said.status != "limit" and "SyntaxError" not in said.note and "IndentationError" not in said.note
        )
        return self.verdict(reason, answer=code, ballot=ballot, well_formed=formed, note=said.note)  # type: ignore[arg-type]


_seen: OrderedDict[tuple[object, ...], coderunner.Outcome] = OrderedDict()
_lock = threading.Lock()


def _run(
    code: str,
    tests: tuple[str, ...],
    imports: tuple[str, ...],
    setup: str,
    entry: tuple[str, ...],
    seconds: float,
) -> coderunner.Outcome:
    """`coderunner.run`, remembering what surely passed or failed (samples of one prompt repeat themselves)."""
    key = (code, tests, imports, setup, entry, seconds)
    with _lock:
        if key in _seen:
            return _seen[key]
    said = coderunner.run(code, tests, imports=imports, setup=setup, entry=entry, seconds=seconds)
    if said.status in ("passed", "failed"):
        with _lock:
            _seen[key] = said
            if len(_seen) > 4096:
                _seen.popitem(last=False)
    return said


def _first_line_flush(body: str) -> str:
    """The block's code; code that starts on the fence's own line (```python def f(): ...) loses its leading blank."""
    return body.lstrip("\r\n") if body[:1] in "\r\n" else body.lstrip()


def entry_points(reference: str, tests: list[str]) -> list[str]:
    """Names that the reference code defines at its top level and the tests use. Raises SyntaxError, ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes such as "\\d" in the published code
        used = {n.id for t in tests for n in ast.walk(ast.parse(t)) if isinstance(n, ast.Name)}
        body = ast.parse(reference).body
    defined: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return sorted(used & defined)


def code_block(completion: str, finish: str, thinking: bool = False) -> Extracted:
    """The one Python block of the visible text: fences of three or more backticks or tildes, with or without a
    language tag.

    Blocks tagged with another language do not count; untagged blocks count only where no block is tagged Python.
    """
    text = visible(completion, thinking)
    if text is None:
        return Extracted(None, "truncated")
    tagged: list[str] = []
    untagged: list[str] = []
    at = 0
    opened = False
    while (match := _FENCE.search(text, at)) is not None:
        fence, tag = match.group(1), match.group(2).lower()
        end = text.find(fence, match.end())
        if end < 0:
            opened = True
            break
        body = text[match.end() : end]
        if tag in PYTHON_TAGS:
            tagged.append(body)
        elif not tag and body.strip():
            untagged.append(body)
        at = end + len(fence)
    blocks = tagged or untagged
    if len(blocks) == 1 and not (opened and not tagged):
        return Extracted(_first_line_flush(blocks[0]))
    if len(blocks) > 1:
        return Extracted(None, "several")
    return Extracted(None, "truncated" if finish == "length" else "no_answer", dangling=opened)
