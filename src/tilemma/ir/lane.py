"""The lane IR: one thread's program.

Typed virtual registers (mutable, as PTX's are), predicates, structured control, source positions.  An
instruction is a mnemonic with operands; a register that holds the same value in every lane of a warp is marked
``uniform``.  PTX is its printing: `tilemma.targets.ptx`.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from tilemma.errors import Span
from tilemma.ir.expr import same_number
from tilemma.records import record


@record
class Reg:
    """A virtual register of PTX type ``type`` (pred, b16, b32, b64, s32, u32, s64, u64, f16x2, f32, f64)."""

    name: str
    type: str
    uniform: bool = field(default=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.name)


@record
class Imm:
    """An immediate; floats are printed bit-exactly (0f3F800000)."""

    value: int | float
    type: str = "s32"

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Imm
            and self.type == other.type
            and (self.value is other.value or same_number(self.value, other.value))
        )


@record
class Special:
    """A special register such as %tid.x, or the address of a symbol (`shared`: the CTA's dynamic memory)."""

    name: str


@record
class Mem:
    """An address operand: [base + offset], offset in bytes."""

    base: Reg | Special
    offset: int = 0


@record
class Vec:
    """A brace-enclosed vector of registers."""

    regs: tuple[Reg | Imm, ...]


@record
class Coordinates:
    """A tensor-map operand: [map, {c0, c1, ..}]."""

    map: Reg
    coords: tuple[Reg | Imm, ...]


LaneOperand = Reg | Imm | Special | Mem | Vec | Coordinates


def registers(x: LaneOperand) -> tuple[Reg, ...]:
    """The registers in an operand."""
    if isinstance(x, Reg):
        return (x,)
    if isinstance(x, (Imm, Special)):
        return ()
    if isinstance(x, Mem):
        return (x.base,) if isinstance(x.base, Reg) else ()
    if isinstance(x, Vec):
        return tuple([r for r in x.regs if isinstance(r, Reg)])
    return (x.map, *[c for c in x.coords if isinstance(c, Reg)])


@record
class LaneOp:
    """Base of lane operations; ``syntax`` is their text, as in `tilemma.ir.tile`."""

    syntax: ClassVar[str] = ""
    span: Span | None = field(default=None, compare=False, kw_only=True, repr=False)


LaneBody = tuple[LaneOp, ...]


@record
class Instr(LaneOp):
    """``[@guard] mnemonic dst.., src..;``  ``dst`` are written, ``src`` read (an accumulator is both)."""

    syntax: ClassVar[str] = "$mnemonic $dst <- $src"

    mnemonic: str
    dst: tuple[Reg | Vec, ...] = ()
    src: tuple[LaneOperand, ...] = ()
    guard: Reg | None = None
    negate: bool = False


@record
class AtomInstr(LaneOp):
    """One instruction of the catalogue, printed by its record's ``emit``.

    ``immediates`` are the record's named extras (scale_d is a predicate register or 0/1).  ``e``: metadata
    of a sparse A; ``scales``: those of A and of B.
    """

    syntax: ClassVar[str] = "atom $atom $d <- $a, $b, $c"

    atom: str
    d: tuple[Reg, ...]
    a: tuple[Reg, ...]
    b: tuple[Reg, ...]
    c: tuple[Reg, ...] = ()
    immediates: tuple[tuple[str, int | Reg], ...] = ()
    e: tuple[Reg, ...] = ()
    scales: tuple[Reg, ...] = ()


@record
class CopyInstr(LaneOp):
    """One copying instruction of the catalogue (ldmatrix, stmatrix, cp.async), printed by its record's ``emit``.

    ``address`` is in shared memory.  ``registers`` are the fragment that ldmatrix writes and stmatrix reads;
    ``source`` is cp.async's global address, ``source_size`` how many bytes of it are read (the rest is zero).
    """

    syntax: ClassVar[str] = "copy $atom $address"

    atom: str
    address: Mem
    registers: tuple[Reg, ...] = ()
    source: Mem | None = None
    source_size: Reg | Imm | None = None
    guard: Reg | None = None


@record
class Comment(LaneOp):
    """A remark for the reader of the text."""

    syntax: ClassVar[str] = "# $text"

    text: str


@record
class LaneGuarded(LaneOp):
    """Asserts that no lane reads ``registers`` before it has written them, on any path that is executed."""

    syntax: ClassVar[str] = "guarded $registers"

    registers: tuple[Reg, ...]


@record
class LanePrint(LaneOp):
    """C's printf by this thread: ``format`` with one conversion for each of ``args``.

    Arguments are 32 or 64 bits wide; floats are f64.
    """

    syntax: ClassVar[str] = "printf $format $args"

    format: str
    args: tuple[Reg | Imm, ...] = ()


@record
class LaneFor(LaneOp):
    """``for (var = start; var < stop; var += step)``; ``var`` is s32.  ``unroll`` 1 forbids unrolling.

    ``entered``: the trip count is at least 1, so that nothing is tested before the first iteration.  ``past``: var
    + step may leave s32 after the last iteration; "unsigned": it is a u32 then, and ``start`` is not negative;
    "wraps": neither.
    """

    syntax: ClassVar[str] = "for $var = $start to $stop step $step $body"

    var: Reg
    start: Reg | Imm
    stop: Reg | Imm
    step: Reg | Imm
    body: LaneBody
    unroll: int | None = None
    entered: bool = False
    past: str = ""


@record
class LaneIf(LaneOp):
    """Structured branch; ``uniform``: the condition is the same in every lane of a warp."""

    syntax: ClassVar[str] = "if $cond $then else $otherwise"

    cond: Reg
    then: LaneBody
    otherwise: LaneBody = ()
    uniform: bool = False


@record
class LaneWhile(LaneOp):
    """``setup`` computes ``cond`` before each iteration."""

    syntax: ClassVar[str] = "while $setup test $cond $body"

    setup: LaneBody
    cond: Reg
    body: LaneBody


@record
class LaneUntil(LaneOp):
    """``body`` again and again until ``cond``, which it computes, holds."""

    syntax: ClassVar[str] = "repeat $body until $cond"

    body: LaneBody
    cond: Reg


@record
class LaneBreak(LaneOp):
    """Leaves the innermost loop."""

    syntax: ClassVar[str] = "break"


@record
class LaneContinue(LaneOp):
    """Continues with the innermost loop's next iteration."""

    syntax: ClassVar[str] = "continue"


@record
class LaneExit(LaneOp):
    """The thread ends."""

    syntax: ClassVar[str] = "exit"


@record
class LaneParam:
    """A kernel parameter: ``type`` is a PTX type, or "tensormap" (128 bytes by value)."""

    name: str
    type: str


@record
class LaneLocal:
    """``bytes`` of the lane's own memory, addressed as Special(name)."""

    name: str
    bytes: int
    alignment: int = 16


@record
class LaneKernel:
    """An entry point.

    ``threads`` of a CTA; ``shared`` bytes of dynamic shared memory, aligned to ``shared_alignment``;
    ``min_blocks``, ``max_registers`` and ``cluster`` become directives.  ``option``: that of ptxas
    which keeps the order of the code.
    """

    name: str
    arch: str
    params: tuple[LaneParam, ...]
    threads: int
    shared: int
    body: LaneBody
    shared_alignment: int = 1024
    min_blocks: int | None = None
    max_registers: int | None = None
    cluster: tuple[int, int, int] | None = None
    locals: tuple[LaneLocal, ...] = ()
    option: str = ""
