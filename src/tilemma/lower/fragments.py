"""Register tiles: declaration, fill, and where each value of each atom lies in the tile."""

from __future__ import annotations

from collections.abc import Iterator

from tilemma.atoms import MmaAtom, Operand, catalogue
from tilemma.dtypes import DType
from tilemma.ir import tile
from tilemma.ir.lane import Imm, LaneGuarded, Reg, Vec
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.tile import FragmentRef
from tilemma.lower.context import FragmentKey, Instance, Lowering, RegisterTile, Tile, lowers
from tilemma.lower.convert import constant, convert, register
from tilemma.lower.linear import Linear
from tilemma.lower.ownership import ownership, position
from tilemma.records import record


def atom_of(plan: FragmentPlan) -> MmaAtom:
    atom = catalogue[plan.atom]
    assert isinstance(atom, MmaAtom), plan.atom
    return atom


def operand_of(plan: FragmentPlan) -> Operand:
    """The operand of the plan's atom that the fragment is made of."""
    return atom_of(plan).operands[plan.role]


def key(lo: Lowering, ref: FragmentRef) -> FragmentKey:
    """The tile that ``ref`` names; its subscripts are known here."""
    index = []
    for i in ref.index:
        n = lo.linear(i).known
        assert n is not None, f"subscript of {ref.name} is not known"
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
    for sub in _subscripts(op.copies):
        regs = {}
        suffix = "".join(f"_{i}" for i in sub)
        for i in range(plan.repeat[0]):
            for j in range(plan.repeat[1]):
                hint = f"{op.name}{suffix}_{i}_{j}_r"
                regs[i, j] = lo.e.regs(hint, operand.register, operand.registers, mutable=True)
        lo.fragments[op.name, sub] = RegisterTile(plan, regs)
        if op.guarded:
            lo.e.add(LaneGuarded(tuple(r for atom in regs.values() for r in atom)))


@record
class Spread:
    """The lanes' part of a tile's coordinates for the executing unit, and the constants of atoms and values."""

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


def unit_origin(lo: Lowering, plan: FragmentPlan) -> tuple[Linear, Linear]:
    """(row, col) of the tile's part that the executing unit (the atom's own threads) holds."""
    atom = atom_of(plan)
    units = plan.grid[0] * plan.grid[1]
    if units == 1:
        return Linear(), Linear()
    instance = instance_of(lo, plan)
    number, _ = lo.e.divide(lo.warp_in(instance), max(1, atom.threads // 32), hint="unit")
    n, m = lo.e.divide(number, plan.grid[0], hint="unit_n")
    rows, cols = _atom_shape(plan)
    height, width = plan.repeat[0] * rows, plan.repeat[1] * cols
    match plan.role:
        case "A" | "E":
            return m * height, Linear()
        case "B":
            return n * height, Linear()
    return m * height, n * width


def _atom_shape(plan: FragmentPlan) -> tuple[int, int]:
    m, n, k = atom_of(plan).shape
    return {"A": (m, k), "B": (n, k), "C": (m, n), "E": (m, k)}[plan.role]


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


def spread(lo: Lowering, plan: FragmentPlan) -> Spread:
    """Who holds which element of a tile in registers."""
    operand = operand_of(plan)
    owned = ownership(operand)
    row, col = position(lo, owned.digits, unit_thread(lo, plan))
    r0, c0 = unit_origin(lo, plan)
    return Spread(plan, operand, row + r0, col + c0, owned.values)


def warp_origin(lo: Lowering, plan: FragmentPlan) -> tuple[Linear, Linear]:
    """(row, col) where the part of the lane's warp begins in the unit's part, added to `unit_origin`."""
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
        value = lo.scalar(op.value)
        have = op.value.type
        dtype = found.plan.dtype
        if isinstance(value, Imm):
            value = constant(e, value.value, dtype)
        else:
            value = convert(e, value, have, dtype, lo.arch)
        operand = operand_of(found.plan)
        word = pack(lo, [register(e, value, dtype)] * operand.pack, dtype) if operand.pack > 1 else value
        for regs in found.regs.values():
            for reg in regs:
                lo.e.do(f"mov.{reg.type}", (reg,), (word,))


# ---- values in registers ---------------------------------------------------------------------------------


def pack(lo: Lowering, values: list[Reg], dtype: DType) -> Reg:
    """``values`` (16- or 8-bit each) as one 32-bit register, the first lowest."""
    e = lo.e
    if len(values) == 2:
        return e.pure("mov.b32", "b32", Vec(tuple(values)), hint="pair")
    low, high = (_join_bytes(lo, values[i], values[i + 1]) for i in (0, 2))
    return e.pure("mov.b32", "b32", Vec((low, high)), hint="quad")


def _join_bytes(lo: Lowering, low: Reg, high: Reg) -> Reg:
    """Two values of 8 bits in b16 or 32-bit registers as one b16."""
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
    assert dtype.bits == 16, dtype
    low, high = e.reg("low", "b16"), e.reg("high", "b16")
    e.do("mov.b32", (Vec((low, high)),), (word,))
    return [low, high]


def values_of(lo: Lowering, found: RegisterTile, atom: tuple[int, int]) -> list[Reg]:
    """All values of one atom's registers as scalars of the fragment's type, in the catalogue's order."""
    dtype = found.plan.dtype
    out: list[Reg] = []
    for reg in found.regs[atom]:
        out.extend(unpack(lo, reg, dtype))
    return out
