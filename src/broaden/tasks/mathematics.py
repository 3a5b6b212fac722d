r"""Mathematics: the verifier, and the data sets that use it (MATH-500, AIME, AMC, DeepScaleR, any JSONL).

Order of a verdict: own extraction (last balanced box, thinking rule), static limits, own exact rules (`answers`), then
math-verify in a killable process (`mathpool`) for what the rules cannot tell. Each contested choice is written in
docs/tasks/mathematics.md. Not here: GSM8K, whose answers are plain numbers (`gsm8k`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from broaden.errors import DataError, UsageError
from broaden.records import FinishReason, Problem, Verdict, VerdictReason
from broaden.tasks import answers, equality, mathpool
from broaden.tasks.algebra import LimitError
from broaden.tasks.answers import Node
from broaden.tasks.base import BadRow, Family, system_user, user
from broaden.tasks.extract import Extracted, box_spans, boxes, visible
from broaden.tasks.files import Row, find
from broaden.tasks.hub import rows_of
from broaden.tasks.spelling import MAX_LENGTH, Unread

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
SUFFIX = re.compile(r"\s*Let's think step by step and output the final answer within \\boxed\{\}\.?\s*$")
POOL_LENGTH = 1000
MAX_RUN = 100
_BETWEEN = re.compile(r"[\s$,;.]*(?:\\text\{\s*(?:and|or)\s*\}|and|or)?[\s$,;]*")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of comparing one answer text with a gold."""

    reason: VerdictReason
    ballot: str | None = None
    well_formed: bool = False
    borderline: bool = False
    note: str = ""


class Mathematics(Family):
    """Any file with a problem and an answer; the subclasses only know their file names and columns."""

    name: ClassVar[str] = "math"
    version = "1"
    title: ClassVar[str] = "Mathematics: any file with problem and answer, final answer in a box"
    options: ClassVar[Mapping[str, Any]] = {"prompt": "paper"}
    apart = True  # where the own rules cannot tell, and a hung answer costs seconds
    default_split: ClassVar[str] = "test"
    files: ClassVar[tuple[str, ...]] = ()
    integer_gold: ClassVar[bool] = False

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        preset = options["prompt"]
        if preset not in ("paper", "plain"):
            raise UsageError(
                f"{self.name} has no prompt preset {preset!r}",
                "use prompt=paper or prompt=plain (no system message)",
            )
        path = find(data, split, self.files) if data is not None else None
        stem = path.stem if path is not None else split
        for at, row in rows_of(self, path, split):
            yield self.problem(row, f"{stem}/{at}", preset)

    def problem(self, row: Row, row_id: str, preset: str) -> Problem | BadRow:
        """One row of any of the published shapes."""
        question, raw = columns(row, f"{self.name} row {row_id}")
        given = row.get("unique_id", row.get("id"))
        if given is not None:
            row_id = str(given)
        if not question:
            return BadRow(row_id, "the problem text is empty")
        gold, published = tidy_gold(raw, self.integer_gold)
        if not gold:
            return BadRow(row_id, "the gold is empty")
        if self.integer_gold and not re.fullmatch(r"-?[0-9]+", gold):
            return BadRow(row_id, f"the gold {gold[:60]!r} is not an integer")
        if not readable(gold):
            return BadRow(row_id, f"the gold {gold[:60]!r} cannot be read as mathematics or words")
        extra = {} if published is None else {"published_gold": published}
        messages = system_user(SYSTEM, question) if preset == "paper" else user(f"{question}\n\n{SYSTEM}")
        return Problem(row_id, self.name, messages, gold, extra)

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        found = boxed(completion, finish, bool(problem.extra.get("thinking")))
        if found.text is None:
            if not readable(problem.gold):
                return self.verdict("gold_unparseable", note=f"gold {problem.gold[:80]!r}")
            return self.verdict("truncated" if found.missing == "truncated" else "no_answer")
        said = compare(problem.gold, found.text)
        return self.verdict(
            said.reason, answer=found.text[:MAX_LENGTH], ballot=said.ballot, well_formed=said.well_formed,
            borderline=said.borderline or (said.reason == "correct" and found.dangling), note=said.note,
        )  # fmt: skip


class Math500(Mathematics):
    """MATH-500: problem, answer, unique_id."""

    name, title, hub = "math500", "MATH-500: competition mathematics, LaTeX answers", "HuggingFaceH4/MATH-500"


class AIME24(Mathematics):
    """AIME 2024 I and II: integers."""

    name, title, hub, integer_gold = (
        "aime24",
        "AIME 2024 I and II: 30 problems, integers",
        "math-ai/aime24",
        True,
    )


class AIME25(Mathematics):
    """AIME 2025 I and II: integers (one published gold carries a degree sign, which is dropped)."""

    name, title, hub, integer_gold = (
        "aime25",
        "AIME 2025 I and II: 30 problems, integers",
        "math-ai/aime25",
        True,
    )


class AMC23(Mathematics):
    """AMC 2023: integers (published as floats)."""

    name, title, hub, integer_gold = "amc23", "AMC 2023: 40 problems, integers", "math-ai/amc23", True


class DeepScaleR(Mathematics):
    """DeepScaleR-Preview: training mathematics; verl Parquet, the derived JSONL and the AIME JSON all load."""

    name, title = "deepscaler", "DeepScaleR-Preview: competition mathematics for training"
    hub = "agentica-org/DeepScaleR-Preview-Dataset"
    default_split = "train"
    files = ("deepscaler.json", "deepscaler_subset.jsonl", "train.parquet")


def columns(row: Row, where: str) -> tuple[str, Any]:
    """(question, gold as published) of the flat shapes, of verl rows, and of TRL rows."""
    if isinstance(row.get("reward_model"), dict):
        prompt = row.get("prompt")
        texts = (
            [m.get("content", "") for m in prompt if m.get("role") == "user"]
            if isinstance(prompt, list)
            else [prompt]
        )
        return SUFFIX.sub("", str(texts[-1] if texts else "")).strip(), row["reward_model"].get(
            "ground_truth"
        )
    question = next((row[n] for n in ("problem", "question", "prompt") if n in row), None)
    if isinstance(question, list):
        question = next((m.get("content", "") for m in reversed(question) if m.get("role") == "user"), "")
    gold_name = next(
        (n for n in ("answer", "gold", "ground_truth", "expected_answer", "solution") if n in row), None
    )
    if question is None or gold_name is None:
        raise DataError(
            f"{where}: a problem and an answer column were expected; it has {', '.join(map(str, row))}",
            "name them problem and answer (or give verl rows with prompt and reward_model)",
        )
    return SUFFIX.sub("", str(question)).strip(), row[gold_name]


def tidy_gold(raw: Any, integer: bool = False) -> tuple[str, str | None]:
    r"""(gold, published form where it differs): floats that are integers, dollars and boxes around, and, for sets
    whose golds are integers, degree signs and grouping."""
    if raw is None:
        return "", None
    if isinstance(raw, bool):
        return str(raw), None
    if isinstance(raw, float) and raw.is_integer():
        return str(int(raw)), repr(raw)
    text = str(raw).strip()
    inner, _ = boxes(text)
    out = inner[-1].strip() if inner and text.startswith(("\\boxed", "$\\boxed")) else text
    if re.fullmatch(r"\$[^$]+\$", out):
        out = out[1:-1].strip()
    number = re.fullmatch(r"(-?[0-9]+)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})", out)
    if integer and number:
        out = number.group(1)
    elif integer and re.fullmatch(r"-?[0-9]{1,3}(?:,[0-9]{3})+", out):
        out = out.replace(",", "")
    return out, (text if out != text else None)


def boxed(completion: str, finish: str, thinking: bool) -> Extracted:
    """The last box; boxes with nothing but commas, "and", "or" between them are one list (`\\boxed{3}, \\boxed{5}`)."""
    text = visible(completion, thinking)
    if text is None:
        return Extracted(None, "truncated")
    found, dangling = box_spans(text)
    spans = [(start, end + 1, text[inner:end]) for start, inner, end in found]
    if not spans:
        return Extracted(None, "truncated" if finish == "length" else "no_answer", dangling=dangling)
    run = [spans[-1]]
    for span in reversed(spans[-MAX_RUN:-1]):
        between = text[span[1] : run[0][0]]
        if len(between) > 40 or ("," not in between and "and" not in between and "or" not in between):
            break
        if not _BETWEEN.fullmatch(between):
            break
        run.insert(0, span)
    contents = list(dict.fromkeys(s[2] for s in run))
    joined = ", ".join(contents) if len(contents) > 1 else contents[0]
    return Extracted(joined, retracted=len({s[2] for s in spans}) > 1, dangling=dangling)


@lru_cache(maxsize=65536)
def gold_readings(gold: str) -> tuple[Node, ...]:
    """The readings of a gold by the own rules; empty where they do not read it."""
    try:
        return tuple(answers.readings(gold))
    except (Unread, LimitError):
        return ()


@lru_cache(maxsize=65536)
def readable(gold: str) -> bool:
    """Whether a gold can be judged against at all: by the own rules, else by math-verify."""
    if gold_readings(gold):
        return True
    if not re.search(r"[A-Za-z0-9]{1}", re.sub(r"\\[A-Za-z]+", "", gold)) or len(gold) > POOL_LENGTH:
        return False
    said = mathpool.shared().ask(gold, "0")
    return said.outcome in ("equal", "different")


def compare(gold: str, answer: str, pool: mathpool.Pool | None = None) -> Comparison:
    """Judges an extracted answer against a gold."""
    golds = gold_readings(gold)
    if not golds and not readable(gold):
        return Comparison("gold_unparseable", note=f"gold {gold[:80]!r}")
    try:
        said = _by_rules(golds, answer)
    except LimitError as error:
        return Comparison("limit", note=str(error))
    if said.reason in ("correct", "wrong"):
        return said
    if answers.squash(answer) == answers.squash(gold):
        return Comparison("correct", said.ballot, True, True, "equal as text")
    return _ask(gold, answer, said.ballot, said.well_formed, pool or mathpool.shared())


def _by_rules(golds: tuple[Node, ...], answer: str) -> Comparison:
    """The own rules' verdict; "unparseable" stands for: they cannot tell (`well_formed`: but they can read it)."""
    try:
        node = answers.read(answer)
        ballot = node.key()
    except Unread:
        return Comparison("unparseable", f"?{answers.squash(answer)[:200]}")
    verdicts = []
    for reading in golds:
        verdicts.append(equality.same(reading, node))
        if verdicts[-1]:
            return Comparison("correct", ballot, True, equality.lenient(reading, node), _why(reading, node))
    if any(g.kind == "text" and _letters(g.text) == _letters(answer) != "" for g in golds):
        return Comparison("correct", ballot, True, True, "the same word")
    decided = bool(verdicts) and all(v is False for v in verdicts)
    return Comparison("wrong" if decided else "unparseable", ballot, True)


def _letters(text: str) -> str:
    r"""Letters and digits alone, commands dropped: `\text{DNE}` and `dne`."""
    return re.sub(r"[^a-z0-9]+", "", re.sub(r"\\[A-Za-z]+", "", text).casefold())


def _why(gold: Node, answer: Node) -> str:
    return f"a {answer.kind} for a {gold.kind}" if gold.kind != answer.kind else ""


def _ask(gold: str, answer: str, ballot: str | None, read: bool, pool: mathpool.Pool) -> Comparison:
    if len(answer) > POOL_LENGTH or len(gold) > POOL_LENGTH:
        return Comparison(
            "limit", ballot, note=f"longer than {POOL_LENGTH} characters and not read by the own rules"
        )
    said = pool.ask(answers.bare(gold), answers.bare(answer))
    if said.outcome == "equal":
        return Comparison("correct", ballot, True, True, said.by)
    if said.outcome == "different":
        return Comparison("wrong", ballot, True, note=said.by)
    if said.outcome == "unread":
        return Comparison("wrong" if read else "unparseable", ballot, read)
    if said.outcome == "memory":
        return Comparison("limit", ballot, note="memory limit of the mathematics worker")
    return Comparison(
        "timeout" if said.outcome == "timeout" else "crashed", ballot, note="the mathematics worker"
    )
