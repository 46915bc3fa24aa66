"""Records for tests that visit each of them: all of the small families, a few of wgmma's 32 widths."""

from __future__ import annotations

from dev.pages.atoms import family
from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import Atom

FAMILIES: dict[str, list[Atom]] = {}
for _atom in catalogue.values():
    FAMILIES.setdefault(family(_atom.name), []).append(_atom)


def few(atoms: list[Atom]) -> list[Atom]:
    """The narrowest, one of an odd width, and the widest."""
    return [atoms[i] for i in sorted({0, 2 if len(atoms) > 2 else 0, len(atoms) - 1})]


SAMPLE = [atom for atoms in FAMILIES.values() for atom in few(atoms) if isinstance(atom, MmaAtom)]
