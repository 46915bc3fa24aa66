"""Calls of functions of the module become copies of their bodies (PTX ISA, "call", "Abstracting the ABI").

Indexed branches (PTX ISA, "brx.idx") become comparisons and branches.

Each copy has its own registers, labels, parameters and local variables; shared and global variables are common.
A parameter in the `.param` space becomes the variable that the caller passes.  An indirect call compares the
address with each function that it may reach.  Calls of external functions stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilemma.errors import Span
from tilemma.machine.problems import UnsupportedInstruction
from tilemma.machine.syntax import (
    TYPE_BYTES,
    Address,
    Body,
    Entry,
    Function,
    Guard,
    Immediate,
    Instruction,
    Module,
    Negative,
    Not,
    Operand,
    Pair,
    Register,
    Selected,
    Sink,
    Symbol,
    Variable,
    Vector,
)

# Instructions of one kernel with its functions.
_MOST = 400_000
_PRIVATE = ("local", "param", "reg")


@dataclass(frozen=True)
class Call:
    """The operands of a `call`: results, callee, arguments, and the list or prototype."""

    results: tuple[Operand, ...]
    target: Operand
    arguments: tuple[Operand, ...]
    table: str | None


def read_call(ins: Instruction) -> Call | None:
    """The parts of a call; None where the text is no call that the ISA has."""
    operands = list(ins.operands)
    results = _list(operands)
    if not operands or not isinstance(operands[0], (Symbol, Register)):
        return None
    target = operands.pop(0)
    arguments = _list(operands)
    table = operands.pop(0) if operands else None
    if operands or not (table is None or isinstance(table, Symbol)):
        return None
    return Call(results, target, arguments, table.name if table is not None else None)


def _list(operands: list[Operand]) -> tuple[Operand, ...]:
    """Take the list in brackets that follows, if any."""
    if operands and isinstance(operands[0], Vector):
        found = operands.pop(0)
        assert isinstance(found, Vector)
        return found.items
    return ()


class Inliner:
    """Builds one body out of an entry and the functions that it calls."""

    def __init__(self, module: Module, entry: Entry) -> None:
        self.module, self.entry = module, entry
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.registers: dict[Register, None] = {}
        self.variables: dict[str, Variable] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self.serial = 0
        self.taken = frozenset(_addresses_taken(module))

    def run(self) -> Body:
        self.copy(self.entry.body, {}, "", (), None)
        return Body(
            tuple(self.instructions), self.labels, tuple(self.registers), tuple(self.variables.values()),
            self.tables,
        )  # fmt: skip

    def refuse(self, ins: Instruction, detail: str) -> None:
        span = Span(self.module.name, ins.line, ins.column, ins.line, ins.column + len(ins.text))
        raise UnsupportedInstruction(span, opcode=ins.opcode, detail=f": {detail}", section="")

    def copy(
        self, body: Body, formals: dict[str, Operand], suffix: str, stack: tuple[str, ...], end: str | None
    ) -> None:
        """Append ``body`` with its names made unique by ``suffix``; `ret` jumps to ``end``, if given."""
        names = _Renaming(body, formals, suffix, stack[-1] if stack else "")
        for variable in body.variables:
            name = names.symbol(variable.name)
            self.variables.setdefault(name, replace(variable, name=name))
        self.registers.update({names.register(r): None for r in body.registers})
        self.tables.update({n + suffix: tuple(x + suffix for x in t) for n, t in body.tables.items()})
        starts: dict[int, list[str]] = {}
        for label, index in body.labels.items():
            starts.setdefault(index, []).append(label + suffix)
        for index, ins in enumerate(body.instructions):
            for label in starts.get(index, ()):
                self.labels[label] = len(self.instructions)
            self.one(ins, names, stack, end, body)
            if len(self.instructions) > _MOST:
                self.refuse(ins, f"with its functions the kernel has more than {_MOST} instructions")
        for label in starts.get(len(body.instructions), ()):
            self.labels[label] = len(self.instructions)

    def one(self, ins: Instruction, names: _Renaming, stack: tuple[str, ...], end: str | None, body: Body) -> None:
        if ins.parts[0] == "ret" and end is not None:
            self.instructions.append(replace(names.instruction(ins), opcode="bra.uni", operands=(Symbol(end),)))
            return
        if ins.parts[0] == "brx":
            self.indexed(names.instruction(ins), body.tables.get(_name(ins.operands[-1]), ()), names.suffix)
            return
        call = read_call(ins) if ins.parts[0] == "call" else None
        candidates = list(self.candidates(call, body)) if call is not None else []
        if call is None or not candidates:
            self.instructions.append(names.instruction(ins))
            return
        self.serial += 1
        after = f"$after@{self.serial}"
        renamed = names.instruction(ins)
        if ins.guard is not None:
            around = replace(ins.guard, negated=not ins.guard.negated)
            self.add(renamed, "bra", (Symbol(after),), names.guard(around))
        there = read_call(renamed)
        assert there is not None
        if isinstance(there.target, Symbol):
            self.expand(candidates[0], there, renamed, stack)
        else:
            for function in candidates:
                self.compared(function, there, renamed, stack, after)
            self.instructions.append(replace(renamed, guard=None))
        self.labels[after] = len(self.instructions)

    def indexed(self, ins: Instruction, labels: tuple[str, ...], suffix: str) -> None:
        """`brx.idx`: a comparison with each index of the list; an index outside it is reported."""
        self.serial += 1
        after = f"$after@{self.serial}"
        if ins.guard is not None:
            self.add(ins, "bra", (Symbol(after),), Guard(ins.guard.register, not ins.guard.negated))
        for i, label in enumerate(labels):
            self.serial += 1
            same = Register(f"%same@{self.serial}", "pred")
            self.registers[same] = None
            self.add(ins, "setp.eq.u32", (same, ins.operands[0], Immediate(i)))
            self.add(ins, "bra", (Symbol(label + suffix),), Guard(same, False))
        self.instructions.append(replace(ins, guard=None))
        self.labels[after] = len(self.instructions)

    def compared(
        self, function: Function, call: Call, ins: Instruction, stack: tuple[str, ...], after: str
    ) -> None:
        """``function``, if it is its own address that is called."""
        self.serial += 1
        other = f"$other@{self.serial}"
        same = Register(f"%same@{self.serial}", "pred")
        self.registers[same] = None
        self.add(ins, "setp.eq.u64", (same, call.target, Symbol(function.name)))
        self.add(ins, "bra", (Symbol(other),), Guard(same, True))
        if function.name in stack:
            self.add(ins, "call.recursive", (Symbol(function.name),))
        else:
            self.expand(function, call, ins, stack)
        self.add(ins, "bra.uni", (Symbol(after),))
        self.labels[other] = len(self.instructions)

    def add(self, at: Instruction, opcode: str, operands: tuple[Operand, ...], guard: Guard | None = None) -> None:
        """An instruction that implements a part of the call ``at``."""
        self.instructions.append(replace(at, opcode=opcode, operands=operands, guard=guard))

    def candidates(self, call: Call | None, body: Body) -> Iterator[Function]:
        """The functions with a body that a call may reach."""
        if call is None:
            return
        functions = self.module.functions
        if isinstance(call.target, Symbol):
            found = functions.get(call.target.name)
            if found is not None and (found.body is not None or found.refused is not None):
                yield found
            return
        if call.table in body.tables:
            names = list(body.tables[call.table or ""])
            wanted = None
        else:
            wanted = body.prototypes.get(call.table or "")
            names = sorted(self.taken)
        for name in names:
            f = functions.get(name)
            if f is not None and f.body is not None and (wanted is None or f.signature == wanted):
                yield f

    def expand(self, function: Function, call: Call, ins: Instruction, stack: tuple[str, ...]) -> None:
        """The body of ``function``, which replaces a call."""
        if function.refused is not None:
            raise function.refused
        if function.name in stack:
            self.refuse(ins, f"`{function.name}` calls itself; recursion is not modelled")
        passed, wanted = (*call.results, *call.arguments), (*function.results, *function.parameters)
        if len(passed) != len(wanted):
            self.refuse(ins, f"{len(passed)} results and parameters; `{function.name}` has {len(wanted)}")
        self.serial += 1
        suffix = f".{self.serial}"
        formals: dict[str, Operand] = {}
        for formal, actual in zip(wanted, passed, strict=True):
            if formal.register is None:
                formals[formal.name] = self.variable_for(formal.size, actual, ins, formal.type)
        registers = [(f, a) for f, a in zip(wanted, passed, strict=True) if f.register is not None]
        assert function.body is not None
        inner = _Renaming(function.body, formals, suffix, function.name)
        moves = [
            (inner.register(f.register), a, f)
            for f, a in registers
            if f.register is not None and not isinstance(a, Sink)
        ]
        for register, actual, formal in moves:
            if formal in function.parameters:
                self.add(ins, f"mov.{_move_type(formal.type)}", (register, actual))
        end = f"$end@{self.serial}"
        self.copy(function.body, formals, suffix, (*stack, function.name), end)
        self.labels[end] = len(self.instructions)
        for register, actual, formal in moves:
            if formal in function.results:
                self.add(ins, f"mov.{_move_type(formal.type)}", (actual, register))

    def variable_for(self, size: int, actual: Operand, ins: Instruction, kind: str) -> Operand:
        """The variable for a `.param` formal: the caller's own, or a new one for a register."""
        if isinstance(actual, Symbol):
            return Symbol(actual.name)
        self.serial += 1
        name = f"$param@{self.serial}"
        self.variables[name] = Variable(name, "param", size, size, ins.line)
        if not isinstance(actual, Sink):
            self.add(ins, f"st.param.b{8 * size}", (Address(Symbol(name)), actual))
        return Symbol(name)


def _name(x: Operand) -> str:
    return x.name if isinstance(x, Symbol) else ""


def _move_type(kind: str) -> str:
    return kind if kind == "pred" else f"b{8 * max(2, TYPE_BYTES[kind])}"


class _Renaming:
    """Names of one copy of a body."""

    def __init__(self, body: Body, formals: dict[str, Operand], suffix: str, function: str) -> None:
        self.formals, self.suffix = formals, suffix
        self.private = {v.name for v in body.variables if v.space in _PRIVATE}
        self.static = {v.name for v in body.variables} - self.private
        self.function = function
        self.names = {*body.labels, *body.tables, *body.prototypes}

    def register(self, r: Register) -> Register:
        return Register(r.name + self.suffix, r.type) if self.suffix else r

    def symbol(self, name: str) -> str:
        if name in self.formals:
            actual = self.formals[name]
            assert isinstance(actual, Symbol)
            return actual.name
        if self.suffix and (name in self.private or name in self.names):
            return f"{name}{self.suffix}" if "@" in name else f"{name}@{self.suffix}"
        if self.suffix and name in self.static:
            return f"{name}@{self.function}"
        return name

    def guard(self, g: Guard) -> Guard:
        return Guard(self.register(g.register), g.negated)

    def operand(self, x: Operand) -> Operand:
        if isinstance(x, Register):
            return self.register(x)
        if isinstance(x, Symbol):
            return Symbol(self.symbol(x.name), x.offset)
        if isinstance(x, Vector):
            return Vector(tuple(map(self.operand, x.items)))
        if isinstance(x, Pair):
            return Pair(self.operand(x.first), self.operand(x.second))
        if isinstance(x, Selected):
            return Selected(self.register(x.register), x.selector)
        if isinstance(x, Negative):
            operand = self.operand(x.operand)
            assert isinstance(operand, (Register, Selected))
            return Negative(operand)
        if isinstance(x, Not):
            return Not(self.register(x.operand))
        if isinstance(x, Address):
            inside = None if x.coordinates is None else tuple(map(self.operand, x.coordinates))
            base = self.operand(x.base)
            assert isinstance(base, (Register, Symbol, Immediate))
            return replace(x, base=base, coordinates=inside)
        return x

    def instruction(self, ins: Instruction) -> Instruction:
        if not self.suffix and not self.formals:
            return ins
        guard = None if ins.guard is None else self.guard(ins.guard)
        return replace(ins, operands=tuple(map(self.operand, ins.operands)), guard=guard)


def _addresses_taken(module: Module) -> Iterator[str]:
    """Functions whose address is in an initialiser or an operand."""
    for variable in module.variables:
        for _, name, *_rest in variable.relocations:
            if name in module.functions:
                yield name
    for body in (*(e.body for e in module.entries.values()), *(f.body for f in module.functions.values())):
        for ins in body.instructions if body is not None else ():
            if ins.parts[0] != "call":
                for x in ins.operands:
                    if isinstance(x, Symbol) and x.name in module.functions:
                        yield x.name


def inlined(module: Module, entry: Entry) -> Entry:
    """``entry`` with its calls replaced by the bodies of the functions."""
    if not any(ins.parts[0] in ("call", "brx") for ins in entry.instructions):
        return entry
    return replace(entry, body=Inliner(module, entry).run())
