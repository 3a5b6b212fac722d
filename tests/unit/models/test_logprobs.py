"""Chunked log-probabilities, entropy and their gradients against plain autograd."""

from __future__ import annotations

import pytest
import torch

from broaden.models import logprobs
from broaden.models.logprobs import token_logprobs


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    hidden = torch.randn(11, 6, generator=g, dtype=dtype).requires_grad_(True)
    head = torch.randn(9, 6, generator=g, dtype=dtype).requires_grad_(True)
    return hidden, head, torch.randint(0, 9, (11,), generator=g)


@pytest.mark.parametrize("chunk", [1, 4, 11, None])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients(chunk: int | None, temperature: float) -> None:
    hidden, head, targets = inputs(torch.float32)
    logp, entropy = token_logprobs(hidden, head, targets, temperature=temperature, chunk_rows=chunk)
    weights = torch.linspace(-1, 1, 11)
    got = torch.autograd.grad((weights * logp + (0.3 + weights) * entropy).sum(), [hidden, head])

    dist = torch.distributions.Categorical(logits=hidden @ head.t() / temperature)
    torch.testing.assert_close(logp, dist.log_prob(targets), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy, dist.entropy(), rtol=1e-5, atol=1e-6)
    total = (weights * dist.log_prob(targets) + (0.3 + weights) * dist.entropy()).sum()
    for a, b in zip(got, torch.autograd.grad(total, [hidden, head]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_bfloat16_logits_are_reduced_in_float32() -> None:
    hidden, head, targets = inputs(torch.bfloat16)
    logp, _ = token_logprobs(hidden, head, targets)
    assert logp.dtype == torch.float32
    grads = torch.autograd.grad(logp.sum(), [hidden, head])
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.bfloat16]


def test_logits_never_exist_beyond_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    inner = logprobs._log_softmax

    def spy(hidden: torch.Tensor, head: torch.Tensor, temperature: float) -> torch.Tensor:
        seen.append(len(hidden))
        return inner(hidden, head, temperature)

    monkeypatch.setattr(logprobs, "_log_softmax", spy)
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 4 * 9)
    hidden, head, targets = inputs(torch.float32)
    logp, _ = token_logprobs(hidden, head, targets)
    torch.autograd.grad(logp.sum(), [hidden, head])
    assert seen == [4, 4, 3] * 2
