"""The untrusted half of the MBPP runner: runs a model's code and answers calls to its functions.

Started as a script in a process of its own (never imported by broaden). It is given the code only: no tests, no
expected values. Results travel as plain data of exact built-in types, so an object with its own `__eq__`
cannot decide anything.
An audit hook refuses processes, sockets, ctypes and writing outside the working folder: a fence, not a wall.
"""

from __future__ import annotations

import collections
import json
import os
import sys
from typing import Any

LIMIT_ITEMS = 200_000
LIMIT_BYTES = 8 << 20
DENIED = tuple(
    "os.fork os.forkpty os.exec os.posix_spawn os.spawn os.system os.startfile subprocess.Popen pty.spawn "
    "socket. ctypes. "
    "os.kill os.killpg os.chmod os.chown os.link os.symlink os.truncate os.putenv shutil. resource.setrlimit "
    "signal. winreg. "
    "mmap.__new__ syslog. ftplib. smtplib. urllib. http. webbrowser.open os.setxattr os.mkfifo os.mknod os.ptrace "
    "cpython._PySys_ClearAuditHooks".split()
)
CHANGING = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.utime", "tempfile.")
ITERATORS: tuple[type, ...] = (
    map, filter, zip, enumerate, reversed, type(iter([])), type(iter({})), type(iter(())), type(iter(range(0))),
    type(iter("")),
    type(iter(set())), type({}.keys()), type({}.values()), type({}.items()), type(x for x in range(0)),
)  # fmt: skip


def fence(folder: str) -> None:
    """Installs the audit hook (it cannot be removed from Python)."""
    realpath, isinstance_, str_, bytes_ = os.path.realpath, isinstance, str, bytes
    write_flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
    inside = realpath(folder) + os.sep

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(DENIED):
            raise PermissionError(event + " is not allowed here")
        if event == "open":
            path, mode, flags = args
            writes = (isinstance_(mode, str_) and any(c in mode for c in "wax+")) or (
                mode is None and flags & write_flags
            )
            if writes and not (
                isinstance_(path, (str_, bytes_))
                and (realpath(os.fsdecode(path)) + os.sep).startswith(inside)
            ):
                raise PermissionError("writing outside the working folder is not allowed here")
            if isinstance_(path, (str_, bytes_)) and os.fsdecode(path).startswith("/proc"):
                raise PermissionError("/proc is not readable here")
        elif event.startswith(CHANGING) and args and isinstance_(args[0], (str_, bytes_)):
            outside = not (realpath(os.fsdecode(args[0])) + os.sep).startswith(inside)
            if outside:
                raise PermissionError(event + " outside the working folder is not allowed here")

    sys.addaudithook(hook)


class Handles:
    """Objects that cannot travel: the other side holds a number for each."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, value: Any) -> int:
        self.items.append(value)
        if len(self.items) > 10_000:
            raise ValueError("too many objects")
        return len(self.items) - 1


def encode(value: Any, handles: Handles, budget: list[int], depth: int = 0) -> Any:
    """Tagged JSON of a value; exact types only, everything else is a handle."""
    kind = type(value)
    budget[0] -= 1
    if budget[0] < 0 or depth > 100:
        raise ValueError("the result is too large or too deep")
    if value is None or kind is bool:
        return value
    if kind is int:
        return {"i": hex(value)}
    if kind is float:
        return {"f": value.hex()}
    if kind is str:
        if len(value) > LIMIT_BYTES:
            raise ValueError("the result is too large")
        return {"s": value}
    if kind is complex:
        return {"c": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"b": value.hex()}
    if kind is range:
        return {"range": [hex(value.start), hex(value.stop), hex(value.step)]}
    for tag, exact in (("l", list), ("t", tuple), ("set", set), ("fs", frozenset), ("dq", collections.deque)):
        if kind is exact:
            return {tag: [encode(v, handles, budget, depth + 1) for v in value]}
    if kind is dict or kind in (collections.OrderedDict, collections.Counter, collections.defaultdict):
        return {
            "d": [
                [encode(k, handles, budget, depth + 1), encode(v, handles, budget, depth + 1)]
                for k, v in value.items()
            ]
        }
    if kind in ITERATORS:
        out = []
        for item in value:
            out.append(encode(item, handles, budget, depth + 1))
        return {"it": out}
    return {"h": handles.put(value)}


def decode(data: Any, handles: Handles) -> Any:
    """Inverse of `encode`."""
    if data is None or isinstance(data, bool):
        return data
    ((tag, value),) = data.items()
    if tag == "i":
        return int(value, 16)
    if tag == "f":
        return float.fromhex(value)
    if tag == "s":
        return value
    if tag == "c":
        return complex(float.fromhex(value[0]), float.fromhex(value[1]))
    if tag == "b":
        return bytes.fromhex(value)
    if tag == "range":
        return range(*(int(v, 16) for v in value))
    if tag == "d":
        return {decode(k, handles): decode(v, handles) for k, v in value}
    if tag == "h":
        return handles.items[value]
    if tag == "ty":
        return {t.__name__: t for t in (int, float, str, bool, list, tuple, dict, set, bytes, complex)}[value]
    items = [decode(v, handles) for v in value]
    make: Any = {"l": list, "t": tuple, "set": set, "fs": frozenset, "dq": collections.deque, "it": iter}[tag]
    return make(items)


def main() -> None:
    """Arguments: the read end of the questions, the write end of the answers, the working folder."""
    questions = os.fdopen(int(sys.argv[1]), "rb")
    answers = int(sys.argv[2])
    code = json.loads(questions.readline())
    handles = Handles()
    write, dumps, loads, getattr_, bool_ = os.write, json.dumps, json.loads, getattr, bool
    del sys.argv[1:]

    def reply(answer: dict[str, Any]) -> None:
        data = dumps(answer).encode() + b"\n"
        if len(data) > LIMIT_BYTES:
            data = dumps({"error": "the result is too large"}).encode() + b"\n"
        while data:
            data = data[write(answers, data) :]

    namespace: dict[str, Any] = {"__name__": "candidate", "__builtins__": __builtins__}
    fence(os.getcwd())
    try:
        exec(compile(code, "candidate.py", "exec"), namespace)  # noqa: S102 - this is what the process is for
    except BaseException as error:
        reply({"error": type(error).__name__})
        return
    reply({"ready": [str(k) for k in list(namespace) if not str(k).startswith("__")][:1000]})
    while True:
        line = questions.readline()
        if not line:
            return
        asked = loads(line)
        try:
            target: Any = namespace[asked["name"]] if "name" in asked else handles.items[asked["handle"]]
            if "attribute" in asked:
                value = getattr_(target, asked["attribute"])
            elif asked.get("truth"):
                value = bool_(target)
            elif asked.get("value"):
                value = target
            else:
                args = [decode(a, handles) for a in asked["args"]]
                kwargs = {k: decode(v, handles) for k, v in asked["kwargs"].items()}
                value = target(*args, **kwargs)
            reply({"value": encode(value, handles, [LIMIT_ITEMS])})
        except BaseException as error:
            reply({"error": type(error).__name__})


if __name__ == "__main__":
    main()
