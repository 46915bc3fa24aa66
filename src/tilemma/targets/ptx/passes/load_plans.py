"""How operands are loaded: through a descriptor, by ldmatrix, or element by element."""

from __future__ import annotations

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir.plans import FragmentPlan, LoadPlan
from tilemma.ir.tile import Load
from tilemma.ir.types import Space
from tilemma.passes.contraction import stored
from tilemma.targets.ptx.passes.shared_views import ldmatrix_rule


def load_plan(load: Load, plan: FragmentPlan, transposed: bool) -> LoadPlan:
    """How ``load`` fills its fragment; ``transposed``: its K axis comes first."""
    if plan.residence == "shared":
        return LoadPlan("descriptor")
    if plan.role == "E":
        return LoadPlan("metadata")
    if load.src.base.space is Space.GLOBAL:
        return LoadPlan("global")
    if load.element is not load.src.dtype and load.packed == 1:
        return LoadPlan("shared")
    operand = stored(load.src, transposed)
    atom = catalogue[plan.atom]
    assert isinstance(atom, MmaAtom)
    matrices = atom.operands[plan.role].matrices() if plan.role in ("A", "B") else None
    if operand is None or operand.major is None or matrices is None:
        return LoadPlan("shared")
    trans = operand.major == "MN"
    if ldmatrix_rule(operand.view, trans) is not None:
        return LoadPlan("shared")
    total = len(matrices) * plan.repeat[0] * plan.repeat[1]
    width = next(n for n in (4, 2, 1) if total % n == 0)
    return LoadPlan("ldmatrix", f"SM75_U16x{2 * width}_LDSM_T" if trans else f"SM75_U32x{width}_LDSM_N")
