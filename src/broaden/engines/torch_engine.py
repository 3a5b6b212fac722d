"""`TorchEngine`: the library's own decode path for llama, qwen2 and qwen3, for one or many members.

Requests are checked first, then shared out to lanes, where each batch of members runs its queues to the end. Not
here: kernels (`compiled`, `portable`), seating (`scheduler`), threads (`lanes`), other architectures (`generate`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch

from broaden.engines.base import NUMERICS_VERSION, OnProgress, Weights, check_requests
from broaden.engines.compiled import DTYPES, CompiledRunner, Spaces, Stack, Stacks
from broaden.engines.device_decode import DeviceDecoder
from broaden.engines.device_schedule import DeviceSchedule
from broaden.engines.fused import arithmetic_for
from broaden.engines.lanes import Job, run_lanes
from broaden.engines.lowrank import LowRankMembers, LowRankStacks, low_rank_slots
from broaden.engines.portable import PortableRunner
from broaden.engines.runner import ROW_MULTIPLE, Cache, Runner, round_up
from broaden.engines.scheduler import Queue, Schedule
from broaden.engines.weights import Buffers
from broaden.errors import ModelError, UsageError
from broaden.models.decoder import rope_tables
from broaden.models.spec import ModelSpec
from broaden.perturb import NoiseSpec
from broaden.records import Completion, Request, Sampling

Kernels = Literal["auto", "compiled", "portable", "device"]
CACHE_BYTES = 2 << 30
CACHE_SHARE = 4  # a GPU gives a quarter of its memory to keys and values
PACKED_BYTES = 2 << 30  # of weights; larger models are not held twice
PACKED_STEPS = 32  # tokens of a completion: packing costs as much as it saves in about ten
TINY = 1 << 20  # parameters


class TorchEngine:
    """Samples from live weights in fused buffers.

    Args:
        spec: shapes; family must not be "other".
        eos_ids: any of these ends a completion (and is its last token).
        members: weight sets that live here at once.
        dtype: of weights, activations and cache.
        slots: rows a member decodes at once (rounded up to 16); None: by `default_slots`.
        batch: members decoded in one batch; None: by `default_batch`.
        max_context: most tokens of prompt and completion together; None: the model's positions.
        kernels: "compiled" (CPU), "portable" (any device), "device" (the same in windows of steps that stay on the
            device, CUDA graphs there); "auto" is compiled where it can be, device on CUDA, else portable.
        cache_bytes: most bytes of keys and values at once; fewer slots where they would need more. None: 2 GiB, on a
            GPU a quarter of its memory.
        packed: keep a second copy of bfloat16 weights during a call, in the layout that products read (`packing`);
            None: where `packs` says that it pays. It changes no bit.
        threads: CPU threads; None: torch's. Requests are shared out to as many lanes as have work (`lanes`).
    """

    def __init__(
        self,
        spec: ModelSpec,
        eos_ids: Collection[int],
        *,
        members: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        slots: int | None = None,
        batch: int | None = None,
        max_context: int | None = None,
        kernels: Kernels = "auto",
        cache_bytes: int | None = None,
        packed: bool | None = None,
        threads: int | None = None,
    ) -> None:
        if spec.family == "other":
            raise ModelError(
                f"no own decode path for this model: {spec.unsupported}", "use the generate engine"
            )
        if members < 1:
            raise UsageError(f"members must be at least 1, got {members}")
        self.spec, self.dtype, self.device = spec, dtype, torch.device(device)
        self.context = min(spec.max_positions, max_context or spec.max_positions)
        self.cache_bytes, self.packed = cache_bytes or default_cache_bytes(self.device), packed
        self.slots = round_up(slots or default_slots(spec, self.device), ROW_MULTIPLE)
        self.batch = min(members, batch or default_batch(members, self.device))
        self.compiled = _choose(kernels, spec, self.device, dtype)
        self.kernels = _name(kernels, self.compiled, self.device)
        self.eos = _eos_table(eos_ids, spec.vocab)
        self.buffers = Buffers.allocate(spec, members, dtype, self.device)
        self.report: dict[str, Any] | None = None  # of the self-test, once it was run
        self.threads = threads or (torch.get_num_threads() if self.device.type == "cpu" else 1)
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None
        self._spaces: dict[int, Spaces] = {}
        self._low_rank: LowRankMembers | None = None
        self._decoders: dict[tuple[int, int], DeviceDecoder] = {}

    @property
    def members(self) -> int:
        """Weight sets that live here at once; inside `low_rank`, its members."""
        return self.buffers.count if self._low_rank is None else self._low_rank.count

    @property
    def shares_base(self) -> bool:
        """Whether `low_rank` can be used: the compiled kernels have it."""
        return self.compiled

    @contextmanager
    def low_rank(
        self, center: Weights, spec: NoiseSpec, members: Sequence[tuple[int, int]]
    ) -> Iterator[None]:
        """Inside the block `generate` is asked for these (number, sign), all over the weights of member 0.

        Args:
            center: what those weights were written from; its vectors are read.

        Raises:
            UsageError: not with these kernels.
        """
        if not self.shares_base:
            raise UsageError(
                "low-rank members over shared weights need the compiled kernels",
                "write the members' weights (`perturb.write_member`)",
            )
        self._low_rank = LowRankMembers(self.spec, center, spec, members, self.dtype)
        try:
            yield
        finally:
            self._low_rank = None

    def weights(self, member: int = 0) -> Weights:
        """Live contiguous views by canonical name."""
        return self.buffers.views(member)

    def weights_changed(self) -> None:
        """Nothing to drop: keys and values live for one `generate` call only."""

    def generate(
        self,
        requests: Sequence[Sequence[Request]],
        sampling: Sampling,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """See `Engine.generate`."""
        check_requests(requests, sampling, members=self.members, context=self.context, vocab=self.spec.vocab)
        queues = _queues(requests)
        out: list[list[Completion | None]] = [[None] * len(asked) for asked in requests]
        batch = self.batch if self._low_rank is None else -(-self.members // self.threads)
        groups = [
            (start, queues[start : start + batch])
            for start in range(0, self.members, batch)
            if any(len(q.order) for q in queues[start : start + batch])
        ]
        if groups:
            lanes = self._lanes(groups, sampling, out)
            run_lanes(lanes, max(1, self.threads // len(lanes)), on_progress)
        return [[c for c in answers if c is not None] for answers in out]

    def _lanes(
        self,
        groups: Sequence[tuple[int, Sequence[Queue]]],
        sampling: Sampling,
        out: list[list[Completion | None]],
    ) -> list[list[Job]]:
        """Whole groups where they go round, else equal shares of each group, none below 16 rows a member."""
        lanes = self.threads
        rows = max(len(q.order) for _, queues in groups for q in queues)
        parts = 1 if len(groups) >= lanes else min(-(-lanes // len(groups)), max(1, rows // ROW_MULTIPLE))
        work = [
            (start, [q.share(i, parts) for q in queues]) for start, queues in groups for i in range(parts)
        ]
        lanes = min(lanes, len(work))
        pack = self.packed
        if pack is None:
            pack = packs(self.spec, self.dtype, self.batch, sampling.max_new_tokens)
        stacks: Stacks | LowRankStacks = (
            Stacks(self.buffers, [start for start, _ in groups], parts, pack)
            if self._low_rank is None
            else LowRankStacks(self.buffers.members(slice(0, 1)), self._low_rank)
        )
        return [
            [self._job(lane, lanes, *job, sampling, stacks, out) for job in work[lane::lanes]]
            for lane in range(lanes)
        ]

    def _job(
        self, lane: int, lanes: int, start: int, queues: Sequence[Queue], sampling: Sampling,
        stacks: Stacks | LowRankStacks, out: list[list[Completion | None]],
    ) -> Job:  # fmt: skip
        """Run some queues of the members from `start` and put their completions where they belong."""

        def job(report: OnProgress, stop: threading.Event) -> None:
            slots = self._slots(queues, sampling.max_new_tokens, lanes)
            schedule: Schedule | DeviceSchedule
            with stacks.lent(start, len(queues)) if self.compiled else nullcontext() as stack:
                if self.kernels == "device":
                    decoder = self._decoder(start, len(queues))
                    schedule = DeviceSchedule(decoder, queues, sampling, self.eos, slots)
                else:
                    runner = self._runner(start, len(queues), lane, stack)
                    schedule = Schedule(runner, queues, sampling, self.eos, slots)
                schedule.run(report, stop)
            for member, queue in enumerate(queues):
                for request, completion in zip(
                    queue.order, schedule.results.completions(member), strict=True
                ):
                    out[start + member][request] = completion

        return job

    def conditions(self) -> dict[str, Any]:
        """JSON: what a result from this engine is tied to."""
        return {
            "engine": "torch",
            "numerics": NUMERICS_VERSION,
            "kernels": self.kernels,
            "fused": self.kernels == "device" and arithmetic_for(self.device).exact_lengths,
            "torch": torch.__version__,
            "isa": torch.backends.cpu.get_cpu_capability(),
            "threads": self.threads,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "members": self.members,
            "batch": self.batch,
            "slots": self.slots,
            "self_test": self.report,
        }

    def _runner(self, start: int, members: int, lane: int, stack: Stack | None) -> Runner:
        some = slice(start, start + members) if self._low_rank is None else slice(0, 1)
        buffers = self.buffers.members(some)
        if self.compiled:
            return CompiledRunner(buffers, self._rope(), self._spaces.setdefault(lane, Spaces()), stack)
        return self._portable(start, members)

    def _decoder(self, start: int, members: int) -> DeviceDecoder:
        """The decoder of some members; one is kept, as its cache is large. On a GPU there is one lane."""
        if self.device.type != "cuda":
            return DeviceDecoder(self._portable(start, members))
        if (start, members) not in self._decoders:
            self._decoders = {(start, members): DeviceDecoder(self._portable(start, members))}
        return self._decoders[start, members]

    def _portable(self, start: int, members: int) -> PortableRunner:
        """Fixed shapes on a GPU, where libraries choose kernels by the number of rows."""
        buffers = self.buffers.members(slice(start, start + members))
        return PortableRunner(buffers, self._rope(), fixed=self.device.type == "cuda")

    def _rope(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._tables is None:
            self._tables = rope_tables(self.spec, self.context, self.device)
        return self._tables

    def _slots(self, queues: Sequence[Queue], new: int, lanes: int) -> int:
        """Rows a member: no more than `cache_bytes` hold, each with its sequence and one loaded prompt."""
        prompt = max((len(p) for q in queues for p in q.prompts), default=1)
        positions = (prompt + new, prompt)
        each = (
            sum(Cache.bytes_per_slot(self.spec, n, self.dtype.itemsize) for n in positions)
            * len(queues)
            * lanes
        )
        slots = self.slots if self._low_rank is None else low_rank_slots(len(queues), self.slots)
        return max(ROW_MULTIPLE, min(slots, self.cache_bytes // each // ROW_MULTIPLE * ROW_MULTIPLE))


def packs(spec: ModelSpec, dtype: torch.dtype, batch: int, new: int) -> bool:
    """Whether a packed copy of a member's weights is worth its time and memory for completions of `new` tokens.

    Not for tiny models, which stay in a core's cache anyway, nor for batches of members.
    """
    fits = TINY < spec.parameters <= PACKED_BYTES // dtype.itemsize
    return dtype == torch.bfloat16 and batch == 1 and fits and new >= PACKED_STEPS


def default_slots(spec: ModelSpec, device: torch.device | None = None) -> int:
    """Rows a member decodes at once: 64 where a member's weights stay in a core's cache, 256 beyond and on a GPU.

    Measured: a tiny model's activations and keys must not push its weights out; a larger one reads its weights from
    memory every step and wants many rows for it.
    """
    on_cpu = device is None or device.type == "cpu"
    return 64 if on_cpu and spec.parameters <= TINY else 256


def default_cache_bytes(device: torch.device) -> int:
    """Most bytes of keys and values at once."""
    if device.type != "cuda":
        return CACHE_BYTES
    return int(torch.cuda.get_device_properties(device).total_memory) // CACHE_SHARE


def default_batch(members: int, device: torch.device) -> int:
    """Members decoded together: on the CPU one by one (its cache then holds one member), on a GPU all (launches)."""
    return 1 if device.type == "cpu" else members


def _choose(kernels: Kernels, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> bool:
    can = device.type == "cpu" and dtype in DTYPES
    if kernels == "compiled" and not can:
        raise UsageError(
            f"the compiled kernels run on the cpu in float32 or bfloat16; not on {device} in {dtype}",
            "leave kernels at auto",
        )
    return can and kernels not in ("portable", "device")


def _name(kernels: Kernels, compiled: bool, device: torch.device) -> Kernels:
    """What "auto" came to."""
    if kernels != "auto":
        return kernels
    return "compiled" if compiled else "device" if device.type == "cuda" else "portable"


def _eos_table(eos_ids: Collection[int], vocab: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    table = np.zeros(vocab, np.bool_)
    for token in eos_ids:
        if 0 <= token < vocab:
            table[token] = True
    return table


def _queues(requests: Sequence[Sequence[Request]]) -> list[Queue]:
    """One queue a member; lists shared by members are read once."""
    seen: dict[int, Queue] = {}
    return [seen[id(r)] if id(r) in seen else seen.setdefault(id(r), Queue.of(r)) for r in requests]
