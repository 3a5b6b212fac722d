"""What travels between a population and its workers, as JSON types; floats keep every bit."""

from __future__ import annotations

from typing import Any

from broaden.perturb import NoiseSpec
from broaden.population.base import Member, RolloutJob
from broaden.records import Completion, Request, Sampling

Message = dict[str, Any]


def job_to_json(job: RolloutJob) -> Message:
    """A job as sent, without its members and tensor names."""
    return {
        "run_seed": job.spec.run_seed, "step": job.spec.step, "sigma": job.spec.sigma.hex(),
        "prompts": list(job.prompts), "samples": job.samples, "sampling": job.sampling.to_json(),
        "member_in_key": job.member_in_key,
    }  # fmt: skip


def job_from_json(data: Message, names: tuple[str, ...], members: list[list[int]]) -> RolloutJob:
    """Inverse of `job_to_json`, for the members of this worker."""
    return RolloutJob(
        NoiseSpec(data["run_seed"], data["step"], float.fromhex(data["sigma"]), names),
        tuple(Member(i, s) for i, s in members),
        tuple(data["prompts"]),
        data["samples"],
        Sampling.from_json(data["sampling"]),
        data["member_in_key"],
    )


def request_to_json(request: Request) -> list[Any]:
    """[ids, key]: terse, since there are thousands."""
    return [list(request.prompt_ids), request.key]


def completion_to_json(completion: Completion) -> list[Any]:
    """[ids, finish, logprobs, entropy]."""
    return [list(completion.token_ids), completion.finish, completion.logprobs, completion.entropy]


def completion_from_json(data: list[Any]) -> Completion:
    """Inverse of `completion_to_json`; floats survive JSON exactly."""
    ids, finish, logprobs, entropy = data
    return Completion(
        tuple(ids), finish,
        None if logprobs is None else tuple(logprobs), None if entropy is None else tuple(entropy),
    )  # fmt: skip
