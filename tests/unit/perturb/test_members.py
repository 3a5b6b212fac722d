"""Writing members: one float32 addition, one cast, and the errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from broaden.errors import UsageError
from broaden.perturb import NoiseSpec, center_hash, normal_table, perturbed, write_member
from broaden.perturb.kernels import bfloat16_bits, float16_bits
from broaden.perturb.noise import indices

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def make_center(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (37, 61), "b.weight": (1,), "c.bias": (2053,), "norm": (9,)}
    return {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}


def like(center, dtype):
    return {name: torch.full_like(w, 7.0, dtype=dtype) for name, w in center.items()}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_member_is_the_center_plus_the_scaled_quantile(dtype, sign):
    center, spec = make_center(), NoiseSpec(3, 2, 0.013, ("a.weight", "c.bias"))
    out = like(center, dtype)
    write_member(center, out, spec, 4, sign)
    for name, theta in center.items():
        exact = theta.numpy().copy()
        if name in spec.names:
            index = indices(spec.key(4, name), 0, theta.numel()).reshape(theta.shape)
            step = (0.013 * sign * normal_table().astype(np.float64)[index]).astype(np.float32)
            exact = exact + step
        assert torch.equal(out[name], torch.from_numpy(exact).to(dtype)), name


def test_a_fused_multiply_add_would_be_seen():
    center, spec = make_center(), NoiseSpec(3, 2, 0.013, ("a.weight",))
    out = like(center, torch.float32)
    write_member(center, out, spec, 0)
    theta = center["a.weight"].numpy().astype(np.float64).reshape(-1)
    eps = normal_table().astype(np.float64)[indices(spec.key(0, "a.weight"), 0, theta.size)]
    fused = (theta + float(np.float32(0.013)) * eps).astype(np.float32)
    share = float(np.mean(out["a.weight"].numpy().reshape(-1) != fused))
    assert 0.005 < share < 0.3


def test_sigma_zero_leaves_even_negative_zero():
    center = {"w": torch.tensor([-0.0, 1.0, 0.0])}
    out = like(center, torch.float32)
    write_member(center, out, NoiseSpec(1, 0, 0.0, ("w",)), 0, -1)
    assert center_hash(out) == center_hash(center)


def test_slices_of_a_fused_buffer_can_be_written():
    center = {"q": torch.randn(4, 6), "k": torch.randn(2, 6)}
    fused = torch.zeros(2, 6, 6, dtype=torch.bfloat16)  # two members, q and k stacked
    spec = NoiseSpec(1, 0, 0.1, ("q", "k"))
    for member in range(2):
        write_member(center, {"q": fused[member, :4], "k": fused[member, 4:]}, spec, member)
    separate = like(center, torch.bfloat16)
    write_member(center, separate, spec, 1)
    assert torch.equal(fused[1], torch.cat([separate["q"], separate["k"]]))
    assert not torch.equal(fused[0], fused[1])


def test_parameters_that_require_grad_are_accepted():
    center = {"w": torch.nn.Parameter(torch.randn(10))}
    out = {"w": torch.nn.Parameter(torch.zeros(10))}
    write_member(center, out, NoiseSpec(1, 0, 0.1, ("w",)), 0)
    assert not torch.equal(out["w"], center["w"])


def test_empty_and_scalar_tensors():
    center = {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.0)}
    out = like(center, torch.float32)
    write_member(center, out, NoiseSpec(1, 0, 0.1, ("empty", "scalar")), 0)
    assert out["scalar"].item() != 2.0


def test_norms_of_one_in_bf16_hardly_move():
    """Pitfall 11: bf16 near 1 has spacing 7.8e-3 above and 3.9e-3 below, so sigma 1.5e-3 moves few of them."""
    center = {"norm": torch.ones(20_000)}
    out = like(center, torch.bfloat16)
    write_member(center, out, NoiseSpec(1, 0, 1.5e-3, ("norm",)), 0)
    assert 0.05 < (out["norm"] != 1).float().mean().item() < 0.15


BAD = {
    "missing name": (lambda c, o: o.pop("norm"), "working copy lacks 1 tensor"),
    "extra name": (lambda c, o: o.update(extra=torch.zeros(1)), "center lacks 1 tensor.*'extra'"),
    "shape": (lambda c, o: o.update(norm=torch.zeros(3, 3)), r"shape \(9,\), the working copy has \(3, 3\)"),
    "layout": (lambda c, o: o.update({"a.weight": torch.zeros(61, 37).T}), "not contiguous"),
    "integer": (lambda c, o: o.update(norm=torch.zeros(9, dtype=torch.int32)), "floating"),
    "alias": (lambda c, o: o.update(norm=c["norm"]), "shares memory"),
    "center dtype": (lambda c, o: c.update(norm=c["norm"].bfloat16()), "expected torch.float32"),
    "center layout": (lambda c, o: c.update({"a.weight": torch.zeros(61, 37).T}), "not contiguous"),
}


@pytest.mark.parametrize(("damage", "message"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_before_anything_is_written(damage, message):
    center, spec = make_center(), NoiseSpec(1, 0, 0.1, ("a.weight",))
    out = like(center, torch.float32)
    damage(center, out)
    before = center_hash(out)
    with pytest.raises(UsageError, match=message):
        write_member(center, out, spec, 0)
    with pytest.raises(UsageError, match=message), perturbed(out, center, spec, 0):
        pass
    assert center_hash(out) == before


def test_bad_names_signs_members_and_threads_are_errors():
    center = make_center()
    out = like(center, torch.float32)
    good = NoiseSpec(1, 0, 0.1, ("norm",))
    with pytest.raises(UsageError, match=r"lacks 1 tensor.*'nope'"):
        write_member(center, out, NoiseSpec(1, 0, 0.1, ("norm", "nope")), 0)
    for member, sign, threads in ((0, 2, 1), (-1, 1, 1), (0, 1, 0)):
        with pytest.raises(UsageError):
            write_member(center, out, good, member, sign, threads=threads)


def test_rounding_to_bf16_and_fp16_is_torch_s_for_every_kind_of_float32():
    edge = np.array(
        [0x00000000, 0x80000000, 0x00000001, 0x33000000, 0x33000001, 0x32FFFFFF, 0x33800000, 0x33C00000, 0x387FFFFF,
         0x38800000, 0x387FE000, 0x38000001, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000, 0x7F7FFFFF,
         0x7F800000, 0xFF800000, 0x3F808000, 0x3F818000, 0x3F80FFFF, 0x3F801000, 0x3F803000],
        dtype=np.uint32,
    )  # fmt: skip
    bits = np.concatenate([edge, np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint32)])
    values = torch.from_numpy(bits.view(np.float32).copy())
    keep = ~values.isnan().numpy()
    for function, dtype in ((bfloat16_bits, torch.bfloat16), (float16_bits, torch.float16)):
        ours = np.array([function(b) for b in bits[keep]], dtype=np.uint16)
        theirs = values[torch.from_numpy(keep)].to(dtype).view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(ours, theirs)
    for nan in (0x7F800001, 0x7FFFFFFF, 0xFFC00000):
        for function, dtype in ((bfloat16_bits, torch.bfloat16), (float16_bits, torch.float16)):
            half = np.array([function(np.uint32(nan))], dtype=np.uint16)
            assert torch.from_numpy(half.view(np.int16)).view(dtype).isnan().all()
