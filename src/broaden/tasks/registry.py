"""Which tasks there are, loaded on first use.

Not here: users' own tasks given by path (`custom.py`), which register themselves under their own name.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from broaden.errors import UsageError
from broaden.tasks.base import Family, Loaded

BUILT_IN: dict[str, str] = {
    "countdown": "broaden.tasks.countdown:Countdown",
    "gsm8k": "broaden.tasks.gsm8k:GSM8K",
    "math": "broaden.tasks.mathematics:Mathematics",
    "math500": "broaden.tasks.mathematics:Math500",
    "aime24": "broaden.tasks.mathematics:AIME24",
    "aime25": "broaden.tasks.mathematics:AIME25",
    "amc23": "broaden.tasks.mathematics:AMC23",
    "deepscaler": "broaden.tasks.mathematics:DeepScaleR",
    "commonsenseqa": "broaden.tasks.choice:CommonsenseQA",
    "gpqa": "broaden.tasks.choice:GPQA",
    "hotpotqa": "broaden.tasks.openqa:HotpotQA",
    "mbpp": "broaden.tasks.mbpp:MBPP",
}
PREFIXES = ("jsonl", "trl", "verl", "file", "gym")
"""`trl:rewards.py:f` and the like: see `custom` and `gym`."""
_instances: dict[str, Family] = {}


def names() -> tuple[str, ...]:
    """Names of the tasks that `get` knows, built-in ones first."""
    return (*BUILT_IN, *(n for n in _instances if n not in BUILT_IN))


def get(name: str) -> Family:
    """The task of that name. Raises UsageError where there is none."""
    if name not in _instances:
        _instances[name] = _make(name)
    return _instances[name]


def _make(name: str) -> Family:
    kind, colon, rest = name.partition(":")
    if colon and kind in PREFIXES:
        if kind == "gym":
            made: Family = importlib.import_module("broaden.tasks.gym").GymTask(rest)
        else:
            made = importlib.import_module("broaden.tasks.custom").load(name)
        return made
    if name not in BUILT_IN:
        own = ", ".join(f"{p}:..." for p in PREFIXES)
        raise UsageError(f"no task {name!r}", f"the tasks are: {', '.join(names())}; your own: {own}")
    module, attribute = BUILT_IN[name].split(":")
    built_in: Family = getattr(importlib.import_module(module), attribute)()
    return built_in


def register(task: Family) -> None:
    """Makes a task known under its name. Raises UsageError where the name is taken by another one."""
    if task.name in BUILT_IN or _instances.get(task.name, task) is not task:
        raise UsageError(f"a task named {task.name!r} exists already", "give yours another name")
    _instances[task.name] = task


def load_problems(
    name: str,
    split: str | None = None,
    data: Path | str | None = None,
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Loaded:
    """Problems of a task with its bad rows (`Loaded.problems`, `.bad`, `.rows`); see `Family.read`."""
    task = get(name)
    path = Path(data).expanduser() if data is not None else None
    return task.read(split or task.default_split, path, limit, seed, **options)
