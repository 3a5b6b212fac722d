"""AdamW against torch.optim.AdamW and against itself after a reload."""

from __future__ import annotations

import math

import pytest
import torch

from broaden.errors import ConfigError, ResumeError
from broaden.models.optimizer import AdamW, AdamWSettings, clip_factor, global_norm


def make(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"a.weight": torch.randn(5, 3, generator=g), "norm.weight": torch.randn(4, generator=g)}


def test_equals_torch_adamw() -> None:
    mine, theirs = make(0), make(0)
    params = {n: torch.nn.Parameter(w) for n, w in theirs.items()}
    reference = torch.optim.AdamW(
        [
            {"params": [params["a.weight"]], "weight_decay": 0.1},
            {"params": [params["norm.weight"]], "weight_decay": 0.0},
        ],
        lr=0.02,
        betas=(0.8, 0.95),
        eps=1e-7,
    )
    adamw = AdamW(mine, AdamWSettings(0.8, 0.95, 1e-7, 0.1))
    for step in range(1, 6):
        grads = make(step)
        adamw.step(mine, grads, 0.02, scale=0.5)
        for n, p in params.items():
            p.grad = 0.5 * grads[n]
        reference.step()
    for n in mine:
        torch.testing.assert_close(mine[n], params[n].data, rtol=1e-5, atol=1e-7)


def test_reload_continues_bit_for_bit() -> None:
    straight, resumed = make(0), make(0)
    first, before = AdamW(straight), AdamW(resumed)
    for step in range(1, 4):
        first.step(straight, make(step), 0.01)
        before.step(resumed, make(step), 0.01)
    saved = {n: t.clone() for n, t in before.state().items()}
    after = AdamW(resumed)
    after.load(saved)
    for step in range(4, 7):
        first.step(straight, make(step), 0.01)
        after.step(resumed, make(step), 0.01)
    assert all(torch.equal(straight[n], resumed[n]) for n in straight)
    assert all(torch.equal(a, b) for a, b in zip(first.state().values(), after.state().values(), strict=True))


def test_refuses_other_weights_and_half_precision() -> None:
    adamw = AdamW(make(0))
    with pytest.raises(ResumeError, match="other weights"):
        adamw.load({"adamw.steps": torch.tensor(1)})
    with pytest.raises(ConfigError, match="float32"):
        AdamW({"w": torch.zeros(2, dtype=torch.bfloat16)})


def test_norm_and_clip_by_hand() -> None:
    assert global_norm({"x": torch.tensor([3.0, 0.0]), "y": torch.tensor([[4.0]])}) == 5.0
    assert clip_factor(5.0, 1.0) == pytest.approx(0.2, rel=1e-6)
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(math.inf, 0.0) == 1.0


@pytest.mark.parametrize("threads", [1, 2])
def test_norm_of_a_large_tensor_for_any_number_of_threads(threads: int) -> None:
    x = torch.randn(3 * 65536 + 7, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = global_norm({"x": x})
    finally:
        torch.set_num_threads(before)
    assert found == pytest.approx(float(x.double().norm()), rel=1e-12)
    assert found == global_norm({"x": x})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_norm_shows_a_gradient_that_is_not_finite(bad: float) -> None:
    x = torch.ones(200_000)
    x[123_456] = bad
    assert not math.isfinite(global_norm({"x": x}))


def test_compiled_step_equals_the_tensor_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, plain = make(0), make(0)
    first, second = (AdamW(w, AdamWSettings(weight_decay=0.1)) for w in (mine, plain))
    for step in range(1, 6):
        first.step(mine, make(step), 0.02, scale=0.5)
    monkeypatch.setattr("broaden.models.optimizer._compiled", lambda *_: False)
    for step in range(1, 6):
        second.step(plain, make(step), 0.02, scale=0.5)
    for n in mine:
        torch.testing.assert_close(mine[n], plain[n], rtol=1e-6, atol=1e-7)
