"""Tasks: a data set, its prompt and its verifier, one file a family. Never imports torch.

`get(name)` gives a task, `names()` the built-in ones, `load_problems(name, ...)` the problems together
with the bad rows.
"""

from __future__ import annotations

from broaden.tasks.base import BadRow, Family, Loaded, Task, judge_threads
from broaden.tasks.registry import get, load_problems, names, register

__all__ = ["BadRow", "Family", "Loaded", "Task", "get", "judge_threads", "load_problems", "names", "register"]
