"""Checks of registers around decoded steps: registers that nothing wrote, registers that wgmma uses, origins.

A value that depends on a register which nothing wrote is undefined.  Instructions on registers pass that on, lane
by lane, as compilers expect: they move and combine undefined values and select others in their place.  It is
reported where an undefined value is an address, is stored in global memory or given to other threads, or decides
a branch; `undefined_memory` follows it through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine import provenance, undefined_memory
from tilemma.machine.catalogue import RegisterInFlight, UninitialisedRegister
from tilemma.machine.state import ALL_LANES
from tilemma.machine.syntax import Instruction, Not, Operand, Register, Vector

if TYPE_CHECKING:
    from tilemma.machine.program import Program, Step

# `program.ALU`, whose module imports this one.
_ALU = 0
Run = Callable[..., Any]
# Which lanes have a value that is defined.
Defined = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Checks:
    """What `instrument` has wrapped around a step: registers that must be defined, that it defines, that wgmma
    uses, and those whose origins it ends.  ``run`` is the step with all of it."""

    run: Callable[..., Any]
    reads: tuple[int, ...] = ()
    defines: tuple[int, ...] = ()
    touches: tuple[int, ...] = ()
    forgets: tuple[int, ...] = ()


def passed_on(program: Program) -> list[frozenset[int] | None]:
    """For each step, the registers whose definedness its results take over; None where reads are reported."""
    # Shared memory that holds undefined values is as a register that is never defined.
    memory = frozenset({len(program.register_ids)}) if program.carries_undefined else None
    return [
        frozenset(_checked(program, s, s.reads)) if s.kind == _ALU and s.writes
        else memory if undefined_memory.loads(s) else _shuffled(program, s) or None
        for s in program.steps
    ]  # fmt: skip


def _checked(program: Program, step: Step, registers: frozenset[int]) -> tuple[int, ...]:
    """Those of the ``registers`` that ``step`` reads whose values must have been written."""
    if step.instruction.opcode.startswith("st.param"):
        # Compilers pass objects without members as a byte of any value, which the callee does not read.
        return ()
    if _packs(step.instruction):
        # LLVM packs `undef`, a register that is never written, into the unused half of a pair.
        return tuple(r for r in registers if r in program.written)
    return tuple(registers)


def _shuffled(program: Program, step: Step) -> frozenset[int]:
    """The register whose values a `shfl.sync` exchanges."""
    if not step.instruction.opcode.startswith("shfl.sync"):
        return frozenset()
    given = step.instruction.operands[1]
    return frozenset({program.register_ids[program.register(given)]} if isinstance(given, Register) else ())


def guarded(step: Step) -> Run:
    """An ALU step with its predicate folded in."""
    if step.guard < 0:
        return step.run
    run, guard, negated, check = step.run, step.guard, step.negated, step.check_guard

    def under_guard(w: Any, m: Any) -> None:
        p = w.v[9][guard]
        if negated:
            p = ~p
        run(w, p if m is None else p & m)
        if check is not None:
            check(w, m)

    return under_guard


def instrument(program: Program, step: Step) -> None:
    """Wrap a step with the register checks that static analysis could not settle."""
    replaced = [r for r in step.writes if r in program.loaded_registers]
    if replaced and step.kind == _ALU:
        inner, step.run = step.run, _forgetting(step.run, replaced)
        program.moves.append((step, step.run, inner))
        step.checks = Checks(step.run, forgets=tuple(replaced))
    instruction, names, carries = step.instruction, program.register_names, program.carries_undefined
    passes = step.kind == _ALU and bool(step.writes)
    writes = tuple(step.writes & program.tracked)
    guard = program.register_ids.get(("p", step.guard), -1)
    if guard in step.maybe_undefined:
        if passes:
            step.check_guard = _undefining((guard,), writes, instruction, names)
        else:
            step.check_guard = _undefined_check((guard,), instruction, names)
    reads = _checked(program, step, (step.maybe_undefined & step.reads) - {guard})
    if instruction.opcode.startswith("shfl.sync"):
        # The instruction itself passes on whether the values that lanes get are defined.
        (own,) = _shuffled(program, step) or (-1,)
        if own in reads:
            reads, step.plain = tuple(r for r in reads if r != own), None
            writes = ()
    touches = tuple((step.reads | step.writes) & program.wgmma_registers) if not step.async_registers else ()
    if passes and not writes:
        # No step that matters reads the result where it may be undefined.
        reads = ()
    if not (reads or writes or touches):
        return
    stored = undefined_memory.data_registers(program, step) if carries and undefined_memory.stores(step) else ()
    kept = [r for r in reads if r in stored]
    if passes:
        run = _passing(program, step, reads, writes)
    elif carries and undefined_memory.loads(step):
        step.run = _reporting(step, reads, (), names)
        run = undefined_memory.loading(program, step, _define) if writes else step.run
    elif kept:
        reads = tuple(r for r in reads if r not in stored)
        step.run = _reporting(step, reads, writes, names)
        run = undefined_memory.storing(program, step, lambda w, r: _origin(w, (r,), instruction, names))
    else:
        run = _reporting(step, reads, writes, names)
    step.run = _touching(run, step, touches, names) if touches else run
    forgets = () if step.checks is None else step.checks.forgets
    step.checks = Checks(step.run, (*reads, *kept), writes, touches, forgets)


def _touching(inner: Run, step: Step, touches: tuple[int, ...], names: dict[int, str]) -> Run:
    visible, instruction, written = step.kind != _ALU, step.instruction, frozenset(step.writes)

    def checked(x: Any, m: Any) -> Any:
        _touch(x.w if visible else x, m, touches, written, instruction, names)
        return inner(x, m)

    return checked


def _reporting(step: Step, reads: tuple[int, ...], writes: tuple[int, ...], names: dict[int, str]) -> Run:
    """A step that must not read undefined values, and what it writes is defined."""
    inner, visible = step.run, step.kind != _ALU
    check, everywhere = _undefined_check(reads, step.instruction, names), dict.fromkeys(writes, ALL_LANES)

    def checked(x: Any, m: Any) -> Any:
        w = x.w if visible else x
        if reads:
            check(w, m)
        result = inner(x, m)
        if m is None and w.full:
            w.defined.update(everywhere)
        else:
            _define(w, writes, ALL_LANES if m is None else m, ALL_LANES)
        return result

    return checked


def _passing(program: Program, step: Step, reads: tuple[int, ...], writes: tuple[int, ...]) -> Run:
    """An ALU step whose results are defined where its operands are."""
    inner, everywhere, names = step.run, dict.fromkeys(writes, ALL_LANES), program.register_names
    defined, instruction = _definedness(program, step, reads), step.instruction

    def passing(w: Any, m: Any) -> None:
        known = w.defined
        if m is None and w.full and all(known.get(r) is ALL_LANES for r in reads):
            inner(w, m)
            known.update(everywhere)
            return
        good = defined(w)
        origin = None if good is ALL_LANES else _origin(w, reads, instruction, names)
        inner(w, m)
        _define(w, writes, ALL_LANES if m is None else m, good, origin)

    return passing


def _definedness(program: Program, step: Step, reads: tuple[int, ...]) -> Defined:
    """Which lanes of the results of ``step`` are defined, of ``reads`` that may not be.

    A selection needs the value that it selects, `and` and `or` of predicates no operand beside one that decides.
    """
    if step.instruction.parts[0] == "selp":
        return _selected(program, reads, *step.instruction.operands[1:])
    return _decided(program, step, reads) or (lambda w: _all_defined(w, reads))


def _all_defined(w: Any, reads: tuple[int, ...]) -> Any:
    found: Any = ALL_LANES
    for r in reads:
        known = w.defined.get(r)
        if known is None:
            return ~ALL_LANES
        if known is not ALL_LANES:
            found = found & known
    return found


def _of(program: Program, operand: Operand, reads: tuple[int, ...]) -> tuple[int, ...]:
    """The register of an operand, if it is one of ``reads``."""
    inner = operand.operand if isinstance(operand, Not) else operand
    number = program.register_ids[program.register(inner)] if isinstance(inner, Register) else -1
    return (number,) if number in reads else ()


def _truth(program: Program, operand: Operand) -> Callable[[Any], Any] | None:
    """The values of a predicate operand."""
    negated = isinstance(operand, Not)
    inner = operand.operand if isinstance(operand, Not) else operand
    if not isinstance(inner, Register):
        return None
    row = program.register(inner)[1]
    return lambda w: w.v[9][row] ^ negated


def _selected(program: Program, reads: tuple[int, ...], a: Operand, b: Operand, c: Operand) -> Defined:
    first, second, condition = (_of(program, x, reads) for x in (a, b, c))
    truth = _truth(program, c)

    def defined(w: Any) -> Any:
        if truth is None:
            return _all_defined(w, first + second)
        chosen = np.where(truth(w), _all_defined(w, first), _all_defined(w, second))
        return chosen & _all_defined(w, condition)

    return defined


def _decided(program: Program, step: Step, reads: tuple[int, ...]) -> Defined | None:
    """`and` and `or` of predicates, alone or after a comparison; None for other instructions."""
    parts, operands = step.instruction.parts, step.instruction.operands
    if parts[0] in ("and", "or") and parts[-1] == "pred":
        operation, deciding = parts[0], operands[1:]
    elif parts[0] == "setp" and {"and", "or"} & {*parts} and isinstance(operands[0], Register):
        operation, deciding = ("and" if "and" in parts else "or"), operands[3:]
    else:
        return None
    known = [(truth, _of(program, x, reads)) for x in deciding if (truth := _truth(program, x)) is not None]

    def defined(w: Any) -> Any:
        found = _all_defined(w, reads)
        for truth, register in known:
            value = truth(w)
            found = found | _all_defined(w, register) & (value if operation == "or" else ~value)
        return found

    return defined


def _undefining(
    guard: tuple[int], writes: tuple[int, ...], instruction: Instruction, names: dict[int, str]
) -> Callable[[Any, Any], None]:
    """What follows an ALU step under a predicate that may be undefined: whether it has run is open there."""

    def undefine(w: Any, m: Any) -> None:
        good = _all_defined(w, guard)
        if good is not ALL_LANES and not good.all():
            active = ~good if m is None else m & ~good
            _define(w, writes, active, good, _origin(w, guard, instruction, names))

    return undefine


def _origin(w: Any, reads: tuple[int, ...], instruction: Instruction, names: dict[int, str]) -> Any:
    """The instruction that has read a register without a value, and the register."""
    for r in reads:
        if w.defined.get(r) is not ALL_LANES:
            return w.undefined.get(r) or (instruction, names[r])
    return None


def _define(w: Any, writes: tuple[int, ...], active: Any, good: Any, origin: Any = None) -> None:
    """The ``active`` lanes of ``writes`` have been written; they are defined in those of ``good``."""
    for r in writes:
        known = w.defined.get(r)
        if good is ALL_LANES:
            if known is not ALL_LANES:
                w.defined[r] = active.copy() if known is None else known | active
            continue
        w.record.sure = 0
        before = ~ALL_LANES if known is None else known
        now = (before & ~active) | (active & good)
        w.defined[r] = ALL_LANES if now.all() else now
        if (active & ~good).any():
            w.undefined[r] = origin


def _forgetting(run: Callable[..., Any], registers: list[int]) -> Callable[..., Any]:
    """A move to ``registers``, whose values no longer are those that a load has read."""

    def moved(w: Any, m: Any) -> None:
        run(w, m)
        provenance.forget(w, registers, m)

    return moved


def _packs(instruction: Instruction) -> bool:
    """Whether ``instruction`` puts several registers into one: a `mov` of a vector, a `cvt` to pairs."""
    name = instruction.parts[0]
    return (name == "mov" and isinstance(instruction.operands[-1], Vector)) or (
        name == "cvt" and any(part.endswith("x2") for part in instruction.parts) and len(instruction.operands) == 3
    )


def _undefined_check(
    reads: tuple[int, ...], instruction: Instruction, names: dict[int, str]
) -> Callable[[Any, Any], None]:
    """A function that reports those of ``reads`` that are not defined in an active lane."""

    def check(w: Any, m: Any) -> None:
        active = ALL_LANES if m is None else m
        for r in reads:
            known = w.defined.get(r)
            if known is ALL_LANES:
                continue
            bad = active if known is None else active & ~known
            if bad.any():
                report_undefined(w, instruction, r, names[r], np.flatnonzero(bad))

    return check


def shuffled(w: Any, given: int, result: int, instruction: Instruction, source: Any, written: Any) -> None:
    """The lanes ``written`` of ``result`` have got the values of ``given`` in the lanes ``source``."""
    if result not in w.cta.machine.program.tracked:
        return
    known = w.defined.get(given)
    good = ALL_LANES if known is ALL_LANES else np.zeros(32, bool) if known is None else known[source]
    names = w.cta.machine.program.register_names
    origin = None if good is ALL_LANES else _origin(w, (given,), instruction, names)
    _define(w, (result,), ALL_LANES if written is None else written, good, origin)


def report_undefined(w: Any, instruction: Instruction, register: int, name: str, lanes: Any) -> None:
    """Report a read of an undefined register, where it was read first."""
    first, named = w.undefined.get(register, (instruction, name))
    notes: tuple[str, ...] = ()
    if first is not instruction:
        notes = (f"the undefined value reaches `{instruction.opcode}` at PTX line {instruction.line} in `{name}`",)
    w.report(UninitialisedRegister, first, lanes=lanes, register=named, notes=notes)


def _touch(w: Any, m: Any, touches: Any, written: Any, instruction: Instruction, names: Any) -> None:
    """A plain instruction touches registers that wgmma uses: they must not be in flight."""
    if w.record.in_flight:
        in_flight = w.in_flight
        for r in touches:
            issue = in_flight.get(r)
            if issue is not None:
                how = "written" if r in written else "read"
                if how == "read" and issue.reads_only(r):
                    continue
                w.report(
                    RegisterInFlight,
                    instruction,
                    register=names[r],
                    how=how,
                    use="read" if issue.reads_only(r) else "write",
                    other=w.place(issue.instruction),
                )
    w.record.touched = 1
    for r in touches:
        w.touched[r] = instruction
