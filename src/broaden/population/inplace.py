"""The labelled control: members made by perturbing the bf16 center itself and subtracting again.

This is what public code does. Rewards depend on the order of members and the center drifts while nothing is
learned; that damage is what the control measures. One process, member by member.
"""

from __future__ import annotations

from broaden.perturb import InPlaceControl, write_center
from broaden.population.base import OnProgress, RolloutJob, Weights
from broaden.population.local import Judge, LocalPopulation, Totals, group_requests
from broaden.records import MemberResult


class InPlacePopulation(LocalPopulation):
    """`rollout` changes the bfloat16 `center` it is given, by rounding: on purpose, and only here."""

    def rollout(
        self, center: Weights, job: RolloutJob, on_progress: OnProgress | None = None
    ) -> list[MemberResult]:
        """Perturb in place, roll out, subtract, member after member."""
        control = InPlaceControl(center)
        judge = Judge(self.tokenizer, self.task, self.prompts, job)
        done = Totals(on_progress)
        results = []
        for member in job.members:
            with control.perturbed(job.spec, member.number, member.sign) as weights:
                write_center(weights, self.engine.weights(0))
                self.engine.weights_changed()
                requests = group_requests(self.prompts, job, [member])
                requests += [[] for _ in range(self.engine.members - 1)]
                answers = self.engine.generate(requests, job.sampling, done.update)
            results.append(judge.member(member, answers[0]))
            done.next_group()
        return results
