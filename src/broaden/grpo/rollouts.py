"""Rollouts for GRPO: the center's answers to a batch, as rows of tokens with their group and verdict.

The requests and their keys are those of an ES rollout (`population`), so both methods sample with the same
random numbers. Not here: advantages, training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from broaden.engines import Engine
from broaden.models.rows import Examples
from broaden.models.tokenizer import ChatTokenizer
from broaden.perturb import NoiseSpec, write_center
from broaden.population.base import Member, OnProgress, Prompt, RolloutJob, Weights
from broaden.population.local import Judge, requests_for
from broaden.records import Completion, Sampling, Verdict
from broaden.tasks import Task


class Host(Protocol):
    """What rollouts need; a `LocalPopulation` is one."""

    @property
    def engine(self) -> Engine: ...
    @property
    def tokenizer(self) -> ChatTokenizer: ...
    @property
    def task(self) -> Task: ...
    @property
    def prompts(self) -> Sequence[Prompt]: ...


@dataclass(frozen=True, slots=True)
class Rollouts:
    """R = prompts x group sampled responses, prompt-major.

    Attributes:
        rows: prompt and completion ids of each response: the ids that were sampled are the ids that are trained.
        groups_R: number of the prompt instance in this batch.
        verdicts: the task's, one a response.
        truncated_R: stopped by the limit.
        logprobs_N, entropy_N: the sampler's, for all completion tokens end to end (at temperature 1).
        starts_R: where each response's tokens begin in such a flat list (R + 1 entries).
        prompt_tokens: of the distinct prompts, each counted once (their prefill is shared).
    """

    rows: Examples
    groups_R: np.ndarray
    verdicts: tuple[Verdict, ...]
    truncated_R: np.ndarray
    logprobs_N: np.ndarray
    entropy_N: np.ndarray
    starts_R: np.ndarray
    prompt_tokens: int

    @property
    def lengths_R(self) -> np.ndarray:
        """Completion tokens of each response."""
        return np.diff(self.starts_R)

    @property
    def rewards(self) -> list[float | None]:
        """Rewards, None where a response could not be scored."""
        return [v.reward for v in self.verdicts]

    def tokens_of(self, rows: np.ndarray) -> np.ndarray:
        """Places, in the flat token lists, of the tokens of these rows, row by row."""
        lengths = self.lengths_R[rows]
        offsets = np.repeat(self.starts_R[rows] - np.cumsum(lengths) + lengths, lengths)
        return np.asarray(offsets + np.arange(int(lengths.sum())))


def collect(
    host: Host,
    center: Weights,
    indices: Sequence[int],
    group: int,
    sampling: Sampling,
    *,
    run_seed: int,
    step: int,
    on_progress: OnProgress | None = None,
) -> Rollouts:
    """Write the center into the engine, sample `group` responses a prompt, judge them.

    Args:
        indices: places in `host.prompts`; the same one twice is two groups (with the same random numbers).
        sampling: must ask for log-probabilities and entropy.
    """
    engine = host.engine
    write_center(center, engine.weights(0))
    engine.weights_changed()
    spec = NoiseSpec(run_seed, step, 0.0, tuple(center))
    job = RolloutJob(spec, (Member(0),), tuple(indices), group, sampling)
    requests = [requests_for(host.prompts, job), *([] for _ in range(engine.members - 1))]
    completions = engine.generate(requests, sampling, on_progress)[0]
    judge = Judge(host.tokenizer, host.task, host.prompts, job)
    order = [p for p in indices for _ in range(group)]
    verdicts = tuple(judge.verdicts(order, completions))
    return packed([host.prompts[p] for p in indices], completions, verdicts, group)


def packed(
    prompts: Sequence[Prompt], completions: Sequence[Completion], verdicts: tuple[Verdict, ...], group: int
) -> Rollouts:
    """Rows from a batch's completions (prompt-major)."""
    lengths = [len(c.token_ids) for c in completions]
    return Rollouts(
        rows=Examples.of((prompts[i // group].ids, c.token_ids) for i, c in enumerate(completions)),
        groups_R=np.repeat(np.arange(len(prompts)), group),
        verdicts=verdicts,
        truncated_R=np.array([c.finish == "length" for c in completions], bool),
        logprobs_N=_flat([c.logprobs for c in completions]),
        entropy_N=_flat([c.entropy for c in completions]),
        starts_R=np.concatenate(([0], np.cumsum(lengths))),
        prompt_tokens=sum(len(p.ids) for p in prompts),
    )


def _flat(rows: Sequence[Sequence[float] | None]) -> np.ndarray:
    return np.array([x for row in rows for x in row or ()], np.float64)
