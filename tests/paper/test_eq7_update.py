"""Paper Eq. 6-7: theta+ = theta + (alpha / N) sum_i z_i eps_i, and F_sigma's members theta + sigma eps_i.

The update is checked against a float64 computation that takes the noise out of the members themselves: it
shares with the code under test nothing but `write_member`.
"""

from __future__ import annotations

import numpy as np
import torch

from broaden.perturb import NoiseSpec, apply_update, write_member

N, SIGMA, ALPHA = 32, 1.5e-3, 2.5e-4
SHAPES = {"layers.0.weight": (96, 64), "layers.1.weight": (96, 64), "norm.weight": (64,)}


def member_noise(spec, member, sign=1):
    """eps in float64, read off a member of a zero center: (0 + sigma eps) / sigma."""
    zero = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    out = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    write_member(zero, out, spec, member, sign)
    return {name: w.numpy().astype(np.float64) / spec.sigma for name, w in out.items()}


def make_center(seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(rng.normal(0, 0.05, shape).astype(np.float32))
        for name, shape in SHAPES.items()
    }


def test_eq6_members_are_centred_on_theta_with_standard_deviation_sigma():
    center, spec = make_center(), NoiseSpec(11, 0, SIGMA, tuple(SHAPES))
    out = {name: torch.empty_like(w) for name, w in center.items()}
    difference = []
    for member in range(N):
        write_member(center, out, spec, member)
        difference.append(np.concatenate([(out[n] - center[n]).double().numpy().reshape(-1) for n in SHAPES]))
    x = np.concatenate(difference) / SIGMA
    assert abs(x.mean()) < 5 / np.sqrt(x.size)
    assert abs(x.var() - 1) < 5 * np.sqrt(2 / x.size)


def test_eq6_mirrored_members_are_mirror_images():
    spec = NoiseSpec(11, 0, SIGMA, tuple(SHAPES))
    plus, minus = member_noise(spec, 3, 1), member_noise(spec, 3, -1)
    for name in SHAPES:
        assert np.array_equal(plus[name], -minus[name])


def test_eq7_update_is_alpha_over_n_times_the_weighted_noise():
    rng = np.random.default_rng(5)
    rewards = rng.random(N)
    z = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    center, spec = make_center(), NoiseSpec(11, 7, SIGMA, tuple(SHAPES))
    expected = {name: w.numpy().astype(np.float64) for name, w in center.items()}
    for member in range(N):
        eps = member_noise(spec, member)
        for name in SHAPES:
            expected[name] = expected[name] + ALPHA / N * z[member] * eps[name]
    stats = apply_update(center, spec, range(N), z.tolist(), ALPHA / N)
    for name in SHAPES:
        got = center[name].numpy().astype(np.float64)
        ulp = np.spacing(np.abs(center[name].numpy())).astype(np.float64)
        # half an ulp of theta from the one addition, and the step's own rounding (2^-24 of |step| < 1e-3)
        assert np.all(np.abs(got - expected[name]) <= 0.5 * ulp + 1e-10)
    moved = ALPHA * np.sqrt(sum(int(np.prod(s)) for s in SHAPES.values()) / N)
    assert (
        abs(stats.norm / moved - 1) < 0.05
    )  # ||(alpha / N) sum z eps|| = alpha sqrt(P / N) for z of unit variance


def test_eq7_antithetic_pairs_enter_by_their_difference():
    left, right = make_center(), make_center()
    spec = NoiseSpec(11, 7, SIGMA, tuple(SHAPES))
    plus, minus = [0.75, 0.25, 0.5], [0.25, 0.5, 0.5]
    apply_update(left, spec, [0, 1, 2], [p - m for p, m in zip(plus, minus, strict=True)], 0.5 * ALPHA)
    expected = {name: w.numpy().astype(np.float64) for name, w in right.items()}
    for member in range(3):
        for sign, reward in ((1, plus[member]), (-1, minus[member])):
            eps = member_noise(spec, member, sign)
            for name in SHAPES:
                expected[name] = expected[name] + 0.5 * ALPHA * reward * eps[name]
    for name in SHAPES:
        assert np.allclose(left[name].numpy(), expected[name], rtol=6e-8, atol=1e-10)
