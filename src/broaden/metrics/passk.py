"""Pass@K, the closed form without replacement (Eq. 52 of the paper's first version).

Not here: which samples count (unscored ones are left out by `evaluation`), and intervals (`intervals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray, IntArray, integers


@overload
def pass_at_k(n: int, c: int, k: int) -> float: ...
@overload
def pass_at_k(n: Any, c: Any, k: int) -> Any: ...
def pass_at_k(n: Any, c: Any, k: int) -> Any:
    """Probability that K responses drawn without replacement from n hold a correct one.

        Pass@K = 1 - C(n - c, K) / C(n, K),   1 <= K <= n

    C(n - c, K)/C(n, K) is symmetric in c and K, so with m = min(c, K) and s = max(c, K) it is summed as
    sum_{j<m} q_j s/(n - j), q_0 = 1, q_{j+1} = q_j (n - s - j)/(n - j): the probability that the first
    hit is draw j. All terms are positive (no cancellation), no factorial is formed, and
    c = 1 gives K/n, K = 1 gives c/n exactly.

    Args:
        n: retained (scored) responses of a problem, or an array over problems; they may differ.
        c: correct ones among them, 0 <= c <= n.
        k: K.
    Returns:
        float for scalar input, float64 array over problems otherwise.
    Raises:
        MetricError: K > n for some problem (never padded), K < 1, or counts that cannot be.
    """
    n_P, c_P = np.broadcast_arrays(integers(n, "n"), integers(c, "c"))
    _check(n_P, c_P, k)
    few_P, many_P = np.minimum(c_P, k), np.maximum(c_P, k)
    miss_P, hit_P = np.ones(n_P.shape), np.zeros(n_P.shape)
    for j in range(int(few_P.max(initial=0))):
        left_P = np.maximum(n_P - j, 1)
        hit_P += np.where(j < few_P, miss_P * many_P / left_P, 0.0)
        miss_P = miss_P * np.maximum(n_P - many_P - j, 0) / left_P
    out = np.where(n_P - c_P < k, 1.0, np.minimum(hit_P, 1.0))
    return float(out) if out.ndim == 0 else out


def pass_profile(n: Any, c: Any, ks: Sequence[int]) -> FloatArray:
    """Pass@K of each problem for each K: shape (len(ks), P)."""
    return np.stack([np.atleast_1d(pass_at_k(n, c, k)) for k in ks])


def _check(n_P: IntArray, c_P: IntArray, k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise MetricError(f"K must be an integer of at least 1, got {k!r}")
    if bool(np.any((c_P < 0) | (c_P > n_P))):
        i = int(np.argmax((c_P < 0) | (c_P > n_P)))
        raise MetricError(
            f"correct counts must lie in 0..n: problem {i} has c={c_P.flat[i]}, n={n_P.flat[i]}"
        )
    if bool(np.any(n_P < k)):
        short = int(np.sum(n_P < k))
        i = int(np.argmax(n_P < k))
        raise MetricError(
            f"Pass@{k} needs at least {k} scored samples of every problem; "
            f"{short} of {n_P.size} have fewer (problem {i} has {n_P.flat[i]})",
            f"ask for K <= {int(n_P.min())} or draw more samples",
        )
