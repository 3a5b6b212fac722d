"""reasoning-gym's generators as tasks (extra `gym`): `gym:leg_counting`, `gym:countdown`, ...

Questions are generated here; answers are scored in the killable workers of `mathpool`, since some of the
scorers run model
text through sympy's parser. A problem keeps (generator, size, seed, index), from which a worker makes its entry again.
Not here: the generators themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from broaden import seeds
from broaden.errors import UsageError
from broaden.records import FinishReason, Problem, Verdict
from broaden.tasks import mathpool
from broaden.tasks.base import BadRow, Family, user
from broaden.tasks.extract import last_tag

PROMPT = "{question}\n\nThink step by step, then give your final answer in <answer></answer>."
MAX_ANSWER = 4000
SECONDS = 20.0


class GymTask(Family):
    """One generator. Splits differ by seed only; `train` and `test` are drawn from streams of their own."""

    version = "1"
    title = "a generator of reasoning-gym"
    default_split = "test"
    options: ClassVar[Mapping[str, Any]] = {"size": 1000}
    apart = True

    def __init__(self, generator: str) -> None:
        self.name = f"gym:{generator}"  # type: ignore[misc]
        self.generator = generator

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        if data is not None:
            raise UsageError(f"task {self.name} generates its problems", "leave --data out")
        if importlib.util.find_spec("reasoning_gym") is None:
            raise UsageError(
                f"task {self.name} needs the package reasoning-gym", "pip install 'broaden[gym]'"
            )
        size = int(options["size"])
        key = seeds.stream(seed, "split", "gym", self.generator, split) % (1 << 31)
        try:
            entries = importlib.import_module("reasoning_gym").create_dataset(
                self.generator, size=size, seed=key
            )
        except Exception as error:
            raise UsageError(
                f"reasoning-gym cannot make {self.generator!r}: {error}",
                "look its name up in reasoning-gym's gallery",
            ) from error
        for index in range(size):
            entry = entries[index]
            answer = entry.get("answer")
            extra = {"generator": self.generator, "size": size, "seed": key, "index": index}
            question = PROMPT.format(question=entry["question"])
            yield Problem(
                f"{split}/{index}", self.name, user(question), "" if answer is None else str(answer), extra
            )

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        found = last_tag(completion, finish, bool(problem.extra.get("thinking")))
        if found.text is None:
            return self.verdict("truncated" if found.missing == "truncated" else "no_answer")
        if len(found.text) > MAX_ANSWER:
            return self.verdict("limit", answer=found.text[:200], note=f"longer than {MAX_ANSWER} characters")
        if "__" in found.text:
            return self.verdict(
                "unparseable", answer=found.text, note="a double underscore: not passed to a scorer"
            )
        said = mathpool.shared().score_gym(problem.extra, found.text, SECONDS)
        if said.score is None:
            reason = (
                "timeout" if said.outcome == "timeout" else "limit" if said.outcome == "memory" else "crashed"
            )
            return self.verdict(reason, answer=found.text, note=said.by)  # type: ignore[arg-type]
        right = said.score >= 1.0
        ballot = " ".join(found.text.split()).casefold()
        verifier = f"{self.name}/{self.version}"
        reward = min(1.0, max(0.0, said.score))
        return Verdict(
            "correct" if right else "wrong",
            float(right),
            reward,
            found.text,
            ballot,
            verifier,
            note=f"the scorer raised {said.by}" if said.by else f"score {said.score}",
        )
