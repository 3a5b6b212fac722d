"""GSM8K: grade-school word problems with integer answers; the final answer stands in a box.

Gold: the number after the last `####`. Numbers are compared exactly (no tolerance of any kind). The rules and
the agreement with the authors' judged solutions stand in docs/tasks/gsm8k.md. Not here: general mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from broaden.errors import DataError, UsageError
from broaden.records import FinishReason, Message, Problem, Verdict
from broaden.tasks.algebra import LimitError
from broaden.tasks.answers import read
from broaden.tasks.base import BadRow, Family, system_user, user
from broaden.tasks.extract import last_box
from broaden.tasks.files import Row, column, find
from broaden.tasks.hub import rows_of
from broaden.tasks.numerals import MAX_LENGTH, number, show
from broaden.tasks.spelling import Unread

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
EXAMPLES = (
    (
        "Tom has 3 boxes with 4 pens each. He gives away 5 pens. How many pens are left?",
        "Tom has 3 * 4 = 12 pens. After giving away 5 he has 12 - 5 = 7 pens. The answer is \\boxed{7}.",
    ),
    (
        "A book costs $8 and a pen costs $2. How much do 2 books and 3 pens cost?",
        "The books cost 2 * 8 = 16 dollars. The pens cost 3 * 2 = 6 dollars. Together they cost 16 + 6 = 22 dollars. "
        "The answer is \\boxed{22}.",
    ),
)
"""Ours, not the data set's: shown as earlier turns by prompt=examples, for models that never write a box unasked."""
_MARK = re.compile(r"<<[^<>]*>>")


class GSM8K(Family):
    """Splits: train, test. Columns: question, answer (solution and `#### gold`), or a ready gold."""

    name = "gsm8k"
    version = "1"
    title = "GSM8K: grade-school mathematics, an integer in a box"
    hub = "openai/gsm8k"
    options: ClassVar[Mapping[str, Any]] = {"prompt": "paper"}

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        preset = options["prompt"]
        if preset not in PROMPTS:
            raise UsageError(
                f"gsm8k has no prompt preset {preset!r}",
                "use prompt=paper, prompt=plain (no system message) or prompt=examples (two solved ones first)",
            )
        path = find(data, split) if data is not None else None
        for at, row in rows_of(self, path, split):
            yield from_row(row, f"{split}/{at}", f"{path or self.hub}, row {at}", preset)

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        gold = number(problem.gold)
        if gold is None:
            return self.verdict("gold_unparseable", note=f"gold {problem.gold[:80]!r}")
        found = last_box(completion, finish, bool(problem.extra.get("thinking")))
        if found.text is None:
            return self.verdict("truncated" if found.missing == "truncated" else "no_answer")
        value = value_of(found.text)
        if value is None:
            return self.verdict("unparseable", answer=found.text[:400])
        right = value == gold
        return self.verdict(
            "correct" if right else "wrong",
            answer=found.text, ballot=show(value), well_formed=True, borderline=right and found.dangling,
        )  # fmt: skip


def value_of(answer: str) -> Fraction | None:
    """The number that an answer says: a plain number, else one by the rules of mathematics (`x = 18`, `12 + 6 = 18`);
    a percent sign is dropped (`25\\%` is 25), never divided by a hundred."""
    value = number(answer)
    if value is not None or len(answer) > MAX_LENGTH:
        return value
    try:
        node = read(answer)
    except (Unread, LimitError):
        return None
    if node.kind == "named":
        node = node.items[0]
    if node.kind not in ("num", "percent") or node.form is None:
        return None
    value = node.form.rational()
    return value if value is not None and value.numerator.bit_length() < 1000 else None


def _with_examples(question: str) -> tuple[Message, ...]:
    turns = [m for asked, solved in EXAMPLES for m in (Message("user", asked), Message("assistant", solved))]
    return (Message("system", SYSTEM), *turns, Message("user", question))


PROMPTS: Mapping[str, Callable[[str], tuple[Message, ...]]] = {
    "paper": lambda question: system_user(SYSTEM, question),
    "plain": lambda question: user(f"{question}\n\n{SYSTEM}"),
    "examples": _with_examples,
}


def gold_of(answer: str) -> str | None:
    """The text after the last `####`, or None where there is no such mark."""
    _head, mark, tail = answer.rpartition("####")
    return tail.strip() if mark else None


def from_row(row: Row, id: str, where: str, preset: str) -> Problem | BadRow:
    """A problem; DataError where a column or the `####` is missing, BadRow where the gold is no number."""
    question = str(column(row, ("question", "problem"), where)).strip()
    answer = str(column(row, ("answer",), where))
    gold = gold_of(answer)
    if gold is None:
        raise DataError(
            f"{where}: the answer has no '####' before its gold", "give the data in its published format"
        )
    if not question:
        return BadRow(id, "the question is empty")
    value = number(gold)
    if value is None:
        return BadRow(id, f"the gold {gold[:60]!r} is not a number")
    question = _MARK.sub("", question)
    messages = PROMPTS[preset](question)
    extra = {"published_gold": gold} if gold != show(value) else {}
    return Problem(id, "gsm8k", messages, show(value), extra)
