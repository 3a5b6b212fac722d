"""A task of three tokens for GRPO tests: a tiny random Llama, its real engine, and a verifier on token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from broaden.engines import Engine, TorchEngine
from broaden.models.init import random_weights
from broaden.models.spec import ModelSpec
from broaden.population.base import Prompt
from broaden.records import FinishReason, Message, Problem, Verdict

VOCAB, EOS = 11, 0
SPEC = ModelSpec(
    "llama",
    layers=1,
    hidden=32,
    heads=2,
    kv_heads=1,
    head_dim=32,
    ffn=32,
    vocab=VOCAB,
    tied=True,
    max_positions=64,
)
Judge = Callable[[str], float | None]


def even_first(text: str) -> float | None:
    """1 where the first token is even, else 0."""
    return 1.0 if text.split(" ")[0] in {"2", "4", "6", "8", "10"} else 0.0


@dataclass
class ToyTask:
    """Scores the completion's ids, written as text."""

    rule: Judge
    name: str = "toy"
    version: str = "1"

    def problems(self, split: str, data: Any, limit: int | None, seed: int, **options: Any) -> list[Problem]:
        """Not used: the host is given its prompts."""
        return []

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        """The rule's verdict."""
        reward = self.rule(completion)
        if reward is None:
            return Verdict("crashed", None, None)
        return Verdict("correct" if reward == 1.0 else "wrong", float(reward == 1.0), reward)


class ToyTokenizer:
    """Ids as decimal words."""

    def decode(self, ids: Iterable[int]) -> str:
        """Without the EOS."""
        return " ".join(str(i) for i in ids if i != EOS)


@dataclass
class ToyHost:
    """What `grpo.train` samples from."""

    engine: Any
    tokenizer: Any
    task: Any
    prompts: list[Prompt]


def center(key: int = 1) -> dict[str, torch.Tensor]:
    """Fresh weights."""
    return random_weights(SPEC, key)


def prompts(n: int) -> list[Prompt]:
    """n prompts of three or four ids."""
    out = []
    for i in range(n):
        problem = Problem(f"toy/{i}", "toy", (Message("user", str(i)),), "")
        out.append(Prompt(problem, (1 + i % 10, 3, 5, 7)[: 3 + i % 2]))
    return out


def host(rule: Judge = even_first, n: int = 8, engine: Engine | None = None) -> ToyHost:
    """The toy host on the real engine."""
    return ToyHost(engine or TorchEngine(SPEC, {EOS}), ToyTokenizer(), ToyTask(rule), prompts(n))
