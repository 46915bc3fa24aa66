"""Lowering of `Mma`: one instruction for each atom of the tile; mma.sync reads registers, wgmma reads shared
memory through matrix descriptors, which are built here."""

from __future__ import annotations

from tilemma.atoms import MmaAtom, Operand, catalogue
from tilemma.dtypes import u8
from tilemma.ir import tile
from tilemma.ir.lane import AtomInstr, Imm, Reg
from tilemma.ir.types import View
from tilemma.layouts import Major, SharedLayout, shared_layout
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile, SharedTile, lowers
from tilemma.targets.ptx.lower.expressions import predicate
from tilemma.targets.ptx.lower.fragments import placed, registers_of, tile_of, unit_origin
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.matrix import Matrix
from tilemma.targets.ptx.lower.memory import line_offset, matrix


@lowers(tile.Mma)
def lower_mma(lo: Lowering, op: tile.Mma) -> None:
    assert op.atom is not None and op.tiles is not None, "no instruction chosen"
    assert op.scale_a is None and op.future is None, "scales and futures are settled by passes"
    atom = catalogue[op.atom]
    assert isinstance(atom, MmaAtom)
    acc = registers_of(lo, op.acc)
    a = _operand(lo, op.a, atom.a, acc, "A", op.contract.a_transposed)
    b = _operand(lo, op.b, atom.b, acc, "B", op.contract.b_transposed)
    meta = None if op.meta is None else registers_of(lo, op.meta)
    m, n, k = op.tiles
    signs = {i.name for i in atom.immediates} & {"scale_a"} if op.negated else set()
    if op.negated and not signs:
        assert isinstance(a, RegisterTile), f"{atom.name} cannot change the sign of an operand"
        a = _negative(lo, a, atom.a)
    a, b = _placed(lo, a, atom.a), _placed(lo, b, atom.b)
    lo.e.comment(f"mma.{op.contract} {op.acc.name}: {m}x{n}x{k} of {atom.name}")
    order = op.k_order or tuple(range(k))
    accumulate = True if op.accumulate is None else predicate(lo, op.accumulate)
    for kk in order:
        for i, j in _places(atom, m, n):
            immediates: list[tuple[str, int | Reg]] = []
            if isinstance(a, Descriptors) and a.major == "MN":
                immediates.append(("trans_a", 1))
            if isinstance(b, Descriptors) and b.major == "MN":
                immediates.append(("trans_b", 1))
            immediates += [(name, -1) for name in signs]
            if accumulate is not True and kk == order[0]:
                immediates.append(("scale_d", accumulate if isinstance(accumulate, Reg) else 0))
            d = acc.regs[i, j]
            regs = d, _regs(a, i, kk), _regs(b, j, kk), d
            e = meta.regs[i, kk] if meta is not None else ()
            lo.e.add(AtomInstr(atom.name, *regs, tuple(immediates), e, span=lo.e.span))


def _places(atom: MmaAtom, m: int, n: int) -> list[tuple[int, int]]:
    """The atoms of a step along K in the order in which they are issued.

    Those of mma.sync go down one column and up the next, so that neighbours share a B, or at the turn an A.  On an
    H200 four warps of 64x64 (f16, 4096^3 and 8192^3) are 3 to 5 % faster than along the rows.
    """
    if atom.kind in ("mma.sync", "mma.sp"):
        return [(m - 1 - i if j % 2 else i, j) for j in range(n) for i in range(m)]
    return [(i, j) for i in range(m) for j in range(n)]


def _negative(lo: Lowering, found: RegisterTile, operand: Operand) -> RegisterTile:
    """The negative of operand A: of floats with the sign bits reversed."""
    bits = operand.dtype.bits
    # A float of fewer bits than its byte has its sign below.
    sign = operand.dtype.floating.sign if bits == 8 and operand.dtype.is_float else bits - 1
    mask = sum(1 << at for at in range(sign, 32, bits))

    def reverse(r: Reg) -> Reg:
        kind = r.type
        if operand.dtype.is_integer:
            return lo.e.pure("neg.s32", kind, r, hint="negative")
        if kind in ("f32", "f64"):
            return lo.e.pure(f"neg.{kind}", kind, r, hint="negative")
        return lo.e.pure("xor.b32", kind, r, Imm(mask, "b32"), hint="negative")

    return RegisterTile(found.plan, {at: tuple(map(reverse, regs)) for at, regs in found.regs.items()})


def _placed(lo: Lowering, found: RegisterTile | Descriptors, operand: Operand) -> RegisterTile | Descriptors:
    """The operand with its elements in the bits of their bytes that the instruction reads."""
    if not operand.shift or isinstance(found, Descriptors):
        return found
    regs = {at: tuple(placed(lo, r, operand) for r in given) for at, given in found.regs.items()}
    return RegisterTile(found.plan, regs)


def _regs(operand: RegisterTile | Descriptors, i: int, k: int) -> tuple[Reg, ...]:
    return operand.regs[i, k] if isinstance(operand, RegisterTile) else (operand.at(i, k),)


def _operand(
    lo: Lowering, given: tile.Operand, operand: Operand, acc: RegisterTile, role: str, transposed: bool
) -> RegisterTile | Descriptors:
    if isinstance(given, View):
        placed = matrix(lo, given)
    else:
        found = tile_of(lo, given)
        if isinstance(found, RegisterTile):
            return found
        assert isinstance(found, SharedTile)
        placed = found.placed
    origin = unit_origin(lo, acc.plan)[0 if role == "A" else 1]
    return Descriptors(lo, placed, operand, "MN" if transposed else "K", origin)


class Descriptors:
    """The matrix descriptors of an operand's atoms: one base descriptor, plus constant offsets in 16-byte
    units."""

    def __init__(self, lo: Lowering, placed: Matrix, operand: Operand, major: Major, unit: Linear) -> None:
        self.lo, self.placed, self.major = lo, placed, major
        plan = placed.plan
        assert plan.swizzle_atom, f"{placed.buffer.name} has no layout that wgmma reads"
        stored = u8 if operand.dtype.bits < 8 else operand.dtype
        self.size, self.shape = stored.bytes, operand.memory_shape
        columns = plan.size // plan.rows // self.size
        lines, extent = (plan.rows, columns) if major == "K" else (columns, plan.rows)
        self.layout: SharedLayout = shared_layout(
            stored, lines, extent, major, 0 if plan.swizzle_atom == 16 else plan.swizzle_atom
        )
        self.row, self.col = placed.position((unit, Linear()) if major == "K" else (Linear(), unit))
        fixed = self.layout.descriptor(0, 0, *self.shape)
        self.encoded = fixed.encode()

    def at(self, i: int, k: int) -> Reg:
        """The descriptor of atom ``i`` along M or N, ``k`` along K."""
        e = self.lo.e
        rows, depth = self.shape
        mn, kk = i * rows, k * depth
        first, second = (mn, kk) if self.major == "K" else (kk, mn)
        row, col = Linear(), Linear()
        for index, (r, c) in zip((first, second), self.placed.steps, strict=True):
            row, col = row + r * index, col + c * index
        line = line_offset(e, self.placed.plan, self.row + row, (self.col + col) * self.size) + self.placed.base
        assert line.const % 16 == 0, "operands start on 16 bytes"
        # All descriptors of a buffer whose variable parts are equal share one base: that of the first one.
        key = (self.placed.buffer.name, line.variable, self.encoded)
        first = self.lo.descriptor_bases.setdefault(key, line.const)
        base = self._base(line.variable + first)
        if line.const == first:
            return base
        return e.pure("add.s64", "u64", base, Imm((line.const - first) // 16, "s64"), hint="desc")

    def _base(self, at: Linear) -> Reg:
        """The descriptor of the operand that starts ``at`` bytes into shared memory.

        Shared memory has less than 2**18 bytes, so that a sum of 16-byte units never overflows the address field,
        and a loop adds its own part only.  (Above those bits, an address holds the block's rank in its cluster.)
        """
        e, start = self.lo.e, self.lo.shared
        whole = at.divisible(16)
        if not whole:
            start = e.register(at + start, hint="operand_at")
        units = e.pure("and.b32", "b32", e.pure("shr.u32", "b32", start, Imm(4)), Imm(0x3FFF, "b32"))
        low = e.pure("or.b32", "b32", units, Imm(self.encoded & 0xFFFFFFFF, "b32"), hint="desc_base")
        if whole:
            low = e.register(e.hoisted(at.divided(16) + low), hint="desc_low")
        wide = e.pure("cvt.u64.u32", "u64", low)
        upper = self.encoded >> 32 << 32
        return e.pure("or.b64", "u64", wide, Imm(upper, "b64"), hint=f"{self.placed.buffer.name}_desc")


@lowers(tile.MmaFence)
def lower_mma_fence(lo: Lowering, op: tile.MmaFence) -> None:
    lo.e.do("wgmma.fence.sync.aligned")


@lowers(tile.MmaCommit)
def lower_mma_commit(lo: Lowering, op: tile.MmaCommit) -> None:
    lo.e.do("wgmma.commit_group.sync.aligned")


@lowers(tile.MmaWait)
def lower_mma_wait(lo: Lowering, op: tile.MmaWait) -> None:
    lo.e.do("wgmma.wait_group.sync.aligned", (), (Imm(op.pending),))
