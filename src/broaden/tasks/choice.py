r"""Multiple choice: CommonsenseQA and GPQA. The answer is a letter in a box.

A letter counts alone, in `\text{}`, brackets or bold, with a full stop, and with a colon, bracket or full stop and the
option's text after it. A word is never read letter by letter, an article is not option A. Options of GPQA are
shuffled for each question by the data seed. Not here: mathematics whose gold happens to be a letter.
"""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from broaden import seeds
from broaden.errors import DataError, MissingFileError, UsageError
from broaden.records import FinishReason, Problem, Verdict
from broaden.tasks.base import BadRow, Family, user
from broaden.tasks.extract import last_box
from broaden.tasks.files import Row, csv_rows, find
from broaden.tasks.hub import rows_of

PROMPT = (
    "{question}\n\n{options}\n\nThink step by step, then give the letter of your answer within \\boxed{{}}."
)
_WRAP = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|textrm|bm|rm|bf)\s{0,4}\{([^{}]*)\}")
_ALONE = re.compile(
    r"(?:the\s+)?(?:(?:correct\s+)?(?:answer|option|choice)\s*(?:is)?\s*:?\s*)?[(\[]?\s*([A-Za-z])\s*[)\].:]{0,2}",
    re.IGNORECASE,
)
_WITH_TEXT = re.compile(
    r"(?:(?:answer|option|choice)\s*:?\s*)?[(\[]?\s*([A-Z])\s*(?:[)\]]\s*[:.,-]?|[:.]|\s-)\s*(\S.*)",
    re.DOTALL,
)
_LETTER_AND_TEXT = re.compile(r"([A-Z])\s+(\S.*)", re.DOTALL)


class Choice(Family):
    """Judging is common; the subclasses read rows."""

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        letters = tuple(str(x) for x in problem.extra.get("letters", ()))
        options = {a: str(t) for a, t in zip(letters, problem.extra.get("options", ()), strict=False)}
        if problem.gold not in letters:
            return self.verdict("gold_unparseable", note="the gold is none of the options")
        found = last_box(completion, finish, bool(problem.extra.get("thinking")))
        if found.text is None:
            return self.verdict("truncated" if found.missing == "truncated" else "no_answer")
        letter, borderline = read_letter(found.text, letters, options)
        if letter is None:
            return self.verdict("unparseable", answer=found.text[:400])
        right = letter == problem.gold
        return self.verdict(
            "correct" if right else "wrong", answer=found.text[:400], ballot=letter, well_formed=True,
            borderline=borderline or (right and found.dangling),
        )  # fmt: skip


def read_letter(text: str, letters: Sequence[str], options: Mapping[str, str]) -> tuple[str | None, bool]:
    """(the letter meant, does it rest on the option's text): None where the text names no single option."""
    if len(text) > 5000:
        return None, False
    plain = text.strip()
    for _ in range(4):
        plain = _WRAP.sub(r"\1", plain).strip()
    plain = re.sub(r"\\[,;:! ]|[$*~`]|\\\(|\\\)|\\left|\\right", " ", plain)
    plain = re.sub(r"\s+", " ", plain).strip()
    if (alone := _ALONE.fullmatch(plain)) is not None:
        letter = alone.group(1).upper()
        return (letter if letter in letters else None), False
    wanted = {a: _squash(t) for a, t in options.items()}
    if (match := _WITH_TEXT.fullmatch(plain)) is not None and match.group(1) in letters:
        letter, rest = match.group(1), _squash(match.group(2))
        others = [a for a, t in wanted.items() if t == rest and a != letter]
        if others or _names_another(match.group(2), letters):
            return None, False
        return letter, False
    if (match := _LETTER_AND_TEXT.fullmatch(plain)) is not None and wanted.get(match.group(1)) == _squash(
        match.group(2)
    ):
        return match.group(1), False
    named = [a for a, t in wanted.items() if t and t == _squash(plain)]
    return (named[0], True) if len(named) == 1 else (None, False)


def _names_another(text: str, letters: Sequence[str]) -> bool:
    """`B: or C`, `A) and (B)`: a second option is named."""
    return (
        re.fullmatch(r"\s*(?:and|or|,|&)?\s*[(\[]?([A-Z])[)\]]?\s*\.?\s*", text) is not None
        and text.strip(" ().[]&,andor") in letters
    )


def _squash(text: str) -> str:
    return re.sub(r"[\s.]+", " ", text).strip(" .\"'").casefold()


def render(question: str, letters: Sequence[str], options: Sequence[str]) -> str:
    """The prompt: question, lettered options, the boxed contract."""
    listed = "\n".join(f"{a}. {t}" for a, t in zip(letters, options, strict=True))
    return PROMPT.format(question=question, options=listed)


class CommonsenseQA(Choice):
    """Splits: train, dev (evaluate on dev; the test file has no answers). Both published shapes."""

    name, version = "commonsenseqa", "1"
    title = "CommonsenseQA: five options, a letter in a box"
    hub = "tau/commonsense_qa"
    default_split = "dev"

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        path = find(data, split, (f"{split}_rand_split.jsonl",)) if data is not None else None
        for at, row in rows_of(self, path, split):
            yield self._problem(row, str(row.get("id", f"{split}/{at}")))

    def _problem(self, row: Row, row_id: str) -> Problem | BadRow:
        question, choices = row.get("question"), row.get("choices")
        if isinstance(question, dict):  # the original JSONL: question {stem, choices [{label, text}]}
            listed = question.get("choices", [])
            stem = str(question.get("stem", ""))
            letters, texts = [str(c["label"]) for c in listed], [str(c["text"]) for c in listed]
        elif isinstance(choices, dict):  # the hub's: question text, choices {label, text}
            stem, letters, texts = (
                str(question),
                [str(x) for x in choices["label"]],
                [str(x) for x in choices["text"]],
            )
        else:
            raise DataError(
                f"commonsenseqa row {row_id}: no question with choices; it has {', '.join(map(str, row))}"
            )
        gold = str(row.get("answerKey", "") or "")
        if gold not in letters:
            return BadRow(
                row_id,
                f"the answer key {gold!r} is none of {', '.join(letters)}"
                if gold
                else "there is no answer key",
            )
        if len(set(letters)) != len(letters):
            return BadRow(row_id, "two options have one letter")
        return Problem(
            row_id,
            self.name,
            user(render(stem, letters, texts)),
            gold,
            {"letters": letters, "options": texts},
        )


class GPQA(Choice):
    """Splits: diamond, main, extended. From the official password-protected zip or a CSV, read in memory only.

    The authors ask that no question be shown in the clear: `extra["private"]` tells the store to keep
    record ids and letters only.
    """

    name, version = "gpqa", "1"
    title = "GPQA: four options, a letter in a box (official zip or CSV)"
    hub = "Idavidrein/gpqa"
    default_split = "diamond"
    options: ClassVar[Mapping[str, Any]] = {"password": None}

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        if data is not None and data.suffix.lower() == ".zip":
            rows = zip_rows(data, split, options["password"] or os.environ.get("GPQA_PASSWORD"))
        else:
            path = find(data, split, (f"gpqa_{split}.csv",)) if data is not None else None
            rows = rows_of(self, path, split)
        for at, row in rows:
            yield self._problem(row, at, seed)

    def _problem(self, row: Row, at: int, seed: int) -> Problem | BadRow:
        names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
        missing = [n for n in ("Question", *names) if n not in row]
        if missing:
            raise DataError(f"gpqa row {at}: no column {missing[0]!r}; the official columns were expected")
        row_id = str(row.get("Record ID") or f"row-{at}")
        texts = [str(row[n] or "").strip() for n in names]
        if not all(texts) or not str(row["Question"] or "").strip():
            return BadRow(row_id, "the question or an option is empty")
        if texts[0] in texts[1:]:
            return BadRow(row_id, "the right answer stands among the wrong ones too")
        order = shuffled(len(texts), seeds.stream(seed, "split", "gpqa", row_id))
        letters, listed = list("ABCD"), [texts[i] for i in order]
        gold = letters[order.index(0)]
        extra = {"letters": letters, "options": listed, "shuffle_seed": seed, "private": True}
        return Problem(
            row_id, self.name, user(render(str(row["Question"]).strip(), letters, listed)), gold, extra
        )


def shuffled(size: int, key: int) -> list[int]:
    """A permutation of range(size), from the digits of a 64-bit key (size at most 16)."""
    out = list(range(size))
    for i in range(size - 1, 0, -1):
        key, j = divmod(key, i + 1)
        out[i], out[j] = out[j], out[i]
    return out


def zip_rows(path: Path, split: str, password: str | None) -> Iterator[tuple[int, Row]]:
    """Rows of `gpqa_<split>.csv` inside the zip, decrypted in memory."""
    if not path.is_file():
        raise MissingFileError(f"no file {path}", "give --data the path of the official dataset.zip")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.rsplit("/", 1)[-1] == f"gpqa_{split}.csv"]
            if not names:
                held = ", ".join(n for n in archive.namelist() if n.endswith(".csv")) or "no CSV"
                raise UsageError(
                    f"gpqa has no split {split!r} in this zip (it holds {held})",
                    "use diamond, main or extended",
                )
            info = archive.getinfo(names[0])
            if info.flag_bits & 1 and password is None:
                raise UsageError(
                    f"{path.name} is protected by the password that stands in its README",
                    "set the environment variable GPQA_PASSWORD, or the task option password=...",
                )
            raw = archive.read(info, pwd=password.encode() if password else None)
    except (RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path.name} could not be read ({type(error).__name__}: wrong password or broken file)",
            "check GPQA_PASSWORD",
        ) from None
    csv.field_size_limit(10_000_000)
    return csv_rows(io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig").read(), path.name)
