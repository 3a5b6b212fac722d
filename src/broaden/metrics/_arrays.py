"""Small array helpers shared by the metrics: coercion with errors that say what came."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from broaden.errors import MetricError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def floats(values: Any, name: str, ndim: int) -> FloatArray:
    """`values` as float64 with `ndim` axes and finite entries; MetricError otherwise."""
    out = np.asarray(values, dtype=np.float64)
    if out.ndim != ndim:
        raise MetricError(f"{name} needs {ndim} axes, got shape {out.shape}")
    if out.size == 0:
        raise MetricError(f"{name} is empty")
    if not np.isfinite(out).all():
        raise MetricError(f"{name} holds NaN or infinity; leave unscored entries out before calling")
    return out


def integers(values: Any, name: str) -> IntArray:
    """`values` as int64; floats with a fraction and booleans-as-counts are refused."""
    out = np.asarray(values)
    if out.dtype.kind not in "iu":
        raise MetricError(f"{name} must be integers, got dtype {out.dtype}")
    return out.astype(np.int64)


def same_shape(a: FloatArray, b: FloatArray, names: str) -> None:
    """Raise MetricError unless the two arrays have one shape."""
    if a.shape != b.shape:
        raise MetricError(f"{names} must be over the same problems: shapes {a.shape} and {b.shape}")
