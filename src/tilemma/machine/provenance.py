"""Layout checks of matrix operands, by the global addresses from which their elements were copied.

cp.async, tensor copies and stores of loaded registers leave, beside each byte of shared memory, the global
address that it came from, and ldmatrix carries that on to registers.  An operand of a matrix instruction is a
tile: each dimension of the array that it came from must run along one axis of the operand only, and its
contraction indices must be distinct.  A writer and a reader that disagree on swizzle, strides or box break that,
whatever the values are.

Elements of unknown origin (zero fill, computed values, single bytes) are passed over.  Layout errors are
systematic, so only the first executions of each instruction are checked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilemma.machine.catalogue import OperandLayout
from tilemma.machine.memory import Allocation
from tilemma.machine.native.blocks import address_of
from tilemma.machine.syntax import TYPE_BYTES, Register

_least, _most = np.minimum.reduce, np.maximum.reduce

# Executions of one instruction, by all warps together, that are checked.
_LOOKS = 16


def wanted(w: Any, ins: Any) -> bool:
    """Whether this execution of ``ins`` is checked."""
    if w.cta.shared.origin is None:
        return False
    counts = w.cta.machine.looks
    seen = counts.get(id(ins), 0)
    counts[id(ins)] = seen + 1
    return bool(seen < _LOOKS)


def word_registers(d: Any, operand: Any) -> list[int]:
    """The numbers of an access's registers of 16 or 32 bits that its elements fill; none where one is another."""
    items = d.items(operand)
    cls = {2: "16", 4: "32"}.get(TYPE_BYTES.get(d.type, 0))
    if any(not isinstance(x, Register) or d.program.register(x)[0] != cls for x in items):
        return []
    return [d.register_id(x) for x in items]


def follows(w: Any, ids: list[int]) -> bool:
    """Whether the origin of words that are loaded into the registers ``ids`` is recorded."""
    return bool(ids) and not w.cta.machine.program.followed.isdisjoint(ids)


def global_loaded(w: Any, ids: list[int], lanes: Any, base: int, offsets: Any, size: int) -> None:
    """Record the addresses of the words of ``size`` bytes that a load has read into the registers ``ids``."""
    if not follows(w, ids):
        return
    addr = base + offsets
    for i, register in enumerate(ids):
        origin = w.origins.get(register)
        if origin is None:
            origin = w.origins[register] = np.zeros((32, size // 2), np.int64)
        origin[lanes] = addr[:, None] + np.arange(size * i, size * (i + 1), 2)


def loaded_natively(w: Any, ids: list[int], addresses: int, size: int) -> None:
    """`global_loaded` of a load in the native library: ``addresses`` are where it keeps those of the lanes."""
    if not follows(w, ids):
        return
    for i, register in enumerate(ids):
        origin = w.origins.get(register)
        if origin is None:
            origin = w.origins[register] = np.zeros((32, size // 2), np.int64)
        w.cta.machine.native.origins_loaded(address_of(origin), addresses, i, size)


def stored_natively(w: Any, ids: list[int], addresses: int, size: int) -> None:
    """`stored` of a store in the native library, as in `loaded_natively`."""
    if not loaded(w, ids):
        return
    origins, native = address_of(w.cta.shared.origins()), w.cta.machine.native
    for i, register in enumerate(ids):
        native.origins_stored(origins, address_of(w.origins[register]), addresses, i, size)


def forget(w: Any, registers: list[int], m: Any) -> None:
    """The lanes of ``m`` (None: all) have moved something else to ``registers``."""
    for register in registers:
        if m is None:
            w.origins.pop(register, None)
        elif register in w.origins:
            w.origins[register][m] = 0


def loaded(w: Any, ids: list[int]) -> bool:
    """Whether the registers ``ids`` hold words as they were loaded."""
    only = w.cta.machine.program.followed
    return bool(ids) and all(r in only and r in w.origins for r in ids)


def stored(w: Any, ids: list[int], lanes: Any, addr: Any, size: int) -> None:
    """Record the origins of bytes that are stored to shared memory from registers of ``size`` bytes as loaded."""
    if not loaded(w, ids):
        return
    origins, step = w.cta.shared.origins(), np.arange(2)
    for i, register in enumerate(ids):
        halves = w.origins[register][lanes]
        known = halves > 0
        for half in range(size // 2):
            at = addr[:, None] + size * i + 2 * half + step
            origins[at] = np.where(known[:, half, None], halves[:, half, None] + step, 0)


def _fragment_origin(fragment: Any, held: list[Any], size: int) -> Any:
    """Origins of a fragment's elements, as the tile: 0 where unknown; ``held`` are those of its registers."""
    parts = []
    for halves in held:
        if size == 1:
            halves = np.repeat(halves, 2, axis=1)
            halves[:, 1::2] += halves[:, 1::2] > 0
        parts.append(halves[:, :: max(1, size // 2)])
    tile = np.zeros(fragment.extent, np.int64)
    tile[fragment.at] = np.stack(parts, axis=1).reshape(32, -1)
    return tile


def check_mma(w: Any, ins: Any, a: Any, b: Any, bits: int, chain: tuple[Any, Any]) -> None:
    """Check both operands of an mma.sync whose registers ldmatrix loaded; ``chain``: the registers of the
    accumulators before and after it."""
    if bits < 8 or bits > 32:
        return
    found = [_check_fragment(w, ins, letter, f, bits // 8) for letter, f in (("A", a), ("B", b))]
    _agree(w, ins, found)
    before = w.products.pop(chain[0], None)
    if found[0] is not None and found[1] is not None:
        if before is not None:
            _both_go_on(w, ins, found, before)
        w.products[chain[1]] = ins.line, found


def _check_fragment(w: Any, ins: Any, letter: str, fragment: Any, size: int) -> Contraction | None:
    """`check_tile` of a fragment.  What it finds of a regular one is kept until its registers are loaded again."""
    only, key = w.cta.machine.program.matrix_registers, (letter, fragment.key)
    held: list[Any] = [w.origins.get(r) if r in only else None for r in fragment.key]
    if any(x is None for x in held):
        return None
    before = w.regular_tiles.get(key)
    if before is not None and all(map(operator.is_, before[0], held)):
        known: Contraction = before[1]
        return known

    def tile() -> Any:
        found = _fragment_origin(fragment, held, size)
        return np.ascontiguousarray(found.T) if letter == "B" else found

    layouts: Layouts = w.cta.machine.program.layouts
    # The places of a fragment's elements are the program's: nothing else gets their identity.
    origins = letter, size, id(fragment.at), b"".join([x.tobytes() for x in held])
    regular, contraction = layouts.find(w, ins, letter, origins, tile)
    if regular:
        w.regular_tiles[key] = held, contraction
    return contraction


# Tiles that a program keeps, and places in shared memory whose last tile it keeps.
_LAYOUTS, _PLACES = 4096, 256


class Layouts:
    """What was found about tiles of global addresses in which nothing is wrong: each run reads the same ones."""

    def __init__(self) -> None:
        # By letter and addresses in some form: one address, the array there, whether the tile is regular, its
        # contraction.
        self._found: dict[Any, tuple[int, Any, bool, Contraction | None]] = {}
        # The last tile at each place in shared memory, by its first address: the places, the tile and its key.
        self._seen: dict[Any, tuple[Any, Any, Any]] = {}
        self.reports = 0

    def tile_in(self, w: Any, shared: Any, letter: str, at: Any, moved: int) -> tuple[Any, Any]:
        """The addresses from which the tile at ``at``, ``moved`` by bytes, was copied, and its key for `find`."""
        origin, native = shared.origin, w.cta.machine.native
        place = letter, id(at), moved, int(origin[moved + int(at[0, 0])])
        known = self._seen.get(place)
        if known is not None and native is not None:
            _, tile, key = known
            if native.same_tile(address_of(origin) + 8 * moved, address_of(at), at.size, address_of(tile)):
                return tile, key
        tile = origin[moved:].take(at)
        key = letter, tile.shape, tile.tobytes()
        if len(self._seen) == _PLACES:
            self._seen.clear()
        # With the places, so that no others get their identity.
        self._seen[place] = at, tile, key
        return tile, key

    def find(
        self, w: Any, ins: Any, letter: str, key: Any, made: Callable[[], Any]
    ) -> tuple[bool, Contraction | None]:
        """Whether the tile that ``made`` makes, and ``key`` stands for, is regular, and its contraction.

        Reports what is wrong with it.
        """
        memory = w.cta.machine.memory
        found = self._found.get(key)
        if found is not None:
            address, facts, regular, contraction = found
            array = memory.find(address)
            if _facts(array) == facts:
                if contraction is not None and contraction.allocation is not array:
                    contraction = replace(contraction, allocation=array)
                    self._found[key] = address, facts, regular, contraction
                return regular, contraction
        tile = made()
        reports, here = self.reports, _regular_at(w, tile)
        contraction = check_tile(w, ins, letter, tile) if here is None else here
        if self.reports == reports:
            if len(self._found) == _LAYOUTS:
                self._found.clear()
            known = tile[tile > 0]
            address = int(known[0]) if len(known) else 0
            self._found[key] = address, _facts(memory.find(address)), here is not None, contraction
        return here is not None, contraction


def _facts(array: Allocation | None) -> Any:
    """What the layout of tiles depends on."""
    return array and (array.base, array.size, array.shape, array.strides, array.itemsize)


def check_wgmma(w: Any, ins: Any, cta: Any, operands: list[tuple[str, Any, int]]) -> list[Contraction | None]:
    """Check a wgmma's shared-memory operands: (letter, element addresses [rows, k], bytes to add to them).

    Returns the contraction of each operand where it is known.
    """
    steps = [_check_memory(w, ins, cta.shared, *operand) for operand in operands]
    if len(steps) == 2:
        _agree(w, ins, steps)
    return steps


def _check_memory(w: Any, ins: Any, shared: Any, letter: str, at: Any, moved: int) -> Contraction | None:
    """`check_tile` of a tile in shared memory."""
    layouts: Layouts = w.cta.machine.program.layouts
    tile, key = layouts.tile_in(w, shared, letter, at, moved)
    return layouts.find(w, ins, letter, key, lambda: tile)[1]


def _regular_at(w: Any, tile: Any) -> Contraction | None:
    """`_regular` of a tile, by the native library."""
    native = w.cta.machine.native
    if native is None:
        return None
    rows, columns = tile.shape
    row, column = np.empty(columns, np.int64), np.empty(rows, np.int64)
    if not native.regular_tile(address_of(tile), rows, columns, address_of(row), address_of(column)):
        return None
    allocation = w.cta.machine.memory.find(int(row[0]))
    if allocation is None or not _has_coordinates(allocation) or not _all_inside(allocation, row, column):
        return None
    return _separate(allocation, row, column)


def _all_inside(allocation: Allocation, row: Any, column: Any) -> bool:
    """Whether all elements of a tile of sums of ``row`` and ``column`` lie in the allocation."""
    low, high = (int(f(row)) + int(f(column)) - int(row[0]) for f in (_least, _most))
    return allocation.base <= low and high < allocation.base + allocation.size


def _has_coordinates(allocation: Allocation) -> bool:
    """Whether the array has dimensions, and each address is that of one element: windows overlap each other."""
    reached = 0
    for stride, extent in sorted((abs(s), n) for s, n in zip(allocation.strides, allocation.shape, strict=True)):
        if extent > 1 and stride and stride <= reached:
            return False
        reached += stride * (extent - 1)
    return len(allocation.shape) > 1


def coordinates(allocation: Allocation, origin: Any) -> list[Any]:
    """Array indices of global addresses, one array for each dimension of the allocation's array."""
    # From the lowest address on, where the last element along a dimension of negative stride lies.
    left = origin - allocation.base
    out: list[Any] = [np.zeros_like(left)] * len(allocation.shape)
    for axis in sorted(range(len(allocation.shape)), key=lambda i: -abs(allocation.strides[i])):
        stride, extent = allocation.strides[axis], allocation.shape[axis]
        if stride != 0 and extent > 1:
            index, left = left // abs(stride), left % abs(stride)
            out[axis] = index if stride > 0 else extent - 1 - index
    return out


def _divide(allocation: Allocation, indices: list[Any], within: Any) -> None:
    """Count the parts of elements along the array's last dimension: pairs of f16 that are passed as u32."""
    unit = int(np.gcd(np.gcd.reduce(within, axis=None), allocation.itemsize))
    steps = [(abs(s), axis) for axis, s in enumerate(allocation.strides) if s and allocation.shape[axis] > 1]
    axis = min(steps)[1] if steps else 0
    indices[axis] = indices[axis] * (allocation.itemsize // unit) + within // unit


@dataclass(frozen=True, slots=True)
class Contraction:
    """The contraction index of an operand: the array, and its index in each column.

    ``axis`` is the array's dimension along K, ``first`` the indices of the operand's first element, None where
    they are unknown.
    """

    allocation: Allocation
    index: Any
    axis: int
    first: tuple[int, ...] | None = None
    # The steps of the index from column to column, as bytes; empty where an index is unknown.
    steps: bytes = b""
    # The addresses of the rows relative to the first; empty where they are unknown.
    rows: bytes = b""


def check_tile(w: Any, ins: Any, letter: str, origin: Any) -> Contraction | None:
    """Check one operand, ``origin`` [rows, k]; returns its contraction index where known."""
    known = origin > 0
    if known.sum() < 2:
        return None
    addresses = origin[known]
    allocation = w.cta.machine.memory.find(int(addresses[0]))
    if allocation is None or not allocation.shape:
        return None
    inside = (addresses >= allocation.base) & (addresses < allocation.base + allocation.size)
    if not inside.all():
        return None
    if not _has_coordinates(allocation):
        return _check_flat(w, ins, letter, allocation, origin, known)
    filled = np.where(known, origin, addresses[0])
    within = (filled - allocation.base) % allocation.itemsize
    if known.all() and not within.any():
        regular = _regular(allocation, origin)
        if regular is not None:
            return regular
    along_k = None
    indices = coordinates(allocation, filled)
    if within.any():
        _divide(allocation, indices, within)
    first = tuple(int(x[0, 0]) for x in indices) if known[0, 0] else None
    for axis, index in enumerate(indices):
        by_row = _constant(index, known, 1)
        by_column = _constant(index, known, 0)
        if not (by_row or by_column):
            _report(w, ins, letter, allocation, axis, index, known)
            return None
        if by_column and not by_row:
            along_k = Contraction(allocation, _line(index, known), axis, first)
    if along_k is not None:
        values = along_k.index
        present = values[values >= 0]
        if len(np.unique(present)) < len(present):
            say(w, ins, letter, allocation, "two columns of K come from the same place")
    return along_k


def _regular(allocation: Allocation, origin: Any) -> Contraction | None:
    """The contraction index of a tile, from its first row and column alone; None where these do not determine it.

    Where each address is the sum of a step of its row and one of its column, and the two change different
    indices, so does every element of the tile.
    """
    row, column = origin[0], origin[:, 0]
    if not (origin == column[:, None] + (row - row[0])).all():
        return None
    return _separate(allocation, row, column)


def _separate(allocation: Allocation, row: Any, column: Any) -> Contraction | None:
    """`_regular`, of the tile whose elements are the sums of ``row`` and the steps of ``column``."""
    found, along = None, 0
    indices = coordinates(allocation, np.concatenate([row, column]))
    for axis, both in enumerate(indices):
        by_k, by_row = both[: len(row)], both[len(row) :]
        if _varies(by_k):
            if found is not None or _varies(by_row):
                return None
            found, along = by_k, axis
    if found is None or len(set(found.tolist())) < len(found):
        return None
    first = tuple(int(x[0]) for x in indices)
    steps, rows = (found - found[0]).tobytes(), (column - column[0]).tobytes()
    return Contraction(allocation, found, along, first, steps, rows)


def _varies(index: Any) -> bool:
    """Whether not all entries are the first one; by the bytes, which is the fastest for a few hundred."""
    data: bytes = index.tobytes()
    return data != data[: index.itemsize] * len(index)


def _check_flat(
    w: Any, ins: Any, letter: str, allocation: Allocation, origin: Any, known: Any
) -> Contraction | None:
    """A tile of an array without named dimensions, or of overlapping windows: a step along K must be the same in
    all rows."""
    if not known.all():
        return None
    steps = (origin - origin[:, :1]) // allocation.itemsize
    if (steps != steps[0]).any():
        row, k = (int(x[0]) for x in np.nonzero(steps != steps[0]))
        what = f"k {k} is {int(steps[row, k])} elements after k 0 in row {row}, {int(steps[0, k])} in row 0"
        say(w, ins, letter, allocation, what)
    return None


def _constant(index: Any, known: Any, axis: int) -> bool:
    """Whether the known entries agree along ``axis``."""
    high = np.where(known, index, -1).max(axis=axis)
    low = np.where(known, index, np.iinfo(np.int64).max).min(axis=axis)
    return bool((low >= high).all())


def _line(index: Any, known: Any) -> Any:
    """The index of each column, -1 where unknown."""
    return np.where(known, index, -1).max(axis=0)


def _agree(w: Any, ins: Any, operands: list[Contraction | None]) -> None:
    """A and B must go through the contraction in the same steps.

    Where each of them starts is the program's business: a correlation, or the tiles of one operand taken
    backwards, multiply columns of K at any distance.
    """
    a, b = operands
    if a is not None and b is not None and a.steps and a.steps == b.steps:
        return
    if a is None or b is None or len(a.index) != len(b.index) or (a.index < 0).any() or (b.index < 0).any():
        return
    steps_a, steps_b = a.index - a.index[0], b.index - b.index[0]
    if (steps_a != steps_b).any():
        at = int(np.flatnonzero(steps_a != steps_b)[0])
        what = f"from column 0 to column {at}, A's index grows by {int(steps_a[at])}, B's by {int(steps_b[at])}"
        say(w, ins, "B", b.allocation, what)


def _both_go_on(w: Any, ins: Any, now: list[Contraction | None], before: tuple[int, Any]) -> None:
    """Of two products, one after the other on the same accumulators, the second may not multiply the same columns
    of one operand with the next ones of the other."""
    line, then = before
    steps = []
    for mine, theirs in zip(now, then, strict=True):
        if mine is None or mine.allocation is not theirs.allocation or mine.axis != theirs.axis:
            return
        if mine.first is None or theirs.first is None or len(mine.index) < 2:
            return
        step = [a - b for a, b in zip(mine.first, theirs.first, strict=True)]
        along = step.pop(mine.axis)
        if any(step) or mine.steps != theirs.steps or mine.rows != theirs.rows:
            return
        steps.append((along, len(mine.index) * int(mine.index[1] - mine.index[0])))
    (a, of_a), (b, of_b) = steps
    if (a == 0 and abs(b) == of_b) or (b == 0 and abs(a) == of_a):
        since = f"since the product of PTX line {line} on the same accumulators"
        what = f"{since}, A has gone {a} columns of K further, and B {b}"
        letter, operand = ("A", now[0]) if a == 0 else ("B", now[1])
        assert operand is not None
        say(w, ins, letter, operand.allocation, what)


def _report(w: Any, ins: Any, letter: str, allocation: Allocation, axis: int, index: Any, known: Any) -> None:
    """Report the element that breaks the tile."""
    for row in range(len(index)):
        columns = np.flatnonzero(known[row])
        reference = np.flatnonzero(known[0])
        both = np.intersect1d(columns, reference)
        broken = both[index[row, both] != index[0, both]] if len(both) else both
        if len(broken) and (index[row, columns] != index[row, columns[0]]).any():
            k = int(broken[0])
            here, there = int(index[row, k]), int(index[0, k])
            what = f"index {axis} at (row {row}, k {k}) is {here}, while at (row 0, k {k}) it is {there}"
            say(w, ins, letter, allocation, what)
            return
    say(w, ins, letter, allocation, f"index {axis} depends on row and k at once")


def say(w: Any, ins: Any, letter: str, allocation: Allocation, what: str) -> None:
    """Report that an operand is no tile of an array."""
    w.cta.machine.program.layouts.reports += 1
    w.report(OperandLayout, ins, operand=letter, array=allocation.name, what=what)
