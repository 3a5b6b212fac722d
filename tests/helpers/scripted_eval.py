"""A scripted engine, tokenizer and task: a sample is a function of its key alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broaden.records import Completion, FinishReason, Message, Problem, Request, Sampling, Verdict

STOP = 9


class Tokenizer:
    """Digits are tokens."""

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(int(c) for m in messages for c in m.content)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(str(i) for i in ids if i != STOP)


class Engine:
    """Answers with three digits of the key; remembers the keys that it was asked for."""

    def __init__(self, fn: Callable[[Request], Completion] | None = None) -> None:
        self.fn = fn or self._default
        self.keys: list[int] = []
        self.calls = 0

    @staticmethod
    def _default(request: Request) -> Completion:
        ids = (request.key % 4, (request.key >> 8) % 9, (request.key >> 20) % 9, STOP)
        return Completion(ids, "stop", entropy=(0.5, 1.0, 0.25, 0.25))

    def generate(
        self,
        requests: Sequence[Sequence[Request]],
        sampling: Sampling,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Completion]]:
        self.calls += 1
        self.keys += [r.key for r in requests[0]]
        out = [[self.fn(r) for r in row] for row in requests]
        if on_progress is not None:
            on_progress(1, len(out[0][0].token_ids))
        return out

    def conditions(self) -> dict[str, Any]:
        return {"name": "fake"}


class Task:
    """Right where the first digit is the gold digit; the first digit is the ballot; 3 is no answer."""

    name = "fake"
    version = "1"

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        ballot = completion[0]
        if ballot == "3":
            return Verdict("no_answer", 0.0, 0.0, verifier="fake/1")
        right = ballot == problem.gold
        return Verdict(
            "correct" if right else "wrong", float(right), float(right), ballot, ballot, verifier="fake/1"
        )


def problems(count: int, prefix: str = "p") -> list[Problem]:
    return [
        Problem(f"{prefix}{i}", "fake", (Message("user", str(100 + i)),), str(i % 3)) for i in range(count)
    ]
