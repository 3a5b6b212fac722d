"""Answers as structures: what is equal, what is not, what stays open; ballots; rewritings of the MATH-500 golds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from tests.helpers.data import data_path

from broaden.tasks.answers import Node, read, readings
from broaden.tasks.equality import same


def verdict(gold: str, answer: str) -> bool | None:
    said = [same(g, read(answer)) for g in readings(gold)]
    return True if True in said else None if None in said else False


RIGHT = [
    (r"(1,\frac{9}{2})", "(1,4.5)"), (r"(-\infty, 3)", "x<3"), (r"(-\infty, 3)", "3 > x"), ("x<3", r"(-\infty,3)"),
    (r"[-2,7]", r"-2 \le x \le 7"), (r"x \in [-2,7]", "[-2, 7]"), (r"\left( 3, \frac{\pi}{2} \right)",
    r"(3, \frac{\pi}{2})"),
    (r"\text{Evelyn}", "Evelyn"), (r"\text{Evelyn}", r"\textbf{evelyn}"), (r"\text{(C)}", "C"), (r"\text{(C)}", "(C)"),
    ("3, 5, 7", "7, 5, 3"), ("3, 5, 7", r"\{3, 5, 7\}"), ("3, 5, 7", "3, 5 and 7"), ("3, 5, 7", "(3, 5, 7)"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"), (r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"),
    (r"\pm 2021", "2021, -2021"),
    ("x=5", "5"), ("5", "x = 5"), ("x=5", "x=5.0"), ("y = 2x + 3", "2x+3"), ("y = 2x + 3", "2x - y + 3 = 0"),
    ("2x+4y-3=0", "y = -1/2*x + 3/4"), ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"), ("f(x) = x + 1", "x+1"),
    ("n=2, 3, 4", "4,3,2"), (r"10\%", "10"), (r"10\%", "0.1"), (r"50\%", r"50\%"), ("50", r"50\%"),
    (r"336^\circ", "336"),
    ("90", r"90^{\circ}"), (r"5.4 \text{ cents}", "5.4"), (r"5.4 \text{ cents}", r"5.4\text{ cent}"),
    (r"15\mbox{ cm}^2", "15 cm^2"),
    (r"864 \mbox{ inches}^2", "864"), (r"\frac{270}7\text{ degrees}", "270/7"), (r"\$32,\!348", "32348"),
    ("58,500", r"\$58{,}500"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"), ("1,234", "1, 234"), ("2500000", r"2.5 \text{ million}"),
    ("2500000", "2.5 million"),
    ("2516_8", "2516_{8}"), ("2516_8", "2516_{(8)}"), ("2516_8", "2516"), ("1:2", "1 : 2"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4.0\end{bmatrix}"),
    (r"(\begin{pmatrix}-\frac{7}{4}&-2\\4&\frac{1}{4}\\\end{pmatrix})",
    r"\begin{pmatrix}-1.75&-2\\4&0.25\end{pmatrix}"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)\cup(-\infty,2)"), (r"(-\infty, 2) \cup (3, \infty)", "x<2 or x>3"),
    (r"\frac{1}{12}", "0.0833333333333333"), (r"\sqrt{2}", "1.41421356"), ("13", r"\text{13}"), ("16", "016"),
    ("42", "$42$."),
    ("12", r"3 \times 4 = 12"), (r"\frac{2015 \cdot 2013}{4} \text{ OR } \frac{4056195}{4}", "1014048.75"),
    (r"\emptyset", r"\varnothing"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt3}"), ("-2\\pi", "-2*pi"),
    (r"120 < n \leq 130", "(120, 130]"),
]  # fmt: skip
WRONG = [
    (r"\text{Evelyn}", r"\text{Angela}"), (r"\text{no real solutions}", "7"), ("(1,2)", "(2,1)"), ("[2,5)",
    "(2,5)"), ("[2,5)", "[2,5]"),
    ("(-2,1)", "-2,1"), (r"\{1,2\}", "(1,2)"), ("3, 5, 7", "3, 5"), ("3, 5, 7", "3, 5, 8"), ("3, 5, 7", "7"),
    (r"\pm 2021", "2021"),
    ("n=2, 3, 4", "n=1, 2, 3"), ("D = (0, 1)", "D = (0, 1.5)"), ("19, 46, \\text{ and } 82",
    "21, 36, \\text{ and } 82"),
    (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1"), (r"1:2:3:\ldots", r"1:4:9:\ldots"), ("12:00", "1:00"),
    ("3x-y+13=0", "3x + 4y + 14=0"),
    ("4", r"4\sqrt(2)"), ("2", "2 2/3"), ("3", "n=3k"), ("50", "0.5"), ("0.5", "50"), ("100000", "100001"),
    ("x=5", "y=5"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"), (r"\frac{1}{3}", "0.333"), (r"\frac{1}{3}", "0.3333334"),
    ("33.3", r"\frac{100}{3}"), ("2516_8", "2516_7"),
    ("2516_8", "1358"), (r"5 \text{ cm}", r"5 \text{ m}"), ("5", r"5 \text{ million}"), ("40", "40_9"),
    (r"10\%", r"1000\%"), ("x<3", "x>3"),
    ("x<3", r"x \le 3"), ("1:2", "2:1"), (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"), ("C", "B"), ("5x", "5"),
    ("2", "-2"), ("3x^2+2", "3z^2+2"), ("16", "0.16"), ("7", r"\{7, 8\}"), (r"(-\infty, 2) \cup (3, \infty)",
    r"(-\infty, 2] \cup (3, \infty)"),
]  # fmt: skip
OPEN = [
    (r"\tan^2(y)+1", r"\sec^2(y)"),
    (r"\cot x", r"\frac{1}{\tan x}"),
    (r"\ln 4", r"2\ln 2"),
    (r"2^n \cdot 2", "2^{n+1}"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right(gold: str, answer: str) -> None:
    assert verdict(gold, answer) is True


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong(gold: str, answer: str) -> None:
    assert verdict(gold, answer) is False


@pytest.mark.parametrize(("gold", "answer"), OPEN)
def test_open(gold: str, answer: str) -> None:
    assert verdict(gold, answer) is None


@pytest.mark.parametrize(
    "group",
    [
        ["1/2", "0.5", r"\frac12", r"\frac{1}{2}", r"\dfrac{2}{4}", "$0.50$", r"\text{0.5}"],
        ["x=5", "5", "5.0", "$5$", "5 cm"],
        ["3, 5", "5, 3", r"\{5,3\}", "3 and 5", r"4 \pm 1"],
        [r"10\%", "10", "10 percent"],
        [r"2x+3", "3+2x", "y=2x+3"],
        ["(1, 2)", r"\left(1,2\right)", "(1.0,2)"],
        ["2516_8", "2516_{8}"],
        ["Evelyn", r"\text{Evelyn}", r"\textbf{evelyn}"],
    ],
)
def test_equal_answers_share_a_ballot(group: list[str]) -> None:
    assert len({read(text).key() for text in group}) == 1


def test_unlike_answers_do_not_share_a_ballot() -> None:
    texts = [
        "1",
        "2",
        "x",
        "(1,2)",
        "[1,2]",
        "1,2",
        "1/2",
        r"\sqrt2",
        "Evelyn",
        "2_8",
        "1:2",
        "x<1",
        r"\begin{pmatrix}1\\2\end{pmatrix}",
    ]
    assert len({read(text).key() for text in texts}) == len(texts)


REWRITINGS: dict[str, Callable[[str], str]] = {
    "dollars": lambda g: f"${g}$",
    "parenthesised mathematics": lambda g: rf"\( {g} \)",
    "trailing period": lambda g: f"{g}.",
    "dfrac": lambda g: g.replace(r"\frac", r"\dfrac"),
    "tfrac": lambda g: g.replace(r"\frac", r"\tfrac"),
    "left right": lambda g: g.replace(r"\left", "").replace(r"\right", "") if r"\left" in g else bracketed(g),
    "blanks": lambda g: f"  {g}  ",
    "thin spaces": lambda g: rf"\, {g} \,",
    "displaystyle": lambda g: rf"\displaystyle {g}",
    "braces": lambda g: f"{{{g}}}",
    "display": lambda g: rf"\[ {g} \]",
    "bold": lambda g: g if r"\text" in g or r"\mbox" in g else rf"\mathbf{{{g}}}",
}


def bracketed(gold: str) -> str:
    if gold[0] in "([" and gold[-1] in ")]" and "\\cup" not in gold and gold.count(gold[0]) == 1:
        return rf"\left{gold[0]} {gold[1:-1]} \right{gold[-1]}"
    return gold


def golds() -> list[str]:
    with data_path("math500", "test.jsonl").open() as file:
        return [json.loads(line)["answer"] for line in file]


@pytest.mark.parametrize("name", REWRITINGS)
def test_each_math500_gold_equals_itself_rewritten(name: str) -> None:
    off = [(g, REWRITINGS[name](g)) for g in golds() if verdict(g, REWRITINGS[name](g)) is not True]
    assert off == []


EQUAL_GOLDS = {
    ("-2,1", "1,-2"), (r"10,\!080", "10080"), ("120", r"120^\circ"), ("15", r"15\mbox{ cm}^2"), (r"2 \sqrt{5}",
    r"2\sqrt{5}"), ("30", r"30^\circ"),
    ("36", r"36^\circ"), ("36", r"\$36"), (r"36^\circ", r"\$36"), ("40", "40_9"), ("5", "x=5"), ("90",
    r"90^\circ"), (r"\frac14", r"\frac{1}{4}"),
}  # fmt: skip


def test_no_two_different_math500_golds_are_equal_except_those_listed() -> None:
    nodes: dict[str, Node] = {g: read(g) for g in sorted(set(golds()))}
    found = {
        (a, b)
        for a, b in itertools.combinations(nodes, 2)
        if same(nodes[a], nodes[b]) or same(nodes[b], nodes[a])
    }
    assert found == EQUAL_GOLDS
