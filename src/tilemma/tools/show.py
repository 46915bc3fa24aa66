"""`tilemma show`: the register layout of fragments.  Every format is derived from the record alone.

An element of an operand is named as in the PTX ISA: a3 is element 3 of the lane's fragment of A, in register
3 // pack.  B is N x K, as in CuTe.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from tilemma.atoms import CopyAtom, MmaAtom, Operand, UnknownAtom, catalogue
from tilemma.atoms.atom import Atom
from tilemma.errors import ToolError
from tilemma.layouts import cute_str

FORMATS: Final = ("text", "json", "csv", "md", "svg", "html")
# The names of rows and columns of an operand.
AXES: Final = {
    "A": ("m", "k"),
    "B": ("n", "k"),
    "C": ("m", "n"),
    "E": ("m", "k"),
    "SFA": ("m", "s"),
    "SFB": ("n", "s"),
    "R": ("r", "c"),
}


class NoSuchOperand(ToolError):
    code = "no-such-operand"
    found = "{name} has no operand {operand}"
    expected = "one of {known}"
    fix = "leave --operand out to see all of them"


class NotInFragment(ToolError):
    code = "not-in-fragment"
    found = "{name}.{operand} has no {what}"
    expected = "{rule}"
    fix = "{remedy}"


class NoSuchFormat(ToolError):
    code = "no-such-format"
    found = "there is no format {format!r}"
    expected = "one of {known}"
    fix = "give one of these after --format"


class SeveralRecords(ToolError):
    code = "several-records"
    found = "{count} instructions begin with {mnemonic!r}"
    expected = "the whole mnemonic, or a name: {names}"
    fix = "write one of these names"


_MNEMONIC = re.compile(r"[a-z]+\.[\w.:]+")
# Names that an error lists.
_LISTED = 6


def record(name: str) -> Atom:
    """The record called ``name``, or the one of this PTX mnemonic (its beginning, if no other begins so).  Records
    of one mnemonic differ in whether A is in registers: there the operands of a whole statement decide.

    Raises UnknownAtom with the nearest names, SeveralRecords.
    """
    text = name.strip() if isinstance(name, str) else ""
    found = _MNEMONIC.match(text)
    if found is None or name in catalogue:
        return catalogue[name]
    begun = text.split(" ")[0].rstrip(". ;") if text.split(" ")[0].endswith(".") else found[0]
    # `shared` means `shared::cta` (PTX ISA, State Spaces).
    begun = begun.replace(".shared::cta", ".shared")
    every = {x.name: x.ptx.split(" ", 1)[0] for x in catalogue.values()}
    same = [n for n, m in every.items() if m == begun] or [n for n, m in every.items() if m.startswith(begun)]
    in_registers = _first_in_registers(text)
    if in_registers is not None and begun in every.values():
        same = [n for n in same if operands_of(catalogue[n])["A"].in_registers == in_registers]
    if len({_maps(catalogue[n]) for n in same}) == 1:
        return catalogue[same[0]]
    if not same:
        near = get_close_matches(begun, sorted(set(every.values())), n=3)
        close = [n for m in near for n, have in every.items() if have == m][:3]
        suggestion = "did you mean " + " or ".join(close) + "?" if close else "`tilemma atoms` lists all names"
        raise UnknownAtom(name=begun, suggestion=suggestion)
    names = ", ".join(same[:_LISTED]) + (", .." if len(same) > _LISTED else "")
    raise SeveralRecords(mnemonic=begun, count=len(same), names=names)


def _maps(atom: Atom) -> str:
    """The difference between records of one mnemonic: the places of their operands."""
    return ", ".join(f"{letter} {o.shape} {o.layout}" for letter, o in operands_of(atom).items())


def _first_in_registers(statement: str) -> bool | None:
    """Whether A, the second operand of a whole ``wgmma`` statement, is in registers; None for other texts."""
    places = re.sub(r"\{[^{}]*\}", "{}", statement.partition(" ")[2]).split(",")
    if not statement.startswith("wgmma.") or len(places) < 3:
        return None
    return places[1].strip().startswith("{")


def operands_of(atom: Atom) -> dict[str, Operand]:
    """The operands to show: A, B, C (and E); the accumulator going in and coming out has one map."""
    if isinstance(atom, CopyAtom):
        return {"R": atom.fragment} if atom.fragment is not None else {}
    return {letter: o for letter, o in atom.operands.items() if letter != "D"}


def pick_operands(atom: Atom, operand: str | None) -> dict[str, Operand]:
    """`operands_of`, or the requested one; NoSuchOperand if there is none.  D is C."""
    every = operands_of(atom)
    if operand is None:
        return every
    letter = operand.upper()
    letter = "C" if letter == "D" and "C" in every else letter
    if letter not in every:
        raise NoSuchOperand(
            name=atom.name, operand=operand, known=", ".join(every) or "none: it moves no fragment"
        )
    return {letter: every[letter]}


def show(name: str, operand: str | None = None, format: str = "text") -> str:
    """The map of instruction ``name``, or of one operand of it, in one of `FORMATS`.

    ``name`` may be the PTX mnemonic.  Raises UnknownAtom (with the nearest names), SeveralRecords, NoSuchOperand,
    NoSuchFormat.
    """
    from tilemma.tools import show_html, show_svg, show_text

    atom = record(name)
    chosen = pick_operands(atom, operand)
    renderers = {
        "text": show_text.text,
        "json": lambda a, o: json.dumps(to_json(a, o), indent=1),
        "csv": to_csv,
        "md": show_text.markdown,
        "svg": show_svg.atom_svg,
        "html": show_html.page,
    }
    if format not in renderers:
        raise NoSuchFormat(format=format, known=", ".join(FORMATS))
    return renderers[format](atom, chosen)


def to_json(atom: Atom, operands: Mapping[str, Operand]) -> dict[str, Any]:
    """The map as data: `owners[row][col]` lists every (lane, value) that holds the element."""
    if isinstance(atom, MmaAtom):
        shape = list(atom.shape)
        types = {letter: str(o.dtype) for letter, o in atom.operands.items()}
    else:
        shape = [atom.rows, atom.row_bytes // 2]
        types = {letter: str(o.dtype) for letter, o in operands_of(atom).items()}
    found: dict[str, Any] = {
        "name": atom.name,
        "kind": atom.kind,
        "shape": shape,
        "threads": atom.threads,
        "arch": atom.arch,
        "ptx": atom.ptx,
        "types": types,
        "operands": {
            letter: {
                "shape": list(o.shape),
                "registers": o.registers,
                "register": o.register,
                "pack": o.pack if o.in_registers else None,
                "majors": list(o.majors),
                "layout": cute_str(o.layout) if o.in_registers else None,
                "owners": o.owners() if o.in_registers else None,
            }
            for letter, o in operands.items()
        },
    }
    if isinstance(atom, CopyAtom):
        found["row_bytes"] = atom.row_bytes
        found["lane_of_row"] = [atom.lane_of_row(r) for r in range(atom.rows)]
    return found


def to_csv(atom: Atom, operands: Mapping[str, Operand]) -> str:
    """One line for each element and owner: operand, row, col, lane, value, register, lowest bit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["operand", "row", "col", "lane", "value", "register", "bit"])
    for letter, operand in operands.items():
        if not operand.in_registers:
            continue
        for row, line in enumerate(operand.owners()):
            for col, owners in enumerate(line):
                for lane, value in owners:
                    writer.writerow([letter, row, col, lane, value, *operand.place(value)])
    return out.getvalue()


def _register_operand(atom: Atom, operand: str) -> tuple[str, Operand]:
    ((letter, found),) = pick_operands(atom, operand).items()
    if not found.in_registers:
        raise NotInFragment(
            name=atom.name,
            operand=letter,
            what="owners: it is read from shared memory",
            rule="an operand in registers",
            remedy="name an operand in registers: --operand "
            + " or ".join(n for n, o in operands_of(atom).items() if o.in_registers),
        )
    return letter, found


def where(name: str, operand: str, row: int, col: int) -> list[dict[str, int]]:
    """Element to lane and register: every {"lane", "value", "register", "bit"} that holds (row, col).

    Raises UnknownAtom, NoSuchOperand, NotInFragment.
    """
    atom = record(name)
    letter, found = _register_operand(atom, operand)
    rows, cols = found.shape
    if not (0 <= row < rows and 0 <= col < cols):
        raise NotInFragment(
            name=name,
            operand=letter,
            what=f"element ({row}, {col})",
            rule=f"rows 0 to {rows - 1}, columns 0 to {cols - 1}",
            remedy="write --element ROW,COLUMN in this range, such as "
            f"{max(0, min(row, rows - 1))},{max(0, min(col, cols - 1))}"
            + ("; B is N x K: N comes first" if letter == "B" else ""),
        )
    places = []
    for lane, value in found.owners()[row][col]:
        register, bit = found.place(value)
        places.append({"lane": lane, "value": value, "register": register, "bit": bit})
    return places


def holds(name: str, operand: str, lane: int, register: int | None = None) -> list[dict[str, int]]:
    """Lane and register to elements: {"value", "register", "bit", "row", "col"} of the lane, lowest first.

    Raises UnknownAtom, NoSuchOperand, NotInFragment.
    """
    atom = record(name)
    letter, found = _register_operand(atom, operand)
    last = found.registers - 1
    if not 0 <= lane < found.threads or (register is not None and not 0 <= register <= last):
        raise NotInFragment(
            name=name,
            operand=letter,
            what=f"lane {lane}" + ("" if register is None else f", register {register}"),
            rule=f"lanes 0 to {found.threads - 1}, registers 0 to {last}",
            remedy=f"write --lane LANE,REGISTER in these ranges, such as {found.threads - 1},{last}: lanes count "
            "within the warp or warpgroup that executes the instruction",
        )
    held = []
    for value in range(found.values):
        at, bit = found.place(value)
        if register is None or at == register:
            row, col = found.coordinates(lane, value)
            held.append({"value": value, "register": at, "bit": bit, "row": row, "col": col})
    return held


def describe_element(name: str, operand: str, row: int, col: int) -> str:
    """`where` as a sentence a line."""
    letter, found = _register_operand(record(name), operand)
    return "\n".join(
        f"{letter}({row}, {col}) is {letter.lower()}{p['value']} of lane {p['lane']}: "
        f"register {p['register']}{_bits(found, p['bit'])}"
        for p in where(name, operand, row, col)
    )


def describe_lane(name: str, operand: str, lane: int, register: int | None = None) -> str:
    """`holds` as a sentence a line."""
    letter, found = _register_operand(record(name), operand)
    return "\n".join(
        f"lane {lane}, register {h['register']}{_bits(found, h['bit'])}: "
        f"{letter.lower()}{h['value']} is {letter}({h['row']}, {h['col']})"
        for h in holds(name, operand, lane, register)
    )


def _bits(operand: Operand, low: int) -> str:
    return f", bits {low}-{low + operand.dtype.bits - 1}" if operand.pack > 1 else ""
