"""Sixteen float32 at a time for compiled code: a Numba type over LLVM's vectors, which any processor's registers serve.

Loops that the compiler vectorises by itself are left to it; these are for kernels that keep their sums in registers
over a whole loop, and for fetching memory ahead of its use. Compiled code only.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

WIDTH = 16
FLOATS, INTS, SHORTS = (
    ir.VectorType(kind, WIDTH) for kind in (ir.FloatType(), ir.IntType(32), ir.IntType(16))
)
READ, KEEP, DATA = 0, 3, 1  # llvm.prefetch: for reading, into every cache, not code


class Vector(types.Type):
    """WIDTH float32."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


VECTOR = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """Held as LLVM's own vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


def _address(context: Any, builder: Any, kind: Any, array: Any, indices: Any, index_types: Any) -> Any:
    found = context.make_array(kind)(context, builder, array)
    places = [context.cast(builder, i, t, types.intp) for i, t in zip(indices, index_types, strict=True)]
    return cgutils.get_item_pointer(context, builder, kind, found, places)


@intrinsic
def zeros(typing: Any) -> Any:
    """WIDTH zeros."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(FLOATS, [0.0] * WIDTH)

    return VECTOR(), build


@intrinsic
def load(typing: Any, array: Any, i: Any, j: Any, k: Any) -> Any:
    """array[i, j, k : k + WIDTH], float32 or bfloat16 as uint16 bits, as float32; nothing checks the bounds."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        at = _address(context, builder, kind, args[0], args[1:], signature.args[1:])
        wide = kind.dtype == types.float32
        value = builder.load(builder.bitcast(at, (FLOATS if wide else SHORTS).as_pointer()))
        value.align = kind.dtype.bitwidth // 8
        if wide:
            return value
        shift = ir.Constant(INTS, [16] * WIDTH)
        return builder.bitcast(builder.shl(builder.zext(value, INTS), shift), FLOATS)

    return (VECTOR(array, i, j, k), build) if array.dtype in (types.float32, types.uint16) else None


@intrinsic
def store(typing: Any, value: Any, array: Any, i: Any, j: Any) -> Any:
    """array[i, j : j + WIDTH] = value, float32; nothing checks the bounds."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _address(context, builder, signature.args[1], args[1], args[2:], signature.args[2:])
        builder.store(args[0], builder.bitcast(at, FLOATS.as_pointer())).align = 4
        return context.get_dummy_value()

    return (types.void(value, array, i, j), build) if array.dtype == types.float32 else None


@intrinsic
def madd(typing: Any, x: Any, scalar: Any, total: Any) -> Any:
    """x * scalar + total, fused where the processor can."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = builder.insert_element(
            ir.Constant(FLOATS, ir.Undefined), args[1], ir.Constant(ir.IntType(32), 0)
        )
        every = builder.shuffle_vector(one, one, ir.Constant(INTS, [0] * WIDTH))
        kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
        name = f"llvm.fmuladd.v{WIDTH}f32"
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, name), [args[0], every, args[2]]
        )

    return VECTOR(x, types.float32, total), build


@intrinsic
def prefetch(typing: Any, array: Any, i: Any, j: Any, k: Any) -> Any:
    """Ask for the cache line of array[i, j, k]; changes nothing but when it arrives."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _address(context, builder, signature.args[0], args[0], args[1:], signature.args[1:])
        flag, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, [builder.bitcast(at, byte), *(ir.Constant(flag, n) for n in (READ, KEEP, DATA))])
        return context.get_dummy_value()

    return types.void(array, i, j, k), build
