"""Shared-memory layout assignment (swizzle selection): one layout a buffer, the best that all its readers and
writers can use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilemma.atoms import MmaAtom, catalogue
from tilemma.errors import CompileError, Span, spelled
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.tile import Alloc, Copy, FragmentRef, Kernel, Load, Mma, Op, Store
from tilemma.ir.types import Buffer, Space, View
from tilemma.ir.walk import rewrite, walk
from tilemma.passes.check_buffers import asked_swizzles
from tilemma.passes.contraction import stored
from tilemma.passes.decision import Decision
from tilemma.passes.rotations import Rotations
from tilemma.records import record
from tilemma.targets.ptx import tensor_copies
from tilemma.targets.ptx.passes.shared_views import (
    PADDING,
    SWIZZLE_ATOMS,
    geometry,
    ldmatrix_rule,
    vector_rule,
    wgmma_rule,
)

# Ways of loading that read 16 bytes of several rows at a time, with the rule for their layout.
_BY_16_BYTES = {"ldmatrix": "ldmatrix", "widened": "ldmatrix", "vectors": "vectors"}


class SwizzleRefused(CompileError):
    code = "swizzle-refused"
    found = "`{name}` cannot have `swiz<{swizzle}>`: {rule}"
    expected = "a swizzle that the buffer's rows and its readers allow{legal}"
    fix = "leave the swizzle out, then the compiler chooses{suggestion}"


@record
class _Reader:
    """A view that an instruction reads; `rule` gives the reason why a swizzle atom does not fit it."""

    view: View
    method: str
    transposed: bool
    rows: int
    depth: int
    span: Span | None

    def rule(self, atom: int) -> str | None:
        """The rule that an atom of ``atom`` bytes breaks, or None."""
        if self.method == "ldmatrix":
            operand = stored(self.view, self.transposed)
            return ldmatrix_rule(self.view, operand is not None and operand.major == "MN")
        if self.method == "vectors":
            # Of f64, a quad of lanes reads 64 bytes of a row: the next row has to be in other banks.
            wide = self.view.dtype.bits == 64 and atom > 64
            return "a row of it fills all banks" if wide else vector_rule(self.view)
        operand = stored(self.view, self.transposed)
        assert operand is not None
        return wgmma_rule(operand, atom, self.rows, self.depth)


@record(slots=False)
class AssignLayouts:
    """Fills `Alloc.layout` of shared buffers.

    A buffer that matrix instructions read is tiled with swizzle atoms, the widest that its rows and readers
    allow: ldmatrix and wgmma read them without bank conflicts, and a TMA box writes one column of atoms.  A buffer
    that accumulators are stored to before they are copied on is swizzled or padded, unless its rows have an odd
    number of 16 bytes.  Every other buffer is plain row-major, and those that TMA copies in another shape are.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises SwizzleConflict or SwizzleRefused."""
        readers: dict[str, list[_Reader]] = {}
        for name, reader in _readers(kernel):
            readers.setdefault(name, []).append(reader)
        asked = asked_swizzles(kernel)
        rotations = Rotations(kernel.body).groups
        for group in rotations:
            together = [r for name in sorted(group) for r in readers.get(name, ())]
            readers.update(dict.fromkeys(group, together))
        staged = {op.dst.base.name for op in walk(kernel.body) if isinstance(op, Store)}
        copies = [op for op in walk(kernel.body) if isinstance(op, Copy) and op.engine == "tma"]
        boxed = {v.base.name for op in copies for v in (op.src, op.dst)}
        folded = {v.base.name for op in copies for v in (op.src, op.dst) if v.reshape is not None}
        folded = folded.union(*(group for group in rotations if group & folded))

        def assign(op: Op) -> Op:
            if not isinstance(op, Alloc) or op.buffer.space is not Space.SHARED:
                return op
            name = op.buffer.name
            want, where = asked.get(name, (None, None))
            plan, why = _plan(
                op.buffer, readers.get(name, []), want, where or op.span, name in staged, name in boxed
            )
            if name in folded and not readers.get(name) and want is None:
                plan, why = _plain(*geometry(op.buffer)), "plain rows, which TMA copies in another shape"
            if name in boxed and plan.alignment < tensor_copies.SHARED_ALIGNMENT:
                plan = replace(plan, alignment=tensor_copies.SHARED_ALIGNMENT)
            data = {"slab": plan.swizzle_atom, "pitch": plan.pitch, "rows": plan.rows, "size": plan.size}
            log.append(Decision("layouts", name, why, data, span=op.span))
            return replace(op, layout=plan)

        return replace(kernel, body=rewrite(kernel.body, assign))


def _readers(kernel: Kernel) -> Iterator[tuple[str, _Reader]]:
    loads: dict[str, list[Load]] = {}
    for op in walk(kernel.body):
        if isinstance(op, Load):
            loads.setdefault(op.fragment.name, []).append(op)
            if op.plan is not None and op.plan.method in _BY_16_BYTES:
                yield op.src.base.name, _Reader(op.src, _BY_16_BYTES[op.plan.method], False, 8, 0, op.span)
    for op in walk(kernel.body):
        if not isinstance(op, Mma) or op.atom is None:
            continue
        atom = catalogue[op.atom]
        assert isinstance(atom, MmaAtom)
        m, n, _ = atom.shape
        for x, operand, rows, transposed in (
            (op.a, atom.a, m, op.contract.a_transposed),
            (op.b, atom.b, n, op.contract.b_transposed),
        ):
            if operand.in_registers:
                continue
            views = [load.src for load in loads.get(x.name, ())] if isinstance(x, FragmentRef) else [x]
            for v in views:
                yield v.base.name, _Reader(v, "wgmma", transposed, rows, operand.memory_shape[1], op.span)


def _asking(span: Span | None, width: int) -> str:
    return spelled(span, f".swiz<{width}>", f"swizzle={width}")


def _plan(
    buffer: Buffer, readers: list[_Reader], asked: int | None, span: Span | None, staged: bool, boxed: bool
) -> tuple[SharedLayoutPlan, str]:
    rows, row_bytes = geometry(buffer)
    descriptors = any(r.method == "wgmma" for r in readers)
    rules = {atom: _rule(rows, row_bytes, readers, atom) for atom in SWIZZLE_ATOMS}
    legal = [atom for atom in SWIZZLE_ATOMS if rules[atom] is None]
    if asked and 16 < row_bytes < asked and row_bytes in legal:
        # No row has the width that the program names: the swizzle of its own width stands for it.
        return _tiled(rows, row_bytes, row_bytes), f"{row_bytes}-byte swizzle, the width of a row"
    if asked:
        if asked not in legal:
            options = ", ".join(str(s) for s in legal if s > 16)
            raise SwizzleRefused(
                span,
                name=buffer.name,
                swizzle=asked,
                rule=rules.get(asked, "there is no such swizzle"),
                legal=f" (here {options})" if options else "",
                suggestion=f", or use `{_asking(span, next(s for s in legal if s > 16))}`" if options else "",
            )
        return _tiled(rows, row_bytes, asked), f"{asked}-byte swizzle, as the program asks"
    if asked == 0:
        if descriptors:
            return _tiled(rows, row_bytes, 16), "core matrices without swizzle, as the program asks"
        return _plain(rows, row_bytes), "plain rows, as the program asks"
    if readers:
        assert legal, (buffer, rules)
        reader = "wgmma" if descriptors else readers[0].method
        how = f"{legal[0]}-byte swizzle" if legal[0] > 16 else "core matrices of 16-byte rows"
        return _tiled(rows, row_bytes, legal[0]), f"{how}, for {reader}"
    # TMA cannot read padded rows, so that only buffers that it does not access are padded.
    if staged and boxed and row_bytes % 32 == 16 and row_bytes <= 512:
        # Eight rows start in different banks, and a box takes whole rows.
        return _plain(rows, row_bytes), "plain rows of an odd number of 16 bytes, for stores of accumulators"
    if staged and rows > 1 and (buffer.dtype.bits <= 16 or boxed) and legal:
        return _tiled(rows, row_bytes, legal[0]), f"{legal[0]}-byte swizzle, for stores of accumulators"
    if staged and not boxed and rows > 1 and row_bytes % PADDING == 0:
        return _plain(rows, row_bytes, PADDING), "rows padded by 32 bytes, for stores of accumulators"
    return _plain(rows, row_bytes), "plain rows"


def _rule(rows: int, row_bytes: int, readers: list[_Reader], atom: int) -> str | None:
    if row_bytes % atom:
        return f"its rows of {row_bytes} bytes are not a multiple of {atom} bytes"
    return next((rule for r in readers if (rule := r.rule(atom)) is not None), None)


def _tiled(rows: int, row_bytes: int, atom: int) -> SharedLayoutPlan:
    # A swizzle atom, and a core matrix without swizzle, has eight rows.
    rows = -(-rows // 8) * 8
    return SharedLayoutPlan(atom, atom, rows, rows * row_bytes, 8 * atom)


def _plain(rows: int, row_bytes: int, pad: int = 0) -> SharedLayoutPlan:
    size = rows * (row_bytes + pad)
    return SharedLayoutPlan(0, row_bytes + pad, rows, -(-size // 16) * 16, 16)
