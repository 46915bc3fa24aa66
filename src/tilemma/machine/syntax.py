"""What the parser produces: PTX as frozen records, each knowing its line.

Names follow the PTX ISA, chapters 4 (syntax) and 5 (state spaces and types).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


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
class Sink:
    """``_``: no destination."""


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]`` or, for tensor copies, ``[base, {c0, c1, ...}]``."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] | None = None


Operand: TypeAlias = Register | Special | Immediate | Symbol | Vector | Pair | Not | Sink | Address


@dataclass(frozen=True, slots=True)
class Location:
    """Where an instruction comes from in the user's source (`.loc`)."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Guard:
    """``@p`` or ``@!p``."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.  ``opcode`` is everything before the operands: ``ld.global.v4.f32``."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    column: int
    text: str
    location: Location | None
    # Where it stands in the module's text, guard and semicolon included.
    start: int = 0
    end: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode at its dots; ``::`` stays inside a part."""
        return tuple(self.opcode.split("."))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in a state space; ``size`` in bytes (0 for an extern array of unknown size)."""

    name: str
    space: str
    alignment: int
    size: int
    line: int
    extern: bool = False
    initial: bytes = b""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an entry: ``offset`` and ``size`` in the parameter space, in bytes."""

    name: str
    type: str
    alignment: int
    size: int
    offset: int
    line: int


@dataclass(frozen=True)
class Entry:
    """One kernel: its instructions in order, and the index that each label stands for."""

    name: str
    parameters: tuple[Parameter, ...]
    directives: dict[str, tuple[int, ...]]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    registers: tuple[Register, ...]
    variables: tuple[Variable, ...]
    branch_targets: dict[str, tuple[str, ...]]
    line: int


@dataclass(frozen=True)
class Module:
    """A PTX file."""

    version: tuple[int, int]
    target: str
    entries: dict[str, Entry]
    variables: tuple[Variable, ...]
    files: dict[int, str]
    text: str = field(repr=False, default="")
    name: str = "<ptx>"
