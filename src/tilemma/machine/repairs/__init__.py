"""Repairs of a program with a hazard: candidates are tried on the machine, the first that cures is advised."""

from tilemma.machine.repairs.trial import Advice, advise

__all__ = ["Advice", "advise"]
