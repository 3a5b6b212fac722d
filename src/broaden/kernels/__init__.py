"""Numba decorators with types, and how a stored number (float32, or bfloat16 as uint16 bits) becomes a float32.

`strict` code is evaluated in the order written (fused multiply-adds allowed); `reduction` code may be
summed in vector lanes: the same order for the same length, so still a function of its input alone.

Numba's cache on disk notices a change of a function's own file only: after editing this module or `mathfn`, delete the
`.nbi` files in this package's `__pycache__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
Array = NDArray[Any]
Scalar = Any  # a number whose width the compiler infers

U16 = np.uint32(16)
ONE = np.uint32(1)
HALF = np.uint32(0x7FFF)


def host(tensor: torch.Tensor) -> Array:
    """A CPU tensor's memory as an array; bfloat16 as its bits in uint16."""
    array: Array = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def strict(function: F) -> F:
    """Compile without the GIL, cached on disk, in the order written."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})(function))


def strict_inline(function: F) -> F:
    """`strict`, always inlined into its callers."""
    flags = {"contract"}
    return cast(
        F, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=flags, forceinline=True)(function)
    )


def reduction(function: F) -> F:
    """Compile a sum or a maximum of finite numbers so that it may use vector lanes."""
    flags = {"contract", "reassoc", "nsz", "nnan"}
    return cast(
        F, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=flags, forceinline=True)(function)
    )


def summation(function: F) -> F:
    """`reduction` for numbers that may be infinite or NaN, which then reach the sum."""
    flags = {"contract", "reassoc", "nsz"}
    return cast(
        F, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=flags, forceinline=True)(function)
    )


def widen(x: Any) -> Any:
    """float32 value of a stored number (compiled code only)."""
    raise NotImplementedError("compiled code only")


def narrow(x: Any, like: Any) -> Any:
    """A float32 in the storage format of `like`, rounded to nearest even (compiled code only)."""
    raise NotImplementedError("compiled code only")


@overload(widen, inline="always")
def _widen(x: Any) -> Any:
    def shifted(x: Any) -> Any:
        return np.uint32(np.uint32(x) << U16).view(np.float32)

    def same(x: Any) -> Any:
        return x

    return shifted if isinstance(x, types.Integer) else same


@overload(narrow, inline="always")
def _narrow(x: Any, like: Any) -> Any:
    def rounded(x: Any, like: Any) -> Any:
        bits = np.float32(x).view(np.uint32)
        if x != x:
            return np.uint16(0x7FC0)
        odd = np.uint32(np.uint32(bits >> U16) & ONE)
        return np.uint16(np.uint32(np.uint32(bits + HALF) + odd) >> U16)

    def same(x: Any, like: Any) -> Any:
        return np.float32(x)

    return rounded if isinstance(like, types.Integer) else same
