"""Open question answering: HotpotQA with its context in the prompt, the answer in `<answer></answer>`.

Score: exact match after the official normalisation, with three repairs (docs/tasks/openqa.md): an answer made of
articles keeps them, points and commas inside numbers are no punctuation, yes and no match only themselves.
Not here: F1 as a reward; it is written into the verdict's note.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from broaden.errors import DataError, UsageError
from broaden.records import FinishReason, Problem, Verdict
from broaden.tasks.base import BadRow, Family, user
from broaden.tasks.extract import last_tag
from broaden.tasks.files import Row, find
from broaden.tasks.hub import rows_of

PROMPT = (
    "Answer the question from the context.\n\n{context}\n\nQuestion: {question}\n\n"
    "Think step by step, then give a short answer in <answer></answer>."
)
CLOSED = "Question: {question}\n\nThink step by step, then give a short answer in <answer></answer>."
MAX_ANSWER = 2000
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = "".join(re.escape(c) for c in string.punctuation) + "“”‘’«»…–—"


class HotpotQA(Family):
    """Splits: dev (distractor setting: ten paragraphs in the prompt); `context=none` asks closed-book."""

    name, version = "hotpotqa", "1"
    title = "HotpotQA distractor: a short answer in <answer></answer>"
    hub = "hotpotqa/hotpot_qa"
    default_split = "dev"
    options: ClassVar[Mapping[str, Any]] = {"context": "prompt"}

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        if options["context"] not in ("prompt", "none"):
            raise UsageError(f"hotpotqa: context is 'prompt' or 'none', not {options['context']!r}")
        names = ("hotpot_dev_distractor_v1.json", "distractor_dev_500.jsonl") if split == "dev" else ()
        path = find(data, split, names) if data is not None else None
        for at, row in rows_of(self, path, split):
            row_id = str(row.get("_id", row.get("id", f"{split}/{at}")))
            yield self._problem(row, row_id, options["context"] == "prompt")

    def _problem(self, row: Row, row_id: str, with_context: bool) -> Problem | BadRow:
        question, answer = row.get("question"), row.get("answer")
        if question is None or answer is None:
            raise DataError(
                f"hotpotqa row {row_id}: question and answer were expected; it has {', '.join(map(str, row))}"
            )
        gold = str(answer).strip()
        if not normalise(gold):
            return BadRow(row_id, f"the gold {gold!r} is empty after normalisation")
        if not with_context:
            return Problem(row_id, self.name, user(CLOSED.format(question=question)), gold)
        if "context" not in row:
            raise DataError(
                f"hotpotqa row {row_id}: no column 'context'",
                "use the distractor file, or the option context=none",
            )
        text = PROMPT.format(context=paragraphs(row["context"]), question=question)
        return Problem(row_id, self.name, user(text), gold, {"type": str(row.get("type", ""))})

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        gold = _normal_gold(problem.gold)
        if not gold:
            return self.verdict("gold_unparseable", note=f"gold {problem.gold[:80]!r}")
        found = last_tag(completion, finish, bool(problem.extra.get("thinking")))
        if found.text is None:
            return self.verdict("truncated" if found.missing == "truncated" else "no_answer")
        if len(found.text) > MAX_ANSWER:
            return self.verdict("limit", answer=found.text[:200], note=f"longer than {MAX_ANSWER} characters")
        answer = normalise(found.text)
        if not answer:
            return self.verdict("unparseable", answer=found.text)
        right = answer == gold
        overlap = f1(gold, answer)
        note = "" if right else f"F1 {overlap:.3f}"
        return self.verdict(
            "correct" if right else "wrong", answer=found.text, ballot=answer, well_formed=True,
            borderline=not right and overlap >= 0.8, note=note,
        )  # fmt: skip


def paragraphs(context: Any) -> str:
    """The context of the original files ([[title, [sentences]]]) or of the hub ({title: [...], sentences: [...]})."""
    if isinstance(context, dict):
        pairs = list(zip(context.get("title", []), context.get("sentences", []), strict=True))
    else:
        pairs = [(p[0], p[1]) for p in context]
    return "\n\n".join(f"{title}\n{''.join(sentences).strip()}" for title, sentences in pairs)


def normalise(text: str) -> str:
    """Case, punctuation, articles and blanks removed; what would become empty keeps its articles."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    plain = re.sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", plain)
    kept = re.sub(r"(?<=[0-9])[.](?=[0-9])", "\x00", plain)
    kept = re.sub(r"(?<![0-9A-Za-z])-(?=[0-9])", "\x01", kept)
    kept = re.sub(f"[{_PUNCTUATION}]", "", kept).replace("\x00", ".").replace("\x01", "-")
    without = " ".join(_ARTICLES.sub(" ", kept).split())
    return without or " ".join(kept.split())


@lru_cache(maxsize=65536)
def _normal_gold(gold: str) -> str:
    return normalise(gold)


def f1(gold: str, answer: str) -> float:
    """Token F1 of two normalised texts; yes, no and noanswer only match themselves."""
    if gold != answer and {gold, answer} & {"yes", "no", "noanswer"}:
        return 0.0
    a, b = gold.split(), answer.split()
    common = sum((Counter(a) & Counter(b)).values())
    return 0.0 if common == 0 else 2 * common / (len(a) + len(b))
