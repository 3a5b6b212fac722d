"""What a population is: N members answer one mini-batch; the same bits whatever runs them.

Not here: how a member's weights are made (`perturb`) or how completions are drawn (`engines`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from broaden.perturb import NoiseSpec
from broaden.records import MemberResult, Problem, Sampling

OnProgress = Callable[[int, int], None]
Weights = dict[str, torch.Tensor]


class Prompt(NamedTuple):
    """A problem and its rendered prompt ids."""

    problem: Problem
    ids: tuple[int, ...]


class Member(NamedTuple):
    """A direction and the side of the center on which it is evaluated (+1, or -1 of an antithetic pair)."""

    number: int
    sign: int = 1


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """One update's work: which members answer which prompts, and under which named random numbers.

    `spec` names the noise (run seed, step, sigma, tensors); `prompts` index the population's prompt list;
    `samples` responses are drawn a prompt; `member_in_key` gives members random numbers of their own.
    """

    spec: NoiseSpec
    members: tuple[Member, ...]
    prompts: tuple[int, ...]
    samples: int
    sampling: Sampling
    member_in_key: bool = False


class Population(Protocol):
    """Runs members. `rollout` never changes `center` and returns results in the order of `job.members`."""

    def rollout(
        self, center: Weights, job: RolloutJob, on_progress: OnProgress | None = None
    ) -> list[MemberResult]:
        """Rewards of each member on each (prompt, sample), prompt-major."""
        ...

    def conditions(self) -> dict[str, object]:
        """What the manifest records: engine, workers, members a batch."""
        ...

    def close(self) -> None:
        """Give back processes and memory."""
        ...


def chunks(members: Sequence[Member], size: int) -> list[tuple[Member, ...]]:
    """Consecutive groups of at most `size` members."""
    return [tuple(members[i : i + size]) for i in range(0, len(members), size)]
