"""The Triton kernels without a GPU: their bits by the interpreter, their instructions by the compiler, who uses them.

Triton is no dependency (CUDA builds of torch bring it along); where it cannot be imported the first two are skipped.
To run them: `pip install --no-deps triton && pytest tests/unit/perturb/test_triton.py`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import warnings

import pytest
import torch
from tests.helpers.triton import child, needs_triton

from broaden.perturb import backend, noise
from broaden.perturb.backend import NUMBA, TORCH, Increment, NumbaBackend, backend_for, fused_backend

CPU = torch.device("cpu")


@needs_triton
@pytest.mark.timeout(900)
def test_the_interpreter_has_numpy_s_bits() -> None:
    found = re.search(r"(\d+) comparisons", child("tests.helpers.triton_bits"))
    assert found is not None
    assert int(found[1]) == 316


@needs_triton
@pytest.mark.timeout(900)
def test_the_compiler_fuses_flushes_and_spills_nothing() -> None:
    said = json.loads(child("tests.helpers.triton_ptx"))
    assert len(said["kernels"]) == 22
    for name, seen in said["kernels"].items():
        assert (seen["fused"], seen["flushed"], seen["spilled"]) == ([], [], []), name
        if not name.startswith(("checksum", "rope", "choose")):
            assert seen["vectors"] >= 1, name
        if "attend" in name:
            assert seen["matrix"] > 0
    assert said["fused_by_default"] is True


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch):
    """`fused_backend` as in a new process, on a machine that has triton."""
    fused_backend.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    yield monkeypatch
    fused_backend.cache_clear()


def test_without_triton_the_torch_path_is_used_without_a_word(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(importlib.util, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend_for(torch.device("cuda")) is TORCH


def test_kernels_that_agree_are_used(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(backend, "TritonBackend", lambda: NUMBA)
    assert fused_backend(CPU) is NUMBA


def test_a_triton_that_fails_is_said_and_not_used(fresh: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no compiler")

    fresh.setattr(backend, "TritonBackend", broken)
    with pytest.warns(UserWarning, match="not used on cpu.*no compiler"):
        assert fused_backend(CPU) is TORCH


class Doubling(NumbaBackend):
    """Adds the noise twice."""

    def write(self, theta, out, table, key, start):
        super().write(theta, out, 2 * table, key, start)


class Rounding(NumbaBackend):
    """Updates with a factor that is off in its last bit."""

    def update(self, theta, anchor, increment, keys, start):
        near = Increment(increment.coefficients, increment.factor * (1 + 1e-7), increment.decay)
        return super().update(theta, anchor, near, keys, start)


@pytest.mark.parametrize("wrong", [Doubling, Rounding])
def test_kernels_with_other_bits_are_said_and_not_used(wrong: type, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(backend, "TritonBackend", wrong)
    with pytest.warns(UserWarning, match="their bits differ"):
        assert fused_backend(CPU) is TORCH


def test_the_integer_table_is_odd() -> None:
    """The update's kernel keeps half of it."""
    table = noise.fixed_table()
    assert (table[:32768] == -table[:32767:-1]).all()
