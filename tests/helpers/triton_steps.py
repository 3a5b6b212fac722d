"""Holds the Triton decode kernels to tensor operations, on CPU tensors with Triton's interpreter.

Run in a process of its own (`python -m tests.helpers.triton_steps`), since TRITON_INTERPRET counts when triton is
imported. Prints what was compared; the first that fails ends it. The interpreter need not round bfloat16 as chips do,
so there the tolerance is wide.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import threading

import numpy as np
import torch
from torch import Tensor

from broaden.engines import TorchEngine
from broaden.engines.device_decode import DeviceDecoder
from broaden.engines.device_sampling import draw
from broaden.engines.device_schedule import DeviceSchedule
from broaden.engines.fused import FusedArithmetic, agree
from broaden.engines.graphs import PlainSteps
from broaden.engines.portable import PortableRunner
from broaden.engines.runner import Cache
from broaden.engines.scheduler import Queue
from broaden.engines.selftest import SPEC, fill
from broaden.models.spec import ModelSpec
from broaden.records import Completion, Request, Sampling
from broaden.seeds import stream

CPU = torch.device("cpu")
SPECS = {
    "every row its own head, odd widths": ModelSpec(
        "llama", layers=1, hidden=40, heads=3, kv_heads=3, head_dim=24, ffn=56, vocab=97
    ),
    "one head for all, biases": ModelSpec(
        "llama", layers=1, hidden=48, heads=4, kv_heads=1, head_dim=8, ffn=1500, vocab=1024, tied=True, qkv_bias=True,
        attention_bias=True, mlp_bias=True,
    ),
    "qwen2": ModelSpec(
        "qwen2", layers=2, hidden=96, heads=6, kv_heads=2, head_dim=64, ffn=64, vocab=1100, tied=True, qkv_bias=True
    ),
}  # fmt: skip


class Late(FusedArithmetic):
    """Looks one position too far back."""

    def decode(self, runner: PortableRunner, index: Tensor, at: Tensor, cache: Cache, length: int) -> Tensor:
        return super().decode(runner, index, (at - 1).clamp(min=0), cache, length)


def draws() -> None:
    """Draws of hard logits: ties, tokens that cannot be drawn, what is not finite, few and many logits."""
    fused, random = FusedArithmetic(), np.random.default_rng(0)
    z = torch.zeros(4, 2500)
    z[0, [1500, 1700]] = 5.0
    greedy = fused.draw(z, torch.full((4,), 0.5, dtype=torch.float64), Sampling(0.0, 1))
    assert greedy.tokens.tolist() == [1500, 0, 0, 0]
    for value in (float("nan"), float("inf"), float("-inf")):
        bad = z.clone()
        bad[1, 1234] = value
        seen = fused.draw(bad, torch.full((4,), 0.999, dtype=torch.float64), Sampling(1.0, 1))
        assert seen.finite.tolist() == [True, False, True, True], value
        assert bool((seen.tokens < 2500).all())
    two = torch.full((100, 1100), -200.0)
    two[:, [3, 1090]] = 0.0
    u = torch.from_numpy(random.random(100))
    assert set(fused.draw(two, u, Sampling(1.0, 1)).tokens.tolist()) == {3, 1090}
    for vocab in (5, 1024, 2100):
        logits = torch.from_numpy((random.standard_normal((24, vocab)) * 3).astype(np.float32))
        u = torch.from_numpy(random.random(24))
        for temperature in (0.0, 0.6, 1.0):
            sampling = Sampling(temperature, 1, logprobs=True, entropy=True)
            ours, theirs = fused.draw(logits, u, sampling), draw(logits, u, sampling)
            assert torch.equal(ours.tokens, theirs.tokens), (vocab, temperature)
            assert torch.allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
            assert torch.allclose(ours.entropies, theirs.entropies, atol=1e-5)


def generate(made: TorchEngine, asked: list[Request]) -> list[Completion]:
    """Through the device's loop with fused steps and fixed shapes."""
    runner = PortableRunner(made.buffers, made._rope(), fixed=True)
    decoder, queue = DeviceDecoder(runner, PlainSteps(), FusedArithmetic()), Queue.of(asked)
    schedule = DeviceSchedule(decoder, [queue], Sampling(1.0, 6, logprobs=True, entropy=True), made.eos, 16)
    with torch.inference_mode():
        schedule.run(lambda completions, tokens: None, threading.Event())
    found = schedule.results.completions(0)
    return [found[i] for i in np.argsort(queue.order)]


def generations() -> None:
    """The portable path's tokens, and the same bits for fewer requests."""
    made = TorchEngine(SPEC, (0, 9, 50), kernels="portable")
    fill(made, 0, 0)
    prompts = [tuple(1 + (7 * i * j) % 110 for j in range(1 + 11 * i)) for i in range(6)]
    asked = [Request(prompts[i % 6], stream(0, "fused", i)) for i in range(20)]
    found, expected = generate(made, asked), made.generate([asked], Sampling(1.0, 6, logprobs=True))[0]
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-4, atol=1e-5)
    assert generate(made, asked[3:6]) == found[3:6]


def main() -> None:
    """Everything."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert agree(FusedArithmetic(), CPU, dtype), dtype
    for name, spec in SPECS.items():
        assert agree(FusedArithmetic(), CPU, spec=spec), name
    assert not agree(Late(), CPU)
    draws()
    generations()
    print("steps, draws and generations agree")


if __name__ == "__main__":
    main()
