"""What a kernel does with its parameters: which it reads, which it writes, which names sizes may use."""

from __future__ import annotations

from dataclasses import fields

from tilemma.dtypes import DType
from tilemma.errors import CompileError
from tilemma.ir import expr as e
from tilemma.ir import tile as t
from tilemma.ir.types import Space, View
from tilemma.ir.walk import expressions, walk
from tilemma.launch import ArrayParam, ScalarParam, Size


class AssertionNotComputable(CompileError):
    code = "assertion-not-computable"
    found = "an assertion outside every `parallel` depends on more than sizes and whole-number parameters"
    expected = "a condition that can be checked before the launch"
    fix = "move it into the `parallel`, where the kernel checks it"


def written(kernel: t.Kernel) -> frozenset[str]:
    """Names of the array parameters that some operation writes."""
    names = set()
    for op in walk(kernel.body):
        view: View | None = None
        match op:
            case t.Copy() | t.Store():
                view = op.dst
            case t.SetElement() | t.Atomic():
                view = op.view
            case _:
                continue
        if view.base.space is Space.GLOBAL:
            names.add(view.base.name)
    return frozenset(names)


def read(kernel: t.Kernel) -> frozenset[str]:
    """Names of the array parameters that some operation reads."""
    names = set()
    for op in walk(kernel.body):
        views = [v for f in fields(op) if isinstance(v := getattr(op, f.name), View)]
        if isinstance(op, (t.Copy, t.Store)):
            views.remove(op.dst)
        elif isinstance(op, t.SetElement):
            views.remove(op.view)
        for expression in expressions(op):
            views += [x.view for x in e.walk(expression) if isinstance(x, e.Element)]
        names |= {v.base.name for v in views if v.base.space is Space.GLOBAL}
    return frozenset(names)


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


_SIZE_OPS = {
    "add": "add", "sub": "sub", "mul": "mul", "floordiv": "floordiv", "div": "floordiv", "cdiv": "cdiv",
    "mod": "mod", "min": "min", "max": "max", "lt": "lt", "le": "le", "eq": "eq",
}  # fmt: skip


def size(x: e.Expr) -> Size:
    """An expression over dimensions and scalar parameters as a launch plan's `Size`.

    ValueError when it depends on anything else, or uses an operation that sizes do not have.
    """
    match x:
        case e.Const(value=int() as v):
            return int(v)
        case e.Dim(name=name) | e.Scalar(name=name):
            return name
        case e.Binary(op="div" | "mod") if e.interval(x.a)[0] < 0 or e.interval(x.b)[0] < 0:
            pass  # rounds toward zero, sizes round down
        case e.Binary() if x.op in _SIZE_OPS:
            return (_SIZE_OPS[x.op], size(x.a), size(x.b))
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
            return ("sub", 0, size(x.a))
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
    """Whether somebody waits for an event that the program declares."""
    return any(isinstance(op, t.WaitEvent) for op in walk(kernel.body))


def checks(kernel: t.Kernel) -> tuple[tuple[Size, str], ...]:
    """What a call must meet: the assertions outside every `parallel`, as (condition, message).

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
