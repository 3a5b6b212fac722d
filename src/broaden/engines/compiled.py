"""The CPU runner: matrix products by torch (one a member, or one batched), everything between them by Numba.

Products see a multiple of 16 rows a member, so that a row's bits do not depend on how many rows there are;
the rest works row by row over exact lengths. Float32 and bfloat16.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broaden.engines import packing
from broaden.engines.packing import Packed
from broaden.engines.runner import ROW_MULTIPLE, Cache, Drawn, Ints, round_up, table_index
from broaden.engines.sampling import sample_rows
from broaden.engines.weights import Buffers
from broaden.errors import DivergedError
from broaden.kernels import Array, host
from broaden.kernels.attention import TILE, attend, copy_slots, value_width
from broaden.kernels.rowmath import add_norm, swiglu
from broaden.models.spec import ModelSpec
from broaden.records import Sampling

PROMPT_ROWS = 512  # prompt tokens in one pass
DTYPES = (torch.float32, torch.bfloat16)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages are taken from the system when they are first written (torch.zeros writes them all)."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(np.zeros(shape, np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(np.zeros(shape, np.float32))


class Into(Protocol):
    """A matrix product of a stack (`Product`, or `lowrank.SharedProduct` around one)."""

    def into(self, x: Tensor, y: Tensor) -> None:
        """Write the product of x [rows, in] to y [rows, out], rows member-major."""

    def pack(self) -> None:
        """Take a copy of the one member's weight in the library's own layout, where that changes no bit."""


class Product:
    """y = x W^T for stacked W [N, out, in]: one plain product, or one batched product over members."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.members, self.width, _ = weight.shape
        self.transposed = weight[0].t() if self.members == 1 else weight.transpose(1, 2)
        self.bias = bias[:, None, :] if bias is not None and bias.numel() else None
        self.packed: Packed | None = None

    def pack(self) -> None:
        """Take a copy of the one member's weight in the library's own layout, where that changes no bit."""
        self.packed = packing.pack(self.transposed.t())

    def into(self, x: Tensor, y: Tensor) -> None:
        """Write the product of x [rows, in] to y [rows, out], rows member-major."""
        if self.packed is not None:
            y.copy_(packing.product(x, self.packed))
        elif self.members == 1:
            torch.mm(x, self.transposed, out=y)
        else:
            torch.bmm(
                x.view(self.members, -1, x.shape[1]),
                self.transposed,
                out=y.view(self.members, -1, self.width),
            )
        if self.bias is not None:
            y.view(self.members, -1, self.width).add_(self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's products and arrays; norms [N, H], attention: bias [N, heads + 2 kv, d], q_norm, k_norm [N, d]."""

    qkv: Into
    output: Into
    gate_up: Into
    down: Into
    norms: tuple[Array, Array]
    attention: tuple[Array, Array, Array]


@dataclass(frozen=True, slots=True)
class Stack:
    """The products and arrays of a range of members.

    Attributes:
        embed: writes the embeddings of ids [rows], member-major (negative: padding).
        alone: each member by itself; empty where there is one.
        row_multiple: rows of a member come in multiples of this where products are not packed.
    """

    members: int
    layers: Sequence[Layer]
    embed: Callable[[Ints, Tensor], None]
    norm: Array
    head: Into
    alone: tuple[Stack, ...] = ()
    row_multiple: int = ROW_MULTIPLE

    @classmethod
    def of(cls, buffers: Buffers) -> Stack:
        """Of members with weights of their own."""
        spec, count = buffers.spec, buffers.count
        table = buffers.embedding.reshape(-1, spec.hidden)

        def embed(ids: Ints, out: Tensor) -> None:
            torch.index_select(table, 0, table_index(ids, count, spec.vocab), out=out)

        layers = [layer_of(buffers, i) for i in range(spec.layers)]
        parts = [buffers.members(slice(m, m + 1)) for m in range(count)] if count > 1 else []
        alone = tuple(cls.of(part) for part in parts)
        return cls(count, layers, embed, host(buffers.norm), Product(buffers.head), alone)

    def pack(self) -> None:
        """Pack every product of one member: many steps over few rows are worth the second copy of the weights."""
        for product in self._products():
            product.pack()

    @property
    def packed(self) -> bool:
        """Whether every product is packed (of low-rank members none counts: their corrections are not)."""
        return all(isinstance(p, Product) and p.packed is not None for p in self._products())

    def _products(self) -> list[Into]:
        inner = (p for layer in self.layers for p in (layer.qkv, layer.output, layer.gate_up, layer.down))
        return [*inner, self.head]


def layer_of(buffers: Buffers, index: int) -> Layer:
    """One layer of members with weights of their own."""
    b = buffers.layers[index]
    return Layer(
        Product(b.qkv), Product(b.output, b.output_bias), Product(b.gate_up, b.gate_up_bias),
        Product(b.down, b.down_bias), (host(b.input_norm), host(b.mlp_norm)),
        (heads_of(buffers.spec, b.qkv_bias), host(b.q_norm), host(b.k_norm)),
    )  # fmt: skip


def heads_of(spec: ModelSpec, bias: Tensor) -> Array:
    """A bias of q, k and v [N, (heads + 2 kv) d] by heads; an empty one stays empty."""
    heads = spec.heads + 2 * spec.kv_heads if bias.numel() else 0
    return host(bias).reshape(len(bias), heads, spec.head_dim)


class Stacks:
    """The products of groups of members during one call: made by the first of a group's jobs, dropped by the last.

    Args:
        starts: first member of each group.
        parts: jobs that each group has.
        pack: whether groups of one member are packed.
    """

    def __init__(self, buffers: Buffers, starts: Sequence[int], parts: int, pack: bool) -> None:
        self.buffers, self.pack = buffers, pack
        self.locks = {start: threading.Lock() for start in starts}
        self.left = dict.fromkeys(starts, parts)
        self.made: dict[int, Stack] = {}

    @contextmanager
    def lent(self, start: int, members: int) -> Iterator[Stack]:
        """The products of the `members` from `start`, for one job."""
        with self.locks[start]:
            if start not in self.made:
                self.made[start] = Stack.of(self.buffers.members(slice(start, start + members)))
                if self.pack and members == 1:
                    self.made[start].pack()
        try:
            yield self.made[start]
        finally:
            with self.locks[start]:
                self.left[start] -= 1
                if not self.left[start]:
                    del self.made[start]


class Space:
    """Activations of a number of rows, as tensors and as arrays over the same memory."""

    def __init__(self, spec: ModelSpec, storage: dict[str, Tensor], rows: int) -> None:
        self.tensor = {name: tensor[:rows] for name, tensor in storage.items()}
        self.array = {name: host(tensor) for name, tensor in self.tensor.items()}
        self.qkv = self.array["qkv"].reshape(rows, -1, spec.head_dim)
        self.gate_up = self.array["gate_up"].reshape(rows, 2, spec.ffn)
        self.mixed = self.array["mixed"].reshape(rows, -1, spec.head_dim)


class Spaces:
    """Memory for the activations of up to the most rows asked for so far, cut to any number of them."""

    def __init__(self) -> None:
        self.most: dict[bool, int] = {}
        self.storage: dict[bool, dict[str, Tensor]] = {}
        self.cut: dict[tuple[bool, int], Space] = {}

    def space(self, spec: ModelSpec, like: Tensor, rows: int, head: bool) -> Space:
        """Room for `rows` rows, with logits where `head`."""
        if rows > self.most.get(head, 0):
            widths = {"h": spec.hidden, "x": spec.hidden, "qkv": spec.qkv_width, "mixed": spec.heads * spec.head_dim,
                      "gate_up": 2 * spec.ffn, "act": spec.ffn, "delta": spec.hidden,
                      "logits": spec.vocab if head else 0}  # fmt: skip
            self.storage[head] = {name: like.new_zeros((rows, width)) for name, width in widths.items()}
            self.most[head] = rows
            self.cut = {key: space for key, space in self.cut.items() if key[0] != head}
        if (head, rows) not in self.cut:
            self.cut[head, rows] = Space(spec, self.storage[head], rows)
        return self.cut[head, rows]


class CompiledRunner:
    """`Runner` on the CPU for a range of members.

    Args:
        tables: cos and sin of `rope_tables`.
        spaces: activations; runners that are never active together may share them.
        stack: the buffers' products, which any runners may share.
    """

    def __init__(
        self, buffers: Buffers, tables: tuple[Tensor, Tensor], spaces: Spaces, stack: Stack | None = None
    ) -> None:
        self.spec, self.buffers = buffers.spec, buffers
        self.stack = stack or Stack.of(buffers)
        self.single = self.stack.alone or (self.stack,)
        self.cos, self.sin = (t.numpy() for t in tables)
        self.spaces = spaces

    @property
    def members(self) -> int:
        """Members in the batch."""
        return self.stack.members

    @property
    def row_multiple(self) -> int:
        """See `Runner`."""
        return packing.FEW if self.stack.packed else self.stack.row_multiple

    def cache(self, slots: int, positions: int) -> Cache:
        """An empty cache in tiles; its pages are touched only as far as sequences grow."""
        spec, tiles = self.spec, round_up(max(positions, 1), TILE) // TILE
        outer, dtype = (spec.layers, slots, spec.kv_heads, tiles), self.buffers.norm.dtype
        return Cache(
            _lazy_zeros((*outer, spec.head_dim, TILE), dtype),
            _lazy_zeros((*outer, TILE, value_width(spec.head_dim)), dtype),
        )

    def prompts(
        self, member: int, prompts: Sequence[Sequence[int]], cache: Cache, slots: Sequence[int]
    ) -> None:
        """Prompts are packed end to end and cut into passes of at most PROMPT_ROWS tokens."""
        ids, positions, places = _packed(prompts, slots)
        for start in range(0, len(ids), PROMPT_ROWS):
            part = slice(start, start + PROMPT_ROWS)
            a, b, c = _padded(ids[part]), _padded(positions[part]), _padded(places[part])
            self._hidden(self.single[member], a, b, c, cache, None)

    def logits(self, ids: Ints, positions: Ints, cache: Cache) -> Tensor:
        """One decode step."""
        space = self._space(len(ids), head=True)
        self._hidden(self.stack, ids, positions, np.arange(len(ids)), cache, space)
        self.stack.head.into(space.tensor["x"], space.tensor["logits"])
        return space.tensor["logits"]

    def sample(
        self, logits: Tensor, rows: Ints, sampling: Sampling, keys: NDArray[np.uint64], counts: Ints
    ) -> Drawn:
        """Draw in compiled code."""
        n = logits.shape[0]
        drawn = Drawn(np.zeros(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.float32))
        bad = sample_rows(
            host(logits), rows, sampling.temperature, keys, counts, sampling.logprobs, sampling.entropy,
            drawn.tokens, drawn.logprobs, drawn.entropies,
        )  # fmt: skip
        if bad >= 0:
            raise DivergedError("the model's logits are not finite: its weights have diverged")
        return drawn

    def copy(self, source: Cache, target: Cache, from_slots: Ints, to_slots: Ints, lengths: Ints) -> None:
        """Copy in compiled code, slot by slot in the order given."""
        for a, b in ((source.keys, target.keys), (source.values, target.values)):
            copy_slots(host(a.flatten(4)), host(b.flatten(4)), from_slots, to_slots, lengths)

    def _space(self, rows: int, head: bool) -> Space:
        return self.spaces.space(self.spec, self.buffers.norm, rows, head)

    def _hidden(
        self, stack: Stack, ids: Ints, positions: Ints, slots: Ints, cache: Cache, space: Space | None
    ) -> None:
        """Run all layers on a row each; `space` None: only the caches are wanted, so the last layer stops there."""
        whole = space is not None
        s = space or self._space(len(ids), head=False)
        t, a, each, eps = s.tensor, s.array, len(ids) // stack.members, self.spec.norm_eps
        stack.embed(ids, t["h"])
        has_delta = False
        for layer, (keys, values) in zip(stack.layers, _layer_arrays(cache), strict=True):
            write_only = not whole and layer is stack.layers[-1]
            add_norm(a["h"], a["delta"], has_delta, layer.norms[0], each, eps, a["x"])
            layer.qkv.into(t["x"], t["qkv"])
            attend(s.qkv, *layer.attention, each, eps, self.cos, self.sin, positions, slots, keys, values,
                   write_only, s.mixed)  # fmt: skip
            if write_only:
                return
            layer.output.into(t["mixed"], t["delta"])
            add_norm(a["h"], a["delta"], True, layer.norms[1], each, eps, a["x"])
            layer.gate_up.into(t["x"], t["gate_up"])
            swiglu(s.gate_up, a["act"])
            layer.down.into(t["act"], t["delta"])
            has_delta = True
        add_norm(a["h"], a["delta"], has_delta, stack.norm, each, eps, a["x"])


def _layer_arrays(cache: Cache) -> Iterator[tuple[Array, Array]]:
    return zip(host(cache.keys), host(cache.values), strict=True)


def _packed(prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """(ids, positions, slots) of all tokens of all prompts, end to end."""
    lengths = np.array([len(p) for p in prompts], np.int64)
    ids = np.fromiter((i for p in prompts for i in p), np.int64, int(lengths.sum()))
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return ids, np.arange(len(ids)) - starts, np.repeat(np.asarray(slots, np.int64), lengths)


def _padded(x: Ints) -> Ints:
    """Padded with -1 to a multiple of 16 rows (ids: position -1 marks them, token 0 stands in)."""
    return np.pad(x, (0, round_up(len(x), ROW_MULTIPLE) - len(x)), constant_values=-1)
