"""The ES update (paper Eq. 6-7) as exact integer sums.

    theta += float32(s * sum_i c_i eps_i - decay * (theta - anchor))

with s = alpha / N and c_i = z_i, the standardised rewards. The sum is taken in fixed point:
C_i = round(c_i 2^k), Z_i = round(eps_i 2^24), and sum_i C_i Z_i is an exact int64 (|sum| < 2^62), so
that the order of members, chunks, threads and workers cannot matter. Then one float64 product, one
rounding to float32, one float32 addition. The error of C_i is at most 2^-30 of the largest coefficient
(2^-(35 - log2 N) for N > 32).

With a rank r, eps_i of a matrix is E_i = A_i B_i^T / sqrt(r), whose integers (`lowrank`) are exact already: the
sum over members and ranks of C_i Z^A Z^B is the int64, and C_i has 33 - log2(N r) bits (30 at most, rounded down).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from broaden.errors import DivergedError, UsageError
from broaden.perturb import chunks, lowrank, noise
from broaden.perturb.backend import Backend, ChangeStats, Increment, backend_for
from broaden.perturb.chunks import Chunk
from broaden.perturb.spec import NoiseSpec, Weights

SUM_BITS, TABLE_BITS, COEFFICIENT_BITS = 62, 27, 30
LEAST_BITS = 8  # of a coefficient; only a low-rank update of very many members and ranks could have fewer
MAX_MEMBERS = 1 << 20
FLOAT32_MAX = float(torch.finfo(torch.float32).max)


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What an update did to the center: L2 norm and largest absolute value of the change, weights changed."""

    norm: float
    max_abs: float
    changed: int


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """c_i = coefficients[i] / 2**exponent; `members` are those whose integer is not zero."""

    members: tuple[int, ...]
    coefficients: tuple[int, ...]
    exponent: int


def fixed_point(
    members: Sequence[int], coefficients: Sequence[float], noise_bits: int = TABLE_BITS
) -> FixedPoint:
    """C_i = round(c_i 2^k), k as large as keeps N max|C_i| max|Z| within 2^62; zero coefficients drop out.

    Args:
        noise_bits: |Z| < 2**noise_bits.

    Raises:
        UsageError: lengths differ, or more than 2**20 members.
        DivergedError: a coefficient is not finite.
    """
    _check_coefficients(members, coefficients)
    live = [(m, float(c)) for m, c in zip(members, coefficients, strict=True) if c != 0.0]
    if not live:
        return FixedPoint((), (), 0)
    bits = min(COEFFICIENT_BITS, SUM_BITS - noise_bits - (len(live) - 1).bit_length())
    if bits < LEAST_BITS:
        raise UsageError(
            f"{len(live)} members of this rank leave {bits} bits for a coefficient, {LEAST_BITS} are needed",
            fix="lower members or rank",
        )
    exponent = bits - math.frexp(max(abs(c) for _, c in live))[1]
    scaled = [(m, round(math.ldexp(c, exponent))) for m, c in live]
    kept = [(m, c) for m, c in scaled if c != 0]
    return FixedPoint(tuple(m for m, _ in kept), tuple(c for _, c in kept), exponent)


def _check_coefficients(members: Sequence[int], coefficients: Sequence[float]) -> None:
    if len(members) != len(coefficients):
        raise UsageError(f"{len(members)} members but {len(coefficients)} coefficients")
    if len(members) > MAX_MEMBERS:
        raise UsageError(f"an update takes at most {MAX_MEMBERS} members, got {len(members)}")
    for member, coefficient in zip(members, coefficients, strict=True):
        if not math.isfinite(coefficient):
            raise DivergedError(
                f"the coefficient of member {member} is {coefficient}; the center was not touched",
                fix="look at the rewards of this step",
            )


def fold_signs(
    members: Sequence[tuple[int, int]], coefficients: Sequence[float]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Members (m, sign) with coefficients c to distinct members with sum of sign * c, ordered by member.

    An antithetic pair (m, +1), (m, -1) becomes one member with c_+ - c_-.
    """
    if len(members) != len(coefficients):
        raise UsageError(f"{len(members)} members but {len(coefficients)} coefficients")
    parts: dict[int, list[float]] = {}
    for (member, sign), coefficient in zip(members, coefficients, strict=True):
        noise.check_sign(sign)
        parts.setdefault(member, []).append(sign * float(coefficient))
    order = sorted(parts)
    return tuple(order), tuple(math.fsum(parts[member]) for member in order)


def apply_update(
    center: Weights,
    spec: NoiseSpec,
    members: Sequence[int],
    coefficients: Sequence[float],
    scale: float,
    *,
    decay: float = 0.0,
    anchor: Weights | None = None,
    threads: int = 1,
) -> UpdateStats:
    """theta += float32(scale * sum_i c_i eps_i - decay * (theta - anchor)), in place, on `spec.names`.

    All coefficients (or scale) zero and decay zero leave the center untouched, bit for bit.

    Args:
        center: float32 tensors by canonical name, contiguous; changed in place.
        spec: what the members were drawn with (sigma does not enter: eps has unit variance).
        members: N member numbers; signs of antithetic members belong into the coefficients (`fold_signs`).
        coefficients: N finite numbers c_i.
        scale: s, e.g. alpha / N.
        decay: fraction in [0, 1] of the way to the anchor taken by this update.
        anchor: what decay pulls toward, same names and shapes, on the center's device; needed iff decay > 0.
        threads: CPU threads; neither the weights nor the statistics depend on it.

    Raises:
        UsageError: arguments do not fit together.
        DivergedError: a coefficient or the update is not finite; the center was not touched.
    """
    _check_update(center, spec, scale, decay, anchor)
    factored = spec.factored(center)
    fixed = fixed_point(members, coefficients, noise_bits(spec.rank))
    _check_reach(coefficients, scale, spec.rank)
    live = fixed if scale != 0.0 else FixedPoint((), (), 0)
    if not live.members and decay == 0.0:
        return UpdateStats(0.0, 0.0, 0)
    factor = math.ldexp(scale, -(live.exponent + noise.FIXED_BITS))
    increment = Increment(live.coefficients, factor, decay)
    full = [name for name in spec.names if name not in set(factored)]
    keys = {name: [spec.key(member, name) for member in live.members] for name in full}
    parts = _update_factored(center, anchor, spec, live, scale, decay, factored, threads)
    for device, group in chunks.by_device(center, full).items():
        work = partial(_update_chunk, center, anchor, increment, keys, backend_for(device))
        pieces = chunks.cut(center, group, backend_for(device).chunk)
        parts += chunks.run(work, pieces, chunks.threads_for(device, threads))
    return _stats(parts)


def noise_bits(rank: int) -> int:
    """Bits of the integers that a coefficient is multiplied with: of the table, or of a sum over r products."""
    return lowrank.PRODUCT_BITS + (rank - 1).bit_length() if rank else TABLE_BITS


def _update_factored(
    center: Weights,
    anchor: Weights | None,
    spec: NoiseSpec,
    live: FixedPoint,
    scale: float,
    decay: float,
    names: Sequence[str],
    threads: int,
) -> list[ChangeStats]:
    """The update of the matrices of a low-rank spec; each weight is read once for all members."""
    if not names:
        return []
    factor = math.ldexp(lowrank.scale_of(scale, spec.rank), -live.exponent)
    outers = {
        name: lowrank.Outer(
            tuple(spec.factor_keys(member, name) for member in live.members), live.coefficients, spec.rank,
            center[name].shape[1],
        )
        for name in names
    }  # fmt: skip

    def work(chunk: Chunk) -> ChangeStats:
        theta = chunk.of(center[chunk.name])
        pull_to = theta if anchor is None else chunk.of(anchor[chunk.name])
        return lowrank.update(theta, pull_to, outers[chunk.name], factor, decay, chunk.start)

    parts: list[ChangeStats] = []
    for device, group in chunks.by_device(center, names).items():
        pieces = chunks.cut(center, group, lowrank.chunk_of(device))
        parts += chunks.run(work, pieces, chunks.threads_for(device, threads))
    return parts


def _update_chunk(
    center: Weights,
    anchor: Weights | None,
    increment: Increment,
    keys: Mapping[str, Sequence[int]],
    backend: Backend,
    chunk: Chunk,
) -> ChangeStats:
    theta = chunk.of(center[chunk.name])
    pull_to = theta if anchor is None else chunk.of(anchor[chunk.name])
    return backend.update(theta, pull_to, increment, keys[chunk.name], chunk.start)


def _stats(parts: Sequence[ChangeStats]) -> UpdateStats:
    norm = math.sqrt(math.fsum(squares for squares, _, _ in parts))
    if not math.isfinite(norm):
        raise DivergedError("the center holds values that are not finite", fix="go back a checkpoint")
    return UpdateStats(norm, max((m for _, m, _ in parts), default=0.0), sum(c for _, _, c in parts))


def _check_reach(coefficients: Sequence[float], scale: float, rank: int) -> None:
    largest = float(abs(noise.normal_table()).max())
    largest *= max(1.0, largest * math.sqrt(rank))  # |E| <= sqrt(r) max|A| max|B|
    reach = abs(scale) * sum(abs(float(c)) for c in coefficients) * largest
    if not reach < FLOAT32_MAX:
        raise DivergedError(f"the update could reach {reach:.3g}, beyond float32; the center was not touched")


def _check_update(
    center: Weights, spec: NoiseSpec, scale: float, decay: float, anchor: Weights | None
) -> None:
    if not math.isfinite(scale):
        raise UsageError(f"scale must be finite, not {scale!r}")
    if not 0.0 <= decay <= 1.0:
        raise UsageError(f"decay must lie in [0, 1], not {decay!r}")
    if (decay > 0.0) != (anchor is not None):
        raise UsageError("decay and anchor go together", fix="give both, or neither")
    chunks.check_same(center, center if anchor is None else anchor, "the anchor", spec.names)
    for what, weights in (("the center", center), ("the anchor", anchor or {})):
        used = {name: weights[name] for name in spec.names if name in weights}
        chunks.check_dtype(used, torch.float32, what)
        chunks.check_contiguous(used, what)
    for name in spec.names if anchor is not None else ():
        if anchor is not None and anchor[name].device != center[name].device:
            raise UsageError(
                f"{name}: the center is on {center[name].device}, the anchor on {anchor[name].device}"
            )
