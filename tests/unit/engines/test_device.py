"""The device's loop on the CPU: the portable path's answers, in windows, with steps that are replayed, fixed shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engines.test_sampling import uniform_reference
from tests.unit.engines.test_torch_engine import FULL, engine, requests

from broaden.engines import TorchEngine, device_decode, device_schedule, portable
from broaden.engines.device_decode import DeviceDecoder, bucket
from broaden.engines.device_sampling import BLOCK, draw, search
from broaden.engines.device_schedule import DeviceSchedule, batch_rows
from broaden.engines.graphs import PlainSteps, steps_for
from broaden.engines.portable import PortableRunner
from broaden.engines.sampling import sample_rows, sample_rows_torch
from broaden.engines.scheduler import Queue
from broaden.engines.selftest import SPEC, fill
from broaden.errors import DivergedError
from broaden.records import Completion, Request, Sampling


class Replaying:
    """Like a graph: a name's first step is what every later step of that name does, on the tensors it had then."""

    def __init__(self, decoder: DeviceDecoder | None = None) -> None:
        self.decoder, self.first, self.calls = decoder, dict[Hashable, tuple[Any, tuple[int, ...]]](), 0

    @property
    def recorded(self) -> int:
        return len(self.first)

    def addresses(self) -> tuple[int, ...]:
        assert self.decoder is not None
        state, cache = self.decoder.state, self.decoder.cache
        tensors = (state.ids, state.positions, state.uniforms, state.step, state.tokens, state.scores)
        return tuple(t.data_ptr() for t in (*tensors, cache.keys, cache.values))

    def run(self, name: Hashable, step: Callable[[], None]) -> None:
        self.calls += 1
        recorded, addresses = self.first.setdefault(name, (step, self.addresses()))
        assert addresses == self.addresses()
        recorded()

    def forget(self) -> None:
        self.first.clear()


def ask(
    decoder: DeviceDecoder, made: TorchEngine, asked: list[list[Request]], sampling: Sampling = FULL
) -> list[list[Completion]]:
    queues = [Queue.of(a) for a in asked]
    schedule = DeviceSchedule(decoder, queues, sampling, made.eos, 64)
    with torch.inference_mode():
        schedule.run(lambda completions, tokens: None, threading.Event())
    out = []
    for member, queue in enumerate(queues):
        back = np.argsort(queue.order)
        found = schedule.results.completions(member)
        out.append([found[i] for i in back])
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_portable_path_s_answers(temperature: float, dtype: torch.dtype) -> None:
    sampling = Sampling(temperature, 14, logprobs=True, entropy=True)
    asked = [requests(50), requests(33, seed=1), []]
    ours = engine(3, kernels="device", dtype=dtype, batch=3).generate(asked, sampling)
    assert ours == engine(3, kernels="portable", dtype=dtype, batch=3).generate(asked, sampling)
    if temperature:
        assert {c.finish for answers in ours for c in answers} == {"stop", "length"}


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
def test_what_is_kept_changes_no_token(flags: tuple[bool, bool]) -> None:
    whole = engine(kernels="device").generate([requests(20)], FULL)[0]
    some = engine(kernels="device").generate([requests(20)], Sampling(1.0, 14, *flags))[0]
    for a, b in zip(whole, some, strict=True):
        assert a.token_ids == b.token_ids
        assert b.logprobs == (a.logprobs if flags[0] else None)
        assert b.entropy == (a.entropy if flags[1] else None)


@pytest.mark.parametrize("window", [1, 3, 16, 64])
def test_the_window_changes_no_bit(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = engine(kernels="device", slots=16).generate([requests(50)], FULL)
    for module in (device_decode, device_schedule):
        monkeypatch.setattr(module, "WINDOW", window)
    assert engine(kernels="device", slots=16).generate([requests(50)], FULL) == usual


def test_rows_that_run_on_stay_within_the_context() -> None:
    """Prompt and completion fill the context to its last position, and a window is not done then."""
    asked = [Request((5,) * 51, i) for i in range(3)]
    made = engine(kernels="device", max_context=64, eos=())
    answers = made.generate([asked], Sampling(1.0, 13))[0]
    assert [len(a.token_ids) for a in answers] == [13] * 3
    assert (
        answers == engine(kernels="portable", max_context=64, eos=()).generate([asked], Sampling(1.0, 13))[0]
    )


def test_replayed_steps_give_the_same_answers_over_calls_and_weights() -> None:
    often = tuple(range(0, SPEC.vocab, 9))
    made = engine(2, eos=often)
    decoder = DeviceDecoder(PortableRunner(made.buffers, made._rope()), steps := Replaying())
    steps.decoder = decoder
    asked = [requests(50), requests(20, seed=1)]
    plain = engine(2, kernels="device", batch=2, eos=often)
    assert ask(decoder, made, asked) == plain.generate(asked, FULL)
    names, calls = steps.recorded, steps.calls
    assert {(rows, length) for rows, length, *_ in steps.first} == {(128, 128), (64, 128)}
    assert calls > 3 * names
    assert ask(decoder, made, asked) == plain.generate(asked, FULL)
    assert (steps.recorded, steps.calls) == (names, 2 * calls)
    for member in range(2):
        fill(made, member, 7 + member)
        fill(plain, member, 7 + member)
    changed = ask(decoder, made, asked)
    assert changed == plain.generate(asked, FULL)
    longer = [requests(50, longest=110), requests(20, seed=1)]
    assert ask(decoder, made, longer) == plain.generate(longer, FULL)


def test_fixed_shapes_are_the_same_model_and_do_not_see_the_batch() -> None:
    made = engine(2)
    decoder = DeviceDecoder(PortableRunner(made.buffers, made._rope(), fixed=True))
    asked = [requests(50), requests(20, seed=1)]
    found, plain = ask(decoder, made, asked), engine(2, kernels="portable", batch=2).generate(asked, FULL)
    for ours, theirs in zip(found, plain, strict=True):
        assert [a.token_ids for a in ours] == [a.token_ids for a in theirs]
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=1e-4, atol=1e-5)
    for count in (1, 7, 16):
        assert ask(decoder, made, [asked[0][:count], []]) == [found[0][:count], []]


def test_fixed_shapes_see_one_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, plain = set(), portable.F.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        seen.add(x.shape[0])
        return plain(x, weight, bias)

    made = engine(2)
    decoder = DeviceDecoder(PortableRunner(made.buffers, made._rope(), fixed=True))
    monkeypatch.setattr(portable.F, "linear", linear)
    ask(decoder, made, [requests(50, longest=60), requests(3, longest=60, seed=1)])
    assert seen == {portable.FIXED_ROWS, portable.PROMPT_TOKENS}


def test_diverged_weights_are_an_error_but_a_free_row_s_are_not() -> None:
    made = engine(2, kernels="device", batch=2)
    made.weights(1)["model.norm.weight"][3] = float("inf")
    assert len(made.generate([requests(3), []], FULL)[0]) == 3
    with pytest.raises(DivergedError, match="not finite"):
        made.generate([[], requests(3)], FULL)


def test_on_a_cpu_steps_are_plain_calls() -> None:
    steps = steps_for(torch.device("cpu"))
    assert isinstance(steps, PlainSteps)
    done: list[int] = []
    for _ in range(3):
        steps.run("a", lambda: done.append(1))
    steps.forget()
    assert (done, steps.recorded) == ([1, 1, 1], 0)


def test_buckets() -> None:
    expected = [64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096]
    assert sorted({bucket(p, 4096) for p in range(1, 4097)}) == expected
    assert [bucket(n, 4096) for n in (64, 65, 192, 193, 257)] == [64, 128, 192, 256, 384]
    assert bucket(300, 320) == 320
    assert [batch_rows(n) for n in (0, 1, 16, 17, 33, 256, 257)] == [16, 16, 16, 32, 64, 256, 512]


@pytest.mark.parametrize("vocab", [3, BLOCK, BLOCK + 1, 1000, 4 * BLOCK])
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_draws_are_those_of_the_other_kernels(vocab: int, temperature: float) -> None:
    random, rows = np.random.default_rng(vocab), 3000
    logits = (random.normal(size=(rows, vocab)) * 2).astype(np.float32)
    keys, counts = random.integers(0, 2**63, rows).astype(np.uint64), np.arange(rows) % 50
    u = torch.tensor([uniform_reference(int(k), int(c)) for k, c in zip(keys, counts, strict=True)])
    u = u.to(torch.float64)
    found = draw(torch.from_numpy(logits), u, Sampling(temperature, 1, logprobs=True, entropy=True))
    tokens, logprobs, entropies, finite = sample_rows_torch(torch.from_numpy(logits), temperature, u, True)
    assert torch.equal(found.tokens, tokens)
    assert torch.equal(found.logprobs, logprobs)
    assert torch.equal(found.entropies, entropies)
    assert torch.equal(found.finite, finite)
    compiled = np.zeros(rows, np.int64)
    extra = np.zeros((2, rows), np.float32)
    sample_rows(logits, np.arange(rows), temperature, keys, counts, False, False, compiled, *extra)
    assert found.tokens.tolist() == compiled.tolist()


def test_search_at_the_edges() -> None:
    e = torch.zeros(4, 3 * BLOCK)
    e[:, [5, BLOCK + 7]] = 1.0
    u = torch.tensor([1e-9, 0.5 - 1e-12, 0.5, 1 - 1e-17], dtype=torch.float64)
    assert search(e, u).tolist() == [5, 5, BLOCK + 7, BLOCK + 7]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_flagged(value: float) -> None:
    z = torch.zeros(3, 200)
    z[1, 71] = value
    found = draw(z, torch.full((3,), 0.5, dtype=torch.float64), Sampling(1.0, 1))
    assert found.finite.tolist() == [True, False, True]
