"""What travels between a population and its workers, as JSON types; floats keep every bit.

What all members of an update share (tensor names, the job with its prompts) is sent once a worker and update, so
that a member costs its number and sign on the way out, and a letter a reward on the way back.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from broaden.perturb import NoiseSpec
from broaden.population.base import Member, RolloutJob
from broaden.records import Completion, MemberResult, Request, Sampling

Message = dict[str, Any]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
PLACE = {letter: i for i, letter in enumerate(LETTERS)}


def job_to_json(job: RolloutJob) -> Message:
    """A job as sent, without its members and tensor names."""
    return {
        "run_seed": job.spec.run_seed, "step": job.spec.step, "sigma": job.spec.sigma.hex(), "rank": job.spec.rank,
        "prompts": pack("I", job.prompts), "samples": job.samples, "sampling": job.sampling.to_json(),
        "member_in_key": job.member_in_key,
    }  # fmt: skip


def job_from_json(data: Message, names: tuple[str, ...], members: list[list[int]]) -> RolloutJob:
    """Inverse of `job_to_json`, for the members of this worker."""
    return RolloutJob(
        NoiseSpec(data["run_seed"], data["step"], float.fromhex(data["sigma"]), names, data["rank"]),
        tuple(Member(i, s) for i, s in members),
        unpack("I", data["prompts"]),
        data["samples"],
        Sampling.from_json(data["sampling"]),
        data["member_in_key"],
    )


def result_to_json(result: MemberResult) -> Message:
    """A member's result: its distinct (reward, score) pairs, and a letter (a number from 65 pairs on) a response."""
    pairs = list(zip(result.rewards, result.scores, strict=True))
    spelt = [repr(pair) for pair in pairs]  # tells -0.0 from 0.0, and does not lose NaN
    codes = {key: i for i, key in enumerate(dict.fromkeys(spelt))}
    at = [codes[key] for key in spelt]
    return {
        "pairs": list(dict(zip(spelt, pairs, strict=True)).values()),
        "at": "".join(LETTERS[i] for i in at) if len(codes) <= len(LETTERS) else at,
        "rest": [result.member, result.tokens, result.prompt_tokens, result.truncated, result.mean_entropy],
    }


def result_from_json(data: Message) -> MemberResult:
    """Inverse of `result_to_json`."""
    at = [PLACE[c] for c in data["at"]] if isinstance(data["at"], str) else data["at"]
    rewards, scores = (tuple(data["pairs"][i][side] for i in at) for side in (0, 1))
    member, tokens, prompt_tokens, truncated, entropy = data["rest"]
    return MemberResult(member, rewards, scores, tokens, prompt_tokens, truncated, entropy)


def requests_to_json(requests: Sequence[Request]) -> Message:
    """Each prompt once (its samples share it), and [prompt, key] a request."""
    places: dict[tuple[int, ...], int] = {}
    asked = [[places.setdefault(r.prompt_ids, len(places)), r.key] for r in requests]
    return {"prompts": [pack("I", ids) for ids in places], "asked": asked}


def requests_from_json(data: Message) -> list[Request]:
    """Inverse of `requests_to_json`."""
    prompts = [unpack("I", ids) for ids in data["prompts"]]
    return [Request(prompts[at], key) for at, key in data["asked"]]


def completion_to_json(completion: Completion) -> list[Any]:
    """[ids, finish, logprobs, entropy]: terse, since there are thousands."""
    floats = (completion.logprobs, completion.entropy)
    return [
        pack("I", completion.token_ids), completion.finish, *(None if f is None else pack("d", f) for f in floats)
    ]  # fmt: skip


def completion_from_json(data: list[Any]) -> Completion:
    """Inverse of `completion_to_json`."""
    ids, finish, *floats = data
    return Completion(unpack("I", ids), finish, *(None if f is None else unpack("d", f) for f in floats))


def pack(kind: str, values: Sequence[int] | Sequence[float]) -> str:
    """Base64 of the machine's own numbers: "I" unsigned integers below 2^32, "d" float64."""
    return b64encode(array(kind, values).tobytes()).decode("ascii")


def unpack(kind: str, text: str) -> tuple[Any, ...]:
    """Inverse of `pack`."""
    return tuple(array(kind, b64decode(text)))
