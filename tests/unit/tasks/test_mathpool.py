"""The pool of killable workers: hangs, crashes and memory bombs cost one answer each."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broaden.tasks.mathpool import Pool

HANG = r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}"
BOMB = r"2^{2^{40}} + 1"


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(size=2, seconds=2.0)
    yield made
    made.close()


def test_equal_different_unread(pool: Pool) -> None:
    assert pool.ask(r"\tan^2(y)+1", r"\sec^2(y)", 20).outcome == "equal"
    assert pool.ask(r"\sin x", r"\cos x", 20).outcome == "different"
    said = pool.ask("5", r"\forall x>0, f(x)=0", 20)
    assert (said.outcome, said.gold_read) == ("unread", True)
    assert not pool.ask(r"\div", "0", 20).gold_read


def test_math_verifys_false_positives_are_vetoed(pool: Pool) -> None:
    assert pool.ask(r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", 20).outcome == "different"
    assert (
        pool.ask(r"\frac{2^{205}+1}{3 \cdot 2^{206}}", r"\frac{1}{3 \cdot 2^{206}}", 20).outcome
        == "different"
    )


def test_a_hang_costs_one_answer_and_is_not_remembered(pool: Pool) -> None:
    assert pool.ask("1", "2", 20).outcome == "different"
    start = time.perf_counter()
    assert [pool.ask("3", HANG, 0.3).outcome for _ in range(3)] == ["timeout"] * 3
    assert time.perf_counter() - start < 3
    assert pool.ask(r"\ln 4", r"2 \ln 2", 20).outcome == "equal"


def test_a_memory_bomb_costs_one_answer() -> None:
    small = Pool(size=1, seconds=2.0, memory=400 << 20)
    try:
        assert small.ask("1", BOMB).outcome in ("memory", "timeout", "crashed", "different", "unread")
        assert small.ask("2", "2", 20).outcome == "equal"
    finally:
        small.close()


def test_answers_are_remembered(pool: Pool) -> None:
    pool.ask(r"\sin x", r"\cos x", 20)
    start = time.perf_counter()
    for _ in range(100):
        assert pool.ask(r"\sin x", r"\cos x").outcome == "different"
    assert time.perf_counter() - start < 0.2


def test_a_killed_server_is_replaced(pool: Pool) -> None:
    assert pool.ask("1", "1", 20).outcome == "equal"
    for worker in list(pool._all):
        os.kill(worker.process.pid, 9)
    assert pool.ask("1", "2").outcome == "crashed"
    assert pool.ask("1", "3", 20).outcome == "different"


def test_from_many_threads(pool: Pool) -> None:
    pairs = [(str(i), str(i + i % 2)) for i in range(40)]
    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(lambda p: pool.ask(*p, 20).outcome, pairs))
    assert said == ["different" if i % 2 else "equal" for i in range(40)]


def test_an_unguarded_script_works_and_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(r"""
        from broaden.records import Problem
        from broaden.tasks import get, mathpool
        said = get("math").judge(Problem("p", "math", (), "\\ln 4"), "\\boxed{2\\ln 2}", "stop")
        print(said.score, *[w.process.pid for w in mathpool.shared()._all])
    """)
    )
    out = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONPATH": "src"},
    )
    score, *pids = out.stdout.split()
    assert score == "1.0"
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_hundred_hangs_in_a_row() -> None:
    pool = Pool(size=1, seconds=0.3)
    try:
        assert pool.ask("1", "1", 20).outcome == "equal"
        server = next(iter(pool._all)).process.pid
        assert [pool.ask("3", HANG + f"+{i}").outcome for i in range(100)] == ["timeout"] * 100
        assert pool.ask("1", "2", 20).outcome == "different"
        assert next(iter(pool._all)).process.pid == server  # the server itself never had to be replaced
    finally:
        pool.close()
