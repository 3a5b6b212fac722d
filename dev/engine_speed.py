"""Tokens a second of `TorchEngine` on random weights: `python dev/engine_speed.py nano|smollm2 [--dtype ...]`.

Prints wall-clock and CPU time, since a shared machine makes the first unsteady; `--parts` adds the CPU seconds of each
part (one thread).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from broaden.engines import TorchEngine, compiled
from broaden.engines.selftest import fill
from broaden.models.nano import config
from broaden.models.spec import ModelSpec
from broaden.records import Request, Sampling

SMOLLM2 = ModelSpec(
    family="llama", layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocab=49152, tied=True,
    max_positions=2048, norm_eps=1e-5,
)  # fmt: skip


def watch(seconds: dict[str, float]) -> None:
    """Add up the CPU seconds of the kernels and products from now on."""
    kernels = ("attend", "add_norm", "swiglu", "sample_rows", "copy_slots")
    parts = [(compiled, name) for name in kernels] + [(compiled.Product, "into"), (compiled.Stack, "pack")]
    for owner, name in parts:
        function = getattr(owner, name)

        def timed(*given, call=function, name=name):
            began = time.process_time()
            try:
                return call(*given)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.process_time() - began

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["nano", "smollm2"])
    parser.add_argument("--dtype", default=None, choices=["float32", "bfloat16"])
    parser.add_argument("--members", type=int, default=None)
    parser.add_argument("--prompts", type=int, default=None)
    parser.add_argument("--prompt-tokens", type=int, default=None)
    parser.add_argument("--new", type=int, default=None)
    parser.add_argument("--slots", type=int, default=None)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", default="auto", choices=["auto", "compiled", "portable"])
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    nano = given.model == "nano"
    spec = ModelSpec.from_config(config()) if nano else SMOLLM2
    members, prompts = given.members or (32 if nano else 1), given.prompts or (256 if nano else 64)
    length, new = given.prompt_tokens or (20 if nano else 40), given.new or (44 if nano else 128)
    dtype = getattr(torch, given.dtype or ("float32" if nano else "bfloat16"))
    engine = TorchEngine(
        spec, [5] if nano else [], members=members, dtype=dtype, slots=given.slots, batch=given.batch,
        threads=given.threads, kernels=given.kernels,
    )  # fmt: skip
    for member in range(members):
        fill(engine, member, member)
    random = np.random.default_rng(0)
    asked = [
        Request(tuple(random.integers(6, spec.vocab, length).tolist()), i * 7919) for i in range(prompts)
    ]
    engine.generate([asked[:16]] * members, Sampling(max_new_tokens=2))  # compile
    seconds: dict[str, float] = {}
    if given.parts:
        watch(seconds)
    for _ in range(given.repeats):
        seconds.clear()
        wall, cpu = time.perf_counter(), time.process_time()
        answers = engine.generate([asked] * members, Sampling(max_new_tokens=new))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        tokens = sum(len(a.token_ids) for member in answers for a in member)
        print(
            f"{given.model} {engine.dtype} members {members} prompts {prompts}x{length} slots {engine.slots} batch "
            f"{engine.batch} threads {given.threads}: {tokens} tokens, wall {wall:.2f} s, cpu {cpu:.2f} s, "
            f"{tokens / wall:.0f} tokens/s, {tokens / cpu:.0f} tokens/cpu-s"
        )
        if given.parts:
            found = {**seconds, "rest": cpu - sum(seconds.values())}
            print("  " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
