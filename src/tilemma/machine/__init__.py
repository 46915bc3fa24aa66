"""The PTX machine: executes PTX text on the CPU and reports hazards that hardware hides.

``run`` executes once, ``check`` under many adversarial schedules.  The package depends on element types, the
launch plan and the PTX ISA, not on the compiler.
"""

from tilemma.machine import catalogue
from tilemma.machine.adapters.triton import triton
from tilemma.machine.arguments import Struct, TensorMap
from tilemma.machine.hazards import HazardError, PerformanceNote
from tilemma.machine.inspection import View, inspect
from tilemma.machine.problems import BadMachineCall, UnsupportedInstruction
from tilemma.machine.recording import Recording, record
from tilemma.machine.repairs import Advice, advise
from tilemma.machine.run import Report, Verdict, check, run

__all__ = [
    "Advice", "BadMachineCall", "HazardError", "PerformanceNote", "Recording", "Report", "Struct", "TensorMap",
    "UnsupportedInstruction", "Verdict", "View", "advise", "catalogue", "check", "inspect", "record", "run",
    "triton",
]  # fmt: skip
