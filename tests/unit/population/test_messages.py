"""What is sent between a population and its workers: every bit comes back, and a member costs little."""

from __future__ import annotations

import io
import json
import math
import struct
from pathlib import Path

import pytest
from tests.helpers.nano import fresh_model

from broaden import tasks
from broaden.errors import WorkerError
from broaden.models.checkpoint import load_model
from broaden.perturb import NoiseSpec
from broaden.population import Member, ProcessPopulation, Prompt, RolloutJob, messages, wire
from broaden.population.host import HostSettings, build_host
from broaden.records import Completion, MemberResult, Request, Sampling


def through_json(value: object) -> object:
    return json.loads(json.dumps(value))


def bits(values: tuple[float | None, ...]) -> list[bytes | None]:
    return [None if v is None else struct.pack("<d", v) for v in values]


def result(rewards: tuple[float | None, ...], scores: tuple[float | None, ...]) -> MemberResult:
    return MemberResult(7, rewards, scores, 301, 40, 2, 0.1 + 0.2)


@pytest.mark.parametrize(
    ("rewards", "scores"),
    [
        ((), ()),
        ((1.0, 0.1, 0.0, 1.0, None), (1.0, 0.0, 0.0, 1.0, None)),
        ((0.0, -0.0, math.nan, math.inf, 5e-324), (None, 0.0, -0.0, 1.0, 1.0)),
        (tuple(i / 7 for i in range(64)), (1.0,) * 64),
        (tuple(i / 7 for i in range(300)), (1.0, None) * 150),
    ],
    ids=["empty", "usual", "odd floats", "64 values", "300 values"],
)
def test_a_result_comes_back_bit_for_bit(
    rewards: tuple[float | None, ...], scores: tuple[float | None, ...]
) -> None:
    sent = through_json(messages.result_to_json(result(rewards, scores)))
    assert isinstance(sent, dict)
    back = messages.result_from_json(sent)
    assert (bits(back.rewards), bits(back.scores)) == (bits(rewards), bits(scores))
    assert (back.member, back.tokens, back.prompt_tokens, back.truncated) == (7, 301, 40, 2)
    assert back.mean_entropy == 0.1 + 0.2


def test_a_usual_result_is_a_letter_a_response() -> None:
    sent = messages.result_to_json(result((0.0, 1.0, 0.0, 0.1), (0.0, 1.0, 0.0, 0.0)))
    assert sent["at"] == "ABAC"
    assert sent["pairs"] == [(0.0, 0.0), (1.0, 1.0), (0.1, 0.0)]


def test_a_job_comes_back() -> None:
    job = RolloutJob(
        NoiseSpec(3, 9, 0.1, ("a", "b")), (Member(4, -1),), (5, 70_000, 5), 2, Sampling(0.6, 48), True
    )
    sent = through_json(messages.job_to_json(job))
    assert isinstance(sent, dict)
    assert messages.job_from_json(sent, ("a", "b"), [[4, -1]]) == job


def test_requests_share_their_prompts() -> None:
    asked = [Request((1, 2, 3), 2**64 - 1), Request((4,), 0), Request((1, 2, 3), 5)]
    sent = through_json(messages.requests_to_json(asked))
    assert isinstance(sent, dict)
    assert len(sent["prompts"]) == 2
    assert messages.requests_from_json(sent) == asked


@pytest.mark.parametrize("floats", [None, (), (-0.1, -math.inf, 1e-300)])
def test_a_completion_comes_back(floats: tuple[float, ...] | None) -> None:
    completion = Completion((1, 49_151, 0), "length", floats, None)
    sent = through_json(messages.completion_to_json(completion))
    assert isinstance(sent, list)
    assert messages.completion_from_json(sent) == completion


def test_the_wire_counts_its_bytes_and_says_when_it_is_cut() -> None:
    pipe = io.BytesIO()
    count = wire.send(pipe, {"a": [1, 2]})
    assert pipe.getvalue() == (11).to_bytes(8, "little") + b'{"a":[1,2]}'
    assert count == 19
    pipe.seek(0)
    assert wire.receive(pipe) == ({"a": [1, 2]}, 19)
    with pytest.raises(WorkerError, match="closed before a whole message"):
        wire.receive(io.BytesIO(pipe.getvalue()[:-1]))


class World:
    """The bundled model with 256 prompts of the paper's mini-batch, four members of one worker."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(fresh_model(folder))
        self.settings = HostSettings(str(folder), "countdown", members=1, max_context=80)
        problems = tasks.get("countdown").problems("train", None, 256, 0)
        self.prompts = [Prompt(p, self.model.tokenizer.encode_chat(p.messages)) for p in problems]

    def job(self, step: int) -> RolloutJob:
        return RolloutJob(
            NoiseSpec(3, step, 0.05, tuple(self.model.weights)), tuple(Member(i) for i in range(4)),
            tuple((step + i) % 256 for i in range(256)), 1, Sampling(1.0, 2),
        )  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("model"))


def test_a_member_costs_a_kilobyte_at_most_each_way(world: World) -> None:
    population = ProcessPopulation(world.settings, world.prompts, world.model.weights, 1)
    try:
        population.rollout(world.model.weights, world.job(0))
        worker = population.pool.workers[0]
        sent, received = worker.sent, worker.received
        population.rollout(world.model.weights, world.job(1))  # one message a member: groups of one
        assert 4 * 50 < worker.sent - sent < 4 * 500
        assert 4 * 256 < worker.received - received < 4 * 500
    finally:
        population.close()


def test_a_worker_killed_in_mid_update_is_told_everything_anew(world: World) -> None:
    expected = build_host(world.settings, world.prompts).rollout(world.model.weights, world.job(5))
    population = ProcessPopulation(world.settings, world.prompts, world.model.weights, 1)
    try:
        population.rollout(world.model.weights, world.job(4))
        first = population.pool.workers[0]
        real = first.answer
        answered = []

        def dies_after_two() -> messages.Message:
            message = real()
            if "results" in message:
                answered.append(message)
                if len(answered) == 2:
                    first.process.kill()
            return message

        first.answer = dies_after_two  # type: ignore[method-assign]
        assert population.rollout(world.model.weights, world.job(5)) == expected
        assert len(answered) == 2
        assert population.pool.workers[0] is not first
    finally:
        population.close()
