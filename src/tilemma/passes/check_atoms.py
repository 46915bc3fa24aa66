"""Instructions that the program names, against the types and the tile of their multiply."""

from __future__ import annotations

from typing import Any

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir.named_atoms import AtomMismatch
from tilemma.ir.tile import FragmentRef, Kernel, Mma, Operand
from tilemma.ir.types import Level, View
from tilemma.passes.contraction import Fragments, extents, matrix
from tilemma.passes.decision import Decision
from tilemma.passes.scope import sites
from tilemma.records import record


@record(slots=False)
class CheckAtoms:
    """Refuses a multiply that the instruction which it names cannot execute on any target."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises AtomMismatch."""
        fragments: Fragments | None = None
        for s in sites(kernel.body):
            if isinstance(s.op, Mma) and s.op.wanted is not None:
                fragments = fragments or Fragments(kernel.body)
                atom = catalogue[s.op.wanted]
                assert isinstance(atom, MmaAtom)
                level = s.group.level if s.group is not None else None
                _types(s.op, atom, fragments)
                _tile(s.op, atom, fragments, level)
        return kernel


def _types(op: Mma, atom: MmaAtom, fragments: Fragments) -> None:
    if (atom.e is not None) != (op.meta is not None):
        kind, other = ("a sparse A", "a dense A") if atom.e is not None else ("a dense A", "a sparse A")
        remedy = "write `.sp` with the metadata of A" if atom.e is not None else "leave `.sp` out"
        remedy += ", or name an instruction for this A"
        raise AtomMismatch(
            op.span, atom=atom.name, problem=f"has {kind}", rule=f"an instruction with {other}", remedy=remedy
        )
    have = {
        "A": fragments.dtype(op.a),
        "B": fragments.dtype(op.b),
        "D": fragments.declared[op.acc.name].dtype,
    }
    for letter, t in have.items():
        want = atom.operands[letter].dtype
        if t is not None and t is not want:
            what = "accumulates in" if letter == "D" else f"takes {letter} of"
            remedy = f"`mma.fill` the accumulator as {want}" if letter == "D" else f"load {letter} as {want}"
            raise AtomMismatch(
                op.span,
                atom=atom.name,
                problem=f"{what} {want}, not {t}",
                rule=f"operands of {atom.a.dtype} and {atom.b.dtype}, an accumulator of {atom.d.dtype}",
                remedy=f"{remedy}, or name an instruction of these types",
            )


def _tile(op: Mma, atom: MmaAtom, fragments: Fragments, level: Level | None) -> None:
    a, b = _extents(op.a, fragments), _extents(op.b, fragments)
    if a is None or b is None:
        return
    m, n, k, _ = extents(op.contract, a, b)
    k *= 2 if op.meta is not None else 1
    step = atom.shape
    facts: dict[str, Any] = {
        "atom": atom.name,
        "rule": f"M, N and K that are multiples of {'x'.join(map(str, step))}",
    }
    for axis, extent, by in zip("MNK", (m, n, k), step, strict=True):
        if extent % by:
            remedy = f"make {axis} a multiple of {by}, or leave the choice to the compiler"
            raise AtomMismatch(op.span, problem=f"got a tile with {axis} = {extent}", remedy=remedy, **facts)
    if level is None or level.kind != "group":
        return
    units, rest = divmod(level.threads, atom.threads)
    fits = (m % (step[0] * g) == 0 and n % (step[1] * (units // g)) == 0 for g in _divisors(units))
    if rest or not any(fits):
        facts["rule"] = f"units of {atom.threads} threads that divide the tile in multiples of {step[0]}x{step[1]}"
        remedy = "use a level of fewer or more warps, or another tile"
        problem = f"got a tile of {m}x{n} held by `{level}`, {level.threads} threads"
        raise AtomMismatch(op.span, problem=problem, remedy=remedy, **facts)


def _extents(x: Operand, fragments: Fragments) -> tuple[int, int] | None:
    if isinstance(x, FragmentRef) and x.name not in fragments.loads:
        shape = fragments.declared[x.name].shape
    else:
        view = x if isinstance(x, View) else fragments.view(x)
        shape = None if view is None else matrix(view).static_shape
    return (shape[0], shape[1]) if shape is not None and len(shape) == 2 else None


def _divisors(n: int) -> list[int]:
    return [g for g in range(1, n + 1) if n % g == 0]
