"""Metrics on counts, ballots and arrays. NumPy only: no torch, no files.

`passk`, `majk`: coverage and plurality. `intervals`, `seedwise`, `paired`: what may be concluded.
`frontier`: Pass@K at equal Pass@1. `signal`: is there anything but noise in a population's rewards.
`variance`, `diversity`, `sparsity`: the paper's quantities as pure functions. `rates`: distinct samples.
"""

from broaden.metrics.intervals import (
    Interval,
    Ratio,
    bootstrap_over_problems,
    intervals,
    joint_bootstrap,
    paired_difference,
    paired_differences,
    wilson,
)
from broaden.metrics.majk import expected_maj_at_k, maj_at_k, vote
from broaden.metrics.paired import changes, mcnemar, sign_flip_test
from broaden.metrics.passk import pass_at_k, pass_profile
from broaden.metrics.seedwise import seed_problem_difference, seed_problem_interval

__all__ = [
    "Interval",
    "Ratio",
    "bootstrap_over_problems",
    "changes",
    "expected_maj_at_k",
    "intervals",
    "joint_bootstrap",
    "maj_at_k",
    "mcnemar",
    "paired_difference",
    "paired_differences",
    "pass_at_k",
    "pass_profile",
    "seed_problem_difference",
    "seed_problem_interval",
    "sign_flip_test",
    "vote",
    "wilson",
]
