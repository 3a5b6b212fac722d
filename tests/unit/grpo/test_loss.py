"""The token losses and the row weights: values by hand, masking, gradient forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from broaden.errors import ConfigError
from broaden.grpo.loss import LossSettings, kl_estimate, row_weights, token_losses

PLAIN = LossSettings(kl=0.0)


def losses(ratio: float, advantage: float, settings: LossSettings) -> tuple[float, float]:
    """Loss of one token and its derivative with respect to log p."""
    logp = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    out = token_losses(
        logp, torch.zeros(1, dtype=torch.float64), None, torch.tensor([advantage]), None, settings
    )
    (gradient,) = torch.autograd.grad(out.loss_N.sum(), logp)
    return float(out.loss_N.detach()), float(gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on-policy: the value is -A, the gradient -A
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # above 1 + 0.2 with A > 0: held, no gradient
        (1.5, -2.0, 3.0, 3.0),  # A < 0: not held above
        (0.5, -2.0, 1.6, 0.0),  # below 1 - 0.2 with A < 0: held
        (0.5, 2.0, -1.0, -1.0),
    ],
)
def test_clipping_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert losses(ratio, advantage, PLAIN) == pytest.approx((loss, gradient), rel=1e-12)


def test_asymmetric_and_dual_clip() -> None:
    settings = LossSettings(kl=0.0, clip_high=0.28, dual_clip=3.0)
    assert losses(1.25, 1.0, settings) == pytest.approx((-1.25, -1.25))
    assert losses(2.0, 1.0, settings) == pytest.approx((-1.28, 0.0))
    assert losses(2.0, -1.0, settings) == pytest.approx((2.0, 2.0))
    assert losses(5.0, -1.0, settings) == pytest.approx((3.0, 0.0))
    assert losses(5.0, 1.0, settings) == pytest.approx((-1.28, 0.0))


def test_clip_flags() -> None:
    logp = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0]).log()
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    out = token_losses(logp, torch.zeros(5), None, advantage, None, PLAIN)
    assert out.clipped_high_N.tolist() == [True, False, False, False, False]
    assert out.clipped_low_N.tolist() == [False, False, False, True, False]


def test_kl_estimates_by_hand() -> None:
    logp, ref = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    got = [float(kl_estimate(logp, ref, k)) for k in ("k1", "k2", "k3")]  # type: ignore[arg-type]
    assert got == pytest.approx([math.log(2), math.log(2) ** 2 / 2, 0.5 - 1 + math.log(2)], rel=1e-6)


@pytest.mark.parametrize(
    ("estimator", "form", "divergence"),
    [
        ("k1", "value", "zero"),
        ("k2", "value", "reverse"),
        ("k3", "value", "forward"),
        ("k1", "ratio", "reverse"),
        ("k3", "ratio", "reverse"),
    ],
)
def test_expected_gradient_of_each_form(estimator: str, form: str, divergence: str) -> None:
    """Exact expectation over a three-token vocabulary, on-policy, against autograd of the divergence itself."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([-0.5, 0.4, 0.1], dtype=torch.float64), 0)
    logp = torch.log_softmax(logits, 0)
    settings = LossSettings(kl=1.0, kl_estimator=estimator, kl_gradient=form)  # type: ignore[arg-type]
    out = token_losses(logp, logp.detach(), ref, torch.zeros(3, dtype=torch.float64), None, settings)
    (got,) = torch.autograd.grad((logp.detach().exp() * out.loss_N).sum(), logits)

    again = torch.log_softmax(logits, 0)
    target = {
        "zero": 0.0 * again.sum(),
        "reverse": (again.exp() * (again - ref)).sum(),
        "forward": (ref.exp() * (ref - again)).sum(),
    }[divergence]
    (want,) = torch.autograd.grad(target, logits)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_entropy_bonus_enters_with_its_gradient() -> None:
    entropy = torch.tensor([0.7], requires_grad=True)
    zero = torch.zeros(1)
    out = token_losses(zero, zero, None, zero, entropy, LossSettings(kl=0.0, entropy_bonus=0.5))
    assert float(out.loss_N.detach()) == pytest.approx(-0.35)
    assert float(torch.autograd.grad(out.loss_N.sum(), entropy)[0]) == -0.5


@pytest.mark.parametrize(
    ("aggregation", "want"),
    [
        ("sequence", [1 / 4, 0.0, 1 / 8]),
        ("token", [1 / 6, 0.0, 1 / 6]),
        ("constant", [1 / 20, 0.0, 1 / 20]),
    ],
)
def test_row_weights_leave_masked_rows_out_of_the_denominator(aggregation: str, want: list[float]) -> None:
    got = row_weights(np.array([2, 0, 4]), aggregation, max_new_tokens=10)  # type: ignore[arg-type]
    assert got == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("aggregation", ["sequence", "token", "constant"])
def test_all_rows_masked_gives_zero_weights_and_no_nan(aggregation: str) -> None:
    got = row_weights(np.zeros(3, int), aggregation, 10)  # type: ignore[arg-type]
    assert got.tolist() == [0.0] * 3


def test_gradient_form_is_named() -> None:
    assert "biased for KL(pi || ref)" in LossSettings().gradient_form
    assert LossSettings(kl=0.0).gradient_form == "no KL term"


@pytest.mark.parametrize(
    "change",
    [
        {"clip_low": 0.0},
        {"clip_high": -0.1},
        {"dual_clip": 1.1},
        {"kl": -1.0},
    ],
)
def test_refuses(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        LossSettings(**change)  # type: ignore[arg-type]
