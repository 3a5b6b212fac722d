"""Low-rank members over shared weights: close to the materialised ones, exact among themselves, one product each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engines.test_torch_engine import requests

from broaden.engines import TorchEngine, self_test
from broaden.engines import lowrank as lowrank_module
from broaden.engines.lowrank import LowRankMembers, LowRankStacks, SharedProduct, low_rank_slots
from broaden.engines.lowrank_math import correct, correct_rows
from broaden.engines.scheduler import Schedule
from broaden.engines.selftest import SPEC, fill
from broaden.engines.torch_engine import Kernels
from broaden.errors import UsageError
from broaden.models.spec import ModelSpec
from broaden.perturb import NoiseSpec, Selection, write_center, write_member
from broaden.records import Completion, Sampling

MODELS = {
    "tied": dataclasses.replace(SPEC, tied=True),
    "untied": dataclasses.replace(SPEC, tied=False),
    "biases and head norms": dataclasses.replace(
        SPEC, tied=False, qkv_bias=True, attention_bias=True, mlp_bias=True, qk_norm=True
    ),
}
SAMPLED = Sampling(temperature=1.0, max_new_tokens=12, logprobs=True, entropy=True)
MEMBERS = [(0, 1), (1, 1), (1, -1), (7, 1), (3, 1)]
SIGMA = 0.02


class World:
    """An engine with one set of weights, its center, and what is asked of five members."""

    def __init__(self, spec: ModelSpec = SPEC, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        self.spec, self.dtype = spec, dtype
        self.engine = TorchEngine(spec, [0], dtype=dtype, **options)
        source = TorchEngine(spec, [0])
        fill(source, 0, 0)
        self.center = {name: view.clone() for name, view in source.weights().items()}
        write_center(self.center, self.engine.weights(0))
        self.asked = [requests(16 + 9 * m, longest=40, seed=m) for m in range(len(MEMBERS))]

    def noise(self, rank: int, selection: Selection | None = None, sigma: float = SIGMA) -> NoiseSpec:
        return NoiseSpec(5, 2, sigma, (selection or Selection()).select(self.center), rank)

    def shared(
        self, noise: NoiseSpec, indices: list[int], sampling: Sampling = SAMPLED
    ) -> list[list[Completion]]:
        with self.engine.low_rank(self.center, noise, [MEMBERS[i] for i in indices]):
            return self.engine.generate([self.asked[i] for i in indices], sampling)

    def written(self, noise: NoiseSpec, index: int, sampling: Sampling = SAMPLED) -> list[Completion]:
        own = TorchEngine(self.spec, [0], dtype=self.dtype)
        number, sign = MEMBERS[index]
        write_member(self.center, own.weights(0), noise, number, sign)
        return own.generate([self.asked[index]], sampling)[0]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rank", [1, 3])
def test_they_answer_like_the_written_out_members(model: str, rank: int) -> None:
    """float32: the same sampled tokens, log-probabilities and entropies within 3e-5 (logits of order 1 to 10)."""
    world = World(MODELS[model])
    noise = world.noise(rank)
    together = world.shared(noise, list(range(5)))
    for index in range(5):
        written = world.written(noise, index)
        assert [a.token_ids for a in together[index]] == [b.token_ids for b in written]
        for a, b in zip(together[index], written, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=3e-5)
            np.testing.assert_allclose(a.entropy, b.entropy, rtol=0, atol=3e-5)
    base = world.engine.generate([world.asked[1]], SAMPLED)[0]
    assert (
        [a.token_ids for a in base]
        != [a.token_ids for a in together[1]]
        != [a.token_ids for a in together[2]]
    )


@pytest.mark.parametrize("exclude", ["*embed_tokens*", "*.q_proj.*", "*.up_proj.*", "*norm*", "*.layers.*"])
def test_what_is_not_selected_stays(exclude: str) -> None:
    world = World(MODELS["tied"])
    noise = world.noise(2, Selection(exclude=(exclude,)))
    found, whole = world.shared(noise, [3])[0], world.shared(world.noise(2), [3])[0]
    for a, b in zip(found, world.written(noise, 3), strict=True):
        assert a.token_ids == b.token_ids
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=3e-5)
    assert found != whole


def test_without_noise_they_are_the_center() -> None:
    world = World()
    found = world.shared(world.noise(1, sigma=0.0), [0, 4])
    assert found == [world.engine.generate([world.asked[i]], SAMPLED)[0] for i in (0, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 4])
def test_a_member_does_not_depend_on_the_batch(dtype: torch.dtype, rank: int) -> None:
    world = World(MODELS["biases and head norms"], dtype)
    noise = world.noise(rank)
    together = world.shared(noise, [0, 1, 2, 3, 4])
    assert len({tuple(a.token_ids for a in answers) for answers in together}) == 5
    for options in ({}, {"slots": 16}, {"threads": 2}, {"threads": 3, "slots": 32}):
        other = World(MODELS["biases and head norms"], dtype, **options)
        assert other.shared(noise, [4, 2]) == [together[4], together[2]]
        assert other.shared(noise, [1]) == [together[1]]
    assert world.shared(noise, [4, 3, 2, 1, 0]) == together[::-1]


def test_bfloat16_is_no_further_from_float32_than_the_written_out_member() -> None:
    exact, rough = World(), World(dtype=torch.bfloat16)
    noise, greedy = exact.noise(1), Sampling(temperature=0.0, max_new_tokens=1, entropy=True)
    errors: dict[str, list[float]] = {"shared": [], "written": []}
    for index in range(5):
        true = exact.shared(noise, [index], greedy)[0]
        for kind, answers in (
            ("shared", rough.shared(noise, [index], greedy)[0]),
            ("written", rough.written(noise, index, greedy)),
        ):
            errors[kind] += [abs(a.entropy[0] - t.entropy[0]) for a, t in zip(answers, true, strict=True)]  # type: ignore[index]
    shared, written = np.mean(errors["shared"]), np.mean(errors["written"])
    assert 0.0 < shared < 1.5 * written


@pytest.mark.parametrize("count", [1, 5])
def test_a_step_takes_one_product_a_matrix_whatever_the_members(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rows = World(MODELS["tied"]), []
    with world.engine.low_rank(world.center, world.noise(1), MEMBERS[:count]):
        stacks = LowRankStacks(world.engine.buffers, world.engine._low_rank)  # type: ignore[arg-type]
        with stacks.lent(0, count) as stack:
            runner = world.engine._runner(0, count, 0, stack)
        cache = runner.cache(16 * count, 64)
        plain = torch.mm
        monkeypatch.setattr(torch, "mm", lambda x, w, out: (rows.append(len(x)), plain(x, w, out=out))[1])
        runner.logits(np.zeros(16 * count, np.int64), np.zeros(16 * count, np.int64), cache)
    assert rows == [16 * count] * (4 * SPEC.layers + 1)


def test_members_take_little_memory() -> None:
    world = World(MODELS["tied"], torch.bfloat16)
    members = LowRankMembers(world.spec, world.center, world.noise(1), MEMBERS, torch.bfloat16)
    sides = sum(sum(t.shape) for t in world.center.values() if t.dim() == 2)
    vectors = sum(t.numel() for t in world.center.values() if t.dim() == 1)
    assert members.bytes == 5 * 2 * (sides + vectors)


def test_the_engine_is_itself_again_after_the_block() -> None:
    world = World()
    before = world.engine.generate([world.asked[0]], SAMPLED)

    def fail() -> None:
        with world.engine.low_rank(world.center, world.noise(1), MEMBERS):
            assert world.engine.members == 5
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert world.engine.members == 1
    assert world.engine.generate([world.asked[0]], SAMPLED) == before


def test_other_kernels_refuse() -> None:
    made = World(kernels="portable")
    assert not made.engine.shares_base
    with (
        pytest.raises(UsageError, match="compiled kernels"),
        made.engine.low_rank(made.center, made.noise(1), MEMBERS),
    ):
        pass


@pytest.mark.parametrize("rank", [1, 3])
def test_the_corrections_are_the_products_that_they_say(rank: int) -> None:
    """Against float64, for two parts of the outputs and two members; outputs in no part stay as they are."""
    random = np.random.default_rng(0)
    x, y = random.standard_normal((6, 40), np.float32), random.standard_normal((6, 30), np.float32)
    a = random.integers(-9000, 9000, (2, rank, 30)).astype(np.int16)
    b = random.integers(-9000, 9000, (2, 2, rank, 40)).astype(np.int16)
    bounds, scale = np.array([[0, 7], [12, 30]]), np.array([1e-9, -3e-9], np.float32)
    expected = y.astype(np.float64)
    for row in range(6):
        m = row // 3
        for s, (low, high) in enumerate(bounds):
            t = scale[m] * (b[m, s].astype(np.float64) @ x[row])
            expected[row, low:high] += t @ a[m, :, low:high].astype(np.float64)
    found = y.copy()
    correct(x, found, a, b, bounds, scale, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(found[:, 7:12], y[:, 7:12])
    assert np.abs(found - y).max() > 0.01

    ids, h = np.array([3, -1, 29, 0, 3, 5]), x.copy()
    correct_rows(h, ids, a, b[:, 1], scale, 3)
    for row, token in enumerate(ids):
        m = row // 3
        change = scale[m] * (a[m, :, token].astype(np.float64) @ b[m, 1]) if token >= 0 else 0.0
        np.testing.assert_allclose(h[row], x[row] + change, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("count", "multiple"), [(1, 16), (5, 16), (6, 8), (8, 2), (16, 1), (32, 1)])
def test_only_all_rows_together_are_padded(count: int, multiple: int) -> None:
    """Rows of a member need no multiple of 16 of their own, and that changes no bit."""
    world = World()
    noise, few = world.noise(1), [r for i, r in enumerate(world.asked[0]) if i < 3]
    with world.engine.low_rank(world.center, noise, [(m, 1) for m in range(count)]):
        with LowRankStacks(world.engine.buffers, world.engine._low_rank).lent(0, count) as stack:  # type: ignore[arg-type]
            assert stack.row_multiple == multiple
        together = world.engine.generate([few] * count, SAMPLED)
    with world.engine.low_rank(world.center, noise, [(count - 1, 1)]):
        assert world.engine.generate([few], SAMPLED)[0] == together[-1]


def test_rows_a_member() -> None:
    assert [low_rank_slots(n, 256) for n in (1, 2, 5, 8, 32, 100)] == [256, 256, 96, 64, 16, 16]
    assert low_rank_slots(1, 64) == 64


def test_the_self_test_sees_a_batch_that_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_test(low_rank=2).ok
    assert self_test(low_rank=2).comparisons == self_test().comparisons + 3
    plain = SharedProduct.into

    def into(self: SharedProduct, x: torch.Tensor, y: torch.Tensor) -> None:
        plain(self, x, y)
        if len(x) == lowrank_module.ROWS:
            y.add_(1e-3)

    monkeypatch.setattr(SharedProduct, "into", into)
    report = self_test(low_rank=2)
    assert not report.ok
    assert all("low-rank" in difference for difference in report.differences)


@pytest.mark.parametrize("kernels", ["compiled", "portable"])
def test_prompts_of_one_sample_each_go_straight_into_their_rows(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cache of prompts, and with the bits of those that are shared by samples or wait for a row."""
    made = TorchEngine(SPEC, [0], kernels=kernels, slots=16)
    fill(made, 0, 0)
    few = requests(12, longest=40)
    single = [r for i, r in enumerate(few) if r.prompt_ids not in {x.prompt_ids for x in few[:i]}]
    counted: list[Schedule] = []
    plain = Schedule.__init__

    def init(self: Schedule, *arguments: Any) -> None:
        plain(self, *arguments)
        counted.append(self)

    monkeypatch.setattr(Schedule, "__init__", init)
    answers = made.generate([single], SAMPLED)[0]
    many = single + requests(30, longest=40, seed=5)
    doubled = [r for r in single for _ in range(2)]
    assert made.generate([many], SAMPLED)[0][: len(single)] == answers
    assert made.generate([doubled], SAMPLED)[0][::2] == answers
    assert [s.prefix is None for s in counted] == [True, False, False]
