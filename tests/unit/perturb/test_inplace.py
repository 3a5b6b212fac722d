"""The in-place control does the damage it is there to show."""

from __future__ import annotations

import math

import pytest
import torch

from broaden.errors import DivergedError, UsageError
from broaden.perturb import InPlaceControl, NoiseSpec, apply_update, center_hash, normal, write_member

SPEC = NoiseSpec(1, 0, 1e-3, ("w",))


def make_weights(count=200_000):
    return {"w": (torch.randn(count, generator=torch.Generator().manual_seed(0)) * 0.04).bfloat16()}


def eps(spec, member, count):
    return torch.from_numpy(normal(spec.key(member, "w"), 0, count)).bfloat16()


@pytest.mark.parametrize("sign", [1, -1])
def test_each_operation_is_the_bf16_torch_operation(sign):
    weights = make_weights(5001)
    expected = weights["w"].clone()
    control = InPlaceControl(weights)
    control.perturb(SPEC, 3, sign)
    expected.add_(eps(SPEC, 3, 5001) * (1e-3 * sign))
    assert torch.equal(weights["w"], expected)
    control.restore(SPEC, 3, sign)
    expected.sub_(eps(SPEC, 3, 5001) * (1e-3 * sign))
    assert torch.equal(weights["w"], expected)
    control.update(SPEC, [3, 4], [0.5, -2.0], 1e-3)
    expected.add_(eps(SPEC, 3, 5001) * 0.5e-3).add_(eps(SPEC, 4, 5001) * -2e-3)
    assert torch.equal(weights["w"], expected)


def test_subtracting_does_not_restore_and_gets_worse():
    weights = make_weights()
    start = weights["w"].clone()
    control, changed = InPlaceControl(weights, threads=2), []
    for member in range(20):
        with control.perturbed(SPEC, member):
            pass
        changed.append((weights["w"] != start).float().mean().item())
    assert 0.005 < changed[0] < 0.2
    assert changed[-1] > 3 * changed[0]


def test_the_update_in_bf16_additions_points_elsewhere():
    center = {"w": make_weights()["w"].float()}
    weights, exact = make_weights(), {"w": center["w"].clone()}
    members, coefficients = list(range(16)), [(-1.0) ** i for i in range(16)]
    apply_update(exact, SPEC, members, coefficients, 1e-5)
    InPlaceControl(weights).update(SPEC, members, coefficients, 1e-5)
    wanted, got = exact["w"] - center["w"], weights["w"].float() - center["w"]
    cosine = torch.nn.functional.cosine_similarity(wanted, got, dim=0).item()
    assert 0.1 < cosine < 0.9


def test_it_uses_the_members_noise():
    center = {"w": torch.zeros(1000)}
    exact, weights = {"w": torch.empty(1000, dtype=torch.bfloat16)}, {"w": torch.zeros(1000).bfloat16()}
    write_member(center, exact, SPEC, 5)
    InPlaceControl(weights).perturb(SPEC, 5)
    assert torch.allclose(exact["w"].float(), weights["w"].float(), rtol=2**-6, atol=0)


def test_errors_leave_the_weights_alone():
    with pytest.raises(UsageError, match="bfloat16"):
        InPlaceControl({"w": torch.zeros(3)})
    weights = make_weights(100)
    before, control = center_hash(weights), InPlaceControl(weights)
    with pytest.raises(DivergedError):
        control.update(SPEC, [0, 1], [1.0, math.nan], 0.1)
    with pytest.raises(UsageError, match="coefficients"):
        control.update(SPEC, [0, 1], [1.0], 0.1)
    with pytest.raises(UsageError, match="lacks"):
        control.perturb(NoiseSpec(1, 0, 0.1, ("v",)), 0)
    with pytest.raises(UsageError, match="sign"):
        control.perturb(SPEC, 0, 3)
    assert center_hash(weights) == before
    assert control.precision == "bf16_inplace"
