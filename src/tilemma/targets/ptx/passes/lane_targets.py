"""Checks that the target has the instructions on single lanes' registers (mma fragments, shfl, vote)."""

from __future__ import annotations

from tilemma.atoms import MmaAtom, catalogue
from tilemma.errors import spelled
from tilemma.ir.named_atoms import AtomMismatch, of_lanes
from tilemma.ir.tile import Kernel, LaneMma
from tilemma.ir.walk import walk


def check_lane_targets(kernel: Kernel, arch: str) -> None:
    """Raises AtomMismatch where ``arch`` lacks the instruction of a `LaneMma`."""
    for op in walk(kernel.body):
        if isinstance(op, LaneMma):
            _check_target(op, arch)


def _check_target(op: LaneMma, arch: str) -> None:
    """AtomMismatch where the target lacks the instruction of single lanes' registers."""
    atom = catalogue[op.atom]
    assert isinstance(atom, MmaAtom)
    if not atom.runs_on(arch):
        raise AtomMismatch(
            op.span,
            atom=atom.name,
            problem=f"executes this product of one lane's fragments, and {arch} does not have it",
            rule=f"fragments of an instruction of the target: this one is there from {atom.arch} on",
            remedy=_remedy(op, atom, arch),
        )


def _remedy(op: LaneMma, atom: MmaAtom, arch: str) -> str:
    """The shape of an instruction of ``arch`` for the same types, or another target."""
    later = f"compile for {atom.arch} or later"
    types = [atom.operands[i].dtype for i in "ABC"]
    known = [x for x in catalogue.mma(atom.kind) if of_lanes(x) and x.rank >= 0 and x.runs_on(arch)]
    shapes = sorted({x.shape for x in known if [x.operands[i].dtype for i in "ABC"] == types})
    if not shapes:
        return f"{later}: {arch} has no instruction for {types[0]} x {types[1]} + {types[2]}"
    shape = ", ".join(map(str, shapes[-1]))
    croqtile, python = f"`load_matrix_a<{shape}>(...)`", f"`load_matrix_a[{shape}](...)`"
    return f"load fragments of another shape, {spelled(op.span, croqtile, python)} and its siblings, or {later}"
