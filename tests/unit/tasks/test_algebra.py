"""Exact normal forms: identities that must hold, differences that must show, limits."""

from __future__ import annotations

import pytest

from broaden.tasks import algebra
from broaden.tasks.algebra import LimitError
from broaden.tasks.latex import expression
from broaden.tasks.spelling import Unread, clean


def form(text: str) -> algebra.Form:
    return expression(clean(text))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
        (r"\sqrt{12}", r"2\sqrt{3}"),
        (r"\sqrt{8}\cdot\sqrt{2}", "4"),
        (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1"),
        (r"\frac{1}{\sqrt{2}+\sqrt{3}}", r"\sqrt{3}-\sqrt{2}"),
        (r"\frac{2}{1+i}", "1-i"),
        ("i^2", "-1"),
        (r"\sqrt{-4}", "2i"),
        (r"\sqrt[3]{54}", r"3\sqrt[3]{2}"),
        (r"\sqrt[3]{-8}", "-2"),
        ("2^{3/4}", r"\sqrt[4]{8}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"\frac{x-1}{x^2-1}", r"\frac{1}{x+1}"),
        (r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}"),
        (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}"),
        ("6 + 2(3x)", "6+6x"),
        (r"2\frac{1}{2}", "2.5"),
        ("1 1/4", "5/4"),
        (r"0.\overline{3}", r"\frac13"),
        (r"0.1\overline{6}", r"\frac16"),
        (r"3.46 \times 10^{3}", "3460"),
        (r"\binom{5}{2}", "10"),
        ("5!", "120"),
        (r"14.0 + -1.0i", "14-i"),
        ("e^{16}-1", "-1+exp(16)"),
        (r"\lfloor 3.7 \rfloor + |{-2}|", "5"),
        ("2*pi", r"2\pi"),
        ("x**2", "x^2"),
        (r"\frac9{19}", "9/19"),
        (r"\frac{270}7", "270/7"),
        ("2^{2^3}", "256"),
        ("-2^2", "-4"),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{6} + \frac{1}{3 \cdot 2^{2006}}"),
        (r"x^{2/3} x^{1/3}", "x"),
        (r"1,234 + 1", "1235"),
    ],
)
def test_equal(left: str, right: str) -> None:
    a, b = form(left), form(right)
    assert algebra.equal(a, b)
    assert algebra.equal(b, a)
    assert a.key() == b.key()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\sqrt{2}", "1.41421356"),
        (r"\pi", "3.14159265"),
        ("x", "y"),
        ("x_1", "x_2"),
        (r"1-\frac{1}{e}", r"1+\frac{1}{e}"),
        ("1+i", "1-i"),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"),
        ("2^{10}", "2^{11}"),
        ("123456", "123457"),
    ],
)
def test_different_and_decided(left: str, right: str) -> None:
    a, b = form(left), form(right)
    assert not algebra.equal(a, b)
    assert not a.opaque
    assert not b.opaque


@pytest.mark.parametrize(
    "text", [r"\sin x", r"\ln 2", r"\sqrt{1+\sqrt{5}}", "2^{n}", "n!", "|x|", "f(x)", r"\sqrt{x^2}"]
)
def test_opaque_atoms_leave_inequality_open(text: str) -> None:
    a = form(text)
    assert a.opaque
    assert algebra.equal(a, form(text))


@pytest.mark.parametrize(
    "text",
    [
        "5^{5^{5^5}}", "2^{65536^{65536^{2}}}", "(10^{9})!", "9!!!!", "(x+y+z)^{100}",
        "(" * 60 + "1" + ")" * 60, "9" * 500,
        r"\binom{10^9}{5}", "{" * 60 + "1" + "}" * 60, "10^{10^{10}}", "x" * 4000, "2^{100001}", r"\sqrt{10^{200}+1}",
    ],
)  # fmt: skip
def test_limits(text: str) -> None:
    with pytest.raises(LimitError):
        form(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "1+",
        "(1",
        "1)",
        r"\frac{1}",
        r"\sum_{k=1}^{n} k",
        "3 5",
        "4 10/3",
        r"\foo{3}",
        "hello",
        "x^",
        "1..2",
        "٣",
        "&",
    ],
)
def test_unread(text: str) -> None:
    with pytest.raises((Unread, ZeroDivisionError)):
        form(text)


def test_division_by_zero_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        form(r"\frac{1}{2-2}")


def test_proportional_forms() -> None:
    assert algebra.proportional(form("34x+45y-20z+100"), form("-34x-45y+20z-100"))
    assert algebra.proportional(form("2x+4y-3"), form(r"y+\frac{1}{2}x-\frac34"))
    assert not algebra.proportional(form("3x-y+13"), form("3x+4y+14"))
    assert not algebra.proportional(form("x"), form("0"))
