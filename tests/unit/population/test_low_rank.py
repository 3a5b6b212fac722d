"""Low-rank populations: serial, batched and in processes the same bits; engines that cannot share write members out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.unit.population.test_same_bits import MEMBERS, World

from broaden.engines import TorchEngine
from broaden.perturb import NoiseSpec, write_member
from broaden.population import ProcessPopulation, RolloutJob
from broaden.population.host import HostSettings, build_host
from broaden.population.local import Judge, requests_for
from broaden.records import MemberResult, Sampling

SAMPLING = Sampling(1.0, 24, entropy=True)  # the mean entropy of a member shows every bit


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("model"))


def job(world: World, rank: int = 1, **changes: object) -> RolloutJob:
    spec = NoiseSpec(3, 1, 0.05, tuple(world.model.weights), rank)
    return world.job(**{"spec": spec, "sampling": SAMPLING, **changes})


def settings(world: World, low_rank: int, **changes: object) -> HostSettings:
    return replace(world.settings(1), low_rank=low_rank, **changes)


@pytest.fixture(scope="module")
def serial(world: World) -> list[MemberResult]:
    return build_host(settings(world, 1), world.prompts).rollout(world.model.weights, job(world))


def test_members_and_signs_differ_and_full_rank_is_something_else(
    world: World, serial: list[MemberResult]
) -> None:
    assert len({r.mean_entropy for r in serial}) == len(MEMBERS)
    full = build_host(world.settings(1), world.prompts).rollout(world.model.weights, world.job())
    assert [r.tokens for r in full] != [r.tokens for r in serial]


@pytest.mark.parametrize("low_rank", [2, 4, 6, 32])
def test_batched_equals_serial(world: World, serial: list[MemberResult], low_rank: int) -> None:
    before = {n: t.clone() for n, t in world.model.weights.items()}
    host = build_host(settings(world, low_rank), world.prompts)
    assert host.rollout(world.model.weights, job(world)) == serial
    assert all(torch.equal(world.model.weights[n], t) for n, t in before.items())
    assert host.conditions()["low_rank_members"] == low_rank
    assert host.conditions()["population"] == "batched"


def test_they_agree_with_the_written_out_members(world: World, serial: list[MemberResult]) -> None:
    """float32 tokens of a small model: the rounding that differs is far below what changes a draw here."""
    spec = job(world).spec
    host = build_host(world.settings(1), world.prompts)
    assert isinstance(host.engine, TorchEngine)
    judge = Judge(host.tokenizer, host.task, host.prompts, job(world))
    for member, expected in zip(MEMBERS, serial, strict=True):
        write_member(world.model.weights, host.engine.weights(0), spec, member.number, member.sign)
        answers = host.engine.generate([requests_for(world.prompts, job(world))], SAMPLING)
        found = judge.member(member, answers[0])
        assert found.mean_entropy == pytest.approx(expected.mean_entropy, abs=1e-6)
        assert replace(found, mean_entropy=expected.mean_entropy) == expected


def test_processes_equal_serial(world: World, serial: list[MemberResult]) -> None:
    population = ProcessPopulation(settings(world, 2), world.prompts, world.model.weights, 2)
    try:
        assert population.rollout(world.model.weights, job(world)) == serial
        rank_2 = population.rollout(world.model.weights, job(world, rank=2))
        full = population.rollout(world.model.weights, world.job())
    finally:
        population.close()
    host = build_host(settings(world, 6), world.prompts)
    assert host.rollout(world.model.weights, job(world, rank=2)) == rank_2 != serial
    assert host.rollout(world.model.weights, world.job()) == full


def test_an_engine_that_cannot_share_writes_members_out(world: World) -> None:
    host = build_host(settings(world, 4, dtype="float16"), world.prompts)
    assert isinstance(host.engine, TorchEngine)
    assert not host.engine.shares_base
    some = MEMBERS[:2]
    found = host.rollout(world.model.weights, job(world, members=some))
    own = build_host(settings(world, 1, dtype="float16"), world.prompts)
    judge = Judge(own.tokenizer, own.task, own.prompts, job(world))
    for member, expected in zip(some, found, strict=True):
        spec = job(world).spec
        write_member(world.model.weights, own.engine.weights(0), spec, member.number, member.sign)
        answers = own.engine.generate([requests_for(world.prompts, job(world))], SAMPLING)
        assert judge.member(member, answers[0]) == expected


def test_the_center_may_change_between_rollouts(
    world: World, serial: list[MemberResult], tmp_path: Path
) -> None:
    host = build_host(settings(world, 6), world.prompts)
    other = {n: t * 1.1 for n, t in world.model.weights.items()}
    assert host.rollout(other, job(world)) != serial
    assert host.rollout(world.model.weights, job(world)) == serial
