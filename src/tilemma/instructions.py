"""`tilemma.instruction`: instructions that a program declares, for the compiler, the reference and the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensor_layouts import Layout

from tilemma.arithmetic.convert import store
from tilemma.arithmetic.issues import issue
from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.declaration import Declaration, WrongInstruction
from tilemma.dtypes import DType

# The target that has the most forms of instructions.
_ALL_FORMS = "sm_90a"


def instruction(
    name: str,
    shape: tuple[int, int, int],
    types: Sequence[str | DType] | Mapping[str, str | DType],
    layouts: Mapping[str, Layout | None],
    ptx: str | None = None,
    effects: Sequence[str] = (),
    meaning: Callable[[Any, Any, Any], Any] | None = None,
    archs: Sequence[str] = (),
    rank: int = 0,
) -> MmaAtom:
    """Declare a multiplying instruction, and return its record; one declared under the same name is replaced.

    ``shape``: M, N, K.  ``types``: of D, A, B (and C, as D).  ``layouts``: for A, B and C a layout of (thread,
    value) to row + rows * column, where A has M rows, B N rows, C M rows; None for an operand that is read from
    shared memory through a matrix descriptor.  A warp (32 threads) or a warpgroup (128) executes it.

    ``ptx``: the statement, with {d}, {a}, {b} and {c} where the registers are written, such as
    ``"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d}, {a}, {b}, {c};"``.  Without it the instruction exists
    on the reference executor only, where programs use it by name.  ``effects``: ``("async",)`` for one that ends
    with the wait for its group, as wgmma does.  ``meaning(a, b, c)``: the matrix D [M, N] for A [M, K], B [N, K]
    and C [M, N]; by default A x B + C.  The reference executes it for each issue of the instruction, and rounds
    the result to D's type; so does the PTX machine where it has no rule for the text.

    ``archs``: the first targets that have it, () for all.  ``rank``: above 0 the compiler prefers it to the
    instructions of the catalogue, at 0 it takes it where these do not serve, below 0 programs use it by name only.

    Raises WrongInstruction.  ``tm.atoms.withdraw(name)`` removes it again.
    """
    record = Declaration(name, shape, types, layouts).record(ptx, effects, meaning, archs, rank)
    if record.ptx and not record.asynchronous:
        _tell_machine(record)
    catalogue.declare(record)
    return record


def _tell_machine(record: MmaAtom) -> None:
    """Let the PTX machine execute ``record``.  Raises WrongInstruction where its opcode is that of another."""
    from tilemma.machine import declared, parser, program

    error = program.rule_error(parser.parse(_alone(record)), _ALL_FORMS)
    if error is not None:
        raise WrongInstruction(
            name=record.name,
            what=f"its text is no statement of PTX for these operands: {error.message}",
            wanted="operands as the PTX ISA gives them for this opcode, or an opcode that PTX does not have",
        )
    opcode, _, rest = record.ptx.partition(" ")
    places = [part.strip() for part in rest.rstrip("; ").split(",")]
    operands = {
        letter: declared.DeclaredOperand(o.dtype.name, *o.shape, o.coordinates_table, places.index(hole))
        for letter, o in record.operands.items()
        if (hole := "{" + letter.lower() + "}") in places
    }

    def function(a: Any, b: Any, c: Any) -> Any:
        t = record.d.dtype
        return store(issue(record.meaning, a, b, c, t), t, t)

    def is_current() -> bool:
        return any(x is record for x in catalogue.declared())

    other = declared.find(opcode)
    if other is not None and other.name != record.name:
        raise WrongInstruction(
            name=record.name,
            what=f"its opcode `{opcode}` is that of {other.name}, which was declared before",
            wanted=f"an opcode of its own, or `tm.atoms.withdraw({other.name!r})` first",
        )
    declared.declare(declared.Declared(record.name, opcode, operands, function, is_current))


def _alone(record: MmaAtom) -> str:
    """PTX of a kernel with the statement of ``record`` alone, on registers of its operands."""
    registers, written = [], {}
    for letter, o in record.operands.items():
        kind = {"f64": ".f64", "f32": ".f32"}.get(o.register, ".b32")
        names = [f"%{letter.lower()}{i}" for i in range(o.registers)]
        registers.append(f".reg {kind} {', '.join(names)};")
        written[letter.lower()] = "{" + ", ".join(names) + "}"
    body = " ".join([*registers, record.ptx.format(**written), "ret;"])
    return f".version 8.7\n.target {_ALL_FORMS}\n.address_size 64\n.visible .entry alone() {{ {body} }}\n"
