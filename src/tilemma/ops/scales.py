"""The scales of the operands, as arrays [batch, steps, extent] or as one factor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.epilogue import BLOCK
from tilemma.ops.problem import UNSCALED, Scaling
from tilemma.ops.refusals import MatmulScale
from tilemma.runtime.arrays import ArrayRef

if TYPE_CHECKING:
    from tilemma.ops.arguments import Call


def scaling(call: Call, shape: tuple[int, ...]) -> tuple[Scaling, Scaling, float]:
    """The scales of `a` and of `b`, each as [.., steps, extent] with the batch of the result, and the product of
    those that are numbers.  Raises MatmulScale, MatmulScalar."""
    from tilemma.ops.arguments import number

    found, factor = [], 1.0
    for name, x in (("scale_a", call.scale_a), ("scale_b", call.scale_b)):
        if x is None:
            found.append(UNSCALED)
        elif isinstance(x, ArrayRef):
            found.append(_array(call, name, x, shape))
        else:
            factor *= number(call, name, x)
            found.append(UNSCALED)
    return found[0], found[1], factor


def _refused(call: Call, name: str, what: str, wanted: str, remedy: str) -> MatmulScale:
    return MatmulScale(function=call.function, name=name, what=what, wanted=wanted, remedy=remedy)


def _array(call: Call, name: str, x: ArrayRef, shape: tuple[int, ...]) -> Scaling:
    if x.dtype.name != "f32":
        raise _refused(call, name, f"holds {x.dtype}", "f32", f"convert `{name}` to f32")
    left = name == "scale_a"
    depth = call.a.shape[-1]
    extent = call.a.shape[-2] if left else call.b.shape[-1]
    steps, blocks = cdiv(depth, BLOCK), cdiv(extent, BLOCK)
    # Blocks of rows would lie across groups.
    divided = left and call.offsets is not None
    # The extent first, as for `a`; `b` has the steps first.
    plane = x.shape[-2:] if x.rank >= 2 else (1, 1)
    along = plane if left else plane[::-1]
    strides = (x.strides[-2:] if left else x.strides[:-3:-1]) if x.rank >= 2 else (0, 0)
    size_one = x.rank < 2 and (x.rank == 0 or x.shape == (1,))
    kind: Literal["tensor", "vector", "steps", "blocks"]
    if size_one or (x.rank >= 2 and along == (1, 1)):
        kind, along, strides = "tensor", (1, 1), (0, 0)
    elif x.rank >= 2 and along == (extent, 1):
        kind, strides = "vector", (strides[0], 0)
    elif x.rank >= 2 and along == (extent, steps):
        kind = "steps"
    elif x.rank >= 2 and along == (blocks, steps) and not divided:
        kind = "blocks"
    else:
        forms = [(1, 1), (extent, 1), (extent, steps), *([] if divided else [(blocks, steps)])]
        wanted = ", ".join(str(list(f if left else f[::-1])) for f in dict.fromkeys(forms))
        raise _refused(
            call,
            name,
            f"has shape {list(x.shape)}",
            f"a number, or f32 of one of the shapes {wanted}",
            f"reshape `{name}` to one of these shapes, or pass a number",
        )
    batch, lead = _batch(call, name, x, shape)
    if kind in ("steps", "blocks") and steps == 0:
        return UNSCALED  # there are no scales to read
    return Scaling(kind, x._replace(shape=(*batch, along[1], along[0]), strides=(*lead, strides[1], strides[0])))


def _batch(call: Call, name: str, x: ArrayRef, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The batch dimensions of scales, broadcast to those of the operand that is read with them."""
    given, strides = x.shape[: max(x.rank - 2, 0)], x.strides[: max(x.rank - 2, 0)]
    wanted = shape[:-2] if call.offsets is None else (call.b.shape[0],) if name == "scale_b" else ()
    if call.offsets is not None and name == "scale_b" and not any(n != 1 for n in given):
        # All groups share the scales.
        return (1,), (0,)
    lead = len(wanted) - len(given)
    extents, steps = (1,) * lead + given, (0,) * lead + strides
    if lead < 0 or any(e not in (1, n) for e, n in zip(extents, wanted, strict=True)):
        raise _refused(
            call,
            name,
            f"has shape {list(x.shape)}",
            f"batch dimensions that broadcast to {list(wanted)}",
            f"reshape `{name}`, or leave its batch dimensions out",
        )
    fitted = tuple(0 if e == 1 and n != 1 else s for e, n, s in zip(extents, wanted, steps, strict=True))
    return wanted, fitted
