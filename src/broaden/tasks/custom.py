"""Users' own tasks: a reward function (TRL's or verl's signature), a JSONL under a built-in verifier, a task class.

Names, wherever a task's name is accepted:
    jsonl:FAMILY            a file of prompt/answer rows judged as FAMILY (math, gsm8k, hotpotqa, countdown,
    commonsenseqa, mbpp)
    trl:FILE.py:FUNCTION    f(completions, **columns) -> list[float | None]     (rows in TRL's shape)
    verl:FILE.py:FUNCTION   compute_score(data_source, solution_str, ground_truth, extra_info) (rows in verl's shape)
    file:FILE.py:CLASS      a class with name, version, problems, judge

The Python file is the user's own and runs in this process. A reward of None abstains (unscored, counted); a
wrong length, NaN or
an exception is a RewardError. Not here: which built-in tasks exist (`registry`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from broaden.errors import DataError, MissingFileError, RewardError, UsageError
from broaden.records import FinishReason, Message, Problem, Verdict
from broaden.tasks.base import BadRow, Family, system_user, user
from broaden.tasks.files import Row, column, find, read

Reward = Callable[..., Any]
RIGHT = 1.0
"""A reward of at least this much counts as a right answer in Pass@K."""


def load(name: str) -> Family:
    """The task of a name with a prefix. Raises UsageError, MissingFileError."""
    kind, _, rest = name.partition(":")
    if kind == "jsonl":
        return JsonlTask(rest)
    path, _, attribute = rest.rpartition(":")
    if not path or not attribute:
        raise UsageError(
            f"task {name!r}: {kind}:FILE.py:NAME was expected", f"for example {kind}:rewards.py:my_reward"
        )
    found = getattr(module_of(Path(path).expanduser()), attribute, None)
    if not callable(found):
        raise UsageError(
            f"{path} has no function or class {attribute!r}",
            "name one that is defined at the top level of the file",
        )
    if kind == "trl":
        return TRLTask(name, found)
    if kind == "verl":
        return VerlTask(name, found)
    return ClassTask(name, found)


def module_of(path: Path) -> ModuleType:
    """The user's Python file as a module. Raises RewardError where it does not import."""
    if not path.is_file():
        raise MissingFileError(f"no file {path}", "give the path of your Python file")
    label = "broaden_user_" + hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()
    if label in sys.modules:
        return sys.modules[label]
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", "its name should end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[label]
        raise RewardError(
            f"{path} did not import: {type(error).__name__}: {error}",
            "run it with python to see the traceback",
        ) from error
    return module


def messages_of(prompt: Any, where: str) -> tuple[Message, ...]:
    """A prompt as text or as chat messages (TRL and verl)."""
    if isinstance(prompt, str):
        return user(prompt)
    if (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in prompt)
    ):
        for m in prompt:
            if m["role"] not in ("system", "user", "assistant"):
                raise DataError(
                    f"{where}: a message has the role {m['role']!r}", "use system, user or assistant"
                )
        return tuple(Message(m["role"], str(m["content"])) for m in prompt)
    raise DataError(
        f"{where}: prompt should be a text or a list of role/content messages, not {type(prompt).__name__}"
    )


class Own(Family):
    """What the user's own tasks share: an instance name, and rows that are plain JSON."""

    version = "1"
    title = "a user's own task"
    default_split: ClassVar[str] = "train"

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        if data is None:
            raise UsageError(
                f"task {self.name} has no data of its own", "give --data a JSONL, JSON, CSV or Parquet file"
            )
        path = find(data, split)
        for at, row in read(path):
            yield self.problem(row, str(row.get("id", f"{path.stem}/{at}")), f"{path}, row {at}")

    def problem(self, row: Row, row_id: str, where: str) -> Problem | BadRow:
        """One row; the subclasses say which columns they need."""
        raise NotImplementedError

    def rewarded(self, value: Any, completion: str) -> Verdict:
        """A verdict from a user's reward: None abstains, numbers must be finite."""
        if value is None:
            return Verdict(
                "no_answer",
                None,
                None,
                verifier=f"{self.name}/{self.version}",
                note="the reward function abstained",
            )
        if isinstance(value, bool):
            value = float(value)
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise RewardError(f"{self.name} returned {value!r}, a number or None was expected") from error
        if not math.isfinite(number):
            raise RewardError(
                f"{self.name} returned {number}", "return None for a completion that cannot be scored"
            )
        right = number >= RIGHT
        ballot = hashlib.blake2b(completion.strip().encode("utf-8", "replace"), digest_size=8).hexdigest()
        return Verdict(
            "correct" if right else "wrong",
            float(right),
            number,
            completion[-400:],
            ballot,
            f"{self.name}/{self.version}",
        )


class TRLTask(Own):
    """A reward function with TRL's signature; every column beside `prompt` is passed to it."""

    def __init__(self, name: str, function: Reward) -> None:
        super().__init__(name)
        self.function = function

    def problem(self, row: Row, row_id: str, where: str) -> Problem | BadRow:
        prompt = column(row, ("prompt",), where)
        columns = {k: v for k, v in row.items() if k != "prompt"}
        return Problem(
            row_id,
            self.name,
            messages_of(prompt, where),
            "",
            {"columns": columns, "chat": not isinstance(prompt, str)},
        )

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        chat = bool(problem.extra.get("chat"))
        prompts: list[Any] = [
            [m.to_json() for m in problem.messages] if chat else problem.messages[-1].content
        ]
        completions: list[Any] = [[{"role": "assistant", "content": completion}] if chat else completion]
        columns = {k: [v] for k, v in problem.extra.get("columns", {}).items()}
        return self.rewarded(call_trl(self.name, self.function, prompts, completions, columns)[0], completion)


def call_trl(
    name: str, function: Reward, prompts: list[Any], completions: list[Any], columns: Mapping[str, list[Any]]
) -> list[Any]:
    """Calls a TRL reward function and checks its answer's length. Raises RewardError."""
    try:
        rewards = function(prompts=prompts, completions=completions, **columns)
    except Exception as error:
        raise RewardError(
            f"{name} raised {type(error).__name__}: {error}",
            "call it by hand with one completion to see the traceback",
        ) from error
    if not isinstance(rewards, (list, tuple)):
        raise RewardError(f"{name} returned a {type(rewards).__name__}, a list of rewards was expected")
    if len(rewards) != len(completions):
        raise RewardError(f"{name} returned {len(rewards)} rewards for {len(completions)} completions")
    return list(rewards)


class VerlTask(Own):
    """verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`: a number, or a dict with "score"."""

    def __init__(self, name: str, function: Reward) -> None:
        super().__init__(name)
        self.function = function

    def problem(self, row: Row, row_id: str, where: str) -> Problem | BadRow:
        model = column(row, ("reward_model",), where)
        if not isinstance(model, Mapping) or "ground_truth" not in model:
            raise DataError(f"{where}: reward_model should hold ground_truth", "give rows in verl's shape")
        extra = {
            "data_source": str(row.get("data_source", "")),
            "ground_truth": model["ground_truth"],
            "extra_info": row.get("extra_info"),
        }
        return Problem(
            row_id,
            self.name,
            messages_of(column(row, ("prompt",), where), where),
            str(model["ground_truth"]),
            extra,
        )

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        given = problem.extra
        try:
            value = self.function(
                data_source=given["data_source"], solution_str=completion,
                ground_truth=given["ground_truth"], extra_info=given["extra_info"],
            )  # fmt: skip
        except Exception as error:
            raise RewardError(
                f"{self.name} raised {type(error).__name__}: {error}", "call it by hand to see the traceback"
            ) from error
        if isinstance(value, Mapping):
            if "score" not in value:
                raise RewardError(f"{self.name} returned a dict without 'score'")
            value = value["score"]
        return self.rewarded(value, completion)


class ClassTask(Own):
    """A user's class with `name`, `version`, `problems(...)` and `judge(...)` (the `Task` protocol)."""

    def __init__(self, name: str, made: Callable[[], Any]) -> None:
        super().__init__(name)
        try:
            self.inner = made()
        except Exception as error:
            raise RewardError(
                f"{name}: the class could not be made: {type(error).__name__}: {error}",
                "its __init__ takes no arguments",
            ) from error
        missing = [m for m in ("version", "problems", "judge") if getattr(self.inner, m, None) is None]
        if missing:
            raise UsageError(
                f"{name} has no {missing[0]!r}", "a task has name, version, problems(...) and judge(...)"
            )
        self.version = str(self.inner.version)  # type: ignore[misc]

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        for problem in self.inner.problems(split, data, limit, seed):
            if not isinstance(problem, Problem):
                raise RewardError(
                    f"{self.name}.problems gave a {type(problem).__name__}, broaden.records.Problem was expected"
                )
            yield Problem(problem.id, self.name, problem.messages, problem.gold, problem.extra)

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        try:
            verdict = self.inner.judge(problem, completion, finish)
        except Exception as error:
            raise RewardError(f"{self.name}.judge raised {type(error).__name__}: {error}") from error
        if not isinstance(verdict, Verdict):
            raise RewardError(
                f"{self.name}.judge gave a {type(verdict).__name__}, broaden.records.Verdict was expected"
            )
        return verdict


class JsonlTask(Own):
    """Prompt/answer rows under a built-in verifier. The prompt is used as it stands (`contract=yes` adds the
    family's)."""

    FAMILIES: ClassVar[tuple[str, ...]] = ("math", "gsm8k", "hotpotqa", "commonsenseqa", "countdown", "mbpp")
    options: ClassVar[Mapping[str, Any]] = {"contract": "no"}

    def __init__(self, family: str) -> None:
        from broaden.tasks.registry import get

        if family not in self.FAMILIES:
            raise UsageError(
                f"no family {family!r} for a file of one's own",
                f"the families are: {', '.join(self.FAMILIES)}",
            )
        super().__init__(f"jsonl:{family}")
        self.inner = get(family)
        self.version = self.inner.version  # type: ignore[misc]
        self.contract = "no"

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        if options["contract"] not in ("yes", "no"):
            raise UsageError(f"{self.name}: contract is yes or no, not {options['contract']!r}")
        for row in super().rows(split, data, limit, seed, options):
            if options["contract"] == "yes" and isinstance(row, Problem) and len(row.messages) == 1:
                text = row.messages[0].content
                row = Problem(row.id, row.task, self._asked(text), row.gold, row.extra)
            yield row

    def _asked(self, text: str) -> tuple[Message, ...]:
        if self.inner.name in ("math", "gsm8k"):
            return system_user(
                "Please reason step by step, and put your final answer within \\boxed{}.", text
            )
        if self.inner.name == "commonsenseqa":
            return user(
                f"{text}\n\nThink step by step, then give the letter of your answer within \\boxed{{}}."
            )
        if self.inner.name == "mbpp":
            return user(f"{text}\n\nAnswer with exactly one Python code block (```python ... ```).")
        return user(f"{text}\n\nThink step by step, then give your answer in <answer></answer>.")

    def problem(self, row: Row, row_id: str, where: str) -> Problem | BadRow:
        messages = messages_of(column(row, ("prompt", "problem", "question"), where), where)
        extra: dict[str, Any] = {}
        gold = ""
        if self.inner.name == "mbpp":
            extra = {
                "tests": [str(t) for t in column(row, ("tests", "test_list"), where)],
                "imports": row.get("test_imports") or [],
            }
        elif self.inner.name == "countdown":
            extra = {
                "numbers": column(row, ("numbers", "nums"), where),
                "target": column(row, ("target",), where),
            }
        else:
            gold = str(column(row, ("answer", "gold", "ground_truth"), where) or "").strip()
        if self.inner.name == "commonsenseqa":
            letters = [str(x) for x in row.get("letters") or "ABCDEFGH"]
            extra = {"letters": letters, "options": row.get("options") or []}
        if self.inner.name == "gsm8k":
            gold = gold.rpartition("####")[2].strip()
        problem = Problem(row_id, self.name, messages, gold, extra)
        if self.inner.judge(problem, "", "stop").reason == "gold_unparseable":
            return BadRow(row_id, f"the gold {gold[:60]!r} cannot be read by the family {self.inner.name}")
        return problem

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        return self.inner.judge(problem, completion, finish)
