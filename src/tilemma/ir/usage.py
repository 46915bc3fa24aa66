"""Use of parameters: the arrays that a kernel reads and writes, and the names that sizes may use."""

from __future__ import annotations

from collections.abc import Iterable

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.errors import CompileError
from tilemma.ir import expr as e
from tilemma.ir import tile as t
from tilemma.ir.effects import read_views, written_views
from tilemma.ir.ranges import wraps
from tilemma.ir.types import Space, View
from tilemma.ir.walk import walk
from tilemma.launch import ArrayParam, ScalarParam, Size


class AssertionNotComputable(CompileError):
    code = "assertion-not-computable"
    found = "an assertion outside every `parallel` depends on more than sizes and whole-number parameters"
    expected = "a condition that can be checked before the launch"
    fix = "move it into the `parallel`, where the kernel checks it"


def written(kernel: t.Kernel) -> frozenset[str]:
    """Names of the array parameters that some operation writes."""
    return _global(v for op in walk(kernel.body) for v in written_views(op))


def read(kernel: t.Kernel) -> frozenset[str]:
    """Names of the array parameters that some operation reads."""
    return _global(v for op in walk(kernel.body) for v in read_views(op))


def _global(views: Iterable[View]) -> frozenset[str]:
    return frozenset(v.base.name for v in views if v.base.space is Space.GLOBAL)


def array_params(kernel: t.Kernel) -> tuple[ArrayParam, ...]:
    """The array parameters as a launch plan describes them (facts: none assumed where none are given)."""
    writes, reads = written(kernel), read(kernel)
    params = []
    for p in kernel.arrays:
        b = p.buffer
        params.append(
            ArrayParam(
                b.name,
                b.dtype.name,
                tuple(size(x) for x in b.shape),
                b.name in writes,
                b.name in reads,
                p.facts.alignment if p.facts else 1,
                p.facts.contiguous if p.facts else None,
                p.facts is not None and p.facts.nonempty,
            )
        )
    return tuple(params)


def nonzero(kernel: t.Kernel) -> frozenset[str]:
    """Dimensions that are at least 1: those of arrays that have elements, by their facts."""
    shapes = [p.buffer.shape for p in kernel.arrays if p.facts is not None and p.facts.nonempty]
    return frozenset(x.name for shape in shapes for x in shape if isinstance(x, e.Dim))


def scalar_params(kernel: t.Kernel) -> tuple[ScalarParam, ...]:
    return tuple(ScalarParam(p.scalar.name, p.scalar.dtype.name) for p in kernel.scalars)


_SIZE_OPS = frozenset(
    ("add", "sub", "mul", "floordiv", "div", "cdiv", "mod", "floormod", "min", "max", "lt", "le", "eq")
)


def size(x: e.Expr) -> Size:
    """An expression over dimensions and scalar parameters as a launch plan's `Size`.

    ValueError when it depends on anything else, or uses an operation that sizes do not have.
    """
    match x:
        case e.Const(value=int() as v):
            return int(v)
        case e.Dim(name=name) | e.Scalar(name=name):
            return name
        case e.Binary(op="add" | "sub" | "mul") if wraps(x):
            exact: Size = (x.op, size(x.a), size(x.b))
            # Counts of 64 bits are exact: no program has as many elements.
            return ("wrap", exact) if x.type == dtypes.s32 else exact
        case e.Binary() if x.op in _SIZE_OPS:
            return (x.op, size(x.a), size(x.b))
        case e.Binary(op="gt"):
            return ("lt", size(x.b), size(x.a))
        case e.Binary(op="ge"):
            return ("le", size(x.b), size(x.a))
        case e.Binary(op="ne"):
            return ("eq", ("eq", size(x.a), size(x.b)), 0)
        case e.Binary(op="land" | "lor"):
            return ("and" if x.op == "land" else "or", size(x.a), size(x.b))
        case e.Unary(op="lnot"):
            return ("eq", size(x.a), 0)
        case e.Unary(op="neg"):
            return ("wrap", ("sub", 0, size(x.a)))
        case e.Select():
            return ("select", size(x.cond), size(x.a), size(x.b))
        case e.Cast() if _is_index(x.dtype) and _is_index(x.a.type):
            return size(x.a)
    raise ValueError(f"not a size: {x}")


def is_size(x: e.Expr) -> bool:
    """Whether the launch can compute ``x`` from the arguments."""
    try:
        size(x)
    except ValueError:
        return False
    return True


def waits_for_events(kernel: t.Kernel) -> bool:
    """Whether the program waits for an event that it declares."""
    return any(isinstance(op, t.WaitEvent) for op in walk(kernel.body))


def checks(kernel: t.Kernel) -> tuple[tuple[Size, str], ...]:
    """The conditions on a call: the assertions outside every `parallel`, as (condition, message).

    AssertionNotComputable for one that depends on more than sizes and scalars.
    """
    found = []
    for op in kernel.body:
        if isinstance(op, t.Assert):
            if not is_size(op.cond):
                raise AssertionNotComputable(op.span)
            where = f" ({op.span})" if op.span is not None else ""
            found.append((size(op.cond), (op.message or "an assertion of the kernel does not hold") + where))
    return tuple(found)


def _is_index(d: DType) -> bool:
    return d.is_integer and d.bits >= 32
