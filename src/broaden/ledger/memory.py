"""Memory plans: what a stage holds at once, by arithmetic on a model's sizes.

Counted: anonymous and shared memory of the run's process and of its workers. Not counted: pages of mapped files (the
model, theta_0, the master of low-memory mode, libraries), which the system can drop and read again. The interpreter
with its libraries is a measured constant a process (`PROCESS`, `WORKER`). Phases that do not overlap (rollout,
training) take the larger one. With an engine on an accelerator what lies there is counted apart (`device`). Not here:
measuring, and what a machine has (`available`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from broaden.errors import MetricError

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
DType = Literal["float32", "bfloat16", "float16"]
MIB = 1 << 20

PROCESS, WORKER = 275 * MIB, 220 * MIB
"""Interpreter, torch, Numba, compiled kernels in the run's process and in a worker: measured (Linux, one thread)."""
TOKENIZER = 1400
"""Bytes a vocabulary entry of a loaded tokenizer, measured."""
LIBRARIES, MASTER, THETA_0 = "Python, torch, tokenizer", "master (fp32)", "theta_0 (fp32)"
CACHE_BYTES = 2 << 30
"""Most keys and values of one engine call (the engine's own default)."""
ROWS, POSITIONS, PROMPT_ROWS = 16, 64, 512
"""The engine's multiples of rows and of cached positions, and the prompt tokens of one pass."""
INTEGER, FLOAT = 36, 32
"""Bytes of a token id and of a number in a completion (Python objects with their pointers)."""
LOGIT_CHUNK = 1 << 24
"""Logits that exist at once in a training pass (`models.logprobs`)."""


class Shape(Protocol):
    """The sizes that a plan needs (`models.ModelSpec` has them, beside the parameter count)."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def vocab(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by name: `always` is held throughout, each phase is held in turn; `device` lies on the accelerator."""

    always: dict[str, int]
    phases: dict[str, dict[str, int]]
    device: dict[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Bytes of the machine's memory at the worst moment."""
        return sum(self.always.values()) + max((sum(p.values()) for p in self.phases.values()), default=0)

    @property
    def device_peak(self) -> int:
        """Bytes of the accelerator's."""
        return sum(self.device.values())

    def rows(self) -> list[tuple[str, str, int]]:
        """(when, what, bytes), with the peaks last."""
        out = [("always", what, size) for what, size in self.always.items()]
        out += [(when, what, size) for when, items in self.phases.items() for what, size in items.items()]
        out += [("device", what, size) for what, size in self.device.items()]
        return [*out, ("", "peak", self.peak), ("", "peak of the device", self.device_peak)]

    def table(self) -> str:
        """The rows as aligned text."""
        rows = [(when, what, human(size)) for when, what, size in self.rows() if size]
        widths = [max(len(r[i]) for r in rows) for i in range(3)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How one process draws completions.

    Attributes:
        rows, prompts: sequences that one engine call of a member (of its share of a lane) asks for, and distinct
            prompts among them.
        prompt, new: most tokens of a prompt and of a response.
        slots: most rows decoded at once.
        dtype: of weights, activations and cache.
        members: weight sets that live here at once.
        batch: members decoded in one batch.
        lanes: engine calls side by side, one a thread.
        numbers: kept a token beside its id: log-probability, entropy.
        packed: bfloat16 weights are held a second time during a call, once for each lane with a member of its own.
        factors: 16-bit values of the low-rank members that share one weight set.
        cache_bytes: most keys and values of all lanes.
    """

    rows: int
    prompts: int
    prompt: int
    new: int
    slots: int
    dtype: DType = "float32"
    members: int = 1
    batch: int = 1
    lanes: int = 1
    numbers: int = 0
    packed: bool = False
    factors: int = 0
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        if min(self.rows, self.prompts, self.prompt, self.new, self.slots, self.members, self.lanes) < 1:
            raise MetricError(f"every size of decoding is at least 1, got {self}")

    def seats(self, shape: Shape) -> int:
        """Rows of a member that are decoded at once: the engine's rule."""
        each = (
            _ceil(self.prompt + self.new, POSITIONS) + _ceil(self.prompt, POSITIONS)
        ) * kv_bytes_per_token(shape, self.dtype)
        fit = self.cache_bytes // (each * self.batch * self.lanes) // ROWS * ROWS
        return min(_ceil(self.rows, ROWS), max(ROWS, min(_ceil(self.slots, ROWS), fit)))

    def kept(self, shape: Shape, parameters: int) -> dict[str, int]:
        """What the engine holds from its first call on."""
        size, width, seats = BYTES[self.dtype], decode_width(shape), self.seats(shape)
        prompt_rows = min(PROMPT_ROWS, _ceil(self.prompts * max(1, self.prompt - 1), ROWS))
        rows = self.lanes * self.batch * seats
        kept = {
            "working copies": self.members * parameters * size,
            "decoding: activations and logits": (
                rows * (width + shape.vocab) + self.lanes * prompt_rows * width
            )
            * size,
        }
        return kept | ({"factors of low-rank members (16 bit)": 2 * self.factors} if self.factors else {})

    def rollout(self, shape: Shape, parameters: int) -> dict[str, int]:
        """What a call holds beside that: the caches of sequences and of prompts (none where each prompt has one sample
        and all sit at once), the packed weights, and the completions."""
        seats, calls = self.seats(shape), self.lanes * self.batch
        each = kv_bytes_per_token(shape, self.dtype)
        positions = seats * _ceil(self.prompt + self.new, POSITIONS)
        direct = self.prompts >= self.rows and self.rows <= seats
        prefixes = 0 if direct else min(self.prompts, seats) * _ceil(max(1, self.prompt - 1), POSITIONS)
        tokens = self.rows * max(self.members, calls) * self.new
        copies = min(self.members, self.lanes) * self.packed
        return {
            "KV cache": calls * positions * each,
            "KV cache of prompts": calls * prefixes * each,
            **({"packed weights": copies * parameters * BYTES[self.dtype]} if copies else {}),
            "completions": tokens * ((INTEGER if shape.vocab > 256 else 8) + 4 + self.numbers * (FLOAT + 4)),
        }


def plan_eval(
    shape: Shape,
    parameters: int,
    decoding: Decoding,
    *,
    samples: int,
    workers: int = 1,
    on_device: bool = False,
) -> MemoryPlan:
    """Evaluation: one weight set a process, what decoding takes, and `samples` samples that are kept to the end."""
    shared = {"weights that worker processes read (fp32)": 4 * parameters} if workers > 1 else {}
    kept = {"samples, as long as they may be": samples * (decoding.new * (INTEGER + 4) + 1500)}
    plan = MemoryPlan({**_base(shape, workers), **shared, **kept}, {})
    return _with_engines(plan, shape, parameters, decoding, workers, on_device)


def plan_es(
    shape: Shape,
    parameters: int,
    decoding: Decoding | None,
    *,
    workers: int = 1,
    low_memory: bool = False,
    theta_0: bool = False,
    probe: Decoding | None = None,
    on_device: bool = False,
) -> MemoryPlan:
    """ES: an fp32 master, working copies and decoding a process; no gradients, no optimiser state.

    Args:
        decoding: of a process; None: a random walk has none.
        low_memory: master and theta_0 lie in mapped files.
        theta_0: a float32 copy of it is kept (where it decays toward one that is stored in another type).
        probe: the same of the probes' engine, which stays beside the population's.
    """
    plan = MemoryPlan({**_base(shape, workers), **_masters(parameters, low_memory, theta_0)}, {})
    if decoding is not None:
        plan = _with_engines(plan, shape, parameters, decoding, workers, on_device)
    return plan if probe is None else _with_probe(plan, shape, parameters, probe, workers, on_device)


def plan_grpo(
    shape: Shape,
    parameters: int,
    decoding: Decoding,
    *,
    micro_batch: int,
    compute: DType = "float32",
    workers: int = 1,
    low_memory: bool = False,
    checkpointing: bool = False,
    factors: int = 0,
    adapted: int = 0,
    adapted_kept: bool = False,
    group: int = 1,
    probe: Decoding | None = None,
    on_device: bool = False,
) -> MemoryPlan:
    """GRPO with AdamW: master, gradients and two moments in fp32, activations of a micro-batch.

    theta_0 and the reference of the KL term are read from mapped files.

    Args:
        micro_batch: sequences in a backward pass.
        compute: type of the forward and backward passes.
        checkpointing: only layer inputs are kept.
        factors: LoRA's trained values; 0: the weights themselves are trained.
        adapted: with LoRA, parameters of the adapted matrices: what gradients are kept of.
        adapted_kept: those are kept as they were too (where they are not stored in float32).
        group: sequences of one prompt, which is passed once for those in a micro-batch.
    """
    low_rank = {
        "factors of LoRA (fp32)": 4 * factors,
        "adapted matrices as they were (fp32)": 4 * adapted * adapted_kept,
    }
    always = {
        **_base(shape, workers), **_masters(parameters, low_memory, False), **(low_rank if factors else {}),
        "AdamW moments (fp32)": 8 * (factors or parameters),
    }  # fmt: skip
    prompts = -(-micro_batch // group)
    training = training_bytes(
        shape, parameters, tokens=prompts * decoding.prompt + micro_batch * decoding.new, compute=compute,
        trained=adapted if factors else parameters, checkpointing=checkpointing, packed=True,
    )  # fmt: skip
    plan = _with_engines(MemoryPlan(always, {}), shape, parameters, decoding, workers, on_device)
    plan = replace(plan, phases={**plan.phases, "training": training})
    return plan if probe is None else _with_probe(plan, shape, parameters, probe, workers, on_device)


def plan_sft(
    shape: Shape,
    parameters: int,
    *,
    micro_batch: int,
    context: int,
    noisy: bool = False,
    low_memory: bool = False,
) -> MemoryPlan:
    """A warm start with AdamW in fp32; `noisy`: the passes see a noisy copy of the weights."""
    always = {
        **_base(shape, 1), **_masters(parameters, low_memory, False), "AdamW moments (fp32)": 8 * parameters,
        "noisy copy (fp32)": 4 * parameters if noisy else 0,
    }  # fmt: skip
    training = training_bytes(shape, parameters, tokens=micro_batch * context, trained=parameters)
    return MemoryPlan(always, {"training": training})


def training_bytes(
    shape: Shape,
    parameters: int,
    *,
    tokens: int,
    trained: int,
    compute: DType = "float32",
    checkpointing: bool = False,
    packed: bool = False,
) -> dict[str, int]:
    """What a forward and backward pass over `tokens` tokens (padding counts) holds: the one formula of all trainers.

    Args:
        trained: parameters of the tensors that have a gradient.
        packed: the pass is `models.packed_decoder`, else `models.decoder`.
    """
    size = BYTES[compute]
    layer = packed_activations(shape, compute) if packed else layer_activations(shape, compute)
    kept = shape.layers * shape.hidden * size + layer if checkpointing else shape.layers * layer
    return {
        "gradients (fp32)": 4 * trained,
        "weights cast for the passes": parameters * size if size != 4 else 0,
        "gradient of the head beside that of the embedding": 2 * 4 * shape.vocab * shape.hidden,
        "activations": tokens * kept,
        "logits and their gradient": (2 if packed else 4) * 4 * min(LOGIT_CHUNK, tokens * shape.vocab),
    }


def kv_bytes_per_token(shape: Shape, dtype: DType) -> int:
    """Keys and values of one token in all layers: 2 layers kv_heads head_dim bytes."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * BYTES[dtype]


def decode_width(shape: Shape) -> int:
    """Values a row that decoding holds, logits left out: h, x, delta (3 hidden), q, k, v and the attention's output,
    gate, up and their product (3 ffn)."""
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    return 3 * shape.hidden + attention + 3 * shape.ffn


def packed_activations(shape: Shape, dtype: DType) -> int:
    """Bytes a token that one layer of `models.packed_decoder` keeps: inputs and outputs of two norms (4 hidden); q, k,
    v and the attention's output (2 heads head_dim + 2 kv_heads head_dim); gate, up and their product (3 ffn)."""
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    return BYTES[dtype] * (4 * shape.hidden + attention + 3 * shape.ffn)


def layer_activations(shape: Shape, dtype: DType) -> int:
    """Bytes a token that one decoder layer keeps for its backward pass (`models.decoder.layer`).

    Two norms' inputs, normed values and outputs (6 hidden); q and k before and after rotation, v, k and v repeated for
    all heads, the attention's output as it comes and as o takes it (6 heads head_dim + 3 kv_heads head_dim); gate, up,
    silu, product (4 ffn). Below float32 the norms and the rotation keep float32 copies of their inputs beside.
    """
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    width = 6 * shape.hidden + 6 * heads + 3 * kv_heads + 4 * shape.ffn
    wide = 0 if dtype == "float32" else 4 * shape.hidden + heads + kv_heads
    return BYTES[dtype] * width + 4 * wide


def with_self_test(plan: MemoryPlan, shape: Shape, dtype: DType) -> MemoryPlan:
    """The plan with the engine's self-test (`engines.selftest.reduced`: three small weight sets at most), which comes
    before engines, workers and optimiser are there: only what it needs beyond these counts."""
    hidden, heads, kv_heads = (
        min(shape.hidden, 1024),
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    )
    layer = hidden * (2 * heads + 2 * kv_heads) + 3 * hidden * min(shape.ffn, 4096)
    needed = 3 * BYTES[dtype] * (min(shape.layers, 2) * layer + min(shape.vocab, 512) * hidden)
    later = sum(size for what, size in plan.always.items() if what not in (LIBRARIES, MASTER, THETA_0))
    return replace(plan, phases={**plan.phases, "self-test": {"beyond the engine": max(0, needed - later)}})


def _base(shape: Shape, workers: int) -> dict[str, int]:
    """Interpreters, libraries, tokenizers."""
    tokenizer = TOKENIZER * shape.vocab
    out = {LIBRARIES: PROCESS + tokenizer}
    if workers > 1:
        out[f"the same in {workers} workers"] = workers * (WORKER + tokenizer)
    return out


def _masters(parameters: int, low_memory: bool, theta_0: bool) -> dict[str, int]:
    return {
        MASTER: 0 if low_memory else 4 * parameters,
        THETA_0: 4 * parameters if theta_0 and not low_memory else 0,
    }


def _with_engines(
    plan: MemoryPlan, shape: Shape, parameters: int, decoding: Decoding, workers: int, on_device: bool
) -> MemoryPlan:
    """The plan with an engine in this process, or in each worker."""
    kept = {k: workers * v for k, v in decoding.kept(shape, parameters).items()}
    kept = {f"working copies ({workers} x {decoding.members})": kept.pop("working copies"), **kept}
    rollout = {k: workers * v for k, v in decoding.rollout(shape, parameters).items()}
    if on_device:
        return replace(plan, device={**plan.device, **kept, **rollout})
    return replace(plan, always={**plan.always, **kept}, phases={**plan.phases, "rollout": rollout})


def _with_probe(
    plan: MemoryPlan, shape: Shape, parameters: int, probe: Decoding, workers: int, on_device: bool
) -> MemoryPlan:
    """The plan with the probes' engines beside it, in processes of their own where the population's are."""
    more = {"probe: the same in workers": workers * (WORKER + TOKENIZER * shape.vocab)} if workers > 1 else {}
    kept = {f"probe: {k}": workers * v for k, v in probe.kept(shape, parameters).items()}
    rollout = {k: workers * v for k, v in probe.rollout(shape, parameters).items()}
    if on_device:
        return replace(plan, always={**plan.always, **more}, device={**plan.device, **kept})
    return replace(plan, always={**plan.always, **more, **kept}, phases={**plan.phases, "probe": rollout})


def _ceil(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def human(size: int) -> str:
    """Bytes in binary units with three figures."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return (
                f"{value:.0f} {unit}"
                if unit == "B"
                else f"{value:.3g} {unit}"
                if value < 999.5
                else f"{value:.0f} {unit}"
            )
        value /= 1024
    return f"{value:.3g} TiB"
