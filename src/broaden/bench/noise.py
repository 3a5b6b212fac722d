"""`broaden bench noise`: Gaussian noise written into a working copy, against `normal_` and an addition.

Work: 134.5 M float32 weights in SmolLM2-135M's shapes, center -> working copy. Peer: for each tensor
`torch.add(theta, tmp.normal_(0, sigma), out=copy)` with one buffer made beforehand; for bfloat16 the sum is rounded
by `copy_`. torch draws normal numbers with one thread whatever the setting. The update is compared with N times
`normal_` and `add_(alpha=)` into the center. What has no peer (restoring, checksum, drift) is timed alone.

The ratio of the bench is that of the float32 copy; all rows stand in the conditions, by the clock and in CPU
seconds. `bits_equal`: every backend writes the same bits in float32, bfloat16 and float16.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from broaden.bench.harness import Pair, Result, Round, Settings, alternate, compared, rate, repeat
from broaden.bench.subjects import Weights, smollm2
from broaden.perturb import NoiseSpec, apply_update, center_hash, drift, noise, write_center, write_member
from broaden.perturb.backend import available

SIGMA, MEMBERS = 1e-3, 8
SLICE = 100_003  # odd, so that blocks are cut


def run(settings: Settings) -> Result:
    """See the module."""
    center = smollm2(settings.quick).weights
    spec = NoiseSpec(0, 0, SIGMA, tuple(center))
    weights = float(sum(t.numel() for t in center.values()))
    rounds, threads = settings.rounds_or(), settings.threads
    buffer = torch.empty(max(t.numel() for t in center.values()))
    pairs = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        copy = {n: torch.empty_like(t, dtype=dtype) for n, t in center.items()}
        pairs[str(dtype).removeprefix("torch.")] = alternate(
            _did(weights, partial(write_member, center, copy, spec, 1, threads=threads)),
            _did(weights, partial(_peer_write, center, copy, buffer)),
            rounds,
        )
    changed, changed_peer = ({n: t.clone() for n, t in center.items()} for _ in range(2))
    members, z = list(range(MEMBERS)), [(-1.0) ** i * (1 + i / 8) for i in range(MEMBERS)]
    update = alternate(
        _did(MEMBERS * weights, lambda: apply_update(changed, spec, members, z, 1e-9, threads=threads)),
        _did(MEMBERS * weights, lambda: _peer_update(changed_peer, buffer, z)),
        max(1, rounds // 2),
    )
    copies = [
        {n: torch.empty_like(t, dtype=d) for n, t in center.items()} for d in (torch.float32, torch.bfloat16)
    ]
    alone: dict[str, Callable[[], Any]] = {
        "write_center float32": lambda: write_center(center, copies[0]),
        "write_center bfloat16": lambda: write_center(center, copies[1]),
        "center_hash": lambda: center_hash(center),
        "drift": lambda: drift(changed, center),
    }
    rows = [_row(f"write_member {name}", pair) for name, pair in pairs.items()]
    rows.append(_row(f"apply_update N = {MEMBERS} (× members)", update))
    rows += [_alone(name, repeat(_did(weights, work), rounds)) for name, work in alone.items()]
    conditions = {
        "peer": "torch normal_ into a buffer, then add (and cast)",
        "weights": int(weights),
        "rows": rows,
        "backends": sorted(available()),
        "bits_equal": bits_equal(center),
    }
    return compared(pairs["float32"], "weights/s", conditions)


def bits_equal(center: Weights) -> bool:
    """Whether all backends write the same bits of a tensor's slice, by dtype."""
    theta = max(center.values(), key=lambda t: t.numel()).view(-1)[:SLICE]
    table = torch.from_numpy(noise.scaled_table(SIGMA, 1))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        written = []
        for backend in available().values():
            out = torch.empty_like(theta, dtype=dtype)
            backend.write(theta, out, table, 12345, 7)
            written.append(out)
        if not all(torch.equal(w.view(torch.uint8), written[0].view(torch.uint8)) for w in written):
            return False
    return True


def _did(amount: float, work: Callable[[], Any]) -> Callable[[], float]:
    def side() -> float:
        work()
        return amount

    return side


def _peer_write(center: Weights, out: Weights, buffer: torch.Tensor) -> None:
    for name, theta in center.items():
        drawn = buffer[: theta.numel()].view(theta.shape).normal_(0.0, SIGMA)
        if out[name].dtype == torch.float32:
            torch.add(theta, drawn, out=out[name])
        else:
            out[name].copy_(drawn.add_(theta))


def _peer_update(center: Weights, buffer: torch.Tensor, z: list[float]) -> None:
    for theta in center.values():
        for c in z:
            theta.add_(buffer[: theta.numel()].view(theta.shape).normal_(), alpha=1e-9 * c)


def _row(name: str, pair: Pair) -> dict[str, Any]:
    mine, theirs = rate(pair.ours), rate(pair.peer)
    cpu = _cpu(pair.ours), _cpu(pair.peer)
    return {
        "what": name, "ours": mine, "peer": theirs, "ratio": mine / theirs, "cpu_seconds": cpu[0],
        "peer_cpu_seconds": cpu[1], "cpu_ratio": cpu[1] / cpu[0],
    }  # fmt: skip


def _alone(name: str, rounds: tuple[Round, ...]) -> dict[str, Any]:
    return {"what": name, "ours": rate(rounds), "peer": None, "ratio": None, "cpu_seconds": _cpu(rounds)}


def _cpu(rounds: tuple[Round, ...]) -> float:
    return statistics.median(r.cpu for r in rounds)
