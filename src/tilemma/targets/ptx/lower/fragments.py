"""Register allocation of fragments: the registers of each atom of a tile, their lane layout, and filling them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from tilemma.atoms import MmaAtom, Operand, catalogue
from tilemma.dtypes import DType, f32
from tilemma.ir import tile
from tilemma.ir.lane import Imm, LaneGuarded, Reg, Vec
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.tile import FragmentRef
from tilemma.records import record
from tilemma.targets.ptx.lower.context import FragmentKey, Instance, Lowering, RegisterTile, Tile, lowers
from tilemma.targets.ptx.lower.convert import constant, convert, register, register_type
from tilemma.targets.ptx.lower.expressions import linear, scalar
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.ownership import Ownership, ownership, position, row_ownership


def atom_of(plan: FragmentPlan) -> MmaAtom:
    atom = catalogue[plan.atom]
    assert isinstance(atom, MmaAtom), plan.atom
    return atom


def operand_of(plan: FragmentPlan) -> Operand:
    """The operand of the plan's atom that the fragment holds; for a vector, the one whose rows it follows."""
    return atom_of(plan).operands["C" if plan.role == "R" else plan.role]


def owned(plan: FragmentPlan) -> Ownership:
    """The layout of one atom of the fragment."""
    operand = operand_of(plan)
    return row_ownership(operand) if plan.role == "R" else ownership(operand)


def packed(plan: FragmentPlan) -> int:
    """Elements in one register."""
    return 1 if plan.role == "R" else operand_of(plan).pack


def key(lo: Lowering, ref: FragmentRef) -> FragmentKey:
    """The tile that ``ref`` names; its subscripts are compile-time constants."""
    index = []
    for i in ref.index:
        n = linear(lo, i).known
        assert n is not None, f"subscript of {ref.name} is not a constant"
        index.append(n)
    return ref.name, tuple(index)


def tile_of(lo: Lowering, ref: FragmentRef) -> Tile:
    return lo.fragments[key(lo, ref)]


def registers_of(lo: Lowering, ref: FragmentRef) -> RegisterTile:
    found = tile_of(lo, ref)
    assert isinstance(found, RegisterTile), f"{ref.name} is not in registers"
    return found


def _subscripts(copies: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not copies:
        yield ()
        return
    for i in range(copies[0]):
        for rest in _subscripts(copies[1:]):
            yield (i, *rest)


@lowers(tile.DeclareFragment)
def lower_declare_fragment(lo: Lowering, op: tile.DeclareFragment) -> None:
    plan = op.plan
    assert plan is not None, f"no plan for fragment {op.name}"
    if plan.residence == "shared":
        return
    operand = operand_of(plan)
    kind, count = operand.register, operand.registers
    if plan.role == "C" and operand.dtype is not plan.dtype and operand.pack == 1:
        kind = "f32" if plan.dtype is f32 else "b32"
    if plan.role == "R":
        kind, count = register_type(plan.dtype), len(owned(plan).values)
    for sub in _subscripts(op.copies):
        regs = {}
        suffix = "".join(f"_{i}" for i in sub)
        for i in range(plan.repeat[0]):
            for j in range(plan.repeat[1]):
                hint = f"{op.name}{suffix}_{i}_{j}_r"
                regs[i, j] = lo.e.regs(hint, kind, count, mutable=True)
        lo.fragments[op.name, sub] = RegisterTile(plan, regs)
        if op.guarded:
            lo.e.add(LaneGuarded(tuple(r for atom in regs.values() for r in atom)))


@record
class LaneLayout:
    """The thread-value layout of a tile: the coordinates of (lane, atom, value) as a part that depends on the
    lane, (``row``, ``col``), plus constants for atom and value."""

    plan: FragmentPlan
    operand: Operand
    row: Linear
    col: Linear
    values: tuple[tuple[int, int], ...]

    def at(self, atom: tuple[int, int], value: int) -> tuple[Linear, Linear]:
        """(row, col) in the tile of ``value`` of atom ``atom``."""
        r, c = self.values[value]
        rows, cols = self.operand.shape
        return self.row + (atom[0] * rows + r), self.col + (atom[1] * cols + c)


def instance_of(lo: Lowering, plan: FragmentPlan) -> Instance:
    """The executing instance of the level that holds the tile."""
    for i in reversed(lo.instances):
        if i.level == plan.level:
            return i
    return lo.collective


def unit_place(lo: Lowering, plan: FragmentPlan) -> tuple[Linear, Linear]:
    """The position of the executing unit (the threads of one atom) in the plan's grid, along M and N."""
    if plan.grid[0] * plan.grid[1] == 1:
        return Linear(), Linear()
    instance = instance_of(lo, plan)
    number, _ = lo.e.divide(lo.warp_in(instance), max(1, atom_of(plan).threads // 32), hint="unit")
    n, m = lo.e.divide(number, plan.grid[0], hint="unit_n")
    return m, n


def unit_origin(lo: Lowering, plan: FragmentPlan) -> tuple[Linear, Linear]:
    """(row, col) of the tile's part that the executing unit holds."""
    m, n = unit_place(lo, plan)
    rows, cols = _atom_shape(plan)
    height, width = plan.repeat[0] * rows, plan.repeat[1] * cols
    match plan.role:
        case "A" | "E" | "R":
            return m * height, Linear()
        case "B":
            return n * height, Linear()
    return m * height, n * width


def _atom_shape(plan: FragmentPlan) -> tuple[int, int]:
    return operand_of(plan).shape


def unit_thread(lo: Lowering, plan: FragmentPlan) -> Linear:
    """The thread's number in the executing unit: the catalogue's lane."""
    atom = atom_of(plan)
    if atom.threads == 32:
        return lo.lane
    instance = instance_of(lo, plan)
    if instance.threads == atom.threads:
        return lo.thread_in(instance)
    _, rest = lo.e.divide(lo.thread_in(instance), atom.threads, hint="unit")
    return rest


def lane_layout(lo: Lowering, plan: FragmentPlan) -> LaneLayout:
    """The elements that each lane holds of a tile in registers."""
    own = owned(plan)
    row, col = position(lo, own.digits, unit_thread(lo, plan))
    r0, c0 = unit_origin(lo, plan)
    return LaneLayout(plan, operand_of(plan), row + r0, col + c0, own.values)


def element_place(plan: FragmentPlan, atom: tuple[int, int], value: int) -> tuple[int, int]:
    """(row, col) of ``value`` of atom ``atom``, relative to the lane's part of the position (`LaneLayout`)."""
    r, c = owned(plan).values[value]
    rows, cols = _atom_shape(plan)
    return atom[0] * rows + r, atom[1] * cols + c


@lru_cache(maxsize=256)
def element_registers(plan: FragmentPlan) -> dict[tuple[int, int], tuple[tuple[int, int], int]]:
    """Atom and value number of each element that a lane holds, by `element_place`."""
    (rows, cols), values = _atom_shape(plan), owned(plan).values
    atoms = product(range(plan.repeat[0]), range(plan.repeat[1]))
    return {(i * rows + r, j * cols + c): ((i, j), v) for i, j in atoms for v, (r, c) in enumerate(values)}


def acting_holder(lo: Lowering, plan: FragmentPlan) -> Reg | bool:
    """Whether this lane is the first of those that hold its elements.

    An operand is replicated along one axis of the grid, and in lanes that differ only in bits on which the
    position does not depend.
    """
    m, n = unit_place(lo, plan)
    repeated = {"A": n, "E": n, "R": n, "B": m, "C": Linear()}[plan.role]
    first = lo.e.compare("eq", repeated, Linear(), hint="first_unit")
    own = owned(plan)
    position_bits = sum(d.mask << d.shift for d in own.digits)
    replicated = (own.threads - 1) & ~position_bits
    if not replicated:
        return first
    bits = lo.e.pure("and.b32", "s32", lo.e.register(unit_thread(lo, plan)), Imm(replicated), hint="copy_of_lane")
    return lo.e.both(first, lo.e.compare("eq", Linear.of(bits), Linear(), hint="first_lane"))


def warp_origin(lo: Lowering, plan: FragmentPlan) -> tuple[Linear, Linear]:
    """(row, col) of the first element that the lane's warp holds: `unit_origin` plus the warp's offset."""
    atom = atom_of(plan)
    row, col = unit_origin(lo, plan)
    if atom.threads > 32:
        above = tuple(d for d in ownership(operand_of(plan)).digits if d.shift >= 5)
        r, c = position(lo, above, unit_thread(lo, plan))
        row, col = row + r, col + c
    return row, col


# ---- fill ------------------------------------------------------------------------------------------------


@lowers(tile.Fill)
def lower_fill(lo: Lowering, op: tile.Fill) -> None:
    e = lo.e
    ref = op.fragment
    declared = lo.declared[ref.name]
    if not ref.index and declared.copies:
        keys = [(ref.name, sub) for sub in _subscripts(declared.copies)]
    else:
        keys = [key(lo, ref)]
    for k in keys:
        found = lo.fragments[k]
        assert isinstance(found, RegisterTile)
        value = scalar(lo, op.value)
        have = op.value.type
        dtype = found.plan.dtype
        if isinstance(value, Imm):
            value = constant(e, value.value, dtype)
        else:
            value = convert(e, value, have, dtype, lo.arch)
        per = packed(found.plan)
        word = pack(lo, [register(e, value, dtype)] * per, dtype) if per > 1 else value
        for regs in found.regs.values():
            for reg in regs:
                lo.e.do(f"mov.{reg.type}", (reg,), (word,))


# ---- values in registers ---------------------------------------------------------------------------------


def pack(lo: Lowering, values: list[Reg], dtype: DType) -> Reg:
    """``values`` (16- or 8-bit each) packed in one 32-bit register, the first in the lowest bits."""
    e = lo.e
    if len(values) == 2:
        halves = [v if v.type == "b16" else e.pure("cvt.u16.u32", "b16", v) for v in values]
        return e.pure("mov.b32", "b32", Vec(tuple(halves)), hint="pair")
    low, high = (_join_bytes(lo, values[i], values[i + 1]) for i in (0, 2))
    return e.pure("mov.b32", "b32", Vec((low, high)), hint="quad")


def _join_bytes(lo: Lowering, low: Reg, high: Reg) -> Reg:
    """Two 8-bit values, in b16 or 32-bit registers, packed in one b16."""
    e = lo.e

    def half(v: Reg) -> Reg:
        v = v if v.type == "b16" else e.pure("cvt.u16.u32", "b16", v)
        return e.pure("and.b16", "b16", v, Imm(0xFF, "b16"))

    upper = e.pure("shl.b16", "b16", half(high), Imm(8))
    return e.pure("or.b16", "b16", half(low), upper, hint="bytes")


def unpack(lo: Lowering, word: Reg, dtype: DType) -> list[Reg]:
    """The values that one register of a fragment holds, each as a scalar of ``dtype``; inverse of `pack`."""
    e = lo.e
    if dtype.bits >= 32:
        return [word]
    if dtype.bits == 8:
        return [_byte(lo, word, v, dtype) for v in range(4)]
    low, high = e.reg("low", "b16"), e.reg("high", "b16")
    e.do("mov.b32", (Vec((low, high)),), (word,))
    return [low, high]


def _byte(lo: Lowering, word: Reg, value: int, dtype: DType) -> Reg:
    """Byte ``value`` of ``word`` as a scalar of ``dtype``, extended by its sign where it has one."""
    e = lo.e
    sign = "s32" if dtype.kind == "int" else "u32"
    wide = e.pure(f"bfe.{sign}", "s32", word, Imm(8 * value), Imm(8), hint="byte")
    return e.pure("cvt.u16.u32", "b16", wide) if dtype.is_float else wide


def placed(lo: Lowering, reg: Reg, operand: Operand) -> Reg:
    """A register of elements in their low bits as one of ``operand``, which may have them in higher ones."""
    if not operand.shift:
        return reg
    return lo.e.pure("shl.b32", "b32", reg, Imm(operand.shift), hint="placed")
