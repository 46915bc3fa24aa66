"""The instruction catalogue.

`catalogue` maps CuTe's name of an instruction to its record.  It is found by discovery: every module of this
folder with a tuple ``ATOMS`` of records, or of families of them, contributes, so adding an instruction is adding
one file.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilemma.atoms.atom import DECLARED, Atom, CopyAtom, Immediate, MmaAtom, Operand, Rate, contract
from tilemma.atoms.choose import Selection, select_from
from tilemma.atoms.descriptors import Descriptor, tensor_map_swizzle
from tilemma.atoms.family import Family
from tilemma.checked import checked, instance
from tilemma.dtypes import BY_NAME, DType
from tilemma.errors import ToolError, nearest
from tilemma.forking import ForkSafeLock, cached_property

__all__ = [
    "DECLARED", "Atom", "Catalogue", "CopyAtom", "Descriptor", "Family", "Immediate", "MmaAtom", "Operand",
    "Rate", "Selection", "UnknownAtom", "catalogue", "contract", "select", "tensor_map_swizzle",
]  # fmt: skip


class UnknownAtom(ToolError, KeyError):
    code = "unknown-atom"
    found = "there is no instruction called {name!r}"
    expected = "a name in CuTe's form, such as SM80_16x8x16_F32F16F16F32_TN"
    fix = "{suggestion}"


class Catalogue(Mapping[str, Atom]):
    """All records by name; those of a module, or of a family, are created at the first access.

    Besides the records of this folder it has those that a program has declared (`tilemma.instruction`).
    """

    def __init__(self) -> None:
        self._declared: dict[str, MmaAtom] = {}
        # A key of all declared records, for caches of what the compiler makes of the catalogue; empty for none.
        self.declared_key = ""
        self._made: dict[str, Atom] = {}
        self._parts: dict[str, list[tuple[Family | None, tuple[Atom, ...] | None]]] = {}
        # Two threads that compile first must not both make the records of one family.
        self._making = ForkSafeLock()

    @cached_property
    def _modules(self) -> tuple[str, ...]:
        names = (n.removesuffix(".py") for n in os.listdir(os.path.dirname(__file__)) if n.endswith(".py"))
        return tuple(sorted(n for n in names if n != "__init__"))

    def _of(self, module: str, needed: Callable[[Family], bool] = lambda family: True) -> Iterator[Atom]:
        """The records of a module, without those of families that are not ``needed``, whether made or not."""
        if module not in self._parts:
            atoms = getattr(importlib.import_module(f"{__name__}.{module}"), "ATOMS", ())
            with self._making:
                if module not in self._parts:
                    self._parts[module] = [
                        (x, None) if isinstance(x, Family) else (None, self._entered((x,))) for x in atoms
                    ]
        parts = self._parts[module]
        for i, (family, made) in enumerate(parts):
            if family is not None and not needed(family):
                continue
            if made is None:
                assert family is not None
                with self._making:
                    made = parts[i][1] or self._entered(family.make())
                    parts[i] = family, made
            yield from made

    def _entered(self, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        for atom in atoms:
            assert self._made.setdefault(atom.name, atom) is atom, f"two records called {atom.name}"
        return atoms

    @cached_property
    def _atoms(self) -> dict[str, Atom]:
        return {a.name: a for module in self._modules for a in self._of(module)}

    def __getitem__(self, name: str) -> Atom:
        """The record called ``name``; UnknownAtom, with the nearest names, when there is none."""
        found = self._made.get(name) if isinstance(name, str) else None
        found = found or self._find(name)
        if found is None:
            raise UnknownAtom(name=name, suggestion=_suggest(name, tuple(self._atoms)))
        return found

    def _find(self, name: object) -> Atom | None:
        # Chosen names have been created already; only a name from outside is searched for in all modules.
        if not isinstance(name, str):
            return None
        if (known := self._made.get(name) or self._declared.get(name)) is not None:
            return known
        names = {name, *_other_names(name)}
        return next((a for module in self._modules for a in self._of(module) if a.name in names), None)

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter((*self._atoms, *self._declared))

    def __len__(self) -> int:
        return len(self._atoms) + len(self._declared)

    def declare(self, atom: MmaAtom) -> None:
        """Add a record from outside of the package; one declared under the same name before is replaced."""
        assert atom.kind == DECLARED and atom.name not in self._atoms, atom.name
        self._declared[atom.name] = atom
        self._renew()

    def withdraw(self, name: str) -> MmaAtom:
        """Remove a declared record; UnknownAtom where none has that name."""
        found = self._declared.pop(name, None) if isinstance(name, str) else None
        if found is None:
            raise UnknownAtom(name=name, suggestion=_suggest(name, tuple(self._declared)))
        self._renew()
        return found

    def declared(self) -> tuple[MmaAtom, ...]:
        """The declared records, those of the highest rank first."""
        return tuple(sorted(self._declared.values(), key=lambda atom: -atom.rank))

    def _renew(self) -> None:
        state = [(x.name, x.fingerprint, x.rank, x.archs) for x in self._declared.values()]
        self.declared_key = hashlib.sha256(repr(sorted(state)).encode()).hexdigest()[:16] if state else ""

    @checked(kind=instance("the start of a kind, such as 'wgmma'", str))
    def mma(
        self, kind: str = "", columns: int | None = None, width: int | None = None, **wanted: object
    ) -> Iterator[MmaAtom]:
        """The multiplying records; with ``kind`` those of the modules that are called after it.

        Families without a property that is ``wanted``, or whose N does not divide ``columns`` or is not ``width``,
        are left out (`Family.has`).
        """
        if kind == DECLARED:
            return iter(self.declared())
        operand = wanted.get("a")
        names = (m for m in self._named(kind) if _may_multiply(m, operand))
        found = (a for m in names for a in self._of(m, lambda family: family.has(columns, width, **wanted)))
        return (a for a in found if isinstance(a, MmaAtom))

    def families(self, kind: str) -> Iterator[Family]:
        """The families of multiplying records of ``kind``, none of which is made for it."""
        for name in self._named(kind):
            atoms = getattr(importlib.import_module(f"{__name__}.{name}"), "ATOMS", ())
            yield from (x for x in atoms if isinstance(x, Family))

    def _named(self, kind: str) -> Iterator[str]:
        """The modules of ``kind``, whose names start with it; those of sparse forms are a separate kind."""
        start = kind.replace(".", "_")
        for name in self._modules:
            if name == start or (name.startswith(start) and (not kind or not name.startswith(start + "_sp"))):
                yield name

    def copies(self, module: str | None = None) -> Iterator[CopyAtom]:
        """The copying records, or those of one module; modules called after a kind of multiplication have none."""
        names = (m for m in self._modules if not m.startswith(("mma", "wgmma")) and module in (None, m))
        found = (a for m in names for a in self._of(m, lambda family: False))
        return (a for a in found if isinstance(a, CopyAtom))


def _type_names(t: DType) -> tuple[str, str]:
    """The suffix of modules with products of ``t`` alone: ``tf32``, ``int8``."""
    return t.name, f"{'fp' if t.is_float else 'int'}{t.bits}"


_TYPE_NAMES = frozenset(name for t in BY_NAME.values() for name in _type_names(t))


def _may_multiply(module: str, a: object) -> bool:
    """Whether the module may have products of A's type ``a`` (anything else: of any type), by its name."""
    last = module.rpartition("_")[2]
    if last == "f8f6f4" and isinstance(a, DType):
        return a.is_float and a.bits == 8
    return last not in _TYPE_NAMES or not isinstance(a, DType) or last in _type_names(a)


def _other_names(name: str) -> Iterator[str]:
    """The other spellings that CuTe and libraries after it have of one record: it lists some of Turing's
    instructions among Ampere's, and leaves out the majorness where there is no choice."""
    if name.startswith("SM80_"):
        yield name.replace("SM80_", "SM75_", 1)
    if name.startswith("SM90_64x"):
        yield re.sub(r"_([SR])S(?!_TN)", r"_\1S_TN", name)
        if name.endswith("_SPARSE"):
            sparse = name.removesuffix("_SPARSE").replace("SM90_", "SM90_SPARSE_", 1)
            yield sparse
            yield f"{sparse}_TN"


def _suggest(name: str, names: tuple[str, ...]) -> str:
    if not isinstance(name, str):
        return "`tilemma atoms` lists all names"
    import difflib

    upper = {n.upper(): n for n in names}
    close = [upper[c] for c in difflib.get_close_matches(name.upper(), list(upper), n=3, cutoff=0.6)]
    if not close:
        first = nearest(name, names)
        close = [first] if first else []
    return "did you mean " + " or ".join(close) + "?" if close else "`tilemma atoms` lists all names"


catalogue = Catalogue()


def select(**wanted: object) -> Selection:
    """`tilemma.atoms.choose.select_from` on the whole catalogue."""
    return select_from(catalogue.values(), **wanted)  # type: ignore[arg-type]


class _CatalogueModule(types.ModuleType):
    """`tilemma.atoms` is a module, and the catalogue: importing a submodule binds its name in the package, so
    `tilemma.atoms[name]` has to work on the module too."""

    def __getitem__(self, name: str) -> Atom:
        return catalogue[name]

    def __contains__(self, name: object) -> bool:
        return name in catalogue

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue)

    def __len__(self) -> int:
        return len(catalogue)

    def __getattr__(self, name: str) -> Any:
        if name in {"get", "items", "keys", "values", "mma", "copies", "declared", "withdraw"}:
            return getattr(catalogue, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _CatalogueModule
