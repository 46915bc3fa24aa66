"""Integers as the language defines them: two's complement that wraps in its type, with no operation undefined.

Constant folding, the CPU reference, range analysis and the lowering of constants use these functions, so that a
value is the same wherever it is computed.  `docs/language.md` (*Integers*) states the rules for users:

- The result of an operation is the exact result modulo ``2**bits``, in the range of its type.
- ``floordiv`` rounds down, ``cdiv`` up, ``div`` towards zero.  ``floormod`` is the remainder of ``floordiv``, with
  the sign of the divisor; ``mod`` that of ``div``, with the sign of the dividend.
- A division by 0 gives 0, and so does its remainder.  The least value divided by -1 wraps to itself.
- A shift count is unsigned in the type of the shift.  By the width or more ``shl`` gives 0, and ``shr`` 0 or, of
  a negative value, -1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache

from tilemma.dtypes import DType

Range = tuple[int, int]
DIVISIONS = ("floordiv", "cdiv", "div", "mod", "floormod")


@cache
def bounds(t: DType) -> Range:
    """The least and the greatest value of ``t``, an integer type, `bool` or `b1`."""
    if t.kind == "int":
        return -(1 << t.bits - 1), (1 << t.bits - 1) - 1
    return (0, (1 << t.bits) - 1) if t.kind == "uint" else (0, 1)


def fits(x: float, t: DType) -> bool:
    """Whether the number lies in the range of ``t``."""
    low, high = bounds(t)
    return low <= x <= high


def wrap(x: int, t: DType) -> int:
    """``x`` modulo ``2**bits``, in the range of ``t``."""
    low, high = bounds(t)
    if low <= x <= high:
        return x
    return (x - low & high - low) + low


def saturate(x: int, t: DType) -> int:
    """``x``, or the end of the range of ``t`` that it lies beyond: the conversion between integer types."""
    low, high = bounds(t)
    return low if x < low else high if x > high else x


def _truncated(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def floordiv(a: int, b: int) -> int:
    """The quotient rounded down; 0 for a division by 0."""
    return a // b if b else 0


def cdiv(a: int, b: int) -> int:
    """The quotient rounded up; 0 for a division by 0."""
    return -(-a // b) if b else 0


def div(a: int, b: int) -> int:
    """The quotient rounded towards zero; 0 for a division by 0."""
    return _truncated(a, b) if b else 0


def mod(a: int, b: int) -> int:
    """The remainder of `div`, with the sign of ``a``; 0 for a division by 0."""
    return a - b * _truncated(a, b) if b else 0


def floormod(a: int, b: int) -> int:
    """The remainder of `floordiv`, with the sign of ``b``; 0 for a division by 0."""
    return a % b if b else 0


def shl(a: int, b: int, bits: int) -> int:
    """``a`` times ``2**b``, not wrapped; 0 for a count outside the width."""
    return a << b if 0 <= b < bits else 0


def shr(a: int, b: int, bits: int) -> int:
    """``a`` over ``2**b``, rounded down; 0 or -1 for a count outside the width."""
    return a >> (b if 0 <= b < bits else bits)


_WRAPPING: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": floordiv, "cdiv": cdiv, "div": div,
}  # fmt: skip
# Results that lie in the type whatever the operands.
_CLOSED: dict[str, Callable[[int, int], int]] = {
    "mod": mod, "floormod": floormod, "min": min, "max": max,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "land": lambda a, b: bool(a) and bool(b), "lor": lambda a, b: bool(a) or bool(b),
}  # fmt: skip


def exact(op: str, t: DType) -> Callable[[int, int], int]:
    """``a op b`` before it wraps in ``t``; of operations that cannot leave the type, the result."""
    if op in _WRAPPING:
        return _WRAPPING[op]
    return (lambda a, b: shl(a, b, t.bits)) if op == "shl" else binary(op, t)


@cache
def binary(op: str, t: DType) -> Callable[[int, int], int]:
    """``a op b`` for two values of ``t``, an integer type, `bool` or `b1`; comparisons give a truth value."""
    if op in COMPARISONS:
        return COMPARISONS[op]
    if op in _CLOSED:
        return _CLOSED[op]
    if op == "shr":
        return lambda a, b: shr(a, b, t.bits)
    low, high = bounds(t)
    unwrapped = exact(op, t)

    def wrapped(a: int, b: int) -> int:
        r = unwrapped(a, b)
        return r if low <= r <= high else (r - low & high - low) + low

    return wrapped


def unary(op: str, x: int, t: DType) -> int:
    """``neg`` and the bitwise ``not`` of a value of ``t``; ``lnot`` of any."""
    if op == "lnot" or t.kind in ("bool", "bits"):
        return not x
    return wrap(-x if op == "neg" else ~x, t)
