r"""The other side of `mathpool`: a process that runs math-verify where it can be killed.

Started as a script (never imported by broaden): JSON lines in on stdin, JSON lines out on stdout. The process
itself only
loads math-verify once; every question is answered by a forked child with a memory limit, which is killed
when the time is over and replaced by the next fork. So a hang, a crash or a memory bomb costs one answer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from fractions import Fraction
from typing import Any

POINTS = (
    Fraction(17, 11),
    Fraction(29, 13),
    Fraction(53, 17),
    Fraction(11, 23),
    Fraction(71, 19),
    Fraction(37, 29),
    Fraction(97, 41),
)


def main() -> int:
    """Serves until stdin closes. The first argument is the memory limit of a child in bytes."""
    memory = int(sys.argv[1])
    import logging

    logging.disable(logging.CRITICAL)
    import math_verify  # noqa: F401 - loaded before the fork, so that children start at once

    with contextlib.suppress(ImportError):
        importlib.import_module("numpy")  # sympy may ask for it later, behind the fence

    child: tuple[int, int, int] | None = None
    _say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("op") == "gym" and "reasoning_gym" not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module("reasoning_gym")
            if child is not None:
                _end(child)
                child = None
        if child is None:
            child = _fork(memory)
        answer = _ask(child, line, float(asked["seconds"]))
        if "failed" in answer:
            _end(child)
            child = None
        _say(answer)
    if child is not None:
        _end(child)
    return 0


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


DENIED = tuple(
    "os.fork os.forkpty os.exec os.posix_spawn os.spawn os.system subprocess. pty. socket. ctypes. os.kill "
    "shutil. os.chmod os.chown "
    "os.link os.symlink os.truncate os.remove os.rename os.rmdir os.mkdir os.mkfifo os.putenv os.utime signal. "
    "mmap.".split()
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


def _fence(event: str, args: tuple[Any, ...]) -> None:
    """In a child: a scorer that lets model text reach Python's eval can start nothing, send nothing and write
    nothing."""
    if event.startswith(DENIED):
        raise PermissionError(f"{event} is not allowed here")
    if event == "open":
        _, mode, flags = args
        if any(c in mode for c in "wax+") if isinstance(mode, str) else flags & WRITING:
            raise PermissionError("writing is not allowed here")


def _fork(memory: int) -> tuple[int, int, int]:
    """(pid, write end of its questions, read end of its answers)."""
    question_r, question_w = os.pipe()
    answer_r, answer_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(question_w)
        os.close(answer_r)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.addaudithook(_fence)
        _serve(question_r, answer_w)
        os._exit(0)
    os.close(question_r)
    os.close(answer_w)
    return pid, question_w, answer_r


def _end(child: tuple[int, int, int]) -> None:
    pid, question_w, answer_r = child
    os.close(question_w)
    os.close(answer_r)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _ask(child: tuple[int, int, int], line: str, seconds: float) -> dict[str, Any]:
    _, question_w, answer_r = child
    deadline = time.monotonic() + seconds
    data = b""
    try:
        os.write(question_w, line.encode())  # a question is far below the pipe's capacity
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([answer_r], [], [], left)[0]:
                return {"failed": "timeout"}
            chunk = os.read(answer_r, 65536)
            if not chunk:
                return {"failed": "crashed"}
            data += chunk
            if len(data) > 1 << 20:
                return {"failed": "crashed"}
        out: dict[str, Any] = json.loads(data)
        return out
    except (OSError, ValueError):
        return {"failed": "crashed"}


def _serve(question_r: int, answer_w: int) -> None:
    buffered = b""
    while True:
        while b"\n" not in buffered:
            chunk = os.read(question_r, 65536)
            if not chunk:
                return
            buffered += chunk
        line, _, buffered = buffered.partition(b"\n")
        try:
            answer = _answer(json.loads(line))
        except MemoryError:
            answer = {"failed": "memory"}
        except RecursionError:
            answer = {"ok": False, "parsed": False}
        except BaseException as error:  # math-verify's timeout derives from BaseException
            answer = {"failed": "crashed", "what": type(error).__name__}
        os.write(answer_w, json.dumps(answer).encode() + b"\n")


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    """{"ok": is it equal, "parsed": could both be read, "by": which route decided}."""
    if asked.get("op") == "gym":
        return _gym(asked["entry"], asked["answer"])
    from math_verify import verify

    gold, answer = _parse(asked["gold"]), _parse(asked["answer"])
    if not gold or not answer:
        return {"ok": False, "parsed": False, "by": "", "gold": bool(gold)}
    try:
        agreed = _probe(gold[0], answer[0])
    except (ArithmeticError, TypeError, ValueError, AttributeError, NotImplementedError, RecursionError):
        agreed = None  # sympy cannot evaluate it
    if (
        agreed is not None
    ):  # values decide at once; simplification takes seconds and is loose about small numbers
        return {"ok": agreed, "parsed": True, "by": "numeric probe", "gold": True}
    try:
        ok = bool(verify(gold, answer, timeout_seconds=None))
    except Exception as error:  # what it raises over it has not found equal
        return {"ok": False, "parsed": True, "by": f"math-verify: {type(error).__name__}", "gold": True}
    return {"ok": ok, "parsed": True, "by": "math-verify", "gold": True}


_datasets: dict[str, Any] = {}


def _gym(entry: dict[str, Any], answer: str) -> dict[str, Any]:
    """The score of an answer by reasoning-gym's own scorer."""
    reasoning_gym = importlib.import_module("reasoning_gym")
    name = json.dumps([entry["generator"], entry["size"], entry["seed"]])
    if name not in _datasets:
        _datasets[name] = reasoning_gym.create_dataset(
            entry["generator"], size=entry["size"], seed=entry["seed"]
        )
    made = _datasets[name]
    item = made[entry["index"]]
    try:
        return {"score": float(made.score_answer(answer=answer, entry=item))}
    except Exception as error:  # an answer that breaks its scorer is not right
        return {"score": 0.0, "raised": type(error).__name__}


def _parse(text: str) -> list[Any]:
    from math_verify import parse
    from math_verify.parser import LatexExtractionConfig

    config = LatexExtractionConfig(boxed_match_priority=0)
    out = parse(f"\\boxed{{{text}}}", [config], fallback_mode="no_fallback", parsing_timeout=None)
    return list(out)


def _value(expression: Any) -> Any:
    """The value to 40 digits; what is only rounding noise (`\\sin\\pi`) is zero: it changes with the digits."""
    import sympy

    value = sympy.N(expression, 40)
    if value.is_number and value.is_finite and 0 < abs(value) < sympy.Float("1e-25"):
        finer = sympy.N(expression, 80)
        if abs(finer - value) > abs(value) / 100:
            return sympy.Integer(0)
    return value


def _probe(gold: Any, answer: Any) -> bool | None:
    """Compares two expressions at fixed points to 40 digits.

    False where they differ at a positive point; True where they agree at all points, negative ones too (so that |x|
    is not x); None where values cannot tell: no plain expressions, decimals, sums and integrals, no finite value.
    """
    import sympy

    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return None
    names = sorted(gold.free_symbols | answer.free_symbols, key=str)
    unsafe = (sympy.Float, sympy.Sum, sympy.Integral, sympy.Product, sympy.Derivative, sympy.Limit)
    if len(names) > 6 or gold.has(*unsafe) or answer.has(*unsafe):
        return None
    for turn in range(4 if names else 1):
        at = {}
        for i, name in enumerate(names):
            point = POINTS[(i + turn) % len(POINTS)]
            negative = turn == 2 or (turn == 3 and i % 2 == 0)
            at[name] = sympy.Rational(-point.numerator if negative else point.numerator, point.denominator)
        x, y = _value(gold.subs(at)), _value(answer.subs(at))
        if not (x.is_number and y.is_number) or not (x.is_finite and y.is_finite):
            return None
        if x.free_symbols or y.free_symbols or x.has(sympy.Function) or y.has(sympy.Function):
            return None
        scale = max(abs(x), abs(y))
        if scale != 0 and abs(x - y) > scale * sympy.Float("1e-30"):
            return False if turn < 2 else None
    return True


if __name__ == "__main__":
    sys.exit(main())
