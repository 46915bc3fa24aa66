"""Instructions that a program names: `atom=NAME` of a multiply."""

from __future__ import annotations

from tilemma.atoms import MmaAtom, UnknownAtom, catalogue
from tilemma.errors import CompileError, Span, described


class NoSuchAtom(CompileError):
    code = "no-such-atom"
    found = "the instruction `{name}`, which {problem}"
    expected = "the name of a multiplying instruction, such as SM80_16x8x16_F32F16F16F32_TN"
    fix = "{suggestion}"


class AtomMismatch(CompileError):
    code = "atom-mismatch"
    found = "`{atom}` {problem}"
    expected = "{rule}"
    fix = "{remedy}"


def multiplying(name: object, span: Span | None) -> MmaAtom:
    """The record called ``name``, in any of the spellings that `catalogue` knows; NoSuchAtom."""
    listed = "`tilemma atoms` lists all names"
    if not isinstance(name, str):
        raise NoSuchAtom(span, name=described(name), problem="is no name", suggestion=listed)
    try:
        atom = catalogue[name]
    except UnknownAtom as e:
        problem, suggestion = "is not in the catalogue", str(e.facts.get("suggestion", listed))
        raise NoSuchAtom(span, name=name, problem=problem, suggestion=suggestion) from None
    if not isinstance(atom, MmaAtom):
        raise NoSuchAtom(span, name=atom.name, problem=f"is {atom.kind}: it copies", suggestion=listed)
    return atom
