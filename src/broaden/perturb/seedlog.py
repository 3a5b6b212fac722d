"""A run is its log: one JSON line an update, and `replay` to rebuild and check any step's weights.

A line holds what `apply_update` needs beside the run seed and the start, and the hash of the center after
it. Floats are written as Python writes them (repr), which reads back exactly. Not here: files (`store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from broaden.errors import DataError, ExactnessError, UsageError
from broaden.perturb.fingerprint import center_hash as hash_center
from broaden.perturb.noise import NOISE_VERSION
from broaden.perturb.spec import NoiseSpec, Parameterisation, Weights, parameterisation_from_json
from broaden.perturb.update import UpdateStats, apply_update

EXACT = "fp32_master"
KEYS = (
    "step", "members", "coefficients", "scale", "sigma", "alpha", "estimator", "shaping",
    "parameterisation", "decay", "anchor", "precision", "noise", "center_hash",
)  # fmt: skip


def log_line(
    spec: NoiseSpec,
    members: Sequence[int],
    coefficients: Sequence[float],
    scale: float,
    *,
    selection: Parameterisation,
    alpha: float,
    estimator: str,
    shaping: str,
    center_hash: str,
    decay: float = 0.0,
    anchor: str | None = None,
    precision: str = EXACT,
) -> dict[str, Any]:
    """The seed-log line of one update: JSON types only.

    Args:
        spec, members, coefficients, scale, decay: as given to `apply_update` (signs folded).
        selection: the parameterisation that gave `spec.names`.
        alpha, estimator, shaping: where the coefficients and the scale came from; for the reader.
        center_hash: `center_hash` of the center after the update.
        anchor: what decay pulls toward, in words ("start", a checkpoint's name); None without decay.
        precision: "fp32_master", or "bf16_inplace" for the control, which cannot be replayed.
    """
    if len(members) != len(coefficients):
        raise UsageError(f"{len(members)} members but {len(coefficients)} coefficients")
    return {
        "step": spec.step,
        "members": [int(m) for m in members],
        "coefficients": [float(c) for c in coefficients],
        "scale": float(scale),
        "sigma": float(spec.sigma),
        "alpha": float(alpha),
        "estimator": estimator,
        "shaping": shaping,
        "parameterisation": selection.to_json(),
        "decay": float(decay),
        "anchor": anchor,
        "precision": precision,
        "noise": NOISE_VERSION,
        "center_hash": center_hash,
    }


def apply_line(
    center: Weights, line: Mapping[str, Any], anchor: Weights | None, run_seed: int, *, threads: int = 1
) -> UpdateStats:
    """Applies one seed-log line to the center, in place, without checking its hash.

    Raises:
        DataError: keys are missing or unknown.
        UsageError: other noise version, or the in-place control (each of its roundings is part of its path).
    """
    _check_line(line)
    how = parameterisation_from_json(line["parameterisation"])
    spec = NoiseSpec(run_seed, line["step"], line["sigma"], how.select(center), how.rank)
    decay = line["decay"]
    if decay > 0.0 and anchor is None:
        raise UsageError(
            f"step {line['step']} decays toward {line['anchor']!r}", fix="pass those weights as anchor"
        )
    return apply_update(
        center, spec, line["members"], line["coefficients"], line["scale"],
        decay=decay, anchor=anchor if decay > 0.0 else None, threads=threads,
    )  # fmt: skip


def replay(
    center: Weights,
    lines: Iterable[Mapping[str, Any]],
    anchor: Weights | None,
    run_seed: int,
    *,
    threads: int = 1,
) -> Iterator[tuple[int, str]]:
    """Applies the lines in order to the center, in place; yields (step, hash) after each one that checks.

    Args:
        center: the stage's starting weights, float32; changed in place.
        lines: consecutive seed-log lines.
        anchor: what decay pulls toward, or None where no line decays; must not be the center's own tensors.
        run_seed: the run's seed.

    Raises:
        ExactnessError: the rebuilt center's hash differs from the line's; names the step.
        DataError: a step is missing from the log.
    """
    previous: int | None = None
    for line in lines:
        _check_line(line)
        step = line["step"]
        if previous is not None and step != previous + 1:
            raise DataError(f"the seed log goes from step {previous} to step {step}; steps are consecutive")
        apply_line(center, line, anchor, run_seed, threads=threads)
        found = hash_center(center, threads=threads)
        if found != line["center_hash"]:
            raise ExactnessError(
                f"replay of step {step} gave center hash {found}, the log has {line['center_hash']}",
                fix="check the start (weights, dtype), the run seed and that the log is unedited",
            )
        previous = step
        yield step, found


def _check_line(line: Mapping[str, Any]) -> None:
    if set(line) != set(KEYS):
        odd = sorted(set(line) ^ set(KEYS))
        raise DataError(f"missing or unknown in a seed-log line: {', '.join(odd)}; it has {', '.join(KEYS)}")
    if line["noise"] != NOISE_VERSION:
        raise UsageError(
            f"step {line['step']} used noise {line['noise']!r}, this version has {NOISE_VERSION!r}"
        )
    if line["precision"] != EXACT:
        raise UsageError(
            f"step {line['step']} ran with precision {line['precision']!r}, which cannot be replayed",
            fix="replay runs with precision = 'fp32_master'",
        )
