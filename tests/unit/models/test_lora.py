"""LoRA's factors: gradients against autograd through W_0 + s B A, merging from W_0 afresh, states, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.helpers.grpo_toy import SPEC, center

from broaden.config import GrpoStage
from broaden.errors import ConfigError, ResumeError
from broaden.models.decoder import forward
from broaden.models.lora import Lora, LoraSettings
from broaden.models.tensor_files import read_tensors

TARGETS = GrpoStage().lora_targets
Q = "model.layers.0.self_attn.q_proj"
PROJECTIONS = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]


def lora(targets: tuple[str, ...] = TARGETS, *, rank: int = 3, alpha: float = 6.0, key: int = 5) -> Lora:
    return Lora(center(), LoraSettings(rank, alpha, targets), key, "base")


def filled(found: Lora) -> Lora:
    """With a B that is not zero."""
    for i, name in enumerate(found.names):
        b = found.factors(name)[1]
        b.copy_(0.1 * torch.sin(torch.arange(b.numel(), dtype=torch.float32) + i).view_as(b))
    return found


def test_the_default_targets_are_the_seven_projections() -> None:
    assert sorted(lora().names) == sorted(f"model.layers.0.{p}.weight" for p in PROJECTIONS)


def test_a_is_bounded_and_keyed_by_name_and_b_is_zero() -> None:
    one, same, other = lora(), lora((f"{Q}.weight",)), lora(key=6)
    a, b = one.factors(f"{Q}.weight")
    assert a.shape == (3, SPEC.hidden)
    assert b.shape == (SPEC.heads * SPEC.head_dim, 3)
    assert not b.any()
    assert 0.9 < float(a.abs().max()) * SPEC.hidden**0.5 <= 1.0
    assert abs(float(a.mean())) * SPEC.hidden**0.5 < 0.3
    assert torch.equal(a, same.factors(f"{Q}.weight")[0])  # whatever else is adapted
    assert not torch.equal(a, other.factors(f"{Q}.weight")[0])


def test_merging_b_zero_changes_no_bit() -> None:
    weights = center()
    lora().merge(weights)
    assert all(torch.equal(weights[n], w) for n, w in center().items())


def test_merge_is_w0_plus_the_scaled_product_and_never_accumulates() -> None:
    found, weights = filled(lora((f"{Q}.weight",))), center()
    found.merge(weights)
    once = weights[f"{Q}.weight"].clone()
    found.merge(weights)
    assert torch.equal(weights[f"{Q}.weight"], once)
    a, b = (t.double() for t in found.factors(f"{Q}.weight"))
    expected = center()[f"{Q}.weight"].double() + 6.0 / 3 * b @ a
    torch.testing.assert_close(once.double(), expected, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(once, center()[f"{Q}.weight"], atol=1e-3)
    assert all(torch.equal(weights[n], w) for n, w in center().items() if n != f"{Q}.weight")


def test_gradients_are_those_of_autograd_through_the_factors() -> None:
    found, base = filled(lora()), center()
    ids = torch.tensor([[1, 4, 7, 2, 9], [3, 3, 8, 10, 5]])

    leaves = {n: t.clone().requires_grad_() for n, t in found.tensors.items()}
    weights = dict(base)
    for name in found.names:
        module = name.removesuffix(".weight")
        product = leaves[f"{module}.lora_B.weight"] @ leaves[f"{module}.lora_A.weight"]
        weights[name] = base[name] + 6.0 / 3 * product
    forward(SPEC, weights, ids).sin().sum().backward()

    merged = center()
    found.merge(merged)
    own = {n: w.requires_grad_(n in found.names) for n, w in merged.items()}
    forward(SPEC, own, ids).sin().sum().backward()
    got = found.gradients({n: w.grad for n, w in own.items() if w.grad is not None})
    assert got.keys() == leaves.keys()
    for n, leaf in leaves.items():
        assert leaf.grad is not None
        # two orders of the same fp32 products
        torch.testing.assert_close(got[n], leaf.grad, rtol=1e-4, atol=2e-6 * float(leaf.grad.abs().max()))


def test_the_state_restores_the_factors_and_leaves_the_rest() -> None:
    one, two = filled(lora()), lora(key=9)
    rest = two.load({**{n: t.clone() for n, t in one.state().items()}, "adamw.steps": torch.tensor(3)})
    assert list(rest) == ["adamw.steps"]
    assert all(torch.equal(two.tensors[n], t) for n, t in one.tensors.items())
    with pytest.raises(ResumeError, match="not this stage's"):
        two.load(lora(rank=2).state())
    with pytest.raises(ResumeError, match="not this stage's"):
        two.load({"adamw.steps": torch.tensor(3)})


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (("*.q_proj.weight", "*.w1.weight"), r"'\*\.w1\.weight' matches no tensor"),
        (("*_proj",), "matches no tensor"),
        (("model.norm.weight",), "not a projection"),
        (("model.embed_tokens.*",), "not a projection"),
        ((), "empty"),
    ],
)
def test_patterns_that_name_no_projection_are_refused(targets: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lora(targets)


@pytest.mark.parametrize(("rank", "alpha"), [(0, 16.0), (-1, 16.0), (4, 0.0), (4, float("inf"))])
def test_impossible_settings_are_refused(rank: int, alpha: float) -> None:
    with pytest.raises(ConfigError, match="rank of at least 1"):
        LoraSettings(rank, alpha, TARGETS)


def test_sizes_by_hand() -> None:
    shapes = {"a_proj.weight": (6, 4), "b_proj.weight": (2, 8), "norm.weight": (4,)}
    assert LoraSettings(3, 16.0, ("*_proj.weight",)).sizes(shapes) == (3 * (10 + 10), 24 + 16)


def test_the_adapters_files(tmp_path: Path) -> None:
    found = filled(lora((f"{Q}.weight",)))
    found.save(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == (
        "LORA",
        3,
        6.0,
        "none",
    )
    assert (config["target_modules"], config["base_model_name_or_path"]) == ([Q], "base")
    tensors = read_tensors(tmp_path / "adapter", stem="adapter_model")
    assert set(tensors) == {f"base_model.model.{Q}.lora_{x}.weight" for x in "AB"}
    assert torch.equal(tensors[f"base_model.model.{Q}.lora_B.weight"], found.factors(f"{Q}.weight")[1])
