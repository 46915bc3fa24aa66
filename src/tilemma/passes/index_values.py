"""Vectorised evaluation of expressions: in every thread of a block, or at every element of a register tile."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.arithmetic import integers, lanes
from tilemma.arithmetic.lanes import numpy_type
from tilemma.ir.expr import Binary, Const, Expr, Index, Select, Unary, promote

Ints = NDArray[np.int64]


def evaluate(e: Expr, index: dict[str, Ints]) -> Any | None:
    """``e`` for all values of the indices at once, one number where it has none; None where it needs more."""
    match e:
        case Const(value=v) if not e.type.is_float:
            return int(v)
        case Index(name=n):
            return index.get(n)
        case Unary(op="neg", a=a):
            return evaluate(Binary("sub", Const(0, a.type), a), index)
        case Unary(op=op, a=a):
            x = evaluate(a, index)
            if x is None:
                return None
            result = {"not": np.invert, "lnot": np.logical_not}[op](x)
            return result if isinstance(x, np.ndarray) else int(result)
        case Select(cond=c, a=a, b=b):
            cond, x, y = (evaluate(part, index) for part in (c, a, b))
            if cond is None or x is None or y is None:
                return None
            # np.where of three numbers is an array of no dimensions, which nothing can index by thread.
            return np.where(cond, x, y) if isinstance(cond, np.ndarray) else x if cond else y
        case Binary(op=op, a=a, b=b):
            # Most that is asked for has no value: the first part without one ends the search.
            if (x := evaluate(a, index)) is None or (y := evaluate(b, index)) is None:
                return None
            t = promote(a.type, b.type)
            if t.is_float:
                return None
            if not isinstance(x, np.ndarray) and not isinstance(y, np.ndarray):
                return int(integers.binary(op, t)(integers.wrap(int(x), t), integers.wrap(int(y), t)))
            many = [np.asarray(v).astype(numpy_type(t)) for v in (x, y)]
            return lanes.binary(op, t)(*many)
    return None
