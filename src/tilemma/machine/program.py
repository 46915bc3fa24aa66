"""From instruction records to steps: operands resolved to register rows, opcodes to Python closures.

A program is decoded once.  Runs of steps that touch nothing but registers are grouped into segments; the
others (memory, synchronisation, control) are steps of their own, between which the scheduler may switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilemma.errors import TilemmaError
from tilemma.machine import dataflow, declared, register_checks, undefined_memory
from tilemma.machine.catalogue import NoSuchForm
from tilemma.machine.convergence import WARP
from tilemma.machine.decode import Decoder, find_decoder
from tilemma.machine.element_types import float_registers
from tilemma.machine.inlining import inlined
from tilemma.machine.memory import word_views
from tilemma.machine.native import encode, frames, library
from tilemma.machine.native.blocks import PlainAccess
from tilemma.machine.problems import BadOperand, UnsupportedInstruction
from tilemma.machine.provenance import Layouts
from tilemma.machine.register_checks import Checks
from tilemma.machine.serialised import serialised
from tilemma.machine.state import CLASS_DTYPE
from tilemma.machine.syntax import TYPE_BYTES, Entry, Instruction, Module, Register, Special, Variable

ALU, VISIBLE, BRANCH, EXIT = range(4)
# Runs of a program in which the origins of registers are followed.
_FOLLOWED = 2


@dataclass(slots=True)
class Step:
    """One decoded instruction.

    ``run`` is called with (warp, mask) for ALU steps and (frame, mask) for visible ones; a mask of None means
    all 32 lanes.  ``guard`` is the predicate's row, -1 without one.
    """

    index: int
    instruction: Instruction
    kind: int
    run: Callable[..., Any]
    guard: int = -1
    negated: bool = False
    target: int = -1
    targets: tuple[int, ...] = ()
    # The lanes that must execute it together: see ``convergence``.
    membership: int = -2
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    conditional_reads: tuple[tuple[int, str], ...] = ()
    maybe_undefined: frozenset[int] = frozenset()
    async_registers: frozenset[int] = frozenset()
    # Reports an undefined predicate, or makes results of an ALU step undefined; None where it is always defined.
    check_guard: Callable[[Any, Any], None] | None = None
    # The operation of the native library that stands for ``encoded``, the step without checks around it.
    code: tuple[int, ...] | None = None
    encoded: Callable[..., Any] | None = None
    # An access that the native library makes within a frame; None for other steps.
    plain: PlainAccess | None = None
    # The number of a barrier of all threads of the CTA, the row of the member mask of one of a warp; else -1.
    barrier: int = -1
    # The checks around ``encoded``, where there are some.
    checks: Checks | None = None


@dataclass(slots=True)
class Segment:
    """``count`` ALU steps in a row, and the index of the step after them."""

    runs: list[Callable[..., Any]]
    next: int
    count: int
    # One closure a step; the operations of the native library, if it has all of them.
    each: list[Callable[..., Any]] = field(default_factory=list)
    operations: encode.Operations | None = None
    # The checks around the operations.
    around: encode.Around | None = None


@dataclass(slots=True)
class Batch:
    """Matrix instructions in a row that are executed at once by whole warps."""

    run: Callable[[Any], None]
    count: int
    # The products as the native library computes them.
    product: Any = None


@dataclass
class Program:
    """An entry ready to run on CTAs of any number of warps."""

    module: Module
    entry: Entry
    arch: str
    rows: dict[str, int] = field(default_factory=lambda: {"16": 0, "32": 0, "64": 0, "p": 0})
    register_rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    register_ids: dict[tuple[str, int], int] = field(default_factory=dict)
    register_names: dict[int, str] = field(default_factory=dict)
    constants: dict[tuple[str, int], int] = field(default_factory=dict)
    special_rows: dict[tuple[str, int], str] = field(default_factory=dict)
    special_index: dict[tuple[str, str], int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    segments: list[Segment | None] = field(default_factory=list)
    # By the first step's index: matrix instructions in a row that do not depend on each other.
    batches: dict[int, Batch] = field(default_factory=dict)
    reconverge: list[int] = field(default_factory=list)
    leaders: set[int] = field(default_factory=set)
    tracked: frozenset[int] = frozenset()
    # Whether undefined values are followed through shared memory.
    carries_undefined: bool = False
    # Whether bytes of shared memory that nothing has written are such values, rather than errors at their load.
    unwritten: bool = False
    # The first steps of the blocks before a step that all lanes of a warp execute together; whether lanes go on
    # elsewhere without those of their warp that are on another side of a branch.
    together: set[int] = field(default_factory=set)
    apart: bool = False
    # Registers that some instruction writes.
    written: frozenset[int] = frozenset()
    wgmma_registers: frozenset[int] = frozenset()
    # Registers that ldmatrix alone writes; with matrix instructions, those that only global loads and moves write.
    matrix_registers: frozenset[int] = frozenset()
    loaded_registers: frozenset[int] = frozenset()
    # Those of the last whose origin is recorded; moves to them: step, its wrapper and what that wraps.
    followed: frozenset[int] = frozenset()
    moves: list[tuple[Step, Callable[..., Any], Callable[..., Any]]] = field(default_factory=list)
    # By the lines of a load and a store: whether the loaded value is used by that store alone (`dead_values`).
    dead_loads: dict[tuple[int, int], bool] = field(default_factory=dict)
    # Tiles in which its matrix instructions found nothing wrong.
    layouts: Layouts = field(default_factory=Layouts)
    # Runs so far, and what `count_run` has replaced.
    runs: int = 0
    before: tuple[Any, ...] | None = None
    shared_offsets: dict[str, int] = field(default_factory=dict)
    static_shared: int = 0
    shared_base: int = 0
    global_symbols: dict[str, Variable] = field(default_factory=dict)
    global_addresses: dict[str, int] = field(default_factory=dict)
    local_offsets: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0
    parameter_bytes: Any = None
    parameter_views: dict[int, Any] = field(default_factory=dict)
    communicates: bool = False
    # Whether it reads no clock, once that has been asked.
    timeless: bool | None = None
    # Whether the segments call the native library; the steps as it reads them.
    native: bool = False
    table: frames.Table | None = None
    # The lines of the steps that runs have executed: by what `Machine.covered` says of these.
    executed: dict[bytes, frozenset[int]] = field(default_factory=dict)
    # Register files of one warp at its start, by class; made when the first CTA starts.
    initial: dict[str, Any] = field(default_factory=dict)
    # For each register, the floating-point types that arithmetic uses it with.
    float_registers: dict[str, set[str]] = field(default_factory=dict)

    def count_run(self) -> None:
        """Layout errors are systematic: after the first runs, the origins of registers are not followed."""
        self.runs += 1
        if self.runs == _FOLLOWED + 1 and self.followed:
            changed = [(step, moved) for step, moved, _ in self.moves if step.run is moved]
            self.before = self.followed, self.segments, self.batches, self.table, self.native, changed
            self.followed = frozenset()
            for step, moved, inner in self.moves:
                if step.run is moved:
                    step.run = inner
            build_segments(self)

    def restart(self) -> None:
        """Be as before the first run."""
        self.runs = 0
        if self.before is not None:
            self.followed, self.segments, self.batches, self.table, self.native, changed = self.before
            self.before = None
            for step, moved in changed:
                step.run = moved

    # -- registers
    def new_row(self, cls: str) -> int:
        row = self.rows[cls]
        self.rows[cls] = row + 1
        return row

    def register(self, register: Register) -> tuple[str, int]:
        """Class and row of a declared register."""
        found = self.register_rows.get(register.name)
        if found is None:
            size = TYPE_BYTES[register.type]
            cls = "p" if register.type == "pred" else {1: "16", 2: "16", 4: "32", 8: "64", 16: "128"}[size]
            if cls == "128":
                # Two rows of 64 bits, the lower half first.
                found = cls, self.new_row("64")
                self.new_row("64")
            else:
                found = cls, self.new_row(cls)
            self.register_rows[register.name] = found
            number = self.register_ids[found] = len(self.register_ids)
            self.register_names[number] = str(register)
        return found

    def constant(self, cls: str, bits: int) -> int:
        """Row of class ``cls`` that holds ``bits`` in every lane."""
        width = {"16": 16, "32": 32, "64": 64, "p": 1}[cls]
        bits &= (1 << width) - 1
        row = self.constants.get((cls, bits))
        if row is None:
            row = self.constants[cls, bits] = self.new_row(cls)
        return row

    def special(self, cls: str, special: Special) -> int:
        """Row that holds a predefined register."""
        row = self.special_index.get((cls, special.name))
        if row is None:
            row = self.special_index[cls, special.name] = self.new_row(cls)
            self.special_rows[cls, row] = special.name
        return row

    def new_registers(self, warps: int) -> dict[str, Any]:
        """Register files of one CTA: for each class [warps, rows, 32]."""
        if not self.initial:
            for cls, dtype in CLASS_DTYPE.items():
                file: Any = np.zeros((1, max(1, self.rows[cls]), 32), dtype)
                # Poison: an undefined register does not read as a plausible zero.
                if cls != "p":
                    file[:] = 0xDEADBEEFDEADBEEF & ((1 << 8 * file.itemsize) - 1)
                self.initial[cls] = file
            for (cls, bits), row in self.constants.items():
                self.initial[cls][0, row] = bits
        return {cls: np.repeat(file, warps, axis=0) for cls, file in self.initial.items()}


def shared_layout(program: Program) -> None:
    """Offsets of the shared variables: static ones in order, then the extern (dynamic) ones, which overlap."""
    variables = [v for v in (*program.module.variables, *program.entry.variables) if v.space == "shared"]
    offset = program.shared_base
    for v in (v for v in variables if not v.extern):
        offset = -(-offset // v.alignment) * v.alignment
        program.shared_offsets[v.name] = offset
        offset += v.size
    dynamic = max([16, *(v.alignment for v in variables if v.extern)])
    if any(v.extern for v in variables):
        offset = -(-offset // dynamic) * dynamic
    for v in (v for v in variables if v.extern):
        program.shared_offsets[v.name] = offset
    program.static_shared = offset - program.shared_base


# What a decoder raises that finds too few operands, or operands of another kind.
_MALFORMED = (IndexError, KeyError, TypeError, AttributeError, ValueError, OverflowError)
_OTHER_OPERANDS = "its operands are not those it takes"


def decode_program(
    module: Module, entry: Entry, arch: str, *, unwritten: bool = False, apart: bool = False
) -> Program:
    """Decode ``entry`` for ``arch``; refuses unsupported instructions by name and line.  ``unwritten`` and
    ``apart``: see `Program`."""
    entry = serialised(inlined(module, entry))
    program = Program(module, entry, arch, unwritten=unwritten, apart=apart)
    # sm_90 reserves the first KB of a CTA's shared memory for the system.
    program.shared_base = 1024 if int("".join(c for c in arch if c.isdigit()) or 0) >= 90 else 0
    shared_layout(program)
    for v in (*module.variables, *entry.variables):
        if v.space in ("global", "const"):
            program.global_symbols[v.name] = v
        elif v.space in ("local", "param"):
            offset = -(-program.local_bytes // v.alignment) * v.alignment
            program.local_offsets[v.name] = offset
            program.local_bytes = offset + v.size
    program.float_registers = float_registers(entry.instructions)
    size = max((p.offset + p.size for p in entry.parameters), default=0)
    program.parameter_bytes = np.zeros(-(-size // 16) * 16 + 16, np.uint8)
    program.parameter_views = word_views(program.parameter_bytes)
    native = library.enabled()
    for index, instruction in enumerate(entry.instructions):
        try:
            decoder = _decoded(program, instruction)
            step = decoder.step(index)
            if native:
                step.code, step.encoded = encode.code_of(decoder), step.run
            program.steps.append(step)
        except TilemmaError:
            raise
        except _MALFORMED as error:
            span = Decoder(program, instruction).span
            raise BadOperand(span, opcode=instruction.opcode, what=_OTHER_OPERANDS) from error
    _finish(program)
    return program


def rule_error(module: Module, arch: str) -> BadOperand | None:
    """What the machine's own rule finds wrong with the operands of the first statement of ``module``; None where
    it executes the statement, and where it has no rule for it."""
    (entry,) = module.entries.values()
    decoder = Decoder(Program(module, entry, arch), entry.instructions[0])
    try:
        find_decoder(decoder)(decoder)
    except BadOperand as error:
        return error
    except TilemmaError:
        return None
    except _MALFORMED:
        return BadOperand(decoder.span, opcode=entry.instructions[0].opcode, what=_OTHER_OPERANDS)
    return None


def _decoded(program: Program, instruction: Instruction) -> Decoder:
    """The decoder of ``instruction`` after its work; a declared one is executed as declared where the machine has
    no rule for it."""
    decoder = Decoder(program, instruction)
    try:
        find_decoder(decoder)(decoder)
    except (UnsupportedInstruction, NoSuchForm):
        known = declared.find(instruction.opcode)
        if known is None:
            raise
        from tilemma.machine.exec.declared import decode

        decoder = Decoder(program, instruction)
        decode(decoder, known)
    return decoder


def _finish(program: Program) -> None:
    steps = program.steps
    graph = dataflow.Graph(steps)
    program.reconverge = graph.reconvergence()
    program.together = graph.reaching({s.index for s in steps if s.membership == WARP})
    if program.apart:
        program.reconverge = [meet if meet in program.together else -1 for meet in program.reconverge]
    program.written = frozenset(r for s in steps for r in s.writes)
    undefined = graph.maybe_undefined(register_checks.passed_on(program))
    if undefined_memory.carried(program, undefined):
        program.carries_undefined = True
        undefined = graph.maybe_undefined(register_checks.passed_on(program))
    for step in steps:
        step.maybe_undefined = undefined[step.index]
    program.tracked = frozenset().union(*undefined) if undefined else frozenset()
    program.wgmma_registers = frozenset().union(*(s.async_registers for s in steps)) if steps else frozenset()
    loaded = {r for s in steps if s.instruction.opcode.startswith("ldmatrix") for r in s.writes}
    others = {r for s in steps if not s.instruction.opcode.startswith("ldmatrix") for r in s.writes}
    program.matrix_registers = frozenset(loaded - others)
    if any(s.instruction.parts[0] in ("ldmatrix", "wgmma") for s in steps):
        globals_ = {r for s in steps if s.instruction.opcode.startswith("ld.global") for r in s.writes}
        rest = {r for s in steps if not s.instruction.opcode.startswith(("ld.global", "mov.")) for r in s.writes}
        program.loaded_registers = program.followed = frozenset(globals_ - rest)
    for step in steps:
        register_checks.instrument(program, step)
    program.leaders = graph.leaders
    build_segments(program)


def build_segments(program: Program) -> None:
    """Group the ALU steps; to be called again where steps have been changed."""
    steps, leaders = program.steps, program.leaders
    program.segments = [None] * (len(steps) + 1)
    program.batches = matrix_batches(program)
    program.native = library.loaded() is not None
    for start in range(len(steps)):
        # No other step of a sequence is ever the first that a frame executes.
        if steps[start].kind != ALU or not (start in leaders or start == 0 or steps[start - 1].kind != ALU):
            continue
        runs, at = [], start
        while at < len(steps) and steps[at].kind == ALU and (at == start or at not in leaders):
            runs.append(register_checks.guarded(steps[at]))
            at += 1
        fused, operations, around = encode.fused(steps[start:at], runs)
        program.segments[start] = Segment(fused, at, at - start, runs, operations, around)
    program.table = frames.Table(program) if program.native else None


def matrix_batches(program: Program) -> dict[int, Batch]:
    """Runs of independent `mma.sync`, which the machine executes at once."""
    steps, found, at = program.steps, {}, 0
    while at < len(steps):
        start, multiply = at, getattr(steps[at].run, "multiply", None)
        at += 1
        if multiply is None or steps[start].guard >= 0:
            continue
        written, multiplies = set(steps[start].writes), [multiply]
        while at < len(steps) and at not in program.leaders:
            other = getattr(steps[at].run, "multiply", None)
            if other is None or steps[at].guard >= 0 or other.form != multiply.form:
                break
            if written & (steps[at].reads | steps[at].writes):
                break
            written |= steps[at].writes
            multiplies.append(other)
            at += 1
        if at - start > 1:
            run, product = multiply.together(multiplies)
            found[start] = Batch(run, at - start, product)
    return found
