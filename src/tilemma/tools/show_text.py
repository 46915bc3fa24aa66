"""Maps as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilemma.atoms import CopyAtom, MmaAtom, Operand
from tilemma.atoms.atom import Atom
from tilemma.layouts import SWIZZLES, Major, canonical_atom, cute_str
from tilemma.tools.show import AXES

_WHO = {1: "one lane", 32: "32 lanes, a warp", 128: "128 lanes, a warpgroup"}


def runs_on(atom: Atom) -> str:
    """The architectures that have the instruction, in words."""
    if not atom.ptx:
        return "the reference executor only"
    return f"{atom.arch} only" if atom.arch[-1] == "a" else f"{atom.arch} and later"


def facts(atom: Atom) -> Iterator[str]:
    """The facts before the maps, a line each."""
    yield f"{atom.kind}, {_WHO.get(atom.threads, f'{atom.threads} lanes')}, {runs_on(atom)}"
    yield atom.ptx or "no PTX"
    if isinstance(atom, MmaAtom):
        m, n, k = atom.shape
        yield (
            f"D[{m},{n}] {atom.d.dtype} = A[{m},{k}] {atom.a.dtype} x B[{n},{k}] {atom.b.dtype} transposed "
            f"+ C[{m},{n}] {atom.c.dtype}" + (", in place" if atom.in_place else "")
        )
    elif isinstance(atom, CopyAtom) and atom.fragment is not None:
        turned = ", each transposed" if atom.trans else ""
        rows = f"{atom.matrices} matrices of 8 rows of {atom.row_bytes} bytes{turned}"
        yield f"{rows}; lane i has the address of row i"
    yield f"{atom.section}; PTX {atom.ptx_version[0]}.{atom.ptx_version[1]}"
    if isinstance(atom, MmaAtom) and atom.emulated:
        yield f"emulated on {', '.join(atom.emulated)}: ptxas makes several instructions of it"
    if (found := atom.measured) is not None:
        rate = "" if found.rate is None else f", {found.rate:g} multiply-adds per SM and clock"
        yield f"measured on {found.device} ({found.arch}), {found.date}: latency {found.latency:g} clocks{rate}"


def operand_facts(letter: str, operand: Operand) -> Iterator[str]:
    """The facts about one operand, a line each."""
    rows, cols = operand.shape
    name = "C and D" if letter == "C" else letter
    if operand.in_registers:
        yield (
            f"{name}: {rows}x{cols} {operand.dtype}, {operand.values} elements a lane "
            f"in {operand.registers} {operand.register} registers"
        )
        yield f"(lane, value) -> row + {rows} * column: {cute_str(operand.layout)}"
        return
    yield f"{name}: {rows}x{cols} {operand.dtype}, read from shared memory through a matrix descriptor"


def cell(letter: str, owners: list[tuple[int, int]]) -> str:
    """The owners of an element: `T4.a2` is element a2 of lane 4."""
    return " ".join(f"T{lane}.{letter.lower()}{value}" for lane, value in owners)


def _table(letter: str, operand: Operand) -> tuple[list[str], list[list[str]]]:
    row_axis, col_axis = AXES[letter]
    cols = operand.shape[1]
    head = ["", *(f"{col_axis}={c}" for c in range(cols))]
    body = [
        [f"{row_axis}={r}", *(cell(letter, owners) for owners in line)] for r, line in enumerate(operand.owners())
    ]
    return head, body


def memory_layouts(operand: Operand) -> Iterator[str]:
    """The canonical shared-memory atoms that an operand may lie in, in CuTe's spelling."""
    for major in operand.majors:
        for swizzle in SWIZZLES:
            yield f"{major}-major {_mode(swizzle)}: {_spelling(operand, major, swizzle)}"


def _mode(swizzle: int) -> str:
    return f"SW{swizzle}" if swizzle else "INTER"


def _spelling(operand: Operand, major: Major, swizzle: int) -> str:
    return cute_str(canonical_atom(operand.dtype.bits, major, swizzle), operand.dtype.bits)


def text(atom: Atom, operands: Mapping[str, Operand]) -> str:
    """The maps as tables of fixed-width text."""
    lines = [atom.name, *(f"  {line}" for line in facts(atom))]
    for letter, operand in operands.items():
        first, *rest = operand_facts(letter, operand)
        lines += ["", first, *(f"  {line}" for line in rest)]
        if not operand.in_registers:
            lines += [f"  {line}" for line in memory_layouts(operand)]
            continue
        head, body = _table(letter, operand)
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines += [
            "  " + "  ".join(f"{x:<{w}}" for x, w in zip(row, widths, strict=True)).rstrip()
            for row in [head, *body]
        ]
    return "\n".join(lines) + "\n"


def markdown(atom: Atom, operands: Mapping[str, Operand]) -> str:
    """The maps as Markdown tables."""
    about, ptx, *rest = facts(atom)
    lines = [f"## {atom.name}", "", about, "", "```", ptx, "```", "", *(f"{line}  " for line in rest)]
    for letter, operand in operands.items():
        first, *more = operand_facts(letter, operand)
        lines += ["", f"### {first}", ""]
        if not operand.in_registers:
            lines += [f"- `{line}`" for line in memory_layouts(operand)]
            continue
        head, body = _table(letter, operand)
        lines += [f"`{line}`" for line in more]
        lines += ["", *("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])]
    return "\n".join(lines) + "\n"
