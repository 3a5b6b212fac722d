"""Low-rank members and updates against literal definitions in Python integers; what cannot be is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from broaden.errors import ExactnessError, UsageError
from broaden.perturb import (
    InPlaceControl,
    LowRank,
    NoiseSpec,
    Selection,
    apply_update,
    center_hash,
    log_line,
    noise,
    normal_table,
    replay,
    write_member,
)
from broaden.perturb.lowrank import factor_table, factors
from broaden.perturb.spec import parameterisation_from_json
from broaden.perturb.update import fixed_point, noise_bits
from broaden.seeds import stream

SEED, STEP, SIGMA = 9, 4, 0.02
SHAPES = {"m": (37, 53), "v": (19,), "wide": (5, 301)}


def make_center():
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def spec(rank, sigma=SIGMA):
    return NoiseSpec(SEED, STEP, sigma, tuple(SHAPES), rank)


def integers(name, member, rank):
    """sum_k Z^A_ok Z^B_ik as Python integers, from the keys' definition."""
    out, width = SHAPES[name]
    a, b = (
        factors(stream(SEED, "noise", STEP, member, name, part), 0, n * rank).reshape(n, rank)
        for part, n in (("A", out), ("B", width))
    )
    return a.astype(object) @ b.astype(object).T


def test_factors_are_the_rounded_normal_table():
    table = factor_table()
    assert np.abs(table / 4096 - normal_table().astype(np.float64)).max() <= 1 / 8192
    assert abs(table).max() < 1 << 15
    assert int(abs(table.astype(np.int64)).max()) ** 2 < 1 << 29
    assert abs((table / 4096.0).var() - 1.0) < 1e-6
    assert abs((table / 4096.0).mean()) < 1e-6


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_member_is_the_center_plus_the_scaled_product(rank, sign, dtype):
    center = make_center()
    out = {name: torch.empty_like(w, dtype=dtype) for name, w in center.items()}
    write_member(center, out, spec(rank), 3, sign)
    for name in ("m", "wide"):
        exact = integers(name, 3, rank).astype(np.float64) * (SIGMA * sign / math.sqrt(rank) / 2**24)
        expected = torch.from_numpy(center[name].numpy() + exact.astype(np.float32)).to(dtype)
        assert torch.equal(out[name], expected)
    full = {"v": torch.empty(19, dtype=dtype)}
    write_member({"v": center["v"]}, full, NoiseSpec(SEED, STEP, SIGMA, ("v",)), 3, sign)
    assert torch.equal(out["v"], full["v"])


@pytest.mark.parametrize("rank", [1, 3])
def test_the_noise_has_exactly_that_rank_and_unit_variance(rank):
    center = {"w": torch.zeros(200, 300)}
    out = {"w": torch.empty(200, 300)}
    write_member(center, out, NoiseSpec(1, 0, 1.0, ("w",), rank), 0)
    values = torch.linalg.svdvals(out["w"].double())
    assert values[rank - 1] > 50.0
    assert values[rank] < 1e-3
    assert out["w"].var().item() == pytest.approx(1.0, abs=0.3)
    assert abs(out["w"].mean().item()) < 0.1


def test_members_signs_and_factors_are_unrelated():
    center = {"w": torch.zeros(64, 64)}
    seen = []
    for member in (0, 1):
        out = {"w": torch.empty(64, 64)}
        write_member(center, out, NoiseSpec(1, 0, 1.0, ("w",), 1), member)
        seen.append(out["w"])
    assert abs(torch.corrcoef(torch.stack([w.reshape(-1) for w in seen]))[0, 1].item()) < 0.1
    assert abs(torch.corrcoef(torch.stack([seen[0].reshape(-1), seen[0].T.reshape(-1)]))[0, 1].item()) < 0.2


@pytest.mark.parametrize("decay", [0.0, 0.25])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_update_is_the_exact_sum(rank, decay):
    center, anchor = make_center(), {name: w + 0.5 for name, w in make_center().items()}
    before = {name: w.clone() for name, w in center.items()}
    coefficients = [0.7, -1.3, 0.0, 1 / 3, 2.5]
    stats = apply_update(
        center, spec(rank), range(5), coefficients, 0.01, decay=decay, anchor=anchor if decay else None
    )
    fixed = fixed_point(range(5), coefficients, 29 + (rank - 1).bit_length())
    assert fixed.members == (0, 1, 3, 4)
    for name in ("m", "wide"):
        total = sum(
            c * integers(name, m, rank) for m, c in zip(fixed.members, fixed.coefficients, strict=True)
        )
        assert max(abs(int(t)) for t in total.reshape(-1)) < 1 << 62
        factor = math.ldexp(0.01 / math.sqrt(rank), -24 - fixed.exponent)
        delta = np.array([float(int(t)) for t in total.reshape(-1)]).reshape(total.shape) * factor
        old = before[name].numpy()
        if decay:
            delta = delta - decay * (old.astype(np.float64) - anchor[name].numpy().astype(np.float64))
        assert torch.equal(center[name], torch.from_numpy(old + delta.astype(np.float32)))
        loose = sum(c * integers(name, m, rank).astype(np.float64) for m, c in enumerate(coefficients))
        loose = loose * (0.01 / math.sqrt(rank) / 2**24)
        if not decay:
            np.testing.assert_allclose(center[name].numpy() - old, loose, rtol=0, atol=1e-6)
    moved = torch.cat([(center[n].double() - before[n].double()).reshape(-1) for n in center])
    assert stats.norm == pytest.approx(moved.norm().item(), rel=1e-12)
    assert stats.max_abs == moved.abs().max().item()
    assert stats.changed == int((moved != 0).sum())


def test_the_update_moves_along_the_members_own_perturbation():
    """theta + s * E by the update equals the member written with sigma = s, but for one rounding."""
    center = make_center()
    member = {name: torch.empty_like(w) for name, w in center.items()}
    write_member(center, member, spec(2, sigma=0.25), 6)
    apply_update(center, spec(2), [6], [1.0], 0.25)
    for name, weights in center.items():
        torch.testing.assert_close(weights, member[name], rtol=0, atol=3e-7)


def test_order_threads_chunks_and_splitting_change_no_bit(monkeypatch):
    members, coefficients = list(range(9)), [math.sin(i + 1.0) for i in range(9)]

    def once(order, threads, chunk):
        monkeypatch.setattr("broaden.perturb.lowrank.CHUNK", chunk)
        center = make_center()
        out = {name: torch.empty_like(w, dtype=torch.bfloat16) for name, w in center.items()}
        write_member(center, out, spec(3), 2, threads=threads)
        apply_update(
            center,
            spec(3),
            [members[i] for i in order],
            [coefficients[i] for i in order],
            0.1,
            threads=threads,
        )
        return center_hash(center), center_hash(out)

    whole = once(range(9), 1, 1 << 17)
    for order in (range(9), [8, 3, 0, 1, 2, 7, 6, 5, 4]):
        for threads, chunk in ((1, 100), (3, 100), (2, 17), (4, 1 << 17)):
            assert once(order, threads, chunk) == whole


def test_coefficients_have_the_bits_that_are_stated():
    assert [noise_bits(r) for r in (0, 1, 2, 3, 4, 5)] == [27, 29, 30, 31, 31, 32]
    assert fixed_point([0], [1.0], 29).coefficients == (1 << 29,)
    assert fixed_point(range(32), [1.0] * 32, 29).coefficients[0] == 1 << 27
    worst = int(abs(factor_table().astype(np.int64)).max()) ** 2
    for members, rank in ((32, 1), (1, 7), (1000, 4)):
        fixed = fixed_point(range(members), [1.0] * members, noise_bits(rank))
        assert members * rank * worst * max(fixed.coefficients) < 1 << 62
    with pytest.raises(UsageError, match="bits"):
        fixed_point(range(1 << 18), [1.0] * (1 << 18), noise_bits(1 << 10))


def test_a_zero_coefficient_leaves_every_bit():
    center = make_center()
    before = center_hash(center)
    assert apply_update(center, spec(1), [0, 1], [0.0, 0.0], 0.1).changed == 0
    assert center_hash(center) == before


def test_a_log_with_a_rank_replays():
    how = LowRank(2, Selection(exclude=("v",)))
    center, lines = make_center(), []
    for step in range(3):
        used = NoiseSpec(SEED, step, SIGMA, how.select(center), how.rank)
        apply_update(center, used, [0, 1], [1.0, -0.5], 0.01)
        lines.append(
            log_line(
                used, [0, 1], [1.0, -0.5], 0.01, selection=how, alpha=0.02, estimator="one_point",
                shaping="zscore", center_hash=center_hash(center),
            )
        )  # fmt: skip
    read = [json.loads(json.dumps(line)) for line in lines]
    assert read[0]["parameterisation"] == {"include": ["*"], "exclude": ["v"], "rank": 2}
    again = make_center()
    assert [s for s, _ in replay(again, read, None, SEED)] == [0, 1, 2]
    assert center_hash(again) == center_hash(center)
    assert torch.equal(again["v"], make_center()["v"])
    read[1]["parameterisation"]["rank"] = 1
    with pytest.raises(ExactnessError, match="step 1 "):
        list(replay(make_center(), read, None, SEED))


def test_parameterisations_are_read_back_or_refused():
    for how in (Selection(), Selection(("a*",), ("b",)), LowRank(3), LowRank(1, Selection(("a*",)))):
        assert parameterisation_from_json(json.loads(json.dumps(how.to_json()))) == how
    for bad in ({"include": ["*"], "exclude": [], "basis": 3}, {"rank": 1}, {"include": [], "rank": 1}):
        with pytest.raises(UsageError, match="keys include and exclude"):
            parameterisation_from_json(bad)
    for rank in ("1", 1.0, True, None):
        with pytest.raises(UsageError, match="whole number"):
            parameterisation_from_json({"include": ["*"], "exclude": [], "rank": rank})
    with pytest.raises(UsageError, match="at least 1"):
        parameterisation_from_json({"include": ["*"], "exclude": [], "rank": 0})


def test_ranks_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        LowRank(0)
    with pytest.raises(UsageError, match="0 \\(full\\) or more"):
        NoiseSpec(1, 0, 0.1, ("w",), -1)
    center = make_center()
    before = center_hash(center)
    out = {name: torch.zeros_like(w) for name, w in center.items()}
    for act in (
        lambda: write_member(center, out, spec(6), 0),
        lambda: apply_update(center, spec(6), [0], [1.0], 0.1),
    ):
        with pytest.raises(UsageError, match="rank 6 is above the smaller side of wide"):
            act()
    assert center_hash(center) == before
    with pytest.raises(UsageError, match="full rank"):
        InPlaceControl({"w": torch.zeros(4, 4, dtype=torch.bfloat16)}).perturb(
            NoiseSpec(1, 0, 0.1, ("w",), 1), 0
        )


def test_full_rank_keys_are_what_they_were():
    assert spec(1).key(2, "m") == NoiseSpec(SEED, STEP, SIGMA, ("m",)).key(2, "m")
    assert len({*spec(1).factor_keys(2, "m"), spec(1).key(2, "m")}) == 3
    assert noise.split_key(spec(1).factor_keys(0, "m")[0]) is not None
