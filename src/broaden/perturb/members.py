"""Writing a member's weights: cast(theta + sigma * sign * eps), never touching the center.

    w_i = cast(theta + t[index_i]),   t = float32(sigma * sign * table)

With a rank (`LowRank`), a matrix gets float32(sigma * sign / sqrt(r) * sum_k A_ok B_ik) in place of t[index], the
sum exact (`lowrank`). One float32 addition, rounded once to the working dtype.The center theta is only read, so
restoring is copying it again, never subtracting: exact after any number of members and after an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from broaden.errors import UsageError
from broaden.perturb import chunks, lowrank, noise
from broaden.perturb.backend import Backend, backend_for
from broaden.perturb.chunks import Chunk
from broaden.perturb.spec import NoiseSpec, Weights


def write_member(
    center: Weights, out: Weights, spec: NoiseSpec, member: int, sign: int = 1, *, threads: int = 1
) -> None:
    """Writes member `member` of `spec` into `out`; tensors not in `spec.names` are cast as they are.

    Args:
        center: float32 tensors by canonical name; read only.
        out: the same names and shapes, any floating dtype and device; contiguous, so slices of fused
            buffers will do.
        spec: seed, step, sigma and perturbed names.
        member: number of the member, from 0.
        sign: +1, or -1 for the mirrored member of an antithetic pair.
        threads: CPU threads to spread the work over; the bits do not depend on it.

    Raises:
        UsageError: names, shapes, dtypes or layouts do not fit, or `out` shares memory with the center.
    """
    _check(center, out, spec)
    noise.check_sign(sign)
    names = spec.names if spec.sigma > 0.0 else ()
    write_center(center, out, without=frozenset(names))
    factored = frozenset(spec.factored(center)) if names else frozenset()
    _write_factored(center, out, spec, member, sign, factored, threads)
    table = torch.from_numpy(noise.scaled_table(spec.sigma, sign))
    full = [name for name in names if name not in factored]
    for device, group in chunks.by_device(out, full).items():
        keys = {name: spec.key(member, name) for name in group}
        work = partial(_write_chunk, center, out, keys, table.to(device), backend_for(device))
        pieces = chunks.cut(center, group, backend_for(device).chunk)
        chunks.run(work, pieces, chunks.threads_for(device, threads))


def _write_chunk(
    center: Weights, out: Weights, keys: Mapping[str, int], table: Tensor, backend: Backend, chunk: Chunk
) -> None:
    target = chunk.of(out[chunk.name])
    theta = chunk.of(center[chunk.name]).to(target.device)
    backend.write(theta, target, table, keys[chunk.name], chunk.start)


def _write_factored(
    center: Weights,
    out: Weights,
    spec: NoiseSpec,
    member: int,
    sign: int,
    names: frozenset[str],
    threads: int,
) -> None:
    """cast(theta + float32(sigma * sign * E)) for the matrices of a low-rank member."""

    def work(chunk: Chunk) -> None:
        target = chunk.of(out[chunk.name])
        theta = chunk.of(center[chunk.name]).to(target.device)
        keys = spec.factor_keys(member, chunk.name)
        outer = lowrank.Outer((keys,), (1,), spec.rank, center[chunk.name].shape[1])
        lowrank.write(theta, target, outer, lowrank.scale_of(spec.sigma * sign, spec.rank), chunk.start)

    for device, group in chunks.by_device(out, sorted(names)).items():
        chunks.run(
            work, chunks.cut(center, group, lowrank.chunk_of(device)), chunks.threads_for(device, threads)
        )


def write_center(center: Weights, out: Weights, without: frozenset[str] = frozenset()) -> None:
    """Copies the center into `out`, cast to its dtypes, but for the names in `without`."""
    for name, theta in center.items():
        if name not in without:
            out[name].detach().copy_(theta.detach())


@contextmanager
def perturbed(
    work: Weights, center: Weights, spec: NoiseSpec, member: int, sign: int = 1, *, threads: int = 1
) -> Iterator[Weights]:
    """`work` holds the member inside the block and cast(center) after it, also when the block raises.

    Arguments and errors as in `write_member`; nothing is written when they do not fit.
    """
    _check(center, work, spec)
    noise.check_sign(sign)
    try:
        write_member(center, work, spec, member, sign, threads=threads)
        yield work
    finally:
        write_center(center, work)


def _check(center: Weights, out: Weights, spec: NoiseSpec) -> None:
    chunks.check_same(center, out, "the working copy")
    chunks.check_dtype(center, torch.float32, "the center")
    chunks.check_contiguous(center, "the center")
    chunks.check_contiguous(out, "the working copy")
    missing = [name for name in spec.names if name not in center]
    if missing:
        raise UsageError(f"the center lacks {len(missing)} tensor(s) of the noise, first {missing[0]!r}")
    for name, theta in center.items():
        same_device = out[name].device == theta.device
        if same_device and theta.numel() and out[name].data_ptr() == theta.data_ptr():
            raise UsageError(f"{name}: the working copy shares memory with the center", fix="pass a copy")
        if not out[name].is_floating_point():
            raise UsageError(f"{name} of the working copy is {out[name].dtype}, expected a floating dtype")
