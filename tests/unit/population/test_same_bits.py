"""Serial, batched and process populations: the same rewards, and so the same center, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.helpers.nano import fresh_model

from broaden import tasks
from broaden.errors import DivergedError, WorkerError
from broaden.models.checkpoint import load_model
from broaden.perturb import NoiseSpec
from broaden.population import Member, ProcessPopulation, Prompt, RolloutJob
from broaden.population.host import HostSettings, build_host
from broaden.records import MemberResult, Sampling

MEMBERS = tuple(Member(i, s) for i in range(3) for s in (1, -1))


class World:
    """A model, its center and eight prompts."""

    def __init__(self, folder: Path) -> None:
        self.folder = fresh_model(folder)
        self.model = load_model(self.folder)
        problems = tasks.get("countdown").problems("train", None, 8, 0)
        self.prompts = [Prompt(p, self.model.tokenizer.encode_chat(p.messages)) for p in problems]

    def settings(self, members: int) -> HostSettings:
        return HostSettings(str(self.folder), "countdown", device="cpu", members=members, max_context=80)

    def job(self, **changes: object) -> RolloutJob:
        spec = NoiseSpec(3, 1, 0.05, tuple(self.model.weights))
        values: dict[str, object] = {
            "spec": spec, "members": MEMBERS, "prompts": tuple(range(8)), "samples": 2,
            "sampling": Sampling(1.0, 24),
        }  # fmt: skip
        return RolloutJob(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def serial(world: World) -> list[MemberResult]:
    return build_host(world.settings(1), world.prompts).rollout(world.model.weights, world.job())


def test_members_differ_and_signs_differ(serial: list[MemberResult]) -> None:
    assert len({(r.tokens, r.rewards) for r in serial}) == len(MEMBERS)
    assert [r.member for r in serial] == [m.number for m in MEMBERS]
    assert all(len(r.rewards) == 16 for r in serial)


@pytest.mark.parametrize("members", [2, 4, 6])
def test_batched_equals_serial(world: World, serial: list[MemberResult], members: int) -> None:
    assert (
        build_host(world.settings(members), world.prompts).rollout(world.model.weights, world.job()) == serial
    )


def test_members_do_not_depend_on_who_else_runs(world: World, serial: list[MemberResult]) -> None:
    some = (MEMBERS[4], MEMBERS[1])
    found = build_host(world.settings(1), world.prompts).rollout(world.model.weights, world.job(members=some))
    assert found == [serial[4], serial[1]]


def test_the_center_is_never_touched(world: World) -> None:
    before = {n: t.clone() for n, t in world.model.weights.items()}
    build_host(world.settings(6), world.prompts).rollout(world.model.weights, world.job())
    assert all(torch.equal(world.model.weights[n], t) for n, t in before.items())


def test_member_in_key_changes_the_random_numbers(world: World) -> None:
    host = build_host(world.settings(2), world.prompts)
    spec = NoiseSpec(3, 1, 0.0, tuple(world.model.weights))  # no noise: members differ by their key alone
    common = host.rollout(world.model.weights, world.job(spec=spec))
    own = host.rollout(world.model.weights, world.job(spec=spec, member_in_key=True))
    assert len({(r.tokens, r.rewards) for r in common}) == 1
    assert len({(r.tokens, r.rewards) for r in own}) > 1


def test_processes_equal_serial_and_survive_a_killed_worker(world: World, serial: list[MemberResult]) -> None:
    population = ProcessPopulation(world.settings(2), world.prompts, world.model.weights, 2)
    try:
        assert population.rollout(world.model.weights, world.job()) == serial
        population.pool.workers[0].process.kill()
        assert population.rollout(world.model.weights, world.job()) == serial
        seen: list[tuple[int, int]] = []
        found = population.rollout(world.model.weights, world.job(), lambda d, t: seen.append((d, t)))
        assert found == serial
        assert seen == sorted(seen)
    finally:
        population.close()
    assert population.pool.center.file.closed


def test_a_diverged_member_is_named_in_the_calling_process(world: World) -> None:
    broken = {n: t.clone() for n, t in world.model.weights.items()}
    broken["model.norm.weight"][0] = float("nan")
    population = ProcessPopulation(world.settings(1), world.prompts, world.model.weights, 1)
    try:
        with pytest.raises(DivergedError, match="finite"):
            population.rollout(broken, world.job())
        assert len(population.rollout(world.model.weights, world.job(members=MEMBERS[:1]))) == 1
    finally:
        population.close()


def test_a_worker_that_cannot_start_is_an_error(world: World, tmp_path: Path) -> None:
    settings = HostSettings(str(tmp_path / "nothing"), "countdown", device="cpu")
    with pytest.raises(WorkerError):
        ProcessPopulation(settings, world.prompts, world.model.weights, 1)
