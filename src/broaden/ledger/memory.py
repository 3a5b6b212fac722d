"""Memory plans: what a stage holds at once, by arithmetic on a model's sizes.

A plan counts tensors that the code allocates, not the allocator's slack or the interpreter with its libraries
(0.3 to 0.5 GiB a process). Phases that do not overlap (rollout, training) take the larger one. Not here: measuring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from broaden.errors import MetricError

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
DType = Literal["float32", "bfloat16", "float16"]


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
    """Bytes by name: `always` is held throughout, each phase is held in turn."""

    always: dict[str, int]
    phases: dict[str, dict[str, int]]

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        return sum(self.always.values()) + max((sum(p.values()) for p in self.phases.values()), default=0)

    def rows(self) -> list[tuple[str, str, int]]:
        """(when, what, bytes), with the peak last."""
        out = [("always", what, size) for what, size in self.always.items()]
        out += [(when, what, size) for when, items in self.phases.items() for what, size in items.items()]
        return [*out, ("", "peak", self.peak)]

    def table(self) -> str:
        """The rows as aligned text."""
        rows = [(when, what, human(size)) for when, what, size in self.rows() if size]
        widths = [max(len(r[i]) for r in rows) for i in range(3)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)


def plan_eval(
    shape: Shape, parameters: int, *, slots: int, context: int, dtype: DType = "float32"
) -> MemoryPlan:
    """Evaluation: one weight set, and what decoding `slots` sequences of `context` tokens takes."""
    return MemoryPlan(
        {"weights": parameters * BYTES[dtype]},
        {"rollout": rollout_bytes(shape, slots=slots, context=context, dtype=dtype)},
    )


def plan_es(
    shape: Shape,
    parameters: int,
    *,
    members_at_once: int,
    slots: int,
    context: int,
    dtype: DType = "float32",
    workers: int = 1,
    anchor: bool = True,
    largest_tensor: int | None = None,
    packed: int = 0,
    low_rank: int = 0,
) -> MemoryPlan:
    """ES: an fp32 master, one working copy a member at once and worker; no gradients, no optimiser state.

    Args:
        slots: sequences decoded at once by a worker, over all its members.
        anchor: theta_0 is kept (drift, decay).
        largest_tensor: elements of the largest tensor (default: the embedding): the update sums it in 64 bits.
        packed: weight sets that rollouts hold a second time, packed, over all workers.
        low_rank: 16-bit factors of a worker's low-rank members, which share one working copy.
    """
    largest = largest_tensor if largest_tensor is not None else shape.vocab * shape.hidden
    rollout = rollout_bytes(shape, slots=slots, context=context, dtype=dtype)
    return MemoryPlan(
        {
            "master (fp32)": 4 * parameters,
            "anchor theta_0 (fp32)": 4 * parameters if anchor else 0,
            **({"copy that worker processes read (fp32)": 4 * parameters} if workers > 1 else {}),
            f"working copies ({workers} x {members_at_once})": workers
            * members_at_once
            * parameters
            * BYTES[dtype],
            **({"factors of low-rank members (16 bit)": workers * 2 * low_rank} if low_rank else {}),
        },
        {
            "rollout": {what: workers * size for what, size in rollout.items()}
            | _packed(packed, parameters, dtype),
            "update": {"sum of the largest tensor (64 bit)": 8 * largest},
        },
    )


def plan_grpo(
    shape: Shape,
    parameters: int,
    *,
    slots: int,
    context: int,
    micro_batch: int,
    dtype: DType = "float32",
    compute: DType = "float32",
    anchor: bool = True,
    stage_start: bool = False,
    logit_rows: int = 1024,
    checkpointing: bool = False,
    factors: int = 0,
    adapted: int = 0,
    adapted_kept: bool = False,
    packed: int = 0,
) -> MemoryPlan:
    """GRPO with AdamW: master, gradients and two moments in fp32, activations of a micro-batch.

    Args:
        micro_batch: sequences of `context` tokens in a backward pass.
        dtype, compute: type of the rollouts' working copy, and of the forward and backward passes.
        anchor: theta_0 is kept (drift, and the KL term's reference where that is theta_0).
        stage_start: another reference is kept beside it.
        logit_rows: tokens whose logits exist at once (losses are computed in chunks).
        checkpointing: only layer inputs are kept.
        factors: LoRA's trained values; 0: the weights themselves are trained.
        adapted: with LoRA, parameters of the adapted matrices: what gradients are kept of.
        adapted_kept: those are kept as they were too (a stage that does not begin at theta_0).
        packed: weight sets that rollouts hold a second time, packed.
    """
    low_rank = {
        "factors of LoRA (fp32)": 4 * factors,
        "adapted matrices as they were (fp32)": 4 * adapted * adapted_kept,
    }
    return MemoryPlan(
        {
            "master (fp32)": 4 * parameters,
            **(low_rank if factors else {}),
            "AdamW moments (fp32)": 8 * (factors or parameters),
            "anchor theta_0 (fp32)": 4 * parameters if anchor else 0,
            "reference (fp32)": 4 * parameters if stage_start else 0,
            "working copy": parameters * BYTES[dtype],
        },
        {
            "rollout": rollout_bytes(shape, slots=slots, context=context, dtype=dtype)
            | _packed(packed, parameters, dtype),
            "training": {
                **_training(shape, parameters, micro_batch * context, compute, logit_rows, checkpointing),
                "gradients (fp32)": 4 * (adapted if factors else parameters),
            },
        },
    )


def plan_sft(
    shape: Shape,
    parameters: int,
    *,
    micro_batch: int,
    context: int,
    noisy: bool = False,
    logit_rows: int = 1024,
) -> MemoryPlan:
    """A warm start with AdamW in fp32; `noisy`: the passes see a noisy copy of the weights."""
    return MemoryPlan(
        {
            "master (fp32)": 4 * parameters,
            "AdamW moments (fp32)": 8 * parameters,
            "anchor theta_0 (fp32)": 4 * parameters,
            "noisy copy (fp32)": 4 * parameters if noisy else 0,
        },
        {"training": _training(shape, parameters, micro_batch * context, "float32", logit_rows, False)},
    )


def _training(
    shape: Shape, parameters: int, tokens: int, compute: DType, logit_rows: int, checkpointing: bool
) -> dict[str, int]:
    """What a forward and backward pass over `tokens` tokens holds."""
    size = BYTES[compute]
    inner = shape.hidden if checkpointing else layer_activation_width(shape)
    return {
        "gradients (fp32)": 4 * parameters,
        "weights cast for the passes": parameters * size if size != 4 else 0,
        "activations": tokens * shape.layers * inner * size
        + (tokens * layer_activation_width(shape) * size if checkpointing else 0),
        "logits and their gradient": 3 * 4 * min(logit_rows, tokens) * shape.vocab,
    }


def rollout_bytes(shape: Shape, *, slots: int, context: int, dtype: DType) -> dict[str, int]:
    """KV cache, logits (float32, with the exponentials) and working activations of decoding."""
    if min(slots, context) < 1:
        raise MetricError(f"slots and context must be at least 1, got {slots} and {context}")
    return {
        "KV cache": slots * context * kv_bytes_per_token(shape, dtype),
        "logits": 2 * 4 * slots * shape.vocab,
        "activations": slots * layer_activation_width(shape) * BYTES[dtype],
    }


def _packed(copies: int, parameters: int, dtype: DType) -> dict[str, int]:
    return {"packed weights": copies * parameters * BYTES[dtype]} if copies else {}


def kv_bytes_per_token(shape: Shape, dtype: DType) -> int:
    """Keys and values of one token in all layers: 2 layers kv_heads head_dim bytes."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * BYTES[dtype]


def layer_activation_width(shape: Shape) -> int:
    """Values a token that one decoder layer keeps for its backward pass.

    Two norms' inputs and outputs (4 hidden), q, k, v and the attention output before o
    (2 heads head_dim + 2 kv_heads head_dim), gate, up, their activation and product (4 ffn).
    """
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    return 4 * shape.hidden + attention + 4 * shape.ffn


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
