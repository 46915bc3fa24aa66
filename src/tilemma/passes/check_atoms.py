"""Instructions that the program names, against the types and the tile of their multiply; and accumulators that no
target can hold in one register layout."""

from __future__ import annotations

from typing import Any

from tilemma.atoms import DECLARED, MmaAtom, catalogue
from tilemma.dtypes import DType
from tilemma.errors import CompileError, Note
from tilemma.ir.named_atoms import AtomMismatch
from tilemma.ir.tile import FragmentRef, Kernel, Mma, Operand
from tilemma.ir.types import Level, View
from tilemma.passes.contraction import Fragments, extents, matrix
from tilemma.passes.decision import Decision
from tilemma.passes.scope import sites
from tilemma.records import record


class AccumulatorUnits(CompileError):
    code = "accumulator-units"
    found = (
        "`{name}` sums {a} by {b} here, which only the CUDA cores multiply, and {other_a} by {other_b} elsewhere"
    )
    expected = (
        "the products of one accumulator all on the CUDA cores, or all on tensor cores: their registers differ"
    )
    fix = "sum the products in two accumulators and add these, or convert the operands to one type"


@record(slots=False)
class CheckAtoms:
    """Refuses a multiply that the instruction which it names cannot execute on any target, and an accumulator of
    products on the CUDA cores and on tensor cores."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises AtomMismatch or AccumulatorUnits."""
        fragments: Fragments | None = None
        first: dict[str, tuple[Mma, DType, DType]] = {}
        for s in sites(kernel.body):
            if isinstance(s.op, Mma) and s.op.wanted is not None:
                fragments = fragments or Fragments(kernel.body)
                atom = catalogue[s.op.wanted]
                assert isinstance(atom, MmaAtom)
                level = s.group.level if s.group is not None else None
                _types(s.op, atom, fragments)
                _tile(s.op, atom, fragments, level)
            elif isinstance(s.op, Mma):
                fragments = fragments or Fragments(kernel.body)
                _units(s.op, fragments, first)
        return kernel


_TENSOR_CORES = ("mma.sync", "mma.sp", "wgmma", "wgmma.sp", DECLARED)


def _units(op: Mma, fragments: Fragments, first: dict[str, tuple[Mma, DType, DType]]) -> None:
    """``first``: for each accumulator a multiply into it, with the types of its operands."""
    a, b = fragments.dtype(op.a), fragments.dtype(op.b)
    if a is None or b is None:
        return
    other, other_a, other_b = first.setdefault(op.acc.name, (op, a, b))
    if _on_cuda_cores(a, b) != _on_cuda_cores(other_a, other_b):
        if not _on_cuda_cores(a, b):
            op, a, b, other, other_a, other_b = other, other_a, other_b, op, a, b
        notes = [Note(f"{other_a} by {other_b} here", other.span)]
        raise AccumulatorUnits(op.span, name=op.acc.name, a=a, b=b, other_a=other_a, other_b=other_b, notes=notes)


def _on_cuda_cores(a: DType, b: DType) -> bool:
    """Whether only the CUDA cores multiply elements of these types."""
    return not any(f.has(a=a, b=b) for kind in _TENSOR_CORES for f in catalogue.families(kind))


def _types(op: Mma, atom: MmaAtom, fragments: Fragments) -> None:
    if (atom.e is not None) != (op.meta is not None):
        kind, other = ("a sparse A", "a dense A") if atom.e is not None else ("a dense A", "a sparse A")
        remedy = "write `.sp` with the metadata of A" if atom.e is not None else "leave `.sp` out"
        remedy += ", or name an instruction for this A"
        raise AtomMismatch(
            op.span, atom=atom.name, problem=f"has {kind}", rule=f"an instruction with {other}", remedy=remedy
        )
    have = {"A": fragments.dtype(op.a), "B": fragments.dtype(op.b), "D": fragments.declared[op.acc.name].dtype}
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
