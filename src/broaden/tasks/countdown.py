"""Countdown: reach a target with given numbers, each used exactly once, + - * / only.

Problems are generated with an exact solver and split by a hash of their key ("3,7,12->22": numbers sorted),
so that warm start, training, probe and test are disjoint whatever the seed; files in the published shapes
load as well. Contested choices (docs/tasks/countdown.md): unicode operators and a trailing `= 22` are wrong
but borderline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from broaden.errors import DataError, UsageError
from broaden.records import FinishReason, Message, Problem, Verdict
from broaden.tasks import countdown_data as gen
from broaden.tasks.base import BadRow, Family, user
from broaden.tasks.expression import Expression, ExpressionError, parse
from broaden.tasks.extract import last_tag
from broaden.tasks.files import Row, find, read

PROMPT = (
    "Using the numbers [{numbers}], write an expression that equals {target}. Use + - * / and each number "
    "exactly once. Show your steps, then give the expression in <answer></answer>."
)
_TAIL = re.compile(r"^([^=]{1,1000})=\s*(-?[0-9]{1,12})\s*$")


class Countdown(Family):
    """Splits: warmup, train, probe, test (three numbers by default), hard (four numbers); or a file's own."""

    name = "countdown"
    version = "1"
    title = "Countdown: an expression that reaches the target, each number exactly once"
    hub = "HuggingFaceTB/Countdown-Task-GOLD"
    options: ClassVar[Mapping[str, Any]] = {
        "count": None,
        "low": None,
        "high": None,
        "target_low": None,
        "target_high": None,
        "sums": None,
        "prompt": None,
    }

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        preset = options["prompt"]
        if preset not in (None, "default", "paper"):
            raise UsageError(
                f"countdown has no prompt preset {preset!r}", "use prompt=default or prompt=paper"
            )
        if data is None:
            if preset == "paper":
                raise UsageError(
                    "the paper's preset asks the messages that come with the data; generated problems have none",
                    "give --data a file with a messages column, or use prompt=default",
                )
            ranges = gen.ranges_for(split, options)
            for key in gen.generate(split, ranges, limit, seed):
                yield _problem(f"{split}/{key}", gen.display_order(key, seed), key.target)
            return
        given = sorted(k for k, v in options.items() if v is not None and k != "prompt")
        if given:
            raise UsageError(f"option {given[0]!r} is for generated problems, not for a file", "leave it out")
        path = find(data, split, ("countdown_cd3_test.jsonl",) if split == "test" else ())
        for number, row in read(path):
            yield _from_row(row, f"{path.stem}/{number}", preset)

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        target, numbers = _goal(problem)
        if target is None:
            return self.verdict("gold_unparseable", note="the problem has no numbers or target")
        found = last_tag(completion, finish, bool(problem.extra.get("thinking")))
        if found.text is None:
            return self.verdict("truncated" if found.missing == "truncated" else "no_answer")
        answer = found.text
        try:
            expression = parse(answer)
        except ExpressionError as error:
            if error.limit:
                return self.verdict("limit", answer=answer[:200], note=str(error))
            near, note = _almost(answer, numbers, target)
            return self.verdict("unparseable", answer=answer, borderline=near, note=note or str(error))
        if sorted(expression.numbers) != numbers:
            return self.verdict(
                "wrong", answer=answer, ballot=_ballot(expression), note="not each number exactly once"
            )
        right = expression.value == target
        if expression.unicode:
            note = "unicode operators; the grammar is + - * /"
            return self.verdict(
                "wrong", answer=answer, ballot=_ballot(expression), borderline=right, note=note
            )
        if right:
            return self.verdict(
                "correct", answer=answer, ballot=_ballot(expression), borderline=found.dangling
            )
        note = "division by zero" if expression.value is None else f"the value is {expression.value}"
        return self.verdict(
            "wrong",
            answer=answer,
            ballot=_ballot(expression),
            well_formed=expression.value is not None,
            note=note,
        )


def _ballot(expression: Expression) -> str | None:
    """The exact value and the sorted numbers used: `22|3,7,12`. No value (division by zero): abstains."""
    if expression.value is None:
        return None
    return f"{expression.value}|{','.join(map(str, sorted(expression.numbers)))}"


def _almost(answer: str, numbers: list[int], target: Fraction) -> tuple[bool, str]:
    """Whether `expression = target` would have been right without its tail."""
    match = _TAIL.match(answer)
    if match is None:
        return False, ""
    try:
        expression = parse(match.group(1).strip())
    except ExpressionError:
        return False, ""
    right = expression.value == target == int(match.group(2)) and sorted(expression.numbers) == numbers
    return right, "an equation, not an expression: leave out the = and what follows"


def _goal(problem: Problem) -> tuple[Fraction | None, list[int]]:
    try:
        numbers = sorted(int(n) for n in problem.extra["numbers"])
        return Fraction(int(problem.extra["target"])), numbers
    except (KeyError, TypeError, ValueError):
        return None, []


def _problem(
    row_id: str, numbers: list[int], target: int, messages: tuple[Message, ...] | None = None
) -> Problem:
    text = PROMPT.format(numbers=", ".join(map(str, numbers)), target=target)
    return Problem(
        row_id, "countdown", messages or user(text), str(target), {"numbers": numbers, "target": target}
    )  # fmt: skip


def _from_row(row: Row, row_id: str, preset: str | None) -> Problem | BadRow:
    """The published shapes: `input`/`output` (d1), `numbers`/`target` (ES reference), `nums`/`target`, `messages`."""
    where = f"countdown row {row_id}"
    messages: tuple[Message, ...] | None = None
    if "messages" in row and preset != "default":
        messages = _messages(row["messages"], where)
    numbers_raw, target_raw = _columns(row, messages, where)
    if preset == "paper" and messages is None:
        raise DataError(f"{where}: the paper's preset asks for a messages column", "use prompt=default")
    try:
        numbers = [int(str(n).strip()) for n in numbers_raw]
        target = int(str(target_raw).strip())
    except ValueError:
        return BadRow(row_id, f"numbers {numbers_raw!r} and target {target_raw!r} should be integers")
    if not 1 <= len(numbers) <= 16 or min(numbers) < 0:
        return BadRow(row_id, f"numbers {numbers!r}: one to sixteen of them, none negative, were expected")
    if len(numbers) <= 4 and not gen.solvable(tuple(sorted(numbers)), target):
        return BadRow(row_id, f"{numbers} cannot reach {target}")
    return _problem(str(row.get("id", row_id)), numbers, target, messages)


def _columns(row: Row, messages: tuple[Message, ...] | None, where: str) -> tuple[list[Any], Any]:
    if "input" in row and "output" in row:
        return str(row["input"]).split(","), row["output"]
    for name in ("numbers", "nums"):
        if name in row and "target" in row:
            value = row[name]
            return (
                value if isinstance(value, list) else str(value).strip("[]").replace(",", " ").split()
            ), row["target"]
    if messages is not None:
        text = next((m.content for m in messages if m.role == "user"), "")
        found = gen.numbers_in_prompt(text)
        if found is not None:
            return list(found[0]), found[1]
        raise DataError(f"{where}: no numbers and target columns, and none can be read from the user message")
    raise DataError(
        f"{where}: no known columns; it has {', '.join(map(str, row))}",
        "known shapes: input/output, numbers/target, nums/target, messages",
    )


def _messages(value: Any, where: str) -> tuple[Message, ...]:
    """The conversation up to the first assistant turn (which holds a solution and is never shown)."""
    out: list[Message] = []
    for item in value if isinstance(value, list) else []:
        if not isinstance(item, dict) or item.get("role") not in ("system", "user", "assistant"):
            raise DataError(f"{where}: messages should be objects with role and content")
        if item["role"] == "assistant":
            break
        out.append(Message(item["role"], str(item.get("content", ""))))
    if not any(m.role == "user" for m in out):
        raise DataError(f"{where}: messages hold no user turn before the first assistant turn")
    return tuple(out)
