"""The Triton decode kernels without a GPU: against tensor operations by the interpreter, and who uses them.

To run the first: `pip install --no-deps triton && pytest tests/unit/engines/test_triton_decode.py`. That they
compile is in tests/unit/perturb/test_triton.py.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from tests.helpers.triton import child, needs_triton

from broaden.engines import fused
from broaden.engines.device_sampling import Draw
from broaden.engines.fused import TENSOR, TensorArithmetic, agree, arithmetic_for
from broaden.engines.portable import PortableRunner
from broaden.engines.runner import Cache
from broaden.records import Sampling

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@needs_triton
@pytest.mark.timeout(900)
def test_the_interpreter_agrees_with_tensor_operations() -> None:
    assert "steps, draws and generations agree" in child("tests.helpers.triton_steps")


class Scaled(TensorArithmetic):
    """Logits off by a thousandth."""

    def decode(
        self, runner: PortableRunner, index: torch.Tensor, at: torch.Tensor, cache: Cache, length: int
    ) -> torch.Tensor:
        return super().decode(runner, index, at, cache, length) * 1.001


class Shifted(TensorArithmetic):
    """Uniform numbers off by a fiftieth."""

    def draw(self, logits: torch.Tensor, u: torch.Tensor, sampling: Sampling) -> Draw:
        return super().draw(logits, (u - 0.02).clamp(min=1e-9), sampling)


def test_agreement_is_noticed_and_so_is_its_lack() -> None:
    assert agree(TENSOR, CPU)
    assert agree(TENSOR, CPU, torch.bfloat16)
    assert not agree(Scaled(), CPU)
    assert not agree(Shifted(), CPU)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """`arithmetic_for` as in a new process, on a machine that has triton; agreement is tried on the CPU."""
    arithmetic_for.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "agree", lambda kernels, device, dtype: agree(kernels, CPU, dtype))
    monkeypatch.setattr(fused, "on", lambda device: nullcontext())
    yield monkeypatch
    arithmetic_for.cache_clear()


def test_a_cpu_and_a_machine_without_triton_use_tensor_operations(fresh: pytest.MonkeyPatch) -> None:
    assert arithmetic_for(CPU) is TENSOR
    fresh.setattr(importlib.util, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert arithmetic_for(CUDA) is TENSOR


def test_kernels_that_agree_are_used(fresh: pytest.MonkeyPatch) -> None:
    made = TensorArithmetic()
    fresh.setattr(fused, "FusedArithmetic", lambda: made)
    assert arithmetic_for(CUDA) is made


def test_kernels_that_differ_or_fail_are_said_and_not_used(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(fused, "FusedArithmetic", Scaled)
    with pytest.warns(UserWarning, match="they differ from tensor operations"):
        assert arithmetic_for(CUDA) is TENSOR
    arithmetic_for.cache_clear()

    def broken() -> None:
        raise RuntimeError("no compiler")

    fresh.setattr(fused, "FusedArithmetic", broken)
    with pytest.warns(UserWarning, match=r"not used on cuda.*no compiler"):
        assert arithmetic_for(CUDA) is TENSOR
