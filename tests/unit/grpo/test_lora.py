"""GRPO over LoRA's factors: what moves, from where, and that it learns and resumes exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.helpers.grpo_toy import SPEC, ToyHost, center, host

from broaden.config import GrpoStage
from broaden.grpo.settings import GrpoSettings
from broaden.grpo.trainer import optimizer_for, train
from broaden.models.lora import Lora, LoraSettings
from broaden.models.optimizer import AdamW, Weights

BASE = GrpoSettings(
    updates=4, prompts=4, group=4, max_new_tokens=3, minibatch=2, kl=0.01, learning_rate=0.02, micro_batch=5
)


def factors(targets: tuple[str, ...] = GrpoStage().lora_targets) -> Lora:
    return Lora(center(), LoraSettings(4, 8.0, targets), 3)


def run(
    weights: Weights,
    lora: Lora,
    settings: GrpoSettings = BASE,
    *,
    where: ToyHost | None = None,
    start: int = 0,
    stop: int | None = None,
    optimizer: AdamW | None = None,
) -> list[dict[str, float | int | None]]:
    records = train(
        SPEC, weights, where or host(), settings, run_seed=3, reference=center(), start_step=start, lora=lora,
        optimizer=optimizer or optimizer_for(lora.tensors, settings),
    )  # fmt: skip
    out = []
    for record in records:
        out.append(record.values)
        if len(out) == stop:
            break
    records.close()  # type: ignore[attr-defined]
    return out


def test_it_learns() -> None:
    settings = dataclasses.replace(BASE, updates=15, prompts=8, group=8, minibatch=None, kl=0.0)
    rewards = [float(v["reward"] or 0) for v in run(center(), factors(), settings)]
    assert np.mean(rewards[-3:]) - rewards[0] > 0.3


def test_only_the_targets_move_and_they_are_w0_plus_the_product() -> None:
    weights, lora = center(), factors(("*.self_attn.v_proj.weight", "*.mlp.up_proj.weight"))
    run(weights, lora)
    start = center()
    moved = {n for n, w in start.items() if not torch.equal(weights[n], w)}
    assert (
        moved
        == set(lora.names)
        == {"model.layers.0.self_attn.v_proj.weight", "model.layers.0.mlp.up_proj.weight"}
    )
    for name in lora.names:
        a, b = (t.double() for t in lora.factors(name))
        torch.testing.assert_close(
            weights[name].double(), start[name].double() + 2.0 * b @ a, rtol=1e-6, atol=1e-6
        )
        assert torch.linalg.matrix_rank((weights[name] - start[name]).double(), atol=1e-5) <= 4


def test_the_first_step_moves_b_alone() -> None:
    """At B = 0 the gradient of A is s B^T G = 0, and AdamW leaves what has none."""
    lora, fresh = factors(), factors()
    run(center(), lora, dataclasses.replace(BASE, minibatch=None, weight_decay=0.0), stop=1)
    for name in lora.names:
        assert torch.equal(lora.factors(name)[0], fresh.factors(name)[0])
        assert lora.factors(name)[1].any()


def test_rollouts_and_gradients_belong_to_the_merged_weights() -> None:
    values = run(center(), factors())
    assert all(float(v["sampler_gap_max"] or 0) < 1e-5 for v in values)
    assert float(values[-1]["kl"] or 0) > 1e-4  # the reference has stayed where it was


def test_equal_rewards_touch_nothing() -> None:
    weights, lora = center(), factors()
    run(weights, lora, dataclasses.replace(BASE, kl=0.0), where=host(lambda text: 1.0))
    assert all(torch.equal(weights[n], w) for n, w in center().items())
    assert all(torch.equal(lora.tensors[n], t) for n, t in factors().tensors.items())


@pytest.mark.parametrize("cut", [1, 3])
def test_interrupted_and_resumed_is_bit_equal(cut: int) -> None:
    straight, through = center(), factors()
    run(straight, through)
    weights, lora = center(), factors()
    optimizer = optimizer_for(lora.tensors, BASE)
    run(weights, lora, stop=cut, optimizer=optimizer)
    saved = {n: t.clone() for n, t in (optimizer.state() | lora.state()).items()}
    again, resumed = factors(), {n: w.clone() for n, w in weights.items()}
    newer = optimizer_for(again.tensors, BASE)
    newer.load(again.load(saved))
    run(resumed, again, start=cut, optimizer=newer)
    assert all(torch.equal(straight[n], resumed[n]) for n in straight)
    assert all(torch.equal(through.tensors[n], again.tensors[n]) for n in again.tensors)


@pytest.mark.parametrize("option", ["checkpoint_layers", "bfloat16"])
def test_it_goes_with_recomputed_layers_and_bfloat16(option: str) -> None:
    changes = {"checkpoint_layers": True} if option == "checkpoint_layers" else {"compute": "bfloat16"}
    plain, changed = center(), center()
    run(plain, factors(), stop=1)
    run(changed, factors(), dataclasses.replace(BASE, **changes), stop=1)  # type: ignore[arg-type]
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(changed[name], center()[name])
    if option == "checkpoint_layers":
        torch.testing.assert_close(changed[name], plain[name], rtol=0, atol=1e-5)
