"""ld and st (PTX ISA, "Data Movement and Conversion Instructions")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilemma.machine import access, element_types, global_access, provenance, strong
from tilemma.machine.catalogue import OutOfBounds
from tilemma.machine.decode import RAW, AddressRow, Decoder, instruction
from tilemma.machine.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from tilemma.machine.native import blocks
from tilemma.machine.native.blocks import AccessBlock, PlainAccess
from tilemma.machine.patterns import GlobalPatterns, SharedPatterns
from tilemma.machine.state import LANES, Frame
from tilemma.machine.syntax import TYPE_BYTES, Operand, Symbol

SPACES = {
    "global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "shared", "local": "local",
    "param": "param", "param::entry": "param", "const": "global",
}  # fmt: skip
_CACHE = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"}
SCOPES = {"cta", "cluster", "gpu", "sys"}
ORDERS = {"weak", "volatile", "relaxed", "acquire", "release", "acq_rel"}
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def skip_hints(d: Decoder) -> None:
    """Accept cache operators and eviction priorities, which change no value."""
    for m in d.mods:
        if m in _CACHE or m.startswith(("L1::", "L2::", "level::")):
            d.used.add(m)


@dataclass(frozen=True, slots=True)
class Registers:
    """The data registers of an access: (view, row) each; ``size`` bytes in memory each."""

    rows: tuple[tuple[int, int], ...]
    size: int
    signed: bool

    def block(self, address: AddressRow, width: int, *, watched: bool = False) -> AccessBlock | None:
        """The access for the native library; ``watched``: the array's type is compared with the registers'."""
        if len(self.rows) > blocks.MOST_REGISTERS or width > 16:
            return None
        return AccessBlock.of(address, width, self.rows, self.size, self.signed, watched)

    def scatter(self, w: Any, lanes: Any, words: Any) -> None:
        """Write memory words [n(, 2)] to the registers of ``lanes`` (None: all 32)."""
        parts = (
            words
            if len(self.rows) == 1 and words.ndim == 1
            else words.view(WORDS[self.size]).reshape(len(words), -1)
        )
        for i, (view, row) in enumerate(self.rows):
            part = parts if parts.ndim == 1 else parts[:, i]
            if self.signed:
                part = part.view(f"i{self.size}") if part.flags.c_contiguous else part.astype(f"i{self.size}")
            target = w.v[view][row]
            if self.signed:
                part = part.astype(f"i{target.itemsize}").view(target.dtype)
            if lanes is None:
                target[:] = part
            else:
                target[lanes] = part

    def gather(self, w: Any, lanes: Any, width: int) -> Any:
        """The registers of ``lanes`` as memory words of ``width`` bytes."""
        if len(self.rows) == 1:
            view, row = self.rows[0]
            value = w.v[view][row] if lanes is None else w.v[view][row][lanes]
            return value.astype(WORDS[self.size], copy=True)
        n = 32 if lanes is None else len(lanes)
        out = np.empty((n, len(self.rows)), WORDS[self.size])
        for i, (view, row) in enumerate(self.rows):
            value = w.v[view][row]
            out[:, i] = value if lanes is None else value[lanes]
        if width >= 16:
            return out.view(np.uint64).reshape(n, width // 8)
        return out.view(WORDS[width]).reshape(n)


_VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def data_registers(d: Decoder, operand: Operand, kind: str, *, write: bool) -> Registers:
    """The registers of a scalar or vector operand of element type ``kind``."""
    if kind == "b128":
        return _quad_registers(d, operand, write=write)
    items, rows = d.items(operand), []
    wider = d.parts[0] in ("ld", "ldu", "st") and "async" not in d.mods
    length = next((n for mod, n in _VECTORS.items() if mod in d.mods), 1)
    if len(items) != length:
        d.bad(f"a vector of {len(items)} where one of {length} is needed")
    for item in items:
        cls, row = d.dst_any(item, kind) if write else d.src_any(item, kind)
        rows.append((RAW[cls], row))
    if length == 1:
        d.check_type(operand, kind, wider=wider)
    else:
        d.check_vector(items, kind, wider=wider)
    return Registers(tuple(rows), TYPE_BYTES[kind], write and kind[0] == "s")


def _wide_access(d: Decoder, kind: str, width: int, space: str, order: str) -> None:
    """Refuse an access above 16 bytes other than the 32 bytes of `.v8.b32` and `.v4.b64` in global memory."""
    if width != 32 or TYPE_BYTES[kind] < 4:
        d.refuse("the vectors above 16 bytes are .v8 of 32-bit and .v4 of 64-bit types")
    if space not in ("global", "generic"):
        d.refuse("accesses of 32 bytes are for .global")
    d.needs(100)
    if order != "weak" or space == "generic":
        d.unsupported("a strong or generic access of 32 bytes")


def _quad_registers(d: Decoder, operand: Operand, *, write: bool) -> Registers:
    """A `.b128` register as its two halves, the lower first."""
    cls, row = d.dst_any(operand, "b64") if write else d.src_any(operand, "b64")
    if cls != "128":
        d.bad("a register of type .b128 is needed")
    return Registers(((RAW["64"], row), (RAW["64"], row + 1)), 8, False)


def _count(d: Decoder) -> None:
    """A policy stands at the end where the opcode announces one."""
    if len(d.without_policy()) != 2:
        d.bad(f"{len(d.operands)} operands; it takes 2, and a cache policy with `.L2::cache_hint`")


@instruction("ld", "ldu")
def ld(d: Decoder) -> None:
    kind = d.type
    space = d.one_of(SPACES, "generic")
    order = d.one_of(ORDERS, "weak")
    d.one_of(SCOPES, "none")
    skip_hints(d)
    d.has("v2", "v4", "v8", "mmio")
    d.only(kind)
    _count(d)
    registers = data_registers(d, d.operands[0], kind, write=True)
    address = d.address(d.operands[1])
    width = registers.size * len(registers.rows)
    if width > 16:
        _wide_access(d, kind, width, space, order)
    if space == "param" and not _call_parameter(d, d.operands[1]):
        _ld_param(d, registers, address, width)
    elif space in ("local", "param"):
        _local(d, registers, address, width, write=False)
    elif space == "shared" and order == "weak":
        _ld_shared(d, registers, address, width)
    else:
        _ld_any(d, registers, address, width, space, order)


def _call_parameter(d: Decoder, operand: Operand) -> bool:
    """Whether an address names a `.param` variable of the body: the parameters of a call, private to a lane."""
    base = getattr(operand, "base", None)
    return isinstance(base, Symbol) and base.name in d.program.local_offsets


def _ld_param_at(d: Decoder, registers: Registers, address: AddressRow, width: int, size: int) -> None:
    """A parameter by an address in a register: in the `.param` space, or the generic one of `cvta.param`."""
    ins, views = d.ins, d.program.parameter_views

    def run(f: Frame, m: Any) -> None:
        lanes = None if m is None else np.flatnonzero(m)
        addr = address.values(f.w, lanes)
        addr = np.where(addr >= PARAM_WINDOW, addr - PARAM_WINDOW, addr)
        bad = np.flatnonzero((addr < 0) | (addr + width > size) | (addr % width != 0))
        if len(bad):
            f.w.report(
                OutOfBounds,
                ins,
                lanes=(LANES if lanes is None else lanes)[bad],
                access="read of",
                space=f"{width} bytes at parameter offset {int(addr[bad[0]])}",
                what=f"there are {size} bytes",
                fatal=True,
            )
        registers.scatter(f.w, lanes, views[width][addr // width])

    d.visible(run)


def _ld_param(d: Decoder, registers: Registers, address: AddressRow, width: int) -> None:
    program = d.program
    view, shift = program.parameter_views[width], {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}[width]
    size = max((p.offset + p.size for p in program.entry.parameters), default=0)
    operand = d.operands[1]
    symbol = getattr(operand, "base", None)
    if not isinstance(symbol, Symbol):
        _ld_param_at(d, registers, address, width, size)
        return
    offset = d.symbol_value(symbol) + operand.offset  # type: ignore[union-attr]
    if offset % width or not 0 <= offset <= size - width:
        d.bad(f"{width} bytes at offset {offset} of {size} bytes of parameters")
    index = offset >> shift

    only = registers.rows[0] if len(registers.rows) == 1 and width < 16 and not registers.signed else None

    def run(w: Any, m: Any) -> None:
        if m is None and only is not None:
            w.v[only[0]][only[1]].fill(view[index])
            return
        word = view[index : index + 1]
        lanes = None if m is None else np.flatnonzero(m)
        n = 32 if lanes is None else len(lanes)
        registers.scatter(w, lanes, np.ascontiguousarray(np.broadcast_to(word, (n, *word.shape[1:]))))

    d.alu(run)


def _ld_shared(d: Decoder, registers: Registers, address: AddressRow, width: int) -> None:
    ins, patterns = d.ins, SharedPatterns(address, width)
    block = registers.block(address, width)
    if block is not None:
        d.plain = PlainAccess("SHARED_LOAD", block)

    def run(f: Frame, m: Any) -> None:
        w = f.w
        if w.native and block is not None and blocks.shared_load(w, ins, block, m):
            return
        lanes = None if m is None else np.flatnonzero(m)
        some = LANES if lanes is None else lanes
        pattern = patterns.of(w, lanes)
        if pattern.own:
            words = access.load_words(w, ins, w.cta, some, pattern.addr, pattern.index, width, "ld")
            w.cta.machine.performance.add("bank-conflict", ins, pattern.extra)
        else:
            words = access.shared_load(f, ins, some, pattern.addr, width)
            w.cta.machine.performance.shared(ins, pattern.addr, width)
        registers.scatter(w, lanes, words)

    d.visible(run)


def _ld_any(d: Decoder, registers: Registers, address: AddressRow, width: int, space: str, order: str) -> None:
    ins = d.ins
    check = element_types.watch(d.program, ins, d.operands[0])
    ids = provenance.word_registers(d, d.operands[0])
    kind = "ld" if order == "weak" else "atom"
    if order != "weak":
        d.program.communicates = True
    patterns = GlobalPatterns(address, width)
    block = None

    def followed(w: Any, addresses: int) -> None:
        """The native library has loaded from the 32 ``addresses``, which it keeps there."""
        provenance.loaded_natively(w, ids, addresses, registers.size)

    if order == "weak" and space != "shared":
        block = registers.block(address, width, watched=check is not None)
    if block is not None:
        d.plain = PlainAccess("GLOBAL_LOAD", block, frozenset(ids), agent=followed)

    def run(f: Frame, m: Any) -> None:
        w = f.w
        lanes = None if m is None else np.flatnonzero(m)
        some = LANES if lanes is None else lanes
        if w.native and block is not None:
            addr = address.values(w, lanes) if provenance.follows(w, ids) else None
            if blocks.global_access(w, ins, block, m, "ld", address, check):
                if addr is not None:
                    provenance.global_loaded(w, ids, some, 0, addr, registers.size)
                return
        found = patterns.of(w, lanes) if order == "weak" and space != "shared" else None
        if found is not None:
            allocation, offsets, extra = found
            if check is not None:
                check(w.cta.machine, allocation.base + int(offsets[0]))
            words = global_access.load_words(w, ins, allocation, some, offsets, width, kind)
            w.cta.machine.performance.add("uncoalesced", ins, extra)
            provenance.global_loaded(w, ids, some, allocation.base, offsets, registers.size)
            registers.scatter(w, lanes, words)
            return
        addr = address.values(w, lanes)
        if space == "global" or (space == "generic" and int(addr.max()) < SHARED_WINDOW):
            if check is not None:
                check(w.cta.machine, int(addr[0]))
            if order != "weak":
                strong.before_read(f, some, addr, order, ins)
            words = global_access.global_load(f, ins, some, addr, width, kind)
            w.cta.machine.performance.global_(ins, addr, width)
            provenance.global_loaded(w, ids, some, 0, addr, registers.size)
        elif space == "shared":
            strong.before_read(f, some, addr, order, ins)
            words = access.shared_load(f, ins, some, addr, width, kind)
        else:
            strong.before_read(f, some, addr, order, ins)
            words = _generic_load(f, ins, some, addr, width, kind)
        registers.scatter(w, lanes, words)

    d.visible(run)


def _generic_load(f: Frame, ins: Any, lanes: Any, addr: Any, width: int, kind: str) -> Any:
    """A generic load of which some lanes leave global memory."""
    out: Any = None
    for window, part in _windows(addr):
        a = addr[part]
        if window == "shared":
            words = access.shared_load(f, ins, lanes[part], a - SHARED_WINDOW, width, kind)
        elif window == "param":
            words = f.w.cta.machine.program.parameter_views[width][(a - PARAM_WINDOW) // width]
        elif window == "local":
            words = local_words(f, ins, lanes[part], a - LOCAL_WINDOW, width)
        else:
            words = global_access.global_load(f, ins, lanes[part], a, width, kind)
        if out is None:
            out = np.zeros((len(addr), *words.shape[1:]), words.dtype)
        out[part] = words
    return out


def _windows(addr: Any) -> list[tuple[str, Any]]:
    """Lanes by the window that their generic address is in."""
    edges = [("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW)]
    out = []
    left = np.ones(len(addr), bool)
    for name, start in edges:
        inside = (addr >= start) & (addr < start + (1 << 32))
        if inside.any():
            out.append((name, np.flatnonzero(inside)))
        left &= ~inside
    if left.any():
        out.append(("global", np.flatnonzero(left)))
    return out


@instruction("st")
def st(d: Decoder) -> None:
    kind = d.type
    space = d.one_of(SPACES, "generic")
    order = d.one_of(ORDERS, "weak")
    d.one_of(SCOPES, "none")
    skip_hints(d)
    d.has("v2", "v4", "v8", "mmio")
    if "async" in d.mods:
        d.unsupported()
    d.only(kind)
    _count(d)
    address = d.address(d.operands[0])
    registers = data_registers(d, d.operands[1], kind, write=False)
    width = registers.size * len(registers.rows)
    if width > 16:
        _wide_access(d, kind, width, space, order)
    if space == "local" or _call_parameter(d, d.operands[0]):
        _local(d, registers, address, width, write=True)
        return
    if space == "param":
        d.unsupported("parameters of an entry are read only")
    ins = d.ins
    check = element_types.watch(d.program, ins, d.operands[1])
    ids = provenance.word_registers(d, d.operands[1])
    how = "st" if order == "weak" else "atom"
    if order != "weak":
        d.program.communicates = True
    shared_patterns, patterns = SharedPatterns(address, width), GlobalPatterns(address, width)
    block = registers.block(address, width, watched=check is not None) if order == "weak" else None

    def followed(w: Any, addresses: int) -> None:
        """The native library has stored to the 32 ``addresses``, which it keeps there."""
        provenance.stored_natively(w, ids, addresses, registers.size)

    if block is not None:
        name = "SHARED_STORE" if space == "shared" else "GLOBAL_STORE"
        d.plain = PlainAccess(name, block, frozenset(ids), agent=followed)

    def native(w: Any, m: Any, lanes: Any, some: Any) -> bool:
        """Whether the native library has made the store."""
        assert block is not None
        if space != "shared":
            return blocks.global_access(w, ins, block, m, "st", address, check)
        if not blocks.shared_store(w, ins, block, m):
            return False
        if ids and provenance.loaded(w, ids):
            provenance.stored(w, ids, some, address.values(w, lanes), registers.size)
        return True

    def planned(w: Any, lanes: Any, some: Any, values: Any) -> bool:
        """Whether the store has been made: a weak one, all of it inside one array or the own shared memory."""
        machine = w.cta.machine
        if space == "shared":
            pattern = shared_patterns.of(w, lanes)
            if not pattern.own:
                return False
            access.store_words(w, ins, w.cta, some, pattern.addr, width, values, how, distinct=pattern.distinct)
            machine.performance.add("bank-conflict", ins, pattern.extra)
            if ids:
                provenance.stored(w, ids, some, pattern.addr, registers.size)
            return True
        found = patterns.of(w, lanes)
        if found is None:
            return False
        allocation, offsets, extra = found
        if check is not None:
            check(machine, allocation.base + int(offsets[0]))
        global_access.store_words(w, ins, allocation, some, offsets, width, values, how)
        machine.performance.add("uncoalesced", ins, extra)
        return True

    def run(f: Frame, m: Any) -> None:
        w = f.w
        if space == "global":
            w.cta.machine.note_work(w, "store", ins.line)
        lanes = None if m is None else np.flatnonzero(m)
        some = LANES if lanes is None else lanes
        if w.native and block is not None and native(w, m, lanes, some):
            w.cta.machine.progress += 1
            return
        values = registers.gather(w, lanes, width)
        if order == "weak" and planned(w, lanes, some, values):
            w.cta.machine.progress += 1
            return
        addr = address.values(w, lanes)
        if order != "weak":
            strong.before_write(f, some, addr, order, ins)
        if space == "shared":
            access.shared_store(f, ins, some, addr, width, values, how)
            w.cta.machine.performance.shared(ins, addr, width)
            if ids and how == "st" and int(addr.max()) <= access.OFFSET_MASK:
                provenance.stored(w, ids, some, addr, registers.size)
        elif space == "global" or int(addr.max()) < SHARED_WINDOW:
            if check is not None:
                check(w.cta.machine, int(addr[0]))
            global_access.global_store(f, ins, some, addr, width, values, how)
            w.cta.machine.performance.global_(ins, addr, width)
        else:
            for window, part in _windows(addr):
                if window == "shared":
                    access.shared_store(f, ins, some[part], addr[part] - SHARED_WINDOW, width, values[part], how)
                elif window == "local":
                    local_words(f, ins, some[part], addr[part] - LOCAL_WINDOW, width, values[part])
                else:
                    global_access.global_store(f, ins, some[part], addr[part], width, values[part], how)
        w.cta.machine.progress += 1

    d.visible(run)


# -- local memory: private to a lane, so no shadow but its bounds
def local_words(f: Frame, ins: Any, lanes: Any, addr: Any, width: int, values: Any = None) -> Any:
    """Read, or write where ``values`` are given, local memory of ``lanes``."""
    w = f.w
    size = w.cta.machine.program.local_bytes
    if w.local is None:
        w.local = np.full((32, -(-size // 16) * 16), 0xDE, np.uint8)
    bad = np.flatnonzero((addr < 0) | (addr + width > size))
    if len(bad):
        w.report(
            OutOfBounds,
            ins,
            lanes=lanes[bad],
            access="use of",
            space=f"local address {int(addr[bad[0]]):#x}",
            what=f"the thread has {size} bytes",
            fatal=True,
        )
    if width == 16:
        table = w.local.view(np.uint64).reshape(32, -1, 2)
    else:
        table = w.local.view(WORDS[width])
    if values is None:
        return table[lanes, addr // width]
    table[lanes, addr // width] = values
    return None


def _local(d: Decoder, registers: Registers, address: AddressRow, width: int, *, write: bool) -> None:
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        lanes = None if m is None else np.flatnonzero(m)
        some = LANES if lanes is None else lanes
        addr = address.values(f.w, lanes)
        if write:
            local_words(f, ins, some, addr, width, registers.gather(f.w, lanes, width))
        else:
            registers.scatter(f.w, lanes, local_words(f, ins, some, addr, width))

    d.visible(run)
