"""Whatever a model writes, every verifier answers in bounded time, and nothing breaks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broaden.records import Problem
from broaden.tasks import get, mathpool
from broaden.tasks.mbpp import code_block

_WORDS = (
    r"\frac { } ( ) [ ] ^ _ ! 1 23 999999999 0 x y \pi e i + - * / \sqrt \text{ \{ \} , ; = < \le \infty \cup "
    r"cm % \% $ \$ ° & : "
    r"\begin{pmatrix} \end{pmatrix} \\ \sin \log ln \boxed{ <answer> </answer> </think> <think> é ٣ ½ ² '' "
    r"\left( \right) \binom | "
    r"\lfloor \overline{3} . .. 10^{9} ^{10^{10}} \sum_{k=1}^{n} \pm \mp ** // __import__ ``` ```python import"
).split()
PIECES = [*_WORDS, " and ", " or ", " ", "\n", "\x00", "\ud800", "2 2/3"]
GOLDS = (
    "3",
    r"\frac{1}{2}",
    "x^2+1",
    "(1,2)",
    r"\{1,2\}",
    "x=5",
    r"\text{east}",
    r"10\%",
    r"\sqrt{2}",
    r"[0,\infty)",
    "2516_8",
    r"\sin x",
)
LIMIT = 3.0
"""Seconds for one verdict: the pool's limit here (0.5 s), its grace, and the own rules."""

pieces = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
repeated = st.tuples(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join), st.integers(1, 400)
).map(lambda p: p[0] * p[1])
towers = st.one_of(
    st.recursive(
        st.sampled_from(["1", "x", "9"]),
        lambda s: st.tuples(s, s).map(lambda p: f"{p[0]}^{{{p[1]}}}"),
        max_leaves=30,
    ),
    st.integers(1, 300).map(lambda n: "(" * n + "1" + ")" * n),
    st.integers(1, 300).map(lambda n: "2^{" * n + "2" + "}" * n),
    st.integers(1, 12).map(lambda n: f"(10^{n})!"),
)
texts = st.one_of(pieces, pieces, pieces, st.text(max_size=60), st.text(max_size=60), repeated, towers)


@pytest.fixture(scope="module", autouse=True)
def _short_pool() -> Iterator[None]:
    before, mathpool._shared = mathpool._shared, mathpool.Pool(size=2, seconds=0.5)
    mathpool._shared.ask("1", "1", 20)
    yield
    mathpool._shared.close()
    mathpool._shared = before


def cases(body: str, gold: str) -> list[tuple[str, Problem, str]]:
    return [
        ("math", Problem("p", "math", (), gold), rf"\boxed{{{body}}}"),
        ("gsm8k", Problem("p", "gsm8k", (), "3"), rf"\boxed{{{body}}}"),
        (
            "countdown",
            Problem("p", "countdown", (), "3", {"numbers": [1, 2], "target": 3}),
            f"<answer>{body}</answer>",
        ),
        (
            "commonsenseqa",
            Problem("p", "commonsenseqa", (), "A", {"letters": list("ABC"), "options": ["x", "y", "z"]}),
            rf"\boxed{{{body}}}",
        ),
        ("hotpotqa", Problem("p", "hotpotqa", (), "yes"), f"<answer>{body}</answer>"),
    ]


def check(body: str, gold: str) -> None:
    for task, problem, response in cases(body, gold):
        start = time.perf_counter()
        said = get(task).judge(problem, response, "stop")
        assert time.perf_counter() - start < LIMIT
        assert said.reason != "crashed"
        assert (said.score is None) == (said.reason in ("timeout", "gold_unparseable"))
        if said.score == 1.0:
            assert said.ballot is not None
        said.to_json()
    code_block(body, "stop")


@given(texts, st.sampled_from(GOLDS))
@settings(max_examples=120)
def test_bounded_and_whole(body: str, gold: str) -> None:
    check(body, gold)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@given(texts, st.sampled_from(GOLDS))
@settings(max_examples=10_000)
def test_bounded_and_whole_ten_thousand(body: str, gold: str) -> None:
    check(body, gold)


@pytest.mark.parametrize(
    "piece", [r"\boxed{", "{", "1", "x^", "(", r"\frac", "<answer>", "1+", "A ", "٣", "```", r"\text{"]
)
def test_a_megabyte(piece: str) -> None:
    body = piece * (1_000_000 // len(piece))
    for task, problem, response in cases(body, "3"):
        start = time.perf_counter()
        assert get(task).judge(problem, response, "stop").score == 0.0
        assert time.perf_counter() - start < 5


@given(
    st.text(alphabet="0123456789+-*/() ", max_size=30),
    st.lists(st.integers(0, 20), min_size=1, max_size=4),
    st.integers(-5, 50),
)
@settings(max_examples=300)
def test_countdown_agrees_with_pythons_own_parser(text: str, numbers: list[int], target: int) -> None:
    """Whatever the grammar takes is Python, with the same value (fractions by hand, from the syntax tree)."""
    from broaden.tasks.audit import _countdown

    problem = Problem("p", "countdown", (), str(target), {"numbers": numbers, "target": target})
    said = get("countdown").judge(problem, f"<answer>{text}</answer>", "stop")
    if said.score == 1.0:
        assert _countdown(problem, text)[0] == "agrees"
    elif said.reason == "wrong":
        assert _countdown(problem, text)[0] == "differs"
