"""Alias analysis: an access to memory or registers, and whether two accesses may overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, Literal

import numpy as np

from tilemma.dtypes import DType
from tilemma.forking import cached_property
from tilemma.ir.expr import Binary, Const, Dim, Expr, Index, Scalar, Select, Var, const, value_of, walk
from tilemma.ir.ranges import interval
from tilemma.ir.tile import Apply, Copy, For, While
from tilemma.ir.types import View
from tilemma.launch import MAX_EXTENT
from tilemma.passes.threads import Bools, Ints, Node, evaluate
from tilemma.records import record

# "tma" loads into shared memory, "bulk" stores from it.
Agent = Literal["thread", "cp.async", "wgmma", "tma", "bulk"]
_HALF = 2**31


@record(slots=False)
class _Offset:
    """An affine offset modulo 2**32: base[instance] + sum of coefficient * atom + a value in the bounds ``loose``.

    ``base`` is a number if it is the same for all instances, and an s32.  An atom is uniform in the block.
    """

    base: Any
    terms: dict[Expr, int]
    loose: tuple[int, int] = (0, 0)

    def plus(self, other: _Offset, sign: int = 1) -> _Offset:
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            terms[atom] = terms.get(atom, 0) + sign * c
        low, high = other.loose if sign > 0 else (-other.loose[1], -other.loose[0])
        base = _wrapped(self.base + sign * other.base)
        return _Offset(base, terms, (self.loose[0] + low, self.loose[1] + high))

    def times(self, c: int) -> _Offset:
        ends = sorted((self.loose[0] * c, self.loose[1] * c))
        terms = {atom: n * c for atom, n in self.terms.items()}
        return _Offset(_wrapped(self.base * _wrapped(c)), terms, (ends[0], ends[1]))


def _wrapped(x: Any) -> Any:
    """``x`` modulo 2**32, as an s32: a number, or an array that is wide enough to compute with."""
    x = x.astype(np.int64) if isinstance(x, np.ndarray) else int(x)
    return (x + _HALF) % (2 * _HALF) - _HALF


@record
class _OwnVariable(Var):
    """The value of a variable in the threads of the instance that starts at thread ``start``."""

    start: int


@dataclass(eq=False)
class Access:
    """One operation's access to one buffer or register tile (``%name``, private to each instance).

    Threads [start[i], start[i] + threads) execute instance i together; it is not known which of them accesses
    which element.  ``agent``: the hardware unit that executes it; an access by any but "thread" completes at a
    wait.

    ``event``: the event that the bytes of a load by TMA complete; ``future``: the handle of a copy by cp.async.
    ``release``: not an access, but a trigger that lets the waiting threads access the buffer: "elected", one
    thread arrives for its instance; "warp", one for its warp; "each", every thread for itself.  ``waiters_proxy``:
    the proxy (generic or async) through which the waiting threads access it.
    """

    node: Node
    resource: str
    view: View | None
    write: bool
    agent: Agent
    start: Ints
    threads: int
    atomic: bool = False
    subscript: tuple[Expr, ...] = ()
    event: str | None = None
    future: str | None = None
    release: Literal["", "elected", "warp", "each"] = ""
    waiters_proxy: str = ""
    # Instance i, one thread, accesses element i of the whole buffer alone.
    each: bool = False
    # The variables with one value for all threads of the block, and the loops in which each is declared.
    steady: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)
    # The other variables that are set once: each instance has a value of its own.
    own: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)
    # Of the loops around it, by index: whether all threads of the block have the same one.
    uniform: dict[str, bool] = field(default_factory=dict, repr=False)
    # Of bodies, by id: whether all threads that execute the access get there.
    reached: dict[int, bool] = field(default_factory=dict, repr=False)

    @cached_property
    def private(self) -> bool:
        return self.resource.startswith("%")

    @cached_property
    def role(self) -> Node | None:
        """The asynchronous role that contains it."""
        return self.node.role

    @cached_property
    def executing(self) -> Bools:
        """The threads that execute it, as a mask."""
        here = self.node.parent.mask
        inside = np.zeros_like(here)
        for first in self.start.tolist():
            inside[first : first + self.threads] = True
        return inside & here

    @cached_property
    def around(self) -> frozenset[Node]:
        """Its operation and the enclosing ones."""
        return frozenset(self.node.ancestors())

    @cached_property
    def proxy(self) -> str:
        return self.waiters_proxy or ("async" if self.agent in ("wgmma", "tma", "bulk") else "generic")

    @cached_property
    def loops(self) -> frozenset[str]:
        """The indices of the loops around it."""
        return frozenset(
            n.op.index.name
            for n in self.node.ancestors()
            if hasattr(n.op, "index") and isinstance(n.op.index, Index)
        )

    @cached_property
    def strides(self) -> dict[str, int]:
        """The steps of the loops around it that start at a constant, or where each thread starts at its own value:
        any two values of the term that `_offset` takes for the index are a multiple apart."""
        loops = [n.op for n in self.node.ancestors() if isinstance(n.op, For)]
        loops = [op for op in loops if value_of(op.start) is not None or self._first(op.index) is not None]
        return {op.index.name: abs(value_of(op.step) or 1) for op in loops}

    @cached_property
    def _ranges(self) -> dict[str, For]:
        """The loops around it whose start or step is not constant, by index."""
        loops = (n.op for n in self.node.ancestors() if isinstance(n.op, For))
        return {op.index.name: op for op in loops if value_of(op.start) is None or value_of(op.step) is None}

    def _is_uniform(self, index: Index) -> bool:
        """Whether all threads of the block have the same ``index`` in one iteration of its loop."""
        known = self.uniform.get(index.name)
        if known is None:
            op = self._ranges.get(index.name)
            found = (self._offset(e) for e in (op.start, op.step)) if op is not None else ()
            known = all(isinstance(o.base, int) and o.loose == (0, 0) for o in found)
            self.uniform[index.name] = known
        return known

    def _first(self, index: Index) -> _Offset | None:
        """The first ``index`` of each thread in a loop where that differs, and the distance to it does not."""
        op = self._ranges.get(index.name)
        if op is None or value_of(op.step) is None or interval(op.start)[0] < 0:
            return None
        start = self._offset(op.start)
        return start if isinstance(start.base, np.ndarray) and start.loose == (0, 0) else None

    @cached_property
    def box(self) -> list[tuple[_Offset, int]] | None:
        """(offset, elements) along each dimension, the copy number last; None for all of the buffer."""
        if self.view is None or self.view.reshape is not None:
            return None
        if self.each:
            shape = [value_of(n) or 0 for n in self.view.base.shape]
            return [(_Offset(digit.astype(np.int64), {}), 1) for digit in np.unravel_index(self.start, shape)]
        found = []
        for d, offset in enumerate(self.view.offsets):
            reach = 1
            for a in self.view.axes:
                if a.dim == d:
                    extent, (least, step) = interval(a.extent)[1], interval(a.step)
                    if least < 0:
                        return None
                    reach += max(0, extent - 1) * step
            found.append((self._offset(offset), reach))
        if self.view.slot is not None:
            found.append((self._offset(self.view.slot), 1))
        return found

    @cached_property
    def visit(self) -> Node | None:
        """The enclosing `Apply`, in whose body each lane visits its own elements."""
        return next((n for n in self.node.ancestors() if isinstance(n.op, Apply) and n is not self.node), None)

    @cached_property
    def visited(self) -> frozenset[str]:
        """The indices of the visited element, which differ in each lane."""
        op = self.visit.op if self.visit is not None else None
        return frozenset(i.name for i in op.indices) if isinstance(op, Apply) else frozenset()

    def same_visit(self, other: Access, carried: frozenset[str]) -> bool:
        """Whether ``other``, a later access with changed indices in ``carried``, visits the same element.

        The body of an `Apply` does not access data that its body writes for another element
        (passes/check_apply.py).
        """
        if self.visit is None or self.visit is not other.visit:
            return False
        return not any(loop_name(n) in carried for n in self.visit.ancestors())

    @cached_property
    def moving(self) -> frozenset[str]:
        """The loop indices on which its offsets depend."""
        atoms = (a for offset, _ in self.box or () for a in offset.terms)
        return frozenset[str]().union(*(self.loops_of(a) for a in atoms))

    def loops_of(self, atom: Expr) -> frozenset[str]:
        """The loops whose iterations may change ``atom``."""
        if isinstance(atom, _OwnVariable):
            return self.own[atom.name]
        found = frozenset(x.name for x in walk(atom) if isinstance(x, Index))
        return found.union(*(self.steady.get(x.name, ()) for x in walk(atom) if isinstance(x, Var)))

    @cached_property
    def executors(self) -> tuple[bytes, int]:
        """A key of the threads of its instances."""
        return self.start.tobytes(), self.threads

    @cached_property
    def fixed(self) -> tuple[int | None, ...]:
        """Constant subscripts, None along the other dimensions."""
        if self.view is None or self.view.reshape is not None:
            return ()
        wide = {a.dim for a in self.view.axes}
        return tuple(None if d in wide else value_of(o) for d, o in enumerate(self.view.offsets))

    def disjoint(self, other: Access) -> bool:
        """Whether constant subscripts prove it disjoint from ``other``, an access to the same buffer."""
        mine, its = self.fixed, other.fixed
        return any(a is not None and b is not None and a != b for a, b in zip(mine, its, strict=False))

    def _offset(self, e: Expr) -> _Offset:
        e = _unlimited(e, 1)
        index = self.node.parent.index
        value = evaluate(e, index)
        if value is not None:
            return _Offset(_wrapped(value[self.start] if isinstance(value, np.ndarray) else value), {})
        if isinstance(e, Binary) and e.op in ("add", "sub"):
            return self._offset(e.a).plus(self._offset(e.b), 1 if e.op == "add" else -1)
        if isinstance(e, Binary) and e.op == "mul":
            for x, c in ((e.a, value_of(e.b)), (e.b, value_of(e.a))):
                if c is not None:
                    return self._offset(_unlimited(x, c)).times(c)
        if isinstance(e, Index) and (start := self._first(e)) is not None:
            return start.plus(_Offset(0, {e: 1}))
        if isinstance(e, Var) and e.name in self.own and len(self.start) == 1:
            return _Offset(0, {_OwnVariable(e.name, e.dtype, int(self.start[0])): 1})
        steady = all(
            isinstance(x, (Index, Dim, Scalar, Const, Binary, Select))
            or (isinstance(x, Var) and x.name in self.steady)
            for x in walk(e)
        )
        indices = [x for x in walk(e) if isinstance(x, Index)] if steady else []
        if steady and all(x.name not in index and self._is_uniform(x) for x in indices):
            return _Offset(0, {e: 1})
        return _Offset(0, {}, interval(e))


def _unlimited(e: Expr, step: int) -> Expr:
    """``e``, the number of a tile of ``step`` elements, without the limits that `ir/tiles.py` sets to keep its
    origin from wrapping: a tile beyond them has no elements."""
    for name, sign in (("max", -1), ("min", 1)):
        if isinstance(e, Binary) and e.op == name:
            limit = value_of(e.b)
            if limit is not None and limit * step * sign >= MAX_EXTENT:
                e = e.a
    return e


def advanced_loops(x: Access, y: Access, carried: frozenset[str]) -> frozenset[str]:
    """The loops of ``carried`` in whose present run ``x`` was in an earlier iteration: the outermost of them.

    Those inside it may have started again in between, and have any index.
    """
    around = [n for n in x.node.ancestors() if isinstance(n.op, (For, While)) and loop_name(n) in carried]
    return frozenset((loop_name(around[-1]),)) if around and around[-1] in y.around else frozenset()


def loop_name(n: Node) -> str:
    """The name of the loop ``n``: its index, or a unique name for a `While`."""
    return n.op.index.name if isinstance(n.op, For) else f"while {id(n)}"


def overlap(x: Access, y: Access, carried: frozenset[str], advanced: frozenset[str] = frozenset()) -> Bools:
    """The pairs of instances of ``x`` (rows) and ``y`` (columns) that may access one element.

    Loop indices in ``carried`` may have changed from ``x`` to ``y``; other enclosing loops are in one iteration.
    Those in ``advanced`` have: ``y`` is in a later iteration of the same run of the loop.
    """
    shape = (len(x.start), len(y.start))
    if x.private:
        a, b = x.start[:, None], y.start[None, :]
        return (a < b + y.threads) & (b < a + x.threads) & _subscripts_may_be_equal(x, y)
    result: Bools = np.ones(shape, dtype=bool)
    if x.box is None or y.box is None or len(x.box) != len(y.box):
        return result
    for (ox, nx), (oy, ny) in zip(x.box, y.box, strict=True):
        moved = _difference(x, ox, oy, carried, {n: s for n, s in x.strides.items() if y.strides.get(n) == s})
        low, high = moved.low + moved.loose[0], moved.high + moved.loose[1]
        if low < -_HALF or high >= _HALF:
            continue
        base = (ox.base[:, None] if isinstance(ox.base, np.ndarray) else ox.base) - oy.base
        # Offsets are s32: a difference of 2**31 or more may wrap around.
        wraps = (base + low < -_HALF) | (base + high >= _HALF)
        greater, less = (np.maximum, np.minimum) if isinstance(base, np.ndarray) else (max, min)
        # The two meet if the difference is in (-nx, ny): the bounds that this sets for the moved terms.
        first = greater(moved.low, 1 - nx - moved.loose[1] - base)
        last = less(moved.high, ny - 1 - moved.loose[0] - base)
        meets = last // moved.stride * moved.stride >= first
        if moved.alone is not None and moved.alone in advanced:
            # The difference is a multiple of the stride, and not 0.
            meets &= (first <= -moved.stride) | (last >= moved.stride)
        result = result & (wraps | meets)
    return result


def _subscripts_may_be_equal(x: Access, y: Access) -> bool:
    known = [(value_of(a), value_of(b)) for a, b in zip(x.subscript, y.subscript, strict=False)]
    return all(a is None or b is None or a == b for a, b in known)


@record
class _Moved:
    """The moved terms of the difference of two offsets: a multiple of ``stride`` in [low, high], plus a value in
    the bounds ``loose``.

    ``alone``: the only moved term, where that is the index of a loop: if it has changed, the multiple is not 0.
    """

    low: int
    high: int
    stride: int
    loose: tuple[int, int]
    alone: str | None = None


def _difference(
    access: Access, x: _Offset, y: _Offset, carried: frozenset[str], strides: dict[str, int]
) -> _Moved:
    """Offset x - offset y, bases left out.  An index in ``strides`` changes by multiples of its stride."""
    low = high = stride = 0
    moved: list[Expr] = []

    def add(atom: Expr, c: int, step: int = 1) -> None:
        nonlocal low, high, stride
        a, b = interval(atom)
        low, high = low + min(a * c, b * c), high + max(a * c, b * c)
        stride = gcd(stride, c * step)

    for atom in {**x.terms, **y.terms}:
        cx, cy = x.terms.get(atom, 0), y.terms.get(atom, 0)
        if not carried.isdisjoint(access.loops_of(atom)):
            step = strides.get(atom.name, 1) if isinstance(atom, Index) and cx == cy else 1
            add(atom, cx, step)
            add(atom, -cy, step)
            # A coefficient that is not the same on both sides makes 0 possible.
            moved.append(atom if cx == cy and isinstance(atom, Index) and atom.name in strides else const(0))
        elif cx != cy:
            add(atom, cx - cy)
            moved.append(const(0))
    # Without terms, or with distant values only, 0 is the only multiple that does not wrap.
    stride = min(stride, 4 * _HALF) or 4 * _HALF
    only = moved[0] if len(moved) == 1 else None
    alone = only.name if isinstance(only, Index) else None
    return _Moved(low, high, stride, (x.loose[0] - y.loose[1], x.loose[1] - y.loose[0]), alone)


def distance(x: Access, a: Expr, y: Access, b: Expr) -> int | None:
    """``b`` at ``y`` minus ``a`` at ``x``, no loop having gone on in between; None where it is not one number."""
    found = y._offset(b).plus(x._offset(a), -1)
    if any(found.terms.values()) or found.loose != (0, 0) or not isinstance(found.base, int):
        return None
    return found.base


def same_mapping(x: Access, y: Access, carried: frozenset[str]) -> bool:
    """Whether each thread accesses the same elements in ``x`` and in ``y``.

    True for one operation whose view is invariant in the ``carried`` loops, and for copies that divide a tile
    among their threads in one way, or tiles of different heights row by row.
    """
    if x.box is None or y.box is None:
        return False
    if x.node is y.node and x.view is y.view and not any(_varies(x, o, carried) for o, _ in x.box):
        return True
    mine, its = _Division.of(x), _Division.of(y)
    if mine is None or its is None:
        return False
    sizes = [n for _, n in x.box]
    if mine != its:
        rows = mine.rows
        if rows is None or mine.of_height(1) != its.of_height(1):
            return False
        sizes[mine.steps[0][0]] = rows
    return all(_same_place(x, ox, oy, n, carried) for (ox, _), (oy, _), n in zip(x.box, y.box, sizes, strict=True))


def _varies(x: Access, o: _Offset, carried: frozenset[str]) -> bool:
    """Whether ``o``, an offset of ``x``, may differ between iterations of the ``carried`` loops."""
    return bool(o.loose[1]) or any(not carried.isdisjoint(x.loops_of(a)) for a in o.terms)


@record
class _Division:
    """The division of a copied tile: thread ``first`` + t moves chunks t, t + threads, .. (lower/copies.py)."""

    shape: tuple[int, ...] | None
    # The dimension of each axis, and the distance of its elements.
    steps: tuple[tuple[int, int | None], ...]
    reach: tuple[int, ...]
    dtype: DType
    vector: int
    threads: int
    first: int

    @staticmethod
    def of(x: Access) -> _Division | None:
        op, view = x.node.op, x.view
        if not isinstance(op, Copy) or op.plan is None or view is None or len(x.start) != 1:
            return None
        if op.plan.engine == "tma":
            return None
        shape = op.dst.static_shape or op.src.static_shape
        steps = tuple((a.dim, value_of(a.step)) for a in view.axes)
        reach = tuple(n for _, n in x.box or ())
        return _Division(shape, steps, reach, view.base.dtype, op.plan.vector, op.plan.threads, int(x.start[0]))

    @property
    def rows(self) -> int | None:
        """Rows from each chunk of a thread to its next, where all its chunks have one column: a thread has each so
        many-th row of a tile of any height."""
        if self.shape is None or len(self.shape) != 2 or len(self.steps) != 2 or self.steps[0][1] != 1:
            return None
        chunks, rest = divmod(self.shape[1] * self.dtype.bits, 8 * self.vector)
        return self.threads // chunks if chunks and not rest and self.threads % chunks == 0 else None

    def of_height(self, rows: int) -> _Division:
        """The division of a tile of other height."""
        tall = self.steps[0][0]
        reach = tuple(rows if d == tall else n for d, n in enumerate(self.reach))
        return replace(self, shape=(rows, *(self.shape or ())[1:]), reach=reach)


def _same_place(x: Access, ox: _Offset, oy: _Offset, n: int, carried: frozenset[str]) -> bool:
    """Whether two intervals of ``n`` elements are one if they meet: their distance is a multiple of ``n``."""
    moved = _difference(x, ox, oy, carried, {})
    base = ox.base - oy.base
    if isinstance(base, np.ndarray) or moved.loose != (0, 0):
        return False
    near = base + moved.low >= -_HALF and base + moved.high < _HALF
    still = moved.low == moved.high == 0 or moved.stride % n == 0
    return near and still and base % n == 0
