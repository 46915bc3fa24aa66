"""Address computation: the symbolic address of a view's element in shared, global or lane-local memory.

Shared memory (32-bit addresses).  A buffer is `rows` rows of its last dimension; its plan tiles it with swizzle
atoms of ``atom`` bytes a row (`SharedLayoutPlan`).  With ``line`` the byte offset before the swizzle::

    line    = col_bytes // atom * (rows * atom) + row * atom + col_bytes % atom
    address = line ^ (line >> 3 & mask)           mask = 0x70, 0x30, 0x10, 0 for atoms of 128, 64, 32, 16 bytes

The swizzle XORs bits 7-9 into bits 4-6.  So multiples of 1024 pass through it, and a constant whose bits
the lane's part never has can be swizzled by itself and XORed in: one register for each constant in bits 4-6,
and immediate offsets for the rest.

Global memory (64-bit addresses): pointer + sum(coordinate * stride), grouped by the loop depth at which a
coordinate changes, so that a loop adds its own part only (strength reduction).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.ir.expr import Expr, value_of
from tilemma.ir.lane import Imm, Mem, Reg, Special
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.types import Buffer, Space, View
from tilemma.records import record
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear, in_s32
from tilemma.targets.ptx.lower.matrix import Matrix
from tilemma.targets.ptx.lower.params import size, symbol
from tilemma.targets.ptx.lower.refusals import NotLowered
from tilemma.targets.ptx.lower.regions import Region

_MASKS = {0: 0, 16: 0, 32: 0x10, 64: 0x30, 128: 0x70}
_PERIOD = 1024


def line_offset(e: Emitter, plan: SharedLayoutPlan, row: Linear, col_bytes: Linear) -> Linear:
    """Byte offset of (row, byte within the row) before the swizzle."""
    atom = plan.swizzle_atom
    if atom == 0:
        return row * plan.pitch + col_bytes
    column, rest = e.divide(col_bytes, atom, hint="slab")
    return column * (plan.rows * atom) + row * atom + rest


def _possible_bits(e: Emitter, x: Linear) -> int:
    """The bits that may be set in ``x`` >= 0; -1 where they are not known."""
    low, high = e.range_of(x)
    if low < 0 or high >= 2**31:
        return -1
    bits, exact = 0, True
    for reg, factor in x.terms:
        bottom, top = e.range_of(reg)
        if bottom < 0 or factor < 0:
            return -1
        shift = (factor & -factor).bit_length() - 1
        mask = (1 << (top * factor >> shift).bit_length()) - 1 << shift
        exact = exact and not bits & mask
        bits |= mask
    if not exact and bits:
        # Carries may set every bit from the lowest one to the top of the sum.
        lowest = bits & -bits
        bits = ((1 << high.bit_length()) - 1) & ~(lowest - 1)
    return bits


def swizzled(e: Emitter, atom: int, line: Linear) -> tuple[Linear, int, int]:
    """The swizzle of ``line`` as (sum, bits to XOR into it, bytes to add after that)."""
    mask = _MASKS[atom]
    if mask == 0:
        return line.variable, 0, line.const
    high = Linear(tuple(t for t in line.terms if t[1] % _PERIOD == 0))
    low = Linear(tuple(t for t in line.terms if t[1] % _PERIOD))
    const_high, const = line.const // _PERIOD * _PERIOD, line.const % _PERIOD
    bits = _possible_bits(e, low)
    if bits & const:
        low, const = low + const, 0
    if low.terms:
        low = e.cse(("swizzled", mask, low), lambda: _swizzled_register(e, mask, low, bits))
    elif low.const:
        const, low = const + low.const, Linear()
    const ^= const >> 3 & mask
    return high + low, const & mask, const_high + (const & ~mask)


def _swizzled_register(e: Emitter, mask: int, line: Linear, bits: int) -> Linear:
    """The swizzle of ``line``, in which only ``bits`` may be set, by the hardware's formula."""
    reg = e.register(line, hint="line")
    moved = e.pure("shr.u32", "b32", reg, Imm(3))
    moved = e.pure("and.b32", "b32", moved, Imm(mask, "b32"))
    found = e.pure("xor.b32", "b32", reg, moved, hint="swizzled")
    if bits >= 0:
        e.bounded(found, 0, (1 << max(bits, mask).bit_length()) - 1)
    return Linear.of(found)


def default_plan(buffer: Buffer) -> SharedLayoutPlan:
    """Plain row-major: the layout of a buffer to which no pass has assigned one."""
    shape = [value_of(s) for s in buffer.shape]
    assert all(s is not None for s in shape), f"{buffer.name}: extents have to be known"
    rows = 1
    for s in shape[:-1]:
        rows *= s or 0
    pitch = (shape[-1] or 0) * storage_bytes(buffer) if shape else storage_bytes(buffer)
    return SharedLayoutPlan(swizzle_atom=0, pitch=pitch, rows=rows, size=rows * pitch, alignment=16)


def has_whole_rows(lo: Lowering, view: View) -> bool:
    """Whether the last axis of ``view`` lies along rows whose extent is a multiple of 16 bytes, as a launch can
    check."""
    array, facts = view.base, lo.facts(view.base)
    last = array.rank - 1
    along = bool(view.axes) and view.axes[-1].dim == last == facts.contiguous
    return array.space is Space.GLOBAL and facts.has_whole_rows and along and size(array.shape[last]) is not None


def storage_bytes(buffer: Buffer) -> int:
    """Bytes of one element in memory; a bool takes one.

    Raises NotLowered, without a source position, for elements smaller than a byte.
    """
    if buffer.dtype.bits % 8:
        raise NotLowered(
            what=f"`{buffer.name}`, whose elements have {buffer.dtype.bits} bits, less than a byte,",
            arch="any target",
            expected_what="elements of whole bytes, wherever elements are read, written or copied",
            remedy="pack them: use a u8 or u32 array and store several values in each element",
        )
    return buffer.dtype.bytes


def coordinates(lo: Lowering, view: View, index: Sequence[Linear]) -> list[Linear]:
    """Base coordinates (of the reshaped base, where there is a reshape) of the element at ``index``."""
    return Places(lo, view).coordinates(index)


def _scaled(lo: Lowering, i: Linear, step: Linear) -> Linear:
    if step.known is not None:
        return i * step.known
    if i.known is not None:
        return step * i.known
    product = lo.e.pure("mul.lo.s32", "s32", lo.e.register(i), lo.e.register(step), hint="step")
    return Linear.of(product)


def _buffer_shape(buffer: Buffer) -> list[int]:
    shape = [value_of(s) for s in buffer.shape]
    assert all(s is not None for s in shape), buffer
    return [s or 0 for s in shape]


def rows_and_column(lo: Lowering, view: View, coords: Sequence[Linear]) -> tuple[Linear, Linear]:
    """Base coordinates as (row, column): all dimensions but the last flattened."""
    shape = _buffer_shape(view.base)
    if view.reshape is not None:
        reshaped = [value_of(s) for s in view.reshape]
        flat = Linear()
        kept = reshaped[-1] == shape[-1]
        for c, s in zip(coords[:-1] if kept else coords, reshaped, strict=False):
            assert s is not None
            flat = flat * s + c
        return (flat, coords[-1]) if kept else lo.e.divide(flat, shape[-1], hint="row")
    row = Linear()
    for c, s in zip(coords[:-1], shape[:-1], strict=True):
        row = row * s + c
    return row, (coords[-1] if coords else Linear())


def matrix(lo: Lowering, view: View) -> Matrix:
    """``view``, of a shared buffer, in rows and columns; its steps have to be compile-time constants."""
    places = Places(lo, view)
    row, col = rows_and_column(lo, view, places.coordinates([Linear()] * len(view.axes)))
    steps = []
    for k in range(len(view.axes)):
        one = [Linear(const=int(i == k)) for i in range(len(view.axes))]
        r, c = rows_and_column(lo, view, places.coordinates(one))
        steps.append((r - row, c - col))
    plan, base = _placed(lo, view)
    return Matrix(plan, view.base, base, row, col, tuple(steps))


def _placed(lo: Lowering, view: View) -> tuple[SharedLayoutPlan, Linear]:
    alloc = lo.allocs[view.base.name]
    plan = alloc.layout or default_plan(view.base)
    assert alloc.offset is not None, f"{view.base.name} has no place in shared memory"
    base = Linear(const=alloc.offset)
    if view.base.name in lo.rotating:
        base = Linear.of(lo.rotating[view.base.name])
    if view.slot is not None:
        base = base + linear(lo, view.slot) * plan.stride
    return plan, base


def shared_address(lo: Lowering, plan: SharedLayoutPlan, base: Linear, row: Linear, col_bytes: Linear) -> Mem:
    """The address operand of byte ``col_bytes`` of row ``row``."""
    key = plan.swizzle_atom, plan.pitch, plan.rows, base.terms, row.terms, col_bytes.terms
    family = lo.shared_families.get(key)
    if family is None:
        family = _family(lo.e, len(lo.shared_families), plan, row.variable, col_bytes.variable)
        lo.shared_families[key] = family
    found = family.address(lo, base, row.const, col_bytes.const)
    if found is not None:
        return found
    total, flip, offset = swizzled(lo.e, plan.swizzle_atom, line_offset(lo.e, plan, row, col_bytes))
    return _operand(lo, base, total, flip, offset)


def _operand(lo: Lowering, base: Linear, total: Linear, flip: int, offset: int) -> Mem:
    """The address of what `swizzled` gives, in a buffer at ``base``."""
    e = lo.e
    offset += base.const
    if flip and _changes_more_often(e, base, total):
        # The lane's part is the same for all buffers of the ring: it is flipped outside the loop.
        reg = e.register(total.variable + lo.shared, hint="addr")
        reg = e.pure("xor.b32", "b32", reg, Imm(flip, "b32"), hint="addr")
        return Mem(e.register(base.variable + reg, hint="addr"), offset + total.const)
    total = total + base.variable
    if e.range_of(total.variable)[0] < 0 and not flip:
        # The sum of its terms may lie below the buffer, which a 32-bit address cannot express: add the offset
        # first.
        total, offset = total + offset, 0
        return Mem(e.register(total + lo.shared, hint="addr"))
    if not total.terms:
        return Mem(Special("shared"), total.const + flip + offset)
    reg = e.register(total.variable + lo.shared, hint="addr")
    if flip:
        reg = e.pure("xor.b32", "b32", reg, Imm(flip, "b32"), hint="addr")
    return Mem(reg, offset + total.const)


@record
class SharedFamily:
    """Shared addresses that differ in constants alone, of which a tile has dozens: what they have in common.

    ``line``: the variable part of the offset before the swizzle, for columns whose constant exceeds a multiple of
    the atom by less than ``most`` bytes; ``bits``: those that may be set in what is swizzled of it.
    """

    number: int
    plan: SharedLayoutPlan
    line: Linear
    most: int
    bits: int

    def address(self, lo: Lowering, base: Linear, row: int, col_bytes: int) -> Mem | None:
        """The address with these constants; None where it has to be computed by itself."""
        atom, mask = self.plan.swizzle_atom, _MASKS[self.plan.swizzle_atom]
        if atom == 0:
            line = row * self.plan.pitch + col_bytes
        else:
            column, rest = divmod(col_bytes, atom)
            if rest >= self.most or not 0 <= col_bytes < 2**30:
                return None
            line = column * (self.plan.rows * atom) + row * atom + rest
        if self.bits & line % _PERIOD:
            return None
        flip = (line ^ line % _PERIOD >> 3) & mask

        def first() -> Mem | None:
            total, _, _ = swizzled(lo.e, atom, self.line)
            if not flip and lo.e.range_of(total + base.variable)[0] < 0:
                return None
            return _operand(lo, base.variable, total, flip, 0)

        found = lo.e.cse(("shared address", self.number, flip), first)
        return found and Mem(found.base, found.offset + (line & ~mask) + base.const)


def _family(e: Emitter, number: int, plan: SharedLayoutPlan, row: Linear, col_bytes: Linear) -> SharedFamily:
    """That of rows and columns with these variable parts."""
    atom = plan.swizzle_atom
    if atom == 0:
        return SharedFamily(number, plan, row * plan.pitch + col_bytes, 0, 0)
    column, rest = col_bytes.split(atom)
    line = column.divided(atom) * (plan.rows * atom) + row * atom + rest
    bits = _possible_bits(e, Linear(tuple([t for t in line.terms if t[1] % _PERIOD]))) if _MASKS[atom] else 0
    least, most = e.range_of(col_bytes)
    low, high = e.range_of(rest)
    divides = low >= 0 and least >= -(2**30) and most < 2**30
    return SharedFamily(number, plan, line, atom - high if divides else 0, bits)


def _changes_more_often(e: Emitter, base: Linear, lane: Linear) -> bool:
    """Whether ``base`` changes in a loop in which ``lane`` stays the same."""
    return bool(lane.terms) and max((e.depth(r) for r, _ in base.terms), default=0) > max(
        e.depth(r) for r, _ in lane.terms
    )


# ---- elements of any view --------------------------------------------------------------------------------


@record
class Place:
    """An element (or the first of a run along the last dimension) in memory."""

    space: Space
    address: Mem
    valid: Reg | bool


def place(lo: Lowering, view: View, index: Sequence[Linear], *, check: bool = True) -> Place:
    """The address of element ``index`` of ``view``, and whether the program may access it.

    Elements outside a parameter's bounds are not valid.  ``check`` False omits the bounds check: the caller has
    proved that the element is inside.
    """
    return Places(lo, view).at(index, check=check)


class Places:
    """`place` for many elements of one view, whose origin and steps are lowered once for each region.

    An object is valid only while indices and variables keep their values.
    """

    def __init__(self, lo: Lowering, view: View) -> None:
        self.lo, self.view = lo, view
        self.region: Region | None = None
        self.origin: list[Linear] = []
        self.steps: list[tuple[int, Linear]] = []

    def coordinates(self, index: Sequence[Linear]) -> list[Linear]:
        """`coordinates` of the element at ``index``."""
        lo, view = self.lo, self.view
        if not any(r is self.region for r in lo.e.regions):
            self.region = lo.e.regions[-1]
            self.origin = [linear(lo, o) for o in view.offsets]
            self.steps = [(axis.dim, linear(lo, axis.step)) for axis in view.axes]
        coords = list(self.origin)
        for (dim, step), i in zip(self.steps, index, strict=True):
            coords[dim] = coords[dim] + _scaled(lo, i, step)
        return coords

    def at(self, index: Sequence[Linear], *, check: bool = True) -> Place:
        return _place(self.lo, self.view, self.coordinates(index), check)

    def valid(self, index: Sequence[Linear]) -> Reg | bool:
        """Whether an element is inside the array; those of a tile in shared memory are."""
        return self.view.base.space is not Space.GLOBAL or _valid(self.lo, self.view, self.coordinates(index))


def _valid(lo: Lowering, view: View, coords: Sequence[Linear]) -> Reg | bool:
    here = tuple(coords)
    key = ("inside", view.base.name, view.reshape, here)
    return lo.e.cse(key, lambda: inside(lo, view.base_shape, here))


def _place(lo: Lowering, view: View, coords: Sequence[Linear], check: bool) -> Place:
    match view.base.space:
        case Space.GLOBAL:
            e, buffer = lo.e, view.base
            valid = _valid(lo, view, coords) if check else True
            at = tuple(base_coordinates(lo, view, coords))
            address = e.cse(("address", buffer.name, at), lambda: global_address(lo, buffer, at))
            return Place(Space.GLOBAL, address, valid)
        case Space.SHARED:
            row, col = rows_and_column(lo, view, coords)
            plan, base = _placed(lo, view)
            return Place(Space.SHARED, shared_address(lo, plan, base, row, col * storage_bytes(view.base)), True)
        case Space.LOCAL:
            return Place(Space.LOCAL, _local_address(lo, view, coords), True)
    raise AssertionError(view.base.space)


def _local_address(lo: Lowering, view: View, coords: Sequence[Linear]) -> Mem:
    shape = [value_of(s) for s in view.base_shape]
    flat = Linear()
    for c, s in zip(coords, shape, strict=True):
        assert s is not None
        flat = flat * s + c
    if view.slot is not None:
        total = 1
        for s in _buffer_shape(view.base):
            total *= s
        flat = flat + linear(lo, view.slot) * total
    byte = flat * storage_bytes(view.base)
    name = symbol(view.base.name)
    if byte.known is not None:
        return Mem(Special(name), byte.known)
    base = lo.e.pure("mov.u32", "b32", Special(name), hint=f"{view.base.name}_base", uniform=True)
    if lo.e.range_of(byte.variable)[0] < 0:
        return Mem(lo.e.register(byte + base, hint="addr"))
    return Mem(lo.e.register(byte.variable + base, hint="addr"), byte.const)


# ---- global memory ---------------------------------------------------------------------------------------


def base_coordinates(lo: Lowering, view: View, coords: Sequence[Linear]) -> list[Linear]:
    """Coordinates in the base array: a reshape is inverted by dividing by the run-time dimensions."""
    if view.reshape is None:
        return list(coords)
    e = lo.e
    flat = Linear()
    for c, s in zip(coords, view.reshape, strict=True):
        flat = _scaled(lo, flat, linear(lo, s)) + c
    found: list[Linear] = []
    for s in reversed(view.base.shape[1:]):
        extent = linear(lo, s)
        if extent.known is not None:
            flat, rest = e.divide(flat, extent.known)
        else:
            a, b = e.register(flat), e.register(extent)
            quotient = e.pure("div.u32", "s32", a, b, hint="q")
            rest = Linear.of(e.pure("rem.u32", "s32", a, b, hint="rest"))
            flat = Linear.of(e.bounded(quotient, 0, 2**31 - 1))
        found.append(rest)
    return [flat, *reversed(found)]


def inside(lo: Lowering, shape: Sequence[Expr], coords: Sequence[Linear]) -> Reg | bool:
    """Whether ``coords`` is inside an array of ``shape``: unsigned comparisons, for which a negative coordinate is
    outside."""
    valid: Reg | bool = True
    for c, s in zip(coords, shape, strict=True):
        valid = lo.e.both(valid, lo.e.compare("lt", c, linear(lo, s), unsigned=True, hint="inside"))
    return valid


def pointer(lo: Lowering, buffer: Buffer) -> Reg:
    """The global address of the array's first element."""
    e = lo.e
    with e.at_root():
        name = symbol(buffer.name)
        generic = e.pure("ld.param.u64", "u64", Mem(Special(name)), hint=f"{buffer.name}_param", uniform=True)
        return e.pure("cvta.to.global.u64", "u64", generic, hint=buffer.name)


def stride_bytes(lo: Lowering, buffer: Buffer, dim: int) -> Reg | int:
    """Bytes from one element to the next along ``dim``."""
    size = storage_bytes(buffer)
    if lo.facts(buffer).contiguous == dim:
        return size
    e = lo.e
    with e.at_root():
        name = lo.params.stride(buffer.name, dim)
        elements = e.pure("ld.param.s64", "s64", Mem(Special(name)), hint=name, uniform=True)
        return times(e, elements, size, f"{buffer.name}_step{dim}")


def times(e: Emitter, x: Reg, factor: int, hint: str = "wide") -> Reg:
    """The 64-bit ``x`` times a constant."""
    if factor == 1:
        return x
    if factor > 0 and factor & (factor - 1) == 0:
        return e.pure("shl.b64", "s64", x, Imm(factor.bit_length() - 1), hint=hint)
    return e.pure("mul.lo.s64", "s64", x, Imm(factor, "s64"), hint=hint)


def global_address(lo: Lowering, buffer: Buffer, coords: Sequence[Linear]) -> Mem:
    """The address operand of the element at ``coords``."""
    e = lo.e
    total = pointer(lo, buffer)
    offset = 0
    pieces: list[tuple[int, Linear, Reg | int]] = []
    constants: list[Reg] = []
    for dim, c in enumerate(coords):
        if c.known == 0:
            continue
        step = stride_bytes(lo, buffer, dim)
        parts = _by_depth(e, c)
        if not _exact(e, c, parts, step):
            pieces.append((max(depth for depth, _ in parts), Linear.of(e.register(c)), step))
            continue
        if c.const:
            if isinstance(step, int):
                offset += c.const * step
            else:
                constants.append(times(e, step, c.const))
        pieces += [(depth, part, step) for depth, part in parts]
    for _, part, step in sorted(pieces, key=lambda p: p[0]):
        total = _moved(e, total, part, step, buffer.name)
    for step in constants:
        total = e.pure("add.s64", "u64", total, step, hint=f"{buffer.name}_at")
    if not -(2**31) <= offset < 2**31:
        total, offset = e.pure("add.s64", "u64", total, Imm(offset, "s64")), 0
    return Mem(total, offset)


def _by_depth(e: Emitter, c: Linear) -> list[tuple[int, Linear]]:
    """``c`` without its constant, grouped by the depth of the region in which its terms change."""
    found: dict[int, list[tuple[Reg, int]]] = {}
    for reg, factor in c.terms:
        found.setdefault(e.depth(reg), []).append((reg, factor))
    return [(depth, Linear(tuple(terms))) for depth, terms in found.items()]


def _exact(e: Emitter, c: Linear, parts: Sequence[tuple[int, Linear]], step: Reg | int) -> bool:
    """Whether the sum of ``parts``, each widened by itself, is the coordinate ``c`` of an element of the array.

    ``c`` is formed modulo 2**32, and that number is in [0, 2**31 - 2**20]: no extent is larger.  The sum that does
    not wrap is the same number if its bounds exclude every other number with this remainder.
    """
    low, high = e.range_of(c)
    if low < -(2**31) - 2**20 or high >= 2**32:
        return False
    return all(in_s32(e.range_of(part)) or _immediate(part, step) is not None for _, part in parts)


def _immediate(part: Linear, step: Reg | int) -> int | None:
    """The byte distance by which the one register of ``part`` is multiplied, if it fits an immediate operand."""
    if isinstance(step, Reg) or len(part.terms) > 1 or part.terms[0][0].type not in ("s32", "u32", "b32"):
        return None
    factor = step * part.terms[0][1]
    return factor if in_s32((factor, factor)) else None


def _moved(e: Emitter, total: Reg, part: Linear, step: Reg | int, name: str) -> Reg:
    hint = f"{name}_at"
    factor = _immediate(part, step)
    if factor is not None:
        return e.pure("mad.wide.s32", "u64", part.terms[0][0], Imm(factor), total, hint=hint)
    if isinstance(step, int):
        return e.pure("mad.wide.s32", "u64", e.register(part), Imm(step), total, hint=hint)
    wide = e.pure("cvt.s64.s32", "s64", e.register(part))
    return e.pure("mad.lo.s64", "u64", wide, step, total, hint=hint)
