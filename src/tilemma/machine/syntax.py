"""The syntax tree of PTX: frozen records, each with its line.

Names follow the PTX ISA, chapters 4 (syntax) and 5 (state spaces and types).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tilemma.machine.lexer import PtxSyntax

TYPE_BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4,
    "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8,
    "b128": 16, "pred": 1, "e4m3": 1, "e5m2": 1, "e4m3x2": 2, "e5m2x2": 2, "u16x2": 4, "s16x2": 4, "f32x2": 8,
    "e2m1x2": 1, "e2m3x2": 2, "e3m2x2": 2,
}  # fmt: skip
# The types that a register can have; the others are types of instructions only.
REGISTER_TYPES = (
    "b8", "u8", "s8", "b16", "u16", "s16", "f16", "b32", "u32", "s32", "f32", "f16x2", "b64", "u64", "s64", "f64",
    "b128", "pred",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register; ``type`` is its declared type (``b32``, ``pred``)."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name.split("@")[0]


@dataclass(frozen=True, slots=True)
class Special:
    """A predefined register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant.  ``kind`` is ``int``, ``f32`` or ``f64``; a float's ``value`` is its bit pattern."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A label or the name of a variable, parameter or barrier."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``a|b``: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """``!p``."""

    operand: Register


@dataclass(frozen=True, slots=True)
class Selected:
    """``a.b0``, ``a.h10``: bytes or halves of a register, in video instructions."""

    register: Register
    selector: str


@dataclass(frozen=True, slots=True)
class Negative:
    """``-c``: a negated source, in video instructions."""

    operand: Register | Selected


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: no destination."""


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]`` or, for tensor copies, ``[base, {c0, c1, ...}]``."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] | None = None


Operand: TypeAlias = (
    Register | Special | Immediate | Symbol | Vector | Pair | Not | Selected | Negative | Sink | Address
)


@dataclass(frozen=True, slots=True)
class Location:
    """The position of an instruction in the user's source (`.loc`)."""

    file: str
    line: int
    column: int
    # The function inlined here, and the position of its call.
    function: str = ""
    inlined_at: Location | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """``@p`` or ``@!p``."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.  ``opcode`` is the text before the operands: ``ld.global.v4.f32``."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    column: int
    text: str
    location: Location | None
    # Its range in the module's text, guard and semicolon included.
    start: int = 0
    end: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode at its dots; ``::`` stays inside a part."""
        return _parts(self.opcode)


@cache
def _parts(opcode: str) -> tuple[str, ...]:
    parts = opcode.split(".")
    # `max.s32.relu` in the headers of CUDA, which ptxas takes, is the ISA's `max.relu.s32`.
    if parts[0] in ("min", "max") and parts[-1] == "relu" and len(parts) > 2:
        parts[-2:] = parts[-1], parts[-2]
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in a state space; ``size`` in bytes (0 for an extern array of unknown size).

    ``relocations`` are the addresses among its initial bytes: (offset, name, addend, generic, width).
    """

    name: str
    space: str
    alignment: int
    size: int
    line: int
    extern: bool = False
    initial: bytes = b""
    relocations: tuple[tuple[int, str, int, bool, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an entry or a function: ``offset`` and ``size`` in the parameter space, in bytes.

    ``register`` is set where a function takes it in a register.
    """

    name: str
    type: str
    alignment: int
    size: int
    offset: int
    line: int
    register: Register | None = None

    @property
    def count(self) -> int:
        """Elements of an array; 1 for a scalar."""
        return self.size // TYPE_BYTES[self.type]


@dataclass(frozen=True)
class Body:
    """The body of an entry or a function: instructions in order, and the index of each label.

    ``tables`` are the lists of labels or functions (`.branchtargets`, `.calltargets`), ``prototypes`` the sizes of
    the results and parameters that an indirect call passes (`.callprototype`).
    """

    instructions: tuple[Instruction, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    registers: tuple[Register, ...] = ()
    variables: tuple[Variable, ...] = ()
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One kernel.  ``refused`` is the reason why it cannot be launched, if its text has an unsupported
    construct."""

    name: str
    parameters: tuple[Parameter, ...]
    directives: Mapping[str, tuple[int, ...]]
    body: Body
    line: int
    refused: PtxSyntax | None = None

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return self.body.instructions

    @property
    def labels(self) -> Mapping[str, int]:
        return self.body.labels

    @property
    def registers(self) -> tuple[Register, ...]:
        return self.body.registers

    @property
    def variables(self) -> tuple[Variable, ...]:
        return self.body.variables


@dataclass(frozen=True)
class Function:
    """A `.func`; without a ``body`` it is external."""

    name: str
    results: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]
    body: Body | None
    line: int
    refused: PtxSyntax | None = None

    @property
    def signature(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of results and parameters, as a `.callprototype` gives them."""
        return tuple(p.size for p in self.results), tuple(p.size for p in self.parameters)


@dataclass(frozen=True)
class Module:
    """A PTX file."""

    version: tuple[int, int]
    target: str
    entries: Mapping[str, Entry]
    variables: tuple[Variable, ...]
    functions: Mapping[str, Function] = field(default_factory=dict)
    text: str = field(repr=False, default="")
    name: str = "<ptx>"
