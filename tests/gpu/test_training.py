"""Training on a CUDA device: ES sees neither the batch of members nor the center's place; GRPO's gradient."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.golden.test_es_golden import prompts as countdown_prompts
from tests.helpers.gpu import DEVICE
from tests.helpers.grpo_toy import SPEC, ToyHost, center, host

from broaden.es import EsSettings, train
from broaden.grpo.rollouts import collect
from broaden.grpo.settings import GrpoSettings
from broaden.grpo.trainer import Update
from broaden.models.checkpoint import load_model
from broaden.models.optimizer import AdamW, Weights
from broaden.models.sources import resolve
from broaden.perturb import center_hash
from broaden.population.host import HostSettings, build_host
from broaden.records import Sampling

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("bundled:countdown-nano")


def es_run(folder: Path, members: int, dtype: str, center_device: Any, slots: int | None = None) -> str:
    """Center hash after two antithetic updates."""
    settings = EsSettings(
        updates=2,
        members=4,
        prompts=8,
        sigma=0.05,
        alpha=0.05,
        sampling=Sampling(1.0, 40),
        estimator="antithetic",
    )
    weights = {n: t.to(center_device) for n, t in load_model(folder).weights.items()}
    origin = {n: t.clone() for n, t in weights.items()}
    asked = countdown_prompts("countdown")
    where = build_host(
        HostSettings(str(folder), "countdown", device=str(DEVICE), dtype=dtype, members=members, slots=slots,
                     max_context=80), asked,
    )  # fmt: skip
    rewards = [
        record.values["reward"] for record in train(weights, origin, len(asked), where, settings, run_seed=3)
    ]
    assert len(rewards) == 2
    return center_hash({n: t.cpu() for n, t in weights.items()})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_es_does_not_see_the_batch_of_members_the_slots_or_the_center_s_place(
    folder: Path, dtype: str
) -> None:
    one = es_run(folder, 1, dtype, DEVICE)
    assert one != center_hash(load_model(folder).weights)
    assert es_run(folder, 8, dtype, DEVICE) == one
    assert es_run(folder, 3, dtype, DEVICE, slots=16) == one
    assert es_run(folder, 4, dtype, "cpu") == one


class Spy(AdamW):
    """Keeps the gradients it is given and leaves the weights alone."""

    def step(self, weights: Weights, gradients: Any, lr: float, scale: float = 1.0) -> None:
        self.seen = {n: g.clone().cpu() for n, g in gradients.items()}


def spread_rule(text: str) -> float | None:
    """Some completions are worth more than others of their group."""
    return float(sum(int(word) for word in text.split()) % 3 == 0) if text else 0.0


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_grpo_has_the_cpu_s_gradient(kl: float) -> None:
    settings = GrpoSettings(
        updates=1,
        prompts=4,
        group=4,
        max_new_tokens=6,
        minibatch=None,
        kl=kl,
        learning_rate=0.02,
        micro_batch=5,
    )
    where: ToyHost = host(spread_rule)
    rollouts = collect(where, center(), range(4), settings.group, settings.sampling, run_seed=3, step=0)
    seen = []
    for device in ("cpu", DEVICE):
        weights = {n: t.to(device) for n, t in center().items()}
        reference = {n: t.to(device) for n, t in center(2).items()}
        spy = Spy(weights)
        Update(SPEC, weights, rollouts, dataclasses.replace(settings), 3, 0).run(
            spy, reference if kl else None
        )
        seen.append(spy.seen)
    assert sum(float(g.abs().sum()) for g in seen[0].values()) > 0.01
    for name, expected in seen[0].items():
        error = (seen[1][name] - expected).norm() / expected.norm().clamp_min(1e-8)
        assert float(error) < 1e-4, name
