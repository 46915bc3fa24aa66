"""Choosing records: the instructions that meet a request, and the reason why each of the others does not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from tilemma.atoms.atom import TARGET, Atom, MmaAtom, arch_number
from tilemma.checked import checked, instance, integer, integers, one_of, optional
from tilemma.dtypes import DType, dtype
from tilemma.errors import Refusal
from tilemma.layouts import Major
from tilemma.layouts.algebra import LARGEST
from tilemma.layouts.shared import MAJOR
from tilemma.records import record


@record
class Selection:
    """The instructions that meet the request, those of the highest rank first, the widest of them before others,
    and for every other one the rule it breaks.

    Records that differ in N alone and break the same rule are one refusal.
    """

    candidates: tuple[MmaAtom, ...]
    refusals: tuple[Refusal, ...]

    @property
    def best(self) -> MmaAtom | None:
        return self.candidates[0] if self.candidates else None


@checked(
    arch=optional(TARGET),
    kind=optional(instance("the kind of an instruction, such as 'wgmma'", str)),
    threads=optional(integer(1, 1 << 20)),
    tile=optional(integers(0, LARGEST, 3)),
    a_from=optional(one_of("registers", "shared")),
    a_major=optional(MAJOR),
    b_major=optional(MAJOR),
)
def select_from(
    atoms: Iterable[Atom],
    *,
    arch: str | None = None,
    kind: str | None = None,
    threads: int | None = None,
    a: DType | str | None = None,
    b: DType | str | None = None,
    d: DType | str | None = None,
    tile: tuple[int, int, int] | None = None,
    a_from: Literal["registers", "shared"] | None = None,
    a_major: Major | None = None,
    b_major: Major | None = None,
    sparse: bool = False,
    named: bool = False,
) -> Selection:
    """Multiplying records for a request; arguments of None match any record.

    ``tile`` is (M, N, K) of the work of one executing unit, which the instruction has to divide.  A majorness
    is only required of an operand in shared memory: in registers the loader arranges the elements.
    ``sparse``: whether A is stored by half.  ``named``: records that are taken by name only match too.
    """
    types = [(letter, dtype(t)) for letter, t in (("a", a), ("b", b), ("d", d)) if t is not None]
    good: list[MmaAtom] = []
    bad: dict[tuple[str, str], Refusal] = {}
    for atom in atoms:
        if not isinstance(atom, MmaAtom):
            continue
        rule = _kind_rule(atom, sparse, named) or _rule(
            atom, arch, kind, threads, types, tile, a_from, a_major, b_major
        )
        if rule is None:
            good.append(atom)
            continue
        family = _family(atom.name)
        bad.setdefault((family, rule), Refusal(family, rule, atom.section))
    good.sort(key=lambda x: (x.rank, x.flops, arch_number(x.arch)[0]), reverse=True)
    return Selection(tuple(good), tuple(bad.values()))


def _family(name: str) -> str:
    name = re.sub(r"^(SM70_8x8x4)_.*", r"\1..", name)
    return re.sub(r"^(SM90_(?:SPARSE_)?64)x\d+x", r"\1xNx", name)


def _kind_rule(atom: MmaAtom, sparse: bool, named: bool) -> str | None:
    if (atom.e is not None) != sparse:
        return "has a dense A" if sparse else "has a sparse A"
    return "is taken by name only" if atom.rank < 0 and not named else None


def _rule(
    atom: MmaAtom,
    arch: str | None,
    kind: str | None,
    threads: int | None,
    types: list[tuple[str, DType]],
    tile: tuple[int, int, int] | None,
    a_from: str | None,
    a_major: Major | None,
    b_major: Major | None,
) -> str | None:
    """The first rule that ``atom`` breaks, or None.  Without N in it, so that a family shares one line."""
    if arch is not None and not atom.ptx:
        return f"has no PTX: it exists on the reference executor only, not on {arch}"
    if arch is not None and not atom.runs_on(arch):
        return f"needs {' or '.join((atom.arch, *atom.archs))}, the target is {arch}"
    if kind is not None and atom.kind != kind:
        return f"is {atom.kind}, not {kind}"
    if threads is not None and atom.threads != threads:
        return f"is executed by {atom.threads} threads, not {threads}"
    for letter, t in types:
        have = atom.operands[letter.upper()].dtype
        if have is not t:
            return f"{letter.upper()} is {have}, not {t}"
    if a_from is not None and atom.a.in_registers != (a_from == "registers"):
        return f"reads A from {'registers' if atom.a.in_registers else 'shared memory'}"
    for letter, operand, major in (("A", atom.a, a_major), ("B", atom.b, b_major)):
        if major is not None and not operand.in_registers and major not in operand.majors:
            return f"{letter} of type {operand.dtype} is read {' or '.join(operand.majors)}-major only"
    if tile is not None:
        for axis, extent, step in zip("MNK", tile, atom.shape, strict=True):
            if extent % step:
                return f"{axis} = {extent} is no multiple of the instruction's" + (
                    f" {step}" if axis != "N" or atom.kind != "wgmma" else ""
                )
    return None
