"""The engine on a CUDA device: batch-invariant, the CPU's model, the CPU's draws, graphs that change no bit."""

from __future__ import annotations

import dataclasses
import threading
import warnings

import numpy as np
import pytest
import torch
from tests.helpers.gpu import DEVICE, rehearsal
from tests.unit.engines.test_torch_engine import FULL, engine, requests

from broaden.engines import self_test
from broaden.engines.device_decode import DeviceDecoder
from broaden.engines.device_sampling import draw
from broaden.engines.device_schedule import DeviceSchedule
from broaden.engines.fused import TENSOR, FusedArithmetic, agree, arithmetic_for
from broaden.engines.graphs import GraphSteps, PlainSteps, Steps, steps_for
from broaden.engines.portable import PortableRunner
from broaden.engines.scheduler import Queue
from broaden.engines.torch_engine import Kernels
from broaden.models.spec import ModelSpec
from broaden.records import Completion, Sampling

pytestmark = pytest.mark.gpu

QWEN = ModelSpec(
    family="qwen2", layers=28, hidden=1536, heads=12, kv_heads=2, head_dim=128, ffn=8960, vocab=151936,
    rope_theta=1e6, norm_eps=1e-6, tied=True, qkv_bias=True, max_positions=32768,
)  # fmt: skip


@pytest.mark.parametrize("kernels", ["device", "portable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_else_is_asked_changes_no_bit(dtype: torch.dtype, kernels: Kernels) -> None:
    self_test(dtype=dtype, device=DEVICE, kernels=kernels).require()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nor_at_the_widths_of_a_real_model(dtype: torch.dtype) -> None:
    self_test(QWEN, dtype, device=DEVICE, kernels="device").require()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_cpu_s_answers_in_float32(temperature: float) -> None:
    """Equal tokens as long as rounding decides none of them; 64 short completions of a small model."""
    sampling = Sampling(temperature, 14, logprobs=True, entropy=True)
    ours = engine(device=DEVICE, kernels="device").generate([requests(64)], sampling)[0]
    theirs = engine(kernels="portable").generate([requests(64)], sampling)[0]
    same = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.token_ids == b.token_ids]
    assert len(same) >= 62
    for a, b in same:
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(a.entropy, b.entropy, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("vocab", [1000, 151936])
def test_the_cpu_s_draws_of_the_same_logits(vocab: int, temperature: float) -> None:
    """exp may differ in its last bit: a token may differ where u lies within 1e-6 of a boundary."""
    random = np.random.default_rng(0)
    logits = torch.from_numpy((random.standard_normal((256, vocab)) * 3).astype(np.float32))
    u = torch.from_numpy(random.random(256))
    sampling = Sampling(temperature, 1, logprobs=True, entropy=True)
    here, there = draw(logits, u, sampling), draw(logits.to(DEVICE), u.to(DEVICE), sampling)
    tokens = there.tokens.cpu()
    cdf = (logits.double() / (temperature or 1.0)).softmax(1).cumsum(1)
    for row in torch.nonzero(tokens != here.tokens).flatten().tolist():
        edge = cdf[row, min(int(tokens[row]), int(here.tokens[row]))]
        assert temperature > 0
        assert abs(float(edge) - float(u[row])) < 1e-6
    alike = tokens == here.tokens
    torch.testing.assert_close(there.logprobs.cpu()[alike], here.logprobs[alike], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(there.entropies.cpu(), here.entropies, rtol=1e-4, atol=1e-4)
    assert bool(there.finite.all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_graphs_change_no_bit_over_calls_and_weights(dtype: torch.dtype) -> None:
    made = engine(2, device=DEVICE, kernels="device", dtype=dtype, batch=2)
    graphs = steps_for(DEVICE)
    assert isinstance(graphs, GraphSteps) == (DEVICE.type == "cuda")
    decoders = [
        DeviceDecoder(PortableRunner(made.buffers, made._rope(), fixed=True), steps)
        for steps in (graphs, PlainSteps())
    ]
    for seed in range(3):
        asked = [requests(50, seed=seed), requests(20, seed=seed + 9)]
        for name, view in made.weights(0).items():
            view.mul_(1.0 + 0.01 * seed * ("mlp" in name))
        answers = []
        for decoder in decoders:
            queues = [Queue.of(a) for a in asked]
            schedule = DeviceSchedule(decoder, queues, FULL, made.eos, 64)
            with torch.inference_mode():
                schedule.run(lambda completions, tokens: None, threading.Event())
            answers.append([schedule.results.completions(m) for m in range(2)])
        assert answers[0] == answers[1]
        assert _tokens(answers[0]) > 500
    assert recorded(graphs) == (DEVICE.type == "cuda")


@pytest.mark.skipif(DEVICE.type != "cuda", reason="a rehearsal has no graphs")
def test_graphs_are_forgotten_recorded_again_and_done_without() -> None:
    """A step that waits for the device cannot be recorded: said once, and its plain calls still count."""
    steps = GraphSteps(DEVICE)
    total = torch.zeros(1, device=DEVICE)
    for _ in range(2):
        for _ in range(3):
            steps.run("add", lambda: total.add_(1))
        assert steps.recorded == 1
        steps.forget()
        assert steps.recorded == 0
    assert float(total) == 6.0

    def waits() -> None:
        total.add_(float(total))

    with pytest.warns(UserWarning, match="could not be recorded"):
        steps.run("waits", waits)
    assert float(total) == 12.0
    steps.run("waits", waits)
    assert (float(total), steps.recorded) == (24.0, 0)
    steps.run("add", lambda: total.add_(1))
    steps.run("add", lambda: total.add_(1))
    assert (float(total), steps.recorded) == (26.0, 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device or none")
def test_another_device_than_the_current_one() -> None:
    answers = engine(device="cuda:1", kernels="device").generate([requests(20)], FULL)
    assert answers == engine(device="cuda:0", kernels="device").generate([requests(20)], FULL)


def test_triton_s_decode_kernels_are_used_and_agree() -> None:
    if rehearsal() and DEVICE.type == "cpu":
        pytest.skip("Triton's kernels run on a GPU; tests/unit/engines/test_triton_decode.py interprets them")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused = arithmetic_for(DEVICE)
    assert isinstance(fused, FusedArithmetic)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert agree(fused, DEVICE, dtype)
    assert agree(fused, DEVICE, torch.bfloat16, dataclasses.replace(QWEN, layers=2))


def test_tensor_operations_in_graphs_give_the_same_tokens() -> None:
    """The path of a machine without triton, in float32."""
    made = engine(device=DEVICE, kernels="device")
    decoder = DeviceDecoder(PortableRunner(made.buffers, made._rope(), fixed=True), None, TENSOR)
    asked = requests(40)
    queue = Queue.of(asked)
    schedule = DeviceSchedule(decoder, [queue], FULL, made.eos, 64)
    with torch.inference_mode():
        schedule.run(lambda completions, tokens: None, threading.Event())
    found, expected = schedule.results.completions(0), made.generate([asked], FULL)[0]
    same = sum(found[place].token_ids == expected[i].token_ids for place, i in enumerate(queue.order))
    assert same >= 38


def recorded(steps: Steps) -> bool:
    return steps.recorded > 0


def _tokens(answers: list[list[Completion]]) -> int:
    return sum(len(c.token_ids) for each in answers for c in each)
