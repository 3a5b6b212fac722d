"""N low-rank members over one set of weights: one product for all their rows, and each row's own correction.

    y = x W^T + s (x B_m) A_m^T      for the rows of member m, s = sigma / sqrt(r)
    h = W[id] + s A_m[id] B_m^T      for the embedding

A_m and B_m are the integers of `perturb.lowrank`, kept in 16 bits; vectors (norms, biases) are each member's own,
written as always. The materialised member (`perturb.write_member`) rounds its weights once to the working dtype
where this rounds y twice: the two agree up to rounding, not in bits. Within this mode a row's bits depend on
nothing else in the batch. Not here: the rest of a decode step (`compiled`), which members there are (`population`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from broaden.engines.base import Weights
from broaden.engines.compiled import Layer, Stack, heads_of
from broaden.engines.lowrank_math import correct, correct_rows
from broaden.engines.runner import ROW_MULTIPLE, Ints
from broaden.engines.weights import Buffers
from broaden.kernels import Array, host
from broaden.models.spec import ModelSpec
from broaden.perturb import NoiseSpec, lowrank, write_center, write_member

ROWS = 512  # of all members in one product; more gain nothing and leave the caches
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@runtime_checkable
class SharesBase(Protocol):
    """An engine that can run low-rank members over one set of weights (`TorchEngine` with compiled kernels)."""

    @property
    def shares_base(self) -> bool:
        """Whether it can with its kernels."""

    def low_rank(
        self, center: Weights, spec: NoiseSpec, members: Sequence[tuple[int, int]]
    ) -> AbstractContextManager[None]:
        """Inside the block `generate` is asked for these (number, sign), over the weights of member 0."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors of N members for a product that stacks one or more matrices of the same input.

    Attributes:
        a: int16 [N, r, out of the whole product].
        b: int16 [N, matrices, r, in].
        bounds: int64 [matrices, 2], the outputs from .. to that each of the perturbed matrices gives.
    """

    a: Array
    b: Array
    bounds: Ints

    def part(self, start: int, stop: int) -> Correction:
        """A range of members (views)."""
        return Correction(self.a[start:stop], self.b[start:stop], self.bounds)


class LowRankMembers:
    """What distinguishes N members of one step: factors, scales and vectors. Some 0.3 % of a model each at rank 1.

    Args:
        model: shapes.
        center: float32 weights by canonical name; its vectors are read.
        spec: noise with a rank.
        members: (number, sign) of each.
        dtype: working dtype, of the vectors here.
    """

    def __init__(
        self,
        model: ModelSpec,
        center: Weights,
        spec: NoiseSpec,
        members: Sequence[tuple[int, int]],
        dtype: torch.dtype,
    ) -> None:
        self.model, self.spec, self.dtype, self.count = model, spec, dtype, len(members)
        signs = np.array([sign for _, sign in members], np.float64)
        self.scale = (lowrank.scale_of(spec.sigma, spec.rank) * signs).astype(np.float32)
        self.vectors = _vectors(center, spec, members, dtype)
        factored = spec.factored(center) if spec.sigma > 0.0 else ()
        numbers = [number for number, _ in members]
        self.corrections = {
            group: _draw(spec, numbers, [(n, center[n].shape) for n in group], set(factored))
            for group in _products(model)
            if any(name in factored for name in group)
        }

    def part(self, start: int, stop: int) -> LowRankMembers:
        """A range of members (views)."""
        some = object.__new__(LowRankMembers)
        some.model, some.spec, some.dtype, some.count = self.model, self.spec, self.dtype, stop - start
        some.scale = self.scale[start:stop]
        some.vectors = {name: tensor[start:stop] for name, tensor in self.vectors.items()}
        some.corrections = {group: c.part(start, stop) for group, c in self.corrections.items()}
        return some

    def vector(self, names: Iterable[str]) -> Tensor:
        """The named vectors end to end [N, n]; [N, 0] where the model lacks them."""
        found = [self.vectors[name] for name in names if name in self.vectors]
        return torch.cat(found, 1) if found else torch.empty((self.count, 0), dtype=self.dtype)

    @property
    def bytes(self) -> int:
        """Memory of all members together."""
        held = sum(c.a.nbytes + c.b.nbytes for c in self.corrections.values())
        return held + sum(t.nbytes for t in self.vectors.values())


def _vectors(
    center: Weights, spec: NoiseSpec, members: Sequence[tuple[int, int]], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Every tensor that is no matrix, [N, n], perturbed in full rank where it is selected."""
    own = {name: tensor for name, tensor in center.items() if tensor.dim() != 2}
    out = {name: torch.empty((len(members), *t.shape), dtype=dtype) for name, t in own.items()}
    names = tuple(name for name in spec.names if name in own)
    for index, (number, sign) in enumerate(members):
        views = {name: tensor[index] for name, tensor in out.items()}
        if names:
            write_member(own, views, replace(spec, names=names), number, sign)
        else:
            write_center(own, views)
    return out


def _products(model: ModelSpec) -> list[tuple[str, ...]]:
    """The matrices of each product, in the order of their outputs."""
    groups: list[tuple[str, ...]] = [(EMBEDDING,)] if model.tied else [(EMBEDDING,), (HEAD,)]
    for layer in range(model.layers):
        groups += _layer_products(layer)
    return groups


def _layer_products(layer: int) -> list[tuple[str, ...]]:
    """qkv, output, gate_up, down."""
    parts = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
    kinds = ("self_attn", "self_attn", "mlp", "mlp")
    return [
        tuple(f"model.layers.{layer}.{kind}.{name}_proj.weight" for name in names)
        for kind, names in zip(kinds, parts, strict=True)
    ]


def _draw(
    spec: NoiseSpec, members: Sequence[int], group: Sequence[tuple[str, Sequence[int]]], factored: set[str]
) -> Correction:
    """Factors of one product's matrices."""
    count, rank = len(members), spec.rank
    ends = np.cumsum([shape[0] for _, shape in group])
    chosen = [(name, shape, end) for (name, shape), end in zip(group, ends, strict=True) if name in factored]
    a = np.zeros((count, rank, int(ends[-1])), np.int16)
    b = np.empty((count, len(chosen), rank, group[0][1][1]), np.int16)
    for index, (name, (rows, columns), end) in enumerate(chosen):
        keys = [spec.factor_keys(member, name) for member in members]
        drawn_a = lowrank.factors_of([key for key, _ in keys], rows * rank).reshape(count, rows, rank)
        drawn_b = lowrank.factors_of([key for _, key in keys], columns * rank).reshape(count, columns, rank)
        a[:, :, end - rows : end] = drawn_a.transpose(0, 2, 1)
        b[:, index] = drawn_b.transpose(0, 2, 1)
    bounds = np.array([(end - shape[0], end) for _, shape, end in chosen], np.int64)
    return Correction(a, b, bounds)


class SharedProduct:
    """y = x W^T + bias_m + correction_m for one W [1, out, in] and members with rows of their own."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, members: LowRankMembers, correction: Correction | None
    ) -> None:
        self.transposed = weight[0].t()
        self.members, self.scale, self.correction = members.count, members.scale, correction
        self.bias = bias[:, None, :] if bias is not None and bias.numel() else None

    def pack(self) -> None:
        """Nothing: products over so many rows gain 1 % from it, and weights would be held twice."""

    def into(self, x: Tensor, y: Tensor) -> None:
        """See `compiled.Into`; rows go through W in parts of at most ROWS."""
        for start in range(0, len(x), ROWS):
            torch.mm(x[start : start + ROWS], self.transposed, out=y[start : start + ROWS])
        if self.bias is not None:
            y.view(self.members, -1, y.shape[1]).add_(self.bias)
        if self.correction is not None:
            c = self.correction
            correct(host(x), host(y), c.a, c.b, c.bounds, self.scale, len(x) // self.members)


class LowRankStacks:
    """`compiled.Stacks` of low-rank members: every group's products are those of the one set of weights in `base`."""

    def __init__(self, base: Buffers, members: LowRankMembers) -> None:
        self.base, self.members = base, members

    @contextmanager
    def lent(self, start: int, members: int) -> Iterator[Stack]:
        """The products of the `members` from `start`, for one job."""
        some = self.members.part(start, start + members)
        parts = [some.part(m, m + 1) for m in range(members)] if members > 1 else []
        together = _stack(self.base, some)
        yield replace(together, alone=tuple(_stack(self.base, part) for part in parts))


def low_rank_slots(members: int, most: int) -> int:
    """Rows a member, so that all of them together are about ROWS: multiples of 16, no more than `most`."""
    return min(most, max(ROW_MULTIPLE, ROWS // members // ROW_MULTIPLE * ROW_MULTIPLE))


def _stack(base: Buffers, members: LowRankMembers) -> Stack:
    shared = members.corrections.get((EMBEDDING,))
    table = base.embedding[0]

    def embed(ids: Ints, out: Tensor) -> None:
        torch.index_select(table, 0, torch.from_numpy(np.maximum(ids, 0)), out=out)
        if shared is not None:
            correct_rows(host(out), ids, shared.a, shared.b[:, 0], members.scale, len(ids) // members.count)

    head = SharedProduct(
        base.head, None, members, shared if base.spec.tied else members.corrections.get((HEAD,))
    )
    layers = [_layer(base, members, index) for index in range(base.spec.layers)]
    multiple = ROW_MULTIPLE // math.gcd(ROW_MULTIPLE, members.count)  # all rows share a product
    norm = host(members.vector(["model.norm.weight"]))
    return Stack(members.count, layers, embed, norm, head, row_multiple=multiple)


def _layer(base: Buffers, members: LowRankMembers, index: int) -> Layer:
    b, prefix = base.layers[index], f"model.layers.{index}."
    weights = (b.qkv, b.output, b.gate_up, b.down)
    biased = (False, True, True, True)  # the bias of q, k and v is added by the attention kernel
    qkv, output, gate_up, down = (
        SharedProduct(weight, _bias(members, group) if own else None, members, members.corrections.get(group))
        for weight, own, group in zip(weights, biased, _layer_products(index), strict=True)
    )
    attention, norms = (
        [host(members.vector([f"{prefix}{name}.weight"])) for name in names]
        for names in (
            ("self_attn.q_norm", "self_attn.k_norm"),
            ("input_layernorm", "post_attention_layernorm"),
        )
    )
    bias = heads_of(base.spec, _bias(members, _layer_products(index)[0]))
    return Layer(qkv, output, gate_up, down, (norms[0], norms[1]), (bias, attention[0], attention[1]))


def _bias(members: LowRankMembers, group: Sequence[str]) -> Tensor:
    return members.vector(name.removesuffix("weight") + "bias" for name in group)
