"""Proof on this machine that what else is asked changes no bit of an answer.

A small model of keyed random weights answers 64 requests in one call; subsets, other orders, other slots and
members in one batch must give the same tokens, log-probabilities and entropies, bit for bit. It takes seconds, and
its report belongs in a run's manifest: another CPU or BLAS may need other paddings.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from broaden.engines.lowrank import ROWS
from broaden.engines.runner import ROW_MULTIPLE
from broaden.engines.torch_engine import Kernels, TorchEngine
from broaden.errors import ExactnessError
from broaden.models.spec import ModelSpec
from broaden.perturb import NoiseSpec
from broaden.records import Completion, Record, Request, Sampling
from broaden.seeds import numpy_generator, stream

SPEC = ModelSpec(
    family="llama",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=32,
    ffn=160,
    vocab=112,
    max_positions=128,
)
SAMPLING = Sampling(temperature=1.0, max_new_tokens=12, logprobs=True, entropy=True)
COUNTS = (1, 7, 16, 64)
MEMBERS = 3
LOW_RANK_MEMBERS, LOW_RANK_SIGMA = 8, 0.02


@dataclass(frozen=True, slots=True)
class SelfTestReport(Record):
    """What was compared, and what differed (empty: everything agreed)."""

    ok: bool
    comparisons: int
    differences: tuple[str, ...]
    dtype: str
    kernels: str
    threads: int
    seconds: float

    def require(self) -> None:
        """Raise ExactnessError where anything differed."""
        if not self.ok:
            raise ExactnessError(
                f"the engine is not batch-invariant on this machine: {'; '.join(self.differences)}",
                "run with one thread (OMP_NUM_THREADS=1), or accept it with engine.self_test=false",
            )


def self_test(
    spec: ModelSpec = SPEC,
    dtype: torch.dtype = torch.float32,
    threads: int | None = None,
    *,
    device: torch.device | str = "cpu",
    kernels: Kernels = "auto",
    low_rank: int = 0,
) -> SelfTestReport:
    """Compare requests asked together with the same ones asked in other ways.

    Args:
        spec: shapes to test, cut by `reduced`.
        threads: of torch during the test; None: as they are.
        low_rank: a rank: members of it over shared weights are compared too, where the kernels have them.
    """
    began, before = time.perf_counter(), torch.get_num_threads()
    small = reduced(spec)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        used = torch.get_num_threads()
        outcomes = list(_compare(small, dtype, device, kernels))
        if low_rank:
            outcomes += _compare_low_rank(small, dtype, device, kernels, min(low_rank, small.head_dim))
    finally:
        torch.set_num_threads(before)
    differences = tuple(name for name, same in outcomes if not same)
    return SelfTestReport(
        ok=not differences,
        comparisons=len(outcomes),
        differences=differences,
        dtype=str(dtype).removeprefix("torch."),
        kernels=kernels,
        threads=used,
        seconds=round(time.perf_counter() - began, 3),
    )


def prove(engine: TorchEngine) -> SelfTestReport:
    """Self-test of an engine's shapes, dtype and kernels; the report goes into its `conditions()`."""
    report = self_test(engine.spec, engine.dtype, device=engine.device, kernels=engine.kernels)
    engine.report = report.to_json()
    return report


def reduced(spec: ModelSpec) -> ModelSpec:
    """The same kinds of products in seconds: two layers, a small vocabulary, widths up to 1,024 and 4,096."""
    return dataclasses.replace(
        spec,
        layers=min(spec.layers, 2),
        vocab=min(spec.vocab, 512),
        hidden=min(spec.hidden, 1024),
        ffn=min(spec.ffn, 4096),
    )


def _compare(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device | str, kernels: Kernels
) -> Iterator[tuple[str, bool]]:
    """(what was compared, whether it agreed)."""

    def engine(members: int, slots: int, packed: bool = True) -> TorchEngine:
        return TorchEngine(spec, [0], members=members, batch=members, dtype=dtype, device=device, slots=slots,
                           kernels=kernels, packed=packed)  # fmt: skip

    def alone(member: int, slots: int = 64, packed: bool = True) -> TorchEngine:
        made = engine(1, slots, packed)
        fill(made, 0, member)
        return made

    asked = _requests(spec)
    serial: list[list[Completion]] = []
    one = alone(0)
    serial.append(one.generate([asked], SAMPLING)[0])
    for count in COUNTS[:-1]:
        yield f"{count} of 64 requests", one.generate([asked[:count]], SAMPLING)[0] == serial[0][:count]
    yield "reversed order", one.generate([asked[::-1]], SAMPLING)[0][::-1] == serial[0]
    del one  # engines of a large model's widths: one at a time
    serial += [alone(member).generate([asked], SAMPLING)[0] for member in range(1, MEMBERS)]
    yield "16 slots instead of 64", alone(0, slots=16).generate([asked], SAMPLING)[0] == serial[0]
    plain = alone(0, packed=False).generate([asked], SAMPLING)[0]
    yield "weights as they lie instead of packed", plain == serial[0]
    together = engine(MEMBERS, 32)
    for member in range(MEMBERS):
        fill(together, member, member)
    yield f"{MEMBERS} members in one batch", together.generate([asked] * MEMBERS, SAMPLING) == serial


def _compare_low_rank(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device | str, kernels: Kernels, rank: int
) -> Iterator[tuple[str, bool]]:
    """Members over one set of weights: alone, and so many together that products take all the rows they may."""
    made, narrow = (
        TorchEngine(spec, [0], dtype=dtype, device=device, slots=slots, kernels=kernels)
        for slots in (ROWS // LOW_RANK_MEMBERS, ROW_MULTIPLE)
    )
    if not made.shares_base:
        return
    for engine in (made, narrow):
        fill(engine, 0, 0)
    center = {name: view.float() for name, view in made.weights(0).items()}
    noise = NoiseSpec(0, 0, LOW_RANK_SIGMA, tuple(center), rank)
    members, asked = [(m // 2, (1, -1)[m % 2]) for m in range(LOW_RANK_MEMBERS)], _requests(spec)
    with made.low_rank(center, noise, members):
        together = made.generate([asked] * len(members), SAMPLING)
    for index in (0, 1, len(members) - 1):
        with narrow.low_rank(center, noise, [members[index]]):
            alone = narrow.generate([asked], SAMPLING)[0]
        yield f"low-rank member {index} of {len(members)} alone", alone == together[index]


def fill(engine: TorchEngine, member: int, seed: int) -> None:
    """Write keyed random weights: norms about 1, matrices N(0, 1.5 / fan-in), so that logits are of order 1."""
    for name, view in engine.weights(member).items():
        drawn = numpy_generator(stream(seed, "self_test", name)).standard_normal(
            tuple(view.shape), dtype=np.float32
        )
        values = torch.from_numpy(drawn)
        view.copy_(1.0 + 0.1 * values if view.dim() == 1 else values * (1.5 / view.shape[-1]) ** 0.5)


def _requests(spec: ModelSpec) -> list[Request]:
    """64 requests: 23 prompts of 1 to 40 tokens, some asked several times."""
    random = numpy_generator(stream(0, "self_test"))
    longest = min(40, spec.max_positions - SAMPLING.max_new_tokens)
    prompts = [tuple(random.integers(0, spec.vocab, 1 + i * (longest - 1) // 22).tolist()) for i in range(23)]
    return [Request(prompts[i % len(prompts)], stream(0, "self_test", i)) for i in range(COUNTS[-1])]
