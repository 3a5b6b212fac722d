"""The ES loop: a generator that yields one record an update and does no I/O.

Each update (arXiv 2608.27351, Section 3 and Appendix G.1):

    R_i = mean reward of theta + sigma * eps_i on the mini-batch      (population)
    z_i = shaping(R)                                                  (es.shaping)
    theta <- theta + (alpha / N) * sum_i z_i * eps_i                  (perturb.apply_update)

The center changes only between `next()` calls' rollouts and the yield that reports it, in one addition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from broaden.errors import MetricError
from broaden.es.estimator import (
    coefficients,
    evaluations,
    mean_reward,
    random_coefficients,
    reward_matrix,
    shuffled,
)
from broaden.es.schedule import batch_indices
from broaden.es.settings import EsSettings
from broaden.metrics.signal import signal
from broaden.perturb import InPlaceControl, NoiseSpec, apply_update, center_hash, check_rank, drift, log_line
from broaden.population.base import OnProgress, Population, RolloutJob, Weights
from broaden.records import MemberResult, StepRecord

SIGNAL = "signal_"
Values = dict[str, float | int | None]


def train(
    center: Weights,
    origin: Weights,
    problems: int,
    population: Population | None,
    settings: EsSettings,
    *,
    run_seed: int,
    start: int = 0,
    flops_per_token: int = 0,
    on_progress: OnProgress | None = None,
) -> Iterator[StepRecord]:
    """Train `center` in place, yielding after each update.

    Args:
        center: fp32 master weights, changed in place between yields (bf16 under the in-place control).
        origin: theta_0: what drift is measured from and `settings.decay` pulls toward.
        problems: size of the population's prompt list; mini-batches index it.
        population: runs the members; None only with control = "random_z", which needs no rollouts.
        settings: see `EsSettings`.
        run_seed: the stage's seed; every draw is named under it.
        start: 0-based update to begin with (resume).
        flops_per_token: forward FLOPs of the model, for the ledger (2 x parameters).
        on_progress: called during rollouts with (finished completions, generated tokens).
    """
    names, rank = settings.selection.select(center), settings.selection.rank
    check_rank({name: tuple(center[name].shape) for name in names}, names, rank)
    for step in range(start, settings.updates):
        began = time.perf_counter()
        spec = NoiseSpec(run_seed, step, settings.sigma_at(step), names, rank)
        if settings.control == "random_z":
            z = random_coefficients(settings.members, settings.shaping, run_seed, step)
            values: Values = {}
        else:
            z, values = _evaluate(center, spec, problems, population, settings, on_progress, flops_per_token)
        alpha = settings.alpha_at(step)
        values |= {"sigma": spec.sigma, "alpha": alpha, **_update(center, origin, spec, z, alpha, settings)}
        values["drift"] = drift(center, origin)
        values["seconds"] = time.perf_counter() - began
        line = log_line(
            spec, range(settings.members), z, alpha / settings.members, selection=settings.selection, alpha=alpha,
            estimator=settings.estimator, shaping=settings.shaping, decay=settings.decay,
            anchor="theta_0" if settings.decay else None, precision=settings.precision, center_hash=center_hash(center),
        )  # fmt: skip
        yield StepRecord("es", step, values, line)


def _update(
    center: Weights, origin: Weights, spec: NoiseSpec, z: Sequence[float], alpha: float, settings: EsSettings
) -> Values:
    """theta += (alpha / N) sum_i z_i eps_i, exactly or, under the labelled control, by N bf16 additions."""
    scale = alpha / settings.members
    if settings.precision == "bf16_inplace":
        InPlaceControl(center).update(spec, range(settings.members), z, scale)
        return {"update_norm": None}
    stats = apply_update(
        center, spec, range(settings.members), z, scale, decay=settings.decay,
        anchor=origin if settings.decay else None, threads=torch.get_num_threads(),
    )  # fmt: skip
    return {"update_norm": stats.norm}


def _evaluate(
    center: Weights,
    spec: NoiseSpec,
    problems: int,
    population: Population | None,
    settings: EsSettings,
    on_progress: OnProgress | None,
    flops_per_token: int,
) -> tuple[list[float], Values]:
    """Roll the population out; coefficients and the step's measurements."""
    if population is None:
        raise ValueError("only control = 'random_z' runs without a population")
    job = RolloutJob(
        spec,
        evaluations(settings.members, settings.estimator),
        tuple(batch_indices(problems, settings.prompts, spec.step, spec.run_seed)),
        settings.samples,
        settings.sampling,
        settings.member_in_key,
    )
    results = population.rollout(center, job, on_progress)
    rewards = [mean_reward(r) for r in results]
    if settings.control == "shuffled_rewards":
        rewards = shuffled(rewards, spec.run_seed, spec.step)
    values = _measurements(results, rewards, flops_per_token)
    return coefficients(rewards, settings.shaping, settings.estimator), values


def _measurements(
    results: Sequence[MemberResult], rewards: Sequence[float | None], flops_per_token: int
) -> Values:
    """Reward, spread, the terms of the signal's analysis of variance, tokens and FLOPs of a step."""
    scorable = [r for r in rewards if r is not None]
    scores = [s for r in results for s in r.scores if s is not None]
    count = sum(len(r.rewards) for r in results)
    tokens, prompt_tokens = sum(r.tokens for r in results), sum(r.prompt_tokens for r in results)
    mean = sum(scorable) / len(scorable) if scorable else None
    return {
        "reward": mean,
        "reward_std": (sum((r - mean) ** 2 for r in scorable) / len(scorable)) ** 0.5 if mean is not None else None,
        "reward_min": min(scorable, default=None),
        "reward_max": max(scorable, default=None),
        "accuracy": sum(scores) / len(scores) if scores else None,
        "rollouts": count,
        "unscored": count - len(scores),
        "unscored_members": len(rewards) - len(scorable),
        "truncated": sum(r.truncated for r in results) / count if count else None,
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "flops_paper": tokens * flops_per_token,
        "flops_full": (tokens + prompt_tokens) * flops_per_token,
        **signal_values(results),
    }  # fmt: skip


def signal_values(results: Sequence[MemberResult]) -> Values:
    """The signal analysis of a step as `signal_*` values; none where no prompt compares two members."""
    try:
        found = signal(reward_matrix(results))
    except MetricError:
        return {}
    return {f"{SIGNAL}{name}": value for name, value in found.to_json().items()}
