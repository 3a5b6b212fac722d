"""Four budgets in one value, and the solver that matches ES and GRPO.

Not here: how FLOPs are counted (`flops`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from broaden.errors import MetricError
from broaden.ledger.flops import ModelSize, es_full, es_paper, grpo_full, grpo_paper
from broaden.records import Record

Ledger = Literal["paper", "full"]


@dataclass(frozen=True, slots=True)
class Budget(Record):
    """What was, or may be, spent. Budgets of stages add."""

    updates: int = 0
    tokens: int = 0
    flops_paper: float = 0.0
    flops_full: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Budget) -> Budget:
        if not isinstance(other, Budget):
            return NotImplemented
        return Budget(
            self.updates + other.updates,
            self.tokens + other.tokens,
            self.flops_paper + other.flops_paper,
            self.flops_full + other.flops_full,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class EsPlan(Record):
    """An ES stage as planned: `members` counts directions (two evaluations each when antithetic)."""

    members: int
    prompts: int
    updates: int
    prompt_tokens: float
    response_tokens: float
    samples: int = 1
    antithetic: bool = False

    def budget(self, size: ModelSize) -> Budget:
        """Updates, tokens and FLOPs of the whole stage."""
        tokens = self.updates * self.evaluations * self.prompts * self.samples * self.response_tokens
        return Budget(self.updates, round(tokens), self.paper(size), self.full(size))

    @property
    def evaluations(self) -> int:
        """Members evaluated in an update."""
        return self.members * (2 if self.antithetic else 1)

    def paper(self, size: ModelSize) -> float:
        """The paper's ledger (its one response a prompt, times `samples`)."""
        return self.samples * es_paper(
            size.parameters,
            self.response_tokens,
            updates=self.updates,
            members=self.members,
            prompts=self.prompts,
            antithetic=self.antithetic,
        )

    def full(self, size: ModelSize) -> float:
        """The full ledger."""
        return es_full(size, **self.to_json()).total


@dataclass(frozen=True, slots=True)
class GrpoPlan(Record):
    """A GRPO stage as planned."""

    group: int
    prompts: int
    updates: int
    prompt_tokens: float
    response_tokens: float
    kl: bool = True
    old_pass: bool = False
    inner: int = 1

    def budget(self, size: ModelSize) -> Budget:
        """Updates, tokens and FLOPs of the whole stage."""
        tokens = self.updates * self.prompts * self.group * self.response_tokens
        return Budget(self.updates, round(tokens), self.paper(size), self.full(size))

    def paper(self, size: ModelSize) -> float:
        """The paper's ledger; at KL 0 without the reference pass (6PL instead of 8PL)."""
        return grpo_paper(
            size.parameters,
            self.response_tokens,
            updates=self.updates,
            prompts=self.prompts,
            group=self.group,
            reference=self.kl,
        )

    def full(self, size: ModelSize) -> float:
        """The full ledger."""
        return grpo_full(size, **self.to_json()).total


@dataclass(frozen=True, slots=True)
class Match(Record):
    """A solved match: `exact` is what equality needs, `value` the nearest whole number, `ratio` ES over GRPO there."""

    ledger: Ledger
    solved: str
    exact: float
    value: int
    ratio: float
    es: Budget
    grpo: Budget


def match_members(es: EsPlan, grpo: GrpoPlan, size: ModelSize, ledger: Ledger = "paper") -> Match:
    """N for which ES costs what GRPO does (es.members is ignored): 4G on the paper's ledger, 3G at KL 0."""
    target = _cost(grpo, size, ledger)
    exact = _solve(lambda n: _cost(replace(es, members=n), size, ledger), target)
    best = replace(es, members=max(1, round(exact)))
    return _match("members", exact, best.members, best, grpo, size, ledger)


def match_group(es: EsPlan, grpo: GrpoPlan, size: ModelSize, ledger: Ledger = "paper") -> Match:
    """G for which GRPO costs what ES does (grpo.group is ignored); a group needs two."""
    target = _cost(es, size, ledger)
    exact = _solve(lambda g: _cost(replace(grpo, group=g), size, ledger), target)
    best = replace(grpo, group=max(2, round(exact)))
    return _match("group", exact, best.group, es, best, size, ledger)


def match_updates(es: EsPlan, grpo: GrpoPlan, size: ModelSize, ledger: Ledger = "paper") -> Match:
    """ES updates that cost what the GRPO stage does, N and G as given."""
    target = _cost(grpo, size, ledger)
    exact = _solve(lambda t: _cost(replace(es, updates=t), size, ledger), target)
    best = replace(es, updates=max(1, round(exact)))
    return _match("updates", exact, best.updates, best, grpo, size, ledger)


def _cost(plan: EsPlan | GrpoPlan, size: ModelSize, ledger: Ledger) -> float:
    return plan.paper(size) if ledger == "paper" else plan.full(size)


def _solve(cost: Callable[[int], float], target: float) -> float:
    """x with cost(x) = target; every cost here is affine in x."""
    fixed, slope = cost(0), cost(1) - cost(0)
    if slope <= 0.0:
        raise MetricError("the plan costs nothing, so there is nothing to match")
    return (target - fixed) / slope


def _match(
    solved: str, exact: float, value: int, es: EsPlan, grpo: GrpoPlan, size: ModelSize, ledger: Ledger
) -> Match:
    a, b = es.budget(size), grpo.budget(size)
    return Match(ledger, solved, exact, value, _cost(es, size, ledger) / _cost(grpo, size, ledger), a, b)
