"""Chunked log-probabilities, entropy and their gradients against plain autograd."""

from __future__ import annotations

import pytest
import torch

from broaden.kernels import softmax_rows
from broaden.kernels.softmax_rows import Stats
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
    logp, entropy, plain = token_logprobs(hidden, head, targets, temperature=temperature, chunk_rows=chunk)
    weights = torch.linspace(-1, 1, 11)
    got = torch.autograd.grad((weights * logp + (0.3 + weights) * entropy).sum(), [hidden, head])

    dist = torch.distributions.Categorical(logits=hidden @ head.t() / temperature)
    torch.testing.assert_close(logp, dist.log_prob(targets), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy, dist.entropy(), rtol=1e-5, atol=1e-6)
    plain_dist = torch.distributions.Categorical(logits=hidden @ head.t())
    torch.testing.assert_close(plain, plain_dist.log_prob(targets), rtol=1e-5, atol=1e-6)
    assert not plain.requires_grad
    total = (weights * dist.log_prob(targets) + (0.3 + weights) * dist.entropy()).sum()
    for a, b in zip(got, torch.autograd.grad(total, [hidden, head]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_bfloat16_logits_are_reduced_in_float32() -> None:
    hidden, head, targets = inputs(torch.bfloat16)
    logp, _, _ = token_logprobs(hidden, head, targets)
    assert logp.dtype == torch.float32
    grads = torch.autograd.grad(logp.sum(), [hidden, head])
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize(("kept_bytes", "made"), [(20 * 9 * 4, [16, 16, 16] * 2), (48 * 9 * 4, [48])])
def test_logits_never_exist_beyond_a_chunk(
    monkeypatch: pytest.MonkeyPatch, kept_bytes: int, made: list[int]
) -> None:
    """In chunks (of a multiple of 16 rows) they are made twice, in one piece once: the backward pass takes them."""
    seen: list[int] = []
    product = torch.Tensor.__matmul__

    def spy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if b.shape[1] == 9:
            seen.append(len(a))
        return product(a, b)

    monkeypatch.setattr(logprobs, "CHUNK_BYTES", kept_bytes)
    hidden, head, _ = inputs(torch.float32)
    many = hidden.detach().repeat(4, 1)[:41].requires_grad_()
    monkeypatch.setattr(torch.Tensor, "__matmul__", spy)
    logp, _, _ = token_logprobs(many, head, torch.zeros(41, dtype=torch.int64))
    torch.autograd.grad(logp.sum(), [many, head])
    assert seen == made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_rows_equal_tensor_operations(dtype: torch.dtype, threads: int) -> None:
    g = torch.Generator().manual_seed(5)
    logits = (8 * torch.randn(67, 131, generator=g)).to(dtype)
    targets = torch.randint(0, 131, (67,), generator=g)
    weight, bonus = torch.randn(67, generator=g), torch.randn(67, generator=g) * (torch.arange(67) % 2)
    ours, theirs = Stats(67, logits.device), Stats(67, logits.device)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        softmax_rows.stats(logits, targets, 0.7, ours)
        softmax_rows._stats_torch(logits, targets, 0.7, theirs)
        for name in vars(ours):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-5)
        a = softmax_rows.gradient_(logits.clone(), targets, 0.7, ours, weight, bonus)
    finally:
        torch.set_num_threads(before)
    b = softmax_rows._gradient_torch(logits.clone(), targets, 0.7, theirs, weight, bonus)
    torch.testing.assert_close(a, b, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-5)


def test_logits_that_are_not_finite_give_nan() -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = float("inf")
    out = Stats(3, logits.device)
    softmax_rows.stats(logits, torch.zeros(3, dtype=torch.int64), 1.0, out)
    assert out.logp.isnan().tolist() == [False, True, False]
