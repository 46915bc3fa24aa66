"""Shared-memory layouts: one for each buffer, the best that all its readers and writers can use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilemma.atoms import MmaAtom, catalogue
from tilemma.errors import CompileError, Note, Span
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.tile import Alloc, Copy, FragmentRef, Kernel, Load, Mma, Op, Store
from tilemma.ir.types import Buffer, Space, View
from tilemma.ir.walk import rewrite, walk
from tilemma.passes.contraction import stored
from tilemma.passes.decision import Decision
from tilemma.passes.rotation import Rotations
from tilemma.passes.shared_views import SLABS, geometry, ldmatrix_rule, wgmma_rule
from tilemma.records import record


class SwizzleConflict(CompileError):
    code = "swizzle-conflict"
    found = "`{name}` is asked for with `swiz<{first}>` and with `swiz<{second}>`"
    expected = "one swizzle for a buffer: whoever writes and whoever reads it must agree"
    fix = "use one of the two everywhere, or none: then the compiler chooses"


class SwizzleRefused(CompileError):
    code = "swizzle-refused"
    found = "`{name}` cannot have `swiz<{swizzle}>`: {rule}"
    expected = "a swizzle that the buffer's rows and its readers allow{legal}"
    fix = "leave the swizzle out, then the compiler chooses{suggestion}"


@record
class _Reader:
    """A view that an instruction reads: why a slab width does not serve it, or None."""

    view: View
    method: str
    transposed: bool
    rows: int
    span: Span | None

    def rule(self, slab: int) -> str | None:
        if self.method == "ldmatrix":
            return ldmatrix_rule(self.view)
        operand = stored(self.view, self.transposed)
        assert operand is not None
        return wgmma_rule(operand, slab, self.rows)


@record(slots=False)
class AssignLayouts:
    """Fills `Alloc.layout` of shared buffers.

    A buffer that matrix instructions read is cut into swizzled slabs, the widest that its rows and readers
    allow: free of bank conflicts, and what a TMA box writes.  A buffer that only accumulators are staged
    through is swizzled or padded.  Everything else is plain.
    """

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises SwizzleConflict or SwizzleRefused."""
        readers: dict[str, list[_Reader]] = {}
        for name, reader in _readers(kernel):
            readers.setdefault(name, []).append(reader)
        asked = _asked(kernel)
        rotations = Rotations(kernel.body)
        for group in rotations.groups:
            together = [r for name in sorted(group) for r in readers.get(name, ())]
            wanted = _agreed(group, asked)
            for name in group:
                readers[name] = together
                if wanted is not None:
                    asked[name] = wanted
        staged = {op.dst.base.name for op in walk(kernel.body) if isinstance(op, Store)}
        copies = [op for op in walk(kernel.body) if isinstance(op, Copy) and op.engine == "tma"]
        boxed = {v.base.name for op in copies for v in (op.src, op.dst)}

        def lay(op: Op) -> Op:
            if not isinstance(op, Alloc) or op.buffer.space is not Space.SHARED:
                return op
            name = op.buffer.name
            want, where = asked.get(name, (None, None))
            plan, why = _plan(
                op.buffer, readers.get(name, []), want, where or op.span, name in staged, name in boxed
            )
            data = {"slab": plan.slab, "pitch": plan.pitch, "rows": plan.rows, "size": plan.size}
            log.append(Decision("layouts", name, why, data, span=op.span))
            return replace(op, layout=plan)

        return replace(kernel, body=rewrite(kernel.body, lay))


def _readers(kernel: Kernel) -> Iterator[tuple[str, _Reader]]:
    loads: dict[str, list[Load]] = {}
    for op in walk(kernel.body):
        if isinstance(op, Load):
            loads.setdefault(op.fragment.name, []).append(op)
            if op.plan is not None and op.plan.method == "ldmatrix":
                yield op.src.base.name, _Reader(op.src, "ldmatrix", False, 8, op.span)
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
                yield v.base.name, _Reader(v, "wgmma", transposed, rows, op.span)


def _asked(kernel: Kernel) -> dict[str, tuple[int, Span | None]]:
    """Buffer -> the swizzle in bytes that the program asks for, and where."""
    found: dict[str, tuple[int, Span | None]] = {}

    def note(buffer: Buffer, swizzle: int | None, span: Span | None) -> None:
        if swizzle is None or buffer.space is not Space.SHARED:
            return
        first, where = found.setdefault(buffer.name, (swizzle, span))
        if first != swizzle:
            notes = [Note(f"`swiz<{first}>` is asked for here", where)]
            raise SwizzleConflict(span, name=buffer.name, first=first, second=swizzle, notes=notes)

    for op in walk(kernel.body):
        match op:
            case Alloc(buffer=b, swizzle=s):
                note(b, s, op.span)
            case Copy(src=src, dst=dst, swizzle=s):
                note(dst.base, s, op.span)
                note(src.base, s, op.span)
            case Load(src=src, swizzle=s):
                note(src.base, s, op.span)
    return found


def _agreed(group: frozenset[str], asked: dict[str, tuple[int, Span | None]]) -> tuple[int, Span | None] | None:
    """What is asked for buffers that change places, or None; SwizzleConflict where that differs."""
    wanted = [(name, *asked[name]) for name in sorted(group) if name in asked]
    for name, swizzle, span in wanted[1:]:
        first, one, where = wanted[0]
        if swizzle != one:
            notes = [Note(f"`swiz<{one}>` is asked for `{first}`, which changes places with `{name}`", where)]
            raise SwizzleConflict(span, name=name, first=one, second=swizzle, notes=notes)
    return wanted[0][1:] if wanted else None


def _plan(
    buffer: Buffer, readers: list[_Reader], asked: int | None, span: Span | None, staged: bool, boxed: bool
) -> tuple[SharedLayoutPlan, str]:
    rows, row_bytes = geometry(buffer)
    descriptors = any(r.method == "wgmma" for r in readers)
    rules = {slab: _rule(rows, row_bytes, readers, slab) for slab in SLABS}
    legal = [slab for slab in SLABS if rules[slab] is None]
    if asked:
        if asked not in legal:
            options = ", ".join(str(s) for s in legal if s > 16)
            raise SwizzleRefused(
                span,
                name=buffer.name,
                swizzle=asked,
                rule=rules.get(asked, "there is no such swizzle"),
                legal=f" (here {options})" if options else "",
                suggestion=f", or use `swiz<{next(s for s in legal if s > 16)}>`" if options else "",
            )
        return _slabs(rows, row_bytes, asked), f"slabs of {asked} bytes, swizzled, as asked for"
    if asked == 0:
        if descriptors:
            return _slabs(rows, row_bytes, 16), "16-byte lines without swizzle, as asked for"
        return _plain(rows, row_bytes), "plain rows, as asked for"
    if readers:
        assert legal, (buffer, rules)
        who = "wgmma" if descriptors else "ldmatrix"
        how = f"slabs of {legal[0]} bytes, swizzled" if legal[0] > 16 else "16-byte lines"
        return _slabs(rows, row_bytes, legal[0]), f"{how}, for {who}"
    # The copy engine reads no rows with gaps, so padding is for buffers that it does not touch.
    if staged and rows > 1 and (buffer.dtype.bits <= 16 or boxed) and legal:
        return _slabs(
            rows, row_bytes, legal[0]
        ), f"slabs of {legal[0]} bytes, swizzled, for stores of accumulators"
    if staged and not boxed and rows > 1 and row_bytes % 32 == 0:
        # A quad of lanes stores 32 bytes of a row: 32 more a row put neighbouring rows on other banks.
        return _plain(rows, row_bytes, 32), "rows padded by 32 bytes, for stores of accumulators"
    return _plain(rows, row_bytes), "plain rows"


def _rule(rows: int, row_bytes: int, readers: list[_Reader], slab: int) -> str | None:
    if row_bytes % slab:
        return f"its rows of {row_bytes} bytes are no multiple of {slab}"
    return next((rule for r in readers if (rule := r.rule(slab)) is not None), None)


def _slabs(rows: int, row_bytes: int, slab: int) -> SharedLayoutPlan:
    # The swizzle pattern, and an unswizzled core matrix, spans eight lines.
    rows = -(-rows // 8) * 8
    return SharedLayoutPlan(slab, slab, rows, rows * row_bytes, 8 * slab)


def _plain(rows: int, row_bytes: int, pad: int = 0) -> SharedLayoutPlan:
    size = rows * (row_bytes + pad)
    return SharedLayoutPlan(0, row_bytes + pad, rows, -(-size // 16) * 16, 16)
