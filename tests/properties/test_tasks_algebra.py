"""The exact algebra against Python's own numbers, and equality as an equivalence."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from broaden.tasks import algebra
from broaden.tasks.answers import read
from broaden.tasks.equality import evaluate, same
from broaden.tasks.latex import expression
from broaden.tasks.numerals import number
from broaden.tasks.spelling import clean

Tree = tuple[str, Fraction]
leaves = st.integers(0, 30).map(lambda n: (str(n), Fraction(n)))


def join(parts: tuple[Tree, str, Tree]) -> Tree:
    (a, x), op, (b, y) = parts
    if op == "frac":
        return (rf"\frac{{{a}}}{{{b}}}", x / y) if y else (a, x)
    if op == "/":
        return (f"({a})/({b})", x / y) if y else (a, x)
    value = {"+": x + y, "-": x - y, "*": x * y}[op]
    sign = {"*": r" \cdot "}.get(op, op)
    return f"({a}){sign}({b})", value


trees = st.recursive(
    leaves, lambda s: st.tuples(s, st.sampled_from(["+", "-", "*", "/", "frac"]), s).map(join), max_leaves=8
)


@given(trees)
@settings(max_examples=200)
def test_arithmetic_is_exact(tree: Tree) -> None:
    text, value = tree
    assert expression(clean(text)).rational() == value


@given(st.fractions(max_denominator=50))
def test_numbers_read_back(value: Fraction) -> None:
    for text in (str(value), rf"\frac{{{value.numerator}}}{{{value.denominator}}}"):
        assert number(text) == value
        assert read(text).key() == str(value)


@given(st.integers(-(10**12), 10**12))
def test_grouped_integers(value: int) -> None:
    for text in (
        f"{value:,}",
        f"{value:,}".replace(",", "{,}"),
        f"{value:,}".replace(",", r"\,"),
        f"${value}$",
        f"{value}.00",
    ):
        assert number(text) == value
        assert same(read(str(value)), read(text)) is True
    assert same(read(str(value)), read(str(value + 1))) is False


polynomials = st.lists(
    st.tuples(st.integers(-5, 5), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=5
)


def text_of(terms: list[tuple[int, int, int]]) -> str:
    return "+".join(f"({c})x^{{{a}}}y^{{{b}}}" for c, a, b in terms)


@given(polynomials, polynomials)
@settings(max_examples=150)
def test_polynomials_agree_with_values(
    left: list[tuple[int, int, int]], right: list[tuple[int, int, int]]
) -> None:
    a, b = expression(clean(text_of(left))), expression(clean(text_of(right)))

    def value(terms: list[tuple[int, int, int]], x: int, y: int) -> int:
        return sum(c * x**i * y**j for c, i, j in terms)

    points = [(x, y) for x in range(4) for y in range(3)]
    agree = all(value(left, x, y) == value(right, x, y) for x, y in points)
    assert algebra.equal(a, b) == agree
    assert (a.key() == b.key()) == agree
    product, total = algebra.mul(a, b), algebra.add(a, b)
    assert algebra.equal(algebra.mul(b, a), product)
    if b.num:
        assert algebra.equal(algebra.div(product, b), a)
    assert algebra.equal(algebra.add(total, algebra.neg(b)), a)


surds = st.lists(
    st.tuples(st.integers(-6, 6), st.sampled_from([1, 2, 3, 5, 6, 12, 18])), min_size=1, max_size=3
)


@given(surds, surds)
@settings(max_examples=150)
def test_surds_agree_with_fifty_digits(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = (expression(clean("+".join(f"({c})\\sqrt{{{n}}}" for c, n in t))) for t in (left, right))
    x, y = evaluate(a), evaluate(b)
    assert x is not None
    assert y is not None
    assert algebra.equal(a, b) == (abs(x - y) < 1e-30)
    if b.num:
        quotient = evaluate(algebra.div(a, b))
        assert quotient is not None
        assert abs(quotient - x / y) < 1e-20


@given(
    st.lists(
        st.sampled_from(
            ["1", "0.5", r"\frac12", "x", "2x", r"\sqrt2", "(1,2)", "1,2", r"\{2,1\}", "Evelyn", "3_8"]
        ),
        min_size=3,
        max_size=3,
    )
)
def test_equality_is_symmetric_and_transitive_on_plain_answers(texts: list[str]) -> None:
    a, b, c = map(read, texts)
    assert same(a, b) == same(b, a)
    if same(a, b) and same(b, c):
        assert same(a, c)
    assert same(a, a) is True
