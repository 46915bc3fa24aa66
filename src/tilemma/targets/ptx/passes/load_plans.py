"""Selection of operand loads: a wgmma matrix descriptor, ldmatrix, vector loads, or single elements."""

from __future__ import annotations

from collections.abc import Mapping

from tilemma import dtypes
from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import arch_number
from tilemma.dtypes import DType
from tilemma.ir.plans import FragmentPlan, LoadPlan
from tilemma.ir.tile import FragmentRef, Kernel, Load, Mma
from tilemma.ir.types import Space, View
from tilemma.ir.walk import walk
from tilemma.passes.contraction import stored
from tilemma.targets.ptx.passes.shared_views import ldmatrix_rule, vector_rule


def widens(have: DType, want: DType, arch: str) -> bool:
    """Whether elements of ``have`` become pairs of ``want`` without conversions of single elements."""
    first = {dtypes.f16: 75, dtypes.bf16: 80}.get(want)
    if first is None or arch_number(arch)[0] < first:
        return False
    if have.is_float and have.bits == 8:
        return bool(have.cvt) and arch_number(arch)[0] >= have.cvt
    return have.name in ("s4", "u4", "s8") or (have.name == "u8" and want == dtypes.f16)


def in_vectors(view: View, transposed: bool) -> bool:
    """Whether lanes can read 16 bytes along K of ``view`` at a time; ``transposed``: its K axis comes first."""
    operand = stored(view, transposed)
    along = view.base.space is Space.SHARED and operand is not None and operand.major == "K"
    return along and operand is not None and vector_rule(operand.view) is None


def vector_operands(kernel: Kernel, chosen: Mapping[int, tuple[MmaAtom, int, Mma]]) -> set[str]:
    """The operands whose lanes load 16 bytes along K at a time: of multiplies on the CUDA cores, and of f64.

    A lane of the f64 instructions has every fourth element along K.  A sum over K may be taken in any order: where
    both operands are loaded so, it takes neighbours instead.  ``chosen``: for the identity of each multiply, its
    instruction, how many along K, and the multiply with names of its operands.
    """
    views: dict[str, list[View]] = {}
    for op in walk(kernel.body):
        if isinstance(op, Load):
            views.setdefault(op.fragment.name, []).append(op.src)
    pairs: list[tuple[bool, tuple[str, str]]] = []
    for op in walk(kernel.body):
        if not isinstance(op, Mma) or id(op) not in chosen:
            continue
        atom, tiles, m = chosen[id(op)]
        names, fits = [], atom.kind == "fma"
        if atom.a.dtype.bits == 64 and atom.kind == "mma.sync":
            fits = tiles * atom.shape[2] % 8 == 0
        for x, ref, t in ((op.a, m.a, m.contract.a_transposed), (op.b, m.b, m.contract.b_transposed)):
            sources = [x] if isinstance(x, View) else views.get(x.name, [])
            fits = fits and bool(sources) and all(in_vectors(v, t) for v in sources)
            names.append(ref.name if isinstance(ref, FragmentRef) else "")
        pairs.append((fits, (names[0], names[1])))
    refused = {n for fits, names in pairs if not fits for n in names}
    while any(refused & set(names) and not refused >= set(names) for _, names in pairs):
        refused |= {n for _, names in pairs if refused & set(names) for n in names}
    return {n for _, names in pairs for n in names} - refused


def load_plan(load: Load, plan: FragmentPlan, transposed: bool, arch: str, vectors: bool) -> LoadPlan:
    """How ``load`` fills its fragment; ``transposed``: its K axis comes first.

    ``vectors``: it may take K in an order of its own, because the other operand does so too.
    """
    if plan.residence == "shared":
        return LoadPlan("descriptor")
    if plan.role == "E":
        return LoadPlan("metadata")
    if load.src.base.space is Space.GLOBAL:
        return LoadPlan("global")
    operand = stored(load.src, transposed)
    atom = catalogue[plan.atom]
    assert isinstance(atom, MmaAtom)
    matrices = atom.operands[plan.role].matrices() if plan.role in ("A", "B") else None
    if load.element is not load.stored:
        rows = operand is not None and operand.major == "K" and ldmatrix_rule(operand.view) is None
        # Registers of an accumulator of 16 bits hold pairs along its rows, as those of operands do along K.
        pairs = atom.operands["C"].matrices() if plan.role == "C" else matrices
        fits = rows and pairs is not None and widens(load.stored, load.element, arch)
        return LoadPlan("widened" if fits else "shared")
    if operand is None or operand.major is None:
        return LoadPlan("shared")
    if vectors and plan.role in ("A", "B") and in_vectors(load.src, transposed):
        return LoadPlan("vectors")
    if matrices is None:
        return LoadPlan("shared")
    trans = operand.major == "MN"
    if ldmatrix_rule(operand.view, trans) is not None:
        return LoadPlan("shared")
    total = len(matrices) * plan.repeat[0] * plan.repeat[1]
    width = next(n for n in (4, 2, 1) if total % n == 0)
    return LoadPlan("ldmatrix", f"SM75_U16x{2 * width}_LDSM_T" if trans else f"SM75_U32x{width}_LDSM_N")
