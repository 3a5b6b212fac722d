"""MBPP: finding the one block, running it against tests it never sees, hostile programs."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers.data import data_path
from tests.unit.tasks.hostile_programs import TESTS, programs

from broaden.records import Problem, Verdict
from broaden.tasks import coderunner, get, load_problems
from broaden.tasks.files import read
from broaden.tasks.mbpp import code_block

SQUARE = "def f(x):\n    return x * x"


def judge(response: str, tests: tuple[str, ...] = TESTS, **extra: object) -> Verdict:
    problem = Problem("p", "mbpp", (), "", {"tests": list(tests), "seconds": 2.0, **extra})
    return get("mbpp").judge(problem, response, "stop")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"Here.\n```python\n{SQUARE}\n```\nDone.", SQUARE + "\n"),
        ("```python def f(x):\n    return x * x\n```", SQUARE + "\n"),
        (f"````python\n{SQUARE}\n````", SQUARE + "\n"),
        (f"```\n{SQUARE}\n```", SQUARE + "\n"),
        (f"```py\n{SQUARE}\n```", SQUARE + "\n"),
        (f"~~~python\n{SQUARE}\n~~~", SQUARE + "\n"),
        (f"```bash\nls\n```\n```python\n{SQUARE}\n```", SQUARE + "\n"),
        (f"```python\n{SQUARE}\n```\nIt prints\n```\n9\n```", SQUARE + "\n"),
        (f"```Python\r\n{SQUARE}\n```", SQUARE + "\n"),
    ],
)
def test_the_one_block(text: str, code: str) -> None:
    assert code_block(text, "stop").text == code


@pytest.mark.parametrize(
    ("text", "finish", "missing"),
    [
        (SQUARE, "stop", "no_answer"),
        (f"```python\n{SQUARE}", "stop", "no_answer"),
        (f"```python\n{SQUARE}", "length", "truncated"),
        (f"```python\n{SQUARE}\n```\n```python\nf(3)\n```", "stop", "several"),
        (f"```\n{SQUARE}\n```\n```\nf(3)\n```", "stop", "several"),
        (f"<think>```python\n{SQUARE}\n```", "stop", "truncated"),
        ("```bash\nls\n```", "stop", "no_answer"),
    ],
)
def test_no_block(text: str, finish: str, missing: str) -> None:
    found = code_block(text, finish)
    assert (found.text, found.missing) == (None, missing)


def test_verdicts() -> None:
    assert (judge(f"```python\n{SQUARE}\n```").reason, judge(f"```python\n{SQUARE}\n```").reward) == (
        "correct",
        1.0,
    )
    assert (
        judge("```python\ndef f(x): return x\n```").reason,
        judge("```python\ndef f(x): return x\n```").reward,
    ) == ("wrong", 0.1)
    assert judge("```python\ndef f(x) return x\n```").reward == 0.0
    assert judge("nothing").reason == "no_answer"
    two = judge("```python\nx = 1\n```\n```python\ny = 1\n```")
    assert (two.reason, two.borderline) == ("unparseable", True)
    assert judge("```python\ndef f(x):\n    while True: pass\n```").reason == "limit"
    assert judge("x", tests=()).reason == "gold_unparseable"


def test_values_of_many_kinds_travel() -> None:
    code = (
        "import collections, re\n"
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
        "def total(pairs): return sum(p.a + p.b for p in pairs)\n"
        "def echo(x): return x\n"
        "def gen(n):\n    for i in range(n): yield i\n"
        "def count(x): return collections.Counter(x)\n"
        "def match(s): return re.match('a', s)\n"
        "def big(): return 2 ** 300\n"
        "def kinds(x, t): return isinstance(x, t)\n"
    )
    tests = (
        "assert total([Pair(1, 2), Pair(3, 4)]) == 10",
        "assert echo((1, [2.5, None], {'k': {3}}, b'x', 1j, frozenset({4}), range(3))) == (1, [2.5, None], "
        "{'k': {3}}, b'x', 1j, frozenset({4}), range(3))",
        "assert list(gen(4)) == [0, 1, 2, 3]",
        "assert count('aab') == {'a': 2, 'b': 1}",
        "assert match('abc')",
        "assert not match('bc')",
        "assert big() == 2 ** 300",
        "assert echo(True) is True",
        "assert kinds('x', str)",
        "assert math.isclose(echo(0.1) + 0.2, 0.3)",
        "assert Pair(1, 2).a == 1",
    )
    assert judge(f"```python\n{code}\n```", tests).reason == "correct"


def test_a_solution_may_be_named_as_a_builtin() -> None:
    code = "```python\ndef sum(a, b):\n    return a * b\n```"
    assert judge(code, ("assert sum(10, 15) == 150",), entry=["sum"]).reason == "correct"


def test_builtins_of_the_tests_cannot_be_shadowed() -> None:
    code = "```python\ndef set(x): return 0\ndef f(x): return [x]\n```"
    assert judge(code, ("assert set(f(1)) == set([2])",)).reason == "wrong"


def test_the_candidate_sees_no_test() -> None:
    code = "import gc, sys\ndef f(x):\n    seen = [o for o in gc.get_objects() if 'wanted_literal' in str(o)[:10000]]\n    return len([s for s in seen if 'f(' in str(s)])"  # noqa: E501  # noqa: E501
    said = coderunner.run(code, ["assert f(1) == 0 or 'wanted_literal' == ''"], seconds=5)
    assert said.status == "passed"


def test_time_is_bounded() -> None:
    start = time.perf_counter()
    said = coderunner.run("def f(x):\n    while True: pass", TESTS, seconds=1)
    assert (said.status, said.note) == ("limit", "time limit")
    assert time.perf_counter() - start < 20


def test_rows(tmp_path: Path) -> None:
    rows = [
        {"task_id": 11, "prompt": "Square it.", "code": SQUARE, "test_imports": [], "test_list": list(TESTS)},
        {
            "task_id": 12,
            "text": "Square it.",
            "code": SQUARE,
            "test_setup_code": "",
            "test_list": list(TESTS),
        },
        {"task_id": 13, "prompt": "Square it.", "code": SQUARE, "test_list": []},
        {"task_id": 14, "prompt": "Square it.", "code": SQUARE, "test_list": ["assert f(3 =="]},
        {"task_id": 2, "prompt": "Square it.", "code": SQUARE, "test_list": list(TESTS)},
    ]
    file = tmp_path / "sanitized-mbpp.json"
    file.write_text(json.dumps(rows))
    found = load_problems("mbpp", data=file)
    assert [p.id for p in found.problems] == ["11", "12"]
    assert [b.id for b in found.bad] == ["13", "14"]
    assert "assert f(3) == 9" in found.problems[0].messages[0].content
    assert SQUARE not in found.problems[0].messages[0].content
    assert len(load_problems("mbpp", "all", file).problems) == 3


def attack(tmp_path: Path, chosen: slice, isolate: bool = True) -> None:
    """Runs hostile programs; afterwards the victim file, the marks and the listening port are untouched."""
    home = tmp_path / "home"
    home.mkdir()
    victim = home / "victim.txt"
    victim.write_text("untouched")
    contacts: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        done = threading.Event()

        def listen() -> None:
            while not done.is_set():
                try:
                    contacts.append(server.accept()[1])
                except TimeoutError:
                    continue

        listener = threading.Thread(target=listen)
        listener.start()
        todo = programs(str(home / "mark"), str(victim), str(home), server.getsockname()[1])
        assert len(todo) >= 200
        with ThreadPoolExecutor(2) as pool:
            said = list(
                pool.map(
                    lambda code: coderunner.run(code, TESTS, seconds=1.0, memory=400 << 20, isolate=isolate),
                    todo[chosen],
                )
            )
        done.set()
        listener.join()
    passed = [code for code, outcome in zip(todo[chosen], said, strict=True) if outcome.status == "passed"]
    assert passed == []
    assert [
        code for code, outcome in zip(todo[chosen], said, strict=True) if outcome.status == "crashed"
    ] == []
    assert victim.read_text() == "untouched"
    assert sorted(p.name for p in home.iterdir()) == ["victim.txt"]
    assert victim.stat().st_mode & 0o777 != 0
    assert contacts == []


def test_hostile_programs_in_short(tmp_path: Path) -> None:
    attack(tmp_path, slice(5, None, 12))


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [True, False])
def test_two_hundred_hostile_programs(tmp_path: Path, isolate: bool) -> None:
    """With new namespaces where the system allows them, and without."""
    attack(tmp_path, slice(None), isolate)


def reference(limit: int | None, step: int) -> list[tuple[str, str]]:
    file = data_path("mbpp", "sanitized-mbpp.json")
    code = {str(row["task_id"]): row["code"] for _, row in read(file)}
    problems = load_problems("mbpp", "all", file).problems[:limit:step]
    with ThreadPoolExecutor(2) as pool:
        said = pool.map(
            lambda p: (p.id, get("mbpp").judge(p, f"```python\n{code[p.id]}\n```", "stop").reason), problems
        )
        return [(row_id, reason) for row_id, reason in said if reason != "correct"]


def test_some_reference_solutions_pass() -> None:
    assert reference(None, 40) == []


@pytest.mark.slow
def test_all_427_reference_solutions_pass() -> None:
    assert len(load_problems("mbpp", "all", data_path("mbpp", "sanitized-mbpp.json")).problems) == 427
    assert reference(None, 1) == []
