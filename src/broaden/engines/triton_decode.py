# mypy: allow-untyped-defs, allow-incomplete-defs
"""What lies between the products of a decode step, by Triton: norm, rotation and cache, attention, SwiGLU, draw.

    h += delta, x = n(h) w          q, k = rope(n(q)), rope(n(k)) and k, v into the cache
    o = softmax(q K^T / sqrt(d)) V over positions 0 .. the row's own          y = silu(gate) up

A program works on one row (and one head), over its exact length and in an order that depends on nothing else, so what
else is in the batch cannot reach a row's bits, and no length has to be recorded. Arithmetic is float32 with the same
roundings to the stored dtype as `portable`. Importing this needs triton; the kernels also run under TRITON_INTERPRET=1
on CPU tensors (tests/unit/engines/test_triton_decode.py). Not here: the step (`fused`).
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # positions that attention takes at a time
QUERIES = 16  # least rows of a product on tensor cores: the query heads of one key/value head, filled up
LOGITS = 1024  # logits of a program
FUSION = True  # said at every launch: Triton warns where it is not, as its default is about to change
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # its products take bfloat16 bits for integers


@triton.jit
def _add_norm(h, delta, weight, out, eps, each, width, ADD: tl.constexpr, SIZE: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, SIZE)
    inside, at = column < width, row * width + column
    value = tl.load(h + at, mask=inside, other=0.0)
    if ADD:
        more = tl.load(delta + at, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(h + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    w = tl.load(weight + row // each * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (wide * scale * w).to(value.dtype), mask=inside)


@triton.jit
def _rope(
    qkv, q_norm, k_norm, cos, sin, positions, q, keys, values, eps, each, heads, kv_heads, capacity,
    NORM: tl.constexpr, HALF: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, SIZE)
    inside = i < HALF
    source = qkv + (row * (heads + 2 * kv_heads) + head) * (2 * HALF) + i
    first, second = tl.load(source, mask=inside, other=0.0), tl.load(source + HALF, mask=inside, other=0.0)
    place = tl.load(positions + row)
    if head >= heads + kv_heads:
        cell = (row.to(tl.int64) * kv_heads + head - heads - kv_heads) * capacity + place
        tl.store(values + cell * (2 * HALF) + i, first, mask=inside)
        tl.store(values + cell * (2 * HALF) + HALF + i, second, mask=inside)
    else:
        a, b = first.to(tl.float32), second.to(tl.float32)
        if NORM:
            scale = tl.rsqrt((tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)) / (2 * HALF) + eps)
            w = row // each * (2 * HALF) + i
            if head < heads:
                left = tl.load(q_norm + w, mask=inside, other=0.0)
                right = tl.load(q_norm + HALF + w, mask=inside, other=0.0)
            else:
                left = tl.load(k_norm + w, mask=inside, other=0.0)
                right = tl.load(k_norm + HALF + w, mask=inside, other=0.0)
            a = (a * scale * left.to(tl.float32)).to(first.dtype).to(tl.float32)
            b = (b * scale * right.to(tl.float32)).to(first.dtype).to(tl.float32)
        c = tl.load(cos + place * HALF + i, mask=inside, other=0.0)
        s = tl.load(sin + place * HALF + i, mask=inside, other=0.0)
        turned, crossed = (a * c - b * s).to(first.dtype), (b * c + a * s).to(first.dtype)
        if head < heads:
            target = q + (row * heads + head) * (2 * HALF) + i
            tl.store(target, turned, mask=inside)
            tl.store(target + HALF, crossed, mask=inside)
        else:
            cell = (row.to(tl.int64) * kv_heads + head - heads) * capacity + place
            tl.store(keys + cell * (2 * HALF) + i, turned, mask=inside)
            tl.store(keys + cell * (2 * HALF) + HALF + i, crossed, mask=inside)


@triton.jit
def _dot(a, b, WIDE: tl.constexpr):
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _attend(
    q, keys, values, positions, out, scale, kv_heads, capacity,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    row, kv = tl.program_id(0), tl.program_id(1)
    g, i = tl.arange(0, ROWS), tl.arange(0, SIZE)
    at = ((row * kv_heads + kv) * GROUP + g)[:, None] * WIDTH + i[None, :]
    asked = (g < GROUP)[:, None] & (i < WIDTH)[None, :]
    query = tl.load(q + at, mask=asked, other=0.0)
    count = (tl.load(positions + row) + 1).to(tl.int32)
    base = (row.to(tl.int64) * kv_heads + kv) * capacity * WIDTH
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, SIZE], tl.float32)
    for start in range(0, count, TILE):
        j = start + tl.arange(0, TILE)
        seen = j < count
        mask = seen[:, None] & (i < WIDTH)[None, :]
        cells = base + j[:, None] * WIDTH + i[None, :]
        k = tl.load(keys + cells, mask=mask, other=0.0)
        scores = _dot(query, tl.trans(k), WIDE) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, axis=1))
        p, fade = tl.exp(scores - peak[:, None]), tl.exp(top - peak)
        total = total * fade + tl.sum(p, axis=1)
        v = tl.load(values + cells, mask=mask, other=0.0)
        mixed = mixed * fade[:, None] + _dot(p.to(v.dtype), v, WIDE)
        top = peak
    tl.store(out + at, (mixed / total[:, None]).to(query.dtype), mask=asked)


@triton.jit
def _swiglu(gate_up, out, width, SIZE: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < width
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0)
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    value = (silu.to(tl.float32) * up.to(tl.float32)).to(up.dtype)
    tl.store(out + row * width + column, value, mask=inside)


@triton.jit
def _blocks(logits, tops, first, hot, plain, moment, bad, inverse, vocab, SIZE: tl.constexpr):
    """Of one block of a row: the largest logit and where it stands first, and sums over exp of what lies below it."""
    row, block = tl.program_id(0), tl.program_id(1)
    i = block * SIZE + tl.arange(0, SIZE)
    inside, at = i < vocab, row * tl.num_programs(1) + block
    z = tl.load(logits + row.to(tl.int64) * vocab + i, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(z, axis=0)
    tl.store(tops + at, top)
    tl.store(first + at, tl.min(tl.where(z == top, i, vocab - 1), axis=0))
    tl.store(bad + at, tl.sum((inside & ((z - z) != 0.0)).to(tl.int32), axis=0))
    below = tl.where(inside, z - top, 0.0)
    e = tl.where(inside, tl.exp(below), 0.0)
    tl.store(hot + at, tl.sum(tl.where(inside, tl.exp(below * inverse), 0.0).to(tl.float64), axis=0))
    tl.store(plain + at, tl.sum(e.to(tl.float64), axis=0))
    tl.store(moment + at, tl.sum((e * below).to(tl.float64), axis=0))


@triton.jit
def _choose(
    logits, tops, first, hot, plain, moment, bad, uniforms, tokens, logprobs, entropies, faults, inverse, vocab, count,
    GREEDY: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Of one row, from its blocks' sums: token, log-probability, entropy, how many logits are not finite."""
    row, b = tl.program_id(0), tl.arange(0, BLOCKS)
    inside, at = b < count, row * count + b
    peaks = tl.load(tops + at, mask=inside, other=float("-inf"))
    top = tl.max(peaks, axis=0)
    below = tl.where(inside, peaks - top, 0.0).to(tl.float64)
    weight = tl.where(inside, tl.exp(below), 0.0)
    sums = tl.load(plain + at, mask=inside, other=0.0)
    total = tl.sum(sums * weight, axis=0)
    mean = tl.sum((tl.load(moment + at, mask=inside, other=0.0) + sums * below) * weight, axis=0) / total
    if GREEDY:
        ties = tl.load(first + at, mask=inside & (peaks == top), other=2147483647)
        token = tl.minimum(tl.min(ties, axis=0), vocab - 1)
    else:
        mass = tl.load(hot + at, mask=inside, other=0.0) * tl.exp(below * inverse)
        before = tl.cumsum(mass, axis=0)
        target = tl.load(uniforms + row) * tl.sum(mass, axis=0)
        block = tl.sum((inside & (before <= target)).to(tl.int32), axis=0)
        block = tl.minimum(block, tl.max(tl.where(mass > 0, b, 0), axis=0))
        i = tl.arange(0, SIZE)
        here = block * SIZE + i < vocab
        z = tl.load(logits + row.to(tl.int64) * vocab + block * SIZE + i, mask=here, other=float("-inf"))
        e = tl.where(here, tl.exp((z.to(tl.float32) - top) * inverse), 0.0).to(tl.float64)
        running = tl.sum(tl.where(b < block, mass, 0.0), axis=0) + tl.cumsum(e, axis=0)
        found = tl.sum((running <= target).to(tl.int32), axis=0)
        found = tl.minimum(found, tl.max(tl.where(e > 0, i, 0), axis=0))
        # a row that is not finite finds anything, but an index of the row: it is fed on until the host looks
        token = tl.minimum(block * SIZE + found, vocab - 1)
    drawn = tl.load(logits + row.to(tl.int64) * vocab + token).to(tl.float32)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, ((drawn - top).to(tl.float64) - tl.log(total)).to(tl.float32))
    tl.store(entropies + row, (tl.log(total) - mean).to(tl.float32))
    tl.store(faults + row, tl.sum(tl.load(bad + at, mask=inside, other=0), axis=0))


def add_norm(h: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """h [rows, H] += delta (None: nothing), then RMSNorm of it by each member's weight [N, H]: [rows, H]."""
    rows, width = h.shape
    out = torch.empty_like(h)
    _add_norm[(rows,)](
        h, h if delta is None else delta, weight, out, eps, rows // weight.shape[0], width,
        ADD=delta is not None, SIZE=triton.next_power_of_2(width), num_warps=4 if width <= 4096 else 8,
        enable_fp_fusion=FUSION,
    )  # fmt: skip
    return out


def rope(
    qkv: Tensor, norms: tuple[Tensor, Tensor], eps: float, tables: tuple[Tensor, Tensor], at: Tensor,
    keys: Tensor, values: Tensor,
) -> Tensor:  # fmt: skip
    """Rotated queries [rows, heads, d] of qkv [rows, (heads + 2 kv) d]; keys and values go to `at` in the cache.

    Args:
        norms: of q and k, [N, d] each, or empty [N, 0].
        tables: cos and sin, float32 [positions, d / 2].
        keys, values: one layer's cache [slots, kv, capacity, d].
    """
    rows, (_, kv_heads, capacity, width) = len(qkv), keys.shape
    heads = qkv.shape[1] // width - 2 * kv_heads
    q = qkv.new_empty((rows, heads, width))
    members = norms[0].shape[0]
    _rope[(rows, heads + 2 * kv_heads)](
        qkv, *norms, *tables, at, q, keys, values, eps, rows // members, heads, kv_heads, capacity,
        NORM=norms[0].numel() > 0, HALF=width // 2, SIZE=triton.next_power_of_2(width // 2), num_warps=1,
        enable_fp_fusion=FUSION,
    )  # fmt: skip
    return q


def attend(q: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """Attention of q [rows, heads, d] over cached positions 0 .. at of each row's slot: [rows, heads d]."""
    (rows, heads, width), (_, kv_heads, capacity, _) = q.shape, keys.shape
    out = torch.empty_like(q)
    group = heads // kv_heads
    _attend[(rows, kv_heads)](
        q, keys, values, at, out, width**-0.5, kv_heads, capacity, GROUP=group,
        ROWS=max(QUERIES, triton.next_power_of_2(group)), WIDTH=width,
        SIZE=max(16, triton.next_power_of_2(width)), TILE=TILE,
        WIDE=INTERPRETED and q.dtype == torch.bfloat16, num_warps=4, num_stages=2,
        enable_fp_fusion=FUSION,
    )  # fmt: skip
    return out.view(rows, heads * width)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [rows, 2 F]: [rows, F]."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width))
    _swiglu[(rows, triton.cdiv(width, 1024))](
        gate_up, out, width, SIZE=1024, num_warps=4, enable_fp_fusion=FUSION
    )
    return out


def draw(logits: Tensor, u: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One token a row of logits [rows, V] by uniforms float64 [rows].

    The vocabulary is read once, then the block that holds the token. Returns (tokens int64, log-probabilities float32,
    entropies float32, how many logits are not finite int32).
    """
    rows, vocab = logits.shape
    count = triton.cdiv(vocab, LOGITS)

    def new(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty((rows, *shape), dtype=dtype, device=logits.device)

    sums = [new(torch.float64, count) for _ in range(3)]
    found = (new(torch.float32, count), new(torch.int32, count), *sums, new(torch.int32, count))
    drawn = new(torch.int64), new(torch.float32), new(torch.float32), new(torch.int32)
    inverse = 1.0 / temperature if temperature else 1.0
    _blocks[(rows, count)](
        logits, *found, inverse, vocab, SIZE=LOGITS, num_warps=4, enable_fp_fusion=FUSION
    )  # fmt: skip
    _choose[(rows,)](
        logits, *found, u, *drawn, inverse, vocab, count, GREEDY=temperature == 0.0,
        BLOCKS=triton.next_power_of_2(count), SIZE=LOGITS, num_warps=4, enable_fp_fusion=FUSION,
    )  # fmt: skip
    return drawn
