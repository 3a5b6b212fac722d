"""`broaden bench gpu-noise`, `gpu-generate`, `gpu-population`: the accelerator path, with the roofline of the same run.

Model: Qwen2.5-1.5B's shapes with random weights in place (forced lengths cost the same), bfloat16 working copy, float32
center on the device. Peers: transformers `generate` (`subjects.Peer`) and `normal_` with an addition. Every side ends
with a wait for the device. The roofline takes two rates measured here, bytes a second of a large copy and operations a
second of a large bfloat16 product: a decode step takes at least the longer of reading its weights, keys and values and
of its products. Prompts are not in it. Without a CUDA device the benches are skipped; `--quick` then runs them on the
CPU with the bundled model and the device's own loop, which shows that they work and nothing else.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import torch

from broaden.bench import machine
from broaden.bench.harness import Pair, Result, Settings, Side, Unavailable, alternate, compared, rate
from broaden.bench.noise import SIGMA, _peer_update, _peer_write
from broaden.bench.subjects import Peer, Subject, Weights, bundled, token_prompts
from broaden.engines import TorchEngine
from broaden.models.init import standard_deviation
from broaden.models.known import known_spec
from broaden.models.spec import ModelSpec
from broaden.perturb import NoiseSpec, apply_update, write_center, write_member
from broaden.perturb import noise as normals
from broaden.perturb.backend import NUMBA, backend_for
from broaden.records import Request, Sampling
from broaden.seeds import stream

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
MEMBERS = 8
SLICE = 100_003  # odd, so that Philox blocks are cut


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bench runs and on what; the subject's weights lie on the device."""

    device: torch.device
    subject: Subject
    bandwidth: float  # bytes a second, read and written, of a large copy
    operations: float  # a second, of a large bfloat16 product

    @property
    def conditions(self) -> dict[str, Any]:
        """What a result says of it."""
        cuda = self.device.type == "cuda"
        found = {"triton": _version("triton")} if cuda else {}
        return {
            **self.subject.conditions, **found, "device": str(self.device),
            "gpu": torch.cuda.get_device_name(self.device) if cuda else None, "cuda": torch.version.cuda,
            "bandwidth": self.bandwidth, "operations": self.operations,
        }  # fmt: skip


def place(settings: Settings) -> Place:
    """Raises Unavailable without a CUDA device, unless sizes are quick ones."""
    cuda = torch.cuda.is_available()
    if not cuda and not settings.quick:
        raise Unavailable("no CUDA device here (--quick shows on the CPU that the bench works)")
    device = torch.device("cuda" if cuda else "cpu")
    size = 1 << 22 if settings.quick else 1 << 30
    return Place(
        device,
        _bundled_on(device) if settings.quick else _random_on(device),
        bandwidth(device, size),
        operations(device, 256 if settings.quick else 8192),
    )


def generate(settings: Settings) -> Result:
    """Forced lengths."""
    here = place(settings)
    count, length, new = (16, 20, 8) if settings.quick else (256, 64, 256)
    prompts = token_prompts(here.subject.spec, count, length)
    engine = _engine(here, length + new)
    write_center(here.subject.weights, engine.weights())
    peer = Peer(here.subject, torch.bfloat16, (), here.device)
    seed = [0]

    def ours() -> float:
        seed[0] += 1
        return _ask(engine, prompts, new, seed[0])

    def theirs() -> float:
        return float(sum(len(a) for a in peer.generate(prompts, new, 1.0)))

    pair = alternate(_waited(here, ours), _waited(here, theirs), settings.rounds_or(3))
    top = roofline(here.subject.spec, count, length + new // 2, here)
    return compared(pair, "tokens/s", {
        **here.conditions, "peer": peer.conditions, "prompts": count, "prompt_tokens": length, "new_tokens": new,
        "engine": engine.conditions(), "roofline": top, "of_roofline": rate(pair.ours) / top,
    })  # fmt: skip


def population(settings: Settings) -> Result:
    """Full-rank members, one after another: noise into the working copy, then all prompts."""
    here = place(settings)
    members, count, length, new = (2, 16, 20, 8) if settings.quick else (8, 64, 64, 128)
    center, prompts = here.subject.weights, token_prompts(here.subject.spec, count, length)
    engine = _engine(here, length + new)
    peer = Peer(here.subject, torch.bfloat16, (), here.device)
    buffer = torch.empty(max(t.numel() for t in center.values()), device=here.device)
    step = [0]

    def ours() -> float:
        step[0] += 1
        spec, tokens = NoiseSpec(0, step[0], SIGMA, tuple(center)), 0.0
        for member in range(members):
            write_member(center, engine.weights(), spec, member)
            engine.weights_changed()
            tokens += _ask(engine, prompts, new, step[0])
        return tokens

    def theirs() -> float:
        tokens = 0
        for _ in range(members):
            _peer_write(center, peer.parameters, buffer)
            tokens += sum(len(a) for a in peer.generate(prompts, new, 1.0))
        return float(tokens)

    pair = alternate(_waited(here, ours), _waited(here, theirs), settings.rounds_or(3))
    decode = count * new / roofline(here.subject.spec, count, length + new // 2, here)
    written = 6.0 * here.subject.spec.parameters / here.bandwidth
    top = count * new / (decode + written)
    return compared(pair, "tokens/s", {
        **here.conditions, "peer": f"normal_ and an addition, {peer.conditions}", "members": members,
        "prompts": count, "new_tokens": new, "roofline": top, "of_roofline": rate(pair.ours) / top,
    })  # fmt: skip


def noise(settings: Settings) -> Result:
    """Members in three dtypes, and the update of N = 8; the ratio is that of the bfloat16 copy."""
    here = place(settings)
    center, spec = here.subject.weights, NoiseSpec(0, 0, SIGMA, tuple(here.subject.weights))
    weights = float(sum(t.numel() for t in center.values()))
    buffer = torch.empty(max(t.numel() for t in center.values()), device=here.device)
    rows, pairs = [], {}
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        copy = {n: torch.empty_like(t, dtype=dtype) for n, t in center.items()}
        name = str(dtype).removeprefix("torch.")
        pairs[name] = alternate(
            _did(here, weights, partial(write_member, center, copy, spec, 1)),
            _did(here, weights, partial(_peer_write, center, copy, buffer)),
            settings.rounds_or(),
        )
        rows.append(_row(f"write_member {name}", pairs[name]))
        del copy
    z = [(-1.0) ** i * (1 + i / 8) for i in range(MEMBERS)]
    update = alternate(
        _did(here, MEMBERS * weights, lambda: apply_update(center, spec, range(MEMBERS), z, 1e-9)),
        _did(here, MEMBERS * weights, lambda: _peer_update(center, buffer, z)),
        settings.rounds_or(),
    )
    rows.append(_row(f"apply_update N = {MEMBERS} (× members)", update))
    return compared(pairs["bfloat16"], "weights/s", {
        **here.conditions, "peer": "torch normal_ into a buffer, then add and cast", "weights": int(weights),
        "rows": rows, "backend": type(backend_for(here.device)).__name__,
        "bits_equal": bits_equal(here.device), "of_roofline": rate(pairs["bfloat16"].ours) * 6 / here.bandwidth,
    })  # fmt: skip


def bits_equal(device: torch.device) -> bool:
    """Whether the device's backend writes the bits of the CPU's, by dtype."""
    theta = torch.linspace(-1.0, 1.0, SLICE)
    table = torch.from_numpy(normals.scaled_table(SIGMA))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        expected, there = (torch.empty(SLICE, dtype=dtype, device=d) for d in ("cpu", device))
        NUMBA.write(theta, expected, table, 12345, 7)
        backend_for(device).write(theta.to(device), there, table.to(device), 12345, 7)
        if not torch.equal(there.cpu().view(torch.uint8), expected.view(torch.uint8)):
            return False
    return True


def roofline(spec: ModelSpec, rows: int, positions: int, here: Place) -> float:
    """Tokens a second of decode steps that do nothing but read, or nothing but multiply, whichever takes longer.

        seconds = max((2 W + 4 R P L K) / bytes per second, (2 R W + 4 R P L H) / operations per second)

    with R rows, W weights in the step's matrices, P cached positions, L layers, K and H widths of keys and queries.
    """
    matrices = float(sum(math.prod(shape) for shape in machine.products(spec)))
    cached = float(rows) * positions * spec.layers
    read = 2.0 * matrices + 4.0 * cached * spec.kv_width
    multiplied = 2.0 * rows * matrices + 4.0 * cached * spec.heads * spec.head_dim
    return rows / max(read / here.bandwidth, multiplied / here.operations)


def bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second, read and written, of the best of ten copies of `size` bytes."""
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / _best(device, lambda: target.copy_(source))


def operations(device: torch.device, size: int) -> float:
    """Operations a second of the best of ten bfloat16 products of square matrices."""
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    return 2.0 * size**3 / _best(device, lambda: a @ b)


def _best(device: torch.device, work: Callable[[], Any]) -> float:
    taken = []
    for _ in range(10):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        taken.append(time.perf_counter() - began)
    return min(taken[2:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _waited(here: Place, side: Side) -> Side:
    def waited() -> float:
        amount = side()
        _wait(here.device)
        return amount

    return waited


def _did(here: Place, amount: float, work: Callable[[], Any]) -> Side:
    def side() -> float:
        work()
        _wait(here.device)
        return amount

    return side


def _bundled_on(device: torch.device) -> Subject:
    found = bundled()
    weights = {n: t.to(device) for n, t in found.weights.items()}
    return Subject(found.spec, weights, found.tokenizer, found.source, found.folder)


def _random_on(device: torch.device) -> Subject:
    """Weights drawn on the device (on the host it would take minutes)."""
    spec = known_spec(MODEL)
    if spec is None:
        raise Unavailable(f"the shapes of {MODEL} are not known")
    generator = torch.Generator(device).manual_seed(0)
    weights: Weights = {}
    for name, shape in spec.shapes().items():
        fresh = torch.zeros(shape, device=device)
        if len(shape) > 1:
            fresh.normal_(0.0, standard_deviation(spec, name, shape), generator=generator)
        weights[name] = fresh + 1.0 if len(shape) == 1 and not name.endswith(".bias") else fresh
    return Subject(spec, weights, bundled().tokenizer, f"random weights in the shapes of {MODEL}", None)


def _engine(here: Place, context: int) -> TorchEngine:
    return TorchEngine(
        here.subject.spec, (), dtype=torch.bfloat16, device=here.device, max_context=context, kernels="device"
    )


def _ask(engine: TorchEngine, prompts: list[tuple[int, ...]], new: int, seed: int) -> float:
    asked = [Request(p, stream(seed, "bench", i)) for i, p in enumerate(prompts)]
    return float(sum(len(a.token_ids) for a in engine.generate([asked], Sampling(1.0, new))[0]))


def _row(name: str, pair: Pair) -> dict[str, Any]:
    mine, theirs = rate(pair.ours), rate(pair.peer)
    seconds = [statistics.median(r.seconds for r in side) for side in (pair.ours, pair.peer)]
    return {"what": name, "ours": mine, "peer": theirs, "ratio": mine / theirs, "seconds": seconds}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
