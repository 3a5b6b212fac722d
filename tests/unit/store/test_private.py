"""A private problem's question and options never reach the disk; its verdicts can still be computed."""

from __future__ import annotations

from pathlib import Path

from broaden import tasks
from broaden.records import Message, Problem
from broaden.store import SampleStore

SECRET = "what is the secret question"
PROBLEM = Problem(
    "rec1", "gpqa", (Message("user", SECRET),), "B",
    {"letters": ["A", "B"], "options": ["hidden one", "hidden two"], "shuffle_seed": 3, "private": True},
)  # fmt: skip


def test_only_ids_and_letters_are_written(tmp_path: Path) -> None:
    SampleStore(tmp_path).start("gpqa", [PROBLEM], {"samples": 1})
    text = (tmp_path / "header.json").read_text()
    assert SECRET not in text
    assert "hidden" not in text
    (read,) = SampleStore(tmp_path).read().problems
    assert (read.id, read.gold, read.messages) == ("rec1", "B", ())
    assert tasks.get("gpqa").judge(read, r"\\boxed{B}", "stop").score == 1.0
    SampleStore(tmp_path).start("gpqa", [PROBLEM], {"samples": 1})  # the same evaluation goes on
