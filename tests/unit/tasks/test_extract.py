"""Where the answer stands: boxes, tags, thinking blocks."""

from __future__ import annotations

import time

import pytest

from broaden.tasks.extract import boxes, last_box, last_tag, visible


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{43} then \boxed{42}", ["43", "42"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\fbox{7} \boxed {8}", ["7", "8"]),
        (r"\boxed{\boxed{5}}", [r"\boxed{5}"]),
        (r"\boxed{ a \} b }", [r" a \} b "]),
        (r"\boxed 5", []),
        (r"\boxed", []),
        (r"\boxedx{5}", []),
        (r"{ \boxed{5}", ["5"]),
        (r"\\boxed{5}", ["5"]),
    ],
)
def test_boxes_are_balanced_and_outermost(text: str, found: list[str]) -> None:
    assert boxes(text)[0] == found


def test_an_unterminated_box_is_no_answer() -> None:
    assert last_box(r"so \boxed{7", "stop").text is None
    assert last_box(r"so \boxed{7", "stop").missing == "no_answer"
    assert last_box(r"so \boxed{7", "length").missing == "truncated"


def test_a_later_open_box_is_told() -> None:
    found = last_box(r"\boxed{43}, wait: \boxed{4", "length")
    assert (found.text, found.dangling) == ("43", True)


def test_a_retracted_box_is_told() -> None:
    found = last_box(r"\boxed{2}. Wait \boxed{3}", "stop")
    assert (found.text, found.retracted) == ("3", True)


@pytest.mark.parametrize(
    ("text", "thinking", "shown"),
    [
        ("plain", False, "plain"),
        ("plain", True, None),
        ("<think>a</think>b", False, "b"),
        ("a</think>b", True, "b"),
        ("<think>a", False, None),
        ("x</think>y<think>z", False, None),
        ("a</think>b</think>c", True, "c"),
    ],
)
def test_only_text_after_thinking_counts(text: str, thinking: bool, shown: str | None) -> None:
    assert visible(text, thinking) == shown


def test_r1_style_response_without_closing_tag_is_truncated() -> None:
    found = last_box(r"so maybe \boxed{9}", "stop", thinking=True)
    assert (found.text, found.missing) == (None, "truncated")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a</answer> no <answer> b </answer>", "b"),
        ("<answer>a</answer> <answer>b", "a"),
        ("a</answer>", None),
        ("<answer>a", None),
        ("</answer><answer>", None),
        ("<answer></answer>", ""),
    ],
)
def test_last_complete_tag_pair_wins(text: str, answer: str | None) -> None:
    assert last_tag(text, "stop").text == answer


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "{", "}", "\\", "\\boxed{1},", "<answer>", "</answer>", "</think>"]
)
def test_a_megabyte_is_scanned_in_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    start = time.perf_counter()
    last_box(text, "stop")
    last_tag(text, "stop")
    assert time.perf_counter() - start < 10
