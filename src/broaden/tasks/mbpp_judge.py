"""The trusted half of the MBPP runner: evaluates the data set's assertions, asking the candidate for values.

Started as a script by `coderunner` (never imported by broaden). The candidate is another process without the tests.
What comes back is plain data; comparisons run here, with the real built-ins. The nonce is printed only after the last
assertion. Not here: anything a model wrote.
"""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000


class CandidateError(Exception):
    """The candidate raised, died, or ran over a limit."""


class Candidate:
    """The other process and its two pipes."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.deadline = time.monotonic() + asked["wall"]
        question_r, self.questions = os.pipe()
        self.answers, answer_w = os.pipe()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mbpp_candidate.py")
        limits = asked["seconds"], asked["memory"], asked["isolated"]
        null = os.open(os.devnull, os.O_RDWR)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", script, str(question_r), str(answer_w)],
            pass_fds=(question_r, answer_w), stdin=null, stdout=null, stderr=null, cwd=asked["folder"],
            env={"PATH": "/usr/bin:/bin", "HOME": asked["folder"], "PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
            preexec_fn=lambda: confine(*limits, asked["folder"]),
        )  # fmt: skip
        for fd in (question_r, answer_w, null):
            os.close(fd)
        self.buffer = b""
        self.write(asked["code"])
        first = self.line()
        if "error" in first:
            raise CandidateError("the code raised " + str(first["error"]))
        names = first.get("ready")
        if not isinstance(names, list):
            raise CandidateError("the answer was not understood")
        self.names = {n for n in names if isinstance(n, str)}

    def write(self, question: Any) -> None:
        data = json.dumps(question).encode() + b"\n"
        os.set_blocking(self.questions, False)
        while data:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([], [self.questions], [], left)[1]:
                raise CandidateError("time limit")
            try:
                data = data[os.write(self.questions, data) :]
            except BrokenPipeError:
                raise CandidateError(self.ended()) from None

    def line(self) -> dict[str, Any]:
        while b"\n" not in self.buffer:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                raise CandidateError("time limit")
            chunk = os.read(self.answers, 1 << 16)
            if not chunk:
                raise CandidateError(self.ended())
            self.buffer += chunk
            if len(self.buffer) > 16 << 20:
                raise CandidateError("the result is too large")
        line, _, self.buffer = self.buffer.partition(b"\n")
        try:
            out = json.loads(line)
        except (ValueError, RecursionError):
            out = None
        if not isinstance(out, dict):
            raise CandidateError("the answer was not understood")
        return out

    def ask(self, **question: Any) -> Any:
        self.write(question)
        out = self.line()
        if "error" in out:
            raise CandidateError("raised " + str(out["error"])[:60])
        return decode(out.get("value"), self)

    def ended(self) -> str:
        """Why the pipe is closed: the kernel kills at the CPU limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        killed = self.process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
        return "time limit" if killed else "the process ended before its answer"

    def kill(self) -> None:
        """Ends the candidate and whatever it left behind."""
        self.process.kill()
        self.process.wait()


def confine(seconds: float, memory: int, isolated: bool, folder: str) -> None:
    """In the candidate, before its interpreter starts: own process group and resource limits."""
    os.setsid()
    for what, value in (
        (resource.RLIMIT_CPU, int(seconds) + 1), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_STACK, 64 << 20),
    ):  # fmt: skip
        hard = resource.getrlimit(what)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (limit, limit))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (64 if isolated else 512,) * 2)
    landlock(folder)


def isolate() -> int:
    """New user, process and network namespaces where the system allows; the names of what was had."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE off: no other process reads this one's memory
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come here
    for flags in (
        CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC,
        CLONE_NEWPID | CLONE_NEWNET,
        CLONE_NEWUSER | CLONE_NEWNET,
    ):
        if libc.unshare(flags) == 0:
            return flags
    return 0


def landlock(folder: str) -> bool:
    """Linux 5.13 and later: from here on nothing outside `folder` can be written, by whatever means. True
    where it holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(444, None, 0, 1) < 1:
        return False
    writes = sum(1 << b for b in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))  # write, remove, make of every kind
    handled = ctypes.c_uint64(writes)
    rules = libc.syscall(444, ctypes.byref(handled), 8, 0)
    if rules < 0:
        return False

    class Beneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]

    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    null = os.open(os.devnull, os.O_PATH)
    for fd, allowed in ((opened, writes), (null, 1 << 1)):
        rule = Beneath(allowed, fd)
        libc.syscall(445, rules, 1, ctypes.byref(rule), 0)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return bool(libc.syscall(446, rules, 0) == 0)


class Handle:
    """An object that stayed in the candidate: it can be called, asked for attributes and passed back."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, candidate: Candidate, **target: Any) -> None:
        self.__dict__["_candidate"] = candidate
        self.__dict__["_target"] = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sent = [encode(a) for a in args]
        return self._candidate.ask(
            **self._target, args=sent, kwargs={k: encode(v) for k, v in kwargs.items()}
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._candidate.ask(**self._target, attribute=name)

    def __eq__(self, other: object) -> bool:
        return False

    def __bool__(self) -> bool:
        return bool(self._candidate.ask(**self._target, truth=True))  # no more than a returned True could say


def encode(value: Any) -> Any:
    """Arguments for the candidate (from the data set's tests: trusted)."""
    if isinstance(value, Handle):
        return (
            {"h": value._target["handle"]}
            if "handle" in value._target
            else {"h": value._candidate.ask(**value._target, value=True)._target["handle"]}
        )
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"i": hex(value)}
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, str):
        return {"s": value}
    if isinstance(value, complex):
        return {"c": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, range):
        return {"range": [hex(value.start), hex(value.stop), hex(value.step)]}
    if isinstance(value, dict):
        return {"d": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, type) and value in (int, float, str, bool, list, tuple, dict, set, bytes, complex):
        return {"ty": value.__name__}
    for tag, kind in (("l", list), ("t", tuple), ("set", set), ("fs", frozenset), ("dq", collections.deque)):
        if isinstance(value, kind):
            return {tag: [encode(v) for v in value]}
    raise CandidateError(f"a {type(value).__name__} cannot be passed to the candidate")


def decode(data: Any, candidate: Candidate, depth: int = 0) -> Any:
    """Plain data from the candidate; its own objects become handles."""
    if data is None or isinstance(data, bool):
        return data
    if depth > 110 or not isinstance(data, dict) or len(data) != 1:
        raise CandidateError("the answer was not understood")
    ((tag, value),) = data.items()
    try:
        if tag == "i":
            return int(value, 16)
        if tag == "f":
            return float.fromhex(value)
        if tag == "s":
            return str(value)
        if tag == "c":
            return complex(float.fromhex(value[0]), float.fromhex(value[1]))
        if tag == "b":
            return bytes.fromhex(value)
        if tag == "range":
            return range(*(int(v, 16) for v in value))
        if tag == "h":
            return Handle(candidate, handle=int(value))
        if tag == "d":
            return {decode(k, candidate, depth + 1): decode(v, candidate, depth + 1) for k, v in value}
        items = [decode(v, candidate, depth + 1) for v in value]
        make: Any = {"l": list, "t": tuple, "set": set, "fs": frozenset, "dq": collections.deque, "it": iter}[
            tag
        ]
        return make(items)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CandidateError("the answer was not understood") from None


def names_in(tests: list[str]) -> set[str]:
    """Names that the assertions read."""
    return {
        n.id
        for test in tests
        for n in ast.walk(ast.parse(test))
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }


def judge(asked: dict[str, Any]) -> tuple[str, str]:
    """(status, note)."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        for line in [*asked["imports"], asked["setup"]]:
            exec(line, namespace)  # noqa: S102 - the data set's own imports and set-up
    except Exception as error:
        return "crashed", f"the test's own set-up raised {type(error).__name__}"
    for module in names_in(asked["tests"]) & sys.stdlib_module_names - set(asked["entry"]):
        namespace.setdefault(module, __import__(module))
    candidate = None
    try:
        candidate = Candidate(asked)
        used = names_in(asked["tests"])
        own = set(asked["entry"]) or {n for n in used if n not in namespace and not hasattr(builtins, n)}
        missing = sorted(n for n in used & own if n not in candidate.names)
        if missing:
            return "failed", f"{missing[0]} is not defined"
        namespace.update({name: Handle(candidate, name=name) for name in used & own})
        for number, test in enumerate(asked["tests"]):
            try:
                exec(compile(test, f"test {number}", "exec"), namespace)  # noqa: S102 - the data set's own assertion
            except AssertionError:
                return "failed", f"test {number} does not hold"
            except CandidateError:
                raise
            except Exception as error:
                return "failed", f"test {number}: {type(error).__name__}"
        return "passed", ""
    except CandidateError as error:
        return ("limit" if "limit" in str(error) or "MemoryError" in str(error) else "failed"), str(error)
    finally:
        if candidate is not None:
            candidate.kill()


def main() -> None:
    """Reads the job from stdin, writes one JSON line with the nonce."""
    asked = json.loads(sys.stdin.buffer.read())
    flags = isolate() if asked["isolate"] else 0
    asked["isolated"] = bool(flags)
    seconds = int(asked["seconds"]) + 3
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    signal.alarm(int(asked["wall"]) + 5)
    status, note = judge(asked)
    while True:  # orphans of the candidate, where there is no process namespace
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                left = [int(p) for p in file.read().split()]
        except OSError:
            break
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
    said = {
        "nonce": asked["nonce"],
        "status": status,
        "note": note,
        "network_dropped": bool(flags & CLONE_NEWNET),
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
