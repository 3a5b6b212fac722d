"""The decode step of `portable` with everything between the matrix products in Triton's kernels, and when that is used.

Not here: the kernels (`triton_decode`), the loop (`device_decode`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from typing import Any, Protocol

import torch
from torch import Tensor

from broaden.engines.device_sampling import Draw, draw
from broaden.engines.graphs import on
from broaden.engines.portable import PortableRunner, product
from broaden.engines.runner import Cache
from broaden.engines.weights import Buffers
from broaden.models.decoder import rope_tables
from broaden.models.spec import ModelSpec
from broaden.records import Sampling


class Arithmetic(Protocol):
    """A decode step and a draw that never wait for the device."""

    exact_lengths: bool
    """Whether a row looks at its own positions only, so that `length` does not matter."""

    def decode(self, runner: PortableRunner, index: Tensor, at: Tensor, cache: Cache, length: int) -> Tensor:
        """See `PortableRunner.decode`."""

    def draw(self, logits: Tensor, u: Tensor, sampling: Sampling) -> Draw:
        """See `device_sampling.draw`."""


class TensorArithmetic:
    """Tensor operations: any device."""

    exact_lengths = False

    def decode(self, runner: PortableRunner, index: Tensor, at: Tensor, cache: Cache, length: int) -> Tensor:
        """See `Arithmetic.decode`."""
        return runner.decode(index, at, cache, length)

    def draw(self, logits: Tensor, u: Tensor, sampling: Sampling) -> Draw:
        """See `Arithmetic.draw`."""
        return draw(logits, u, sampling)


class FusedArithmetic:
    """Triton's kernels. Raises ImportError where triton is not installed."""

    exact_lengths = True

    def __init__(self) -> None:
        self.kernels: Any = importlib.import_module("broaden.engines.triton_decode")

    def decode(self, runner: PortableRunner, index: Tensor, at: Tensor, cache: Cache, length: int) -> Tensor:
        """See `Arithmetic.decode`; `length` is not looked at."""
        k, spec, layers = self.kernels, runner.spec, runner.buffers.layers
        fixed, tables = runner.fixed, (runner.cos, runner.sin)
        h = runner.buffers.embedding.reshape(-1, spec.hidden)[index]
        x = k.add_norm(h, None, layers[0].input_norm, spec.norm_eps)
        for number, layer in enumerate(layers):
            keys, values = cache.keys[number], cache.values[number]
            qkv = product(x, layer.qkv, layer.qkv_bias, fixed)
            q = k.rope(qkv, (layer.q_norm, layer.k_norm), spec.norm_eps, tables, at, keys, values)
            mixed = product(k.attend(q, keys, values, at), layer.output, layer.output_bias, fixed)
            x = k.add_norm(h, mixed, layer.mlp_norm, spec.norm_eps)
            gated = k.swiglu(product(x, layer.gate_up, layer.gate_up_bias, fixed))
            down = product(gated, layer.down, layer.down_bias, fixed)
            after = layers[number + 1].input_norm if number + 1 < len(layers) else runner.buffers.norm
            x = k.add_norm(h, down, after, spec.norm_eps)
        return product(x, runner.buffers.head, fixed=fixed)

    def draw(self, logits: Tensor, u: Tensor, sampling: Sampling) -> Draw:
        """See `Arithmetic.draw`."""
        tokens, logprobs, entropies, faults = self.kernels.draw(logits, u, sampling.temperature)
        return Draw(tokens, logprobs, entropies, faults == 0)


TENSOR = TensorArithmetic()
PROBE = ModelSpec("qwen3", layers=2, hidden=64, heads=6, kv_heads=2, head_dim=32, ffn=96, vocab=3000, qk_norm=True,
                  tied=True)  # fmt: skip


@functools.lru_cache(maxsize=16)
def arithmetic_for(device: torch.device) -> Arithmetic:
    """Triton's kernels on a CUDA device that has them and where they agree with tensor operations, else those."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return TENSOR
    try:
        fused = FusedArithmetic()
        with on(device):
            same = all(agree(fused, device, dtype) for dtype in (torch.float32, torch.bfloat16))
        reason = "" if same else "they differ from tensor operations"
    except (
        Exception
    ) as error:  # whatever a compiler, a driver or an old version may raise: the slower path is there
        reason = f"{type(error).__name__}: {error}"
    if reason:
        warnings.warn(f"Triton's decode kernels are not used on {device} ({reason})", stacklevel=2)
        return TENSOR
    return fused


@torch.no_grad()
def agree(
    fused: Arithmetic, device: torch.device, dtype: torch.dtype = torch.float32, spec: ModelSpec = PROBE
) -> bool:
    """Whether a step over a random cache has the same logits, keys and draws, up to rounding."""
    buffers = Buffers.allocate(spec, 2, dtype, device)
    generator = torch.Generator().manual_seed(0)

    def fill(tensor: Tensor, scale: float, offset: float = 0.0) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale + offset)

    for member in range(2):
        for view in buffers.views(member).values():
            fill(view, 0.2 if view.dim() > 1 else 0.1, 0.0 if view.dim() > 1 else 1.0)
    runner = PortableRunner(buffers, rope_tables(spec, 192, device), fixed=True)
    at = torch.tensor([0, 1, 63, 64, 65, 127, 128, 150] * 2, device=device)
    index = torch.arange(len(at), device=device) * 97 % (2 * spec.vocab)
    ours, theirs = runner.cache(len(at), 192), runner.cache(len(at), 192)
    for cached in (ours.keys, ours.values):
        fill(cached, 1.0)
    theirs.keys.copy_(ours.keys)
    theirs.values.copy_(ours.values)
    found, expected = fused.decode(runner, index, at, ours, 192), runner.decode(index, at, theirs, 192)
    within = 1e-4 if dtype == torch.float32 else 3e-2
    same = all(
        float((a.float() - b.float()).norm() / b.float().norm()) < within
        for a, b in ((found, expected), (ours.keys, theirs.keys), (ours.values, theirs.values))
    )
    u = (torch.arange(len(at), dtype=torch.float64, device=device) + 0.5) / len(at)
    for temperature in (0.0, 0.7, 1.0):
        sampling = Sampling(temperature, 1, logprobs=True, entropy=True)
        a, b = fused.draw(expected, u, sampling), draw(expected, u, sampling)
        same &= bool((a.tokens == b.tokens).all()) and torch.equal(a.finite, b.finite)
        same &= torch.allclose(a.logprobs, b.logprobs, atol=1e-4) and torch.allclose(
            a.entropies, b.entropies, atol=1e-4
        )
    return same
