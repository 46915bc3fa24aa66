"""`tilemma atoms`: the catalogue as a list."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import Atom, arch_number
from tilemma.errors import ToolError


class NoSuchArch(ToolError):
    code = "no-such-arch"
    found = "{arch!r} is no PTX target"
    expected = "sm_ and a number, such as sm_86 or sm_90a"
    fix = "give the target that ptxas -arch takes"


def list_atoms(arch: str | None = None, as_json: bool = False) -> str:
    """The instructions that code for ``arch`` may use (all of them when None), as text or JSON.

    Raises NoSuchArch.
    """
    if arch is not None:
        try:
            arch_number(arch)
        except ValueError:
            raise NoSuchArch(arch=arch) from None
    chosen = [a for a in catalogue.values() if arch is None or a.runs_on(arch)]
    if as_json:
        return json.dumps({"arch": arch, "atoms": [summary(a) for a in chosen]}, indent=1)
    rows = [("name", "kind", "lanes", "D = A x B + C", "needs"), *(_line(a) for a in chosen)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{x:<{w}}" for x, w in zip(r, widths, strict=True)).rstrip() for r in rows) + "\n"


def summary(atom: Atom) -> dict[str, Any]:
    """One record without its maps, ready for JSON."""
    found: dict[str, Any] = {
        "name": atom.name,
        "kind": atom.kind,
        "threads": atom.threads,
        "arch": atom.arch,
        "ptx_version": "{}.{}".format(*atom.ptx_version),
        "ptx": atom.ptx,
        "section": atom.section,
        "asynchronous": atom.asynchronous,
        "measured": None,
    }
    if (times := atom.measured) is not None:
        found["measured"] = {field.name: getattr(times, field.name) for field in fields(times)}
    if isinstance(atom, MmaAtom):
        found |= {
            "shape": list(atom.shape),
            "types": {letter: str(o.dtype) for letter, o in atom.operands.items()},
            "registers": {letter: o.registers for letter, o in atom.operands.items() if o.in_registers},
            "majors": {letter: list(o.majors) for letter, o in atom.operands.items() if o.majors},
            "emulated": list(atom.emulated),
            "rates": [{"arch": r.arch, "fma": r.fma, "source": r.source} for r in atom.rates],
        }
    else:
        found |= {"bytes": atom.bytes, "registers": {"R": atom.fragment.registers} if atom.fragment else {}}
    return found


def _line(atom: Atom) -> tuple[str, str, str, str, str]:
    what = f"{atom.bytes} bytes" if not isinstance(atom, MmaAtom) else types_of(atom)
    return atom.name, atom.kind, str(atom.threads), what, atom.arch


def types_of(atom: MmaAtom) -> str:
    """The product with its types: `f32 = f16 x f16 + f32`."""
    return f"{atom.d.dtype} = {atom.a.dtype} x {atom.b.dtype} + {atom.c.dtype}"
