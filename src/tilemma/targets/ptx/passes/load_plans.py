"""Selection of operand loads: a wgmma matrix descriptor, ldmatrix, vector loads, or single elements."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import arch_number
from tilemma.dtypes import DType
from tilemma.ir.plans import FragmentPlan, KOrder, LoadPlan
from tilemma.ir.tile import Load
from tilemma.ir.types import Space, View
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


def load_plan(
    load: Load, plan: FragmentPlan, transposed: bool, arch: str, order: KOrder | None = None
) -> LoadPlan:
    """The plan by which ``load`` fills its fragment; ``transposed``: its K axis comes first.

    ``order``: that of its elements along K (`k_orders`).
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
        return LoadPlan("widened", k_order=order) if fits else LoadPlan("shared")
    if operand is None or operand.major is None:
        return LoadPlan("shared")
    if order is not None:
        return LoadPlan("vectors", k_order=order if order.run else None)
    if matrices is None:
        return LoadPlan("shared")
    trans = operand.major == "MN"
    if ldmatrix_rule(operand.view, trans) is not None:
        return LoadPlan("shared")
    total = len(matrices) * plan.repeat[0] * plan.repeat[1]
    width = next(n for n in (4, 2, 1) if total % n == 0)
    return LoadPlan("ldmatrix", f"SM75_U16x{2 * width}_LDSM_T" if trans else f"SM75_U32x{width}_LDSM_N")
