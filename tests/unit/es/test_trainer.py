"""The ES loop over a population whose reward is a formula: the step is Eq. 7's, bit by bit where it must be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from broaden.es import EsSettings, train
from broaden.es.schedule import batch_indices
from broaden.perturb import NoiseSpec, center_hash, normal, write_member
from broaden.population.base import OnProgress, RolloutJob, Weights
from broaden.records import MemberResult, Sampling

NAMES = ("a.weight", "b.weight")


def center() -> Weights:
    return {"a.weight": torch.linspace(-1, 1, 12).reshape(3, 4), "b.weight": torch.zeros(5)}


class Formula:
    """Rewards a member by a function of its weights and of the prompt."""

    def __init__(self, reward: Callable[[Weights, int], float | None]) -> None:
        self.reward = reward
        self.jobs: list[RolloutJob] = []

    def rollout(
        self, weights: Weights, job: RolloutJob, on_progress: OnProgress | None = None
    ) -> list[MemberResult]:
        self.jobs.append(job)
        out = []
        for member in job.members:
            own = {n: torch.empty_like(t) for n, t in weights.items()}
            write_member(weights, own, job.spec, member.number, member.sign)
            rewards = tuple(self.reward(own, p) for p in job.prompts)
            out.append(MemberResult(member.number, rewards, rewards, 10, 20, 0))
        return out

    def conditions(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


def settings(**changes: object) -> EsSettings:
    values: dict[str, object] = {
        "updates": 2, "members": 6, "prompts": 4, "sigma": 0.05, "alpha": 0.3, "sampling": Sampling(1.0, 8),
    }  # fmt: skip
    return EsSettings(**{**values, **changes})  # type: ignore[arg-type]


def score(weights: Weights, prompt: int) -> float:
    """A smooth reward with its optimum at one."""
    return (
        -float(((weights["a.weight"] - 1) ** 2).sum() + ((weights["b.weight"] - 1) ** 2).sum()) + 0.1 * prompt
    )


def noise(step: int, member: int, name: str, count: int) -> np.ndarray:
    return normal(NoiseSpec(7, step, 0.05, NAMES).key(member, name), 0, count).astype(np.float64)


def test_one_update_is_equation_7() -> None:
    theta, population, s = center(), Formula(score), settings()
    record = next(train(theta, center(), 10, population, s, run_seed=7))
    start = center()
    prompts = batch_indices(10, 4, 0, 7)
    rewards = []
    for i in range(6):  # independent float64 computation of the members and of the step
        own = {n: torch.from_numpy(t.double().numpy().ravel() + 0.05 * noise(0, i, n, t.numel())).reshape(t.shape)
               for n, t in start.items()}  # fmt: skip
        rewards.append(np.mean([score(own, p) for p in prompts]))
    z = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards) + 1e-8)
    for n, t in start.items():
        step = 0.3 / 6 * sum(z[i] * noise(0, i, n, t.numel()) for i in range(6))
        expected = t.double().numpy().ravel() + step
        assert theta[n].numpy().ravel() == pytest.approx(expected, abs=2e-6)
    assert record.values["reward"] == pytest.approx(np.mean(rewards), rel=1e-5)
    assert record.log is not None
    assert record.log["coefficients"] == pytest.approx(list(z), rel=1e-4)


def test_the_reward_rises() -> None:
    theta = center()
    records = list(train(theta, center(), 10, Formula(score), settings(updates=60, members=16), run_seed=1))
    first, last = float(records[0].values["reward"] or 0), float(records[-1].values["reward"] or 0)
    assert last > 0.3 * first  # rewards are negative: closer to 0


@pytest.mark.parametrize("shaping", ["zscore", "centered_ranks", "none"])
@pytest.mark.parametrize("estimator", ["one_point", "antithetic"])
@pytest.mark.parametrize("value", [0.3, 0.0, 1 / 3])
def test_constant_rewards_leave_the_center_bit_for_bit(shaping: str, estimator: str, value: float) -> None:
    theta = center()
    for _ in train(
        theta,
        center(),
        10,
        Formula(lambda w, p: value),
        settings(shaping=shaping, estimator=estimator),
        run_seed=0,
    ):
        pass
    assert center_hash(theta) == center_hash(center())


def test_unscorable_samples_are_counted_and_left_out() -> None:
    population = Formula(lambda w, p: None if p % 2 else score(w, p))
    record = next(train(center(), center(), 8, population, settings(prompts=8), run_seed=0))
    assert (record.values["unscored"], record.values["rollouts"], record.values["unscored_members"]) == (
        24,
        48,
        0,
    )
    theta = center()
    record = next(train(theta, center(), 8, Formula(lambda w, p: None), settings(), run_seed=0))
    assert record.values["reward"] is None
    assert center_hash(theta) == center_hash(center())


def test_members_share_prompts_and_steps_see_their_own_batch() -> None:
    population = Formula(score)
    list(train(center(), center(), 10, population, settings(updates=3), run_seed=5))
    assert [len(j.prompts) for j in population.jobs] == [4, 4, 2]
    assert sorted(p for j in population.jobs for p in j.prompts) == list(range(10))


def test_resumed_in_the_middle_is_the_whole() -> None:
    whole, half = center(), center()
    records = list(train(whole, center(), 10, Formula(score), settings(updates=4), run_seed=2))
    list(
        zip(
            range(2), train(half, center(), 10, Formula(score), settings(updates=4), run_seed=2), strict=False
        )
    )
    rest = list(train(half, center(), 10, Formula(score), settings(updates=4), run_seed=2, start=2))
    assert center_hash(half) == center_hash(whole)
    assert [r.log for r in rest] == [r.log for r in records[2:]]


def test_schedules_reach_the_noise_and_the_step() -> None:
    s = settings(updates=3, sigma_end=0.01, sigma_schedule="linear", alpha_end=0.0, alpha_schedule="cosine")
    records = list(train(center(), center(), 10, Formula(score), s, run_seed=0))
    assert [r.values["sigma"] for r in records] == pytest.approx([0.05, 0.03, 0.01])
    assert [r.values["alpha"] for r in records] == pytest.approx([0.3, 0.15, 0.0])


def test_only_a_random_walk_runs_without_a_population() -> None:
    theta = center()
    record = next(train(theta, center(), 10, None, settings(control="random_z"), run_seed=0))
    assert record.values["drift"] > 0  # type: ignore[operator]
    with pytest.raises(ValueError, match="population"):
        next(train(theta, center(), 10, None, settings(), run_seed=0))
