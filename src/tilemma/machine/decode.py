"""The decoder of one instruction: resolves operands to register rows and receives the closure that executes it.

A family registers itself with ``@instruction("add", "sub")``; the longest registered dotted prefix of the opcode
decides, so that ``cp.async.bulk.tensor`` and ``cp.async`` live in different files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilemma.errors import Span
from tilemma.machine import serialised, syntax
from tilemma.machine.catalogue import NoSuchForm, NotInTarget
from tilemma.machine.hazards import Place
from tilemma.machine.isa import contents, opcodes, operand_types
from tilemma.machine.memory import FUNCTION_WINDOW, GLOBAL_START, PARAM_WINDOW
from tilemma.machine.problems import BadOperand, UnsupportedInstruction
from tilemma.machine.state import F16, F32, F64, PRED, S16, S32, S64, U16, U32, U64, VIEW_CLASS

if TYPE_CHECKING:
    from tilemma.machine.native.blocks import PlainAccess
    from tilemma.machine.program import Program, Step

VIEW = {
    "u16": U16, "b16": U16, "s16": S16, "f16": F16, "bf16": U16, "u8": U16, "b8": U16, "s8": S16,
    "u32": U32, "b32": U32, "s32": S32, "f32": F32, "f16x2": U32, "bf16x2": U32, "tf32": F32,
    "u64": U64, "b64": U64, "s64": S64, "f64": F64, "pred": PRED, "e4m3x2": U16, "e5m2x2": U16,
    "f32x2": U64,
}  # fmt: skip
# The unsigned view of each register class.
RAW = {"16": U16, "32": U32, "64": U64, "p": PRED}
CLASS_BYTES = {"16": 2, "32": 4, "64": 8}

_WIDE_SPECIAL = frozenset(("%clock64", "%globaltimer", "%current_graph_exec", "%gridid"))
# Instructions with one address, whose state space they name; without one it is generic.
_SPACED = frozenset(("ld", "ldu", "st", "atom", "red", "mbarrier"))
_SPACES = frozenset(("global", "shared", "local", "const", "param"))

_DECODERS: dict[str, Callable[[Decoder], None]] = {}


def instruction(*prefixes: str) -> Callable[[Callable[[Decoder], None]], Callable[[Decoder], None]]:
    """Register a decoder for opcodes that start with one of these dotted prefixes."""

    def register(f: Callable[[Decoder], None]) -> Callable[[Decoder], None]:
        for prefix in prefixes:
            assert prefix not in _DECODERS, prefix
            _DECODERS[prefix] = f
        return f

    return register


def supported() -> list[str]:
    """All opcode prefixes of PTX that have a decoder."""
    _load()
    return sorted(_DECODERS.keys() - {serialised.OPCODE})


def _load() -> None:
    # The families register themselves when they are imported.
    import tilemma.machine.exec  # noqa: F401


@cache
def _longest_prefix() -> int:
    """The most parts of a registered prefix."""
    return max(prefix.count(".") + 1 for prefix in _DECODERS)


def find_decoder(d: Decoder) -> Callable[[Decoder], None]:
    """The decoder of the instruction, by the longest registered prefix of its opcode."""
    _load()
    listed = contents.find(d.ins.opcode)
    if listed is not None and listed.status == contents.REFUSED:
        return d.unsupported()
    parts = d.parts
    for n in range(min(len(parts), _longest_prefix()), 0, -1):
        found = _DECODERS.get(".".join(parts[:n]))
        if found is not None:
            _check_form(d)
            d.used.update(parts[:n])
            return found
    return d.unsupported()


def _check_form(d: Decoder) -> None:
    """Refuse modifiers and types that the instruction does not have."""
    refusal = opcodes.refusal(tuple(d.parts), len(d.operands), d.program.arch)
    if refusal is None:
        return
    if refusal.reason:
        d.refuse(refusal.reason)
    d.needs(refusal.needs, accelerated=refusal.accelerated)


@dataclass(frozen=True, slots=True)
class AddressRow:
    """An address operand: a register row of class 32 or 64 (or a constant row) plus an offset."""

    view: int
    row: int
    offset: int
    symbol: str | None = None

    def values(self, w: Any, lanes: Any) -> np.ndarray[Any, Any]:
        """Addresses of ``lanes`` (None: all 32) as int64."""
        row = w.v[self.view][self.row]
        out: np.ndarray[Any, Any] = (row if lanes is None else row[lanes]).astype(np.int64)
        if self.offset:
            out += self.offset
        return out


class Decoder:
    """One instruction being decoded."""

    def __init__(self, program: Program, ins: syntax.Instruction) -> None:
        self.program, self.ins = program, ins
        self.parts = ins.parts
        self.mods = self.parts[1:]
        self.operands = ins.operands
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self.conditional: dict[int, str] = {}
        self.async_registers: frozenset[int] = frozenset()
        self.kind = 0
        self.run: Callable[..., Any] = _nothing
        self.target, self.targets = -1, ()
        self.used: set[str] = set()
        # A plain access to memory, which the compiled library can make without leaving the frame.
        self.plain: PlainAccess | None = None
        # The number of a barrier of all threads of the CTA, or the row of the member mask of one of a warp.
        self.barrier = -1
        # The lanes that must execute it together: see ``convergence``.
        self.membership = -2

    # -- errors
    @property
    def span(self) -> Span:
        i = self.ins
        return Span(self.program.module.name, i.line, i.column, i.line, i.column + len(i.text))

    def unsupported(self, detail: str = "") -> NoReturn:
        listed = contents.find(self.ins.opcode)
        if listed is not None and listed.why and not detail:
            detail = listed.why
        section = f' ("{listed.section}: {listed.name}")' if listed is not None else ""
        raise UnsupportedInstruction(
            self.span, opcode=self.ins.opcode, detail=detail and f": {detail}", section=section
        )

    def bad(self, what: str) -> NoReturn:
        raise BadOperand(self.span, opcode=self.ins.opcode, what=what)

    def needs(self, sm: int, *, feature: str = "", accelerated: bool = False) -> None:
        """Refuse the instruction where the target lacks it: below ``sm``, or not exactly ``feature``.

        ``accelerated``: only targets with features of an architecture or its family have it (``sm_120a``).
        """
        arch = self.program.arch
        number = int("".join(c for c in arch if c.isdigit()) or 0)
        if (feature and arch != feature) or number < sm or (accelerated and arch[-1:] not in ("a", "f")):
            place = Place(self.program.module.name, self.ins, 0, (0, 0, 0))
            needs = feature or f"sm_{sm}" + "a" * accelerated
            raise NotInTarget.at(place, opcode=self.ins.opcode, needs=needs, target=arch)

    def refuse(self, reason: str) -> NoReturn:
        """Refuse a form that the ISA does not have on this target, in the ISA's words."""
        place = Place(self.program.module.name, self.ins, 0, (0, 0, 0))
        raise NoSuchForm.at(place, opcode=self.ins.opcode, reason=reason)

    # -- opcode
    def has(self, *mods: str) -> bool:
        """Whether any of ``mods`` is in the opcode; it counts as understood."""
        self.used.update(mods)
        return any(m in self.mods for m in mods)

    def one_of(self, table: Any, default: Any = None) -> Any:
        """The entry of ``table`` (a mapping or a sequence) whose name is in the opcode."""
        found = [m for m in self.mods if m in table]
        if not found:
            if default is None:
                self.unsupported()
            return default
        self.used.add(found[0])
        return table[found[0]] if isinstance(table, dict) else found[0]

    def only(self, *allowed: str) -> None:
        """Refuse modifiers other than these: a modifier not understood must not be ignored."""
        for m in self.mods:
            if m not in allowed and m not in self.used:
                self.unsupported(f"`.{m}` is not modelled here")

    @property
    def type(self) -> str:
        """The last part of the opcode, a type."""
        return self.parts[-1]

    def count(self, *numbers: int) -> None:
        """Refuse another number of operands than one of these."""
        if len(self.operands) not in numbers:
            self.bad(f"{len(self.operands)} operands; it takes {' or '.join(map(str, numbers))}")

    def without_policy(self, behind: int = 0) -> list[syntax.Operand]:
        """The operands, but the cache policy that `.L2::cache_hint` adds: ``behind`` others stand behind it."""
        operands = list(self.operands)
        if self.has("L2::cache_hint") and len(operands) > behind:
            self.src(operands.pop(len(operands) - 1 - behind), "u64")
        return operands

    # -- operands
    def _class_of(self, register: syntax.Register) -> tuple[str, int]:
        try:
            return self.program.register(register)
        except KeyError:
            self.unsupported(f"registers of type .{register.type}")

    def _note(self, where: set[int], cls: str, row: int) -> None:
        where.add(self.program.register_ids[cls, row])

    def src(self, operand: syntax.Operand, kind: str, *, wide: bool = False) -> int:
        """Row of a source operand read as type ``kind``.

        ``wide`` lets the register be wider than the type (then use ``src_any``'s class).
        """
        cls = VIEW_CLASS[VIEW[kind]]
        found, row = self.src_any(operand, kind)
        if found != cls and not wide:
            self.bad(f"operand of register class {found} bits where .{kind} is read")
        self.check_type(operand, kind, wider=wide)
        return row

    def src_any(self, operand: syntax.Operand, kind: str) -> tuple[str, int]:
        """Class and row of a source operand; immediates take the class of ``kind``."""
        cls = VIEW_CLASS[VIEW[kind]]
        if isinstance(operand, syntax.Register):
            found = self._class_of(operand)
            if (found[0] == "p") != (cls == "p"):
                self.bad(f"{operand} is {'a' if found[0] == 'p' else 'no'} predicate")
            self._note(self.reads, *found)
            return found
        if isinstance(operand, syntax.Immediate):
            self._check_constant(operand, kind)
            return cls, self.program.constant(cls, immediate_bits(operand, kind))
        if isinstance(operand, syntax.Special):
            self.check_special(operand, kind)
            return cls, self.program.special(cls, operand)
        if isinstance(operand, syntax.Symbol):
            if kind[0] == "f":
                self.bad(f"an address where .{kind} is read")
            return cls, self.program.constant(cls, self.symbol_value(operand))
        return self.bad(f"operand {operand} where a register or a constant is read")

    def src_pred(self, operand: syntax.Operand) -> tuple[int, bool]:
        """Row of a predicate operand and whether it is negated."""
        if isinstance(operand, syntax.Not):
            return self.src(operand.operand, "pred"), True
        if isinstance(operand, syntax.Immediate):
            self._check_constant(operand, "pred")
            return self.program.constant("p", int(operand.value != 0)), False
        return self.src(operand, "pred"), False

    def dst(self, operand: syntax.Operand, kind: str, *, wide: bool = False) -> int:
        """Row of a destination read as type ``kind``; a sink gets a row that is never read."""
        cls = VIEW_CLASS[VIEW[kind]]
        found, row = self.dst_any(operand, kind)
        if found != cls and not wide:
            self.bad(f"destination of register class {found} bits where .{kind} is written")
        self.check_type(operand, kind, wider=wide)
        return row

    def dst_any(self, operand: syntax.Operand, kind: str) -> tuple[str, int]:
        """Class and row of a destination."""
        cls = VIEW_CLASS[VIEW[kind]]
        if isinstance(operand, syntax.Sink):
            return cls, self.program.new_row(cls)
        if not isinstance(operand, syntax.Register):
            self.bad(f"operand {operand} where a register is written")
        found = self._class_of(operand)
        if (found[0] == "p") != (cls == "p"):
            self.bad(f"{operand} is {'a' if found[0] == 'p' else 'no'} predicate")
        self._note(self.writes, *found)
        return found

    def check_type(self, operand: syntax.Operand, kind: str, *, wider: bool) -> None:
        """Refuse a register whose declared type the type of the instruction does not go with."""
        if isinstance(operand, syntax.Register) and not operand_types.fits(operand.type, kind, wider=wider):
            self.bad(f"{operand} is declared .{operand.type}, which does not go with .{kind}")

    def _check_constant(self, operand: syntax.Immediate, kind: str) -> None:
        if not operand_types.constant_fits(operand.kind, kind):
            forms = {"int": "an integer", "f32": "a constant of .f32", "f64": "a floating-point constant"}
            self.bad(f"{forms[operand.kind]} where .{kind} is read")

    def check_special(self, operand: syntax.Special, kind: str) -> None:
        """Refuse a predefined register as an operand of another size, or of a float."""
        wide, bits = operand.name in _WIDE_SPECIAL, CLASS_BYTES.get(VIEW_CLASS[VIEW[kind]], 0) * 8
        other = bits in (32, 64) and (bits == 64) != wide and operand.name != "%gridid"
        if kind[0] == "f" or other:
            self.bad(f"{operand.name} where .{kind} is read: it has the type .{'u64' if wide else 'u32'}")

    def check_vector(self, items: tuple[syntax.Operand, ...], kind: str, *, wider: bool) -> None:
        """`check_type` for the registers of a vector."""
        declared = [x.type for x in items if isinstance(x, syntax.Register)]
        if not operand_types.vector_fits(declared, kind, wider=wider):
            self.bad(f"registers declared .{' .'.join(dict.fromkeys(declared))} do not go with .{kind}")

    def register_id(self, operand: syntax.Operand) -> int:
        """The number of a register in dataflow and hazards."""
        assert isinstance(operand, syntax.Register)
        return self.program.register_ids[self._class_of(operand)]

    def items(self, operand: syntax.Operand) -> tuple[syntax.Operand, ...]:
        """A vector's items; a scalar is a vector of one."""
        return operand.items if isinstance(operand, syntax.Vector) else (operand,)

    def pair(self, operand: syntax.Operand) -> tuple[syntax.Operand, syntax.Operand | None]:
        """``a|b`` as two operands; the second may be missing."""
        return (operand.first, operand.second) if isinstance(operand, syntax.Pair) else (operand, None)

    def immediate(self, operand: syntax.Operand) -> int:
        """The value of an operand that must be an integer constant."""
        if not isinstance(operand, syntax.Immediate) or operand.kind != "int":
            self.bad(f"operand {operand} where an integer constant is needed")
        return operand.value

    def symbol_value(self, symbol: syntax.Symbol) -> int:
        """The address of a variable or function, in its own state space."""
        program, name = self.program, symbol.name
        if name in program.shared_offsets:
            return program.shared_offsets[name] + symbol.offset
        if name in program.global_symbols:
            return program.global_addresses.setdefault(name, symbol_address(program, name)) + symbol.offset
        if name in program.local_offsets:
            return program.local_offsets[name] + symbol.offset
        for p in program.entry.parameters:
            if p.name == name:
                return p.offset + symbol.offset
        if name in program.module.functions:
            return FUNCTION_WINDOW + 16 * list(program.module.functions).index(name)
        return self.bad(f"the name `{name.split('@')[0]}` is not declared")

    def address(self, operand: syntax.Operand) -> AddressRow:
        """An address operand as a row and an offset."""
        if not isinstance(operand, syntax.Address):
            self.bad("an operand in [ ] is needed")
        base = operand.base
        if isinstance(base, syntax.Register):
            cls, row = self.src_any(base, "u64")
            if cls not in ("32", "64"):
                self.bad(f"an address register of {cls} bits")
            self.check_type(base, f"u{cls}", wider=False)
            return AddressRow(RAW[cls], row, operand.offset)
        if isinstance(base, syntax.Symbol):
            self._check_space(base)
            value = self.symbol_value(base) + operand.offset
            if self.is_parameter(base):
                value += PARAM_WINDOW
            return AddressRow(U64, self.program.constant("64", value), 0, base.name)
        if "local" not in self.mods:
            self.bad(f"the constant address {base.value:#x}; only .local has constant addresses")
        return AddressRow(U64, self.program.constant("64", base.value + operand.offset), 0)

    def _check_space(self, base: syntax.Symbol) -> None:
        """Refuse a variable of another state space than the instruction names."""
        if self.parts[0] not in _SPACED:
            return
        program, name = self.program, base.name
        variable = program.global_symbols.get(name)
        if name in program.shared_offsets:
            space = "shared"
        elif variable is not None:
            space = variable.space
        elif self.is_parameter(base):
            space = "param"
        else:
            return  # `.local`, or `.param` of a call
        wanted = next((m.split("::")[0] for m in self.mods if m.split("::")[0] in _SPACES), "generic")
        if wanted != space and (wanted != "generic" or space in ("param", "const")):
            self.bad(f"`{name.split('@')[0]}` is in .{space}, the instruction is for {wanted} addresses")

    def coordinates(self, operand: syntax.Operand, rank: int) -> list[int]:
        """The rows of the ``rank`` coordinates of a tensor."""
        coordinates = operand.coordinates if isinstance(operand, syntax.Address) else None
        if coordinates is None or len(coordinates) != rank:
            self.bad(f"it needs `[map, {{...}}]` with {rank} coordinates")
        return [self.src(c, "s32") for c in coordinates]

    def is_parameter(self, symbol: syntax.Symbol) -> bool:
        """Whether a name is that of a parameter of the entry."""
        known = {*self.program.shared_offsets, *self.program.global_symbols, *self.program.local_offsets}
        return symbol.name not in known and any(p.name == symbol.name for p in self.program.entry.parameters)

    # -- result
    def alu(self, run: Callable[[Any, Any], None]) -> None:
        """The instruction touches registers only; ``run(warp, mask)``."""
        self.kind, self.run = 0, run

    def visible(self, run: Callable[[Any, Any], Any]) -> None:
        """The instruction touches memory or other threads; ``run(frame, mask)``."""
        self.kind, self.run = 1, run

    def step(self, index: int) -> Step:
        from tilemma.machine.program import Step

        guard, negated = -1, False
        if self.ins.guard is not None:
            guard, negated = self.src(self.ins.guard.register, "pred"), self.ins.guard.negated
        conditional = tuple(self.conditional.items())
        if "aligned" in self.mods or (self.parts[0] == "bar" and self.membership == -2):
            self.membership = -1
        return Step(
            index, self.ins, self.kind, self.run, guard, negated, self.target, self.targets, self.membership,
            frozenset(self.reads), frozenset(self.writes), conditional, frozenset(), self.async_registers,
            plain=self.plain, barrier=self.barrier,
        )  # fmt: skip


def symbol_address(program: Program, name: str) -> int:
    """The address that a module-scope global or const variable will be placed at."""
    position = list(program.global_symbols).index(name)
    # A window below the arrays, 16 MB for each variable.
    return GLOBAL_START - (position + 1) * (1 << 24)


def immediate_bits(operand: syntax.Immediate, kind: str) -> int:
    """The bit pattern of a constant in an instruction of type ``kind``."""
    value = operand.value
    if operand.kind == "f64" and kind in ("f32", "b32", "u32", "s32", "tf32"):
        return int(struct.unpack("<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", value))[0]))[0])
    if operand.kind == "f64" and kind == "f16":
        return int(struct.unpack("<H", struct.pack("<e", struct.unpack("<d", struct.pack("<Q", value))[0]))[0])
    if operand.kind == "f32" and kind == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", value))[0]))[0])
    if operand.kind == "int" and kind in ("f32", "f64"):
        fmt, word = ("<f", "<I") if kind == "f32" else ("<d", "<Q")
        return int(struct.unpack(word, struct.pack(fmt, float(value)))[0])
    return value


def _nothing(x: Any, m: Any) -> None:
    return None
