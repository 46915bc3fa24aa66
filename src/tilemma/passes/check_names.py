"""Checks names of dimensions against the layout contract: both contracted axes must have one name."""

from __future__ import annotations

from tilemma.errors import CompileError
from tilemma.ir import tile as t
from tilemma.ir.effects import rotated, written_views
from tilemma.ir.expr import Dim, value_of
from tilemma.ir.types import Buffer, Contract, View
from tilemma.ir.walk import walk
from tilemma.passes.contraction import extents, matrix
from tilemma.passes.decision import Decision
from tilemma.records import record


class ContractNames(CompileError):
    code = "contract-names"
    found = "`mma.{contract}` contracts dimension `{a}` of `{a_array}` with dimension `{b}` of `{b_array}`"
    expected = "a contraction over dimensions of one name: {contract} takes A{wants_a} and B{wants_b}"
    fix = "{remedy}"


@record
class Origin:
    """The parameter's dimension that an axis of a tile runs along."""

    name: str
    array: str


@record(slots=False)
class CheckNames:
    """Refuses a multiply whose contracted axes come, through copies and views alone, from dimensions of
    parameters with different names.

    Where a tile is reshaped, computed, or filled from several dimensions, and where a dimension is a number or
    has no name, nothing is known and nothing is refused.
    """

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises ContractNames."""
        origins = _Origins(kernel)
        for m in origins.multiplies:
            a, b = origins.axes(m.a), origins.axes(m.b)
            if a is None or b is None:
                continue
            contracted = _contracted(m.contract, a, b)
            if contracted is None or contracted[0].name == contracted[1].name:
                continue
            raise ContractNames(
                m.span,
                contract=m.contract,
                a=contracted[0].name,
                a_array=contracted[0].array,
                b=contracted[1].name,
                b_array=contracted[1].array,
                wants_a="[K, M]" if m.contract.a_transposed else "[M, K]",
                wants_b="[K, N]" if m.contract.b_transposed else "[N, K]",
                remedy=_remedy(contracted, a, b, origins.shapes(m)),
            )
        return kernel


Axes = tuple["Origin | None", "Origin | None"]
Shape = tuple[int, int]


def _contracted(contract: Contract, a: Axes, b: Axes) -> tuple[Origin, Origin] | None:
    """The origins of the contracted axes, if both are known."""
    x, y = a[0 if contract.a_transposed else 1], b[0 if contract.b_transposed else 1]
    return None if x is None or y is None else (x, y)


def _remedy(contracted: tuple[Origin, Origin], a: Axes, b: Axes, shapes: tuple[Shape, Shape] | None) -> str:
    fits = []
    for contract in Contract:
        names = _contracted(contract, a, b)
        if names is None or names[0].name != names[1].name:
            continue
        if shapes is not None:
            _, _, ka, kb = extents(contract, *shapes)
            if ka != kb:
                continue
        fits.append(f"`mma.{contract}`, which contracts `{names[0].name}`")
    if fits:
        return f"write {', or '.join(fits)}"
    x, y = contracted
    return f"give both dimensions one name in the types of `{x.array}` and `{y.array}`"


class _Origins:
    """Which dimensions of parameters the axes of operands run along."""

    def __init__(self, kernel: t.Kernel) -> None:
        self.parameters = {p.buffer.name for p in kernel.params if isinstance(p, t.ArrayParameter)}
        self.multiplies: list[t.Mma] = []
        self.loads: dict[str, list[View]] = {}
        self.copies: dict[str, list[t.Copy]] = {}
        # Buffers that operations other than copies write.
        self.computed: set[str] = set()
        rotations: list[tuple[str, ...]] = []
        for op in walk(kernel.body):
            rotations.append(rotated(op))
            match op:
                case t.Mma():
                    # The stored half of a sparse A has a separate dimension.
                    if op.meta is None:
                        self.multiplies.append(op)
                case t.Load():
                    self.loads.setdefault(op.fragment.name, []).append(op.src)
                case t.Copy():
                    self.copies.setdefault(op.dst.base.name, []).append(op)
                case _:
                    self.computed.update(v.base.name for v in written_views(op))
        for names in rotations:
            self._rotate(names)

    def _rotate(self, names: tuple[str, ...]) -> None:
        """Buffers whose names rotate may each hold the data of any of their copies."""
        turning = [n for n, copies in self.copies.items() if any(c.future in names for c in copies)]
        together = [c for n in turning for c in self.copies[n]]
        self.copies.update(dict.fromkeys(turning, together))

    def shapes(self, m: t.Mma) -> tuple[Shape, Shape] | None:
        found = []
        for x in (m.a, m.b):
            views = self._views(x)
            shape = matrix(views[0]).static_shape if views else None
            if shape is None or len(shape) != 2:
                return None
            found.append((shape[0], shape[1]))
        return found[0], found[1]

    def axes(self, operand: t.Operand) -> Axes | None:
        """The origins of the operand's two axes as stored; None for no tile of two dimensions."""
        views = [matrix(v) for v in self._views(operand)]
        if not views or any(len(v.axes) != 2 for v in views):
            return None
        rows, columns = ([self._axis(v, i, frozenset()) for v in views] for i in (0, 1))
        return _common(rows), _common(columns)

    def _views(self, operand: t.Operand) -> list[View]:
        return self.loads.get(operand.name, []) if isinstance(operand, t.FragmentRef) else [operand]

    def _axis(self, view: View, axis: int, seen: frozenset[tuple[str, int]]) -> Origin | None:
        if view.reshape is not None:
            return None
        return self._dimension(view.base, view.axes[axis].dim, seen)

    def _dimension(self, buffer: Buffer, dim: int, seen: frozenset[tuple[str, int]]) -> Origin | None:
        """The origin of the elements of ``buffer`` along ``dim``."""
        if buffer.name in self.parameters:
            extent = buffer.shape[dim]
            # A dimension without a name is called after its parameter.
            named = isinstance(extent, Dim) and extent.name != f"{buffer.name}_{dim}"
            return Origin(extent.name, buffer.name) if isinstance(extent, Dim) and named else None
        if buffer.name in self.computed or (buffer.name, dim) in seen:
            return None
        around = seen | {(buffer.name, dim)}
        return _common([self._source(c, dim, around) for c in self.copies.get(buffer.name, ())])

    def _source(self, copy: t.Copy, dim: int, seen: frozenset[tuple[str, int]]) -> Origin | None:
        """The source dimension that ``copy`` maps to dimension ``dim`` of its destination."""
        if copy.dst.reshape is not None:
            return None
        order = copy.transpose if copy.transpose is not None else range(len(copy.src.axes))
        src = [i for i in order if value_of(copy.src.axes[i].extent) != 1]
        dst = [a for a in copy.dst.axes if value_of(a.extent) != 1]
        if len(src) != len(dst):
            return None
        return _common([self._axis(copy.src, i, seen) for i, a in zip(src, dst, strict=True) if a.dim == dim])


def _common(found: list[Origin | None]) -> Origin | None:
    """The common dimension of all of ``found``; None if they differ or one is unknown."""
    names = {None if o is None else o.name for o in found}
    return found[0] if len(names) == 1 else None
