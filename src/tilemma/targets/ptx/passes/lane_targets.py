"""The instructions of single lanes' registers, against the target."""

from __future__ import annotations

from tilemma.atoms import MmaAtom, catalogue
from tilemma.ir.named_atoms import AtomMismatch
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
            problem=f"is no instruction of {arch}",
            rule=f"a target that has it, from {atom.arch} on",
            remedy=f"name an instruction of the target: `tilemma atoms --arch {arch}` lists them",
        )
