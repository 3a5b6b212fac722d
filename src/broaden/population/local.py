"""Members in this process, `engine.members` of them in one batch (1: member by member)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch

from broaden.engines import Engine, SharesBase
from broaden.models.tokenizer import ChatTokenizer
from broaden.perturb import NoiseSpec, write_center, write_member
from broaden.population.base import Member, OnProgress, Prompt, RolloutJob, Weights, chunks
from broaden.records import Completion, MemberResult, Request, Verdict
from broaden.seeds import stream
from broaden.tasks import Task, judge_threads


class LocalPopulation:
    """Serial where the engine holds one set of weights, batched where it holds several.

    Low-rank members share one set of weights, `low_rank` of them in a batch, where the engine can; elsewhere they are
    written out like any other.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer,
        task: Task,
        prompts: Sequence[Prompt],
        low_rank: int = 1,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.task = task
        self.prompts = prompts
        self.low_rank = low_rank

    def rollout(
        self, center: Weights, job: RolloutJob, on_progress: OnProgress | None = None
    ) -> list[MemberResult]:
        """See `Population.rollout`."""
        judge = Judge(self.tokenizer, self.task, self.prompts, job)
        results: list[MemberResult] = []
        done = Totals(on_progress)
        shared = self._sharing(job.spec) is not None
        if shared:
            write_center(center, self.engine.weights(0))
            self.engine.weights_changed()
        for group in chunks(job.members, self.low_rank if shared else self.engine.members):
            with self._members(center, job.spec, group):
                requests = group_requests(self.prompts, job, group)
                requests += [[] for _ in range(self.engine.members - len(group))]
                answers = self.engine.generate(requests, job.sampling, done.update)
            results += [judge.member(m, answers[slot]) for slot, m in enumerate(group)]
            done.next_group()
        return results

    def _members(
        self, center: Weights, spec: NoiseSpec, group: Sequence[Member]
    ) -> AbstractContextManager[None]:
        """The engine as these members: over the center's weights, or each written into a set of its own."""
        sharing = self._sharing(spec)
        if sharing is not None:
            return sharing.low_rank(center, spec, group)
        for slot, member in enumerate(group):
            weights = self.engine.weights(slot)
            write_member(center, weights, spec, member.number, member.sign, threads=torch.get_num_threads())
        self.engine.weights_changed()
        return nullcontext()

    def _sharing(self, spec: NoiseSpec) -> SharesBase | None:
        """The engine, where these members can share one set of its weights."""
        engine = self.engine
        return engine if spec.rank and isinstance(engine, SharesBase) and engine.shares_base else None

    def conditions(self) -> dict[str, object]:
        """The engine's conditions and the batch of members."""
        batched = max(self.engine.members, self.low_rank) > 1
        found: dict[str, object] = {"population": "batched" if batched else "serial", "workers": 1,
                                    "engine": self.engine.conditions()}  # fmt: skip
        return found | ({"low_rank_members": self.low_rank} if self.low_rank > 1 else {})

    def close(self) -> None:
        """Nothing to give back."""


class Judge:
    """Decodes and judges completions; equal completions of a prompt (common with shared random numbers)
    are judged once."""

    def __init__(
        self, tokenizer: ChatTokenizer, task: Task, prompts: Sequence[Prompt], job: RolloutJob
    ) -> None:
        self.tokenizer, self.task, self.prompts, self.job = tokenizer, task, prompts, job
        self.seen: dict[tuple[int, tuple[int, ...], str], Verdict] = {}

    def verdict(self, prompt: int, completion: Completion) -> Verdict:
        """The task's verdict on one completion."""
        key = (prompt, completion.token_ids, completion.finish)
        if key not in self.seen:
            text = self.tokenizer.decode(completion.token_ids)
            self.seen[key] = self.task.judge(self.prompts[prompt].problem, text, completion.finish)
        return self.seen[key]

    def verdicts(self, prompts: Sequence[int], completions: Sequence[Completion]) -> list[Verdict]:
        """One a completion, in their order; several are judged at a time where the task waits for its processes."""
        pairs = list(zip(prompts, completions, strict=True))
        threads = judge_threads(self.task)
        if threads > 1:
            first = {(p, c.token_ids, c.finish): (p, c) for p, c in pairs}  # equal ones once, as in sequence
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda pair: self.verdict(*pair), first.values()))
        return [self.verdict(p, c) for p, c in pairs]

    def member(self, member: Member, completions: Sequence[Completion]) -> MemberResult:
        """Fold a member's completions (prompt-major) into its result."""
        order = [p for p in self.job.prompts for _ in range(self.job.samples)]
        verdicts = self.verdicts(order, completions)
        entropies = [e for c in completions for e in c.entropy or ()]
        return MemberResult(
            member=member.number,
            rewards=tuple(v.reward for v in verdicts),
            scores=tuple(v.score for v in verdicts),
            tokens=sum(len(c.token_ids) for c in completions),
            prompt_tokens=sum(len(self.prompts[p].ids) for p in self.job.prompts),
            truncated=sum(c.finish == "length" for c in completions),
            mean_entropy=sum(entropies) / len(entropies) if entropies else None,
        )


def group_requests(
    prompts: Sequence[Prompt], job: RolloutJob, group: Sequence[Member]
) -> list[list[Request]]:
    """Each member's requests. With common random numbers all members share one list."""
    if not job.member_in_key:
        shared = requests_for(prompts, job)
        return [shared for _ in group]
    return [requests_for(prompts, job, m.number) for m in group]


def requests_for(prompts: Sequence[Prompt], job: RolloutJob, *member: int) -> list[Request]:
    """Prompt-major requests; the key is (run seed, step, problem, sample) and, by option, the member."""
    spec = job.spec
    return [
        Request(prompts[p].ids, stream(spec.run_seed, "sample", spec.step, prompts[p].problem.id, s, *member))
        for p in job.prompts
        for s in range(job.samples)
    ]


class Totals:
    """Adds up an engine's progress over several calls of it."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self.on_progress = on_progress
        self.base = self.last = (0, 0)

    def update(self, completions: int, tokens: int) -> None:
        """The engine's progress callback."""
        self.last = (self.base[0] + completions, self.base[1] + tokens)
        if self.on_progress is not None:
            self.on_progress(*self.last)

    def next_group(self) -> None:
        """One call is over."""
        self.base = self.last


__all__ = ["Judge", "LocalPopulation", "Totals", "group_requests", "requests_for"]
