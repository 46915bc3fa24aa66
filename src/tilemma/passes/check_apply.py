"""Checks the bodies of `apply`: element-wise work on register tiles.

The body runs once for each element, by the lane that holds it, and a lane visits its elements one after the other.
So nothing in it can act for a whole group, sum over elements in a variable, or use a value that another element
wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilemma.errors import CompileError, Note, Span
from tilemma.ir import tile as t
from tilemma.ir.effects import Execution, assigned, declared, read_views, updated_views, written_views
from tilemma.ir.expr import Binary, Element, Expr, FragmentElement, Index, Var, substitute, value_of
from tilemma.ir.expr import walk as terms
from tilemma.ir.tiles import describe
from tilemma.ir.types import Buffer, Space, View
from tilemma.ir.walk import bodies, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.passes.index_values import evaluate
from tilemma.records import record

# Larger tiles are taken not to be visited at different places, unless that can be seen without counting.
_MOST_ELEMENTS = 1 << 18


class ApplyStatement(CompileError):
    code = "apply-statement"
    found = "{what} in the body of an `apply`"
    expected = "element work: values, elements, atomics, conditions and loops, `print` and `assert`"
    fix = "write it before or after the `apply`"


class ApplyReduction(CompileError):
    code = "apply-reduction"
    found = "{what} in an `apply`"
    expected = "each element to be worked on by itself: the lanes that hold the others have values of their own"
    fix = "{remedy}"


class ApplyOrder(CompileError):
    code = "apply-order"
    found = "an `apply` writes {written} of `{name}` and uses {used} for the same element"
    expected = "elements that no other iteration accesses: the order of the iterations is not defined"
    fix = "write two `apply`s, one after the other"


class ApplyOtherTile(CompileError):
    code = "apply-other-tile"
    found = "`{name}`, a tile of {have}, is used in an `apply` over `{visited}`, a tile of {shape}"
    expected = "tiles of one shape, and vectors with a value for each row"
    fix = "{remedy}"


@record(slots=False)
class CheckApply:
    """Refuses bodies of `apply` that have no meaning for a single element."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises ApplyStatement, ApplyReduction or ApplyOrder."""
        for op in walk(kernel.body):
            if isinstance(op, t.Apply):
                _check(op)
        return kernel


def check_visited(op: t.Apply, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ApplyOtherTile for a tile or vector without an element for each one visited.  ``shapes``: the extents
    of the fragments."""
    visited = tuple(value_of(i.extent) for i in op.indices)
    for statement in op.body:
        uses = [(x, ref) for x in walk((statement,)) for _, ref in fragment_uses(x)]
        for x, ref in uses:
            have = shapes.get(ref.name, visited)
            if have in (visited, visited[:1]):
                continue
            remedy = f"go over `{ref.name}` in an `apply` of its own"
            if any(other.name != ref.name for _, other in uses):
                remedy = (
                    f"store `{ref.name}` to a buffer with `mma.store`, and use the elements that the buffer has"
                )
            raise ApplyOtherTile(
                x.span,
                name=ref.name,
                have=list(have),
                visited=next((r.name for _, r in uses if shapes.get(r.name) == visited), op.fragment.name),
                shape=list(visited),
                remedy=remedy,
            )


def _check(op: t.Apply) -> None:
    own: set[str] = set()
    for x in walk(op.body):
        if not _by_one_lane(x):
            raise ApplyStatement(x.span, what=_STATEMENTS.get(type(x).__name__, f"`{type(x).__name__.lower()}`"))
        own |= {v.name for v in declared(x) if isinstance(v, (Var, Buffer))}
        for v in assigned(x):
            if v.name not in own:
                raise _reduction(x.span, f"`{v.name}`, a variable of the scope around it, is assigned")
        for view in written_views(x):
            if view.base.space is Space.LOCAL and view.base.name not in own:
                name = view.base.name
                raise _reduction(x.span, f"`{name}`, a local buffer of the scope around it, is written")
    accesses = list(_accesses(op.body))
    if not accesses:
        return
    places = _Places(op)
    for x, written, atomic in accesses:
        for y, view in _used(op.body, written.base.name):
            _check_pair(places, x, written, atomic, y, view)


def _by_one_lane(op: t.Op) -> bool:
    """Whether one lane can execute ``op`` for one element."""
    if isinstance(op, t.Alloc):
        return op.buffer.space is Space.LOCAL
    return op.execution is Execution.LANE or (
        op.execution is Execution.CONTROL and not isinstance(op, t.InThreads)
    )


def _reduction(span: Span | None, what: str) -> ApplyReduction:
    remedy = (
        "write the elements to a buffer and add them up behind the `apply`, or use an atomic on an element of a "
        "shared or global array"
    )
    return ApplyReduction(span, what=what, remedy=remedy)


def _accesses(body: t.Body) -> Iterator[tuple[t.Op, View, bool]]:
    for x in walk(body):
        for view in written_views(x):
            if view.base.space is not Space.LOCAL:
                yield x, view, bool(updated_views(x))


def _used(body: t.Body, name: str) -> Iterator[tuple[t.Op, View]]:
    """Plain accesses to the buffer ``name``: (the operation, the view)."""
    for x in walk(body):
        atomic = updated_views(x)
        for view in (*written_views(x), *read_views(x)):
            if view.base.name == name and not any(view is a for a in atomic):
                yield x, view


def _check_pair(places: _Places, x: t.Op, written: View, atomic: bool, y: t.Op, used: View) -> None:
    """Refuses ``used`` where another element's visit may write it, in ``written``."""
    here = places.reached(x) | places.reached(y)
    if used is written or places.apart(written, used) or places.own(written, used, here):
        return
    if not atomic and places.same(written, used) and not places.shared(written, here):
        return
    name = written.base.name
    if not atomic and places.same(written, used):
        raise _reduction(x.span, f"{_place(written)} is read and written for several elements")
    notes = [Note("used here", y.span)] if y is not x else []
    raise ApplyOrder(x.span, written=_place(written), used=_place(used), name=name, notes=notes)


def _place(view: View) -> str:
    return f"`{view.base.name}[{', '.join(describe(o) for o in view.offsets)}]`"


class _Places:
    """The places at which the visits of an `apply` access memory."""

    def __init__(self, op: t.Apply) -> None:
        self.indices = {i.name for i in op.indices}
        extents = [value_of(i.extent) or 1 for i in op.indices]
        self.count = int(np.prod(extents))
        grid = np.indices(extents) if self.count <= _MOST_ELEMENTS else np.zeros((len(extents), 1))
        self.values = {i.name: g.reshape(-1).astype(np.int64) for i, g in zip(op.indices, grid, strict=True)}
        ops = list(walk(op.body))
        self.changing = {v.name for x in ops for v in assigned(x)} | {
            i.name for x in ops if isinstance(x, t.For) for i in (x.index,)
        }
        self.known: dict[str, Expr] = {}
        self._reached: dict[int, np.ndarray] = {}
        for x in ops:
            if isinstance(x, t.Declare) and x.var.name not in self.changing and not self._varies(x.value):
                self.known[x.var.name] = substitute(x.value, self.known)
        self._visit(op.body, np.ones(self.count if self._counted else 1, dtype=bool))

    @property
    def _counted(self) -> bool:
        return self.count <= _MOST_ELEMENTS

    def _visit(self, body: t.Body, elements: np.ndarray) -> None:
        """Records the elements for which each operation runs, as far as conditions on the indices determine
        them."""
        for op in body:
            self._reached[id(op)] = elements
            cond = op.cond if isinstance(op, t.If) and not self._varies(op.cond) else None
            holds = None if cond is None else evaluate(substitute(cond, self.known), self.values)
            for name, inner in bodies(op):
                if holds is None:
                    self._visit(inner, elements)
                else:
                    truth = np.asarray(holds).astype(bool)
                    self._visit(inner, elements & (~truth if name == "otherwise" else truth))

    def reached(self, op: t.Op) -> np.ndarray:
        """For which elements ``op`` may run."""
        return self._reached[id(op)]

    def _varies(self, e: Expr) -> bool:
        """Whether ``e`` may have another value elsewhere in the same visit."""
        return any(
            isinstance(term, (Element, FragmentElement))
            or (isinstance(term, (Var, Index)) and term.name in self.changing)
            for term in terms(e)
        )

    def offsets(self, view: View) -> tuple[Expr | None, ...]:
        """The coordinates of ``view``, None for those that may change within a visit."""
        parts = (*view.offsets, *(() if view.slot is None else (view.slot,)))
        return tuple(None if self._varies(e) else substitute(e, self.known) for e in parts)

    def same(self, x: View, y: View) -> bool:
        """Whether both expressions denote the same element if nothing in between changed."""
        return (x.offsets, x.slot, x.reshape) == (y.offsets, y.slot, y.reshape)

    def apart(self, x: View, y: View) -> bool:
        """Whether a constant coordinate keeps them apart."""
        if x.reshape != y.reshape:
            return False
        pairs = zip((*x.offsets, x.slot), (*y.offsets, y.slot), strict=True)
        known = [(value_of(a), value_of(b)) for a, b in pairs if a is not None and b is not None]
        return any(a is not None and b is not None and a != b for a, b in known)

    def own(self, x: View, y: View, elements: np.ndarray) -> bool:
        """Whether the coordinates that both have in common differ for any two elements: no other element uses the
        place."""
        if x.reshape != y.reshape or not self._counted:
            return x.reshape == y.reshape and self.same(x, y)
        common = [a for a, b in zip(self.offsets(x), self.offsets(y), strict=True) if a is not None and a == b]
        parts = [p for e in common if (p := self._moving(e)) is not None]
        return self._distinct(parts, elements) == int(elements.sum())

    def shared(self, view: View, elements: np.ndarray) -> bool:
        """Whether several elements certainly access the same place of ``view``."""
        if not self._counted:
            return False
        offsets = self.offsets(view)
        known = [m for e in offsets if e is not None and (m := self._moving(e)) is not None]
        return len(known) == len(offsets) and self._distinct(known, elements) != int(elements.sum())

    def _moving(self, e: Expr) -> np.ndarray | None:
        """The offset that the indices add to ``e`` in each visit; None if it is not a constant."""
        if not any(isinstance(term, Index) and term.name in self.indices for term in terms(e)):
            return np.zeros(1, dtype=np.int64)
        value = evaluate(e, self.values)
        if value is not None:
            return np.asarray(value)
        if isinstance(e, Binary) and e.op in ("add", "sub"):
            a, b = self._moving(e.a), self._moving(e.b)
            return None if a is None or b is None else a + b if e.op == "add" else a - b
        return None

    def _distinct(self, parts: list[np.ndarray], elements: np.ndarray) -> int:
        """The number of places to which the given elements go."""
        count = int(elements.sum())
        number = np.zeros(count, dtype=np.int64)
        for part in parts:
            here = np.broadcast_to(part, (self.count,))[elements]
            if count:
                number = number * (int(here.max() - here.min()) + 1) + (here - here.min())
        number.sort()
        return int(np.count_nonzero(np.diff(number))) + (count > 0)


_STATEMENTS = {
    "Apply": "another `apply`, or arithmetic on a whole register tile,", "Parallel": "`parallel`",
    "InThreads": "`inthreads`", "Copy": "a copy", "Alloc": "a shared buffer", "DeclareFragment": "a register tile",
    "Reduce": "a reduction",
    "Fill": "`mma.fill`", "Load": "`mma.load`", "Mma": "a multiply", "ScaleMma": "`mma.scale`",
    "Store": "`mma.store`", "Commit": "`mma.commit`", "MmaWait": "`mma.wait`", "DeclareEvent": "an event",
    "WaitEvent": "`wait`", "WaitFuture": "`wait`", "TriggerEvent": "`trigger`", "SwapFutures": "`swap`",
    "Sync": "`sync`",
}  # fmt: skip
