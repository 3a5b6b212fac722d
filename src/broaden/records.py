"""The nouns of the system: frozen, JSON-able, versioned. Everything that is stored or passed between layers.

Wrong, unscored and failed are three states: a `Verdict` with `score` None is unscored and never counts
as wrong. Not here: behaviour (tasks judge, engines complete, trainers step).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, Self

SCHEMA_VERSION = 1

FinishReason = Literal["stop", "length"]
VerdictReason = Literal[
    "correct", "wrong", "no_answer", "truncated", "unparseable",
    "gold_unparseable", "timeout", "limit", "crashed",
]  # fmt: skip
UNSCORED: frozenset[str] = frozenset({"gold_unparseable", "timeout", "crashed"})


class Record:
    """JSON in and out for the frozen dataclasses below; an unknown or missing key is an error."""

    def to_json(self) -> dict[str, Any]:
        """Plain dict of JSON types; tuples become lists, NaN and infinities are refused."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`. Raises ValueError on unknown keys, TypeError on missing ones."""
        hints = typing.get_type_hints(cls)
        unknown = set(data) - set(hints)
        if unknown:
            raise ValueError(f"{cls.__name__} has no field {sorted(unknown)}; its fields are {sorted(hints)}")
        return cls(**{k: _restore(hints[k], v) for k, v in data.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN or infinity never stands for a state; use None")
    return value


def _restore(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if value is None:
            return None
        options = [a for a in typing.get_args(hint) if a is not type(None)]
        return _restore(options[0], value) if len(options) == 1 else value
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        return (
            tuple(_restore(inner[0], v) for v in value) if inner and inner[-1] is Ellipsis else tuple(value)
        )
    return value


@dataclass(frozen=True, slots=True)
class Message(Record):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Problem(Record):
    """One question with its gold answer.

    `id` is unique inside its data set and stable over loads (it keys the random numbers of a rollout);
    `gold` is the task's own text form of the answer; `extra` carries what a verifier needs beside it
    (JSON types only: numbers of a Countdown, options of a multiple choice, tests of an MBPP row).
    """

    id: str
    task: str
    messages: tuple[Message, ...]
    gold: str
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict(Record):
    """What the verifier says of one completion.

    `score` is 1.0 or 0.0, None where it could not be judged (reason says why); `reward` is what training
    uses (1 / 0.1 / 0 by the task's rule; None: excluded and counted); `answer` is the extracted text or
    None (abstains in Maj@K); `ballot` is the canonical form computed from the answer alone.
    """

    reason: VerdictReason
    score: float | None
    reward: float | None
    answer: str | None = None
    ballot: str | None = None
    verifier: str = ""
    borderline: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sampling(Record):
    """How completions are drawn. `temperature` 0 is greedy; top-p is always 1."""

    temperature: float = 1.0
    max_new_tokens: int = 256
    logprobs: bool = False
    entropy: bool = False


@dataclass(frozen=True, slots=True)
class Request(Record):
    """One completion asked of an engine: prompt ids and the 64-bit key of its uniforms (`seeds.stream`)."""

    prompt_ids: tuple[int, ...]
    key: int


@dataclass(frozen=True, slots=True)
class Completion(Record):
    """What an engine returns for a request, in the order asked.

    `token_ids` holds the generated ids including the EOS that ended it, if one did; `logprobs` are natural
    logs of the sampled token under the sampling distribution at temperature 1 of the logits;
    `entropy` is the exact entropy in nats of softmax(logits) (temperature 1) at each generated token.
    """

    token_ids: tuple[int, ...]
    finish: FinishReason
    logprobs: tuple[float, ...] | None = None
    entropy: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sample(Record):
    """A stored sample: the durable artifact from which every metric can be recomputed."""

    problem_id: str
    sample: int
    seed: int
    prompt_tokens: int
    token_ids: tuple[int, ...]
    finish: FinishReason
    text: str
    verdict: Verdict
    mean_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class SampleSet(Record):
    """M samples of each of P problems, with the conditions under which they were drawn."""

    task: str
    problems: tuple[Problem, ...]
    samples: tuple[Sample, ...]
    conditions: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class MemberResult(Record):
    """One member's answers to a batch: a reward for each (prompt, sample), None where unscorable."""

    member: int
    rewards: tuple[float | None, ...]
    scores: tuple[float | None, ...]
    tokens: int
    prompt_tokens: int
    truncated: int
    mean_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class StepRecord(Record):
    """One update of any algorithm, as logged. `values` are the scalars of the step by name;
    `log` is what replay needs (an ES seed-log line, or None)."""

    algo: Literal["es", "grpo", "sft"]
    step: int
    values: dict[str, float | int | None]
    log: dict[str, Any] | None = None
    schema: int = SCHEMA_VERSION
