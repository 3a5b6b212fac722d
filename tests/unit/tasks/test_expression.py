"""The Countdown grammar: what it takes, and what it refuses in bounded time."""

from __future__ import annotations

from fractions import Fraction

import pytest

from broaden.tasks.expression import MAX_DEPTH, ExpressionError, parse


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("1 + 2 * 3", 7, (1, 2, 3)),
        ("(1+2)*3", 9, (1, 2, 3)),
        ("10 - 4 - 3", 3, (10, 4, 3)),
        ("8 / 4 / 2", 1, (8, 4, 2)),
        ("1/3 + 2/3", 1, (1, 3, 2, 3)),
        ("((7))", 7, (7,)),
        ("2*(3-(4-1))", 0, (2, 3, 4, 1)),
        ("0 + 1", 1, (0, 1)),
    ],
)
def test_exact_values(text: str, value: int, numbers: tuple[int, ...]) -> None:
    said = parse(text)
    assert said.value == Fraction(value)
    assert said.numbers == numbers


def test_division_by_zero_has_no_value() -> None:
    assert parse("8/(4-4)").value is None
    assert parse("0*(8/(4-4))").value is None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "2**3", "7//2", "-3+5", "+3", "3+-5", "2(3)", "(2)(3)", "3 7", "3.0", "3.", ".5", "1e3", "0x10", "007",
        "3+", "*3", "(3", "3)", "()", "a+1", "__import__('os')", "3 = 3", "3; 4", "3,4", "²", "٣", "3!", "3%2",
        "1_000", "3\x00",
        "[1]+2", "{1}", "１+２", "\\frac{1}{2}",
    ],
)  # fmt: skip
def test_outside_the_grammar(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert not caught.value.limit


@pytest.mark.parametrize(
    "text", ["1+" * 600 + "1", "(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), "1234567890123"]
)
def test_limits(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.limit


def test_depth_up_to_the_limit_is_fine() -> None:
    assert parse("(" * MAX_DEPTH + "5" + ")" * MAX_DEPTH).value == 5


def test_unicode_operators_are_recognised_and_marked() -> None:
    said = parse("6 × 7")
    assert said.unicode
    assert said.value == 42
    assert not parse("6*7").unicode
