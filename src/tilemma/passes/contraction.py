"""The operands of a contraction: the sources of its fragments, and its M, N and K."""

from __future__ import annotations

from tilemma.dtypes import DType
from tilemma.ir import tile as t
from tilemma.ir.effects import element_reads
from tilemma.ir.expr import Binary, Const, Expr, FragmentElement, Select, value_of
from tilemma.ir.types import Contract, View
from tilemma.ir.walk import walk
from tilemma.layouts import Major
from tilemma.records import record


def matrix(view: View) -> View:
    """``view`` without its axes of extent 1 if it has more than two axes."""
    if len(view.axes) <= 2:
        return view
    keep = [a for a in view.axes if value_of(a.extent) != 1]
    while len(keep) < 2:
        keep = [next(a for a in reversed(view.axes) if a not in keep), *keep]
    return View(view.base, view.offsets, tuple(keep), view.slot, view.reshape)


def extents(contract: Contract, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int, int, int]:
    """(M, N, K of A, K of B) of stored operands ``a`` and ``b``."""
    m, ka = (a[1], a[0]) if contract.a_transposed else a
    n, kb = (b[1], b[0]) if contract.b_transposed else b
    return m, n, ka, kb


@record
class Stored:
    """An operand in memory: ``rows`` is its M or N axis, ``major`` the axis contiguous in memory.

    ``major`` None: neither axis follows the last dimension in steps of 1.
    """

    view: View
    rows: int
    k: int
    k_axis: int
    major: Major | None


def stored(view: View, transposed: bool) -> Stored | None:
    """``view`` as an operand, its K axis first when ``transposed``; None for extents that are not constants."""
    v = matrix(view)
    shape = v.static_shape
    if shape is None or len(shape) != 2:
        return None
    k_axis = 0 if transposed else 1
    return Stored(v, shape[1 - k_axis], shape[k_axis], k_axis, major_of(v, k_axis))


def major_of(view: View, k_axis: int) -> Major | None:
    """Which axis of the matrix ``view`` runs along the last dimension of its base in steps of 1."""
    last = len(view.offsets) - 1
    for i, axis in enumerate(view.axes):
        if axis.dim == last and value_of(axis.step) == 1:
            return "K" if i == k_axis else "MN"
    return None


class Fragments:
    """The uses of each fragment by the operations of a body."""

    def __init__(self, body: t.Body) -> None:
        self.declared: dict[str, t.DeclareFragment] = {}
        self.loads: dict[str, list[t.Load]] = {}
        self.fills: dict[str, list[t.Fill]] = {}
        self.stores: dict[str, list[t.Store]] = {}
        self.multiplies: list[t.Mma] = []
        for op in walk(body):
            match op:
                case t.DeclareFragment(name=name):
                    self.declared[name] = op
                case t.Load(fragment=f):
                    self.loads.setdefault(f.name, []).append(op)
                case t.Fill(fragment=f):
                    self.fills.setdefault(f.name, []).append(op)
                case t.Store(fragment=f):
                    self.stores.setdefault(f.name, []).append(op)
                case t.Mma():
                    self.multiplies.append(op)

    def view(self, operand: t.Operand) -> View | None:
        """The memory that an operand is a snapshot of; None when it was never loaded."""
        if isinstance(operand, View):
            return operand
        loads = self.loads.get(operand.name)
        return loads[0].src if loads else None

    def packed(self, operand: t.Operand) -> int:
        """Elements of the operand in an element of its memory."""
        loads = [] if isinstance(operand, View) else self.loads.get(operand.name, [])
        return loads[0].stored.per_byte if loads and loads[0].stored != loads[0].src.dtype else 1

    def dtype(self, operand: t.Operand) -> DType | None:
        if isinstance(operand, View):
            return operand.dtype
        loads = self.loads.get(operand.name)
        if loads:
            return loads[0].element
        declared = self.declared.get(operand.name)
        return declared.dtype if declared is not None else None


def fragment_uses(op: t.Op) -> tuple[tuple[str, t.FragmentRef], ...]:
    """(use, fragment) for each fragment that ``op`` itself names, or whose elements it reads."""
    reads = element_reads(op)
    if not reads:
        return _named(op)
    read = dict.fromkeys([t.FragmentRef(x.fragment, x.index) for x in reads if isinstance(x, FragmentElement)])
    return (*_named(op), *[("read", ref) for ref in read])


def _named(op: t.Op) -> tuple[tuple[str, t.FragmentRef], ...]:
    match op:
        case t.Mma(acc=acc, a=a, b=b, meta=meta):
            found = [("accumulator", acc)]
            found += [(role, x) for role, x in (("A", a), ("B", b)) if isinstance(x, t.FragmentRef)]
            return (*found, *([("metadata", meta)] if meta is not None else []))
        case t.Fill(fragment=f):
            return (("fill", f),)
        case t.Load(fragment=f):
            return (("load", f),)
        case t.Store(fragment=f):
            return (("store", f),)
        case t.ScaleMma(acc=f):
            return (("accumulator", f),)
        case t.Reduce(dst=dst, src=src):
            return (("read", src), ("apply", dst))
        case t.Apply(fragment=f) | t.SetFragmentElement(fragment=f):
            return (("apply", f),)
    return ()


def divisor(e: Expr) -> int:
    """A number that divides ``e`` for all values of its indices; 0 for the constant 0."""
    from math import gcd

    match e:
        case Const(value=int(v)):
            return abs(v)
        case Binary(op="add" | "sub" | "min" | "max", a=a, b=b):
            return gcd(divisor(a), divisor(b))
        case Binary(op="mul", a=a, b=b):
            return divisor(a) * divisor(b)
        case Binary(op="shl", a=a, b=Const(value=int(v))) if 0 <= v < 31:
            return divisor(a) << v
        case Select(a=a, b=b):
            return gcd(divisor(a), divisor(b))
    return 1


def divides(n: int, e: Expr) -> bool:
    """Whether the constant ``n`` divides ``e`` for all launches."""
    return divisor(e) % n == 0
